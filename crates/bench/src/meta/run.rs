//! A run from its header to its tables.

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use crate::Failure;
use crate::meta::arguments::Arguments;
use crate::meta::names::Names;
use crate::meta::place::{self, Made};
use crate::meta::plan::{Needs, Plan};
use crate::meta::results::{self, Iteration, Shown};
use crate::meta::session::{Problem, Session, State, Stop};
use crate::meta::target::{Manner, Posix};
use crate::ranks::{Options, Team};

/// Items of a rank that can be put in random order: 8 bytes each, 1 GiB.
const RANDOM_ITEMS_MAX: u64 = 1 << 27;

/// What a process ends with that was interrupted by SIGINT.
const INTERRUPTED: u8 = 130;

/// Runs it.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let plan = Plan::resolve(&arguments)?;
    if arguments.random && plan.items() > RANDOM_ITEMS_MAX {
        return Err(Failure::usage(
            "cannot measure names",
            format!("-R with more than {RANDOM_ITEMS_MAX} items for each rank would not fit memory"),
            "take fewer with -n or -I, or leave out -R",
        ));
    }
    if arguments.dry_run {
        let ranks = planned(&arguments.team);
        plan.tests(ranks)?;
        print!("{}", dry_run(&plan, ranks));
        place::check_room(&plan, plan.needs(ranks))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut team = Team::start(&arguments.team)?;
    let result = plan.tests(team.size()).and_then(|tests| Run::new(&plan, &mut team)?.all(&tests));
    team.finish(result)
}

/// How many ranks the options ask for.
fn planned(options: &Options) -> usize {
    let slots = |host: &String| host.rsplit_once(':').and_then(|(_, slots)| slots.parse().ok()).unwrap_or(1);
    let hosts: usize = options.hosts.iter().map(slots).sum();
    options.ranks.unwrap_or(hosts.max(1))
}

/// What a run would do.
fn dry_run(plan: &Plan, ranks: usize) -> String {
    let Needs { tree, directories, files, bytes } = plan.needs(ranks);
    let inodes = plan.needs(ranks).inodes(plan.remove);
    format!(
        "{ranks} ranks, {} iterations, in {}\n\
         directories of trees and tests  {tree:>14}\n\
         directories measured            {directories:>14}\n\
         files measured                  {files:>14}\n\
         bytes in files                  {bytes:>14}\n\
         inodes in use at most           {inodes:>14}{}\n",
        plan.arguments.iterations,
        plan.directories.join(", "),
        if plan.remove { "" } else { ", and left there by each iteration" },
    )
}

struct Run<'a> {
    plan: &'a Plan,
    team: &'a mut Team,
    progress: ProgressBar,
    target: Posix,
    made: Made,
    stride: usize,
    order: Option<Vec<u64>>,
    seed: u64,
    began: Timestamp,
}

/// The results of one test: so many ranks, and its iterations.
type Test = (usize, Vec<Iteration>);

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, team: &'a mut Team) -> Result<Run<'a>, Failure> {
        let arguments = &plan.arguments;
        let manner = Manner {
            write: arguments.write_bytes as usize,
            read: arguments.read_bytes as usize,
            mknod: arguments.mknod,
            sync: arguments.sync_file,
            verify_write: arguments.verify_write,
            verify_read: arguments.verify_read,
        };
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs());
        let seed = team.broadcast(arguments.random_seed.unwrap_or(time))?;
        let order = arguments.random.then(|| {
            let mut order: Vec<u64> = (0..plan.items()).collect();
            order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed.wrapping_add(team.rank() as u64)));
            order
        });
        Ok(Run {
            target: Posix::new(manner, arguments.data_seed),
            made: Made::default(),
            stride: stride(arguments.stride, &team.hosts()),
            progress: progress(plan, team.rank()),
            began: Timestamp::now(),
            plan,
            team,
            order,
            seed,
        })
    }

    fn all(mut self, tests: &[usize]) -> Result<ExitCode, Failure> {
        let outcome = self.measure(tests);
        self.progress.finish_and_clear();
        let shows = self.team.rank() == 0;
        match outcome {
            Ok(()) => {
                self.made.finish();
                let damaged: u64 = self.team.gather(self.target.damaged)?.unwrap_or_default().iter().sum();
                if damaged > 0 {
                    tell!(
                        "ERROR: {damaged} files did not have the content that was written. Do not believe the figures."
                    );
                }
                Ok(if damaged > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
            }
            Err(stop) => {
                if shows && !self.made.is_empty() {
                    tell!("removing what was made");
                }
                self.made.clean_up();
                match stop {
                    Stop::Lost(error) => Err(error.into()),
                    Stop::Together(Problem::Interrupted) => Ok(ExitCode::from(INTERRUPTED)),
                    Stop::Together(Problem::Failed { what, why, hint }) => Err(Failure::new(what, why, hint)),
                }
            }
        }
    }

    fn measure(&mut self, tests: &[usize]) -> Result<(), Stop> {
        let ranks = tests.last().copied().unwrap_or(1);
        let prepared = self.prepare(ranks);
        self.agree(prepared)?;
        self.header();
        let mut all: Vec<Test> = Vec::new();
        for &ranks in tests {
            let mut iterations = Vec::new();
            self.say(0, &counts(self.plan, ranks));
            for iteration in 0..self.plan.arguments.iterations {
                let done = self.iteration(ranks, iteration)?;
                // What read wrong data has measured nothing that others may reckon with.
                let is_damaged = self.team.gather_for_all(self.target.damaged)?.iter().any(|files| *files > 0);
                let written = if is_damaged { Ok(()) } else { self.record(&done, iteration, ranks) };
                self.agree(written)?;
                iterations.push(done);
            }
            self.tables(&iterations);
            all.push((ranks, iterations));
        }
        self.footer(&all);
        Ok(())
    }

    /// All ranks go on, or none.
    fn agree(&mut self, own: Result<(), Failure>) -> Result<(), Stop> {
        let problems = self.team.gather_for_all(own.err().map(Problem::of))?;
        match problems.into_iter().flatten().next() {
            Some(problem) => Err(Stop::Together(problem)),
            None => Ok(()),
        }
    }

    fn prepare(&mut self, ranks: usize) -> Result<(), Failure> {
        let plan = self.plan;
        if self.team.rank() == 0 {
            if plan.create {
                place::check_room(plan, plan.needs(ranks))?;
            }
            // What has been measured is written down at once, so that it can be seen now that it will be.
            if let Some(path) = &plan.arguments.measured {
                append(path, "")?;
            }
        }
        match plan.directories.get(self.team.rank()) {
            Some(directory) => self.made.base(directory, plan.create),
            None => Ok(()),
        }
    }

    fn iteration(&mut self, ranks: usize, iteration: u32) -> Result<Iteration, Stop> {
        let plan = self.plan;
        let rank = self.team.rank();
        let names = Names { plan, rank, ranks, stride: self.stride, iteration };
        let leads = rank < plan.directories.len();
        let tests = || (0..plan.loops).map(|test| names.test_directory(test));
        let mut ready = Ok(());
        if plan.create && leads {
            ready = tests().try_for_each(|test| self.made.test(test));
        }
        self.agree(ready)?;
        let items = self.items()?;
        let session = Session {
            plan,
            team: &mut *self.team,
            names: names.clone(),
            target: &mut self.target,
            progress: &self.progress,
            items,
            order: self.order.as_deref(),
            state: State::default(),
        };
        let (done, made) = session.run()?;
        let mut tidy = Ok(());
        if plan.remove && leads {
            tidy = self.made.remove_tests(tests());
        }
        let path = plan.arguments.stonewall_status.as_deref().filter(|_| plan.create && rank == 0);
        if let (Some(path), Ok(())) = (path, &tidy) {
            tidy = std::fs::write(path, format!("{made}\n")).map_err(|error| status_failure(path, &error));
        }
        self.agree(tidy)?;
        Ok(done)
    }

    /// Items of each rank: as planned, or as a stonewall of an earlier run let through.
    fn items(&mut self) -> Result<u64, Stop> {
        let planned = self.plan.items();
        let Some(path) = self.plan.arguments.stonewall_status.as_deref().filter(|_| !self.plan.create) else {
            return Ok(planned);
        };
        let read = std::fs::read_to_string(path).and_then(|text| {
            text.trim().parse::<u64>().map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))
        });
        let own = if self.team.rank() == 0 { read.map_err(|error| status_failure(path, &error)) } else { Ok(0) };
        let (items, failure) = match own {
            Ok(items) => (items.min(planned), Ok(())),
            Err(failure) => (0, Err(failure)),
        };
        self.agree(failure)?;
        Ok(self.team.broadcast(items)?)
    }

    fn record(&self, done: &Iteration, repeat: u32, ranks: usize) -> Result<(), Failure> {
        let Some(path) = self.plan.arguments.measured.as_deref().filter(|_| self.team.rank() == 0) else {
            return Ok(());
        };
        let mut text = String::new();
        for line in results::measured(done, repeat, ranks) {
            let line = serde_json::to_string(&line)
                .map_err(|error| Failure::new("cannot write a result", error, "this is a mistake in aqueduct"))?;
            text.push_str(&line);
            text.push('\n');
        }
        append(path, &text)
    }

    /// Prints a line at rank 0 from this verbosity on, unless JSON is printed.
    fn say(&self, verbosity: u8, text: &str) {
        let arguments = &self.plan.arguments;
        let wanted = arguments.verbose.max(arguments.verbosity) >= verbosity;
        if self.team.rank() == 0 && wanted && !arguments.json {
            self.progress.suspend(|| println!("{text}"));
        }
    }

    fn header(&self) {
        let hosts = self.team.hosts();
        let plan = self.plan;
        let began = self.began.strftime("%m/%d/%Y %H:%M:%S");
        let version = env!("CARGO_PKG_VERSION");
        self.say(0, &format!("-- started at {began} --\n"));
        let nodes = distinct(&hosts);
        let ranks = self.team.size();
        self.say(0, &format!("mdtest (aqueduct-{version}) was launched with {ranks} total task(s) on {nodes} node(s)"));
        self.say(0, &format!("Command line used: {}", command_line()));
        let map: String = hosts.iter().map(|host| if *host == hosts[0] { '1' } else { '0' }).collect();
        self.say(0, &format!("Nodemap: {map}"));
        let path = &plan.directories[0];
        self.say(0, &format!("{:<20}: {path}", "Path"));
        let described = place::describe(path).unwrap_or_else(|failure| failure.why);
        self.say(0, &format!("{:<20}: {described}", "FS"));
        if plan.arguments.stride > 0 {
            self.say(0, &format!("Shifting ranks by {} for each phase.", self.stride));
        }
        if plan.arguments.random {
            self.say(0, &format!("random seed: {}", self.seed));
        }
        self.say(1, &format!("{:#?}", plan.arguments));
    }

    fn tables(&self, iterations: &[Iteration]) {
        let arguments = &self.plan.arguments;
        for (number, iteration) in iterations.iter().enumerate() {
            for line in results::measured(iteration, 0, 0) {
                let text =
                    format!("iteration {number}: {:<12} {:>14.3} s {:>14.3} op/s", line.op, line.seconds, line.value);
                self.say(1, &text);
            }
        }
        let shown = match (arguments.print_both, arguments.print_time) {
            (true, _) => vec![Shown::Rate, Shown::Time],
            (false, true) => vec![Shown::Time],
            (false, false) => vec![Shown::Rate],
        };
        for shown in shown {
            self.say(0, results::table(self.plan, iterations, shown).trim_end_matches('\n'));
        }
    }

    fn footer(&self, all: &[Test]) {
        let finished = Timestamp::now();
        self.say(0, &format!("-- finished at {} --", finished.strftime("%m/%d/%Y %H:%M:%S")));
        if !self.plan.arguments.json || self.team.rank() != 0 {
            return;
        }
        let test = |(ranks, iterations): &Test| {
            let mut test = results::json(self.plan, iterations);
            test["tasks"] = json!(ranks);
            test
        };
        let document = json!({
            "benchmark": "meta",
            "version": env!("CARGO_PKG_VERSION"),
            "began": self.began.to_string(),
            "finished": finished.to_string(),
            "command": command_line(),
            "hosts": self.team.hosts(),
            "paths": self.plan.directories,
            "items_per_task": self.plan.items(),
            "directories_in_tree": self.plan.tree.directories,
            "random_seed": self.plan.arguments.random.then_some(self.seed),
            "tests": all.iter().map(test).collect::<Vec<_>>(),
        });
        println!("{document:#}");
    }
}

/// mdtest's line before a test.
fn counts(plan: &Plan, ranks: usize) -> String {
    let items = plan.items() * ranks as u64;
    match (plan.measures_files, plan.measures_directories) {
        (true, true) => format!("{ranks} tasks, {items} files/directories"),
        (true, false) if plan.arguments.shared => format!("{ranks} tasks, {} shared files", plan.items()),
        (true, false) => format!("{ranks} tasks, {items} files"),
        _ => format!("{ranks} tasks, {items} directories"),
    }
}

fn command_line() -> String {
    let words: Vec<String> =
        std::env::args().enumerate().map(|(at, word)| if at < 3 { word } else { format!("'{word}'") }).collect();
    words.join(" ")
}

fn distinct(hosts: &[String]) -> usize {
    hosts.iter().collect::<std::collections::BTreeSet<_>>().len()
}

/// The ranks that a phase is shifted by: over all of a host where ranks are dealt out host by host, so that a neighbour is on another one.
fn stride(wanted: usize, hosts: &[String]) -> usize {
    let of_first = hosts.iter().filter(|host| **host == hosts[0]).count();
    let in_blocks = hosts.iter().take_while(|host| **host == hosts[0]).count() == of_first;
    if distinct(hosts) > 1 && in_blocks { wanted * of_first } else { wanted }
}

/// A bar on a terminal, at rank 0.
fn progress(plan: &Plan, rank: usize) -> ProgressBar {
    if rank != 0 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let phases =
        |kinds: bool, wanted: [bool; 4]| if kinds { wanted.iter().filter(|wanted| **wanted).count() } else { 0 };
    let phases = phases(plan.measures_directories, [plan.create, plan.stat, plan.rename, plan.remove])
        + phases(plan.measures_files, [plan.create, plan.stat, plan.read, plan.remove]);
    let all = plan.items() * phases as u64 * u64::from(plan.arguments.iterations);
    let style = ProgressStyle::with_template("{msg:<18} [{bar:40}] {percent:>3} %, {eta} left")
        .map_or_else(|_| ProgressStyle::default_bar(), |style| style.progress_chars("##-"));
    ProgressBar::new(all).with_style(style)
}

fn append(path: &Path, text: &str) -> Result<(), Failure> {
    let written =
        OpenOptions::new().create(true).append(true).open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        Failure::new(format!("cannot write results to {}", path.display()), error, "name another file with --measured")
    })
}

fn status_failure(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(
        format!("cannot use {} for the stonewall", path.display()),
        error,
        "name with -x the file of a run that made files (-C -W)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stride_leads_to_another_host() {
        let hosts = |names: &str| names.chars().map(String::from).collect::<Vec<_>>();
        assert_eq!(stride(1, &hosts("aaa")), 1);
        assert_eq!(stride(1, &hosts("aaabbb")), 3);
        assert_eq!(stride(2, &hosts("abab")), 2);
    }
}
