//! The exports of a server: what the configuration file and the command line say of each, resolved.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use aqueduct_fs::idmap::{IdMap, IdMaps, IdRange};
use aqueduct_server::{ANONYMOUS_ID, Access, Host, HostMaps, Squash};
use ipnet::{IpNet, Ipv4Net};
use serde::Deserialize;

use crate::choice::{ExternalChoice, SquashChoice};
use crate::failure::{Failure, Kind};
use crate::options;

/// The bits by which an IPv4 address that is written as an IPv6 one is longer.
const MAPPED_PREFIX_LENGTH: u8 = 96;

/// A directory to serve, resolved.
#[derive(Debug, PartialEq)]
pub struct ExportConfig {
    /// The directory, without links.
    pub path: PathBuf,
    /// What clients call it.
    pub name: String,
    /// Nothing there can be changed through it.
    pub read_only: bool,
    /// File systems that are mounted below are shown.
    pub cross_mounts: bool,
    /// What changes names or attributes is on the disk before it is answered.
    pub sync: bool,
    /// Bytes of data per second, read and written; `None`: as fast as it goes.
    pub rate: Option<u64>,
    /// How changes by others come to light.
    pub external: ExternalConfig,
    /// Who may do what there, and as whom.
    pub access: Access,
}

/// What becomes of ids that no range has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Others {
    /// They are the same on both sides.
    #[default]
    Same,
    /// They act as the anonymous one.
    Anonymous,
}

/// An export, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExportSettings {
    /// The directory.
    pub path: Option<PathBuf>,
    /// What clients call it; the path unless given.
    pub name: Option<String>,
    /// Nothing there can be changed through it.
    pub read_only: bool,
    /// File systems that are mounted below are shown.
    pub cross_mounts: bool,
    /// Names and attributes are on the disk before a change is answered.
    pub sync: Option<bool>,
    /// The most data per second, such as `160MB/s`.
    pub rate: Option<String>,
    /// How changes by others come to light.
    pub external: Option<ExternalChoice>,
    /// The oldest that clients keep, in seconds.
    pub external_age_seconds: Option<f64>,
    /// Whose users act as the anonymous one.
    pub squash: Option<SquashChoice>,
    /// The anonymous user.
    pub anonymous_uid: Option<u32>,
    /// The anonymous group.
    pub anonymous_gid: Option<u32>,
    /// Users of clients that are others here.
    pub map_uids: Vec<IdRangeSettings>,
    /// Groups of clients that are others here.
    pub map_gids: Vec<IdRangeSettings>,
    /// What becomes of ids that no range has.
    pub map_others: Others,
    /// Other maps instead, for some clients: the first that has a client counts.
    pub maps: Vec<HostMapSettings>,
    /// Who may mount it; everybody unless given.
    pub hosts: Option<Vec<String>>,
    /// Who may besides, and change nothing.
    pub read_only_hosts: Vec<String>,
}

/// Which ids of some clients are others here.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostMapSettings {
    /// Whose, as the export's lists of hosts name them.
    pub hosts: Vec<String>,
    /// Their users that are others here.
    pub map_uids: Vec<IdRangeSettings>,
    /// Their groups that are others here.
    pub map_gids: Vec<IdRangeSettings>,
    /// What becomes of ids that no range has.
    pub map_others: Others,
}

/// Ids of clients that are others here.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdRangeSettings {
    /// The first id at the clients.
    pub client: u32,
    /// The first id here.
    pub server: u32,
    /// How many ids.
    pub count: u32,
}

impl ExportSettings {
    /// A directory, with all as usual.
    pub fn of(path: impl Into<PathBuf>) -> ExportSettings {
        ExportSettings { path: Some(path.into()), ..ExportSettings::default() }
    }

    /// Looks the directory and the hosts up, and checks the rest.
    pub fn resolve(self) -> Result<ExportConfig, Failure> {
        let Some(path) = &self.path else {
            return Err(Failure::usage(
                "cannot serve an [[export]]",
                "it has no path",
                "give it one: path = \"/srv/data\"",
            ));
        };
        let what = format!("cannot serve {}", path.display());
        let access = self.access(&what)?;
        let rate = self.rate.as_deref().map(rate).transpose().map_err(|why| {
            let hint = "write it as rate = \"160MB/s\": a number with B/s, kB/s, MB/s, GB/s (1000) or KiB/s, MiB/s, GiB/s (1024), 1 MB/s or more";
            Failure::usage(&what, why, hint)
        })?;
        let external = ExternalConfig::resolve(&what, self.external, self.external_age_seconds)?;
        let path = std::fs::canonicalize(path).map_err(|error| {
            Failure::new(&what, error, "name a directory that exists and that this user may enter").of(Kind::Export)
        })?;
        let name = match self.name {
            Some(name) => name,
            None => path.to_str().map(str::to_owned).ok_or_else(|| {
                Failure::usage(
                    &what,
                    "its path is not UTF-8, so it cannot be its name",
                    "give it a name in the file of --config",
                )
            })?,
        };
        if name.is_empty() || name.contains(['\n', '\0']) {
            return Err(Failure::usage(what, "its name is empty or has a line break", "give it another name"));
        }
        let (read_only, cross_mounts) = (self.read_only, self.cross_mounts);
        let sync = self.sync.unwrap_or(true);
        Ok(ExportConfig { path, name, read_only, cross_mounts, sync, rate, external, access })
    }

    fn access(&self, what: &str) -> Result<Access, Failure> {
        let anonymous = |key: &str, id: Option<u32>| match id {
            Some(u32::MAX) => Err(Failure::usage(what, format!("{key} is no id"), "give one from 0 to 4294967294")),
            id => Ok(id.unwrap_or(ANONYMOUS_ID)),
        };
        let (anonymous_uid, anonymous_gid) =
            (anonymous("anonymous_uid", self.anonymous_uid)?, anonymous("anonymous_gid", self.anonymous_gid)?);
        Ok(Access {
            members_only: false,
            hosts: self.hosts.as_ref().map(|list| hosts(what, "hosts", list)).transpose()?,
            read_only_hosts: hosts(what, "read_only_hosts", &self.read_only_hosts)?,
            squash: self.squash.map(|choice| match choice {
                SquashChoice::Root => Squash::Root,
                SquashChoice::All => Squash::All,
                SquashChoice::None => Squash::None,
            }),
            anonymous_uid,
            anonymous_gid,
            maps: self.ids().maps(what, (anonymous_uid, anonymous_gid))?,
            host_maps: self.host_maps(what, (anonymous_uid, anonymous_gid))?,
        })
    }

    fn ids(&self) -> Ids<'_> {
        Ids { map_uids: &self.map_uids, map_gids: &self.map_gids, map_others: self.map_others }
    }

    fn host_maps(&self, what: &str, anonymous: (u32, u32)) -> Result<Vec<HostMaps>, Failure> {
        let one = |HostMapSettings { hosts: list, map_uids, map_gids, map_others }: &HostMapSettings| {
            if list.is_empty() {
                let hint = "name them: hosts = [\"node:gpu*\"]";
                return Err(Failure::usage(what, "maps: one has no hosts", hint));
            }
            let maps = Ids { map_uids, map_gids, map_others: *map_others }.maps(what, anonymous)?;
            Ok(HostMaps { hosts: hosts(what, "maps", list)?, maps })
        };
        self.maps.iter().map(one).collect()
    }
}

/// Hosts as they are written, looked up.
fn hosts(what: &str, key: &str, list: &[String]) -> Result<Vec<Host>, Failure> {
    let found: Result<Vec<_>, _> = list.iter().map(|text| networks(text)).collect();
    let networks = found.map_err(|why| {
        Failure::usage(
            what,
            format!("{key}: {why}"),
            "give networks (10.0.0.0/8, 2001:db8::/32), addresses, names that have one, or node:NAME (node:START* for many)",
        )
    })?;
    Ok(networks.concat())
}

/// What is written of ids that differ.
struct Ids<'a> {
    map_uids: &'a [IdRangeSettings],
    map_gids: &'a [IdRangeSettings],
    map_others: Others,
}

impl Ids<'_> {
    fn maps(&self, what: &str, (anonymous_uid, anonymous_gid): (u32, u32)) -> Result<Option<IdMaps>, Failure> {
        if self.map_uids.is_empty() && self.map_gids.is_empty() && self.map_others == Others::Same {
            return Ok(None);
        }
        let map = |key, ranges: &[IdRangeSettings], anonymous: u32| {
            let range =
                |&IdRangeSettings { client, server, count }: &IdRangeSettings| IdRange { client, server, count };
            let ranges: Vec<_> = ranges.iter().map(range).collect();
            IdMap::new(&ranges, (self.map_others == Others::Anonymous).then_some(anonymous)).map_err(|error| {
                Failure::usage(
                    what,
                    format!("{key}: {error}"),
                    "give each id of the clients one of the server, and back",
                )
            })
        };
        Ok(Some(IdMaps {
            users: map("map_uids", self.map_uids, anonymous_uid)?,
            groups: map("map_gids", self.map_gids, anonymous_gid)?,
        }))
    }
}

/// The slowest rate: a request of 1 MiB then takes a second, and nobody believes yet that the server is dead.
const RATE_MIN: f64 = 1e6;

/// Faster than anything.
const RATE_MAX: f64 = 1e15;

/// Bytes per second, of `160MB/s` and the like.
pub fn rate(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is no rate, such as 160MB/s");
    let (number, unit) = text.split_at(text.find(|character: char| character.is_ascii_alphabetic()).ok_or_else(bad)?);
    let factor = match unit {
        "B/s" => 1.0,
        "kB/s" => 1e3,
        "MB/s" => 1e6,
        "GB/s" => 1e9,
        "KiB/s" => 1024.0,
        "MiB/s" => 1024.0 * 1024.0,
        "GiB/s" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(bad()),
    };
    let rate = number.trim().parse::<f64>().map_err(|_| bad())? * factor;
    if (RATE_MIN..=RATE_MAX).contains(&rate) {
        Ok(rate.round() as u64)
    } else {
        Err(format!("'{text}' is no rate that can be kept, which is 1 MB/s at least"))
    }
}

/// The networks that a text stands for: one as `10.0.0.0/8`, an address, or the addresses that a name has now.
fn networks(text: &str) -> Result<Vec<Host>, String> {
    if text.starts_with("node:") {
        let host = Host::parse(text).ok_or_else(|| format!("'{text}' is no name of a node"))?;
        return Ok(vec![host]);
    }
    Ok(networks_of(text)?.into_iter().map(Host::Network).collect())
}

fn networks_of(text: &str) -> Result<Vec<IpNet>, String> {
    if let Ok(network) = text.parse::<IpNet>() {
        return Ok(vec![canonical(network)]);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(vec![address.to_canonical().into()]);
    }
    if text.is_empty() || text.contains('/') {
        return Err(format!("'{text}' is no network"));
    }
    let addresses = (text, 0).to_socket_addrs().map_err(|error| format!("'{text}' has no address: {error}"))?;
    Ok(addresses.map(|address| address.ip().to_canonical().into()).collect())
}

/// Without the bits behind the prefix, and IPv4 where it is that in the form of IPv6.
fn canonical(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(wide) => wide.addr().to_ipv4_mapped().zip(wide.prefix_len().checked_sub(MAPPED_PREFIX_LENGTH)),
        IpNet::V4(_) => None,
    };
    let narrow = mapped.and_then(|(address, length)| Ipv4Net::new(address, length).ok());
    narrow.map_or(network, IpNet::V4).trunc()
}

/// What an export says of changes by others than clients: see the module `external`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExternalConfig {
    /// By which means; `None`: by the best that the file system offers.
    pub choice: Option<ExternalChoice>,
    /// The oldest that clients keep; `None`: what is usual for the means.
    pub age: Option<Duration>,
}

impl ExternalConfig {
    /// Checks the age. `what` was tried.
    pub fn resolve(
        what: &str,
        choice: Option<ExternalChoice>,
        seconds: Option<f64>,
    ) -> Result<ExternalConfig, Failure> {
        let bad = |why: String, hint: &str| Failure::usage(what, format!("external_age_seconds: {why}"), hint);
        let age = match seconds {
            None => None,
            Some(seconds) => match options::duration(seconds).filter(|age| !age.is_zero()) {
                Some(_) if choice == Some(ExternalChoice::None) => {
                    return Err(bad("with external = \"none\" nothing gets too old".into(), "leave one of them out"));
                }
                None => {
                    return Err(bad(
                        format!("{seconds} is no time, or longer than {} seconds", options::SECONDS_MAX),
                        "give seconds above 0; external = \"none\" sets no limit",
                    ));
                }
                age => age,
            },
        };
        Ok(ExternalConfig { choice, age })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn export(text: &str) -> Result<ExportConfig, String> {
        let text = format!("path = '/tmp'\n{text}");
        toml::from_str::<ExportSettings>(&text)
            .map_err(|error| error.to_string())?
            .resolve()
            .map_err(|failure| failure.to_string())
    }

    fn access(text: &str) -> Access {
        export(text).unwrap().access
    }

    fn hosts_of(texts: &[&str]) -> Vec<Host> {
        texts.iter().map(|text| Host::parse(text).unwrap()).collect()
    }

    #[test]
    fn rates_are_decimal_or_binary() {
        let rate = |text: &str| export(&format!("rate = '{text}'")).map(|export| export.rate);
        assert_eq!(rate("160MB/s"), Ok(Some(160_000_000)));
        assert_eq!(rate("1.5 MiB/s"), Ok(Some(1_572_864)));
        assert_eq!([rate("1000000B/s"), rate("1000kB/s")], [Ok(Some(1_000_000)), Ok(Some(1_000_000))]);
        assert_eq!(export("").unwrap().rate, None);
        for bad in ["", "160", "MB/s", "160MB", "160mb/s", "-5MB/s", "0.1MB/s", "nanMB/s", "infMB/s", "1e300GB/s"] {
            assert!(rate(bad).unwrap_err().contains("MiB/s"), "{bad}");
        }
    }

    #[test]
    fn an_export_allows_what_is_usual_unless_it_says_otherwise() {
        assert_eq!(access(""), Access::default());
        let said =
            access("squash = 'all'\nanonymous_uid = 71\nanonymous_gid = 72\nhosts = ['10.0.0.0/8', 'node:gpu*']");
        assert_eq!((said.squash, said.anonymous_uid, said.anonymous_gid), (Some(Squash::All), 71, 72));
        assert_eq!(said.hosts, Some(hosts_of(&["10.0.0.0/8", "node:gpu*"])));
        let said = export("squash = 'none'\nrate = '2GiB/s'\nread_only = true").unwrap();
        assert_eq!((said.access.squash, said.read_only, said.rate), (Some(Squash::None), true, Some(2 << 30)));
        assert!(export("squash = 'some'").unwrap_err().contains("`all`"), "the choices are named");
        assert!(export("anonymous_gid = 4294967295").unwrap_err().contains("anonymous_gid is no id"));
        assert!(ExportSettings::default().resolve().unwrap_err().to_string().contains("no path"));
    }

    /// A line of an export, whose hosts are never looked up: there is a slash in each.
    fn any_line() -> impl Strategy<Value = String> {
        let id = prop_oneof![0u64..40, Just(u64::from(u32::MAX)), Just(u64::from(u32::MAX) - 1), any::<u64>()];
        let range = (id.clone(), id.clone(), id.clone())
            .prop_map(|(client, server, count)| format!("{{ client = {client}, server = {server}, count = {count} }}"));
        let ranges = prop::collection::vec(range, 0..4).prop_map(|ranges| ranges.join(", "));
        let hosts = prop::collection::vec("'[0-9a-f:.]{0,12}/[0-9]{0,3}'", 0..4).prop_map(|hosts| hosts.join(", "));
        prop_oneof![
            ("map_uids|map_gids", ranges).prop_map(|(key, ranges)| format!("{key} = [{ranges}]\n")),
            ("hosts|read_only_hosts", hosts).prop_map(|(key, hosts)| format!("{key} = [{hosts}]\n")),
            ("anonymous_uid|anonymous_gid", id).prop_map(|(key, id)| format!("{key} = {id}\n")),
            "squash = '(root|all|none|some)'\n",
            "external = '(watch|poll|none|some)'\n",
            "external_age_seconds = (0|3|1e-9|1e10|nan|-1)\n",
            "map_others = '(same|anonymous|others)'\n",
        ]
    }

    proptest! {
        /// What is accepted keeps its promises; what is refused says which export, and what to do.
        #[test]
        fn any_export_is_understood_or_refused(lines in prop::collection::vec(any_line(), 0..5), ids in prop::collection::vec(any::<u32>(), 4)) {
            let Ok(file) = toml::from_str::<ExportSettings>(&format!("path = '/tmp'\n{}", lines.concat())) else { return Ok(()) };
            match file.resolve() {
                Ok(ExportConfig { access, .. }) => {
                    prop_assert!(access.anonymous_uid != u32::MAX && access.anonymous_gid != u32::MAX);
                    let nets = access.hosts.iter().flatten().chain(&access.read_only_hosts);
                    let is_canonical = |host: &Host| !matches!(host, Host::Network(net) if *net != canonical(*net));
                    prop_assert!(nets.clone().all(is_canonical), "{:?}", nets.collect::<Vec<_>>());
                    for map in access.maps.iter().flat_map(|maps| [&maps.users, &maps.groups]) {
                        let ranges = map.ranges().iter();
                        let first = ranges.clone().map(|range| range.client).chain(ranges.map(|range| range.client + (range.count - 1)));
                        prop_assert!(first.clone().all(|id| map.to_client(map.to_server(id)) == id && id != u32::MAX));
                        // No id becomes the one that means that there is none.
                        prop_assert!(ids.iter().all(|id| *id == u32::MAX || map.to_server(*id) != u32::MAX));
                    }
                }
                Err(failure) => {
                    let told = failure.to_string();
                    prop_assert!(told.contains("cannot serve /tmp") && told.contains("\n      do: "), "{told}");
                }
            }
        }
    }

    #[test]
    fn maps_are_made_of_ranges() {
        let text = "map_uids = [{ client = 1000, server = 5000, count = 10 }]\nmap_gids = [{ client = 1, server = 2, count = 1 }]";
        let maps = access(text).maps.unwrap();
        assert_eq!((maps.users.to_server(1009), maps.groups.to_server(1), maps.users.to_server(7)), (5009, 2, 7));
        let maps = access(&format!("{text}\nmap_others = 'anonymous'\nanonymous_uid = 71")).maps.unwrap();
        assert_eq!((maps.users.to_server(7), maps.groups.to_server(7)), (71, ANONYMOUS_ID));
        let overlap = "map_gids = [{ client = 1, server = 2, count = 5 }, { client = 5, server = 20, count = 5 }]";
        let message = export(overlap).unwrap_err();
        assert!(message.contains("cannot serve /tmp") && message.contains("map_gids: { client = 1,"), "{message}");
        assert!(message.contains("overlap at the clients"), "{message}");
        assert!(export("map_uids = [{ client = 1, server = 2 }]").unwrap_err().contains("count"));
    }

    #[test]
    fn some_clients_have_maps_of_their_own() {
        let range = |server| format!("[{{ client = 1000, server = {server}, count = 10 }}]");
        let text = format!(
            "map_uids = {}\n[[maps]]\nhosts = ['node:gpu*', '10.1.0.0/16']\nmap_uids = {}\nmap_others = 'anonymous'\n[[maps]]\nhosts = ['node:head']",
            range(5000),
            range(7000)
        );
        let access = access(&text);
        assert_eq!(access.maps.unwrap().users.to_server(1001), 5001);
        let [gpu, head] = &access.host_maps[..] else { panic!("{:?}", access.host_maps) };
        let maps = gpu.maps.as_ref().unwrap();
        assert_eq!(
            (maps.users.to_server(1001), maps.users.to_server(9), maps.groups.to_server(9)),
            (7001, ANONYMOUS_ID, ANONYMOUS_ID)
        );
        assert_eq!(gpu.hosts, hosts_of(&["node:gpu*", "10.1.0.0/16"]));
        assert_eq!((&head.hosts, &head.maps), (&hosts_of(&["node:head"]), &None), "theirs are the same on both sides");
        let message = export("[[maps]]\nmap_uids = []").unwrap_err();
        assert!(message.contains("maps: one has no hosts") && message.contains("node:gpu*"), "{message}");
        assert!(export("[[maps]]\nhosts = ['x/y']").unwrap_err().contains("maps: 'x/y' is no network"));
        assert!(export("[[maps]]\nnodes = []").unwrap_err().contains("nodes"));
    }

    #[test]
    fn hosts_are_networks_addresses_or_names() {
        for (text, expected) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("::ffff:10.1.2.3", "10.1.2.3/32"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("2001:db8::7/32", "2001:db8::/32"),
            ("::1", "::1/128"),
        ] {
            assert_eq!(networks(text), Ok(hosts_of(&[expected])), "{text}");
        }
        let local = networks_of("localhost").unwrap();
        assert!(!local.is_empty() && local.iter().all(|network| network.addr().is_loopback()), "{local:?}");
        for bad in ["", "10.0.0.0/33", "/8", "node/24"] {
            assert!(networks(bad).unwrap_err().contains("no network"), "{bad}");
        }
        assert_eq!(networks("node:n.7"), Ok(hosts_of(&["node:n.7"])));
        assert!(export("hosts = ['node:']").unwrap_err().contains("'node:' is no name of a node"));
        let message = export("read_only_hosts = ['nowhere.invalid']").unwrap_err();
        assert!(message.contains("read_only_hosts: 'nowhere.invalid' has no address"), "{message}");
    }

    #[test]
    fn an_age_is_a_time_above_zero() {
        let resolve = |choice, seconds| ExternalConfig::resolve("cannot serve /x", choice, Some(seconds));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e10] {
            let message = resolve(None, bad).unwrap_err().to_string();
            assert!(message.contains("external_age_seconds") && message.contains("above 0"), "{message}");
        }
        assert!(resolve(Some(ExternalChoice::None), 3.0).unwrap_err().to_string().contains("nothing gets too old"));
        assert_eq!(resolve(None, 1.5).unwrap().age, Some(Duration::from_millis(1500)));
    }
}
