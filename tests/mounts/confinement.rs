//! Nothing leads out of an export.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::common::{One, Server, directory, errno, run, shell, test};

/// An export beside something that it must not show.
fn beside_a_secret() -> (tempfile::TempDir, std::path::PathBuf) {
    let home = directory();
    fs::write(home.path().join("secret"), "secret").unwrap();
    fs::create_dir(home.path().join("outside")).unwrap();
    fs::create_dir(home.path().join("export")).unwrap();
    let export = home.path().join("export");
    (home, export)
}

#[test]
fn symlinks_do_not_lead_out_of_the_export() {
    test(|| {
        let (home, export) = beside_a_secret();
        let server = Server::start(&[&export]);
        let mount = server.mount(&export);
        // A relative link is resolved by the client, below its own mount point, where there is no such thing.
        symlink("../secret", export.join("link")).unwrap();
        symlink("../outside", export.join("away")).unwrap();
        assert_eq!(fs::read_link(mount.join("link")).unwrap(), Path::new("../secret"));
        assert_eq!(errno(fs::read(mount.join("link"))), libc::ENOENT);
        assert_eq!(errno(fs::write(mount.join("away/new"), "x")), libc::ENOENT);
        assert!(!fs::metadata(mount.join("..")).is_ok_and(|parent| {
            std::os::unix::fs::MetadataExt::ino(&parent)
                == std::os::unix::fs::MetadataExt::ino(&fs::metadata(home.path()).unwrap())
        }));
        assert_eq!(errno(fs::read(mount.join("../secret"))), libc::ENOENT);
        assert_eq!(fs::read_dir(home.path().join("outside")).unwrap().count(), 0);
    });
}

/// Someone on the server swaps a directory for a link that leads out while a client works in it.
#[test]
fn a_swapped_directory_does_not_lead_out() {
    test(|| {
        let (home, export) = beside_a_secret();
        let outside = home.path().join("outside");
        fs::write(outside.join("bait"), "secret").unwrap();
        fs::create_dir(export.join("dir")).unwrap();
        fs::write(export.join("dir/bait"), "harmless").unwrap();
        symlink(&outside, export.join("link")).unwrap();
        let server = Server::start(&[&export]);
        let mount = server.mount(&export);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let swapper = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    renameat_with(CWD, export.join("dir"), CWD, export.join("link"), RenameFlags::EXCHANGE).unwrap();
                }
            });
            let until = Instant::now() + Duration::from_secs(3);
            // Through the server only: a client's kernel would follow a link itself, and on this machine finds the place.
            let open = |name: &str| {
                let directory = rustix::fs::openat(
                    CWD,
                    mount.join("dir"),
                    rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW,
                    rustix::fs::Mode::empty(),
                )?;
                let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOFOLLOW;
                rustix::fs::openat(directory, name, flags, rustix::fs::Mode::from_raw_mode(0o600))
            };
            let mut found = 0;
            let mut number = 0;
            while Instant::now() < until {
                number += 1;
                let _ = open(&format!("new-{number}"));
                if let Ok(bait) = open("bait") {
                    let mut text = [0; 20];
                    let count = rustix::io::read(&bait, &mut text).unwrap();
                    assert_eq!(&text[..count], b"harmless");
                    found += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
            swapper.join().unwrap();
            assert!(found > 0, "the race was never won by the directory");
        });
        let names: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["bait"], "something was made outside");
    });
}

#[test]
fn mounts_below_an_export_are_not_entered() {
    test(|| {
        let one = One::new();
        let below = one.export.path().join("below");
        fs::create_dir(&below).unwrap();
        fs::write(below.join("hidden"), "x").unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "aqueduct-test"]).arg(&below)).succeeded();
        fs::write(below.join("inside"), "x").unwrap();
        let seen = fs::metadata(one.path("below/inside"));
        run(Command::new("umount").arg("-l").arg(&below)).succeeded();
        assert_eq!(errno(seen), libc::EXDEV);
        assert_eq!(fs::read_to_string(one.path("below/hidden")).unwrap(), "x");
    });
}

#[test]
fn exports_are_apart() {
    test(|| {
        let (a, b) = (directory(), directory());
        let server = Server::start(&[a.path(), b.path()]);
        let (left, right) = (server.mount(a.path()), server.mount(b.path()));
        fs::write(left.join("file"), "a").unwrap();
        assert_eq!(errno(fs::metadata(right.join("file"))), libc::ENOENT);
        assert_eq!(errno(fs::hard_link(left.join("file"), right.join("file"))), libc::EXDEV);
        assert_eq!(errno(fs::rename(left.join("file"), right.join("file"))), libc::EXDEV);
        shell(left.path(), &format!("cp -a file {}/copy", right.path().display())).succeeded();
        assert_eq!(fs::read_to_string(b.path().join("copy")).unwrap(), "a");
    });
}
