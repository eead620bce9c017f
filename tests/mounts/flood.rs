//! Peers that want more than there is: what they take is bounded, they are told, and others work on.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_fs::{
    ClientId, Context, Credential, Handle, Lock, LockKind, LockSpace, OpenFlags, OpenId, ReadAt, Request, WriteAt,
};
use aqueduct_wire::{
    Attach, AttachReply, Capabilities, HEADER_SIZE, Header, Hello, HelloReply, Kind, Lane, Op, VERSION,
};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use crate::common::{Mount, One, Process, SOON, Server, aqueduct, directory, run, test, wait_until, within};
use crate::network::{ADDRESSES, Network};

/// What a server may take under any of these, in KiB.
const MEMORY_MAX_KIB: u64 = 256 << 10;

/// Who floods has an address of its own.
const FLOODER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 66));

/// Processor time that a process has used, in hundredths of a second.
fn processor_time(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Whom a flood is for.
struct Target {
    address: SocketAddr,
    from: IpAddr,
    export: String,
}

fn target(site: &One) -> Target {
    let export = site.export.path().to_str().unwrap().to_owned();
    Target { address: site.server.address.parse().unwrap(), from: FLOODER, export }
}

/// A client that does as it likes.
struct Peer {
    stream: TcpStream,
}

fn context() -> Context {
    Context::new(ClientId(0), Credential::root())
}

impl Peer {
    fn connect(target: &Target) -> io::Result<Peer> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(target.from, 0).into())?;
        socket.connect(&target.address.into())?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(SOON))?;
        stream.set_write_timeout(Some(Duration::from_millis(200)))?;
        Ok(Peer { stream })
    }

    fn send(&mut self, mut header: Header, body: &[u8]) -> io::Result<()> {
        header.body_length = body.len() as u32;
        self.stream.write_all(&[&header.encode()[..], body].concat())
    }

    fn receive(&mut self) -> io::Result<(Header, Vec<u8>)> {
        let mut bytes = [0; HEADER_SIZE];
        self.stream.read_exact(&mut bytes)?;
        let header = Header::decode(&bytes).unwrap();
        let mut body = vec![0; (header.body_length + header.payload_length) as usize];
        self.stream.read_exact(&mut body)?;
        Ok((header, body))
    }

    /// The reason of the goodbye with which the server ends the connection.
    fn goodbye(&mut self) -> String {
        let (header, body) = self.receive().expect("a goodbye");
        assert_eq!(header.kind, Kind::Goodbye);
        String::from_utf8(body).unwrap()
    }

    fn hello(&mut self, lane: Lane) -> io::Result<HelloReply> {
        let hello = Hello {
            version_min: VERSION,
            version_max: VERSION,
            // Who administers would have to prove it.
            capabilities: Capabilities::all() - Capabilities::ADMINISTRATOR,
            server: None,
            session: 0,
            link: 0,
            lane,
            client_instance: [1; 16],
            nonce: [2; aqueduct_wire::NONCE_LENGTH],
            keyed: false,
            node: None,
            client_name: "flooder".into(),
        };
        let mut body = Vec::new();
        hello.encode(&mut body);
        self.send(Header::new(Kind::Hello), &body)?;
        let (header, body) = self.receive()?;
        assert_eq!(header.status, 0);
        Ok(HelloReply::decode(&body).unwrap())
    }

    fn attach(&mut self, export: &str) -> io::Result<Handle> {
        let mut body = Vec::new();
        Attach { export, read_only: false }.encode(&mut body);
        self.send(Header { op: Op::Attach as u16, ..Header::new(Kind::Request) }, &body)?;
        Ok(AttachReply::decode(&self.receive()?.1).unwrap().root.handle)
    }

    /// With a session, and attached.
    fn member(target: &Target, lane: Lane) -> io::Result<(Peer, Handle)> {
        let mut peer = Peer::connect(target)?;
        peer.hello(lane)?;
        let root = peer.attach(&target.export)?;
        Ok((peer, root))
    }

    fn ask(&mut self, slot: u32, sequence: u32, request: &Request<'_>) -> io::Result<(Header, Vec<u8>)> {
        let mut body = Vec::new();
        let op = aqueduct_wire::encode_request(&context(), request, &mut body);
        self.send(Header { op: op as u16, slot, sequence, ..Header::new(Kind::Request) }, &body)?;
        self.receive()
    }

    fn create(&mut self, root: &Handle, name: &str) -> io::Result<OpenId> {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let request = Request::Create { parent: root.bytes(), name: name.as_bytes(), mode: 0o644, umask: 0, flags };
        let (header, body) = self.ask(0, 1, &request)?;
        assert_eq!(header.status, 0);
        Ok(aqueduct_wire::decode_reply(Op::Create, &body).unwrap().created().unwrap().1.id)
    }

    /// The head of a WRITE that promises so many bytes.
    fn promise(&mut self, open: OpenId, bytes: u32) -> io::Result<()> {
        let mut body = Vec::new();
        let write = WriteAt { open, offset: 0, append: false, stable: false };
        aqueduct_wire::encode_write(&context(), &write, &mut body);
        let mut header = Header { op: Op::Write as u16, sequence: 2, ..Header::new(Kind::Request) };
        (header.body_length, header.payload_length) = (body.len() as u32, bytes);
        self.stream.write_all(&[&header.encode()[..], &body].concat())
    }
}

/// A server with an honest client, and room for many descriptors in this process.
fn site() -> One {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let site = One::new();
    // Over TCP who floods is nobody.
    fs::set_permissions(site.export.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    site
}

/// Floods the server while an honest client works and checks what it reads; then that the memory stayed within its bound.
fn flooded<T>(site: &One, flood: impl FnOnce() -> T) -> T {
    let (path, over) = (site.path("honest"), Arc::new(AtomicBool::new(false)));
    let is_over = over.clone();
    let honest = thread::spawn(move || {
        let (mut rounds, mut longest) = (0u32, Duration::ZERO);
        while !is_over.load(Ordering::SeqCst) {
            let (began, data) = (Instant::now(), rounds.to_le_bytes().repeat(50_000));
            fs::write(&path, &data).unwrap();
            assert!(fs::read(&path).unwrap() == data);
            longest = longest.max(began.elapsed());
            rounds += 1;
        }
        (rounds, longest)
    });
    let began = Instant::now();
    let result = flood();
    let took = began.elapsed();
    over.store(true, Ordering::SeqCst);
    let (rounds, longest) = honest.join().unwrap();
    let (_, peak) = site.server.process.memory_kib();
    println!("{took:.1?}: {rounds} honest rounds, the longest {longest:.1?}; at most {peak} KiB");
    assert!(peak <= MEMORY_MAX_KIB, "the server took {peak} KiB");
    assert!(rounds > 0 && longest < Duration::from_secs(20), "others wait: {rounds} rounds, the longest {longest:?}");
    result
}

/// The server's log has so few lines of a kind however often it happened.
fn told_once(site: &One, what: &str) {
    let told = site.server.process.output();
    assert_eq!(told.matches(what).count(), 1, "{told}");
}

/// Connections that say nothing; the last but one half of them hears why it is refused.
fn say_nothing(target: &Target, count: usize) -> (String, Vec<Peer>) {
    let mut silent: Vec<Peer> = (0..count / 2).map(|_| Peer::connect(target).unwrap()).collect();
    let refused = silent.last_mut().unwrap().goodbye();
    silent.extend((0..count / 2).map(|_| Peer::connect(target).unwrap()));
    (refused, silent)
}

/// Frames of which the end does not come, until `time` is over; those that the server closes begin anew.
fn leave_unfinished(target: &Target, count: usize, time: Duration) {
    let (mut first, root) = Peer::member(target, Lane::Bulk).unwrap();
    let open = first.create(&root, "flooded").unwrap();
    let (part, began) = (vec![7; 1_000_000], Instant::now());
    let unfinished = || {
        let (mut peer, _) = Peer::member(target, Lane::Bulk)?;
        peer.promise(open, 1 << 20)?;
        let _ = peer.stream.write_all(&part); // which the server need not take
        peer.stream.set_nonblocking(true)?;
        Ok::<Peer, io::Error>(peer)
    };
    let mut peers: Vec<Peer> = Vec::new();
    while began.elapsed() < time {
        let gone = |peer: &mut Peer| !matches!(peer.stream.read(&mut [0; 1]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        peers.retain_mut(|peer| !gone(peer));
        if peers.len() < count {
            peers.extend(unfinished());
        } else {
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Reads of much whose replies nobody takes, until `time` is over.
fn read_nothing(target: &Target, count: usize, time: Duration) {
    let began = Instant::now();
    let ask = || {
        let (mut peer, root) = Peer::member(target, Lane::Control)?;
        let lookup = Request::Lookup { parent: root.bytes(), name: b"large" };
        let (_, body) = peer.ask(0, 0, &lookup)?;
        let entry = aqueduct_wire::decode_reply(Op::Lookup, &body).unwrap().entry().unwrap();
        let flags = OpenFlags::READ;
        let (_, body) = peer.ask(0, 1, &Request::Open { handle: entry.handle.bytes(), flags })?;
        let open = aqueduct_wire::decode_reply(Op::Open, &body).unwrap().opened().unwrap().id;
        let mut body = Vec::new();
        aqueduct_wire::encode_read(&context(), &ReadAt { open, offset: 0, length: 1 << 20 }, &mut body);
        let header = Header { op: Op::Read as u16, ..Header::new(Kind::Request) };
        // What it does not take any more is as good.
        let _ = (0..100).try_for_each(|_| peer.send(header, &body));
        Ok::<Peer, io::Error>(peer)
    };
    let mut peers: Vec<Peer> = Vec::new();
    while began.elapsed() < time {
        if peers.len() < count {
            peers.extend(ask());
        } else {
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Requests whose bodies are no such; how many were answered.
fn ask_nonsense(target: &Target, time: Duration) -> usize {
    let (mut peer, _) = Peer::member(target, Lane::Control).unwrap();
    let (began, mut answered) = (Instant::now(), 0);
    while began.elapsed() < time {
        for op in [Op::Lookup, Op::Create, Op::Compound, Op::SetLock] {
            peer.send(Header { op: op as u16, ..Header::new(Kind::Request) }, &[0xff; 300]).unwrap();
        }
        for _ in 0..4 {
            assert_ne!(peer.receive().unwrap().0.status, 0);
            answered += 1;
        }
    }
    answered
}

/// Locks until there are no more; how many were granted, and who holds them.
fn lock_all(target: &Target) -> (u32, Peer) {
    let (mut peer, root) = Peer::member(target, Lane::Control).unwrap();
    let open = peer.create(&root, "locked").unwrap();
    let (mut sequence, mut granted) = (1, 0);
    while granted == sequence - 1 {
        let mut frames = Vec::new();
        for _ in 0..64 {
            sequence += 1;
            let start = u64::from(sequence) * 2;
            let lock = Lock { start, end: start, kind: LockKind::Write, pid: 1 };
            let request = Request::SetLock { open, owner: 1, space: LockSpace::Posix, lock, wait: false };
            let mut body = Vec::new();
            let op = aqueduct_wire::encode_request(&context(), &request, &mut body);
            let mut header = Header { op: op as u16, sequence, ..Header::new(Kind::Request) };
            header.body_length = body.len() as u32;
            frames.extend_from_slice(&header.encode());
            frames.extend_from_slice(&body);
        }
        peer.stream.write_all(&frames).unwrap();
        for _ in 0..64 {
            match peer.receive().unwrap().0.status as i32 {
                0 => granted += 1,
                error => assert_eq!(error, libc::ENOLCK),
            }
        }
    }
    (granted, peer)
}

#[test]
fn connections_that_say_nothing_are_refused_beyond_a_number() {
    test(|| {
        let site = site();
        let (refused, silent) = flooded(&site, || say_nothing(&target(&site), 10_000));
        assert!(refused.contains("have no session yet"), "{refused}");
        told_once(&site, "refused a connection");
        drop((silent, site));
    });
}

#[test]
fn long_frames_before_a_session_are_refused() {
    test(|| {
        let site = site();
        flooded(&site, || {
            for _ in 0..500 {
                let mut peer = Peer::connect(&target(&site)).unwrap();
                peer.promise(OpenId(1), 1 << 20).unwrap();
                assert!(peer.goodbye().contains("before HELLO nothing so long is taken"));
            }
        });
        told_once(&site, "before HELLO nothing so long is taken");
        drop(site);
    });
}

#[test]
fn frames_that_are_not_finished_are_bounded() {
    within(Duration::from_secs(120), || {
        let site = site();
        flooded(&site, || leave_unfinished(&target(&site), 400, Duration::from_secs(8)));
        told_once(&site, "the rest of a frame does not come");
        drop(site);
    });
}

/// Also when they come from the honest client's own address.
#[test]
fn frames_that_are_not_finished_hold_up_nobody_who_is_at_work() {
    within(Duration::from_secs(120), || {
        let site = site();
        // Its connections have carried data before.
        fs::write(site.path("before"), vec![1; 8 << 20]).unwrap();
        let (path, over) = (site.path("honest"), Arc::new(AtomicBool::new(false)));
        let honest = thread::spawn({
            let over = over.clone();
            move || {
                let (mut rounds, mut longest) = (0, Duration::ZERO);
                while !over.load(Ordering::SeqCst) {
                    let mut file = fs::File::create(&path).unwrap();
                    let began = Instant::now();
                    file.write_all(&[7; 300_000]).unwrap();
                    file.sync_all().unwrap();
                    longest = longest.max(began.elapsed());
                    rounds += 1;
                }
                (rounds, longest)
            }
        });
        let target = Target { from: IpAddr::V4(Ipv4Addr::LOCALHOST), ..target(&site) };
        leave_unfinished(&target, 300, Duration::from_secs(6));
        over.store(true, Ordering::SeqCst);
        let (rounds, longest) = honest.join().unwrap();
        println!("{rounds} rounds, the longest {longest:?}");
        // Whoever holds room in vain is found out after 2 s.
        assert!(rounds > 0 && longest < Duration::from_millis(1500), "{rounds} rounds, the longest {longest:?}");
        drop(site);
    });
}

#[test]
fn thousands_of_sessions_are_held_in_little_memory() {
    within(Duration::from_secs(120), || {
        let site = site();
        // Each takes a connection here, and there a connection of two descriptors and a file.
        let room = getrlimit(Resource::Nofile).maximum.map_or(10_000, |most| (most as usize).saturating_sub(500) / 3);
        let (before, _) = site.server.process.memory_kib();
        let target = target(&site);
        flooded(&site, || {
            let members: Vec<_> =
                (0..room.min(10_000)).map(|_| Peer::member(&target, Lane::Control).unwrap()).collect();
            let (after, _) = site.server.process.memory_kib();
            let each = (after - before) as f64 / members.len() as f64;
            println!("each of {} idle clients takes {each:.1} KiB", members.len());
            assert!(each < 16.0, "an idle client takes {each} KiB");
        });
        drop(site);
    });
}

#[test]
fn replies_that_nobody_reads_are_bounded() {
    within(Duration::from_secs(120), || {
        let site = site();
        fs::write(site.export.path().join("large"), vec![7; 8 << 20]).unwrap();
        flooded(&site, || read_nothing(&target(&site), 150, Duration::from_secs(4)));
        let told = site.server.process.output();
        assert!(told.contains("replies are not read"), "{told}");
        drop(site);
    });
}

#[test]
fn requests_that_make_no_sense_are_answered() {
    test(|| {
        let site = site();
        let answered = flooded(&site, || ask_nonsense(&target(&site), Duration::from_secs(2)));
        assert!(answered > 100, "{answered}");
        assert!(site.server.process.output().lines().count() < 10);
        drop(site);
    });
}

#[test]
fn locks_are_bounded() {
    within(Duration::from_secs(120), || {
        let site = site();
        let (granted, peer) = flooded(&site, || lock_all(&target(&site)));
        assert!((60_000..70_000).contains(&granted), "{granted}");
        drop((peer, site));
    });
}

#[test]
fn a_server_without_descriptors_rests_and_goes_on() {
    test(|| {
        let export = directory();
        // Its peers come by TCP, and do what root does.
        let arguments = ["--listen", "127.0.0.1:0", "--squash", "none"];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[export.path()]);
        let pid = server.process.pid();
        // It has more than that, and gets no other.
        let limit = |current| Rlimit { current: Some(current), maximum: Some(4096) };
        let set = |limit| prlimit(Pid::from_raw(pid as i32), Resource::Nofile, limit).unwrap();
        set(limit(3));
        let many: Vec<TcpStream> = (0..10).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
        wait_until("it has told", SOON, || server.process.output().contains("connections cannot be accepted"));
        let began = processor_time(pid);
        thread::sleep(Duration::from_secs(2));
        let used = processor_time(pid) - began;
        assert!(used < 50, "waiting for descriptors takes {used} hundredths of a second of 200");
        assert_eq!(server.process.output().matches("connections cannot be accepted").count(), 1);
        set(limit(1024));
        drop(many);
        let serves = || run(aqueduct().args(["status", &server.address])).status.success();
        wait_until("it serves again", SOON, serves);
        drop(server);
    });
}

/// Set for the process that floods: which flood, the server's address, its own, and the export.
const FLOOD: &str = "AQUEDUCT_TEST_FLOOD";

/// Not a test of anything.
#[test]
fn floods_when_told_to() {
    let Ok(order) = std::env::var(FLOOD) else { return };
    let words: Vec<&str> = order.split(' ').collect();
    let [kind, address, from, export] = words[..] else { panic!("{order}") };
    let (address, from) = (address.parse().unwrap(), from.parse().unwrap());
    let (target, hour) = (Target { address, from, export: export.to_owned() }, Duration::from_secs(3600));
    match kind {
        "silent" => {
            let _peers = say_nothing(&target, 10_000);
            thread::sleep(hour);
        }
        "unfinished" => leave_unfinished(&target, 400, hour),
        "unread" => read_nothing(&target, 150, hour),
        "nonsense" => drop(ask_nonsense(&target, hour)),
        "locks" => {
            let _peer = lock_all(&target);
            thread::sleep(hour);
        }
        "sessions" => {
            let _members: Vec<_> = (0..5000).map(|_| Peer::member(&target, Lane::Control).unwrap()).collect();
            thread::sleep(hour);
        }
        other => panic!("no such flood: {other}"),
    }
}

/// MiB a second that an honest client writes and reads back, for `time`.
fn throughput(path: &std::path::Path, time: Duration) -> f64 {
    const BLOCK: usize = 4 << 20;
    let (data, began, mut bytes) = (vec![3; BLOCK], Instant::now(), 0);
    while began.elapsed() < time {
        fs::write(path, &data).unwrap();
        assert_eq!(fs::read(path).unwrap().len(), BLOCK);
        bytes += 2 * BLOCK;
    }
    bytes as f64 / (1 << 20) as f64 / began.elapsed().as_secs_f64()
}

/// What an honest client keeps of its throughput beside a flood, in percent.
const SHARE_MIN: f64 = 80.0;

/// Honest throughput beside each flood, from networks of their own: `cargo test --release --test mounts -- --ignored --nocapture flood::measure`.
#[test]
#[ignore = "a measurement, which takes minutes and a machine that does nothing else"]
fn measure_honest_throughput() {
    within(Duration::from_secs(900), || {
        let Some(network) = Network::new() else { return };
        network.slow_down(2, "50mbit");
        let mut missed = Vec::new();
        for kind in ["silent", "unfinished", "unread", "nonsense", "locks", "sessions"] {
            let (mut alone, mut beside, mut peak) = (Vec::new(), Vec::new(), 0);
            for _ in 0..3 {
                let export = directory();
                fs::write(export.path().join("large"), vec![7; 8 << 20]).unwrap();
                let listen = format!("{}:7170", ADDRESSES[0]);
                let arguments = ["--listen", &listen, "--insecure", "--squash", "none"];
                let server = Server::start_with(&mut network.inside(0), &arguments, &[export.path()]);
                let source = format!("{}:{}", ADDRESSES[0], export.path().display());
                let mount = Mount::start(&mut network.inside(1), &[&source], "");
                throughput(&mount.join("honest"), Duration::from_secs(1));
                alone.push(throughput(&mount.join("honest"), Duration::from_secs(4)));
                let order = format!("{kind} {listen} {} {}", ADDRESSES[2], export.path().display());
                let mut command = network.enter(2);
                command.args(["nice", "-n", "19"]).arg(std::env::current_exe().unwrap());
                command.args(["flood::floods_when_told_to", "--exact"]).env(FLOOD, order);
                let flooder = Process::start(&mut command, &export.path().join("flooder"));
                thread::sleep(Duration::from_secs(4)); // it is under way, and has been found out
                beside.push(throughput(&mount.join("honest"), Duration::from_secs(8)));
                peak = peak.max(server.process.memory_kib().1);
                drop((flooder, mount, server));
            }
            let [alone, beside] = [&mut alone, &mut beside].map(|runs| {
                runs.sort_by(f64::total_cmp);
                runs[runs.len() / 2]
            });
            let share = 100.0 * beside / alone;
            println!("{kind}: {alone:.0} MiB/s alone, {beside:.0} beside it ({share:.0} %), peak {} MiB", peak >> 10);
            assert!(peak <= MEMORY_MAX_KIB, "{kind}: {peak} KiB");
            missed.extend((share < SHARE_MIN).then_some(kind));
        }
        assert!(missed.is_empty(), "less than {SHARE_MIN} % are left beside {missed:?}");
    });
}
