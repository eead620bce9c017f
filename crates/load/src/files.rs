//! A client of a server, and files by their paths.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_client::{Client, ClientConfig};
use aqueduct_fs::{ClientId, Context, Credential, FileSystem, Groups, Handle, OpenFlags, OpenId, Request, SetAttr};
use aqueduct_wire::Checksums;
use aqueduct_worker::{Group, Settings};
use rustix::process::{getegid, geteuid, getgroups};

use crate::Failure;
use crate::arguments::Target;

/// The longest that a thread looks again before it sleeps, as in a mount.
const SPIN_MAX: Duration = Duration::from_micros(200);

/// A server of which nothing is heard for so long is connected to anew, as mounts do.
const SUSPECT: Duration = Duration::from_secs(5);

/// What is written and not stable yet, as mounts keep it.
const REPLAY_WINDOW: usize = 256 << 20;

/// Groups of one thread each, as the workers of a mount are.
pub fn workers(count: u32) -> Result<Vec<Arc<Group>>, Failure> {
    let worker = |index| {
        Group::new(Settings { name: format!("load{index}"), threads_min: 1, threads_max: 1, spin_max: SPIN_MAX })
    };
    (0..count)
        .map(worker)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("cannot start {count} workers: {error}; check the limits on processes and open files"))
}

/// A client without leases: each of its operations is a request to the server.
pub fn connect(
    target: &Target,
    name: String,
    (groups, bulk_lanes): (&[Arc<Group>], bool),
) -> Result<Arc<Client>, Failure> {
    let config = ClientConfig {
        server: target.server.clone(),
        export: target.export.clone(),
        name,
        read_only: false,
        soft: false,
        timeout: SUSPECT,
        key: None,
        replay_window: REPLAY_WINDOW,
        suspect: SUSPECT,
        checksums: Checksums::Auto,
        leases: false,
        gathers: false,
        bulk_lanes,
    };
    Client::connect(config, groups).map_err(|error| format!("{error}; {}", error.hint()))
}

/// Whoever runs this process.
pub fn caller() -> Context {
    let groups = getgroups().unwrap_or_default().iter().map(|group| group.as_raw()).collect();
    let groups = Groups::Known(groups);
    Context::new(ClientId(0), Credential { uid: geteuid().as_raw(), gid: getegid().as_raw(), groups })
}

/// Opens the file at `path` below the export: made and emptied if it is `new`. Gives its size too.
pub async fn open(client: &Client, path: &str, flags: OpenFlags, new: bool) -> Result<(OpenId, u64), Failure> {
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
