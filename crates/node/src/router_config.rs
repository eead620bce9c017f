//! What the settings of a router come to.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aqueduct_client::SUSPECT_MIN;
use aqueduct_net::routes::{Table, Way};
use aqueduct_net::{RelayLimits, interfaces, local};
use aqueduct_wire::NetworkName;
use ipnet::IpNet;
use serde::Deserialize;

use crate::attach::SUSPECT;
use crate::exporting::MetricsSettings;
use crate::failure::Failure;
use crate::place::PORT;
use crate::routes::{self, NetworkSettings, ROUTER_PORT, RouteSettings};
use crate::{host, options};

/// How long flows may take to leave a router that was told to end: initiators make others within
/// a second, and service managers wait longer.
const DRAIN: Duration = Duration::from_secs(10);

/// The socket by which a router of this machine is asked, in the folder for sockets.
const CONTROL: &str = "router.sock";

/// A router, resolved.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// What it calls itself.
    pub name: String,
    /// Where it listens, in which network each; port 0 takes a free one.
    pub listen: Vec<(SocketAddr, NetworkName)>,
    /// Its networks, and the ways to others.
    pub table: Table,
    /// How much of everything it takes.
    pub limits: RelayLimits,
    /// A peer that answers nothing for so long is dead.
    pub suspect: Duration,
    /// How long flows may take to leave when it is stopped.
    pub drain: Duration,
    /// The socket by which it is asked and changed.
    pub control: PathBuf,
    /// Where its metrics are told; `None`: nowhere but in its status.
    pub metrics: Option<aqueduct_observe::Config>,
}

/// The settings of a router, as a person wrote them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouterSettings {
    /// What it calls itself; the machine's name, unless given.
    pub name: Option<String>,
    /// Its addresses, `HOST[:PORT]@NET`.
    pub listen: Vec<String>,
    /// The socket by which it is asked and changed.
    pub control: Option<PathBuf>,
    /// Where its metrics are told, as `ADDRESS:PORT`.
    pub metrics: Option<String>,
    /// The file with the token that who asks for them has to send.
    pub metrics_token: Option<PathBuf>,
    /// Its networks, where more is to be said of them than their names.
    pub network: Vec<NetworkSettings>,
    /// Ways to other networks.
    pub route: Vec<RouteSettings>,
    /// How much of everything there may be.
    pub limits: RouterLimitSettings,
}

/// The section `[limits]`, as it is written; what is missing is as usual.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(
    missing_docs,
    reason = "each is a field of `RelayLimits` or of `RouterConfig`, with the unit that its name says"
)]
pub struct RouterLimitSettings {
    pub flows_max: Option<usize>,
    pub flows_per_client_max: Option<usize>,
    pub greeting_max: Option<usize>,
    pub greeting_per_client_max: Option<usize>,
    pub watchers_max: Option<usize>,
    pub memory_mib: Option<usize>,
    pub suspect_seconds: Option<f64>,
    pub drain_seconds: Option<f64>,
}

impl RouterSettings {
    /// Reads a configuration file (TOML).
    pub fn read(path: &Path) -> Result<RouterSettings, Failure> {
        let what = format!("cannot use the configuration file {}", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::new(&what, error, "give the path of a readable file to --config"))?;
        toml::from_str(&text).map_err(|error| {
            Failure::usage(what, error.to_string().trim_end(), "correct it; 'aqueduct route --help' shows an example")
        })
    }
}

/// The socket by which the router of this machine is asked, unless it has another.
pub fn usual_control() -> Result<PathBuf, Failure> {
    local::folder().map(|folder| folder.join(CONTROL)).ok_or_else(|| {
        let why = "neither XDG_RUNTIME_DIR nor XDG_STATE_HOME nor HOME is set";
        Failure::usage("cannot choose the router's socket", why, "name one: control in its file, or --control")
    })
}

impl RouterConfig {
    /// What the settings come to: names are looked up, and everything is checked.
    pub fn resolve(settings: RouterSettings) -> Result<RouterConfig, Failure> {
        let what = "cannot start the router";
        if settings.listen.is_empty() {
            let hint = "give them in its file: listen = [\"10.1.0.1@net1\", \"10.2.0.1@net2\"]";
            return Err(Failure::usage(what, "it has no addresses", hint));
        }
        let listen = settings.listen.iter().map(|text| listen_address(text)).collect::<Result<Vec<_>, Failure>>()?;
        let mut table = networks(&listen, &settings.network)?;
        settings.route.iter().try_for_each(|route| routes::add_all(&mut table, route))?;
        table.ways.iter().try_for_each(|way| refuse_own(way, &listen))?;
        let limits = settings.limits;
        Ok(RouterConfig {
            name: settings.name.unwrap_or_else(host::name),
            listen,
            table,
            suspect: seconds("suspect_seconds", limits.suspect_seconds, SUSPECT)?.max(SUSPECT_MIN),
            drain: seconds("drain_seconds", limits.drain_seconds, DRAIN)?,
            limits: limits.resolve()?,
            control: settings.control.map_or_else(usual_control, Ok)?,
            metrics: MetricsSettings { address: settings.metrics, token: settings.metrics_token }.resolve()?,
        })
    }
}

/// `ADDRESS[:PORT]@NET`, where the port may be 0.
fn listen_address(text: &str) -> Result<(SocketAddr, NetworkName), Failure> {
    let bad = |why: &dyn std::fmt::Display| {
        let what = format!("cannot listen on '{text}'");
        Failure::usage(what, why, format!("write it as 10.1.0.1@net1 or 10.1.0.1:{ROUTER_PORT}@net1"))
    };
    let (host, network) = text.rsplit_once('@').ok_or_else(|| bad(&"it does not say which network it is in"))?;
    let network = NetworkName::new(network).ok_or_else(|| bad(&"that is no name of a network"))?;
    let found = host.to_socket_addrs().or_else(|_| format!("{host}:{ROUTER_PORT}").to_socket_addrs());
    let address = found.map_err(|error| bad(&error))?.next().ok_or_else(|| bad(&"it has no address"))?;
    Ok((address, network))
}

impl RouterLimitSettings {
    fn resolve(&self) -> Result<RelayLimits, Failure> {
        let usual = RelayLimits::default();
        Ok(RelayLimits {
            flows_max: some("flows_max", self.flows_max, usual.flows_max)?,
            flows_per_client_max: some("flows_per_client_max", self.flows_per_client_max, usual.flows_per_client_max)?,
            greeting_max: some("greeting_max", self.greeting_max, usual.greeting_max)?,
            greeting_per_client_max: some(
                "greeting_per_client_max",
                self.greeting_per_client_max,
                usual.greeting_per_client_max,
            )?,
            watchers_max: self.watchers_max.unwrap_or(usual.watchers_max),
            memory: some("memory_mib", self.memory_mib, usual.memory >> 20)?.saturating_mul(1 << 20),
        })
    }
}

/// A limit that lets something in: a router that takes nothing would refuse every mount.
fn some(key: &str, value: Option<usize>, usual: usize) -> Result<usize, Failure> {
    match value.unwrap_or(usual) {
        0 => {
            let hint = format!("give 1 or more, or leave it out for {usual}; to take no more flows, drain the router");
            Err(Failure::usage(format!("cannot use {key} = 0 of [limits]"), "it would let nobody in", hint))
        }
        limit => Ok(limit),
    }
}

/// Refuses a way by the router itself, of which connections would come back to it.
pub(crate) fn refuse_own(way: &Way, listen: &[(SocketAddr, NetworkName)]) -> Result<(), Failure> {
    let is_here = |ip: IpAddr| {
        interfaces().is_ok_and(|own| own.iter().any(|interface| interface.address == ip)) || ip.is_loopback()
    };
    let is_own = |listens: &SocketAddr| {
        listens.port() == way.gateway.port()
            && (listens.ip() == way.gateway.ip() || (listens.ip().is_unspecified() && is_here(way.gateway.ip())))
    };
    if listen.iter().any(|(address, _)| is_own(address)) {
        let what = format!("cannot use the route {}", routes::text(way));
        let hint = format!("name the router that leads to {}: its address in a network that both are in", way.network);
        return Err(Failure::usage(what, "its gateway is this router itself", hint));
    }
    Ok(())
}

fn seconds(key: &str, value: Option<f64>, usual: Duration) -> Result<Duration, Failure> {
    let Some(seconds) = value else { return Ok(usual) };
    options::duration(seconds).ok_or_else(|| {
        let why = format!("it is not a time of 0 to {} seconds", options::SECONDS_MAX);
        Failure::usage(format!("cannot use {key} = {seconds} of [limits]"), why, "give seconds, 0 or more")
    })
}

/// The router's own networks: those in which it listens, with what is said of them.
fn networks(listen: &[(SocketAddr, NetworkName)], settings: &[NetworkSettings]) -> Result<Table, Failure> {
    let mut table = Table::default();
    for named in settings {
        if listen.iter().all(|(_, name)| name.as_str() != named.name) {
            let what = format!("cannot use the network '{}'", named.name);
            return Err(Failure::usage(what, "the router has no address in it", "add one to listen, as 10.1.0.1@net1"));
        }
    }
    for (_, name) in listen {
        if table.networks.iter().any(|known| known.name == *name) {
            continue;
        }
        let mut of_it = settings.iter().filter(|named| named.name == name.as_str());
        let named =
            of_it.next().cloned().unwrap_or_else(|| NetworkSettings { name: name.to_string(), ..Default::default() });
        let subnets = if named.addresses.is_empty() { subnets(listen, name)? } else { Vec::new() };
        let mut network = routes::network(&named, &subnets)?;
        network.ports = named.ports.unwrap_or_else(|| vec![PORT]);
        table.networks.push(network);
    }
    Ok(table)
}

/// The subnets in which a router listens for a network.
fn subnets(listen: &[(SocketAddr, NetworkName)], name: &NetworkName) -> Result<Vec<IpNet>, Failure> {
    let what = format!("cannot tell which addresses network {name} has");
    let own = interfaces().map_err(|error| Failure::new(&what, error, "say them: addresses of [[network]]"))?;
    let mut found: Vec<IpNet> = Vec::new();
    for (address, _) in listen.iter().filter(|(_, of)| of == name) {
        // Whether the wire works now is no matter.
        let subnets = own.iter().filter_map(|interface| IpNet::new(interface.address, interface.prefix).ok());
        found.extend(subnets.filter(|subnet| subnet.contains(&address.ip())));
    }
    if found.is_empty() {
        let why = "this machine has none of its addresses in listen";
        return Err(Failure::usage(what, why, "correct listen, or say the network's addresses in [[network]]"));
    }
    found.iter_mut().for_each(|net| *net = net.trunc());
    found.sort();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Result<RouterConfig, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("route.toml");
        std::fs::write(&path, text).unwrap();
        RouterConfig::resolve(RouterSettings::read(&path)?)
    }

    #[test]
    fn a_router_is_what_its_file_says() {
        let text = "name = 'r1'\nlisten = ['127.0.0.1@net1', '127.0.0.2:9@net2']\ncontrol = '/c'\n\
            [[network]]\nname = 'net2'\naddresses = ['10.2.0.0/16', 'fd00::7']\nports = []\n\
            [[route]]\nnetwork = 'net3'\ngateways = ['10.2.0.9', '10.2.0.8:1']\nhops = 2\npriority = 5\n\
            [limits]\nflows_max = 3\nmemory_mib = 1\nsuspect_seconds = 1\n";
        let config = resolved(text).unwrap();
        let listen: Vec<String> = config.listen.iter().map(|(address, name)| format!("{address}@{name}")).collect();
        assert_eq!(listen, ["127.0.0.1:7171@net1", "127.0.0.2:9@net2"]);
        assert_eq!((config.name.as_str(), config.limits.flows_max, config.limits.memory), ("r1", 3, 1 << 20));
        assert_eq!((config.suspect, config.drain), (SUSPECT_MIN, DRAIN));
        let shown: Vec<String> = config.table.networks.iter().map(|network| format!("{network:?}")).collect();
        assert!(shown[0].contains("127.0.0.0/8") && shown[0].contains("[7170]"), "{shown:?}");
        assert!(shown[1].contains("10.2.0.0/16") && shown[1].contains("fd00::7/128"), "{shown:?}");
        assert!(config.table.networks[1].ports.is_empty());
        let ways: Vec<String> = config.table.ways.iter().map(routes::text).collect();
        assert_eq!(ways, ["net3@10.2.0.9:7171:hops=2:priority=5", "net3@10.2.0.8:1:hops=2:priority=5"]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (text, why) in [
            ("", "no addresses"),
            ("listen = ['127.0.0.1']", "which network"),
            ("listen = ['203.0.113.1@net1']", "none of its addresses"),
            ("listen = ['127.0.0.1@net1']\n[[network]]\nname = 'net2'", "no address in it"),
            ("listen = ['127.0.0.1@net1']\n[[network]]\nname = 'net1'\naddresses = ['x']", "no range"),
            (
                "listen = ['127.0.0.1@net1']\n[[route]]\nnetwork = 'net1'\ngateways = ['10.0.0.1']",
                "in that network itself",
            ),
            ("listen = ['127.0.0.1@net1']\n[limits]\ndrain_seconds = -1", "not a time"),
            ("listen = ['127.0.0.1@net1']\n[limits]\nflows_max = 0", "let nobody in"),
            ("listen = ['127.0.0.1@net1']\n[limits]\nflows_per_client_max = 0", "let nobody in"),
            ("listen = ['127.0.0.1@net1']\n[limits]\ngreeting_max = 0", "let nobody in"),
            ("listen = ['127.0.0.1@net1']\n[limits]\ngreeting_per_client_max = 0", "let nobody in"),
            ("listen = ['127.0.0.1@net1']\n[limits]\nmemory_mib = 0", "let nobody in"),
            ("listen = ['127.0.0.1@net1']\n[[route]]\nnetwork = 'far'\ngateways = ['127.0.0.1']", "this router itself"),
            (
                "listen = ['127.0.0.1@net1', '0.0.0.0:9@net2']\n[[network]]\nname = 'net2'\n\
                 addresses = ['10.2.0.0/16']\n[[route]]\nnetwork = 'far'\ngateways = ['127.0.0.1:9']",
                "this router itself",
            ),
            ("lisen = []", "lisen"),
        ] {
            let failure = resolved(text).unwrap_err().to_string();
            assert!(failure.contains(why), "{text}: {failure}");
        }
    }
}
