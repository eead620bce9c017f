//! What an export allows to whom: root of other machines, hosts, ids that differ.

use std::fs::{self, File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use tempfile::TempDir;

use crate::common::ways::are_direct;
use crate::common::{Mount, SOON, Server, aqueduct, directory, errno, have, run, shell, test, wait_until, within};
use crate::network::{ADDRESSES, Network};
use crate::proxy::Proxy;
use crate::sys;

const PORT: u16 = 7170;

/// What a network with servers and mounts takes at most.
const NETWORK_MAX: Duration = Duration::from_secs(120);

/// A directory into which everybody may write.
fn open_directory() -> TempDir {
    let export = directory();
    fs::set_permissions(export.path(), Permissions::from_mode(0o777)).unwrap();
    export
}

fn owner(path: &Path) -> (u32, u32) {
    let stat = fs::symlink_metadata(path).unwrap();
    (stat.uid(), stat.gid())
}

/// A server whose one export is as these lines of a configuration file say.
fn configured(command: &mut Command, listen: &[&str], export: &Path, lines: &str) -> Server {
    let home = directory();
    let file = home.path().join("aqueduct.toml");
    let text = format!("listen = {listen:?}\ninsecure = true\n[[export]]\npath = {export:?}\n{lines}\n");
    fs::write(&file, text).unwrap();
    Server::start_with(command, &["--config", file.to_str().unwrap()], &[])
}

fn on_loopback(export: &Path, lines: &str) -> (Server, Mount) {
    let server = configured(&mut aqueduct(), &["127.0.0.1:0"], export, lines);
    let mount = server.mount(export);
    (server, mount)
}

fn as_user(uid: u32, script: &str) -> String {
    format!("setpriv --reuid {uid} --regid {uid} --clear-groups sh -euc '{script}'")
}

#[test]
fn root_of_another_machine_is_nobody() {
    within(NETWORK_MAX, || {
        if !have(&["ip", "nsenter", "setpriv"]) {
            return;
        }
        let Some(network) = Network::new() else { return };
        let export = open_directory();
        let secret = export.path().join("secret");
        fs::write(&secret, "x").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        let listen = [format!("{}:{PORT}", ADDRESSES[0]), format!("127.0.0.1:{PORT}")];
        let arguments = ["--listen", &listen[0], "--listen", &listen[1], "--insecure"];
        let _server = Server::start_with(&mut network.inside(0), &arguments, &[export.path()]);
        let source = |host: &str| format!("{host}:{}", export.path().display());
        let remote = Mount::start(&mut network.inside(1), &[&source(ADDRESSES[0])], "");
        let local = Mount::start(&mut network.inside(0), &[&source("127.0.0.1")], "");

        assert_eq!(errno(fs::read(remote.join("secret"))), Errno::ACCESS.raw_os_error());
        assert_eq!(errno(chown(remote.join("secret"), Some(0), Some(0))), Errno::PERM.raw_os_error());
        fs::write(remote.join("mine"), "x").unwrap();
        assert_eq!(owner(&export.path().join("mine")), (65_534, 65_534));
        assert_eq!(errno(chown(remote.join("mine"), Some(0), None)), Errno::PERM.raw_os_error());
        // Other users are who they are.
        shell(remote.path(), &as_user(1000, "echo x > theirs")).succeeded();
        assert_eq!(owner(&export.path().join("theirs")), (1000, 1000));

        assert_eq!(fs::read_to_string(local.join("secret")).unwrap(), "x");
        fs::write(local.join("roots"), "x").unwrap();
        assert_eq!(owner(&export.path().join("roots")), (0, 0));
        // What is mapped is written back by the client's kernel as root, through an open that was allowed.
        let mine = File::options().read(true).write(true).open(remote.join("mine")).unwrap();
        sys::store_shared(mine.as_fd(), 1, 0, b'y').unwrap();
        drop(mine);
        assert_eq!(fs::read_to_string(export.path().join("mine")).unwrap(), "y");
        drop((remote, local));
    });
}

/// Who comes through a forwarder on the server's machine is of another one, however near the
/// forwarder is.
#[test]
fn root_through_a_forwarder_is_nobody() {
    if !are_direct() {
        return;
    }
    test(|| {
        let export = open_directory();
        fs::write(export.path().join("roots"), "x").unwrap();
        let server = Server::start(&[export.path()]);
        let proxy = Proxy::start(&server.address);
        let forwarded = format!("{}:{}", proxy.address, export.path().display());
        let forwarded = Mount::start(&mut aqueduct(), &[&forwarded], "");
        fs::write(forwarded.join("mine"), "x").unwrap();
        assert_eq!(owner(&export.path().join("mine")), (65_534, 65_534));
        assert_eq!(errno(chown(forwarded.join("roots"), Some(1), None)), Errno::PERM.raw_os_error());
        // It is not told of exports for others, nor of anything else that only root of the machine
        // is.
        let status = run(aqueduct().args(["status", "--json", &proxy.address.to_string()])).succeeded();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let sessions = status["server"]["sessions"].as_array().unwrap();
        let asker = sessions.iter().find(|session| session["export"].is_null()).expect("who asks");
        assert!(asker["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{asker}");
        drop(forwarded);
    });
}

/// Mounts of a loopback address take the server's socket by themselves, and so are root of its
/// machine.
#[test]
fn a_mount_of_this_machine_takes_the_servers_socket() {
    if !are_direct() {
        return;
    }
    test(|| {
        let export = open_directory();
        let server = Server::start(&[export.path()]);
        let port = server.address.rsplit_once(':').unwrap().1;
        let socket = format!("/run/aqueduct/{port}.sock");
        let by_path = format!("unix:{socket}:{}", export.path().display());
        let mounts = [server.mount(export.path()), Mount::start(&mut aqueduct(), &[&by_path], "")];
        for (number, mount) in mounts.iter().enumerate() {
            let name = format!("file{number}");
            fs::write(mount.join(&name), "x").unwrap();
            assert_eq!(owner(&export.path().join(&name)), (0, 0));
        }
        let status = server.status();
        let sessions: Vec<_> =
            status["sessions"].as_array().unwrap().iter().filter(|session| session["export"].is_string()).collect();
        assert_eq!(sessions.len(), 2);
        for session in sessions {
            assert!(session["peer"].as_str().unwrap().starts_with("local uid=0 pid="), "{session}");
            assert_eq!(session["squash"], "none");
        }
        let asked = run(aqueduct().args(["status", &format!("unix:{socket}")])).succeeded();
        assert!(asked.contains(export.path().to_str().unwrap()), "{asked}");
        // They come back to it, also after a death that leaves the socket behind.
        let (address, home) = server.kill();
        assert!(Path::new(&socket).exists());
        let server = Server::start_at(home, &mut aqueduct(), &["--listen", &address], &[export.path()]);
        for mount in &mounts {
            fs::write(mount.join("again"), "x").unwrap();
        }
        assert_eq!(owner(&export.path().join("again")), (0, 0));
        drop(mounts);
        // Whoever ends in order leaves nothing behind.
        let mut server = server;
        server.process.signal(rustix::process::Signal::TERM);
        server.process.ends_within(SOON);
        assert!(!Path::new(&socket).exists());
    });
}

#[test]
fn hosts_are_let_in_as_listed() {
    within(NETWORK_MAX, || {
        if !have(&["ip", "nsenter"]) {
            return;
        }
        let Some(network) = Network::new() else { return };
        let export = open_directory();
        let lines =
            format!("hosts = [\"{}/32\"]\nread_only_hosts = [\"{}\"]\nsquash = \"none\"", ADDRESSES[1], ADDRESSES[2]);
        let listen = [format!("{}:{PORT}", ADDRESSES[0]), format!("127.0.0.1:{PORT}")];
        let _server = configured(&mut network.inside(0), &[&listen[0], &listen[1]], export.path(), &lines);
        let source = |host: &str| format!("{host}:{}", export.path().display());
        let writer = Mount::start(&mut network.inside(1), &[&source(ADDRESSES[0])], "");
        fs::write(writer.join("file"), "x").unwrap();

        let reader = Mount::start(&mut network.inside(2), &[&source(ADDRESSES[0])], "");
        assert_eq!(fs::read_to_string(reader.join("file")).unwrap(), "x");
        assert_eq!(errno(fs::write(reader.join("file"), "y")), Errno::ROFS.raw_os_error());
        assert_eq!(errno(fs::remove_file(reader.join("file"))), Errno::ROFS.raw_os_error());

        // The server's own machine is not listed: it is told why, but no name.
        let nowhere = directory();
        let refused = |export: &str| {
            let source = format!("127.0.0.1:{export}");
            run(network.inside(0).args(["mount", &source]).arg(nowhere.path())).failed()
        };
        let told = refused(export.path().to_str().unwrap());
        assert!(
            told.contains("does not let this machine mount") && told.contains("local uid=0 is not among"),
            "{told}"
        );
        assert!(told.contains("'hosts'"), "what to do about it: {told}");
        assert!(refused("/none").contains("it has: none"), "an export that it may not mount is not named");
        // It may see the status; so may the reader, but another machine is not told of the export.
        let status = |number: usize| run(network.inside(number).args(["status", ADDRESSES[0]])).succeeded();
        assert!(status(2).contains("read only: 10.77.0.3/32"), "{}", status(2));
        let local = run(network.inside(0).args(["status", "127.0.0.1"])).succeeded();
        assert!(local.contains("10.77.0.2/32"), "{local}");
        let stranger = status(0);
        assert!(!stranger.contains(export.path().to_str().unwrap()), "{stranger}");
        drop((writer, reader));
    });
}

#[test]
fn everybody_may_be_nobody() {
    test(|| {
        if !have(&["setpriv"]) {
            return;
        }
        let export = open_directory();
        let (_server, mount) =
            on_loopback(export.path(), "squash = \"all\"\nanonymous_uid = 4711\nanonymous_gid = 4712");
        fs::write(mount.join("roots"), "x").unwrap();
        shell(mount.path(), &as_user(1000, "echo x > users; mkdir d; echo y >> roots")).succeeded();
        for name in ["roots", "users", "d"] {
            assert_eq!(owner(&export.path().join(name)), (4711, 4712), "{name}");
        }
        assert_eq!(fs::read_to_string(export.path().join("roots")).unwrap(), "xy\n");
    });
}

const MAPS: &str = "map_uids = [{ client = 1000, server = 5000, count = 10 }]\n\
                    map_gids = [{ client = 1000, server = 6000, count = 10 }]";

#[test]
fn ids_are_the_clients_on_clients_and_the_servers_on_the_server() {
    test(|| {
        if !have(&["setpriv", "ls"]) {
            return;
        }
        let export = open_directory();
        let (_server, mount) = on_loopback(export.path(), MAPS);
        let there = |name: &str| owner(&export.path().join(name));
        let here = |name: &str| owner(&mount.join(name));
        shell(mount.path(), &as_user(1001, "echo x > file; chmod 600 file; mkdir d; ln -s x l")).succeeded();
        for name in ["file", "d", "l"] {
            assert_eq!((here(name), there(name)), ((1001, 1001), (5001, 6001)), "{name}");
        }
        shell(mount.path(), &as_user(1001, "test $(cat file) = x")).succeeded();
        shell(mount.path(), &as_user(5001, "cat file")).succeeded(); // who has no place in the map is himself
        shell(mount.path(), &as_user(1002, "cat file")).failed();

        chown(mount.join("file"), Some(1009), Some(1003)).unwrap();
        assert_eq!((here("file"), there("file")), ((1009, 1003), (5009, 6003)));
        chown(mount.join("file"), Some(1010), None).unwrap();
        assert_eq!((here("file"), there("file")), ((1010, 1003), (1010, 6003)), "outside of the map");
        chown(export.path().join("file"), Some(5005), Some(6007)).unwrap();
        let listed = shell(mount.path(), "ls -n").succeeded();
        let line = listed.lines().find(|line| line.ends_with(" file")).unwrap();
        assert_eq!(line.split_whitespace().skip(2).take(2).collect::<Vec<_>>(), ["1005", "1007"], "{listed}");

        // A group that the client knows the user to have is the server's own.
        fs::write(export.path().join("shared"), "x").unwrap();
        fs::set_permissions(export.path().join("shared"), Permissions::from_mode(0o640)).unwrap();
        chown(export.path().join("shared"), Some(0), Some(6004)).unwrap();
        let with_group = |group: u32| format!("setpriv --reuid 1001 --regid 1001 --groups {group} cat shared");
        shell(mount.path(), &with_group(1004)).succeeded();
        shell(mount.path(), &with_group(1005)).failed();
    });
}

#[test]
fn a_mount_says_why_it_keeps_nothing() {
    test(|| {
        let export = open_directory();
        for lines in ["", "squash = 'all'", MAPS] {
            let server = configured(&mut aqueduct(), &["127.0.0.1:0"], export.path(), lines);
            let mount = server.mount_with(export.path(), "cache=lease");
            let (log, status) = (mount.process.output(), mount.status());
            assert_eq!(log.contains("cache=none instead of cache=lease"), !lines.is_empty(), "{log}");
            let why = status["leases"]["refused"].as_str();
            assert_eq!(why.is_some_and(|why| why.contains("squash")), !lines.is_empty(), "{status}");
        }
    });
}

#[test]
fn access_control_lists_name_the_clients_ids() {
    test(|| {
        if !have(&["setfacl", "getfacl", "setpriv"]) {
            return;
        }
        let export = open_directory();
        let (_server, mount) = on_loopback(export.path(), MAPS);
        shell(mount.path(), "echo x > file; chmod 600 file; setfacl -m u:1001:r,g:1002:rw,u:77:r file").succeeded();
        shell(mount.path(), "mkdir d; setfacl -d -m u:1003:rwx,g:78:rx d; echo y > d/inner").succeeded();
        let acl = |root: &Path, name: &str| shell(root, &format!("getfacl -n -c -p {name}")).succeeded();
        let (here, there) = (acl(mount.path(), "file"), acl(export.path(), "file"));
        for (line, root) in [
            ("user:1001:r--", &here),
            ("group:1002:rw-", &here),
            ("user:77:r--", &here),
            ("user:5001:r--", &there),
            ("group:6002:rw-", &there),
            ("user:77:r--", &there),
        ] {
            assert!(root.lines().any(|found| found == line), "{line} in\n{root}");
        }
        assert!(acl(mount.path(), "d").contains("default:user:1003:rwx"));
        assert!(acl(export.path(), "d").contains("default:user:5003:rwx"));
        assert!(acl(mount.path(), "d/inner").contains("user:1003:"));
        assert!(acl(export.path(), "d/inner").contains("user:5003:"));
        // They decide, and what a client reads it can write again.
        shell(mount.path(), &as_user(1001, "cat file")).succeeded();
        shell(mount.path(), &as_user(1004, "cat file")).failed();
        shell(mount.path(), "getfacl -n -p file > /dev/null; getfacl -n file | setfacl --set-file=- file").succeeded();
        assert_eq!((acl(mount.path(), "file"), acl(export.path(), "file")), (here, there));
        shell(export.path(), "setfacl -m u:5009:rw file").succeeded();
        assert!(acl(mount.path(), "file").contains("user:1009:rw-"));
    });
}

#[test]
fn ids_without_a_place_may_be_nobodys() {
    test(|| {
        if !have(&["setpriv"]) {
            return;
        }
        let export = open_directory();
        fs::write(export.path().join("strangers"), "x").unwrap();
        chown(export.path().join("strangers"), Some(1001), Some(1001)).unwrap();
        let (_server, mount) = on_loopback(export.path(), &format!("{MAPS}\nmap_others = \"anonymous\""));
        assert_eq!(owner(&mount.join("strangers")), (65_534, 65_534));
        shell(mount.path(), &as_user(7000, "echo x > file")).succeeded();
        assert_eq!(owner(&export.path().join("file")), (65_534, 65_534));
        fs::write(mount.join("roots"), "x").unwrap();
        assert_eq!(owner(&export.path().join("roots")), (65_534, 65_534));
        shell(mount.path(), &as_user(1000, "echo x > users")).succeeded();
        assert_eq!((owner(&mount.join("users")), owner(&export.path().join("users"))), ((1000, 1000), (5000, 6000)));
    });
}

#[test]
fn a_mount_that_is_not_let_in_again_says_why() {
    test(|| {
        let export = open_directory();
        let server = Server::start(&[export.path()]);
        let mount = server.mount(export.path());
        fs::write(mount.join("file"), "x").unwrap();
        let home = directory();
        let file = home.path().join("aqueduct.toml");
        fs::write(&file, format!("[[export]]\npath = {:?}\nhosts = [\"192.0.2.1\"]\n", export.path())).unwrap();
        let server = server.restart_with(&["--config", file.to_str().unwrap()], &[]);
        wait_until("the mount's log has the reason", SOON, || {
            let log = mount.process.output();
            log.contains("does not let this machine mount") && log.contains("'hosts'")
        });
        // It goes on as soon as it may.
        let server = server.restart(&[export.path()]);
        assert_eq!(fs::read_to_string(mount.join("file")).unwrap(), "x");
        drop((mount, server));
    });
}

#[test]
fn what_cannot_be_meant_is_refused_at_the_start() {
    test(|| {
        let export = directory();
        let serve = |lines: &str| {
            let home = directory();
            let file = home.path().join("aqueduct.toml");
            fs::write(&file, format!("[[export]]\npath = {:?}\n{lines}\n", export.path())).unwrap();
            let state = home.path().join("state");
            run(aqueduct().args(["serve", "--listen", "127.0.0.1:0", "--state"]).arg(state).arg("--config").arg(file))
                .failed()
        };
        let ranges = "[{ client = 1, server = 100, count = 5 }, { client = 20, server = 104, count = 1 }]";
        for (lines, said) in [
            (format!("map_uids = {ranges}"), "overlap on the server"),
            ("map_gids = [{ client = 1, server = 100, count = 0 }]".into(), "has a count of 0"),
            ("hosts = ['10.0.0.0/40']".into(), "'10.0.0.0/40' is no network"),
            ("squash = 'nobody'".into(), "unknown variant"),
        ] {
            let told = serve(&lines);
            assert!(told.contains(said) && told.contains("do:"), "{lines}: {told}");
        }
    });
}
