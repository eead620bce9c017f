//! Routers that are killed, stand still, drain and are cut off under load: nothing fails, and
//! nothing is lost or done twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::{Mount, SOON, Server, directory, have, test, wait_until, within};
use crate::load::Load;
use crate::networks::{NET1, NET2, Networks, Router, address};

/// Longer than any of it takes on a machine that does much else.
const LONG: Duration = Duration::from_secs(150);

/// A server, and a mount by the routers a and b.
pub struct Case {
    pub mount: Mount,
    pub a: Router,
    pub b: Router,
    server: Option<Server>,
    export: TempDir,
    pub networks: Networks,
}

/// What the routers' files say besides. They carry no more than this mount needs, so that places
/// that were lost would be missed.
const LIMITS: &str = "[limits]\nflows_max = 10\nsuspect_seconds = 2\n";

impl Case {
    fn new() -> Option<Case> {
        Case::mounted("suspect=2")
    }

    /// With these options of the mount.
    pub fn mounted(options: &str) -> Option<Case> {
        let networks = Networks::new()?;
        let export = directory();
        let server = networks.serve(("near", NET2), &["--insecure", "--squash", "none"], &[export.path()]);
        let [a, b] = ["a", "b"].map(|host| networks.route(host, [NET1, NET2], LIMITS));
        let routes = ["a", "b"].map(|host| format!("net{NET2}@{}", address(host, NET1)));
        let source = format!("{}@net{NET2}:{}", address("near", NET2), export.path().display());
        let mount = networks.mount(&source, &[&routes[0], &routes[1]], options);
        Some(Case { mount, a, b, server: Some(server), export, networks })
    }

    pub fn start_load(&self) -> Load {
        Load::start(self.mount.path())
    }

    pub fn ends_well(&self, load: Load) -> Duration {
        load.ends_well(self.mount.path(), self.export.path())
    }

    /// How the mount sees its two routers.
    pub fn are_up(&self) -> [bool; 2] {
        let status = self.mount.status();
        [0, 1].map(|index| status["routes"][index]["up"].as_bool().unwrap_or_else(|| panic!("{status}")))
    }
}

#[test]
fn two_routers_share_and_one_takes_over_when_the_other_is_killed() {
    test(|| {
        let Some(mut case) = Case::new() else { return };
        assert!(case.a.flows() > 0 && case.b.flows() > 0, "{} and {}", case.a.flows(), case.b.flows());
        let all = case.a.flows() + case.b.flows();
        let load = case.start_load();
        case.a.kill();
        load.goes_on();
        wait_until("the other has all", SOON, || case.b.flows() == all);
        wait_until("it is noticed", SOON, || case.are_up() == [false, true]);
        // It is found again without anybody having to try it.
        case.a.start(&mut case.networks.inside("a"));
        wait_until("it is back", SOON, || case.are_up() == [true, true]);
        case.b.kill();
        load.goes_on();
        case.ends_well(load);
        assert_eq!(case.a.flows(), all);
    });
}

/// Drained and taken back again and again, with no more places than are needed: none is lost when
/// a router returns.
#[test]
fn routers_are_drained_and_return_under_load() {
    test(|| {
        let Some(case) = Case::new() else { return };
        let all = case.a.flows() + case.b.flows();
        let load = case.start_load();
        for turn in 0..4 {
            let (drained, other) = if turn % 2 == 0 { (&case.a, &case.b) } else { (&case.b, &case.a) };
            // Far from the end of its time every connection has gone around it, and answered there
            // what was under way.
            let told = drained.does(&["drain", "--seconds", "60"]);
            assert!(told.contains("drained"), "{told}");
            wait_until("it carries nothing, and the other all", SOON, || drained.flows() == 0 && other.flows() == all);
            load.goes_on();
            drained.does(&["resume"]);
        }
        case.ends_well(load);
        assert_eq!(case.a.flows() + case.b.flows(), all);
        assert_eq!(case.are_up(), [true, true], "who drains is not down");
        assert_eq!(case.mount.status()["reconnects"], 0, "nothing was lost, and so nothing sent again");
    });
}

/// A process that waits for the lock of a file, says by another file that it has it, and keeps it
/// until its input ends. Not this one: each program that it starts would wait with the mount,
/// which is told of each copy of an open file that is closed.
struct Locker {
    process: Child,
    has_it: PathBuf,
}

const LOCK: &str = "import fcntl, sys
file = open(sys.argv[1], 'r+')
fcntl.flock(file, fcntl.LOCK_EX)
open(sys.argv[2], 'w')
sys.stdin.read()
";

impl Locker {
    fn start(path: &Path, has_it: PathBuf) -> Locker {
        let mut command = Command::new("python3");
        let process = command.args(["-c", LOCK]).arg(path).arg(&has_it).stdin(Stdio::piped()).spawn().unwrap();
        Locker { process, has_it }
    }

    fn waits_for_it(&self) {
        wait_until("the lock is had", SOON, || self.has_it.exists());
    }

    fn ends(mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

/// It outlives the router by which it was asked for, and those that carry the session since.
#[test]
fn a_lock_that_waits_outlives_routers_that_drain_and_one_that_is_killed() {
    within(LONG, || {
        if !have(&["python3"]) {
            return;
        }
        let Some(mut case) = Case::new() else { return };
        let all = case.a.flows() + case.b.flows();
        let (path, home) = (case.mount.path().join("locked"), directory());
        fs::write(&path, b"x").unwrap();
        let holder = Locker::start(&path, home.path().join("holder"));
        holder.waits_for_it();
        let waiter = Locker::start(&path, home.path().join("waiter"));
        thread::sleep(Duration::from_millis(500)); // it may be on its way still, which is another case of the same
        for (drained, other) in [(&case.a, &case.b), (&case.b, &case.a)] {
            drained.does(&["drain", "--seconds", "60"]);
            wait_until("the other has all", SOON, || drained.flows() == 0 && other.flows() == all);
            drained.does(&["resume"]);
        }
        case.a.kill();
        wait_until("the other has all", SOON, || case.b.flows() == all);
        assert!(!waiter.has_it.exists(), "the lock is held");
        holder.ends();
        waiter.waits_for_it();
        waiter.ends();
    });
}

/// A router that stands still holds what was on its way: when it goes on, what is late is for
/// connections that have gone, and is done by nobody.
#[test]
fn what_a_router_brings_late_is_not_done() {
    test(|| {
        let Some(case) = Case::new() else { return };
        let load = case.start_load();
        case.a.process.as_ref().unwrap().signal(Signal::STOP);
        load.goes_on();
        load.goes_on();
        case.a.process.as_ref().unwrap().signal(Signal::CONT);
        load.goes_on();
        case.ends_well(load);
    });
}

/// LNet's LU-18444: dead end nodes marked the routers dead by which they were asked for.
#[test]
fn a_server_that_is_dead_makes_no_router_dead() {
    within(LONG, || {
        let Some(mut case) = Case::new() else { return };
        // Without a load of this process, whose programs would wait for the server.
        case.ends_well(case.start_load());
        let (address, home) = case.server.take().unwrap().kill();
        // Several times it is asked for in vain, by either router.
        for _ in 0..10 {
            thread::sleep(Duration::from_millis(200));
            assert_eq!(case.are_up(), [true, true]);
        }
        let arguments = ["--listen", &address, "--insecure", "--squash", "none"];
        let server = Server::start_at(home, &mut case.networks.inside("near"), &arguments, &[case.export.path()]);
        case.server = Some(server);
        let again = case.mount.path().join("again");
        fs::create_dir(&again).unwrap();
        case.ends_well(Load::start(&again));
        assert_eq!(case.are_up(), [true, true]);
    });
}

/// LNet's LU-17854: routers dropped what came late for a target that lives.
#[test]
fn what_waits_for_a_server_that_stands_still_reaches_it() {
    within(LONG, || {
        let Some(case) = Case::mounted("suspect=60") else { return };
        let all = [case.a.flows(), case.b.flows()];
        let load = case.start_load();
        let server = &case.server.as_ref().unwrap().process;
        server.signal(Signal::STOP);
        // Longer than the routers need to suspect a peer that is dead.
        thread::sleep(Duration::from_secs(4));
        server.signal(Signal::CONT);
        load.goes_on();
        case.ends_well(load);
        assert_eq!([case.a.flows(), case.b.flows()], all);
        assert_eq!(case.mount.status()["reconnects"], 0, "each flow was kept, with all that was in it");
    });
}

/// A router that answers, and whose other wire is cut, is not waited for by those that have
/// another.
#[test]
fn a_gateway_that_does_not_forward_is_gone_around() {
    test(|| {
        let Some(case) = Case::new() else { return };
        let load = case.start_load();
        case.networks.set_wire("a", NET2, "down");
        let began = Instant::now();
        load.goes_on();
        load.goes_on();
        wait_until("the other has all", SOON, || case.b.flows() >= 4);
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        case.networks.set_wire("a", NET2, "up");
        load.goes_on();
        case.ends_well(load);
        assert_eq!(case.are_up(), [true, true], "it answers");
    });
}
