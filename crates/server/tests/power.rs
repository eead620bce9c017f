//! A server whose machine loses power at each moment of a request that cannot be repeated: on a file system that forgets what was not synced, the repeat
//! finds the request executed exactly once all the same.
//!
//! The disk is a loop device with ext4 in a namespace of the test's own, shut down without its journal (EXT4_IOC_SHUTDOWN), of which a copy is mounted next;
//! each time the machine's boot has another number.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use aqueduct_fs::*;
use aqueduct_posix::{Options, Posix};
use aqueduct_server::{Access, Export, External, Moment, Server, ServerConfig, Squash};
use aqueduct_wire::*;
use aqueduct_worker::{Group, Settings};
use common::*;

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const INSIDE: &str = "AQUEDUCT_TEST_NAMESPACE";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const MOMENTS: [Moment; 3] = [Moment::Intended, Moment::Executed, Moment::Remembered];

/// The layout of a session's file: see the module `journal`.
const HEAD_SIZE: u64 = 16 << 10;
const PAIR_SIZE: u64 = 4096;

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).trim().to_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{program} {arguments:?}: {text}")) }
}

/// Runs the test of this name in a namespace of mounts, where it calls this again.
fn in_namespace(name: &str, body: impl FnOnce(&mut Machine)) {
    if let Some(home) = std::env::var_os(INSIDE) {
        match Machine::new(home.into()) {
            Ok(mut machine) => body(&mut machine),
            Err(why) => println!("skipped: {name} {why}"),
        }
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: {name} needs root");
    }
    if let Err(why) = run("unshare", &["--mount", "true"]) {
        return println!("skipped: {name} needs a mount namespace, whose root has to be a mount point: {why}");
    }
    let home = tempfile::tempdir().unwrap();
    // The name as this program has it, in which this file may be a module.
    let test = module_path!().split_once("::").map_or(name.into(), |(_, module)| format!("{module}::{name}"));
    let mut inside = Command::new("unshare");
    inside.arg("--mount").arg(std::env::current_exe().unwrap()).args([&test, "--exact", "--nocapture"]);
    let output = inside.env(INSIDE, home.path()).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text.lines().filter(|line| line.contains("skipped:")).for_each(|line| println!("{line}"));
}

/// A machine with a disk, on which the export and the sessions lie, and a server.
struct Machine {
    home: PathBuf,
    disk: PathBuf,
    boots: u64,
    server: Option<(Arc<Server>, Arc<Group>)>,
    address: String,
}

impl Machine {
    fn new(home: PathBuf) -> Result<Machine, String> {
        let (disk, boot) = (home.join("disk"), home.join("boot"));
        fs::create_dir(&disk).unwrap();
        fs::write(&boot, "boot-0").unwrap();
        run("mount", &["--bind", boot.to_str().unwrap(), BOOT_ID])?;
        let address = "127.0.0.1:0".into();
        let mut machine = Machine { home, disk, boots: 0, server: None, address };
        let image = machine.image();
        File::create(&image).unwrap().set_len(32 << 20).unwrap();
        run("mkfs.ext4", &["-q", image.to_str().unwrap()])?;
        machine.mount()?;
        for folder in ["export", "sessions"] {
            fs::create_dir(machine.disk.join(folder)).unwrap();
        }
        machine.start();
        Ok(machine)
    }

    /// The disk of the present boot.
    fn image(&self) -> PathBuf {
        self.home.join(format!("image-{}", self.boots))
    }

    fn mount(&self) -> Result<String, String> {
        run("mount", &["-t", "ext4", "-o", "loop", self.image().to_str().unwrap(), self.disk.to_str().unwrap()])
    }

    fn export(&self) -> PathBuf {
        self.disk.join("export")
    }

    fn start(&mut self) {
        let options = Options { key: [5; 32], boot: self.boots + 1, sync: true, ..Options::default() };
        let filesystem = Posix::open(&self.export(), options).unwrap();
        let (path, access) = (String::new(), Access { squash: Some(Squash::None), ..Access::default() });
        let verifier = filesystem.verifier();
        let export = Export {
            name: "/e".into(),
            id: 1,
            filesystem: lower(filesystem),
            read_only: false,
            path,
            access,
            durable: true,
            external: External::None,
        };
        let config = ServerConfig {
            listen: vec![self.address.parse().unwrap()],
            name: "server".into(),
            identity: Some(SERVER),
            verifier,
            limits: limits(),
            exports: vec![export],
            sessions: Some(self.disk.join("sessions")),
            ..ServerConfig::default()
        };
        let spin_max = Duration::from_micros(20);
        let group = Group::new(Settings { name: "server".into(), threads_min: 2, threads_max: 8, spin_max }).unwrap();
        let server = Server::start(config, group.clone()).unwrap();
        self.address = server.addresses()[0].to_string();
        self.server = Some((server, group));
    }

    /// Where a session is written down.
    fn file_of(&self, session: &HelloReply) -> String {
        format!("sessions/{:016x}.{:08x}-0", session.session, crc32c::crc32c(&SERVER.id.0))
    }

    fn server(&self) -> &Arc<Server> {
        &self.server.as_ref().unwrap().0
    }

    /// Power fails while a request is at `moment`.
    fn dies(&mut self, moment: Moment, send: impl FnOnce()) {
        let (died, deaths) = mpsc::channel();
        let dead = AtomicBool::new(false);
        self.server().set_failpoint(move |now| {
            if now == moment && !dead.swap(true, Ordering::SeqCst) {
                let _ = died.send(());
            }
            dead.load(Ordering::SeqCst)
        });
        send();
        deaths.recv_timeout(Duration::from_secs(5)).expect("the request comes to that moment");
    }

    /// Power fails; `before` sees the disk as it would have been, and `after` as it is.
    fn reboots(&mut self, before: impl FnOnce(&Path), after: impl FnOnce(&Path)) {
        before(&self.disk);
        aqueduct_posix::restore();
        fs::write(self.disk.join("unsynced"), "").unwrap();
        self.shut_down();
        let (server, group) = self.server.take().unwrap();
        server.shutdown(Duration::ZERO);
        group.stop();
        group.join();
        // What a dead process had open it still has: the disk goes on as a copy of what is on it.
        let before = self.image();
        self.boots += 1;
        fs::copy(&before, self.image()).unwrap();
        fs::remove_file(&before).unwrap();
        fs::write(self.home.join("boot"), format!("boot-{}", self.boots)).unwrap();
        self.mount().unwrap();
        assert!(!self.disk.join("unsynced").exists(), "what was not synced survives: this shows nothing");
        after(&self.disk);
        self.start();
    }

    fn shut_down(&self) {
        /// EXT4_IOC_SHUTDOWN, `_IOR('X', 125, __u32)`.
        const SHUTDOWN: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(b'X', 125);
        // EXT4_GOING_FLAGS_NOLOGFLUSH
        let mut flags = 2u32;
        let disk = File::open(&self.disk).unwrap();
        // SAFETY: the kernel reads a u32, which outlives the call.
        unsafe { rustix::ioctl::ioctl(&disk, rustix::ioctl::Updater::<SHUTDOWN, u32>::new(&mut flags)) }.unwrap();
    }

    fn peer(&self) -> Peer {
        Peer::over(std::net::TcpStream::connect(&self.address).unwrap())
    }
}

/// A client of the machine with a directory `directory`, and a file `file` with the content `0123`, which is open; all that is on the disk.
struct Client {
    session: HelloReply,
    peer: Peer,
    root: Handle,
    file: Handle,
    open: Opened,
}

impl Client {
    fn new(machine: &Machine) -> Client {
        let export = machine.export();
        for entry in fs::read_dir(&export).unwrap().map(|entry| entry.unwrap().path()) {
            let _ = fs::remove_dir(&entry).or_else(|_| fs::remove_file(&entry));
        }
        let (mut peer, session, root) = machine.peer().attach();
        peer.ask((0, 1), &make_directory(&root, "directory")).unwrap();
        let (entry, open) = peer.create((0, 2), &root, "file", READ_WRITE).unwrap();
        let write = WriteAt { open: open.id, offset: 0, append: false, stable: true };
        peer.write((0, 3), &write, b"0123").unwrap();
        Client { session, peer, root, file: entry.handle, open }
    }

    /// Comes back to a machine that was booted again.
    fn recover(&mut self, machine: &Machine) {
        self.peer = machine.peer();
        let reply = self.peer.hello(self.session.session, self.session.secret).expect("the session goes on");
        assert!(reply.recovering && reply.verifier != self.session.verifier);
        let reopen = Request::Reopen { open: self.open.id, token: &self.open.token };
        self.peer.ask((0, 0), &reopen).unwrap();
        assert_eq!(self.peer.call(Op::Recovered, (0, 0), &[]).0.status, 0);
    }

    fn leave(mut self) {
        self.peer.send(Header::new(Kind::Goodbye), &[]);
    }
}

type Build = for<'a> fn(&'a Client) -> Request<'a>;
type Answer = Result<Reply, Errno>;

/// Has power fail at each moment of a request, which is then sent again.
fn repeat(machine: &mut Machine, build: Build, torn: bool, check: fn(&Path, Answer)) {
    for moment in MOMENTS {
        let mut client = Client::new(machine);
        let mut body = Vec::new();
        let op = encode_request(&context(), &build(&client), &mut body);
        let peer = &mut client.peer;
        machine.dies(moment, || _ = peer.request(op, (1, 1), &body));
        let session = machine.file_of(&client.session);
        let tear = |disk: &Path| {
            if torn {
                // Of the reply's record only the first part has come to the disk.
                let file = fs::OpenOptions::new().write(true).open(disk.join(&session)).unwrap();
                file.write_all_at(&[0xa5; 20], HEAD_SIZE + 2 * PAIR_SIZE).unwrap();
            }
        };
        machine.reboots(|_| {}, tear);
        client.recover(machine);
        let answer = client.peer.call(op, (1, 1), &body);
        println!("{op:?} {moment:?}: {:?}", answer.0.status);
        check(&machine.export(), result(op, answer));
        client.leave();
    }
}

#[test]
fn what_cannot_be_repeated_is_done_once_over_a_power_failure() {
    in_namespace("what_cannot_be_repeated_is_done_once_over_a_power_failure", |machine| {
        let is_there = |path: &Path, answer: Answer| {
            answer.unwrap().entry().unwrap();
            assert!(path.join("new").symlink_metadata().is_ok());
        };
        for torn in [false, true] {
            repeat(machine, |client| make_directory(&client.root, "new"), torn, is_there);
            repeat(
                machine,
                |client| Request::Symlink { parent: client.root.bytes(), name: b"new", text: b"where" },
                torn,
                is_there,
            );
            repeat(
                machine,
                |client| Request::Link { handle: client.file.bytes(), parent: client.root.bytes(), name: b"new" },
                torn,
                is_there,
            );
            repeat(
                machine,
                |client| Request::Create {
                    parent: client.root.bytes(),
                    name: b"new",
                    mode: 0o600,
                    umask: 0,
                    flags: READ_WRITE | OpenFlags::EXCLUSIVE,
                },
                torn,
                |path, answer| {
                    answer.unwrap().created().unwrap();
                    assert!(path.join("new").exists());
                },
            );
            repeat(
                machine,
                |client| Request::RemoveDirectory { parent: client.root.bytes(), name: b"directory" },
                torn,
                |path, answer| {
                    assert_eq!(answer, Ok(Reply::Done));
                    assert!(!path.join("directory").exists());
                },
            );
            repeat(
                machine,
                |client| Request::Rename {
                    parent: client.root.bytes(),
                    name: b"file",
                    new_parent: client.root.bytes(),
                    new_name: b"new",
                    flags: RenameFlags::NOREPLACE,
                },
                torn,
                |path, answer| {
                    assert_eq!(answer, Ok(Reply::Done));
                    assert!(path.join("new").exists() && !path.join("file").exists());
                },
            );
        }
    });
}

/// The data of an append may have come to the disk, or not, and what tells of it not.
#[test]
fn an_append_is_done_once_over_a_power_failure() {
    in_namespace("an_append_is_done_once_over_a_power_failure", |machine| {
        for (synced, cut) in [(false, false), (true, false), (true, true)] {
            let mut client = Client::new(machine);
            let append = WriteAt { open: client.open.id, offset: 4, append: true, stable: false };
            let mut body = Vec::new();
            encode_write(&context(), &append, &mut body);
            let peer = &mut client.peer;
            machine.dies(Moment::Executed, || peer.send_with(Op::Write, (1, 1), &body, b"once"));
            let session = machine.file_of(&client.session);
            let sync = |disk: &Path| {
                if synced {
                    File::open(disk.join("export/file")).unwrap().sync_all().unwrap();
                }
            };
            let forget = |disk: &Path| {
                // The record of the intent has not come to the disk.
                let file = fs::OpenOptions::new().write(true).open(disk.join(&session)).unwrap();
                file.write_all_at(&[0; PAIR_SIZE as usize], HEAD_SIZE + 2 * PAIR_SIZE).unwrap();
                if cut {
                    fs::OpenOptions::new().write(true).open(disk.join("export/file")).unwrap().set_len(6).unwrap();
                }
            };
            machine.reboots(sync, forget);
            client.recover(machine);
            let header = Header {
                op: Op::Write as u16,
                slot: 1,
                sequence: 1,
                flags: Flags::RETRY,
                payload_length: 4,
                ..Header::new(Kind::Request)
            };
            client.peer.send(header, &body);
            std::io::Write::write_all(&mut client.peer.stream, b"once").unwrap();
            let answer = client.peer.receive().unwrap();
            let written = result(Op::Write, answer).unwrap().written().unwrap();
            let expected = if cut { (2, &b"0123on"[..]) } else { (4, &b"0123once"[..]) };
            assert_eq!((written.count, written.offset), (expected.0, 4), "synced {synced}");
            assert_eq!(fs::read(machine.export().join("file")).unwrap(), expected.1, "synced {synced}");
            client.leave();
        }
    });
}

/// The reply to an append has come to the disk, and its data have not: when it is sent again, its place may be another client's.
#[test]
fn an_append_that_was_lost_is_done_again_beside_those_of_others() {
    in_namespace("an_append_that_was_lost_is_done_again_beside_those_of_others", |machine| {
        for (others, offset, content) in [(&b""[..], 4, &b"0123mine"[..]), (b"other's", 11, b"0123other'smine")] {
            let mut client = Client::new(machine);
            let append = WriteAt { open: client.open.id, offset: 4, append: true, stable: false };
            let mut body = Vec::new();
            encode_write(&context(), &append, &mut body);
            let peer = &mut client.peer;
            machine.dies(Moment::Remembered, || peer.send_with(Op::Write, (1, 1), &body, b"mine"));
            let session = machine.file_of(&client.session);
            let sync = |disk: &Path| File::open(disk.join(&session)).unwrap().sync_data().unwrap();
            // Sometimes its length is there all the same.
            let lose = |disk: &Path| {
                fs::OpenOptions::new().write(true).open(disk.join("export/file")).unwrap().set_len(4).unwrap();
            };
            machine.reboots(sync, lose);
            client.recover(machine);
            let (mut other, _, root) = machine.peer().attach();
            let (_, open) = other.create((0, 1), &root, "file", READ_WRITE).unwrap();
            other.write((0, 2), &WriteAt { open: open.id, ..append }, others).unwrap();
            let written = client.peer.write((1, 1), &append, b"mine").unwrap();
            assert_eq!((written.count, written.offset), (4, offset));
            assert_eq!(fs::read(machine.export().join("file")).unwrap(), content);
            other.send(Header::new(Kind::Goodbye), &[]);
            client.leave();
        }
    });
}

/// A file may be longer after a power failure although what made it so is lost.
#[test]
fn what_is_not_there_of_an_append_is_not_said_to_be() {
    in_namespace("what_is_not_there_of_an_append_is_not_said_to_be", |machine| {
        let mut client = Client::new(machine);
        let append = WriteAt { open: client.open.id, offset: 4, append: true, stable: false };
        let mut body = Vec::new();
        encode_write(&context(), &append, &mut body);
        let (data, peer) = ([7; 10_000], &mut client.peer);
        machine.dies(Moment::Executed, || peer.send_with(Op::Write, (1, 1), &body, &data));
        let session = machine.file_of(&client.session);
        let sync = |disk: &Path| File::open(disk.join(&session)).unwrap().sync_data().unwrap();
        let lengthen = |disk: &Path| {
            let file = fs::OpenOptions::new().write(true).open(disk.join("export/file")).unwrap();
            file.set_len(4).and_then(|()| file.set_len(4096)).unwrap();
        };
        machine.reboots(sync, lengthen);
        client.recover(machine);
        assert_eq!(client.peer.write((1, 1), &append, &data).unwrap().count, 10_000);
        assert!(fs::read(machine.export().join("file")).unwrap().ends_with(&data));
        client.leave();
    });
}

/// Before anybody else reads or writes, clients send again what is lost: in no slot, at its place.
#[test]
fn what_is_lost_is_sent_again_before_anybody_else_does_anything() {
    in_namespace("what_is_lost_is_sent_again_before_anybody_else_does_anything", |machine| {
        let mut client = Client::new(machine);
        let append = WriteAt { open: client.open.id, offset: 0, append: true, stable: false };
        let written = client.peer.write((1, 1), &append, b"lost").unwrap();
        assert_eq!((written.count, written.offset, written.verifier), (4, 4, client.session.verifier));
        machine.reboots(|_| {}, |_| {});
        let mut other = machine.peer();
        other.hello(0, [0; 16]).unwrap();
        let mut attach = Vec::new();
        Attach { export: "/e", read_only: false }.encode(&mut attach);
        // Also for longer than a connection may else be without an export.
        let began = Instant::now();
        while began.elapsed() < 3 * limits().hello_timeout {
            assert_eq!(other.call(Op::Attach, (0, 0), &attach).0.status as i32, Errno::EAGAIN.raw());
            std::thread::sleep(Duration::from_millis(20));
        }
        client.peer = machine.peer();
        client.peer.hello(client.session.session, client.session.secret).unwrap();
        let reopen = Request::Reopen { open: client.open.id, token: &client.open.token };
        client.peer.ask((0, 0), &reopen).unwrap();
        let again = WriteAt { offset: 4, append: false, ..append };
        let asked = client.peer.write((0, 0), &again, b"").unwrap();
        assert!(asked.verifier != written.verifier && asked.verifier != 0);
        for _ in 0..2 {
            assert_eq!(client.peer.write((0, 0), &again, b"lost").unwrap().count, 4);
        }
        assert_eq!(client.peer.write((0, 0), &append, b"lost"), Err(Errno::EINVAL), "an append does harm");
        assert_eq!(client.peer.call(Op::Recovered, (0, 0), &[]).0.status, 0);
        assert_eq!(fs::read(machine.export().join("file")).unwrap(), b"0123lost");
        assert_eq!(other.call(Op::Attach, (0, 0), &attach).0.status, 0);
    });
}
