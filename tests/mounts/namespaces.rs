//! Clients on machines of their own, as far as the network goes.

use std::fs;
use std::time::Duration;

use crate::agent::Agent;
use crate::common::{Mount, Server, directory, mount_point, run, wait_until, within};
use crate::keys::Keys;
use crate::network::{ADDRESSES, Network};

/// A client that answers nothing for 5 s has vanished; then comes the grace time of its session, 15 s.
const FREED_AFTER: Duration = Duration::from_secs(30);

#[test]
fn two_clients_on_two_networks_share_a_server() {
    within(Duration::from_secs(120), || {
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
