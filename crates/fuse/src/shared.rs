//! What all requests of a mount share.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use ahash::HashMap;
use aqueduct_fs::{Cancel, FileSystem, Handle, OpenId};
use aqueduct_metrics::{Collect, Snapshot, table};
use aqueduct_worker::lock;

use crate::buffer::Pool;
use crate::config::{Config, StatusPart};
use crate::device::{self, DeviceChannel};
use crate::entry_drops::EntryDrops;
use crate::groups::GroupCache;
use crate::hot_names::HotNames;
use crate::interrupt::Interrupts;
use crate::jobs::JobCache;
use crate::keeping::Keeping;
use crate::listings::Listings;
use crate::metrics::Metrics;
use crate::negotiated::Negotiated;
use crate::nodes::Nodes;
use crate::notify::Notification;
use crate::pages::PageDrops;
use crate::policy::Policy;
use crate::releases::Releases;
use crate::rings::Rings;
use crate::sizes::Sizes;
use crate::trace::Tracer;
use crate::turns::Turns;

/// What all requests of a mount share.
pub(crate) struct Shared {
    pub(crate) filesystem: Arc<dyn FileSystem>,
    pub(crate) config: Config,
    pub(crate) negotiated: Negotiated,
    pub(crate) policy: Policy,
    pub(crate) nodes: Nodes,
    pub(crate) groups: GroupCache,
    pub(crate) jobs: JobCache,
    pub(crate) interrupts: Interrupts,
    pub(crate) releases: Arc<Releases>,
    pub(crate) listings: Listings,
    pub(crate) hot_names: Arc<HotNames>,
    pub(crate) keeping: Keeping,
    /// The number of the mount's device, where it is known.
    pub(crate) number: Option<u32>,
    /// When the kernel was last made to forget all names, by the clock of the nodes.
    pub(crate) epoch_began: AtomicU64,
    /// The open files and directories that read from pages, and whether they write through them.
    pub(crate) cached: Mutex<HashMap<OpenId, bool>>,
    /// How often the kernel was made to forget all names.
    pub(crate) epoch: AtomicU32,
    /// How often the kernel was told another time than that of a change.
    pub(crate) times_told: AtomicU32,
    pub(crate) page_drops: Arc<PageDrops>,
    pub(crate) entry_drops: Arc<EntryDrops>,
    pub(crate) sizes: Arc<Sizes>,
    pub(crate) turns: Turns,
    pub(crate) pool: Arc<Pool>,
    pub(crate) metrics: Metrics,
    pub(crate) tracer: Tracer,
    pub(crate) rings: Rings,
    /// Somebody looks whether the heap can be given back.
    pub(crate) heap_is_watched: AtomicBool,
    /// The descriptor that notifications are written to.
    pub(crate) control: Arc<DeviceChannel>,
    /// Whether the kernel has ended the mount.
    ended: AtomicBool,
    /// Readers at work and requests under way.
    busy: AtomicUsize,
    end: Mutex<End>,
    finished: Condvar,
}

pub(crate) type Callback = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct End {
    finished: bool,
    callbacks: Vec<Callback>,
}

/// Keeps the end of a session waiting.
pub(crate) struct Busy(Arc<Shared>);

impl Shared {
    /// Of a mount of this root that begins. Notifications go by `control`; the device has this
    /// number.
    pub(crate) fn new(
        filesystem: Arc<dyn FileSystem>,
        (config, negotiated): (Config, Negotiated),
        root: &Handle,
        pool: Arc<Pool>,
        (control, number): (Arc<DeviceChannel>, Option<u32>),
    ) -> Shared {
        Shared {
            filesystem,
            policy: Policy::new(&config, &negotiated),
            tracer: Tracer::new(config.trace.clone()),
            config,
            negotiated,
            nodes: Nodes::new(root.bytes()),
            groups: GroupCache::default(),
            jobs: JobCache::default(),
            interrupts: Interrupts::default(),
            releases: Arc::default(),
            listings: Listings::default(),
            hot_names: Arc::default(),
            keeping: Keeping::new(Instant::now()),
            number,
            epoch_began: AtomicU64::new(0),
            cached: Mutex::default(),
            epoch: AtomicU32::new(0),
            times_told: AtomicU32::new(0),
            page_drops: Arc::default(),
            entry_drops: Arc::default(),
            sizes: Arc::default(),
            turns: Turns::default(),
            pool,
            metrics: Metrics::default(),
            heap_is_watched: AtomicBool::new(false),
            rings: Rings::default(),
            control,
            ended: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
            end: Mutex::default(),
            finished: Condvar::new(),
        }
    }

    pub(crate) fn busy(self: &Arc<Shared>) -> Busy {
        self.busy.fetch_add(1, Ordering::SeqCst);
        Busy(self.clone())
    }

    /// Whether the mount has ended.
    pub(crate) fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// The kernel has gone (or we leave it): what waits for others is told to end.
    pub(crate) fn end(&self) {
        if !self.ended.swap(true, Ordering::SeqCst) {
            tracing::debug!(nodes = self.nodes.count(), "the mount has ended");
            self.interrupts.cancel_all();
            self.page_drops.close();
            self.entry_drops.close();
        }
    }

    /// Nothing is under way any more.
    fn finish(&self) {
        let callbacks = {
            let mut end = lock(&self.end);
            if std::mem::replace(&mut end.finished, true) {
                return;
            }
            std::mem::take(&mut end.callbacks)
        };
        // Releases that the kernel had queued when it was unmounted never reach us.
        // One that has to ask others for that has a session of its own, which ends with the mount.
        drop(self.filesystem.depart(self.config.client));
        callbacks.into_iter().for_each(|callback| callback());
        self.finished.notify_all();
    }

    /// Blocks until the mount has ended and its last request is done.
    pub(crate) fn wait_for_end(&self) {
        let mut end = lock(&self.end);
        while !end.finished {
            end = self.finished.wait(end).unwrap_or_else(|poison| poison.into_inner());
        }
    }

    /// Calls back once when that is so; at once when it is already.
    pub(crate) fn on_end(&self, callback: Callback) {
        let mut end = lock(&self.end);
        if end.finished {
            drop(end);
            callback();
        } else {
            end.callbacks.push(callback);
        }
    }

    /// Waits until the releases that the kernel sent before are done. Ends early when that is
    /// cancelled.
    pub(crate) async fn settled(&self, cancel: &Cancel) {
        self.rings.drained().await; // /dev/fuse hands requests out in their order; of rings, one does not know of the others
        self.releases.settled(cancel).await;
    }

    /// What [`Config::status`] tells of the mount.
    pub(crate) fn status(&self, part: StatusPart) -> Option<String> {
        let kernel = self.metrics.activity.look("", Instant::now());
        self.config.status.as_ref().map(|status| status(&self.negotiated, Snapshot::of(self), kernel, part))
    }

    /// Sends a notification. False: the kernel knows no such inode or name.
    pub(crate) fn notify(&self, notification: &Notification) -> io::Result<bool> {
        self.metrics.notified(notification.code);
        match device::write(self.control.fd(), 0, notification.code, &[&notification.body]) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if self.0.busy.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.ended() {
            self.0.finish();
        }
    }
}

impl Collect for Shared {
    fn collect(&self, into: &mut Snapshot) {
        self.metrics.collect(into);
        into.put_number(&table::FUSE_INODES, &[], self.nodes.count() as u64);
    }
}
