//! The programs: each a process of its own (this one starts servers, and a child closes what it inherits, which on a mount waits for the server). It is
//! this test binary once more, told by an environment variable what to be.

mod content;
mod counters;
mod files;
mod listing;
mod log;
mod names;
mod sequences;

use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use aqueduct_model::Random;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::sys;

pub use counters::{audit as audit_counters, prepare as prepare_counters};
pub use listing::prepare as prepare_listing;
pub use log::audit as audit_log;

const TOLD: &str = "AQUEDUCT_FAULTS_WORK";

/// That there was no room for what was held back is told by the next write, fsync or close of the descriptor: no program waits for so long with that.
const LATE: u64 = 10_000_000_000;

/// Bytes of the line that says what a program is at.
const AT_LENGTH: usize = 300;

/// A program's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    pub kind: Kind,
    pub number: usize,
    pub seed: u64,
    /// Whom it acts as; root unless it says so.
    pub user: Option<u32>,
    /// The mount it works on.
    pub mount: usize,
    /// Whether the quota binds it.
    pub limited: bool,
    pub points: Vec<PathBuf>,
    /// Mounts that show what it works on.
    pub peers: Vec<usize>,
    /// What the server serves there.
    pub export: PathBuf,
    /// Where the run keeps its own files.
    pub control: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Names,
    Files,
    Log,
    Counters,
    Listing,
    Sequences,
}

/// What a program says in the end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub operations: u64,
    pub bytes: u64,
    /// Refusals because there was no room.
    pub refusals: u64,
    /// How often its mount was killed.
    pub deaths: u64,
    pub finding: Option<String>,
    pub log: Vec<log::Written>,
    pub increments: counters::Increments,
}

/// Why a program cannot go on.
#[derive(Debug)]
pub enum Stop {
    /// Its mount was killed.
    Gone,
    /// Something is not as it should be.
    Finding(String),
}

pub type Outcome<T> = Result<T, Stop>;

/// A time that all processes of the machine share, in nanoseconds.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What the run tells its programs: from when to when a condition holds. One line each, `NAME + TIME` and `NAME - TIME`.
pub struct Windows(PathBuf);

impl Windows {
    pub fn of(control: &Path) -> Windows {
        Windows(control.join("windows"))
    }

    pub fn note(&self, name: &str, begins: bool) {
        let sign = if begins { '+' } else { '-' };
        let mut file = OpenOptions::new().append(true).create(true).open(&self.0).unwrap();
        io::Write::write_all(&mut file, format!("{name} {sign} {}\n", now()).as_bytes()).unwrap();
    }

    /// The windows of this name, with no end for one that is open.
    fn all(&self, name: &str) -> Vec<(u64, u64)> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        let mut windows: Vec<(u64, u64)> = Vec::new();
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let [found, sign, time] = words[..] else { continue };
            let Ok(time) = time.parse() else { continue };
            match (found == name, sign, windows.last_mut()) {
                (true, "+", _) => windows.push((time, u64::MAX)),
                (true, _, Some(last)) => last.1 = time,
                _ => {}
            }
        }
        windows
    }

    fn any(&self, name: &str, from: u64, to: u64) -> bool {
        self.all(name).iter().any(|(begin, end)| *begin <= to && *end >= from)
    }
}

/// A program at work.
pub struct Work {
    pub part: Part,
    pub random: Random,
    pub report: Report,
    windows: Windows,
    at: File,
    stop: PathBuf,
    /// When its mount was last known to be alive.
    alive: u64,
}

impl Work {
    fn new(part: Part) -> Work {
        let at = File::create(part.control.join(format!("at-{}", part.number))).unwrap();
        Work {
            random: Random::new(part.seed.wrapping_mul(1000) + part.number as u64),
            report: Report::default(),
            windows: Windows::of(&part.control),
            at,
            stop: part.control.join("stop"),
            alive: now(),
            part,
        }
    }

    pub fn is_over(&self) -> bool {
        self.stop.exists()
    }

    pub fn point(&self) -> &Path {
        &self.part.points[self.part.mount]
    }

    /// A finding about something that is not an operation's result.
    pub fn check(&self, holds: bool, what: impl Display) -> Outcome<()> {
        if holds { Ok(()) } else { Err(Stop::Finding(format!("operation {}: {what}", self.report.operations))) }
    }

    /// One operation on the program's mount: its result, or the errno, unless the errno says that the mount is gone.
    pub fn ask<T>(&mut self, what: &dyn Display, operation: impl FnOnce() -> io::Result<T>) -> Outcome<Result<T, i32>> {
        self.ask_on(self.part.mount, what, operation)
    }

    fn ask_on<T>(
        &mut self,
        mount: usize,
        what: &dyn Display,
        operation: impl FnOnce() -> io::Result<T>,
    ) -> Outcome<Result<T, i32>> {
        let began = now();
        self.report.operations += 1;
        self.tell(&format!("{} {began} {what}", self.report.operations));
        let result = operation();
        self.tell(&format!("{} idle", self.report.operations));
        let error = match result {
            Ok(value) => return Ok(Ok(value)),
            Err(error) => error,
        };
        let Some(errno) = error.raw_os_error() else {
            return Err(Stop::Finding(format!("operation {}, {what}: {error}", self.report.operations)));
        };
        let name = format!("gone-{mount}");
        // ECANCELED and EINTR come from the kernel itself, for a request that it was handing to a
        // ring (io_uring) when the mount's process was killed. EFAULT is a page of a mapping that
        // nobody can bring any more.
        let of_the_dead = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED, libc::EINTR, libc::EFAULT];
        let dead = of_the_dead.contains(&errno) && self.windows.any(&name, self.alive, now());
        // Between two mounts the empty directory shows.
        if dead || (errno == libc::ENOENT && self.windows.any(&name, began, now())) {
            return Err(Stop::Gone);
        }
        let since = began.saturating_sub(LATE);
        let no_room = match errno {
            libc::ENOSPC => self.windows.any("full", since, now()),
            libc::EDQUOT => self.part.limited && self.windows.any("quota", since, now()),
            _ => false,
        };
        if no_room {
            self.report.refusals += 1;
        } else if matches!(errno, libc::ENOSPC | libc::EDQUOT) {
            return Err(Stop::Finding(format!(
                "operation {}, {what}: {error}, but there is room",
                self.report.operations
            )));
        }
        Ok(Err(errno))
    }

    /// One that must succeed, unless there is no room: then nothing was done.
    pub fn must<T>(&mut self, what: &dyn Display, operation: impl FnOnce() -> io::Result<T>) -> Outcome<Option<T>> {
        match self.ask(what, operation)? {
            Ok(value) => Ok(Some(value)),
            Err(libc::ENOSPC | libc::EDQUOT) => Ok(None),
            Err(errno) => Err(self.unexpected(what, errno)),
        }
    }

    /// One that needs no room and must succeed.
    pub fn surely<T>(&mut self, what: &dyn Display, operation: impl FnOnce() -> io::Result<T>) -> Outcome<T> {
        match self.ask(what, operation)? {
            Ok(value) => Ok(value),
            Err(errno) => Err(self.unexpected(what, errno)),
        }
    }

    /// Looks through any of the mounts; another one that is gone comes back.
    pub fn look<T>(&mut self, what: &dyn Display, mut operation: impl FnMut(&Path) -> io::Result<T>) -> Outcome<T> {
        let mount = *self.random.pick(&self.part.peers);
        let point = self.part.points[mount].clone();
        loop {
            match self.ask_on(mount, what, || operation(&point)) {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(errno)) => return Err(self.unexpected(&format!("{what} through mount {mount}"), errno)),
                Err(Stop::Gone) if mount != self.part.mount => thread::sleep(Duration::from_millis(20)),
                Err(stop) => return Err(stop),
            }
        }
    }

    pub fn unexpected(&self, what: &dyn Display, errno: i32) -> Stop {
        let error = io::Error::from_raw_os_error(errno);
        Stop::Finding(format!("operation {}, {what}: {error}", self.report.operations))
    }

    /// Whether there ever was no room.
    fn has_been_full(&self) -> bool {
        ["full", "quota"].iter().any(|name| self.windows.any(name, 0, now()))
    }

    /// Whether an errno means that there was no room.
    pub fn is_refusal(errno: i32) -> bool {
        matches!(errno, libc::ENOSPC | libc::EDQUOT)
    }

    /// Makes a folder of its own for a life of the mount, under what has that name for all.
    pub fn folder(&mut self, life: u64) -> Outcome<String> {
        let name = format!("work/{:?}-{}-{life}", self.part.kind, self.part.number);
        loop {
            let path = self.point().join(&name);
            if self.must(&format!("mkdir {name}"), || fs::create_dir(&path))?.is_some() {
                return Ok(name);
            }
            self.pause();
        }
    }

    /// Lets others work as well.
    pub fn pause(&self) {
        thread::sleep(Duration::from_millis(1));
    }

    fn tell(&self, text: &str) {
        let mut line = text.as_bytes()[..text.len().min(AT_LENGTH)].to_vec();
        line.resize(AT_LENGTH, b' ');
        self.at.write_all_at(&line, 0).unwrap();
    }

    /// The mount was killed: waits until there is a new one.
    fn await_mount(&mut self) {
        self.report.deaths += 1;
        self.tell("waits for its mount");
        let name = format!("gone-{}", self.part.mount);
        while self.windows.all(&name).last().is_some_and(|(_, end)| *end == u64::MAX) && !self.is_over() {
            thread::sleep(Duration::from_millis(10));
        }
        self.alive = now();
    }
}

/// Tries again until it holds or the time of a session's end is over: what was under way when a mount was killed may be executed still.
pub fn settles(mut check: impl FnMut() -> Result<(), String>) -> Outcome<()> {
    let began = now();
    loop {
        match check() {
            Ok(()) => return Ok(()),
            Err(text) if now() - began > 15_000_000_000 => return Err(Stop::Finding(text)),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// How to start one.
pub fn command(part: &Part) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["work::works_when_told_to", "--exact", "--nocapture"]);
    command.env(TOLD, serde_json::to_string(part).unwrap()).env("RUST_BACKTRACE", "1");
    command
}

/// Where its report will be.
pub fn report_path(control: &Path, number: usize) -> PathBuf {
    control.join(format!("report-{number}.json"))
}

/// Not a test of anything.
#[test]
fn works_when_told_to() {
    let Some(part) = std::env::var_os(TOLD) else { return };
    let part: Part = serde_json::from_str(part.to_str().unwrap()).unwrap();
    let path = report_path(&part.control, part.number);
    let mut work = Work::new(part);
    let report = File::create(&path).unwrap();
    if let Some(user) = work.part.user {
        sys::become_user(user, user).unwrap();
    }
    let mut life = 0;
    let ended = loop {
        let ended = match work.part.kind {
            Kind::Names => names::work(&mut work, life),
            Kind::Files => files::work(&mut work, life),
            Kind::Log => log::work(&mut work, life),
            Kind::Counters => counters::work(&mut work, life),
            Kind::Listing => listing::work(&mut work, life),
            Kind::Sequences => sequences::work(&mut work),
        };
        match ended {
            Err(Stop::Gone) if !work.is_over() => life += 1,
            Err(Stop::Gone) => break Ok(()),
            ended => break ended,
        }
    };
    if let Err(Stop::Finding(text)) = ended {
        work.report.finding = Some(text);
    }
    serde_json::to_writer(report, &work.report).unwrap();
    std::process::exit(0);
}
