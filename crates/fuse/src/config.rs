//! How a mount is served.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::{ClientId, Observer, TRANSFER_SIZE_MAX};
use aqueduct_metrics::Snapshot;
use aqueduct_metrics::activity::Station;

use crate::abi;
use crate::negotiated::Negotiated;
use crate::trace::TraceConfig;

/// The extended attribute of a mount's root that tells how the mount fares; see
/// [`Config::status`].
pub const STATUS_XATTR: &str = "aqueduct.status";

/// Stands before [`STATUS_XATTR`] or [`TRACE_XATTR`](crate::TRACE_XATTR) where root, or whom the
/// mount's process runs as, reads it. The kernel checks no permission of such a name, for which it
/// may have to ask a server that is away.
pub const UNCHECKED: &str = "system.";

/// What the kernel may keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// Nothing: each read(2) and write(2) is a request. Only mappings, and sendfile and splice,
    /// use the page cache. Before Linux 6.6 a file opened for reading is cached, because it could
    /// not be mapped shared otherwise; its pages are dropped before each read(2).
    #[default]
    None,
    /// The page cache, dropped at each open and when size or mtime have changed; attributes are
    /// fetched again at each open.
    CloseToOpen,
    /// What the file system says with each answer
    /// ([`FileSystem::ask`](aqueduct_fs::FileSystem::ask)), until the [`Observer`] is told
    /// otherwise. Names only with [`Config::posix_acl`], and before Linux 6.16 only those of
    /// directories that are asked for often, for a moment.
    Lease,
}

/// Takes whom to tell what the kernel has to forget.
pub type Observed = Box<dyn FnOnce(Arc<dyn Observer>) + Send + Sync>;

/// What is asked of how a mount fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusPart {
    /// All, by this process.
    Whole,
    /// What fits an extended attribute.
    First,
    /// What comes from this place on, likewise: [`STATUS_XATTR`] with a dot and a number behind it.
    From(u64),
}

/// Tells how a mount fares, with what the front end has counted.
pub type Status = Box<dyn Fn(&Negotiated, Snapshot, Station, StatusPart) -> String + Send + Sync>;

/// How a mount is served.
pub struct Config {
    /// What the kernel may keep.
    pub cache: CacheMode,
    /// How long the kernel may use attributes; of no meaning with [`CacheMode::Lease`], as the
    /// next.
    pub attr_timeout: Duration,
    /// How long the kernel may use names. Above zero the kernel checks no permission on the way
    /// along a path, unless
    /// [`MountOptions::default_permissions`](crate::MountOptions::default_permissions) is set.
    pub entry_timeout: Duration,
    /// Requests of the kernel's own accord (read-ahead, asynchronous direct I/O, releases) under
    /// way at once; the kernel's default of 12 starves read-ahead of 1 MiB at 128 KiB a request.
    pub max_background: u16,
    /// The most bytes of one read or write, a page to [`TRANSFER_SIZE_MAX`]; kernels before 4.20
    /// always use 128 KiB.
    pub max_transfer: u32,
    /// How many bytes the kernel reads ahead for who reads a file from its beginning to its end,
    /// if root mounts; `None`: as far as it does by itself.
    pub read_ahead: Option<usize>,
    /// As whom the file system is used.
    pub client: ClientId,
    /// The kernel decides on permission by mode and POSIX ACL (and caches ACLs). Without it the
    /// file system does, and ACLs pass through as extended attributes.
    pub posix_acl: bool,
    /// Lets writes of several threads into one file proceed at once (strict mode only). Off, since
    /// then a write of more than `max_transfer` bytes can interleave with another, which write(2)
    /// on a local file system does not.
    pub parallel_writes: bool,
    /// The value of the extended attribute [`STATUS_XATTR`] of the root.
    pub status: Option<Status>,
    /// Which operations are slow.
    pub trace: TraceConfig,
    /// Is given, before the first request is answered, whom to tell what the kernel has to forget
    /// ([`CacheMode::Lease`]).
    pub observed: Option<Observed>,
    /// The highest minor version of the protocol to agree on; lower than what is served only in
    /// tests.
    pub minor_max: u32,
    /// Bits of INIT that the kernel is taken not to offer; for tests of what is done without them.
    pub withheld: u64,
    /// Closing a file that was opened for reading is not told, which spares a request for each:
    /// locks that its process has taken on the file since stay until they are unlocked, or until
    /// the last close of what they were taken through. POSIX wants them to end.
    pub spares_flush: bool,
    /// What a program reads or writes at once is whole, whatever its size: it takes a turn at the
    /// file system, and no file is read from pages.
    pub takes_turns: bool,
    /// What the kernel keeps of names.
    pub names: Names,
    /// Requests come by io_uring where the kernel offers it and each group has one thread.
    pub io_uring: bool,
}

/// What the kernel keeps of names under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// All, where the kernel can be made to forget them all at once (Linux 6.16), while none has to
    /// be and nothing is mounted on a directory of the mount, which that would detach.
    Strict,
    /// Where it cannot, all for a moment in which what others have changed may not be seen.
    Timeout,
    /// None, but those of directories that are asked for often, for a moment in which whoever
    /// changes them waits: what is mounted below stays.
    Ask,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            cache: CacheMode::None,
            attr_timeout: Duration::ZERO,
            entry_timeout: Duration::ZERO,
            max_background: 64,
            max_transfer: TRANSFER_SIZE_MAX as u32,
            read_ahead: None,
            client: ClientId::default(),
            posix_acl: false,
            parallel_writes: false,
            status: None,
            trace: TraceConfig::default(),
            observed: None,
            minor_max: abi::MINOR,
            withheld: 0,
            spares_flush: false,
            takes_turns: false,
            names: Names::Strict,
            io_uring: true,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("cache", &self.cache)
            .field("attr_timeout", &self.attr_timeout)
            .field("entry_timeout", &self.entry_timeout)
            .field("max_background", &self.max_background)
            .field("max_transfer", &self.max_transfer)
            .field("read_ahead", &self.read_ahead)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}
