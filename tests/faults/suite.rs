//! The sample that `make test` runs, and what `make faults` asks for.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::common::{have, within};
use crate::plan::{KINDS, plan};
use crate::run::{Summary, run};

/// Faults of one seed: half a minute.
const FAULTS_OF_SEED: usize = 40;

/// The sample: a fixed seed whose first faults are of every kind.
const SAMPLE: (u64, usize) = (197, 23);

/// A seed takes no longer, with all that is waited for.
const SEED_MAX: Duration = Duration::from_secs(240);

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not '{text}'")))
}

/// The seeds to run, each with its number of faults.
fn wanted() -> Vec<(u64, usize)> {
    match (variable("SEED"), variable("FAULTS")) {
        (None, None) => vec![SAMPLE],
        (Some(seed), count) => vec![(seed, count.map_or(FAULTS_OF_SEED, |count| count as usize))],
        (None, Some(count)) => {
            let seeds = (count as usize).div_ceil(FAULTS_OF_SEED);
            let first = variable("FIRST_SEED").unwrap_or(1);
            let of = |number: usize| (count as usize - number * FAULTS_OF_SEED).min(FAULTS_OF_SEED);
            (0..seeds).map(|number| (first + number as u64, of(number))).collect()
        }
    }
}

/// The faults of a plan that are not left out.
fn kept() -> Option<Vec<usize>> {
    let text = std::env::var("KEEP").ok().filter(|text| !text.is_empty())?;
    Some(text.split(',').map(|index| index.parse().expect("KEEP is a list of numbers")).collect())
}

#[test]
fn nothing_is_lost_or_done_twice_whatever_happens() {
    let seeds = wanted();
    let limit = SEED_MAX * seeds.len() as u32;
    within(limit, move || {
        if have(&["mkfs.ext4", "mkfs.btrfs", "btrfs", "mount", "truncate", "setquota"]) {
            run_seeds(&seeds);
        }
    });
}

#[test]
fn the_sample_has_every_kind_of_fault() {
    let missing = |(seed, count)| {
        let planned = plan(seed, count);
        KINDS.into_iter().filter(|kind| planned.iter().all(|fault| fault.fault.kind() != *kind)).collect::<Vec<_>>()
    };
    assert_eq!(missing(SAMPLE), Vec::<&str>::new());
}

fn run_seeds(seeds: &[(u64, usize)]) {
    let (mut total, mut bad) = (Summary::default(), Vec::new());
    for &(seed, count) in seeds {
        let mut planned = plan(seed, count);
        if let Some(kept) = kept() {
            planned.retain(|fault| kept.contains(&fault.index));
        }
        let summary = run(seed, &planned);
        println!("seed {seed}: {}", line(&summary));
        record(seed, count, &summary);
        if let Some(home) = &summary.home {
            println!("  replay: make faults SEED={seed} FAULTS={count}; logs: {}", home.display());
            planned.iter().for_each(|fault| println!("  {:3} at {:?}: {:?}", fault.index, fault.at, fault.fault));
            summary.findings.iter().for_each(|finding| println!("  FOUND: {finding}"));
            bad.push(seed);
        }
        add(&mut total, summary);
    }
    println!("{} seeds: {}", seeds.len(), line(&total));
    assert!(bad.is_empty(), "something was found with the seeds {bad:?}");
}

fn add(total: &mut Summary, summary: Summary) {
    summary.faults.into_iter().for_each(|(kind, count)| *total.faults.entry(kind).or_default() += count);
    total.operations += summary.operations;
    total.bytes += summary.bytes;
    total.refusals += summary.refusals;
    total.deaths += summary.deaths;
    total.held_back += summary.held_back;
    total.seconds += summary.seconds;
    total.findings.extend(summary.findings);
}

fn line(summary: &Summary) -> String {
    let kinds: Vec<_> =
        KINDS.iter().filter_map(|kind| summary.faults.get(kind).map(|count| format!("{kind} {count}"))).collect();
    format!(
        "{} faults ({}), {} operations, {} MiB checked, {} writes held back, {} refused for want of room, {:.0} s: {} findings",
        summary.faults.values().sum::<usize>(),
        kinds.join(", "),
        summary.operations,
        summary.bytes >> 20,
        summary.held_back,
        summary.refusals,
        summary.seconds,
        summary.findings.len()
    )
}

/// A line of JSON for each seed, when RECORD names the file.
fn record(seed: u64, planned: usize, summary: &Summary) {
    let Some(path) = std::env::var_os("RECORD").filter(|path| !path.is_empty()) else { return };
    let commit = std::env::var("COMMIT").unwrap_or_default();
    let faults: BTreeMap<_, _> = summary.faults.iter().collect();
    let line = json!({
        "commit": commit,
        "seed": seed,
        "planned": planned,
        "faults": faults,
        "operations": summary.operations,
        "bytes_checked": summary.bytes,
        "held_back": summary.held_back,
        "refusals": summary.refusals,
        "seconds": summary.seconds.round(),
        "findings": summary.findings,
    });
    fs::create_dir_all(Path::new(&path).parent().expect("a file in a folder")).unwrap();
    let mut file = OpenOptions::new().create(true).append(true).open(Path::new(&path)).unwrap();
    writeln!(file, "{line}").unwrap();
}
