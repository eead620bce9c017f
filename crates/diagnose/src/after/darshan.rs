//! Dumps of `darshan-parser`: what each rank did to each file, and where the file lies.

use std::collections::BTreeMap;

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

/// Counters of a file, as far as they are used here.
#[derive(Default)]
struct Counters<'a> {
    numbers: BTreeMap<&'a str, f64>,
    targets: Vec<u64>,
    name: &'a str,
    is_shared: bool,
}

/// Reads a dump. Lines that are none are passed over, as warnings before the header are.
pub(super) fn parse(text: &str) -> Vec<FileOfRun> {
    let mut found: BTreeMap<(&str, &str), Counters<'_>> = BTreeMap::new();
    let mut places: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split('\t').collect();
        let [module, rank, record, counter, value, name, ..] = words[..] else { continue };
        if module == "LUSTRE" {
            let is_target = counter.starts_with("LUSTRE_OST_ID_") || counter.contains("_OST_ID_");
            if let Some(target) = value.parse().ok().filter(|_| is_target) {
                places.entry(record).or_default().push(target);
            }
            continue;
        }
        let Some(short) = counter.strip_prefix(module).filter(|_| module == "POSIX") else { continue };
        let Ok(number) = value.parse::<f64>() else { continue };
        let counters = found.entry((record, rank)).or_default();
        (counters.name, counters.is_shared) = (name, rank == "-1");
        counters.numbers.insert(short, number);
    }
    for ((record, _), counters) in &mut found {
        counters.targets = places.get(record).cloned().unwrap_or_default();
    }
    found.into_values().map(file).collect()
}

fn file(counters: Counters<'_>) -> FileOfRun {
    // What was not watched is told as -1.
    let of = |name: &str| counters.numbers.get(name).copied().unwrap_or(0.0).max(0.0);
    FileOfRun {
        name: counters.name.to_owned(),
        bytes: [of("_BYTES_READ"), of("_BYTES_WRITTEN")],
        seconds: [of("_F_READ_TIME"), of("_F_WRITE_TIME")],
        names_seconds: of("_F_META_TIME"),
        targets: counters.targets,
        is_shared: counters.is_shared,
    }
}
