//! Whether a request in a slot is executed: once, and after what came before it there.

use std::future::poll_fn;
use std::sync::atomic::Ordering;

use aqueduct_fs::Errno;
use aqueduct_wire::{Header, Kind};

use super::Job;
use crate::complaints::Complaint;
use crate::journal::Record;
use crate::session::Admission;

/// Which try of a request that changes something.
pub(super) enum Try {
    /// `may_be_old`: or an earlier process was sent it, and the machine has lost what that left.
    First { may_be_old: bool },
    /// A repeat, of which an earlier process left this.
    AfterRestart(Record),
}

impl Job {
    /// What there is to do for a request that changes something; `None`: it has been answered or
    /// will be, or nobody is there any more.
    pub(super) async fn admit(&self) -> Result<Option<Try>, Errno> {
        let mut admission = self.session.admit(&self.header, || self.asker());
        while let Admission::Behind = admission {
            let ended = poll_fn(|task| self.session.slot_ended(&self.header, self.running.link(), task));
            if !self.is_wanted_after(ended).await {
                return Ok(None);
            }
            admission = self.session.admit(&self.header, || self.asker());
            if matches!(admission, Admission::Behind) && self.connection.is_closed() {
                return Ok(None); // others want its place, and it has not begun
            }
        }
        let is_executed = matches!(admission, Admission::New { .. } | Admission::Restored(_));
        self.in_slot.store(is_executed, Ordering::Relaxed);
        match admission {
            Admission::New { may_be_old } => Ok(Some(Try::First { may_be_old })),
            Admission::Restored(record) => Ok(Some(Try::AfterRestart(record))),
            Admission::Attached | Admission::Behind => Ok(None),
            Admission::Waits => {
                self.server.metrics.repeated.increment();
                self.reply(Kind::Pending, Ok(()), &[]);
                Ok(None)
            }
            Admission::Remembered(header, body) => {
                self.server.metrics.repeated.increment();
                self.send(Header { request: self.header.request, ..header }, &body);
                Ok(None)
            }
            Admission::Refused(reason) => {
                let what = format_args!("refused a request of {} for {}: {reason}", self.session.name, self.op.name());
                self.server.complaints.tell(&self.session.origin, Complaint::Request, what);
                Err(Errno::EPROTO)
            }
        }
    }
}
