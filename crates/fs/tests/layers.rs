//! Layers: what a layer does not say goes to the file system below, whatever it is.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context as Task, Poll, Waker};
use std::time::Duration;

use aqueduct_fs::caching::{Caching, Ruled, Rules};
use aqueduct_fs::dataonly::DataOnly;
use aqueduct_fs::idmap::{IdMaps, Mapped};
use aqueduct_fs::late::Late;
use aqueduct_fs::multiplexed::Multiplexed;
use aqueduct_fs::readonly::ReadOnly;
use aqueduct_fs::throttled::{Clock, Throttled};
use aqueduct_fs::{
    Answer, Call, ClientId, Context, Credential, DataCounters, Errno, FileSystem, Handle, Hold, Keep, LockSeen,
    MemorySink, OpenFlags, OpenId, ReadAt, Reply, Request, Sink, Source, WriteAt, Written,
};

/// A file system that knows which of its methods were called, and gives what no default gives.
#[derive(Default)]
struct Below(Mutex<Vec<&'static str>>);

impl Below {
    fn note(&self, method: &'static str) {
        self.0.lock().unwrap().push(method);
    }

    fn noted(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[deny(clippy::missing_trait_methods, reason = "the test is about all of them")]
impl FileSystem for Below {
    fn call<'a>(&'a self, _: &'a Context, _: Request<'a>) -> Call<'a, Reply> {
        self.note("call");
        Call::ready(Ok(Reply::Size(7)))
    }

    fn ask<'a>(&'a self, _: &'a Context, _: Request<'a>) -> Call<'a, Answer> {
        self.note("ask");
        let keep = Keep { attributes: Duration::from_secs(7), hold: Some(Hold::new(())), ..Keep::default() };
        Call::ready(Ok(Answer { result: Ok(Reply::Size(7)), keep }))
    }

    fn hold_data(&self, _: &[u8]) -> Option<Hold> {
        self.note("hold_data");
        Some(Hold::new(()))
    }

    fn read<'a>(&'a self, _: &'a Context, _: ReadAt, _: Box<dyn Sink>) -> Call<'a, usize> {
        self.note("read");
        Call::ready(Ok(7))
    }

    fn write<'a>(&'a self, _: &'a Context, _: WriteAt, _: Source) -> Call<'a, Written> {
        self.note("write");
        Call::ready(Ok(Written { count: 7, verifier: 7, offset: 7 }))
    }

    fn depart(&self, client: ClientId) -> Call<'_, ()> {
        assert_eq!(client, ClientId(7));
        self.note("depart");
        Call::ready(Ok(()))
    }

    fn locks(&self, limit: usize) -> Call<'_, (Vec<LockSeen>, usize)> {
        assert_eq!(limit, 7);
        self.note("locks");
        Call::ready(Ok((Vec::new(), 7)))
    }

    fn inode(&self, client: ClientId, open: OpenId) -> Call<'_, Handle> {
        assert_eq!((client, open), (ClientId(7), OpenId(7)));
        self.note("inode");
        Call::ready(Handle::new(b"seven").ok_or(Errno::EIO))
    }

    fn data_counters(&self) -> Option<DataCounters> {
        self.note("data_counters");
        Some(DataCounters::default())
    }

    fn inode_name<'a>(&self, handle: &'a [u8]) -> Option<(u64, &'a [u8])> {
        self.note("inode_name");
        Some((7, handle))
    }
}

/// A clock whose sleeps end at their second look.
struct Soon;

struct Once(bool);

impl Future for Once {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Task<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Clock for Soon {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(Once(false))
    }
}

fn done<T>(call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    loop {
        if let Poll::Ready(value) = call.as_mut().poll(&mut Task::from_waker(Waker::noop())) {
            return value;
        }
    }
}

/// Calls every method of a layer, and looks whether each came to the one below and its answer
/// back.
fn forwards(name: &str, below: &Below, layer: &dyn FileSystem, writes: bool) {
    let context = Context::new(ClientId(7), Credential::root());
    // One that knows what is open knows it from now on.
    assert_eq!(done(layer.call(&context, Request::Reopen { open: OpenId(7), token: b"" })), Ok(Reply::Size(7)));
    below.noted();
    let look = || Request::Open { handle: b"seven", flags: OpenFlags::READ };
    assert_eq!(done(layer.call(&context, look())), Ok(Reply::Size(7)), "{name}");
    assert!(matches!(below.noted()[..], ["call" | "ask"]), "{name}");
    let answer = done(layer.ask(&context, look())).unwrap();
    assert_eq!(answer.result, Ok(Reply::Size(7)), "{name}");
    assert_eq!((answer.keep.attributes, answer.keep.hold.is_some()), (Duration::from_secs(7), true), "{name}");
    assert!(layer.hold_data(b"seven").is_some(), "{name}");
    let read = ReadAt { open: OpenId(7), offset: 7, length: 7 };
    assert_eq!(done(layer.read(&context, read, Box::new(MemorySink::default()))), Ok(7), "{name}");
    assert_eq!(below.noted(), ["ask", "hold_data", "read"], "{name}");
    let write = WriteAt { open: OpenId(7), offset: 7, append: false, stable: false };
    let written = done(layer.write(&context, write, Source::Memory(bytes::Bytes::from_static(b"seven"))));
    assert_eq!(written.is_ok(), writes, "{name}");
    assert_eq!(below.noted().len(), usize::from(writes), "{name}");
    assert_eq!(done(layer.locks(7)).unwrap().1, 7, "{name}");
    assert_eq!(done(layer.inode(ClientId(7), OpenId(7))).unwrap().bytes(), b"seven", "{name}");
    assert!(layer.data_counters().is_some(), "{name}");
    assert_eq!(layer.inode_name(b"seven"), Some((7, &b"seven"[..])), "{name}");
    assert_eq!(below.noted(), ["locks", "inode", "data_counters", "inode_name"], "{name}");
    assert_eq!(done(layer.depart(ClientId(7))), Ok(()), "{name}");
    assert_eq!(below.noted().last(), Some(&"depart"), "{name}");
}

#[test]
fn every_layer_forwards_every_method() {
    let below = Arc::new(Below::default());
    let of = || below.clone();
    forwards("Arc", &below, &of(), true);
    forwards("ReadOnly", &below, &ReadOnly(of()), false);
    forwards("Mapped", &below, &Mapped { below: of(), maps: IdMaps::default() }, true);
    forwards("Ruled", &below, &Ruled::new(of(), Rules::new(Caching::Lease)), true);
    forwards("Throttled", &below, &Throttled::new(of(), u64::MAX, Soon), true);
    forwards("Multiplexed", &below, &Multiplexed::new(of()), true);
    forwards("Late", &below, &Late::new(of(), Duration::from_secs(1), 7, Soon), true);
}

#[test]
fn a_server_of_data_reads_what_was_opened_by_token_and_nothing_else() {
    let below = Arc::new(Below::default());
    let layer = DataOnly { below: below.clone(), writes: false };
    let context = Context::new(ClientId(7), Credential::root());
    assert_eq!(done(layer.call(&context, Request::Reopen { open: OpenId(7), token: b"" })), Ok(Reply::Size(7)));
    assert_eq!(done(layer.call(&context, Request::Release { open: OpenId(7) })), Ok(Reply::Size(7)));
    let read = ReadAt { open: OpenId(7), offset: 7, length: 7 };
    assert_eq!(done(layer.read(&context, read, Box::new(MemorySink::default()))), Ok(7));
    assert_eq!(below.noted().len(), 3);
    let (parent, name, handle) = (&b"seven"[..], &b"name"[..], &b"seven"[..]);
    for refused in [
        Request::Lookup { parent, name },
        Request::GetAttr { handle, open: None },
        Request::Open { handle, flags: OpenFlags::READ },
        Request::Unlink { parent, name },
        Request::Sync { open: OpenId(7), data_only: true },
    ] {
        assert_eq!(done(layer.ask(&context, refused)).unwrap().result, Err(Errno::EREMOTE));
    }
    let write = WriteAt { open: OpenId(7), offset: 7, append: false, stable: false };
    let data = Source::Memory(bytes::Bytes::from_static(b"seven"));
    assert_eq!(done(layer.write(&context, write, data)), Err(Errno::EREMOTE));
    assert_eq!(below.noted(), [""; 0]);
}

#[test]
fn nothing_that_writes_passes_a_read_only_layer_whichever_way_it_is_asked() {
    let below = Arc::new(Below::default());
    let layer = ReadOnly(below.clone());
    let context = Context::new(ClientId(7), Credential::root());
    let change = || Request::Unlink { parent: b"seven", name: b"name" };
    assert_eq!(done(layer.call(&context, change())), Err(Errno::EROFS));
    assert_eq!(done(layer.ask(&context, change())).unwrap().result, Err(Errno::EROFS));
    assert_eq!(below.noted(), [""; 0]);
}
