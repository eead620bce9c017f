//! Routers that are slow, by what they have of processors or by their next wire: `aqueduct trace`
//! names them, and names the wire or the server where these are.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Mount, Process, Server, aqueduct, directory, run, wait_until, within};
use crate::networks::{NET1, NET2, Networks, Router, address};

/// Longer than anything else takes, on a busy machine too, and shorter than a router may take to
/// say what lay in it.
const HELD_UP: Duration = Duration::from_millis(700);

/// What is held up for so long was held up as it is meant to be: everything else takes less.
const HELD_UP_MIN: Duration = Duration::from_millis(500);

/// How long a router may take to say what it knows of an operation that has ended, and a mount to
/// tell of it.
const TOLD_MAX: Duration = Duration::from_secs(5);

/// A router that says nothing for a second is not asked again for half a minute, in which nothing
/// can be shown.
const SHOWN_MAX: Duration = Duration::from_secs(100);

const LIMIT: Duration = Duration::from_secs(300);

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

    /// What it says of an operation of these kinds that was held up while the work was done. It is
    /// done again as long as nothing was, since whoever was to hold it up came too late, or the
    /// router was not asked yet, or had no time to answer: then nothing is shown either way.
    fn of(&self, kinds: &[&str], mut work: impl FnMut()) -> Value {
        let mut found = None;
        wait_until("something is held up, and the router says what it knows", SHOWN_MAX, || {
            let before = self.all(kinds).iter().map(number).max();
            work();
            found = self.held_up_since(before, kinds).filter(has_said);
            found.is_some()
        });
        let held_up = found.unwrap();
        let sum: u64 = hops(&held_up).iter().map(|hop| hop["us"].as_u64().unwrap()).sum();
        assert_eq!(held_up["took_us"], sum, "{held_up:#}");
        held_up
    }

    /// The same of one that the router does not hold up. It is done again where the machine did, by
    /// leaving the router without a processor for long: then both are true.
    fn of_others(&self, router: &Process, kinds: &[&str], mut work: impl FnMut()) -> Value {
        let mut found = None;
        wait_until("something is held up while the router has its processor", SHOWN_MAX, || {
            let before = waited(router);
            let held_up = self.of(kinds, &mut work);
            let took = Duration::from_micros(held_up["took_us"].as_u64().unwrap());
            found = Some(held_up).filter(|_| waited(router).saturating_sub(before) < took / 5);
            found.is_some()
        });
        found.unwrap()
    }

    /// The operation that was held up since one of this number, if any was.
    fn held_up_since(&self, before: Option<u64>, kinds: &[&str]) -> Option<Value> {
        let took = |operation: &Value| Duration::from_micros(operation["took_us"].as_u64().unwrap());
        let is_it = |operation: &Value| Some(number(operation)) > before && took(operation) >= HELD_UP_MIN;
        let end = Instant::now() + TOLD_MAX;
        loop {
            let found = self.all(kinds).into_iter().filter(is_it).max_by_key(took);
            if found.is_some() || Instant::now() > end {
                return found;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// For how long the threads of a process have waited for processors, as the kernel counts it.
fn waited(process: &Process) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.pid())).unwrap();
    let nanoseconds = |task: fs::DirEntry| -> Option<u64> {
        fs::read_to_string(task.path().join("schedstat")).ok()?.split(' ').nth(1)?.parse().ok()
    };
    Duration::from_nanos(tasks.flatten().filter_map(nanoseconds).sum())
}

fn number(operation: &Value) -> u64 {
    operation["number"].as_u64().unwrap()
}

/// Whether the router was asked of it, had looked, and has answered in time.
fn has_said(operation: &Value) -> bool {
    !operation.to_string().contains("with the router ")
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
    fn make_while_stopped(&self, process: &Process, name: &str) {
        process.stop();
        thread::scope(|scope| {
            let (begins, begun) = channel();
            scope.spawn(move || {
                let _ = begun.recv(); // it goes on in any case
                thread::sleep(HELD_UP);
                process.signal(Signal::CONT);
            });
            let path = self.mount.join(name);
            begins.send(()).unwrap();
            fs::create_dir(path).unwrap();
        });
    }
}

#[test]
fn a_slow_router_is_named_and_not_the_wire() {
    within(LIMIT, || {
        let export = directory();
        let Some(case) = Case::new(export.path()) else { return };
        let traced = Traced(&case.mount);
        let here = format!("{}:7171", address("a", NET1));
        let mut made = 0;
        let mut make_while_stopped = |process: &Process| {
            made += 1;
            case.make_while_stopped(process, &format!("made-{made}"));
        };
        // It looks only since it was asked, so that the first is one of which it knows nothing.
        let by_router = traced.of(&MAKES, || make_while_stopped(case.router.process.as_ref().unwrap()));
        assert_eq!(slowest(&by_router), ("router", here.as_str()), "{by_router:#}");
        assert!(by_router.to_string().contains("unread"), "{by_router:#}");

        let router = case.router.process.as_ref().unwrap();
        let by_server = traced.of_others(router, &MAKES, || make_while_stopped(&case.server.process));
        assert_ne!(slowest(&by_server).0, "router", "the server stood still: {by_server:#}");

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
        let before = traced.of_others(router, &["WRITE"], write);
        assert_eq!(slowest(&before).0, "wire", "it is this machine's own wire: {before:#}");
        case.networks.shape("client", NET1, None);
    });
}
