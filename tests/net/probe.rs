//! `aqueduct net ping` and `net path`: what is wrong is said by name, and what is well is not.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{aqueduct, directory, run, signal, within};
use crate::lab::{Lab, Wire};

/// Two hosts and their wires; the second serves a directory.
fn served(wires: &[&[&str]], options: &[&str]) -> Option<(Lab, Vec<Wire>, TempDir)> {
    let lab = Lab::new(&["a", "b"])?;
    let wires = wires.iter().map(|options| lab.link("a", "b", options)).collect();
    let export = directory();
    lab.does("serve", &[&["b", export.path().to_str().unwrap()], options].concat());
    Some((lab, wires, export))
}

/// What `net path` says of each way: the address, and the kinds of problems.
fn said(lab: &Lab, server: &str) -> Vec<(String, Vec<String>)> {
    let output = run(lab.inside("a").args(["net", "path", "--json", "--timeout", "1.5", server]));
    let document: Value = serde_json::from_str(&output.text).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let ways = document["ways"].as_array().unwrap().iter();
    let found: Vec<(String, Vec<String>)> = ways
        .map(|way| {
            let kinds =
                way["problems"].as_array().unwrap().iter().map(|problem| problem["kind"].as_str().unwrap().to_owned());
            (way["to"].as_str().unwrap().to_owned(), kinds.collect())
        })
        .collect();
    assert_eq!(output.status.success(), found.iter().all(|(_, kinds)| kinds.is_empty()), "{output:?}");
    found
}

/// Of the way to one address.
fn of(lab: &Lab, address: &str) -> Vec<String> {
    let server = format!("{address}:7170");
    let ways = said(lab, &server);
    let way = ways.iter().find(|(to, _)| *to == server).unwrap_or_else(|| panic!("no way to {server}: {ways:?}"));
    way.1.clone()
}

#[test]
fn a_round_trip_is_what_the_wires_take() {
    within(Duration::from_secs(120), || {
        let Some((lab, wires, _export)) = served(&[&["--delay", "5ms"]], &[]) else { return };
        let command = ["net", "ping", "--json", "-c", "50", "-i", "0", &wires[0].far_address];
        let document: Value = serde_json::from_str(&run(lab.inside("a").args(command)).succeeded()).unwrap();
        assert_eq!((document["answered"].as_u64(), &document["problem"]), (Some(50), &Value::Null));
        let at = |name: &str| document["round_trip_us"][name].as_f64().unwrap();
        assert!(at("min") >= 10_000.0 && at("min") < 20_000.0, "{document}");
        let ranked = ["min", "p50", "p90", "p99", "p999", "max"].map(at);
        assert!(ranked.is_sorted(), "{ranked:?}");
        // A session that mounts nothing lives 5 s.
        let longer = ["net", "ping", "-c", "14", "-i", "0.4", &wires[0].far_address];
        let text = run(lab.inside("a").args(longer)).succeeded();
        assert!(text.contains("14 questions answered"), "{text}");
    });
}

#[test]
fn who_has_no_key_is_told_so_and_who_has_is_answered() {
    within(Duration::from_secs(60), || {
        let home = directory();
        let key = home.path().join("key").to_str().unwrap().to_owned();
        run(aqueduct().args(["keygen", &key])).succeeded();
        let Some((lab, wires, _export)) = served(&[&[]], &["--key", &key]) else { return };
        let ask = |options: &[&str]| {
            run(lab.inside("a").args(["net", "ping", "-c", "5", &wires[0].far_address]).args(options))
        };
        assert!(ask(&[]).failed().contains("no key was given"));
        assert!(ask(&["--key", &key, "-s", "64k"]).succeeded().contains("5 questions answered"));
        assert_eq!(of(&lab, &wires[0].far_address), ["refused"]);
    });
}

#[test]
fn ways_that_are_well_are_said_to_be() {
    within(Duration::from_secs(60), || {
        let Some((lab, wires, _export)) = served(&[&[], &["--mtu", "9000"]], &[]) else { return };
        let found = said(&lab, &wires[0].far_address);
        let expected = wires.iter().map(|wire| (format!("{}:7170", wire.far_address), Vec::<String>::new()));
        assert_eq!(found, expected.collect::<Vec<_>>(), "the server tells of the second");
    });
}

#[test]
fn full_packets_that_vanish_are_a_black_hole() {
    within(Duration::from_secs(120), || {
        let Some((lab, wires, _export)) = served(&[&[]], &[]) else { return };
        let [Wire { near, far, far_address, .. }] = &wires[..] else { panic!() };
        for (host, interface) in [("b", far), ("a", near)] {
            lab.does("cut", &[host, interface, "in", "--larger", "1400"]);
            let output = run(lab.inside("a").args(["net", "path", "--timeout", "1.5", far_address]));
            let text = output.failed();
            let which = if host == "b" { "to the server" } else { "from the server" };
            assert!(
                text.contains("mtu-black-hole") && text.contains(which) && text.contains("those of 1380 bytes do"),
                "{text}"
            );
            lab.does("heal", &[host, interface]);
        }
        assert!(of(&lab, far_address).is_empty());
    });
}

#[test]
fn answers_that_come_by_another_wire_are_noticed() {
    within(Duration::from_secs(60), || {
        let Some((lab, wires, _export)) = served(&[&[], &[]], &[]) else { return };
        let [first, second] = &wires[..] else { panic!() };
        assert!(of(&lab, &first.far_address).is_empty());
        let back = ["ip", "route", "replace", &first.near_address, "via", &second.near_address, "dev", &second.far];
        run(lab.enter("b").args(back)).succeeded();
        assert_eq!(of(&lab, &first.far_address), ["asymmetric"]);
        assert!(of(&lab, &second.far_address).is_empty());
    });
}

/// A router of IP between two hosts: its default is to pass packets on.
fn joined() -> Option<(Lab, [Wire; 2], TempDir)> {
    let lab = Lab::new(&["a", "g", "b"])?;
    let [near, far] = [("a", "g"), ("g", "b")].map(|(near, far)| lab.link(near, far, &[]));
    let route =
        |host: &str, to: &str, via: &str| run(lab.enter(host).args(["ip", "route", "add", to, "via", via])).succeeded();
    route("a", &far.far_address, &near.far_address);
    route("b", &near.near_address, &far.near_address);
    let export = directory();
    lab.does("serve", &["b", export.path().to_str().unwrap()]);
    Some((lab, [near, far], export))
}

#[test]
fn a_gateway_that_does_not_forward_is_named() {
    within(Duration::from_secs(120), || {
        let Some((lab, [near, far], _export)) = joined() else { return };
        assert!(of(&lab, &far.far_address).is_empty());
        let forward = |setting: &str| run(lab.enter("g").args(["sysctl", "-w", setting])).succeeded();
        forward("net.ipv4.ip_forward=0");
        let text = run(lab.inside("a").args(["net", "path", "--timeout", "1.5", &far.far_address])).failed();
        assert!(text.contains("gateway-does-not-forward") && text.contains(&near.far_address), "{text}");
        forward("net.ipv4.ip_forward=1");
        assert!(of(&lab, &far.far_address).is_empty());
        // What is wrong behind the gateway is no fault of it.
        lab.does("cut", &["b", &far.far, "in"]);
        assert_eq!(of(&lab, &far.far_address), ["no-answer"]);
        lab.does("heal", &["b", &far.far]);
        lab.does("cut", &["b", &far.far, "in", "--larger", "1400"]);
        assert_eq!(of(&lab, &far.far_address), ["mtu-black-hole"]);
    });
}

#[test]
fn where_nobody_listens_is_told_from_where_nobody_is() {
    within(Duration::from_secs(60), || {
        let Some((lab, wires, _export)) = served(&[&[]], &[]) else { return };
        let closed = format!("{}:7171", wires[0].far_address);
        assert_eq!(said(&lab, &closed), [(closed, vec!["refused".to_owned()])]);
        lab.does("cut", &["b", &wires[0].far]);
        assert_eq!(of(&lab, &wires[0].far_address), ["no-answer"]);
        let text = run(lab.inside("a").args(["net", "ping", "--timeout", "0.5", &wires[0].far_address])).failed();
        assert!(text.contains("cannot connect to"), "{text}");
    });
}

/// One code with `bench net`, which has tests of its own: the same tables, and the tests of
/// bandwidth unless some are named.
#[test]
fn what_a_wire_carries_is_measured() {
    within(Duration::from_secs(60), || {
        let text = run(aqueduct().args(["net", "bw", "-m", "64k:64k", "-i", "2", "-x", "0"])).succeeded();
        assert_eq!(text.matches("65536").count(), 3, "{text}");
        assert!(["osu_bw", "osu_bibw", "osu_mbw_mr"].iter().all(|test| text.contains(test)), "{text}");
        let help = run(Command::new(aqueduct().get_program()).args(["net", "bw", "--help"])).succeeded();
        assert!(help.contains("OSU"), "{help}");
    });
}

/// A server that is stopped, whose kernel takes connections: neither refused nor another service.
#[test]
fn a_server_that_hangs_does_not_answer() {
    within(Duration::from_secs(60), || {
        let Some((lab, wires, _export)) = served(&[&[]], &[]) else { return };
        let address = &wires[0].far_address;
        let pid = lab.known()["hosts"]["b"]["serve"].as_u64().unwrap() as u32;
        signal(pid, Signal::STOP);
        let found = of(&lab, address);
        let ping = run(lab.inside("a").args(["net", "ping", "--timeout", "1", address])).failed();
        signal(pid, Signal::CONT);
        assert_eq!(found, ["no-answer"]);
        assert!(ping.contains("takes connections, and says nothing within 1s") && ping.contains("hangs"), "{ping}");
    });
}
