//! Giving leases back: a thread for each session of a volume waits until nothing relies on what is
//! recalled, has the kernel forget it, and tells the server. No request waits for it but those
//! that have the kernel forget what they are about to change, which have another thread.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ahash::HashMap;
use aqueduct_fs::Aspects;
use aqueduct_wire::LeaseId;

use super::leases::Leases;
use super::recalls::Forget;
use crate::volume::{Open, Volume};

fn forget(leases: &Leases, forget: &Forget) {
    if let Some(observer) = leases.observer() {
        observer.forget(&forget.handle, forget.aspects);
    }
    forget.set_done();
}

/// A lease that is being given back.
struct Leaving {
    epoch: u64,
    /// As the server called it, if it asked.
    lease: Option<LeaseId>,
    /// How often it was said to leave by itself.
    by_itself: usize,
    /// Opens that the server is asked for first, and how often that had failed before.
    opens: Option<Vec<(u32, Arc<Open>)>>,
}

/// By their inodes, each once, also if it is asked for while it leaves by itself, or twice: what was waited for by one must have been waited for when the inode
/// goes.
#[derive(Default)]
struct AllLeaving(HashMap<Arc<[u8]>, Leaving>);

impl AllLeaving {
    fn of(&mut self, leases: &Leases, handle: Arc<[u8]>, epoch: u64) -> &mut Leaving {
        let new = || Leaving { epoch, lease: None, by_itself: 0, opens: None };
        let leaving = self.0.entry(handle).or_insert_with(new);
        if leaving.epoch != epoch {
            leases.recalls.has_left(leaving.by_itself);
            *leaving = new();
        }
        leaving
    }

    /// The server asks for a lease. False: nothing is kept under it, and it may have it at once.
    fn recalled(&mut self, leases: &Leases, (epoch, lease): (u64, LeaseId)) -> bool {
        if epoch != leases.epoch() {
            return false; // all was forgotten since, and this session has other leases under such names
        }
        let Some(handle) = leases.recall(lease) else { return false };
        let leaving = self.of(leases, handle, epoch);
        leaving.lease = leaving.lease.max(Some(lease));
        true
    }

    /// An inode leaves by itself.
    fn leaves(&mut self, leases: &Leases, handle: Arc<[u8]>) {
        if leases.is_leaving(&handle) {
            self.of(leases, handle, leases.epoch()).by_itself += 1;
        } else {
            leases.recalls.has_left(1); // it was recalled since, and has gone
        }
    }

    /// Forgets all that is free. Returns what the server can be told of.
    fn go(&mut self, leases: &Leases, is_free: impl Fn(&[u8], &mut Leaving) -> bool) -> Vec<(u64, LeaseId)> {
        let mut back = Vec::new();
        self.0.retain(|handle, leaving| {
            let is_free = is_free(handle, leaving);
            if is_free {
                back.extend(give_back(leases, handle, leaving).map(|lease| (leaving.epoch, lease)));
                leases.recalls.has_left(leaving.by_itself);
            }
            !is_free
        });
        back
    }
}

/// Starts the threads that give back what a session of a volume grants.
pub(crate) fn start(volume: &Arc<Volume>, leases: &Arc<Leases>) -> std::io::Result<()> {
    let (weak, shared) = (Arc::downgrade(volume), leases.clone());
    std::thread::Builder::new().name("recall".into()).spawn(move || run(&shared, &weak))?;
    let shared = leases.clone();
    std::thread::Builder::new().name("forget".into()).spawn(move || {
        while let Some(next) = shared.recalls.forgets.next() {
            // What the kernel is being told it cannot forget yet.
            shared.holds.wait_for_answers(Some(shared.hash(&next.handle)));
            forget(&shared, &next);
        }
    })?;
    Ok(())
}

fn run(leases: &Leases, volume: &Weak<Volume>) {
    let mut leaving = AllLeaving::default();
    let mut until = None;
    while let Some(work) = leases.recalls.next(until) {
        let mut back: Vec<(u64, LeaseId)> = Vec::new();
        for recalled in work.recalled {
            leases.uses.recalls.increment();
            if !leaving.recalled(leases, recalled) {
                back.push(recalled);
            }
        }
        work.leaving.into_iter().for_each(|handle| leaving.leaves(leases, handle));
        work.forget.iter().for_each(|next| forget(leases, next));
        let Some(volume) = volume.upgrade() else { return };
        leases.recalls.awaits_holds.store(true, Ordering::SeqCst);
        let soonest = Cell::new(None);
        back.extend(leaving.go(leases, |handle, leaving| is_free(leases, &volume, (handle, leaving), &soonest)));
        until = soonest.get().map(|left| Instant::now() + left);
        leases.recalls.awaits_holds.store(!leaving.0.is_empty(), Ordering::SeqCst);
        return_leases(leases, &volume, &back);
    }
}

/// Whether nothing relies on a lease any more, at this session or at others. Where that is a
/// matter of time only, `soonest` is no later.
fn is_free(
    leases: &Leases,
    volume: &Volume,
    (handle, leaving): (&[u8], &mut Leaving),
    soonest: &Cell<Option<Duration>>,
) -> bool {
    if leases.epoch() != leaving.epoch {
        return true; // all was forgotten since
    }
    let which = leases.which(handle);
    if leases.writeback.has(which) {
        leases.writeback.seal_and_send(which);
        return false;
    }
    if leases.is_held(handle) || !volume.is_quiet(handle) {
        return false;
    }
    // After what the kernel was being told, and nothing more is told under a lease that leaves.
    let left = leases.observer().map_or(Duration::ZERO, |observer| observer.names_left(handle));
    if !left.is_zero() {
        soonest.set(Some(soonest.get().map_or(left, |soonest| soonest.min(left))));
        return false;
    }
    // Who has the file next finds what went straight, also when its server's machine dies.
    if !volume.begin_to_close_lanes(handle) {
        return false;
    }
    let opens = leaving.opens.get_or_insert_with(|| {
        let opens = volume.opens.unsettled_of(handle);
        opens.into_iter().map(|open| (open.failures(), open)).collect()
    });
    // Also one that could not be had when nobody needed it; once.
    let unsettled = opens.iter().filter(|(failures, open)| !open.is_settled(*failures));
    let asked = unsettled.map(|(_, open)| volume.make_real(open)).count();
    asked == 0
}

/// Tells the server which leases are not used any more. Those of earlier sessions it does not
/// have.
fn return_leases(leases: &Leases, volume: &Volume, back: &[(u64, LeaseId)]) {
    let epoch = leases.epoch();
    let present: Vec<LeaseId> = back.iter().filter(|(of, _)| *of == epoch).map(|(_, lease)| *lease).collect();
    if !present.is_empty() {
        volume.sessions[leases.session()].return_leases(epoch, &present);
    }
}

/// Has the kernel forget an inode, and forgets it here. Returns what the lease is called by now.
fn give_back(leases: &Leases, handle: &Arc<[u8]>, leaving: &Leaving) -> Option<LeaseId> {
    if leases.epoch() != leaving.epoch {
        return None;
    }
    if !leases.is_leaving(handle) {
        return leaving.lease; // it has gone, and what is kept now came later
    }
    if let Some(observer) = leases.observer() {
        observer.forget_names_of(handle);
    }
    let aspects = leases.take_told(handle, Aspects::all());
    if !aspects.is_empty() {
        forget(leases, &Forget { handle: handle.clone(), aspects, done: None });
    }
    let present = leases.give_back(handle);
    present.into_iter().chain(leaving.lease).max()
}

#[cfg(test)]
mod tests {
    use aqueduct_session::Brought;

    use super::*;
    use aqueduct_worker::lock;

    const FILE: &[u8] = b"file";
    const FIRST: LeaseId = LeaseId(1 << 32 | 7);
    const LATER: LeaseId = LeaseId(9 << 32 | 7);

    /// An answer brings a lease on the file.
    fn granted(leases: &Leases, lease: LeaseId) {
        let brought = Brought { epoch: leases.epoch(), sent: 5, ..Brought::default() };
        let asked = leases.asks();
        leases.keep(FILE, (lease, Aspects::ATTRIBUTES), (asked, &brought), |_, _, _| ()).expect("it is kept");
    }

    fn leave_by_itself(leases: &Leases) {
        let handles = leases.shard(leases.hash(FILE), |shard| shard.leave_eldest(1));
        assert_eq!(handles.len(), 1);
        leases.recalls.give_back(handles);
    }

    fn come_to_leave(leases: &Leases, leaving: &mut AllLeaving) {
        for handle in std::mem::take(&mut lock(&leases.recalls.work).leaving) {
            leaving.leaves(leases, handle);
        }
    }

    #[test]
    fn what_leaves_by_itself_and_is_recalled_goes_once() {
        for recalled_first in [true, false] {
            let (leases, mut leaving) = (Leases::default(), AllLeaving::default());
            granted(&leases, FIRST);
            leave_by_itself(&leases);
            if !recalled_first {
                come_to_leave(&leases, &mut leaving);
            }
            // Servers ask once more on each new connection.
            assert!(leaving.recalled(&leases, (0, FIRST)) && leaving.recalled(&leases, (0, FIRST)));
            come_to_leave(&leases, &mut leaving);
            assert_eq!(leaving.0.len(), 1);
            assert_eq!(leaving.go(&leases, |_, _| false), []);
            assert!(leases.is_leaving(FILE) && !leases.recalls.has_room());
            assert_eq!(leaving.go(&leases, |_, _| true), [(0, FIRST)]);
            assert!(leaving.0.is_empty() && leases.recalls.has_room());
        }
    }

    /// It was to leave by itself, and nobody has come to see to that yet when it is recalled and goes.
    #[test]
    fn what_came_since_does_not_leave_for_what_was_before() {
        let (leases, mut leaving) = (Leases::default(), AllLeaving::default());
        granted(&leases, FIRST);
        leave_by_itself(&leases);
        assert!(leaving.recalled(&leases, (0, FIRST)));
        assert_eq!(leaving.go(&leases, |_, _| true), [(0, FIRST)]);
        granted(&leases, LATER);
        come_to_leave(&leases, &mut leaving);
        assert!(leaving.0.is_empty() && leases.recalls.has_room());
        assert!(!leases.is_leaving(FILE) && leases.kept().0 == 1);
    }

    #[test]
    fn what_was_asked_for_in_an_earlier_session_is_not_what_is_kept_now() {
        let (leases, mut leaving) = (Leases::default(), AllLeaving::default());
        granted(&leases, FIRST);
        leave_by_itself(&leases);
        come_to_leave(&leases, &mut leaving);
        leases.begin_epoch(1);
        granted(&leases, FIRST);
        assert!(!leaving.recalled(&leases, (0, FIRST)));
        assert!(!leases.is_leaving(FILE));
        assert!(leaving.recalled(&leases, (1, FIRST)), "while that of before is still waited for");
        assert!(leases.recalls.has_room());
        assert_eq!(leaving.go(&leases, |_, leaving| leaving.epoch == 1), [(1, FIRST)]);
    }
}
