//! Measures what a plan says, in its order, until there is enough.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::expect::short;
use super::groups::groups;
use super::machine::{self, Ticks};
use super::plan::{Plan, Visit};
use super::process::{Stop, Trouble, run_command, run_together};
use super::progress::Progress;
use super::results::{Programs, Results};
use super::steps::{FILE_PREFIX, Step};
use super::template::fill;
use crate::Failure;
use crate::record::{Environment, Measured, SCHEMA, Sample};

/// How a sweep ended.
#[derive(Debug, PartialEq)]
pub enum End {
    /// All is measured, but for what failed with `--keep-going`: that in words.
    Complete(Vec<String>),
    /// The user wanted to stop.
    Stopped,
}

/// A sweep that runs.
pub struct Runner<'a> {
    plan: &'a Plan,
    results: Results,
    stop: Stop,
    progress: Progress,
    is_patient: bool,
    failures: Vec<String>,
    /// Where processes put what they say.
    scratch: PathBuf,
}

/// RFC 3339, to the millisecond.
pub fn now() -> String {
    let now = jiff::Timestamp::now();
    now.round(jiff::Unit::Millisecond).unwrap_or(now).to_string()
}

/// The builds of this program and of those that systems have instead.
pub fn programs(plan: &Plan) -> Programs {
    let own = ("sweep".to_owned(), machine::build(Path::new("/proc/self/exe")));
    let others = plan.file.system.iter().filter_map(|spanned| {
        let system = spanned.get_ref();
        let path = fill(system.program.as_ref()?, &plan.names_of_system(system), false).ok()?;
        Some((format!("system {}", system.name), machine::build(Path::new(&path))))
    });
    [own].into_iter().chain(others).filter_map(|(name, build)| Some((name, build?))).collect()
}

/// What a sample's operation is called: where others ran at the same time it is another operation.
pub fn label(op: &str, step: &Step, is_all: bool) -> String {
    match (step.parts.len() > 1, is_all) {
        (false, false) => op.to_owned(),
        (true, false) => format!("{op} ({})", step.name),
        (false, true) => format!("{op} (all)"),
        (true, true) => format!("{op} ({}, all)", step.name),
    }
}

impl<'a> Runner<'a> {
    /// Of a plan, into a folder. With `is_patient` what fails is passed over.
    pub fn new(plan: &'a Plan, results: Results, stop: Stop, is_patient: bool) -> Result<Runner<'a>, Failure> {
        let scratch = results.path("work");
        fs::create_dir_all(&scratch).map_err(|error| {
            Failure::new(format!("cannot make {}", scratch.display()), error, "name another folder by --results")
        })?;
        let whole: f64 = plan.visits.iter().map(|visit| plan.cost(visit).seconds).sum();
        let progress = Progress::new(whole / plan.visits.len() as f64);
        Ok(Runner { plan, results, stop, progress, is_patient, failures: Vec::new(), scratch })
    }

    /// Measures all that is left.
    pub fn run(mut self, text: &str) -> Result<(End, Results), Failure> {
        let mut started = 0;
        let end = match self.start(&mut started) {
            Ok(()) => self.environment(text).and_then(|()| self.blocks()),
            Err(Trouble::Stopped) => Ok(false),
            Err(Trouble::Failed(why)) => Err(failure("cannot start what is measured", why)),
        };
        for spanned in &self.plan.file.system[..started] {
            if let Some(command) = &spanned.get_ref().stop {
                self.clean_up(fill(command, &self.plan.names_of_system(spanned.get_ref()), false));
            }
        }
        self.progress.clear();
        // What calls that failed have left in it is kept.
        let _ = fs::remove_dir(&self.scratch);
        let failures = std::mem::take(&mut self.failures);
        let end = if end? { End::Complete(failures) } else { End::Stopped };
        Ok((end, self.results))
    }

    /// Starts all systems, and says how many were begun.
    fn start(&self, begun: &mut usize) -> Result<(), Trouble> {
        for spanned in &self.plan.file.system {
            *begun += 1;
            if let Some(command) = &spanned.get_ref().start {
                let names = self.plan.names_of_system(spanned.get_ref());
                let command = fill(command, &names, false).map_err(Trouble::Failed)?;
                run_command(&command, &self.scratch, self.timeout(), &self.stop)?;
            }
        }
        Ok(())
    }

    fn environment(&mut self, text: &str) -> Result<(), Failure> {
        let mut facts = machine::facts();
        let mut mounts = BTreeMap::new();
        for (system, spanned) in self.plan.file.system.iter().enumerate() {
            let directory = self.plan.visits.first().and_then(|visit| self.plan.directory(visit, system));
            if let Some(mount) = directory.as_deref().and_then(machine::mount_of) {
                mounts.insert(spanned.get_ref().name.clone(), mount);
            }
        }
        facts.insert("mounts".to_owned(), json!(mounts));
        facts.insert("programs".to_owned(), json!(self.results.programs));
        if self.results.is_resumed {
            facts.insert("resumed".to_owned(), json!(true));
        }
        self.results.add_environment(Environment {
            schema: SCHEMA,
            run: self.results.run.clone(),
            time: now(),
            name: self.plan.file.name.get_ref().clone(),
            plan: text.to_owned(),
            facts,
        })
    }

    /// Block after block; whether all came to their end.
    fn blocks(&mut self) -> Result<bool, Failure> {
        for block in 0..self.plan.blocks_max() {
            let wanted = self.wanted(block);
            if wanted.is_empty() {
                return Ok(true);
            }
            let order = self.plan.order(block).into_iter().filter(|visit| wanted.contains_key(visit));
            let left: Vec<usize> = order.filter(|&visit| !self.is_done(block, visit)).collect();
            self.progress.expect(self.visits_done(), left.len() as u64 + later(&wanted));
            for visit in left {
                if self.stop.is_set() {
                    return Ok(false);
                }
                if !self.visit(block, visit)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn is_done(&self, block: u32, visit: usize) -> bool {
        (0..self.plan.steps.len()).all(|step| self.results.is_done(block, visit, step))
    }

    fn visits_done(&self) -> u64 {
        (self.results.done() / self.plan.steps.len().max(1)) as u64
    }

    /// The visits of a block, and how many repetitions more each is likely to need, this one included. That rests on earlier blocks alone, so that an interruption changes nothing.
    fn wanted(&self, block: u32) -> BTreeMap<usize, usize> {
        let least = self.plan.warmup + self.plan.repeat;
        let all = 0..self.plan.visits.len();
        let Some(until) = self.plan.until.filter(|_| block >= least) else {
            return all.filter(|_| block < least).map(|visit| (visit, (least - block) as usize)).collect();
        };
        let is_earlier = |sample: &&Sample| {
            sample.more.get("block").and_then(Value::as_u64).is_some_and(|number| number < u64::from(block))
        };
        let groups = groups(self.results.collected.iter().filter(is_earlier));
        let most = (self.plan.blocks_max() - block) as usize;
        let more = |index: &usize| {
            let visit = &self.plan.visits[*index];
            let parameters = self.plan.parameters(visit);
            let own = groups.iter().filter(|group| {
                visit.systems.iter().any(|&system| self.plan.file.system[system].get_ref().name == group.system)
                    && group.op.ends_with("all)") == visit.is_all
                    && parameters.iter().all(|(name, value)| group.parameters.get(name) == Some(value))
            });
            own.filter_map(|group| group.summary()).map(|summary| until.goal.more(&summary)).max().unwrap_or(1)
        };
        all.map(|visit| (visit, more(&visit).min(most))).filter(|(_, more)| *more > 0).collect()
    }

    /// One visit; `false` when the user wants to stop.
    fn visit(&mut self, block: u32, index: usize) -> Result<bool, Failure> {
        let visit = self.plan.visits[index].clone();
        let title = self.plan.title(&visit);
        self.progress.begin(&title);
        let mut begun = Vec::new();
        let result = self.steps(block, index, &visit, &mut begun);
        for &system in &begun {
            let description = self.plan.file.system[system].get_ref();
            if let Some(command) = &description.teardown {
                self.clean_up(self.plan.names(&visit, system).and_then(|names| fill(command, &names, false)));
            }
            if let Some(directory) = self.plan.directory(&visit, system) {
                remove_files(&directory, &format!("{FILE_PREFIX}-{system}."));
            }
        }
        match result {
            Ok(figures) => {
                self.progress.end(&title, &figures);
                Ok(true)
            }
            Err(Problem::Trouble(Trouble::Stopped)) => Ok(false),
            Err(Problem::Trouble(Trouble::Failed(why))) if self.is_patient => {
                self.progress.say(&format!("{title}: failed: {why}"));
                self.failures.push(format!("{title}: {}", why.lines().next().unwrap_or_default()));
                Ok(true)
            }
            Err(Problem::Trouble(Trouble::Failed(why))) => Err(failure(&format!("cannot measure {title}"), why)),
            Err(Problem::Failure(failure)) => Err(failure),
        }
    }

    /// All steps of a visit; what is done already is done again where later steps need it, and not written down twice.
    fn steps(&mut self, block: u32, index: usize, visit: &Visit, begun: &mut Vec<usize>) -> Result<String, Problem> {
        for &system in &visit.systems {
            begun.push(system);
            self.command(visit, system, self.plan.file.system[system].get_ref().setup.as_ref())?;
        }
        let mut figures = Vec::new();
        for step in 0..self.plan.steps.len() {
            let (samples, said) = self.step(block, index, visit, step)?;
            if !self.results.is_done(block, index, step) {
                self.results.add(block, index, step, samples).map_err(Problem::Failure)?;
                figures.extend(said);
            }
        }
        Ok(figures.join(", "))
    }

    fn step(
        &mut self,
        block: u32,
        index: usize,
        visit: &Visit,
        step: usize,
    ) -> Result<(Vec<Sample>, Vec<String>), Problem> {
        let plan = self.plan;
        for &system in &visit.systems {
            self.command(visit, system, plan.file.system[system].get_ref().before.as_ref())?;
        }
        let mut calls = Vec::new();
        let mut of_system = Vec::new();
        for &system in &visit.systems {
            for part in &plan.steps[step].parts {
                calls.push(plan.call(visit, system, step, part).map_err(Trouble::Failed)?);
                of_system.push(system);
            }
        }
        self.stop.pause(Duration::from_secs_f64(plan.pause));
        if plan.memory > 0 {
            machine::touch_memory(plan.memory);
        }
        if plan.drops_caches() {
            machine::drop_caches().map_err(Problem::Failure)?;
        }
        let (time, before, load) = (now(), Ticks::now(), machine::load());
        let measured = run_together(&calls, &self.scratch, self.timeout(), &self.stop)?;
        let stolen = Ticks::now().zip(before).map(|(after, before)| after.stolen_since(before));
        let state: BTreeMap<String, Value> = [
            ("block", Some(json!(block))),
            ("steal_percent", stolen.map(|stolen| json!(stolen))),
            ("load", load.map(|load| json!(load))),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect();
        let mut samples = Vec::new();
        let mut said = Vec::new();
        for (system, found) in of_system.into_iter().zip(measured) {
            self.check_distinct(&found).map_err(Trouble::Failed)?;
            let repeats = found.iter().map(|measured| measured.repeat).max().unwrap_or(0).saturating_add(1);
            for measured in found {
                let name = label(&measured.op, &plan.steps[step], visit.is_all);
                said.push(format!("{name} {} {}", short(measured.value), measured.unit));
                let mut sample = self.sample(block, visit, system, measured, repeats);
                sample.op = name;
                sample.order = self.results.order(block, index);
                sample.time.clone_from(&time);
                sample.more.extend(state.clone());
                samples.push(sample);
            }
        }
        Ok((samples, said))
    }

    /// What would count as repetitions of the same must differ in them.
    fn check_distinct(&self, found: &[Measured]) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for measured in found {
            let keys: Vec<Option<&Value>> = self.plan.file.run.keys.iter().map(|key| measured.more.get(key)).collect();
            if !seen.insert(json!([measured.op, measured.repeat, keys]).to_string()) {
                let (op, repeat) = (&measured.op, measured.repeat);
                return Err(format!("it says {op} of repetition {repeat} twice: name in keys of [run] what differs"));
            }
        }
        Ok(())
    }

    /// What a call has measured, with what only the sweep knows.
    fn sample(&self, block: u32, visit: &Visit, system: usize, measured: Measured, repeats: u32) -> Sample {
        let mut parameters = self.plan.parameters(visit);
        let mut more = measured.more;
        for key in &self.plan.file.run.keys {
            if let Some(value) = more.remove(key) {
                parameters.insert(key.clone(), value);
            }
        }
        let warmup = block < self.plan.warmup;
        let repetition = if warmup { block } else { block - self.plan.warmup };
        Sample {
            run: self.results.run.clone(),
            system: self.plan.file.system[system].get_ref().name.clone(),
            parameters,
            repeat: repetition.saturating_mul(repeats).saturating_add(measured.repeat),
            warmup,
            value: measured.value,
            unit: measured.unit,
            seconds: measured.seconds,
            more,
            series: measured.series,
            ..Sample::default()
        }
    }

    fn timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.plan.timeout).unwrap_or(Duration::MAX)
    }

    fn command(&self, visit: &Visit, system: usize, command: Option<&String>) -> Result<(), Trouble> {
        let Some(command) = command else { return Ok(()) };
        let names = self.plan.names(visit, system).map_err(Trouble::Failed)?;
        let command = fill(command, &names, false).map_err(Trouble::Failed)?;
        run_command(&command, &self.scratch, self.timeout(), &self.stop)
    }

    /// A command that takes something away again: also when the user wants to stop, and told when it fails.
    fn clean_up(&self, command: Result<String, String>) {
        let run = |command: String| match run_command(&command, &self.scratch, self.timeout(), &Stop::default()) {
            Err(Trouble::Failed(why)) => Err(why),
            _ => Ok(()),
        };
        if let Err(why) = command.and_then(run) {
            self.progress.say(&format!("could not clean up: {why}"));
        }
    }
}

fn failure(what: &str, why: String) -> Failure {
    let hint = "mend that, and run the same again: it goes on where it stopped (--keep-going passes over what fails)";
    Failure::new(what, why, hint)
}

/// Why a step was not measured.
enum Problem {
    /// Its processes.
    Trouble(Trouble),
    /// The results, or the machine: there is no going on.
    Failure(Failure),
}

impl From<Trouble> for Problem {
    fn from(trouble: Trouble) -> Problem {
        Problem::Trouble(trouble)
    }
}

/// How many visits are likely to follow after a block of these.
fn later(wanted: &BTreeMap<usize, usize>) -> u64 {
    wanted.values().map(|more| *more as u64 - 1).sum()
}

/// Removes what a point has made: everything whose name begins so, since a benchmark may add a number.
fn remove_files(directory: &Path, prefix: &str) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let own: BTreeSet<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    for path in own {
        // What is gone already is as it should be, and what stays is written over.
        let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    }
}
