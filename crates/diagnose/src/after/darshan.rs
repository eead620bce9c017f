//! Dumps of `darshan-parser`: what each rank did to each file, and where the file lies.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A file of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileOfRun {
    /// Its name.
    pub name: String,
    /// Bytes that were read and written.
    pub bytes: [f64; 2],
    /// Seconds that this took, and that names and attributes took.
    pub seconds: [f64; 2],
    /// See `seconds`.
    pub names_seconds: f64,
    /// The targets of the file system that have it, by number.
    pub targets: Vec<u64>,
    /// More than one rank used it: its times are sums.
    pub is_shared: bool,
}

/// The counters that are used, behind the name of their module.
const COUNTERS: [&str; 5] = ["_BYTES_READ", "_BYTES_WRITTEN", "_F_READ_TIME", "_F_WRITE_TIME", "_F_META_TIME"];

/// Counters of a file and a rank.
struct Counters {
    /// By [`COUNTERS`].
    numbers: [f64; COUNTERS.len()],
    name: Arc<str>,
    is_shared: bool,
}

/// A dump that is read line by line.
#[derive(Default)]
pub(super) struct Dump {
    /// By record and rank.
    found: BTreeMap<(u64, i64), Counters>,
    /// Targets by record.
    places: BTreeMap<u64, Vec<u64>>,
    names: BTreeMap<u64, Arc<str>>,
}

impl Dump {
    /// Reads a line. One that is none is passed over, as warnings before the header are.
    pub(super) fn line(&mut self, line: &str) {
        if line.starts_with('#') {
            return;
        }
        let mut words = line.split('\t');
        let mut next = || words.next();
        let (Some(module), Some(rank), Some(record)) = (next(), next(), next()) else { return };
        let (Some(counter), Some(value), Some(name)) = (next(), next(), next()) else { return };
        let (Ok(rank), Ok(record)) = (rank.parse(), record.parse()) else { return };
        if module == "LUSTRE" {
            let is_target = counter.contains("_OST_ID_");
            if let Some(target) = value.parse().ok().filter(|_| is_target) {
                self.places.entry(record).or_default().push(target);
            }
            return;
        }
        let Some(short) = counter.strip_prefix(module).filter(|_| module == "POSIX") else { return };
        let at = COUNTERS.iter().position(|counter| *counter == short);
        let (Some(at), Ok(number)) = (at, value.parse::<f64>()) else { return };
        let name = self.names.entry(record).or_insert_with(|| name.into()).clone();
        let is_shared = rank == -1;
        let counters = self.found.entry((record, rank)).or_insert_with(|| Counters {
            numbers: Default::default(),
            name,
            is_shared,
        });
        counters.numbers[at] = number;
    }

    /// How many files and targets are kept.
    pub(super) fn len(&self) -> usize {
        self.found.len() + self.places.values().map(Vec::len).sum::<usize>()
    }

    pub(super) fn files(self) -> Vec<FileOfRun> {
        let places = &self.places;
        let all = self.found.into_iter();
        all.map(|((record, _), counters)| file(counters, places.get(&record).cloned().unwrap_or_default())).collect()
    }
}

fn file(counters: Counters, targets: Vec<u64>) -> FileOfRun {
    // What was not watched is told as -1.
    let [read, written, read_time, write_time, names_seconds] = counters.numbers.map(|number| number.max(0.0));
    FileOfRun {
        name: counters.name.to_string(),
        bytes: [read, written],
        seconds: [read_time, write_time],
        names_seconds,
        targets,
        is_shared: counters.is_shared,
    }
}
