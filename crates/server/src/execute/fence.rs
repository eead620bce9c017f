//! GIVE UP: a client ends links that it cannot use any more, over one that it can.

use std::future::poll_fn;
use std::sync::atomic::Ordering;

use aqueduct_fs::Errno;
use aqueduct_wire::{GiveUp, Header, Kind, Op};

use super::Job;

/// Whether a request changes something without a slot: what it does has to have ended before it is
/// asked for anew.
pub(super) fn changes_unslotted(header: &Header, op: Op) -> bool {
    header.sequence == 0 && matches!(op, Op::Write | Op::SetAttr | Op::SetLock | Op::Reopen)
}

impl Job {
    /// Answered when nothing of those links is executed or waits any more that has no slot. What
    /// has one is executed once, whoever asks again, and is not waited for: two clients could wait
    /// for each other.
    pub(super) async fn give_up(&self, body: &[u8]) -> Result<(), Errno> {
        let give_up = GiveUp::decode(body).map_err(|error| error.errno())?;
        if give_up.ends(self.running.link().number) {
            return Err(Errno::EINVAL); // by it the answer goes
        }
        let links = self.session.links(|number| give_up.ends(number));
        self.server.give_up_links(&self.session, &links);
        for link in &links {
            if !self.is_wanted_after(poll_fn(|task| link.poll_fence(task))).await {
                return Ok(());
            }
        }
        self.reply(Kind::Reply, Ok(()), &[]);
        Ok(())
    }

    /// Whether somebody wants it executed still.
    pub(super) fn is_wanted(&self) -> bool {
        // Of a link that was given up only what has a slot, since it will be asked for again
        // there.
        let is_given_up = self.running.link().is_given_up() && !self.in_slot.load(Ordering::Relaxed);
        !is_given_up && !self.session.has_ended() && !self.server.draining.load(Ordering::SeqCst)
    }
}
