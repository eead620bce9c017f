//! Small writes. Whatever a client holds back of them, and sends later and together, nobody sees a difference; only programs on the server itself, for a
//! second, of what was neither closed nor synced.

mod endings;
mod failures;
mod logs;
mod looks;
pub mod modes;
pub mod records;
mod sequences;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_model::Random;
use rustix::process::Signal;

use crate::common::{Mount, One, Pair, SOON, is_linux, patience, shell, test, wait_until};
use crate::sys::{self, Mapping};

/// Nothing is held back for longer than 1 s; on a busy machine a little longer.
const HELD_MAX: Duration = Duration::from_secs(5);

fn create(path: &Path) -> File {
    File::options().read(true).write(true).create_new(true).open(path).unwrap()
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// All of a file that was opened before.
fn read(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// What has to be in a file that is written in small pieces.
struct Content {
    bytes: Vec<u8>,
    random: Random,
}

impl Content {
    fn new(seed: u64) -> Content {
        Content { bytes: Vec::new(), random: Random::new(seed) }
    }

    fn put(&mut self, at: usize, data: &[u8]) {
        self.bytes.resize(self.bytes.len().max(at + data.len()), 0);
        self.bytes[at..at + data.len()].copy_from_slice(data);
    }

    /// So many writes, mostly where the file ends, some of them larger than a page.
    fn write(&mut self, file: &File, count: usize) {
        for _ in 0..count {
            let end = self.bytes.len();
            let at = if self.random.chance(70) { end } else { self.random.below(end + 1) };
            let most = if self.random.chance(90) { 300 } else { 6000 };
            let data: Vec<u8> = (0..1 + self.random.below(most)).map(|_| 1 + self.random.below(255) as u8).collect();
            file.write_all_at(&data, at as u64).unwrap();
            self.put(at, &data);
        }
    }
}

#[test]
fn what_was_closed_or_synced_is_on_the_server() {
    type Way = (&'static str, fn(&File));
    test(|| {
        let one = One::new();
        let ways: [Way; 3] = [
            ("fsync", |file| file.sync_all().unwrap()),
            ("fdatasync", |file| file.sync_data().unwrap()),
            ("close of a duplicate", |file| sys::close(file.try_clone().unwrap()).unwrap()),
        ];
        for (number, (name, way)) in ways.iter().enumerate() {
            let (mut content, file) = (Content::new(number as u64), create(&one.path(name)));
            for round in 0..30 {
                content.write(&file, 1 + round % 20);
                way(&file);
                assert!(fs::read(one.export.path().join(name)).unwrap() == content.bytes, "{name}, round {round}");
            }
        }
        let (mut content, path) = (Content::new(10), one.path("close"));
        drop(create(&path));
        for round in 0..30 {
            let file = open(&path);
            content.write(&file, 1 + round % 20);
            sys::close(file).unwrap();
            assert!(fs::read(one.export.path().join("close")).unwrap() == content.bytes, "close, round {round}");
        }
        let file = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(&path).unwrap();
        for round in 0..30 {
            content.write(&file, 1);
            assert!(fs::read(one.export.path().join("close")).unwrap() == content.bytes, "O_SYNC, round {round}");
        }
        // As programs end that close nothing, and a shell whose parts write into what it has opened.
        let script = "exec 3> ended; printf a >&3; (printf b; printf c) >&3; cat /proc/self/comm >&3; printf d >&3";
        shell(one.mount.path(), script).succeeded();
        assert_eq!(fs::read_to_string(one.export.path().join("ended")).unwrap(), "abccat\nd");
    });
}

#[test]
fn what_was_written_is_on_the_server_within_a_second() {
    test(|| {
        let one = One::new();
        let (mut content, path, there) = (Content::new(1), one.path("file"), one.export.path().join("file"));
        let file = create(&path);
        content.write(&file, 20);
        wait_until("what was written is there", HELD_MAX, || fs::read(&there).unwrap() == content.bytes);
        // Who goes on writing, at the end or always in the same place, does not put it off.
        for at_end in [true, false] {
            let started = Instant::now();
            let goal = fs::read(&there).unwrap().len() + 100;
            for number in 1.. {
                let place = if at_end { goal as u64 + number } else { 0 };
                file.write_all_at(&[number as u8], place).unwrap();
                let bytes = fs::read(&there).unwrap();
                if number > 10 && (if at_end { bytes.len() > goal } else { (5..128).contains(&bytes[0]) }) {
                    break;
                }
                assert!(started.elapsed() < HELD_MAX, "it is held back while others are written");
                thread::sleep(Duration::from_millis(50));
            }
            file.write_all_at(&[0], 0).unwrap();
            file.sync_all().unwrap();
        }
    });
}

#[test]
fn a_mount_that_ends_holds_nothing_back() {
    test(|| {
        let mut one = One::new();
        let mut content = Content::new(1);
        let file = create(&one.path("file"));
        content.write(&file, 50);
        one.mount.process.signal(Signal::TERM);
        let there = one.export.path().join("file");
        wait_until("what was written is there", HELD_MAX, || fs::read(&there).unwrap() == content.bytes);
        drop(file);
        one.mount.process.ends_within(SOON);
        assert!(fs::read(there).unwrap() == content.bytes);
    });
}

#[test]
fn two_mounts_write_one_file_in_turn() {
    /// Takes less than a second; who waits each time until something has run out takes much longer.
    const MOST: Duration = Duration::from_secs(25);
    test(|| {
        let pair = Pair::new();
        let mut content = Content::new(1);
        drop(create(&pair.left.join("file")));
        let began = Instant::now();
        for _ in 0..6 {
            // Granted anew, if that makes a difference.
            let files = [&pair.left, &pair.right].map(|mount| open(&mount.join("file")));
            for turn in 0..40 {
                let (here, there) = (&files[turn % 2], &files[1 - turn % 2]);
                content.write(here, 1 + turn % 7);
                assert!(read(there) == content.bytes, "turn {turn}");
                // Of what was just read.
                content.write(there, turn % 3);
                assert!(read(here) == content.bytes && read(there) == content.bytes, "turn {turn}");
            }
            drop(files);
            assert!(fs::read(pair.export.path().join("file")).unwrap() == content.bytes);
            thread::sleep(Duration::from_millis(100));
        }
        assert!(began.elapsed() < MOST * patience(), "{:?}", began.elapsed());
    });
}

/// Whoever of both comes last stays, and others see it.
#[test]
fn writes_and_stores_through_a_mapping_keep_their_order() {
    test(|| {
        let pair = Pair::new();
        for round in 0..40usize {
            let (here, there) = if round % 2 == 0 { (&pair.left, &pair.right) } else { (&pair.right, &pair.left) };
            let name = format!("file-{round}");
            write_and_store(here, there, &name, round);
            let left = fs::read(pair.export.path().join(&name)).unwrap();
            assert!(left == fs::read(there.join(&name)).unwrap());
        }
    });
}

fn write_and_store(here: &Mount, there: &Mount, name: &str, round: usize) {
    let mut content = Content::new(round as u64);
    let file = create(&here.join(name));
    content.write(&file, 20);
    let length = content.bytes.len();
    let mapping = Mapping::new(file.as_fd(), length).unwrap();
    for step in 0..4 {
        let at = content.random.below(length);
        mapping.store(at, &[step as u8]);
        content.put(at, &[step as u8]);
        // Over what was stored, beside it, and over what was there before.
        let near = at.saturating_sub(step * 7);
        file.write_all_at(&[100 + step as u8; 5], near as u64).unwrap();
        content.put(near, &[100 + step as u8; 5]);
        content.write(&file, round % 3);
        let at = content.random.below(length);
        mapping.store(at, &[200 + step as u8]);
        content.put(at, &[200 + step as u8]);
        if step % 2 == round % 2 {
            mapping.sync().unwrap();
            assert!(fs::read(there.join(name)).unwrap() == content.bytes, "after msync, round {round}, step {step}");
        }
    }
    mapping.store(length / 2, &[250u8]);
    content.put(length / 2, &[250]);
    drop(mapping);
    if round % 4 < 2 {
        let is_there = || fs::read(there.join(name)).unwrap() == content.bytes;
        // Before Linux 6.16 the kernel begins to write there, and does not wait for it.
        match is_linux((6, 16)) {
            true => assert!(is_there(), "after munmap, round {round}"),
            false => wait_until("what was stored is there after munmap", SOON, is_there),
        }
    }
    content.write(&file, 3);
    sys::close(file).unwrap();
    assert!(fs::read(there.join(name)).unwrap() == content.bytes, "after close, round {round}");
}
