//! Locks through the file system: waits that end, one way or another.

mod common;

use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::*;
use aqueduct_posix::HandleSource;
use common::*;

const WHOLE: Lock = Lock { start: 0, end: u64::MAX, kind: LockKind::Write, pid: 42 };

fn served() -> Arc<Served> {
    Arc::new(serve(&std::env::temp_dir(), HandleSource::Kernel))
}

fn set(open: OpenId, owner: u64, kind: LockKind, wait: bool) -> Request<'static> {
    Request::SetLock { open, owner, space: LockSpace::Posix, lock: Lock { kind, ..WHOLE }, wait }
}

/// Two clients with the same file open.
fn two_opens(served: &Served) -> (OpenId, OpenId) {
    let (file, first) = served.create(b"file");
    (first, served.open_as(&context(2, own()), &file.handle, READ_WRITE).unwrap())
}

/// A second client that waits on another thread for the lock that the first holds.
fn waiter(served: &Arc<Served>, open: OpenId, context: Context) -> std::thread::JoinHandle<Result<Reply, Errno>> {
    let before = served.posix.statistics().lock_waits;
    let thread = std::thread::spawn({
        let served = served.clone();
        move || served.call(&context, set(open, 7, LockKind::Write, true))
    });
    while served.posix.statistics().lock_waits == before && !thread.is_finished() {
        std::thread::sleep(Duration::from_millis(1));
    }
    thread
}

#[test]
fn locks_keep_clients_apart_and_tests_tell_who() {
    let served = served();
    let (first, second) = two_opens(&served);
    let other = context(2, own());
    assert_eq!(served.root_call(set(first, 7, LockKind::Write, true)), Ok(Reply::Done));
    assert_eq!(served.call(&other, set(second, 7, LockKind::Read, false)), Err(Errno::EAGAIN), "same owner number");
    let test = Request::GetLock { open: second, owner: 7, space: LockSpace::Posix, lock: WHOLE };
    assert_eq!(served.call(&other, test.clone()), Ok(Reply::Lock(WHOLE)));
    let test_own = Request::GetLock { open: first, owner: 7, space: LockSpace::Posix, lock: WHOLE };
    let free = Lock { kind: LockKind::Unlock, ..WHOLE };
    assert_eq!(served.root_call(test_own), Ok(Reply::Lock(free)));
    assert_eq!(served.call(&other, set(first, 7, LockKind::Read, false)), Err(Errno::EBADF), "not its open");
    let statistics = served.posix.statistics();
    assert_eq!((statistics.opens, statistics.locks, statistics.lock_waits), (2, 1, 0));
    assert_eq!(served.root_call(Request::Flush { open: first, owner: 7 }), Ok(Reply::Done));
    assert_eq!(served.call(&other, test), Ok(Reply::Lock(free)));
}

#[test]
fn a_wait_ends_when_the_lock_is_given_back() {
    let give_back: [fn(&Served, OpenId); 4] = [
        |served, open| drop(served.root_call(set(open, 7, LockKind::Unlock, false)).unwrap()),
        |served, open| drop(served.root_call(Request::Flush { open, owner: 7 }).unwrap()),
        |served, open| served.release(open),
        |served, _| drop(served.posix.depart(ClientId(1))),
    ];
    for give_back in give_back {
        let served = served();
        let (first, second) = two_opens(&served);
        served.root_call(set(first, 7, LockKind::Write, false)).unwrap();
        let waiting = waiter(&served, second, context(2, own()));
        give_back(&served, first);
        assert_eq!(waiting.join().unwrap(), Ok(Reply::Done));
        assert_eq!(served.posix.statistics().locks, 1);
    }
}

#[test]
fn a_wait_ends_by_cancel_flush_release_and_departure() {
    let other = || context(2, own());
    type End = fn(&Served, OpenId, &Context);
    let end: [(End, Errno); 4] = [
        (|_, _, waiting| waiting.cancel.raise(), Errno::EINTR),
        (
            |served, open, _| drop(served.call(&context(2, own()), Request::Flush { open, owner: 7 }).unwrap()),
            Errno::EINTR,
        ),
        (|served, open, _| drop(served.call(&context(2, own()), Request::Release { open }).unwrap()), Errno::EBADF),
        (|served, _, _| drop(served.posix.depart(ClientId(2))), Errno::EBADF),
    ];
    for (end, error) in end {
        let served = served();
        let (first, second) = two_opens(&served);
        served.root_call(set(first, 7, LockKind::Write, false)).unwrap();
        let context = other();
        let waiting = waiter(&served, second, context.clone());
        end(&served, second, &context);
        assert_eq!(waiting.join().unwrap(), Err(error));
        let statistics = served.posix.statistics();
        assert_eq!((statistics.locks, statistics.lock_waits), (1, 0));
    }
}

#[test]
fn a_wait_that_is_dropped_leaves_the_queue() {
    let served = served();
    let (first, second) = two_opens(&served);
    let other = context(2, own());
    served.root_call(set(first, 7, LockKind::Write, false)).unwrap();
    let call = served.posix.call(&other, set(second, 7, LockKind::Write, true));
    assert!(matches!(call, Call::Waiting(_)));
    assert_eq!(served.posix.statistics().lock_waits, 1);
    drop(call);
    assert_eq!(served.posix.statistics().lock_waits, 0);
    let raised = context(2, own());
    raised.cancel.raise();
    assert_eq!(served.call(&raised, set(second, 7, LockKind::Write, true)), Err(Errno::EINTR));
}

#[test]
fn deadlocks_are_refused_and_flocks_are_of_their_own_family() {
    let served = served();
    let (first, second) = two_opens(&served);
    let other = context(2, own());
    let half = |owner, open, start, wait| Request::SetLock {
        open,
        owner,
        space: LockSpace::Posix,
        lock: Lock { start, end: start, ..WHOLE },
        wait,
    };
    served.root_call(half(1, first, 0, false)).unwrap();
    served.call(&other, half(1, second, 1, false)).unwrap();
    let call = served.posix.call(&other, half(1, second, 0, true));
    assert_eq!(served.root_call(half(1, first, 1, true)), Err(Errno::EDEADLK));
    drop(call);
    let flock = |open, kind| Request::SetLock {
        open,
        owner: open.0,
        space: LockSpace::Flock,
        lock: Lock { kind, ..WHOLE },
        wait: false,
    };
    assert_eq!(served.root_call(flock(first, LockKind::Write)), Ok(Reply::Done));
    assert_eq!(served.call(&other, flock(second, LockKind::Read)), Err(Errno::EAGAIN));
    served.release(first);
    assert_eq!(served.call(&other, flock(second, LockKind::Read)), Ok(Reply::Done));
}

#[test]
fn locks_follow_the_inode_not_the_name() {
    let served = served();
    let (file, first) = served.create(b"file");
    let request = Request::Link { handle: file.handle.bytes(), parent: &served.root, name: b"other" };
    let linked = served.root_call(request).unwrap().entry().unwrap();
    let other = context(2, own());
    let second = served.open_as(&other, &linked.handle, READ_WRITE).unwrap();
    served.root_call(set(first, 1, LockKind::Write, false)).unwrap();
    assert_eq!(served.call(&other, set(second, 1, LockKind::Write, false)), Err(Errno::EAGAIN));
}

/// Databases that share memory take a shared lock on one byte of its file first: SQLite on byte 128 of NAME-shm, LMDB on byte 0 of lock.mdb.
#[test]
fn one_client_alone_has_the_shared_memory_of_a_database() {
    let served = served();
    let other = context(2, own());
    for (name, byte, alone) in [
        (b"db-shm".as_slice(), 128, true),
        (b"lock.mdb", 0, true),
        (b"one-lock", 0, true),
        (b"db-shm2", 128, false),
        (b"other", 0, false),
        (b"db2-shm", 120, false),
        (b"db2-lock", 128, false),
    ] {
        let (file, first) = served.create(name);
        let same = served.open_as(&context(1, own()), &file.handle, READ_WRITE).unwrap();
        let second = served.open_as(&other, &file.handle, READ_WRITE).unwrap();
        let share = |open, owner, wait| {
            let lock = Lock { start: byte, end: byte, kind: LockKind::Read, pid: 42 };
            Request::SetLock { open, owner, space: LockSpace::Posix, lock, wait }
        };
        served.root_call(share(first, 7, false)).unwrap();
        assert_eq!(served.root_call(share(same, 8, true)), Ok(Reply::Done), "processes of one client share it");
        let wanted = if alone { Err(Errno::EBUSY) } else { Ok(Reply::Done) };
        for wait in [false, true] {
            assert_eq!(served.call(&other, share(second, 7, wait)), wanted, "{name:?} {byte}");
        }
        served.root_call(Request::Flush { open: first, owner: 7 }).unwrap();
        assert_eq!(served.call(&other, share(second, 7, true)), wanted, "one is left");
        served.release(same);
        assert_eq!(served.call(&other, share(second, 7, true)), Ok(Reply::Done));
    }
}

/// Whether two exports of a server lead to one file by nesting or by being the same directory,
/// with these handles.
fn each_pair_of_exports(body: impl Fn(&Arc<Served>, &Arc<Served>, (OpenId, OpenId))) {
    for handles in [HandleSource::Kernel, HandleSource::Table] {
        for inner in ["", "inner"] {
            let outer = Arc::new(serve(&std::env::temp_dir(), handles));
            std::fs::create_dir_all(outer.path.join(inner)).unwrap();
            std::fs::write(outer.path.join(inner).join("file"), "").unwrap();
            let other = Arc::new(outer.beside(std::path::Path::new(inner)));
            let parent = match inner {
                "" => outer.root.clone(),
                name => outer.lookup(&outer.root, name.as_bytes()).unwrap().handle.bytes().to_vec(),
            };
            let first = outer.open(&outer.lookup(&parent, b"file").unwrap().handle, READ_WRITE).unwrap();
            let file = other.lookup(&other.root, b"file").unwrap();
            let second = other.open_as(&context(2, own()), &file.handle, READ_WRITE).unwrap();
            body(&outer, &other, (first, second));
        }
    }
}

#[test]
fn locks_keep_apart_clients_of_two_exports_of_one_file() {
    each_pair_of_exports(|outer, inner, (first, second)| {
        let other = context(2, own());
        for space in [LockSpace::Posix, LockSpace::Flock] {
            let set =
                |open, kind| Request::SetLock { open, owner: 7, space, lock: Lock { kind, ..WHOLE }, wait: false };
            outer.root_call(set(first, LockKind::Write)).unwrap();
            assert_eq!(inner.call(&other, set(second, LockKind::Read)), Err(Errno::EAGAIN), "{space:?}");
            let test = Request::GetLock { open: second, owner: 7, space, lock: WHOLE };
            assert_eq!(inner.call(&other, test), Ok(Reply::Lock(WHOLE)));
            outer.root_call(set(first, LockKind::Unlock)).unwrap();
            assert_eq!(inner.call(&other, set(second, LockKind::Write)), Ok(Reply::Done));
            assert_eq!(outer.root_call(set(first, LockKind::Read)), Err(Errno::EAGAIN), "the other way");
            inner.call(&other, set(second, LockKind::Unlock)).unwrap();
        }
    });
}

#[test]
fn a_wait_ends_when_a_client_of_another_export_gives_the_lock_back_or_goes() {
    each_pair_of_exports(|outer, inner, (first, second)| {
        for departs in [false, true] {
            outer.root_call(set(first, 7, LockKind::Write, false)).unwrap();
            let waiting = waiter(inner, second, context(2, own()));
            let (listed, all) = block_on(outer.posix.locks(9)).unwrap();
            assert_eq!((listed.len(), all), (1, 1), "each export lists its own clients' locks");
            let (listed, all) = block_on(inner.posix.locks(9)).unwrap();
            assert!(listed.len() == 1 && all == 1 && listed[0].waits, "{listed:?}");
            match departs {
                true => block_on(outer.posix.depart(ClientId(1))).unwrap(),
                false => drop(outer.root_call(set(first, 7, LockKind::Unlock, false)).unwrap()),
            }
            assert_eq!(waiting.join().unwrap(), Ok(Reply::Done));
            inner.call(&context(2, own()), set(second, 7, LockKind::Unlock, false)).unwrap();
        }
    });
}

#[test]
fn a_deadlock_across_two_exports_is_refused() {
    each_pair_of_exports(|outer, inner, (first, second)| {
        let range = |kind, at| Lock { start: at, end: at, kind, pid: 1 };
        let set = |open, kind, at, wait| Request::SetLock {
            open,
            owner: 7,
            space: LockSpace::Posix,
            lock: range(kind, at),
            wait,
        };
        let other = context(2, own());
        outer.root_call(set(first, LockKind::Write, 0, false)).unwrap();
        inner.call(&other, set(second, LockKind::Write, 1, false)).unwrap();
        let waiting = std::thread::spawn({
            let (inner, request) = (inner.clone(), set(second, LockKind::Write, 0, true));
            move || inner.call(&context(2, own()), request)
        });
        while inner.posix.statistics().lock_waits == 0 && !waiting.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(outer.root_call(set(first, LockKind::Write, 1, true)), Err(Errno::EDEADLK));
        outer.release(first);
        assert_eq!(waiting.join().unwrap(), Ok(Reply::Done));
    });
}

/// A lock by which a database shares memory is one client's, whichever export the other came
/// through.
#[test]
fn memory_of_a_database_is_had_through_one_export_at_a_time() {
    let outer = serve(&std::env::temp_dir(), HandleSource::Kernel);
    std::fs::write(outer.path.join("db-shm"), "").unwrap();
    let other = outer.beside(std::path::Path::new(""));
    let first = outer.open(&outer.lookup(&outer.root, b"db-shm").unwrap().handle, READ_WRITE).unwrap();
    let file = other.lookup(&other.root, b"db-shm").unwrap();
    let second = other.open_as(&context(2, own()), &file.handle, READ_WRITE).unwrap();
    let lock = Lock { start: 128, end: 128, kind: LockKind::Read, pid: 1 };
    let attach = |open| Request::SetLock { open, owner: 7, space: LockSpace::Posix, lock, wait: false };
    outer.root_call(attach(first)).unwrap();
    assert_eq!(other.call(&context(2, own()), attach(second)), Err(Errno::EBUSY));
    outer.release(first);
    assert_eq!(other.call(&context(2, own()), attach(second)), Ok(Reply::Done));
}
