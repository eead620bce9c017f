//! Several mounts that write one file at the same time, straight at the servers of data: whoever
//! looks finds what was answered before, in the right place, whatever becomes of the servers.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use aqueduct_model::Random;
use rustix::process::Signal;

use crate::agent::Agent;
use crate::common::{Enough, Mount, SOON, signal, wait_until, within};
use crate::lanes::{block, keep_names, names_of, trouble, versions};
use crate::volumes::Volume;

/// As [`block`] has it: more than is needed to go straight.
const BLOCK: u64 = 256 << 10;

pub const STRIPE: &str = "mode = 'stripe'\nstripe_size = '128KiB'\nwrites = 'data'\nconcurrent = true";

/// The versions that were answered, by blocks.
struct Answered(Vec<AtomicU32>);

impl Answered {
    fn new(blocks: usize) -> Answered {
        Answered((0..blocks).map(|_| AtomicU32::new(0)).collect())
    }

    fn get(&self, at: usize) -> u32 {
        self.0[at].load(Ordering::SeqCst)
    }
}

fn open(mount: &Mount, name: &str, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
    options.open(mount.join(name)).unwrap()
}

/// Writes versions into every `of`th block, the `own`th first, until it is told to end. Returns
/// how many that were.
fn writer(file: &File, (own, of): (usize, usize), answered: &Answered, done: &AtomicBool) -> u32 {
    let (blocks, mut version) = (answered.0.len(), 0);
    while !done.load(Ordering::SeqCst) {
        version += 1;
        for at in (own..blocks).step_by(of) {
            file.write_all_at(&block(version), at as u64 * BLOCK).unwrap();
            answered.0[at].store(version, Ordering::SeqCst);
        }
    }
    version
}

/// What is in a block at a mount is never older than what was answered before, and the file is as
/// long as it has to be.
fn look(file: &File, at: usize, answered: &Answered) {
    let before = answered.get(at);
    let length = file.metadata().unwrap().len();
    let end = (at as u64 + 1) * BLOCK;
    assert!(before == 0 || length >= end, "{length} bytes, though block {at} was written");
    let mut data = vec![0; BLOCK as usize];
    let read = file.read_at(&mut data, at as u64 * BLOCK).unwrap();
    let found = versions(&data[..read]);
    let is_old = found.iter().any(|version| *version < before);
    assert!(!is_old && (before == 0 || read == data.len()), "block {at}: {found:?}, {read} bytes, after {before}");
}

fn straight(volume: &Volume) -> u64 {
    (1..volume.servers.len()).map(|server| volume.written_to(server)).sum()
}

/// Blocks of several writers, and one that looks at them through a mount of its own.
pub fn write_beside(volume: &mut Volume, mounts: &[Mount], flags: i32, meanwhile: impl FnOnce(&mut Volume)) {
    const BLOCKS: usize = 12;
    let (reader, writers) = mounts.split_last().unwrap();
    let (answered, done) = (&Answered::new(BLOCKS), &AtomicBool::new(false));
    let of = writers.len();
    scope(|scope| {
        let written: Vec<_> = (0..of)
            .map(|own| {
                let file = open(&writers[own], "shared", flags);
                scope.spawn(move || writer(&file, (own, of), answered, done))
            })
            .collect();
        let looks = scope.spawn(move || {
            let (file, mut random) = (open(reader, "shared", 0), Random::new(7));
            while !done.load(Ordering::SeqCst) {
                look(&file, random.below(BLOCKS), answered);
            }
        });
        let enough = Enough(done);
        meanwhile(volume);
        drop(enough);
        looks.join().unwrap();
        let versions: Vec<u32> = written.into_iter().map(|writer| writer.join().unwrap()).collect();
        println!("versions {versions:?}");
    });
    for mount in mounts {
        let file = open(mount, "shared", 0);
        (0..BLOCKS).for_each(|at| look(&file, at, answered));
        assert_eq!(file.metadata().unwrap().len(), BLOCKS as u64 * BLOCK);
    }
}

#[test]
fn blocks_of_several_writers_go_straight() {
    within(Duration::from_secs(120), || {
        for flags in [0, libc::O_DIRECT] {
            let mut volume = Volume::with(STRIPE, 3);
            let mounts = [0, 1, 2].map(|told| volume.mount(told));
            write_beside(&mut volume, &mounts, flags, |volume| {
                wait_until("much has gone straight", Duration::from_secs(60), || straight(volume) >= 48 << 20);
                println!(
                    "{} {:?} straight, {} by names",
                    straight(volume) >> 20,
                    (volume.written_to(1) >> 20, volume.written_to(2) >> 20),
                    volume.written_to(0) >> 20
                );
            });
            // Who comes later may keep what it reads again.
            let mtime = |mount: &Mount| {
                let meta = fs::metadata(mount.join("shared")).unwrap();
                (meta.mtime(), meta.mtime_nsec())
            };
            assert_eq!(mtime(&mounts[0]), mtime(&mounts[2]));
        }
    });
}

/// Who opened a file while others wrote it has no lease then, and the server of the names reads it.
#[test]
fn who_reads_on_reads_through_all_servers_when_nobody_writes_any_more() {
    within(Duration::from_secs(120), || {
        let volume = Volume::with(STRIPE, 3);
        let mounts = [volume.mount(0), volume.mount(1)];
        let files = mounts.each_ref().map(|mount| open(mount, "file", 0));
        let end = 16;
        for at in 0..end {
            files[at as usize % 2].write_all_at(&block(1), at * BLOCK).unwrap();
        }
        assert!(straight(&volume) > 0, "nobody wrote beside others");
        let reader = File::open(mounts[0].join("file")).unwrap();
        let elsewhere = || (1..3).map(|server| volume.read_from(server)).sum::<u64>();
        let before = elsewhere();
        wait_until("it is read through all servers", SOON, || {
            let mut back = vec![0; (end * BLOCK) as usize];
            reader.read_exact_at(&mut back, 0).unwrap();
            assert_eq!(versions(&back), [1]);
            elsewhere() - before > end * BLOCK / 2
        });
    });
}

fn in_trouble(servers: usize, seed: u64, with_names: bool) {
    let mut volume = Volume::with(STRIPE, servers);
    let names = with_names.then(|| keep_names(&mut volume));
    let mounts = [0, servers - 1, 0].map(|told| volume.mount(told));
    write_beside(&mut volume, &mounts, 0, |volume| {
        let (mut random, end) = (Random::new(seed), Instant::now() + Duration::from_secs(12));
        while Instant::now() < end {
            trouble(volume, &mut random, with_names);
        }
        let before = straight(volume);
        wait_until("something goes straight again", Duration::from_secs(60), || straight(volume) > before);
    });
    drop(mounts);
    if let Some(keeper) = names {
        keeper.signal(Signal::KILL);
        signal(names_of(&volume), Signal::KILL);
    }
}

#[test]
fn servers_of_data_die_and_stand_still_under_several_writers() {
    within(Duration::from_secs(240), || in_trouble(3, 11, false));
}

#[test]
fn the_server_of_the_names_dies_too_under_several_writers() {
    within(Duration::from_secs(240), || in_trouble(3, 12, true));
}

/// Whoever changes the file otherwise finds it as all writers left it, and they find what it did.
#[test]
fn a_change_of_another_kind_has_all_writers_wait() {
    within(Duration::from_secs(120), || {
        let volume = Volume::with(STRIPE, 3);
        let mounts = [0, 1, 2].map(|told| volume.mount(told));
        let files = mounts.each_ref().map(|mount| open(mount, "shared", 0));
        for round in 1..=40u32 {
            // Each writes its block; the third one cuts the file off, adds to it, or removes it.
            scope(|scope| {
                for (own, file) in files[..2].iter().enumerate() {
                    scope.spawn(move || file.write_all_at(&block(round), own as u64 * BLOCK).unwrap());
                }
            });
            let mut data = vec![0; 2 * BLOCK as usize];
            files[2].read_exact_at(&mut data, 0).unwrap();
            assert_eq!(versions(&data), [round], "round {round}");
            match round % 3 {
                0 => {
                    files[2].set_len(BLOCK / 2).unwrap();
                    assert_eq!(files[0].metadata().unwrap().len(), BLOCK / 2);
                }
                1 => {
                    let mut end = OpenOptions::new().append(true).open(mounts[2].join("shared")).unwrap();
                    end.write_all(b"the end").unwrap();
                    assert_eq!(files[1].metadata().unwrap().len(), 2 * BLOCK + 7);
                    files[0].set_len(2 * BLOCK).unwrap();
                }
                _ => {
                    let when = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(round));
                    files[2].set_modified(when).unwrap();
                    assert_eq!(files[1].metadata().unwrap().mtime(), i64::from(round));
                }
            }
        }
        assert!(straight(&volume) > 0, "nothing went straight");
    });
}

/// Both have leases to write the file beside each other. Returns where a block of the server of
/// data lies, of two servers.
fn have_shared(volume: &Volume, files: &[File; 2]) -> u64 {
    let half = vec![9; 128 << 10];
    files[0].set_len(2 << 20).unwrap();
    for _ in 0..8 {
        files[1].write_all_at(&half, 1 << 20).unwrap();
        for at in [0, 128 << 10] {
            let before = volume.written_to(1);
            files[0].write_all_at(&half, at).unwrap();
            if volume.written_to(1) > before {
                files[1].write_all_at(&half, 1 << 20).unwrap();
                files[0].write_all_at(&half, at).unwrap();
                return at;
            }
        }
    }
    panic!("nothing goes straight");
}

/// A program is killed while what it writes is on its way. Its lock is given to another one when
/// that has come to its end.
#[test]
fn a_killed_program_has_its_lock_until_its_write_has_come_to_its_end() {
    within(Duration::from_secs(120), || {
        let volume = Volume::with(STRIPE, 2);
        let mounts = [0, 1].map(|told| volume.mount(told));
        let files = mounts.each_ref().map(|mount| open(mount, "shared", libc::O_DIRECT));
        let [mut killed, mut next] = [Agent::start(), Agent::start()];
        for (agent, mount) in [&mut killed, &mut next].into_iter().zip(&mounts) {
            agent.ask(&format!("open 0 {} rwd", mount.join("shared").display())).unwrap();
        }
        killed.ask("process 0 W 0 1").unwrap();
        assert_eq!(next.ask("process 0 W 0 1"), Err(libc::EAGAIN));
        let at = have_shared(&volume, &files);
        volume.servers[1].as_ref().unwrap().stop();
        killed.tell(&format!("block 0 {at} 31"));
        std::thread::sleep(Duration::from_millis(300));
        killed.process.signal(Signal::KILL);
        // Its server of data is ended when it stands still for 5 s.
        next.tell("process 0 W 0 1 wait");
        let early = next.answer_within(Duration::from_secs(2));
        volume.servers[1].as_ref().unwrap().signal(Signal::CONT);
        assert_eq!(early, None, "the lock was given before the write had come to its end");
        next.answer().unwrap();
        let mut found = [0; 4];
        File::open(volume.export.path().join("shared")).unwrap().read_exact_at(&mut found, at).unwrap();
        assert_eq!(u32::from_le_bytes(found), 31, "it has not come to its end");
    });
}
