//! Reads records. What they hold came from other machines, and may have been cut off or damaged: each line is checked, and what is wrong is said with its file and line.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Failure;
use crate::record::{Environment, Line, Measured, SCHEMA, Sample};

/// The most of one file that is read.
pub const FILE_BYTES_MAX: u64 = 2 << 30;
/// The longest line: a sample with a series of some days.
pub const LINE_BYTES_MAX: usize = 16 << 20;
/// The most samples of one report.
pub const SAMPLES_MAX: usize = 2_000_000;
/// The most figures of all series together.
pub const SERIES_MAX: usize = 50_000_000;
/// The most runs of one report.
pub const RUNS_MAX: usize = 10_000;
/// The most parameters, or further figures, of one sample.
pub const NAMES_MAX: usize = 256;
/// The most damaged lines that are named one by one.
const NAMED_MAX: usize = 10;

/// What every line of a sweep has, and none of a single benchmark.
const KIND: &[u8] = b"\"kind\"";

/// What single benchmarks say beside their figures that tells points apart.
const SETTINGS: [&str; 8] = ["size", "window", "streams", "congestion", "pairs", "tasks", "transfer", "block"];

/// What was read, in the order of the files.
#[derive(Debug, Default)]
pub struct Records {
    /// By run.
    pub runs: Vec<Environment>,
    /// All, those for warming up too.
    pub samples: Vec<Sample>,
    /// What a reader of the report must know about the records.
    pub notes: Vec<String>,
    /// How many figures all series have.
    pub series: usize,
    /// How many damaged lines were left out.
    pub skipped: usize,
}

/// Reads all files. With `skip_damaged` lines that make no sense are left out, and named in the notes.
pub fn load(paths: &[PathBuf], skip_damaged: bool) -> Result<Records, Failure> {
    let mut records = Records::default();
    let mut seen = HashSet::new();
    let mut twice = 0;
    for path in paths {
        read(path, skip_damaged, &mut records, &mut seen, &mut twice)?;
    }
    if twice > 0 {
        records.notes.push(format!("{twice} lines stand in the files twice, and count once."));
    }
    if records.skipped > NAMED_MAX {
        records.notes.push(format!("{} damaged lines were left out in all.", records.skipped));
    }
    let mut without: BTreeMap<&str, usize> = BTreeMap::new();
    for sample in &records.samples {
        if !records.runs.iter().any(|run| run.run == sample.run) {
            *without.entry(&sample.run).or_default() += 1;
        }
    }
    let notes = without.iter().take(NAMED_MAX);
    let notes: Vec<_> = notes
        .map(|(run, count)| {
            format!("Run {run} ({count} samples) has no environment: what it measured on is not known.")
        })
        .collect();
    records.notes.extend(notes);
    if records.samples.is_empty() {
        let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(Failure::new(
            format!("cannot report on {}", names.join(", ")),
            "nothing was measured there",
            "give the JSON lines that 'aqueduct bench sweep' wrote",
        ));
    }
    Ok(records)
}

fn read(
    path: &Path,
    skip_damaged: bool,
    records: &mut Records,
    seen: &mut HashSet<u128>,
    twice: &mut usize,
) -> Result<(), Failure> {
    let what = || format!("cannot read {}", path.display());
    let failed = |error: io::Error| {
        Failure::new(what(), error, "give files of JSON lines, as 'aqueduct bench sweep' writes them")
    };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(Failure::new(what(), "it is a folder", "name the files in it"));
    }
    if metadata.len() > FILE_BYTES_MAX {
        let why = format!("it has {} bytes, and {FILE_BYTES_MAX} are the most", metadata.len());
        return Err(Failure::new(what(), why, "report on parts of it"));
    }
    let mut reader = BufReader::with_capacity(1 << 18, file.take(FILE_BYTES_MAX));
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let length = reader.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line).map_err(failed)?;
        if length == 0 {
            return Ok(());
        }
        let is_whole = line.last() == Some(&b'\n');
        let text = line.trim_ascii();
        if text.is_empty() {
            continue;
        }
        if line.len() > LINE_BYTES_MAX {
            let why = format!("line {number} is longer than {LINE_BYTES_MAX} bytes");
            return Err(Failure::new(what(), why, "is it a file of JSON lines?"));
        }
        // What single benchmarks say names neither run nor time. So an equal line is another
        // repetition, unless it is the same line of the same file.
        let place = if is_named(text) { None } else { Some((path, number)) };
        if !seen.insert(digest(&(place, text))) {
            *twice += 1;
            continue;
        }
        match parse(text, path, number) {
            Ok(line) => records.add(line, path, number)?,
            // As when a run is killed: everything before it is whole.
            Err(problem) if !is_whole => {
                records
                    .notes
                    .push(format!("{}:{number}, the last line, was cut off, and left out: {problem}", path.display()));
            }
            Err(problem) if skip_damaged => {
                records.skipped += 1;
                if records.skipped <= NAMED_MAX {
                    records.notes.push(format!("{}:{number} was left out: {problem}", path.display()));
                }
            }
            Err(problem) => {
                let why = format!("{}:{number}: {problem}", path.display());
                let hint = "is it a file of a benchmark? --skip-damaged leaves such lines out, and names them";
                return Err(Failure::new(what(), why, hint));
            }
        }
    }
    Ok(())
}

/// Whether a line says of which run it is.
fn is_named(text: &[u8]) -> bool {
    text.windows(KIND.len()).any(|part| part == KIND)
}

/// Tells lines apart that are not the same; two digests, so that chance makes none equal.
fn digest(line: &impl Hash) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, line).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

fn parse(text: &[u8], path: &Path, number: usize) -> Result<Line, String> {
    let said = |error: serde_json::Error| {
        let text = error.to_string();
        let text = text.split(" at line ").next().unwrap_or_default();
        // Of a line that is well formed the column says nothing.
        let column = if error.is_data() { String::new() } else { format!(" (column {})", error.column()) };
        format!("{}{column}", super::safe::plain(text))
    };
    let value: Value = serde_json::from_slice(text).map_err(said)?;
    let line = if value.is_object() && value.get("kind").is_none() {
        Line::Sample(measured(serde_json::from_value(value).map_err(said)?, path, number))
    } else {
        serde_json::from_value(value).map_err(said)?
    };
    check(&line)?;
    Ok(line)
}

/// What a single benchmark says of itself with --measured: its file stands for the run and for the system.
fn measured(measured: Measured, path: &Path, number: usize) -> Sample {
    let Measured { op, repeat, value, unit, seconds, more, series } = measured;
    // Messages of two sizes are no repetitions of each other.
    let is_setting = |name: &str, value: &Value| {
        SETTINGS.contains(&name) && (value.is_number() || value.is_string() || value.is_boolean())
    };
    let (parameters, more) = more.into_iter().partition(|(name, value)| is_setting(name, value));
    let system = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (run, order) = (path.display().to_string(), u32::try_from(number).unwrap_or(u32::MAX));
    Sample { run, system, parameters, op, repeat, order, value, unit, seconds, more, series, ..Sample::default() }
}

fn check(line: &Line) -> Result<(), String> {
    match line {
        Line::Environment(environment) if environment.schema > SCHEMA => {
            Err(format!("it was written by a newer version (schema {}; this one reads {SCHEMA})", environment.schema))
        }
        Line::Environment(environment) if environment.facts.len() > NAMES_MAX => {
            Err(format!("more than {NAMES_MAX} facts"))
        }
        Line::Environment(_) => Ok(()),
        Line::Sample(sample) => {
            if !sample.value.is_finite() || !sample.seconds.is_finite() || sample.seconds < 0.0 {
                return Err("value and seconds are finite numbers, and seconds are not negative".to_owned());
            }
            if sample.op.is_empty() || sample.unit.is_empty() {
                return Err("op and unit are not empty".to_owned());
            }
            if sample.parameters.len() > NAMES_MAX || sample.more.len() > NAMES_MAX {
                return Err(format!("more than {NAMES_MAX} parameters or further figures"));
            }
            Ok(())
        }
    }
}

impl Records {
    fn add(&mut self, line: Line, path: &Path, number: usize) -> Result<(), Failure> {
        let too_many = |what: &str, limit: usize| {
            Failure::new(
                format!("cannot read {}:{number}", path.display()),
                format!("more than {limit} {what} in one report"),
                "report on fewer files at once",
            )
        };
        match line {
            Line::Environment(environment) => {
                if self.runs.len() >= RUNS_MAX {
                    return Err(too_many("runs", RUNS_MAX));
                }
                // A resumed run says again where it measures; the first says how it began.
                match self.runs.iter().find(|run| run.run == environment.run) {
                    None => self.runs.push(environment),
                    Some(first) if first.facts != environment.facts => {
                        let names = differing(first, &environment);
                        let run = &environment.run;
                        self.notes.push(format!("Run {run} was resumed under other circumstances: {names}."));
                    }
                    Some(_) => {}
                }
            }
            Line::Sample(sample) => {
                self.series += sample.series.len();
                if self.samples.len() >= SAMPLES_MAX {
                    return Err(too_many("samples", SAMPLES_MAX));
                }
                if self.series > SERIES_MAX {
                    return Err(too_many("figures of series", SERIES_MAX));
                }
                self.samples.push(sample);
            }
        }
        Ok(())
    }
}

fn differing(one: &Environment, other: &Environment) -> String {
    let names = one.facts.keys().chain(other.facts.keys().filter(|name| !one.facts.contains_key(*name)));
    let names: Vec<_> = names.filter(|name| one.facts.get(*name) != other.facts.get(*name)).cloned().collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLE: &str = r#"{"kind":"sample","run":"r","time":"","system":"s","parameters":{},"op":"read","repeat":0,"order":0,"value":1.5,"unit":"MiB/s","seconds":1.0}"#;

    fn of(text: &[u8], skip: bool) -> Result<Records, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, text).unwrap();
        load(&[path], skip)
    }

    #[test]
    fn a_damaged_line_is_named() {
        let text = format!("{SAMPLE}\n\n{{\"kind\":\"sample\",\"run\":7}}\n");
        let failure = of(text.as_bytes(), false).unwrap_err();
        assert!(failure.why.contains("a.jsonl:3: invalid type: integer `7`"), "{failure}");
        let records = of(text.as_bytes(), true).unwrap();
        assert_eq!(records.samples.len(), 1);
        assert!(records.notes[0].contains("a.jsonl:3 was left out"), "{:?}", records.notes);
    }

    #[test]
    fn a_cut_line_is_told_from_a_wrong_one() {
        let records = of(format!("{SAMPLE}\n{}", &SAMPLE[..50]).as_bytes(), false).unwrap();
        assert_eq!(records.samples.len(), 1);
        assert!(records.notes[0].contains("a.jsonl:2, the last line, was cut off"), "{:?}", records.notes);
    }

    #[test]
    fn what_one_benchmark_says_is_read_as_well() {
        let line =
            r#"{"op":"write","repeat":2,"value":7.5,"unit":"MiB/s","seconds":1.0,"more":{"size":8,"latency_p50":0.1}}"#;
        let records = of(format!("{line}\n").as_bytes(), false).unwrap();
        let sample = &records.samples[0];
        assert_eq!((sample.system.as_str(), sample.op.as_str(), sample.value, sample.repeat), ("a", "write", 7.5, 2));
        assert!(sample.parameters.contains_key("size") && sample.more.contains_key("latency_p50"), "sizes stay apart");
        assert!(of(b"{}\n", false).unwrap_err().why.contains("missing field `op`"));
    }

    #[test]
    fn figures_that_are_none_are_refused() {
        for (from, to) in [("1.5", "1e999"), ("1.5", "null"), (":1.0}", ":-1.0}"), ("\"read\"", "\"\"")] {
            let line = format!("{}\n", SAMPLE.replace(from, to));
            assert!(of(line.as_bytes(), false).is_err(), "{to}");
        }
    }

    #[test]
    fn a_newer_format_is_refused() {
        let text = r#"{"kind":"environment","schema":99,"run":"r","time":"","name":"","plan":"","facts":{}}"#;
        assert!(of(format!("{text}\n").as_bytes(), false).unwrap_err().why.contains("newer version"));
    }

    #[test]
    fn the_same_line_counts_once() {
        let records = of(format!("{SAMPLE}\n{SAMPLE}\n").as_bytes(), false).unwrap();
        assert_eq!(records.samples.len(), 1);
        assert!(records.notes[0].contains("twice"), "{:?}", records.notes);
    }

    #[test]
    fn the_same_figure_measured_twice_counts_twice() {
        let line = r#"{"op":"stall","repeat":0,"value":100.0,"unit":"ms","seconds":1.0}"#;
        let records = of(format!("{line}\n{line}\n").as_bytes(), false).unwrap();
        assert_eq!((records.samples.len(), records.notes.iter().any(|note| note.contains("twice"))), (2, false));
    }

    #[test]
    fn nothing_measured_is_no_report() {
        assert!(of(b"", false).unwrap_err().why.contains("nothing was measured"));
    }

    #[test]
    fn a_run_that_says_again_where_it_is_is_one_run() {
        let first =
            r#"{"kind":"environment","schema":1,"run":"r","time":"","name":"","plan":"","facts":{"kernel":"6"}}"#;
        let text = format!("{first}\n{SAMPLE}\n{}\n", first.replace("\"6\"", "\"7\""));
        let records = of(text.as_bytes(), false).unwrap();
        assert_eq!(records.runs.len(), 1);
        assert!(records.notes[0].contains("other circumstances: kernel"), "{:?}", records.notes);
    }

    proptest! {
        #[test]
        fn no_bytes_bring_it_down(bytes: Vec<u8>, skip: bool) {
            let _ = of(&bytes, skip);
        }

        #[test]
        fn no_change_brings_it_down(at in 0..SAMPLE.len(), letter in 0u8..128) {
            let mut bytes = SAMPLE.as_bytes().to_vec();
            bytes[at] = letter;
            let _ = of(&bytes, false);
        }
    }
}
