//! The seam to the layers above: what a server says of leases is passed on as plain data to the
//! [`Holder`], which keeps what they cover. The session itself keeps no leases and answers nothing
//! from memory.

use std::time::Duration;

use aqueduct_fs::{Aspects, Attr, Context, Errno, Opened, Request, WriteAt, Written};
use aqueduct_wire::{AttachReply, Flags, Grant, HelloReply, LeaseId, Map, Ordinal, Subject};
use rustix::time::{ClockId, clock_gettime};

use crate::connect::ConnectError;
use crate::opens::Opens;
use crate::slots::KeptSlot;

/// Nanoseconds since boot.
pub type Nanos = u64;

/// Time since boot, the machine's sleep included: a lease runs out meanwhile. No system call where
/// the kernel's vDSO has the clock, as on x86-64 and arm64.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as Nanos * 1_000_000_000 + time.tv_nsec as Nanos
}

/// The same, as a duration.
pub fn boottime() -> Duration {
    Duration::from_nanos(now())
}

/// What a request asks for beside its reply, and what the reply says beside its result: when it
/// was asked for, in which epoch it was answered, and which leases it grants.
#[derive(Clone, Debug, Default)]
pub struct Brought {
    /// That of the connection on which the answer came.
    pub epoch: u64,
    /// When the request was sent.
    pub sent: Nanos,
    /// The leases that the answer grants.
    pub grants: Vec<Grant>,
    /// Of the directory in which the request has changed a name.
    pub changed: Option<Attr>,
    /// What the request asks for beside leases, where there are some at all.
    pub asks: Flags,
    /// The request was sent, and nobody knows whether it will be executed yet.
    pub is_open: bool,
}

impl Brought {
    /// The lease on the inode that the answer is about.
    pub fn of_inode(&self) -> Option<(LeaseId, Aspects)> {
        self.lease(Subject::Inode).or_else(|| self.lease(Subject::Bare))
    }

    /// Whether the inode has no access control lists and no capabilities.
    pub fn is_bare(&self) -> bool {
        self.lease(Subject::Bare).is_some()
    }

    /// The lease on a subject.
    pub fn lease(&self, subject: Subject) -> Option<(LeaseId, Aspects)> {
        let grant = self.grants.iter().find(|grant| grant.subject == subject)?;
        Some((grant.lease, grant.aspects))
    }
}

/// Whoever keeps what a server grants, and holds back what programs did under that. A session has
/// one, or none: then it asks for no leases.
///
/// It is called by workers, and by the thread that connects again; what is called in a recovery
/// holds that up.
pub trait Holder: Send + Sync {
    /// A connection was greeted, perhaps by another server process than before.
    fn greeted(&self, hello: &HelloReply);

    /// The server says which map of its volume holds now.
    fn mapped(&self, map: Map) {
        let _ = map;
    }

    /// The export's terms are these from now on.
    fn attached(&self, hello: &HelloReply, attached: &AttachReply);

    /// Whether requests ask for leases now.
    fn asks(&self) -> bool;

    /// An answer that renews leases came in this epoch to what was sent then.
    fn renewed(&self, epoch: u64, sent: Nanos);

    /// The server wants leases back, which it granted in this epoch. False: more than it can have
    /// granted.
    fn recalled(&self, epoch: u64, leases: &[LeaseId]) -> bool;

    /// Another epoch begins: what was granted before is over when this returns, and what was sent
    /// before is not answered any more.
    fn epoch_begins(&self, epoch: u64);

    /// What the session had open is open again: opens of which the server did not know can be had
    /// now, before others take right or file away. Returns how many the server refused.
    fn reopen(&self, recovery: &mut dyn Recovery) -> Result<usize, ConnectError> {
        let _ = recovery;
        Ok(0)
    }

    /// The session is about to say Recovered: what was held back is sent now. Returns how many
    /// bytes that was.
    fn send_held(&self, recovery: &mut dyn Recovery) -> Result<usize, ConnectError>;

    /// The session is a new one: what was held back in the old one is lost.
    fn lose_held(&self, recovery: &mut dyn Recovery);

    /// The recovery is over.
    fn goes_on(&self);
}

/// A session in its recovery, as its holder may use it. The outer errors end the recovery, which
/// is begun again; the inner ones are the server's.
pub trait Recovery {
    /// The present epoch.
    fn epoch(&self) -> u64;

    /// `host:port`, as it was given.
    fn server(&self) -> &str;

    /// Whether the session is being disconnected.
    fn is_closing(&self) -> bool;

    /// What the session has open.
    fn opens(&self) -> &Opens;

    /// Sends a request that needs no slot.
    fn call(
        &mut self,
        context: &Context,
        request: &Request<'_>,
        flags: Flags,
    ) -> Result<Result<(), Errno>, ConnectError>;

    /// Opens something, in a slot for what frees others. `None`: there is no such slot now.
    fn open(&mut self, context: &Context, request: &Request<'_>)
    -> Result<Option<Result<Opened, Errno>>, ConnectError>;

    /// Sends what was held back of a write, and keeps a copy until it is stable. `ordinal`: it is
    /// a repeat of what was written beside others; EIO when another client has repeated something
    /// there.
    fn write_held(
        &mut self,
        context: &Context,
        write: (WriteAt, Option<Ordinal>),
        data: &bytes::Bytes,
    ) -> Result<Result<Written, Errno>, ConnectError>;

    /// The same of an append, in the slot that it keeps: it is not executed once more where it was
    /// before.
    fn append_held(
        &mut self,
        context: &Context,
        write: (WriteAt, &KeptSlot),
        data: &bytes::Bytes,
    ) -> Result<Result<(), Errno>, ConnectError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_on() {
        let before = now();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(now() >= before + 1_000_000);
    }
}
