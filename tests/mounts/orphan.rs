//! Mounts whose process is killed while the kernel has one of its threads wait for a page that is
//! being read through the mount: the thread cannot end, nor the process, nor the mount with it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use aqueduct_fuse::Control;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::{
    Mount, Process, SOON, Server, aqueduct, directory, directory_for_devices, have, is_mounted, own_mounts,
    program_for_all, run, shell, signal, skip, test, wait_until,
};

/// Each is read by a program of its own, at 1 MB/s together.
const FILES: usize = 8;
const FILE: usize = 1 << 20;

/// A mount in which programs read slowly, and a thread that has the kernel drop a page of what they
/// read.
struct Waiting {
    mount: Mount,
    readers: Vec<Process>,
    /// They go on, each when it may.
    _writers: Vec<Process>,
    _others: (Mount, Server, TempDir),
}

impl Waiting {
    fn start() -> Waiting {
        let export = directory();
        for number in 0..FILES {
            fs::write(export.path().join(number.to_string()), vec![7; FILE]).unwrap();
        }
        let server =
            Server::start_with(&mut aqueduct(), &["--listen", "127.0.0.1:0", "--rate", "1MB/s"], &[export.path()]);
        let [mount, other] = [server.mount(export.path()), server.mount(export.path())];
        let program = |script: &str, point: &Path, number: usize| {
            let mut shell = Command::new("sh");
            let file = point.join(number.to_string());
            Process::adopt(shell.args(["-c", script, "sh"]).arg(file).stderr(Stdio::null()).spawn().unwrap())
        };
        let readers = (0..FILES).map(|number| program("exec cat \"$1\" > /dev/null", mount.path(), number)).collect();
        // By name they are found once all read.
        let opened = || {
            let links = fs::read_dir(format!("/proc/{}/fd", server.process.pid())).unwrap().flatten();
            let files = links.filter_map(|link| fs::read_link(link.path()).ok());
            files.filter(|file| file.starts_with(export.path()) && file != export.path()).count() >= FILES
        };
        wait_until("all read", SOON, opened);
        // Who writes has the lease of who reads called back.
        let write = "exec dd if=/dev/zero of=\"$1\" bs=1 count=1 conv=notrunc";
        let writers = (0..FILES).map(|number| program(write, other.path(), number)).collect();
        let waiting = Waiting { mount, readers, _writers: writers, _others: (other, server, export) };
        wait_until("a thread waits for a page", SOON, || waiting.has_thread_in_kernel());
        waiting
    }

    /// Whether a thread of the mount is in a sleep that no signal ends, in the kernel.
    fn has_thread_in_kernel(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.mount.process.pid())).unwrap().flatten();
        tasks.into_iter().any(|task| {
            let stack = fs::read_to_string(task.path().join("stack")).unwrap_or_default();
            stack.contains("folio_lock") && stack.contains("fuse_reverse_inval_inode")
        })
    }

    fn all_end(mut self) {
        self.mount.process.ends_within(SOON);
        for reader in &mut self.readers {
            reader.ends_within(SOON);
        }
    }
}

/// A test that fails leaves nothing that hangs.
impl Drop for Waiting {
    fn drop(&mut self) {
        if let Ok(control) = Control::at(self.mount.path()) {
            let _ = control.abort(); // it is what a mount that is killed should have come to
        }
    }
}

fn beside(mount: &Mount) -> Option<u32> {
    beside_process(mount.process.pid())
}

/// The process beside a mount's.
fn beside_process(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let named = |child: &&str| {
        fs::read(format!("/proc/{child}/cmdline")).is_ok_and(|line| line.starts_with(b"aqueduct-orphan\0"))
    };
    children.split_whitespace().find(named).and_then(|child| child.parse().ok())
}

fn has_ended(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists() || is_zombie(pid)
}

#[test]
fn a_mount_that_is_killed_ends_and_so_do_programs_in_it() {
    test(|| {
        let waiting = Waiting::start();
        let beside = beside(&waiting.mount).unwrap();
        waiting.mount.process.signal(Signal::KILL);
        waiting.all_end();
        wait_until("the process beside it has ended", SOON, || has_ended(beside));
    });
}

/// As a panic ends it: the kernel waits for all threads before it dumps the memory of a process, so
/// that not even the main one ends.
#[test]
fn a_mount_that_aborts_ends_and_so_do_programs_in_it() {
    test(|| {
        let waiting = Waiting::start();
        waiting.mount.process.signal(Signal::ABORT);
        waiting.all_end();
    });
}

#[test]
fn what_a_killed_mount_has_left_is_ended_by_force() {
    test(|| {
        let waiting = Waiting::start();
        for pid in [beside(&waiting.mount).unwrap(), waiting.mount.process.pid()] {
            signal(pid, Signal::KILL);
        }
        wait_until("the mount's main thread has ended", SOON, || is_zombie(waiting.mount.process.pid()));
        run(aqueduct().args(["umount", "--force"]).arg(waiting.mount.path())).succeeded();
        waiting.all_end();
    });
}

/// Signals of services end it no sooner than its mount, and that is not ended by them. However its
/// directory was named, and however it ends, nothing stays.
#[test]
fn the_process_beside_a_mount_is_there_as_long_as_that_is() {
    test(|| {
        let home = directory();
        shell(home.path(), "mkdir source point; ln -s point link; echo content > source/file").succeeded();
        let point = fs::canonicalize(home.path().join("point")).unwrap();
        for named in ["point", "link", "source/../point/"] {
            for end in [None, Some(Signal::TERM), Some(Signal::KILL)] {
                let mut command = aqueduct();
                command.args(["mount", "--local", "source", named]).current_dir(home.path());
                let mut mount = Process::start(&mut command, &home.path().join("log"));
                wait_until("it is mounted", SOON, || is_mounted(&point));
                let beside = beside_process(mount.pid()).unwrap();
                for told in [Signal::TERM, Signal::INT, Signal::HUP] {
                    signal(beside, told);
                }
                std::thread::sleep(Duration::from_millis(50));
                assert!(!has_ended(beside) && fs::read(point.join("file")).unwrap() == b"content\n");
                match end {
                    None => drop(run(aqueduct().arg("umount").arg(&point)).succeeded()),
                    Some(signal) => mount.signal(signal),
                }
                mount.ends_within(SOON);
                wait_until("the process beside it has ended", SOON, || has_ended(beside));
                if is_mounted(&point) {
                    run(aqueduct().arg("umount").arg(&point)).succeeded();
                }
            }
        }
    });
}

/// What is mounted there is others', who may not have any program run.
#[test]
fn a_mount_over_the_program_runs_none_of_what_it_shows() {
    test(|| {
        let home = directory_for_devices();
        let program = program_for_all(home.path());
        let script = "mkdir bin shown; mv aqueduct bin; printf '#!/bin/sh\ntouch %s/ran\n' $PWD > shown/aqueduct
                      chmod 755 shown/aqueduct";
        shell(home.path(), script).succeeded();
        let bin = program.with_file_name("bin");
        let what = ["--local", home.path().join("shown").to_str().unwrap()].map(str::to_owned);
        let mut mount = Process::start(
            Command::new(bin.join("aqueduct")).arg("mount").args(what).arg(&bin),
            &home.path().join("log"),
        );
        wait_until("it is mounted", SOON, || is_mounted(&bin));
        let beside = beside_process(mount.pid()).unwrap();
        run(Command::new("umount").arg(&bin)).succeeded();
        mount.ends_within(SOON);
        wait_until("the process beside it has ended", SOON, || has_ended(beside));
        assert!(!home.path().join("ran").exists());
    });
}

/// As [`what_a_killed_mount_has_left_is_ended_by_force`], where fusermount3 mounts: it would only
/// take the mount from where it is seen.
#[test]
fn a_plain_user_ends_a_mount_by_force() {
    test(|| {
        if !have(&["setpriv", "fusermount3", "bash"]) {
            return;
        }
        let Some(mut unshare) = own_mounts() else { return };
        let home = directory_for_devices();
        program_for_all(home.path());
        let prepare = "cp -a /dev/fuse fuse; chmod 666 fuse; mkdir source point; echo content > source/file
                       chown -R 65534:65534 source point";
        shell(home.path(), prepare).succeeded();
        let script = r#"
            mount --bind fuse /dev/fuse || exit 77
            mount -t fusectl fusectl /sys/fs/fuse/connections || exit 77
            # Nothing stays where this script does not come to its end.
            user="setpriv --pdeathsig KILL --reuid=65534 --regid=65534 --clear-groups"
            here=$PWD
            $user ./aqueduct mount --local $here/source $here/point > log 2>&1 & mount=$!
            for i in $(seq 100); do grep -q " $here/point fuse" /proc/self/mounts && break; sleep 0.05; done
            kill -STOP $mount
            trap 'kill -9 $mount' EXIT
            $user cat point/file > /dev/null 2> said & cat=$!
            sleep 0.2
            $user ./aqueduct umount --force $here/point
            if wait $cat; then echo "it read what nobody serves"; fi
            cat said
            if grep $here/ /proc/self/mounts; then echo left; fi
            umount -l /sys/fs/fuse/connections
            mkdir point2; chown 65534 point2
            $user ./aqueduct mount --local $here/source $here/point2 > log 2>&1 & second=$!
            for i in $(seq 100); do grep -q " $here/point2 fuse" /proc/self/mounts && break; sleep 0.05; done
            $user ./aqueduct umount --force $here/point2 2>&1 | grep -o "only taken from where it is seen"
        "#;
        let output = run(unshare.args(["bash", "-euc", script]).current_dir(home.path()));
        if output.status.code() == Some(77) {
            return skip("devices cannot be bound here, or there is no control file system of FUSE");
        }
        let said = output.succeeded();
        assert!(said.starts_with("cat: point/file: ") && said.lines().count() == 2, "{said}");
        assert!(said.ends_with("only taken from where it is seen\n"), "{said}");
    });
}

fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}
