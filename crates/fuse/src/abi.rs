//! The kernel's FUSE protocol (include/uapi/linux/fuse.h): opcodes, flags and messages, in the byte order of the machine. Messages are read and
//! written field by field; their sizes are asserted at compile time.

/// The major version of the protocol.
pub const MAJOR: u32 = 7;
/// The highest minor version that this crate knows (Linux 6.18).
pub const MINOR: u32 = 45;
/// The lowest minor version served: Linux 4.11 brought parallel directory operations and the handling of set-id bits, and 4.18 is the oldest
/// kernel of a supported distribution (7.26).
pub const MINOR_MIN: u32 = 26;
/// The first minor version at which attributes of an answer that crosses a notification are not
/// believed (Linux 5.10).
pub const MINOR_ATTRIBUTES: u32 = 32;
/// The first minor version with INC_EPOCH.
pub const MINOR_EPOCH: u32 = 44;
/// The first minor version with NOFLUSH.
pub const MINOR_NOFLUSH: u32 = 35;
/// The first minor version with TMPFILE (Linux 6.1).
pub const MINOR_TMPFILE: u32 = 37;
/// The node id of the root directory.
pub const ROOT_ID: u64 = 1;

/// A value of the protocol.
pub trait Field: Sized {
    /// Its size in bytes.
    const SIZE: usize;
    /// Takes it from the front of `bytes`, which hold at least `SIZE`.
    fn take(bytes: &mut &[u8]) -> Self;
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);

    /// Parses it from the front; also returns what follows. `None` when the bytes are too few.
    fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (mut fields, rest) = bytes.split_at_checked(Self::SIZE)?;
        Some((Self::take(&mut fields), rest))
    }

    /// Its bytes.
    fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::SIZE);
        self.put(&mut out);
        out
    }
}

macro_rules! scalars {
    ($($type:ty)*) => { $(
        impl Field for $type {
            const SIZE: usize = size_of::<$type>();
            fn take(bytes: &mut &[u8]) -> Self {
                let mut value = [0; size_of::<$type>()];
                let (head, tail) = bytes.split_at(size_of::<$type>());
                value.copy_from_slice(head);
                *bytes = tail;
                <$type>::from_ne_bytes(value)
            }
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_ne_bytes());
            }
        }
    )* };
}
scalars!(u16 u32 i32 u64 i64);

impl<T: Field + Copy + Default, const N: usize> Field for [T; N] {
    const SIZE: usize = T::SIZE * N;
    fn take(bytes: &mut &[u8]) -> Self {
        let mut values = [T::default(); N];
        values.iter_mut().for_each(|value| *value = T::take(bytes));
        values
    }
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|value| value.put(out));
    }
}

macro_rules! messages {
    ($($name:ident [$size:literal] { $($field:ident: $type:ty),* $(,)? })*) => { $(
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[allow(missing_docs, reason = "linux/fuse.h documents them")]
        pub struct $name { $(pub $field: $type),* }

        impl Field for $name {
            const SIZE: usize = 0 $(+ <$type as Field>::SIZE)*;
            fn take(bytes: &mut &[u8]) -> Self {
                $name { $($field: <$type as Field>::take(bytes)),* }
            }
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }
        }

        const _: () = assert!(<$name as Field>::SIZE == $size);
    )* };
}

messages! {
    InHeader [40] { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 }
    OutHeader [16] { len: u32, error: i32, unique: u64 }
    Attr [88] {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    // Without flags2, which a kernel that offers INIT_EXT appends.
    InitIn [16] { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    InitOut [64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16, max_write: u32,
        time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11],
    }
    EntryOut [128] {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut [104] { attr_valid: u64, attr_valid_nsec: u32, padding: u32, attr: Attr }
    ForgetIn [8] { nlookup: u64 }
    ForgetOne [16] { nodeid: u64, nlookup: u64 }
    BatchForgetIn [8] { count: u32, padding: u32 }
    GetattrIn [16] { getattr_flags: u32, padding: u32, fh: u64 }
    SetattrIn [88] {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn [16] { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn [8] { mode: u32, umask: u32 }
    RenameIn [8] { newdir: u64 }
    Rename2In [16] { newdir: u64, flags: u32, padding: u32 }
    LinkIn [8] { oldnodeid: u64 }
    OpenIn [8] { flags: u32, open_flags: u32 }
    CreateIn [16] { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    OpenOut [16] { fh: u64, open_flags: u32, padding: u32 }
    ReleaseIn [24] { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn [24] { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn [40] { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn [40] { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    // A command to an io_uring (`struct fuse_uring_cmd_req`).
    RingCommand [24] { flags: u64, commit_id: u64, qid: u16, padding: [u16; 3] }
    // About what is in the memory of an entry (`struct fuse_uring_ent_in_out`).
    RingEntry [32] { flags: u64, commit_id: u64, payload_size: u32, padding: u32, reserved: u64 }
    WriteOut [8] { size: u32, padding: u32 }
    StatfsOut [80] {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    FsyncIn [16] { fh: u64, fsync_flags: u32, padding: u32 }
    // Without the fields of SETXATTR_EXT, which is not negotiated.
    SetxattrIn [8] { size: u32, flags: u32 }
    GetxattrIn [8] { size: u32, padding: u32 }
    GetxattrOut [8] { size: u32, padding: u32 }
    FileLock [24] { start: u64, end: u64, kind: u32, pid: u32 }
    LkIn [48] { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    LkOut [24] { lk: FileLock }
    AccessIn [8] { mask: u32, padding: u32 }
    InterruptIn [8] { unique: u64 }
    FallocateIn [32] { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn [24] { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut [8] { offset: u64 }
    CopyFileRangeIn [56] { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
    CopyFileRangeOut [8] { bytes_copied: u64 }
    // Entries of READDIR; in READDIRPLUS an EntryOut stands before each. The name follows, padded to 8 bytes.
    Dirent [24] { ino: u64, off: u64, namelen: u32, kind: u32 }
    StatxIn [24] { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    SxTime [16] { sec: i64, nsec: u32, reserved: i32 }
    Statx [256] {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64, size: u64, blocks: u64,
        attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut [288] { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    NotifyInvalInode [24] { ino: u64, off: i64, len: i64 }
    NotifyInvalEntry [16] { parent: u64, namelen: u32, flags: u32 }
    NotifyDelete [24] { parent: u64, child: u64, namelen: u32, padding: u32 }
    NotifyStore [24] { node: u64, offset: u64, size: u32, padding: u32 }
    NotifyRetrieve [32] { unique: u64, node: u64, offset: u64, size: u32, padding: u32 }
}

/// What a request asks for.
#[allow(missing_docs, reason = "linux/fuse.h documents them")]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Notifications, as they stand in the error field of the header.
#[allow(missing_docs, reason = "linux/fuse.h documents them")]
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const RETRIEVE: i32 = 5;
    pub const DELETE: i32 = 6;
    pub const INC_EPOCH: i32 = 8;
    pub const EXPIRE_ONLY: u32 = 1;
}

bitflags::bitflags! {
    /// Capabilities negotiated by INIT; those above bit 31 travel in flags2.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        const ASYNC_READ = 1 << 0;
        const POSIX_LOCKS = 1 << 1;
        const ATOMIC_O_TRUNC = 1 << 3;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const FLOCK_LOCKS = 1 << 10;
        const AUTO_INVAL_DATA = 1 << 12;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        const NO_OPEN_SUPPORT = 1 << 17;
        const PARALLEL_DIROPS = 1 << 18;
        const HANDLE_KILLPRIV = 1 << 19;
        const POSIX_ACL = 1 << 20;
        const ABORT_ERROR = 1 << 21;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const NO_EXPORT_SUPPORT = 1 << 38;
        const OVER_IO_URING = 1 << 41;
        const _ = !0;
    }

    /// What the reply to an open says about the open file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct FopenFlags: u32 {
        const DIRECT_IO = 1 << 0;
        const KEEP_CACHE = 1 << 1;
        const CACHE_DIR = 1 << 3;
        const NOFLUSH = 1 << 5;
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }

    /// Which fields of a SETATTR count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SetattrValid: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const _ = !0;
    }
}

/// GETATTR_FH: the request comes through an open file.
pub const GETATTR_FH: u32 = 1;
/// READ_LOCKOWNER: the caller's buffer is read into; without it, the page cache is.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// WRITE_CACHE: the kernel writes back pages of a mapping, through whichever open file it found.
pub const WRITE_CACHE: u32 = 1;
/// LK_FLOCK: the lock is one of flock(2).
pub const LK_FLOCK: u32 = 1;
/// FSYNC_FDATASYNC: the data only.
pub const FSYNC_FDATASYNC: u32 = 1;

impl EntryOut {
    /// Makes the kernel keep neither name nor attributes of the entry that these bytes begin with.
    pub fn keep_nothing(bytes: &mut [u8]) {
        const TIMES: std::ops::Range<usize> = 16..40; // from entry_valid up to attr
        bytes.get_mut(TIMES).into_iter().for_each(|times| times.fill(0));
    }
}

/// Requests by io_uring.
pub mod ring {
    /// The command that makes an entry of a queue.
    pub const REGISTER: u32 = 1;
    /// The command that answers the request of an entry and asks for the next.
    pub const COMMIT_AND_FETCH: u32 = 2;
    /// Size of the headers of an entry (`struct fuse_uring_req_header`): first the header of the request, then of the reply, ...
    pub const HEADERS: usize = 288;
    /// ... from here the first argument of the request, ...
    pub const ARGUMENT: usize = 128;
    /// ... of at most this size, ...
    pub const ARGUMENT_MAX: usize = 128;
    /// ... and from here what is in the memory ([`RingEntry`](super::RingEntry)).
    pub const ENTRY: usize = 256;
}

/// The size of a record of `length` bytes in a directory listing: padded to 8.
pub fn record_size(length: usize) -> usize {
    length.next_multiple_of(8)
}

/// Appends a directory entry as READDIR has it.
pub fn put_dirent(out: &mut Vec<u8>, ino: u64, off: u64, kind: u8, name: &[u8]) {
    Dirent { ino, off, namelen: name.len() as u32, kind: u32::from(kind) }.put(out);
    out.extend_from_slice(name);
    out.resize(record_size(out.len()), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_short_ones_are_refused() {
        let read =
            ReadIn { fh: 3, offset: 1 << 42, size: 4096, read_flags: 2, lock_owner: 9, flags: 0o40000, padding: 0 };
        let mut bytes = read.to_vec();
        bytes.push(77);
        assert_eq!(ReadIn::parse(&bytes), Some((read, &[77u8][..])));
        assert_eq!(ReadIn::parse(&bytes[..39]), None);
    }

    #[test]
    fn an_entry_that_is_not_kept_is_told_all_the_same() {
        let attr = Attr { ino: 7, mode: 0o100644, ..Attr::default() };
        let times =
            EntryOut { entry_valid: 1, attr_valid: 2, entry_valid_nsec: 3, attr_valid_nsec: 4, ..EntryOut::default() };
        let mut bytes = EntryOut { nodeid: 5, generation: 6, attr, ..times }.to_vec();
        EntryOut::keep_nothing(&mut bytes);
        let told = EntryOut { nodeid: 5, generation: 6, attr, ..EntryOut::default() };
        assert_eq!(EntryOut::parse(&bytes), Some((told, &[][..])));
    }

    #[test]
    fn directory_records_are_padded_to_eight_bytes() {
        let mut out = Vec::new();
        put_dirent(&mut out, 1, 2, 8, b"a");
        assert_eq!(out.len(), 32);
        put_dirent(&mut out, 1, 3, 8, b"12345678");
        assert_eq!(out.len(), 64);
    }
}
