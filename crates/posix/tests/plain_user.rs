//! A server that a plain user runs: everything is done as that user.

mod common;

use std::os::unix::process::CommandExt;

use aqueduct_fs::*;
use aqueduct_posix::HandleSource;
use common::*;

/// Any user that is not root and owns nothing here.
const USER: u32 = 4242;

#[test]
fn a_plain_user_serves_what_is_the_users_own() {
    if !is_root() {
        return as_the_user();
    }
    // The identity of a process is for all its threads, so the test runs itself once more. The program is copied to where every user may run it,
    // by a process of its own: what the other test starts would inherit a descriptor that still writes it.
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(USER), Some(USER)).unwrap();
    let program = folder.path().join("test");
    let copied = std::process::Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
    assert!(copied.unwrap().success());
    let mut command = std::process::Command::new(&program);
    command.args(["--exact", "a_plain_user_serves_what_is_the_users_own", "--nocapture"]);
    command.env("TMPDIR", folder.path()).uid(USER).gid(USER).current_dir("/");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("served by a plain user"), "{text}");
}

fn as_the_user() {
    eprintln!("served by a plain user");
    let served = serve(&std::env::temp_dir(), HandleSource::Kernel);
    let statistics = served.posix.statistics();
    assert!(!statistics.switches_identity && !statistics.kernel_handles);
    let folder = served.mkdir(&served.root, b"dir", 0o755);
    let inner = served.mkdir(folder.handle.bytes(), b"inner", 0o755);
    assert!(served.attr(&inner.handle).is_ok());
    let (file, open) = served.create(b"file");
    served.write(open, 0, b"data").unwrap();
    assert_eq!(served.read(open, 0, 10).unwrap(), b"data");
    served.root_call(Request::Unlink { parent: &served.root, name: b"file" }).unwrap();
    assert_eq!(served.attr(&file.handle).unwrap().nlink, 0, "open, so still there");
    let unnamed = Request::CreateUnnamed { parent: &served.root, mode: 0o600, umask: 0, flags: READ_WRITE };
    let (unnamed, _) = served.root_call(unnamed).unwrap().created().unwrap();
    let link = Request::Link { handle: unnamed.handle.bytes(), parent: &served.root, name: b"named" };
    assert_eq!(served.root_call(link).unwrap().entry().unwrap().handle, unnamed.handle);
    // Others are not served, and nothing pretends that they were.
    for stranger in [user(0, 0, &[]), user(USER + 1, USER + 1, &[])] {
        let stranger = context(1, stranger);
        let look = Request::Lookup { parent: &served.root, name: b"dir" };
        assert_eq!(served.call(&stranger, look), Err(Errno::EPERM));
        assert_eq!(served.create_as(&stranger, b"x", 0o600).err(), Some(Errno::EPERM));
        // What is open stays usable: the kernel writes mapped pages back as nobody in particular.
        assert_eq!(served.read_as(&stranger, open, 0, 4).unwrap(), b"data");
    }
    let umask = Request::MakeDirectory { parent: &served.root, name: b"masked", mode: 0o777, umask: 0o077 };
    assert_eq!(served.root_call(umask).unwrap().entry().unwrap().attr.mode & 0o777, 0o700);
}

#[test]
fn a_root_without_the_right_to_decode_handles_serves_from_the_table() {
    if !is_root() {
        return skip("taking on identities takes root");
    }
    if std::env::var_os("AQUEDUCT_TEST_CONTAINER").is_some() {
        return as_a_containers_root();
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_root_without_the_right_to_decode_handles_serves_from_the_table", "--nocapture"]);
    let output = command.env("AQUEDUCT_TEST_CONTAINER", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("served by a container's root"), "{text}");
}

fn as_a_containers_root() {
    eprintln!("served by a container's root");
    let mut sets = rustix::thread::capabilities(None).unwrap();
    for set in [&mut sets.effective, &mut sets.permitted] {
        set.remove(rustix::thread::CapabilitySet::DAC_READ_SEARCH);
    }
    rustix::thread::set_capabilities(None, sets).unwrap();
    let served = serve(&std::env::temp_dir(), HandleSource::Kernel);
    let statistics = served.posix.statistics();
    assert!(statistics.switches_identity && !statistics.kernel_handles);
    let folder = served.mkdir(&served.root, b"closed", 0o700);
    let inner = served.mkdir(folder.handle.bytes(), b"inner", 0o777);
    let (file, open) = served.create(b"file");
    served.release(open);
    let alice = context(1, user(USER, USER, &[]));
    let parent = inner.handle.bytes();
    let request = Request::MakeDirectory { parent, name: b"mine", mode: 0o755, umask: 0 };
    assert_eq!(served.call(&alice, request).unwrap().entry().unwrap().attr.uid, USER);
    let lookup = Request::Lookup { parent: folder.handle.bytes(), name: b"inner" };
    assert_eq!(served.call(&alice, lookup), Err(Errno::EACCES));
    assert_eq!(served.open_as(&alice, &file.handle, READ_WRITE), Err(Errno::EACCES));
    assert!(served.call(&alice, Request::GetAttr { handle: file.handle.bytes(), open: None }).is_ok());
    assert_eq!(served.open_as(&alice, &file.handle, READ_WRITE), Err(Errno::EACCES), "nothing of the look stays");
    assert!(served.open(&file.handle, READ_WRITE).is_ok());
}
