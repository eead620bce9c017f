//! Volumes of servers that share nothing: whole-file and striped, over plain directories.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::{
    Mount, Output, Process, SOON, aqueduct, directory, errno, free_addresses, have, run, run_within, test, wait_until,
    within,
};
use crate::model::assert_alike;

/// What a whole test may take on a machine that does other things as well.
pub(crate) const LONG: Duration = Duration::from_secs(180);

/// A volume of directories of this machine, which its servers treat as those of several. The first
/// server has the names.
pub(crate) struct Plain {
    servers: Vec<Option<Process>>,
    pub(crate) addresses: Vec<String>,
    pub(crate) file: PathBuf,
    home: TempDir,
}

impl Plain {
    pub(crate) fn new(lines: &str, count: usize) -> Plain {
        Plain::with_names(lines, count, true)
    }

    /// The server of the names has objects or not.
    pub(crate) fn with_names(lines: &str, count: usize, holds_data: bool) -> Plain {
        Plain::prepared(lines, (count, holds_data), |_, _| {})
    }

    /// Something is done to each directory before it is one of the volume.
    pub(crate) fn over(lines: &str, count: usize, prepare: impl FnMut(usize, &Path)) -> Plain {
        Plain::prepared(lines, (count, true), prepare)
    }

    pub(crate) fn prepared(
        lines: &str,
        (count, holds_data): (usize, bool),
        mut prepare: impl FnMut(usize, &Path),
    ) -> Plain {
        let home = directory();
        let addresses = free_addresses(count);
        let file = home.path().join("volume.toml");
        let server = |(number, address): (usize, &String)| {
            let dir = home.path().join(format!("dir-{number}"));
            fs::create_dir(&dir).unwrap();
            prepare(number, &dir);
            let rest = if number > 0 || holds_data { "" } else { "data = false\n" };
            format!("[[server]]\nid = 's{number}'\nlisten = ['{address}']\ndir = '{}'\n{rest}", dir.display())
        };
        let servers: String = addresses.iter().enumerate().map(server).collect();
        fs::write(&file, format!("name = 'spread'\n{lines}\n{servers}")).unwrap();
        run(aqueduct().args(["volume", "create"]).arg(&file)).succeeded();
        for number in usize::from(!holds_data)..count {
            let id = format!("s{number}");
            run(aqueduct().args(["volume", "init", "--server", &id]).arg(&file)).succeeded();
        }
        let servers = (0..count).map(|_| None).collect();
        let mut volume = Plain { servers, addresses, file, home };
        (0..count).rev().for_each(|number| volume.start_server(number));
        volume
    }

    pub(crate) fn dir(&self, number: usize) -> PathBuf {
        self.home.path().join(format!("dir-{number}"))
    }

    pub(crate) fn log(&self, number: usize) -> PathBuf {
        self.home.path().join(format!("server-{number}.log"))
    }

    pub(crate) fn start_server(&mut self, number: usize) {
        self.start_server_by(number, aqueduct());
    }

    /// The same by a command that the arguments follow.
    pub(crate) fn start_server_by(&mut self, number: usize, mut command: Command) {
        let state = self.home.path().join(format!("state-{number}"));
        command.args(["serve", "--server", &format!("s{number}"), "--volume"]).arg(&self.file);
        command.arg("--state").arg(state);
        let mut process = Process::start(&mut command, &self.log(number));
        wait_until("a server listens", SOON, || {
            assert!(process.has_ended().is_none(), "{}", process.output());
            process.output().contains("listening on ")
        });
        self.servers[number] = Some(process);
    }

    pub(crate) fn kill(&mut self, number: usize) {
        let mut process = self.servers[number].take().unwrap();
        process.signal(Signal::KILL);
        process.ends_within(SOON);
    }

    fn signal(&self, number: usize, signal: Signal) {
        self.servers[number].as_ref().unwrap().signal(signal);
    }

    pub(crate) fn mount(&self, options: &str) -> Mount {
        let source = format!("spread@{}:/", self.addresses[0]);
        Mount::start(&mut aqueduct(), &[&source], options)
    }

    /// How many objects a server has.
    pub(crate) fn objects(&self, number: usize) -> usize {
        let dir = self.dir(number);
        let store = if number == 0 { dir.join(".aqueduct-volume/store") } else { dir };
        let folders = fs::read_dir(store.join("objects")).unwrap();
        folders.map(|folder| fs::read_dir(folder.unwrap().path()).unwrap().count()).sum()
    }

    fn all_objects(&self) -> usize {
        (0..self.addresses.len()).map(|number| self.objects(number)).sum()
    }
}

pub(crate) const STRIPED: &str = "mode = 'striped'\nstripe_size = '64KiB'\ninline_max = '16KiB'";
pub(crate) const WHOLE: &str = "mode = 'whole-file'\ninline_max = '16KiB'";

pub(crate) fn content(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 7 + at / 65_537 + seed * 31) as u8).collect()
}

#[test]
fn files_are_spread_over_directories_that_share_nothing() {
    within(LONG, || {
        for (lines, parts) in [(STRIPED, 3), (WHOLE, 1)] {
            let volume = Plain::new(lines, 3);
            let (left, right) = (volume.mount(""), volume.mount("cache=none"));
            for number in 0..8 {
                fs::write(left.join(format!("file-{number}")), content(number, 700_000)).unwrap();
                fs::write(left.join(format!("small-{number}")), content(number, 9_000)).unwrap();
            }
            for number in 0..8 {
                assert!(fs::read(right.join(format!("file-{number}"))).unwrap() == content(number, 700_000));
                assert!(fs::read(right.join(format!("small-{number}"))).unwrap() == content(number, 9_000));
                assert!(fs::read(volume.dir(0).join(format!("small-{number}"))).unwrap() == content(number, 9_000));
                let metadata = right.join(format!("file-{number}")).metadata().unwrap();
                assert_eq!(metadata.len(), 700_000);
                assert!((1368..1600).contains(&metadata.blocks()), "{}", metadata.blocks());
            }
            assert_eq!(volume.all_objects(), 8 * parts, "{lines}");
            let names: Vec<_> = fs::read_dir(left.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names.len(), 16, "and nothing of ours: {names:?}");
            let told = run(aqueduct().args(["volume", "show"]).arg(format!("spread@{}", volume.addresses[0])));
            let told = told.succeeded();
            assert!(told.contains(if parts == 3 { "mode striped" } else { "mode whole-file" }), "{told}");
            for number in 0..8 {
                fs::remove_file(right.join(format!("file-{number}"))).unwrap();
            }
            wait_until("objects of removed files are gone", SOON, || volume.all_objects() == 0);
        }
    });
}

#[test]
fn a_volume_of_plain_directories_behaves_as_a_local_directory() {
    within(LONG, || {
        for (lines, count, first) in [
            ("mode = 'striped'\nstripe_size = '64KiB'\ninline_max = '2KiB'", 3, 70_000),
            ("mode = 'whole-file'\ninline_max = '2KiB'", 2, 71_000),
            ("mode = 'striped'\nstripe_size = '64KiB'\ninline_max = '2KiB'", 1, 72_000),
        ] {
            let volume = Plain::new(lines, count);
            let (left, right) = (volume.mount("strict_unlock"), volume.mount("strict_unlock"));
            let reference = directory();
            assert_alike(reference.path(), &[&left, &right], first, Duration::from_secs(8));
        }
    });
}

#[test]
fn git_and_sqlite_work_on_plain_directories() {
    within(LONG, || {
        if !have(&["git", "sqlite3"]) {
            return;
        }
        let volume = Plain::new(STRIPED, 2);
        let mount = volume.mount("");
        let script = "git init -q -b main repo; cd repo; git config user.name t; git config user.email t@example.org
            for i in $(seq 12); do seq $((i * 4000)) > f$i; git add .; git commit -qm $i; done
            git gc -q --aggressive --prune=now 2>&1; git fsck --full --strict 2>&1; git checkout -q HEAD~5; git checkout -q main
            test $(git log --oneline | wc -l) = 12; test -z \"$(git status --porcelain)\"; cd ..
            sqlite3 db 'create table t(a integer primary key, b text)'
            for i in $(seq 20); do sqlite3 db \"with recursive n(i) as (select 1 union all select i+1 from n where i<300) insert into t(b) select hex(randomblob(40)) from n\"; done
            sqlite3 db 'pragma integrity_check; select count(*) from t' | tr '\\n' ' '";
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", script]).current_dir(mount.path()).env("HOME", mount.path());
        let told = run_within(Duration::from_secs(120), &mut command).succeeded();
        assert!(told.ends_with("ok 6000 "), "{told}");
        assert!(volume.all_objects() > 0);
    });
}

/// Writes numbered blocks and makes them stable, until it is told to end; verifies what was
/// acknowledged.
fn write_blocks(path: &Path, ends: &AtomicBool) -> usize {
    let file = OpenOptions::new().create(true).read(true).append(true).open(path).unwrap();
    let mut count = 0;
    while !ends.load(Ordering::SeqCst) {
        (&file).write_all(&content(count, 30_000)).unwrap();
        if count % 4 == 3 {
            file.sync_all().unwrap();
        }
        count += 1;
    }
    file.sync_all().unwrap();
    count
}

#[test]
fn a_server_that_is_killed_under_load_loses_nothing() {
    within(LONG, || {
        let mut volume = Plain::new(STRIPED, 3);
        let (left, right) = (volume.mount(""), volume.mount(""));
        let ends = AtomicBool::new(false);
        let counts = std::thread::scope(|scope| {
            let write = |mount: &Mount, number: usize| {
                let path = mount.join(format!("file-{number}"));
                let ends = &ends;
                scope.spawn(move || write_blocks(&path, ends))
            };
            let writers = [write(&left, 0), write(&left, 1), write(&right, 2)];
            for killed in [1, 0, 2, 0, 1] {
                std::thread::sleep(Duration::from_millis(700));
                volume.kill(killed);
                std::thread::sleep(Duration::from_millis(300));
                volume.start_server(killed);
            }
            std::thread::sleep(Duration::from_millis(700));
            ends.store(true, Ordering::SeqCst);
            writers.map(|writer| writer.join().unwrap())
        });
        for (number, count) in counts.into_iter().enumerate() {
            assert!(count > 0);
            for mount in [&left, &right] {
                let data = fs::read(mount.join(format!("file-{number}"))).unwrap();
                assert_eq!(data.len(), count * 30_000, "file {number}");
                for (block, data) in data.chunks(30_000).enumerate() {
                    assert!(data == content(block, 30_000), "block {block} of file {number}");
                }
            }
            fs::remove_file(left.join(format!("file-{number}"))).unwrap();
        }
        wait_until("objects of removed files are gone", Duration::from_secs(60), || volume.all_objects() == 0);
    });
}

#[test]
fn a_dead_server_of_data_holds_up_only_what_lies_on_it() {
    within(LONG, || {
        let mut volume = Plain::new(WHOLE, 3);
        let mount = volume.mount("cache=none");
        let mut of_server = vec![Vec::new(), Vec::new(), Vec::new()];
        for number in 0..24 {
            let before: Vec<usize> = (0..3).map(|server| volume.objects(server)).collect();
            fs::write(mount.join(format!("file-{number}")), content(number, 100_000)).unwrap();
            let place = (0..3).find(|server| volume.objects(*server) > before[*server]).unwrap();
            of_server[place].push(number);
        }
        assert!(of_server.iter().all(|files| !files.is_empty()), "{of_server:?}");
        volume.kill(2);
        let waits = of_server[2][0];
        let path = mount.join(format!("file-{waits}"));
        let waiting = std::thread::spawn(move || fs::read(path).unwrap());
        for number in of_server[0].iter().chain(&of_server[1]) {
            assert!(fs::read(mount.join(format!("file-{number}"))).unwrap() == content(*number, 100_000));
            fs::write(mount.join(format!("file-{number}")), content(*number, 5_000)).unwrap();
        }
        fs::write(mount.join("small"), b"text").unwrap();
        fs::read_dir(mount.path()).unwrap().for_each(|entry| _ = entry.unwrap().metadata().unwrap());
        assert!(!waiting.is_finished(), "what lies on the dead one waits");
        volume.start_server(2);
        assert!(waiting.join().unwrap() == content(waits, 100_000));
    });
}

/// What each of many files takes that are written to is not waited for again and again.
#[test]
fn a_listing_waits_once_for_a_server_of_data() {
    within(LONG, || {
        const FILES: usize = 12;
        let volume = Plain::with_names(WHOLE, 2, false);
        let mount = volume.mount("cache=none");
        let open = |number: usize| {
            let mut file = File::create(mount.join(format!("file-{number}"))).unwrap();
            file.write_all(&content(number, 100_000)).unwrap();
            file
        };
        let files: Vec<File> = (0..FILES).map(open).collect();
        volume.signal(1, Signal::STOP);
        let began = std::time::Instant::now();
        for number in 0..FILES {
            let metadata = fs::metadata(mount.join(format!("file-{number}"))).unwrap();
            assert_eq!((metadata.len(), metadata.blocks() >= 196), (100_000, true));
        }
        assert!(began.elapsed() < Duration::from_secs(FILES as u64 / 2), "{:?}", began.elapsed());
        volume.signal(1, Signal::CONT);
        drop(files);
    });
}

/// A server of data that stands still holds up who reads and cuts what lies there, and nobody who
/// asks for the names and attributes of such files.
#[test]
fn names_wait_for_no_server_of_data() {
    within(LONG, || {
        let volume = Plain::with_names(WHOLE, 2, false);
        // A kernel has an inode to itself while it cuts it.
        let (mount, other) = (volume.mount("cache=none"), volume.mount("cache=none"));
        for name in ["read", "replaced", "removed"] {
            fs::write(mount.join(name), content(1, 100_000)).unwrap();
        }
        wait_until("all is closed", SOON, || volume.objects(1) == 3);
        volume.signal(1, Signal::STOP);
        let paths = ["read", "replaced", "removed"].map(|name| mount.join(name));
        let reading = paths.clone().map(|path| std::thread::spawn(move || fs::read(path).map(|data| data.len())));
        std::thread::sleep(Duration::from_millis(500));
        let cut = OpenOptions::new().write(true).open(&paths[0]).unwrap();
        let cutting = std::thread::spawn(move || cut.set_len(50_000));
        std::thread::sleep(Duration::from_millis(500));
        let moved = other.join("moved");
        let [read, replaced, removed] = ["read", "replaced", "removed"].map(|name| other.join(name));
        let asking = std::thread::spawn(move || {
            File::open(&read).unwrap();
            fs::set_permissions(&read, fs::Permissions::from_mode(0o600)).unwrap();
            fs::write(&moved, b"short").unwrap();
            fs::rename(&moved, &replaced).unwrap();
            fs::rename(&read, &moved).unwrap();
            fs::remove_file(&removed).unwrap();
            assert_eq!(moved.metadata().unwrap().mode() & 0o777, 0o600);
        });
        wait_until("names have changed", SOON, || asking.is_finished());
        asking.join().unwrap();
        assert!(!cutting.is_finished() && reading.iter().any(|reading| !reading.is_finished()));
        volume.signal(1, Signal::CONT);
        let lengths = reading.map(|reading| reading.join().unwrap().unwrap());
        assert!(lengths.iter().all(|length| [50_000, 100_000].contains(length)), "{lengths:?}");
        cutting.join().unwrap().unwrap();
        assert_eq!(fs::read(mount.join("moved")).unwrap(), content(1, 50_000));
        assert_eq!(fs::read(mount.join("replaced")).unwrap(), b"short");
        wait_until("objects of what was removed are gone", SOON, || volume.objects(1) == 1);
    });
}

/// Who opens a large file that is being replaced reads the one or the other.
#[test]
fn large_files_are_replaced_while_they_are_opened() {
    within(LONG, || {
        let volume = Plain::with_names(WHOLE, 2, false);
        let (writer, readers) = (volume.mount(""), [volume.mount(""), volume.mount("cache=none")]);
        let replace = |round| {
            fs::write(writer.join("new"), content(round, 100_000)).unwrap();
            fs::rename(writer.join("new"), writer.join("hot")).unwrap();
        };
        replace(0);
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let read = |mount: &Mount| {
                let (path, ends) = (mount.join("hot"), &ends);
                scope.spawn(move || {
                    while !ends.load(Ordering::SeqCst) {
                        let data = fs::read(&path).unwrap();
                        let of_seed = |byte: u8, at: usize| byte.wrapping_sub((at / 7 + at / 65_537) as u8);
                        assert_eq!(data.len(), 100_000);
                        assert!(data.iter().enumerate().all(|(at, byte)| of_seed(*byte, at) == data[0]), "half of two");
                    }
                })
            };
            let reading: Vec<_> = readers.iter().chain(&readers).map(read).collect();
            for round in 1..150 {
                replace(round);
            }
            ends.store(true, Ordering::SeqCst);
            reading.into_iter().for_each(|reading| reading.join().unwrap());
        });
        wait_until("objects of what was replaced are gone", SOON, || volume.objects(1) == 1);
    });
}

/// Who has a server emptied that then stands still ends that, and the server of the names does what
/// it is told, stops, and starts without it.
#[test]
fn a_drain_that_waits_for_a_silent_server_is_ended() {
    within(LONG, || {
        let mut volume = Plain::with_names(WHOLE, 3, false);
        let mount = volume.mount("");
        for number in 0..8 {
            fs::write(mount.join(format!("file-{number}")), content(number, 3_000_000)).unwrap();
        }
        drop(mount);
        assert!(volume.objects(2) > 0);
        let mut draining = aqueduct();
        draining.args(["volume", "drain", "--bwlimit", "1MB/s"]).arg(&volume.file).arg("s2");
        let mut draining = Process::start(&mut draining, &volume.home.path().join("drain.log"));
        std::thread::sleep(Duration::from_secs(1));
        volume.signal(2, Signal::STOP);
        std::thread::sleep(Duration::from_secs(2));
        draining.signal(Signal::INT);
        draining.ends_within(SOON);
        let told = work(&volume, &["drain", "s1", "--dry-run"]).succeeded();
        assert!(told.contains("files would be copied"), "{told}");
        let mut names = volume.servers[0].take().unwrap();
        names.signal(Signal::TERM);
        names.ends_within(LONG / 2);
        volume.start_server(0);
        volume.signal(2, Signal::CONT);
        work(&volume, &["drain", "s2"]).succeeded();
        assert_eq!(volume.objects(2), 0);
        let mount = volume.mount("");
        for number in 0..8 {
            assert!(fs::read(mount.join(format!("file-{number}"))).unwrap() == content(number, 3_000_000));
        }
    });
}

#[test]
fn a_store_that_is_not_there_gives_an_error_and_one_line_in_the_log() {
    within(LONG, || {
        let mut volume = Plain::new(WHOLE, 2);
        let mount = volume.mount("cache=none");
        for number in 0..16 {
            fs::write(mount.join(format!("file-{number}")), content(number, 100_000)).unwrap();
        }
        assert!(volume.objects(1) > 0);
        // As if the file system of the store were not mounted when the server starts again.
        volume.kill(1);
        fs::rename(volume.dir(1), volume.home.path().join("away")).unwrap();
        fs::create_dir(volume.dir(1)).unwrap();
        volume.start_server(1);
        let mut failed = 0;
        for number in 0..16 {
            let mut data = Vec::new();
            let read =
                File::open(mount.join(format!("file-{number}"))).and_then(|mut file| file.read_to_end(&mut data));
            match read {
                Ok(_) => assert!(data == content(number, 100_000), "file {number} has what it never had"),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO));
                    failed += 1;
                }
            }
        }
        assert!((1..16).contains(&failed), "{failed} files lie there");
        let log = fs::read_to_string(volume.log(0)).unwrap();
        assert_eq!(log.matches("the store of server s1 is not used").count(), 1, "{log}");
        let told = fs::read_to_string(volume.log(1)).unwrap();
        assert!(told.contains("has no marker"), "{told}");
        // Mounted again, all is as it was.
        volume.kill(1);
        fs::remove_dir(volume.dir(1)).unwrap();
        fs::rename(volume.home.path().join("away"), volume.dir(1)).unwrap();
        volume.start_server(1);
        for number in 0..16 {
            assert!(fs::read(mount.join(format!("file-{number}"))).unwrap() == content(number, 100_000));
        }
    });
}

/// Gluster's shard translator, #2680: writers of one file from several clients.
#[test]
fn gluster_2680_writers_at_several_clients_make_one_file() {
    within(LONG, || {
        let volume = Plain::new(STRIPED, 3);
        let mounts: Vec<Mount> = (0..2).map(|_| volume.mount("")).collect();
        std::thread::scope(|scope| {
            for (writer, mount) in mounts.iter().cycle().take(4).enumerate() {
                scope.spawn(move || {
                    let open = OpenOptions::new().create(true).truncate(false).write(true).open(mount.join("file"));
                    let file = open.unwrap();
                    for block in (writer..64).step_by(4) {
                        file.write_all_at(&content(block, 20_000), block as u64 * 20_000).unwrap();
                    }
                });
            }
        });
        for mount in &mounts {
            let data = fs::read(mount.join("file")).unwrap();
            assert_eq!(data.len(), 64 * 20_000);
            assert!(data.chunks(20_000).enumerate().all(|(block, data)| data == content(block, 20_000)));
        }
    });
}

/// Gluster's shard translator, #1022: two truncates to nothing left a file of -512 blocks.
#[test]
fn gluster_1022_two_truncates_leave_nothing() {
    test(|| {
        let volume = Plain::new(STRIPED, 2);
        let mount = volume.mount("");
        let path = mount.join("file");
        fs::write(&path, content(1, 500_000)).unwrap();
        for _ in 0..2 {
            OpenOptions::new().write(true).truncate(true).open(&path).unwrap().sync_all().unwrap();
            let metadata = path.metadata().unwrap();
            assert_eq!(metadata.len(), 0);
            assert!(metadata.blocks() <= 16, "{}", metadata.blocks());
        }
        assert_eq!(fs::read(&path).unwrap(), b"");
    });
}

/// Gluster's shard translator, #2246: who looked at a file while it was written had short reads.
#[test]
fn gluster_2246_a_look_during_writes_shortens_no_read() {
    within(LONG, || {
        let volume = Plain::new(STRIPED, 2);
        let (writer, reader) = (volume.mount(""), volume.mount("cache=none"));
        let file = File::create(writer.join("file")).unwrap();
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut last = 0;
                while !ends.load(Ordering::SeqCst) {
                    let size = reader.join("file").metadata().unwrap().len();
                    assert!(size >= last, "{size} after {last}");
                    last = size;
                    let data = fs::read(reader.join("file")).unwrap();
                    assert!(data.len() as u64 >= size, "{} of {size}", data.len());
                    let whole = data.chunks_exact(50_000).enumerate();
                    assert!(whole.into_iter().all(|(block, data)| data == content(block, 50_000)));
                }
            });
            for block in 0..40 {
                file.write_all_at(&content(block, 50_000), block as u64 * 50_000).unwrap();
            }
            ends.store(true, Ordering::SeqCst);
            watch.join().unwrap();
        });
        assert_eq!(reader.join("file").metadata().unwrap().len(), 2_000_000);
    });
}

/// UnifyFS, #525 and #411: the right size and wrong data; 20 files that are open at once and take
/// thousands of writes.
#[test]
fn unifyfs_525_and_411_many_writes_into_open_files_are_all_there() {
    within(LONG, || {
        let volume = Plain::new(STRIPED, 3);
        let (mount, other) = (volume.mount(""), volume.mount(""));
        let files: Vec<File> = (0..20).map(|n| File::create(mount.join(format!("f{n}"))).unwrap()).collect();
        for write in 0..10_000usize {
            let (file, place) = (write % 20, write / 20);
            files[file].write_all_at(&content(write, 300), place as u64 * 300).unwrap();
        }
        drop(files);
        for file in 0..20 {
            let data = fs::read(other.join(format!("f{file}"))).unwrap();
            assert_eq!(data.len(), 500 * 300);
            assert!(data.chunks(300).enumerate().all(|(place, data)| data == content(place * 20 + file, 300)));
        }
    });
}

#[test]
fn a_volume_is_checked_while_it_is_used_and_read_without_its_servers() {
    within(LONG, || {
        let mut volume = Plain::new(STRIPED, 3);
        let mount = volume.mount("");
        for number in 0..6 {
            fs::write(mount.join(format!("file-{number}")), content(number, 300_000)).unwrap();
        }
        fs::create_dir(mount.join("dir")).unwrap();
        fs::write(mount.join("dir/small"), b"text").unwrap();
        fs::hard_link(mount.join("file-0"), mount.join("dir/link")).unwrap();
        std::os::unix::fs::symlink("small", mount.join("dir/soft")).unwrap();
        let check = |volume: &Plain| run(aqueduct().args(["volume", "check"]).arg(&volume.file));
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let storm = scope.spawn(|| {
                for round in 0.. {
                    if ends.load(Ordering::SeqCst) {
                        return;
                    }
                    let path = mount.join(format!("new-{}", round % 5));
                    fs::write(&path, content(round, 100_000)).unwrap();
                    fs::rename(&path, mount.join(format!("dir/moved-{}", round % 3))).unwrap();
                    let _ = fs::remove_file(mount.join(format!("dir/moved-{}", (round + 1) % 3)));
                }
            });
            for _ in 0..3 {
                let told = check(&volume).succeeded();
                assert!(told.contains("objects"), "{told}");
            }
            ends.store(true, Ordering::SeqCst);
            storm.join().unwrap();
        });
        let expected: Vec<_> = (0..6).map(|number| content(number, 300_000)).collect();
        drop(mount);
        (0..3).for_each(|number| volume.kill(number));
        let copy = volume.home.path().join("copy");
        let mut command = aqueduct();
        command.args(["volume", "export"]).arg(&volume.file).arg(&copy);
        for number in 1..3 {
            command.arg("--store").arg(format!("s{number}={}", volume.dir(number).display()));
        }
        let told = run(&mut command).succeeded();
        for (number, expected) in expected.iter().enumerate() {
            assert!(fs::read(copy.join(format!("file-{number}"))).unwrap() == *expected, "{told}");
        }
        assert_eq!(fs::read(copy.join("dir/soft")).unwrap(), b"text");
        let inode = |name: &str| copy.join(name).metadata().unwrap().ino();
        assert_eq!(inode("file-0"), inode("dir/link"));
    });
}

#[test]
fn a_store_is_served_to_the_volume_alone_and_made_once() {
    test(|| {
        let volume = Plain::new(WHOLE, 2);
        let refused = run(aqueduct().args(["volume", "init", "--server", "s1"]).arg(&volume.file)).failed();
        assert!(refused.contains("stays"), "{refused}");
        let point = directory();
        let source = format!("{}:(store)", volume.addresses[1]);
        let told = run(aqueduct().args(["mount", &source]).arg(point.path())).failed();
        assert!(told.contains("other servers"), "{told}");
        let source = format!("{}:(data)", volume.addresses[1]);
        let mount = Mount::start(&mut aqueduct(), &[&source], "");
        assert_eq!(errno(fs::read_dir(mount.path())), libc::EREMOTE, "and no names of it to anybody");
        let mount = volume.mount("");
        assert_eq!(errno(fs::create_dir(mount.join(".aqueduct-volume"))), libc::EPERM);
        assert_eq!(errno(File::open(mount.join(".aqueduct-volume"))), libc::ENOENT);
    });
}

/// Has the server of the names do something for the volume.
pub(crate) fn work(volume: &Plain, arguments: &[&str]) -> Output {
    run_within(
        Duration::from_secs(60),
        aqueduct().args(["volume", arguments[0]]).arg(&volume.file).args(&arguments[1..]),
    )
}

#[test]
fn a_server_is_emptied_and_files_get_objects_while_they_are_used() {
    within(LONG, || {
        let mut volume = Plain::new(WHOLE, 3);
        fs::create_dir(volume.dir(0).join("old")).unwrap();
        (0..3).for_each(|n| fs::write(volume.dir(0).join(format!("old/{n}")), content(n, 3_000_000)).unwrap());
        let (mount, other) = (volume.mount(""), volume.mount("cache=none"));
        for number in 0..30 {
            fs::write(mount.join(format!("file-{number}")), content(number, 200_000)).unwrap();
        }
        wait_until("objects are there", SOON, || volume.all_objects() == 30);
        let told = work(&volume, &["drain", "s2", "--dry-run"]).succeeded();
        assert!(told.contains(" files would be copied") && volume.objects(2) > 0, "{told}");
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_blocks(&mount.join("old/0"), &ends));
            let reader = scope.spawn(|| {
                while !ends.load(Ordering::SeqCst) {
                    for number in 0..30 {
                        let path = other.join(format!("file-{number}"));
                        assert!(fs::read(path).unwrap() == content(number, 200_000), "file {number}");
                    }
                }
            });
            let told = work(&volume, &["drain", "s2"]).succeeded();
            assert!(told.contains("may be taken out"), "{told}");
            assert_eq!(volume.objects(2), 0);
            work(&volume, &["spread", "/old", "--bwlimit", "50MB/s"]).succeeded();
            assert_eq!((volume.all_objects(), volume.objects(2)), (33, 0));
            work(&volume, &["drain", "s2", "--undo"]).succeeded();
            work(&volume, &["rebalance"]).succeeded();
            assert!(volume.objects(2) > 0);
            ends.store(true, Ordering::SeqCst);
            reader.join().unwrap();
            let count = writer.join().unwrap();
            let data = fs::read(other.join("old/0")).unwrap();
            assert_eq!(data.len(), 3_000_000 + count * 30_000);
            assert!(data[..3_000_000] == content(0, 3_000_000));
            assert!(data[3_000_000..].chunks(30_000).enumerate().all(|(block, data)| data == content(block, 30_000)));
        });
        let told = work(&volume, &["drain", "s9"]).failed();
        assert!(told.contains("none of that name"), "{told}");
        // What is killed in the midst of it goes on where it was.
        let mut draining = aqueduct();
        draining.args(["volume", "drain", "--bwlimit", "1MB/s"]).arg(&volume.file).arg("s1");
        let mut draining = Process::start(&mut draining, &volume.home.path().join("drain.log"));
        std::thread::sleep(Duration::from_millis(300));
        volume.kill(0);
        draining.ends_within(SOON);
        volume.start_server(0);
        let reaches = |volume: &Plain| work(volume, &["drain", "s1", "--dry-run"]).status.success();
        wait_until("it reaches the other servers", SOON, || reaches(&volume));
        // What is cut short is not told to be all there is to do. Of before, little may be left.
        work(&volume, &["drain", "s1", "--undo"]).succeeded();
        for number in 0..40 {
            fs::write(mount.join(format!("more-{number}")), content(number, 200_000)).unwrap();
        }
        let mut draining = aqueduct();
        draining.args(["volume", "drain", "--bwlimit", "1MB/s"]).arg(&volume.file).arg("s1");
        let mut draining = Process::start(&mut draining, &volume.home.path().join("cut-short.log"));
        wait_until("it has begun", SOON, || draining.output().contains(" files, "));
        volume.servers[0].as_ref().unwrap().signal(Signal::TERM);
        assert!(!draining.ends_within(SOON).success(), "{}", draining.output());
        assert!(draining.output().contains("goes on with the rest"), "{}", draining.output());
        volume.servers[0].take().unwrap().ends_within(SOON);
        volume.start_server(0);
        wait_until("it reaches the other servers", SOON, || reaches(&volume));
        let told = work(&volume, &["drain", "s1"]).succeeded();
        assert!(told.contains("may be taken out"), "{told}");
        assert_eq!((volume.objects(1), volume.all_objects()), (0, 73));
        run(aqueduct().args(["volume", "check"]).arg(&volume.file)).succeeded();
        for number in 0..30 {
            assert!(fs::read(mount.join(format!("file-{number}"))).unwrap() == content(number, 200_000));
        }
        for number in 1..3 {
            assert!(fs::read(mount.join(format!("old/{number}"))).unwrap() == content(number, 3_000_000));
        }
    });
}
