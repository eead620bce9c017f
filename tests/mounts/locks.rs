//! fcntl, OFD and flock locks across mounts. The lockers are processes of their own.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::common::ways::{are_direct, freed_within};
use crate::common::{Mount, Output, Pair, Server, aqueduct, directory, program_for_all, run, test, wait_until};

/// How each kind of lock is asked for: exclusive, shared, given back.
const KINDS: [[&str; 3]; 3] = [
    ["process 0 W 0 0", "process 0 R 0 0", "process 0 U 0 0"],
    ["openfile 0 W 0 0", "openfile 0 R 0 0", "openfile 0 U 0 0"],
    ["flock 0 W", "flock 0 R", "flock 0 U"],
];

fn locker(mount: &Mount) -> Agent {
    let mut agent = Agent::start();
    agent.ask(&format!("open 0 {} rwc", mount.join("file").display())).unwrap();
    agent
}

#[test]
fn a_lock_on_one_mount_excludes_the_other() {
    test(|| {
        let pair = Pair::new();
        let (mut left, mut right, mut same) = (locker(&pair.left), locker(&pair.right), locker(&pair.left));
        for [exclusive, shared, unlock] in KINDS {
            left.ask(exclusive).unwrap();
            for other in [&mut right, &mut same] {
                assert_eq!(other.ask(exclusive), Err(libc::EAGAIN), "{exclusive}");
                assert_eq!(other.ask(shared), Err(libc::EAGAIN), "{shared}");
            }
            left.ask(shared).unwrap();
            right.ask(shared).unwrap();
            assert_eq!(same.ask(exclusive), Err(libc::EAGAIN), "two share it");
            assert_eq!(left.ask(exclusive), Err(libc::EAGAIN), "another shares it");
            left.ask(unlock).unwrap();
            right.ask(exclusive).unwrap();
            right.ask(unlock).unwrap();
        }
    });
}

#[test]
fn ranges_are_locked_apart() {
    test(|| {
        let pair = Pair::new();
        let (mut left, mut right) = (locker(&pair.left), locker(&pair.right));
        for kind in ["process", "openfile"] {
            left.ask(&format!("{kind} 0 W 0 10")).unwrap();
            right.ask(&format!("{kind} 0 W 10 10")).unwrap();
            assert_eq!(right.ask(&format!("{kind} 0 R 9 1")), Err(libc::EAGAIN));
            // A hole in the middle.
            left.ask(&format!("{kind} 0 U 4 2")).unwrap();
            right.ask(&format!("{kind} 0 W 4 2")).unwrap();
            assert_eq!(right.ask(&format!("{kind} 0 W 3 1")), Err(libc::EAGAIN));
            // To the end, and far out.
            left.ask(&format!("{kind} 0 W 5000000000000 0")).unwrap();
            assert_eq!(right.ask(&format!("{kind} 0 R 9000000000000000000 1")), Err(libc::EAGAIN));
            left.ask(&format!("{kind} 0 U 0 0")).unwrap();
            right.ask(&format!("{kind} 0 U 0 0")).unwrap();
        }
        // The two kinds of record locks exclude each other; flock is apart.
        left.ask("process 0 W 0 0").unwrap();
        assert_eq!(right.ask("openfile 0 W 0 0"), Err(libc::EAGAIN));
        right.ask("flock 0 W").unwrap();
    });
}

#[test]
fn a_test_tells_what_is_in_the_way() {
    test(|| {
        let pair = Pair::new();
        let (mut left, mut right, mut same) = (locker(&pair.left), locker(&pair.right), locker(&pair.left));
        assert_eq!(right.ask("test 0 0 100").unwrap(), "None");
        left.ask("process 0 W 20 30").unwrap();
        let seen = right.ask("test 0 0 100").unwrap();
        assert!(seen.starts_with("Some((20, 30, "), "{seen}");
        assert_eq!(right.ask("test 0 50 100").unwrap(), "None");
        assert_eq!(left.ask("test 0 0 100").unwrap(), "None", "one's own lock is not in the way");
        let pid = left.process.pid();
        assert_eq!(same.ask("test 0 0 100").unwrap(), format!("Some((20, 30, {pid}))"), "the holder, on one machine");
    });
}

#[test]
fn a_blocked_lock_is_granted_on_release() {
    test(|| {
        let pair = Pair::new();
        let (mut left, mut right) = (locker(&pair.left), locker(&pair.right));
        for [exclusive, _, unlock] in KINDS {
            left.ask(exclusive).unwrap();
            right.tell(&format!("{exclusive} wait"));
            assert!(right.is_waiting(), "{exclusive}");
            let released = Instant::now();
            left.ask(unlock).unwrap();
            right.answer().unwrap();
            assert!(released.elapsed() < Duration::from_secs(1), "granted after {:?}", released.elapsed());
            // The other way, and by close.
            left.tell(&format!("{exclusive} wait"));
            assert!(left.is_waiting(), "{exclusive}");
            right.ask("close 0").unwrap();
            left.answer().unwrap();
            left.ask(unlock).unwrap();
            right.ask(&format!("open 0 {} rw", pair.right.join("file").display())).unwrap();
        }
    });
}

#[test]
fn many_wait_for_one_lock() {
    test(|| {
        let pair = Pair::new();
        let mut holder = locker(&pair.left);
        holder.ask("process 0 W 0 0").unwrap();
        let mut waiting: Vec<Agent> =
            (0..6).map(|n| locker(if n % 2 == 0 { &pair.left } else { &pair.right })).collect();
        waiting.iter_mut().for_each(|agent| agent.tell("process 0 W 0 0 wait"));
        // Both mounts still work while all these wait.
        for mount in [&pair.left, &pair.right] {
            std::fs::write(mount.join("other"), "other").unwrap();
        }
        holder.ask("process 0 U 0 0").unwrap();
        while !waiting.is_empty() {
            let granted = || waiting.iter().position(|agent| agent.answer_within(Duration::from_millis(20)).is_some());
            let started = Instant::now();
            let mut next = granted();
            while next.is_none() {
                assert!(started.elapsed() < Duration::from_secs(5), "nobody gets the lock");
                next = granted();
            }
            let mut holder = waiting.swap_remove(next.unwrap());
            assert!(
                waiting.iter().all(|agent| agent.answer_within(Duration::from_millis(10)).is_none()),
                "two hold it"
            );
            holder.ask("process 0 U 0 0").unwrap();
        }
    });
}

#[test]
fn a_deadlock_is_refused() {
    test(|| {
        let pair = Pair::new();
        for (one, other) in [(&pair.left, &pair.right), (&pair.left, &pair.left)] {
            let (mut one, mut other) = (locker(one), locker(other));
            one.ask("process 0 W 0 1").unwrap();
            other.ask("process 0 W 1 1").unwrap();
            one.tell("process 0 W 1 1 wait");
            assert!(one.is_waiting());
            assert_eq!(other.ask("process 0 W 0 1 wait"), Err(libc::EDEADLK));
            other.ask("process 0 U 1 1").unwrap();
            one.answer().unwrap();
        }
    });
}

#[test]
fn closing_any_descriptor_frees_the_locks_of_a_process() {
    test(|| {
        let pair = Pair::new();
        let (mut left, mut right) = (locker(&pair.left), locker(&pair.right));
        let path = pair.left.join("file");
        for flags in ["rw", "w"] {
            left.ask("process 0 W 0 0").unwrap();
            left.ask(&format!("open 1 {} {flags}", path.display())).unwrap();
            left.ask("close 1").unwrap();
            right.ask("process 0 W 0 0").unwrap();
            right.ask("process 0 U 0 0").unwrap();
        }
        // Those of an open file stay.
        left.ask("openfile 0 W 0 0").unwrap();
        left.ask("flock 0 W").unwrap();
        left.ask(&format!("open 1 {} rw", path.display())).unwrap();
        left.ask("close 1").unwrap();
        assert_eq!(right.ask("process 0 W 0 0"), Err(libc::EAGAIN));
        assert_eq!(right.ask("flock 0 W"), Err(libc::EAGAIN));
    });
}

#[test]
fn a_killed_program_frees_its_locks() {
    test(|| {
        let pair = Pair::new();
        for [exclusive, ..] in KINDS {
            let (mut left, mut right) = (locker(&pair.left), locker(&pair.right));
            left.ask(exclusive).unwrap();
            right.tell(&format!("{exclusive} wait"));
            assert!(right.is_waiting());
            left.process.signal(Signal::KILL);
            right.answer_within(Duration::from_secs(3)).expect("freed at once").unwrap();
        }
    });
}

/// A waiter that is gone must not be granted the lock afterwards.
#[test]
fn a_killed_waiter_leaves_nothing_behind() {
    test(|| {
        let pair = Pair::new();
        for [exclusive, _, unlock] in KINDS {
            let (mut holder, mut waiter, mut third) = (locker(&pair.left), locker(&pair.right), locker(&pair.left));
            holder.ask(exclusive).unwrap();
            waiter.tell(&format!("{exclusive} wait"));
            assert!(waiter.is_waiting());
            waiter.process.signal(Signal::KILL);
            waiter.process.ends_within(Duration::from_secs(5));
            holder.ask(unlock).unwrap();
            wait_until("the lock is free", Duration::from_secs(2), || third.ask(exclusive).is_ok());
        }
    });
}

#[test]
fn a_signal_ends_waiting_for_a_lock() {
    test(|| {
        let pair = Pair::new();
        for [exclusive, ..] in KINDS {
            let (mut holder, mut waiter) = (locker(&pair.left), locker(&pair.right));
            holder.ask(exclusive).unwrap();
            waiter.tell(&format!("{exclusive} wait"));
            assert!(waiter.is_waiting());
            waiter.process.signal(Signal::INT);
            waiter.process.ends_within(Duration::from_secs(5));
        }
    });
}

#[test]
fn a_killed_client_frees_its_locks() {
    test(|| {
        let pair = Pair::new();
        let Pair { left, right, server: _server, export: _export } = pair;
        let (mut held, mut wanted) = (locker(&left), locker(&right));
        held.ask("process 0 W 0 0").unwrap();
        held.ask("flock 0 W").unwrap();
        wanted.tell("process 0 W 0 0 wait");
        assert!(wanted.is_waiting());
        left.process.signal(Signal::KILL);
        wanted.answer_within(freed_within()).expect("freed after the grace time").unwrap();
        wait_until("the flock is free", freed_within(), || wanted.ask("flock 0 W").is_ok());
    });
}

#[test]
fn an_unmounted_client_frees_its_locks_at_once() {
    test(|| {
        let Pair { left, right, server: _server, export: _export } = Pair::new();
        let (mut held, mut wanted) = (locker(&left), locker(&right));
        held.ask("flock 0 W").unwrap();
        wanted.tell("flock 0 W wait");
        assert!(wanted.is_waiting());
        left.process.signal(Signal::TERM);
        wanted.answer_within(Duration::from_secs(4)).expect("freed at the goodbye").unwrap();
    });
}

#[test]
fn locks_need_the_right_descriptor() {
    test(|| {
        let pair = Pair::new();
        File::create(pair.left.join("file")).unwrap();
        let mut agent = Agent::start();
        agent.ask(&format!("open 0 {} r", pair.left.join("file").display())).unwrap();
        agent.ask(&format!("open 1 {} w", pair.left.join("file").display())).unwrap();
        for kind in ["process", "openfile"] {
            assert_eq!(agent.ask(&format!("{kind} 0 W 0 0")), Err(libc::EBADF));
            assert_eq!(agent.ask(&format!("{kind} 1 R 0 0")), Err(libc::EBADF));
        }
        agent.ask("flock 0 W").unwrap();
    });
}

/// POSIX: whoever closes any descriptor of a file loses its fcntl locks on it.
#[test]
fn a_close_ends_the_locks_of_its_process_unless_it_is_not_told() {
    test(|| {
        // Without a lease, as when the file has just been changed, a close is told all the same;
        // and always before ABI 7.35, which has no flag for it.
        let spares = !matches!(std::env::var("KERNEL").as_deref(), Ok("4.18" | "5.10"));
        assert_eq!((0..5).any(|_| !ends_by_a_close("cache=lease")), spares);
        for options in ["cache=none", "cache=lease,strict_unlock"] {
            assert!(ends_by_a_close(options), "{options}");
        }
    });
}

fn ends_by_a_close(options: &str) -> bool {
    let pair = Pair::with(options);
    std::fs::write(pair.export.path().join("file"), "").unwrap();
    let mut left = Agent::start();
    left.ask(&format!("open 1 {} r", pair.left.join("file").display())).unwrap();
    left.ask(&format!("open 0 {} rw", pair.left.join("file").display())).unwrap();
    let mut right = locker(&pair.right);
    let [exclusive, ..] = KINDS[0];
    left.ask(exclusive).unwrap();
    assert_eq!(right.ask(exclusive), Err(libc::EAGAIN));
    left.ask("close 1").unwrap();
    let has_ended = right.ask(exclusive).is_ok();
    left.ask("close 0").unwrap();
    right.ask(exclusive).unwrap();
    has_ended
}

/// What an administrator sees of the locks of a server.
fn locks(server: &Server) -> Value {
    let state = server.state();
    let list = ["status", "--locks", "--json", "--state", state.to_str().unwrap(), &server.address];
    serde_json::from_str(&run(aqueduct().args(list)).succeeded()).unwrap()
}

fn release(server: &Server, client: &str) -> Output {
    let state = server.state();
    run(aqueduct().args(["release-locks", "--state", state.to_str().unwrap(), "--server", &server.address, client]))
}

#[test]
fn an_administrator_sees_who_has_and_who_waits_for_locks() {
    if !are_direct() {
        return;
    }
    test(|| {
        let pair = Pair::new();
        let (mut left, mut right) = (locker(&pair.left), locker(&pair.right));
        assert_eq!(locks(&pair.server)["locks_total"], 0);
        left.ask("process 0 W 10 10").unwrap();
        left.ask("flock 0 R").unwrap();
        right.tell("process 0 R 0 0 wait");
        assert!(right.is_waiting());
        let seen = locks(&pair.server);
        let listed = seen["locks"].as_array().unwrap();
        assert_eq!((listed.len(), &seen["locks_total"]), (3, &json!(3)));
        let path = pair.export.path().join("file");
        let find = |family: &str, state: &str| {
            let lock = listed.iter().find(|lock| lock["family"] == family && lock["state"] == state).unwrap().clone();
            assert!(lock["path"] == path.to_str().unwrap() && lock["seconds"].as_u64().unwrap() < 30, "{lock}");
            assert!(lock["peer"].as_str().unwrap().starts_with("local uid=0"), "{lock}");
            lock
        };
        let held = find("fcntl", "held");
        assert_eq!((&held["start"], &held["end"], &held["kind"]), (&json!(10), &json!(19), &json!("write")));
        assert_eq!(held["pid"], left.process.pid());
        let waits = find("fcntl", "waits");
        assert_eq!((&waits["start"], &waits["end"], &waits["kind"]), (&json!(0), &json!(null), &json!("read")));
        assert_eq!(waits["pid"], right.process.pid());
        let flock = find("flock", "held");
        assert_eq!((&flock["kind"], &flock["client_id"]), (&json!("read"), &held["client_id"]));
        assert_ne!(waits["client_id"], held["client_id"]);
        // As a table, for whoever may read the server's folder; for nobody else.
        let state = pair.server.state();
        let list = ["status", "--locks", "--state", state.to_str().unwrap(), &pair.server.address];
        let table = run(aqueduct().args(list)).succeeded();
        assert!(table.contains("fcntl write  10 to 19  held") && table.contains(path.to_str().unwrap()), "{table}");
        let home = directory();
        let refused = run(Command::new(program_for_all(home.path())).args(list).uid(65534).gid(65534)).failed();
        assert!(refused.contains("Permission denied") && refused.contains("      do: run this on"), "{refused}");
        let other = directory();
        let another = Server::start(&[other.path()]);
        let state = another.state();
        let refused =
            run(aqueduct().args(["status", "--locks", "--state", state.to_str().unwrap(), &pair.server.address]));
        assert!(refused.failed().contains("does not accept the key"));
    });
}

#[test]
fn an_administrator_releases_the_locks_of_a_client() {
    test(|| {
        for mode in ["cache=none", "cache=lease"] {
            let pair = Pair::with(mode);
            let (mut left, mut right) = (locker(&pair.left), locker(&pair.right));
            left.ask(&format!("open 1 {} rwc", pair.left.join("other").display())).unwrap();
            left.ask("process 0 W 0 0").unwrap();
            left.ask("writeat 0 0 left").unwrap();
            right.tell("process 0 W 0 0 wait");
            assert!(right.is_waiting());
            // It hangs, and has more to write.
            pair.left.process.stop();
            left.tell("writeat 0 0 late");
            let seen = locks(&pair.server);
            let holder = seen["locks"].as_array().unwrap().iter().find(|lock| lock["state"] == "held").unwrap();
            let holder = holder["client_id"].as_str().unwrap();
            release(&pair.server, holder).succeeded();
            right.answer_within(Duration::from_secs(5)).expect("the lock is free").unwrap();
            right.ask("writeat 0 0 RIGHT").unwrap();
            assert!(release(&pair.server, holder).failed().contains("has no client"));
            assert!(release(&pair.server, "five").failed().contains("no client's number"));
            pair.left.process.signal(Signal::CONT);
            assert_eq!(left.answer(), Err(libc::EIO), "what it wrote under its lock");
            for order in ["writeat 0 0 late", "readat 0 0 4", "process 0 W 0 0"] {
                assert_eq!(left.ask(order), Err(libc::EIO), "{order}");
            }
            assert_eq!(right.ask("size 0").unwrap(), "5");
            assert_eq!(std::fs::read(pair.export.path().join("file")).unwrap(), b"RIGHT", "{mode}");
            // All else goes on, and so does this once it is opened anew.
            left.ask("writeat 1 0 other").unwrap();
            left.ask(&format!("open 0 {} rw", pair.left.join("file").display())).unwrap();
            assert_eq!(left.ask("process 0 W 0 0"), Err(libc::EAGAIN));
            right.ask("close 0").unwrap();
            left.ask("process 0 W 0 0").unwrap();
        }
    });
}
