//! The wires of a lab do what its help says, as far as TCP sees it.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::{Process, SOON, aqueduct, directory, run, test, wait_until};
use crate::lab::Lab;

/// Round trips of connecting to a port where nobody listens: the refusal comes from the other
/// host.
const CONNECT: &str = "
import socket, sys, time
took = []
for turn in range(20):
    socket_ = socket.socket()
    socket_.settimeout(0.3)
    began = time.monotonic()
    try:
        socket_.connect((sys.argv[1], 9))
    except ConnectionRefusedError:
        took.append(time.monotonic() - began)
    except OSError:
        print('silent')
        sys.exit()
print(min(took) * 1000)
";

/// In milliseconds, the least of some; `None` where nothing answers.
fn round_trip(lab: &Lab, host: &str, address: &str) -> Option<f64> {
    run(lab.enter(host).args(["python3", "-c", CONNECT, address])).succeeded().trim().parse().ok()
}

#[test]
fn wires_are_delayed_cut_and_mended() {
    test(|| {
        let Some(lab) = Lab::new(&["a", "b"]) else { return };
        let [plain, slow] = [&[][..], &["--delay", "5ms"]].map(|options| lab.link("a", "b", options));
        let [near, far] = [&plain, &slow].map(|wire| round_trip(&lab, "a", &wire.far_address).unwrap());
        assert!((10.0..18.0).contains(&far) && near < 5.0, "{near} ms, {far} ms");
        for how in ["in", "out", "both"] {
            lab.does("cut", &["b", &plain.far, how]);
            assert_eq!(round_trip(&lab, "a", &plain.far_address), None, "{how}");
            assert!(round_trip(&lab, "a", &slow.far_address).is_some(), "{how}: the other wire is whole");
            lab.does("heal", &["b", &plain.far]);
            assert!(round_trip(&lab, "a", &plain.far_address).is_some(), "{how}");
        }
        lab.does("cut", &["a", &plain.near, "down"]);
        assert_eq!(round_trip(&lab, "a", &plain.far_address), None);
        lab.does("heal", &["a", &plain.near]);
        assert!(round_trip(&lab, "a", &plain.far_address).is_some());
        assert!(lab.command("cut", &["a", "nothing"]).failed().contains("no wire 'nothing'"));
        assert!(lab.command("host", &["a"]).failed().contains("already"));
    });
}

/// Of whoever is killed nothing stays, as it would where the lab went with an exit handler.
#[test]
fn a_lab_goes_with_its_owner() {
    test(|| {
        let Some(lab) = Lab::new(&["a"]) else { return };
        lab.does("down", &[]);
        let home = directory();
        let mut owner = Process::adopt(Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap());
        let tool = |verb: &str, arguments: &[&str]| {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/experiments/lab");
            let mut command = Command::new(path);
            command.arg(verb).arg(home.path().join("lab")).args(arguments).env("LAB", "aqt");
            run(command.env("LAB_OWNER", owner.pid().to_string()).env("AQUEDUCT", aqueduct().get_program())).succeeded()
        };
        tool("up", &[]);
        tool("host", &["a", "--alone"]);
        tool("host", &["b", "--alone"]);
        tool("link", &["a", "b", "--delay", "1ms"]);
        let export = directory();
        tool("serve", &["b", export.path().to_str().unwrap()]);
        let known: Value = serde_json::from_str(&tool("show", &[])).unwrap();
        let pids = known["processes"].as_array().unwrap().clone();
        assert_eq!(pids.len(), 2, "the carrier and the server: {known}");
        owner.signal(rustix::process::Signal::KILL);
        owner.ends_within(SOON);
        let id = known["id"].as_str().unwrap();
        wait_until("the namespaces are gone", SOON, || {
            std::thread::sleep(Duration::from_millis(50));
            !run(Command::new("ip").args(["netns", "list"])).succeeded().contains(id)
        });
        let lives = |pid: &Value| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
        };
        assert!(!pids.iter().any(lives), "{pids:?}");
    });
}
