//! Routers that are slow, by what they have of processors or by their next wire: `aqueduct trace`
//! names them, and names the wire or the server where these are.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Mount, SOON, Server, aqueduct, directory, run, wait_until, within};
use crate::networks::{NET1, NET2, Networks, Router, address};

/// Longer than anything else takes, on a busy machine too, and shorter than a router may take to
/// say what lay in it.
const HELD_UP: Duration = Duration::from_millis(700);

const LIMIT: Duration = Duration::from_secs(120);

/// Before a name is made the kernel looks at it, and at the root.
const MAKES: [&str; 3] = ["LOOKUP", "GETATTR", "MKDIR"];

/// Of a wire that is slow: 1 MiB takes 1.7 s.
const SLOW: &str = "5mbit";

/// What a mount says of its slow operations.
struct Traced<'a>(&'a Mount);

impl Traced<'_> {
    fn all(&self, kinds: &[&str]) -> Vec<Value> {
        let output = run(aqueduct().args(["trace", "--json", "--count", "500"]).arg(self.0.path())).succeeded();
        let told: Value = serde_json::from_str(&output).unwrap();
        let operations = told[0]["operations"].as_array().unwrap().clone();
        operations.into_iter().filter(|operation| kinds.iter().any(|kind| operation["operation"] == *kind)).collect()
    }

    /// What it says of the operation of these kinds that is made meanwhile and takes longest.
    fn of(&self, kinds: &[&str], work: impl FnOnce()) -> Value {
        let before = self.all(kinds).len();
        work();
        wait_until("the router has said what it knows", SOON, || self.all(kinds).len() > before);
        let new = self.all(kinds).split_off(before);
        let longest = new.into_iter().max_by_key(|operation| operation["took_us"].as_u64()).unwrap();
        let sum: u64 = hops(&longest).iter().map(|hop| hop["us"].as_u64().unwrap()).sum();
        assert_eq!(longest["took_us"], sum, "{longest:#}");
        longest
    }
}

fn hops(operation: &Value) -> &Vec<Value> {
    operation["hops"].as_array().unwrap()
}

/// The hop that took most, by its name, with its place.
fn slowest(operation: &Value) -> (&str, &str) {
    let hop = hops(operation).iter().max_by_key(|hop| hop["us"].as_u64()).unwrap();
    (hop["hop"].as_str().unwrap(), hop["server"].as_str().unwrap_or_default())
}

struct Case {
    networks: Networks,
    server: Server,
    router: Router,
    mount: Mount,
}

impl Case {
    fn new(export: &std::path::Path) -> Option<Case> {
        let networks = Networks::new()?;
        let server = networks.serve(("near", NET2), &["--insecure", "--squash", "none"], &[export]);
        let router = networks.route("a", [NET1, NET2], "");
        let route = format!("net{NET2}@{}", address("a", NET1));
        let source = format!("{}@net{NET2}:{}", address("near", NET2), export.display());
        let mount = networks.mount(&source, &[&route], "");
        Some(Case { networks, server, router, mount })
    }

    /// Makes a directory, of which the server has to know, while a process stands still.
    fn make_while(&self, stopped: impl Fn(Signal) + Send + Sync, name: &str) {
        stopped(Signal::STOP);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(HELD_UP);
                stopped(Signal::CONT);
            });
            fs::create_dir(self.mount.join(name)).unwrap();
        });
    }

    fn make_with_router_stopped(&self, name: &str) {
        self.make_while(|signal| self.router.process.as_ref().unwrap().signal(signal), name);
    }
}

#[test]
fn a_slow_router_is_named_and_not_the_wire() {
    within(LIMIT, || {
        let export = directory();
        let Some(case) = Case::new(export.path()) else { return };
        let traced = Traced(&case.mount);
        let here = format!("{}:7171", address("a", NET1));
        // It looks only since it was asked: after this at the latest.
        traced.of(&MAKES, || case.make_with_router_stopped("first"));
        let second = traced.of(&MAKES, || case.make_with_router_stopped("second"));
        assert_eq!(slowest(&second), ("router", here.as_str()), "{second:#}");
        assert!(second.to_string().contains("unread"), "{second:#}");

        let third = traced.of(&MAKES, || case.make_while(|signal| case.server.process.signal(signal), "third"));
        assert_ne!(slowest(&third).0, "router", "the server stood still: {third:#}");

        let file = OpenOptions::new().create(true).write(true).custom_flags(libc::O_DIRECT).open(case.mount.join("f"));
        let file = file.unwrap();
        let memory = vec![7u8; (1 << 20) + 4096];
        let start = memory.as_ptr().align_offset(4096);
        let write = || file.write_all_at(&memory[start..start + (1 << 20)], 0).unwrap();
        case.networks.shape("a", NET2, Some(SLOW));
        let behind = traced.of(&["WRITE"], write);
        assert_eq!(slowest(&behind), ("router", here.as_str()), "{behind:#}");
        case.networks.shape("a", NET2, None);
        case.networks.shape("client", NET1, Some(SLOW));
        let before = traced.of(&["WRITE"], write);
        assert_eq!(slowest(&before).0, "wire", "it is this machine's own wire: {before:#}");
        case.networks.shape("client", NET1, None);
    });
}
