//! `net path`: each way to a server, hop by hop, and what is wrong with it, by name.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use aqueduct_net::routes::Table;
use aqueduct_net::{Address, Path, interfaces, pairs};
use aqueduct_node::{Asker, ConnectError};
use aqueduct_wire::{ClientKey, NetworkName};
use clap::Args;
use serde::Serialize;

use super::packets::{Asked, Packets};
use super::routed::Behind;
use super::ways::{Carried, next_hop, reached};
use super::{Door, Times, unreachable};
use crate::{Failure, net};

/// Questions for each hop.
pub(super) const QUESTIONS: usize = 20;

/// What is told as having come is at least so much of what an interface must have counted:
/// answers and their headers.
const COUNTED_LEAST: u64 = 1;

/// The options.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  aqueduct net path server
  aqueduct net path --route net2@10.1.0.1 10.2.0.5@net2
  aqueduct net path --json 10.0.0.5,10.1.0.5:7170 | jq '.ways[].problems'

Each address of the server that is given, and each that it tells and that shares a subnet with this machine,
is a way; of a server behind routers (HOST@NET) each of its routers is. Of each: by which interface and gateway it goes, how long the server takes to answer, and whether
packets of full size pass. What is wrong is named:
  no-answer                 nobody answers, and how far packets get; or who takes connections says nothing
  gateway-does-not-forward  the gateway is the last that packets are heard of
  refused                   nobody listens at that port, or whoever does lets nobody in
  mtu-black-hole            small packets pass, and those of full size vanish without a word
  asymmetric                answers come by another interface than questions go
  loss                      some questions are not answered
  router-takes-nothing      it stops, or has as many flows as it takes
Exit codes: 0 nothing is wrong, 1 something is, 2 the options make no sense.")]
pub struct Arguments {
    /// Whom.
    #[command(flatten)]
    pub door: Door,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What can be wrong with a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nobody answers.
    NoAnswer,
    /// The gateway is the last that packets are heard of.
    GatewayDoesNotForward,
    /// Somebody answers, and does not let this machine in.
    Refused,
    /// Only small packets pass.
    MtuBlackHole,
    /// Answers come another way than questions go.
    Asymmetric,
    /// Some questions are not answered.
    Loss,
    /// The router stops, or is full.
    RouterTakesNothing,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What.
    pub kind: Kind,
    /// What was seen.
    pub seen: String,
    /// What to do.
    pub hint: String,
}

/// A place on the way that answers.
#[derive(Clone, Debug, Serialize)]
pub struct Hop {
    /// From 1.
    pub number: usize,
    /// What it is.
    pub is: &'static str,
    /// Where.
    pub address: String,
    /// How long it takes to answer, in microseconds; none: it does not.
    pub round_trip_us: Option<Times>,
    /// Questions that were not answered.
    pub lost: usize,
}

/// A way to the server.
#[derive(Clone, Debug, Serialize)]
pub struct Way {
    /// From which address or interface; `any` where the routing table says it.
    pub from: String,
    /// By which interface it leaves, where that is known.
    pub interface: Option<String>,
    /// The router, or the IP gateway; none where the server is in a subnet of this machine.
    pub gateway: Option<IpAddr>,
    /// To where.
    pub to: String,
    /// What answers on the way, the server last.
    pub hops: Vec<Hop>,
    /// Whether full packets pass.
    pub packets: Option<Packets>,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let (key, timeout, table) = (arguments.door.key()?, arguments.door.timeout, arguments.door.table()?);
    let server = arguments.door.server(&table)?;
    let Given { straight, routed } = resolve(&server, &table)?;
    let key = key.as_ref();
    let told = told(&straight, key, timeout);
    let mut ways: Vec<Way> = paths(&straight, &told).iter().map(|path| look(path, key, timeout)).collect();
    for (network, server) in &routed {
        ways.extend(Behind { network, server: *server, key, timeout }.look(&table));
    }
    let is_well = ways.iter().all(|way| way.problems.is_empty());
    if arguments.json {
        let document = serde_json::json!({ "server": server, "is_well": is_well, "ways": ways });
        net::print(&(serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"));
    } else {
        ways.iter().for_each(|way| net::print(&text(way)));
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The addresses that were given.
#[derive(Default)]
struct Given {
    /// Reached without a router of ours.
    straight: Vec<Address>,
    /// In networks behind routers.
    routed: Vec<(NetworkName, SocketAddr)>,
}

/// The addresses of a list with commas between.
fn resolve(server: &str, table: &Table) -> Result<Given, Failure> {
    let mut given = Given::default();
    for text in server.split(',') {
        if let Some(path) = text.strip_prefix(aqueduct_node::place::UNIX) {
            given.straight.push(Address::Unix(path.into()));
            continue;
        }
        let (host, network) = text.rsplit_once('@').map_or((text, None), |(host, name)| (host, NetworkName::new(name)));
        let failed = |source| unreachable(server, &ConnectError::Resolve { server: host.to_owned(), source });
        let addresses = host.to_socket_addrs().map_err(failed)?;
        match network.filter(|name| !table.networks.iter().any(|own| own.name == *name)) {
            Some(name) => given.routed.extend(addresses.map(|address| (name.clone(), address))),
            None => given.straight.extend(addresses.map(Address::from)),
        }
    }
    Ok(given)
}

/// What the server tells of itself, at the first address where it answers.
fn told(given: &[Address], key: Option<&ClientKey>, timeout: Duration) -> Vec<SocketAddr> {
    let ask = |address: &Address| Asker::connect(&address.to_string(), key.cloned(), None, timeout).ok();
    given.iter().find_map(ask).map(|asker| asker.addresses().to_vec()).unwrap_or_default()
}

/// The ways to these addresses, and to those others of the server that share a subnet with this
/// machine.
fn paths(given: &[Address], told: &[SocketAddr]) -> Vec<Path> {
    let tcp: Vec<SocketAddr> = given
        .iter()
        .filter_map(|address| match address {
            Address::Tcp(address) => Some(*address),
            Address::Unix(_) => None,
        })
        .collect();
    // Another machine's loopback is not this one's.
    let is_near = tcp.iter().any(|address| address.ip().is_loopback());
    let others = told.iter().filter(|address| is_near || !address.ip().is_loopback()).copied();
    let remotes: Vec<SocketAddr> = tcp.iter().copied().chain(others).collect();
    let mut found = pairs(&interfaces().unwrap_or_default(), &remotes);
    for address in given.iter().rev() {
        if !found.iter().any(|path| path.remote == *address) {
            found.insert(0, address.clone().into());
        }
    }
    found
}

/// Looks at one way.
fn look(path: &Path, key: Option<&ClientKey>, timeout: Duration) -> Way {
    let remote = match &path.remote {
        Address::Tcp(address) => Some(*address),
        Address::Unix(_) => None,
    };
    let next = remote.and_then(|remote| next_hop(remote.ip()));
    let interface = path.local.interface.clone().or(next.as_ref().map(|next| next.interface.clone()));
    let gateway = next.and_then(|next| next.gateway).map(IpAddr::from);
    let mut way = Way { interface, ..Way::new(path.local.to_string(), path.remote.to_string(), gateway) };
    match remote {
        Some(remote) => look_by_tcp(&mut way, &Asked { path, key, timeout }, remote),
        None => match Asker::connect(&way.to, key.cloned(), None, timeout) {
            Ok(mut asker) => way.questions(1, &mut asker, timeout),
            Err(error) => way.refused(&error),
        },
    }
    way
}

fn look_by_tcp(way: &mut Way, asked: &Asked<'_>, remote: SocketAddr) {
    let before = Carried::so_far();
    let mut asker = match asked.connect(None) {
        Ok((asker, _)) => asker,
        Err(ConnectError::Connect { source, .. }) if source.kind() != std::io::ErrorKind::ConnectionRefused => {
            return way.silent(remote, asked.timeout, &source.to_string());
        }
        Err(error) => return way.refused(&error),
    };
    way.questions(1, &mut asker, asked.timeout);
    let answered = way.hops.last().map_or(0, |hop| QUESTIONS - hop.lost) as u64;
    let came = (answered * aqueduct_wire::HEADER_SIZE as u64).max(COUNTED_LEAST);
    if let Some(back) = way.interface.as_deref().and_then(|out| before.came_elsewhere(out, came)) {
        way.asymmetric(&back);
    }
    match asked.packets() {
        Ok(packets) => way.judge(packets),
        Err(error) => way.refused(&error),
    }
}

impl Way {
    pub(super) fn new(from: String, to: String, gateway: Option<IpAddr>) -> Way {
        Way { from, interface: None, gateway, to, hops: Vec::new(), packets: None, problems: Vec::new() }
    }

    pub(super) fn problem(&mut self, kind: Kind, seen: String, hint: &str) {
        self.problems.push(Problem { kind, seen, hint: hint.to_owned() });
    }

    /// Asks the server some times.
    pub(super) fn questions(&mut self, number: usize, asker: &mut Asker, timeout: Duration) {
        let mut times = Vec::new();
        // One that hears nothing for the whole time will not hear more.
        while times.len() < QUESTIONS {
            let Ok(took) = asker.ping(0, timeout) else { break };
            times.push(took);
        }
        let lost = QUESTIONS - times.len();
        if lost > 0 {
            let seen =
                format!("of {QUESTIONS} questions {} were answered, and the next not within {timeout:?}", times.len());
            self.problem(Kind::Loss, seen, "look at the wire's counters of errors, and whether the server is stopped");
        }
        let address = self.to.clone();
        self.hops.push(Hop { number, is: "server", address, round_trip_us: Times::of(&times), lost });
    }

    /// Nobody answers: how far do packets get?
    fn silent(&mut self, remote: SocketAddr, timeout: Duration, why: &str) {
        self.hops.push(Hop { number: 1, is: "server", address: self.to.clone(), round_trip_us: None, lost: 0 });
        let routers = reached(remote, timeout.min(Duration::from_secs(1)));
        match (self.gateway, routers) {
            (Some(gateway), 0) => self.problem(
                Kind::GatewayDoesNotForward,
                format!("{why}; and the gateway {gateway} does not say that packets pass it"),
                "see whether it runs, forwards (sysctl net.ipv4.ip_forward) and lets this through, or name another: ip route",
            ),
            (Some(gateway), routers) => self.problem(
                Kind::NoAnswer,
                format!("{why}; packets pass {routers} routers, the first {gateway}, and vanish behind them"),
                "see whether the host is up, and whether it, or a firewall before it, drops the port",
            ),
            (None, _) => self.problem(
                Kind::NoAnswer,
                why.to_owned(),
                "see whether the host is up, its wire is in, and no firewall drops the port",
            ),
        }
    }

    /// Somebody lets nobody in, or takes connections and says nothing.
    pub(super) fn refused(&mut self, error: &ConnectError) {
        let kind = if matches!(error, ConnectError::Silent { .. }) { Kind::NoAnswer } else { Kind::Refused };
        self.problem(kind, error.to_string(), &error.hint());
    }

    fn asymmetric(&mut self, back: &str) {
        let out = self.interface.clone().unwrap_or_default();
        self.problem(
            Kind::Asymmetric,
            format!("questions leave by {out}, and answers come by {back}"),
            "give the server a route back by the same wire; until then what is known of one wire is not true of the way, and a firewall or rp_filter may drop the answers",
        );
    }

    pub(super) fn judge(&mut self, packets: Packets) {
        self.packets = Some(packets);
        let Packets { size, go, come, pass } = packets;
        let which = match (go, come) {
            (true, Some(false)) => "from the server",
            (false, Some(false)) => "both ways",
            (false, _) => "to the server",
            (true, _) => return,
        };
        let pass = match (size, pass) {
            (0, _) => "look at each part of the way: aqueduct net path from here, and from the router".to_owned(),
            (_, Some(pass)) => format!("those of {pass} bytes do"),
            (_, None) => "none that was tried does".to_owned(),
        };
        let size = if size == 0 { "full size".to_owned() } else { format!("{size} bytes") };
        self.problem(
            Kind::MtuBlackHole,
            format!("small packets pass, and those of {size} {which} vanish without a word; {pass}"),
            "let routers and firewalls on the way say so (ICMP 'fragmentation needed', IPv6 'packet too big'), or set the MTU of this way to what passes: ip route change ... mtu BYTES, at both ends; sysctl net.ipv4.tcp_mtu_probing=1 has TCP find it out",
        );
    }
}

fn text(way: &Way) -> String {
    let by = way.interface.as_ref().map_or(String::new(), |interface| format!(" by {interface}"));
    let over = way.gateway.map_or(String::new(), |gateway| format!(", gateway {gateway}"));
    let from = if way.from == "any" { String::new() } else { format!(" from {}", way.from) };
    let mut text = format!("to {}{from}{by}{over}\n", way.to);
    for hop in &way.hops {
        let times = hop.round_trip_us.map_or("no answer".to_owned(), |Times { min, p50, p99, .. }| {
            format!("round trip min {min}, median {p50}, 99 % {p99} us")
        });
        text += &format!("  {} {} {}: {times}\n", hop.number, hop.is, hop.address);
    }
    if let Some(Packets { size, go: true, come, .. }) = way.packets
        && come != Some(false)
    {
        let size = if size == 0 { "full size".to_owned() } else { format!("{size} bytes") };
        text += &format!("  packets of {size} pass\n");
    }
    for Problem { kind, seen, hint } in &way.problems {
        let kind =
            serde_json::to_value(kind).ok().and_then(|kind| kind.as_str().map(str::to_owned)).unwrap_or_default();
        text += &format!("  WRONG: {kind}: {seen}\n         do: {hint}\n");
    }
    if way.problems.is_empty() {
        text += "  nothing is wrong\n";
    }
    text
}
