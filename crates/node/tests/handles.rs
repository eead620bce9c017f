//! A server, a mount and an attachment, held by one process, which then has nothing of them any
//! more.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_fs::Request;
use aqueduct_node::{
    AttachConfig, Attachment, Carriers, ExportSettings, Mount, MountConfig, MountSettings, ServeConfig, ServeSettings,
    Server, Unmount, caller, mounts,
};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// A server of `folder`/data, on a free port, with its state beside it.
fn serve(folder: &Path) -> Server {
    let data = folder.join("data");
    fs::create_dir_all(&data).unwrap();
    let settings = ServeSettings {
        listen: vec!["127.0.0.1:0".into()],
        state: Some(folder.join("state")),
        export: vec![ExportSettings { name: Some("data".into()), ..ExportSettings::of(data) }],
        ..ServeSettings::default()
    };
    Server::start(&ServeConfig::resolve(settings).unwrap()).unwrap()
}

fn mount_settings(server: &Server, target: &Path, options: &[&str]) -> MountSettings {
    MountSettings {
        source: format!("{}:data", server.addresses()[0]),
        target: target.to_owned(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        local: false,
    }
}

fn mount(settings: &MountSettings) -> Mount {
    Mount::new(MountConfig::resolve(settings).unwrap()).unwrap()
}

/// What this process has: its threads with their names, what its descriptors are, and whether the
/// target is mounted on.
type Held = (BTreeSet<(String, String)>, Vec<PathBuf>, bool);

fn held(target: &Path) -> Held {
    let read = |path: &str| fs::read_dir(path).unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let name = |path: PathBuf| {
        let name = fs::read_to_string(path.join("comm")).ok()?;
        Some((path.file_name()?.to_string_lossy().into_owned(), name.trim().to_owned()))
    };
    let threads = read("/proc/self/task").filter_map(name).collect();
    let mut descriptors: Vec<_> = read("/proc/self/fd").filter_map(|path| fs::read_link(path).ok()).collect();
    // The one by which they are listed.
    descriptors.retain(|path| !path.ends_with("fd"));
    descriptors.sort();
    (threads, descriptors, mounts::all().unwrap().iter().any(|mount| mount.target == target))
}

/// Whether the machine lets us mount; said aloud when it does not.
fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("skipped: mounting takes root and /dev/fuse");
    }
    can
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// One round: serves, mounts, attaches, works, ends.
fn round(folder: &Path, target: &Path, content: &str) {
    let server = serve(folder);
    let mount = mount(&mount_settings(&server, target, &[]));
    assert_eq!((mount.path(), mount.shown()), (target, format!("{}:data", server.addresses()[0]).as_str()));
    fs::write(target.join("f"), content).unwrap();
    assert_eq!(fs::read_to_string(target.join("f")).unwrap(), content);
    assert_eq!(json(&mount.status())["target"], target.to_str().unwrap());

    let attached = Attachment::connect(&AttachConfig::new(server.addresses()[0].to_string(), "data"), Carriers::Caller);
    let attached = attached.unwrap();
    let root = attached.call(&caller(), Request::Root).unwrap().entry().unwrap();
    let found = attached.call(&caller(), Request::Lookup { parent: root.handle.bytes(), name: b"f" });
    assert_eq!(found.unwrap().entry().unwrap().attr.size, content.len() as u64);
    assert_eq!(json(&server.status())["exports"][0]["clients"], 2);
    drop(attached);

    mount.unmount(Unmount::Unused).unwrap();
    mount.wait();
    drop(mount);
    assert!(fs::read_dir(target).unwrap().next().is_none(), "the mount is gone");
    assert_eq!(json(&server.status())["exports"][0]["clients"], 0);
    server.stop();
    server.stop();
    server.wait();
}

/// The only test of its process, whose threads and descriptors it counts.
#[test]
fn a_process_serves_and_mounts_again_and_again_and_nothing_stays_behind() {
    if !can_mount() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let target = fs::canonicalize(folder.path()).unwrap().join("mnt");
    fs::create_dir(&target).unwrap();
    let before = held(&target);
    for content in ["first", "the second"] {
        round(folder.path(), &target, content);
        assert_eq!(fs::read_to_string(folder.path().join("data/f")).unwrap(), content);
        nothing_more(&before, &target);
    }
    in_use(folder.path(), &target);
    nothing_more(&before, &target);
}

#[track_caller]
fn nothing_more(before: &Held, target: &Path) {
    // Threads that nobody joins end a moment later.
    let end = Instant::now() + SOON;
    while held(target) != *before && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(held(target), *before);
}

/// A mount that ends while a program has a file open there.
fn in_use(folder: &Path, target: &Path) {
    let server = serve(folder);
    let mount = mount(&mount_settings(&server, target, &["cache=none"]));
    let mut open = fs::File::create(target.join("f")).unwrap();
    mount.stop();
    drop(mount);
    // Which error it is depends on how the kernel gives the mount up.
    std::io::Write::write_all(&mut open, b"late").unwrap_err();
    drop((open, server));
}
