//! What programs see of a server whose machine dies and is booted again: what was not on its disk is lost there, and they do not notice.
//!
//! The machine is a namespace with a file system of its own on a loop device, for the export and the state folder. Its death: the server is killed, and the
//! file system shut down as by a power failure (EXT4_IOC_SHUTDOWN and its like, without the journal), which throws away all that was not written. Its
//! boot: the file system is mounted again, which recovers its journal, and /proc/sys/kernel/random/boot_id is another. Each test first shows that what was
//! not synced is really gone.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::agent::Agent;
use crate::common::{
    Mount, Process, SOON, Server, aqueduct, directory, have, own_mounts, run, skip, wait_until, within,
};
use crate::sys;

const TEST_MAX: Duration = Duration::from_secs(150);

/// The smallest that mkfs.xfs makes.
const IMAGE_SIZE: u64 = 320 << 20;

/// A machine with a server.
struct Machine {
    kind: &'static str,
    /// Keeps the namespace.
    keeper: Process,
    device: String,
    /// Where the file system is mounted, in the namespace.
    disk: PathBuf,
    boot: PathBuf,
    boots: u32,
    /// Of the configuration: the export, and the limits.
    lines: &'static str,
    server: Option<Server>,
    _home: TempDir,
}

impl Machine {
    /// Nothing when this machine has no loop devices, or not what the file system takes.
    fn new(kind: &'static str, lines: &'static str) -> Option<Machine> {
        let mkfs = format!("mkfs.{kind}");
        if !have(&["nsenter", "losetup", &mkfs]) {
            return None;
        }
        let mut keeper = own_mounts()?;
        let home = directory();
        let (image, disk, boot) = (home.path().join("image"), home.path().join("disk"), home.path().join("boot"));
        File::create(&image).unwrap().set_len(IMAGE_SIZE).unwrap();
        fs::create_dir(&disk).unwrap();
        run(Command::new(&mkfs).arg("-q").arg(&image)).succeeded();
        let attached = run(Command::new("losetup").args(["-f", "--show"]).arg(&image));
        if !attached.status.success() {
            skip(&format!("there are no loop devices: {}", attached.text));
            return None;
        }
        keeper.args(["sleep", "infinity"]).stdin(Stdio::null());
        let keeper = Process::start(&mut keeper, &home.path().join("log"));
        let own = fs::read_link("/proc/self/ns/mnt").unwrap();
        wait_until("the namespace is there", SOON, || {
            fs::read_link(format!("/proc/{}/ns/mnt", keeper.pid())).is_ok_and(|namespace| namespace != own)
        });
        let device = attached.text.trim().to_owned();
        let mut machine = Machine { kind, keeper, device, disk, boot, boots: 0, lines, server: None, _home: home };
        machine.write_boot();
        let boot_id = "/proc/sys/kernel/random/boot_id";
        run(machine.inside("mount").arg("--bind").arg(&machine.boot).arg(boot_id)).succeeded();
        machine.mount_disk();
        fs::create_dir(machine.file("export")).unwrap();
        fs::create_dir(machine.file("state")).unwrap();
        // The state folder of the server lies on the disk too.
        let home = directory();
        std::os::unix::fs::symlink(machine.disk.join("state"), home.path().join("state")).unwrap();
        machine.start(home, "127.0.0.1:0");
        Some(machine)
    }

    fn inside(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.pid())).arg(program);
        command
    }

    /// A file of the machine's disk, as it is seen from here.
    fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        let disk = self.disk.strip_prefix("/").unwrap();
        Path::new(&format!("/proc/{}/root", self.keeper.pid())).join(disk).join(name)
    }

    fn export(&self) -> PathBuf {
        self.disk.join("export")
    }

    fn write_boot(&mut self) {
        self.boots += 1;
        fs::write(&self.boot, format!("00000000-0000-0000-0000-{:012}\n", self.boots)).unwrap();
    }

    fn mount_disk(&self) {
        run(self.inside("mount").args(["-t", self.kind, &self.device]).arg(&self.disk)).succeeded();
    }

    fn start(&mut self, home: TempDir, address: &str) {
        let config = home.path().join("config");
        let text = format!("[[export]]\npath = '{}'\nname = 'data'\n{}\n", self.export().display(), self.lines);
        fs::write(&config, text).unwrap();
        let arguments = ["--listen", address, "--config", config.to_str().unwrap()];
        self.server = Some(Server::start_at(home, &mut self.inside(aqueduct().get_program()), &arguments, &[]));
    }

    fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    fn mount(&self) -> Mount {
        self.mount_with("")
    }

    fn mount_with(&self, options: &str) -> Mount {
        let source = format!("{}:data", self.server().address);
        Mount::start(&mut aqueduct(), &[&source], options)
    }

    /// Dies, as in a power failure, and is booted again.
    fn reboot(&mut self) {
        let (address, home) = self.server.take().unwrap().kill();
        // Written when nobody syncs anything any more, which would take its name along.
        let unsynced = self.file("unsynced");
        fs::write(&unsynced, "not on the disk").unwrap();
        sys::shut_down(File::open(self.file("")).unwrap().as_fd()).unwrap();
        wait_until("nobody uses the disk", SOON, || run(self.inside("umount").arg(&self.disk)).status.success());
        // What was mounted is gone for good, so that it is not what is mounted next.
        let in_use = Path::new("/sys/fs").join(self.kind).join(self.device.trim_start_matches("/dev/"));
        wait_until("the file system has ended", SOON, || !in_use.exists());
        self.write_boot();
        self.mount_disk();
        assert!(!unsynced.exists(), "what was not synced survives: this shows nothing");
        self.start(home, &address);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.server.take());
        let _ = self.inside("umount").args([&self.disk]).output();
        self.keeper.signal(Signal::KILL);
        let _ = Command::new("losetup").args(["-d", &self.device]).output();
    }
}

/// On each kind of file system that can be had here.
fn on_disks(lines: &'static str, body: impl Fn(Machine) + Send + Clone + 'static) {
    for kind in ["ext4", "xfs"] {
        let body = body.clone();
        within(TEST_MAX, move || {
            if let Some(machine) = Machine::new(kind, lines) {
                body(machine);
            }
        });
    }
}

fn await_end(agent: &Agent, what: &str) -> u64 {
    let answer = agent.answer_within(Duration::from_secs(90)).unwrap_or_else(|| panic!("{what} does not end"));
    answer.unwrap_or_else(|errno| panic!("{what} met the error {errno}")).parse().unwrap()
}

#[test]
fn programs_notice_nothing_of_a_reboot() {
    on_disks("", |mut machine| {
        let mount = machine.mount();
        let (churned, scribbled) = (mount.join("churned"), mount.join("scribbled"));
        [&churned, &scribbled].iter().for_each(|path| fs::create_dir(path).unwrap());
        let mut agents = [Agent::start(), Agent::start()];
        agents[0].tell(&format!("churn {} 6000", churned.display()));
        agents[1].tell(&format!("scribble {} 6000", scribbled.display()));
        for pause in [400, 900, 200, 600] {
            thread::sleep(Duration::from_millis(pause));
            machine.reboot();
        }
        assert!(await_end(&agents[0], "the program that changes names") > 3);
        assert!(await_end(&agents[1], "the program that writes") > 50);
        assert!(mount.process.output().contains("it was sent again"), "nothing was lost: this shows nothing");
        drop((agents, mount, machine));
    });
}

/// One change at a time, as the next one that comes to the disk takes those before it along.
#[test]
fn what_was_answered_is_on_the_disk() {
    type Step = (fn(&Path), fn(&Path) -> bool);
    let steps: [Step; 9] = [
        (|mount| fs::create_dir(mount.join("folder")).unwrap(), |disk| disk.join("folder").is_dir()),
        (|mount| drop(File::create(mount.join("file")).unwrap()), |disk| disk.join("file").exists()),
        (
            |mount| fs::rename(mount.join("file"), mount.join("folder/moved")).unwrap(),
            |disk| disk.join("folder/moved").exists() && !disk.join("file").exists(),
        ),
        (
            |mount| fs::hard_link(mount.join("folder/moved"), mount.join("link")).unwrap(),
            |disk| fs::metadata(disk.join("link")).is_ok_and(|stat| stat.nlink() == 2),
        ),
        (
            |mount| fs::set_permissions(mount.join("link"), Permissions::from_mode(0o640)).unwrap(),
            |disk| fs::metadata(disk.join("link")).unwrap().mode() & 0o7777 == 0o640,
        ),
        (
            |mount| OpenOptions::new().write(true).open(mount.join("link")).unwrap().set_len(77).unwrap(),
            |disk| fs::metadata(disk.join("link")).unwrap().len() == 77,
        ),
        (
            |mount| std::os::unix::fs::symlink("text", mount.join("symlink")).unwrap(),
            |disk| fs::read_link(disk.join("symlink")).is_ok(),
        ),
        (|mount| fs::remove_file(mount.join("symlink")).unwrap(), |disk| fs::read_link(disk.join("symlink")).is_err()),
        (
            |mount| {
                let mut file = File::create(mount.join("synced")).unwrap();
                file.write_all(b"synced").unwrap();
                file.sync_data().unwrap();
            },
            |disk| fs::read(disk.join("synced")).unwrap() == b"synced",
        ),
    ];
    // Nobody waits long for those who are killed.
    on_disks("[limits]\nrecovery_grace_seconds = 0.3", move |mut machine| {
        for (number, (change, is_there)) in steps.iter().enumerate() {
            // Nobody is left who could send anything again.
            let mount = machine.mount();
            change(mount.path());
            mount.process.signal(Signal::KILL);
            machine.reboot();
            assert!(is_there(&machine.file("export")), "step {number} on {}", machine.kind);
            drop(mount);
        }
        drop(machine);
    });
}

#[test]
fn locks_and_descriptors_are_kept_over_a_reboot() {
    on_disks("", |mut machine| {
        let (left, right) = (machine.mount(), machine.mount());
        let (mut holder, mut other) = (Agent::start(), Agent::start());
        holder.ask(&format!("open 0 {} rwc", left.join("file").display())).unwrap();
        holder.ask(&format!("open 1 {} rwc", left.join("nameless").display())).unwrap();
        other.ask(&format!("open 0 {} rwc", right.join("file").display())).unwrap();
        holder.ask("process 0 W 0 10").unwrap();
        holder.ask("writeat 0 0 unsynced").unwrap();
        holder.ask("writeat 1 0 gone-but-open").unwrap();
        fs::remove_file(left.join("nameless")).unwrap();
        machine.reboot();
        assert_eq!(other.ask("process 0 W 0 10"), Err(libc::EAGAIN), "nobody can take it meanwhile");
        assert_eq!(other.ask("read 0 100"), Ok("unsynced".into()), "nobody sees what was before");
        assert_eq!(holder.ask("readat 1 0 100"), Ok("13".into()));
        holder.ask("process 0 U 0 10").unwrap();
        other.ask("process 0 W 0 10").unwrap();
        drop((holder, other, left, right, machine));
    });
}

#[test]
fn what_is_kept_is_bounded_and_nothing_is_lost_for_it() {
    on_disks("", |mut machine| {
        let mount = machine.mount_with("replay_window=4M");
        let data: Vec<u8> = (0..24 << 20).map(|at: usize| (at / 1000) as u8).collect();
        let mut large = File::create(mount.join("large")).unwrap();
        let mut most = 0;
        for (number, part) in data.chunks(300_000).enumerate() {
            large.write_all(part).unwrap();
            fs::write(mount.join(format!("small{number}")), &part[..1000]).unwrap();
            if number % 8 == 0 {
                most = most.max(mount.status()["replay_bytes"].as_u64().unwrap());
            }
        }
        // What is under way when it becomes full comes on top.
        assert!((1..6 << 20).contains(&most), "{most} bytes were kept");
        drop(large); // whoever starts a server has nothing open on the mount
        machine.reboot();
        assert!(fs::read(mount.join("large")).unwrap() == data);
        for (number, part) in data.chunks(300_000).enumerate() {
            assert!(fs::read(mount.join(format!("small{number}"))).unwrap() == part[..1000], "small{number}");
        }
        drop((mount, machine));
    });
}

/// Without `sync` sessions do not outlive the machine. What was written to files that are still there does.
#[test]
fn without_sync_data_are_sent_again_all_the_same() {
    on_disks("sync = false", |mut machine| {
        let mount = machine.mount_with("write_through"); // which is what is kept
        let mut agent = Agent::start();
        for (slot, name) in ["file", "closed", "locked"].iter().enumerate() {
            agent.ask(&format!("open {slot} {} rwc", mount.join(name).display())).unwrap();
            agent.ask(&format!("sync {slot}")).unwrap();
        }
        agent.ask("writeat 0 0 unsynced").unwrap();
        agent.ask("writeat 1 0 closed").unwrap();
        agent.ask("close 1").unwrap();
        agent.ask("process 2 W 0 0").unwrap();
        agent.ask("writeat 2 0 locked").unwrap();
        fs::write(mount.join("new"), "its name is not on the disk").unwrap();
        machine.reboot();
        assert_eq!(agent.ask("writeat 0 8 ,more"), Ok("5".into()));
        assert_eq!(fs::read_to_string(mount.join("file")).unwrap(), "unsynced,more");
        assert_eq!(fs::read_to_string(mount.join("closed")).unwrap(), "closed");
        assert_eq!(agent.ask("writeat 2 0 late"), Err(libc::EIO), "somebody else may have had the lock meanwhile");
        assert!(!mount.join("new").exists(), "what is not promised is not expected");
        drop((agent, mount, machine));
    });
}
