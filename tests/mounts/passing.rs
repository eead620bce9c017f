//! Who may pass where the client's kernel keeps names: exactly who may on a local directory.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Gid, Timespec, Timestamps, Uid, utimensat};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tempfile::TempDir;

use crate::common::{
    One, Pair, Process, Server, directory_for_devices, disk_directory, have, run, shell, test, within,
};

/// Each of some hundred steps is a program or two, in three places.
const STEPS_MAX: Duration = Duration::from_secs(150);

/// A user, and the groups beside that of the same number.
#[derive(Clone, Copy)]
struct User(u32, &'static str);

const OWNER: User = User(1000, "");
const OTHER: User = User(1001, "");
const MEMBER: User = User(1001, "2000");
const ROOT: User = User(0, "");
const EVERYBODY: [User; 4] = [OWNER, OTHER, MEMBER, ROOT];

/// A directory here, and one like it behind two mounts.
struct Twins {
    here: TempDir,
    pair: Pair,
}

impl Twins {
    fn new() -> Twins {
        // Not below /dev/shm, where set-id bits are often without effect.
        let (here, export) = (directory_for_devices(), directory_for_devices());
        for directory in [&here, &export] {
            fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
        }
        let server = Server::start(&[export.path()]);
        let [left, right] = [(); 2].map(|()| server.mount_with(export.path(), "cache=lease"));
        Twins { here, pair: Pair { left, right, server, export } }
    }

    /// Root changes something: here, and on one of the mounts.
    fn change(&self, script: &str) {
        for place in [self.here.path(), self.pair.right.path()] {
            shell(place, script).succeeded();
        }
    }

    /// What a user gets from a script, here and on the other mount, is the same; twice, since then all is known there.
    fn try_as(&self, user: User, script: &str) {
        let here = attempt(self.here.path(), user, script);
        for round in ["first", "second"] {
            let there = attempt(self.pair.left.path(), user, script);
            assert_eq!(here, there, "'{script}' as {} with groups '{}', for the {round} time", user.0, user.1);
        }
    }

    /// As everybody, once root has seen everything, so that the kernel knows all names.
    fn try_all(&self, scripts: &[&str]) {
        shell(self.pair.left.path(), "find . -ls > /dev/null; find . -type f -exec cat {} + > /dev/null").succeeded();
        for script in scripts {
            EVERYBODY.iter().for_each(|user| self.try_as(*user, script));
        }
    }
}

/// What a script says and how it ends.
fn attempt(place: &Path, user: User, script: &str) -> (Option<i32>, String) {
    let User(id, groups) = user;
    let groups = if groups.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={groups}") };
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={id}"), &format!("--regid={id}"), &groups, "sh", "-c", script]);
    let output = run(command.current_dir(place));
    (output.status.code(), output.text)
}

const LOOKS: [&str; 5] =
    ["cat d/in/f", "stat -c %A d/in/f", "ls d/in", "ls d", "test -r d/in/f; echo $?; test -x d; echo $?"];

#[test]
fn a_directory_is_closed_to_who_may_not_pass_though_its_names_are_known() {
    within(STEPS_MAX, || {
        if !have(&["setpriv"]) {
            return;
        }
        let twins = Twins::new();
        twins.change("mkdir -p d/in; echo secret > d/in/f; chown -R 1000:1000 d; chmod 700 d");
        twins.try_all(&LOOKS);
        for mode in ["755", "711", "750", "070", "100", "700"] {
            twins.change(&format!("chmod {mode} d"));
            twins.try_all(&LOOKS);
        }
        twins.change("chmod 750 d; chgrp 2000 d");
        twins.try_all(&LOOKS);
        twins.change("chgrp 2001 d");
        twins.try_all(&LOOKS);
        twins.change("chown 1001 d");
        twins.try_all(&LOOKS);
        twins.change("chown 1000 d; chmod 755 d; chmod 600 d/in/f");
        twins.try_all(&LOOKS);
        twins.change("chmod 644 d/in/f; chmod 600 d/in");
        twins.try_all(&LOOKS);
    });
}

#[test]
fn access_control_lists_grant_and_deny_at_once() {
    within(STEPS_MAX, || {
        if !have(&["setpriv", "setfacl", "getfacl"]) {
            return;
        }
        let twins = Twins::new();
        twins.change("mkdir -p d/in; echo x > d/in/f; chown -R 1000:1000 d; chmod 700 d");
        twins.try_all(&["cat d/in/f"]);
        let looks = ["cat d/in/f", "ls d", "getfacl -n -c -p d"];
        for acl in [
            "-m u:1001:rx d",
            "-m m::--- d",
            "-m m::rx d",
            "-m u:1001:--- d",
            "-x u:1001 d",
            "-m g:2000:rx d",
            "-m g:2000:--- d",
            "-b d",
            "-m o::rx d",
            "-m u:1001:--- d",
            "-m u:1001:r d/in/f",
            "-m u:1001:- d/in/f",
            "-d -m u:1001:rwx d",
        ] {
            twins.change(&format!("setfacl {acl}"));
            twins.try_all(&looks);
        }
        twins.change("setfacl -b d; chmod 755 d; mkdir d/new; echo y > d/new/f; chmod 640 d/new/f");
        twins.try_all(&["cat d/new/f", "getfacl -n -c -p d/new d/new/f"]);
    });
}

#[test]
fn who_may_change_something_is_asked_anew_for_each_change() {
    within(STEPS_MAX, || {
        if !have(&["setpriv"]) {
            return;
        }
        let twins = Twins::new();
        twins.change("mkdir -m 1777 t; mkdir -m 755 o; echo x > t/f; echo x > o/f; chown 1000:1000 t/f o o/f");
        let changes = [
            "rm -f t/f",
            "mv t/f t/g",
            "rm -f o/f",
            "echo y >> o/f",
            "echo y > o/new",
            "mkdir o/d",
            "chmod 600 o/f",
            "ln o/f t/l",
            "touch -d 2001-01-01 o/f",
        ];
        for change in changes {
            // Who may does so, on one mount only: so it is undone before the next.
            for user in [OTHER, MEMBER] {
                twins.try_as(user, change);
            }
        }
        twins.change("chmod 777 o; chmod 666 o/f");
        twins.try_as(OTHER, "echo y >> o/f; cat o/f > /dev/null; echo z > o/theirs; rm o/theirs");
        twins.change("chmod 755 o; chmod 644 o/f");
        twins.try_as(OTHER, "echo y >> o/f");
        twins.try_as(OTHER, "echo z > o/theirs");
    });
}

#[test]
fn set_id_bits_count_as_they_are_now() {
    within(STEPS_MAX, || {
        if !have(&["setpriv", "id"]) {
            return;
        }
        let twins = Twins::new();
        twins.change("cp $(command -v id) id; chown 1000:1000 id; chmod 4755 id");
        let who = ["./id -u; ./id -g"];
        twins.try_all(&who);
        for change in ["chmod u-s id", "chmod 6755 id", "chown 1002:1002 id", "chmod 6755 id"] {
            twins.change(change);
            twins.try_all(&who);
        }
        // Written to by somebody who is not root, it loses them; the content stays a program.
        for place in [twins.here.path(), twins.pair.right.path()] {
            fs::set_permissions(place.join("id"), Permissions::from_mode(0o6777)).unwrap();
        }
        twins.try_all(&who);
        for place in [twins.here.path(), twins.pair.right.path()] {
            assert_eq!(attempt(place, OTHER, "printf x >> id").0, Some(0));
        }
        twins.try_all(&who);
        // The same mount that runs it.
        for place in [twins.here.path(), twins.pair.left.path()] {
            fs::set_permissions(place.join("id"), Permissions::from_mode(0o6777)).unwrap();
        }
        twins.try_all(&who);
        for place in [twins.here.path(), twins.pair.left.path()] {
            assert_eq!(attempt(place, OTHER, "printf x >> id").0, Some(0));
        }
        twins.try_all(&who);
    });
}

/// What a descriptor may do was decided when it was opened, also where the open was answered without the server.
#[test]
fn a_descriptor_keeps_its_right_when_the_mode_changes() {
    within(STEPS_MAX, || {
        if !have(&["setpriv"]) {
            return;
        }
        let twins = Twins::new();
        twins.change("echo x > f; chown 1000:1000 f; chmod 644 f");
        twins.try_all(&["cat f"]);
        for place in [twins.here.path(), twins.pair.left.path()] {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=1001", "--regid=1001", "--clear-groups", "sh", "-c"]);
            command.arg("exec 3< f; echo opened; read line; cat <&3; cat f || echo refused").current_dir(place);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut program = command.spawn().unwrap();
            let (mut go_on, mut said) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
            let _guard = Process::adopt(program);
            let mut opened = [0; 7];
            said.read_exact(&mut opened).unwrap();
            twins.change("chmod 600 f");
            go_on.write_all(b"\n").unwrap();
            let mut text = String::new();
            said.read_to_string(&mut text).unwrap();
            assert_eq!(text, "x\nrefused\n", "in {}", place.display());
            twins.change("chmod 644 f");
        }
    });
}

/// What a user gets from one system call: programs look at files before they change them.
fn call_as<T: Send>(user: u32, groups: &[u32], call: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let call = || {
        let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        call()
    };
    thread::scope(|scope| scope.spawn(call).join().unwrap())
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn set_times(path: &Path) -> io::Result<()> {
    let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(CWD, path, &times, AtFlags::empty())?)
}

type Named<T> = (&'static str, T);
type Change = fn(&Path) -> io::Result<()>;

/// A kernel that keeps the name of a file does not look at the file before it says who may change it.
#[test]
fn who_owns_a_file_now_may_change_it_and_who_did_may_not() {
    within(STEPS_MAX, || {
        let twins = Twins::new();
        let (left, right) = (&twins.pair.left, &twins.pair.right);
        fs::create_dir(right.join("t")).unwrap();
        set_mode(&right.join("t"), 0o1777).unwrap();
        let changes: [Named<Change>; 3] = [
            ("chmod", |path| set_mode(path, 0o600)),
            ("utimensat", set_times),
            ("unlink", |path| fs::remove_file(path)),
        ];
        let meanwhile: [Named<fn(&Path)>; 3] = [
            ("nothing", |_| {}),
            // That alone has the attributes forgotten here: nobody tells of what comes then.
            ("write", |path| fs::write(path, "new").unwrap()),
            ("look", |path| assert!(path.metadata().is_ok())),
        ];
        let knows: [Named<fn(&Path)>; 2] = [
            ("lookup", |path| assert!(path.metadata().is_ok())),
            ("listing", |path| assert!(fs::read_dir(path.parent().unwrap()).unwrap().count() > 0)),
        ];
        for (known, know) in knows {
            for (before, first) in meanwhile {
                for (what, change) in changes {
                    let name = format!("t/{known}-{before}-{what}");
                    let (here, there) = (left.join(&name), right.join(&name));
                    fs::write(&there, "x").unwrap();
                    chown(&there, Some(1000), Some(1000)).unwrap();
                    know(&here);
                    first(&there);
                    chown(&there, Some(1001), Some(1001)).unwrap();
                    let error = call_as(1000, &[], || change(&here)).unwrap_err();
                    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name}");
                    chown(&there, Some(1000), Some(1000)).unwrap();
                    know(&here);
                    first(&there);
                    chown(&there, Some(1001), Some(1001)).unwrap();
                    call_as(1001, &[], || change(&here)).unwrap_or_else(|error| panic!("{name}: {error}"));
                }
            }
        }
    });
}

#[test]
fn a_set_gid_bit_is_set_by_who_is_in_the_group_of_now() {
    within(STEPS_MAX, || {
        let twins = Twins::new();
        let (here, there) = (twins.pair.left.join("f"), twins.pair.right.join("f"));
        fs::write(&there, "x").unwrap();
        for (before, group) in [(2000, 2001), (2001, 2000)] {
            chown(&there, Some(1000), Some(before)).unwrap();
            set_mode(&there, 0o644).unwrap();
            assert_eq!(fs::metadata(&here).unwrap().gid(), before);
            chown(&there, None, Some(group)).unwrap();
            call_as(1000, &[group], || set_mode(&here, 0o2755)).unwrap();
            assert_eq!(
                fs::metadata(&there).unwrap().mode() & 0o7777,
                0o2755,
                "of group {group}, which it was not before"
            );
        }
    });
}

/// What ends the capabilities of a program file, as a plain user: one that may write it, and one
/// that owns it.
const ENDS_CAPABILITIES: &str = "
for change in 'truncate -s 100' 'truncate -s 20000' 'fallocate -l 30000' 'fallocate -p -o 0 -l 4096' 'tee -a' 'chgrp 1001'
do for user in 1000 1002
do
    head -c 10000 /dev/zero > file; chown 1000:1000 file; chmod 666 file; setcap cap_net_raw+ep file
    echo x | setpriv --reuid=$user --regid=1000 --groups=1001 $change file > /dev/null 2>&1 && status=0 || status=$?
    echo \"$change as $user: $status\" $(stat -c '%s %g' file) $(getcap file)
    rm file
done; done
head -c 10 /dev/zero > file; chmod 666 file; setcap cap_net_raw+ep file
setpriv --reuid=1000 --regid=1000 --clear-groups setcap -r file 2> /dev/null || echo refused $(getcap file)
";

/// As on a local file system: who may write is not refused, and gains nothing.
#[test]
fn changes_of_files_with_capabilities_are_not_refused() {
    test(|| {
        if !have(&["setpriv", "setcap", "getcap", "fallocate", "truncate"]) {
            return;
        }
        let local = disk_directory();
        let said = |directory: &Path| {
            fs::set_permissions(directory, Permissions::from_mode(0o777)).unwrap();
            shell(directory, ENDS_CAPABILITIES).succeeded()
        };
        let expected = said(local.path());
        assert!(expected.contains("truncate -s 100 as 1002: 0 100 1000\n"), "{expected}");
        for mode in ["cache=none", "cache=lease", "cache=close-to-open"] {
            let one = One::over(disk_directory(), &format!("{mode},allow_other"));
            let found = said(one.mount.path());
            for (found, expected) in found.lines().zip(expected.lines()) {
                // The kernel asks to end them before it knows that the change is refused, which
                // who may write may have.
                let is_refused = expected.starts_with("chgrp 1001 as 1002");
                assert!(
                    found == expected || is_refused && found.starts_with("chgrp 1001 as 1002: 1"),
                    "{mode}: {found}, {expected}"
                );
            }
            assert_eq!(found.lines().count(), expected.lines().count());
        }
    });
}
