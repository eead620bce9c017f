//! Volumes with `atomic = true`: what a program reads or writes at once is whole, whatever its
//! size and whoever else is at it, though the kernel asks for it in pieces and several servers
//! move them.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use aqueduct_model::Random;
use rustix::process::Signal;

use crate::common::{Enough, Mount, SOON, signal, within};
use crate::lanes::{keep_names, names_of};
use crate::volumes::Volume;

/// Records overlap by a third, and have no round size: pieces end anywhere.
const THIRD: usize = (1 << 20) + 4321;
const THIRDS: usize = 5;
const RECORD: usize = 3 * THIRD;

const ATOMIC: &str = "mode = 'stripe'\nstripe_size = '256KiB'\nwrites = 'data'\natomic = true";

fn open(mount: &Mount, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).create(true).custom_flags(flags).open(mount.join("file")).unwrap()
}

/// What a record of this version begins with from a third on: bytes that differ from version to
/// version, and along the record.
fn filled(version: u32) -> Vec<u8> {
    version.to_le_bytes().repeat(RECORD.div_ceil(4))[..RECORD].to_vec()
}

/// Whether a third is of one version; the bytes of a third begin anywhere in a word.
fn is_whole(third: &[u8]) -> bool {
    third[4..] == third[..third.len() - 4]
}

/// Writers write whole records over each other, readers read all of it at once, each with one
/// system call. Returns how often a third was of more than one version, and how many looks and
/// writes there were.
fn tears(mounts: &[&Mount], flags: i32, time: Duration, stops_at: usize) -> (usize, usize, u32) {
    let (done, version, torn, looks) =
        (AtomicBool::new(false), AtomicU32::new(1), AtomicUsize::new(0), AtomicUsize::new(0));
    open(mounts[0], 0).write_all_at(&vec![0; THIRDS * THIRD], 0).unwrap();
    std::thread::scope(|scope| {
        for (number, mount) in mounts.iter().enumerate() {
            let (done, version, torn, looks) = (&done, &version, &torn, &looks);
            scope.spawn(move || {
                let (file, mut random) = (open(mount, flags), Random::new(number as u64));
                while !done.load(Ordering::SeqCst) {
                    let at = random.below(THIRDS - 2) * THIRD;
                    let data = filled(version.fetch_add(1, Ordering::SeqCst));
                    assert_eq!(file.write_at(&data, at as u64).unwrap(), RECORD);
                }
            });
            scope.spawn(move || {
                let file = open(mount, flags);
                let mut back = vec![0; THIRDS * THIRD];
                while !done.load(Ordering::SeqCst) {
                    assert_eq!(file.read_at(&mut back, 0).unwrap(), THIRDS * THIRD);
                    torn.fetch_add(back.chunks(THIRD).filter(|third| !is_whole(third)).count(), Ordering::SeqCst);
                    looks.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let end = Instant::now() + time;
        while Instant::now() < end && torn.load(Ordering::SeqCst) < stops_at {
            std::thread::sleep(Duration::from_millis(20));
        }
        done.store(true, Ordering::SeqCst);
    });
    (torn.into_inner(), looks.into_inner(), version.into_inner())
}

#[test]
fn what_is_read_and_written_at_once_is_whole() {
    within(Duration::from_secs(240), || {
        let volume = Volume::with(ATOMIC, 3);
        let mounts = [volume.mount(0), volume.mount_with(1, "cache=none"), volume.mount(2)];
        let mounts: Vec<&Mount> = mounts.iter().collect();
        let (torn, looks, versions) = tears(&mounts, 0, Duration::from_secs(12), 1);
        println!("{looks} looks at {versions} versions");
        assert_eq!(torn, 0, "in {looks} looks at {versions} versions");
        assert!(looks > 10 && versions > 10, "{looks} looks at {versions} versions");
        drop(mounts);
    });
}

/// The same check finds what is torn where nobody takes turns.
#[test]
fn without_turns_large_reads_and_writes_are_torn() {
    within(Duration::from_secs(240), || {
        let volume = Volume::with(&ATOMIC.replace("true", "false"), 3);
        let mounts = [volume.mount(0), volume.mount_with(1, "cache=none"), volume.mount(2)];
        let mounts: Vec<&Mount> = mounts.iter().collect();
        let (torn, looks, versions) = tears(&mounts, 0, Duration::from_secs(120), 1);
        assert!(torn > 0, "in {looks} looks at {versions} versions");
    });
}

/// Appends of several pieces, of several mounts, from several parts each, lie one behind the other.
#[test]
fn large_appends_are_whole() {
    within(Duration::from_secs(240), || {
        const EACH: usize = 6;
        let volume = Volume::with(ATOMIC, 2);
        let mounts = [volume.mount(0), volume.mount(1)];
        std::thread::scope(|scope| {
            for (number, mount) in mounts.iter().enumerate() {
                scope.spawn(move || {
                    let mut file = OpenOptions::new().append(true).create(true).open(mount.join("log")).unwrap();
                    for turn in 0..EACH {
                        let data = filled((1 + turn * 2 + number) as u32);
                        let parts: Vec<IoSlice<'_>> = data.chunks(THIRD / 7).map(IoSlice::new).collect();
                        assert_eq!(file.write_vectored(&parts).unwrap(), RECORD);
                    }
                });
            }
        });
        let data = fs::read(mounts[1].join("log")).unwrap();
        assert_eq!(data.len(), 2 * EACH * RECORD);
        let mut versions: Vec<u32> = Vec::new();
        for record in data.chunks(RECORD) {
            assert!(is_whole(record), "after {versions:?}");
            versions.push(u32::from_le_bytes(record[..4].try_into().unwrap()));
        }
        versions.sort_unstable();
        assert_eq!(versions, (1..=2 * EACH as u32).collect::<Vec<_>>());
    });
}

/// Who is killed in the midst of a write does not keep its turn, and the server of the names
/// may be started again meanwhile.
#[test]
fn turns_end_with_who_had_them_and_outlive_a_restart() {
    within(Duration::from_secs(240), || {
        let mut volume = Volume::with(ATOMIC, 2);
        let keeper = keep_names(&mut volume);
        let mut dying = volume.mount(1);
        let other = volume.mount(1);
        let file = open(&dying, 0);
        file.write_all_at(&filled(1), 0).unwrap();
        let writes = std::thread::spawn(move || while file.write_at(&filled(2), 0).is_ok() {});
        std::thread::sleep(Duration::from_millis(700));
        dying.process.signal(Signal::KILL);
        dying.process.ends_within(SOON);
        writes.join().unwrap();
        let mine = open(&other, 0);
        mine.write_all_at(&filled(3), 0).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let rounds = scope.spawn(|| {
                let (mut back, mut rounds) = (vec![0; RECORD], 0u32);
                while !done.load(Ordering::SeqCst) {
                    rounds += 1;
                    mine.write_all_at(&filled(100 + rounds), 0).unwrap();
                    mine.read_exact_at(&mut back, 0).unwrap();
                    assert!(back == filled(100 + rounds), "round {rounds}");
                }
                rounds
            });
            let enough = Enough(&done);
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(500));
                signal(names_of(&volume), Signal::KILL); // it is started again at once
            }
            std::thread::sleep(Duration::from_millis(1500));
            drop(enough);
            assert!(rounds.join().unwrap() > 3);
        });
        drop((mine, dying, other));
        keeper.signal(Signal::KILL);
        signal(names_of(&volume), Signal::KILL);
    });
}
