//! Mounts that are changed while they are there, and what mount(8) keeps to itself.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{
    Output, Server, aqueduct, directory, errno, have, mount_point, own_mounts, run, signal, skip, test, with_transport,
};

/// The options of the mount on `point`, those of the mount point and those of the file system.
fn options(point: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.split(' ').nth(4) == point.to_str()).unwrap();
    let lists = [line.split(' ').nth(5).unwrap(), line.split(' ').next_back().unwrap()];
    lists.iter().flat_map(|list| list.split(',')).map(str::to_owned).collect()
}

fn has(point: &Path, option: &str) -> bool {
    options(point).iter().any(|known| known == option)
}

#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    test(|| {
        let export = directory();
        let server = Server::start(&[export.path()]);
        let mount = server.mount_with(export.path(), &with_transport("soft,timeo=9,nosuid"));
        let remount = |options: &str| -> Output {
            run(aqueduct().args(["mount", "-o", &format!("remount,{options}"), "ignored"]).arg(mount.path()))
        };
        let file = mount.join("f");
        fs::write(&file, "before").unwrap();
        // As locally: not while somebody may write.
        let open = OpenOptions::new().append(true).open(&file).unwrap();
        let said = remount("ro").failed();
        assert!(said.contains("read-only") && said.contains("open for writing"), "{said}");
        drop(open);
        remount("ro").succeeded();
        assert_eq!(errno(fs::write(&file, "x")), libc::EROFS);
        assert_eq!(errno(fs::write(mount.join("new"), "x")), libc::EROFS);
        assert_eq!(fs::read_to_string(&file).unwrap(), "before");
        assert!(has(mount.path(), "nosuid") && has(mount.path(), "nodev"), "what is not named stays");
        remount("rw,noexec").succeeded();
        fs::write(&file, "after").unwrap();
        assert_eq!(fs::read_to_string(export.path().join("f")).unwrap(), "after");
        assert!(has(mount.path(), "noexec") && has(mount.path(), "nosuid"));
        remount("exec,devices").succeeded();
        assert!(!has(mount.path(), "noexec") && !has(mount.path(), "nodev"));

        // What the process decides by may be named again, as mount(8) does, but not changed.
        remount("ro,soft,timeo=9").succeeded();
        let said = remount("rw,timeo=10").failed();
        assert!(said.contains("timeo=10") && said.contains("unmount it"), "{said}");
        assert!(has(mount.path(), "ro"), "refused as a whole");
        assert!(remount("rw,hard").failed().contains("hard"));
        assert!(remount("rw,nonsense").failed().contains("no such option"));
        remount("rw").succeeded();
        fs::write(&file, "again").unwrap();
    });
}

/// What is seen elsewhere of the same mount stays as it is.
#[test]
fn a_bind_mount_becomes_read_only_alone() {
    test(|| {
        let export = directory();
        let server = Server::start(&[export.path()]);
        let mount = server.mount(export.path());
        let point = mount_point();
        rustix::mount::mount_bind(mount.path(), &point).unwrap();
        let remount = |options: &str| run(aqueduct().args(["mount", "-o", options, "ignored"]).arg(&point));
        let changed = remount("remount,bind,ro,noexec");
        let tried = [fs::write(point.join("f"), "x"), fs::write(mount.join("f"), "y")]
            .map(|result| result.map_err(|error| error.raw_os_error()));
        let shown = (has(&point, "noexec"), has(mount.path(), "noexec"));
        let back = remount("remount,bind,rw");
        let again = fs::write(point.join("f"), "z");
        rustix::mount::unmount(&point, rustix::mount::UnmountFlags::empty()).unwrap();
        fs::remove_dir(&point).unwrap();
        changed.succeeded();
        assert_eq!(tried, [Err(Some(libc::EROFS)), Ok(())]);
        assert_eq!(shown, (true, false));
        back.succeeded();
        again.unwrap();
    });
}

#[test]
fn what_cannot_be_changed_says_why() {
    test(|| {
        let export = directory();
        let server = Server::start_with(&mut aqueduct(), &["--read-only"], &[export.path()]);
        let mount = server.mount(export.path());
        let remount = |options: &str, target: &Path| -> Output {
            run(aqueduct().args(["mount", "-o", &format!("remount,{options}"), "ignored"]).arg(target))
        };
        let said = remount("rw", mount.path()).failed();
        assert!(said.contains("the server serves it read-only"), "{said}");
        assert!(remount("ro", export.path()).failed().contains("nothing is mounted there"));
        assert!(remount("ro", Path::new("/proc")).failed().contains("not ours, but of type proc"));
        // A process that does not answer is not needed for what the kernel does alone.
        let pid = mount.process.pid();
        signal(pid, rustix::process::Signal::STOP);
        let done = remount("noexec", mount.path());
        signal(pid, rustix::process::Signal::CONT);
        done.succeeded();
        assert!(has(mount.path(), "noexec"));
    });
}

/// mount(8) with our helpers in its /sbin, for a script.
fn with_helpers(mut unshare: Command, home: &Path, script: &str) -> Option<Output> {
    let sbin: PathBuf = fs::canonicalize("/sbin").unwrap();
    for helper in ["mount.aqueduct", "mount.fuse.aqueduct", "umount.aqueduct"] {
        symlink(env!("CARGO_BIN_EXE_aqueduct"), home.join(helper)).unwrap();
    }
    let overlay = format!("mount -t overlay overlay -o lowerdir={}:{s} {s}", home.display(), s = sbin.display());
    let script = format!("{overlay} || exit 77\n{script}");
    let output = run(unshare.args(["sh", "-euc", &script]).current_dir(home));
    (output.status.code() != Some(77)).then_some(output)
}

#[test]
fn mount_8_changes_mounts_and_hands_devices_on() {
    test(|| {
        if !have(&["mount", "umount"]) {
            return;
        }
        let Some(unshare) = own_mounts() else { return };
        let export = directory();
        let server = Server::start(&[export.path()]);
        let (home, point) = (directory(), mount_point());
        let fstab = home.path().join("fstab");
        let line = format!("{} {} aqueduct soft,devices 0 0\n", server.source(export.path()), point.display());
        fs::write(&fstab, line).unwrap();
        let (p, fstab) = (point.display(), fstab.display());
        let script = format!(
            "state() {{ grep ' {p} ' /proc/self/mountinfo | cut -d' ' -f6; }}
             mount -T {fstab} {p}; echo fstab $(state)
             mount -T {fstab} -o remount,ro {p}; echo by fstab $(state)
             if touch {p}/new 2>&1; then echo it was made; exit 1; fi
             mount -o remount,rw {p}; echo by type $(state)
             touch {p}/new
             mount -t aqueduct -o remount,ro {source} {p}; echo by source $(state)
             mount -T {fstab} -o remount,rw,hard {p} 2>&1 || echo refused $?
             umount {p}
             mount -t aqueduct -o dev {source} {p}; echo dev $(state); umount {p}",
            source = server.source(export.path()),
        );
        let Some(output) = with_helpers(unshare, home.path(), &script) else {
            return skip("overlayfs cannot be mounted here");
        };
        let text = output.succeeded();
        let line = |start: &str| -> &str {
            text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {text}"))
        };
        assert!(line("fstab").contains("rw") && !line("fstab").contains("nodev"), "{text}");
        assert!(line("by fstab").contains("ro,") && line("by type").contains("rw"), "{text}");
        assert!(text.contains("Read-only file system") && line("by source").contains("ro,"), "{text}");
        assert!(text.contains("hard cannot be changed") && line("refused").ends_with("32"), "{text}");
        // mount(8) takes it for the default and does not hand it on; SEMANTICS.md says so.
        assert!(line("dev").contains("nodev"), "{text}");
        assert!(export.path().join("new").exists());
        fs::remove_dir(&point).unwrap();
    });
}
