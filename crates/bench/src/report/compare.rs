//! Two runs, or two systems, side by side: what may be said of their difference, and what may not.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::chart::{Body, Chart, Kind, RatioMark};
use super::data::{Data, Point};
use super::{safe, unit};
use crate::record::Environment;
use crate::stats::{Better, COMPARED_MIN, Ratio, Verdict};

/// More rows than this go into further charts.
const ROWS_MAX: usize = 32;

/// Ratios are drawn from this seed, so that a report of the same records is the same report.
const SEED: u64 = 0x6171_7565_6475_6374;

/// Facts within facts are told one by one down to here.
const FACT_DEPTH_MAX: usize = 4;

/// Facts that differ from run to run, and say nothing about where they ran.
const FLEETING: [&str; 12] =
    ["time", "start", "uptime", "load", "steal", "pid", "free", "available", "cached", "boot", "command", "directory"];

/// A fact that is not the same on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub name: String,
    /// What it was at the base; several values where runs differ.
    pub base: String,
    /// What it is now.
    pub new: String,
    /// It changes by itself, as load does.
    pub is_fleeting: bool,
}

/// One point, on both sides.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Its place in [`Data::points`] of the new data.
    pub new: usize,
    /// And of the base.
    pub base: usize,
    /// The values of the base in the unit of the new ones.
    pub factor: f64,
    /// The ratio of medians; or why there is none.
    pub ratio: Result<Ratio, String>,
    /// What that means.
    pub verdict: Verdict,
}

/// All of it.
#[derive(Debug)]
pub struct Comparison {
    /// What the base is called.
    pub base_name: String,
    /// The base.
    pub base: Data,
    /// Where both ran, where that is not the same.
    pub differences: Vec<Difference>,
    /// What both have measured.
    pub pairs: Vec<Pair>,
    /// Points that the base does not have.
    pub only_new: Vec<usize>,
    /// Points that the base alone has.
    pub only_base: Vec<usize>,
}

/// A system that the others are compared with, point by point, as if it had been a run of its own.
pub fn split(data: &Data, system: &str) -> Option<(Data, Data)> {
    let part = |is_base: bool| {
        let points = data.points.iter().filter(|point| (point.system == system) == is_base).cloned().collect();
        Data {
            points,
            runs: data.runs.clone(),
            samples: data.samples.clone(),
            varying: data.varying.clone(),
            constant: data.constant.clone(),
            notes: Vec::new(),
        }
    };
    let (new, base) = (part(false), part(true));
    (!new.points.is_empty() && !base.points.is_empty()).then_some((new, base))
}

impl Comparison {
    /// Compares. With `across` the base is one system, and every other is compared with it.
    pub fn of(new: &Data, base: Data, base_name: String, across: bool) -> Comparison {
        let same = |one: &Point, other: &Point| {
            let place = one.op == other.op && one.place == other.place;
            place && (across || one.system == other.system)
        };
        // By operation, so that a great report does not take the square of its points.
        let mut by_op: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, point) in base.points.iter().enumerate() {
            by_op.entry(&point.op).or_default().push(index);
        }
        let (mut pairs, mut only_new, mut met) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (index, point) in new.points.iter().enumerate() {
            let candidates = by_op.get(point.op.as_str()).into_iter().flatten();
            let found = candidates.copied().find_map(|other| {
                let candidate = &base.points[other];
                let factor = unit::factor(&candidate.unit, &point.unit)?;
                same(point, candidate).then_some((other, factor))
            });
            match found {
                Some((other, factor)) => {
                    met.insert(other);
                    pairs.push(pair(point, &base.points[other], (index, other), factor));
                }
                None => only_new.push(index),
            }
        }
        let only_base = (0..base.points.len()).filter(|index| !met.contains(index)).collect();
        let differences = if across { Vec::new() } else { differences(&base.runs, &new.runs) };
        Comparison { base_name, base, differences, pairs, only_new, only_base }
    }

    /// How many points have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.pairs.iter().filter(|pair| pair.verdict == verdict).count()
    }

    /// What it comes to, in a sentence or some.
    pub fn sentences(&self, new: &Data) -> Vec<String> {
        let mut said = vec![format!(
            "Of {} points that were measured on both sides, {} are faster, {} slower than {}; for {} no difference is shown.",
            self.pairs.len(),
            self.count(Verdict::Faster),
            self.count(Verdict::Slower),
            safe::plain(&self.base_name),
            self.count(Verdict::NoDifferenceShown)
        )];
        let few =
            self.pairs.iter().filter(|pair| pair.ratio.as_ref().is_ok_and(|ratio| ratio.n < COMPARED_MIN)).count();
        if few > 0 {
            said.push(format!(
                "{few} of them have fewer than {COMPARED_MIN} repetitions on a side, too few for a verdict, whatever the ratio."
            ));
        }
        if self.pairs.len() - few >= 20 {
            said.push(format!(
                "With 95 % intervals chance alone makes about {} of {} points seem to differ.",
                (self.pairs.len() - few).div_ceil(20),
                self.pairs.len() - few
            ));
        }
        for (points, data, side) in [(&self.only_new, new, "new"), (&self.only_base, &self.base, "base")] {
            if !points.is_empty() {
                let names: Vec<_> =
                    points.iter().take(8).map(|index| data.points[*index].name(&data.varying)).collect();
                let more = if points.len() > 8 { format!(", and {} more", points.len() - 8) } else { String::new() };
                said.push(format!("Only on the {side} side: {}{more}.", names.join("; ")));
            }
        }
        said
    }

    /// The ratios as charts.
    pub fn charts(&self, new: &Data) -> Vec<Chart> {
        let names = all_varying(new, &self.base);
        let rows: Vec<RatioMark> = self.pairs.iter().filter_map(|pair| self.mark(new, pair, &names)).collect();
        let count = rows.len().div_ceil(ROWS_MAX);
        let size = rows.len().div_ceil(count.max(1)).max(1);
        let parts = rows.chunks(size).enumerate().map(|(part, rows)| Chart {
            kind: Kind::Ratio,
            title: format!(
                "Against {}{}",
                safe::plain(&self.base_name),
                if count > 1 { format!(" ({} of {count})", part + 1) } else { String::new() }
            ),
            caption: format!(
                "Ratio of medians with its 95 % bootstrap interval. An interval that has 1 in it, or fewer than {COMPARED_MIN} repetitions on a side: no difference shown. Times are faster when the ratio is below 1."
            ),
            body: Body::Ratios(rows.to_vec()),
        });
        parts.collect()
    }

    fn mark(&self, new: &Data, pair: &Pair, names: &[String]) -> Option<RatioMark> {
        let ratio = pair.ratio.as_ref().ok()?;
        let (point, base) = (&new.points[pair.new], &self.base.points[pair.base]);
        let f = unit::figure;
        let tip = format!(
            "{}\nnew: median {} {}, n = {}\nbase: median {} {}, n = {}\nratio {}, 95 % interval {} to {}\n{}",
            point.name(names),
            f(point.summary.median),
            safe::plain(&point.unit),
            point.summary.n,
            f(base.summary.median * pair.factor),
            safe::plain(&point.unit),
            base.summary.n,
            f(ratio.ratio),
            f(ratio.interval.low),
            f(ratio.interval.high),
            pair.verdict
        );
        let interval = (ratio.n > 1).then_some(ratio.interval);
        let verdict = pair.verdict.to_string();
        Some(RatioMark { name: point.name(names), ratio: ratio.ratio, interval, verdict, tip })
    }
}

/// The parameters that vary on either side, or between them.
pub fn all_varying(new: &Data, base: &Data) -> Vec<String> {
    let all: BTreeSet<&String> = new.varying.iter().chain(&base.varying).collect();
    all.into_iter().cloned().collect()
}

fn pair(new: &Point, base: &Point, (index, other): (usize, usize), factor: f64) -> Pair {
    let values: Vec<f64> = base.values.iter().map(|value| value * factor).collect();
    let ratio = Ratio::of_medians(&new.values, &values, SEED).map_err(|error| error.to_string());
    let better = Better::of_unit(&new.unit);
    let verdict = ratio.as_ref().map_or(Verdict::NoDifferenceShown, |ratio| ratio.verdict(better));
    Pair { new: index, base: other, factor, ratio, verdict }
}

/// What is not the same; what changes by itself comes last.
pub fn differences(base: &[Environment], new: &[Environment]) -> Vec<Difference> {
    let (base, new): (Vec<_>, Vec<_>) = (base.iter().map(facts).collect(), new.iter().map(facts).collect());
    let names: BTreeSet<&String> = base.iter().chain(&new).flat_map(BTreeMap::keys).collect();
    let values = |runs: &[BTreeMap<String, String>], name: &str| -> BTreeSet<String> {
        runs.iter().map(|facts| facts.get(name).map_or("not known".to_owned(), Clone::clone)).collect()
    };
    let all = names.into_iter().filter_map(|name| {
        let (one, two) = (values(&base, name), values(&new, name));
        let text = |all: BTreeSet<String>| {
            if all.is_empty() { "not known".to_owned() } else { all.into_iter().collect::<Vec<_>>().join(" | ") }
        };
        (one != two).then(|| Difference {
            name: name.clone(),
            base: text(one),
            new: text(two),
            is_fleeting: is_fleeting(name),
        })
    });
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|difference| difference.is_fleeting);
    all
}

/// The facts of a run, those within others too: `mounts.native.type`.
pub fn facts(run: &Environment) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (name, value) in &run.facts {
        flatten(name.clone(), value, 0, &mut found);
    }
    found
}

fn flatten(name: String, value: &Value, depth: usize, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(inner) if depth < FACT_DEPTH_MAX && !inner.is_empty() => {
            for (inner_name, value) in inner {
                flatten(format!("{name}.{inner_name}"), value, depth + 1, found);
            }
        }
        Value::Array(all) if all.iter().all(|value| !value.is_object() && !value.is_array()) => {
            found.insert(name, all.iter().map(shown).collect::<Vec<_>>().join(", "));
        }
        value => {
            found.insert(name, shown(value));
        }
    }
}

/// Whether a fact changes by itself.
pub fn is_fleeting(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.split(|letter: char| !letter.is_ascii_alphanumeric()).any(|word| FLEETING.contains(&word))
}

/// A fact as text.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::tests::{data, sample};
    use super::*;
    use serde_json::json;

    fn run(clients: u32, factor: f64, count: u32) -> Vec<crate::record::Sample> {
        let value = |repeat| factor * (100.0 + f64::from(repeat * 7 % 5));
        (0..count).map(|repeat| sample("a", json!({"clients": clients}), repeat, value(repeat))).collect()
    }

    #[test]
    fn a_difference_is_one_only_when_it_is_shown() {
        let base = data([run(1, 1.0, 8), run(2, 1.0, 8), run(4, 1.0, 2)].concat());
        let new = data([run(1, 0.8, 8), run(2, 1.001, 8), run(4, 0.5, 2)].concat());
        let comparison = Comparison::of(&new, base, "old".to_owned(), false);
        let verdicts: Vec<_> = comparison.pairs.iter().map(|pair| pair.verdict).collect();
        assert_eq!(verdicts, [Verdict::Slower, Verdict::NoDifferenceShown, Verdict::NoDifferenceShown]);
        let said = comparison.sentences(&new).join(" ");
        assert!(said.contains("0 are faster, 1 slower") && said.contains("1 of them have fewer than 5"), "{said}");
    }

    #[test]
    fn what_one_side_has_alone_is_named() {
        let (base, new) =
            (data([run(1, 1.0, 3), run(2, 1.0, 3)].concat()), data([run(1, 1.0, 3), run(8, 1.0, 3)].concat()));
        let comparison = Comparison::of(&new, base, "old".to_owned(), false);
        let said = comparison.sentences(&new).join(" ");
        assert!(
            said.contains("new side: read of a at clients=8") && said.contains("base side: read of a at clients=2"),
            "{said}"
        );
    }

    #[test]
    fn a_time_is_faster_when_it_is_less() {
        let times = |factor| {
            let all = run(1, factor, 9).into_iter().map(|mut sample| {
                sample.unit = "us".to_owned();
                sample
            });
            data(all.collect())
        };
        let comparison = Comparison::of(&times(0.5), times(1.0), "old".to_owned(), false);
        assert_eq!(comparison.pairs[0].verdict, Verdict::Faster);
    }

    #[test]
    fn the_base_may_be_in_another_unit() {
        let mut other = run(1, 1.048576, 6);
        other.iter_mut().for_each(|sample| sample.unit = "MB/s".to_owned());
        let comparison = Comparison::of(&data(run(1, 1.0, 6)), data(other), "old".to_owned(), false);
        let ratio = comparison.pairs[0].ratio.as_ref().unwrap();
        assert!((ratio.ratio - 1.0).abs() < 1e-9, "{ratio:?}");
    }

    #[test]
    fn systems_of_one_run_are_compared() {
        let mut native = run(1, 2.0, 6);
        native.iter_mut().for_each(|sample| sample.system = "native".to_owned());
        let all = data([run(1, 1.0, 6), native].concat());
        let (new, base) = split(&all, "native").unwrap();
        let comparison = Comparison::of(&new, base, "native".to_owned(), true);
        assert_eq!((comparison.pairs.len(), comparison.pairs[0].verdict), (1, Verdict::Slower));
        assert!(split(&all, "nobody").is_none());
    }

    #[test]
    fn where_it_ran_is_compared_too() {
        let run = |kernel: &str, load: f64| Environment {
            facts: [
                ("host".to_owned(), json!({"kernel": kernel, "cpus": 4})),
                ("load_1min".to_owned(), json!(load)),
                ("cpu".to_owned(), json!("x")),
            ]
            .into(),
            ..Environment::default()
        };
        let found = differences(&[run("6.1", 0.5)], &[run("6.12", 0.7)]);
        let found: Vec<_> = found.iter().map(|difference| (difference.name.as_str(), difference.is_fleeting)).collect();
        assert_eq!(found, [("host.kernel", false), ("load_1min", true)]);
    }
}
