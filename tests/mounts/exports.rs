//! Several exports of one server, its state folder, and what lies at an export's root.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::agent::Agent;
use crate::common::ways::are_direct;
use crate::common::{Mount, Server, aqueduct, directory, errno, run, test};
use crate::errors::complains;

/// Two exports of one server that show the same files, each mounted.
pub struct Shared {
    /// The outer export, or the directory under its first name.
    pub left: Mount,
    /// The inner export, or the directory under its second name.
    pub right: Mount,
    pub server: Server,
    pub directory: TempDir,
    config: PathBuf,
    inner: &'static str,
    _home: TempDir,
}

/// Both ways in which exports show the same files: one directory under two names, and one inside
/// the other.
pub const WAYS: [&str; 2] = ["", "inner"];

impl Shared {
    /// The second export is `inner`, below the first.
    pub fn new(inner: &'static str, options: &str) -> Shared {
        let (home, directory) = (directory(), directory());
        fs::create_dir_all(directory.path().join(inner)).unwrap();
        let export = |name, path: &Path| format!("[[export]]\nname = '{name}'\npath = {path:?}\n");
        let exports = [export("left", directory.path()), export("right", &directory.path().join(inner))];
        let config = home.path().join("aqueduct.toml");
        fs::write(&config, exports.concat()).unwrap();
        let arguments = ["--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[]);
        let [left, right] = ["left", "right"].map(|name| server.mount_with(Path::new(name), options));
        Shared { left, right, server, directory, config, inner, _home: home }
    }

    /// Where both mounts show the second export.
    fn places(&self) -> [PathBuf; 2] {
        [self.left.join(self.inner), self.right.path().to_owned()]
    }

    fn restart(self) -> Shared {
        let server = self.server.restart_with(&["--config", self.config.to_str().unwrap()], &[]);
        Shared { server, ..self }
    }
}

/// A process of its own that has the file open: what this one has open is closed in each program
/// that it starts, which waits while there is no server.
fn holder(file: &Path, how: &str) -> Agent {
    let mut agent = Agent::start();
    agent.ask(&format!("open 0 {} {how}", file.display())).unwrap();
    agent
}

fn locker(file: &Path) -> Agent {
    holder(file, "rwc")
}

/// A process that has a removed file open.
fn removed(file: &Path, text: &str) -> Agent {
    fs::write(file, text).unwrap();
    let holder = holder(file, "r");
    fs::remove_file(file).unwrap();
    holder
}

#[test]
fn locks_exclude_across_exports_of_the_same_files() {
    test(|| {
        for inner in WAYS {
            let shared = Shared::new(inner, "");
            let [mut left, mut right] = shared.places().map(|place| locker(&place.join("file")));
            for (exclusive, unlock) in [
                ("process 0 W 0 0", "process 0 U 0 0"),
                ("openfile 0 W 0 0", "openfile 0 U 0 0"),
                ("flock 0 W", "flock 0 U"),
            ] {
                left.ask(exclusive).unwrap();
                assert_eq!(right.ask(exclusive), Err(libc::EAGAIN), "{inner:?}: {exclusive}");
                right.tell(&format!("{exclusive} wait"));
                assert!(right.is_waiting());
                left.ask(unlock).unwrap();
                right.answer().unwrap();
                assert_eq!(left.ask(exclusive), Err(libc::EAGAIN), "{inner:?}: {exclusive}");
                right.ask(unlock).unwrap();
            }
        }
    });
}

#[test]
fn an_administrator_sees_and_releases_locks_of_each_export() {
    test(|| {
        let shared = Shared::new("inner", "");
        let [mut left, mut right] = shared.places().map(|place| locker(&place.join("file")));
        left.ask("process 0 W 0 0").unwrap();
        right.tell("process 0 W 0 0 wait");
        assert!(right.is_waiting());
        let state = shared.server.state();
        let list = ["status", "--locks", "--json", "--state", state.to_str().unwrap(), &shared.server.address];
        let list: serde_json::Value = serde_json::from_str(&run(aqueduct().args(list)).succeeded()).unwrap();
        assert_eq!(list["locks_total"], 2, "{list}");
        let find = |export: &str, held: &str| {
            let all = list["locks"].as_array().unwrap();
            let its = all.iter().find(|lock| lock["export"] == export).unwrap();
            assert_eq!(its["state"], held, "{list}");
            its["client_id"].as_str().unwrap().to_owned()
        };
        let (holder, _waiter) = (find("left", "held"), find("right", "waits"));
        let release =
            ["release-locks", "--state", state.to_str().unwrap(), "--server", &shared.server.address, &holder];
        run(aqueduct().args(release)).succeeded();
        right.answer().unwrap();
    });
}

/// Until both clients of before have come back, and then against each other as before.
#[test]
fn locks_across_exports_are_kept_over_a_kill_of_the_server() {
    test(|| {
        for inner in WAYS {
            let shared = Shared::new(inner, "");
            let [mut left, mut right] = shared.places().map(|place| locker(&place.join("file")));
            left.ask("process 0 W 0 0").unwrap();
            let shared = shared.restart();
            assert_eq!(right.ask("process 0 W 0 0"), Err(libc::EAGAIN), "{inner:?}");
            right.tell("process 0 W 0 0 wait");
            assert!(right.is_waiting());
            left.ask("process 0 U 0 0").unwrap();
            right.answer().unwrap();
            drop((left, right, shared));
        }
    });
}

/// Exports that show the same files are watched as others are: nobody has asked for what is
/// seconds old.
#[test]
fn exports_of_the_same_files_show_changes_as_single_ones_do() {
    test(|| {
        for inner in WAYS {
            let shared = Shared::new(inner, "cache=lease");
            for export in shared.server.status()["exports"].as_array().unwrap() {
                assert_eq!(export["external"], "watch", "{inner:?}");
            }
            let log = shared.server.process.output();
            assert!(!log.contains("WARN"), "{log}");
            let files = shared.places().map(|place| place.join("file"));
            let below = shared.directory.path().join(inner).join("file");
            fs::write(&below, "0").unwrap();
            for round in 1..20 {
                for file in &files {
                    (0..5).for_each(|_| drop(fs::read(file).unwrap()));
                }
                let text = round.to_string();
                // By a client, and by a process of the server's machine.
                let by_client = round % 3 < 2;
                fs::write(if by_client { &files[round % 3] } else { &below }, &text).unwrap();
                let written = Instant::now();
                for file in &files {
                    while fs::read_to_string(file).unwrap() != text {
                        assert!(!by_client, "{inner:?} {round}: {} shows what was", file.display());
                        assert!(written.elapsed() < Duration::from_secs(2), "{inner:?}: not told");
                    }
                }
            }
        }
    });
}

/// A second server would give up what the first keeps for its clients.
#[test]
fn a_state_folder_has_one_living_owner() {
    test(|| {
        let export = directory();
        let server = Server::start(&[export.path()]);
        let mount = server.mount(export.path());
        let mut open = removed(&mount.join("file"), "kept");
        let serve = ["serve", "--listen", "127.0.0.1:0", "--state"];
        let refused = run(aqueduct().args(serve).arg(server.state()).arg(export.path())).failed();
        let owner = format!("process {} serves with it", server.process.pid());
        complains(&refused, &[&owner], &["end that process", "--state"]);
        // The lock ends with its owner, however that one ends, and what it kept is there for the
        // next.
        let server = server.restart(&[export.path()]);
        assert_eq!(open.ask("read 0 9").unwrap(), "kept");
        drop((open, mount, server));
    });
}

/// Each keeps its own; what the one changes is to the other a change from outside.
#[test]
fn two_servers_of_one_directory_leave_each_others_kept_files_alone() {
    test(|| {
        let export = directory();
        let servers = [Server::start(&[export.path()]), Server::start(&[export.path()])];
        let mounts = servers.each_ref().map(|server| server.mount(export.path()));
        let mut open =
            [0, 1].map(|number| removed(&mounts[number].join(format!("file{number}")), &format!("kept {number}")));
        let servers = servers.map(|server| server.restart(&[export.path()]));
        for (number, file) in open.iter_mut().enumerate() {
            assert_eq!(file.ask("read 0 9").unwrap(), format!("kept {number}"));
        }
        drop((open, mounts, servers));
    });
}

/// Whoever replaces an export's root, and restarts the server, serves the new directory, and
/// nothing of the old one.
#[test]
fn what_was_found_below_a_root_that_is_replaced_is_stale() {
    if !are_direct() {
        return;
    }
    test(|| {
        let parent = directory();
        let (export, moved) = (parent.path().join("export"), parent.path().join("moved"));
        fs::create_dir(&export).unwrap();
        let server = Server::start(&[&export]);
        let mount = server.mount_with(&export, "cache=none");
        fs::create_dir(mount.join("directory")).unwrap();
        fs::write(mount.join("file"), "of before").unwrap();
        let mut open = holder(&mount.join("file"), "rw");
        let (address, home) = server.kill();
        fs::rename(&export, &moved).unwrap();
        fs::create_dir(&export).unwrap();
        fs::write(export.join("new"), "of now").unwrap();
        let server = Server::start_at(home, &mut aqueduct(), &["--listen", &address], &[&export]);
        for result in [
            fs::read(mount.join("file")).map(drop),
            fs::read_dir(mount.path()).map(drop),
            fs::write(mount.join("directory/more"), "x"),
        ] {
            assert_eq!(errno(result), libc::ESTALE);
        }
        for order in ["read 0 9", "write 0 more"] {
            let error = open.ask(order).unwrap_err();
            assert!(error == libc::ESTALE || error == libc::EIO, "{order}: {error}");
        }
        assert_eq!(fs::read_to_string(moved.join("file")).unwrap(), "of before");
        assert_eq!(fs::read_dir(moved.join("directory")).unwrap().count(), 0);
        let again = server.mount(&export);
        assert_eq!(fs::read_to_string(again.join("new")).unwrap(), "of now");
        drop((open, mount, again, server));
    });
}

#[test]
fn a_folder_for_removed_files_that_others_have_taken_is_told() {
    test(|| {
        let export = directory();
        let taken = export.path().join(".aqueduct-unlinked");
        fs::create_dir(&taken).unwrap();
        std::os::unix::fs::chown(&taken, Some(1000), None).unwrap();
        let server = Server::start(&[export.path()]);
        let log = server.process.output();
        assert!(log.contains("WARN") && log.contains(".aqueduct-unlinked in"), "{log}");
        let mount = server.mount(export.path());
        let mut open = removed(&mount.join("file"), "kept");
        assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0, "neither folder is seen");
        let server = server.restart(&[export.path()]);
        assert_eq!(open.ask("read 0 9").unwrap(), "kept");
        drop((open, mount));
        // With the second name taken as well nothing could be kept.
        let mut paths = fs::read_dir(export.path()).unwrap().map(|entry| entry.unwrap().path());
        let other = paths.find(|path| *path != taken).unwrap();
        let (address, home) = server.kill();
        fs::remove_dir_all(&other).unwrap();
        fs::write(&other, "").unwrap();
        let serve = ["serve", "--listen", &address, "--state"];
        let refused = run(aqueduct().args(serve).arg(home.path().join("state")).arg(export.path())).failed();
        complains(&refused, &["belong to others"], &["remove or rename"]);
    });
}

/// Which server is meant its name says: a rail that leads to another one would show other files.
#[test]
fn a_rail_that_leads_to_another_server_is_not_used() {
    test(|| {
        let export = directory();
        let [meant, other] =
            [(); 2].map(|()| Server::start_with(&mut aqueduct(), &["--listen", "127.0.0.1:0"], &[export.path()]));
        let rails = format!("rails={},{}", other.address, meant.address);
        let mount = meant.mount_with(export.path(), &rails);
        assert_eq!((meant.sessions(), other.sessions()), (1, 0));
        let said = mount.process.output();
        assert!(said.contains("a rail cannot be used") && said.contains("there is another server"), "{said}");
        assert!(said.contains(&other.address), "{said}");
        let point = directory();
        let source = meant.source(export.path());
        let mut command = aqueduct();
        command.args(["mount", "-o", &format!("rails={}", other.address), &source]).arg(point.path());
        let said = run(&mut command).failed();
        assert!(said.contains(&format!("over {}", other.address)) && said.contains("another server"), "{said}");
    });
}
