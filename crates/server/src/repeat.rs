//! The answer to a request that an earlier process of this server was sent first.
//!
//! What that process remembered is the answer, but for what died with it: an open that the client had not heard of is opened again, and what was to
//! take, change or end an open or a lock is done once more, since the client has had them again meanwhile.

use aqueduct_fs::{Context, Errno, FileSystem, OpenFlags, Reply, Request, SetAttr, Source, WriteAt, Written};
use aqueduct_wire::{Header, Op};
use bytes::Bytes;

use crate::intent;
use crate::journal::{Outcome, Record};
use crate::state::Server;

/// What to do about a repeat.
pub(crate) enum Repeat {
    /// Execute it.
    Execute,
    /// It was executed: the answer.
    Answer(Result<Reply, Errno>),
}

/// The answer to a repeat of `request`, or that it is to be executed.
pub(crate) async fn repeat(
    filesystem: &dyn FileSystem,
    context: &Context,
    request: &Request<'_>,
    record: Record,
) -> Repeat {
    match remembered(Op::of(request), record) {
        Err(error) => Repeat::Answer(Err(error)),
        Ok(reply) => again(filesystem, context, request, reply).await,
    }
}

/// The answer to a repeat of a write. What the first try wrote may have been lost with the machine since: then it is written again, where it was.
pub(crate) async fn repeat_write(
    (filesystem, server): (&dyn FileSystem, &Server),
    context: &Context,
    write: WriteAt,
    data: Source,
    record: Record,
) -> Result<Written, Errno> {
    let before = remembered(Op::Write, record)?.written()?;
    // Nothing of what was stable when it was answered is lost.
    if before.verifier == 0 || write.stable {
        return Ok(before);
    }
    let again = WriteAt { offset: before.offset, append: false, ..write };
    let now = filesystem.write(context, again, Source::Memory(Bytes::new())).await?;
    if now.verifier == before.verifier {
        return Ok(before);
    }
    let data = match data {
        Source::Memory(data) => data,
        // Its client sends them.
        Source::Staged(_) => return Err(Errno::ENODATA),
    };
    let data = data.slice(..data.len().min(before.count as usize));
    write_lost((filesystem, server), context, (write, again), data).await
}

/// Writes `again` what was lost. Where an append went another client may have appended since, as the file had become shorter: then it goes to the end.
async fn write_lost(
    (filesystem, server): (&dyn FileSystem, &Server),
    context: &Context,
    (write, again): (WriteAt, WriteAt),
    data: Bytes,
) -> Result<Written, Errno> {
    let handle = filesystem.inode(context.client, write.open).await?;
    if !write.append {
        let _no_append = server.exclusion.resizes(&server.leases, filesystem, handle.bytes()).await;
        return filesystem.write(context, again, Source::Memory(data)).await;
    }
    let _others_wait = server.exclusion.appends(&server.leases, filesystem, &handle).await;
    let is_taken = intent::is_taken(filesystem, context, (&handle, again.offset), &data).await;
    filesystem.write(context, if is_taken { write } else { again }, Source::Memory(data)).await
}

/// The reply that a record has; EIO if none says what the first try came to.
pub(crate) fn remembered(op: Op, record: Record) -> Result<Reply, Errno> {
    if record.op != op as u16 {
        return Err(Errno::EPROTO);
    }
    match record.outcome {
        Outcome::Replied { header: Header { status: 0, .. }, body } => {
            aqueduct_wire::decode_reply(op, &body).map_err(|_| Errno::EIO)
        }
        Outcome::Replied { header, .. } => Err(Errno::from_raw(header.status as i32)),
        Outcome::Intended(_) | Outcome::Forgotten => Err(Errno::EIO),
    }
}

/// What the client wrote before, and has sent again since the machine died, may have made a file longer again that a request of which it had not heard
/// had cut off: what cuts it off once more.
pub(crate) fn cut_again<'a>(request: &Request<'a>, reply: &'a Reply) -> Option<Request<'a>> {
    let (handle, open, size) = match (request, reply) {
        (Request::SetAttr { handle, open, set: SetAttr { size: Some(size), .. } }, _) => (*handle, *open, *size),
        (Request::Open { handle, flags }, Reply::Opened(opened)) if flags.contains(OpenFlags::TRUNCATE) => {
            (*handle, Some(opened.id), 0)
        }
        (Request::Create { flags, .. }, Reply::Created(entry, opened)) if flags.contains(OpenFlags::TRUNCATE) => {
            (entry.handle.bytes(), Some(opened.id), 0)
        }
        _ => return None,
    };
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    Some(Request::SetAttr { handle, open, set })
}

/// The effect of a success on what this process has open and locked.
async fn again(filesystem: &dyn FileSystem, context: &Context, request: &Request<'_>, reply: Reply) -> Repeat {
    match (request, &reply) {
        (Request::SetLock { .. }, _) => Repeat::Execute,
        (Request::Flush { .. } | Request::Release { .. } | Request::ReleaseDirectory { .. }, _) => {
            match filesystem.call(context, request.clone()).await {
                Err(Errno::EBADF) => Repeat::Answer(Ok(Reply::Done)), // it was not had again, or has been released by the first try
                result => Repeat::Answer(result),
            }
        }
        (_, Reply::Opened(opened) | Reply::Created(_, opened)) => {
            let reopen = Request::Reopen { open: opened.id, token: &opened.token };
            let exclusive = matches!(request, Request::Create { flags, .. } if flags.contains(OpenFlags::EXCLUSIVE));
            match filesystem.call(context, reopen).await {
                Ok(_) => Repeat::Answer(Ok(reply)),
                Err(error) if exclusive => Repeat::Answer(Err(error)),
                // It is gone, as a file without a name is; nobody has heard of it, so another is as good.
                Err(_) => Repeat::Execute,
            }
        }
        _ => Repeat::Answer(Ok(reply)),
    }
}
