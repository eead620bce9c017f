//! What a copy under way tells to those of its user on this machine: once a second, in a file of
//! its own, what it has counted so far. Who diagnoses it, and who lists it, reads that.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aqueduct_metrics::status::WayStatus;
use serde::{Deserialize, Serialize};

use crate::ledger::{StageRecord, Watch};

/// How often it is told.
pub const TOLD_INTERVAL: Duration = Duration::from_secs(1);

/// The longest file that is read: one with 4,000 rails.
const LENGTH_MAX: u64 = 1 << 20;

/// How the names of the files end.
const ENDING: &str = "json";

/// A copy under way, as it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// Its process, and which of the process's copies.
    pub pid: u32,
    /// See `pid`.
    pub number: u64,
    /// When the process was started, in the kernel's ticks since it was: what tells it from others
    /// that have its number later.
    pub started: u64,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// When that was told, likewise.
    pub told: u64,
    /// For how long it runs, in seconds, by a clock that nobody sets.
    pub seconds: f64,
    /// From where.
    pub sources: Vec<String>,
    /// Where to.
    pub destination: String,
    /// The servers' addresses, of source and destination; `None`: it is on this machine.
    pub servers: [Option<String>; 2],
    /// Bytes that moved.
    pub bytes: u64,
    /// Names that are done.
    pub names: u64,
    /// Names that are known of.
    pub names_found: u64,
    /// Names are still looked for.
    pub is_walking: bool,
    /// The time of all threads by stages, and their operations.
    pub stages: Vec<StageRecord>,
    /// What this process has had of processors, and for how long its threads have waited for one,
    /// in seconds; those that ended are left out.
    pub processors: [f64; 2],
    /// The sessions with servers.
    pub sessions: Vec<SessionRecord>,
}

/// A session with a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// As the plan names it.
    pub server: String,
    /// What is attached.
    pub export: String,
    /// Requests that the server answered, by their kinds.
    pub operations: Vec<OperationRecord>,
    /// The ways to it.
    pub ways: Vec<WayStatus>,
}

/// Requests of a kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationRecord {
    /// As PROTOCOL.md calls it.
    pub operation: String,
    /// How many were answered.
    pub count: f64,
    /// How long they took together, the network included, in seconds.
    pub seconds: f64,
}

/// What does not change of a copy that is told.
pub(crate) struct About {
    /// Where it is told.
    pub(crate) folder: PathBuf,
    /// From where.
    pub(crate) sources: Vec<String>,
    /// Where to.
    pub(crate) destination: String,
    /// The servers' addresses.
    pub(crate) servers: [Option<String>; 2],
}

/// Tells of one copy until it is dropped.
pub(crate) struct Telling<'a> {
    about: About,
    path: PathBuf,
    watch: &'a Watch,
    sessions: &'a (dyn Fn() -> Vec<SessionRecord> + Sync),
    number: u64,
    began: (u64, Instant),
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl<'a> Telling<'a> {
    /// Begins. `sessions` says what sessions with servers have counted.
    pub(crate) fn begin(
        about: About,
        watch: &'a Watch,
        sessions: &'a (dyn Fn() -> Vec<SessionRecord> + Sync),
    ) -> Telling<'a> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = about.folder.join(format!("{}-{number}.{ENDING}", std::process::id()));
        let telling = Telling { about, path, watch, sessions, number, began: (now(), Instant::now()) };
        telling.tell();
        telling
    }

    /// Tells it again and again, until `ended`.
    pub(crate) fn run(&self, ended: &AtomicBool) {
        while !ended.load(Ordering::Acquire) {
            thread::park_timeout(TOLD_INTERVAL);
            self.tell();
        }
    }

    fn tell(&self) {
        if let Err(error) = self.write() {
            tracing::debug!("the copy is not told in {}: {error}", self.path.display());
        }
    }

    /// Under its name only when it is whole.
    fn write(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.about.folder)?;
        let part = self.path.with_extension("part");
        fs::write(&part, serde_json::to_vec(&self.now())?)?;
        fs::rename(&part, &self.path)
    }

    fn now(&self) -> Running {
        let (about, watch) = (&self.about, self.watch);
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Running {
            pid: std::process::id(),
            number: self.number,
            started: start_of(std::process::id()).unwrap_or(0),
            began: self.began.0,
            told: now(),
            seconds: self.began.1.elapsed().as_secs_f64(),
            sources: about.sources.clone(),
            destination: about.destination.clone(),
            servers: about.servers.clone(),
            bytes: count(&watch.bytes),
            names: count(&watch.names),
            names_found: count(&watch.names_found),
            is_walking: count(&watch.directories) > 0,
            stages: watch.records(),
            processors: aqueduct_worker::own_processors(),
            sessions: (self.sessions)(),
        }
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // who lists it sees that its process is gone
    }
}

/// When a process was started, in ticks (proc_pid_stat(5), field 22); `None`: there is none.
fn start_of(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name is in parentheses, and may have any.
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

impl Running {
    /// Reads what one copy tells; `None`: nothing, or it is over.
    pub fn read(path: &Path) -> Option<Running> {
        if fs::metadata(path).ok()?.len() > LENGTH_MAX {
            return None;
        }
        let told: Running = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        told.is_alive().then_some(told)
    }

    /// Those of a folder, the oldest first. What copies left that were killed is removed.
    pub fn all(folder: &Path) -> Vec<(PathBuf, Running)> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let files = entries.filter(|path| path.extension().is_some_and(|ending| ending == ENDING));
        let mut all: Vec<_> = files
            .filter_map(|path| match Running::read(&path) {
                Some(told) => Some((path, told)),
                None => {
                    let _ = fs::remove_file(&path); // another time
                    None
                }
            })
            .collect();
        all.sort_by_key(|(_, told)| (told.began, told.pid, told.number));
        all
    }

    /// Its process is there, and is no other that has its number now.
    fn is_alive(&self) -> bool {
        start_of(self.pid).is_some_and(|start| start == self.started)
    }

    /// What limits it, by the time of its threads so far: what waits does not.
    pub fn limit(&self) -> Option<&'static str> {
        crate::ledger::limit(self.times())
    }

    /// Where the time of its threads went so far, in percent that add up to 100.
    pub fn spent(&self) -> Vec<(&'static str, u32)> {
        let [source, target] = self.servers.each_ref().map(Option::is_some);
        crate::ledger::spent(self.times(), crate::ledger::Sides { source, target })
    }

    fn times(&self) -> [Duration; crate::ledger::STAGES.len()] {
        crate::ledger::STAGES.map(|(stage, _)| {
            let seconds = self.stages.iter().find(|record| record.stage == stage).map_or(0.0, |record| record.seconds);
            Duration::try_from_secs_f64(seconds).unwrap_or_default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_copies_that_run_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let told = &folder.path().join("told");
        let about = About {
            folder: told.clone(),
            sources: vec!["/a".to_owned()],
            destination: "h:/b".to_owned(),
            servers: [None, Some("h:7170".to_owned())],
        };
        let (watch, sessions) = (Watch::default(), || vec![SessionRecord::default()]);
        let telling = Telling::begin(about, &watch, &sessions);
        let all = Running::all(told);
        assert_eq!((all.len(), all[0].1.pid), (1, std::process::id()));
        assert_eq!((all[0].1.destination.as_str(), all[0].1.sessions.len()), ("h:/b", 1));
        let left = |started, pid| {
            let running = Running { started, pid, ..all[0].1.clone() };
            fs::write(told.join(format!("{pid}-9.json")), serde_json::to_vec(&running).unwrap()).unwrap();
        };
        left(all[0].1.started + 1, std::process::id()); // another process had the number
        left(1, u32::MAX);
        fs::write(told.join("7-7.json"), "{").unwrap();
        assert_eq!(Running::all(told), all);
        drop(telling);
        assert_eq!(fs::read_dir(told).unwrap().count(), 0);
    }
}
