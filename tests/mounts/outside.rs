//! Changes that processes on the server make in an export, past the server.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::{Mount, SOON, Server, aqueduct, directory, have, run, skip, test};
use crate::errors::complains;
use crate::sys;

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// How changes from outside come to light in a server's only export.
fn external(server: &Server) -> String {
    server.status()["exports"][0]["external"].as_str().unwrap().to_owned()
}

fn serve(arguments: &[&str], export: &Path) -> Server {
    Server::start_with(&mut aqueduct(), &[&LISTEN, arguments].concat(), &[export])
}

/// A server that is told what it cannot have does not start; told nothing, it takes what there is, and says so.
#[test]
fn what_cannot_be_watched_is_polled() {
    test(|| {
        if !have(&["setpriv"]) {
            return;
        }
        let export = directory();
        let usual = serve(&[], export.path());
        assert_eq!(external(&usual), "watch");
        for how in ["watch", "poll", "none"] {
            assert_eq!(external(&serve(&["--external", how], export.path())), how);
        }
        let without_right = || {
            let mut command = Command::new("setpriv");
            command.args(["--bounding-set", "-sys_admin"]).arg(aqueduct().get_program());
            command
        };
        let polled = Server::start_with(&mut without_right(), &LISTEN, &[export.path()]);
        assert_eq!(external(&polled), "poll");
        let log = polled.process.output();
        let warnings: Vec<_> = log.lines().filter(|line| line.contains("WARN")).collect();
        assert!(warnings.len() == 1 && warnings[0].contains("CAP_SYS_ADMIN"), "{log}");
        assert!(warnings[0].contains("3 s") && warnings[0].contains("run the server as root"), "{log}");
        let state = directory();
        let refused = |command: &mut Command, export: &Path| {
            let command = command.arg("serve").arg("--state").arg(state.path()).args(LISTEN);
            run(command.args(["--external", "watch"]).arg(export)).failed()
        };
        let text = refused(&mut without_right(), export.path());
        complains(&text, &["root's rights"], &["as root", "external = \"poll\""]);
        // What another server serves is changed by others.
        fs::create_dir(export.path().join("inner")).unwrap();
        let mount = usual.mount(export.path());
        let stacked = Server::start_with(&mut aqueduct(), &LISTEN, &[&mount.join("inner")]);
        assert_eq!(external(&stacked), "poll");
        let log = stacked.process.output();
        assert!(log.contains("its file system is FUSE") && !log.contains("WARN"), "{log}");
        complains(&refused(&mut aqueduct(), &mount.join("inner")), &["FUSE"], &["external = \"poll\""]);
        drop(stacked);
    });
}

/// Longer than any recall takes, shorter than the age at which what is kept ends by itself where changes are told (60 s).
const TOLD: Duration = SOON;

/// A server whose mount keeps what it may.
struct Kept {
    mount: Mount,
    server: Server,
    export: TempDir,
}

impl Kept {
    fn new(lines: &str) -> Kept {
        let (export, home) = (directory(), directory());
        let path = home.path().join("aqueduct.toml");
        fs::write(&path, format!("[[export]]\npath = '{}'\n{lines}", export.path().display())).unwrap();
        let config = ["--config", path.to_str().unwrap()];
        let server = Server::start_with(&mut aqueduct(), &[&LISTEN, &config[..]].concat(), &[]);
        let mount = server.mount_with(export.path(), "cache=lease");
        Kept { mount, server, export }
    }

    /// On the server, and on the mount.
    fn paths(&self, name: &str) -> (PathBuf, PathBuf) {
        (self.export.path().join(name), self.mount.join(name))
    }

    fn operations(&self) -> u64 {
        let status = self.server.status();
        let sessions = status["sessions"].as_array().unwrap();
        sessions.iter().filter_map(|session| session["operations"].as_u64()).max().unwrap()
    }

    /// Looks until the server is not asked each time; what was seen then.
    fn keep<T>(&self, what: &str, look: impl Fn() -> T) -> T {
        const LOOKS: u64 = 20;
        let started = Instant::now();
        loop {
            let before = self.operations();
            let seen = (0..LOOKS).map(|_| look()).last().unwrap();
            if self.operations() < before + LOOKS / 2 {
                return seen;
            }
            assert!(started.elapsed() < SOON, "{what}: the server is asked each time");
        }
    }

    /// What is looked at is kept; then something is changed past the server. How long it takes until the change is seen.
    fn seen_after<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        look: impl Fn() -> T,
        change: impl FnOnce(),
        expected: T,
    ) -> Duration {
        self.keep(what, &look);
        seen_after(what, look, change, expected)
    }
}

/// How long it takes until a change past the server is seen, of what was looked at just before.
fn seen_after<T: PartialEq + std::fmt::Debug>(
    what: &str,
    look: impl Fn() -> T,
    change: impl FnOnce(),
    expected: T,
) -> Duration {
    assert_ne!(look(), expected, "{what}: there already");
    change();
    let changed = Instant::now();
    while look() != expected {
        assert!(changed.elapsed() < TOLD, "{what} is not seen");
        thread::sleep(Duration::from_micros(200));
    }
    changed.elapsed()
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn median(mut times: Vec<Duration>) -> String {
    times.sort();
    format!("median {:.1?}, longest {:.1?}", times[times.len() / 2], times[times.len() - 1])
}

#[test]
fn changes_on_the_server_are_seen_soon() {
    test(|| {
        let kept = Kept::new("");
        let mut times = Vec::new();
        // Each with files of its own: what is changed again and again is not kept for a while.
        for round in 0..3 {
            let (file, seen_file) = kept.paths(&format!("file-{round}"));
            fs::write(&file, "content").unwrap();
            // Of the same size, and its time is put back: nothing but the recall tells of it.
            let time = fs::metadata(&file).unwrap().modified().unwrap();
            let change = || {
                let mut open = OpenOptions::new().write(true).open(&file).unwrap();
                open.write_all(b"CONTENT").unwrap();
                open.set_modified(time).unwrap();
            };
            let read = || fs::read_to_string(&seen_file).unwrap();
            times.push(kept.seen_after("content", read, change, "CONTENT".into()));

            let (file, seen_file) = kept.paths(&format!("moded-{round}"));
            fs::write(&file, "").unwrap();
            let change = || fs::set_permissions(&file, Permissions::from_mode(0o606)).unwrap();
            let look = || fs::metadata(&seen_file).unwrap().mode() & 0o777;
            times.push(kept.seen_after("mode", look, change, 0o606));

            let (directory, seen_directory) = kept.paths(&format!("directory-{round}"));
            fs::create_dir(&directory).unwrap();
            let (name, seen_name) = (directory.join("name"), seen_directory.join("name"));
            let made = || fs::create_dir(&name).unwrap();
            times.push(kept.seen_after("a new name", || seen_name.exists(), made, true));
            let removed = || fs::remove_dir(&name).unwrap();
            times.push(kept.seen_after("a removed name", || seen_name.exists(), removed, false));
            let made = || fs::create_dir(&name).unwrap();
            times.push(kept.seen_after("a listing", || names(&seen_directory), made, vec!["name".to_owned()]));
        }
        for round in 0..30 {
            let (file, seen) = kept.paths(&format!("other-{round}"));
            fs::write(&file, "old").unwrap();
            let read = || fs::read_to_string(&seen).unwrap();
            (0..5).for_each(|_| assert_eq!(read(), "old"));
            times.push(seen_after("content", read, || fs::write(&file, "new").unwrap(), "new".into()));
        }
        eprintln!("a change on the server is seen after: {}", median(times));
    });
}

#[test]
fn a_mapping_on_the_server_is_seen_when_it_ends() {
    test(|| {
        let kept = Kept::new("");
        let (file, seen) = kept.paths("file");
        fs::write(&file, "content").unwrap();
        let store = || {
            let open = OpenOptions::new().read(true).write(true).open(&file).unwrap();
            sys::store_shared(open.as_fd(), 7, 0, b'C').unwrap();
        };
        kept.seen_after("what was stored", || fs::read_to_string(&seen).unwrap(), store, "Content".into());
    });
}

/// As a program on the server could, whoever has a file open reads on: after a moment, the server has it open for him.
#[test]
fn what_was_open_for_a_second_is_read_on() {
    fn content(letter: u8) -> Vec<u8> {
        vec![letter; 300_000]
    }
    test(|| {
        let kept = Kept::new("");
        let names = ["removed", "replaced"];
        let mut open = names.map(|name| {
            let (path, seen) = kept.paths(name);
            fs::write(&path, content(b'a')).unwrap();
            kept.keep("opens", || drop(File::open(&seen).unwrap()));
            File::open(&seen).unwrap()
        });
        thread::sleep(Duration::from_secs(1)); // what is promised
        let (by, _) = kept.paths("by");
        fs::write(&by, content(b'b')).unwrap();
        let ((removed, seen_removed), (replaced, seen_replaced)) = (kept.paths("removed"), kept.paths("replaced"));
        let replace = || fs::rename(&by, &replaced).unwrap();
        seen_after("another file", || fs::read(&seen_replaced).unwrap().pop(), replace, Some(b'b'));
        seen_after("removal", || seen_removed.exists(), || fs::remove_file(&removed).unwrap(), false);
        for (file, name) in open.iter_mut().zip(names) {
            let mut text = Vec::new();
            file.read_to_end(&mut text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(text == content(b'a'), "{name}");
        }
    });
}

/// While the server stands still, more changes than the kernel's queue has room for.
#[test]
fn when_too_much_has_changed_everything_is_recalled() {
    test(|| {
        let limit = fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events").unwrap();
        let limit: usize = limit.trim().parse().unwrap();
        if limit > 100_000 {
            return skip("fs.fanotify.max_queued_events is beyond reach");
        }
        let kept = Kept::new("");
        let (file, seen) = kept.paths("file");
        fs::write(&file, "old").unwrap();
        let other = kept.export.path().join("other");
        fs::create_dir(&other).unwrap();
        let change = || {
            kept.server.process.stop();
            for number in 0..limit + 100 {
                File::create(other.join(number.to_string())).unwrap();
            }
            fs::write(&file, "new").unwrap();
            kept.server.process.signal(Signal::CONT);
        };
        kept.seen_after("content", || fs::read_to_string(&seen).unwrap(), change, "new".into());
        assert!(kept.server.status()["outside"]["overflows"].as_u64() > Some(0));
    });
}

/// Looked at all the time, so that what is kept is renewed all the time: it is old, until it has reached its age, and no longer.
#[test]
fn what_is_polled_is_no_older_than_its_age() {
    test(|| {
        let kept = Kept::new("external = 'poll'\nexternal_age_seconds = 1");
        let (file, seen) = kept.paths("file");
        fs::write(&file, "0").unwrap();
        let mut times = Vec::new();
        for round in 1..5 {
            let read = || fs::read_to_string(&seen).unwrap();
            let change = || fs::write(&file, round.to_string()).unwrap();
            times.push(kept.seen_after("content", read, change, round.to_string()));
        }
        eprintln!("with an age of 1 s, a change on the server is seen after: {}", median(times.clone()));
        // The machine may be busy, but not for longer than what was kept would otherwise have been.
        assert!(times.iter().min() < Some(&Duration::from_secs(3)), "{times:?}");
    });
}

/// Where nobody watches, what was promised not to change is not asked for: what the other tests see is the watching, and the age.
#[test]
fn without_watching_what_is_kept_is_old() {
    test(|| {
        let kept = Kept::new("external = 'none'");
        // It is no promise that it stays old: what is kept may be given back at any time.
        let stays_old = |name: &String| {
            let (file, seen) = kept.paths(name);
            fs::write(&file, "old").unwrap();
            let read = || fs::read_to_string(&seen).unwrap();
            kept.keep("content", read);
            fs::write(&file, "new").unwrap();
            (0..20).all(|_| {
                thread::sleep(Duration::from_millis(100));
                read() == "old"
            })
        };
        let name = (0..5).map(|round| round.to_string()).find(stays_old).expect("something is kept");
        let read = || fs::read_to_string(kept.mount.join(&name)).unwrap();
        // A client's change recalls as ever.
        let other = kept.server.mount_with(kept.export.path(), "cache=lease");
        fs::write(other.join(&name), "newest").unwrap();
        assert_eq!(read(), "newest");
    });
}
