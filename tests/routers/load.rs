//! Programs that write and read through a mount while something happens below it.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::{SOON, wait_until};

/// Threads of a load, each with files of its own.
const THREADS: usize = 4;

/// The length of a file: some are one message, some several.
const LENGTHS: [usize; 3] = [100, 70_000, 1_500_000];

/// Files of a thread, which are written again and again.
const FILES: usize = 6;

/// A load that runs.
pub struct Load {
    ends: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Done>>,
}

/// What one thread has done.
struct Done {
    /// What each file holds.
    files: Vec<(PathBuf, Vec<u8>)>,
    slowest: Duration,
}

fn content(thread: usize, round: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251 + thread * 31 + round * 13) as u8).collect()
}

impl Load {
    /// Writes, syncs, reads and lists below a directory, until it is told to end.
    pub fn start(directory: &Path) -> Load {
        let (ends, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = |number: usize| {
            let (directory, ends, rounds) = (directory.to_owned(), ends.clone(), rounds.clone());
            thread::spawn(move || work(&directory, number, &ends, &rounds))
        };
        let load = Load { threads: (0..THREADS).map(thread).collect(), ends: ends.clone(), rounds: rounds.clone() };
        load.goes_on();
        load
    }

    /// Waits until every thread may have done something more.
    pub fn goes_on(&self) {
        let before = self.rounds.load(Ordering::SeqCst);
        let more = || self.rounds.load(Ordering::SeqCst) >= before + 2 * THREADS as u64;
        wait_until("the load goes on", SOON, || more() || self.threads.iter().any(|thread| thread.is_finished()));
    }

    /// Ends it: nothing has failed, and what was written is there, at the mount and in the export.
    /// How long one operation took at most.
    pub fn ends_well(self, mount: &Path, export: &Path) -> Duration {
        self.ends.store(true, Ordering::SeqCst);
        let done: Vec<Done> = self.threads.into_iter().map(|thread| thread.join().expect("no error")).collect();
        for (path, content) in done.iter().flat_map(|done| &done.files) {
            assert!(fs::read(path).unwrap() == *content, "{}", path.display());
            let there = export.join(path.strip_prefix(mount).unwrap());
            assert!(fs::read(&there).unwrap() == *content, "{}", there.display());
        }
        done.iter().map(|done| done.slowest).max().unwrap()
    }
}

fn work(directory: &Path, number: usize, ends: &AtomicBool, rounds: &AtomicU64) -> Done {
    let own = directory.join(format!("of-{number}"));
    fs::create_dir(&own).unwrap();
    let mut done = Done { files: Vec::new(), slowest: Duration::ZERO };
    for round in 0.. {
        if ends.load(Ordering::SeqCst) {
            break;
        }
        let path = own.join(format!("file-{}", round % FILES));
        let content = content(number, round, LENGTHS[(number + round) % LENGTHS.len()]);
        let took = |done: &mut Done, what: &str, work: &dyn Fn() -> std::io::Result<()>| {
            let began = Instant::now();
            work().unwrap_or_else(|error| panic!("{what} {}: {error}", path.display()));
            done.slowest = done.slowest.max(began.elapsed());
        };
        took(&mut done, "writing", &|| {
            let mut file = File::create(&path)?;
            file.write_all(&content)?;
            file.sync_all()
        });
        took(&mut done, "reading", &|| fs::read(&path).map(|read| assert!(read == content, "{}", path.display())));
        // Each of these changes something once, and fails when it is done twice.
        let moved = own.join("moved");
        took(&mut done, "renaming", &|| fs::rename(&path, &moved).and_then(|()| fs::rename(&moved, &path)));
        took(&mut done, "making a folder", &|| fs::create_dir(&moved).and_then(|()| fs::remove_dir(&moved)));
        took(&mut done, "listing", &|| {
            fs::read_dir(&own).map(|entries| assert!(entries.count() >= 1, "{}", own.display()))
        });
        done.files.retain(|(known, _)| *known != path);
        done.files.push((path, content));
        rounds.fetch_add(1, Ordering::SeqCst);
    }
    done
}
