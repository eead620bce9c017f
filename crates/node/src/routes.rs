//! Networks and the routers between them, as people write them: sections of configuration files,
//! and texts such as `net3@10.2.0.9:hops=2`. Whoever connects has a [`Routing`]: servers, mounts
//! and tools.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aqueduct_net::Initiator;
use aqueduct_net::routes::{Network, Routes, Table, Way};
use aqueduct_wire::{HOPS_MAX, NetworkName};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::place::{self, Address};

/// The port of a router that says nothing else.
pub const ROUTER_PORT: u16 = 7171;

/// The file of routes that every server, mount and tool of this machine knows, unless it names
/// another.
pub const ROUTES_FILE: &str = "/etc/aqueduct/routes.toml";

/// The most routes of one node: more than there are routers between any two networks.
pub const ROUTES_MAX: usize = 1024;

const ROUTE_HINT: &str = "write it as NET@GATEWAY, NET@GATEWAY:PORT, or with :hops=N and :priority=N behind it";

/// The section `[[network]]`: a network that a node is a part of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSettings {
    /// Its name.
    pub name: String,
    /// Its addresses, as `10.1.0.0/16`. None: for a router those of the subnet in which it
    /// listens, for others all.
    pub addresses: Vec<String>,
    /// The ports there that a router passes connections on to; the usual one, unless given; `[]`:
    /// all.
    pub ports: Option<Vec<u16>>,
}

/// The section `[[route]]`: the way to a network that a node is no part of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouteSettings {
    /// The network.
    pub network: String,
    /// The routers that lead there, `HOST[:PORT]`. They share the connections.
    pub gateways: Vec<String>,
    /// Routers on the way, the gateway included; 1, unless given.
    pub hops: Option<u8>,
    /// Ways with smaller numbers are used first; 0, unless given.
    pub priority: Option<u32>,
}

/// The file of routes, and what a server's configuration has of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoutesFile {
    /// Networks that this machine is a part of.
    pub network: Vec<NetworkSettings>,
    /// Ways to others.
    pub route: Vec<RouteSettings>,
}

impl RoutesFile {
    /// Reads one (TOML).
    pub fn read(path: &Path) -> Result<RoutesFile, Failure> {
        let what = format!("cannot use the file of routes {}", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::new(&what, error, "give the path of a readable file"))?;
        toml::from_str(&text).map_err(|error| {
            let hint = "correct it; 'aqueduct mount --help' shows an example";
            Failure::usage(what, error.to_string().trim_end(), hint)
        })
    }

    /// What says the same as a table.
    pub(crate) fn of(table: &Table) -> RoutesFile {
        let network = |network: &Network| NetworkSettings {
            name: network.name.to_string(),
            addresses: network.nets.iter().map(ToString::to_string).collect(),
            ports: Some(network.ports.clone()),
        };
        let route = |way: &Way| RouteSettings {
            network: way.network.to_string(),
            gateways: vec![way.gateway.to_string()],
            hops: Some(way.hops),
            priority: Some(way.priority),
        };
        RoutesFile {
            network: table.networks.iter().map(network).collect(),
            route: table.ways.iter().map(route).collect(),
        }
    }

    pub(crate) fn table(&self) -> Result<Table, Failure> {
        let mut table = Table::default();
        self.add_to(&mut table)?;
        Ok(table)
    }

    /// Adds what it says. Of a network that is there already it has the last word.
    fn add_to(&self, table: &mut Table) -> Result<(), Failure> {
        let everywhere = [IpNet::default(), ipnet::Ipv6Net::default().into()];
        let own = |settings: &NetworkSettings| {
            let mut own = network(settings, &everywhere)?;
            own.ports = settings.ports.clone().unwrap_or_default();
            Ok(own)
        };
        for network in self.network.iter().map(own).collect::<Result<Vec<_>, Failure>>()? {
            table.networks.retain(|known| known.name != network.name);
            table.networks.push(network);
        }
        self.route.iter().try_for_each(|settings| add_all(table, settings))
    }
}

/// How who connects says by which routers networks are reached: a server in its configuration, a
/// mount in its options, a tool in its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// A file; [`ROUTES_FILE`], if that is there, unless given.
    pub file: Option<PathBuf>,
    /// What is said besides.
    pub more: RoutesFile,
    /// And route by route.
    pub ways: Vec<Way>,
}

impl Routing {
    /// As arguments have it: a file, and routes as [`parse`] reads them.
    pub fn of_arguments(file: Option<&Path>, routes: &[String]) -> Result<Routing, Failure> {
        let ways = routes.iter().map(|route| parse(route)).collect::<Result<_, _>>()?;
        Ok(Routing { file: file.map(Path::to_owned), ways, ..Routing::default() })
    }

    /// What it comes to.
    pub fn table(&self) -> Result<Table, Failure> {
        let usual = Path::new(ROUTES_FILE);
        let mut table = Table::default();
        match &self.file {
            Some(path) => RoutesFile::read(path)?.add_to(&mut table)?,
            None if usual.exists() => RoutesFile::read(usual)?.add_to(&mut table)?,
            None => {}
        }
        self.more.add_to(&mut table)?;
        self.ways.iter().try_for_each(|way| add(&mut table, way.clone()))?;
        Ok(table)
    }

    /// Who connects by it; nobody, if it says nothing.
    pub fn resolve(&self) -> Result<Option<Arc<Initiator>>, Failure> {
        initiator(self.table()?)
    }
}

/// Whether a name is that of a network there.
pub fn is_known(table: &Table) -> impl Fn(&str) -> bool {
    |name| NetworkName::new(name).is_some_and(|name| table.knows(&name))
}

/// Whether a network is one behind routers, by what who connects knows.
pub fn is_behind(initiator: &Initiator, name: &str) -> bool {
    let is_it = |name: NetworkName| initiator.routes().table().ways.iter().any(|way| way.network == name);
    NetworkName::new(name).is_some_and(is_it)
}

/// Who connects by the routes of a table; nobody, if it has none.
pub fn initiator(table: Table) -> Result<Option<Arc<Initiator>>, Failure> {
    if table.networks.is_empty() && table.ways.is_empty() {
        return Ok(None);
    }
    let made = Initiator::new(Arc::new(Routes::new(table)));
    made.map(Some).map_err(|error| Failure::new("cannot use routes", error, "this machine has to have random numbers"))
}

/// A network of its settings. `usual`: its addresses, unless they say which.
pub(crate) fn network(settings: &NetworkSettings, usual: &[IpNet]) -> Result<Network, Failure> {
    let what = || format!("cannot use the network '{}'", settings.name);
    let parse = |text: &String| {
        let alone = || text.parse::<std::net::IpAddr>().map(IpNet::from);
        text.parse::<IpNet>().or_else(|_| alone()).map_err(|_| {
            Failure::usage(what(), format!("'{text}' is no range of addresses"), "write it as 10.1.0.0/16 or fd00::/64")
        })
    };
    let mut nets = settings.addresses.iter().map(parse).collect::<Result<Vec<IpNet>, Failure>>()?;
    if nets.is_empty() {
        nets = usual.to_vec();
    }
    Ok(Network { name: name(&settings.name, &what())?, nets, ports: settings.ports.clone().unwrap_or_default() })
}

/// The name of a network.
pub(crate) fn name(text: &str, what: &str) -> Result<NetworkName, Failure> {
    NetworkName::new(text).ok_or_else(|| {
        let hint = "give it a name of letters and digits, with . - and _ between them, as net1";
        Failure::usage(what, format!("'{text}' is no name of a network"), hint)
    })
}

/// Adds the ways of a section.
pub(crate) fn add_all(table: &mut Table, settings: &RouteSettings) -> Result<(), Failure> {
    let what = format!("cannot use the route to '{}'", settings.network);
    let network = name(&settings.network, &what)?;
    if settings.gateways.is_empty() {
        return Err(Failure::usage(what, "it has no gateways", "name the routers: gateways = [\"10.1.0.9\"]"));
    }
    for gateway in &settings.gateways {
        let gateway = resolve_gateway(gateway, &what)?;
        let (hops, priority) = (hops(settings.hops.unwrap_or(1), &what)?, settings.priority.unwrap_or(0));
        add(table, Way { network: network.clone(), gateway, hops, priority })?;
    }
    Ok(())
}

/// Adds a way, in place of one that differs in hops and priority alone.
pub fn add(table: &mut Table, way: Way) -> Result<(), Failure> {
    let what = || format!("cannot add the route {}", text(&way));
    if table.networks.iter().any(|own| own.name == way.network) {
        return Err(Failure::usage(what(), "this node is in that network itself", "leave the route out"));
    }
    table.ways.retain(|known| (&known.network, known.gateway) != (&way.network, way.gateway));
    if table.ways.len() >= ROUTES_MAX {
        return Err(Failure::usage(what(), format!("there are {ROUTES_MAX} routes already"), "delete some"));
    }
    table.ways.push(way);
    Ok(())
}

/// The way of a text: `NET@GATEWAY[:PORT][:hops=N][:priority=N]`.
pub fn parse(route: &str) -> Result<Way, Failure> {
    let what = format!("cannot use the route '{route}'");
    let bad = |why: &str| Failure::usage(what.clone(), why, ROUTE_HINT);
    let (network, rest) = route.split_once('@').ok_or_else(|| bad("it names no network and gateway"))?;
    let (mut way_hops, mut priority, mut gateway) = (1, 0, rest);
    while let Some((front, (key, value))) =
        gateway.rsplit_once(':').and_then(|(front, last)| Some((front, last.split_once('=')?)))
    {
        match key {
            "hops" => way_hops = value.parse().map_err(|_| bad("its hops are no number"))?,
            "priority" => priority = value.parse().map_err(|_| bad("its priority is no number"))?,
            _ => return Err(bad("it has something that no route has")),
        }
        gateway = front;
    }
    let gateway = resolve_gateway(gateway, &what)?;
    Ok(Way { network: name(network, &what)?, gateway, hops: hops(way_hops, &what)?, priority })
}

/// A way as [`parse`] reads it.
pub fn text(way: &Way) -> String {
    let mut text = format!("{}@{}", way.network, way.gateway);
    if way.hops != 1 {
        text.push_str(&format!(":hops={}", way.hops));
    }
    if way.priority != 0 {
        text.push_str(&format!(":priority={}", way.priority));
    }
    text
}

fn hops(hops: u8, what: &str) -> Result<u8, Failure> {
    match hops {
        1..=HOPS_MAX => Ok(hops),
        _ => Err(Failure::usage(what, format!("it has {hops} hops"), format!("give 1 to {HOPS_MAX}"))),
    }
}

fn resolve_gateway(text: &str, what: &str) -> Result<SocketAddr, Failure> {
    let bad = |why: &dyn std::fmt::Display| Failure::usage(what, format!("'{text}': {why}"), ROUTE_HINT);
    match place::address(text, place::may_be_network).map_err(|error| bad(&error))? {
        Address::Unix(_) => Err(bad(&"a Unix socket is in no network")),
        // It follows from the address.
        Address::Host { network: Some(_), .. } => Err(bad(&"a gateway's network is not said")),
        Address::Host { host, port, .. } => {
            let found = format!("{host}:{}", port.unwrap_or(ROUTER_PORT)).to_socket_addrs();
            found.map_err(|error| bad(&error))?.next().ok_or_else(|| bad(&"it has no address"))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known(table: &Table, name: &str) -> bool {
        is_known(table)(name)
    }

    #[test]
    fn routes_are_read_as_they_are_written() {
        for (given, expected) in [
            ("net2@10.1.0.1", "net2@10.1.0.1:7171"),
            ("net2@10.1.0.1:9", "net2@10.1.0.1:9"),
            ("net2@[fd00::1]:hops=2", "net2@[fd00::1]:7171:hops=2"),
            ("net2@10.1.0.1:priority=7:hops=3", "net2@10.1.0.1:7171:hops=3:priority=7"),
        ] {
            let way = parse(given).unwrap();
            assert_eq!(text(&way), expected);
            assert_eq!(parse(expected).unwrap(), way);
        }
        for (bad, why) in [
            ("10.1.0.1", "no network"),
            ("net2@", "no host"),
            ("net 2@10.1.0.1", "no name of a network"),
            ("net2@10.1.0.1:hops=9", "9 hops"),
            ("net2@10.1.0.1:hops=x", "no number"),
            ("net2@10.1.0.1:speed=1", "no route has"),
            ("net2@10.1.0.1@net1", "is not said"),
        ] {
            let failure = parse(bad).unwrap_err().to_string();
            assert!(failure.contains(why), "{bad}: {failure}");
        }
    }

    #[test]
    fn a_file_and_options_come_together() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("routes.toml");
        let file = "[[network]]\nname = 'net1'\n[[route]]\nnetwork = 'net2'\ngateways = ['10.1.0.1', '10.1.0.2:9']\nhops = 2\n";
        std::fs::write(&path, file).unwrap();
        let table = |more: RoutesFile, routes: &[&str]| {
            let routes: Vec<String> = routes.iter().map(ToString::to_string).collect();
            Routing { more, ..Routing::of_arguments(Some(&path), &routes).unwrap() }.table()
        };
        let of_client = |routes: &[&str]| table(RoutesFile::default(), routes);
        let more = RoutesFile {
            network: vec![NetworkSettings { name: "net1".into(), addresses: vec!["10.1.0.0/16".into()], ports: None }],
            route: vec![RouteSettings {
                network: "net4".into(),
                gateways: vec!["10.1.0.4".into()],
                hops: None,
                priority: None,
            }],
        };
        let both = table(more, &[]).unwrap();
        assert_eq!((both.networks.len(), both.ways.len()), (1, 3));
        assert_eq!(both.networks[0].nets[0].to_string(), "10.1.0.0/16", "what is nearer has the last word");
        assert_eq!(format!("{:?}", RoutesFile::of(&both).table().unwrap()), format!("{both:?}"), "written and read");
        let table = of_client(&["net2@10.1.0.1:priority=1"]).unwrap();
        let ways: Vec<String> = table.ways.iter().map(text).collect();
        assert_eq!(ways, ["net2@10.1.0.2:9:hops=2", "net2@10.1.0.1:7171:priority=1"], "the later one counts");
        assert!(known(&table, "net1") && known(&table, "net2") && !known(&table, "net3") && !known(&table, "a b"));
        assert!(initiator(table).unwrap().is_some() && initiator(Table::default()).unwrap().is_none());
        let own = of_client(&["net1@10.1.0.1"]).unwrap_err().to_string();
        assert!(own.contains("in that network itself"), "{own}");
        std::fs::write(&path, "[[route]]\nnetwork = 'net2'\n").unwrap();
        assert!(of_client(&[]).unwrap_err().to_string().contains("no gateways"));
        std::fs::write(&path, "[[rout]]\n").unwrap();
        assert!(of_client(&[]).unwrap_err().to_string().contains("rout"));
    }

    proptest! {
        #[test]
        fn any_route_is_understood_or_refused(route in "(net2|@|[0-9.:]|hops=|priority=|\\[|\\]|\\PC){0,20}") {
            // Names are not looked up: that would leave this machine.
            let is_literal = route.split_once('@').is_some_and(|(_, rest)| !rest.contains(|l: char| l.is_alphabetic()));
            if is_literal && let Ok(way) = parse(&route) {
                prop_assert_eq!(parse(&text(&way)).unwrap(), way);
            }
        }
    }
}
