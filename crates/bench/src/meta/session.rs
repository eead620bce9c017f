//! The phases of a run, done by all ranks together.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::meta::names::{Names, Step};
use crate::meta::plan::{Kind, Phase, Plan};
use crate::meta::results::{Iteration, Part};
use crate::meta::target::Posix;
use crate::ranks::{Team, TeamError};

/// Operations between two looks at the progress bar, which cost more than a stat does.
const LOOK_EVERY: u64 = 64;

/// How often a delay looks whether it was interrupted.
const NAP: Duration = Duration::from_millis(50);

/// Why a run ends early.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Problem {
    /// Somebody pressed Ctrl-C.
    Interrupted,
    /// An operation failed.
    Failed {
        /// As of [`Failure`].
        what: String,
        /// See `what`.
        why: String,
        /// See `what`.
        hint: String,
    },
}

impl Problem {
    /// As one that all ranks can be told.
    pub fn of(failure: Failure) -> Problem {
        Problem::Failed { what: failure.what, why: failure.why, hint: failure.hint }
    }
}

/// How a run ends early.
#[derive(Debug)]
pub enum Stop {
    /// All ranks know.
    Together(Problem),
    /// A rank is gone.
    Lost(TeamError),
}

impl From<TeamError> for Stop {
    fn from(error: TeamError) -> Stop {
        Stop::Lost(error)
    }
}

/// One iteration of one test.
pub struct Session<'a> {
    /// The run.
    pub plan: &'a Plan,
    /// All ranks, also those that this test leaves out.
    pub team: &'a mut Team,
    /// Whose names are used.
    pub names: Names<'a>,
    /// What is measured.
    pub target: &'a mut Posix,
    /// Rank 0's operations.
    pub progress: &'a ProgressBar,
    /// Items of each rank: fewer than planned after a stonewall.
    pub items: u64,
    /// The order for stat and read, if it is random.
    pub order: Option<&'a [u64]>,
    /// What has come of it so far.
    pub state: State,
}

/// What a session knows of its phases.
#[derive(Debug, Default)]
pub struct State {
    /// Phases that are done and of which the other ranks do not know.
    unsettled: Vec<(Phase, Part)>,
    problem: Option<Problem>,
    results: Iteration,
}

type Work = (Part, Option<Problem>);

impl<'a> Session<'a> {
    /// Whether this rank takes part in the test.
    fn takes_part(&self) -> bool {
        self.team.rank() < self.names.ranks
    }

    /// All phases. What was measured until then is lost where one fails.
    pub fn run(mut self) -> Result<(Iteration, u64), Stop> {
        if self.plan.create {
            self.phase(Phase::TreeCreation, |session| Ok(session.make_trees()))?;
        }
        if self.plan.measures_directories {
            self.delay()?;
            self.directories()?;
        }
        if self.plan.measures_files {
            self.delay()?;
            self.files()?;
        }
        if self.plan.remove {
            self.phase(Phase::TreeRemoval, |session| Ok(session.remove_trees()))?;
        }
        self.settle()?;
        Ok((self.state.results, self.items))
    }

    fn directories(&mut self) -> Result<(), Stop> {
        if self.plan.create {
            self.phase(Phase::DirectoryCreation, |session| {
                Ok(session.made(Kind::Directory, |target, path, _| target.make_directory(path)))
            })?;
        }
        if self.plan.stat {
            self.phase(Phase::DirectoryStat, |session| {
                Ok(session.looked_at(Kind::Directory, Step::Stat, |target, path, _| target.stat(path)))
            })?;
        }
        if self.plan.rename && self.items > 1 {
            self.phase(Phase::DirectoryRename, |session| Ok(session.rename()))?;
        }
        if self.plan.remove {
            self.phase(Phase::DirectoryRemoval, |session| {
                Ok(session.removed(Kind::Directory, |target, path, _| target.remove_directory(path)))
            })?;
        }
        Ok(())
    }

    fn files(&mut self) -> Result<(), Stop> {
        if self.plan.create {
            self.phase(Phase::FileCreation, Session::make_files)?;
        }
        if self.plan.stat {
            self.phase(Phase::FileStat, |session| {
                Ok(session.looked_at(Kind::File, Step::Stat, |target, path, _| target.stat(path)))
            })?;
        }
        if self.plan.read {
            self.phase(Phase::FileRead, |session| {
                Ok(session.looked_at(Kind::File, Step::Read, |target, path, stamp| target.read(path, stamp)))
            })?;
        }
        if self.plan.remove {
            self.phase(Phase::FileRemoval, |session| {
                Ok(session.removed(Kind::File, |target, path, _| target.remove(path)))
            })?;
        }
        Ok(())
    }

    /// One phase: barrier, clock, work, sync, barrier, clock. Ranks that are left out, or have failed, wait with the others.
    fn phase(
        &mut self,
        phase: Phase,
        work: impl FnOnce(&mut Session<'a>) -> Result<Work, TeamError>,
    ) -> Result<(), Stop> {
        self.progress.set_message(phase.title());
        let waits = !self.plan.arguments.no_barriers;
        if self.plan.arguments.unique && !self.plan.arguments.time_unique {
            self.enter();
        }
        if waits {
            self.team.barrier()?;
        }
        let start = Instant::now();
        if self.plan.arguments.time_unique {
            self.enter();
        }
        let (mut part, problem) = work(self)?;
        part.own_seconds = start.elapsed().as_secs_f64();
        if self.plan.arguments.sync_phase {
            rustix::fs::sync();
        }
        if waits {
            self.team.barrier()?;
        }
        part.seconds = start.elapsed().as_secs_f64();
        self.state.problem = self.state.problem.take().or(problem);
        self.state.unsettled.push((phase, part));
        if waits { self.settle() } else { Ok(()) }
    }

    /// Looks a rank's own directory up, as mdtest's ranks went there once. That it is missing, the phase itself will say.
    fn enter(&mut self) {
        let names = &self.names;
        let _ = self.target.stat(&names.directory(0, names.owner(Step::Create), 0));
    }

    /// All ranks learn what the others did since the last time, and whether any failed.
    fn settle(&mut self) -> Result<(), Stop> {
        let own = (std::mem::take(&mut self.state.unsettled), self.state.problem.take());
        let all = self.team.gather_for_all(own)?;
        let mut problems = Vec::new();
        for (rank, (parts, problem)) in all.into_iter().enumerate() {
            problems.extend(problem);
            for (phase, part) in parts.into_iter().filter(|_| rank < self.names.ranks) {
                self.state.results.entry(phase).or_default().push(part);
            }
        }
        // What failed is worth more to know than that others were interrupted meanwhile.
        problems.sort_by_key(|problem| matches!(problem, Problem::Interrupted));
        match problems.into_iter().next() {
            Some(problem) => Err(Stop::Together(problem)),
            None => Ok(()),
        }
    }

    fn delay(&mut self) -> Result<(), Stop> {
        let end = Instant::now() + Duration::from_secs(self.plan.arguments.pre_delay);
        while Instant::now() < end && !self.team.interrupted() {
            thread::sleep(NAP.min(end.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }

    /// Does something with items of an owner, one after the other, until `deadline`.
    fn each(
        &mut self,
        (kind, owner): (Kind, usize),
        items: impl Iterator<Item = u64>,
        deadline: Option<Instant>,
        mut operation: impl FnMut(&mut Posix, &str, u64) -> io::Result<()>,
    ) -> Work {
        let names = self.names.clone();
        let mut paths = names.items(kind, owner);
        let mut part = Part::default();
        for item in items {
            if self.team.interrupted() {
                return (part, Some(Problem::Interrupted));
            }
            let (path, stamp) = paths.path(item);
            if let Err(error) = operation(self.target, path, stamp) {
                let path = path.to_owned();
                return (part, Some(self.failed(&path, &error)));
            }
            part.operations += 1;
            if part.operations.is_multiple_of(LOOK_EVERY) {
                self.progress.inc(LOOK_EVERY);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
        }
        self.progress.inc(part.operations % LOOK_EVERY);
        (part, None)
    }

    fn failed(&self, path: &str, error: &io::Error) -> Problem {
        let hint = match error.raw_os_error() {
            Some(libc::EEXIST) => "an earlier run left it: remove it with the same options and -r, or name another -d",
            Some(libc::ENOENT) if !self.plan.create => {
                "an earlier run with the same options and -C must have made it, with as many ranks"
            }
            Some(libc::ENOSPC | libc::EDQUOT) => "make fewer or smaller files, or room (see --dry-run)",
            Some(libc::EMLINK) => "give each rank a directory with -u, or a tree with -z and -b",
            _ => "see whether the directory is mounted and may be written",
        };
        let rank = self.names.rank;
        Problem::Failed {
            what: format!("rank {rank} cannot go on at {path}"),
            why: error.to_string(),
            hint: hint.into(),
        }
    }

    /// The owners whose items this rank makes or removes itself.
    fn owners(&self, step: Step) -> Vec<usize> {
        match (self.plan.arguments.collective, self.names.rank) {
            _ if !self.takes_part() => Vec::new(),
            (true, 0) => (0..self.names.ranks).collect(),
            (true, _) => Vec::new(),
            (false, _) => vec![self.names.owner(step)],
        }
    }

    fn made(&mut self, kind: Kind, mut operation: impl FnMut(&mut Posix, &str, u64) -> io::Result<()>) -> Work {
        let items = self.items;
        self.for_owners(Step::Create, |session, owner| session.each((kind, owner), 0..items, None, &mut operation))
    }

    fn removed(&mut self, kind: Kind, mut operation: impl FnMut(&mut Posix, &str, u64) -> io::Result<()>) -> Work {
        let items = if self.plan.arguments.shared && self.names.rank != 0 { 0 } else { self.items };
        self.for_owners(Step::Remove, |session, owner| session.each((kind, owner), 0..items, None, &mut operation))
    }

    fn for_owners(&mut self, step: Step, mut work: impl FnMut(&mut Session<'a>, usize) -> Work) -> Work {
        let mut whole = Part::default();
        for owner in self.owners(step) {
            let (part, problem) = work(self, owner);
            whole.operations += part.operations;
            if problem.is_some() {
                return (whole, problem);
            }
        }
        (whole, None)
    }

    fn looked_at(
        &mut self,
        kind: Kind,
        step: Step,
        operation: impl FnMut(&mut Posix, &str, u64) -> io::Result<()>,
    ) -> Work {
        if !self.takes_part() {
            return Work::default();
        }
        let (owner, items) = (self.names.owner(step), self.items);
        match self.order {
            Some(order) => {
                // After a stonewall, some of the items were not made.
                let order = order.iter().copied().filter(|item| *item < items);
                self.each((kind, owner), order, None, operation)
            }
            None => self.each((kind, owner), 0..items, None, operation),
        }
    }

    /// Each directory takes the name of the one before it; the first went aside, and comes back last. All names are there again then.
    fn rename(&mut self) -> Work {
        if !self.takes_part() {
            return Work::default();
        }
        let (owner, last) = (self.names.owner(Step::Stat), self.items - 1);
        let names = self.names.clone();
        let aside = format!("{}-XX", names.items(Kind::Directory, owner).path(0).0);
        let (mut previous, mut at) = (aside.clone(), 0);
        self.each((Kind::Directory, owner), 0..self.items, None, |target, path, _| {
            target.rename(if at == last { &aside } else { path }, &previous)?;
            previous.clear();
            previous.push_str(path);
            at += 1;
            Ok(())
        })
    }

    /// Makes files, up to the stonewall and then as many as the fastest rank has made.
    fn make_files(&mut self) -> Result<Work, TeamError> {
        let create = |target: &mut Posix, path: &str, stamp: u64| target.create(path, stamp);
        let mut whole = Part::default();
        if self.plan.arguments.collective {
            // Rank 0 makes them all; then each opens its own and writes to it, which is what is counted.
            let (_, problem) = self.made(Kind::File, create);
            self.team.barrier()?;
            if problem.is_some() {
                return Ok((whole, problem));
            }
        }
        let seconds = self.plan.arguments.stonewall;
        let start = Instant::now();
        let deadline = (seconds > 0).then(|| start + Duration::from_secs(seconds));
        let own = if self.takes_part() { self.items } else { 0 };
        let owner = self.names.owner(Step::Create);
        let (part, mut problem) = self.each((Kind::File, owner), 0..own, deadline, create);
        whole.operations = part.operations;
        if seconds > 0 {
            whole.stonewall = Some((part.operations, start.elapsed().as_secs_f64()));
            let all = self.team.gather_for_all((part.operations, problem.is_some()))?;
            self.items = all.iter().map(|(made, _)| *made).max().unwrap_or(0);
            let go_on = !all.iter().any(|(_, failed)| *failed) && self.takes_part();
            if go_on && part.operations < self.items {
                let (part, later) = self.each((Kind::File, owner), part.operations..self.items, None, create);
                whole.operations += part.operations;
                problem = later;
            }
        }
        Ok((whole, problem))
    }

    /// The trees that this rank makes: with -u its own, else rank 0 the one of all.
    fn trees(&self) -> Vec<usize> {
        match (self.plan.arguments.unique, self.plan.arguments.collective, self.names.rank) {
            _ if !self.takes_part() => Vec::new(),
            (true, true, 0) => (0..self.names.ranks).collect(),
            (true, false, rank) => vec![rank],
            (false, _, 0) => vec![0],
            _ => Vec::new(),
        }
    }

    fn make_trees(&mut self) -> Work {
        let directories = self.plan.tree.directories;
        self.on_trees(|directory| directory, directories, |target, path| target.make_directory(path))
    }

    /// Children first.
    fn remove_trees(&mut self) -> Work {
        let directories = self.plan.tree.directories;
        self.on_trees(
            |directory| directories - 1 - directory,
            directories,
            |target, path| target.remove_directory(path),
        )
    }

    fn on_trees(
        &mut self,
        order: impl Fn(u64) -> u64,
        directories: u64,
        operation: impl Fn(&mut Posix, &str) -> io::Result<()>,
    ) -> Work {
        let mut part = Part::default();
        for owner in self.trees() {
            for (test, directory) in (0..self.plan.loops).flat_map(|test| (0..directories).map(move |at| (test, at))) {
                if self.team.interrupted() {
                    return (part, Some(Problem::Interrupted));
                }
                let path = self.names.directory(test, owner, order(directory));
                if let Err(error) = operation(self.target, &path) {
                    return (part, Some(self.failed(&path, &error)));
                }
                part.operations += 1;
            }
        }
        (part, None)
    }
}
