//! What a router costs: one stream over loopback straight, through a router, and through a relay
//! that copies, each in a process of its own. Interleaved, so that a machine that does other
//! things too does them to all.
//!
//! `cargo run --release -p aqueduct-net --example router [PAIRS] [MIB]`

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_net::routes::{Network, Routes, Table};
use aqueduct_net::{Relay, RelayConfig, RelayLimits, socket};
use aqueduct_wire::{HEADER_SIZE, HOPS_MAX, Header, Kind, Lane, NetworkName, Route, RouteReply, RouteStatus, Target};
use aqueduct_worker::{Group, Settings};
use socket2::Socket;

/// The buffer of the relay that copies, as iperf3-like ones have it.
const COPY: usize = 1 << 20;

/// What a sender hands to the kernel at once.
const PIECE: usize = 1 << 20;

/// Ping-pongs of a run.
const PINGS: u32 = 2000;

/// As that of `aqueduct route`.
const SPIN_MAX: Duration = Duration::from_micros(200);

const PATIENCE: Duration = Duration::from_secs(30);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("target") => target(),
        Some("relay") => relay(),
        Some("copy") => copy(arguments[1].parse()?),
        _ => {
            let number = |index: usize, usual| arguments.get(index).map_or(Ok(usual), |text| text.parse());
            measure(number(0, 15)?, number(1, 2048)? << 20)
        }
    }
}

fn network() -> Outcome<NetworkName> {
    NetworkName::new("net").ok_or_else(|| "a name".into())
}

/// Says where it listens, and serves until its parent has gone.
fn ready(address: SocketAddr) -> Outcome<()> {
    println!("{address}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    std::process::exit(0);
}

/// Takes all that comes: after a byte 0 it is thrown away, after another sent back.
fn target() -> Outcome<()> {
    let listener = socket::listen("127.0.0.1:0".parse()?)?;
    listener.set_nonblocking(false)?;
    let address = listener.local_addr()?.as_socket().ok_or("an address")?;
    thread::spawn(move || {
        while let Ok(Some((socket, _))) = socket::accept(&listener) {
            thread::spawn(move || sink(socket).is_err());
        }
    });
    ready(address)
}

fn sink(mut stream: Socket) -> Outcome<()> {
    let mut first = [0];
    stream.read_exact(&mut first)?;
    if first[0] > 1 {
        // The rest of a preamble, of which it has read the first byte.
        let mut header = vec![first[0]; HEADER_SIZE];
        stream.read_exact(&mut header[1..])?;
        let header: [u8; HEADER_SIZE] = header.try_into().map_err(|_| "a header")?;
        let header = Header::decode(&header)?;
        stream.read_exact(&mut vec![0; header.body_length as usize])?;
        let mut body = Vec::new();
        RouteReply { status: RouteStatus::Open, hop: 0, text: String::new() }.encode(&mut body);
        stream.write_all(&Header::new(Kind::RouteReply).checked(&body).encode())?;
        stream.write_all(&body)?;
        stream.read_exact(&mut first)?;
    }
    if first[0] == 0 {
        let mut buffer = vec![0; PIECE];
        while stream.read(&mut buffer)? > 0 {}
        stream.write_all(&[0])?;
    } else {
        while stream.read_exact(&mut first).is_ok() {
            stream.write_all(&first)?;
        }
    }
    Ok(())
}

fn relay() -> Outcome<()> {
    let settings = Settings { name: "router".into(), threads_min: 1, threads_max: 1, spin_max: SPIN_MAX };
    let groups = [Group::new(settings.clone())?, Group::new(settings)?];
    let own = Network { name: network()?, nets: vec!["127.0.0.0/8".parse()?], ports: Vec::new() };
    let routes = Arc::new(Routes::new(Table { networks: vec![own], ..Table::default() }));
    let config = RelayConfig { name: "router".into(), limits: RelayLimits::default(), suspect: Duration::from_secs(5) };
    let relay = Relay::start(config, &["127.0.0.1:0".parse()?], routes, &groups)?;
    ready(relay.addresses()[0])
}

/// The simplest relay: two threads that read and write.
fn copy(target: SocketAddr) -> Outcome<()> {
    let listener = socket::listen("127.0.0.1:0".parse()?)?;
    listener.set_nonblocking(false)?;
    let address = listener.local_addr()?.as_socket().ok_or("an address")?;
    thread::spawn(move || {
        while let Ok(Some((near, _))) = socket::accept(&listener) {
            let Ok(far) = socket::connect(target, PATIENCE) else { continue };
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
                let _ = to.set_write_timeout(None); // it blocks anyway
                thread::spawn(move || pump(&from, &to).is_err());
            }
        }
    });
    ready(address)
}

fn pump(mut from: &Socket, mut to: &Socket) -> std::io::Result<()> {
    let mut buffer = vec![0; COPY];
    loop {
        match from.read(&mut buffer)? {
            0 => return to.shutdown(std::net::Shutdown::Write),
            count => to.write_all(&buffer[..count])?,
        }
    }
}

/// A process of this program.
struct Role {
    child: Child,
    address: SocketAddr,
}

impl Role {
    fn start(arguments: &[&str]) -> Outcome<Role> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("its output")?).read_line(&mut line)?;
        Ok(Role { child, address: line.trim().parse()? })
    }

    /// Processor time that it has used, in nanoseconds.
    fn processor(&self) -> Outcome<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // Behind the name, which may have spaces: utime and stime, in hundredths of a second.
        let fields: Vec<&str> = text.rsplit_once(')').ok_or("a name")?.1.split_whitespace().collect();
        let ticks = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        Ok(ticks * 10_000_000)
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// How a connection is had.
type Open<'a> = &'a dyn Fn() -> Outcome<Socket>;

/// Seconds for so many bytes.
fn stream(open: Open<'_>, bytes: usize) -> Outcome<f64> {
    let mut socket = open()?;
    socket.set_write_timeout(None)?;
    let piece = vec![7; PIECE];
    let began = Instant::now();
    socket.write_all(&[0])?;
    for _ in 0..bytes / PIECE {
        socket.write_all(&piece)?;
    }
    socket.shutdown(std::net::Shutdown::Write)?;
    socket.read_exact(&mut [0])?;
    Ok(began.elapsed().as_secs_f64())
}

/// Microseconds of a ping-pong of one byte, the median.
fn ping(open: Open<'_>) -> Outcome<f64> {
    let mut socket = open()?;
    socket.write_all(&[1])?;
    let mut took = Vec::new();
    for _ in 0..PINGS {
        let began = Instant::now();
        socket.write_all(&[1])?;
        socket.read_exact(&mut [0])?;
        took.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(took))
}

/// A connection by a router.
fn ask(router: SocketAddr, address: SocketAddr) -> Outcome<Socket> {
    let mut body = Vec::new();
    let target = Target::Address { network: network()?, address };
    let (hops_left, time_left_ms) = (HOPS_MAX, PATIENCE.as_millis() as u32);
    Route { target, hops_left, time_left_ms, lane: Lane::Bulk, initiator: [1; 16], flow: 1 }.encode(&mut body);
    let mut socket = socket::connect(router, PATIENCE)?;
    socket.write_all(&[&Header::new(Kind::Route).checked(&body).encode()[..], &body].concat())?;
    let mut header = [0; HEADER_SIZE];
    socket.read_exact(&mut header)?;
    let mut body = vec![0; Header::decode(&header)?.body_length as usize];
    socket.read_exact(&mut body)?;
    let reply = RouteReply::decode(&body)?;
    if reply.status == RouteStatus::Open { Ok(socket) } else { Err(reply.text.into()) }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure(pairs: usize, bytes: usize) -> Outcome<()> {
    let target = Role::start(&["target"])?;
    let (router, copier) = (Role::start(&["relay"])?, Role::start(&["copy", &target.address.to_string()])?);
    let straight = || -> Outcome<Socket> { Ok(socket::connect(target.address, PATIENCE)?) };
    let copied = || -> Outcome<Socket> { Ok(socket::connect(copier.address, PATIENCE)?) };
    let routed = || ask(router.address, target.address);
    let ways: [(&str, Open<'_>, Option<&Role>); 3] =
        [("straight", &straight, None), ("router", &routed, Some(&router)), ("copying relay", &copied, Some(&copier))];
    let mut rates = vec![Vec::new(); 3];
    let (mut costs, mut pings) = (rates.clone(), rates.clone());
    for turn in 0..=pairs {
        for (index, (_, open, role)) in ways.iter().enumerate() {
            let before = role.map_or(Ok(0), Role::processor)?;
            let seconds = stream(*open, bytes)?;
            let used = role.map_or(Ok(0), Role::processor)? - before;
            let pong = ping(*open)?;
            if turn > 0 {
                // The first warms up.
                rates[index].push(bytes as f64 / seconds / 1e9);
                costs[index].push(used as f64 / bytes as f64);
                pings[index].push(pong);
            }
        }
    }
    let mut text = String::new();
    for (index, (name, ..)) in ways.iter().enumerate() {
        let ratio =
            |of: &[Vec<f64>]| median(of[index].iter().zip(&of[0]).map(|(one, straight)| one / straight).collect());
        writeln!(
            text,
            "{name}: {:.2} GB/s, {:.2} of straight; {:.3} CPU seconds a GB; ping-pong {:.1} us, {:.2} of straight",
            median(rates[index].clone()),
            ratio(&rates),
            median(costs[index].clone()),
            median(pings[index].clone()),
            ratio(&pings),
        )?;
    }
    let saved = median(costs[1].iter().zip(&costs[2]).map(|(router, copy)| router / copy).collect());
    writeln!(text, "the router takes {saved:.2} of the copying relay's CPU ({pairs} rounds of {} MiB)", bytes >> 20)?;
    print!("{text}");
    Ok(())
}
