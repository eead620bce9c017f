//! The operations as data: one request and one reply type, so that a layer, a codec, a log or a reply cache is one function.

use crate::stripe::Layout;
use crate::types::*;
use crate::{DirPage, Errno};

/// An operation. Names are single components, any bytes but NUL and `/`, 1 to [`NAME_LENGTH_MAX`] long, never `.` or `..`.
/// Handles are bytes of a [`Handle`]. Whoever decodes a request from outside checks both; file systems check again what
/// would let a caller leave the export. The reply is named behind each operation; any may be an [`Errno`] instead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the system call that each variant names")]
pub enum Request<'a> {
    /// The root of the file system. [`Reply::Entry`]
    Root,
    /// The inode behind a name. [`Reply::Entry`]
    Lookup { parent: &'a [u8], name: &'a [u8] },
    /// stat; `open` where the caller asks through an open file. [`Reply::Attr`]
    GetAttr { handle: &'a [u8], open: Option<OpenId> },
    /// chmod, chown, truncate, utimens; `open` as above: its rights then count, as those of a descriptor do. [`Reply::Attr`]
    SetAttr { handle: &'a [u8], open: Option<OpenId>, set: SetAttr },
    /// The text of a symbolic link. [`Reply::Bytes`]
    ReadLink { handle: &'a [u8] },
    /// A new symbolic link. [`Reply::Entry`]
    Symlink { parent: &'a [u8], name: &'a [u8], text: &'a [u8] },
    /// A new file, fifo, socket or device; `mode` holds type and permissions before the umask. [`Reply::Entry`]
    MakeNode { parent: &'a [u8], name: &'a [u8], mode: u32, umask: u32, rdev: u64 },
    /// A new directory. [`Reply::Entry`]
    MakeDirectory { parent: &'a [u8], name: &'a [u8], mode: u32, umask: u32 },
    /// Removes a name that is not a directory's. [`Reply::Done`]
    Unlink { parent: &'a [u8], name: &'a [u8] },
    /// Removes an empty directory. [`Reply::Done`]
    RemoveDirectory { parent: &'a [u8], name: &'a [u8] },
    /// renameat2. [`Reply::Done`]
    Rename { parent: &'a [u8], name: &'a [u8], new_parent: &'a [u8], new_name: &'a [u8], flags: RenameFlags },
    /// A further name; gives an O_TMPFILE file its first. [`Reply::Entry`]
    Link { handle: &'a [u8], parent: &'a [u8], name: &'a [u8] },
    /// Opens a regular file. [`Reply::Opened`]
    Open { handle: &'a [u8], flags: OpenFlags },
    /// Opens a regular file, creating it if need be. [`Reply::Created`]
    Create { parent: &'a [u8], name: &'a [u8], mode: u32, umask: u32, flags: OpenFlags },
    /// A file without a name in this directory (O_TMPFILE). [`Reply::Created`]
    CreateUnnamed { parent: &'a [u8], mode: u32, umask: u32, flags: OpenFlags },
    /// Opens again what `token` says under the id that it had, after a restart of the server; once more does no harm. EBUSY: the id is that of another
    /// open. [`Reply::Opened`]
    Reopen { open: OpenId, token: &'a [u8] },
    /// One descriptor was closed: releases the POSIX locks of `owner`, gives late errors. [`Reply::Done`]
    Flush { open: OpenId, owner: u64 },
    /// The last descriptor was closed: the open ends with all locks taken through it. [`Reply::Done`]
    Release { open: OpenId },
    /// fsync, or fdatasync with `data_only`. [`Reply::Done`]
    Sync { open: OpenId, data_only: bool },
    /// Makes stable what was written in `length` bytes from `offset` (0: all); the reply's verifier tells whether earlier writes
    /// were lost before. [`Reply::Written`] with count 0
    Commit { open: OpenId, offset: u64, length: u64 },
    /// Opens a directory for listing. [`Reply::Opened`]
    OpenDirectory { handle: &'a [u8] },
    /// Entries after `cookie` (0: from the start), at most `size` bytes of them packed; with `plus`, each with its inode. [`Reply::Directory`]
    ReadDirectory { open: OpenId, cookie: u64, size: u32, plus: bool },
    /// Ends a listing. [`Reply::Done`]
    ReleaseDirectory { open: OpenId },
    /// fsync of a directory. [`Reply::Done`]
    SyncDirectory { open: OpenId, data_only: bool },
    /// Space and inodes. [`Reply::Statfs`]
    Statfs { handle: &'a [u8] },
    /// One extended attribute; ERANGE when larger than `size`, unless `size` is 0, which asks for its length. [`Reply::Bytes`] or [`Reply::Size`]
    GetXattr { handle: &'a [u8], name: &'a [u8], size: u32 },
    /// Sets an extended attribute. [`Reply::Done`]
    SetXattr { handle: &'a [u8], name: &'a [u8], value: &'a [u8], mode: XattrMode },
    /// The names of the extended attributes, each ended by NUL; `size` as above. [`Reply::Bytes`] or [`Reply::Size`]
    ListXattr { handle: &'a [u8], size: u32 },
    /// Removes an extended attribute. [`Reply::Done`]
    RemoveXattr { handle: &'a [u8], name: &'a [u8] },
    /// access(2) with the caller's effective identity. [`Reply::Done`]
    Access { handle: &'a [u8], mask: AccessMask },
    /// fallocate. [`Reply::Done`]
    Fallocate { open: OpenId, offset: u64, length: u64, flags: FallocateFlags },
    /// lseek with SEEK_DATA or SEEK_HOLE. [`Reply::Size`]: the offset
    Seek { open: OpenId, offset: u64, to: SeekTo },
    /// The sum of a range of a file that is open for reading, made where it lies; with
    /// `past_cache` of what is kept for good, as far as that can be had, once it has been made
    /// stable. EINVAL beyond [`SUM_LENGTH_MAX`], ENODATA where the file ends before.
    /// [`Reply::Sum`]
    Checksum { open: OpenId, offset: u64, length: u64, kind: SumKind, past_cache: bool },
    /// Where the bytes of a file lie that is open for reading, for who reads them there himself
    /// while nobody changes the file: see [`stripe`](crate::stripe). EINVAL: the open is another
    /// inode's. [`Reply::Layout`]
    Layout { handle: &'a [u8], open: OpenId },
    /// copy_file_range inside the file system. [`Reply::Size`]: the bytes copied, which may be fewer
    CopyRange { from: OpenId, from_offset: u64, to: OpenId, to_offset: u64, length: u64 },
    /// Makes up to [`PUT_FILES_MAX`](crate::put::PUT_FILES_MAX) small files in a directory, each
    /// whole and with its attributes, under a name that is free; with `stable` no name before its
    /// file is stable. `files`: packed by [`PutFile::pack`](crate::put::PutFile::pack).
    /// EOPNOTSUPP: one by one here. [`Reply::Put`]
    PutFiles { parent: &'a [u8], files: &'a [u8], stable: bool },
    /// Would `lock` be granted? [`Reply::Lock`]: what stands in the way, or `Unlock`
    GetLock { open: OpenId, owner: u64, space: LockSpace, lock: Lock },
    /// Takes, changes or releases a lock; EAGAIN when it cannot be had and not `wait`; EDEADLK when waiting would never end. [`Reply::Done`]
    SetLock { open: OpenId, owner: u64, space: LockSpace, lock: Lock, wait: bool },
}

/// What an operation returns when it succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing but success.
    Done,
    /// An inode.
    Entry(Entry),
    /// Attributes.
    Attr(Attr),
    /// A link's text, an attribute's value, a list of names.
    Bytes(Vec<u8>),
    /// An open file or directory.
    Opened(Opened),
    /// A new file and its open.
    Created(Entry, Opened),
    /// Directory entries.
    Directory(DirPage),
    /// Space and inodes.
    Statfs(Statfs),
    /// A size or an offset in bytes.
    Size(u64),
    /// A lock.
    Lock(Lock),
    /// What a write or commit achieved.
    Written(Written),
    /// The sum of a range.
    Sum(Sum),
    /// What became of each of several files, in their order.
    Put(Vec<Result<Entry, Errno>>),
    /// Where a file's bytes lie.
    Layout(Layout),
}

impl Request<'_> {
    /// What it uses, or ends, of what is open; not what it opens.
    pub fn opens(&self) -> [Option<OpenId>; 2] {
        use Request::*;
        match *self {
            GetAttr { open, .. } | SetAttr { open, .. } => [open, None],
            Flush { open, .. }
            | Release { open }
            | Sync { open, .. }
            | Commit { open, .. }
            | ReadDirectory { open, .. }
            | ReleaseDirectory { open }
            | SyncDirectory { open, .. }
            | Fallocate { open, .. }
            | Seek { open, .. }
            | Checksum { open, .. }
            | Layout { open, .. }
            | GetLock { open, .. }
            | SetLock { open, .. } => [Some(open), None],
            CopyRange { from, to, .. } => [Some(from), Some(to)],
            Root
            | Lookup { .. }
            | ReadLink { .. }
            | Symlink { .. }
            | MakeNode { .. }
            | MakeDirectory { .. }
            | Unlink { .. }
            | RemoveDirectory { .. }
            | Rename { .. }
            | Link { .. }
            | Open { .. }
            | Create { .. }
            | CreateUnnamed { .. }
            | PutFiles { .. }
            | Reopen { .. }
            | OpenDirectory { .. }
            | Statfs { .. }
            | GetXattr { .. }
            | SetXattr { .. }
            | ListXattr { .. }
            | RemoveXattr { .. }
            | Access { .. } => [None, None],
        }
    }

    /// Whether the operation may change what another operation can see (data, names, attributes, locks): what a read-only export refuses
    /// is a part of it, see [`Request::writes`].
    pub fn changes_state(&self) -> bool {
        use Request::*;
        self.writes()
            || matches!(
                self,
                Open { .. }
                    | OpenDirectory { .. }
                    | Flush { .. }
                    | Release { .. }
                    | ReleaseDirectory { .. }
                    | SetLock { .. }
            )
    }

    /// Whether the operation needs a file system that may be written: a read-only one answers EROFS.
    pub fn writes(&self) -> bool {
        use Request::*;
        match self {
            SetAttr { .. }
            | Symlink { .. }
            | MakeNode { .. }
            | MakeDirectory { .. }
            | Unlink { .. }
            | RemoveDirectory { .. }
            | Rename { .. }
            | Link { .. }
            | Create { .. }
            | CreateUnnamed { .. }
            | PutFiles { .. }
            | SetXattr { .. }
            | RemoveXattr { .. }
            | Fallocate { .. }
            | CopyRange { .. } => true,
            Open { flags, .. } => flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE),
            Access { mask, .. } => mask.contains(AccessMask::WRITE),
            _ => false,
        }
    }
}

/// A file system that answers with the wrong kind of reply is broken, not the caller: EPROTO.
macro_rules! expect {
    ($($(#[$doc:meta])* $function:ident -> $type:ty: $pattern:pat => $value:expr;)*) => {
        impl Reply {
            $($(#[$doc])* pub fn $function(self) -> Result<$type, Errno> {
                match self { $pattern => Ok($value), _ => Err(Errno::EPROTO) }
            })*
        }
    };
}

expect! {
    /// The success without a value.
    done -> (): Reply::Done => ();
    /// The inode.
    entry -> Entry: Reply::Entry(entry) => entry;
    /// The attributes.
    attr -> Attr: Reply::Attr(attr) => attr;
    /// The bytes.
    bytes -> Vec<u8>: Reply::Bytes(bytes) => bytes;
    /// The open.
    opened -> Opened: Reply::Opened(opened) => opened;
    /// The new file and its open.
    created -> (Entry, Opened): Reply::Created(entry, opened) => (entry, opened);
    /// The directory entries.
    directory -> DirPage: Reply::Directory(page) => page;
    /// Space and inodes.
    statfs -> Statfs: Reply::Statfs(statfs) => statfs;
    /// The size or offset.
    size -> u64: Reply::Size(size) => size;
    /// The lock.
    lock -> Lock: Reply::Lock(lock) => lock;
    /// The result of a write or commit.
    written -> Written: Reply::Written(written) => written;
    /// The sum of a range.
    sum -> Sum: Reply::Sum(sum) => sum;
    /// What became of each file.
    put -> Vec<Result<Entry, Errno>>: Reply::Put(files) => files;
    /// Where the bytes lie.
    layout -> Layout: Reply::Layout(layout) => layout;
}
