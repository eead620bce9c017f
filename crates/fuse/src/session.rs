//! A mount that is served: its start and its end.

use std::io;
use std::sync::{Arc, Weak, mpsc};

use aqueduct_fs::{Context, Credential, Entry, FileSystem, Handle, Observer, Reply, Request, TRANSFER_SIZE_MAX};
use aqueduct_metrics::{Collect, Snapshot};
use aqueduct_worker::Group;

use crate::abi;
use crate::buffer::Pool;
use crate::caches::KernelCaches;
use crate::config::{Config, StatusPart};
use crate::device::{Device, DeviceChannel};
use crate::error::StartError;
use crate::init;
use crate::mount;
use crate::negotiated::Negotiated;
use crate::notify;
use crate::pages::Tail;
use crate::places::Place;
use crate::readahead;
use crate::reader::{Reader, Readers};
use crate::ring;
use crate::shared::Shared;

/// The least a request buffer holds beside its headers: an extended attribute of the largest size, and what the kernel insists on.
const BUFFER_DATA_MIN: usize = 128 << 10;

/// A mount that is served. Dropping it unmounts, if [`mount`](crate::mount) mounted it and it has not ended.
pub struct Session {
    pub(crate) shared: Arc<Shared>,
    readers: Vec<Arc<Reader>>,
    target: Option<std::path::PathBuf>,
    /// Of its connection, where it is known.
    number: Option<u32>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("target", &self.target).field("ended", &self.ended()).finish_non_exhaustive()
    }
}

/// Serves a mount with `filesystem` on the threads of `groups`, one descriptor for each group. Blocks until the kernel has agreed on version and
/// capabilities; never call it from a group's thread. The groups must have threads of their own. On an error the mount is removed.
pub fn start(
    device: Device,
    filesystem: Arc<dyn FileSystem>,
    groups: &[Arc<Group>],
    config: Config,
) -> Result<Session, StartError> {
    let (target, number) = (device.target.clone(), device.number);
    start_mounted(device, filesystem, groups, config).inspect_err(|_| {
        if let Some(target) = &target
            && let Err(error) = mount::abandon(target, number)
        {
            tracing::warn!(%error, "a mount that could not be served stays behind");
        }
    })
}

fn start_mounted(
    device: Device,
    filesystem: Arc<dyn FileSystem>,
    groups: &[Arc<Group>],
    mut config: Config,
) -> Result<Session, StartError> {
    let first = groups.first().ok_or(StartError::NoGroup)?;
    let root = root(filesystem.clone(), first, &config)?;
    config.max_transfer = whole_pages(config.max_transfer);
    let pool = Pool::new((config.max_transfer as usize).max(BUFFER_DATA_MIN), first);
    // The kernel puts a request into an entry of this size, whatever the request: an extended attribute that is larger crashes it.
    let holds_all = config.max_transfer as usize >= BUFFER_DATA_MIN;
    let prepared = if config.io_uring && holds_all { ring::Prepared::new(groups) } else { None };
    let negotiated = init::negotiate(&device, &pool, &config, prepared.is_some())?;
    let mut channels = Vec::new();
    for _ in 1..groups.len() {
        channels.push(Arc::new(DeviceChannel::new(device.another()?)));
    }
    let Device { fd, target, number, .. } = device;
    channels.push(Arc::new(DeviceChannel::new(fd)));
    let observed = config.observed.take();
    let shared = Arc::new(Shared::new(filesystem, (config, negotiated), &root, pool, (channels[0].clone(), number)));
    let mut session = Session { shared: shared.clone(), readers: Vec::new(), target, number };
    if shared.policy.pages {
        let of_drops = Arc::downgrade(&shared);
        shared.page_drops.start(move |node, tail| drop_pages(&of_drops, node, tail))?;
    }
    let of_drops = Arc::downgrade(&shared);
    shared.entry_drops.start(move |place| drop_entry(&of_drops, place))?;
    if let Some(observed) = observed {
        observed(session.observer());
    }
    let readers = Arc::<Readers>::default();
    for (at, (group, channel)) in groups.iter().zip(channels).enumerate() {
        session.readers.push(Reader::start(&readers, shared.clone(), channel, group, at == 0)?);
    }
    if let Some(prepared) = prepared.filter(|_| shared.negotiated.over_io_uring()) {
        prepared.start(&shared, groups, shared.control.fd())?;
    }
    if let (Some(bytes), Some(number)) = (shared.config.read_ahead, session.number) {
        readahead::set(number, bytes);
    }
    Ok(session)
}

/// Has the kernel drop the pages of a node that no lease covers, and know the end of its file.
fn drop_pages(shared: &Weak<Shared>, node: u64, tail: Option<&Tail>) {
    let Some(shared) = shared.upgrade() else { return };
    shared.drop_unleased_pages(node);
    tail.into_iter().for_each(|tail| shared.store_tail(node, tail));
}

/// Has the kernel drop the entry of a directory that was moved.
fn drop_entry(shared: &Weak<Shared>, (parent, name): &Place) {
    if let Some(shared) = shared.upgrade()
        && let Err(error) = shared.notify(&notify::inval_entry(*parent, name, false))
        && !shared.ended()
    {
        tracing::debug!(%error, parent, "the kernel keeps an entry of a directory that was moved");
    }
}

/// The kernel counts in pages, and a read that is answered with less than it asked for ends at the end of the file.
fn whole_pages(max_transfer: u32) -> u32 {
    let page = rustix::param::page_size() as u32;
    let limited = max_transfer.clamp(page, TRANSFER_SIZE_MAX as u32);
    limited - limited % page
}

/// Asks the file system for its root, on a thread of the group, where it may have connections.
fn root(filesystem: Arc<dyn FileSystem>, group: &Arc<Group>, config: &Config) -> Result<Handle, StartError> {
    let (sender, receiver) = mpsc::channel();
    let context = Context::new(config.client, Credential::root());
    group.spawn(async move {
        let entry: Result<Entry, _> = filesystem.call(&context, Request::Root).await.and_then(Reply::entry);
        let _ = sender.send(entry); // nobody waits after a panic of the caller only
    });
    let entry = receiver.recv().map_err(|_| StartError::NoGroup)?.map_err(StartError::Root)?;
    Ok(entry.handle)
}

impl Session {
    /// Blocks until the mount has ended, by unmount or abort, and its last request is done.
    pub fn wait(&self) {
        self.shared.wait_for_end();
    }

    /// Whether the kernel has ended the mount.
    pub fn ended(&self) -> bool {
        self.shared.ended()
    }

    /// Calls back once when the mount has ended and its last request is done; at once when that is so already.
    pub fn on_end(&self, callback: impl FnOnce() + Send + 'static) {
        self.shared.on_end(Box::new(callback));
    }

    /// What was agreed with the kernel.
    pub fn negotiated(&self) -> Negotiated {
        self.shared.negotiated
    }

    /// What [`Config::status`] tells of it.
    pub fn status(&self) -> Option<String> {
        self.shared.status(StatusPart::Whole)
    }

    /// What tells, at any time, what has been counted; nothing once the mount has gone.
    pub fn metrics(&self) -> impl Fn() -> Snapshot + Send + Sync + 'static {
        let shared = Arc::downgrade(&self.shared);
        move || shared.upgrade().map_or_else(Snapshot::default, |shared| Snapshot::of(&*shared))
    }

    /// How many inodes the kernel knows, the root aside.
    pub fn nodes(&self) -> usize {
        self.shared.nodes.count()
    }

    /// Unmounts what [`mount`](crate::mount) mounted. Never from a group's thread: the kernel may ask us something before it answers.
    pub fn unmount(&self, how: mount::Unmount) -> Result<(), crate::MountError> {
        self.target.as_ref().map_or(Ok(()), |target| mount::unmount_own(target, self.number, how))
    }

    /// Drops what the kernel caches of an inode: attributes, and the pages of `length` bytes (0: all) from `offset` unless that is negative. False: the
    /// kernel does not know it. With pages it waits for reads and writes of them that are under way, so never call it on a thread that
    /// answers requests.
    pub fn notify_inode(&self, handle: &[u8], offset: i64, length: i64) -> io::Result<bool> {
        let Some(node) = self.shared.nodes.find(handle) else { return Ok(false) };
        self.shared.notify(&notify::inval_inode(node, offset, length))
    }

    /// Drops a cached name, or with `expire_only` makes it be looked up again. Waits for the lock of the parent directory, which an operation in it
    /// that is under way holds, so never call it on a thread that answers requests, and never make an answer depend on it.
    pub fn notify_entry(&self, parent: &[u8], name: &[u8], expire_only: bool) -> io::Result<bool> {
        let Some(parent) = self.shared.nodes.find(parent) else { return Ok(false) };
        self.shared.notify(&notify::inval_entry(parent, name, expire_only))
    }

    /// Says that `name`, which was `child`'s, was removed. Waits as [`notify_entry`](Session::notify_entry) does.
    pub fn notify_delete(&self, parent: &[u8], child: &[u8], name: &[u8]) -> io::Result<bool> {
        let nodes = &self.shared.nodes;
        let (Some(parent), Some(child)) = (nodes.find(parent), nodes.find(child)) else { return Ok(false) };
        self.shared.notify(&notify::delete(parent, child, name))
    }

    /// Makes every cached name be looked up again; waits for nothing. Needs [`can_notify_epoch`](Session::can_notify_epoch).
    pub fn notify_epoch(&self) -> io::Result<bool> {
        self.shared.notify(&notify::inc_epoch())
    }

    /// Whether the kernel knows [`notify_epoch`](Session::notify_epoch) (ABI 7.44, Linux 6.16).
    pub fn can_notify_epoch(&self) -> bool {
        self.shared.negotiated.minor >= abi::MINOR_EPOCH
    }

    /// Whom to tell what the kernel has to forget ([`CacheMode::Lease`](crate::CacheMode::Lease)).
    pub fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(KernelCaches(Arc::downgrade(&self.shared)))
    }
}

impl Collect for Session {
    fn collect(&self, into: &mut Snapshot) {
        self.shared.collect(into);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let busy = self.shared.busy();
        if !self.ended()
            && let Some(target) = &self.target
            && let Err(error) = mount::abandon(target, self.number)
        {
            tracing::debug!(%error, "a mount that is no longer served stays behind");
        }
        self.readers.iter().for_each(|reader| reader.stop());
        self.shared.rings.stop();
        self.shared.end();
        drop(busy);
    }
}
