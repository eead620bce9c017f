//! A piece of a system call, in its turn ([`crate::turns`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aqueduct_fs::{Context, Errno, Lock, LockKind, LockSpace, OpenId, Request};
use aqueduct_worker::{Group, lock};

use crate::caller::{Syscall, syscall};
use crate::job::Job;
use crate::shared::Shared;
use crate::turns::Turn;

/// A thread that has just asked is not waiting yet: so often is looked again, after so long.
const LOOKS: usize = 20;
const LOOK: Duration = Duration::from_micros(200);

/// How often is looked whether a thread that has not asked for the next piece will.
const WATCH: Duration = Duration::from_millis(50);

/// One that does not for so long has lost its turn, though it may go on: others wait.
const TURN_MAX: Duration = Duration::from_secs(30);

/// A piece of a system call, which has its turn.
pub(crate) struct Piece<'a> {
    job: &'a Job,
    next: Turn,
    length: u64,
}

impl Job {
    /// Waits for the turn of what the kernel asks for. `None`: there are none on this mount.
    pub(crate) async fn turn(
        &self,
        (open, kind): (OpenId, LockKind),
        (offset, length): (u64, u32),
    ) -> Result<Option<Piece<'_>>, Errno> {
        let shared = &self.shared;
        if !shared.config.takes_turns {
            return Ok(None);
        }
        let (tid, length) = (self.header.pid, u64::from(length));
        let fits = |turn: &Turn| (turn.open, turn.kind, turn.offset) == (open, kind, offset) && length <= turn.left;
        match shared.turns.take(tid, fits) {
            Some(Ok(turn)) => return Ok(Some(Piece::begin(self, turn, length))),
            Some(Err(over)) => give_back(shared, &self.context, &over).await,
            None => {}
        }
        let (all, call) = self.length_of_call(length).await;
        let owner = shared.turns.owners.fetch_add(1, Ordering::SeqCst);
        let turn = Turn { open, kind, owner, offset, left: all, call };
        let taken = set(shared, &self.context, (&turn, kind), true).await;
        if let Err(error) = taken {
            // It may have been granted just before it was given up.
            give_back(shared, &self.context, &turn).await;
            return Err(error);
        }
        Ok(Some(Piece::begin(self, turn, length)))
    }

    /// How many bytes the system call of the caller is about, and what tells it from others.
    async fn length_of_call(&self, length: u64) -> (u64, Box<str>) {
        for _ in 0..LOOKS {
            match syscall(self.header.pid) {
                Syscall::Moves(all, call) if all >= length => return (all, call),
                Syscall::Runs => {}
                Syscall::Unseen if !self.shared.turns.told.swap(true, Ordering::Relaxed) => {
                    tracing::warn!(
                        "a program cannot be seen in /proc, as in a pid namespace of its own: what it reads and writes is whole only up to {} KiB",
                        self.shared.negotiated.max_transfer >> 10
                    );
                    break;
                }
                _ => break,
            }
            if let Some(group) = Group::current() {
                group.sleep(LOOK).await;
            }
        }
        (length, Box::default())
    }
}

impl<'a> Piece<'a> {
    /// The next piece may come as soon as this one is answered: before that is known here.
    fn begin(job: &'a Job, turn: Turn, length: u64) -> Piece<'a> {
        let next = Turn { offset: turn.offset + length, left: turn.left - length, ..turn };
        if next.left > 0 {
            lock(&job.shared.turns.going).insert(job.header.pid, next.clone());
        }
        Piece { job, next, length }
    }

    /// The piece has been answered by the file system. What is shorter than it was asked for is
    /// the last.
    pub(crate) async fn end(self, done: Result<u64, Errno>) {
        let Piece { job, next, length } = self;
        let (shared, tid) = (&job.shared, job.header.pid);
        if next.left == 0 {
            return give_back(shared, &job.context, &next).await;
        }
        if done != Ok(length) {
            if let Some(over) = shared.turns.take_if(tid, &next) {
                give_back(shared, &job.context, &over).await;
            }
            return;
        }
        if let Some(group) = Group::current().filter(|_| shared.turns.has(tid, &next)) {
            let (shared, context, of_watch) = (shared.clone(), job.context.clone(), group.clone());
            group.spawn(async move { watch((&shared, &of_watch), &context, (tid, &next)).await });
        }
    }
}

/// Gives a turn back when its thread does something else than to ask for the next piece.
async fn watch((shared, group): (&Arc<Shared>, &Group), context: &Context, (tid, turn): (u32, &Turn)) {
    let began = Instant::now();
    loop {
        group.sleep(WATCH).await;
        if !shared.turns.has(tid, turn) {
            return;
        }
        let goes_on = match syscall(tid) {
            Syscall::Moves(_, call) => call == turn.call,
            Syscall::Runs => true,
            Syscall::Other | Syscall::Unseen => false,
        };
        if goes_on && began.elapsed() < TURN_MAX && !shared.ended() {
            continue;
        }
        if let Some(over) = shared.turns.take_if(tid, turn) {
            give_back(shared, context, &over).await;
        }
        return;
    }
}

async fn set(shared: &Shared, context: &Context, (turn, kind): (&Turn, LockKind), wait: bool) -> Result<(), Errno> {
    let lock = Lock { start: 0, end: u64::MAX, kind, pid: context.pid };
    let request = Request::SetLock { open: turn.open, owner: turn.owner, space: LockSpace::Turn, lock, wait };
    shared.filesystem.call(context, request).await?.done()
}

/// Whatever becomes of the caller, others get their turn.
async fn give_back(shared: &Shared, context: &Context, turn: &Turn) {
    let context = Context { cancel: aqueduct_fs::Cancel::default(), ..context.clone() };
    if let Err(error) = set(shared, &context, (turn, LockKind::Unlock), false).await {
        tracing::debug!(%error, "a turn was not given back: it ends with its file");
    }
}
