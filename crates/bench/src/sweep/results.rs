//! The folder of results: samples as they come, and a journal of what is done.
//!
//! `samples.jsonl` has what was measured ([`Line`]s); `journal.jsonl` has, for each step that is done, how far the samples go. Both are on the
//! disk before the next step begins. What stands in the samples beyond the journal's last word belongs to a step that was interrupted, and is cut off.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::record::{Environment, Line, Sample};

/// The samples' file.
pub const SAMPLES: &str = "samples.jsonl";

/// The journal's file.
pub const JOURNAL: &str = "journal.jsonl";

/// Larger journals are none.
const JOURNAL_MAX: u64 = 1 << 30;

/// The journal's first line.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    plan: String,
    run: String,
    /// Absent in older journals.
    #[serde(default)]
    programs: Programs,
}

/// The builds that measure: by name, what tells each from others.
pub type Programs = BTreeMap<String, String>;

/// One step that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// The block.
    pub block: u32,
    /// Which of the plan's visits.
    pub visit: usize,
    /// Which of its steps.
    pub step: usize,
    /// The visit's place in the run.
    pub order: u32,
    /// How far the samples go.
    pub end: u64,
}

/// A folder of results, open for one sweep.
#[derive(Debug)]
pub struct Results {
    folder: PathBuf,
    samples: File,
    journal: File,
    end: u64,
    /// The run's name.
    pub run: String,
    /// What it measures with.
    pub programs: Programs,
    /// What was there already.
    pub is_resumed: bool,
    done: BTreeSet<(u32, usize, usize)>,
    orders: BTreeMap<(u32, usize), u32>,
    /// All samples so far, without their series.
    pub collected: Vec<Sample>,
}

impl Results {
    /// Opens a folder for a plan, and makes it if need be.
    pub fn open(folder: &Path, plan: &str, programs: Programs, run: &str) -> Result<Results, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(
                format!("cannot keep results in {}", folder.display()),
                error,
                "name another folder by --results",
            )
        };
        fs::create_dir_all(folder).map_err(|error| failed(&error))?;
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(folder.join(name))
        };
        let journal = open(JOURNAL).map_err(|error| failed(&error))?;
        lock(&journal, folder)?;
        let samples = open(SAMPLES).map_err(|error| failed(&error))?;
        let mut results = Results {
            folder: folder.to_owned(),
            samples,
            journal,
            end: 0,
            run: run.to_owned(),
            programs,
            is_resumed: false,
            done: BTreeSet::new(),
            orders: BTreeMap::new(),
            collected: Vec::new(),
        };
        results.recover(plan)?;
        Ok(results)
    }

    /// Reads what is there, and cuts off what was not finished.
    fn recover(&mut self, plan: &str) -> Result<(), Failure> {
        let what = format!("cannot go on with {}", self.folder.display());
        let anew = "begin anew with --restart, which keeps the old results beside, or name another folder by --results";
        let io = |error: std::io::Error| Failure::new(&what, error, anew);
        if self.journal.metadata().map_err(io)?.len() > JOURNAL_MAX {
            return Err(Failure::new(&what, "its journal is too large to be one", anew));
        }
        let mut text = Vec::new();
        self.journal.read_to_end(&mut text).map_err(io)?;
        // A last line without its end was being written.
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut lines = text[..whole].split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let length = self.samples.metadata().map_err(io)?.len();
        match lines.next().map(serde_json::from_slice::<Head>) {
            None if length > 0 => {
                return Err(Failure::new(&what, format!("it has a {SAMPLES} and no journal of it"), anew));
            }
            None => {
                let head = Head { plan: plan.to_owned(), run: self.run.clone(), programs: self.programs.clone() };
                self.journal.set_len(0).map_err(io)?;
                self.journal.seek(SeekFrom::Start(0)).map_err(io)?;
                return append(&mut self.journal, &[line(&head)?].concat()).map_err(io);
            }
            Some(Err(error)) => return Err(Failure::new(&what, format!("its journal cannot be read: {error}"), anew)),
            Some(Ok(head)) if head.plan != plan => {
                return Err(Failure::new(&what, "it has results of another plan: the file has changed since", anew));
            }
            // Repetitions of two builds are none of each other.
            Some(Ok(head)) if !head.programs.is_empty() && head.programs != self.programs => {
                let all: BTreeSet<&String> = head.programs.keys().chain(self.programs.keys()).collect();
                let differs = |name: &&&String| head.programs.get(**name) != self.programs.get(**name);
                let names: Vec<&str> = all.iter().filter(differs).map(|name| name.as_str()).collect();
                let why = format!("it was measured with another build of a program: {}", names.join(", "));
                return Err(Failure::new(&what, why, anew));
            }
            Some(Ok(head)) => self.run = head.run,
        }
        for line in lines {
            let done: Done = serde_json::from_slice(line)
                .map_err(|error| Failure::new(&what, format!("its journal cannot be read: {error}"), anew))?;
            self.note(done);
        }
        if length < self.end {
            let why = format!("{SAMPLES} has {length} bytes, and its journal knows of {}", self.end);
            return Err(Failure::new(&what, why, anew));
        }
        self.journal.set_len(whole as u64).map_err(io)?;
        self.journal.seek(SeekFrom::End(0)).map_err(io)?;
        self.samples.set_len(self.end).map_err(io)?;
        self.is_resumed = true;
        self.samples.seek(SeekFrom::Start(0)).map_err(io)?;
        for (number, text) in BufReader::new(&self.samples).lines().enumerate() {
            let line: Line = serde_json::from_str(&text.map_err(io)?)
                .map_err(|error| Failure::new(&what, format!("{SAMPLES}, line {}: {error}", number + 1), anew))?;
            if let Line::Sample(sample) = line {
                self.collected.push(Sample { series: Vec::new(), ..sample });
            }
        }
        self.samples.seek(SeekFrom::End(0)).map_err(io)?;
        Ok(())
    }

    fn note(&mut self, done: Done) {
        self.done.insert((done.block, done.visit, done.step));
        self.orders.insert((done.block, done.visit), done.order);
        self.end = done.end;
    }

    /// Whether a step is done.
    pub fn is_done(&self, block: u32, visit: usize, step: usize) -> bool {
        self.done.contains(&(block, visit, step))
    }

    /// How many steps are done.
    pub fn done(&self) -> usize {
        self.done.len()
    }

    /// The place of a visit in the run: its own, if it was begun, or the next.
    pub fn order(&self, block: u32, visit: usize) -> u32 {
        let next = self.orders.values().max().map_or(0, |last| last + 1);
        self.orders.get(&(block, visit)).copied().unwrap_or(next)
    }

    /// Writes down where is measured.
    pub fn add_environment(&mut self, environment: Environment) -> Result<(), Failure> {
        let text = line(&Line::Environment(environment))?;
        append(&mut self.samples, &text).map_err(|error| self.unwritten(error))?;
        self.end += text.len() as u64;
        Ok(())
    }

    /// Writes down what a step has measured, and that it is done.
    pub fn add(&mut self, block: u32, visit: usize, step: usize, samples: Vec<Sample>) -> Result<(), Failure> {
        let mut text = Vec::new();
        for sample in &samples {
            text.extend(line(&Line::Sample(sample.clone()))?);
        }
        append(&mut self.samples, &text).map_err(|error| self.unwritten(error))?;
        let order = self.order(block, visit);
        let done = Done { block, visit, step, order, end: self.end + text.len() as u64 };
        append(&mut self.journal, &line(&done)?).map_err(|error| self.unwritten(error))?;
        self.note(done);
        self.collected.extend(samples.into_iter().map(|sample| Sample { series: Vec::new(), ..sample }));
        Ok(())
    }

    fn unwritten(&self, error: std::io::Error) -> Failure {
        let hint = "make room there, and run the same again: it goes on where it stopped";
        Failure::new(format!("cannot write results to {}", self.folder.display()), error, hint)
    }

    /// A file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// A folder has one sweep at a time, for as long as its journal is open.
fn lock(journal: &File, folder: &Path) -> Result<(), Failure> {
    flock(journal, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        Failure::new(
            format!("cannot keep results in {}", folder.display()),
            "another sweep does so at this moment",
            "wait for it, or name another folder by --results",
        )
    })
}

/// Moves old results into a folder of their own beside the new.
pub fn set_aside(folder: &Path, time: &str) -> Result<Option<PathBuf>, Failure> {
    let aside = folder.join(format!("before-{time}"));
    let io = |error: std::io::Error| {
        Failure::new(format!("cannot set old results in {} aside", folder.display()), error, "move them by hand")
    };
    let old: Vec<PathBuf> =
        [JOURNAL, SAMPLES].map(|name| folder.join(name)).into_iter().filter(|path| path.exists()).collect();
    if old.is_empty() {
        return Ok(None);
    }
    let journal = File::open(folder.join(JOURNAL)).ok();
    journal.as_ref().map_or(Ok(()), |journal| lock(journal, folder))?;
    fs::create_dir_all(&aside).map_err(io)?;
    // The journal first: samples without one are not taken for results.
    for path in old {
        fs::rename(&path, aside.join(path.file_name().unwrap_or_default())).map_err(io)?;
    }
    Ok(Some(aside))
}

fn line(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let mut text = serde_json::to_vec(value).map_err(|error| {
        Failure::new("cannot write down what was measured", error, "report this as a fault of the benchmark")
    })?;
    text.push(b'\n');
    Ok(text)
}

/// Writes at the end, and waits for the disk.
fn append(file: &mut File, text: &[u8]) -> std::io::Result<()> {
    file.write_all(text)?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(value: f64) -> Sample {
        Sample { op: "write".to_owned(), value, ..Sample::default() }
    }

    fn programs(build: &str) -> Programs {
        [("sweep".to_owned(), build.to_owned())].into()
    }

    fn open(folder: &Path) -> Result<Results, Failure> {
        Results::open(folder, "plan", programs("one"), "run")
    }

    /// A folder with an environment and six steps of two samples each.
    fn filled(folder: &Path) {
        let mut results = open(folder).unwrap();
        results.add_environment(Environment::default()).unwrap();
        for number in 0..6 {
            let samples = vec![sample(number as f64), sample(number as f64 + 0.5)];
            results.add(number / 4, number as usize % 4 / 2, number as usize % 2, samples).unwrap();
        }
    }

    #[test]
    fn what_is_done_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path());
        let results = Results::open(folder.path(), "plan", programs("one"), "another").unwrap();
        assert_eq!((results.run.as_str(), results.is_resumed, results.done()), ("run", true, 6));
        assert!(results.is_done(0, 1, 1) && results.is_done(1, 0, 1) && !results.is_done(1, 1, 0));
        assert_eq!((results.order(0, 1), results.order(1, 0), results.order(1, 1)), (1, 2, 3));
        assert_eq!(results.collected.len(), 12);
    }

    #[test]
    fn another_plan_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path());
        let other = |plan| Results::open(folder.path(), plan, programs("one"), "run");
        assert!(other("other").unwrap_err().why.contains("another plan"));
        let aside = set_aside(folder.path(), "now").unwrap().unwrap();
        assert!(aside.join(SAMPLES).exists());
        assert_eq!(other("other").unwrap().done(), 0);
    }

    #[test]
    fn another_build_does_not_go_on() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path());
        let failure = Results::open(folder.path(), "plan", programs("two"), "run").unwrap_err();
        assert!(failure.why.contains("another build of a program: sweep"), "{failure}");
        // A journal from before builds were told apart.
        let journal = folder.path().join(JOURNAL);
        let text = fs::read_to_string(&journal).unwrap();
        fs::write(&journal, text.replace(r#","programs":{"sweep":"one"}"#, "")).unwrap();
        assert_eq!(Results::open(folder.path(), "plan", programs("two"), "run").unwrap().done(), 6);
    }

    #[test]
    fn a_folder_has_one_sweep_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let _first = open(folder.path()).unwrap();
        assert!(open(folder.path()).unwrap_err().why.contains("another sweep"));
        assert!(set_aside(folder.path(), "now").unwrap_err().why.contains("another sweep"));
    }

    #[test]
    fn samples_of_somebody_else_are_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(SAMPLES), "{}\n").unwrap();
        assert!(open(folder.path()).unwrap_err().why.contains("no journal"));
        assert_eq!(fs::read(folder.path().join(SAMPLES)).unwrap(), b"{}\n");
    }

    #[test]
    fn samples_that_are_missing_are_told() {
        let folder = tempfile::tempdir().unwrap();
        filled(folder.path());
        OpenOptions::new().write(true).open(folder.path().join(SAMPLES)).unwrap().set_len(100).unwrap();
        assert!(open(folder.path()).unwrap_err().why.contains("100 bytes"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Whatever was on the disk when it stopped: each step is there with all samples, or with none, and none twice.
        #[test]
        fn an_interruption_leaves_whole_steps(cut in 0.0..1.0f64, torn in 0.0..1.0f64) {
            let folder = tempfile::tempdir().unwrap();
            filled(folder.path());
            let (journal, samples) = (folder.path().join(JOURNAL), folder.path().join(SAMPLES));
            let text = fs::read(&journal).unwrap();
            let kept = &text[..(text.len() as f64 * cut) as usize];
            fs::write(&journal, kept).unwrap();
            // Samples are written before the journal says so; how much further they go is chance.
            let ends = String::from_utf8_lossy(kept).lines().filter_map(|line| serde_json::from_str::<Done>(line).ok()).map(|done| done.end).max();
            let whole = fs::metadata(&samples).unwrap().len();
            let known = ends.unwrap_or(0);
            if !kept.contains(&b'\n') {
                fs::write(&samples, []).unwrap();
            } else {
                let left = known + ((whole - known) as f64 * torn) as u64;
                OpenOptions::new().write(true).open(&samples).unwrap().set_len(left).unwrap();
            }
            let mut results = open(folder.path()).unwrap();
            prop_assert_eq!(results.collected.len(), 2 * results.done());
            for number in 0..6u32 {
                let (block, visit, step) = (number / 4, number as usize % 4 / 2, number as usize % 2);
                if !results.is_done(block, visit, step) {
                    results.add(block, visit, step, vec![sample(f64::from(number)), sample(f64::from(number) + 0.5)]).unwrap();
                }
            }
            drop(results);
            let results = open(folder.path()).unwrap();
            let values: Vec<f64> = results.collected.iter().map(|sample| sample.value).collect();
            prop_assert_eq!(values, (0..12).map(|half| f64::from(half) / 2.0).collect::<Vec<_>>());
        }
    }
}
