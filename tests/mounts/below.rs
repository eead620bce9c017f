//! What is mounted on directories of a mount, as a container's root has it.
//!
//! The kernel forgets names that it keeps by a way that takes away what is mounted on any of them,
//! and the pages of the files with them (INC_EPOCH, Linux 6.16).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use aqueduct_metrics::status::MountStatus;
use aqueduct_metrics::table::FUSE_REQUEST_SECONDS;

use crate::common::{Mount, Pair, SOON, as_on_kernel, is_linux, run, shell, test, wait_until};

/// Names that are known in a mount, and changed.
fn renames(root: &Path) {
    for name in ["a", "b"] {
        fs::write(root.join(name), name).unwrap();
        assert!(root.join(name).exists());
    }
    fs::rename(root.join("b"), root.join("a")).unwrap();
}

/// Waits until the kernel keeps the name of a directory, if it keeps any: not just after it was
/// made, since that recalls what the other mount has of its parent.
fn keep(mount: &Mount, directory: &Path) {
    if !is_linux((6, 16)) || as_on_kernel().is_some() {
        return;
    }
    wait_until("the kernel keeps a name", SOON, || {
        assert!(directory.is_dir());
        let before = requests(mount, "LOOKUP");
        assert!(directory.is_dir());
        requests(mount, "LOOKUP") == before
    });
}

/// A directory below.
fn below(pair: &Pair) -> PathBuf {
    let below = pair.left.path().join("image/tmp");
    fs::create_dir_all(&below).unwrap();
    below
}

/// Changes names that the left mount has looked up, by both, so that it has to forget them.
fn change_all(pair: &Pair) {
    let (left, right) = (pair.left.path(), pair.right.path());
    renames(left);
    assert_eq!(fs::read(left.join("a")).unwrap(), b"b");
    renames(right);
    fs::create_dir(right.join("image/new")).unwrap();
    assert!(left.join("image/new").is_dir());
    fs::remove_dir(right.join("image/new")).unwrap();
    assert!(!left.join("image/new").exists());
}

fn what_is_mounted_below_stays(options: &str) {
    let pair = Pair::with(options);
    let below = below(&pair);
    if options.is_empty() {
        keep(&pair.left, &below);
    }
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&below)).succeeded();
    fs::write(below.join("kept"), "here").unwrap();
    change_all(&pair);
    assert_eq!(fs::read(below.join("kept")).unwrap(), b"here");
    assert!(!pair.right.path().join("image/tmp/kept").exists());
    run(Command::new("umount").arg(&below)).succeeded();
    assert!(!below.join("kept").exists());
}

#[test]
fn what_is_mounted_below_stays_there() {
    test(|| what_is_mounted_below_stays(""));
}

#[test]
fn what_is_mounted_below_stays_where_names_are_asked_for() {
    test(|| what_is_mounted_below_stays("names=ask"));
}

#[test]
fn what_is_mounted_below_in_another_namespace_stays_there() {
    test(|| {
        let pair = Pair::with("");
        let below = below(&pair);
        keep(&pair.left, &below);
        let script = "mount -t tmpfs tmpfs $1 && echo here > $1/kept && echo ready && read word && cat $1/kept";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).arg(&below);
        let mut container = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut told = BufReader::new(container.stdout.take().unwrap()).lines();
        assert_eq!(told.next().unwrap().unwrap(), "ready");
        change_all(&pair);
        assert!(below.is_dir() && !below.join("kept").exists());
        writeln!(container.stdin.take().unwrap(), "go on").unwrap();
        assert_eq!(told.next().map(Result::unwrap).as_deref(), Some("here"));
        assert!(container.wait().unwrap().success());
    });
}

#[test]
fn an_overlay_keeps_its_layers() {
    test(|| {
        let pair = Pair::with("");
        let below = below(&pair);
        fs::create_dir(below.join("lower")).unwrap();
        fs::write(below.join("lower/file"), "lower").unwrap();
        keep(&pair.left, &below);
        let beside = tempfile::tempdir().unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(beside.path())).succeeded();
        let made = beside.path().join("merged");
        ["merged", "upper", "work"].iter().for_each(|name| fs::create_dir(beside.path().join(name)).unwrap());
        let of = |name: &str| beside.path().join(name).display().to_string();
        let options = format!("lowerdir={},upperdir={},workdir={}", below.display(), of("upper"), of("work"));
        run(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(&made)).succeeded();
        assert_eq!(fs::read(made.join("lower/file")).unwrap(), b"lower");
        change_all(&pair);
        assert_eq!(fs::read(made.join("lower/file")).unwrap(), b"lower");
        fs::write(made.join("lower/file"), "upper").unwrap();
        assert_eq!(fs::read(made.join("lower/file")).unwrap(), b"upper");
        run(Command::new("umount").arg(&made)).succeeded();
        run(Command::new("umount").arg(beside.path())).succeeded();
    });
}

fn requests(mount: &Mount, opcode: &str) -> u64 {
    let status: MountStatus = serde_json::from_value(mount.status()).unwrap();
    let sums = status.metrics.sums(&FUSE_REQUEST_SECONDS);
    sums.iter().find(|(of, ..)| of == opcode).map_or(0, |(_, count, _)| *count)
}

/// Names that are forgotten take their files' pages with them, but once in a while.
#[test]
fn pages_stay_where_names_are_changed_again_and_again() {
    test(|| {
        let pair = Pair::with("");
        let (left, right) = (pair.left.path(), pair.right.path());
        fs::write(right.join("file"), vec![1; 100_000]).unwrap();
        let look = || shell(left, "cat file > read-here").succeeded();
        keep(&pair.left, &below(&pair));
        let changes = [(left, "own"), (right, "other's")];
        // The first of these has all names forgotten.
        changes.iter().for_each(|(root, _)| renames(root));
        look();
        look();
        let before = requests(&pair.left, "READ");
        for (root, whose) in changes {
            renames(root);
            assert!(left.join("a").exists(), "{whose}");
            look();
        }
        assert_eq!(requests(&pair.left, "READ"), before, "they are read from pages");
    });
}
