//! Logs that several clients write.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::{open, read};
use crate::common::{Pair, test};

/// Of several lengths, some above a page.
fn line(writer: usize, number: usize) -> String {
    let length = if number % 40 == 39 { 5000 } else { number % 13 * 7 };
    format!("{writer} {number} {}\n", "x".repeat(length))
}

fn append(path: &Path) -> File {
    OpenOptions::new().append(true).read(true).create(true).open(path).unwrap()
}

fn lines(file: &mut File, writer: usize, count: usize) -> String {
    let text: Vec<String> = (0..count).map(|number| line(writer, number)).collect();
    text.iter().for_each(|line| file.write_all(line.as_bytes()).unwrap());
    text.concat()
}

/// Each line of each writer once, whole, in his order.
fn check_mixed(text: &str, count: usize) {
    let mut next = [0; 2];
    for found in text.lines() {
        let writer: usize = found.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(format!("{found}\n"), line(writer, next[writer]));
        next[writer] += 1;
    }
    assert_eq!(next, [count; 2]);
}

#[test]
fn mounts_append_in_turn_and_at_once() {
    test(|| {
        let pair = Pair::new();
        let there = pair.export.path().join("log");
        let mut wanted = String::new();
        for round in 0..4 {
            let mut files = [&pair.left, &pair.right].map(|mount| append(&mount.join("log")));
            for turn in 0..20 {
                // Long ones and short ones.
                let count = [1, 30, 2, 1, 80][turn % 5];
                wanted += &lines(&mut files[turn % 2], turn % 2, count);
                assert!(read(&files[1 - turn % 2]) == wanted.as_bytes(), "round {round}, turn {turn}");
            }
            thread::scope(|scope| {
                for (writer, file) in files.iter_mut().enumerate() {
                    scope.spawn(move || lines(file, writer, 150));
                }
            });
            let text = fs::read_to_string(pair.right.join("log")).unwrap();
            let (before, mixed) = text.split_at(wanted.len());
            assert!(before == wanted, "round {round}");
            check_mixed(mixed, 150);
            // Emptied by one while the other has it open, as logs are that are copied away.
            if round % 2 == 0 {
                wanted = text;
            } else {
                lines(&mut files[0], 0, 5);
                open(&pair.right.join("log")).set_len(0).unwrap();
                wanted = lines(&mut files[0], 0, 5);
            }
            drop(files);
            assert!(fs::read(&there).unwrap() == wanted.as_bytes(), "round {round}");
            thread::sleep(Duration::from_millis(150)); // contention is over
        }
    });
}

/// Records of 4 bytes, which are held back while a mount is alone with its log: in turn, at once,
/// and by programs at the server beside. Where a descriptor stands after an append, POSIX says.
#[test]
fn small_records_of_two_mounts_are_there_once_and_whole() {
    const EACH: u32 = 3000;
    test(|| {
        let pair = Pair::new();
        let there = pair.export.path().join("log");
        let record = |writer: u32, number: u32| (writer << 24 | number).to_le_bytes();
        let mut alone = append(&pair.left.join("log"));
        for number in 0..EACH {
            alone.write_all(&record(0, number)).unwrap();
            assert_eq!(alone.stream_position().unwrap(), 4 * u64::from(number + 1), "at the end");
        }
        assert_eq!(alone.metadata().unwrap().len(), 4 * u64::from(EACH));
        thread::scope(|scope| {
            for (writer, path) in [(1, pair.left.join("log")), (2, pair.right.join("log")), (3, there.clone())] {
                scope.spawn(move || {
                    let mut file = append(&path);
                    for number in 0..EACH {
                        file.write_all(&record(writer, number)).unwrap();
                        if number % 500 == 0 {
                            thread::sleep(Duration::from_millis(120)); // the others have it alone
                        }
                    }
                });
            }
        });
        alone.write_all(&record(0, EACH)).unwrap();
        alone.sync_all().unwrap();
        let bytes = fs::read(&there).unwrap();
        assert!(fs::read(pair.right.join("log")).unwrap() == bytes);
        let mut next = [0; 4];
        for found in bytes.chunks(4) {
            let found = u32::from_le_bytes(found.try_into().unwrap());
            let writer = (found >> 24) as usize;
            assert_eq!(found & 0xff_ffff, next[writer], "of writer {writer}");
            next[writer] += 1;
        }
        assert_eq!(next, [EACH + 1, EACH, EACH, EACH]);
    });
}

/// Each finds the last line that anybody wrote, and writes the next, in pieces.
#[test]
fn who_locks_a_log_goes_on_where_the_last_one_ended() {
    const EACH: usize = 60;
    test(|| {
        let pair = Pair::new();
        fs::write(pair.left.join("log"), "00000000\n").unwrap();
        thread::scope(|scope| {
            for mount in [&pair.left, &pair.left, &pair.right] {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let file = open(&mount.join("log"));
                        flock(&file, FlockOperation::LockExclusive).unwrap();
                        let (size, mut last) = (file.metadata().unwrap().len(), [0; 9]);
                        file.read_exact_at(&mut last, size - 9).unwrap();
                        let number: usize = str::from_utf8(&last[..8]).unwrap().parse().unwrap();
                        let next = format!("{:08}\n", number + 1);
                        for at in [0, 3, 6] {
                            file.write_all_at(&next.as_bytes()[at..at + 3], size + at as u64).unwrap();
                        }
                        flock(&file, FlockOperation::Unlock).unwrap();
                    }
                });
            }
        });
        let wanted: String = (0..=3 * EACH).map(|number| format!("{number:08}\n")).collect();
        assert_eq!(fs::read_to_string(pair.export.path().join("log")).unwrap(), wanted);
    });
}
