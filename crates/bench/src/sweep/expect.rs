//! What a sweep file expects, and whether it came out so.
//!
//! The language is small. An `[[expect]]` picks figures (`op`, `system`, `where`, `statistic`) and says how each must be:
//!
//! | key | holds when |
//! |---|---|
//! | `at_least = B` | the figure is B or more |
//! | `at_most = B` | the figure is B or less |
//! | `close_to = B` | the figure is within `tolerance` of B |
//! | `flat = P` | over all values of parameter P, least and greatest figure are within `tolerance` of the one in the middle |
//! | `rising = P` | as P grows no figure is below an earlier one by more than `tolerance` |
//! | `falling = P` | as P grows no figure is above an earlier one by more than `tolerance` |
//!
//! B is `"0.98 * reference"`, `"reference"`, `"150 MB/s"` or a number in the figure's unit. Of `cv`
//! it is a share, `"2%"`. `reference = { system, op, where }` names the figure that differs in these
//! alone. Several keys in one `[[expect]]` must all hold. A point of the matrix that is meant and
//! was not measured fails its expectation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;
use toml::Spanned;

use super::file::{Bench, Expect, File, Source, Table};
use super::groups::{self, Group};
use super::plan::{Point, conditions};
use super::value::{Condition, Setting, plain, share};
use crate::Failure;
use crate::stats::{Interval, Statistic, Summary};

/// Unless told.
const TOLERANCE: f64 = 0.05;

/// Rounding of sums is no difference.
const EPSILON: f64 = 1e-9;

/// Units that can be compared, each with its kind and how many of the kind's base it is.
const UNITS: [(&str, char, f64); 15] = [
    ("B/s", 'b', 1.0),
    ("KB/s", 'b', 1e3),
    ("kB/s", 'b', 1e3),
    ("KiB/s", 'b', 1024.0),
    ("MB/s", 'b', 1e6),
    ("MiB/s", 'b', 1_048_576.0),
    ("GB/s", 'b', 1e9),
    ("GiB/s", 'b', 1_073_741_824.0),
    ("ns", 't', 1e-9),
    ("us", 't', 1e-6),
    ("ms", 't', 1e-3),
    ("s", 't', 1.0),
    ("op/s", 'o', 1.0),
    ("ops/s", 'o', 1.0),
    ("kop/s", 'o', 1e3),
];

/// With what a figure is compared.
#[derive(Clone, Debug, PartialEq)]
enum Bound {
    /// So many times the reference.
    Reference(f64),
    /// A figure, in a unit or in that of what is compared.
    Figure(f64, Option<String>),
}

/// How figures must be.
#[derive(Clone, Debug, PartialEq)]
enum Check {
    AtLeast(Bound),
    AtMost(Bound),
    CloseTo(Bound),
    Flat(String),
    Rising(String),
    Falling(String),
}

/// With what a figure is compared: the one that differs in these.
#[derive(Clone, Debug, Default)]
struct Reference {
    system: Option<String>,
    op: Option<String>,
    values: BTreeMap<String, Value>,
}

/// One expectation.
#[derive(Clone, Debug)]
pub struct Expectation {
    op: String,
    system: Option<String>,
    conditions: BTreeMap<String, Condition>,
    statistic: Statistic,
    reference: Option<Reference>,
    checks: Vec<Check>,
    tolerance: f64,
    /// Points of the matrix at which it has to have been measured.
    points: Vec<BTreeMap<String, Value>>,
    /// By which systems; none: by those that have measured it at all.
    systems: Vec<String>,
    /// In words: what must be how.
    pub text: String,
    /// Why that is expected.
    pub why: String,
}

/// What became of an expectation.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It came out so, at so many places.
    Pass(usize),
    /// It did not: where, and how much.
    Differs(Vec<String>),
    /// Nothing was measured to which it applies.
    NoData(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Pass(places) => write!(f, "PASS ({places} compared)"),
            Outcome::Differs(places) => {
                f.write_str("DIFFERS")?;
                places.iter().try_for_each(|place| write!(f, "\n      {place}"))
            }
            Outcome::NoData(why) => write!(f, "NO DATA: {why}"),
        }
    }
}

impl Expectation {
    /// All that a file has; of a reduced matrix, those to which it has points.
    pub fn all(source: &Source, file: &File, points: &[Point], is_reduced: bool) -> Result<Vec<Expectation>, Failure> {
        let mut all = Vec::new();
        for spanned in &file.expect {
            let mut expectation = Expectation::of(source, file, spanned)?;
            let values = |point: &Point| point.iter().map(|(name, at)| (name.clone(), at.value.clone())).collect();
            expectation.points = points.iter().filter(|point| expectation.is_at(point)).map(values).collect();
            if !expectation.points.is_empty() {
                all.push(expectation);
            } else if !is_reduced {
                return Err(source.wrong(&spanned.span(), "no point of the matrix is as its where says"));
            }
        }
        Ok(all)
    }

    fn is_at(&self, point: &Point) -> bool {
        // A key that only the benchmark knows is no part of the point.
        self.conditions.iter().all(|(name, condition)| point.get(name).is_none_or(|at| condition.holds(&at.value)))
    }

    fn of(source: &Source, file: &File, spanned: &Spanned<Expect>) -> Result<Expectation, Failure> {
        let expect = spanned.get_ref();
        let wrong = |why: &str| source.wrong(&spanned.span(), why);
        let knows = |system: &Option<String>| {
            system.as_ref().is_none_or(|name| file.system.iter().any(|system| system.get_ref().name == *name))
        };
        if !knows(&expect.system) || !expect.reference.as_ref().is_none_or(|reference| knows(&reference.system)) {
            let known: Vec<&str> = file.system.iter().map(|system| system.get_ref().name.as_str()).collect();
            return Err(wrong(&format!("there is no such system; those are {}", known.join(", "))));
        }
        let checks = checks(source, file, expect)?;
        if checks.is_empty() {
            return Err(wrong("it says nothing: at_least, at_most, close_to, flat, rising or falling"));
        }
        let needs = checks.iter().any(|check| {
            matches!(check, Check::AtLeast(b) | Check::AtMost(b) | Check::CloseTo(b) if matches!(b, Bound::Reference(_)))
        });
        let reference = expect.reference.as_ref().map(|reference| -> Result<Reference, Failure> {
            conditions(source, file, &reference.values)?;
            let values = settings(source, &reference.values)?;
            Ok(Reference { system: reference.system.clone(), op: reference.op.clone(), values })
        });
        let reference = reference.transpose()?;
        if needs != reference.is_some() {
            return Err(wrong(if needs {
                "it compares with a reference, and does not say which: reference = { system = ... }"
            } else {
                "it names a reference, and compares with none"
            }));
        }
        let tolerance = expect.tolerance.as_ref().map(|tolerance| {
            share(tolerance.get_ref())
                .ok_or_else(|| source.wrong(&tolerance.span(), "this is no share: \"5%\" or 0.05"))
        });
        let tolerance = tolerance.transpose()?.unwrap_or(TOLERANCE);
        if tolerance >= 1.0 && expect.rising.is_some() {
            return Err(wrong("with a tolerance of 100 % or more every line rises"));
        }
        let conditions = conditions(source, file, &expect.conditions)?;
        // Of a benchmark of ours all systems measure the same; what commands say is theirs.
        let systems = match &expect.system {
            Some(system) => vec![system.clone()],
            None if file.run.bench == Bench::Command => Vec::new(),
            None => file.system.iter().map(|system| system.get_ref().name.clone()).collect(),
        };
        Ok(Expectation {
            op: expect.op.clone(),
            system: expect.system.clone(),
            conditions,
            statistic: expect.statistic,
            reference,
            checks,
            tolerance,
            points: Vec::new(),
            systems,
            text: words(expect),
            why: expect.why.clone(),
        })
    }

    /// Whether it came out so.
    pub fn judge(&self, groups: &[Group]) -> Outcome {
        let is_meant = |group: &&Group| {
            group.op == self.op
                && self.system.as_ref().is_none_or(|system| *system == group.system)
                && self
                    .conditions
                    .iter()
                    .all(|(name, condition)| group.parameters.get(name).is_some_and(|value| condition.holds(value)))
        };
        let meant: Vec<&Group> = groups.iter().filter(is_meant).collect();
        if meant.is_empty() {
            return Outcome::NoData("nothing of this was measured".to_owned());
        }
        if let Some(missing) = self.missing(&meant) {
            return Outcome::NoData(missing);
        }
        let (mut compared, mut differs) = (0, Vec::new());
        for check in &self.checks {
            let judged = match check {
                Check::AtLeast(bound) | Check::AtMost(bound) | Check::CloseTo(bound) => {
                    self.bounded(check, bound, &meant, groups, &mut differs)
                }
                Check::Flat(over) | Check::Rising(over) | Check::Falling(over) => {
                    self.shaped(check, over, &meant, &mut differs)
                }
            };
            match judged {
                Ok(count) => compared += count,
                Err(why) => return Outcome::NoData(why),
            }
        }
        if differs.is_empty() { Outcome::Pass(compared) } else { Outcome::Differs(differs) }
    }

    /// The first point that was to be measured and was not.
    fn missing(&self, meant: &[&Group]) -> Option<String> {
        let first = self.points.first()?;
        let of_matrix = |group: &Group| -> BTreeMap<String, Value> {
            let own = group.parameters.iter().filter(|(name, _)| first.contains_key(*name));
            own.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        let key = |system: &str, point: &BTreeMap<String, Value>| serde_json::json!([system, point]).to_string();
        let measured: BTreeSet<String> = meant.iter().map(|group| key(&group.system, &of_matrix(group))).collect();
        let seen: BTreeSet<&str> = meant.iter().map(|group| group.system.as_str()).collect();
        let told: BTreeSet<&str> = self.systems.iter().map(String::as_str).collect();
        let systems = if told.is_empty() { seen } else { told };
        let mut all = systems.iter().flat_map(|system| self.points.iter().map(move |point| (*system, point)));
        let (system, point) = all.find(|(system, point)| !measured.contains(&key(system, point)))?;
        let missing = Group { system: system.to_owned(), parameters: point.clone(), ..meant[0].clone() };
        Some(format!("{} was not measured", place(&missing)))
    }

    /// A figure with its unit.
    fn shown(&self, figure: f64, group: &Group) -> String {
        match self.statistic {
            Statistic::Cv => format!("{} %", short(100.0 * figure)),
            _ => format!("{} {}", short(figure), group.unit),
        }
    }

    /// Each figure by itself.
    fn bounded(
        &self,
        check: &Check,
        bound: &Bound,
        meant: &[&Group],
        groups: &[Group],
        differs: &mut Vec<String>,
    ) -> Result<usize, String> {
        for group in meant {
            let summary = summary(group)?;
            let figure = self.figure(group, &summary)?;
            let bound = self.value(bound, group, groups)?;
            let (is_so, words) = match check {
                Check::AtLeast(_) => (figure >= bound * (1.0 - EPSILON), "less than"),
                Check::AtMost(_) => (figure <= bound * (1.0 + EPSILON), "more than"),
                _ => ((figure - bound).abs() <= (self.tolerance + EPSILON) * bound.abs(), "not close to"),
            };
            if !is_so {
                let (percent, found) = (100.0 * (figure / bound - 1.0), self.shown(figure, group));
                let bound_shown = if self.statistic == Statistic::Cv { self.shown(bound, group) } else { short(bound) };
                let interval = match self.statistic {
                    Statistic::Median => summary.median_interval,
                    Statistic::Mean => summary.mean_interval,
                    _ => None,
                };
                let sure = match interval {
                    Some(Interval { low, high }) if (low..=high).contains(&bound) => {
                        format!("; its 95 % interval, {} to {}, reaches that", short(low), short(high))
                    }
                    Some(Interval { low, high }) => format!("; its 95 % interval is {} to {}", short(low), short(high)),
                    None => String::new(),
                };
                differs.push(format!("{}: {found} is {words} {bound_shown} by {percent:+.1} %{sure}", place(group)));
            }
        }
        Ok(meant.len())
    }

    /// All figures along a parameter.
    fn shaped(&self, check: &Check, over: &str, meant: &[&Group], differs: &mut Vec<String>) -> Result<usize, String> {
        let mut lines: BTreeMap<(String, String), Vec<&Group>> = BTreeMap::new();
        for &group in meant {
            let mut others = group.parameters.clone();
            if others.remove(over).is_some() {
                let others = serde_json::to_string(&others).unwrap_or_default();
                lines.entry((group.system.clone(), others)).or_default().push(group);
            }
        }
        lines.retain(|_, line| line.len() > 1);
        if lines.is_empty() {
            return Err(format!("fewer than two values of {over} were measured"));
        }
        for line in lines.values_mut() {
            line.sort_by(|a, b| groups::compare(&a.parameters[over], &b.parameters[over]));
            let figures: Result<Vec<f64>, String> =
                line.iter().map(|group| self.figure(group, &summary(group)?)).collect();
            let figures = figures?;
            let found = match check {
                Check::Flat(_) => self.not_flat(line, &figures),
                Check::Rising(_) => self.turns(line, &figures, 1.0),
                _ => self.turns(line, &figures, -1.0),
            };
            differs.extend(found);
        }
        Ok(lines.values().map(Vec::len).sum())
    }

    fn not_flat(&self, line: &[&Group], figures: &[f64]) -> Option<String> {
        let middle = Summary::of(figures).ok()?.median;
        let reach = (self.tolerance + EPSILON) * middle.abs();
        let far = |index: &usize| (figures[*index] - middle).abs();
        let worst = (0..figures.len()).max_by(|a, b| far(a).total_cmp(&far(b)))?;
        let percent = 100.0 * (figures[worst] / middle - 1.0);
        (far(&worst) > reach).then(|| {
            let figure = self.shown(figures[worst], line[worst]);
            format!("{}: {figure} is {percent:+.1} % from the middle, {}", place(line[worst]), short(middle))
        })
    }

    /// Where a line turns against its direction for the first time.
    fn turns(&self, line: &[&Group], figures: &[f64], direction: f64) -> Option<String> {
        let mut peak = 0;
        for index in 1..figures.len() {
            let back = direction * (figures[peak] - figures[index]);
            if back > (self.tolerance + EPSILON) * figures[peak].abs() {
                let percent = 100.0 * (figures[index] / figures[peak] - 1.0);
                return Some(format!(
                    "{}: {} is {percent:+.1} % from that at {}, {}",
                    place(line[index]),
                    self.shown(figures[index], line[index]),
                    place(line[peak]),
                    short(figures[peak])
                ));
            }
            if back < 0.0 {
                peak = index;
            }
        }
        None
    }

    fn figure(&self, group: &Group, summary: &Summary) -> Result<f64, String> {
        self.statistic.of(summary).ok_or_else(|| format!("{}: one repetition has no such figure", place(group)))
    }

    fn value(&self, bound: &Bound, group: &Group, groups: &[Group]) -> Result<f64, String> {
        match bound {
            Bound::Figure(figure, None) => Ok(*figure),
            Bound::Figure(figure, Some(unit)) => convert(*figure, unit, &group.unit)
                .ok_or_else(|| format!("{} is in {}, which is not compared with {unit}", place(group), group.unit)),
            Bound::Reference(factor) => {
                let reference = self.reference.clone().unwrap_or_default();
                let mut wanted = group.clone();
                wanted.system = reference.system.unwrap_or(wanted.system);
                wanted.op = reference.op.unwrap_or(wanted.op);
                wanted.parameters.extend(reference.values);
                let same = |other: &&Group| {
                    (&other.system, &other.op, &other.parameters) == (&wanted.system, &wanted.op, &wanted.parameters)
                };
                let found = groups.iter().find(same);
                let found = found.ok_or_else(|| format!("the reference, {}, was not measured", place(&wanted)))?;
                let figure = self.figure(found, &summary(found)?)?;
                if self.statistic == Statistic::Cv {
                    return Ok(factor * figure);
                }
                convert(figure, &found.unit, &group.unit)
                    .map(|figure| factor * figure)
                    .ok_or_else(|| format!("{} is not compared with {}", group.unit, found.unit))
            }
        }
    }
}

fn summary(group: &Group) -> Result<Summary, String> {
    group.summary().ok_or_else(|| format!("{}: nothing was measured", place(group)))
}

fn settings(source: &Source, table: &Table) -> Result<BTreeMap<String, Value>, Failure> {
    let one = |(name, value): (&String, &Spanned<toml::Value>)| {
        let setting = Setting::of(value.get_ref()).map_err(|why| source.wrong(&value.span(), why))?;
        Ok((name.clone(), setting.value))
    };
    table.iter().map(one).collect()
}

fn checks(source: &Source, file: &File, expect: &Expect) -> Result<Vec<Check>, Failure> {
    let mut checks = Vec::new();
    for (key, value) in [("at_least", &expect.at_least), ("at_most", &expect.at_most), ("close_to", &expect.close_to)] {
        let Some(value) = value else { continue };
        let bound = bound(value.get_ref(), expect.statistic).map_err(|why| source.wrong(&value.span(), why))?;
        checks.push(match key {
            "at_least" => Check::AtLeast(bound),
            "at_most" => Check::AtMost(bound),
            _ => Check::CloseTo(bound),
        });
    }
    for (key, name) in [("flat", &expect.flat), ("rising", &expect.rising), ("falling", &expect.falling)] {
        let Some(spanned) = name else { continue };
        let name = spanned.get_ref().clone();
        if !file.matrix.contains_key(&name) && !file.run.keys.contains(&name) {
            return Err(source.wrong(&spanned.span(), format!("{name} is no parameter")));
        }
        checks.push(match key {
            "flat" => Check::Flat(name),
            "rising" => Check::Rising(name),
            _ => Check::Falling(name),
        });
    }
    Ok(checks)
}

fn bound(value: &toml::Value, statistic: Statistic) -> Result<Bound, String> {
    let is_reference = value.as_str().is_some_and(|text| text.contains("reference"));
    if statistic == Statistic::Cv && !is_reference {
        // A number of per cent that is taken for a share is a bound that nothing exceeds.
        let why = || format!("{} is no bound of a coefficient of variation: \"2%\" or 0.02", plain(value));
        return share(value).filter(|share| *share < 1.0).map(|share| Bound::Figure(share, None)).ok_or_else(why);
    }
    let text = match value {
        toml::Value::Integer(number) => return Ok(Bound::Figure(*number as f64, None)),
        toml::Value::Float(number) if number.is_finite() => return Ok(Bound::Figure(*number, None)),
        toml::Value::String(text) => text.trim(),
        other => return Err(format!("{} is no bound", plain(other))),
    };
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    if text == "reference" {
        return Ok(Bound::Reference(1.0));
    }
    if let Some((left, right)) = text.split_once('*') {
        let factor = match (left.trim(), right.trim()) {
            ("reference", factor) | (factor, "reference") => number(factor),
            _ => None,
        };
        return factor.map(Bound::Reference).ok_or_else(|| format!("{text} is not a number times reference"));
    }
    let (figure, unit) = text.split_once(' ').unwrap_or((text, ""));
    let figure = number(figure).ok_or_else(|| format!("{text} is no bound: \"0.98 * reference\", \"150 MB/s\""))?;
    let unit = Some(unit.trim().to_owned()).filter(|unit| !unit.is_empty());
    Ok(Bound::Figure(figure, unit))
}

/// A figure in another unit of its kind.
fn convert(figure: f64, from: &str, to: &str) -> Option<f64> {
    let find = |name: &str| UNITS.iter().find(|unit| unit.0 == name);
    match (find(from), find(to)) {
        _ if from == to => Some(figure),
        (Some(from), Some(to)) if from.1 == to.1 => Some(figure * from.2 / to.2),
        _ => None,
    }
}

fn words(expect: &Expect) -> String {
    let statistic = format!("{:?}", expect.statistic).to_lowercase();
    let mut text = format!("{statistic} of {}", expect.op);
    if let Some(system) = &expect.system {
        text.push_str(&format!(" of {system}"));
    }
    let compared = |text: &str| text.starts_with(['<', '>', '=', '!', '[']);
    for (index, (name, value)) in expect.conditions.iter().enumerate() {
        let value = plain(value.get_ref());
        let sign = if compared(&value) { "" } else { "= " };
        text.push_str(&format!("{}{name} {sign}{value}", if index == 0 { " where " } else { ", " }));
    }
    let tolerance = expect.tolerance.as_ref().map_or_else(|| "5%".to_owned(), |share| plain(share.get_ref()));
    let bounds = [("at least", &expect.at_least), ("at most", &expect.at_most), ("close to", &expect.close_to)];
    let bounds =
        bounds.iter().filter_map(|(words, value)| Some(format!("{words} {}", plain(value.as_ref()?.get_ref()))));
    let shapes = [("flat", &expect.flat), ("rising", &expect.rising), ("falling", &expect.falling)];
    let shapes = shapes.iter().filter_map(|(words, name)| Some(format!("{words} over {}", name.as_ref()?.get_ref())));
    let all: Vec<String> = bounds.chain(shapes).collect();
    text.push_str(&format!(": {}", all.join(" and ")));
    if let Some(reference) = &expect.reference {
        let system = reference.system.iter().map(|system| format!("system {system}"));
        let op = reference.op.iter().map(|op| format!("op {op}"));
        let values = reference.values.iter().map(|(name, value)| format!("{name} {}", plain(value.get_ref())));
        text.push_str(&format!(" (reference: {})", system.chain(op).chain(values).collect::<Vec<_>>().join(", ")));
    }
    if expect.close_to.is_some() || expect.flat.is_some() || expect.rising.is_some() || expect.falling.is_some() {
        text.push_str(&format!(", give or take {tolerance}"));
    }
    text
}

fn place(group: &Group) -> String {
    let parameters = group.parameters.iter().map(|(name, value)| format!("{name}={}", groups::text(value)));
    [group.system.clone(), group.op.clone()].into_iter().chain(parameters).collect::<Vec<_>>().join(" ")
}

/// A figure with as many digits as people compare.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
#[path = "expect_tests.rs"]
mod tests;
