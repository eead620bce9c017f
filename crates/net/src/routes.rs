//! Which way leads to a network, and which of the gateways on it can be used: pure, but for a lock.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aqueduct_wire::{HOPS_MAX, NetworkName, ServerId, Target};
use aqueduct_worker::lock;
use ipnet::IpNet;

/// After its first failure a gateway is tried again this soon; a router that is started again
/// takes about as long.
const HOLD_OFF_FIRST: Duration = Duration::from_millis(250);

/// After many: seldom enough to cost nothing, often enough for who waits.
const HOLD_OFF_LAST: Duration = Duration::from_secs(15);

/// A gateway that could not open the way to a target is tried after others for so long: who has
/// mended what lies behind it waits as long for it to be used again.
const ASIDE: Duration = Duration::from_secs(5);

/// Targets that are remembered as not to be had by some gateway. More are forgotten first come.
const ASIDE_MAX: usize = 1024;

/// A gateway that has worked for so long has no past.
const FORGIVEN: Duration = Duration::from_secs(60);

/// A network that this node is a part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its name.
    pub name: NetworkName,
    /// Its addresses.
    pub nets: Vec<IpNet>,
    /// The ports there that a router passes connections on to; empty: all.
    pub ports: Vec<u16>,
}

/// A way to a network that this node is no part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The network.
    pub network: NetworkName,
    /// The router.
    pub gateway: SocketAddr,
    /// Routers on the way, this one included.
    pub hops: u8,
    /// Ways with smaller numbers are used first; of the same, those with fewer hops.
    pub priority: u32,
}

/// What a node knows of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Its own.
    pub networks: Vec<Network>,
    /// To others.
    pub ways: Vec<Way>,
    /// Where servers are that are meant by their identity.
    pub servers: BTreeMap<ServerId, Target>,
}

/// Where to connect next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// To the target itself, in a network of this node.
    Here(NetworkName, SocketAddr),
    /// To one of these gateways, the best first.
    By(NetworkName, Vec<SocketAddr>),
    /// There is no way.
    Nowhere(String),
    /// It may not be gone.
    Refused(String),
}

impl Table {
    /// Whether a name is that of a network here.
    pub fn knows(&self, name: &NetworkName) -> bool {
        self.networks.iter().any(|network| network.name == *name) || self.ways.iter().any(|way| way.network == *name)
    }
}

impl Network {
    fn refuses(&self, address: SocketAddr) -> Option<String> {
        let ip: IpAddr = address.ip().to_canonical();
        if !self.nets.iter().any(|net| net.contains(&ip)) {
            Some(format!("{} is no address of network {}", address.ip(), self.name))
        } else if !self.ports.is_empty() && !self.ports.contains(&address.port()) {
            Some(format!("port {} is none that is let through to network {}", address.port(), self.name))
        } else {
            None
        }
    }
}

/// How a gateway has fared.
#[derive(Clone, Copy, Debug)]
struct Health {
    /// It fails, and is tried again then.
    down_until: Option<Instant>,
    /// It takes nothing new until then.
    full_until: Option<Instant>,
    /// It did not answer at one place of this machine, and has not been asked from elsewhere yet.
    is_doubted: bool,
    failures: u32,
    changed: Instant,
}

/// The ways of a node, and what it has found out of them.
#[derive(Debug)]
pub struct Routes {
    table: Mutex<Table>,
    health: Mutex<HashMap<SocketAddr, Health>>,
    /// Targets to which a gateway could not open the way, until when it comes after others.
    aside: Mutex<HashMap<(SocketAddr, Target), Instant>>,
    turn: Mutex<HashMap<NetworkName, usize>>,
    is_watched: AtomicBool,
}

/// A gateway as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayState {
    /// Where.
    pub gateway: SocketAddr,
    /// Failures in a row, or shortly after each other; 0 while it works.
    pub failures: u32,
    /// It works, as far as is known.
    pub is_up: bool,
}

impl Routes {
    /// The routes of this table.
    pub fn new(table: Table) -> Routes {
        Routes {
            table: Mutex::new(table),
            health: Mutex::default(),
            aside: Mutex::default(),
            turn: Mutex::default(),
            is_watched: AtomicBool::new(false),
        }
    }

    /// What they are.
    pub fn table(&self) -> Table {
        lock(&self.table).clone()
    }

    /// Changes them. Whatever is open stays.
    pub fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        change(&mut lock(&self.table))
    }

    /// Where to connect to for a target. Gateways of the best ways share the connections; those
    /// that fail come last.
    pub fn next(&self, target: &Target, hops_left: u8, now: Instant) -> Next {
        self.next_by((target, hops_left), None, now)
    }

    /// The same, where one of the gateways is asked first, as long as it does as well as others.
    pub fn next_by(&self, (target, hops_left): (&Target, u8), first: Option<SocketAddr>, now: Instant) -> Next {
        let table = lock(&self.table);
        let asked = target;
        let target = match target {
            Target::Server(id) => match table.servers.get(id) {
                Some(target) => target,
                None => return Next::Nowhere(format!("nobody has said where {target} is")),
            },
            target => target,
        };
        let (network, address) = match target {
            Target::Address { network, address } => (network, Some(*address)),
            Target::Hop { network, .. } => (network, None),
            Target::Router | Target::Server(_) => return Next::Nowhere("it is for no network".into()),
        };
        if let Some(own) = table.networks.iter().find(|own| own.name == *network) {
            return match address.map(|address| (address, own.refuses(address))) {
                Some((address, None)) => Next::Here(network.clone(), address),
                Some((_, Some(why))) => Next::Refused(why),
                None => Next::Nowhere(format!("no router leads to {network}, which is here")),
            };
        }
        let mut ways: Vec<&Way> = table.ways.iter().filter(|way| way.network == *network).collect();
        if ways.is_empty() {
            return Next::Nowhere(format!("there is no route to network {network}"));
        }
        ways.retain(|way| way.hops <= hops_left.min(HOPS_MAX));
        if ways.is_empty() {
            return Next::Nowhere(format!("every route to network {network} has more hops than are left"));
        }
        let (health, aside) = (lock(&self.health), lock(&self.aside));
        let is_aside = |way: &Way| aside.get(&(way.gateway, asked.clone())).is_some_and(|until| *until > now);
        let state = |way: &Way| match health.get(&way.gateway) {
            Some(Health { down_until: Some(_), .. }) => 3,
            _ if is_aside(way) => 2,
            Some(Health { full_until: Some(until), .. }) if *until > now => 1,
            _ => 0,
        };
        ways.sort_by_key(|way| (state(way), way.priority, way.hops, way.gateway));
        let rank = |way: &Way| (state(way), way.priority, way.hops);
        let best = ways.iter().take_while(|way| rank(way) == rank(ways[0])).count();
        let mut turns = lock(&self.turn);
        let turn = turns.entry(network.clone()).or_default();
        *turn = turn.wrapping_add(1);
        ways[..best].rotate_left(*turn % best);
        if let Some(at) = ways.iter().position(|way| Some(way.gateway) == first && state(way) == state(ways[0])) {
            ways[..=at].rotate_right(1);
        }
        let mut gateways: Vec<SocketAddr> = Vec::new();
        ways.iter().for_each(|way| {
            if !gateways.contains(&way.gateway) {
                gateways.push(way.gateway);
            }
        });
        Next::By(network.clone(), gateways)
    }

    /// Whether this node is in a network.
    pub fn is_in(&self, network: &NetworkName) -> bool {
        lock(&self.table).networks.iter().any(|own| own.name == *network)
    }

    /// The gateways of the best ways to a network, whether they work or not.
    pub fn gateways_to(&self, network: &NetworkName) -> Vec<SocketAddr> {
        let table = lock(&self.table);
        let ways = || table.ways.iter().filter(|way| way.network == *network);
        let best = ways().map(|way| (way.priority, way.hops)).min();
        let mut found: Vec<SocketAddr> = Vec::new();
        for way in ways().filter(|way| Some((way.priority, way.hops)) == best) {
            if !found.contains(&way.gateway) {
                found.push(way.gateway);
            }
        }
        found
    }

    /// Whether a gateway takes connections, as far as is known.
    pub fn is_sound(&self, gateway: SocketAddr, now: Instant) -> bool {
        lock(&self.health).get(&gateway).is_none_or(|known| {
            known.down_until.is_none() && !known.is_doubted && known.full_until.is_none_or(|until| until <= now)
        })
    }

    /// A gateway did not answer at a certain interface or address of this machine, which may be
    /// the one to blame: it is to be asked from anywhere.
    pub fn doubt(&self, gateway: SocketAddr, now: Instant) {
        self.change_health(gateway, now, |known| known.is_doubted = true);
    }

    /// A gateway could not be reached, or did not answer: it is left out, the longer the oftener
    /// this happens. What lies behind it is no reason.
    pub fn failed(&self, gateway: SocketAddr, now: Instant) {
        self.change_health(gateway, now, |known| {
            if known.down_until.is_none() && now.saturating_duration_since(known.changed) > FORGIVEN {
                known.failures = 0;
            }
            known.failures = known.failures.saturating_add(1);
            let pause = HOLD_OFF_FIRST * 2u32.saturating_pow((known.failures - 1).min(16));
            known.down_until = Some(now + pause.min(HOLD_OFF_LAST));
            known.is_doubted = false;
            known.changed = now;
        });
    }

    fn change_health(&self, gateway: SocketAddr, now: Instant, change: impl FnOnce(&mut Health)) {
        let fresh = Health { down_until: None, full_until: None, is_doubted: false, failures: 0, changed: now };
        change(lock(&self.health).entry(gateway).or_insert(fresh));
    }

    /// A gateway has answered. The first return counts at once.
    pub fn works(&self, gateway: SocketAddr, now: Instant) {
        if let Some(known) = lock(&self.health).get_mut(&gateway) {
            known.is_doubted = false;
            if known.down_until.take().is_some() {
                known.changed = now;
            }
        }
    }

    /// A gateway takes nothing new for now.
    pub fn is_full(&self, gateway: SocketAddr, now: Instant) {
        self.change_health(gateway, now, |known| known.full_until = Some(now + HOLD_OFF_FIRST));
    }

    /// A gateway answers, and could not open the way to a target: for this one it comes after
    /// others for a while. Whether the gateway or the target is to blame nobody knows, so it is
    /// not left out for others.
    pub fn leads_not_to(&self, gateway: SocketAddr, target: &Target, now: Instant) {
        let mut aside = lock(&self.aside);
        if aside.len() >= ASIDE_MAX {
            aside.retain(|_, until| *until > now);
        }
        if aside.len() < ASIDE_MAX {
            aside.insert((gateway, target.clone()), now + ASIDE);
        }
    }

    /// It has opened the way.
    pub fn leads_to(&self, gateway: SocketAddr, target: &Target) {
        lock(&self.aside).remove(&(gateway, target.clone()));
    }

    /// Gateways that fail, or may, and when each is to be tried again.
    pub fn down(&self) -> Vec<(SocketAddr, Instant)> {
        let table = lock(&self.table);
        let mut health = lock(&self.health);
        health.retain(|gateway, _| table.ways.iter().any(|way| way.gateway == *gateway));
        let due = |health: &Health| health.down_until.or_else(|| health.is_doubted.then_some(health.changed));
        health.iter().filter_map(|(gateway, health)| Some((*gateway, due(health)?))).collect()
    }

    /// Whether the caller is who tries gateways that fail from now on: nobody does yet.
    pub(crate) fn begin_watch(&self) -> bool {
        !self.is_watched.swap(true, Ordering::SeqCst)
    }

    /// Nobody does any more.
    pub(crate) fn end_watch(&self) {
        self.is_watched.store(false, Ordering::SeqCst);
    }

    /// How the gateways fare.
    pub fn gateways(&self) -> Vec<GatewayState> {
        let (table, health) = (lock(&self.table), lock(&self.health));
        let mut all: Vec<SocketAddr> = table.ways.iter().map(|way| way.gateway).collect();
        all.sort();
        all.dedup();
        let state = |gateway| {
            let known = health.get(&gateway);
            let is_up = known.is_none_or(|health| health.down_until.is_none());
            GatewayState { gateway, failures: if is_up { 0 } else { known.map_or(0, |health| health.failures) }, is_up }
        };
        all.into_iter().map(state).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NetworkName {
        NetworkName::new(text).unwrap()
    }

    fn gateway(number: u8) -> SocketAddr {
        ([10, 0, 0, number], 7171).into()
    }

    fn way(number: u8, hops: u8, priority: u32) -> Way {
        Way { network: name("far"), gateway: gateway(number), hops, priority }
    }

    fn target(network: &str, port: u16) -> Target {
        Target::Address { network: name(network), address: ([10, 2, 0, 5], port).into() }
    }

    fn routes(ways: Vec<Way>) -> Routes {
        let near = Network { name: name("near"), nets: vec!["10.2.0.0/16".parse().unwrap()], ports: vec![7170] };
        Routes::new(Table { networks: vec![near], ways, ..Table::default() })
    }

    fn gateways(routes: &Routes, now: Instant) -> Vec<SocketAddr> {
        match routes.next(&target("far", 7170), HOPS_MAX, now) {
            Next::By(_, gateways) => gateways,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_what_is_configured_is_reached() {
        let (routes, now) = (routes(vec![way(1, 3, 0)]), Instant::now());
        let next = |target: &Target, hops| routes.next(target, hops, now);
        assert!(matches!(next(&target("near", 7170), 0), Next::Here(..)));
        assert!(matches!(next(&target("near", 22), 0), Next::Refused(why) if why.contains("port 22")));
        let elsewhere = Target::Address { network: name("near"), address: ([10, 3, 0, 5], 7170).into() };
        assert!(matches!(next(&elsewhere, 0), Next::Refused(why) if why.contains("10.3.0.5")));
        assert!(matches!(next(&target("none", 7170), 8), Next::Nowhere(why) if why.contains("none")));
        assert!(matches!(next(&target("far", 7170), 2), Next::Nowhere(why) if why.contains("hops")));
        assert!(matches!(next(&Target::Server(ServerId([1; 16])), 8), Next::Nowhere(_)));
        routes.change(|table| table.servers.insert(ServerId([1; 16]), target("near", 7170)));
        assert!(matches!(next(&Target::Server(ServerId([1; 16])), 8), Next::Here(..)));
    }

    #[test]
    fn the_best_gateways_share_and_others_wait() {
        let routes = routes(vec![way(1, 1, 0), way(2, 1, 0), way(3, 2, 0), way(4, 1, 9)]);
        let now = Instant::now();
        let firsts: Vec<_> = (0..4).map(|_| gateways(&routes, now)[0]).collect();
        assert_eq!(firsts.iter().filter(|first| **first == gateway(1)).count(), 2, "{firsts:?}");
        assert_eq!(firsts.iter().filter(|first| **first == gateway(2)).count(), 2, "{firsts:?}");
        assert_eq!(gateways(&routes, now)[2..], [gateway(3), gateway(4)]);
    }

    #[test]
    fn a_gateway_that_fails_comes_last_until_it_answers() {
        let (routes, start) = (routes(vec![way(1, 1, 0), way(2, 1, 0)]), Instant::now());
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            routes.failed(gateway(1), now);
            assert!((0..3).all(|_| gateways(&routes, now) == [gateway(2), gateway(1)]));
            let (_, again) = routes.down()[0];
            pauses.push(again - now);
            now = again;
            assert_eq!(gateways(&routes, now)[0], gateway(2), "time alone mends nothing");
        }
        assert!(pauses.windows(2).all(|two| two[0] < two[1] || two[1] == HOLD_OFF_LAST), "{pauses:?}");
        assert_eq!((pauses[0], pauses[7]), (HOLD_OFF_FIRST, HOLD_OFF_LAST));
        routes.works(gateway(1), now);
        assert!(routes.down().is_empty() && (0..2).any(|_| gateways(&routes, now)[0] == gateway(1)));
        routes.failed(gateway(1), now + Duration::from_secs(1));
        assert_eq!(routes.down()[0].1, now + Duration::from_secs(1) + HOLD_OFF_LAST, "it flaps");
        routes.works(gateway(1), now + Duration::from_secs(2));
        routes.failed(gateway(1), now + FORGIVEN * 2);
        assert_eq!(routes.down()[0].1, now + FORGIVEN * 2 + HOLD_OFF_FIRST);
        assert_eq!(routes.gateways().iter().filter(|gateway| gateway.is_up).count(), 1);
    }

    #[test]
    fn one_that_is_full_is_spared_for_a_moment_and_all_are_tried_in_need() {
        let (routes, now) = (routes(vec![way(1, 1, 0), way(2, 1, 0)]), Instant::now());
        routes.is_full(gateway(2), now);
        assert!((0..3).all(|_| gateways(&routes, now) == [gateway(1), gateway(2)]));
        assert!((0..2).any(|_| gateways(&routes, now + HOLD_OFF_FIRST)[0] == gateway(2)));
        routes.failed(gateway(1), now);
        routes.failed(gateway(2), now);
        assert_eq!(gateways(&routes, now).len(), 2);
    }

    #[test]
    fn a_gateway_that_does_not_lead_to_a_target_is_spared_for_that_alone() {
        let (routes, now) = (routes(vec![way(1, 1, 0), way(2, 1, 0)]), Instant::now());
        routes.leads_not_to(gateway(1), &target("far", 7170), now);
        assert!((0..3).all(|_| gateways(&routes, now) == [gateway(2), gateway(1)]));
        let others = |now| match routes.next(&target("far", 7171), HOPS_MAX, now) {
            Next::By(_, gateways) => gateways[0],
            other => panic!("{other:?}"),
        };
        assert!((0..2).any(|_| others(now) == gateway(1)));
        assert!(routes.gateways().iter().all(|gateway| gateway.is_up), "a dead target is no fault of the router's");
        // Where none leads there, none comes after the others.
        routes.leads_not_to(gateway(2), &target("far", 7170), now);
        assert!((0..2).any(|_| gateways(&routes, now)[0] == gateway(1)));
        routes.leads_to(gateway(1), &target("far", 7170));
        assert!((0..3).all(|_| gateways(&routes, now) == [gateway(1), gateway(2)]));
        assert!((0..2).any(|_| gateways(&routes, now + ASIDE)[0] == gateway(2)));
    }

    /// LNet's LU-20379: a dead local interface marked the gateway down.
    #[test]
    fn a_gateway_that_does_not_answer_at_one_place_is_asked_from_elsewhere() {
        let (routes, now) = (routes(vec![way(1, 1, 0), way(2, 1, 0)]), Instant::now());
        routes.doubt(gateway(1), now);
        assert!((0..2).any(|_| gateways(&routes, now)[0] == gateway(1)), "it is no worse for others");
        assert!(routes.gateways().iter().all(|gateway| gateway.is_up));
        assert!(routes.down()[0].1 <= now && !routes.is_sound(gateway(1), now), "it is asked now");
        routes.works(gateway(1), now);
        assert!(routes.down().is_empty() && routes.is_sound(gateway(1), now));
        routes.doubt(gateway(1), now);
        routes.failed(gateway(1), now);
        routes.works(gateway(1), now);
        assert!(routes.down().is_empty());
    }

    #[test]
    fn who_prefers_a_gateway_has_it_while_it_does_as_well_as_others() {
        let (routes, now) = (routes(vec![way(1, 1, 0), way(2, 1, 0), way(3, 2, 0)]), Instant::now());
        let first = |number| match routes.next_by((&target("far", 7170), HOPS_MAX), Some(gateway(number)), now) {
            Next::By(_, gateways) => (gateways[0], gateways.len()),
            other => panic!("{other:?}"),
        };
        assert!((0..3).all(|_| first(1) == (gateway(1), 3) && first(3) == (gateway(3), 3)));
        routes.is_full(gateway(1), now);
        assert_eq!(first(1), (gateway(2), 3));
        assert_eq!(routes.gateways_to(&name("far")), [gateway(1), gateway(2)]);
    }

    #[test]
    fn what_is_removed_is_forgotten() {
        let (routes, now) = (routes(vec![way(1, 1, 0), way(2, 1, 0)]), Instant::now());
        routes.failed(gateway(1), now);
        routes.change(|table| table.ways.retain(|way| way.gateway != gateway(1)));
        assert!(routes.down().is_empty());
        assert_eq!(gateways(&routes, now), [gateway(2)]);
        assert!(routes.table().knows(&name("far")) && routes.table().knows(&name("near")));
        assert!(!routes.table().knows(&name("10.0.0.1")));
    }
}
