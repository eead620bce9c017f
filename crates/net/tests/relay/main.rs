//! A router between hand-made initiators and targets: what it passes on, and what it refuses.

mod limits;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_net::routes::{Network, Next, Routes, Table, Way};
use aqueduct_net::{
    Address, BufferPool, Closed, Connection, Endpoint, Frame, Initiator, Local, Mode, Path, Relay, RelayConfig,
    RelayLimits, RouteError, dial, ping,
};
use aqueduct_wire::{
    HEADER_SIZE, HOPS_MAX, Header, Kind, Lane, NetworkName, Route, RouteHeld, RouteHeldReply, RouteNotice, RouteReply,
    RouteStatus, Target,
};
use aqueduct_worker::{Group, Settings};

/// Longer than anything here takes, on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(10);

struct Router {
    relay: Option<Relay>,
    groups: Vec<Arc<Group>>,
}

impl Drop for Router {
    fn drop(&mut self) {
        drop(self.relay.take());
        self.groups.iter().for_each(|group| group.stop());
        self.groups.iter().for_each(|group| group.join());
    }
}

impl Router {
    fn relay(&self) -> &Relay {
        self.relay.as_ref().unwrap()
    }

    fn address(&self) -> SocketAddr {
        self.relay().addresses()[0]
    }
}

fn name(text: &str) -> NetworkName {
    NetworkName::new(text).unwrap()
}

/// Networks of loopback addresses, and ways.
fn router(networks: &[(&str, &str)], ways: &[(&str, SocketAddr)], limits: RelayLimits) -> Router {
    suspecting(Duration::from_secs(5), networks, ways, limits)
}

fn suspecting(
    suspect: Duration,
    networks: &[(&str, &str)],
    ways: &[(&str, SocketAddr)],
    limits: RelayLimits,
) -> Router {
    let settings =
        Settings { name: "router".into(), threads_min: 1, threads_max: 1, spin_max: Duration::from_micros(20) };
    let groups: Vec<_> = (0..2).map(|_| Group::new(settings.clone()).unwrap()).collect();
    let network = |(network, net): &(&str, &str)| Network {
        name: name(network),
        nets: vec![net.parse().unwrap()],
        ports: Vec::new(),
    };
    let way = |(network, gateway): &(&str, SocketAddr)| Way {
        network: name(network),
        gateway: *gateway,
        hops: 1,
        priority: 0,
    };
    let networks = networks.iter().map(network).collect();
    let table = Table { networks, ways: ways.iter().map(way).collect(), ..Table::default() };
    let config = RelayConfig { name: "r".into(), limits, suspect };
    let relay = Relay::start(config, &["127.0.0.1:0".parse().unwrap()], Arc::new(Routes::new(table)), &groups).unwrap();
    Router { relay: Some(relay), groups }
}

fn plain(network: &str) -> Router {
    router(&[(network, "127.0.0.0/8")], &[], RelayLimits::default())
}

fn frame(header: Header, body: &[u8]) -> Vec<u8> {
    [&header.checked(body).encode()[..], body].concat()
}

fn receive(stream: &mut TcpStream) -> Option<(Header, Vec<u8>)> {
    let mut header = [0; HEADER_SIZE];
    stream.read_exact(&mut header).ok()?;
    let header = Header::decode(&header).unwrap();
    let mut body = vec![0; header.body_length as usize];
    stream.read_exact(&mut body).ok()?;
    Some((header, body))
}

fn body(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = Vec::new();
    encode(&mut body);
    body
}

fn to(network: &str, address: SocketAddr) -> Target {
    Target::Address { network: name(network), address }
}

fn route(target: Target) -> Route {
    Route { target, hops_left: HOPS_MAX, time_left_ms: 5000, lane: Lane::Bulk, initiator: [1; 16], flow: 7 }
}

fn connect(router: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(router).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(router: SocketAddr, route: &Route) -> (TcpStream, RouteReply) {
    let mut stream = connect(router);
    stream.write_all(&frame(Header::new(Kind::Route), &body(|out| route.encode(out)))).unwrap();
    let (header, body) = receive(&mut stream).expect("an answer");
    assert_eq!(header.kind, Kind::RouteReply);
    (stream, RouteReply::decode(&body).unwrap())
}

fn open(router: SocketAddr, target: &Target) -> TcpStream {
    let (stream, reply) = ask(router, &route(target.clone()));
    assert_eq!(reply.status, RouteStatus::Open, "{}", reply.text);
    stream
}

/// A target that takes the preamble as a server does, and hands its connections on.
fn target() -> (SocketAddr, std::sync::mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, accepted) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let Some((header, asked)) = receive(&mut stream) else { continue };
            assert_eq!(header.kind, Kind::Route);
            Route::decode(&asked).unwrap();
            let reply = RouteReply { status: RouteStatus::Open, hop: 0, text: String::new() };
            stream.write_all(&frame(Header::new(Kind::RouteReply), &body(|out| reply.encode(out)))).unwrap();
            if sender.send(stream).is_err() {
                return;
            }
        }
    });
    (address, accepted)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(std::time::Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn bytes_and_ends_go_through_both_ways() {
    let (inner, (address, accepted)) = (plain("far"), target());
    let outer = router(&[("near", "127.0.0.0/8")], &[("far", inner.address())], RelayLimits::default());
    for (router, hops) in [(&inner, 1), (&outer, 2)] {
        let mut near = open(router.address(), &to("far", address));
        let mut far = accepted.recv_timeout(PATIENCE).unwrap();
        let data = pattern(9 << 20);
        let (out, back) = (data.clone(), data[..5 << 20].to_vec());
        let mut writer = near.try_clone().unwrap();
        let sends = thread::spawn(move || {
            writer.write_all(&out).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let answers = thread::spawn(move || {
            far.set_write_timeout(Some(PATIENCE)).unwrap();
            let mut answer = far.try_clone().unwrap();
            let sends = thread::spawn(move || answer.write_all(&back).map(|()| answer));
            let mut came = Vec::new();
            far.read_to_end(&mut came).unwrap();
            // The other direction is open still.
            let mut answer = sends.join().unwrap().unwrap();
            answer.write_all(b"and more").unwrap();
            came
        });
        let mut came = Vec::new();
        near.read_to_end(&mut came).unwrap();
        sends.join().unwrap();
        assert!(answers.join().unwrap() == data, "{hops} hops out");
        assert!(came == [&data[..5 << 20], b"and more"].concat(), "{hops} hops back");
    }
    until("all flows end", || inner.relay().flows() + outer.relay().flows() == 0);
    let status = outer.relay().status();
    let bytes = status.metrics.samples("aqueduct_router_passed_bytes_total");
    let of = |scope: &str, way: &str| {
        let is_it = |sample: &&aqueduct_metrics::Sample| sample.label("scope") == scope && sample.label("way") == way;
        bytes.iter().filter(is_it).map(|sample| sample.number()).sum::<u64>()
    };
    for scope in ["route", "client", "network"] {
        assert_eq!((of(scope, "out"), of(scope, "back")), (9 << 20, (5 << 20) + 8), "{scope}");
    }
    assert_eq!(status.metrics.samples("aqueduct_router_flows").iter().map(|flows| flows.number()).sum::<u64>(), 0);
}

/// The kernel gives up what is left of a closed socket when its receiver has no room for a while.
#[test]
fn what_is_left_when_both_have_ended_comes_however_late_it_is_read() {
    /// So that the kernel asks a receiver every second whether it has room.
    const SUSPECT: Duration = Duration::from_secs(2);
    let router = suspecting(SUSPECT, &[("far", "127.0.0.0/8")], &[], RelayLimits::default());
    let (address, accepted) = target();
    let mut near = open(router.address(), &to("far", address));
    let mut far = accepted.recv_timeout(PATIENCE).unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(far.read(&mut [0]).unwrap(), 0);
    // More than the reader's socket takes, and no more than that of the router.
    let data = pattern(2 << 20);
    far.write_all(&data).unwrap();
    drop(far);
    thread::sleep(2 * SUSPECT);
    let mut came = Vec::new();
    near.read_to_end(&mut came).unwrap();
    assert!(came == data, "{} bytes of {}", came.len(), data.len());
    drop(near);
    until("the flow ends", || router.relay().flows() == 0);
}

fn reset(stream: TcpStream) {
    let socket = socket2::Socket::from(stream);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(socket);
}

#[test]
fn a_reset_is_a_reset_and_what_was_on_its_way_is_lost() {
    let (router, (address, accepted)) = (plain("far"), target());
    for near_resets in [true, false] {
        let near = open(router.address(), &to("far", address));
        let far = accepted.recv_timeout(PATIENCE).unwrap();
        let (mut resets, mut other) = if near_resets { (near, far) } else { (far, near) };
        // More than all buffers take: the receiver does not read yet.
        resets.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let data = vec![7; 1 << 20];
        let mut sent = 0;
        while let Ok(count) = resets.write(&data) {
            sent += count;
        }
        reset(resets);
        let came = std::cell::Cell::new(0);
        let mut buffer = vec![0; 1 << 16];
        let ended = loop {
            match other.read(&mut buffer) {
                Ok(0) => break None,
                Ok(count) => came.set(came.get() + count),
                Err(error) => break Some(error.kind()),
            }
        };
        assert_eq!(ended, Some(std::io::ErrorKind::ConnectionReset), "by the near side: {near_resets}");
        assert!(came.get() < sent, "{} of {sent}", came.get());
        until("the flow ends", || router.relay().flows() == 0);
    }
}

#[test]
fn a_stalled_flow_holds_no_other_and_no_direction_the_other() {
    let (router, (address, accepted)) = (plain("far"), target());
    let mut stalled = open(router.address(), &to("far", address));
    let mut unread = accepted.recv_timeout(PATIENCE).unwrap();
    stalled.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    while stalled.write(&[1; 1 << 16]).is_ok() {}
    // Its other direction.
    unread.write_all(&pattern(1 << 20)).unwrap();
    let mut came = vec![0; 1 << 20];
    stalled.read_exact(&mut came).unwrap();
    assert!(came == pattern(1 << 20));
    // Another flow.
    let mut near = open(router.address(), &to("far", address));
    let mut far = accepted.recv_timeout(PATIENCE).unwrap();
    let data = pattern(8 << 20);
    let sent = data.clone();
    let sends = thread::spawn(move || near.write_all(&sent).map(|()| near));
    let mut came = vec![0; data.len()];
    far.read_exact(&mut came).unwrap();
    assert!(came == data);
    sends.join().unwrap().unwrap();
    let blocked = router.relay().status().flows.iter().map(|flow| flow.blocked[1]).max().unwrap();
    assert!(blocked >= Duration::from_millis(50), "{blocked:?}");
}

#[test]
fn who_comes_where_all_is_full_is_told_at_once() {
    let limits = RelayLimits { flows_max: 8, ..RelayLimits::default() };
    let router = router(&[("far", "127.0.0.0/8")], &[], limits);
    let (address, accepted) = target();
    let target = to("far", address);
    // One in eight is for control.
    let flows: Vec<_> = (0..7).map(|_| open(router.address(), &target)).collect();
    let (_, reply) = ask(router.address(), &route(target.clone()));
    assert_eq!((reply.status, reply.hop), (RouteStatus::Full, 0), "{}", reply.text);
    let control = Route { lane: Lane::Control, ..route(target.clone()) };
    let (last, reply) = ask(router.address(), &control);
    assert_eq!(reply.status, RouteStatus::Open);
    assert_eq!(ask(router.address(), &control).1.status, RouteStatus::Full);
    drop((flows, last, accepted));
    until("places are free again", || ask(router.address(), &control).1.status == RouteStatus::Open);
}

#[test]
fn what_goes_nowhere_is_said_and_by_whom() {
    let inner = plain("far");
    let outer = router(
        &[("near", "127.0.0.0/30")],
        &[("far", inner.address()), ("void", "127.0.0.1:1".parse().unwrap())],
        RelayLimits::default(),
    );
    let dead: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let ask = |target, hops_left| {
        let (mut stream, reply) = ask(outer.address(), &Route { hops_left, ..route(target) });
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "it is closed");
        (reply.status, reply.hop, reply.text)
    };
    let says = |answer: (RouteStatus, u8, String), status, hop, text: &str| {
        assert!(answer.0 == status && answer.1 == hop && answer.2.contains(text), "{answer:?}");
    };
    says(ask(to("none", dead), 8), RouteStatus::NoRoute, 0, "none");
    says(ask(to("near", "10.0.0.1:1".parse().unwrap()), 8), RouteStatus::Refused, 0, "10.0.0.1");
    says(ask(to("near", dead), 8), RouteStatus::Unreachable, 0, "127.0.0.1:1");
    says(ask(to("far", dead), 8), RouteStatus::Unreachable, 1, "127.0.0.1:1");
    says(ask(to("far", dead), 1), RouteStatus::TooFar, 1, "as many routers");
    says(ask(to("far", dead), 0), RouteStatus::TooFar, 0, "as many routers");
    // A dead target is no fault of the gateway's; a dead gateway is.
    says(ask(to("void", dead), 8), RouteStatus::Unreachable, 0, "127.0.0.1:1");
    let up: Vec<bool> = outer.relay().status().gateways.iter().map(|gateway| gateway.is_up).collect();
    assert_eq!(up, [false, true]);
    let mut stream = connect(outer.address());
    stream.write_all(&frame(Header::new(Kind::Hello), b"")).unwrap();
    let (_, answer) = receive(&mut stream).unwrap();
    assert_eq!(RouteReply::decode(&answer).unwrap().status, RouteStatus::Bad);
    let mut noise = connect(outer.address());
    noise.write_all(&[0; 200]).unwrap();
    assert!(matches!(noise.read(&mut [0]), Ok(0) | Err(_)));
}

#[test]
fn another_router_takes_what_one_does_not() {
    let (full, free) =
        (router(&[("far", "127.0.0.0/8")], &[], RelayLimits { flows_max: 1, ..RelayLimits::default() }), plain("far"));
    let (address, accepted) = target();
    let way = |gateway| Way { network: name("far"), gateway, hops: 1, priority: 0 };
    let ways = [full.address(), free.address(), "127.0.0.1:1".parse().unwrap()].map(way).to_vec();
    let initiator = Initiator::new(Arc::new(Routes::new(Table { ways, ..Table::default() }))).unwrap();
    let _held: Vec<_> = (0..6)
        .map(|_| {
            let routed =
                initiator.connect((&Local::default(), None), &to("far", address), Lane::Control, PATIENCE).unwrap();
            (routed, accepted.recv_timeout(PATIENCE).unwrap())
        })
        .collect();
    assert_eq!((full.relay().flows(), free.relay().flows()), (1, 5));
    let down = initiator.routes().gateways().iter().filter(|gateway| !gateway.is_up).count();
    assert_eq!(down, 1);
    let nowhere = initiator.connect((&Local::default(), None), &to("none", address), Lane::Control, PATIENCE);
    assert!(matches!(nowhere.err(), Some(RouteError::NoWay(why)) if why.contains("none")));
}

#[test]
fn a_router_that_returns_is_found_without_being_needed() {
    let gateway = {
        let unused = TcpListener::bind("127.0.0.1:0").unwrap();
        unused.local_addr().unwrap()
    };
    let (other, (address, accepted)) = (plain("far"), target());
    let way = |gateway, priority| Way { network: name("far"), gateway, hops: 1, priority };
    let ways = vec![way(gateway, 0), way(other.address(), 1)];
    let initiator = Initiator::new(Arc::new(Routes::new(Table { ways, ..Table::default() }))).unwrap();
    let gateway_of = || {
        let routed =
            initiator.connect((&Local::default(), None), &to("far", address), Lane::Control, PATIENCE).unwrap();
        drop(accepted.recv_timeout(PATIENCE).unwrap());
        routed.gateway()
    };
    assert_eq!(gateway_of(), Some(other.address()));
    let settings = Settings { name: "router".into(), threads_min: 1, threads_max: 1, spin_max: Duration::ZERO };
    let groups = vec![Group::new(settings).unwrap()];
    let network = Network { name: name("far"), nets: vec!["127.0.0.0/8".parse().unwrap()], ports: Vec::new() };
    let routes = Arc::new(Routes::new(Table { networks: vec![network], ..Table::default() }));
    let config = RelayConfig { name: "r".into(), limits: RelayLimits::default(), suspect: Duration::from_secs(5) };
    let relay = Some(Relay::start(config, &[gateway], routes, &groups).unwrap());
    let returned = Router { relay, groups };
    ping(returned.address(), PATIENCE).unwrap();
    until("it is used again", || initiator.routes().gateways().iter().all(|gateway| gateway.is_up));
    assert_eq!(gateway_of(), Some(gateway));
}

/// LNet's LU-20379: a dead local interface marked the gateway down, for all others too.
#[test]
fn a_place_of_this_machine_that_is_dead_makes_no_gateway_dead() {
    let (address, _targets) = target();
    let router = plain("far");
    let ways = vec![Way { network: name("far"), gateway: router.address(), hops: 1, priority: 0 }];
    let routes = Arc::new(Routes::new(Table { ways, ..Table::default() }));
    let initiator = Initiator::new(routes.clone()).unwrap();
    // Of nobody's: a network for documentation.
    let dead = Local { interface: None, address: Some("192.0.2.7".parse().unwrap()) };
    for _ in 0..3 {
        let failed = initiator.connect((&dead, None), &to("far", address), Lane::Control, PATIENCE);
        assert!(matches!(failed, Err(RouteError::Gateway { .. })));
        assert!(routes.gateways().iter().all(|gateway| gateway.is_up));
    }
    until("it was asked from elsewhere", || routes.is_sound(router.address(), Instant::now()));
    initiator.connect((&Local::default(), None), &to("far", address), Lane::Control, PATIENCE).unwrap();
}

/// LNet's LU-12289: who took turns did not ask whether the other end of a way was known to be
/// dead.
#[test]
fn turns_are_taken_among_gateways_that_lead_to_the_target() {
    let (useless, useful) = (router(&[("far", "127.99.0.0/16")], &[], RelayLimits::default()), plain("far"));
    let (address, accepted) = target();
    let way = |gateway| Way { network: name("far"), gateway, hops: 1, priority: 0 };
    let ways = [useless.address(), useful.address()].map(way).to_vec();
    let initiator = Initiator::new(Arc::new(Routes::new(Table { ways, ..Table::default() }))).unwrap();
    let connect = || {
        let routed =
            initiator.connect((&Local::default(), None), &to("far", address), Lane::Control, PATIENCE).unwrap();
        (routed.gateway(), accepted.recv_timeout(PATIENCE).unwrap())
    };
    // By then both have had their first turn.
    let _held: Vec<_> = (0..2).map(|_| connect()).collect();
    assert!(initiator.routes().gateways().iter().all(|gateway| gateway.is_up), "it answers");
    for _ in 0..6 {
        let Next::By(_, gateways) = initiator.routes().next(&to("far", address), HOPS_MAX, Instant::now()) else {
            panic!("there are gateways")
        };
        assert_eq!(gateways, [useful.address(), useless.address()]);
    }
    assert_eq!(connect().0, Some(useful.address()));
}

/// LNet's LU-17440: routes that lead there and back by different routers crashed who counted them.
#[test]
fn there_and_back_may_lead_by_different_routers() {
    let (there, mut back) = (plain("far"), plain("near"));
    let (far, at_far) = target();
    let (near, at_near) = target();
    let mut out = open(there.address(), &to("far", far));
    let mut arrived = at_far.recv_timeout(PATIENCE).unwrap();
    let mut answer = open(back.address(), &to("near", near));
    let mut heard = at_near.recv_timeout(PATIENCE).unwrap();
    let carries = |from: &mut TcpStream, to: &mut TcpStream, what: &[u8]| {
        from.write_all(what).unwrap();
        let mut got = vec![0; what.len()];
        to.read_exact(&mut got).unwrap();
        assert_eq!(got, what);
    };
    carries(&mut out, &mut arrived, b"there");
    carries(&mut answer, &mut heard, b"back");
    drop(back.relay.take());
    assert!(matches!(heard.read(&mut [0]), Ok(0) | Err(_)), "its flow has ended");
    carries(&mut arrived, &mut out, b"and back by the same");
    assert_eq!(there.relay().flows(), 1);
}

/// Who looks at a way asks each router on it through those before.
#[test]
fn each_router_on_a_way_answers_questions() {
    let inner = plain("far");
    let outer = router(&[("near", "127.0.0.0/8")], &[("far", inner.address())], RelayLimits::default());
    let hop = |network: &str, behind| Target::Hop { network: NetworkName::new(network).unwrap(), behind };
    for (behind, passed, address) in [(0, 0, outer.address()), (1, 1, inner.address()), (2, 1, inner.address())] {
        let (mut stream, reply) = ask(outer.address(), &route(hop("far", behind)));
        assert_eq!((reply.status, reply.hop), (RouteStatus::Open, passed), "{}", reply.text);
        assert!(reply.text.ends_with(&format!(" at {address}")), "{}", reply.text);
        for request in 1..4 {
            stream.write_all(&frame(Header { request, ..Header::new(Kind::Ping) }, &[])).unwrap();
            let (header, _) = receive(&mut stream).expect("an answer");
            assert_eq!((header.kind, header.request), (Kind::Pong, request));
        }
        // It moves nothing, and is no server.
        stream.write_all(&frame(Header::new(Kind::Hello), &[])).unwrap();
        assert!(receive(&mut stream).is_none());
    }
    assert_eq!(ask(outer.address(), &route(hop("elsewhere", 1))).1.status, RouteStatus::NoRoute);
    until("all flows end", || inner.relay().flows() + outer.relay().flows() == 0);
}

/// How long bytes lay in a router is the business of the flow's initiator.
#[test]
fn what_lies_in_a_router_is_told_to_its_initiator_alone() {
    let (router, (address, accepted)) = (plain("net"), target());
    let _flow = open(router.address(), &to("net", address));
    let _end = accepted.recv_timeout(PATIENCE).unwrap();
    let (mut own, _) = ask(router.address(), &route(Target::Router));
    let (mut foreign, _) = ask(router.address(), &Route { initiator: [2; 16], ..route(Target::Router) });
    let held = |stream: &mut TcpStream, flow: u64| {
        let mut body = Vec::new();
        RouteHeld { flow, from_us: 10_000_000, to_us: 0 }.encode(&mut body);
        let header = Header { body_length: body.len() as u32, ..Header::new(Kind::RouteHeld) };
        stream.write_all(&frame(header, &body)).unwrap();
        let (header, body) = receive(stream).unwrap();
        assert_eq!(header.kind, Kind::RouteHeldReply);
        RouteHeldReply::decode(&body).unwrap()
    };
    assert_eq!(held(&mut own, 7), RouteHeldReply::default(), "it looks from now on");
    thread::sleep(Duration::from_millis(20));
    assert!(held(&mut own, 7).looked_us >= 20_000);
    assert_eq!(held(&mut foreign, 7), RouteHeldReply::default());
    assert_eq!(held(&mut own, 8), RouteHeldReply::default());
    own.write_all(&frame(Header { body_length: 3, ..Header::new(Kind::RouteHeld) }, b"bad")).unwrap();
    assert!(receive(&mut own).is_none(), "nonsense ends it");
}

#[test]
fn initiators_are_told_of_flows_that_end_through_two_hops() {
    let (inner, (address, accepted)) = (plain("far"), target());
    let outer = router(&[("near", "127.0.0.0/8")], &[("far", inner.address())], RelayLimits::default());
    let (mut watch, reply) = ask(outer.address(), &route(Target::Router));
    assert_eq!(reply.status, RouteStatus::Open);
    let (mut foreign, _) = ask(outer.address(), &Route { initiator: [2; 16], ..route(Target::Router) });
    let _flow = open(outer.address(), &to("far", address));
    let _end = accepted.recv_timeout(PATIENCE).unwrap();
    // The outer router listens to the inner one from the first flow on.
    until("it listens", || {
        inner.relay().drain(30);
        watch.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut first = [0];
        watch.peek(&mut first).is_ok()
    });
    watch.set_read_timeout(Some(PATIENCE)).unwrap();
    let (header, told) = receive(&mut watch).unwrap();
    assert_eq!(header.kind, Kind::RouteNotice);
    assert_eq!(RouteNotice::decode(&told), Ok(RouteNotice { stopping_seconds: 30, flows: vec![7] }));
    // Who asks late is told as well.
    let (mut late, _) = ask(inner.address(), &route(Target::Router));
    let direct = Route { flow: 8, ..route(to("far", address)) };
    assert_eq!(ask(inner.address(), &direct).1.status, RouteStatus::Stopping);
    inner.relay().resume();
    let (_direct, reply) = ask(inner.address(), &direct);
    assert_eq!(reply.status, RouteStatus::Open);
    inner.relay().drain(20);
    assert_eq!(RouteNotice::decode(&receive(&mut late).unwrap().1).unwrap().flows, [8]);
    let (mut late, _) = ask(inner.address(), &route(Target::Router));
    assert_eq!(RouteNotice::decode(&receive(&mut late).unwrap().1).unwrap().flows, [8]);
    foreign.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(foreign.read(&mut [0]).is_err(), "nobody is told of others' flows");
    let (_, refused) = ask(outer.address(), &route(to("far", address)));
    assert_eq!((refused.status, refused.hop), (RouteStatus::Stopping, 1));
    assert_eq!(inner.relay().flows(), 2, "what is open stays");
    inner.relay().resume();
    open(outer.address(), &to("far", address));
}

/// Also while the router in between has just heard that the other is there, and is about to ask.
#[test]
fn a_notice_goes_through_two_hops_at_once() {
    let (inner, (address, accepted)) = (plain("far"), target());
    let outer = router(&[("near", "127.0.0.0/8")], &[("far", inner.address())], RelayLimits::default());
    let (mut watch, reply) = ask(outer.address(), &route(Target::Router));
    assert_eq!(reply.status, RouteStatus::Open);
    let _flow = open(outer.address(), &to("far", address));
    let _end = accepted.recv_timeout(PATIENCE).unwrap();
    thread::sleep(Duration::from_millis(300)); // the outer router listens to the inner one by then
    inner.relay().drain(30);
    watch.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let (header, _) = receive(&mut watch).expect("it is told in time");
    assert_eq!(header.kind, Kind::RouteNotice);
}

/// What its connection is told.
#[derive(Default)]
struct Told(std::sync::Mutex<Option<Duration>>);

impl Endpoint for Told {
    fn place(&self, _header: &Header) -> Option<Box<dyn aqueduct_fs::Sink>> {
        None
    }

    fn is_slow(&self, _header: &Header) -> bool {
        false
    }

    fn frame(&self, _connection: &Arc<Connection>, _frame: Frame) {}

    fn stopping(&self, connection: &Arc<Connection>, end: Instant) {
        assert_eq!(connection.gateway().unwrap().1, Some(end));
        *self.0.lock().unwrap() = Some(end.saturating_duration_since(Instant::now()));
    }

    fn closed(&self, _connection: &Arc<Connection>, _closed: Closed) {}
}

#[test]
fn a_connection_is_told_that_a_router_on_its_way_stops() {
    let (inner, (address, accepted)) = (plain("far"), target());
    let outer = router(&[("near", "127.0.0.0/8")], &[("far", inner.address())], RelayLimits::default());
    let way = Way { network: name("far"), gateway: outer.address(), hops: 2, priority: 0 };
    let initiator = Initiator::new(Arc::new(Routes::new(Table { ways: vec![way], ..Table::default() }))).unwrap();
    let path = Path { via: Some(name("far")), ..Address::Tcp(address).into() };
    let mode = Mode { bulk: false, shared: false, suspect: Duration::from_secs(5) };
    let start = || {
        let link = dial(&path, Some(&initiator), Lane::Bulk, PATIENCE).unwrap();
        let _far = accepted.recv_timeout(PATIENCE).unwrap();
        let told = Arc::new(Told::default());
        let connection = Connection::start(&outer.groups[0], link, mode, BufferPool::new(0, 0), told.clone()).unwrap();
        assert_eq!(connection.gateway(), Some((outer.address(), None)));
        (connection, told, _far)
    };
    let [first, second] = [start(), start()];
    // The outer router listens to the inner one from the first flow on.
    until("each is told", || {
        inner.relay().drain(30);
        [&first, &second].iter().all(|(_, told, _)| told.0.lock().unwrap().is_some())
    });
    let left = first.1.0.lock().unwrap().unwrap();
    assert!(left > Duration::from_secs(10) && left <= Duration::from_secs(30), "{left:?}");
    assert!(!first.0.is_closed() && !second.0.is_closed(), "it goes on until others stand");
    first.0.close("another stands".into());
    inner.relay().drain(0);
    until("what is left ends", || second.0.is_closed() && inner.relay().flows() + outer.relay().flows() == 0);
}
