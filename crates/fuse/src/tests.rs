//! A kernel played by the test: one end of a SOCK_SEQPACKET pair stands in for /dev/fuse.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use aqueduct_fs::layer::Layer;
use aqueduct_fs::{Call, Cancel, Context, Errno, FileSystem, OpenFlags, Request};
use aqueduct_worker::{Group, Settings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair, sockopt};

use crate::abi::{self, *};
use crate::channel::{Channel, Responder};
use crate::dispatch;
use crate::job::Job;
use crate::{CacheMode, Config, Device, Session, StartError, start};

mod believer;
#[path = "../tests/leased/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of real mounts")]
mod leased;
mod leases;
#[path = "../tests/memory/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of real mounts")]
mod memory;
mod metrics;

use memory::Memory;

const NEW_FLAGS: u64 = !0;

/// The kernel's end.
struct Kernel {
    socket: OwnedFd,
    unique: AtomicU64,
}

type Answer = Result<Vec<u8>, i32>;

impl Kernel {
    fn pair() -> (Kernel, Device) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        for socket in [&ours, &theirs] {
            sockopt::set_socket_send_buffer_size_force(socket, 8 << 20).unwrap();
        }
        (Kernel { socket: ours, unique: AtomicU64::new(2) }, Device::from_fd(theirs).unwrap())
    }

    fn send_as(&self, unique: u64, pid: u32, opcode: u32, nodeid: u64, body: &[u8]) {
        let len = (40 + body.len()) as u32;
        let header = InHeader { len, opcode, unique, nodeid, pid, ..InHeader::default() }.to_vec();
        rustix::io::writev(&self.socket, &[IoSlice::new(&header), IoSlice::new(body)]).unwrap();
    }

    fn send(&self, opcode: u32, nodeid: u64, body: &[u8]) -> u64 {
        let unique = self.unique.fetch_add(2, Ordering::SeqCst);
        self.send_as(unique, 0, opcode, nodeid, body);
        unique
    }

    fn raw(&self, message: &[u8]) {
        rustix::io::write(&self.socket, message).unwrap();
    }

    fn message(&self, patience: Duration) -> Option<(OutHeader, Vec<u8>)> {
        let timeout = Timespec::try_from(patience).unwrap();
        let ready = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)).unwrap();
        if ready == 0 {
            return None;
        }
        let mut buffer = vec![0; 2 << 20];
        let (_, length) = rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty()).unwrap();
        let (header, body) = OutHeader::parse(&buffer[..length]).expect("a whole header");
        assert_eq!(header.len as usize, length);
        Some((header, body.to_vec()))
    }

    fn answer(&self, unique: u64) -> Answer {
        let (header, body) = self.message(Duration::from_secs(10)).expect("an answer");
        assert_eq!(header.unique, unique);
        if header.error == 0 { Ok(body) } else { Err(-header.error) }
    }

    fn silent(&self) {
        assert!(self.message(Duration::from_millis(100)).is_none());
    }

    fn ask(&self, opcode: u32, nodeid: u64, body: &[u8]) -> Answer {
        self.answer(self.send(opcode, nodeid, body))
    }

    fn init(&self, major: u32, minor: u32, flags: u64) -> u64 {
        let mut body = InitIn { major, minor, max_readahead: 131_072, flags: flags as u32 }.to_vec();
        if flags & InitFlags::INIT_EXT.bits() != 0 {
            ((flags >> 32) as u32).put(&mut body);
            body.resize(64, 0);
        }
        self.send(opcode::INIT, 0, &body)
    }

    fn lookup(&self, name: &str) -> Result<EntryOut, i32> {
        let body = self.ask(opcode::LOOKUP, ROOT_ID, &[name.as_bytes(), b"\0"].concat())?;
        Ok(EntryOut::parse(&body).unwrap().0)
    }

    fn open(&self, node: u64, flags: i32) -> OpenOut {
        let open = OpenIn { flags: flags as u32, open_flags: 0 };
        OpenOut::parse(&self.ask(opcode::OPEN, node, &open.to_vec()).unwrap()).unwrap().0
    }
}

struct Fixture {
    kernel: Kernel,
    session: Session,
    memory: Arc<Memory>,
    group: Arc<Group>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.group.stop();
    }
}

fn group() -> Arc<Group> {
    let settings = Settings { name: "fake".into(), threads_min: 2, threads_max: 2, spin_max: Duration::ZERO };
    Group::new(settings).unwrap()
}

fn fixture_of(minor: u32, flags: u64, config: Config) -> Fixture {
    let memory = Arc::new(Memory::default());
    fixture_over(memory.clone(), memory, minor, flags, config)
}

/// A fixture that is answered with `filesystem`, which uses `memory`.
fn fixture_over(
    filesystem: Arc<dyn FileSystem>,
    memory: Arc<Memory>,
    minor: u32,
    flags: u64,
    config: Config,
) -> Fixture {
    let (kernel, device) = Kernel::pair();
    let group = group();
    memory.put(b"file", b"some text");
    memory.put(memory::STALL, b"");
    let unique = kernel.init(7, minor, flags);
    let expected = minor.min(config.minor_max);
    let session = start(device, filesystem, std::slice::from_ref(&group), config).unwrap();
    let out = InitOut::parse(&kernel.answer(unique).unwrap()).unwrap().0;
    assert_eq!((out.major, out.minor), (7, expected));
    Fixture { kernel, session, memory, group }
}

fn fixture() -> Fixture {
    fixture_of(45, NEW_FLAGS, Config::default())
}

#[test]
fn every_supported_version_is_agreed_on() {
    for minor in [26, 28, 31, 36, 45, 46, 99] {
        let fixture = fixture_of(minor, NEW_FLAGS, Config::default());
        assert_eq!(fixture.session.negotiated().minor, minor.min(45));
        assert!(fixture.kernel.lookup("file").is_ok());
    }
}

#[test]
fn a_later_major_comes_again_with_ours() {
    let (kernel, device) = Kernel::pair();
    let first = kernel.init(8, 0, 0);
    let second = kernel.init(7, 45, NEW_FLAGS);
    let group = group();
    let _session = start(device, Arc::new(Memory::default()), std::slice::from_ref(&group), Config::default()).unwrap();
    for unique in [first, second] {
        assert_eq!(InitOut::parse(&kernel.answer(unique).unwrap()).unwrap().0.major, 7);
    }
    group.stop();
}

#[test]
fn older_versions_and_strangers_are_refused() {
    let start = |device| {
        let group = group();
        let result = start(device, Arc::new(Memory::default()), std::slice::from_ref(&group), Config::default());
        group.stop();
        result.map(|_| ())
    };
    let (kernel, device) = Kernel::pair();
    let unique = kernel.init(7, 25, 0);
    let error = start(device).unwrap_err();
    assert!(error.to_string().contains("7.25") && error.to_string().contains("Linux 4.18"), "{error}");
    assert_eq!(kernel.answer(unique), Err(libc::EPROTO));
    let (kernel, device) = Kernel::pair();
    kernel.send(opcode::LOOKUP, 1, b"x\0");
    assert!(matches!(start(device), Err(StartError::NoInit)));
    let (kernel, device) = Kernel::pair();
    drop(kernel);
    assert!(matches!(start(device), Err(StartError::Ended)));
}

#[test]
fn lookups_are_counted_and_forgotten() {
    let fixture = fixture();
    let kernel = &fixture.kernel;
    let first = kernel.lookup("file").unwrap();
    assert_eq!(kernel.lookup("file").unwrap().nodeid, first.nodeid);
    assert_eq!((first.generation, first.entry_valid, first.attr_valid, first.attr.size), (0, 0, 0, 9));
    kernel.send(opcode::FORGET, first.nodeid, &ForgetIn { nlookup: 1 }.to_vec());
    let get = GetattrIn::default().to_vec();
    assert!(kernel.ask(opcode::GETATTR, first.nodeid, &get).is_ok());
    let mut batch = BatchForgetIn { count: 2, padding: 0 }.to_vec();
    ForgetOne { nodeid: 12345, nlookup: 1 }.put(&mut batch);
    ForgetOne { nodeid: first.nodeid, nlookup: 1 }.put(&mut batch);
    kernel.send(opcode::BATCH_FORGET, 0, &batch);
    // Another thread may take the next request before this one is done.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(kernel.ask(opcode::GETATTR, first.nodeid, &get), Err(libc::ESTALE));
    assert_ne!(kernel.lookup("file").unwrap().nodeid, first.nodeid);
    assert_eq!(kernel.lookup("none"), Err(libc::ENOENT));
    kernel.silent();
}

#[test]
fn reads_come_through_the_sink() {
    let fixture = fixture();
    let kernel = &fixture.kernel;
    fixture.memory.put(b"file", &vec![b'a'; 300_000]);
    let node = kernel.lookup("file").unwrap().nodeid;
    let fh = kernel.open(node, libc::O_RDONLY).fh;
    let read = |offset, size| {
        let read = ReadIn { fh, offset, size, ..ReadIn::default() };
        kernel.ask(opcode::READ, node, &read.to_vec()).unwrap()
    };
    assert_eq!(read(0, 10), vec![b'a'; 10]);
    assert_eq!(read(0, 200_000), vec![b'a'; 200_000]);
    assert_eq!(read(299_990, 4096).len(), 10);
    assert_eq!(read(300_000, 4096).len(), 0);
    assert_eq!(read(1 << 45, 4096).len(), 0);
    let bad = ReadIn { fh: 999, size: 1, ..ReadIn::default() };
    assert_eq!(kernel.ask(opcode::READ, node, &bad.to_vec()), Err(libc::EBADF));
}

#[test]
fn writes_of_every_size_arrive() {
    let fixture = fixture();
    let kernel = &fixture.kernel;
    let node = kernel.lookup("file").unwrap().nodeid;
    let fh = kernel.open(node, libc::O_RDWR).fh;
    let mut offset = 0;
    for size in [1u32, 4096, 130_000, 131_072, 1 << 20] {
        let mut body = WriteIn { fh, offset, size, ..WriteIn::default() }.to_vec();
        body.resize(40 + size as usize, size as u8 ^ 7);
        let out = WriteOut::parse(&kernel.ask(opcode::WRITE, node, &body).unwrap()).unwrap().0;
        assert_eq!(out.size, size);
        let read = ReadIn { fh, offset, size, ..ReadIn::default() };
        assert_eq!(kernel.ask(opcode::READ, node, &read.to_vec()).unwrap(), vec![size as u8 ^ 7; size as usize]);
        offset += u64::from(size);
    }
    // The kernel chose offset 0 for an append by a size that it no longer is; write-back means its offset.
    let append = |write_flags| {
        let flags = (libc::O_RDWR | libc::O_APPEND) as u32;
        let mut body = WriteIn { fh, offset: 0, size: 3, flags, write_flags, ..WriteIn::default() }.to_vec();
        body.extend_from_slice(b"end");
        kernel.ask(opcode::WRITE, node, &body).unwrap();
        kernel.lookup("file").unwrap().attr.size - offset
    };
    assert_eq!((append(0), append(WRITE_CACHE)), (3, 3));
}

#[test]
fn open_flags_follow_cache_mode_and_version() {
    let of = |minor, config: Config, flags| {
        let fixture = fixture_of(minor, if minor < 36 { 0x1ff_ffff } else { NEW_FLAGS }, config);
        let node = fixture.kernel.lookup("file").unwrap().nodeid;
        FopenFlags::from_bits_retain(fixture.kernel.open(node, flags).open_flags)
    };
    let cached = || Config { cache: CacheMode::CloseToOpen, ..Config::default() };
    let parallel = || Config { parallel_writes: true, ..Config::default() };
    assert_eq!(of(45, Config::default(), libc::O_RDWR), FopenFlags::DIRECT_IO);
    // What may be read could not be mapped shared otherwise; what is appended to has no pages that
    // are at the right place.
    assert_eq!(of(31, Config::default(), libc::O_RDONLY), FopenFlags::empty());
    assert_eq!(of(31, Config::default(), libc::O_RDWR), FopenFlags::empty());
    assert_eq!(of(31, Config::default(), libc::O_WRONLY), FopenFlags::DIRECT_IO);
    assert_eq!(of(31, Config::default(), libc::O_RDWR | libc::O_APPEND), FopenFlags::DIRECT_IO);
    assert_eq!(of(45, cached(), libc::O_RDWR), FopenFlags::empty());
    let both = FopenFlags::DIRECT_IO | FopenFlags::PARALLEL_DIRECT_WRITES;
    assert_eq!(of(45, parallel(), libc::O_WRONLY), both);
}

#[test]
fn an_open_drops_kept_attributes_for_close_to_open() {
    let config = Config {
        cache: CacheMode::CloseToOpen,
        attr_timeout: Duration::from_millis(1500),
        entry_timeout: Duration::from_secs(2),
        ..Config::default()
    };
    let fixture = fixture_of(45, NEW_FLAGS, config);
    let kernel = &fixture.kernel;
    let entry = kernel.lookup("file").unwrap();
    assert_eq!((entry.entry_valid, entry.attr_valid, entry.attr_valid_nsec), (2, 1, 500_000_000));
    let unique = kernel.send(opcode::OPEN, entry.nodeid, &OpenIn::default().to_vec());
    let (header, body) = kernel.message(Duration::from_secs(10)).unwrap();
    assert_eq!((header.unique, header.error), (0, notify::INVAL_INODE));
    assert_eq!(NotifyInvalInode::parse(&body).unwrap().0, NotifyInvalInode { ino: entry.nodeid, off: -1, len: 0 });
    assert!(kernel.answer(unique).is_ok());
}

#[test]
fn listings_fit_the_room_and_lose_nothing() {
    for plus in [false, true] {
        let fixture = fixture();
        for n in 0..200 {
            fixture.memory.put(format!("{n}{}", "y".repeat(n)).as_bytes(), b"");
        }
        let kernel = &fixture.kernel;
        let open = kernel.ask(opcode::OPENDIR, ROOT_ID, &OpenIn::default().to_vec()).unwrap();
        let fh = OpenOut::parse(&open).unwrap().0.fh;
        let (mut offset, mut names, mut nodes) = (0, 0, 0);
        loop {
            let read = ReadIn { fh, offset, size: 4096, ..ReadIn::default() };
            let code = if plus { opcode::READDIRPLUS } else { opcode::READDIR };
            let body = kernel.ask(code, ROOT_ID, &read.to_vec()).unwrap();
            assert!(body.len() <= 4096);
            let mut rest = &body[..];
            while !rest.is_empty() {
                if plus {
                    let (entry, after) = EntryOut::parse(rest).unwrap();
                    nodes += usize::from(entry.nodeid != 0);
                    rest = after;
                }
                let (dirent, after) = Dirent::parse(rest).unwrap();
                rest = &after[abi::record_size(24 + dirent.namelen as usize) - 24..];
                (offset, names) = (dirent.off, names + 1);
            }
            if body.is_empty() {
                break;
            }
        }
        assert_eq!((names, nodes), (204, if plus { 202 } else { 0 }));
        assert_eq!(fixture.session.nodes(), nodes);
        let tiny = ReadIn { fh, size: 20, ..ReadIn::default() };
        assert_eq!(kernel.ask(opcode::READDIR, ROOT_ID, &tiny.to_vec()), Err(libc::EINVAL));
    }
}

/// A process that is stopped with this signal pending.
fn stopped_with(signal: i32) -> Child {
    let child = Command::new("sleep").arg("100").spawn().unwrap();
    for signal in [libc::SIGSTOP, signal] {
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    child
}

#[test]
fn interrupts_end_what_they_should() {
    let fixture = fixture();
    let kernel = &fixture.kernel;
    // One that names nothing known comes again.
    let unique = kernel.send(opcode::INTERRUPT, 0, &InterruptIn { unique: 777 }.to_vec());
    assert_eq!(kernel.answer(unique), Err(libc::EAGAIN));

    let node = kernel.lookup("file").unwrap().nodeid;
    let fh = kernel.open(node, libc::O_RDWR).fh;
    let lock = |owner, code| {
        let lk = FileLock { start: 0, end: 9, kind: libc::F_WRLCK as u32, pid: 1 };
        kernel.send(code, node, &LkIn { fh, owner, lk, ..LkIn::default() }.to_vec())
    };
    assert!(kernel.answer(lock(1, opcode::SETLK)).is_ok());
    assert_eq!(kernel.answer(lock(2, opcode::SETLK)), Err(libc::EAGAIN));
    let waits = lock(2, opcode::SETLKW);
    kernel.silent();
    kernel.send(opcode::INTERRUPT, 0, &InterruptIn { unique: waits }.to_vec());
    assert_eq!(kernel.answer(waits), Err(libc::EINTR));

    let stall = kernel.lookup("stall").unwrap().nodeid;
    let fh = kernel.open(stall, libc::O_RDONLY).fh;
    let read = ReadIn { fh, size: 100, ..ReadIn::default() }.to_vec();
    for (signal, ends) in [(libc::SIGALRM, false), (libc::SIGTERM, true)] {
        let mut child = stopped_with(signal);
        let unique = 1000 + signal as u64 * 2;
        kernel.send_as(unique, child.id(), opcode::READ, stall, &read);
        std::thread::sleep(Duration::from_millis(50));
        kernel.send(opcode::INTERRUPT, 0, &InterruptIn { unique }.to_vec());
        if ends {
            // On a slow machine the answer may come before the INTERRUPT, which then comes again.
            let answers = std::iter::from_fn(|| kernel.message(Duration::from_secs(10)));
            let error = answers.map(|(header, _)| header).find(|header| header.unique == unique).unwrap().error;
            assert_eq!(error, -libc::EINTR);
        } else {
            kernel.silent();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_caller_that_is_killed_without_an_interrupt_is_noticed() {
    let fixture = fixture();
    let kernel = &fixture.kernel;
    let stall = kernel.lookup("stall").unwrap().nodeid;
    let fh = kernel.open(stall, libc::O_RDONLY).fh;
    let mut child = stopped_with(libc::SIGTERM);
    kernel.send_as(900, child.id(), opcode::READ, stall, &ReadIn { fh, size: 1, ..ReadIn::default() }.to_vec());
    assert_eq!(kernel.answer(900), Err(libc::EINTR));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn malformed_requests_are_refused_or_ignored() {
    let fixture = fixture();
    let kernel = &fixture.kernel;
    kernel.raw(&[1, 2, 3]);
    kernel.raw(&InHeader { len: 4000, opcode: opcode::LOOKUP, unique: 8, nodeid: 1, ..InHeader::default() }.to_vec());
    kernel.silent();
    assert_eq!(kernel.ask(opcode::LOOKUP, ROOT_ID, b"no end"), Err(libc::EINVAL));
    assert_eq!(kernel.ask(opcode::LOOKUP, ROOT_ID, b"a/b\0"), Err(libc::EINVAL));
    assert_eq!(kernel.ask(opcode::LOOKUP, ROOT_ID, &[vec![b'x'; 256], vec![0]].concat()), Err(libc::ENAMETOOLONG));
    assert_eq!(kernel.ask(opcode::LOOKUP, 4711, b"x\0"), Err(libc::ESTALE));
    assert_eq!(kernel.ask(opcode::GETATTR, ROOT_ID, &[0; 3]), Err(libc::EINVAL));
    assert_eq!(
        kernel.ask(opcode::RENAME, ROOT_ID, &[RenameIn { newdir: 1 }.to_vec(), b"a\0b".to_vec()].concat()),
        Err(libc::EINVAL)
    );
    assert_eq!(
        kernel.ask(opcode::WRITE, ROOT_ID, &WriteIn { size: 10, ..WriteIn::default() }.to_vec()),
        Err(libc::EINVAL)
    );
    let set = [SetxattrIn { size: 100, flags: 0 }.to_vec(), b"user.a\0v".to_vec()].concat();
    assert_eq!(kernel.ask(opcode::SETXATTR, ROOT_ID, &set), Err(libc::EINVAL));
    assert_eq!(kernel.ask(opcode::IOCTL, ROOT_ID, &[0; 32]), Err(libc::ENOTTY));
    assert_eq!(kernel.ask(40, ROOT_ID, &[0; 24]), Err(libc::ENOSYS)); // POLL
    assert_eq!(kernel.ask(4000, ROOT_ID, &[]), Err(libc::ENOSYS));
    assert_eq!(kernel.ask(opcode::INIT, 0, &[0; 16]), Err(libc::EIO));
    // The file system does not implement it, but the kernel must go on asking.
    let access = AccessIn { mask: 64, padding: 0 };
    assert_eq!(kernel.ask(opcode::ACCESS, ROOT_ID, &access.to_vec()), Err(libc::EINVAL));
    kernel.send(opcode::NOTIFY_REPLY, 1, &[0; 40]);
    kernel.silent();
    assert!(kernel.lookup("file").is_ok());
}

#[test]
fn noise_is_survived() {
    let fixture = fixture();
    let kernel = &fixture.kernel;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..3000 {
        let code = random() as u32 % 56;
        // A lock wait may rightly wait for ever, and INIT and DESTROY are for the ends of a connection.
        if [opcode::SETLKW, opcode::DESTROY].contains(&code) {
            continue;
        }
        let length = random() as usize % 120;
        let body: Vec<u8> = (0..length).map(|_| if random() % 3 == 0 { random() as u8 % 20 } else { 0 }).collect();
        kernel.send(code, random() % 4, &body);
        while kernel.message(Duration::ZERO).is_some() {}
    }
    while kernel.message(Duration::from_millis(200)).is_some() {}
    assert!(kernel.ask(opcode::STATFS, ROOT_ID, &[]).is_ok());
}

/// A kernel that takes no reply: whoever asked has gone.
struct Refusing;

impl Channel for Refusing {
    fn answer(&self, _: u64, _: i32, _: &[&[u8]]) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::ENOENT))
    }
}

#[test]
fn what_the_kernel_did_not_take_is_taken_back() {
    let fixture = fixture();
    let shared = fixture.session.shared.clone();
    let run = |code, body: &[u8]| {
        let header =
            InHeader { len: 40 + body.len() as u32, opcode: code, unique: 2, nodeid: 1, ..InHeader::default() };
        let frame = [&header.to_vec(), body].concat().into();
        let job = Job::new(shared.clone(), header, frame, Responder::new(Arc::new(Refusing), 2));
        aqueduct_worker::wait(&fixture.group, async { dispatch::run(&job).await });
    };
    run(opcode::LOOKUP, b"file\0");
    let create = CreateIn { flags: libc::O_RDWR as u32, mode: 0o100644, ..CreateIn::default() }.to_vec();
    run(opcode::CREATE, &[&create, &b"new\0"[..]].concat());
    run(opcode::OPENDIR, &OpenIn::default().to_vec());
    assert_eq!((fixture.session.nodes(), fixture.memory.open_count()), (0, 0));
    assert!(fixture.kernel.lookup("new").is_ok(), "what was done stays done");
}

#[test]
fn an_errno_that_the_kernel_does_not_know_becomes_eio() {
    struct Last(std::sync::Mutex<i32>);
    impl Channel for Last {
        fn answer(&self, _: u64, error: i32, _: &[&[u8]]) -> io::Result<()> {
            *self.0.lock().unwrap() = error;
            Ok(())
        }
    }
    let last = Arc::new(Last(std::sync::Mutex::new(0)));
    let responder = Responder::new(last.clone(), 2);
    for (errno, expected) in [(512, libc::EIO), (4095, libc::EIO), (511, 511), (libc::ENOSPC, libc::ENOSPC)] {
        responder.failed(Errno::from_raw(errno));
        assert_eq!(*last.0.lock().unwrap(), -expected);
    }
}

#[test]
fn notifications_reach_the_kernel() {
    let fixture = fixture();
    let (kernel, session) = (&fixture.kernel, &fixture.session);
    let entry = kernel.lookup("file").unwrap();
    let handle = entry.attr.ino.to_le_bytes();
    let root = 1u64.to_le_bytes();
    let next = || kernel.message(Duration::from_secs(10)).unwrap();
    assert!(session.notify_inode(&handle, 0, 4096).unwrap());
    let (header, body) = next();
    assert_eq!((header.unique, header.error), (0, 2));
    assert_eq!(NotifyInvalInode::parse(&body).unwrap().0, NotifyInvalInode { ino: entry.nodeid, off: 0, len: 4096 });
    assert!(session.notify_entry(&root, b"file", false).unwrap());
    assert_eq!(next().0.error, 3);
    assert!(session.notify_delete(&root, &handle, b"file").unwrap());
    assert_eq!(next().0.error, 6);
    assert!(session.can_notify_epoch() && session.notify_epoch().unwrap());
    assert_eq!(next().0.error, 8);
    assert!(!session.notify_inode(&99u64.to_le_bytes(), 0, 0).unwrap());
    kernel.silent();
}

#[test]
fn the_end_of_the_connection_ends_what_waits() {
    let Fixture { kernel, session, memory, group } = &*std::mem::ManuallyDrop::new(fixture());
    let stall = kernel.lookup("stall").unwrap().nodeid;
    let fh = kernel.open(stall, libc::O_RDONLY).fh;
    kernel.send(opcode::READ, stall, &ReadIn { fh, size: 1, ..ReadIn::default() }.to_vec());
    kernel.silent();
    rustix::net::shutdown(kernel.socket.as_fd(), rustix::net::Shutdown::Both).unwrap();
    session.wait();
    assert!(session.ended());
    assert_eq!((memory.cancelled(), memory.departed(), memory.open_count()), (1, 1, 0));
    group.stop();
}

#[test]
fn flags_of_create_and_open_are_passed_on() {
    assert_eq!(crate::convert::open_flags(0), OpenFlags::READ);
    let fixture = fixture();
    let kernel = &fixture.kernel;
    let create = |flags: i32| {
        let create = CreateIn { flags: flags as u32, mode: 0o100644, umask: 0o22, open_flags: 0 }.to_vec();
        kernel.ask(opcode::CREATE, ROOT_ID, &[&create, &b"file\0"[..]].concat())
    };
    assert_eq!(create(libc::O_RDWR | libc::O_CREAT | libc::O_EXCL), Err(libc::EEXIST));
    let body = create(libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC).unwrap();
    assert_eq!(body.len(), 128 + 16);
    assert_eq!(kernel.lookup("file").unwrap().attr.size, 0);
}

/// A file system whose releases take as long as the test wants.
struct SlowRelease {
    memory: Arc<Memory>,
    gate: Cancel,
}

impl Layer for SlowRelease {
    type Below = Memory;

    fn below(&self) -> &Memory {
        &self.memory
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, aqueduct_fs::Answer> {
        if !matches!(request, Request::Release { .. }) {
            return self.memory.ask(context, request);
        }
        Call::waiting(async move {
            std::future::poll_fn(|task| self.gate.poll(task)).await;
            self.memory.ask(context, request).await
        })
    }
}

#[test]
fn a_lock_that_a_release_under_way_frees_is_had() {
    let (memory, gate) = (Arc::new(Memory::default()), Cancel::default());
    let slow = Arc::new(SlowRelease { memory: memory.clone(), gate: gate.clone() });
    let fixture = fixture_over(slow, memory, 45, NEW_FLAGS, Config::default());
    let kernel = &fixture.kernel;
    let node = kernel.lookup("file").unwrap().nodeid;
    let flock = |fh, owner| {
        let lk = FileLock { kind: libc::F_WRLCK as u32, end: i64::MAX as u64, ..FileLock::default() };
        kernel.send(opcode::SETLK, node, &LkIn { fh, owner, lk, lk_flags: LK_FLOCK, padding: 0 }.to_vec())
    };
    let (one, two) = (kernel.open(node, libc::O_RDWR).fh, kernel.open(node, libc::O_RDWR).fh);
    assert!(kernel.answer(flock(one, 1)).is_ok());
    assert_eq!(kernel.answer(flock(two, 2)), Err(libc::EAGAIN));
    let release = kernel.send(opcode::RELEASE, node, &ReleaseIn { fh: one, ..ReleaseIn::default() }.to_vec());
    let locks = flock(two, 2);
    kernel.silent();
    gate.raise();
    let answers = [(); 2].map(|()| kernel.message(Duration::from_secs(10)).unwrap().0);
    let mut answered = answers.map(|header| (header.unique, header.error));
    answered.sort_unstable();
    assert_eq!(answered, [(release, 0), (locks, 0)]);
}

/// A file system whose first flush lasts until nobody waits for it any more, and is not done then.
struct CutFlush {
    memory: Arc<Memory>,
    flushes: AtomicUsize,
}

impl Layer for CutFlush {
    type Below = Memory;

    fn below(&self) -> &Memory {
        &self.memory
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, aqueduct_fs::Answer> {
        let is_flush = matches!(request, Request::Flush { .. });
        if !is_flush || self.flushes.fetch_add(1, Ordering::SeqCst) > 0 {
            return self.memory.ask(context, request);
        }
        Call::waiting(async move {
            std::future::poll_fn(|task| context.cancel.poll(task)).await;
            Err(Errno::EINTR)
        })
    }
}

#[test]
fn a_killed_program_gives_up_its_locks_though_its_close_was_cut_short() {
    let memory = Arc::new(Memory::default());
    let cut = Arc::new(CutFlush { memory: memory.clone(), flushes: AtomicUsize::default() });
    let fixture = fixture_over(cut, memory, 45, NEW_FLAGS, Config::default());
    let kernel = &fixture.kernel;
    let node = kernel.lookup("file").unwrap().nodeid;
    let fh = kernel.open(node, libc::O_RDWR).fh;
    let lock = |owner| {
        let lk = FileLock { start: 0, end: 9, kind: libc::F_WRLCK as u32, pid: 1 };
        kernel.send(opcode::SETLK, node, &LkIn { fh, owner, lk, ..LkIn::default() }.to_vec())
    };
    assert!(kernel.answer(lock(1)).is_ok());
    assert_eq!(kernel.answer(lock(2)), Err(libc::EAGAIN));
    let mut child = stopped_with(libc::SIGTERM);
    let flush = FlushIn { fh, lock_owner: 1, ..FlushIn::default() }.to_vec();
    kernel.send_as(902, child.id(), opcode::FLUSH, node, &flush);
    assert_eq!(kernel.answer(902), Err(libc::EINTR));
    assert!(kernel.answer(lock(2)).is_ok());
    child.kill().unwrap();
    child.wait().unwrap();
}
