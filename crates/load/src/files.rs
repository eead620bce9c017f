//! A client of a server, and files by their paths.

use std::sync::Arc;

use aqueduct_fs::{FileSystem, Handle, OpenFlags, OpenId, Request, SetAttr};
use aqueduct_node::{AttachConfig, Attachment, Carriers, caller, tool_workers};
use aqueduct_worker::Group;

use crate::arguments::Target;
use crate::failure::Failure;

/// Threads that carry requests, as the workers of a mount are.
pub fn workers(count: u32) -> Result<Vec<Arc<Group>>, Failure> {
    tool_workers(count as usize)
        .map_err(|error| format!("cannot start {count} workers: {error}; check the limits on processes and open files"))
}

/// A client without leases: each of its operations is a request to the server.
pub fn connect(
    target: &Target,
    name: String,
    (groups, bulk_lanes): (&[Arc<Group>], bool),
) -> Result<Attachment, Failure> {
    let config = AttachConfig { name, bulk_lanes, ..AttachConfig::new(&target.server, &target.export) };
    Attachment::connect(&config, Carriers::Shared(groups)).map_err(|error| format!("{error}; {}", error.hint()))
}

/// Opens the file at `path` below the export: made and emptied if it is `new`. Gives its size too.
pub async fn open(client: &dyn FileSystem, path: &str, flags: OpenFlags, new: bool) -> Result<(OpenId, u64), Failure> {
    let context = caller();
    let failed = |error| {
        let hint = if new { "see whether its directory is there" } else { "make it with 'io --op write'" };
        format!("cannot open '{path}' for {flags:?}: {error}; {hint}")
    };
    let mut names = path.split('/').filter(|name| !name.is_empty());
    let last = names.next_back().ok_or_else(|| format!("'{path}' names no file; give one with --name"))?.as_bytes();
    let root = client.call(&context, Request::Root).await.and_then(|reply| reply.entry()).map_err(failed)?;
    let mut parent: Handle = root.handle;
    for name in names {
        let lookup = Request::Lookup { parent: parent.bytes(), name: name.as_bytes() };
        parent = client.call(&context, lookup).await.and_then(|reply| reply.entry()).map_err(failed)?.handle;
    }
    if new {
        let create = Request::Create { parent: parent.bytes(), name: last, mode: 0o644, umask: 0, flags };
        let created = client.call(&context, create).await.and_then(|reply| reply.created());
        let (entry, opened) = created.map_err(failed)?;
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        let empty = Request::SetAttr { handle: entry.handle.bytes(), open: Some(opened.id), set };
        client.call(&context, empty).await.map_err(failed)?;
        return Ok((opened.id, 0));
    }
    let lookup = Request::Lookup { parent: parent.bytes(), name: last };
    let entry = client.call(&context, lookup).await.and_then(|reply| reply.entry()).map_err(failed)?;
    let open = Request::Open { handle: entry.handle.bytes(), flags };
    let opened = client.call(&context, open).await.and_then(|reply| reply.opened()).map_err(failed)?;
    Ok((opened.id, entry.attr.size))
}

/// Places that have nothing to do with each other (splitmix64, Steele, Lea and Flood 2014): the same in each run.
pub struct Places(pub u64);

impl Places {
    /// The next of `count` places.
    pub fn next(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % count.max(1)
    }
}
