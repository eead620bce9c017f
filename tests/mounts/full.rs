//! Stores of plain directories that are full, or nearly so.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::agent::Agent;
use crate::common::{SOON, Server, aqueduct, directory, run, skip, test, wait_until, within};
use crate::plain::{LONG, Plain, STRIPED, WHOLE, content};

/// A file system of so many MiB over a directory, until it is dropped.
struct Small(PathBuf);

impl Small {
    fn over(directory: &Path, size: usize) -> Option<Small> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &format!("size={size}m"), "tmpfs"]).arg(directory);
        command.status().is_ok_and(|status| status.success()).then(|| Small(directory.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A volume of which server 1 has a small file system.
fn volume(lines: &str, count: usize, size: usize) -> Option<(Plain, Small)> {
    let mut small = None;
    let volume = Plain::over(lines, count, |number, directory| {
        if number == 1 {
            small = Small::over(directory, size);
        }
    });
    if small.is_none() {
        skip("needs to mount a tmpfs");
    }
    Some((volume, small?))
}

fn free(path: &Path) -> u64 {
    let space = rustix::fs::statvfs(path).unwrap();
    space.f_bavail * space.f_frsize
}

#[test]
fn new_files_avoid_a_server_that_is_nearly_full() {
    within(LONG, || {
        let Some((volume, _small)) = volume(WHOLE, 3, 40) else { return };
        let mount = volume.mount("cache=none");
        let filler = volume.dir(1).join("filler");
        fs::write(&filler, vec![1; 39 << 20]).unwrap();
        let fill = |name: &str| {
            free(mount.path()); // asks all stores
            let before = volume.objects(1);
            for number in 0..24 {
                fs::write(mount.join(format!("{name}-{number}")), content(number, 20_000)).unwrap();
            }
            volume.objects(1) - before
        };
        assert_eq!(fill("one"), 0);
        let show =
            || run(aqueduct().args(["volume", "show"]).arg(format!("spread@{}", volume.addresses[0]))).succeeded();
        let told = show();
        assert!(told.contains(&format!("the fullest is {}: new files avoid it", volume.addresses[1])), "{told}");
        fs::remove_file(&filler).unwrap();
        assert!(fill("other") > 0);
        assert!(!show().contains("avoid"), "{}", show());
        for (name, number) in (0..24).flat_map(|number| [("one", number), ("other", number)]) {
            assert!(fs::read(mount.join(format!("{name}-{number}"))).unwrap() == content(number, 20_000));
        }
    });
}

#[test]
fn a_striped_file_that_finds_no_room_is_as_long_as_what_was_written() {
    within(LONG, || {
        let Some((volume, _small)) = volume(STRIPED, 2, 8) else { return };
        let (mount, other) = (volume.mount("cache=none"), volume.mount(""));
        fs::write(mount.join("kept"), content(3, 500_000)).unwrap();
        let before = free(&volume.dir(1));
        for length in [1 << 20, 300_000, 70_001] {
            let path = mount.join("file");
            let open = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path);
            let (file, mut written) = (open.unwrap(), 0u64);
            let mut expected = Vec::new();
            let error = loop {
                let data = content(written as usize, length);
                match file.write_at(&data, written) {
                    Ok(count) => {
                        written += count as u64;
                        expected.extend(&data[..count]);
                        assert!(written < 64 << 20, "it never ends");
                    }
                    Err(error) => break error,
                }
            };
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
            assert!(written > 8 << 20, "{written}: the other server has room");
            assert_eq!(file.metadata().unwrap().len(), written);
            assert!(fs::read(&path).unwrap() == expected && fs::read(other.join("file")).unwrap() == expected);
            // What is there may be written over, and a write beyond leaves zeros, never old bytes.
            file.write_all_at(&content(77, 200_000), 100_000).unwrap();
            expected[100_000..300_000].copy_from_slice(&content(77, 200_000));
            file.set_len(written - 150_000).unwrap();
            expected.truncate(expected.len() - 150_000);
            file.set_len(written).unwrap();
            expected.resize(written as usize, 0);
            assert!(fs::read(other.join("file")).unwrap() == expected, "{length}");
            let allocated = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 64 << 20);
            assert_eq!(allocated, Err(rustix::io::Errno::NOSPC));
            assert_eq!(file.metadata().unwrap().len(), written);
            drop(file);
            fs::remove_file(&path).unwrap();
            wait_until("room is there again", Duration::from_secs(20), || free(&volume.dir(1)) >= before);
        }
        assert!(fs::read(other.join("kept")).unwrap() == content(3, 500_000));
        File::create(mount.join("new")).unwrap().write_all_at(&content(5, 2 << 20), 0).unwrap();
        assert!(fs::read(other.join("new")).unwrap() == content(5, 2 << 20));
    });
}

#[test]
fn a_write_over_several_stores_ends_where_there_is_no_room() {
    within(LONG, || {
        const MIB: usize = 1 << 20;
        let Some((volume, _small)) = volume("mode = 'striped'\nstripe_size = '256KiB'", 3, 8) else { return };
        let mount = volume.mount("");
        let path = mount.join("file");
        let file = OpenOptions::new().create_new(true).write(true).custom_flags(libc::O_SYNC).open(&path).unwrap();
        // It has objects everywhere, and is known to.
        for at in 0..3 {
            file.write_all_at(&content(at, MIB), (at * MIB) as u64).unwrap();
        }
        let mut filler = File::create(volume.dir(1).join("filler")).unwrap();
        while filler.write(&[1; 4096]).is_ok() {}
        let done = file.write_at(&content(3, MIB), 3 * MIB as u64);
        let count = done.as_ref().copied().unwrap_or(0);
        assert!(count < MIB, "one of its parts has no room: {done:?}");
        let length = fs::metadata(&path).unwrap().len();
        assert_eq!(length, (3 * MIB + count) as u64, "{done:?}: nothing behind it was written");
        let read = fs::read(&path).unwrap();
        assert!((0..3).all(|at| read[at * MIB..][..MIB] == content(at, MIB)));
        assert!(read[3 * MIB..] == content(3, MIB)[..count]);
    });
}

/// A server whose state folder is a file system of 1 MiB.
struct Cramped {
    server: Server,
    state: TempDir,
    export: TempDir,
    _small: Small,
}

impl Cramped {
    fn start() -> Option<Cramped> {
        let (home, state, export) = (directory(), directory(), directory());
        let Some(small) = Small::over(state.path(), 1) else {
            skip("needs to mount a tmpfs");
            return None;
        };
        std::os::unix::fs::symlink(state.path(), home.path().join("state")).unwrap();
        let server = Server::start_at(home, &mut aqueduct(), &["--listen", "127.0.0.1:0"], &[export.path()]);
        Some(Cramped { server, state, export, _small: small })
    }

    /// Leaves no room in the state folder. What takes it.
    fn fill(&self) -> PathBuf {
        let path = self.state.path().join("filler");
        let mut filler = File::create(&path).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
        path
    }

    fn restart(self) -> Cramped {
        let server = self.server.restart(&[self.export.path()]);
        Cramped { server, ..self }
    }
}

/// What it knows of its sessions is there already, and takes no more room.
#[test]
fn a_server_that_died_comes_back_though_its_state_folder_is_full() {
    test(|| {
        let Some(cramped) = Cramped::start() else { return };
        let mount = cramped.server.mount(cramped.export.path());
        let file = mount.path().join("file");
        fs::write(&file, "before, ").unwrap();
        cramped.fill();
        let cramped = cramped.restart();
        OpenOptions::new().append(true).open(&file).unwrap().write_all(b"and after").unwrap();
        assert_eq!(fs::read(cramped.export.path().join("file")).unwrap(), b"before, and after");
        drop((mount, cramped));
    });
}

/// Who could not be written down because there was no room is written down again when there is,
/// and has over the next restart what it has by then.
#[test]
fn a_session_that_found_no_room_is_written_down_again() {
    test(|| {
        let Some(cramped) = Cramped::start() else { return };
        let mount = cramped.server.mount_with(cramped.export.path(), "cache=none");
        let file = mount.path().join("file");
        fs::write(&file, "old").unwrap();
        let filler = cramped.fill();
        // Requests side by side use slots that nothing was written down of so far.
        wait_until("there is no room for what it does", SOON, || {
            std::thread::scope(|scope| {
                for number in 0..16 {
                    let path = mount.path().join(format!("file-{number}"));
                    scope.spawn(move || fs::write(path, "new").unwrap());
                }
            });
            cramped.server.process.output().contains("will not survive a restart")
        });
        let mut agent = Agent::start();
        agent.ask(&format!("open 0 {} rw", file.display())).unwrap();
        agent.ask("flock 0 W").unwrap();
        fs::remove_file(&filler).unwrap();
        wait_until("it is written down again", SOON, || {
            cramped.server.process.output().contains("a session is written down again")
        });
        agent.ask("writeat 0 0 one").unwrap();
        let cramped = cramped.restart();
        agent.ask("writeat 0 3 two").unwrap();
        let other = cramped.server.mount(cramped.export.path());
        let taken = rustix::fs::flock(
            File::open(other.path().join("file")).unwrap(),
            rustix::fs::FlockOperation::NonBlockingLockExclusive,
        );
        assert_eq!(taken, Err(rustix::io::Errno::AGAIN), "the lock is held over the restart");
        assert_eq!(fs::read(cramped.export.path().join("file")).unwrap(), b"onetwo");
        drop((other, mount));
    });
}
