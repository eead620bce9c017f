//! Arbitrary values of everything that travels.

#![allow(dead_code, reason = "each test uses its part")]

use std::sync::Arc;

use aqueduct_fs::*;
use aqueduct_wire::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// What requests are made of: from one of these, a request of every operation.
#[derive(Clone, Debug)]
pub struct Parts {
    pub handles: [Vec<u8>; 2],
    pub names: [Vec<u8>; 2],
    pub text: Vec<u8>,
    pub xattr_name: Vec<u8>,
    pub value: Vec<u8>,
    pub packed: Vec<u8>,
    pub token: Vec<u8>,
    pub words: [u32; 4],
    pub longs: [u64; 4],
    pub yes: [bool; 2],
    pub bits: u32,
    pub set: SetAttr,
    pub lock: Lock,
    pub choice: u8,
    pub page_size: u32,
}

fn name_of(bytes: Vec<u8>) -> Vec<u8> {
    let name: Vec<u8> = bytes.into_iter().map(|byte| if byte == 0 || byte == b'/' { b'_' } else { byte }).collect();
    if name == b"." || name == b".." { b"dots".to_vec() } else { name }
}

/// Any name that a directory can hold.
pub fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![9 => vec(any::<u8>(), 1..40), 1 => vec(any::<u8>(), NAME_LENGTH_MAX)].prop_map(name_of)
}

/// The bytes of any handle.
pub fn handle_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![9 => vec(any::<u8>(), 1..60), 1 => vec(any::<u8>(), HANDLE_LENGTH_MAX)]
}

/// Any time.
pub fn time() -> impl Strategy<Value = Time> {
    (any::<i64>(), 0u32..1_000_000_000).prop_map(|(seconds, nanos)| Time { seconds, nanos })
}

fn set_time() -> impl Strategy<Value = SetTime> {
    prop_oneof![Just(SetTime::Now), time().prop_map(SetTime::At)]
}

fn set_attr() -> impl Strategy<Value = SetAttr> {
    let times = (proptest::option::of(set_time()), proptest::option::of(set_time()));
    (any::<[Option<u32>; 3]>(), any::<Option<u64>>(), times)
        .prop_map(|([mode, uid, gid], size, (atime, mtime))| SetAttr { mode, uid, gid, size, atime, mtime })
}

/// Any lock with an orderly range.
pub fn lock() -> impl Strategy<Value = Lock> {
    let kind = prop_oneof![Just(LockKind::Read), Just(LockKind::Write), Just(LockKind::Unlock)];
    (any::<[u64; 2]>(), kind, any::<u32>()).prop_map(|([a, b], kind, pid)| Lock {
        start: a.min(b),
        end: a.max(b),
        kind,
        pid,
    })
}

/// Any parts.
pub fn parts() -> impl Strategy<Value = Parts> {
    let bytes = (
        [handle_bytes(), handle_bytes()],
        [name(), name()],
        vec(1u8.., 1..60),
        vec(1u8.., 1..40),
        vec(any::<u8>(), 0..200),
        vec(any::<u8>(), 0..80),
    );
    let numbers = (any::<[u32; 4]>(), any::<[u64; 4]>(), any::<[bool; 2]>(), any::<u32>());
    let rest = (set_attr(), lock(), any::<u8>(), 0..=DIRECTORY_PAGE_MAX);
    (bytes, numbers, rest).prop_map(
        |(
            (handles, names, text, xattr_name, value, token),
            (words, longs, yes, bits),
            (set, lock, choice, page_size),
        )| {
            let mut packed = Vec::new();
            let [atime, mtime] = [longs[0], longs[1]].map(|at| Time { seconds: at as i64, nanos: words[3] % 1_000 });
            for name in &names {
                let [uid, gid, mode, _] = words;
                put::PutFile { name, uid, gid, mode, atime, mtime, data: &value }.pack(&mut packed);
            }
            Parts {
                packed,
                handles,
                names,
                text,
                xattr_name,
                value,
                token,
                words,
                longs,
                yes,
                bits,
                set,
                lock,
                choice,
                page_size,
            }
        },
    )
}

/// Every operation that is a request of the file system.
pub fn request_ops() -> impl Iterator<Item = Op> {
    Op::ALL.iter().copied().filter(|op| {
        !matches!(
            op,
            Op::Attach
                | Op::Status
                | Op::Compound
                | Op::Read
                | Op::Write
                | Op::Recovered
                | Op::Fetch
                | Op::List
                | Op::Locks
                | Op::Map
                | Op::GiveUp
                | Op::Right
                | Op::Revoke
                | Op::Beat
                | Op::Transfer
                | Op::Stage
                | Op::ReleaseLocks
        )
    })
}

impl Parts {
    /// The request of `op` made of these parts.
    pub fn request(&self, op: Op) -> Request<'_> {
        let [handle, other] = [&self.handles[0][..], &self.handles[1][..]];
        let [name, new_name] = [&self.names[0][..], &self.names[1][..]];
        let [mode, umask, size, _] = self.words;
        let flags = OpenFlags::from_bits_truncate(self.bits);
        match op {
            Op::Root => Request::Root,
            Op::Lookup => Request::Lookup { parent: handle, name },
            Op::GetAttr => Request::GetAttr { handle, open: self.maybe_open() },
            Op::SetAttr => Request::SetAttr { handle, open: self.maybe_open(), set: self.set },
            Op::ReadLink => Request::ReadLink { handle },
            Op::Access => Request::Access { handle, mask: AccessMask::from_bits_truncate(self.bits) },
            Op::Statfs => Request::Statfs { handle },
            Op::Symlink => Request::Symlink { parent: handle, name, text: &self.text },
            Op::MakeNode => Request::MakeNode { parent: handle, name, mode, umask, rdev: self.longs[0] },
            Op::MakeDirectory => Request::MakeDirectory { parent: handle, name, mode, umask },
            Op::Unlink => Request::Unlink { parent: handle, name },
            Op::RemoveDirectory => Request::RemoveDirectory { parent: handle, name },
            Op::Rename => {
                let flags = RenameFlags::from_bits_truncate(self.bits);
                Request::Rename { parent: handle, name, new_parent: other, new_name, flags }
            }
            Op::Link => Request::Link { handle, parent: other, name },
            Op::Open => Request::Open { handle, flags },
            Op::Create => Request::Create { parent: handle, name, mode, umask, flags },
            Op::CreateUnnamed => Request::CreateUnnamed { parent: handle, mode, umask, flags },
            Op::Reopen => Request::Reopen { open: OpenId(self.longs[0]), token: &self.token },
            Op::OpenDirectory => Request::OpenDirectory { handle },
            Op::GetXattr => Request::GetXattr { handle, name: &self.xattr_name, size },
            Op::SetXattr => {
                let mode = [XattrMode::Any, XattrMode::Create, XattrMode::Replace][usize::from(self.choice % 3)];
                Request::SetXattr { handle, name: &self.xattr_name, value: &self.value, mode }
            }
            Op::ListXattr => Request::ListXattr { handle, size },
            Op::RemoveXattr => Request::RemoveXattr { handle, name: &self.xattr_name },
            Op::PutFiles => Request::PutFiles { parent: handle, files: &self.packed, stable: self.yes[0] },
            Op::Layout => Request::Layout { handle, open: OpenId(self.longs[0]) },
            op => self.request_of_open(op),
        }
    }

    fn maybe_open(&self) -> Option<OpenId> {
        self.yes[0].then_some(OpenId(self.longs[0]))
    }

    fn request_of_open(&self, op: Op) -> Request<'_> {
        let [open, offset, length, owner] = self.longs;
        let open = OpenId(open);
        let [data_only, wait] = self.yes;
        let (plus, cookie) = (data_only, offset);
        let space = if self.choice.is_multiple_of(2) { LockSpace::Posix } else { LockSpace::Flock };
        match op {
            Op::Flush => Request::Flush { open, owner },
            Op::Release => Request::Release { open },
            Op::Sync => Request::Sync { open, data_only },
            Op::Commit => Request::Commit { open, offset, length },
            Op::Fallocate => {
                Request::Fallocate { open, offset, length, flags: FallocateFlags::from_bits_truncate(self.bits) }
            }
            Op::Seek => Request::Seek { open, offset, to: if wait { SeekTo::Data } else { SeekTo::Hole } },
            Op::Checksum => Request::Checksum {
                open,
                offset,
                length,
                kind: [SumKind::Xxh3, SumKind::Blake3, SumKind::Blake3Part][usize::from(wait) + usize::from(data_only)],
                past_cache: plus,
            },
            Op::CopyRange => {
                Request::CopyRange { from: open, from_offset: offset, to: OpenId(owner), to_offset: length, length }
            }
            Op::ReadDirectory => Request::ReadDirectory { open, cookie, size: self.page_size, plus },
            Op::ReleaseDirectory => Request::ReleaseDirectory { open },
            Op::SyncDirectory => Request::SyncDirectory { open, data_only },
            Op::GetLock => Request::GetLock { open, owner, space, lock: self.lock },
            Op::SetLock => Request::SetLock { open, owner, space, lock: self.lock, wait },
            op => unreachable!("{op:?} is made elsewhere"),
        }
    }
}

/// Any caller within the limits.
pub fn context() -> impl Strategy<Value = Context> {
    let groups = prop_oneof![
        1 => Just(Groups::Resolve),
        8 => vec(any::<u32>(), 0..8).prop_map(|groups| Groups::Known(groups.into())),
        1 => Just(Groups::Known(Arc::new([7; GROUPS_MAX]))),
    ];
    (any::<[u32; 3]>(), groups).prop_map(|([uid, gid, pid], groups)| {
        let mut context = Context::new(ClientId(0), Credential { uid, gid, groups });
        context.pid = pid;
        context
    })
}

/// Who a context says is asking.
pub fn caller(context: &Context) -> Caller {
    Caller { credential: context.credential.clone(), pid: context.pid }
}

/// Any attributes.
pub fn attr() -> impl Strategy<Value = Attr> {
    (any::<[u64; 4]>(), any::<[u32; 5]>(), [time(), time(), time(), time()]).prop_map(
        |([ino, rdev, size, blocks], [mode, nlink, uid, gid, blksize], [atime, mtime, ctime, btime])| Attr {
            ino,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size,
            blocks,
            blksize,
            atime,
            mtime,
            ctime,
            btime,
        },
    )
}

/// Any inode.
pub fn entry() -> impl Strategy<Value = Entry> {
    (handle_bytes(), attr()).prop_map(|(handle, attr)| Entry { handle: Handle::new(&handle).unwrap(), attr })
}

fn opened() -> impl Strategy<Value = Opened> {
    (any::<u64>(), vec(any::<u8>(), 0..100), any::<u16>()).prop_map(|(id, token, width)| Opened {
        id: OpenId(id),
        token: token.into(),
        width,
    })
}

fn page() -> impl Strategy<Value = DirPage> {
    let entry = (any::<[u64; 2]>(), any::<u8>(), name(), proptest::option::of((handle_bytes(), attr())));
    (vec(entry, 0..8), any::<[bool; 2]>()).prop_map(|(entries, [end, exact])| {
        let mut page = DirPage::default();
        (page.end, page.exact) = (end, exact);
        for ([ino, cookie], kind, name, inode) in &entries {
            let inode = inode.as_ref().map(|(handle, attr)| (&handle[..], *attr));
            page.push(&DirEntry { ino: *ino, cookie: *cookie, kind: *kind, name, inode });
        }
        page
    })
}

/// Any reply that may answer `op`.
pub fn reply(op: Op) -> BoxedStrategy<Reply> {
    let text = || vec(1u8.., 1..80).prop_map(Reply::Bytes);
    let written = || (0..=TRANSFER_SIZE_MAX as u32, any::<u64>(), any::<u64>());
    match op {
        Op::Root | Op::Lookup | Op::Symlink | Op::MakeNode | Op::MakeDirectory | Op::Link => {
            entry().prop_map(Reply::Entry).boxed()
        }
        Op::GetAttr | Op::SetAttr => attr().prop_map(Reply::Attr).boxed(),
        Op::Open | Op::Reopen | Op::OpenDirectory => opened().prop_map(Reply::Opened).boxed(),
        Op::Create | Op::CreateUnnamed => {
            (entry(), opened()).prop_map(|(entry, opened)| Reply::Created(entry, opened)).boxed()
        }
        Op::PutFiles => {
            let one = prop_oneof![entry().prop_map(Ok), (1i32..133).prop_map(|error| Err(Errno::from_raw(error)))];
            vec(one, 0..put::PUT_FILES_MAX).prop_map(Reply::Put).boxed()
        }
        Op::ReadDirectory => page().prop_map(Reply::Directory).boxed(),
        Op::Statfs => (any::<[u64; 5]>(), any::<[u32; 3]>())
            .prop_map(|([blocks, blocks_free, blocks_available, files, files_free], sizes)| {
                let [block_size, fragment_size, name_length] = sizes;
                Reply::Statfs(Statfs {
                    blocks,
                    blocks_free,
                    blocks_available,
                    files,
                    files_free,
                    block_size,
                    fragment_size,
                    name_length,
                })
            })
            .boxed(),
        Op::ReadLink => text().boxed(),
        Op::GetXattr | Op::ListXattr => {
            prop_oneof![vec(any::<u8>(), 0..200).prop_map(Reply::Bytes), any::<u64>().prop_map(Reply::Size)].boxed()
        }
        Op::Seek | Op::CopyRange => any::<u64>().prop_map(Reply::Size).boxed(),
        Op::GetLock => lock().prop_map(Reply::Lock).boxed(),
        Op::Checksum => (any::<[u8; 32]>(), any::<bool>())
            .prop_map(|(value, is_past_cache)| Reply::Sum(Sum { value, is_past_cache }))
            .boxed(),
        Op::Layout => layout().prop_map(Reply::Layout).boxed(),
        Op::Write | Op::Commit => {
            written().prop_map(|(count, verifier, offset)| Reply::Written(Written { count, verifier, offset })).boxed()
        }
        _ => Just(Reply::Done).boxed(),
    }
}

fn layout() -> impl Strategy<Value = Layout> {
    let part = prop_oneof![
        any::<u16>().prop_map(|place| Part::Hole { place }),
        any::<u16>().prop_map(|place| Part::Untold { place }),
        (any::<u16>(), vec(any::<u8>(), 0..128)).prop_map(|(place, token)| Part::At { place, token: token.into() })
    ];
    (any::<(u64, u64)>(), 1u32.., any::<[u8; 16]>(), vec(part, 0..64))
        .prop_map(|((size, epoch), block, id, parts)| Layout { size, block, id, epoch, parts })
}

/// Every operation whose reply is one of the file system's, with such a reply.
pub fn replies() -> impl Strategy<Value = Vec<(Op, Reply)>> {
    let ops = Op::ALL.iter().copied().filter(|op| {
        !matches!(
            op,
            Op::Attach
                | Op::Status
                | Op::Compound
                | Op::Recovered
                | Op::Fetch
                | Op::List
                | Op::Locks
                | Op::Map
                | Op::GiveUp
                | Op::Right
                | Op::Revoke
                | Op::Beat
                | Op::Transfer
                | Op::Stage
                | Op::ReleaseLocks
        )
    });
    ops.map(|op| reply(op).prop_map(move |reply| (op, reply))).collect::<Vec<_>>()
}

/// The body that an encoder appends.
pub fn body(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

/// A damage: which byte (of as many as there are) becomes what.
pub fn damage(body: &[u8], at: usize, by: u8) -> Vec<u8> {
    let mut damaged = body.to_vec();
    if !damaged.is_empty() {
        let at = at % damaged.len();
        damaged[at] ^= by;
    }
    damaged
}
