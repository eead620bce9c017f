//! Random operations on mounts and on a local directory, every result compared (crates/model).
//!
//! A failure prints its seed and how to replay it with `aqueduct-model`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aqueduct_model::{Profile, Settings, Tally, check_seed, generate, minimise};

use crate::common::{Mount, One, Pair, directory, disk_directory, within};

const OPERATIONS: usize = 300;

/// Fewer seeds than this are a machine that is too slow to tell.
const SEEDS_MIN: u64 = 5;

/// Runs seed after seed for `time`.
pub fn assert_alike(reference: &Path, subjects: &[&Mount], first: u64, time: Duration) {
    let settings = Settings {
        reference: reference.to_owned(),
        subjects: subjects.iter().map(|mount| mount.path().to_owned()).collect::<Vec<PathBuf>>(),
        operations: OPERATIONS,
        patience: Duration::from_secs(20),
        restarts: false,
    };
    let profile = Profile::probe(reference, &settings.subjects).unwrap();
    println!("left out: {:?}", profile.left_out());
    let mut tally = Tally::default();
    let started = Instant::now();
    let mut seed = first;
    while started.elapsed() < time || seed < first + SEEDS_MIN {
        if let Err(divergence) = check_seed(&settings, &profile, seed, &mut tally).unwrap() {
            println!("seed {seed}: {divergence}");
            let ops = generate(seed, OPERATIONS, &profile);
            let minimal = minimise(&settings, &ops, divergence, Duration::from_secs(20)).unwrap();
            let kept: Vec<_> = minimal.ops.iter().map(|op| op.index.to_string()).collect();
            let replay = format!("--seed {seed} --operations {OPERATIONS} --keep {}", kept.join(","));
            panic!("seed {seed} differs:\n{:#?}\n{}\nreplay: {replay}", minimal.ops, minimal.divergence);
        }
        seed += 1;
    }
    println!("{} seeds of {OPERATIONS} operations\n{tally}", seed - first);
}

/// Each close counts: else the locks of a process may outlive the close of a descriptor that was opened before them (SEMANTICS.md).
const STRICT: &str = "strict_unlock";

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn one_mount_behaves_as_a_local_directory() {
    within(LIMIT, || {
        let (one, reference) = (One::with(STRICT), directory());
        assert_alike(reference.path(), &[&one.mount], 0, Duration::from_secs(15));
    });
}

#[test]
fn two_mounts_in_turn_behave_as_one_local_directory() {
    within(LIMIT, || {
        let (pair, reference) = (Pair::with(STRICT), directory());
        assert_alike(reference.path(), &[&pair.left, &pair.right], 10_000, Duration::from_secs(15));
    });
}

#[test]
fn a_mount_of_a_disk_behaves_as_a_disk() {
    within(LIMIT, || {
        let (pair, reference) = (One::over(disk_directory(), STRICT), disk_directory());
        assert_alike(reference.path(), &[&pair.mount], 20_000, Duration::from_secs(8));
    });
}

#[test]
fn a_local_mount_behaves_as_its_directory() {
    within(LIMIT, || {
        let (source, reference) = (directory(), directory());
        let mount = Mount::local(source.path());
        assert_alike(reference.path(), &[&mount], 30_000, Duration::from_secs(6));
    });
}

/// A single client's caches must not show either.
#[test]
fn a_cached_mount_behaves_as_a_local_directory() {
    within(LIMIT, || {
        for (first, options) in [(40_000, "cache=close-to-open"), (50_000, "attr_timeout=10,entry_timeout=10")] {
            let (one, reference) = (One::with(options), directory());
            assert_alike(reference.path(), &[&one.mount], first, Duration::from_secs(4));
        }
    });
}
