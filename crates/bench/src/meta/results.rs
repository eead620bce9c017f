//! What was measured, and mdtest's tables of it. Pure.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::meta::plan::{Phase, Plan};
use crate::record::Measured;

/// What one rank did in a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Operations.
    pub operations: u64,
    /// From the barrier before to the barrier after.
    pub seconds: f64,
    /// Without the wait for the others.
    pub own_seconds: f64,
    /// Operations until the stonewall, and when it was hit.
    pub stonewall: Option<(u64, f64)>,
}

/// One phase of one iteration, by rank.
pub type Parts = Vec<Part>;

/// One iteration: phases that ran.
pub type Iteration = BTreeMap<Phase, Parts>;

fn operations(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.operations).sum()
}

/// How long the slowest took.
fn seconds(parts: &[Part]) -> f64 {
    parts.iter().map(|part| part.seconds).fold(0.0, f64::max)
}

fn per_second(operations: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { operations as f64 / seconds } else { 0.0 }
}

/// Rates (operations per second, all ranks) or times (ms that one operation of a rank took).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Operations per second.
    Rate,
    /// Milliseconds for an operation.
    Time,
}

impl Shown {
    fn of_all(self, parts: &[Part]) -> f64 {
        let (operations, seconds) = (operations(parts), seconds(parts));
        match self {
            Shown::Rate => per_second(operations, seconds),
            Shown::Time => {
                let busy = parts.iter().filter(|part| part.operations > 0).count() as f64;
                if operations == 0 { 0.0 } else { seconds * 1e3 * busy / operations as f64 }
            }
        }
    }

    fn of_rank(self, part: &Part) -> f64 {
        match self {
            Shown::Rate => per_second(part.operations, part.own_seconds),
            Shown::Time if part.operations == 0 => 0.0,
            Shown::Time => part.own_seconds * 1e3 / part.operations as f64,
        }
    }
}

/// Maximum, minimum, mean, and the standard deviation of the sample (0 for one value).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// The largest.
    pub max: f64,
    /// The smallest.
    pub min: f64,
    /// The arithmetic mean.
    pub mean: f64,
    /// With n - 1.
    pub deviation: f64,
}

impl Summary {
    /// Of these values; zeros of none.
    pub fn of(values: &[f64]) -> Summary {
        if values.is_empty() {
            return Summary::default();
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Summary { max, min: values.iter().copied().fold(f64::INFINITY, f64::min), mean, deviation }
    }
}

/// The rows of a plan's table: those of its kinds of items, and the tree's, also where they did not run.
fn rows(plan: &Plan) -> impl Iterator<Item = Phase> {
    let (directories, files) = (plan.measures_directories, plan.measures_files);
    Phase::ALL.into_iter().filter(move |phase| match phase {
        Phase::TreeCreation | Phase::TreeRemoval => true,
        phase if *phase < Phase::FileCreation => directories,
        _ => files,
    })
}

/// mdtest's table.
pub fn table(plan: &Plan, iterations: &[Iteration], shown: Shown) -> String {
    let ranks = plan.arguments.rank_statistics;
    let title = if shown == Shown::Rate { "rate (in ops/sec)" } else { "time (in ms/op)" };
    let mut text = format!("\nSUMMARY {title}: (of {} iterations)\n", iterations.len());
    let (of_ranks, line) = if ranks {
        (
            "per Rank: Max            Min           Mean      per Iteration:",
            "         ---            ---           ----       ",
        )
    } else {
        ("               ", "")
    };
    let _ = writeln!(text, "   Operation     {of_ranks} Max            Min           Mean        Std Dev");
    let _ = writeln!(text, "   ---------      {line}               ---            ---           ----        -------");
    for phase in rows(plan) {
        let parts = || iterations.iter().map(|iteration| iteration.get(&phase).map(Vec::as_slice).unwrap_or_default());
        let of_all = Summary::of(&parts().map(|parts| shown.of_all(parts)).collect::<Vec<_>>());
        let _ = write!(text, "   {:<18} ", phase.title());
        if ranks {
            let of_ranks = parts().flatten().filter(|part| part.operations > 0).map(|part| shown.of_rank(part));
            let of_ranks = Summary::of(&of_ranks.collect::<Vec<_>>());
            let _ = write!(text, "{:>14.3} {:>14.3} {:>14.3}     ", of_ranks.max, of_ranks.min, of_ranks.mean);
        }
        let Summary { max, min, mean, deviation } = of_all;
        let _ = writeln!(text, "    {max:>14.3} {min:>14.3} {mean:>14.3} {deviation:>14.3}");
    }
    if let Some(line) = stonewall(iterations, shown) {
        text.push_str(&line);
    }
    text
}

/// What had been made when the stonewall was hit.
fn stonewall(iterations: &[Iteration], shown: Shown) -> Option<String> {
    let made = iterations.iter().filter_map(|iteration| iteration.get(&Phase::FileCreation));
    let (mut operations, mut seconds) = (0, 0.0);
    for parts in made {
        let walls: Vec<_> = parts.iter().filter_map(|part| part.stonewall).collect();
        operations += walls.iter().map(|(operations, _)| operations).sum::<u64>();
        seconds += walls.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
    }
    let value = match shown {
        Shown::Rate => per_second(operations, seconds),
        Shown::Time => seconds * 1e3 / operations.max(1) as f64,
    };
    (operations > 0)
        .then(|| format!("   {:<22} {:>14} {:>14} {value:>14.3} {:>14}\n", "File create (stonewall)", "NA", "NA", "NA"))
}

/// The same as JSON: each iteration's phases with each rank's part, and the summary.
pub fn json(plan: &Plan, iterations: &[Iteration]) -> Value {
    let phase = |parts: &Parts| {
        json!({
            "operations": operations(parts),
            "seconds": seconds(parts),
            "rate": Shown::Rate.of_all(parts),
            "ms_per_operation": Shown::Time.of_all(parts),
            "ranks": parts,
        })
    };
    let all: Vec<Value> = iterations
        .iter()
        .map(|iteration| iteration.iter().map(|(name, parts)| (name.title().to_owned(), phase(parts))).collect())
        .collect();
    let summary = |name: Phase| {
        let rates = iterations.iter().filter_map(|iteration| Some(Shown::Rate.of_all(iteration.get(&name)?)));
        let Summary { max, min, mean, deviation } = Summary::of(&rates.collect::<Vec<_>>());
        json!({ "max": max, "min": min, "mean": mean, "stddev": deviation, "unit": "ops/sec" })
    };
    let ran = rows(plan).filter(|name| iterations.iter().any(|iteration| iteration.contains_key(name)));
    let summaries: Map<String, Value> = ran.map(|name| (name.title().to_owned(), summary(name))).collect();
    json!({ "iterations": all, "summary": summaries })
}

/// What a sweep is told of an iteration.
pub fn measured(iteration: &Iteration, repeat: u32, tasks: usize) -> Vec<Measured> {
    let one = |(phase, parts): (&Phase, &Parts)| Measured {
        op: phase.op().to_owned(),
        repeat,
        value: Shown::Rate.of_all(parts),
        unit: "op/s".to_owned(),
        seconds: seconds(parts),
        more: BTreeMap::from([
            ("tasks".to_owned(), json!(tasks)),
            ("operations".to_owned(), json!(operations(parts))),
            ("ranks".to_owned(), json!(parts.iter().map(|part| Shown::Rate.of_rank(part)).collect::<Vec<_>>())),
        ]),
        series: Vec::new(),
    };
    iteration.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::arguments::tests::arguments;

    fn part(operations: u64, seconds: f64, own_seconds: f64) -> Part {
        Part { operations, seconds, own_seconds, stonewall: None }
    }

    fn iterations() -> Vec<Iteration> {
        let iteration = |seconds: f64| {
            Iteration::from([
                (Phase::FileCreation, vec![part(1000, seconds, 0.5), part(1000, seconds / 2.0, 1.0)]),
                (Phase::TreeCreation, vec![part(1, 0.001, 0.001), part(0, 0.001, 0.0)]),
            ])
        };
        vec![iteration(2.0), iteration(1.0)]
    }

    #[test]
    fn the_table_is_that_of_mdtest() {
        let plan = Plan::resolve(&arguments("-n 1000 -F -C -i 2")).unwrap();
        let expected = "
SUMMARY rate (in ops/sec): (of 2 iterations)
   Operation                     Max            Min           Mean        Std Dev
   ---------                     ---            ---           ----        -------
   File creation                2000.000       1000.000       1500.000        707.107
   File stat                       0.000          0.000          0.000          0.000
   File read                       0.000          0.000          0.000          0.000
   File removal                    0.000          0.000          0.000          0.000
   Tree creation                1000.000       1000.000       1000.000          0.000
   Tree removal                    0.000          0.000          0.000          0.000
";
        assert_eq!(table(&plan, &iterations(), Shown::Rate), expected);
    }

    #[test]
    fn times_are_those_of_an_operation() {
        let plan = Plan::resolve(&arguments("-n 1000 -F -C -i 2")).unwrap();
        let text = table(&plan, &iterations(), Shown::Time);
        assert!(text.contains("SUMMARY time (in ms/op): (of 2 iterations)"), "{text}");
        let row = "   File creation                   2.000          1.000          1.500          0.707\n";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn ranks_are_shown_where_they_are_wanted() {
        let plan = Plan::resolve(&arguments("-n 1000 -F -C -i 2 --showRankStatistics")).unwrap();
        let text = table(&plan, &iterations(), Shown::Rate);
        let row: Vec<_> = text.lines().find(|line| line.contains("creation")).unwrap().split_whitespace().collect();
        let row = row.join(" ");
        assert!(row.starts_with("File creation 2000.000 1000.000 1500.000 2000.000 1000.000 1500.000"), "{text}");
    }

    #[test]
    fn a_stonewall_has_a_row() {
        let plan = Plan::resolve(&arguments("-n 1000 -F -C")).unwrap();
        let mut made = part(100, 2.0, 2.0);
        made.stonewall = Some((60, 1.5));
        let iterations = [Iteration::from([(Phase::FileCreation, vec![made, made])])];
        let text = table(&plan, &iterations, Shown::Rate);
        assert!(
            text.contains("   File create (stonewall)             NA             NA         80.000             NA"),
            "{text}"
        );
    }

    #[test]
    fn samples_are_summarised() {
        let Summary { max, min, mean, deviation } = Summary::of(&[2.0, 4.0, 9.0]);
        assert_eq!((max, min, mean), (9.0, 2.0, 5.0));
        assert!((deviation - 13f64.sqrt()).abs() < 1e-12);
        assert_eq!(Summary::of(&[3.0]).deviation, 0.0);
        assert_eq!(Summary::of(&[]), Summary::default());
    }

    #[test]
    fn records_name_operations() {
        let all = measured(&iterations()[0], 4, 2);
        assert_eq!(all.iter().map(|one| one.op.as_str()).collect::<Vec<_>>(), ["create", "tree-create"]);
        assert_eq!((all[0].value, all[0].repeat, all[0].seconds), (1000.0, 4, 2.0));
        let shown = json(&Plan::resolve(&arguments("-n 1000 -F -C")).unwrap(), &iterations());
        assert_eq!(shown["summary"]["File creation"]["mean"], json!(1500.0));
        assert_eq!(shown["iterations"][1]["File creation"]["ranks"][1]["operations"], json!(1000));
        assert!(shown["summary"].get("File stat").is_none());
    }
}
