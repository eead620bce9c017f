//! What takes a disk of its own, on a loop device: data that the kernel could not write to it, and
//! file systems that are several.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use aqueduct_fs::*;
use aqueduct_posix::{Options, Posix};
use common::*;

/// A file in a small folder in memory, which gets full.
const SCRIPT: &str = "mkdir small disk && mount -t tmpfs -o size=16m none small && truncate -s 64M small/image \
    && mkfs.ext4 -q -O ^has_journal small/image && mount -o loop,errors=continue small/image disk && chmod 777 disk";

/// Has the mounts of this thread and its programs to itself, and in them `disk`, whose blocks that
/// were never written fail. `None`: that cannot be had.
fn failing_disk(home: &Path) -> Option<()> {
    // SAFETY: a system call without pointers.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return None;
    }
    // Else what is mounted here would be seen outside, and stay.
    Command::new("mount").args(["--make-rprivate", "/"]).status().ok().filter(|status| status.success())?;
    let made = Command::new("sh").args(["-c", SCRIPT]).current_dir(home).output().ok()?;
    made.status.success().then_some(())
}

/// What another client does to a file that is open, which makes stable what it has done.
type Change = fn(&Served, &Handle, &[u8]) -> Result<Reply, Errno>;

const CHANGES: [(&str, Change); 3] = [
    ("chmod", |served, file, _| {
        let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        served.call(&context(2, own()), Request::SetAttr { handle: file.bytes(), open: None, set })
    }),
    ("setxattr", |served, file, _| {
        let (name, value, mode) = (b"user.name", b"value", XattrMode::Any);
        served.call(&context(2, own()), Request::SetXattr { handle: file.bytes(), name, value, mode })
    }),
    ("link", |served, file, name| {
        served.call(&context(2, own()), Request::Link { handle: file.bytes(), parent: &served.root, name })
    }),
];

#[test]
fn who_has_a_file_open_is_told_what_others_were_told_of_its_data() {
    if !is_root() {
        return skip("mounting a disk needs root");
    }
    let home = tempfile::tempdir().unwrap();
    let Some(()) = failing_disk(home.path()) else { return skip("no disk on a loop device can be mounted") };
    let options = Options { sync: true, ..Options::default() };
    let served = serve_with(&home.path().join("disk"), options);
    for (number, (what, change)) in CHANGES.iter().enumerate() {
        let (file, open) = served.create(format!("file{number}").as_bytes());
        served.write(open, 0, &[1; 4096]).unwrap();
        served.root_call(Request::Sync { open, data_only: false }).unwrap();
        // From now on no block is had that was never written.
        let full = fs::File::create(home.path().join("small/full")).unwrap();
        let mut at = 0;
        while full.write_at(&[1; 4096], at).is_ok() {
            at += 4096;
        }
        served.write(open, 1 << 20, &[2; 4096]).unwrap();
        let name = format!("other{number}");
        let told = change(&served, &file.handle, name.as_bytes());
        assert!(told.is_err(), "{what}: it makes stable what is there");
        let synced = served.root_call(Request::Sync { open, data_only: false });
        assert!(synced.is_err(), "{what}: who wrote it has to know that it is lost");
        served.release(open);
        fs::remove_file(home.path().join("small/full")).unwrap();
    }
    drop(served);
    let unmounted = Command::new("umount").args(["disk", "small"]).current_dir(home.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
}

/// A subvolume of btrfs says of itself that it is a file system of its own; its handles are good in
/// the whole of it.
#[test]
fn an_inode_of_a_subvolume_has_one_name_in_all_exports() {
    if !is_root() {
        return skip("mounting a disk needs root");
    }
    let home = tempfile::tempdir().unwrap();
    // The smallest that mkfs.btrfs makes by itself.
    let script = "mkdir disk && truncate -s 320M image && mkfs.btrfs -q image && mount -o loop image disk \
        && btrfs subvolume create disk/volume && mkdir disk/volume/directory && echo > disk/volume/directory/file";
    let made = Command::new("sh").args(["-ec", script]).current_dir(home.path()).output().unwrap();
    let disk = home.path().join("disk");
    if !made.status.success() {
        return skip(&format!("no btrfs: {}", String::from_utf8_lossy(&made.stderr)));
    }
    let inside = ["volume/directory", "directory", "."];
    let names = ["", "volume", "volume/directory"].map(|below| {
        let options = Options { export: below.len() as u32, ..Options::default() };
        let posix = Posix::open(&disk.join(below), options).unwrap();
        let ask =
            |request: Request<'_>| block_on(posix.call(&context(1, own()), request)).unwrap().entry().unwrap().handle;
        let mut at = ask(Request::Root);
        let steps = Path::new(inside[below.split('/').filter(|step| !step.is_empty()).count()]).join("file");
        for step in steps.iter().filter(|step| *step != ".") {
            at = ask(Request::Lookup { parent: at.bytes(), name: step.as_encoded_bytes() });
        }
        posix.inode_name(at.bytes()).map(|(id, name)| (id, name.to_vec())).unwrap()
    });
    aqueduct_posix::restore();
    Command::new("umount").arg("--lazy").arg(&disk).status().unwrap();
    assert!(names.iter().all(|name| *name == names[0]), "{names:02x?}");
}
