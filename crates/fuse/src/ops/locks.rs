//! Locks: fcntl(2) ranges and flock(2).

use aqueduct_fs::{Errno, LockKind, LockSpace, OpenId, Request};

use crate::abi::{Field, LK_FLOCK, LkIn, LkOut, opcode};
use crate::convert;
use crate::dispatch::{Job, Outcome};

pub(crate) async fn answer(job: &Job) -> Result<Outcome, Errno> {
    let (ask, _) = job.args(LkIn::parse)?;
    let flock = ask.lk_flags & LK_FLOCK != 0;
    let space = if flock { LockSpace::Flock } else { LockSpace::Posix };
    let lock = convert::lock(&ask.lk, flock)?;
    let (open, owner) = (OpenId(ask.fh), ask.owner);
    if job.header.opcode == opcode::GETLK {
        let found = job.call(Request::GetLock { open, owner, space, lock }).await?.lock()?;
        return Ok(Outcome::Done(LkOut { lk: convert::file_lock(&found) }.to_vec()));
    }
    let wait = job.header.opcode == opcode::SETLKW && lock.kind != LockKind::Unlock;
    job.call(Request::SetLock { open, owner, space, lock, wait }).await?.done()?;
    Ok(Outcome::Done(Vec::new()))
}
