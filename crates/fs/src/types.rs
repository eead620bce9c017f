//! The values that file system operations take and give.

use std::fmt;
use std::time::Duration;

use crate::ClientId;

/// The longest file handle, in bytes, that may stand in a request or reply: Linux's MAX_HANDLE_SZ (128) with room for an
/// export id, a kind and a MAC.
pub const HANDLE_LENGTH_MAX: usize = 160;

/// The longest file name in bytes (NAME_MAX of Linux).
pub const NAME_LENGTH_MAX: usize = 255;

/// The longest symbolic link text in bytes (PATH_MAX of Linux, without its NUL).
pub const SYMLINK_LENGTH_MAX: usize = 4095;

/// The longest extended attribute name in bytes (XATTR_NAME_MAX).
pub const XATTR_NAME_LENGTH_MAX: usize = 255;

/// The longest extended attribute value, and list of names, in bytes (XATTR_SIZE_MAX, XATTR_LIST_MAX).
pub const XATTR_SIZE_MAX: usize = 65_536;

/// The longest reopen token in bytes: a handle, the access and a credential, and a MAC.
pub const TOKEN_LENGTH_MAX: usize = 512;

/// The most supplementary groups of one caller: 1024 is 16 times what NFSv3's AUTH_SYS carried and 1/64 of NGROUPS_MAX;
/// it bounds what each request can weigh (4 KiB).
pub const GROUPS_MAX: usize = 1024;

/// The most bytes that one read or write carries (1 MiB: max_pages 256 of the kernel's FUSE client).
pub const TRANSFER_SIZE_MAX: usize = 1 << 20;

/// What names an inode, forever: opaque bytes that the file system made and alone understands. Equal handles name the same
/// inode, and one inode has one handle, so handles serve as keys.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(Box<[u8]>);

impl Handle {
    /// A handle from its bytes; `None` when they are empty or more than [`HANDLE_LENGTH_MAX`].
    pub fn new(bytes: &[u8]) -> Option<Handle> {
        (!bytes.is_empty() && bytes.len() <= HANDLE_LENGTH_MAX).then(|| Handle(bytes.into()))
    }

    /// Its bytes, 1 to [`HANDLE_LENGTH_MAX`] of them.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ")")
    }
}

/// An open file or directory of a file system: valid from the reply that opened it to its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId(pub u64);

/// Seconds and nanoseconds since 1970-01-01T00:00:00Z; `nanos` is below 1,000,000,000 also before 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Whole seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds after `seconds`.
    pub nanos: u32,
}

/// The attributes of an inode, as statx(2) names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: u64,
    /// File type and permission bits, as `st_mode`.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file: major in the upper, minor in the lower 32 bits.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Preferred size of I/O in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Birth; zero where the file system does not keep it.
    pub btime: Time,
}

impl Time {
    /// A time as statx(2) tells it.
    pub fn of_statx(time: rustix::fs::StatxTimestamp) -> Time {
        Time { seconds: time.tv_sec, nanos: time.tv_nsec }
    }
}

/// A device number: the major in the upper, the minor in the lower 32 bits.
pub fn device_number(major: u32, minor: u32) -> u64 {
    (u64::from(major) << 32) | u64::from(minor)
}

impl Attr {
    /// What statx(2) tells.
    pub fn of_statx(stat: &rustix::fs::Statx) -> Attr {
        let has_birth = stat.stx_mask & rustix::fs::StatxFlags::BTIME.bits() != 0;
        Attr {
            ino: stat.stx_ino,
            mode: u32::from(stat.stx_mode),
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            rdev: device_number(stat.stx_rdev_major, stat.stx_rdev_minor),
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            blksize: stat.stx_blksize,
            atime: Time::of_statx(stat.stx_atime),
            mtime: Time::of_statx(stat.stx_mtime),
            ctime: Time::of_statx(stat.stx_ctime),
            btime: if has_birth { Time::of_statx(stat.stx_btime) } else { Time::default() },
        }
    }

    /// The file type bits of the mode (`S_IFMT`).
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    /// Whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    /// Whether this is a regular file.
    pub fn is_regular(&self) -> bool {
        self.kind() == libc::S_IFREG
    }
}

/// A new access or modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The clock of the machine that holds the file system (UTIME_NOW).
    Now,
    /// This time.
    At(Time),
}

/// The attributes to change; `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// An inode with its attributes, as operations that find or make one return it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Names the inode.
    pub handle: Handle,
    /// Its attributes when the operation ended.
    pub attr: Attr,
}

/// What an open returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Stands for the open file in later requests.
    pub id: OpenId,
    /// Reopens the file as it was, whatever its mode says by then, after a restart of the server: handle, access and credential under
    /// a MAC, opaque to the client. At most [`TOKEN_LENGTH_MAX`] bytes; empty where the file system has none.
    pub token: Box<[u8]>,
    /// Over how many servers of a volume the blocks of the file are spread; 0: as the volume says.
    /// See [`wide`](crate::wide).
    pub width: u16,
}

/// Space and inodes of a file system, as statfs(2) gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "statfs(2) documents them")]
pub struct Statfs {
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    pub block_size: u32,
    pub fragment_size: u32,
    pub name_length: u32,
}

/// What a write returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Bytes written.
    pub count: u32,
    /// Changes when the server may have lost unstable writes (its boot); equal verifiers at write and commit mean stable. 0: nothing of this file
    /// survives the server's machine anyway, so that there is nothing to keep.
    pub verifier: u64,
    /// Where the data of a write went: for an append the place that it found, unless the verifier is 0.
    pub offset: u64,
}

/// What a file system has read ahead and written since its start; they only grow, but for `streams`, `latency` and `rate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataCounters {
    /// It reads ahead.
    pub reads_ahead: bool,
    /// Sequences of reads at present whose next reads can be told.
    pub streams: u64,
    /// Between asking the backing file system for data and having them, as measured lately; zero: nothing had to be waited for yet.
    pub latency: std::time::Duration,
    /// Reads that had to wait for the backing file system.
    pub waits: u64,
    /// Bytes asked for ahead.
    pub asked: u64,
    /// Bytes of those that were read later.
    pub used: u64,
    /// Bytes of those that were not, before their stream or open ended.
    pub wasted: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of those.
    pub written: u64,
    /// Those that began where the one before in the same open had ended, and appends.
    pub continued: u64,
    /// The rate to which all are held, in bytes per second.
    pub rate: Option<u64>,
    /// Reads and writes that had to wait for that.
    pub throttled: u64,
}

bitflags::bitflags! {
    /// How a file is opened. Values of our own, since those of O_DIRECT and its like differ between processors.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct OpenFlags: u32 {
        /// For reading.
        const READ = 1;
        /// For writing.
        const WRITE = 1 << 1;
        /// Every write goes to the end (O_APPEND).
        const APPEND = 1 << 2;
        /// Empty it first (O_TRUNC).
        const TRUNCATE = 1 << 3;
        /// The create fails when the name exists (O_EXCL); with a temporary file: it can never be linked.
        const EXCLUSIVE = 1 << 4;
        /// Past the page cache (O_DIRECT).
        const DIRECT = 1 << 5;
        /// For execution: execute permission suffices (the kernel's __FMODE_EXEC).
        const EXECUTE = 1 << 6;
        /// Leave the access time alone (O_NOATIME).
        const NOATIME = 1 << 7;
        /// Every write is stable when it returns, with all metadata (O_SYNC).
        const SYNC = 1 << 8;
        /// Every write's data is stable when it returns (O_DSYNC).
        const DATA_SYNC = 1 << 9;
    }

    /// The modes of rename, as renameat2(2) has them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct RenameFlags: u32 {
        /// Fail with EEXIST when the new name exists.
        const NOREPLACE = 1;
        /// Exchange the two names atomically.
        const EXCHANGE = 1 << 1;
        /// Leave a whiteout at the old name (overlayfs).
        const WHITEOUT = 1 << 2;
    }

    /// The modes of fallocate(2), with its values.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FallocateFlags: u32 {
        /// FALLOC_FL_KEEP_SIZE.
        const KEEP_SIZE = 0x01;
        /// FALLOC_FL_PUNCH_HOLE.
        const PUNCH_HOLE = 0x02;
        /// FALLOC_FL_COLLAPSE_RANGE.
        const COLLAPSE_RANGE = 0x08;
        /// FALLOC_FL_ZERO_RANGE.
        const ZERO_RANGE = 0x10;
        /// FALLOC_FL_INSERT_RANGE.
        const INSERT_RANGE = 0x20;
        /// FALLOC_FL_UNSHARE_RANGE.
        const UNSHARE_RANGE = 0x40;
    }

    /// What access(2) asks for, with its values.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct AccessMask: u32 {
        /// X_OK.
        const EXECUTE = 1;
        /// W_OK.
        const WRITE = 2;
        /// R_OK.
        const READ = 4;
    }
}

/// When setting an extended attribute is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Never: create or replace.
    Any,
    /// EEXIST when it exists (XATTR_CREATE).
    Create,
    /// ENODATA when it does not exist (XATTR_REPLACE).
    Replace,
}

/// The most bytes that one [`Checksum`](crate::Request::Checksum) is of: 64 MiB take some 15 ms
/// from memory (BLAKE3, 4.4 GB/s), and a second from a slow disk.
pub const SUM_LENGTH_MAX: u64 = 64 << 20;

/// What sum is made of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumKind {
    /// XXH3 of 64 bits with seed 0: enough against accidents on the way.
    Xxh3,
    /// BLAKE3 of the range as if it were all.
    Blake3,
    /// BLAKE3's chaining value of the range as a part of a longer file. It begins at a multiple of
    /// its length's next power of two.
    Blake3Part,
}

/// The sum of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// It; of [`SumKind::Xxh3`] the first 8 bytes, little-endian.
    pub value: [u8; 32],
    /// What was summed was read from where it is kept for good: nothing of it was in memory.
    pub is_past_cache: bool,
}

/// Where a seek that looks at the layout goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The next data at or after the offset (SEEK_DATA).
    Data,
    /// The next hole at or after the offset (SEEK_HOLE).
    Hole,
}

/// The lock families, which know nothing of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockSpace {
    /// Byte ranges: fcntl(2) locks of a process, and OFD locks, whose owner is the open file description.
    Posix,
    /// Whole files: flock(2).
    Flock,
    /// Whole files: who reads or writes one in several steps that belong together takes a turn.
    /// First come, first served: who writes is not passed by those who read.
    Turn,
}

/// What a lock lets others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Others may hold read locks.
    Read,
    /// Nobody else holds any.
    Write,
    /// No lock: unlocks a range; in the answer to a test: nothing stands in the way.
    Unlock,
}

/// A lock that somebody has or waits for, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockSeen {
    /// Whose client's.
    pub client: ClientId,
    /// In which family.
    pub space: LockSpace,
    /// What.
    pub lock: Lock,
    /// It is waited for, and not held.
    pub waits: bool,
    /// For how long.
    pub age: Duration,
    /// Where the file lies, if that can be told.
    pub path: Option<Box<[u8]>>,
}

/// A lock on bytes `start..=end`; a flock has `0..=u64::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX` means to the end, however far the file grows.
    pub end: u64,
    /// Read, write, or none.
    pub kind: LockKind,
    /// The process that asked, as known on its own host: for F_GETLK and for lists.
    pub pid: u32,
}
