//! Who may connect: servers and clients with and without the key, as programs.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::agent::Agent;
use crate::common::{Output, Server, aqueduct, directory, mount_point, run, test};
use crate::errors::complains;

/// Some keys, each in a file of its own.
pub struct Keys(TempDir);

impl Keys {
    pub fn new(names: &[&str]) -> Keys {
        let keys = Keys(directory());
        for name in names {
            run(aqueduct().arg("keygen").arg(keys.file(name))).succeeded();
        }
        keys
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.file(name).to_str().unwrap().to_owned()
    }

    pub fn option(&self, name: &str) -> String {
        format!("key={}", self.text(name))
    }
}

/// A mount that should fail.
pub fn try_mount(source: &str, options: &str) -> Output {
    let point = mount_point();
    let output = run(aqueduct().args(["mount", "-o", options, source]).arg(&point));
    fs::remove_dir(&point).unwrap();
    output
}

#[test]
fn keygen_makes_a_key_and_touches_none_that_is_there() {
    test(|| {
        let keys = Keys::new(&["a", "b"]);
        let [a, b] = ["a", "b"].map(|name| fs::read_to_string(keys.file(name)).unwrap());
        assert!(a.starts_with("aqueduct-key-1:") && a.len() == b.len() && a != b);
        let output = run(aqueduct().arg("keygen").arg(keys.file("a")));
        assert_eq!(output.status.code(), Some(1));
        complains(&output.text, &["exists"], &["not there"]);
        assert_eq!(fs::read_to_string(keys.file("a")).unwrap(), a);
        complains(&run(aqueduct().args(["keygen", "/no/such/folder/key"])).failed(), &["no such"], &["folder"]);
        assert_eq!(run(aqueduct().arg("keygen")).status.code(), Some(2));
    });
}

#[test]
fn a_bad_key_file_is_told() {
    test(|| {
        let keys = Keys::new(&["good", "open"]);
        let export = directory();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        fs::set_permissions(keys.file("open"), mode).unwrap();
        fs::copy(keys.file("good"), keys.file("bad")).unwrap();
        fs::write(keys.file("bad"), "# mine\nabcdef\n").unwrap();
        for (name, why, todo) in
            [("open", "0644", "chmod 600"), ("bad", "line 2", "keygen"), ("none", "no such", "keygen")]
        {
            let serve = run(aqueduct()
                .args(["serve", "--listen", "127.0.0.1:0", "--key"])
                .arg(keys.file(name))
                .arg(export.path()));
            for text in [serve.failed(), try_mount("127.0.0.1:1:/x", &keys.option(name)).failed()] {
                complains(&text, &[why], &[todo]);
                assert!(!text.contains("abcdef"), "{text}");
            }
        }
    });
}

#[test]
fn only_who_has_the_key_may_connect() {
    test(|| {
        let keys = Keys::new(&["ours", "other"]);
        let export = directory();
        let server = Server::start_with(
            &mut aqueduct(),
            &["--listen", "127.0.0.1:0", "--key", &keys.text("ours")],
            &[export.path()],
        );
        let source = server.source(export.path());
        let mount = server.mount_with(export.path(), &keys.option("ours"));
        let data: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
        fs::write(mount.join("file"), &data).unwrap();
        assert!(fs::read(mount.join("file")).unwrap() == data);

        // Also on loopback.
        complains(&try_mount(&source, "rw").failed(), &["no key was given"], &["-o key=file"]);
        complains(&try_mount(&source, &keys.option("other")).failed(), &["does not accept the key"], &["serve --key"]);
        let status = |arguments: &[&str]| run(aqueduct().arg("status").args(arguments).arg(&server.address));
        complains(&status(&[]).failed(), &["no key was given"], &["--key file"]);
        assert!(status(&["--key", &keys.text("ours")]).succeeded().contains("EXPORT"), "it tells");
        let told = server.process.output();
        assert_eq!(told.matches("none of this server's").count(), 1, "{told}");
        assert!(!told.contains(fs::read_to_string(keys.file("ours")).unwrap().trim()), "a key in the log");
        drop((mount, server));
    });
}

#[test]
fn a_client_with_a_key_uses_no_server_without() {
    test(|| {
        let keys = Keys::new(&["ours"]);
        let export = directory();
        let server = Server::start(&[export.path()]);
        let output = try_mount(&server.source(export.path()), &keys.option("ours"));
        complains(&output.failed(), &["not proved"], &["serve --key"]);
        drop(server);
    });
}

fn append(from: &Path, to: &Path) {
    fs::write(to, [fs::read(to).unwrap(), fs::read(from).unwrap()].concat()).unwrap();
}

/// Keys change one host at a time, and what is open stays open.
#[test]
fn keys_are_changed_while_clients_work() {
    test(|| {
        let keys = Keys::new(&["old", "new"]);
        let export = directory();
        let arguments = ["--listen", "127.0.0.1:0", "--key", &keys.text("old")];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[export.path()]);
        let early = server.mount_with(export.path(), &keys.option("old"));
        let mut agent = Agent::start();
        agent.ask(&format!("open 0 {} rwc", early.join("file").display())).unwrap();
        agent.ask("process 0 W 0 0").unwrap();
        append(&keys.file("new"), &keys.file("old"));
        let server = server.restart_with(&["--key", &keys.text("old")], &[export.path()]);
        assert_eq!(agent.ask("writeat 0 0 kept"), Ok("4".into()));
        let late = server.mount_with(export.path(), &keys.option("new"));
        assert_eq!(fs::read_to_string(late.join("file")).unwrap(), "kept");
        let mut other = Agent::start();
        other.ask(&format!("open 0 {} rwc", late.join("file").display())).unwrap();
        assert_eq!(other.ask("process 0 W 0 0"), Err(libc::EAGAIN), "its lock is held still");
        drop((agent, other, early, late, server));
    });
}
