//! What the kernel is told to keep under leases, in which order it is told to forget, and what is held until it has been told.

use std::sync::Mutex;
use std::time::Instant;

use aqueduct_fs::Aspects;

use super::leased::{LONG, Leased};
use super::*;
use crate::config::Names;

type Layer = Leased<Arc<Memory>>;

pub(super) struct LeasedFixture {
    pub(super) layer: Arc<Layer>,
    pub(super) fixture: Fixture,
}

pub(super) fn leases(minor: u32) -> LeasedFixture {
    leases_with(minor, Config { posix_acl: true, ..Config::default() })
}

fn leases_with(minor: u32, config: Config) -> LeasedFixture {
    let memory = Arc::new(Memory::default());
    let layer = Arc::new(Leased::new(memory.clone()));
    let config = Config { cache: CacheMode::Lease, spares_flush: true, observed: Some(layer.observed()), ..config };
    let fixture = fixture_over(layer.clone(), memory, minor, NEW_FLAGS, config);
    LeasedFixture { layer, fixture }
}

fn handle(entry: &EntryOut) -> [u8; 8] {
    entry.attr.ino.to_le_bytes()
}

pub(super) const ROOT_HANDLE: [u8; 8] = 1u64.to_le_bytes();

impl Kernel {
    fn get_attr(&self, node: u64) -> AttrOut {
        AttrOut::parse(&self.ask(opcode::GETATTR, node, &GetattrIn::default().to_vec()).unwrap()).unwrap().0
    }

    /// Reads into the page cache.
    fn fill(&self, node: u64, fh: u64) {
        self.ask(opcode::READ, node, &ReadIn { fh, size: 4096, ..ReadIn::default() }.to_vec()).unwrap();
    }

    fn opened(&self, node: u64, flags: i32) -> (u64, FopenFlags) {
        let open = self.open(node, flags);
        (open.fh, FopenFlags::from_bits_retain(open.open_flags))
    }

    /// The notifications that have come, until there is none for a while.
    fn notifications(&self) -> Vec<(i32, Vec<u8>)> {
        let next = || self.message(Duration::from_millis(50));
        std::iter::from_fn(next)
            .inspect(|(header, _)| assert_eq!(header.unique, 0))
            .map(|(h, b)| (h.error, b))
            .collect()
    }

    fn dropped(&self) -> Vec<(i32, u64, i64)> {
        let inode = |body: &[u8]| NotifyInvalInode::parse(body).map_or((0, 0), |(inode, _)| (inode.ino, inode.off));
        self.notifications().iter().map(|(code, body)| (*code, inode(body).0, inode(body).1)).collect()
    }
}

const LONG_SECONDS: u64 = LONG.as_secs();
const CACHED: FopenFlags = FopenFlags::KEEP_CACHE.union(FopenFlags::NOFLUSH);

#[test]
fn timeouts_are_those_of_each_answer() {
    let LeasedFixture { layer, fixture } = leases(45);
    let kernel = &fixture.kernel;
    for lease in [Duration::ZERO, Duration::from_millis(1500), LONG] {
        *layer.lease.lock().unwrap() = lease;
        let valid = (lease.as_secs(), lease.subsec_nanos());
        let entry = kernel.lookup("file").unwrap();
        assert_eq!(
            ((entry.entry_valid, entry.entry_valid_nsec), (entry.attr_valid, entry.attr_valid_nsec)),
            (valid, valid)
        );
        let attr = kernel.get_attr(entry.nodeid);
        assert_eq!((attr.attr_valid, attr.attr_valid_nsec), valid);
        let none = kernel.lookup("none").map(|none| (none.nodeid, none.entry_valid, none.entry_valid_nsec));
        assert_eq!(none, if lease.is_zero() { Err(libc::ENOENT) } else { Ok((0, valid.0, valid.1)) });
    }
}

#[test]
fn what_the_kernel_believes_at_once_has_no_timeout_unless_it_is_new_to_it() {
    let LeasedFixture { fixture, .. } = leases(45);
    let kernel = &fixture.kernel;
    let node = kernel.lookup("file").unwrap().nodeid;
    let set = SetattrIn { valid: SetattrValid::MODE.bits(), mode: 0o600, ..SetattrIn::default() };
    let set = AttrOut::parse(&kernel.ask(opcode::SETATTR, node, &set.to_vec()).unwrap()).unwrap().0;
    assert_eq!((set.attr_valid, set.attr_valid_nsec), (0, 0));
    let create = CreateIn { flags: libc::O_RDWR as u32, mode: 0o100644, ..CreateIn::default() }.to_vec();
    let made = [
        (opcode::MKDIR, [&MkdirIn { mode: 0o755, umask: 0 }.to_vec(), &b"d\0"[..]].concat(), LONG),
        (opcode::SYMLINK, b"l\0text\0".to_vec(), LONG),
        (opcode::MKNOD, [&MknodIn { mode: 0o100644, ..MknodIn::default() }.to_vec(), &b"n\0"[..]].concat(), LONG),
        (opcode::LINK, [&LinkIn { oldnodeid: node }.to_vec(), &b"h\0"[..]].concat(), Duration::ZERO),
        (opcode::CREATE, [&create, &b"c\0"[..]].concat(), LONG),
        (opcode::CREATE, [&create, &b"file\0"[..]].concat(), Duration::ZERO),
    ];
    for (code, body, valid) in made {
        let entry = EntryOut::parse(&kernel.ask(code, ROOT_ID, &body).unwrap()).unwrap().0;
        assert_eq!((entry.attr_valid, entry.attr_valid_nsec), (valid.as_secs(), 0), "opcode {code}");
    }
}

#[test]
fn names_are_kept_only_where_they_can_be_recalled_and_permission_is_checked() {
    for (minor, posix_acl, kept) in [(43, true, false), (45, false, false), (44, true, true), (99, true, true)] {
        let LeasedFixture { layer, fixture } = leases_with(minor, Config { posix_acl, ..Config::default() });
        let kernel = &fixture.kernel;
        let entry = kernel.lookup("file").unwrap();
        assert_eq!((entry.entry_valid, entry.attr_valid), (if kept { LONG_SECONDS } else { 0 }, LONG_SECONDS));
        assert_eq!(kernel.lookup("none").is_ok(), kept);
        layer.observer().forget(&ROOT_HANDLE, Aspects::NAMES);
        let expected = if kept { vec![(notify::INC_EPOCH, 0, 0)] } else { Vec::new() };
        assert_eq!(kernel.dropped(), expected);
    }
    let asked = leases_with(45, Config { posix_acl: true, names: Names::Ask, ..Config::default() });
    assert_eq!(asked.fixture.kernel.lookup("file").unwrap().entry_valid, 0);
    let capped = leases_with(45, Config { posix_acl: true, minor_max: 43, ..Config::default() });
    assert_eq!(
        (capped.fixture.session.negotiated().minor, capped.fixture.kernel.lookup("file").unwrap().entry_valid),
        (43, 0)
    );
}

#[test]
fn files_are_cached_while_data_are_leased() {
    let LeasedFixture { layer, fixture } = leases(45);
    let kernel = &fixture.kernel;
    let node = kernel.lookup("file").unwrap().nodeid;
    for flags in [libc::O_WRONLY, libc::O_RDONLY | libc::O_TRUNC, libc::O_RDWR | libc::O_APPEND] {
        assert_eq!(kernel.opened(node, flags).1, FopenFlags::DIRECT_IO);
    }
    assert_eq!(kernel.opened(node, libc::O_RDWR).1, FopenFlags::KEEP_CACHE, "its close tells of errors");
    assert_eq!(kernel.opened(node, libc::O_RDONLY).1, CACHED);
    layer.data.store(false, Ordering::SeqCst);
    for flags in [libc::O_RDONLY, libc::O_RDWR] {
        assert_eq!(kernel.opened(node, flags).1, FopenFlags::DIRECT_IO);
    }
    layer.data.store(true, Ordering::SeqCst);
    // A lock is lost when any descriptor is closed, which the kernel then has to tell.
    let (fh, _) = kernel.opened(node, libc::O_RDWR);
    let lk = FileLock { start: 0, end: 9, kind: libc::F_WRLCK as u32, pid: 1 };
    kernel.ask(opcode::SETLK, node, &LkIn { fh, owner: 1, lk, ..LkIn::default() }.to_vec()).unwrap();
    assert_eq!(kernel.opened(node, libc::O_RDONLY).1, FopenFlags::KEEP_CACHE);
    // Before Linux 6.6 whatever may be read is cached, before ABI 7.35 there is no NOFLUSH.
    let of = |minor, flags, how| {
        let memory = Arc::new(Memory::default());
        let layer: Arc<Layer> = Arc::new(Leased::new(memory.clone()));
        let config = Config { cache: CacheMode::Lease, observed: Some(layer.observed()), ..Config::default() };
        let fixture = fixture_over(layer, memory, minor, flags, config);
        let node = fixture.kernel.lookup("file").unwrap().nodeid;
        fixture.kernel.opened(node, how).1
    };
    let before_6_6 = NEW_FLAGS & !InitFlags::DIRECT_IO_ALLOW_MMAP.bits();
    assert_eq!(of(45, before_6_6, libc::O_RDONLY), FopenFlags::KEEP_CACHE);
    assert_eq!(of(45, before_6_6, libc::O_RDWR), FopenFlags::KEEP_CACHE);
    assert_eq!(of(45, before_6_6, libc::O_WRONLY), FopenFlags::DIRECT_IO);
    assert_eq!(of(45, before_6_6, libc::O_RDWR | libc::O_APPEND), FopenFlags::DIRECT_IO);
    assert_eq!(of(34, NEW_FLAGS, libc::O_RDONLY), FopenFlags::KEEP_CACHE);
}

/// They are not leased any more at once, and dropped soon: whoever recalls them does not wait for
/// pages that may be locked until a WRITE is answered. Afterwards pages are passed by.
#[test]
fn pages_of_writers_are_dropped_soon_when_others_want_the_file() {
    let LeasedFixture { layer, fixture } = leases(45);
    let kernel = &fixture.kernel;
    let entry = kernel.lookup("file").unwrap();
    let (fh, flags) = kernel.opened(entry.nodeid, libc::O_RDWR);
    assert_eq!(flags, FopenFlags::KEEP_CACHE);
    kernel.fill(entry.nodeid, fh);
    let mut write = WriteIn { fh, offset: 0, size: 3, ..WriteIn::default() }.to_vec();
    write.extend_from_slice(b"new");
    kernel.ask(opcode::WRITE, entry.nodeid, &write).unwrap();
    assert_eq!(kernel.get_attr(entry.nodeid).attr_valid, LONG_SECONDS, "what went through pages is in them");
    layer.observer().forget(&handle(&entry), Aspects::DATA);
    let inode = |offset| (notify::INVAL_INODE, entry.nodeid, offset);
    assert_eq!(kernel.dropped(), [inode(-1), inode(0)]);
    assert_eq!(kernel.opened(entry.nodeid, libc::O_RDWR).1, FopenFlags::DIRECT_IO, "others use it");
}

/// Who was granted a lock finds in pages what others did before.
#[test]
fn a_lock_is_granted_when_pages_without_a_lease_are_dropped() {
    let LeasedFixture { layer, fixture } = leases(45);
    let kernel = &fixture.kernel;
    let node = kernel.lookup("file").unwrap().nodeid;
    let (fh, _) = kernel.opened(node, libc::O_RDWR);
    let lk = FileLock { start: 0, end: 9, kind: libc::F_WRLCK as u32, pid: 1 };
    let lock = LkIn { fh, owner: 1, lk, ..LkIn::default() }.to_vec();
    kernel.fill(node, fh);
    kernel.ask(opcode::SETLK, node, &lock).unwrap();
    layer.data.store(false, Ordering::SeqCst);
    kernel.fill(node, fh);
    let unique = kernel.send(opcode::SETLK, node, &lock);
    let (header, body) = kernel.message(Duration::from_secs(10)).unwrap();
    assert_eq!((header.unique, header.error), (0, notify::INVAL_INODE), "before the answer");
    assert_eq!(NotifyInvalInode::parse(&body).unwrap().0, NotifyInvalInode { ino: node, off: 0, len: 0 });
    kernel.answer(unique).unwrap();
}

#[test]
fn pages_without_a_lease_are_dropped_before_they_are_read() {
    let LeasedFixture { layer, fixture } = leases(45);
    let kernel = &fixture.kernel;
    let node = kernel.lookup("file").unwrap().nodeid;
    let (fh, _) = kernel.opened(node, libc::O_RDONLY);
    kernel.fill(node, fh);
    assert_eq!(layer.covered.load(Ordering::SeqCst), 1);
    assert_eq!(kernel.get_attr(node).attr_valid, LONG_SECONDS, "the pages are leased");

    layer.data.store(false, Ordering::SeqCst);
    kernel.fill(node, fh);
    assert_eq!(kernel.lookup("file").unwrap().attr_valid, 0, "who reads has to ask first");
    layer.data.store(true, Ordering::SeqCst);
    assert_eq!(kernel.opened(node, libc::O_RDONLY).1, FopenFlags::NOFLUSH, "the kernel drops the pages as it opens");
    // A read asks through its open file, and is answered when the pages are dropped: whether it
    // believes the answer or not it reads none of them.
    let get = |fh| GetattrIn { getattr_flags: GETATTR_FH, fh, ..GetattrIn::default() }.to_vec();
    let by_read = |fh| AttrOut::parse(&kernel.ask(opcode::GETATTR, node, &get(fh)).unwrap()).unwrap().0;
    let by_dropping_read = |fh| {
        let unique = kernel.send(opcode::GETATTR, node, &get(fh));
        let (header, body) = kernel.message(Duration::from_secs(10)).unwrap();
        assert_eq!((header.unique, header.error), (0, notify::INVAL_INODE), "before the answer");
        assert_eq!(NotifyInvalInode::parse(&body).unwrap().0, NotifyInvalInode { ino: node, off: 0, len: 0 });
        AttrOut::parse(&kernel.answer(unique).unwrap()).unwrap().0
    };
    assert_eq!(kernel.get_attr(node).attr_valid, 0, "who looks at the time asks anew");
    assert_eq!(by_dropping_read(fh).attr_valid, 0);
    assert_eq!(by_read(fh).attr_valid, LONG_SECONDS, "there is none left");
    layer.data.store(false, Ordering::SeqCst);
    kernel.fill(node, fh);
    layer.data.store(true, Ordering::SeqCst);
    assert_eq!(by_dropping_read(fh).attr_valid, 0);
    let time = kernel.get_attr(node).attr.mtimensec;
    layer.data.store(false, Ordering::SeqCst);
    kernel.fill(node, fh);
    layer.data.store(true, Ordering::SeqCst);
    for fh in [fh, fh + 1] {
        kernel.send(opcode::RELEASE, node, &ReleaseIn { fh, ..ReleaseIn::default() }.to_vec());
        kernel.message(Duration::from_secs(10)).unwrap();
    }
    // Nobody reads from them: they are dropped before the next who does.
    assert_eq!(kernel.get_attr(node).attr_valid, LONG_SECONDS);
    let opens = || {
        let unique = kernel.send(opcode::OPEN, node, &OpenIn::default().to_vec());
        let (header, body) = kernel.message(Duration::from_secs(10)).unwrap();
        assert_eq!((header.unique, header.error), (0, notify::INVAL_INODE), "before the answer");
        assert_eq!(NotifyInvalInode::parse(&body).unwrap().0, NotifyInvalInode { ino: node, off: 0, len: 0 });
        OpenOut::parse(&kernel.answer(unique).unwrap()).unwrap().0
    };
    let open = opens();
    assert_eq!(FopenFlags::from_bits_retain(open.open_flags), CACHED);
    assert_eq!(by_read(open.fh).attr_valid, LONG_SECONDS);
    assert_eq!(by_read(open.fh).attr.mtimensec, time);

    // A change of our own: what was fetched meanwhile may be older.
    kernel.fill(node, open.fh);
    let (writer, _) = kernel.opened(node, libc::O_WRONLY);
    let mut write = WriteIn { fh: writer, size: 3, ..WriteIn::default() }.to_vec();
    write.extend_from_slice(b"new");
    kernel.ask(opcode::WRITE, node, &write).unwrap();
    assert_eq!((kernel.get_attr(node).attr_valid, by_dropping_read(open.fh).attr_valid), (0, 0));
    kernel.fill(node, open.fh);
    kernel.ask(opcode::WRITE, node, &write).unwrap();
    kernel.ask(opcode::RELEASE, node, &ReleaseIn { fh: open.fh, ..ReleaseIn::default() }.to_vec()).unwrap();
    let fh = opens().fh;
    // No page is known, so none is dropped.
    kernel.ask(opcode::WRITE, node, &write).unwrap();
    assert_eq!(kernel.get_attr(node).attr_valid, LONG_SECONDS);
    // Into the caller's buffer: no page.
    layer.data.store(false, Ordering::SeqCst);
    let direct = ReadIn { fh, size: 9, read_flags: READ_LOCKOWNER, ..ReadIn::default() };
    kernel.ask(opcode::READ, node, &direct.to_vec()).unwrap();
    assert_eq!(kernel.get_attr(node).attr_valid, LONG_SECONDS);
    kernel.silent();
}

/// An answer that crosses another notification or answer is not believed: so a greater size is
/// told by what the file holds at its end.
#[test]
fn who_reads_is_told_of_a_greater_size_by_data() {
    let LeasedFixture { fixture, .. } = leases(45);
    let kernel = &fixture.kernel;
    let node = kernel.lookup("file").unwrap().nodeid;
    let (fh, _) = kernel.opened(node, libc::O_RDONLY);
    let get = GetattrIn { getattr_flags: GETATTR_FH, fh, ..GetattrIn::default() }.to_vec();
    let read = |expected: &[(u64, usize)]| {
        let unique = kernel.send(opcode::GETATTR, node, &get);
        for (offset, length) in expected {
            let (header, _) = kernel.message(Duration::from_secs(10)).unwrap();
            assert_eq!(header.error, notify::INVAL_INODE, "answers on their way are not believed");
            let (header, body) = kernel.message(Duration::from_secs(10)).unwrap();
            assert_eq!(header.error, notify::STORE);
            let (store, data) = NotifyStore::parse(&body).unwrap();
            assert_eq!((store.node, store.offset, store.size as usize), (node, *offset, *length));
            assert!(data.len() == *length && data.iter().all(|byte| *byte == b'x'));
        }
        AttrOut::parse(&kernel.answer(unique).unwrap()).unwrap().0.attr.size
    };
    assert_eq!(read(&[]), 9, "the size that came with the name");
    fixture.memory.put(b"file", &[b'x'; 10_000]);
    assert_eq!(read(&[(8192, 1808)]), 10_000);
    assert_eq!(read(&[]), 10_000, "it knows");
    fixture.memory.put(b"file", b"less");
    assert_eq!(read(&[]), 4, "what it has to believe");
    fixture.memory.put(b"file", &[b'x'; 5]);
    assert_eq!(read(&[(0, 5)]), 5);
    // What this mount writes its kernel knows.
    let (writer, _) = kernel.opened(node, libc::O_WRONLY);
    let mut write = WriteIn { fh: writer, offset: 5, size: 3, ..WriteIn::default() }.to_vec();
    write.extend_from_slice(b"xxx");
    kernel.ask(opcode::WRITE, node, &write).unwrap();
    let unique = kernel.send(opcode::GETATTR, node, &get);
    assert_eq!(kernel.message(Duration::from_secs(10)).unwrap().0.error, notify::INVAL_INODE, "pages are dropped");
    assert_eq!(AttrOut::parse(&kernel.answer(unique).unwrap()).unwrap().0.attr.size, 8);
}

/// What is mapped for writing is under no lease: whoever looks at its attributes must not have it written back and dropped each time.
#[test]
fn pages_that_only_mappings_use_stay_while_nobody_reads_from_them() {
    let LeasedFixture { layer, fixture } = leases(45);
    let kernel = &fixture.kernel;
    let node = kernel.lookup("file").unwrap().nodeid;
    layer.data.store(false, Ordering::SeqCst);
    let (mapped, _) = kernel.opened(node, libc::O_RDWR);
    kernel.fill(node, mapped);
    assert_eq!(kernel.get_attr(node).attr_valid, LONG_SECONDS);
    kernel.silent();
    layer.data.store(true, Ordering::SeqCst);
    let unique = kernel.send(opcode::OPEN, node, &OpenIn::default().to_vec());
    assert_eq!(kernel.message(Duration::from_secs(10)).unwrap().0.error, notify::INVAL_INODE);
    let fh = OpenOut::parse(&kernel.answer(unique).unwrap()).unwrap().0.fh;
    kernel.fill(node, mapped);
    assert_eq!(kernel.lookup("file").unwrap().attr_valid, LONG_SECONDS, "leased");
    layer.data.store(false, Ordering::SeqCst);
    kernel.fill(node, mapped);
    kernel.ask(opcode::RELEASE, node, &ReleaseIn { fh, ..ReleaseIn::default() }.to_vec()).unwrap();
    assert_eq!(kernel.get_attr(node).attr_valid, LONG_SECONDS, "nobody reads from them any more");
    kernel.silent();
}

#[test]
fn the_observer_tells_the_kernel_what_to_forget() {
    let LeasedFixture { layer, fixture } = leases(45);
    let kernel = &fixture.kernel;
    let entry = kernel.lookup("file").unwrap();
    let (node, observer) = (entry.nodeid, layer.observer());
    observer.forget(&handle(&entry), Aspects::ATTRIBUTES);
    observer.forget(&handle(&entry), Aspects::DATA);
    assert_eq!(kernel.dropped(), [(2, node, -1), (2, node, -1)], "there is no page");
    let (fh, _) = kernel.opened(node, libc::O_RDONLY);
    kernel.fill(node, fh);
    observer.forget(&handle(&entry), Aspects::ATTRIBUTES | Aspects::DATA);
    observer.forget(&handle(&entry), Aspects::DATA);
    assert_eq!(kernel.dropped(), [(2, node, 0), (2, node, -1)]);
    observer.forget(&99u64.to_le_bytes(), Aspects::all());
    kernel.silent();

    kernel.fill(node, fh);
    observer.forget_everything();
    let dropped = kernel.dropped();
    assert_eq!(dropped[0].0, notify::INC_EPOCH);
    assert!(dropped.contains(&(2, ROOT_ID, -1)) && dropped.contains(&(2, node, -1)), "{dropped:?}");
    assert!(dropped.contains(&(2, node, 0)), "pages too, soon: {dropped:?}");
}

#[test]
fn names_end_when_one_is_moved() {
    let LeasedFixture { fixture, .. } = leases(45);
    let kernel = &fixture.kernel;
    let rename = [&RenameIn { newdir: ROOT_ID }.to_vec(), &b"file\0moved\0"[..]].concat();
    for errno in [0, libc::ENOENT] {
        let unique = kernel.send(opcode::RENAME, ROOT_ID, &rename);
        assert_eq!(kernel.message(Duration::from_secs(10)).unwrap().0.error, notify::INC_EPOCH, "before the answer");
        assert_eq!(kernel.answer(unique).err().unwrap_or_default(), errno);
        let unique = kernel.send(opcode::RENAME, ROOT_ID, &rename);
        assert!(kernel.answer(unique).is_err() && kernel.notifications().is_empty(), "it keeps none any more");
        assert_eq!(kernel.lookup("none").err(), Some(libc::ENOENT));
        fixture.session.shared.keeping.keep_again();
    }
}

/// Where names cannot be recalled.
#[test]
fn directories_that_are_asked_for_often_are_kept_until_who_changes_them_has_waited() {
    let LeasedFixture { layer, fixture } = leases(43);
    let kernel = &fixture.kernel;
    kernel.ask(opcode::MKDIR, ROOT_ID, &[&MkdirIn::default().to_vec(), &b"d\0"[..]].concat()).unwrap();
    let ask = |name: &str| {
        let entry = kernel.lookup(name).unwrap();
        (Duration::new(entry.entry_valid, entry.entry_valid_nsec), handle(&entry))
    };
    let told = |name: &str| (0..1000).map(|_| ask(name)).find(|(valid, _)| !valid.is_zero());
    assert_eq!(told("file"), None, "only directories");
    let (_, directory) = told("d").expect("it was asked for often");
    let left = |handle: &[u8]| layer.observer().names_left(handle);
    assert!(!left(&ROOT_HANDLE).is_zero() && !left(&directory).is_zero());
    for (new, errno) in [("e", 0), ("d", libc::ENOENT)] {
        let rename = [&RenameIn { newdir: ROOT_ID }.to_vec(), format!("d\0{new}\0").as_bytes()].concat();
        assert_eq!(kernel.ask(opcode::RENAME, ROOT_ID, &rename).err().unwrap_or_default(), errno);
        assert!(left(&ROOT_HANDLE).is_zero() && left(&directory).is_zero(), "it was waited for");
    }
}

/// The kernel enters the names of a listing after the answer, as of then: so it is told once more.
#[test]
fn names_of_a_listing_are_forgotten_once_they_have_been_entered() {
    let LeasedFixture { layer, fixture } = leases(45);
    let kernel = &fixture.kernel;
    let open = kernel.ask(opcode::OPENDIR, ROOT_ID, &OpenIn::default().to_vec()).unwrap();
    let fh = OpenOut::parse(&open).unwrap().0.fh;
    let send = |offset| {
        let read = ReadIn { fh, offset, size: 8192, ..ReadIn::default() };
        kernel.send(opcode::READDIRPLUS, ROOT_ID, &read.to_vec())
    };
    let list = |offset| kernel.answer(send(offset)).unwrap();
    let epochs = |while_waiting: &dyn Fn()| {
        std::thread::scope(|scope| {
            let recall = scope.spawn(|| layer.observer().forget(&ROOT_HANDLE, Aspects::NAMES));
            assert_eq!(kernel.message(Duration::from_secs(10)).unwrap().0.error, notify::INC_EPOCH);
            while_waiting();
            recall.join().unwrap();
        });
        let told = std::iter::from_fn(|| kernel.message(Duration::from_millis(50)));
        let count = told.filter(|(header, _)| (header.unique, header.error) == (0, notify::INC_EPOCH)).count();
        fixture.session.shared.keeping.keep_again();
        count
    };
    assert!(!list(0).is_empty());
    assert_eq!(epochs(&|| ()), 1, "nobody goes on: after a while");
    assert!(!list(0).is_empty());
    assert_eq!(epochs(&|| _ = send(1000)), 1, "as soon as it goes on");
    assert!(!list(0).is_empty() && list(1000).is_empty());
    assert_eq!(epochs(&|| ()), 0, "it has gone on already");
    // Who changes the directory holds its lock alone: nobody is entering names.
    assert!(!list(0).is_empty());
    let made = [&MkdirIn { mode: 0o755, umask: 0 }.to_vec(), &b"d\0"[..]].concat();
    kernel.ask(opcode::MKDIR, ROOT_ID, &made).unwrap();
    assert_eq!(epochs(&|| ()), 0);
    assert!(!list(0).is_empty());
    layer.observer().forget(&handle(&kernel.lookup("file").unwrap()), Aspects::NAMES);
    assert_eq!(kernel.notifications().len(), 1, "another directory");
}

/// A listing is read from pages only while the kernel has all of it, and has what it was told of the entries with it.
#[test]
fn listings_are_kept_while_what_was_told_with_them_lasts() {
    let LeasedFixture { layer, fixture } = leases(45);
    let kernel = &fixture.kernel;
    let make = |node, name: &str| {
        let body = [&MkdirIn { mode: 0o755, umask: 0 }.to_vec(), name.as_bytes(), b"\0"].concat();
        EntryOut::parse(&kernel.ask(opcode::MKDIR, node, &body).unwrap()).unwrap().0
    };
    let made = make(ROOT_ID, "d");
    let node = made.nodeid;
    make(node, "in");
    let open = || {
        let open = OpenOut::parse(&kernel.ask(opcode::OPENDIR, node, &OpenIn::default().to_vec()).unwrap()).unwrap().0;
        (open.fh, FopenFlags::from_bits_retain(open.open_flags))
    };
    let close = |fh| _ = kernel.ask(opcode::RELEASEDIR, node, &ReleaseIn { fh, ..ReleaseIn::default() }.to_vec());
    let read = |fh, offset| {
        let read = ReadIn { fh, offset, size: 8192, ..ReadIn::default() };
        kernel.ask(opcode::READDIRPLUS, node, &read.to_vec()).unwrap().is_empty()
    };
    let list = |expected: FopenFlags, what: &str| {
        let (fh, flags) = open();
        assert_eq!(flags, expected, "{what}");
        assert!(!read(fh, 0) && read(fh, 1000));
        close(fh);
    };
    let (anew, kept) = (FopenFlags::CACHE_DIR, FopenFlags::CACHE_DIR | FopenFlags::KEEP_CACHE);
    list(anew, "nothing is there yet");
    list(kept, "it is");
    let forget = |aspects| {
        layer.observer().forget(&handle(&made), aspects);
        fixture.session.shared.keeping.keep_again();
        kernel.dropped()
    };
    assert_eq!(forget(Aspects::all()), [(notify::INC_EPOCH, 0, 0), (notify::INVAL_INODE, node, 0)]);
    list(anew, "it was recalled");
    list(kept, "again");
    layer.observer().forget(&ROOT_HANDLE, Aspects::NAMES);
    kernel.dropped();
    fixture.session.shared.keeping.keep_again();
    list(anew, "all names have to be looked up again, which listing them does");
    make(node, "other");
    list(anew, "it was changed here");
    // Who has it open may read it again from its beginning, and is made to look first.
    let (fh, flags) = open();
    assert!(flags == kept && !read(fh, 0));
    *layer.lease.lock().unwrap() = Duration::ZERO;
    assert!(!read(fh, 0));
    let unique = kernel.send(opcode::GETATTR, node, &GetattrIn::default().to_vec());
    let (header, body) = kernel.message(Duration::from_secs(10)).unwrap();
    let inode = NotifyInvalInode::parse(&body).unwrap().0;
    assert_eq!((header.error, inode.ino, inode.off), (notify::INVAL_INODE, node, 0));
    kernel.answer(unique).unwrap();
    close(fh);
    assert_eq!(open().1, FopenFlags::empty());
    // The kernel believes what came with it for a second, and for longer if it lists anew.
    *layer.lease.lock().unwrap() = Duration::from_secs(1);
    list(anew, "under a lease again");
    list(kept, "nothing lasts longer");
    *layer.lease.lock().unwrap() = LONG;
    list(anew, "it does");
    list(kept, "and so does this");
}

/// A descriptor fills pages again after a recall, and at the next nobody knows of them: the kernel is given no time for the attributes, whoever tells them, until
/// it has asked, and has no pages any more.
#[test]
fn a_listing_that_nobody_answers_for_is_asked_for_before_it_is_read() {
    let LeasedFixture { layer, fixture } = leases(45);
    let kernel = &fixture.kernel;
    let mkdir = [&MkdirIn { mode: 0o755, umask: 0 }.to_vec()[..], b"d\0"].concat();
    let made = EntryOut::parse(&kernel.ask(opcode::MKDIR, ROOT_ID, &mkdir).unwrap()).unwrap().0;
    let node = made.nodeid;
    let open = OpenOut::parse(&kernel.ask(opcode::OPENDIR, node, &OpenIn::default().to_vec()).unwrap()).unwrap().0;
    assert_eq!(open.open_flags, FopenFlags::CACHE_DIR.bits());
    for offset in [0, 1000] {
        let read = ReadIn { fh: open.fh, offset, size: 8192, ..ReadIn::default() };
        assert_eq!(kernel.ask(opcode::READDIRPLUS, node, &read.to_vec()).unwrap().is_empty(), offset > 0);
    }
    assert_eq!(kernel.lookup("d").unwrap().attr_valid, LONG_SECONDS, "it is leased");
    layer.observer().forget(&handle(&made), Aspects::NAMES | Aspects::ATTRIBUTES);
    assert_eq!(kernel.dropped(), [(notify::INC_EPOCH, 0, 0), (notify::INVAL_INODE, node, -1)]);
    fixture.session.shared.keeping.keep_again();
    let told = kernel.lookup("d").unwrap();
    assert_eq!((told.entry_valid, told.attr_valid), (LONG_SECONDS, 0));
    let unique = kernel.send(opcode::GETATTR, node, &GetattrIn::default().to_vec());
    let (header, body) = kernel.message(Duration::from_secs(10)).unwrap();
    let inode = NotifyInvalInode::parse(&body).unwrap().0;
    assert_eq!((header.error, inode.ino, inode.off), (notify::INVAL_INODE, node, 0));
    kernel.answer(unique).unwrap();
    assert_eq!(kernel.lookup("d").unwrap().attr_valid, LONG_SECONDS, "there are no pages");
}

/// Looks, when it is answered, how many answers are held back.
struct Watching {
    layer: Arc<Layer>,
    handle: Vec<u8>,
    held: Mutex<Vec<bool>>,
    delay: Duration,
}

impl Channel for Watching {
    fn answer(&self, _: u64, error: i32, _: &[&[u8]]) -> io::Result<()> {
        assert_eq!(error, 0);
        std::thread::sleep(self.delay);
        self.held.lock().unwrap().push(self.layer.is_held(&self.handle));
        Ok(())
    }
}

#[test]
fn what_is_relied_on_is_held_until_the_kernel_has_been_told() {
    let LeasedFixture { layer, fixture } = leases(45);
    let entry = fixture.kernel.lookup("file").unwrap();
    let (fh, _) = fixture.kernel.opened(entry.nodeid, libc::O_RDONLY);
    let root = fixture.kernel.ask(opcode::OPENDIR, ROOT_ID, &OpenIn::default().to_vec()).unwrap();
    let root = OpenOut::parse(&root).unwrap().0.fh;
    let run = |code, nodeid, about: &[u8], body: &[u8]| {
        let len = 40 + body.len() as u32;
        let header = InHeader { len, opcode: code, unique: 2, nodeid, ..InHeader::default() };
        let frame = [&header.to_vec(), body].concat().into();
        let (held, delay) = (Mutex::default(), Duration::ZERO);
        let channel = Arc::new(Watching { layer: layer.clone(), handle: about.to_vec(), held, delay });
        let deadline = Instant::now() + Duration::from_secs(10);
        while layer.is_held(about) {
            assert!(Instant::now() < deadline, "what was answered is held still");
            std::thread::yield_now();
        }
        let job = Job::new(fixture.session.shared.clone(), header, frame, Responder::new(channel.clone(), 2));
        aqueduct_worker::wait(&fixture.group, async { dispatch::run(&job).await });
        assert_eq!(*channel.held.lock().unwrap(), [true], "opcode {code}");
        assert!(!layer.is_held(about), "opcode {code}");
    };
    let (file, node) = (handle(&entry), entry.nodeid);
    let read = |fh| ReadIn { fh, size: 4096, ..ReadIn::default() }.to_vec();
    run(opcode::LOOKUP, ROOT_ID, &file, b"file\0");
    run(opcode::LOOKUP, ROOT_ID, &ROOT_HANDLE, b"file\0");
    run(opcode::LOOKUP, ROOT_ID, &ROOT_HANDLE, b"none\0");
    run(opcode::GETATTR, node, &file, &GetattrIn::default().to_vec());
    run(opcode::STATX, node, &file, &StatxIn::default().to_vec());
    run(opcode::OPEN, node, &file, &OpenIn::default().to_vec());
    run(opcode::OPENDIR, ROOT_ID, &ROOT_HANDLE, &OpenIn::default().to_vec());
    run(opcode::READDIRPLUS, ROOT_ID, &ROOT_HANDLE, &read(root));
    run(opcode::READDIRPLUS, ROOT_ID, &file, &read(root));
    run(opcode::READDIR, ROOT_ID, &ROOT_HANDLE, &read(root));
    run(opcode::READLINK, node, &file, &[]);
    run(opcode::READ, node, &file, &read(fh));
}

/// What was said before this process was held up is said anew.
#[test]
fn an_answer_that_comes_too_late_is_not_believed() {
    let LeasedFixture { layer, fixture } = leases(45);
    let (kernel, shared) = (&fixture.kernel, fixture.session.shared.clone());
    let node = kernel.lookup("file").unwrap().nodeid;
    // It was held up while it told the kernel: that has to forget it.
    let body = GetattrIn::default().to_vec();
    let header = InHeader {
        len: 40 + body.len() as u32,
        opcode: opcode::GETATTR,
        unique: 2,
        nodeid: node,
        ..InHeader::default()
    };
    let (held, delay) = (Mutex::default(), Duration::from_millis(150));
    let channel = Arc::new(Watching { layer: layer.clone(), handle: Vec::new(), held, delay });
    let job = Job::new(shared, header, [header.to_vec(), body].concat().into(), Responder::new(channel.clone(), 2));
    aqueduct_worker::wait(&fixture.group, async { dispatch::run(&job).await });
    let dropped = kernel.dropped();
    assert!(dropped.contains(&(2, node, -1)) && dropped.contains(&(notify::INC_EPOCH, 0, 0)), "{dropped:?}");
}
