//! What programs see of a server that ends and comes back: nothing but a pause. Who holds descriptors is a process of its own: this one starts the
//! server, and a child closes what it inherits, which on a mount waits for the server.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::agent::Agent;
use crate::common::ways::are_direct;
use crate::common::{One, Pair, SOON, Server, aqueduct, directory, disk_directory, skip, test, wait_until};

#[test]
fn descriptors_are_as_they_were_after_a_kill_of_the_server() {
    test(|| {
        let One { mount, server, export } = One::new();
        for number in 0..3000 {
            fs::write(export.path().join(format!("name-{number:05}-that-fills-the-pages-of-a-listing")), "").unwrap();
        }
        let mut agent = Agent::start();
        let path = |name: &str| mount.join(name).display().to_string();
        agent.ask(&format!("open 0 {} rwc", path("forbidden"))).unwrap();
        agent.ask(&format!("open 1 {} rwc", path("old-name"))).unwrap();
        agent.ask("writeat 0 0 before,").unwrap();
        fs::set_permissions(mount.join("forbidden"), std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        fs::rename(mount.join("old-name"), mount.join("new-name")).unwrap();
        assert_eq!(agent.ask(&format!("list {} 10", mount.path().display())).unwrap(), "10 10");
        let server = server.restart(&[export.path()]);
        assert_eq!(agent.ask("writeat 0 7 after"), Ok("5".into()));
        assert_eq!(agent.ask("writeat 1 0 new"), Ok("3".into()));
        assert_eq!(agent.ask(&format!("list {}", mount.path().display())).unwrap(), "3002 3002", "each name once");
        assert_eq!(fs::read_to_string(export.path().join("forbidden")).unwrap(), "before,after");
        assert_eq!(fs::read_to_string(export.path().join("new-name")).unwrap(), "new");
        drop((agent, mount, server));
    });
}

#[test]
fn locks_are_kept_over_a_kill_of_the_server() {
    test(|| {
        let Pair { left, right, server, export } = Pair::new();
        let (mut holder, mut other) = (Agent::start(), Agent::start());
        holder.ask(&format!("open 0 {} rwc", left.join("file").display())).unwrap();
        other.ask(&format!("open 0 {} rwc", right.join("file").display())).unwrap();
        holder.ask("process 0 W 0 10").unwrap();
        holder.ask("openfile 0 R 20 10").unwrap();
        let server = server.restart(&[export.path()]);
        assert_eq!(other.ask("process 0 W 0 10"), Err(libc::EAGAIN), "nobody can take it meanwhile");
        assert_eq!(other.ask("process 0 W 25 1"), Err(libc::EAGAIN));
        other.ask("process 0 W 10 10").unwrap();
        other.tell("process 0 W 0 5 wait");
        assert!(other.is_waiting());
        let server = server.restart(&[export.path()]);
        assert!(other.is_waiting(), "a wait goes on");
        holder.ask("process 0 U 0 10").unwrap();
        other.answer().expect("and is granted");
        holder.ask("writeat 0 0 alive").unwrap();
        drop((holder, other, left, right, server));
    });
}

#[test]
fn what_held_locks_gives_errors_when_the_session_is_lost() {
    test(|| {
        let One { mount, server, export } = One::over(directory(), "write_through");
        let mut agent = Agent::start();
        for (slot, name) in ["locked", "other"].iter().enumerate() {
            agent.ask(&format!("open {slot} {} rwc", mount.join(name).display())).unwrap();
        }
        agent.ask("process 0 W 0 0").unwrap();
        let server = server.restart_without_sessions(&[export.path()]);
        assert_eq!(agent.ask("writeat 1 0 fine"), Ok("4".into()));
        assert_eq!(agent.ask("writeat 0 0 late"), Err(libc::EIO), "somebody else may have had the lock meanwhile");
        assert_eq!(agent.ask("readat 0 0 1"), Err(libc::EIO));
        let told = mount.process.output();
        assert_eq!(told.matches("give EIO until they are closed").count(), 1, "{told}");
        agent.ask("close 0").unwrap();
        agent.ask(&format!("open 0 {} rwc", mount.join("locked").display())).unwrap();
        agent.ask("process 0 W 0 0").unwrap();
        assert_eq!(agent.ask("writeat 0 0 again"), Ok("5".into()));
        drop((agent, mount, server));
    });
}

/// A program changes everything that can be changed, while the server is killed, or stopped, and started again and again.
fn churned_under(end: impl Fn(&mut Server)) {
    let One { mount, mut server, export } = One::new();
    let mut agent = Agent::start();
    agent.tell(&format!("churn {} {}", mount.path().display(), 5000));
    for pause in [300, 700, 100, 900, 50, 400] {
        thread::sleep(Duration::from_millis(pause));
        end(&mut server);
        server = server.restart(&[export.path()]);
    }
    let rounds: usize =
        agent.answer_within(Duration::from_secs(60)).expect("it ends").expect("without an error").parse().unwrap();
    assert!(rounds > 5, "{rounds} rounds"); // a busy machine does not do many
    drop((agent, mount, server));
}

#[test]
fn nothing_is_lost_or_done_twice_when_the_server_is_killed() {
    test(|| churned_under(|_| {}));
}

#[test]
fn nothing_is_lost_or_done_twice_when_the_server_is_stopped() {
    test(|| {
        churned_under(|server| {
            server.process.signal(Signal::TERM);
            server.process.ends_within(SOON);
        });
    });
}

#[test]
fn what_is_kept_is_made_stable_when_it_is_quiet() {
    test(|| {
        let one = One::over(disk_directory(), "");
        fs::write(one.path("file"), vec![7; 8 << 20]).unwrap();
        let kept = || one.mount.status()["replay_bytes"].as_u64().unwrap();
        if kept() == 0 {
            return skip("/var/tmp is in memory");
        }
        wait_until("nothing is kept any more", Duration::from_secs(45), || kept() == 0);
        assert_eq!(fs::read(one.path("file")).unwrap(), vec![7; 8 << 20]);
    });
}

/// Another server has come to the address, and serves the same directory: the mount says so, gives
/// it nothing, and goes on when its own is back.
#[test]
fn a_foreign_server_at_the_address_is_told_and_left_alone() {
    if !are_direct() {
        return;
    }
    test(|| {
        let One { mount, server, export } = One::new();
        let content = || fs::read_to_string(export.path().join("file")).unwrap();
        let mut agent = Agent::start();
        agent.ask(&format!("open 0 {} rwc", mount.join("file").display())).unwrap();
        agent.ask("writeat 0 0 before").unwrap();
        agent.ask("sync 0").unwrap();
        let (address, home) = server.kill();
        let listen = ["--listen", &address];
        let foreign = Server::start_with(&mut aqueduct(), &listen, &[export.path()]);
        agent.ask("writeat 0 6 ,after").unwrap();
        agent.tell("sync 0");
        wait_until("the mount says who is there", SOON, || {
            let said = mount.process.output();
            said.contains("there is another server than the one that was mounted")
                && said.contains("give the server its address back")
        });
        assert!(agent.is_waiting(), "for its own server");
        assert_eq!((foreign.sessions(), content().as_str()), (0, "before"));
        drop(foreign);
        let _own = Server::start_at(home, &mut aqueduct(), &listen, &[export.path()]);
        agent.answer_within(SOON).expect("it goes on").unwrap();
        assert_eq!(content(), "before,after");
    });
}

/// What takes long because the server itself was stopped is not blamed on its disk.
#[test]
fn a_server_that_was_stopped_blames_no_disk() {
    test(|| {
        let (export, home) = (directory(), directory());
        let config = home.path().join("aqueduct.toml");
        fs::write(&config, "[limits]\nslow_operation_seconds = 2.5\n").unwrap();
        // A read of a MiB takes a second there.
        let arguments = ["--config", config.to_str().unwrap(), "--listen", "127.0.0.1:0", "--rate", "1MB/s"];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[export.path()]);
        fs::write(export.path().join("file"), vec![7; 4 << 20]).unwrap();
        let mount = server.mount_with(export.path(), "cache=none,suspect=60");
        let mut agent = Agent::start();
        agent.ask(&format!("open 0 {} r", mount.join("file").display())).unwrap();
        agent.tell("readat 0 0 1048576");
        thread::sleep(Duration::from_millis(300));
        server.process.signal(Signal::STOP);
        thread::sleep(Duration::from_secs(5));
        server.process.signal(Signal::CONT);
        agent.answer_within(SOON).expect("it goes on").unwrap();
        let said = || server.process.output();
        wait_until("it says what was stopped", SOON, || said().contains("this process did not run for"));
        assert!(!said().contains("the backing file system took"), "{}", said());
    });
}
