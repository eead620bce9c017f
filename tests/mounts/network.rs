//! Machines of their own, as far as the network goes: namespaces joined by a bridge, whose wires a test cuts, slows down and mends.

use std::process::{Command, id};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Output, aqueduct, have, run, skip};

/// Three namespaces: a server with a bridge, and two clients. They go when this goes, with all links in them.
pub struct Network {
    names: [String; 3],
}

pub const ADDRESSES: [&str; 3] = ["10.77.0.1", "10.77.0.2", "10.77.0.3"];

/// Tests run side by side.
static NETWORKS: AtomicUsize = AtomicUsize::new(0);

fn ip(arguments: &str) -> Output {
    run(Command::new("ip").args(arguments.split(' ')))
}

impl Network {
    /// Nothing when this machine does not let us.
    pub fn new() -> Option<Network> {
        if !have(&["ip", "nsenter", "nft", "tc"]) {
            return None;
        }
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let network = Network { names: ["s", "a", "b"].map(|name| format!("aq{}-{number}{name}", id())) };
        let [server, ..] = &network.names;
        for name in &network.names {
            let made = ip(&format!("netns add {name}"));
            if !made.status.success() {
                skip(&format!("cannot make network namespaces: {}", made.text));
                return None;
            }
            ip(&format!("-n {name} link set lo up")).succeeded();
        }
        ip(&format!("-n {server} link add br0 type bridge")).succeeded();
        ip(&format!("-n {server} addr add {}/24 dev br0", ADDRESSES[0])).succeeded();
        ip(&format!("-n {server} link set br0 up")).succeeded();
        for (number, name) in network.names.iter().enumerate().skip(1) {
            let address = ADDRESSES[number];
            // Both ends are made inside the namespaces; this machine's own network never sees them.
            ip(&format!("-n {server} link add veth{number} type veth peer name eth0 netns {name}")).succeeded();
            ip(&format!("-n {server} link set veth{number} master br0 up")).succeeded();
            ip(&format!("-n {name} addr add {address}/24 dev eth0")).succeeded();
            ip(&format!("-n {name} link set eth0 up")).succeeded();
        }
        Some(network)
    }

    /// The program, in a namespace of the network but with this machine's mounts.
    pub fn inside(&self, number: usize) -> Command {
        let mut command = self.enter(number);
        command.arg(aqueduct().get_program());
        command
    }

    /// What runs a program in a namespace of the network.
    pub fn enter(&self, number: usize) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.names[number]));
        command
    }

    fn nft(&self, number: usize, script: &str) {
        run(self.enter(number).args(["nft", script])).succeeded();
    }

    /// Drops all that comes from a client, and all that comes to it, or what of it `which` says; nobody is told.
    fn cut_where(&self, number: usize, [from, to]: [&str; 2]) {
        self.drop_at(number, (&format!("veth{number}"), 0), from);
        self.drop_at(number, ("eth0", number), to);
    }

    /// Drops what comes in at a device of a place, or what of it `which` says.
    fn drop_at(&self, number: usize, (device, place): (&str, usize), which: &str) {
        let chain = format!("type filter hook ingress device \"{device}\" priority 0;");
        self.nft(place, &format!("add table netdev cut{number}"));
        self.nft(place, &format!("add chain netdev cut{number} c {{ {chain} }}"));
        self.nft(place, &format!("add rule netdev cut{number} c {which} drop"));
    }

    /// Cuts a client off, silently.
    pub fn cut(&self, number: usize) {
        self.cut_where(number, ["meta protocol != 0", "meta protocol != 0"]);
    }

    /// Cuts only what comes to a client, silently; what it sends arrives.
    pub fn deafen(&self, number: usize) {
        self.drop_at(number, ("eth0", number), "meta protocol != 0");
    }

    /// Cuts one connection of a client, which has this port.
    pub fn cut_port(&self, number: usize, port: u16) {
        self.cut_where(number, [&format!("tcp sport {port}"), &format!("tcp dport {port}")]);
    }

    /// Mends what was cut.
    pub fn heal(&self, number: usize) {
        for place in [0, number] {
            // One that is not there cannot be deleted.
            self.nft(place, &format!("add table netdev cut{number}"));
            self.nft(place, &format!("delete table netdev cut{number}"));
        }
    }

    /// The ports of a client's connections to the server.
    pub fn ports(&self, number: usize) -> Vec<u16> {
        let text = run(self.enter(number).args(["cat", "/proc/net/tcp"])).succeeded();
        let port = |line: &str| {
            let mut fields = line.split_whitespace().skip(1);
            let (own, peer, state) = (fields.next()?, fields.next()?, fields.next()?);
            (peer.ends_with(":1C02") && state == "01").then_some(())?;
            u16::from_str_radix(own.split_once(':')?.1, 16).ok()
        };
        text.lines().filter_map(port).collect()
    }

    /// Holds the wire to and from a client to a rate.
    pub fn slow_down(&self, number: usize, rate: &str) {
        for (place, device) in [(0, format!("veth{number}")), (number, "eth0".into())] {
            let shape = ["qdisc", "add", "dev", &device, "root", "tbf", "rate", rate, "burst", "32kb", "latency", "1s"];
            run(self.enter(place).arg("tc").args(shape)).succeeded();
        }
    }

    pub fn set_link(&self, number: usize, state: &str) {
        ip(&format!("-n {} link set veth{number} {state}", self.names[0])).succeeded();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}
