//! From a request of the kernel to an operation of the file system, and from its result to the reply.

use aqueduct_fs::Errno;

use crate::abi::{EntryOut, opcode};
use crate::job::{Job, Outcome};
use crate::ops::{attributes, directories, files, locks, names};

/// Answers one request. Returns the error with which.
pub(crate) async fn run(job: &Job) -> Option<Errno> {
    let refused = loop {
        match answer(job).await {
            Ok(Outcome::Done(body)) => {
                let _ = job.responder.done(&[&body]); // nobody waits for it
                return None;
            }
            // This process was held up: what was said then may be over.
            Ok(Outcome::Granted(_, grant)) if grant.lease.is_stale() && !grant.is_change => {
                // Few requests come here. Boxed, its state takes no room in that of the others.
                Box::pin(job.take_back(grant)).await;
            }
            Ok(Outcome::Granted(mut body, grant)) => {
                if grant.lease.is_stale() {
                    EntryOut::keep_nothing(&mut body);
                }
                match job.responder.done(&[&body]) {
                    Err(_) => break grant,
                    Ok(()) => {
                        if grant.lease.is_stale() {
                            job.distrust(&grant);
                        }
                        return None; // what was held is let go of now
                    }
                }
            }
            Ok(Outcome::Delivered) => return None,
            Err(errno) => {
                tracing::debug!(opcode = job.header.opcode, node = job.header.nodeid, %errno, "request failed");
                job.shared.metrics.failed(job.header.opcode);
                job.responder.failed(errno);
                return Some(errno);
            }
        }
    };
    Box::pin(job.take_back(refused)).await;
    None
}

/// The kernel takes ENOSYS for "never ask again", for the whole mount; only an operation that nobody here implements says so.
async fn answer(job: &Job) -> Result<Outcome, Errno> {
    let result = match job.header.opcode {
        opcode::LOOKUP
        | opcode::SYMLINK
        | opcode::MKNOD
        | opcode::MKDIR
        | opcode::UNLINK
        | opcode::RMDIR
        | opcode::RENAME
        | opcode::RENAME2
        | opcode::LINK
        | opcode::READLINK => names::answer(job).await,
        opcode::GETATTR
        | opcode::SETATTR
        | opcode::STATX
        | opcode::STATFS
        | opcode::ACCESS
        | opcode::SETXATTR
        | opcode::GETXATTR
        | opcode::LISTXATTR
        | opcode::REMOVEXATTR => attributes::answer(job).await,
        opcode::READ => files::read(job).await,
        opcode::WRITE => files::write(job).await,
        opcode::OPEN
        | opcode::CREATE
        | opcode::TMPFILE
        | opcode::RELEASE
        | opcode::FLUSH
        | opcode::FSYNC
        | opcode::FALLOCATE
        | opcode::LSEEK
        | opcode::COPY_FILE_RANGE
        | opcode::COPY_FILE_RANGE_64 => files::answer(job).await,
        opcode::OPENDIR | opcode::READDIR | opcode::READDIRPLUS | opcode::RELEASEDIR | opcode::FSYNCDIR => {
            directories::answer(job).await
        }
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => locks::answer(job).await,
        opcode::IOCTL => Err(Errno::ENOTTY),
        opcode::DESTROY => {
            job.shared.end();
            Ok(Outcome::Done(Vec::new()))
        }
        // A second INIT; the first was answered before the session began.
        opcode::INIT => Err(Errno::EIO),
        // POLL: every file is ready. SYNCFS: never sent to a mount of this kind. BMAP and what is unknown.
        _ => return Err(Errno::ENOSYS),
    };
    result.map_err(|errno| if errno == Errno::ENOSYS { Errno::EOPNOTSUPP } else { errno })
}
