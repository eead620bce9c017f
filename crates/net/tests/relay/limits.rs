//! Who takes much of a router, on purpose or since a server is dead, takes it from no other.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use aqueduct_metrics::table::ROUTER_FLOWS_REFUSED;
use socket2::{Domain, Socket, Type};

use super::*;

/// A target that answers nobody, not even a question to connect, as one without power: all that it
/// would accept has come already.
struct Dead {
    address: SocketAddr,
    _listener: Socket,
    _accepted: Vec<TcpStream>,
}

impl Dead {
    fn new() -> Dead {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
        let accepted = std::iter::from_fn(connect).collect();
        Dead { address, _listener: listener, _accepted: accepted }
    }

    /// Sockets of this machine that wait for it to answer (`SYN_SENT`).
    fn waiting(&self) -> usize {
        let remote = format!("0100007F:{:04X} 02 ", self.address.port());
        std::fs::read_to_string("/proc/net/tcp").unwrap().lines().filter(|line| line.contains(&remote)).count()
    }
}

/// Begins to ask for a target, from an address of this machine, and does not wait for the answer.
fn begin(router: SocketAddr, from: [u8; 4], route: &Route) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&router.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&frame(Header::new(Kind::Route), &body(|out| route.encode(out)))).unwrap();
    stream
}

fn answer(stream: &mut TcpStream) -> RouteReply {
    RouteReply::decode(&receive(stream).expect("an answer").1).unwrap()
}

#[test]
fn an_attempt_that_takes_too_long_leaves_no_socket() {
    let (router, dead) = (plain("far"), Dead::new());
    for _ in 0..5 {
        let (_, reply) = ask(router.address(), &Route { time_left_ms: 150, ..route(to("far", dead.address)) });
        assert_eq!(reply.status, RouteStatus::TimedOut, "{}", reply.text);
    }
    until("no attempt is left", || dead.waiting() == 0);
}

/// Nobody waits for the answer any more.
#[test]
fn an_attempt_ends_with_its_initiator() {
    let (router, dead) = (plain("far"), Dead::new());
    let long = Route { time_left_ms: 60_000, ..route(to("far", dead.address)) };
    let begin = || begin(router.address(), [127, 0, 0, 1], &long);
    let first = begin();
    until("it is asked for", || dead.waiting() == 1);
    let others: Vec<_> = (0..5).map(|_| begin()).collect();
    until("it is asked for by all", || dead.waiting() == 6);
    drop(others);
    // The router itself would end the first one first.
    until("some attempts have ended", || dead.waiting() < 6);
    until("the first is left", || dead.waiting() <= 1);
    assert_eq!(dead.waiting(), 1);
    drop(first);
}

#[test]
fn who_waits_for_a_dead_server_shuts_nobody_out() {
    let limits = RelayLimits { greeting_max: 32, greeting_per_client_max: 8, ..RelayLimits::default() };
    let router = router(&[("far", "127.0.0.0/8")], &[], limits);
    let ((address, accepted), dead) = (target(), Dead::new());
    let long = |address| Route { time_left_ms: 60_000, ..route(to("far", address)) };
    // Of two dead ones, by more clients than there is room for.
    let other = Dead::new();
    let _waiting: Vec<_> = (1..=8)
        .flat_map(|client| [&dead, &other].repeat(8).into_iter().map(move |dead| (client, dead.address)))
        .map(|(client, address)| begin(router.address(), [127, 0, 3, client], &long(address)))
        .collect();
    until("both are waited for", || dead.waiting() > 0 && other.waiting() > 0);
    until("as many as may do", || dead.waiting() + other.waiting() >= 16);
    // Who comes late is told so at once, and of this target alone: nobody goes around this router
    // for others. A few may find places that are left.
    let mut few = Vec::new();
    let reply = (9..40).find_map(|client| {
        let mut late = begin(router.address(), [127, 0, 3, client], &long(dead.address));
        late.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let told = receive(&mut late).map(|(_, body)| RouteReply::decode(&body).unwrap());
        few.push(late);
        told
    });
    let reply = reply.expect("somebody is refused");
    assert!(reply.status == RouteStatus::TimedOut && reply.text.contains("wait already"), "{reply:?}");
    // Who looks whether the router is there hears that it is.
    for _ in 0..20 {
        ping(router.address(), PATIENCE).unwrap();
    }
    let mut live = begin(router.address(), [127, 0, 3, 99], &long(address));
    assert_eq!(answer(&mut live).status, RouteStatus::Open);
    accepted.recv_timeout(PATIENCE).unwrap();
}

/// One that waits for a dead server has half of its places for others.
#[test]
fn a_client_that_waits_for_a_dead_server_reaches_another() {
    let limits = RelayLimits { greeting_per_client_max: 8, ..RelayLimits::default() };
    let router = router(&[("far", "127.0.0.0/8")], &[], limits);
    let ((address, accepted), dead) = (target(), Dead::new());
    let long = |address| Route { time_left_ms: 60_000, ..route(to("far", address)) };
    let _waiting: Vec<_> = (0..12).map(|_| begin(router.address(), [127, 0, 0, 1], &long(dead.address))).collect();
    until("as many wait as may", || dead.waiting() == 4);
    let (_, reply) = ask(router.address(), &long(address));
    assert_eq!(reply.status, RouteStatus::Open, "{}", reply.text);
    accepted.recv_timeout(PATIENCE).unwrap();
}

/// It is slowed down, and others have the thread between its questions.
/// They would take all places of others, and leave no trace.
#[test]
fn connections_that_say_nothing_are_refused_and_counted() {
    let limits = RelayLimits { greeting_per_client_max: 4, ..RelayLimits::default() };
    let router = router(&[("far", "127.0.0.0/8")], &[], limits);
    let silent: Vec<TcpStream> = (0..7).map(|_| connect(router.address())).collect();
    let refused = |scope: &str| {
        let metrics = router.relay().status().metrics;
        let all = metrics.samples(ROUTER_FLOWS_REFUSED.definition.name);
        let of = all.iter().find(|sample| sample.label("scope") == scope);
        of.map_or((String::new(), 0), |sample| (sample.label("name").to_owned(), sample.number()))
    };
    until("three are refused", || refused("client").1 == 3);
    assert_eq!([refused("route"), refused("network")], [("none".to_owned(), 3), ("none".to_owned(), 3)]);
    drop(silent);
}

#[test]
fn who_asks_without_end_leaves_the_thread_to_others() {
    /// So many are answered at once, and later ones with these pauses.
    const BURST: usize = 64;
    const PAUSE: Duration = Duration::from_millis(5);
    const FURTHER: usize = 100;
    let (router, (address, accepted)) = (plain("far"), target());
    let hop = Target::Hop { network: name("far"), behind: 0 };
    for first in [None, Some(route(hop)), Some(route(Target::Router))] {
        let mut stream = first.map_or_else(|| connect(router.address()), |first| ask(router.address(), &first).0);
        let began = Instant::now();
        let questions = frame(Header::new(Kind::Ping), &[]).repeat(BURST + FURTHER);
        stream.write_all(&questions).unwrap();
        ping(router.address(), PATIENCE).unwrap();
        drop(open(router.address(), &to("far", address)));
        accepted.recv_timeout(PATIENCE).unwrap();
        for _ in 0..BURST + FURTHER {
            assert_eq!(receive(&mut stream).expect("each is answered").0.kind, Kind::Pong);
        }
        // The first frame of all may have been a part of the burst.
        assert!(began.elapsed() >= PAUSE * (FURTHER as u32 - 1), "{:?}", began.elapsed());
    }
}

#[test]
fn one_client_takes_not_all_places_of_those_that_are_told() {
    let limits = RelayLimits { watchers_max: 8, ..RelayLimits::default() };
    let router = router(&[("far", "127.0.0.0/8")], &[], limits);
    let watch = |client| {
        let mut stream = begin(router.address(), [127, 0, 3, client], &route(Target::Router));
        let status = answer(&mut stream).status;
        (stream, status)
    };
    let of_one: Vec<_> = (0..8).map(|_| watch(1)).collect();
    assert_eq!(of_one.iter().filter(|(_, status)| *status == RouteStatus::Open).count(), 4);
    assert_eq!(watch(2).1, RouteStatus::Open);
}

/// A gateway that is there, and takes its time to open a way.
struct Slow {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

impl Slow {
    fn new(time: Duration) -> Slow {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counts = asked.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, counts) = (stream.unwrap(), counts.clone());
                thread::spawn(move || {
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    let Some((header, _)) = receive(&mut stream) else { return };
                    let answer = match header.kind {
                        Kind::Ping => frame(Header { request: header.request, ..Header::new(Kind::Pong) }, &[]),
                        _ => {
                            counts.fetch_add(1, Ordering::SeqCst);
                            thread::sleep(time);
                            let reply = RouteReply { status: RouteStatus::Unreachable, hop: 0, text: String::new() };
                            frame(Header::new(Kind::RouteReply), &body(|out| reply.encode(out)))
                        }
                    };
                    let _ = stream.write_all(&answer); // nobody may wait for it any more
                });
            }
        });
        Slow { address, asked }
    }
}

/// What one initiator has no patience for says nothing of the gateway to others.
#[test]
fn who_has_no_patience_makes_no_gateway_dead() {
    let slow = Slow::new(Duration::from_millis(600));
    let outer = router(&[("near", "127.0.0.0/8")], &[("far", slow.address)], RelayLimits::default());
    let way = Way { network: name("far"), gateway: slow.address, hops: 1, priority: 0 };
    let routes = Arc::new(Routes::new(Table { ways: vec![way], ..Table::default() }));
    let initiator = Initiator::new(routes.clone()).unwrap();
    let target = to("far", "127.0.0.1:1".parse().unwrap());
    for round in 1..4 {
        let (_, reply) = ask(outer.address(), &Route { time_left_ms: 200, ..route(target.clone()) });
        assert_eq!(reply.status, RouteStatus::TimedOut, "{}", reply.text);
        assert!(outer.relay().status().gateways.iter().all(|gateway| gateway.is_up), "it was given 200 ms");
        let time = Duration::from_millis(200);
        let failed = initiator.connect((&Local::default(), None), &target, Lane::Control, time);
        assert!(matches!(failed, Err(RouteError::Gateway { .. })));
        assert!(routes.gateways().iter().all(|gateway| gateway.is_up), "it was given 200 ms");
        assert_eq!(slow.asked.load(Ordering::SeqCst), 2 * round);
    }
    until("it was asked whether it is there", || routes.is_sound(slow.address, Instant::now()));
    let until_up = || outer.relay().routes().is_sound(slow.address, Instant::now());
    until("by the router as well", until_up);
}

/// One that accepts, and then answers nothing, is found out by who asks it himself.
#[test]
fn a_gateway_that_stands_still_is_found_dead() {
    let still = TcpListener::bind("127.0.0.1:0").unwrap();
    let gateway = still.local_addr().unwrap();
    let outer = router(&[("near", "127.0.0.0/8")], &[("far", gateway)], RelayLimits::default());
    let target = to("far", "127.0.0.1:1".parse().unwrap());
    let (_, reply) = ask(outer.address(), &Route { time_left_ms: 200, ..route(target) });
    assert_eq!(reply.status, RouteStatus::TimedOut, "{}", reply.text);
    until("it is known to fail", || outer.relay().status().gateways.iter().all(|gateway| !gateway.is_up));
    drop(still);
}

/// One that had its time, and opened no way, comes after others for that target, and is not dead.
#[test]
fn a_gateway_that_takes_too_long_for_a_target_is_spared_for_that() {
    let (slow, live, (address, accepted)) = (Slow::new(PATIENCE), plain("far"), target());
    let way = |gateway| Way { network: name("far"), gateway, hops: 1, priority: 0 };
    let ways = [slow.address, live.address()].map(way).to_vec();
    let routes = Arc::new(Routes::new(Table { ways, ..Table::default() }));
    let initiator = Initiator::new(routes.clone()).unwrap();
    // Turns are taken: one of two tries begins with the slow one, and half of the time is its.
    let _held: Vec<_> = (0..2)
        .map(|_| {
            let time = Duration::from_secs(3);
            let link = initiator.connect((&Local::default(), None), &to("far", address), Lane::Control, time).unwrap();
            (link, accepted.recv_timeout(PATIENCE).unwrap())
        })
        .collect();
    assert_eq!(slow.asked.load(Ordering::SeqCst), 1);
    for _ in 0..4 {
        let Next::By(_, gateways) = routes.next(&to("far", address), HOPS_MAX, Instant::now()) else { panic!() };
        assert_eq!(gateways, [live.address(), slow.address]);
    }
    assert!(routes.gateways().iter().all(|gateway| gateway.is_up));
    until("it was asked whether it is there", || routes.is_sound(slow.address, Instant::now()));
}
