//! Counters in files that all mounts share, each guarded by one kind of lock: an increment that is lost or done twice shows a lock that did not hold.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::{Outcome, Report, Stop, Work, now};
use crate::sys::{self, Hold, Request};

/// One for each kind of lock.
pub const NAMES: [&str; 3] = ["process", "openfile", "flock"];

/// For each counter: increments that were done, and such as may have been.
pub type Increments = [(u64, u64); NAMES.len()];

/// How long a program that has lost its mount may need to say so.
const SAID: Duration = Duration::from_secs(3);

/// Count and who is inside (0: nobody).
fn encode(count: u64, inside: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    bytes[8..].copy_from_slice(&inside.to_le_bytes());
    bytes
}

fn read(file: &File) -> io::Result<(u64, u64)> {
    let mut bytes = [0; 16];
    file.read_exact_at(&mut bytes, 0)?;
    let (count, inside) = bytes.split_at(8);
    Ok((u64::from_le_bytes(count.try_into().unwrap()), u64::from_le_bytes(inside.try_into().unwrap())))
}

/// The counters, before anybody counts.
pub fn prepare(folder: &Path) {
    for name in NAMES {
        std::fs::write(folder.join(name), encode(0, 0)).unwrap();
        std::fs::set_permissions(folder.join(name), PermissionsExt::from_mode(0o666)).unwrap();
    }
}

/// Compares the counters with what the programs say.
pub fn audit(folder: &Path, reports: &[Report]) -> Vec<String> {
    let wrong = |(kind, name): (usize, &&str)| {
        let (count, inside) = read(&File::open(folder.join(name)).unwrap()).unwrap();
        let sure: u64 = reports.iter().map(|report| report.increments[kind].0).sum();
        let unsure: u64 = reports.iter().map(|report| report.increments[kind].1).sum();
        let right = (sure..=sure + unsure).contains(&count);
        (!right)
            .then(|| format!("{name} counts {count} ({inside} inside) after {sure} increments and perhaps {unsure}"))
    };
    NAMES.iter().enumerate().filter_map(wrong).collect()
}

fn lock(file: &File, kind: usize, hold: bool, wait: bool) -> io::Result<()> {
    let range = if hold { Hold::Write } else { Hold::Unlock };
    match kind {
        0 => sys::lock(file.as_fd(), Request::Process, range, 0, 0, wait),
        1 => sys::lock(file.as_fd(), Request::OpenFile, range, 0, 0, wait),
        _ => {
            let operation = match (hold, wait) {
                (true, true) => FlockOperation::LockExclusive,
                (true, false) => FlockOperation::NonBlockingLockExclusive,
                _ => FlockOperation::Unlock,
            };
            Ok(flock(file, operation)?)
        }
    }
}

/// A life: counts until the end, or until its mount is killed.
pub fn work(work: &mut Work, life: u64) -> Outcome<()> {
    let me = (work.part.number as u64 + 1) * 1000 + life;
    let ended = live(work, me);
    if matches!(ended, Err(Stop::Gone)) {
        std::fs::write(dead_path(work, me), "").unwrap();
        work.await_mount();
    }
    ended
}

fn dead_path(work: &Work, who: u64) -> PathBuf {
    work.part.control.join(format!("dead-{who}"))
}

fn live(work: &mut Work, me: u64) -> Outcome<()> {
    let mut files: [Option<File>; NAMES.len()] = Default::default();
    while !work.is_over() {
        let kind = work.random.below(NAMES.len());
        let path = work.point().join("shared").join(NAMES[kind]);
        let file = match files[kind].take() {
            Some(file) => file,
            None => {
                work.surely(&format!("open {}", NAMES[kind]), || OpenOptions::new().read(true).write(true).open(&path))?
            }
        };
        let wait = work.random.chance(60);
        match work.ask(&format!("lock {}, wait: {wait}", NAMES[kind]), || lock(&file, kind, true, wait))? {
            Ok(()) => {}
            Err(libc::EAGAIN) if !wait => {
                thread::sleep(Duration::from_millis(5));
                continue;
            }
            Err(errno) => return Err(work.unexpected(&format!("lock {}", NAMES[kind]), errno)),
        }
        increment(work, &file, kind, me)?;
        // Some stay open, some let the last close unlock. Until either has been answered, what was written may be held back, and lost with the mount.
        if work.random.chance(70) {
            work.surely(&format!("unlock {}", NAMES[kind]), || lock(&file, kind, false, false))?;
            files[kind] = Some(file);
        } else {
            work.surely(&format!("close {}", NAMES[kind]), || sys::close(file))?;
        }
        work.report.increments[kind].1 -= 1;
        work.report.increments[kind].0 += 1;
        work.pause();
    }
    Ok(())
}

/// Inside the lock; as one more that may have been done.
fn increment(work: &mut Work, file: &File, kind: usize, me: u64) -> Outcome<()> {
    let (count, inside) = work.surely(&"read the counter", || read(file))?;
    if inside != 0 {
        let began = now();
        let mut seen = Vec::new();
        let server = File::open(work.part.export.join("shared").join(NAMES[kind]));
        while !dead_path(work, inside).exists() {
            // What the server has tells a lock that did not hold from bytes that are old.
            let next = (read(file).ok(), server.as_ref().ok().and_then(|file| read(file).ok()));
            if seen.last().is_none_or(|(_, last)| *last != next) {
                seen.push(((now() - began) / 1_000_000, next));
            }
            let text = format!(
                "{} says that {inside} is inside ({count}), and {me} has got the lock; then (ms, here, at the server): {seen:?}",
                NAMES[kind],
            );
            work.check(now() - began < SAID.as_nanos() as u64, text)?;
            thread::sleep(Duration::from_millis(10));
        }
    }
    work.surely(&"enter", || file.write_all_at(&encode(count, me), 0))?;
    // So long that somebody is inside, and somebody waits, whenever something happens.
    thread::sleep(Duration::from_millis(work.random.below(20) as u64));
    let again = work.surely(&"read the counter again", || read(file))?;
    work.check(again == (count, me), format!("{} was {:?}, is {again:?} inside the lock", NAMES[kind], (count, me)))?;
    work.report.increments[kind].1 += 1;
    work.surely(&"count", || file.write_all_at(&encode(count + 1, 0), 0))
}
