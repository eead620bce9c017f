//! One well-formed request and reply of each operation: what the seeds are made of.

use std::sync::Arc;

use aqueduct_fs::*;
use aqueduct_wire::Op;

pub(crate) const OPEN: OpenId = OpenId(0x1122_3344_5566_7788);
const HANDLE: &[u8] = b"a handle of some length";
const LOCK: Lock = Lock { start: 10, end: u64::MAX, kind: LockKind::Write, pid: 42 };

/// A caller of two groups.
pub(crate) fn context() -> Context {
    let groups = Groups::Known(Arc::new([4, 24]));
    Context { pid: 42, ..Context::new(ClientId(1), Credential { uid: 1000, gid: 100, groups }) }
}

/// A request of each operation, in the order of their codes.
pub(crate) fn requests() -> Vec<Request<'static>> {
    requests_of(OPEN, OPEN)
}

/// The same, about this file and this directory where they are about what is open.
pub(crate) fn requests_of(open: OpenId, directory: OpenId) -> Vec<Request<'static>> {
    use Request::*;
    let (handle, parent, name) = (HANDLE, HANDLE, &b"name"[..]);
    let (mode, umask, owner) = (0o100644, 0o022, 77);
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE;
    let at = SetTime::At(Time { seconds: -1, nanos: 999_999_999 });
    let set = aqueduct_fs::SetAttr {
        mode: Some(0o644),
        uid: Some(1),
        gid: Some(2),
        size: Some(3),
        atime: Some(SetTime::Now),
        mtime: Some(at),
    };
    vec![
        Root,
        Lookup { parent, name },
        GetAttr { handle, open: Some(open) },
        SetAttr { handle, open: None, set },
        ReadLink { handle },
        Access { handle, mask: AccessMask::all() },
        Statfs { handle },
        Symlink { parent, name, text: b"../target" },
        MakeNode { parent, name, mode, umask, rdev: 0x1_0000_0003 },
        MakeDirectory { parent, name, mode, umask },
        Unlink { parent, name },
        RemoveDirectory { parent, name },
        Rename { parent, name, new_parent: handle, new_name: b"new", flags: RenameFlags::NOREPLACE },
        Link { handle, parent, name },
        Open { handle, flags },
        Create { parent, name, mode, umask, flags },
        CreateUnnamed { parent, mode, umask, flags },
        Reopen { open, token: b"a token" },
        Flush { open, owner },
        Release { open },
        Sync { open, data_only: true },
        Commit { open, offset: 4096, length: 0 },
        Fallocate { open, offset: 1, length: 2, flags: FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE },
        Seek { open, offset: 1, to: SeekTo::Hole },
        CopyRange { from: open, from_offset: 1, to: open, to_offset: 2, length: 3 },
        Checksum { open, offset: 1 << 20, length: 1 << 20, kind: SumKind::Blake3Part, past_cache: true },
        PutFiles { parent, files: PUT, stable: true },
        Layout { handle, open },
        OpenDirectory { handle },
        ReadDirectory { open: directory, cookie: 5, size: 4096, plus: true },
        ReleaseDirectory { open: directory },
        SyncDirectory { open: directory, data_only: false },
        GetXattr { handle, name: b"user.a", size: 64 },
        SetXattr { handle, name: b"user.a", value: b"a value", mode: XattrMode::Replace },
        ListXattr { handle, size: 0 },
        RemoveXattr { handle, name: b"user.a" },
        GetLock { open, owner, space: LockSpace::Posix, lock: LOCK },
        SetLock { open, owner, space: LockSpace::Flock, lock: LOCK, wait: true },
    ]
}

/// Where the bytes of a file lie: nowhere, and at a server.
fn layout() -> Layout {
    let parts =
        vec![Part::Hole { place: 0 }, Part::Untold { place: 2 }, Part::At { place: 1, token: (*b"a token").into() }];
    Layout { size: 1 << 20, block: 1 << 16, id: [3; 16], epoch: 2, parts }
}

/// An inode with different values in all its attributes.
pub(crate) fn entry() -> Entry {
    let time = |seconds| Time { seconds, nanos: 5 };
    let attr = Attr {
        ino: 11,
        mode: libc::S_IFREG | 0o4755,
        nlink: 2,
        uid: 1000,
        gid: 100,
        rdev: 0x1_0000_0003,
        size: 1 << 40,
        blocks: 9,
        blksize: 4096,
        atime: time(-1),
        mtime: time(2),
        ctime: time(3),
        btime: time(4),
    };
    Entry { handle: Handle::new(HANDLE).expect("it is short"), attr }
}

/// Entries with and without inodes.
pub(crate) fn page() -> DirPage {
    let Entry { handle, attr } = entry();
    let mut page = DirPage::default();
    for (name, inode) in [(&b"."[..], None), (b"a", Some((handle.bytes(), attr))), (&[0xff; 255], None)] {
        page.push(&DirEntry { ino: 11, cookie: 12, kind: libc::DT_REG, name, inode });
    }
    page
}

/// One file, packed: its name, owner, group, permissions, times and content.
const PUT: &[u8] =
    b"\x01\0a\x01\0\0\0\x02\0\0\0\xed\x01\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\x05\0\0\0\0\0\0\0\x06\0\0\0\x05\0\0\0hello";

/// A reply to each operation that has one of its own.
pub(crate) fn replies() -> Vec<(Op, Reply)> {
    let opened = || Opened { id: OPEN, token: b"a token"[..].into(), width: 2 };
    let bytes = || Reply::Bytes(b"user.a\0user.b\0".to_vec());
    let of = |op| match op {
        Op::Root | Op::Lookup | Op::Symlink | Op::MakeNode | Op::MakeDirectory | Op::Link => Reply::Entry(entry()),
        Op::GetAttr | Op::SetAttr => Reply::Attr(entry().attr),
        Op::Open | Op::Reopen | Op::OpenDirectory => Reply::Opened(opened()),
        Op::Create | Op::CreateUnnamed => Reply::Created(entry(), opened()),
        Op::ReadDirectory => Reply::Directory(page()),
        Op::Statfs => Reply::Statfs(Statfs { blocks: 1, files: 2, block_size: 4096, ..Statfs::default() }),
        Op::ReadLink => Reply::Bytes(b"../target".to_vec()),
        Op::GetXattr | Op::ListXattr => bytes(),
        Op::Seek | Op::CopyRange => Reply::Size(1 << 20),
        Op::GetLock => Reply::Lock(LOCK),
        Op::PutFiles => Reply::Put(vec![Ok(entry()), Err(Errno::EEXIST)]),
        Op::Checksum => Reply::Sum(Sum { value: [7; 32], is_past_cache: true }),
        Op::Layout => Reply::Layout(layout()),
        Op::Write | Op::Commit => Reply::Written(Written { count: 4096, verifier: 8, offset: 0 }),
        _ => Reply::Done,
    };
    let apart = [Op::Attach, Op::Status, Op::Compound, Op::Recovered, Op::Fetch, Op::Locks, Op::ReleaseLocks];
    Op::ALL.iter().filter(|op| !apart.contains(op)).map(|op| (*op, of(*op))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_its_sample() {
        let sampled: Vec<Op> = requests().iter().map(Op::of).collect();
        // What an agent is asked, and what is staged, is no operation of a file system.
        let is_one = |op: &Op| *op as u16 >= 16 && !matches!(op, Op::Transfer | Op::Stage);
        let wanted: Vec<Op> = Op::ALL.iter().copied().filter(is_one).collect();
        assert_eq!(sampled, wanted);
    }
}
