//! Locks: fcntl(2) ranges and flock(2).

use aqueduct_fs::{Errno, LockKind, LockSpace, OpenId, Request};

use crate::abi::{Field, LK_FLOCK, LkIn, LkOut, opcode};
use crate::convert;
use crate::job::{Job, Outcome};

pub(crate) async fn answer(job: &Job) -> Result<Outcome, Errno> {
    let (ask, _) = job.args(LkIn::parse)?;
    let flock = ask.lk_flags & LK_FLOCK != 0;
    let space = if flock { LockSpace::Flock } else { LockSpace::Posix };
    let lock = convert::lock(&ask.lk, flock)?;
    let (open, owner) = (OpenId(ask.fh), ask.owner);
    if job.header.opcode == opcode::GETLK {
        let test = || job.call(Request::GetLock { open, owner, space, lock });
        let mut found = test().await?.lock()?;
        if found.kind != LockKind::Unlock {
            job.shared.settled(&job.context.cancel).await;
            found = test().await?.lock()?;
        }
        return Ok(Outcome::Done(LkOut { lk: convert::file_lock(&found) }.to_vec()));
    }
    if space == LockSpace::Posix && lock.kind != LockKind::Unlock {
        job.shared.nodes.mark(job.header.nodeid, |marks| marks.locked = true);
    }
    let wait = job.header.opcode == opcode::SETLKW && lock.kind != LockKind::Unlock;
    let take = || job.call(Request::SetLock { open, owner, space, lock, wait });
    let mut taken = take().await;
    if taken == Err(Errno::EAGAIN) && !wait {
        job.shared.settled(&job.context.cancel).await;
        taken = take().await;
    }
    taken?.done()?;
    // Who has a lock finds what others did before, through a mapping too.
    let (shared, node) = (&job.shared, job.header.nodeid);
    if lock.kind != LockKind::Unlock && shared.policy.pages && shared.nodes.marks(node).has_unleased_pages() {
        shared.page_drops.drop_now(node).await;
    }
    Ok(Outcome::Done(Vec::new()))
}
