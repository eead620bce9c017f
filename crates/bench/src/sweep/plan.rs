//! What is measured, in which order: worked out from the file before anything runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use toml::Spanned;

use super::expect::Expectation;
use super::file::{Bench, Cache, File, Source, Table, Together};
use super::steps::{self, Step};
use super::template::{Names, fill};
use super::value::{Condition, Setting, seconds, share, size};
use crate::Failure;
use crate::stats::{Goal, Statistic};

/// A sweep has no more points than so, systems included.
pub const VISITS_MAX: usize = 100_000;

/// Repetitions, unless told.
const REPEAT: u32 = 5;

/// How long a call may take, unless told.
const TIMEOUT: f64 = 3600.0;

/// What stands in braces and is neither a parameter nor a value.
pub const OWN_NAMES: [&str; 7] = ["system", "dir", "server", "file", "keep", "step", "results"];

/// A point of the matrix: its parameters by name.
pub type Point = BTreeMap<String, Setting>;

/// One point of one system, or of all at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Visit {
    /// Which point.
    pub point: usize,
    /// Which systems, at once.
    pub systems: Vec<usize>,
    /// These are all of several.
    pub is_all: bool,
}

/// How long to go on with a point.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// What shall be reached.
    pub goal: Goal,
    /// No more repetitions than so.
    pub most: u32,
}

/// Everything that is to be done.
#[derive(Debug)]
pub struct Plan {
    /// What the file says.
    pub file: File,
    /// Where its results go.
    pub results: PathBuf,
    /// All points.
    pub points: Vec<Point>,
    /// All points of all systems.
    pub visits: Vec<Visit>,
    /// What is run at each.
    pub steps: Vec<Step>,
    /// Names that are no parameters.
    pub values: Names,
    /// Blocks that count; at least, with `until`.
    pub repeat: u32,
    /// Blocks before them.
    pub warmup: u32,
    /// When there is enough.
    pub until: Option<Until>,
    /// Bytes to touch before each step.
    pub memory: u64,
    /// Seconds before each step.
    pub pause: f64,
    /// Seconds that a call may take.
    pub timeout: f64,
    /// What should come out.
    pub expectations: Vec<Expectation>,
}

impl Plan {
    /// What a file says, with values from the command line.
    pub fn new(source: &Source, is_reduced: bool, set: &Names, results: Option<&Path>) -> Result<Plan, Failure> {
        let file = source.parse(is_reduced)?;
        check_name(source, &file.name)?;
        let values = values(source, &file, set)?;
        let points = points(source, &file)?;
        check_systems(source, &file)?;
        let visits = visits(&file, points.len());
        if visits.len() > VISITS_MAX {
            let why = format!("it makes {} points, systems included; {VISITS_MAX} is the limit", visits.len());
            return Err(Failure::usage(format!("{} is too large", source.path.display()), why, "take fewer values"));
        }
        let results = match (results, &file.results) {
            (Some(results), _) => results.to_owned(),
            (None, Some(results)) => results.clone(),
            (None, None) => Path::new("results").join(file.name.get_ref()),
        };
        let measure = &file.measure;
        let repeat = measure.repeat.unwrap_or(REPEAT);
        let duration = |text: &Option<Spanned<String>>, unless: f64| match text {
            Some(text) => seconds(text.get_ref())
                .ok_or_else(|| source.wrong(&text.span(), "this is no time: 250ms, 90s, 10m, 2h")),
            None => Ok(unless),
        };
        let memory = measure
            .memory
            .as_ref()
            .map(|text| size(text.get_ref()).ok_or_else(|| source.wrong(&text.span(), "this is no size: 512m, 2g")));
        let plan = Plan {
            results,
            steps: steps::steps(source, &file.run)?,
            values,
            repeat,
            warmup: measure.warmup.unwrap_or(0),
            until: until(source, &file, repeat)?,
            memory: memory.transpose()?.unwrap_or(0),
            pause: duration(&measure.pause, 0.0)?,
            timeout: duration(&measure.timeout, TIMEOUT)?,
            expectations: Expectation::all(source, &file, &points, is_reduced)?,
            points,
            visits,
            file,
        };
        if repeat == 0 {
            let what = format!("{} measures nothing", source.path.display());
            return Err(Failure::usage(what, "repeat is 0", "give measure.repeat one or more"));
        }
        duration(&plan.file.run.takes, 0.0)?;
        plan.check_calls(source)?;
        Ok(plan)
    }

    /// The order of all visits in a block: always the same for a seed.
    pub fn order(&self, block: u32) -> Vec<usize> {
        let mut random = ChaCha8Rng::seed_from_u64(self.file.seed);
        random.set_stream(u64::from(block));
        let mut order: Vec<usize> = (0..self.visits.len()).collect();
        order.shuffle(&mut random);
        order
    }

    /// The most blocks that there may be, warm-ups included.
    pub fn blocks_max(&self) -> u32 {
        let counted = self.until.map_or(self.repeat, |until| until.most.max(self.repeat));
        self.warmup.saturating_add(counted)
    }

    /// What the order of results rests on: results of plans that differ in it do not belong together. Repetitions may be added, and expectations changed.
    pub fn hash(&self) -> String {
        let file = &self.file;
        let whole = json!({
            "seed": file.seed,
            "points": self.points,
            "values": self.values,
            "run": without_places(&file.run),
            "measure": without_places(&file.measure),
            "systems": file.system.iter().map(|system| json!(system.get_ref())).collect::<Vec<_>>(),
        });
        blake3::hash(whole.to_string().as_bytes()).to_hex().to_string()
    }

    /// The names of a visit and one of its systems, for its own commands.
    pub fn names(&self, visit: &Visit, system: usize) -> Result<Names, String> {
        let description = self.file.system[system].get_ref();
        let mut names = self.values.clone();
        names.extend(self.points[visit.point].iter().map(|(name, setting)| (name.clone(), setting.text.clone())));
        names.insert("system".to_owned(), description.name.clone());
        names.insert("results".to_owned(), self.results.display().to_string());
        for (name, text) in [("dir", &description.dir), ("server", &description.server)] {
            if let Some(text) = text {
                let filled = fill(text, &names, false)?;
                names.insert(name.to_owned(), filled);
            }
        }
        Ok(names)
    }

    /// The directory of a system at a visit.
    pub fn directory(&self, visit: &Visit, system: usize) -> Option<PathBuf> {
        self.names(visit, system).ok()?.get("dir").map(PathBuf::from)
    }

    /// What of a point is recorded.
    pub fn parameters(&self, visit: &Visit) -> BTreeMap<String, Value> {
        self.points[visit.point].iter().map(|(name, setting)| (name.clone(), setting.value.clone())).collect()
    }

    /// What a visit is called in messages.
    pub fn title(&self, visit: &Visit) -> String {
        let names: Vec<&str> =
            visit.systems.iter().map(|&system| self.file.system[system].get_ref().name.as_str()).collect();
        let settings = self.points[visit.point].iter().map(|(name, setting)| format!("{name}={}", setting.text));
        [names.join("+")].into_iter().chain(settings).collect::<Vec<_>>().join(" ")
    }

    /// All names are known, and all calls are such that the benchmark would take them.
    fn check_calls(&self, source: &Source) -> Result<(), Failure> {
        for visit in &self.visits {
            for &system in &visit.systems {
                let at = self.file.system[system].span();
                let names = self.names(visit, system).map_err(|why| source.wrong(&at, why))?;
                let description = self.file.system[system].get_ref();
                let commands = [&description.setup, &description.teardown, &description.before];
                for command in commands.into_iter().flatten() {
                    fill(command, &names, false).map_err(|why| source.wrong(&at, why))?;
                }
                for step in 0..self.steps.len() {
                    for part in &self.steps[step].parts {
                        let call = self.call(visit, system, step, part);
                        let call = call.map_err(|why| source.wrong(&part.at, why))?;
                        let at = self.file.run.bytes.as_ref().map_or(part.at.clone(), Spanned::span);
                        self.bytes(visit, system, step, part).map_err(|why| source.wrong(&at, why))?;
                        call.check().map_err(|why| {
                            source.wrong(&part.at, format!("{} does not take this: {why}", call.shown()))
                        })?;
                    }
                }
            }
        }
        for system in &self.file.system {
            for command in [&system.get_ref().start, &system.get_ref().stop].into_iter().flatten() {
                fill(command, &self.names_of_system(system.get_ref()), false)
                    .map_err(|why| source.wrong(&system.span(), why))?;
            }
        }
        Ok(())
    }

    /// The names for commands that are run once.
    pub fn names_of_system(&self, system: &super::file::System) -> Names {
        let mut names = self.values.clone();
        names.insert("system".to_owned(), system.name.clone());
        names.insert("results".to_owned(), self.results.display().to_string());
        for (name, text) in [("dir", &system.dir), ("server", &system.server)] {
            if let Some(filled) = text.as_ref().and_then(|text| fill(text, &names, false).ok()) {
                names.insert(name.to_owned(), filled);
            }
        }
        names
    }

    /// Whether caches are dropped.
    pub fn drops_caches(&self) -> bool {
        self.file.measure.cache == Some(Cache::Drop)
    }
}

/// What was parsed, as JSON. Places are no part of it: a comment that is added moves them.
fn without_places(what: &impl serde::Serialize) -> Value {
    serde_json::to_value(what).unwrap_or_default()
}

fn check_name(source: &Source, name: &Spanned<String>) -> Result<(), Failure> {
    let is_name = |text: &str| !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\0', '\n']);
    if is_name(name.get_ref()) {
        Ok(())
    } else {
        Err(source.wrong(&name.span(), "this cannot be the name of a folder"))
    }
}

fn values(source: &Source, file: &File, set: &Names) -> Result<Names, Failure> {
    let mut values = Names::new();
    for (name, value) in &file.values {
        check_key(source, file, name, value)?;
        let setting = Setting::of(value.get_ref()).map_err(|why| source.wrong(&value.span(), why))?;
        values.insert(name.clone(), setting.text);
    }
    for (name, value) in set {
        if values.insert(name.clone(), value.clone()).is_none() {
            let known: Vec<&str> = file.values.keys().map(String::as_str).collect();
            let why =
                format!("the file's [values] are {}", if known.is_empty() { "none".into() } else { known.join(", ") });
            return Err(Failure::usage(format!("--set {name}={value} changes nothing"), why, "name one of them"));
        }
    }
    Ok(values)
}

fn check_key(source: &Source, file: &File, name: &str, value: &Spanned<toml::Value>) -> Result<(), Failure> {
    let is_word =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    let why = if !is_word {
        format!("{name} is no name: letters, digits, _ and -")
    } else if OWN_NAMES.contains(&name) {
        format!("{{{name}}} has a meaning of its own: take another name")
    } else if file.values.contains_key(name) && file.matrix.contains_key(name) {
        format!("{name} is a parameter and a value: one of them")
    } else {
        return Ok(());
    };
    Err(source.wrong(&value.span(), why))
}

/// All combinations but those that are skipped.
pub fn points(source: &Source, file: &File) -> Result<Vec<Point>, Failure> {
    let mut points = vec![Point::new()];
    for (name, value) in &file.matrix {
        check_key(source, file, name, value)?;
        let settings = Setting::all(value.get_ref()).map_err(|why| source.wrong(&value.span(), why))?;
        if points.len().saturating_mul(settings.len()) > VISITS_MAX {
            return Err(source.wrong(&value.span(), format!("this makes more than {VISITS_MAX} points")));
        }
        let with = |point: &Point, setting: &Setting| {
            let mut point = point.clone();
            point.insert(name.clone(), setting.clone());
            point
        };
        points = points.iter().flat_map(|point| settings.iter().map(move |setting| with(point, setting))).collect();
    }
    for skip in &file.skip {
        let conditions = conditions(source, file, skip)?;
        points.retain(|point| !conditions.iter().all(|(name, condition)| condition.holds(&point[name].value)));
    }
    if points.is_empty() {
        let what = format!("{} measures nothing", source.path.display());
        return Err(Failure::usage(what, "all points are skipped", "correct skip"));
    }
    Ok(points)
}

/// Conditions on parameters, which must exist.
pub fn conditions(source: &Source, file: &File, table: &Table) -> Result<BTreeMap<String, Condition>, Failure> {
    let one = |(name, value): (&String, &Spanned<toml::Value>)| {
        if !file.matrix.contains_key(name) && !file.run.keys.contains(name) {
            let known: Vec<&str> = file.matrix.keys().chain(&file.run.keys).map(String::as_str).collect();
            let why = format!("{name} is no parameter; those are {}", known.join(", "));
            return Err(source.wrong(&value.span(), why));
        }
        let condition = Condition::of(value.get_ref()).map_err(|why| source.wrong(&value.span(), why))?;
        Ok((name.clone(), condition))
    };
    table.iter().map(one).collect()
}

fn check_systems(source: &Source, file: &File) -> Result<(), Failure> {
    if file.system.is_empty() {
        let what = format!("{} measures nothing", source.path.display());
        return Err(Failure::usage(what, "it has no [[system]]", "say what to measure"));
    }
    for (index, system) in file.system.iter().enumerate() {
        let description = system.get_ref();
        let wrong = |why: String| Err(source.wrong(&system.span(), why));
        if file.system[..index].iter().any(|earlier| earlier.get_ref().name == description.name) {
            return wrong(format!("there are two systems called {}", description.name));
        }
        if description.name.is_empty() {
            return wrong("a system needs a name".to_owned());
        }
        let has_place = description.dir.is_some() || description.server.is_some();
        if !has_place && matches!(file.run.bench, Bench::Io | Bench::Meta) {
            return wrong(format!("{} needs a dir or a server", description.name));
        }
        if file.run.bench == Bench::Command {
            for (key, given) in
                [("options", &description.options), ("launch", &description.launch), ("program", &description.program)]
            {
                if given.is_some() {
                    return wrong(format!("{key} means nothing to a command: write it into the command"));
                }
            }
        }
    }
    if file.run.together != Together::Each && file.system.len() == 1 {
        let what = format!("{}: together", source.path.display());
        return Err(Failure::usage(what, "there is one system only", "leave it out, or add a system"));
    }
    Ok(())
}

fn visits(file: &File, points: usize) -> Vec<Visit> {
    let count = file.system.len();
    let each = |point| (0..count).map(move |system| Visit { point, systems: vec![system], is_all: false });
    let all = |point| Visit { point, systems: (0..count).collect(), is_all: true };
    let together = file.run.together;
    let of_point = |point| {
        let each = each(point).filter(move |_| together != Together::All);
        each.chain((together != Together::Each).then(|| all(point)))
    };
    (0..points).flat_map(of_point).collect()
}

fn until(source: &Source, file: &File, repeat: u32) -> Result<Option<Until>, Failure> {
    let Some(spanned) = &file.measure.until else { return Ok(None) };
    let until = spanned.get_ref();
    let wrong = |why: &str| source.wrong(&spanned.span(), why);
    let of_mean = match until.statistic {
        Statistic::Mean => true,
        Statistic::Median => false,
        _ => return Err(wrong("there is an interval of the median and of the mean only")),
    };
    let width = share(until.width.get_ref()).filter(|width| *width > 0.0);
    let width = width.ok_or_else(|| source.wrong(&until.width.span(), "this is no share: \"5%\" or 0.05"))?;
    if until.most < repeat {
        return Err(wrong("most is less than repeat"));
    }
    Ok(Some(Until { goal: Goal { of_mean, width }, most: until.most }))
}
