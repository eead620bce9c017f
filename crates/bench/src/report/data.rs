//! Samples put together to points: one operation of one system at one place of the matrix, with all its repetitions.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::load::Records;
use super::{safe, unit};
use crate::Failure;
use crate::record::{Environment, Sample};
use crate::stats::Summary;

/// The most points of one report.
pub const POINTS_MAX: usize = 20_000;

/// Words in the names of parameters that count who takes part.
const COUNTS: [&str; 13] = [
    "client",
    "rank",
    "task",
    "proc",
    "thread",
    "node",
    "job",
    "host",
    "pair",
    "stream",
    "depth",
    "lane",
    "connection",
];

/// Words in the names of parameters that are sizes.
const SIZES: [&str; 9] = ["transfer", "block", "size", "xfer", "message", "bytes", "stripe", "record", "msg"];

/// A value of a parameter, as it is shown, compared and drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// As it is written.
    pub text: String,
    /// As a number, where it is one, or a size.
    pub number: Option<f64>,
}

impl Setting {
    fn of(name: &str, value: &Value) -> Setting {
        let (text, number) = match value {
            Value::String(text) => (text.clone(), unit::size(text)),
            Value::Number(number) => (number.to_string(), number.as_f64()),
            Value::Null => ("-".to_owned(), None),
            other => (other.to_string(), None),
        };
        // However a run's file writes a size, it is the same place.
        let text = match number {
            Some(number) if role(name) == Role::Size => unit::bytes(number),
            _ => text,
        };
        Setting { text, number }
    }

    /// Whether a person who writes `other` means this.
    pub fn is(&self, other: &str) -> bool {
        self.text == other || (self.number.is_some() && self.number == unit::size(other))
    }
}

impl Eq for Setting {}

impl PartialOrd for Setting {
    fn partial_cmp(&self, other: &Setting) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Setting {
    fn cmp(&self, other: &Setting) -> Ordering {
        let numbers = match (self.number, other.number) {
            (Some(one), Some(two)) => one.total_cmp(&two),
            (one, two) => two.is_some().cmp(&one.is_some()),
        };
        numbers.then_with(|| self.text.cmp(&other.text))
    }
}

/// What a parameter is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// How many take part.
    Count,
    /// Bytes.
    Size,
    /// Anything else.
    Other,
}

/// See [`Role`].
pub fn role(name: &str) -> Role {
    let name = name.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    if has(&SIZES) {
        Role::Size
    } else if has(&COUNTS) || name == "np" {
        Role::Count
    } else {
        Role::Other
    }
}

/// Where in the matrix.
pub type Place = BTreeMap<String, Setting>;

/// One operation of one system at one place.
#[derive(Clone, Debug)]
pub struct Point {
    /// See [`Sample::op`].
    pub op: String,
    /// See [`Sample::system`].
    pub system: String,
    /// The parameters, all of them.
    pub place: Place,
    /// Of all values.
    pub unit: String,
    /// In the order in which they were measured.
    pub values: Vec<f64>,
    /// The samples that they come from: their places in [`Data::samples`].
    pub samples: Vec<usize>,
    /// What can be said of the values.
    pub summary: Summary,
}

impl Point {
    /// The settings of these parameters: `clients=4, transfer=1 MiB`.
    pub fn settings<'a>(&self, names: impl IntoIterator<Item = &'a String>) -> String {
        let shown = names.into_iter().filter_map(|name| {
            let setting = self.place.get(name)?;
            Some(format!("{}={}", safe::plain(name), safe::plain(&setting.text)))
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    /// How a sentence names it: `read of native at clients=4`.
    pub fn name(&self, varying: &[String]) -> String {
        let settings = self.settings(varying);
        let at = if settings.is_empty() { String::new() } else { format!(" at {settings}") };
        format!("{} of {}{at}", safe::plain(&self.op), safe::plain(&self.system))
    }
}

/// What a report is about.
#[derive(Debug, Default)]
pub struct Data {
    /// See [`Records::runs`].
    pub runs: Vec<Environment>,
    /// Without those for warming up.
    pub samples: Vec<Sample>,
    /// By operation in the order of their first appearance, then by system and place.
    pub points: Vec<Point>,
    /// The parameters that are not the same everywhere.
    pub varying: Vec<String>,
    /// Those that are.
    pub constant: Place,
    /// What must be known about the data.
    pub notes: Vec<String>,
}

/// Which samples are meant: `op=read`, `system=native`, `clients=4`. Those with the same name are alternatives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    name: String,
    value: String,
}

impl std::str::FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Filter, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok(Filter { name: name.trim().to_owned(), value: value.trim().to_owned() })
            }
            _ => Err("it reads NAME=VALUE, as op=read, system=native or clients=4".to_owned()),
        }
    }
}

impl Filter {
    fn fits(&self, sample: &Sample) -> bool {
        match self.name.as_str() {
            "op" => sample.op == self.value,
            "system" => sample.system == self.value,
            "run" => sample.run == self.value,
            name => sample.parameters.get(name).is_some_and(|value| Setting::of(name, value).is(&self.value)),
        }
    }
}

fn fits(filters: &[Filter], sample: &Sample) -> bool {
    filters.iter().all(|filter| filters.iter().any(|other| other.name == filter.name && other.fits(sample)))
}

/// How samples are put together.
#[derive(Clone, Copy, Debug, Default)]
pub struct How<'a> {
    /// Only these samples.
    pub filters: &'a [Filter],
    /// Runs are told apart, as if each were another value of a parameter.
    pub by_run: bool,
}

impl Data {
    /// Puts all samples together.
    pub fn of(records: Records, how: How<'_>) -> Result<Data, Failure> {
        let mut data = Data { runs: records.runs, notes: records.notes, ..Data::default() };
        let all = records.samples.len();
        let (warm, kept): (Vec<_>, Vec<_>) = records.samples.into_iter().partition(|sample| sample.warmup);
        if !warm.is_empty() {
            data.notes.push(format!("{} samples for warming up count nowhere.", warm.len()));
        }
        data.samples = kept.into_iter().filter(|sample| fits(how.filters, sample)).collect();
        if data.samples.is_empty() {
            let hint =
                if how.filters.is_empty() { "measure without --warmup only" } else { "ask for less with --only" };
            return Err(Failure::new("cannot report", format!("none of the {all} samples is left to report on"), hint));
        }
        data.samples.sort_by(|one, two| (&one.run, one.order, one.repeat).cmp(&(&two.run, two.order, two.repeat)));
        data.convert();
        data.group(how.by_run)?;
        data.look_at_parameters();
        data.look_at_runs(how.by_run);
        Ok(data)
    }

    /// Brings all samples of an operation to the unit of its first, and says so.
    fn convert(&mut self) {
        let mut units: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut converted = BTreeSet::new();
        for sample in &mut self.samples {
            let known = units.entry(sample.op.clone()).or_default();
            let found = known.iter().find_map(|to| unit::factor(&sample.unit, to).map(|factor| (to.clone(), factor)));
            match found {
                Some((to, _)) if to == sample.unit => {}
                Some((to, factor)) => {
                    converted.insert((sample.op.clone(), sample.unit.clone(), to.clone(), unit::figure(factor)));
                    sample.value *= factor;
                    sample.unit = to;
                }
                None => known.push(sample.unit.clone()),
            }
        }
        for (op, from, to, factor) in converted {
            self.notes.push(format!("Values of {op} in {from} were converted to {to} (times {factor})."));
        }
    }

    fn group(&mut self, by_run: bool) -> Result<(), Failure> {
        let mut rank: BTreeMap<&str, usize> = BTreeMap::new();
        for sample in &self.samples {
            let next = rank.len();
            rank.entry(&sample.op).or_insert(next);
        }
        type Key<'a> = (usize, &'a str, &'a str, Place);
        let mut groups: BTreeMap<Key<'_>, Vec<usize>> = BTreeMap::new();
        for (index, sample) in self.samples.iter().enumerate() {
            let settings = sample.parameters.iter().map(|(name, value)| (name.clone(), Setting::of(name, value)));
            let mut place: Place = settings.collect();
            if by_run {
                place.insert("run".to_owned(), Setting { text: sample.run.clone(), number: None });
            }
            let ranked = |name: &str| rank.get(name).copied().unwrap_or_default();
            groups.entry((ranked(&sample.op), &sample.unit, &sample.system, place)).or_default().push(index);
            if groups.len() > POINTS_MAX {
                let why = format!("there are more than {POINTS_MAX} points");
                return Err(Failure::new("cannot report", why, "choose some with --only NAME=VALUE"));
            }
        }
        let mut points = Vec::with_capacity(groups.len());
        for ((_, _, _, place), samples) in groups {
            let values: Vec<f64> = samples.iter().map(|index| self.samples[*index].value).collect();
            let first = &self.samples[samples[0]];
            let (op, system, unit) = (first.op.clone(), first.system.clone(), first.unit.clone());
            let summary = Summary::of(&values).map_err(|error| {
                Failure::new(format!("cannot summarise {op} of {system}"), error, "look at the values of its lines")
            })?;
            points.push(Point { op, system, place, unit, values, samples, summary });
        }
        self.points = points;
        Ok(())
    }

    fn look_at_parameters(&mut self) {
        let names: BTreeSet<&String> = self.points.iter().flat_map(|point| point.place.keys()).collect();
        let (mut varying, mut constant) = (Vec::new(), Place::new());
        for name in names {
            // One that some systems do not have is constant where it is the same for all that have it.
            let values: BTreeSet<_> = self.points.iter().filter_map(|point| point.place.get(name)).collect();
            match values.first() {
                Some(only) if values.len() == 1 => {
                    constant.insert(name.clone(), (*only).clone());
                }
                _ => varying.push(name.clone()),
            }
        }
        (self.varying, self.constant) = (varying, constant);
    }

    fn look_at_runs(&mut self, by_run: bool) {
        let runs: BTreeSet<_> = self.samples.iter().map(|sample| &sample.run).collect();
        if runs.len() < 2 || by_run {
            return;
        }
        let pooled = self.points.iter().filter(|point| {
            let runs: BTreeSet<_> = point.samples.iter().map(|index| &self.samples[*index].run).collect();
            runs.len() > 1
        });
        let count = pooled.count();
        if count > 0 {
            self.notes.push(format!(
                "{count} of {} points have values of several runs; --by-run keeps them apart.",
                self.points.len()
            ));
        }
    }

    /// The constant parameters, as one line; empty if there are none.
    pub fn constants(&self) -> String {
        let shown =
            self.constant.iter().map(|(name, value)| format!("{}={}", safe::plain(name), safe::plain(&value.text)));
        shown.collect::<Vec<_>>().join(", ")
    }

    /// What is shown as a table or has an axis of its own: operations with their units, in order.
    pub fn families(&self) -> Vec<(&str, &str)> {
        let mut found: Vec<(&str, &str)> = Vec::new();
        for point in &self.points {
            if !found.contains(&(&point.op, &point.unit)) {
                found.push((&point.op, &point.unit));
            }
        }
        found
    }

    /// All systems, by name: the order of measuring is random, and a system looks the same in the reports of all runs.
    pub fn systems(&self) -> Vec<&str> {
        let all: BTreeSet<&str> = self.points.iter().map(|point| point.system.as_str()).collect();
        all.into_iter().collect()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    /// A sample of `read`, in MiB/s.
    pub fn sample(system: &str, parameters: Value, repeat: u32, value: f64) -> Sample {
        let parameters = parameters.as_object().cloned().unwrap_or_default().into_iter().collect();
        let (run, op, unit) = ("r1".to_owned(), "read".to_owned(), "MiB/s".to_owned());
        Sample {
            run,
            system: system.to_owned(),
            parameters,
            op,
            repeat,
            order: repeat,
            value,
            unit,
            seconds: 1.0,
            ..Sample::default()
        }
    }

    /// Data of these samples.
    pub fn data(samples: Vec<Sample>) -> Data {
        Data::of(Records { samples, ..Records::default() }, How::default()).unwrap()
    }

    #[test]
    fn repetitions_are_one_point() {
        let all = [1.0, 2.0, 3.0].map(|value| sample("a", json!({"clients": 4}), value as u32, value));
        let data = data(all.into());
        assert_eq!(data.points.len(), 1);
        assert_eq!((data.points[0].summary.n, data.points[0].summary.mean), (3, 2.0));
        assert_eq!((data.varying.len(), data.constants()), (0, "clients=4".to_owned()));
    }

    #[test]
    fn warming_up_counts_nowhere() {
        let mut warm = sample("a", json!({}), 0, 1e9);
        warm.warmup = true;
        let data = data(vec![warm, sample("a", json!({}), 1, 5.0)]);
        assert_eq!((data.points[0].summary.n, data.points[0].summary.max), (1, 5.0));
        assert!(data.notes[0].contains("warming up"), "{:?}", data.notes);
    }

    #[test]
    fn units_are_never_mixed_silently() {
        let mut other = sample("a", json!({}), 1, 1048.576);
        other.unit = "MB/s".to_owned();
        let mut operations = sample("a", json!({}), 2, 7.0);
        operations.unit = "op/s".to_owned();
        let data = data(vec![sample("a", json!({}), 0, 1000.0), other, operations]);
        assert_eq!(data.points.len(), 2, "operations stand apart");
        let rates = data.points.iter().find(|point| point.unit == "MiB/s").unwrap();
        assert!(rates.values.iter().all(|value| (value - 1000.0).abs() < 1e-6), "{:?}", rates.values);
        assert!(data.notes.iter().any(|note| note.contains("converted to MiB/s")), "{:?}", data.notes);
    }

    #[test]
    fn settings_are_ordered_as_numbers() {
        let all = ["1m", "4k", "64k"].map(|size| sample("a", json!({"transfer": size, "np": 3}), 0, 1.0));
        let data = data(all.into());
        let order: Vec<_> = data.points.iter().map(|point| point.place["transfer"].text.as_str()).collect();
        assert_eq!(order, ["4 KiB", "64 KiB", "1 MiB"]);
        assert_eq!(data.varying, ["transfer"]);
    }

    #[test]
    fn filters_choose() {
        let filters: Vec<Filter> = ["clients=4", "clients=8", "op=read"].map(|text| text.parse().unwrap()).into();
        let all = [1, 4, 8].map(|clients| sample("a", json!({"clients": clients}), 0, 1.0));
        let records = || Records { samples: all.to_vec(), ..Records::default() };
        let data = Data::of(records(), How { filters: &filters, by_run: false }).unwrap();
        assert_eq!(data.points.len(), 2);
        let none = ["op=write".parse().unwrap()];
        assert!(Data::of(records(), How { filters: &none, by_run: false }).is_err());
        assert!("clients".parse::<Filter>().is_err());
    }

    #[test]
    fn systems_have_the_same_order_in_every_run() {
        let measured = |names: [&str; 3]| data(names.map(|name| sample(name, json!({}), 0, 1.0)).into());
        let (one, two) = (measured(["b", "a", "c"]), measured(["c", "b", "a"]));
        assert_eq!((one.systems(), two.systems()), (vec!["a", "b", "c"], vec!["a", "b", "c"]));
        assert_eq!(one.points.iter().map(|point| point.system.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn runs_are_put_together_only_openly() {
        let mut other = sample("a", json!({}), 0, 2.0);
        other.run = "r2".to_owned();
        let samples = vec![sample("a", json!({}), 0, 1.0), other];
        let records = || Records { samples: samples.clone(), ..Records::default() };
        let pooled = Data::of(records(), How::default()).unwrap();
        assert!(pooled.notes.iter().any(|note| note.contains("several runs")), "{:?}", pooled.notes);
        let apart = Data::of(records(), How { by_run: true, ..How::default() }).unwrap();
        assert_eq!((apart.points.len(), apart.varying), (2, vec!["run".to_owned()]));
    }
}
