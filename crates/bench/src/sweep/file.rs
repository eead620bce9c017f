//! A sweep file: what is measured, on what, how often, and what is expected.
//!
//! `experiments/example.toml` has every key with what it means.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::Failure;

/// Longer files are no sweep files.
const FILE_MAX: u64 = 1 << 20;

/// Values by name, each with its place.
pub type Table = BTreeMap<String, Spanned<toml::Value>>;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// What the sweep is called, and its folder of results.
    pub name: Spanned<String>,
    /// What it shows.
    #[serde(default)]
    pub about: String,
    /// From which the random order is drawn.
    #[serde(default = "one")]
    pub seed: u64,
    /// Where the results go, if not to `results/NAME`.
    pub results: Option<PathBuf>,
    /// Names for options and commands that are no parameters.
    #[serde(default)]
    pub values: Table,
    /// The parameters.
    #[serde(default)]
    pub matrix: Table,
    /// Points that are left out: where all of these conditions hold.
    #[serde(default)]
    pub skip: Vec<Table>,
    /// What is run at each point.
    pub run: Run,
    /// How often, and in what state of the machine.
    #[serde(default)]
    pub measure: Measure,
    /// What is compared.
    pub system: Vec<Spanned<System>>,
    /// What should come out.
    #[serde(default)]
    pub expect: Vec<Spanned<Expect>>,
    /// What `--reduced` has instead.
    pub reduced: Option<Reduced>,
}

fn one() -> u64 {
    1
}

/// Which benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bench {
    /// `aqueduct bench io`.
    Io,
    /// `aqueduct bench meta`.
    Meta,
    /// `aqueduct bench net`.
    Net,
    /// Any command that prints what it measured: JSON lines, as of [`crate::record::Measured`].
    Command,
}

impl Bench {
    /// As in the command line.
    pub fn name(self) -> &'static str {
        match self {
            Bench::Io => "io",
            Bench::Meta => "meta",
            Bench::Net => "net",
            Bench::Command => "command",
        }
    }
}

/// Which systems are measured at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Together {
    /// One after another.
    #[default]
    Each,
    /// All at once.
    All,
    /// First so, then so: at points of their own.
    Both,
}

/// What is run at each point.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Which benchmark.
    pub bench: Bench,
    /// Its options, of every step.
    pub options: Option<Spanned<String>>,
    /// The options of each step; of a command, the whole of it.
    #[serde(default)]
    pub steps: BTreeMap<String, Spanned<String>>,
    /// Which steps in which order; `write+read` runs two at once.
    pub sequence: Option<Vec<Spanned<String>>>,
    /// Which systems at once.
    #[serde(default)]
    pub together: Together,
    /// What one call moves, for the plan: a product of sizes.
    pub bytes: Option<Spanned<String>>,
    /// How long one call takes, for the plan, until some have been measured.
    pub takes: Option<Spanned<String>>,
    /// What a benchmark says with a figure that is a parameter: `size` of messages, which net has unless told.
    #[serde(default)]
    pub keys: Vec<String>,
}

/// What is done with the page cache before each step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Nothing.
    #[default]
    Keep,
    /// It is written back and dropped.
    Drop,
}

/// How often, and in what state of the machine.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// How many repetitions count; with `until`, at least.
    #[serde(skip_serializing)]
    pub repeat: Option<u32>,
    /// How many before them do not.
    pub warmup: Option<u32>,
    /// Until the interval is narrow enough.
    #[serde(skip_serializing)]
    pub until: Option<Spanned<Until>>,
    /// The page cache.
    pub cache: Option<Cache>,
    /// So much memory is touched before each step.
    pub memory: Option<Spanned<String>>,
    /// A pause before each step.
    pub pause: Option<Spanned<String>>,
    /// A call that takes longer has failed.
    #[serde(skip_serializing)]
    pub timeout: Option<Spanned<String>>,
}

/// Until the 95 % interval is narrow enough.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Until {
    /// Of the median, or the mean.
    #[serde(default)]
    pub statistic: crate::stats::Statistic,
    /// From end to end, as a share of it.
    pub width: Spanned<toml::Value>,
    /// No more repetitions than so.
    pub most: u32,
}

/// What is compared: a file system, a server, a build.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Its name in the results.
    pub name: String,
    /// The directory in which files are made.
    pub dir: Option<String>,
    /// The server's address, for benchmarks that need no directory.
    pub server: Option<String>,
    /// Another program than this one.
    pub program: Option<String>,
    /// Further options, of its calls only.
    pub options: Option<String>,
    /// In front of each rank: `ip netns exec c{rank}`.
    pub launch: Option<String>,
    /// Run once, before its first point.
    pub start: Option<String>,
    /// Run once, after its last.
    pub stop: Option<String>,
    /// Run before each point.
    pub setup: Option<String>,
    /// Run after each point.
    pub teardown: Option<String>,
    /// Run before each step.
    pub before: Option<String>,
}

/// What should come out; see [`super::expect`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// Of which operation.
    pub op: String,
    /// Of which system; of each, if none is named.
    pub system: Option<String>,
    /// At which points.
    #[serde(rename = "where", default)]
    pub conditions: Table,
    /// Which figure of a point.
    #[serde(default)]
    pub statistic: crate::stats::Statistic,
    /// What `reference` is: `{ system, op, where }`.
    pub reference: Option<Reference>,
    /// At least this: `0.98 * reference`, `150 MB/s`.
    pub at_least: Option<Spanned<toml::Value>>,
    /// At most this.
    pub at_most: Option<Spanned<toml::Value>>,
    /// About this, give or take `tolerance`.
    pub close_to: Option<Spanned<toml::Value>>,
    /// The same for all values of this parameter, give or take `tolerance`.
    pub flat: Option<Spanned<String>>,
    /// Never less as this parameter grows, but for `tolerance`.
    pub rising: Option<Spanned<String>>,
    /// Never more as this parameter grows, but for `tolerance`.
    pub falling: Option<Spanned<String>>,
    /// A share, 5 % unless told.
    pub tolerance: Option<Spanned<toml::Value>>,
    /// Why this is expected.
    #[serde(default)]
    pub why: String,
}

/// With what a figure is compared: the point that differs in these.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// Another system.
    pub system: Option<String>,
    /// Another operation.
    pub op: Option<String>,
    /// Other values of parameters.
    #[serde(rename = "where", default)]
    pub values: Table,
}

/// What `--reduced` has instead.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reduced {
    /// Other values of these names.
    #[serde(default)]
    pub values: Table,
    /// Other values of these parameters.
    #[serde(default)]
    pub matrix: Table,
    /// Other repetitions.
    #[serde(default)]
    pub measure: Measure,
}

/// A sweep file's text, for saying where something stands in it.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where it was read from.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
}

impl Source {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Source, Failure> {
        let what = format!("cannot read {}", path.display());
        let hint = "name a sweep file; 'aqueduct bench sweep --help' shows one";
        let length = std::fs::metadata(path).map_err(|error| Failure::new(&what, error, hint))?.len();
        if length > FILE_MAX {
            return Err(Failure::new(what, format!("it has {length} bytes; {FILE_MAX} is the limit"), hint));
        }
        let text = std::fs::read_to_string(path).map_err(|error| Failure::new(&what, error, hint))?;
        Ok(Source { path: path.to_owned(), text })
    }

    /// What it says, with `--reduced` or without.
    pub fn parse(&self, is_reduced: bool) -> Result<File, Failure> {
        let mut file: File = toml::from_str(&self.text).map_err(|error| {
            let at = error.span().unwrap_or_default();
            self.wrong(&at, error.message())
        })?;
        if file.run.bench == Bench::Net && file.run.keys.is_empty() {
            // It measures one message size after another, in one call.
            file.run.keys.push("size".to_owned());
        }
        if !is_reduced {
            return Ok(file);
        }
        let Some(reduced) = file.reduced.take() else {
            let what = format!("{} cannot be run --reduced", self.path.display());
            return Err(Failure::usage(what, "it has no table [reduced]", "leave --reduced out, or write that table"));
        };
        file.values.extend(reduced.values);
        file.matrix.extend(reduced.matrix);
        let (full, other) = (&mut file.measure, reduced.measure);
        full.repeat = other.repeat.or(full.repeat);
        full.warmup = other.warmup.or(full.warmup);
        full.cache = other.cache.or(full.cache);
        for (full, other) in
            [(&mut full.memory, other.memory), (&mut full.pause, other.pause), (&mut full.timeout, other.timeout)]
        {
            *full = other.or(full.take());
        }
        full.until = other.until.or(full.until.take());
        Ok(file)
    }

    /// What is wrong at a place.
    pub fn wrong(&self, at: &Range<usize>, why: impl fmt::Display) -> Failure {
        let before = self.text.get(..at.start).unwrap_or(&self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let shown = self.text.lines().nth(line - 1).unwrap_or_default().trim();
        let what = format!("{}:{line}:{column}: {shown}", self.path.display());
        Failure::usage(what, why, "correct the file; 'aqueduct bench sweep --help' shows what it may say")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub const LEAST: &str = "name = 'x'\n[run]\nbench = 'io'\n[[system]]\nname = 'native'\ndir = '/tmp'\n";

    fn parse(text: &str, is_reduced: bool) -> Result<File, Failure> {
        Source { path: "a.toml".into(), text: text.to_owned() }.parse(is_reduced)
    }

    #[test]
    fn the_least_file_is_enough() {
        let file = parse(LEAST, false).unwrap();
        assert_eq!((file.name.get_ref().as_str(), file.seed, file.system.len()), ("x", 1, 1));
    }

    #[test]
    fn the_example_is_a_sweep_file() {
        let text = include_str!("../../../../experiments/example.toml");
        let (full, reduced) = (parse(text, false).unwrap(), parse(text, true).unwrap());
        assert!(full.expect.len() > 2);
        assert_ne!(full.measure.repeat, reduced.measure.repeat);
        assert_ne!(full.matrix["clients"], reduced.matrix["clients"]);
        assert_eq!(full.matrix["transfer"], reduced.matrix["transfer"], "what it does not name stays");
    }

    #[test]
    fn errors_name_their_place() {
        let cases = [
            (LEAST.replace("bench = 'io'", "bench = 'ior'"), "a.toml:3:9"),
            (LEAST.replace("dir", "directory"), "a.toml:6:1"),
            (LEAST.replace("name = 'x'", "name = "), "a.toml:1"),
            (format!("{LEAST}[[expect]]\nop = 'read'\nat_leest = 5\n"), "a.toml:9:1"),
        ];
        for (text, place) in cases {
            let failure = parse(&text, false).unwrap_err();
            assert!(failure.what.starts_with(place), "{failure}");
            assert!(failure.is_usage);
        }
    }

    #[test]
    fn reduced_must_be_there() {
        assert!(parse(LEAST, true).unwrap_err().why.contains("[reduced]"));
    }
}
