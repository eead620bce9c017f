//! What requests are to a session: which opens they use, whom they free, and whether they may be
//! sent again.

use aqueduct_fs::{LockKind, OpenFlags, OpenId, Reply, Request};
use aqueduct_wire::Class;

/// The opens that a request uses.
pub fn used(request: &Request<'_>) -> [Option<OpenId>; 2] {
    match request {
        Request::GetAttr { open, .. } | Request::SetAttr { open, .. } => [*open, None],
        Request::Flush { open, .. }
        | Request::Sync { open, .. }
        | Request::Commit { open, .. }
        | Request::Fallocate { open, .. }
        | Request::Seek { open, .. }
        | Request::Checksum { open, .. }
        | Request::Layout { open, .. }
        | Request::ReadDirectory { open, .. }
        | Request::SyncDirectory { open, .. }
        | Request::GetLock { open, .. }
        | Request::SetLock { open, .. } => [Some(*open), None],
        Request::CopyRange { from, to, .. } => [Some(*from), Some(*to)],
        _ => [None, None],
    }
}

/// What has the effect of an answered request on the opens and locks of a server that has
/// forgotten it.
pub(crate) fn again<'a>(request: &Request<'a>, reply: &'a Reply) -> Request<'a> {
    match reply {
        Reply::Opened(opened) | Reply::Created(_, opened) => Request::Reopen { open: opened.id, token: &opened.token },
        _ => request.clone(),
    }
}

/// Whether a request that was perhaps executed in a session that is over may be sent in the next
/// one: it only concerns what ended with the session.
pub(crate) fn is_repeatable(request: &Request<'_>) -> bool {
    match request {
        Request::Open { flags, .. } => !flags.contains(OpenFlags::TRUNCATE),
        Request::OpenDirectory { .. } | Request::Access { .. } => true,
        request => frees_others(request),
    }
}

/// Whether others may wait for what this request gives up.
pub fn frees_others(request: &Request<'_>) -> bool {
    match request {
        Request::Flush { .. } | Request::Release { .. } | Request::ReleaseDirectory { .. } => true,
        Request::SetLock { lock, .. } => lock.kind == LockKind::Unlock,
        _ => false,
    }
}

/// The class of slots in which a request travels.
pub(crate) fn class_of(request: &Request<'_>) -> Class {
    if frees_others(request) { Class::Releasing } else { Class::Ordinary }
}
