//! `aqueduct net ping` and `net path` to a server behind a router: each part of the way is told
//! from the others.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{directory, run, signal, within};
use crate::lab::{Lab, Wire};

/// A client, a router and a server, each joined to the next.
struct Routed {
    lab: Lab,
    near: Wire,
    far: Wire,
    home: tempfile::TempDir,
}

impl Routed {
    fn new() -> Option<Routed> {
        let lab = Lab::new(&["a", "r", "b"])?;
        let [near, far] = [("a", "r"), ("r", "b")].map(|(near, far)| lab.link(near, far, &[]));
        let routed = Routed { lab, near, far, home: directory() };
        routed.lab.does("serve", &["b", routed.home.path().to_str().unwrap()]);
        routed.start("");
        Some(routed)
    }

    /// Starts the router.
    fn start(&self, more: &str) {
        let path = self.home.path().join("route.toml");
        let listens = format!("listen = [\"{}@net1\", \"{}@net2\"]\n", self.near.far_address, self.far.near_address);
        fs::write(&path, listens + more).unwrap();
        self.lab.does("route", &["r", path.to_str().unwrap()]);
    }

    /// Ends what runs on a host.
    fn kill(&self, host: &str, what: &str) {
        let pid = self.lab.known()["hosts"][host][what].as_u64().unwrap() as u32;
        signal(pid, Signal::KILL);
        crate::common::wait_until("it has ended", crate::common::SOON, || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
        });
    }

    fn ask(&self, what: &[&str]) -> crate::common::Output {
        let route = format!("net2@{}", self.near.far_address);
        let server = format!("{}@net2", self.far.far_address);
        let arguments = [&["net"], what, &["--timeout", "2", "--route", &route, &server]].concat();
        run(self.lab.inside("a").args(arguments))
    }

    /// The kinds of problems of the one way, and which hops answer.
    fn path(&self) -> (Vec<String>, Vec<(String, bool)>) {
        let output = self.ask(&["path", "--json"]);
        let document: Value = serde_json::from_str(&output.text).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let [way] = &document["ways"].as_array().unwrap()[..] else { panic!("{document}") };
        let each = |name: &str| way[name].as_array().unwrap().clone();
        let kinds = each("problems").iter().map(|problem| problem["kind"].as_str().unwrap().to_owned()).collect();
        let hop = |hop: &Value| (hop["is"].as_str().unwrap().to_owned(), hop["round_trip_us"].is_object());
        (kinds, each("hops").iter().map(hop).collect())
    }

    fn problems(&self) -> Vec<String> {
        self.path().0
    }
}

#[test]
fn each_part_of_a_way_by_a_router_is_told_from_the_others() {
    within(Duration::from_secs(120), || {
        let Some(routed) = Routed::new() else { return };
        let well = [("router".to_owned(), true), ("server".to_owned(), true)];
        assert_eq!(routed.path(), (Vec::new(), well.to_vec()));
        assert!(routed.ask(&["ping", "-c", "20"]).succeeded().contains("20 questions answered"));

        let lab = &routed.lab;
        lab.does("cut", &["b", &routed.far.far, "in", "--larger", "1400"]);
        assert_eq!(routed.problems(), ["mtu-black-hole"]);
        lab.does("heal", &["b", &routed.far.far]);
        assert!(routed.problems().is_empty());

        // A dead server is no fault of the router, which answers.
        routed.kill("b", "serve");
        assert_eq!(routed.path(), (vec!["no-answer".to_owned()], vec![("router".to_owned(), true)]));
        lab.does("serve", &["b", routed.home.path().to_str().unwrap()]);
        assert!(routed.problems().is_empty());

        routed.kill("r", "route");
        assert_eq!(routed.path(), (vec!["no-answer".to_owned()], vec![("router".to_owned(), false)]));
        routed.start("[[network]]\nname = \"net2\"\nports = [9]\n");
        assert_eq!(routed.problems(), ["gateway-does-not-forward"]);
        let text = routed.ask(&["path"]).failed();
        assert!(text.contains("port 7170"), "{text}");
    });
}

#[test]
fn a_router_that_stops_is_said_to_take_nothing() {
    within(Duration::from_secs(60), || {
        let Some(routed) = Routed::new() else { return };
        let known: Value = routed.lab.known();
        assert!(known["hosts"]["r"]["route"].is_u64());
        let control = routed.lab.folder().join("r-route.sock");
        let drain = ["route", "drain", "--seconds", "1", "--control", control.to_str().unwrap()];
        run(routed.lab.inside("r").args(drain)).succeeded();
        assert_eq!(routed.problems(), ["router-takes-nothing"]);
        run(routed.lab.inside("r").args(["route", "resume", "--control", control.to_str().unwrap()])).succeeded();
        assert!(routed.problems().is_empty());
    });
}
