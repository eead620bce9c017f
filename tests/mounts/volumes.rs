//! Volumes of several servers before one directory.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::{
    Enough, Mount, Process, SOON, aqueduct, directory, errno, free_addresses, mount_sessions, mount_status, run,
    server_status, test, wait_until, within,
};
use crate::model::assert_alike;

/// Several servers of one volume, which share a directory.
pub struct Volume {
    pub servers: Vec<Option<Process>>,
    pub addresses: Vec<String>,
    pub file: PathBuf,
    pub home: TempDir,
    pub export: TempDir,
    /// Of its file, beside its servers.
    pub lines: String,
    /// Files that single servers have instead.
    pub files: Vec<Option<PathBuf>>,
}

impl Volume {
    fn start(count: usize) -> Volume {
        Volume::with("mode = 'cluster'", count)
    }

    /// With lines of its file.
    pub fn with(lines: &str, count: usize) -> Volume {
        let (home, export) = (directory(), directory());
        let addresses = free_addresses(count);
        let file = home.path().join("volume.toml");
        let servers = (0..count).map(|_| None).collect();
        let mut volume = Volume { servers, addresses, file, home, export, lines: lines.to_owned(), files: Vec::new() };
        volume.write_file(1, &(0..count).collect::<Vec<_>>());
        run(aqueduct().args(["volume", "create"]).arg(&volume.file)).succeeded();
        (0..count).for_each(|number| volume.start_server(number));
        volume
    }

    /// Has the file name these servers, as its edition of this number.
    pub fn write_file(&self, epoch: u32, servers: &[usize]) {
        let server = |number: &usize| {
            let (address, directory) = (&self.addresses[*number], self.export.path().display());
            format!("[[server]]\nid = 's{number}'\nlisten = ['{address}']\ndir = '{directory}'\n")
        };
        let servers: String = servers.iter().map(server).collect();
        let text = format!("name = 'scratch'\nepoch = {epoch}\n{}\ncoherent = true\n{servers}", self.lines);
        fs::write(&self.file, text).unwrap();
    }

    pub fn start_server(&mut self, number: usize) {
        self.start_as(number, self.command_of(number));
    }

    /// Starts a server by a command of one's own.
    pub fn start_as(&mut self, number: usize, mut command: Command) {
        let log = self.home.path().join(format!("server-{number}.log"));
        let mut process = Process::start(&mut command, &log);
        wait_until("a server listens", SOON, || {
            assert!(process.has_ended().is_none(), "{}", process.output());
            process.output().contains("listening on ")
        });
        self.servers[number] = Some(process);
    }

    /// What starts a server.
    pub fn command_of(&self, number: usize) -> Command {
        let mut command = aqueduct();
        let state = self.home.path().join(format!("state-{number}"));
        let file = self.files.get(number).and_then(Option::as_ref).unwrap_or(&self.file);
        command.args(["serve", "--server", &format!("s{number}"), "--volume"]).arg(file);
        command.arg("--state").arg(state);
        if self.files.get(number).is_some_and(Option::is_some) {
            // Mounts come through proxies: to the server they are other machines.
            command.args(["--squash", "none"]);
        }
        command
    }

    pub fn kill(&mut self, number: usize) {
        let mut process = self.servers[number].take().unwrap();
        process.signal(Signal::KILL);
        process.ends_within(SOON);
    }

    /// A mount that is told of one of the servers only, and knows them all as soon as they are
    /// there.
    pub fn mount(&self, told: usize) -> Mount {
        self.mount_with(told, "")
    }

    pub fn mount_with(&self, told: usize, options: &str) -> Mount {
        let source = format!("scratch@{}:/", self.addresses[told]);
        let before: Vec<usize> = self.living().map(|number| self.sessions(number)).collect();
        let mount = Mount::start(&mut aqueduct(), &[&source], options);
        wait_until("the mount has found all servers", SOON, || {
            self.living().map(|number| self.sessions(number)).eq(before.iter().map(|count| count + 1))
        });
        mount
    }

    fn living(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.servers.len()).filter(|number| self.servers[*number].is_some())
    }

    pub fn sessions(&self, number: usize) -> usize {
        mount_sessions(&server_status(&self.addresses[number]))
    }

    /// Bytes that mounts have read from a server.
    pub fn read_from(&self, number: usize) -> u64 {
        self.moved_by(number, "bytes_read")
    }

    /// Bytes that mounts have written to a server.
    pub fn written_to(&self, number: usize) -> u64 {
        self.moved_by(number, "bytes_written")
    }

    fn moved_by(&self, number: usize, which: &str) -> u64 {
        let status = server_status(&self.addresses[number]);
        status["sessions"].as_array().unwrap().iter().filter_map(|session| session[which].as_u64()).sum()
    }
}

fn content(number: usize) -> Vec<u8> {
    (0..200_000usize).map(|at| (at / 7 + number * 31) as u8).collect()
}

/// Each file is read through one of the servers, whoever reads it, and all of them have a part.
#[test]
fn reads_are_spread_over_the_servers_and_each_file_has_one() {
    test(|| {
        const FILES: usize = 16;
        let volume = &Volume::start(3);
        for number in 0..FILES {
            fs::write(volume.export.path().join(format!("file-{number}")), content(number)).unwrap();
        }
        let read_all = |mount: &Mount| {
            // At once, since each is waited for half a second.
            let read = || {
                std::thread::scope(|scope| {
                    let asked = [0, 1, 2].map(|server| scope.spawn(move || volume.read_from(server)));
                    asked.map(|asked| asked.join().unwrap())
                })
            };
            let (mut places, mut before) = (Vec::new(), read());
            for number in 0..FILES {
                assert!(fs::read(mount.join(format!("file-{number}"))).unwrap() == content(number), "file {number}");
                let after = read();
                let place: Vec<usize> = (0..3).filter(|server| after[*server] - before[*server] >= 100_000).collect();
                before = after;
                assert_eq!(place.len(), 1, "file {number} came from {place:?}");
                places.push(place[0]);
            }
            places
        };
        let mounts = [0, 2].map(|told| volume.mount(told));
        let places = mounts.each_ref().map(read_all);
        assert_eq!(places[0], places[1], "both mounts read each file from the same server");
        for server in 0..3 {
            let share = places[0].iter().filter(|place| **place == server).count();
            assert!(share >= 1, "server {server} has {share} of {FILES}");
        }
    });
}

#[test]
fn the_blocks_of_one_file_are_read_through_all_servers() {
    test(|| {
        let volume = Volume::with("mode = 'stripe'\nstripe_size = '256KiB'", 3);
        let data: Vec<u8> = (0..6 << 20).map(|at: usize| (at / 11) as u8).collect();
        fs::write(volume.export.path().join("file"), &data).unwrap();
        let mount = volume.mount(1);
        assert!(fs::read(mount.join("file")).unwrap() == data);
        for server in 0..3 {
            let read = volume.read_from(server);
            assert!(read >= data.len() as u64 / 6, "{read} bytes from server {server}");
        }
    });
}

/// Nobody changes a volume of this mode, and each client has its own servers for the same files.
#[test]
fn clients_of_a_read_only_volume_spread_its_files_by_themselves() {
    test(|| {
        const FILES: usize = 12;
        let mut volume = Volume::with("mode = 'loadbalance'", 3);
        for number in 0..FILES {
            fs::write(volume.export.path().join(format!("file-{number}")), content(number)).unwrap();
        }
        let read_all = |mount: &Mount| {
            for number in 0..FILES {
                assert!(fs::read(mount.join(format!("file-{number}"))).unwrap() == content(number), "file {number}");
            }
        };
        for options in ["", "cache=none"] {
            let mount = volume.mount_with(1, options);
            let before: Vec<u64> = (0..3).map(|server| volume.read_from(server)).collect();
            read_all(&mount);
            let share = |server: &usize| volume.read_from(*server) - before[*server];
            let shares: Vec<u64> = (0..3).map(|server| share(&server)).collect();
            assert!(shares.iter().filter(|share| **share > 0).count() >= 2, "{options}: {shares:?}");
            assert_eq!(errno(File::create(mount.join("new"))), libc::EROFS);
            drop(mount);
            wait_until("its sessions have ended", SOON, || volume.sessions(2) == 0);
        }
        let mount = volume.mount(0);
        volume.kill(2);
        read_all(&mount);
    });
}

#[test]
fn mounts_of_a_volume_behave_as_a_local_directory() {
    within(Duration::from_secs(120), || {
        let striped = "mode = 'stripe'\nstripe_size = '64KiB'";
        for (first, lines, servers) in
            [(60_000, "mode = 'cluster'", 2), (70_000, "mode = 'cluster'", 3), (80_000, striped, 3)]
        {
            let (volume, reference) = (Volume::with(lines, servers), directory());
            let (left, right) = (volume.mount(0), volume.mount(servers - 1));
            assert_alike(reference.path(), &[&left, &right], first, Duration::from_secs(6));
        }
    });
}

/// A reader at one mount never sees less than a writer at the other has been told is written,
/// while servers of data are killed and come back.
#[test]
fn nobody_reads_what_is_old_while_servers_of_data_die_and_come_back() {
    within(Duration::from_secs(120), || {
        const FILES: usize = 12;
        const LENGTH: usize = 20_000;
        let mut volume = Volume::start(3);
        let (writer, reader) = (volume.mount(0), volume.mount(1));
        let name = |number: usize| format!("file-{number}");
        for number in 0..FILES {
            fs::write(writer.join(name(number)), vec![0; LENGTH]).unwrap();
        }
        let done = AtomicBool::new(false);
        let (rounds, longest) = std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                let open = |mount: &Mount, number| {
                    OpenOptions::new().read(true).write(true).open(mount.join(name(number))).unwrap()
                };
                let written: Vec<File> = (0..FILES).map(|number| open(&writer, number)).collect();
                let held: Vec<File> = (0..FILES).map(|number| File::open(reader.join(name(number))).unwrap()).collect();
                let (mut round, mut longest) = (0u64, Duration::ZERO);
                let mut back = vec![0; LENGTH];
                while !done.load(Ordering::SeqCst) {
                    round += 1;
                    let number = round as usize % FILES;
                    let data: Vec<u8> = (0..LENGTH).map(|at| (round as usize * 13 + at / 50) as u8).collect();
                    let started = Instant::now();
                    written[number].write_all_at(&data, 0).unwrap();
                    held[number].read_exact_at(&mut back, 0).unwrap();
                    assert!(back == data, "round {round}, by a descriptor that was open");
                    assert!(fs::read(reader.join(name(number))).unwrap() == data, "round {round}, by name");
                    // Once more, since the first may have come under no lease.
                    held[number].read_exact_at(&mut back, 0).unwrap();
                    assert!(back == data, "round {round}, again");
                    longest = longest.max(started.elapsed());
                }
                (round, longest)
            });
            let enough = Enough(&done);
            for turn in 0..6 {
                let victim = 1 + turn % 2;
                std::thread::sleep(Duration::from_millis(700));
                volume.kill(victim);
                std::thread::sleep(Duration::from_millis(1200));
                volume.start_server(victim);
            }
            drop(enough);
            work.join().unwrap()
        });
        println!("{rounds} rounds, the longest {longest:?}");
        assert!(rounds > 20, "{rounds} rounds");
    });
}

/// A server that is stopped is not waited for more than a moment.
#[test]
fn a_server_of_data_that_hangs_or_is_gone_stops_nobody() {
    test(|| {
        let mut volume = Volume::start(2);
        const FILES: usize = 16;
        for number in 0..FILES {
            fs::write(volume.export.path().join(format!("file-{number}")), content(number)).unwrap();
        }
        let mount = volume.mount(0);
        let read_all = |mount: &Mount| {
            for number in 0..FILES {
                assert!(fs::read(mount.join(format!("file-{number}"))).unwrap() == content(number), "file {number}");
            }
        };
        volume.servers[1].as_ref().unwrap().stop();
        let started = Instant::now();
        read_all(&mount);
        println!("beside a server that hangs: {:?}", started.elapsed());
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        volume.servers[1].as_ref().unwrap().signal(Signal::CONT);

        // Nobody needs it to mount, and whoever has mounted finds it when it comes.
        volume.kill(1);
        let late = volume.mount(0);
        read_all(&late);
        volume.start_server(1);
        wait_until("both mounts have found the server that has come", SOON, || volume.sessions(1) == 2);
        let another = volume.mount(1);
        read_all(&another);
        assert!(volume.read_from(1) > 0);
    });
}

/// A small file is read through the server of the names alone.
#[test]
fn small_files_are_not_opened_at_servers_of_data() {
    test(|| {
        const FILES: usize = 40;
        let volume = Volume::start(3);
        for number in 0..FILES {
            fs::write(volume.export.path().join(format!("file-{number}")), vec![7; 9000]).unwrap();
        }
        let mount = volume.mount(0);
        for number in 0..FILES {
            assert_eq!(fs::read(mount.join(format!("file-{number}"))).unwrap(), vec![7; 9000]);
        }
        assert_eq!([volume.read_from(1), volume.read_from(2)], [0, 0]);
    });
}

/// One of the servers that are named is enough.
#[test]
fn any_living_server_tells_of_the_volume() {
    test(|| {
        let mut volume = Volume::start(3);
        volume.kill(2);
        let source = format!("scratch@{},{}:/", volume.addresses[2], volume.addresses[1]);
        let mount = Mount::start(&mut aqueduct(), &[&source], "");
        fs::write(mount.join("file"), "text").unwrap();
        assert_eq!(fs::read(mount.join("file")).unwrap(), b"text");
    });
}

/// The server of the names dies and comes back: programs wait, and go on, and what they hold open
/// is read through the others as before.
#[test]
fn the_server_of_the_names_dies_and_comes_back() {
    test(|| {
        let mut volume = Volume::start(3);
        let mount = volume.mount(1);
        fs::write(mount.join("file"), content(1)).unwrap();
        let open = OpenOptions::new().read(true).write(true).open(mount.join("file")).unwrap();
        for round in 0..4u8 {
            let path = mount.join("file");
            volume.kill(0);
            let reader = std::thread::spawn(move || fs::read(path).unwrap());
            std::thread::sleep(Duration::from_millis(300));
            volume.start_server(0);
            assert_eq!(reader.join().unwrap().len(), content(1).len(), "round {round}");
            open.write_all_at(&[round; 5000], 100_000).unwrap();
            let mut back = vec![0; 5000];
            open.read_exact_at(&mut back, 100_000).unwrap();
            assert!(back == vec![round; 5000], "round {round}");
            assert!(fs::read(mount.join("file")).unwrap()[100_000..105_000] == back[..], "round {round}, by name");
        }
    });
}

/// What is removed while it is open stays readable, wherever its bytes come from.
#[test]
fn what_is_removed_while_it_is_open_is_read_through_any_server() {
    test(|| {
        let volume = Volume::start(3);
        let (left, right) = (volume.mount(0), volume.mount(2));
        for number in 0..12 {
            let name = format!("file-{number}");
            fs::write(left.join(&name), content(number)).unwrap();
            let open = File::open(right.join(&name)).unwrap();
            fs::remove_file(left.join(&name)).unwrap();
            let mut back = vec![0; content(number).len()];
            open.read_exact_at(&mut back, 0).unwrap();
            assert!(back == content(number), "file {number}");
        }
    });
}

#[test]
fn what_makes_no_sense_of_a_volume_is_refused_and_says_why() {
    test(|| {
        let volume = Volume::start(2);
        let point = directory();
        let mount = |source: String| run(aqueduct().arg("mount").arg(source).arg(point.path())).failed();
        let [names, data] = [0, 1].map(|number| volume.addresses[number].clone());
        let told = mount(format!("other@{names}:/"));
        assert!(told.contains("no part of the volume 'other'"), "{told}");
        let told = mount(format!("{data}:/"));
        assert!(told.contains("has no export '/'"), "a server of data alone serves no names: {told}");
        let told = run(aqueduct().args(["volume", "show", &format!("scratch@{data}")])).succeeded();
        assert!(told.contains("mode cluster") && told.contains(&names) && told.contains(&data), "{told}");
        let told = run(aqueduct().args(["volume", "create"]).arg(&volume.file)).failed();
        assert!(told.contains("volume.key"), "{told}");

        let text = fs::read_to_string(&volume.file).unwrap().replace("coherent = true", "coherent = false");
        fs::write(&volume.file, text).unwrap();
        let serve = |server: &str, state: &Path| {
            let mut command = aqueduct();
            command.args(["serve", "--server", server, "--volume"]).arg(&volume.file).arg("--state").arg(state);
            run(&mut command).failed()
        };
        let told = serve("s1", &volume.home.path().join("state-other"));
        assert!(told.contains("coherent = true"), "{told}");
        let told = serve("s7", &volume.home.path().join("state-other"));
        assert!(told.contains("'s7'") && told.contains("s0, s1"), "{told}");
    });
}

/// What one client writes goes through all servers, each file's or block's through its own, and is
/// what was written, for everybody.
#[test]
fn what_is_written_goes_through_all_servers() {
    within(Duration::from_secs(120), || {
        // One in three lies at each server, by chance: that one of these has none of so many is
        // seen once in 5,000 runs.
        const FILES: usize = 24;
        const LENGTH: usize = 3 << 20;
        for lines in ["mode = 'cluster'", "mode = 'stripe'\nstripe_size = '256KiB'"] {
            let volume = Volume::with(&format!("{lines}\nwrites = 'data'"), 3);
            let (writer, reader) = (volume.mount(0), volume.mount(1));
            let data = |number: usize| -> Vec<u8> { (0..LENGTH).map(|at| (at / 13 + number * 7) as u8).collect() };
            for number in 0..FILES {
                let mut file = File::create(writer.join(format!("file-{number}"))).unwrap();
                file.write_all(&data(number)).unwrap();
                file.write_all_at(b"again", 1 << 20).unwrap();
                if number % 2 == 0 {
                    file.sync_all().unwrap();
                }
            }
            // Of each file one write is small: programs do not wait for large ones either.
            let held = mount_status(writer.path())["gathered"]["writes"].as_u64().unwrap();
            assert!(held > 3 * FILES as u64, "{lines}: {held} writes were held back");
            for number in 0..FILES {
                let mut expected = data(number);
                expected[1 << 20..(1 << 20) + 5].copy_from_slice(b"again");
                for place in [volume.export.path().to_owned(), reader.join(""), writer.join("")] {
                    assert!(fs::read(place.join(format!("file-{number}"))).unwrap() == expected, "{place:?} {number}");
                }
            }
            for server in 0..3 {
                let written = volume.written_to(server);
                assert!(written >= (FILES * LENGTH) as u64 / 12, "{lines}: {written} bytes through server {server}");
            }
        }
    });
}
