//! Three networks, routers between them, and who is in them.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Mount, Process, SOON, Server, aqueduct, directory, run, wait_until};
use crate::lab::Lab;

/// The client's.
pub const NET1: u8 = 81;

/// That of the first server.
pub const NET2: u8 = 82;

/// That of the second, behind a further router.
pub const NET3: u8 = 83;

/// Each host has this number in each of its networks.
const HOSTS: [(&str, u8, &[u8]); 6] = [
    ("client", 7, &[NET1]),
    ("a", 1, &[NET1, NET2]),
    ("b", 2, &[NET1, NET2]),
    ("c", 9, &[NET2, NET3]),
    ("near", 5, &[NET2]),
    ("far", 5, &[NET3]),
];

/// The address of a host in a network.
pub fn address(host: &str, network: u8) -> Ipv4Addr {
    let (_, number, _) = HOSTS.iter().find(|(name, ..)| *name == host).unwrap();
    Ipv4Addr::new(10, network, 0, *number)
}

/// The networks; they go when this goes.
pub struct Networks {
    _lab: Lab,
    id: String,
    home: TempDir,
}

impl Networks {
    /// Nothing when this machine does not let us.
    pub fn new() -> Option<Networks> {
        let names: Vec<&str> = ["switch"].into_iter().chain(HOSTS.iter().map(|(name, ..)| *name)).collect();
        let lab = Lab::new(&names)?;
        let id = lab.known()["id"].as_str().unwrap().to_owned();
        let networks = Networks { _lab: lab, id, home: directory() };
        for network in [NET1, NET2, NET3] {
            networks.ip("switch", &format!("link add net{network} type bridge"));
            networks.ip("switch", &format!("link set net{network} up"));
        }
        for (host, _, joined) in HOSTS {
            for network in joined {
                let (port, card) = (format!("{host}{network}"), format!("net{network}"));
                let inside = format!("{}-{host}", networks.id);
                networks.ip("switch", &format!("link add {port} type veth peer name {card} netns {inside}"));
                networks.ip("switch", &format!("link set {port} master net{network} up"));
                networks.ip(host, &format!("addr add {}/24 dev {card}", address(host, *network)));
                networks.ip(host, &format!("link set {card} up"));
            }
        }
        Some(networks)
    }

    fn ip(&self, host: &str, arguments: &str) {
        run(Command::new("ip").args(["-n", &format!("{}-{host}", self.id)]).args(arguments.split(' '))).succeeded();
    }

    /// Takes a host's wire to a network away, or gives it back. Its other end has no carrier then.
    pub fn set_wire(&self, host: &str, network: u8, state: &str) {
        self.ip("switch", &format!("link set {host}{network} {state}"));
    }

    /// Holds what a host sends to a network to a rate, or no more.
    pub fn shape(&self, host: &str, network: u8, rate: Option<&str>) {
        let (namespace, card) = (format!("{}-{host}", self.id), format!("net{network}"));
        let bucket = rate.map(|rate| format!("root tbf rate {rate} burst 64kb latency 1s"));
        let verb = if rate.is_some() { "replace" } else { "del" };
        let words = format!("qdisc {verb} dev {card} {}", bucket.unwrap_or_else(|| "root".to_owned()));
        run(Command::new("tc").args(["-n", &namespace]).args(words.split(' '))).succeeded();
    }

    /// Aqueduct on a host, with this machine's mounts.
    pub fn inside(&self, host: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}-{host}", self.id)).arg(aqueduct().get_program());
        command
    }

    /// A server that everybody may use, on the host of a network.
    pub fn serve(&self, (host, network): (&str, u8), arguments: &[&str], exports: &[&Path]) -> Server {
        let listen = format!("{}:7170", address(host, network));
        let arguments = [&["--listen", &listen], arguments].concat();
        Server::start_with(&mut self.inside(host), &arguments, exports)
    }

    /// A router on a host, in these networks; further lines of its file.
    pub fn route(&self, host: &str, networks: [u8; 2], more: &str) -> Router {
        let listen = networks.map(|network| format!("\"{}@net{network}\"", address(host, network)));
        let control = self.home.path().join(format!("{host}.sock"));
        let config = self.home.path().join(format!("{host}.toml"));
        let text = format!("name = \"{host}\"\nlisten = [{}]\ncontrol = {control:?}\n{more}", listen.join(", "));
        std::fs::write(&config, text).unwrap();
        let mut router = Router { control, log: self.home.path().join(format!("{host}.log")), config, process: None };
        router.start(&mut self.inside(host));
        router
    }

    /// A mount of the client's, by these routers.
    pub fn mount(&self, source: &str, routes: &[&str], options: &str) -> Mount {
        let routes: String = routes.iter().map(|route| format!(",route={route}")).collect();
        Mount::start(&mut self.inside("client"), &[source], format!("{options}{routes}").trim_start_matches(','))
    }
}

/// A router that runs, or has run.
pub struct Router {
    control: PathBuf,
    config: PathBuf,
    log: PathBuf,
    pub process: Option<Process>,
}

impl Router {
    /// Starts it, as it was.
    pub fn start(&mut self, program: &mut Command) {
        let process = Process::start(program.arg("route").arg("--config").arg(&self.config), &self.log);
        wait_until("the router listens", SOON, || process.output().matches("listening on").count() == 2);
        self.process = Some(process);
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.signal(rustix::process::Signal::KILL);
        process.ends_within(SOON);
    }

    /// `aqueduct route VERB`.
    pub fn does(&self, arguments: &[&str]) -> String {
        run(aqueduct().arg("route").args(arguments).arg("--control").arg(&self.control)).succeeded()
    }

    /// What it tells of itself.
    pub fn status(&self) -> Value {
        serde_json::from_str(&self.does(&["show", "--json"])).unwrap()
    }

    /// Flows that it carries.
    pub fn flows(&self) -> u64 {
        self.status()["flows_total"].as_u64().unwrap()
    }

    /// Bytes that it has passed on to and from a network, or a client.
    pub fn bytes(&self, scope: &str, name: &str) -> u64 {
        let status = self.status();
        // None before its first flow.
        let samples = status["metrics"]["aqueduct_router_passed_bytes_total"]["samples"].as_array();
        let is_it = |sample: &&Value| sample["labels"]["scope"] == scope && sample["labels"]["name"] == name;
        samples.into_iter().flatten().filter(is_it).map(|sample| sample["value"].as_u64().unwrap()).sum()
    }
}
