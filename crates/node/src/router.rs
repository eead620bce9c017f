//! A running router: its networks, listeners and control socket put together.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use aqueduct_metrics::status::{FlowStatus, NetworkStatus, RouteState, RouterStatus};
use aqueduct_net::routes::{GatewayState, Network, Routes, Way};
use aqueduct_net::{Relay, RelayConfig, RelayLimits, RelayStatus};
use aqueduct_observe::Exporter;
use aqueduct_wire::NetworkName;
use aqueduct_worker::Group;

use crate::control::{Control, Request};
use crate::failure::{Failure, Kind};
use crate::router_config::{RouterConfig, refuse_own};
use crate::{exporting, host, routes, workers};

/// Flows that a status shows, those first that have carried most.
const FLOWS_SHOWN_MAX: usize = 256;

/// Between looks whether all flows have left.
const DRAIN_STEP: Duration = Duration::from_millis(20);

/// Descriptors of a router that are of no connection: its threads, sockets, logs and idle pipes.
const DESCRIPTORS_KEPT: u64 = 256;

/// Descriptors of connections that are greeted, and of those that wait, with the connection to
/// their next hop, for each that may be.
const DESCRIPTORS_OF_GREETING: u64 = 3;

/// Of few descriptors one in so many is for connections that are greeted or wait, and one in twice
/// as many for those on which clients are told. The rest is for flows.
const DESCRIPTORS_SHARE: u64 = 4;

/// Descriptors that a flow may need: two connections, and a pipe for each direction.
const DESCRIPTORS_OF_FLOW: u64 = 6;

/// A running router. Dropping it ends all its flows.
pub struct Router {
    inner: Arc<Inner>,
    drain: Duration,
    groups: Vec<Arc<Group>>,
    /// Goes first: nobody asks any more.
    control: Option<Control>,
    _exporter: Option<Exporter>,
}

struct Inner {
    name: String,
    listens: Vec<(SocketAddr, NetworkName)>,
    started: Instant,
    /// `None` when it has stopped.
    relay: Mutex<Option<Relay>>,
}

impl Router {
    /// Starts to pass connections on. Initiators are let in when this returns.
    pub fn start(config: &RouterConfig) -> Result<Router, Failure> {
        let groups = workers::of_router().map_err(|error| {
            Failure::new("cannot start the router's threads", error, "check the limits on processes and open files")
        })?;
        match start(config, &groups) {
            Ok((inner, control, exporter)) => {
                Ok(Router { inner, drain: config.drain, groups, control: Some(control), _exporter: exporter })
            }
            Err(failure) => {
                workers::end(&groups);
                Err(failure)
            }
        }
    }

    /// Where it listens, with the ports that the kernel chose.
    pub fn listens(&self) -> Vec<String> {
        self.inner.listens()
    }

    /// How it fares.
    pub fn status(&self) -> RouterStatus {
        self.inner.status()
    }

    /// Takes no more flows, gives those that it has the time of its configuration to go by others,
    /// ends what is left, and its threads.
    pub fn stop(&mut self) {
        let seconds = self.drain.as_secs_f64().ceil() as u32;
        self.inner.with_relay(|relay| relay.drain(seconds));
        let end = Instant::now() + self.drain;
        while self.inner.with_relay(|relay| relay.flows()).unwrap_or(0) > 0 && Instant::now() < end {
            std::thread::sleep(DRAIN_STEP);
        }
        drop(self.control.take());
        let relay = self.inner.relay().take();
        drop(relay); // outside the lock
        workers::end(&self.groups);
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        drop(self.control.take());
        let relay = self.inner.relay().take();
        drop(relay);
        workers::end(&self.groups);
    }
}

fn start(config: &RouterConfig, groups: &[Arc<Group>]) -> Result<(Arc<Inner>, Control, Option<Exporter>), Failure> {
    let addresses: Vec<SocketAddr> = config.listen.iter().map(|(address, _)| *address).collect();
    let relay = RelayConfig { name: config.name.clone(), limits: limits(&config.limits), suspect: config.suspect };
    let routes = Arc::new(Routes::new(config.table.clone()));
    let relay = Relay::start(relay, &addresses, routes, groups).map_err(|error| {
        let hint = "stop whoever listens there, or give addresses of this machine with free ports (listen)";
        Failure::new("cannot start the router", error, hint).of(Kind::Listen)
    })?;
    let networks = config.listen.iter().map(|(_, name)| name.clone());
    let inner = Arc::new(Inner {
        name: config.name.clone(),
        listens: relay.addresses().iter().copied().zip(networks).collect(),
        started: Instant::now(),
        relay: Mutex::new(Some(relay)),
    });
    let asked = inner.clone();
    let control = Control::start(&config.control, move |request| asked.answer(request))?;
    let told = inner.clone();
    let exporter = exporting::start(config.metrics.as_ref(), move || told.status().metrics)?;
    Ok((inner, control, exporter))
}

/// As many flows, and connections that are none yet, as this process may have descriptors for.
fn limits(wanted: &RelayLimits) -> RelayLimits {
    let descriptors = host::raise_descriptors();
    let limits = fitting(descriptors, wanted);
    let flows_max = limits.flows_max;
    if flows_max < wanted.flows_max {
        tracing::warn!(
            "the router carries {flows_max} flows at most instead of {}: this process may have {descriptors} descriptors, and each flow may need {DESCRIPTORS_OF_FLOW}. Raise the hard limit (LimitNOFILE= of the service, or ulimit -Hn), or give fewer with flows_max",
            wanted.flows_max
        );
    }
    limits
}

/// What fits into so many descriptors: without any the router could let nobody in, and not say so.
fn fitting(descriptors: u64, wanted: &RelayLimits) -> RelayLimits {
    let room = descriptors.saturating_sub(DESCRIPTORS_KEPT);
    let few = |wanted: usize, room: u64| wanted.min(usize::try_from(room).unwrap_or(usize::MAX).max(1));
    let greeting_max = few(wanted.greeting_max, room / DESCRIPTORS_SHARE / DESCRIPTORS_OF_GREETING);
    let watchers_max = few(wanted.watchers_max, room / DESCRIPTORS_SHARE / 2);
    let taken = greeting_max as u64 * DESCRIPTORS_OF_GREETING + watchers_max as u64;
    let flows_max = few(wanted.flows_max, room.saturating_sub(taken) / DESCRIPTORS_OF_FLOW);
    RelayLimits { flows_max, greeting_max, watchers_max, ..wanted.clone() }
}

impl Inner {
    fn relay(&self) -> MutexGuard<'_, Option<Relay>> {
        self.relay.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// `None`: it has stopped.
    fn with_relay<T>(&self, work: impl FnOnce(&Relay) -> T) -> Option<T> {
        self.relay().as_ref().map(work)
    }

    fn listens(&self) -> Vec<String> {
        self.listens.iter().map(|(address, network)| format!("{address}@{network}")).collect()
    }

    fn answer(&self, request: Request) -> Result<RouterStatus, Failure> {
        match request {
            Request::Show => {}
            Request::Add(text) => {
                let way = routes::parse(&text)?;
                refuse_own(&way, &self.listens)?;
                self.change(|table| routes::add(table, way))?;
                tracing::info!(route = text, "added");
            }
            Request::Delete(text) => {
                let way = routes::parse(&text)?;
                self.change(|table| {
                    let before = table.ways.len();
                    table.ways.retain(|known| (&known.network, known.gateway) != (&way.network, way.gateway));
                    if table.ways.len() < before {
                        return Ok(());
                    }
                    let what = format!("cannot delete the route {}", routes::text(&way));
                    Err(Failure::usage(what, "there is none such", "see 'aqueduct route show'"))
                })?;
                tracing::info!(route = text, "deleted");
            }
            Request::Drain(seconds) => {
                self.with_relay(|relay| relay.drain(seconds));
                tracing::info!(seconds, "drains");
            }
            Request::Resume => {
                self.with_relay(|relay| relay.resume());
                tracing::info!("takes flows again");
            }
        }
        Ok(self.status())
    }

    fn change(
        &self,
        change: impl FnOnce(&mut aqueduct_net::routes::Table) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.with_relay(|relay| relay.routes().change(change)).unwrap_or(Ok(()))
    }

    fn status(&self) -> RouterStatus {
        let told = self.with_relay(|relay| relay.status());
        let status = RouterStatus {
            router: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            listens: self.listens(),
            ..RouterStatus::default()
        };
        let Some(RelayStatus { stops_in, table, gateways, mut flows, metrics }) = told else { return status };
        flows.sort_by_key(|flow| std::cmp::Reverse(flow.bytes[0] + flow.bytes[1]));
        RouterStatus {
            stops_in_seconds: stops_in,
            networks: table.networks.iter().map(network_status).collect(),
            routes: route_states(&table.ways, &gateways),
            flows_total: flows.len() as u64,
            flows: flows.iter().take(FLOWS_SHOWN_MAX).map(flow_status).collect(),
            metrics,
            ..status
        }
    }
}

fn network_status(network: &Network) -> NetworkStatus {
    let addresses = network.nets.iter().map(ToString::to_string).collect();
    NetworkStatus { name: network.name.to_string(), addresses, ports: network.ports.clone() }
}

/// Ways with how their gateways fare.
pub(crate) fn route_states(ways: &[Way], gateways: &[GatewayState]) -> Vec<RouteState> {
    let state = |way: &Way| {
        let known = gateways.iter().find(|state| state.gateway == way.gateway);
        RouteState {
            network: way.network.to_string(),
            gateway: way.gateway.to_string(),
            hops: way.hops,
            priority: way.priority,
            up: known.is_none_or(|state| state.is_up),
            failures: known.map_or(0, |state| state.failures),
        }
    };
    ways.iter().map(state).collect()
}

fn flow_status(flow: &aqueduct_net::FlowStatus) -> FlowStatus {
    let [client_blocked_ms, next_blocked_ms] = flow.blocked.map(|time| time.as_millis() as u64);
    FlowStatus {
        client: flow.client.clone(),
        target: flow.target.clone(),
        next: flow.next.clone(),
        bulk: flow.is_bulk,
        bytes_out: flow.bytes[0],
        bytes_back: flow.bytes[1],
        client_blocked_ms,
        next_blocked_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control;
    use crate::router_config::RouterSettings;

    #[test]
    fn all_connections_of_a_router_fit_its_descriptors() {
        let usual = RelayLimits::default();
        for descriptors in [1024, 4096, 16_384, 65_536, u64::MAX] {
            let limits = fitting(descriptors, &usual);
            let flows = limits.flows_max as u64 * DESCRIPTORS_OF_FLOW;
            let others = limits.greeting_max as u64 * DESCRIPTORS_OF_GREETING + limits.watchers_max as u64;
            assert!(flows + others + DESCRIPTORS_KEPT <= descriptors, "{descriptors}: {limits:?}");
            assert!(limits.flows_max >= 64 && limits.greeting_max >= 64, "{descriptors}: {limits:?}");
        }
        assert_eq!(fitting(65_536, &usual), usual);
        let few = fitting(0, &usual);
        assert_eq!((few.flows_max, few.greeting_max), (1, 1));
    }

    #[test]
    fn routes_change_while_it_runs() {
        let folder = tempfile::tempdir().unwrap();
        let control = folder.path().join("control");
        let settings = RouterSettings {
            name: Some("r1".into()),
            listen: vec!["127.0.0.1:0@net1".into()],
            control: Some(control.clone()),
            ..RouterSettings::default()
        };
        let mut router = Router::start(&RouterConfig::resolve(settings).unwrap()).unwrap();
        let ask = |request| control::ask(&control, &request);
        let routes = |status: RouterStatus| -> Vec<String> {
            status.routes.iter().map(|route| format!("{}@{}", route.network, route.gateway)).collect()
        };
        let shown = ask(Request::Show).unwrap();
        assert_eq!((shown.router.as_str(), shown.listens.clone()), ("r1", router.listens()));
        assert_eq!(shown.networks[0].ports, [7170]);
        assert!(routes(shown).is_empty());
        assert_eq!(routes(ask(Request::Add("net2@127.0.0.1:9".into())).unwrap()), ["net2@127.0.0.1:9"]);
        let own = ask(Request::Add("net1@127.0.0.1:9".into())).unwrap_err().to_string();
        assert!(own.contains("in that network itself"), "{own}");
        let itself = format!("net2@{}", router.inner.listens[0].0);
        let itself = ask(Request::Add(itself)).unwrap_err().to_string();
        assert!(itself.contains("this router itself"), "{itself}");
        assert!(ask(Request::Delete("net2@127.0.0.1:8".into())).unwrap_err().to_string().contains("none such"));
        assert!(routes(ask(Request::Delete("net2@127.0.0.1:9".into())).unwrap()).is_empty());
        assert!(ask(Request::Drain(30)).unwrap().stops_in_seconds.is_some_and(|left| left <= 30));
        assert_eq!(ask(Request::Resume).unwrap().stops_in_seconds, None);
        router.stop();
        assert!(ask(Request::Show).is_err() && router.status().networks.is_empty());
    }
}
