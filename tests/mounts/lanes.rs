//! Writes that go straight to servers of data, while these die, stand still and come back, and so
//! does the server of the names, and clients go without a word: whoever reads finds what was
//! written last, and what was written never comes back.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use aqueduct_model::Random;
use rustix::process::Signal;

use crate::common::{Enough, Mount, Process, SOON, signal, wait_until, within};
use crate::proxy::Proxy;
use crate::volumes::Volume;

/// What is written at once: more than is needed to go straight.
pub const BLOCK: usize = 256 << 10;
const BLOCKS: usize = 4;

/// Without trouble something goes straight within this time, also on a loaded machine.
const STRAIGHT_MAX: Duration = Duration::from_secs(60);

/// A step that takes longer is told.
const LONG_STEP: Duration = Duration::from_secs(5);

/// Waits for less than so many milliseconds.
fn pause(random: &mut Random, most: usize) {
    sleep(Duration::from_millis(random.below(most) as u64));
}

/// A block of one version, which its bytes tell wherever they are looked at.
pub fn block(version: u32) -> Vec<u8> {
    version.to_le_bytes().repeat(BLOCK / 4)
}

/// The versions in a block, of which there should be one.
pub fn versions(data: &[u8]) -> Vec<u32> {
    let mut found: Vec<u32> = data.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    found.dedup();
    found
}

/// A file that several mounts have open, and what is in it.
struct Shared<'a> {
    name: &'a str,
    mounts: &'a [&'a Mount],
    files: Vec<File>,
    expected: [u32; BLOCKS],
    version: u32,
}

impl Shared<'_> {
    fn open(mount: &Mount, name: &str) -> File {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(mount.join(name)).unwrap()
    }

    fn write(&mut self, writer: usize, at: usize) {
        self.version += 1;
        self.files[writer].write_all_at(&block(self.version), (at * BLOCK) as u64).unwrap();
        self.expected[at] = self.version;
    }

    fn check(&self, reader: usize, at: usize) {
        let (mut back, reads) = (vec![0; BLOCK], self.mounts[reader].path().display());
        self.files[reader].read_exact_at(&mut back, (at * BLOCK) as u64).unwrap();
        let (name, version) = (self.name, self.version);
        assert_eq!(versions(&back), [self.expected[at]], "{name}, block {at}, version {version}, at {reads}");
    }

    fn cut(&mut self, writer: usize, at: usize) {
        self.files[writer].set_len((at * BLOCK) as u64).unwrap();
        self.files[writer].set_len((BLOCK * BLOCKS) as u64).unwrap();
        self.expected[at..].fill(0);
    }
}

/// How long a step took; the longest are told.
fn took(name: &str, what: &str, began: Instant) -> Duration {
    let took = began.elapsed();
    if took > LONG_STEP {
        println!("{name}: {what} took {took:?}");
    }
    took
}

/// Works on one file through several mounts, in turn, and checks each look. A mount that has the
/// file goes on with it for a while: who takes turns faster has nobody write straight. Returns how
/// many versions that were, and the longest step.
pub fn work(mounts: &[&Mount], name: &str, seed: u64, done: &AtomicBool) -> (u32, Duration) {
    let mut random = Random::new(seed);
    let files = mounts.iter().map(|mount| Shared::open(mount, name)).collect();
    let mut shared = Shared { name, mounts, files, expected: [0; BLOCKS], version: 0 };
    shared.files[0].set_len((BLOCK * BLOCKS) as u64).unwrap();
    let mut longest = Duration::ZERO;
    while !done.load(Ordering::SeqCst) {
        let writer = random.below(mounts.len());
        for _ in 0..60 {
            let (at, began, what) = (random.below(BLOCKS), Instant::now(), random.below(12));
            match what {
                0 => shared.files[writer].sync_all().unwrap(),
                1 => shared.files[writer] = Shared::open(mounts[writer], name),
                2 => shared.cut(writer, at),
                3 => pause(&mut random, 40),
                4 => shared.check(writer, at),
                _ => shared.write(writer, at),
            }
            longest = longest.max(took(name, &format!("step {what} at {at} by {writer}"), began));
        }
        let began = Instant::now();
        let reader = random.below(mounts.len());
        (0..BLOCKS).for_each(|at| shared.check(reader, at));
        longest = longest.max(took(name, &format!("reading all by {reader}"), began));
        pause(&mut random, 1500);
    }
    (0..mounts.len()).for_each(|reader| (0..BLOCKS).for_each(|at| shared.check(reader, at)));
    (shared.version, longest)
}

/// Something happens to one of the servers. Returns what had gone straight to one that dies.
pub fn trouble(volume: &mut Volume, random: &mut Random, with_names: bool) -> u64 {
    let mut straight = 0;
    let victim = 1 + random.below(volume.servers.len() - 1);
    match random.below(if with_names { 6 } else { 5 }) {
        0 | 1 => {
            straight = volume.written_to(victim);
            volume.kill(victim);
            pause(random, 1200);
            volume.start_server(victim);
        }
        2 | 3 => {
            volume.servers[victim].as_ref().unwrap().stop();
            pause(random, 2500);
            volume.servers[victim].as_ref().unwrap().signal(Signal::CONT);
        }
        4 => {
            // For so long that it is ended by who watches over it.
            straight = volume.written_to(victim);
            volume.servers[victim].as_ref().unwrap().stop();
            sleep(Duration::from_millis(6500));
            let process = volume.servers[victim].as_mut().unwrap();
            process.signal(Signal::CONT);
            process.ends_within(Duration::from_secs(30));
            volume.start_server(victim);
        }
        // It is started again at once.
        _ => signal(names_of(volume), Signal::KILL),
    }
    pause(random, 1000);
    straight
}

/// The process that serves the names, as it says.
pub fn names_of(volume: &Volume) -> u32 {
    fs::read_to_string(volume.home.path().join("state-0/owner")).unwrap().parse().unwrap()
}

/// Has another process start the server of the names again whenever it has ended. One that is
/// started from here, where files of the mounts are open, closes them before anything else, and
/// that waits for itself.
pub fn keep_names(volume: &mut Volume) -> Process {
    volume.kill(0);
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do \"$@\"; sleep 0.3; done", "sh"]);
    let serves = volume.command_of(0);
    command.arg(serves.get_program()).args(serves.get_args());
    let keeper = Process::start(&mut command, &volume.home.path().join("names.log"));
    wait_until("the server of the names listens", SOON, || keeper.output().contains("listening on "));
    keeper
}

/// What has gone straight to the servers that are there. One that dies takes with it what it
/// counted: so it is waited for, unless somebody `gives_up`.
fn goes_straight(volume: &Volume, gives_up: impl Fn() -> bool) -> u64 {
    let began = Instant::now();
    loop {
        let straight = (1..volume.servers.len()).map(|server| volume.written_to(server)).sum();
        if straight > 0 || gives_up() || began.elapsed() > STRAIGHT_MAX {
            return straight;
        }
        sleep(Duration::from_millis(200));
    }
}

/// A file that lies at a server of data, which is chance: of a few there may be none.
fn lies_at_data(volume: &Volume, mount: &Mount) -> String {
    let straight = || (1..volume.servers.len()).map(|server| volume.written_to(server)).sum::<u64>();
    let (mut before, mut number, mut name) = (straight(), 0, String::new());
    wait_until("a file lies at a server of data", STRAIGHT_MAX, || {
        number += 1;
        name = format!("there-{number}");
        let file = File::create(mount.join(&name)).unwrap();
        file.write_all_at(&block(1), 0).unwrap();
        file.sync_all().unwrap();
        std::mem::replace(&mut before, straight()) < before
    });
    File::create(mount.join(&name)).unwrap(); // empty, as the others
    name
}

fn servers_in_trouble(lines: &str, servers: usize, seed: u64, with_names: bool, time: Duration) {
    let mut volume = Volume::with(&format!("{lines}\nwrites = 'data'"), servers);
    let names = with_names.then(|| keep_names(&mut volume));
    let mounts = [volume.mount(0), volume.mount(servers - 1)];
    let (done, mut random, mut straight) = (AtomicBool::new(false), Random::new(seed), 0);
    let of_workers: Vec<&Mount> = mounts.iter().collect();
    let there = lies_at_data(&volume, &mounts[0]);
    let name = |number: u64| if number == 0 { there.clone() } else { format!("file-{number}") };
    let told: Vec<(u32, Duration)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|number| {
                let (mounts, done, name) = (&of_workers, &done, name(number));
                scope.spawn(move || work(mounts, &name, seed * 100 + number, done))
            })
            .collect();
        let enough = Enough(&done);
        let end = Instant::now() + time;
        while Instant::now() < end && workers.iter().all(|worker| !worker.is_finished()) {
            straight += trouble(&mut volume, &mut random, with_names);
        }
        straight += goes_straight(&volume, || workers.iter().any(|worker| worker.is_finished()));
        drop(enough);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    println!("{lines}: versions, and the longest step: {told:?}");
    drop(mounts);
    if let Some(names) = &mut volume.servers[0] {
        let told = names.output();
        assert!(!told.contains("no ATTACH came in time"), "servers of data keep their sessions: {told}");
    }
    if let Some(keeper) = names {
        keeper.signal(Signal::KILL);
        signal(names_of(&volume), Signal::KILL);
    }
    println!("{} MiB went straight", straight >> 20);
    assert!(straight > 0, "nothing went straight");
    assert!(told.iter().all(|(versions, _)| *versions > 20), "{told:?}");
}

#[test]
fn servers_of_data_die_and_stand_still_under_writers() {
    within(Duration::from_secs(240), || {
        servers_in_trouble("mode = 'cluster'", 3, 1, false, Duration::from_secs(12));
        servers_in_trouble("mode = 'stripe'\nstripe_size = '128KiB'", 3, 2, false, Duration::from_secs(12));
    });
}

#[test]
fn the_server_of_the_names_dies_too_under_writers() {
    within(Duration::from_secs(240), || {
        servers_in_trouble("mode = 'cluster'", 2, 3, true, Duration::from_secs(12));
        servers_in_trouble("mode = 'stripe'\nstripe_size = '128KiB'", 5, 4, true, Duration::from_secs(12));
    });
}

/// A client is killed while a server of data stands still with what it was sent. Others get the
/// file, and what the dead one had sent never lands on theirs.
#[test]
fn what_a_dead_client_had_sent_does_not_land_on_what_others_write() {
    within(Duration::from_secs(240), || {
        let volume = Volume::with("mode = 'stripe'\nstripe_size = '128KiB'\nwrites = 'data'", 3);
        let other = volume.mount(0);
        for round in 0..3u32 {
            let mut dying = volume.mount(1);
            let name = format!("file-{round}");
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(dying.join(&name)).unwrap();
            file.write_all_at(&block(7), 0).unwrap();
            file.sync_all().unwrap();
            // Both are ended after a while, should they not go on before.
            (1..3).for_each(|server| volume.servers[server].as_ref().unwrap().stop());
            let writes = std::thread::spawn(move || {
                for version in 8..40 {
                    if file.write_all_at(&block(version), 0).is_err() {
                        return;
                    }
                }
            });
            sleep(Duration::from_millis(500));
            dying.process.signal(Signal::KILL);
            dying.process.ends_within(Duration::from_secs(10));
            sleep(Duration::from_millis(500 * u64::from(round)));
            (1..3).for_each(|server| volume.servers[server].as_ref().unwrap().signal(Signal::CONT));
            let mine = OpenOptions::new().read(true).write(true).open(other.join(&name)).unwrap();
            mine.write_all_at(&block(1000 + round), 0).unwrap();
            mine.sync_all().unwrap();
            let end = Instant::now() + Duration::from_secs(3);
            while Instant::now() < end {
                let data = fs::read(volume.export.path().join(&name)).unwrap();
                assert_eq!(versions(&data), [1000 + round], "round {round}");
                sleep(Duration::from_millis(50));
            }
            drop(dying);
            writes.join().unwrap();
        }
    });
}

/// A client keeps copies of what it wrote straight until that is stable. Once another one has had
/// the file no copy of before may be written again, whatever becomes of the servers.
#[test]
fn what_was_written_straight_does_not_come_back_over_what_others_wrote() {
    within(Duration::from_secs(240), || {
        let mut volume = Volume::with("mode = 'stripe'\nstripe_size = '128KiB'\nwrites = 'data'", 2);
        let mount = volume.mount(0);
        for round in 0..3 {
            let name = format!("file-{round}");
            let first = Shared::open(&mount, &name);
            first.set_len((BLOCK * BLOCKS) as u64).unwrap();
            // Until it goes straight, and then once more: that is kept.
            writes_straight(&volume, &first, (1, 0));
            first.write_all_at(&block(2), 0).unwrap();
            // Another one has the file, and nobody else after that.
            let other = volume.mount(0);
            fs::write(other.join("unused"), "").unwrap();
            let theirs = Shared::open(&other, &name);
            theirs.write_all_at(&block(3), 0).unwrap();
            theirs.sync_all().unwrap();
            drop((theirs, other));
            // It gets the file again, and the server goes that has what it wrote.
            sleep(Duration::from_millis(1500));
            let second = Shared::open(&mount, &name);
            writes_straight(&volume, &second, (4, 1));
            second.write_all_at(&block(5), BLOCK as u64).unwrap();
            sleep(Duration::from_millis(500));
            volume.kill(1);
            second.sync_all().unwrap();
            let data = fs::read(volume.export.path().join(&name)).unwrap();
            assert_eq!(versions(&data[..2 * BLOCK]), [3, 5], "round {round}");
            volume.start_server(1);
        }
    });
}

/// Nothing but the restart of the server of the names happens: each time writes go straight again,
/// those to files that were open meanwhile, too.
#[test]
fn what_is_written_goes_straight_again_after_a_restart_of_the_server_of_the_names() {
    within(Duration::from_secs(240), || {
        let mut volume = Volume::with("mode = 'cluster'\nwrites = 'data'", 2);
        let mount = volume.mount(0);
        // Which server has a file's bytes follows from its handle.
        let files: Vec<File> = (0..4).map(|number| Shared::open(&mount, &format!("file-{number}"))).collect();
        for round in 1..4u32 {
            let before = volume.written_to(1);
            wait_until("something goes straight", STRAIGHT_MAX, || {
                files.iter().for_each(|file| file.write_all_at(&block(round), 0).unwrap());
                files.iter().for_each(|file| file.sync_data().unwrap());
                volume.written_to(1) > before
            });
            volume.kill(0);
            volume.start_server(0);
        }
        let names = volume.servers[0].as_ref().unwrap().output();
        assert!(!names.contains("no ATTACH came in time"), "servers of data keep their sessions: {names}");
    });
}

/// A proxy stands before a server of data, to which the client seems to be on another machine. Its
/// root is squashed there, unless `--squash` says otherwise. A client that is squashed writes
/// through the server of the names, and is told why.
#[test]
fn what_goes_by_a_proxy_goes_straight_where_both_servers_know_who_writes() {
    within(Duration::from_secs(240), || {
        for squash in ["root", "none"] {
            let mut volume = Volume::with("mode = 'cluster'\nwrites = 'data'", 2);
            let proxy = Proxy::start(&volume.addresses[1]);
            volume.kill(1);
            let mut data = volume.command_of(1);
            data.args(["--squash", squash]);
            volume.start_as(1, data);
            // The server of the names tells of the proxy.
            volume.kill(0);
            let text = fs::read_to_string(&volume.file).unwrap();
            fs::copy(volume.home.path().join("volume.key"), volume.home.path().join("told.key")).unwrap();
            volume.file = volume.home.path().join("told.toml");
            let text = text.replace("epoch = 1\n", "epoch = 2\n");
            fs::write(&volume.file, text.replace(&volume.addresses[1], &proxy.address.to_string())).unwrap();
            volume.start_server(0);
            let mount = volume.mount(0);
            let files: Vec<File> = (0..8).map(|number| Shared::open(&mount, &format!("file-{number}"))).collect();
            let write_all = || {
                files.iter().for_each(|file| file.write_all_at(&block(1), 0).unwrap());
                files.iter().for_each(|file| file.sync_data().unwrap());
            };
            let is_told = || mount.process.output().contains("takes this client for another");
            let goes_straight = || volume.written_to(1) > 0;
            wait_until("it goes straight, or why not is told", STRAIGHT_MAX, || {
                write_all();
                if squash == "root" { is_told() } else { goes_straight() }
            });
            assert_eq!((is_told(), goes_straight()), (squash == "root", squash == "none"));
            for number in 0..files.len() {
                let data = fs::read(volume.export.path().join(format!("file-{number}"))).unwrap();
                assert_eq!(versions(&data), [1], "{squash}, file {number}");
            }
        }
    });
}

/// Writes a block with a version, again and again, until it goes straight to the server of data.
fn writes_straight(volume: &Volume, file: &File, (version, at): (u32, usize)) {
    let before = volume.written_to(1);
    wait_until("something goes straight", STRAIGHT_MAX, || {
        file.write_all_at(&block(version), (at * BLOCK) as u64).unwrap();
        file.sync_data().unwrap();
        volume.written_to(1) > before
    });
}
