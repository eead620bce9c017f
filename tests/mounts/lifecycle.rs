//! How servers, mounts and waiting programs end.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::agent::Agent;
use crate::common::ways::freed_within;
use crate::common::{
    FileSystem, Mount, One, Process, SOON, Server, aqueduct, directory, directory_for_devices, disk_directory, errno,
    have, is_mounted, mount_point, own_mounts, program_for_all, run, shell, skip, test, wait_until,
};
use crate::proxy::Proxy;

/// A signal that ends a program is noticed within a second or so; a busy machine takes longer.
const NOTICED: Duration = Duration::from_secs(10);

#[test]
fn umount_ends_the_daemon() {
    test(|| {
        let export = directory();
        let server = Server::start(&[export.path()]);
        let end = |mut mount: Mount, how: &dyn Fn(&Mount)| {
            fs::write(mount.join("file"), "x").unwrap();
            how(&mount);
            let status = mount.process.ends_within(SOON);
            assert_eq!(status.code(), Some(0), "{}", mount.process.output());
            assert!(!is_mounted(mount.path()));
        };
        for options in ["", "cache=close-to-open"] {
            let mount = || server.mount_with(export.path(), options);
            end(mount(), &|mount| drop(run(Command::new("umount").arg(mount.path())).succeeded()));
            end(mount(), &|mount| drop(run(aqueduct().arg("umount").arg(mount.path())).succeeded()));
            end(mount(), &|mount| mount.process.signal(Signal::TERM));
            end(mount(), &|mount| mount.process.signal(Signal::INT));
        }
        wait_until("all sessions are gone", Duration::from_secs(2), || server.sessions() == 0);
    });
}

#[test]
fn a_daemon_returns_when_it_is_ready() {
    test(|| {
        let export = directory();
        let server = Server::start(&[export.path()]);
        fs::write(export.path().join("file"), "ready").unwrap();
        let point = mount_point();
        run(aqueduct().args(["mount", "--daemon", &server.source(export.path())]).arg(&point)).succeeded();
        assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "ready");
        run(aqueduct().arg("umount").arg(&point)).succeeded();
        assert!(!is_mounted(&point));
        fs::remove_dir(&point).unwrap();
        wait_until("its session is gone", Duration::from_secs(5), || server.sessions() == 0);
    });
}

/// Whoever has all services of a machine read their files again ends none.
#[test]
fn a_server_that_has_nothing_to_read_again_goes_on() {
    test(|| {
        let one = One::new();
        one.server.process.signal(Signal::HUP);
        wait_until("it says so", SOON, || one.server.process.output().contains("SIGHUP changes nothing here"));
        fs::write(one.mount.join("file"), "served").unwrap();
        assert_eq!(fs::read_to_string(one.export.path().join("file")).unwrap(), "served");
    });
}

#[test]
fn a_mount_whose_server_is_gone_is_not_said_to_be_well() {
    test(|| {
        let export = directory();
        let server = Server::start(&[export.path()]);
        let mount = server.mount(export.path());
        let state = || {
            let told: Value = serde_json::from_str(&run(aqueduct().args(["status", "--json"])).succeeded()).unwrap();
            let mounts = told["mounts"].as_array().cloned().unwrap_or_default();
            let own = mounts.into_iter().find(|of| of["target"] == mount.path().to_str().unwrap());
            own.map(|of| of["state"].as_str().unwrap().to_owned())
        };
        assert_eq!(state().as_deref(), Some("ok"));
        let (address, home) = server.kill();
        wait_until("it is told", SOON, || state().as_deref() == Some("no connection to its server"));
        let listen = ["--listen", &address];
        let _server = Server::start_at(home, &mut aqueduct(), &listen, &[export.path()]);
        wait_until("it is well again", SOON, || state().as_deref() == Some("ok"));
    });
}

#[test]
fn a_busy_mount_is_not_taken_away() {
    test(|| {
        let one = One::new();
        let mut agent = Agent::start();
        agent.ask(&format!("chdir {}", one.mount.path().display())).unwrap();
        let text = run(aqueduct().arg("umount").arg(one.mount.path())).failed();
        assert!(text.contains("busy") && text.contains("--lazy"), "{text}");
        assert!(is_mounted(one.mount.path()));
        run(aqueduct().args(["umount", "--lazy"]).arg(one.mount.path())).succeeded();
        assert!(!is_mounted(one.mount.path()));
    });
}

#[test]
fn a_mount_whose_server_is_gone_can_be_taken_away() {
    test(|| {
        for force in [false, true] {
            let One { mount, server, export } = One::new();
            let mut holder = Agent::start();
            holder.ask(&format!("open 0 {} wc", mount.join("held").display())).unwrap();
            drop(server);
            let mut waiter = Agent::start();
            waiter.tell(&format!("open 0 {} r", mount.join("file").display()));
            assert!(waiter.is_waiting());
            if force {
                run(aqueduct().args(["umount", "--force"]).arg(mount.path())).succeeded();
            } else {
                // As umount(8) without the helper does it: programs get their errors, then it is unused.
                let _ = run(Command::new("umount").args(["-i", "-f"]).arg(mount.path()));
            }
            assert!(waiter.answer_within(NOTICED).is_some_and(|answer| answer.is_err()), "it has an error");
            if !force {
                drop(holder);
                run(aqueduct().arg("umount").arg(mount.path())).succeeded();
            }
            assert!(!is_mounted(mount.path()));
            drop((mount, export));
        }
    });
}

#[test]
fn a_mount_tells_how_its_requests_come() {
    test(|| {
        let export = directory();
        let server = Server::start(&[export.path()]);
        let by = |options: &str| server.mount_with(export.path(), options).status()["requests_by"].clone();
        let offered =
            fs::read_to_string("/sys/module/fuse/parameters/enable_uring").is_ok_and(|value| value.trim() == "Y");
        let usual = if offered && std::env::var_os("TRANSPORT").is_none() { "io_uring" } else { "/dev/fuse" };
        assert_eq!(by(""), usual);
        assert_eq!(by("io_uring=off"), "/dev/fuse");
        assert_eq!(Mount::local(export.path()).status()["requests_by"], "/dev/fuse", "several threads serve it");
    });
}

#[test]
fn the_kernel_reads_ahead_as_far_as_it_is_told() {
    test(|| {
        let export = directory();
        let server = Server::start(&[export.path()]);
        let kibibytes = |options: &str| {
            let mount = server.mount_with(export.path(), options);
            let device = fs::metadata(mount.path()).unwrap().dev();
            let name = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
            fs::read_to_string(format!("/sys/class/bdi/{name}/read_ahead_kb")).unwrap().trim().parse::<usize>().unwrap()
        };
        let by_itself = kibibytes("read_ahead=0");
        assert!(by_itself < 2048, "{by_itself}");
        assert_eq!((kibibytes(""), kibibytes("read_ahead=1M")), (2048, 1024));
    });
}

#[test]
fn a_dead_mount_is_cleared() {
    test(|| {
        let mut one = One::new();
        fs::write(one.path("file"), "x").unwrap();
        one.mount.process.signal(Signal::KILL);
        one.mount.process.ends_within(SOON);
        assert!(is_mounted(one.mount.path()));
        // Who asked while the kernel ended the connection is told that it was aborted.
        let asked = || errno(fs::metadata(one.path("file")));
        assert!([libc::ENOTCONN, libc::ECONNABORTED].contains(&asked()));
        wait_until("the kernel has ended the connection", SOON, || asked() == libc::ENOTCONN);
        run(aqueduct().arg("umount").arg(one.mount.path())).succeeded();
        assert!(!is_mounted(one.mount.path()));
        // And it can be mounted again.
        let again = one.server.mount(one.export.path());
        assert_eq!(fs::read_to_string(again.join("file")).unwrap(), "x");
    });
}

/// A program that reads a file whose server does not answer.
fn waiting_reader(one: &One) -> Agent {
    fs::write(one.path("file"), "content").unwrap();
    let mut agent = Agent::start();
    agent.ask(&format!("open 0 {} r", one.path("file").display())).unwrap();
    agent.ask("read 0 3").unwrap();
    one.server.process.stop();
    agent
}

#[test]
fn a_waiting_program_can_be_killed() {
    test(|| {
        let one = One::with("cache=none");
        for signal in [Signal::KILL, Signal::INT, Signal::TERM, Signal::HUP] {
            let mut agent = waiting_reader(&one);
            agent.tell("read 0 100");
            assert!(agent.is_waiting());
            agent.process.signal(signal);
            let status = agent.process.ends_within(NOTICED);
            assert_eq!(status.signal(), Some(signal.as_raw()));
            one.server.process.signal(Signal::CONT);
            assert_eq!(fs::read_to_string(one.path("file")).unwrap(), "content", "the mount is as good as before");
        }
    });
}

#[test]
fn a_program_that_waits_for_a_dead_server_can_be_killed() {
    test(|| {
        let One { mount, server, export } = One::new();
        fs::write(mount.join("file"), "content").unwrap();
        drop(server);
        for signal in [Signal::KILL, Signal::INT] {
            for name in ["file", "other"] {
                let mut agent = Agent::start();
                agent.tell(&format!("open 0 {} r", mount.join(name).display()));
                assert!(agent.is_waiting());
                agent.process.signal(signal);
                assert_eq!(agent.process.ends_within(NOTICED).signal(), Some(signal.as_raw()));
            }
        }
        drop((mount, export));
    });
}

#[test]
fn a_killed_program_does_not_wait_for_its_last_closes() {
    test(|| {
        let one = One::new();
        let mut agent = waiting_reader(&one);
        agent.process.signal(Signal::KILL);
        let ended = agent.process.ends_within(NOTICED);
        assert_eq!(ended.signal(), Some(libc::SIGKILL));
        one.server.process.signal(Signal::CONT);
    });
}

#[test]
fn a_handled_signal_does_not_disturb_a_waiting_program() {
    test(|| {
        let one = One::with("cache=none");
        let mut agent = waiting_reader(&one);
        agent.ask("alarm 50").unwrap();
        agent.tell("read 0 100");
        assert!(agent.answer_within(Duration::from_secs(2)).is_none(), "it waits, through 40 alarms");
        one.server.process.signal(Signal::CONT);
        assert_eq!(agent.answer(), Ok("tent".to_owned()));
        // Writes are neither lost nor done twice by what interrupts them.
        agent.ask(&format!("open 1 {} wca", one.path("log").display())).unwrap();
        one.server.process.stop();
        agent.tell("write 1 once");
        assert!(agent.answer_within(Duration::from_secs(1)).is_none());
        one.server.process.signal(Signal::CONT);
        assert_eq!(agent.answer(), Ok("4".to_owned()));
        assert_eq!(fs::read_to_string(one.path("log")).unwrap(), "once");
    });
}

#[test]
fn a_soft_mount_gives_up() {
    test(|| {
        let one = One::with("soft,timeo=1,cache=none");
        let mut agent = waiting_reader(&one);
        agent.tell("read 0 100");
        assert_eq!(agent.answer_within(NOTICED).expect("it gives up"), Err(libc::EIO));
        one.server.process.signal(Signal::CONT);
        wait_until("it works again", SOON, || fs::read_to_string(one.path("file")).is_ok_and(|text| text == "content"));
    });
}

/// Whether a thread of the process is inside fsync(2).
fn is_syncing(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let call = format!("{} ", libc::SYS_fsync);
    threads
        .map(|thread| fs::read_to_string(thread.path().join("syscall")))
        .any(|text| text.is_ok_and(|text| text.starts_with(&call)))
}

#[test]
fn sigterm_drains() {
    test(|| {
        for _ in 0..3 {
            let mut one = One::over(disk_directory(), "");
            let path = one.export.path().join("file");
            let mut agent = Agent::start();
            agent.ask(&format!("open 0 {} rwc", one.path("file").display())).unwrap();
            fs::write(&path, vec![1; 40 << 20]).unwrap();
            agent.tell("sync 0");
            // Until the server is at it; a disk may be too fast to be caught, and then has answered already.
            let started = std::time::Instant::now();
            while !is_syncing(one.server.process.pid()) && started.elapsed() < Duration::from_secs(1) {}
            one.server.process.signal(Signal::TERM);
            agent.answer().expect("what is under way is finished");
            let status = one.server.process.ends_within(SOON);
            assert_eq!(status.code(), Some(0), "{}", one.server.process.output());
        }
    });
}

#[test]
fn the_reply_of_what_was_finished_arrives() {
    test(|| {
        for _ in 0..3 {
            let mut one = One::new();
            let length = 64 << 20;
            let (from, to) = (one.export.path().join("from"), one.export.path().join("to"));
            fs::File::create(&from).unwrap().set_len(length).unwrap();
            let mut agent = Agent::start();
            agent.ask(&format!("open 0 {} r", one.path("from").display())).unwrap();
            agent.ask(&format!("open 1 {} wc", one.path("to").display())).unwrap();
            agent.tell(&format!("copy 0 1 {length}"));
            let started = std::time::Instant::now();
            while fs::metadata(&to).unwrap().len() == 0 && started.elapsed() < SOON {}
            one.server.process.signal(Signal::TERM);
            let copied: u64 = agent.answer().expect("what is under way is finished").parse().unwrap();
            assert_eq!(one.server.process.ends_within(SOON).code(), Some(0), "{}", one.server.process.output());
            assert_eq!(fs::metadata(&to).unwrap().len(), copied);
        }
    });
}

/// Four write as fast as they can; what they were told is there.
#[test]
fn a_server_that_ends_keeps_what_it_acknowledged() {
    test(|| {
        let mut one = One::with("soft,timeo=1");
        let writers: Vec<_> = (0..4)
            .map(|number| {
                let mut file = OpenOptions::new().append(true).create(true).open(one.path(number.to_string())).unwrap();
                thread::spawn(move || (0u64..).take_while(|_| file.write_all(&[b'x'; 100]).is_ok()).count())
            })
            .collect();
        thread::sleep(Duration::from_millis(500));
        one.server.process.signal(Signal::TERM);
        assert_eq!(one.server.process.ends_within(SOON).code(), Some(0), "{}", one.server.process.output());
        for (number, writer) in writers.into_iter().enumerate() {
            let told = writer.join().unwrap() as u64 * 100;
            let there = fs::metadata(one.export.path().join(number.to_string())).unwrap().len();
            assert!(told > 0 && (there == told || there == told + 100), "told {told}, there {there}");
        }
    });
}

#[test]
fn a_killed_client_leaves_nothing_behind() {
    test(|| {
        let one = One::new();
        let mut agent = Agent::start();
        for (slot, name) in ["kept", "unlinked"].iter().enumerate() {
            agent.ask(&format!("open {slot} {} rwc", one.path(name).display())).unwrap();
            agent.ask(&format!("write {slot} text")).unwrap();
            agent.ask(&format!("process {slot} W 0 0")).unwrap();
        }
        fs::remove_file(one.path("unlinked")).unwrap();
        assert!(!one.server.open_below(one.export.path()).is_empty());
        assert_eq!(one.server.sessions(), 1);
        one.mount.process.signal(Signal::KILL);
        wait_until("the server has closed its files", freed_within(), || {
            one.server.open_below(one.export.path()).is_empty() && one.server.sessions() == 0
        });
        // Also not in the hidden folder, where the server kept what was unlinked.
        let left = shell(one.export.path(), "find . -type f").succeeded();
        assert_eq!(left, "./kept\n");
    });
}

/// A mount whose connections can be cut.
fn through_proxy() -> (Proxy, One) {
    let export = directory();
    // What comes through a forwarder is not this machine's root.
    let arguments = ["--listen", "127.0.0.1:0", "--squash", "none"];
    let server = Server::start_with(&mut aqueduct(), &arguments, &[export.path()]);
    let proxy = Proxy::start(&server.address);
    let source = format!("{}:{}", proxy.address, export.path().display());
    let mount = Mount::start(&mut aqueduct(), &[&source], "");
    (proxy, One { mount, server, export })
}

#[test]
fn a_broken_connection_is_made_again() {
    test(|| {
        let (proxy, one) = through_proxy();
        let (mount, export) = (&one.mount, &one.export);
        let stop = AtomicBool::new(false);
        let cuts = thread::scope(|scope| {
            let cutter = scope.spawn(|| {
                let mut cuts = 0;
                while !stop.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(20));
                    cuts += usize::from(proxy.cut() > 0);
                }
                cuts
            });
            let stopping = StopsInTheEnd(&stop);
            // Each of these fails or shows when it is done twice or not at all.
            let mut log = OpenOptions::new().create(true).append(true).open(mount.join("log")).unwrap();
            for number in 0..300 {
                let name = mount.join(format!("file-{number}"));
                fs::File::create_new(&name).unwrap();
                writeln!(log, "{number}").unwrap();
                fs::rename(&name, mount.join("moved")).unwrap();
                fs::create_dir(mount.join("dir")).unwrap();
                fs::remove_dir(mount.join("dir")).unwrap();
                fs::remove_file(mount.join("moved")).unwrap();
            }
            let big = vec![7; 20 << 20];
            fs::write(mount.join("big"), &big).unwrap();
            assert!(fs::read(mount.join("big")).unwrap() == big);
            drop(stopping);
            cutter.join().unwrap()
        });
        assert!(cuts > 5, "only {cuts} cuts");
        let wanted: String = (0..300).map(|number| format!("{number}\n")).collect();
        assert_eq!(fs::read_to_string(export.path().join("log")).unwrap(), wanted);
    });
}

/// The grace time of a break that was mended must not end the session at a later break.
#[test]
fn short_breaks_do_not_add_up() {
    test(|| {
        let (proxy, one) = through_proxy();
        let mut agent = Agent::start();
        agent.ask(&format!("open 0 {} rwc", one.path("file").display())).unwrap();
        agent.ask("process 0 W 0 0").unwrap();
        proxy.cut();
        agent.ask("write 0 x").expect("mended");
        // When the grace time of that first break is over, there is a second one; neither is as long as the grace time.
        thread::sleep(Duration::from_millis(4300));
        proxy.interrupt(Duration::from_secs(2));
        agent.ask("write 0 x").expect("the descriptor is as good as before");
        agent.ask("sync 0").unwrap();
        assert_eq!(fs::metadata(one.export.path().join("file")).unwrap().len(), 2);
        assert_eq!(one.server.sessions(), 1);
    });
}

/// Also when the test fails before.
struct StopsInTheEnd<'a>(&'a AtomicBool);

impl Drop for StopsInTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_restarted_server_is_found_again() {
    test(|| {
        let One { mount, server, export } = One::new();
        fs::create_dir(mount.join("dir")).unwrap();
        fs::write(mount.join("dir/file"), "before").unwrap();
        let server = server.restart(&[export.path()]);
        // New opens work, in a directory that was known before too.
        wait_until("the mount works again", SOON, || {
            fs::read_to_string(mount.join("dir/file")).is_ok_and(|text| text == "before")
        });
        fs::write(mount.join("dir/new"), "after").unwrap();
        assert_eq!(fs::read_to_string(export.path().join("dir/new")).unwrap(), "after");
        drop(mount);
        drop(server);
    });
}

/// Everything by user `nobody`: fusermount3 wants one who is in /etc/passwd. In a mount namespace of our own, where users may open /dev/fuse.
#[test]
fn a_plain_user_mounts_through_fusermount3() {
    test(|| {
        if !have(&["setpriv", "fusermount3", "bash"]) {
            return;
        }
        let Some(mut unshare) = own_mounts() else { return };
        let home = directory_for_devices();
        program_for_all(home.path());
        let prepare = "cp -a /dev/fuse fuse; chmod 666 fuse; mkdir source local remote state; echo theirs > source/file
                       chown -R 65534:65534 source local remote state";
        shell(home.path(), prepare).succeeded();
        let script = r#"
            mount --bind fuse /dev/fuse || exit 77
            user="setpriv --reuid=65534 --regid=65534 --clear-groups"
            as_user() { $user "$@"; }
            soon() { for i in $(seq 100); do if eval "$1"; then return; fi; sleep 0.05; done; echo "in vain: $1"; cat log-*; exit 1; }
            here=$PWD
            # Without a function around it, so that the number is the server's own.
            $user ./aqueduct serve --listen 127.0.0.1:0 --state $here/state $here/source > log-serve 2>&1 &
            serve=$!
            trap 'kill $serve' EXIT
            soon "grep -q listening log-serve"
            address=$(sed -n 's/^listening on //p' log-serve)
            as_user ./aqueduct mount --local $here/source $here/local > log-local 2>&1 & local=$!
            as_user ./aqueduct mount $address:$here/source $here/remote > log-remote 2>&1 & remote=$!
            for point in local remote; do
                soon "grep -q ' $here/$point fuse' /proc/self/mounts"
                as_user cat $point/file
                as_user sh -euc "echo new > $point/$point; mkdir $point/d; mv $point/$point $point/d/; rm -r $point/d; chmod 600 $point/file"
                if as_user chown 0 $point/file 2> /dev/null; then echo "a user gave a file away"; fi
                if cat $point/file 2> /dev/null; then echo "root looks in, without allow_other"; fi
                if as_user mknod $point/device c 1 3 2> /dev/null; then echo "a user made a device"; fi
                as_user ./aqueduct umount $here/$point
            done
            wait $local; wait $remote
            if grep $here/ /proc/self/mounts; then echo left; fi
        "#;
        let output = run(unshare.args(["bash", "-euc", script]).current_dir(home.path()));
        if output.status.code() == Some(77) {
            return skip("devices cannot be bound here");
        }
        assert_eq!(output.succeeded(), "theirs\ntheirs\n");
    });
}

/// A plain user's server does everything as that user, so others do not get in.
#[test]
fn a_plain_users_server_serves_that_user() {
    test(|| {
        if !have(&["setpriv"]) {
            return;
        }
        let (home, point) = (directory(), mount_point());
        let program = program_for_all(home.path());
        shell(home.path(), "mkdir export state; chown 1000:1000 export state").succeeded();
        let (export, state) = (home.path().join("export"), home.path().join("state"));
        let mut command = Command::new("setpriv");
        command.args(["--reuid=1000", "--regid=1000", "--clear-groups"]).arg(&program);
        command.args(["serve", "--listen", "127.0.0.1:0", "--state"]).arg(&state).arg(&export);
        let server = Process::start(&mut command, &home.path().join("log"));
        wait_until("the server listens", SOON, || server.output().contains("listening on "));
        let output = server.output();
        let address = output.lines().find_map(|line| line.strip_prefix("listening on ")).unwrap();
        let mount = run(aqueduct().args(["mount", "--daemon", &format!("{address}:{}", export.display())]).arg(&point));
        if mount.status.success() {
            assert_eq!(errno(fs::write(point.join("file"), "x")), libc::EPERM);
            run(aqueduct().arg("umount").arg(&point)).succeeded();
        }
        assert!(fs::read_dir(&export).unwrap().next().is_none());
        fs::remove_dir(&point).unwrap();
    });
}

/// mount(8), umount(8) and fstab find the helper in /sbin; a mount namespace of our own has it there.
#[test]
fn fstab_and_mount_use_the_helper() {
    test(|| {
        if !have(&["mount", "umount"]) {
            return;
        }
        let Some(mut unshare) = own_mounts() else { return };
        let export = directory();
        fs::write(export.path().join("file"), "by fstab\n").unwrap();
        let server = Server::start(&[export.path()]);
        let (home, point) = (directory(), mount_point());
        let sbin: PathBuf = fs::canonicalize("/sbin").unwrap();
        for helper in ["mount.aqueduct", "umount.aqueduct"] {
            symlink(env!("CARGO_BIN_EXE_aqueduct"), home.path().join(helper)).unwrap();
        }
        let fstab = home.path().join("fstab");
        let line = format!(
            "{} {} aqueduct _netdev,nofail,ro,x-systemd.automount 0 0\n",
            server.source(export.path()),
            point.display()
        );
        fs::write(&fstab, line).unwrap();
        let overlay =
            format!("mount -t overlay overlay -o lowerdir={}:{s} {s}", home.path().display(), s = sbin.display());
        let mut inside = |script: &str| {
            let script = format!("{overlay} || exit 77\n{script}");
            run(unshare.args(["sh", "-euc", &script]).current_dir(home.path()))
        };
        let (point_text, fstab) = (point.display(), fstab.display());
        let output = inside(&format!(
            "mount -T {fstab} {point_text}; cat {point_text}/file; touch {point_text}/new 2>&1 || true
             grep -c ' {point_text} fuse.aqueduct ro' /proc/self/mounts; umount {point_text}
             mount -t aqueduct -o rw,noexec {} {point_text}; touch {point_text}/new; umount {point_text}
             ! grep {point_text} /proc/self/mounts",
            server.source(export.path())
        ));
        if output.status.code() == Some(77) {
            return skip("overlayfs cannot be mounted here");
        }
        let text = output.succeeded();
        assert!(text.starts_with("by fstab\n") && text.contains("Read-only file system"), "{text}");
        assert!(export.path().join("new").exists());
        wait_until("the sessions are gone", Duration::from_secs(5), || server.sessions() == 0);
        fs::remove_dir(&point).unwrap();
    });
}

/// How mount(8) calls it, with the exit codes that mount(8) knows.
#[test]
fn the_helper_speaks_mount_8() {
    test(|| {
        let export = directory();
        let server = Server::start(&[export.path()]);
        let home = directory();
        let (helper, point) = (home.path().join("mount.aqueduct"), mount_point());
        symlink(env!("CARGO_BIN_EXE_aqueduct"), &helper).unwrap();
        let mount = |source: &str, options: &[&str]| run(Command::new(&helper).arg(source).arg(&point).args(options));
        mount(&server.source(export.path()), &["-o", "rw,nosuid", "-v"]).succeeded();
        assert!(is_mounted(&point));
        run(Command::new("umount").arg(&point)).succeeded();
        let failed = mount(&server.source(Path::new("/no/such/export")), &[]);
        assert_eq!(failed.status.code(), Some(32), "{}", failed.text);
        mount(&server.source(export.path()), &["-f"]).succeeded();
        assert!(!is_mounted(&point), "-f only pretends");
        assert!(mount(&server.source(export.path()), &["-o", "nonsense=1"]).status.code() != Some(0));
        mount(&server.source(export.path()), &["-s", "-o", "nonsense=1"]).succeeded();
        run(aqueduct().arg("umount").arg(&point)).succeeded();
        fs::remove_dir(&point).unwrap();
    });
}

/// How often the threads of a process that has nothing to do may wake in 3 s.
const IDLE_WAKES_MAX: u64 = 100;

/// How often the threads of a process have gone to sleep.
fn sleeps(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .map(|task| {
            let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches:"));
            line.and_then(|line| line.split_whitespace().last()?.parse::<u64>().ok()).unwrap()
        })
        .sum()
}

#[test]
fn an_idle_mount_sleeps() {
    test(|| {
        // What others change in the same file system wakes the server, which watches it.
        let quiet = FileSystem::tmpfs("size=1m");
        let one = One::over(quiet.directory(), "");
        fs::write(one.path("file"), "x").unwrap();
        thread::sleep(Duration::from_millis(500));
        // Clocks of silence look some five times and wake a few threads: 31 times in all at the
        // server, never at the mount (measured). A thread that looks every 5 ms wakes 600 times.
        // Processor time would say less: a slow machine takes four times as much for each.
        let pids = [one.mount.process.pid(), one.server.process.pid()];
        let before = pids.map(sleeps);
        thread::sleep(Duration::from_secs(3));
        let after = pids.map(sleeps);
        let most = before.iter().zip(&after).map(|(before, after)| after - before).max().unwrap();
        assert!(most <= IDLE_WAKES_MAX, "{before:?} {after:?}");
        drop(one);
    });
}

#[test]
fn the_status_tells_of_each_mount() {
    test(|| {
        let one = One::new();
        let status: Value = serde_json::from_str(&run(aqueduct().args(["status", "--json"])).succeeded()).unwrap();
        let mounts = status["mounts"].as_array().unwrap();
        let ours = mounts.iter().find(|mount| mount["target"] == one.mount.path().to_str().unwrap()).unwrap();
        assert_eq!((&ours["state"], ours["leases"]["hits"].is_u64()), (&Value::from("ok"), true), "{ours}");
    });
}
