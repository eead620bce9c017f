use std::future::Future;
use std::sync::Mutex;

use proptest::prelude::*;

use super::{IdMap, IdMapError, IdMaps, IdRange, Mapped};
use crate::{
    Attr, Call, ClientId, Context, Credential, DirEntry, DirPage, Entry, Errno, FileSystem, Groups, Handle, MemorySink,
    OpenId, Opened, ReadAt, Reply, Request, SetAttr, SetTime, Sink, Source, WriteAt, Written, XattrMode,
};

fn range(client: u32, server: u32, count: u32) -> IdRange {
    IdRange { client, server, count }
}

fn maps(others: Option<u32>) -> IdMaps {
    let users = IdMap::new(&[range(1000, 5000, 10), range(0, 100_000, 1)], others).unwrap();
    IdMaps { users, groups: IdMap::new(&[range(100, 200, 50)], others).unwrap() }
}

#[test]
fn ids_are_translated_both_ways_and_others_pass_or_are_anonymous() {
    let map = &maps(None).users;
    for (client, server) in [(1000, 5000), (1009, 5009), (0, 100_000), (999, 999), (1010, 1010), (u32::MAX, u32::MAX)] {
        assert_eq!((map.to_server(client), map.to_client(server)), (server, client));
    }
    assert_eq!(map.to_client(1000), 1000, "an id that no range has");
    let map = &maps(Some(65_534)).users;
    assert_eq!((map.to_server(1005), map.to_server(5005), map.to_server(1)), (5005, 65_534, 65_534));
    assert_eq!((map.to_client(5005), map.to_client(0), map.to_client(65_534)), (1005, 65_534, 65_534));
}

#[test]
fn ranges_that_cannot_be_meant_are_refused() {
    assert_eq!(IdMap::new(&[range(1, 1, 0)], None), Err(IdMapError::Empty(range(1, 1, 0))));
    let last = u32::MAX - 1;
    assert!(IdMap::new(&[range(last, 0, 1)], None).is_ok());
    assert_eq!(IdMap::new(&[range(last, 0, 2)], None), Err(IdMapError::Beyond(range(last, 0, 2))));
    assert_eq!(IdMap::new(&[range(0, 1, u32::MAX)], None), Err(IdMapError::Beyond(range(0, 1, u32::MAX))));
    let (first, second, third) = (range(10, 100, 10), range(20, 200, 10), range(29, 300, 1));
    let error = IdMap::new(&[third, first, second], None).unwrap_err();
    assert_eq!(error, IdMapError::OverlapAtClients(second, third));
    assert!(error.to_string().contains("{ client = 29, server = 300, count = 1 } overlap at the clients"), "{error}");
    let fourth = range(40, 109, 1);
    let error = IdMap::new(&[first, second, fourth], None).unwrap_err();
    assert_eq!(error, IdMapError::OverlapOnServer(first, fourth));
}

proptest! {
    /// Whatever ranges are accepted: what is in them goes there and back, and two ids of clients in them never become one of the server.
    #[test]
    fn accepted_ranges_are_one_to_one(
        ranges in prop::collection::vec((0u32..60, 0u32..60, 1u32..12), 0..6), ids in prop::collection::vec(0u32..80, 2..20),
    ) {
        let ranges: Vec<_> = ranges.into_iter().map(|(client, server, count)| range(client, server, count)).collect();
        let overlaps = |first: fn(&IdRange) -> u32| (0..80).any(|id| {
            ranges.iter().filter(|range| (first(range)..first(range) + range.count).contains(&id)).count() > 1
        });
        let is_wrong = overlaps(|range| range.client) || overlaps(|range| range.server);
        let Ok(map) = IdMap::new(&ranges, Some(9999)) else {
            prop_assert!(is_wrong, "refused without a reason");
            return Ok(());
        };
        prop_assert!(!is_wrong, "accepted although ids overlap");
        for id in ids {
            let inside = ranges.iter().find(|range| (range.client..range.client + range.count).contains(&id));
            let expected = inside.map_or(9999, |range| range.server + (id - range.client));
            prop_assert_eq!(map.to_server(id), expected);
            if inside.is_some() {
                prop_assert_eq!(map.to_client(expected), id);
            }
        }
    }
}

/// Answers with owners of the server's, and writes down what it was asked for.
#[derive(Default)]
struct Below {
    asked: Mutex<Vec<String>>,
    waits: bool,
}

const ACL: &[u8] = b"system.posix_acl_access";
const OWNED: Attr = Attr {
    ino: 1,
    mode: 0o644,
    nlink: 1,
    uid: 5003,
    gid: 203,
    rdev: 0,
    size: 9,
    blocks: 0,
    blksize: 0,
    atime: crate::Time { seconds: 1, nanos: 2 },
    mtime: crate::Time { seconds: 3, nanos: 4 },
    ctime: crate::Time { seconds: 5, nanos: 6 },
    btime: crate::Time { seconds: 7, nanos: 8 },
};

fn acl(user: u32, group: u32) -> Vec<u8> {
    let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &7u16.to_le_bytes(), &id.to_le_bytes()].concat();
    [&2u32.to_le_bytes()[..], &entry(1, u32::MAX), &entry(2, user), &entry(8, group)].concat()
}

impl Below {
    fn answer(&self, request: &Request<'_>) -> Result<Reply, Errno> {
        self.asked.lock().unwrap().push(format!("{request:?}"));
        let entry = Entry { handle: Handle::new(b"inode").unwrap(), attr: OWNED };
        Ok(match request {
            Request::Lookup { .. } => Reply::Entry(entry),
            Request::GetAttr { .. } | Request::SetAttr { .. } => Reply::Attr(OWNED),
            Request::Create { .. } => Reply::Created(entry, Opened { id: OpenId(7), token: Box::new([1]), width: 0 }),
            Request::GetXattr { name: ACL, .. } => Reply::Bytes(acl(5003, 203)),
            Request::GetXattr { name: b"system.posix_acl_default", .. } => Reply::Bytes(vec![1, 2, 3]),
            Request::GetXattr { .. } => Reply::Bytes(acl(5003, 203)),
            Request::ReadDirectory { plus, .. } => {
                let mut page = DirPage::default();
                for (cookie, name) in [(1, &b"one"[..]), (2, b"two")] {
                    let inode = plus.then_some((&b"inode"[..], OWNED));
                    page.push(&DirEntry { ino: 1, cookie, kind: 8, name, inode });
                }
                page.end = true;
                Reply::Directory(page)
            }
            _ => Reply::Done,
        })
    }

    fn last(&self) -> String {
        self.asked.lock().unwrap().pop().unwrap()
    }
}

impl FileSystem for Below {
    fn call<'a>(&'a self, _context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        if self.waits {
            Call::waiting(async move { self.answer(&request) })
        } else {
            Call::ready(self.answer(&request))
        }
    }

    fn read<'a>(&'a self, _context: &'a Context, read: ReadAt, mut sink: Box<dyn Sink>) -> Call<'a, usize> {
        sink.bytes(b"data").unwrap();
        sink.finish(4).unwrap();
        self.asked.lock().unwrap().push(format!("{read:?}"));
        Call::ready(Ok(4))
    }

    fn write<'a>(&'a self, _context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        let Source::Memory(bytes) = &source else { panic!("nothing was staged") };
        self.asked.lock().unwrap().push(format!("{write:?} at {:?}", bytes.as_ptr()));
        Call::ready(Ok(Written { count: source.length() as u32, verifier: 3, offset: 0 }))
    }

    fn depart(&self, client: ClientId) -> Call<'_, ()> {
        self.asked.lock().unwrap().push(format!("{client:?}"));
        Call::ready(Ok(()))
    }

    fn inode(&self, _client: ClientId, _open: OpenId) -> Call<'_, Handle> {
        Call::ready(Handle::new(b"inode").ok_or(Errno::EBADF))
    }
}

fn context() -> Context {
    Context::new(ClientId(1), Credential::root())
}

fn done<T: Unpin>(mut call: Call<'_, T>) -> Result<T, Errno> {
    let mut task = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(&mut call).poll(&mut task) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => panic!("nothing here waits for long"),
    }
}

#[test]
fn owners_in_replies_are_the_clients() {
    for waits in [false, true] {
        let mapped = Mapped { below: Below { waits, ..Below::default() }, maps: maps(None) };
        let context = context();
        let ask = |request| done(mapped.call(&context, request)).unwrap();
        let seen = Attr { uid: 1003, gid: 103, ..OWNED };
        let (parent, name) = (&b"parent"[..], &b"name"[..]);
        assert_eq!(ask(Request::Lookup { parent, name }).entry().unwrap().attr, seen);
        assert_eq!(ask(Request::GetAttr { handle: parent, open: None }).attr().unwrap(), seen);
        let create = Request::Create { parent, name, mode: 0, umask: 0, flags: crate::OpenFlags::READ };
        let (entry, opened) = ask(create).created().unwrap();
        assert_eq!((entry.attr, opened.id), (seen, OpenId(7)));
        for plus in [false, true] {
            let page =
                ask(Request::ReadDirectory { open: OpenId(1), cookie: 0, size: 4096, plus }).directory().unwrap();
            let listed: Vec<_> = page.entries().map(|entry| (entry.name.to_vec(), entry.inode)).collect();
            let inode = plus.then_some((&b"inode"[..], seen));
            assert_eq!(listed, [(b"one".to_vec(), inode), (b"two".to_vec(), inode)]);
            assert!(page.end);
        }
        let get = |name| Request::GetXattr { handle: parent, name, size: 100 };
        assert_eq!(ask(get(ACL)).bytes().unwrap(), acl(1003, 103));
        assert_eq!(ask(get(b"user.acl")).bytes().unwrap(), acl(5003, 203), "no list, whatever it looks like");
        assert_eq!(done(mapped.call(&context, get(b"system.posix_acl_default"))), Err(Errno::EIO));
    }
}

#[test]
fn owners_in_requests_are_the_servers() {
    let mapped = Mapped { below: Below::default(), maps: maps(Some(65_534)) };
    let context = context();
    let ask = |request: Request<'_>| done(mapped.call(&context, request));
    let handle = &b"inode"[..];
    let time = Some(SetTime::Now);
    let owners = |uid, gid| SetAttr { uid, gid, mode: Some(1), atime: time, ..SetAttr::default() };
    for ((uid, gid), (server_uid, server_gid)) in [
        ((Some(1003), Some(103)), (Some(5003), Some(203))),
        ((Some(7), None), (Some(65_534), None)),
        ((None, Some(0)), (None, Some(65_534))),
    ] {
        ask(Request::SetAttr { handle, open: Some(OpenId(1)), set: owners(uid, gid) }).unwrap();
        let expected = Request::SetAttr { handle, open: Some(OpenId(1)), set: owners(server_uid, server_gid) };
        assert_eq!(mapped.below.last(), format!("{expected:?}"));
    }
    let (list, translated) = (acl(1003, 103), acl(5003, 203));
    let set = |name, value| Request::SetXattr { handle, name, value, mode: XattrMode::Create };
    ask(set(ACL, &list)).unwrap();
    assert_eq!(mapped.below.last(), format!("{:?}", set(ACL, &translated)));
    assert_eq!(ask(set(ACL, b"short")), Err(Errno::EINVAL));
    assert!(mapped.below.asked.lock().unwrap().is_empty(), "what is no list is not set");
    ask(set(b"user.acl", b"short")).unwrap();
    assert_eq!(mapped.below.last(), format!("{:?}", set(b"user.acl", b"short")));
}

#[test]
fn data_and_ends_pass_untouched() {
    let mapped = Mapped { below: Below::default(), maps: maps(None) };
    let context = context();
    let sink = MemorySink::default();
    let read = ReadAt { open: OpenId(1), offset: 2, length: 3 };
    assert_eq!(done(mapped.read(&context, read, Box::new(sink.clone()))), Ok(4));
    assert_eq!((sink.take().unwrap(), mapped.below.last()), (b"data".to_vec(), format!("{read:?}")));
    let write = WriteAt { open: OpenId(1), offset: 2, append: true, stable: true };
    let bytes = bytes::Bytes::from(vec![7; 1000]);
    let written = done(mapped.write(&context, write, Source::Memory(bytes.clone())));
    assert_eq!(written, Ok(Written { count: 1000, verifier: 3, offset: 0 }));
    assert_eq!(mapped.below.last(), format!("{write:?} at {:?}", bytes.as_ptr()), "the same memory");
    assert_eq!(done(mapped.depart(ClientId(9))), Ok(()));
    assert_eq!(mapped.below.last(), "ClientId(9)");
    assert_eq!(done(mapped.inode(ClientId(1), OpenId(1))).ok(), Handle::new(b"inode"));
}

#[test]
fn callers_become_the_servers_users() {
    let maps = maps(None);
    let caller = |uid, gid, groups: &[u32]| Credential { uid, gid, groups: Groups::Known(groups.into()) };
    assert_eq!(maps.credential(caller(1000, 100, &[101, 7, 149, 150])), caller(5000, 200, &[201, 7, 249, 150]));
    assert_eq!(maps.credential(caller(0, 0, &[])), caller(100_000, 0, &[]));
    let unknown = Credential { uid: 1001, gid: 100, groups: Groups::Resolve };
    assert_eq!(maps.credential(unknown), Credential { uid: 5001, gid: 200, groups: Groups::Resolve });
}
