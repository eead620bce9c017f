//! What a user is told: what was tried, why it failed, what to do.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::common::{
    FileSystem, Mount, One, Server, aqueduct, directory, errno, have, is_mounted, mount_point, run, shell, skip, test,
};

/// A mount that fails, with a message of three parts that says `why` (all of these words) and what to `do`.
#[track_caller]
fn mount_fails(source: &str, point: &Path, why: &[&str], todo: &[&str]) {
    let output = run(aqueduct().args(["mount", source]).arg(point));
    let text = output.failed();
    complains(&text, why, todo);
}

#[track_caller]
pub fn complains(text: &str, why: &[&str], todo: &[&str]) {
    let part = |name: &str| {
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name));
        line.unwrap_or_else(|| panic!("no '{name}' in: {text}")).to_lowercase()
    };
    assert!(text.contains("aqueduct: "), "what was tried? {text}");
    let (said_why, said_do) = (part("why: "), part("do: "));
    assert!(why.iter().all(|word| said_why.contains(&word.to_lowercase())), "wanted {why:?}: {text}");
    assert!(todo.iter().all(|word| said_do.contains(&word.to_lowercase())), "wanted {todo:?}: {text}");
    assert!(!text.contains("panicked") && !text.contains("RUST_BACKTRACE"), "{text}");
}

#[test]
fn a_wrong_port_is_told() {
    test(|| {
        let point = mount_point();
        // Nobody listens on a port that was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        mount_fails(&format!("127.0.0.1:{port}:/x"), &point, &["refused", &port.to_string()], &["aqueduct serve"]);
        mount_fails("host.invalid:/x", &point, &["host.invalid"], &["name"]);
        fs::remove_dir(&point).unwrap();
    });
}

/// Listens and gives each connection to `serve`.
fn listener(serve: impl Fn(TcpStream) + Send + Sync + Copy + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(thread::spawn(move || serve(stream)))));
    port
}

#[test]
fn a_wrong_protocol_is_told() {
    test(|| {
        let point = mount_point();
        let web = listener(|mut stream| {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nX-Padding: 0123456789012345678901234567890123456789\r\n\r\n");
        });
        let garbage = listener(|mut stream| {
            let _ = stream.write_all(&[0xa5; 10_000]);
            thread::sleep(Duration::from_secs(3));
        });
        let closing = listener(drop);
        for port in [web, garbage, closing] {
            mount_fails(&format!("127.0.0.1:{port}:/x"), &point, &[], &["port"]);
        }
        fs::remove_dir(&point).unwrap();
    });
}

#[test]
fn a_silent_server_is_told() {
    test(|| {
        let point = mount_point();
        let silent = listener(|stream| {
            thread::sleep(Duration::from_secs(50));
            drop(stream);
        });
        mount_fails(&format!("127.0.0.1:{silent}:/x"), &point, &[], &[]);
        fs::remove_dir(&point).unwrap();
    });
}

/// What a stranger says does not harm the server.
#[test]
fn a_server_survives_garbage() {
    test(|| {
        let one = One::new();
        for garbage in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0; 64], &[0xff; 100_000], b"", &[1, 2, 3]] {
            let mut stream = TcpStream::connect(&one.server.address).unwrap();
            let _ = stream.write_all(garbage);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
            let _ = stream.read_to_end(&mut Vec::new());
        }
        fs::write(one.path("file"), "unharmed").unwrap();
        assert_eq!(fs::read_to_string(one.path("file")).unwrap(), "unharmed");
    });
}

#[test]
fn an_unknown_export_is_told() {
    test(|| {
        let export = directory();
        let server = Server::start(&[export.path()]);
        let point = mount_point();
        let name = export.path().to_str().unwrap();
        mount_fails(
            &format!("{}:/no/such", server.address),
            &point,
            &["no export", "/no/such", name],
            &["mount one of"],
        );
        fs::remove_dir(&point).unwrap();
    });
}

#[test]
fn a_missing_or_busy_target_is_told() {
    test(|| {
        let one = One::new();
        let source = one.server.source(one.export.path());
        mount_fails(&source, Path::new("/no/such/directory"), &["no such directory"], &["mkdir"]);
        let file = one.export.path().join("file");
        fs::write(&file, "").unwrap();
        mount_fails(&source, &file, &["not a directory"], &["directory"]);
        mount_fails(&source, one.mount.path(), &["mounted there"], &["umount"]);
        // /tmp may be a mount of its own, of tmpfs.
        complains(&run(aqueduct().arg("umount").arg(one.export.path())).failed(), &["nothing is mounted"], &["status"]);
        complains(&run(aqueduct().args(["umount", "/proc"])).failed(), &["not ours", "type proc"], &["umount(8)"]);
        complains(&run(aqueduct().args(["umount", "/no/such/directory"])).failed(), &["mount"], &[]);
    });
}

/// As a batch job's whose log is on a full disk.
#[test]
fn an_error_that_cannot_be_told_is_one_all_the_same() {
    test(|| {
        let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = aqueduct().args(["serve", "/no/such/directory"]).stderr(full()).status().unwrap();
        assert!(status.code().is_some_and(|code| code != 0), "{status}");
        let (from, to) = (directory(), directory());
        symlink("elsewhere", to.path().join("file")).unwrap();
        fs::create_dir(from.path().join("file")).unwrap();
        let source = format!("{}/", from.path().display());
        let status = aqueduct().args(["cp", "-r", &source]).arg(to.path()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{status}");
    });
}

#[test]
fn a_command_line_without_sense_is_told() {
    test(|| {
        let point = mount_point();
        for source in ["nothing", ":/export", "host:99999:/x", ""] {
            let output = run(aqueduct().args(["mount", source]).arg(&point));
            assert_eq!(output.status.code(), Some(2), "{source}: {}", output.text);
        }
        let output = run(aqueduct().args(["mount", "127.0.0.1:/x", "-o", "cache=lots"]).arg(&point));
        assert_eq!(output.status.code(), Some(2));
        complains(&output.text, &["lots"], &["close-to-open"]);
        fs::remove_dir(&point).unwrap();
    });
}

#[test]
fn a_server_that_cannot_start_tells_why() {
    test(|| {
        let one = One::new();
        let state = directory();
        let serve =
            |arguments: &[&str]| run(aqueduct().args(["serve", "--state"]).arg(state.path()).args(arguments)).failed();
        let export = one.export.path().to_str().unwrap();
        complains(&serve(&["--listen", &one.server.address, export]), &["in use"], &["--listen"]);
        complains(&serve(&["--listen", "127.0.0.1:0", "/no/such/directory"]), &["no such file"], &["exists"]);
        complains(&serve(&["--listen", "0.0.0.0:0", export]), &["address"], &["--key", "keygen", "--insecure"]);
        complains(&serve(&["--listen", "203.0.113.1:0", "--insecure", export]), &["assign"], &["--listen"]);
        let config = state.path().join("aqueduct.toml");
        fs::write(&config, "listen = [\"127.0.0.1:0\"]\n[[exports]]\npath = \"/tmp\"\n").unwrap();
        let text = serve(&["--config", config.to_str().unwrap()]);
        complains(&text, &["line 2"], &["--help"]);
        assert!(text.contains("unknown field `exports`"), "{text}");
    });
}

#[test]
fn a_full_disk_is_told() {
    test(|| {
        let small = FileSystem::tmpfs("size=1m");
        let one = One::over(small.directory(), "write_through");
        let mut file = File::create(one.path("file")).unwrap();
        let (mut written, block) = (0, vec![1; 200_000]);
        let error = loop {
            match file.write(&block) {
                Ok(count) => written += count,
                Err(error) => break error,
            }
            assert!(written <= 1 << 20, "more than there is room for");
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        assert!(written > 700_000, "{written}");
        assert_eq!(fs::metadata(one.path("file")).unwrap().len(), written as u64, "what was told written is there");
        assert_eq!(errno(fs::write(one.path("other"), "x")), libc::ENOSPC);
        // Room again.
        fs::remove_file(one.path("file")).unwrap();
        drop(file);
        fs::write(one.path("other"), vec![2; 300_000]).unwrap();
        drop(one);
    });
}

#[test]
fn an_exceeded_quota_is_told() {
    test(|| {
        if !have(&["mkfs.ext4", "losetup", "setquota", "setpriv"]) {
            return;
        }
        let home = crate::common::disk_directory();
        let point = mount_point();
        let script = format!(
            "truncate -s 64M image; mkfs.ext4 -q -O quota -E quotatype=usrquota image
             mount -o loop,usrquota image {p}; mkdir -m 777 {p}/export; setquota -u 1000 1000 1000 0 0 {p}",
            p = point.display()
        );
        let output = shell(home.path(), &script);
        let disk = FileSystem(point.clone());
        if !output.status.success() {
            return skip(&format!("no ext4 with quotas here: {}", output.text));
        }
        let server = Server::start(&[&point.join("export")]);
        let mount = server.mount(&point.join("export"));
        let script = "head -c 500000 /dev/zero > a; head -c 5000000 /dev/zero > b";
        let mut as_user = Command::new("setpriv");
        as_user.args(["--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-euc", script]);
        let text = run(as_user.current_dir(mount.path())).failed();
        assert!(text.contains("quota"), "{text}");
        assert!(fs::metadata(mount.join("b")).unwrap().len() < 1_000_000);
        // Root has none.
        fs::write(mount.join("c"), vec![0; 5_000_000]).unwrap();
        drop((mount, server, disk));
    });
}

#[test]
fn a_read_only_export_refuses_writes() {
    test(|| {
        let export = directory();
        fs::write(export.path().join("file"), "kept").unwrap();
        let server = Server::start_with(&mut aqueduct(), &["--listen", "127.0.0.1:0", "--read-only"], &[export.path()]);
        let mount = server.mount(export.path());
        refuses_writes(&mount, export.path());
    });
}

#[test]
fn a_read_only_mount_refuses_writes() {
    test(|| {
        let one = One::with("ro");
        fs::write(one.export.path().join("file"), "kept").unwrap();
        refuses_writes(&one.mount, one.export.path());
    });
}

fn refuses_writes(mount: &Mount, export: &Path) {
    assert_eq!(fs::read_to_string(mount.join("file")).unwrap(), "kept");
    assert_eq!(errno(File::create(mount.join("new"))), libc::EROFS);
    assert_eq!(errno(OpenOptions::new().write(true).open(mount.join("file"))), libc::EROFS);
    assert_eq!(errno(fs::remove_file(mount.join("file"))), libc::EROFS);
    assert_eq!(errno(fs::create_dir(mount.join("dir"))), libc::EROFS);
    assert_eq!(errno(fs::rename(mount.join("file"), mount.join("moved"))), libc::EROFS);
    let text = shell(mount.path(), "touch file 2>&1; chmod 777 file 2>&1; ln file link").failed();
    assert!(text.contains("Read-only file system"), "{text}");
    assert_eq!(fs::read_to_string(export.join("file")).unwrap(), "kept");
}

#[test]
fn a_long_name_is_refused() {
    test(|| {
        let one = One::new();
        fs::write(one.path("n".repeat(255)), "").unwrap();
        assert_eq!(errno(fs::write(one.path("n".repeat(256)), "")), libc::ENAMETOOLONG);
        assert_eq!(errno(fs::metadata(one.path("n".repeat(1000)))), libc::ENAMETOOLONG);
        assert_eq!(errno(fs::create_dir(one.path("n".repeat(256)))), libc::ENAMETOOLONG);
        assert_eq!(errno(fs::rename(one.path("n".repeat(255)), one.path("m".repeat(256)))), libc::ENAMETOOLONG);
        let text = format!("x{}", "/y".repeat(2100));
        assert_eq!(errno(std::os::unix::fs::symlink(text, one.path("link"))), libc::ENAMETOOLONG);
        assert!(is_mounted(one.mount.path()));
    });
}

#[test]
fn a_file_too_large_is_refused() {
    test(|| {
        let one = One::over(crate::common::disk_directory(), "");
        let file = File::create(one.path("file")).unwrap();
        // Past what ext4 can hold.
        assert_eq!(errno(file.set_len(1 << 60)), libc::EFBIG);
        assert_eq!(file.metadata().unwrap().len(), 0);
    });
}
