//! Clients on machines of their own, as far as the network goes: namespaces joined by a bridge that the test makes.

use std::fs;
use std::process::{Command, id};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::agent::Agent;
use crate::common::{Mount, Output, Server, aqueduct, directory, have, mount_point, run, skip, wait_until, within};
use crate::keys::Keys;

/// Three namespaces: a server with a bridge, and two clients. They go when this goes, with all links in them.
pub struct Network {
    names: [String; 3],
}

/// A peer that does not acknowledge for 20 s is given up; then comes the grace time of its session.
const FREED_AFTER: Duration = Duration::from_secs(45);

pub const ADDRESSES: [&str; 3] = ["10.77.0.1", "10.77.0.2", "10.77.0.3"];

fn ip(arguments: &str) -> Output {
    run(Command::new("ip").args(arguments.split(' ')))
}

impl Network {
    /// Nothing when this machine does not let us.
    pub fn new() -> Option<Network> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::SeqCst);
        let network = Network { names: ["s", "a", "b"].map(|name| format!("aq{}{name}{number}", id())) };
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
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.names[number])).arg(aqueduct().get_program());
        command
    }

    fn set_link(&self, number: usize, state: &str) {
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

#[test]
fn two_clients_on_two_networks_share_a_server() {
    within(Duration::from_secs(120), || {
        if !have(&["ip", "nsenter"]) {
            return;
        }
        let Some(network) = Network::new() else { return };
        let export = directory();
        let listen = format!("{}:7170", ADDRESSES[0]);
        let arguments = ["--listen", &listen, "--insecure", "--squash", "none"];
        let server = Server::start_with(&mut network.inside(0), &arguments, &[export.path()]);
        let source = format!("{}:{}", ADDRESSES[0], export.path().display());
        let left = Mount::start(&mut network.inside(1), &[&source], "");
        let right = Mount::start(&mut network.inside(2), &[&source], "");

        let data: Vec<u8> = (0..3_000_000u32).map(|n| (n / 3) as u8).collect();
        fs::write(left.join("file"), &data).unwrap();
        assert!(fs::read(right.join("file")).unwrap() == data);
        fs::rename(right.join("file"), right.join("moved")).unwrap();
        assert!(left.join("moved").exists() && !left.join("file").exists());

        let locker = |mount: &Mount| {
            let mut agent = Agent::start();
            agent.ask(&format!("open 0 {} rwc", mount.join("lock").display())).unwrap();
            agent
        };
        let (mut held, mut wanted) = (locker(&left), locker(&right));
        held.ask("process 0 W 0 0").unwrap();
        wanted.tell("process 0 W 0 0 wait");
        assert!(wanted.is_waiting());

        // The cable is pulled for a moment: nothing is lost.
        network.set_link(2, "down");
        std::thread::sleep(Duration::from_millis(500));
        network.set_link(2, "up");
        held.ask("process 0 U 0 0").unwrap();
        wanted.answer_within(Duration::from_secs(20)).expect("granted after the link came back").unwrap();
        wanted.ask("write 0 granted").unwrap();
        assert_eq!(fs::read_to_string(left.join("lock")).unwrap(), "granted");

        // The cable is pulled for good: what its client held is free after some time, and the other works on.
        network.set_link(2, "down");
        fs::write(left.join("meanwhile"), "x").unwrap();
        held.tell("process 0 W 0 0 wait");
        let freed = held.answer_within(FREED_AFTER);
        network.set_link(2, "up");
        match freed {
            Some(result) => drop(result.unwrap()),
            None => panic!("a client that is cut off keeps its lock for ever"),
        }
        wait_until("the client that was cut off works again", Duration::from_secs(20), || {
            fs::read(right.join("meanwhile")).is_ok()
        });
        drop((left, right, server));
    });
}

/// On an address that others reach, a server with a key serves who has it, and nobody else.
#[test]
fn a_server_with_a_key_serves_its_members_over_the_network() {
    within(Duration::from_secs(60), || {
        if !have(&["ip", "nsenter"]) {
            return;
        }
        let Some(network) = Network::new() else { return };
        let (export, keys) = (directory(), Keys::new(&["ours", "other"]));
        let listen = format!("{}:7170", ADDRESSES[0]);
        let arguments = ["--listen", &listen, "--key", &keys.text("ours"), "--squash", "none"];
        let server = Server::start_with(&mut network.inside(0), &arguments, &[export.path()]);
        let source = format!("{}:{}", ADDRESSES[0], export.path().display());
        let member = Mount::start(&mut network.inside(1), &[&source], &keys.option("ours"));
        let data: Vec<u8> = (0..3_000_000u32).map(|n| (n / 3) as u8).collect();
        fs::write(member.join("file"), &data).unwrap();
        assert!(fs::read(member.join("file")).unwrap() == data);
        let point = mount_point();
        for options in ["rw", &keys.option("other")] {
            let stranger = run(network.inside(2).args(["mount", "-o", options, &source]).arg(&point)).failed();
            assert!(stranger.contains("key"), "{stranger}");
        }
        fs::remove_dir(&point).unwrap();
        drop((member, server));
    });
}
