//! Judges an expression at the points that were measured.

use std::collections::BTreeSet;

use super::{COMBINATIONS_MAX, Expression, Figure, Node, Operator};
use crate::report::compare::{Comparison, Pair, all_varying};
use crate::report::data::{Data, Point};
use crate::report::{safe, unit};

/// What came of an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The expression.
    pub text: String,
    /// At how many points, or combinations of points, it was judged.
    pub judged: usize,
    /// Where it holds, and so fails: a sentence each, with the figures.
    pub failed: Vec<String>,
    /// What could not be judged, and why.
    pub missing: Vec<String>,
}

/// A number, and its unit if it has one.
#[derive(Clone, Debug, PartialEq)]
struct Value {
    number: f64,
    unit: Option<String>,
}

impl Value {
    fn shown(&self) -> String {
        let number = unit::figure(self.number);
        self.unit.as_ref().map_or(number.clone(), |unit| format!("{number} {}", safe::plain(unit)))
    }
}

/// What all of it is judged with.
struct Judge<'a> {
    expression: &'a Expression,
    data: &'a Data,
    comparison: Option<&'a Comparison>,
    pairs: Vec<Option<&'a Pair>>,
    varying: Vec<String>,
}

/// Judges. Only what cannot be computed at all, as a sum of a time and a rate, is an error.
pub fn judge(expression: &Expression, data: &Data, comparison: Option<&Comparison>) -> Result<Outcome, String> {
    let mut pairs = vec![None; data.points.len()];
    for pair in comparison.iter().flat_map(|comparison| &comparison.pairs) {
        if let Some(place) = pairs.get_mut(pair.new) {
            *place = Some(pair);
        }
    }
    let varying = comparison.map_or(data.varying.clone(), |comparison| all_varying(data, &comparison.base));
    let judge = Judge { expression, data, comparison, pairs, varying };
    let mut outcome = Outcome { text: expression.text.clone(), ..Outcome::default() };
    for condition in &expression.conditions {
        judge.condition(condition, &mut outcome)?;
    }
    let mut seen = BTreeSet::new();
    outcome.missing.retain(|line| seen.insert(line.clone()));
    Ok(outcome)
}

impl Judge<'_> {
    fn condition(&self, condition: &Node, outcome: &mut Outcome) -> Result<(), String> {
        let mut figures = Vec::new();
        condition.figures(&mut figures);
        let mut candidates = Vec::new();
        for figure in &figures {
            let figure = &self.expression.figures[*figure];
            let found: Vec<usize> =
                (0..self.data.points.len()).filter(|point| fits(figure, &self.data.points[*point])).collect();
            if found.is_empty() {
                outcome.missing.push(format!("nothing was measured that fits {}", safe::plain(&figure.text)));
                return Ok(());
            }
            candidates.push(found);
        }
        let mut met: BTreeSet<(usize, usize)> = BTreeSet::new();
        for chosen in self.combinations(&figures, &candidates)? {
            met.extend(figures.iter().copied().zip(chosen.iter().copied()));
            self.at(condition, &figures, &chosen, outcome)?;
        }
        for (figure, candidates) in figures.iter().zip(&candidates) {
            for point in candidates.iter().filter(|point| !met.contains(&(*figure, **point))) {
                let name = self.data.points[*point].name(&self.varying);
                outcome.missing.push(format!("{name} has no counterpart in '{}'", safe::plain(&self.expression.text)));
            }
        }
        Ok(())
    }

    /// One point for each figure, all at the same place but for what their filters name.
    fn combinations(&self, figures: &[usize], candidates: &[Vec<usize>]) -> Result<Vec<Vec<usize>>, String> {
        let mut all: Vec<Vec<usize>> = vec![Vec::new()];
        for (place, candidates) in candidates.iter().enumerate() {
            let mut longer = Vec::new();
            for chosen in &all {
                for point in candidates {
                    let agrees = chosen.iter().zip(figures).all(|(other, figure)| {
                        let filters = [&self.expression.figures[*figure], &self.expression.figures[figures[place]]];
                        agree(&self.data.points[*other], &self.data.points[*point], filters)
                    });
                    if agrees {
                        longer.push([chosen.as_slice(), &[*point]].concat());
                    }
                    if longer.len() > COMBINATIONS_MAX {
                        return Err(format!("more than {COMBINATIONS_MAX} combinations of points fit"));
                    }
                }
            }
            all = longer;
        }
        Ok(all)
    }

    /// Judges at one combination.
    fn at(&self, condition: &Node, figures: &[usize], chosen: &[usize], outcome: &mut Outcome) -> Result<(), String> {
        let point = |figure: usize| {
            let place = figures.iter().position(|other| *other == figure).unwrap_or_default();
            chosen[place]
        };
        let mut because = Vec::new();
        match self.holds(condition, &point, &mut because) {
            Ok(holds) => {
                outcome.judged += 1;
                if holds {
                    outcome.failed.push(self.sentence(figures, chosen, &because));
                }
                Ok(())
            }
            Err(Obstacle::Missing(what)) => {
                outcome.missing.push(what);
                Ok(())
            }
            Err(Obstacle::Wrong(what)) => Err(what),
        }
    }

    fn sentence(&self, figures: &[usize], chosen: &[usize], because: &[String]) -> String {
        let mut named: Vec<String> = Vec::new();
        for point in chosen {
            let name = self.data.points[*point].name(&self.varying);
            if !named.contains(&name) {
                named.push(name);
            }
        }
        let counts = figures.iter().zip(chosen).map(|(figure, point)| {
            let base = self.pairs[*point].and_then(|pair| Some(self.comparison?.base.points[pair.base].summary.n));
            let base = base.map_or(String::new(), |n| format!(", base n = {n}"));
            let text = safe::plain(&self.expression.figures[*figure].text);
            format!("{text}: n = {}{base}", self.data.points[*point].summary.n)
        });
        let counts: Vec<_> = counts.collect();
        format!("{}: {} ({})", named.join(" and "), because.join(" and "), counts.join("; "))
    }

    fn holds(&self, node: &Node, point: &dyn Fn(usize) -> usize, because: &mut Vec<String>) -> Result<bool, Obstacle> {
        match node {
            Node::Not(inner) => {
                let mut reasons = Vec::new();
                let holds = self.holds(inner, point, &mut reasons)?;
                if !holds {
                    because.push("a condition does not hold that 'not' stands before".to_owned());
                }
                Ok(!holds)
            }
            Node::Both { operator: Operator::And, left, right, .. } => {
                let left = self.holds(left, point, because)?;
                Ok(self.holds(right, point, because)? && left)
            }
            Node::Both { operator: Operator::Or, left, right, .. } => {
                let left = self.holds(left, point, because)?;
                Ok(self.holds(right, point, because)? || left)
            }
            Node::Both { operator, column, left, right } => {
                let (left, right) = (self.value(left, point)?, self.value(right, point)?);
                let (left, right) = same_unit(left, right, *operator, *column)?;
                let (one, two) = (left.number, right.number);
                let holds = match operator {
                    Operator::Less => one < two,
                    Operator::AtMost => one <= two,
                    Operator::Greater => one > two,
                    Operator::AtLeast => one >= two,
                    Operator::Equal => one == two,
                    _ => one != two,
                };
                if holds {
                    because.push(format!("{} {} {}", left.shown(), operator.name(), right.shown()));
                }
                Ok(holds)
            }
            // The parser lets only conditions come here.
            _ => Ok(false),
        }
    }

    fn value(&self, node: &Node, point: &dyn Fn(usize) -> usize) -> Result<Value, Obstacle> {
        match node {
            Node::Number(number, unit) => Ok(Value { number: *number, unit: unit.map(str::to_owned) }),
            Node::Negative(inner) => {
                let value = self.value(inner, point)?;
                Ok(Value { number: -value.number, ..value })
            }
            Node::Figure(figure) => {
                let wanted = &self.expression.figures[*figure];
                self.figure(point(*figure), wanted.statistic, wanted.is_base)
            }
            Node::Base { figure, statistic } => {
                let statistic = statistic.unwrap_or(self.expression.figures[*figure].statistic);
                self.figure(point(*figure), statistic, true)
            }
            Node::Both { operator, column, left, right } => {
                let (left, right) = (self.value(left, point)?, self.value(right, point)?);
                calculate(*operator, *column, left, right)
            }
            Node::Not(_) => Err(Obstacle::Wrong("a condition is no number".to_owned())),
        }
    }

    fn figure(&self, point: usize, statistic: super::Statistic, is_base: bool) -> Result<Value, Obstacle> {
        let own = &self.data.points[point];
        let name = || own.name(&self.varying);
        let pair = self.pairs[point];
        if (is_base || statistic.is_of_ratio()) && pair.is_none() {
            return Err(Obstacle::Missing(format!("the base has nothing for {}", name())));
        }
        let (measured, factor) = match (is_base, pair, self.comparison) {
            (true, Some(pair), Some(comparison)) => (&comparison.base.points[pair.base], pair.factor),
            _ => (own, 1.0),
        };
        let ratio = pair.and_then(|pair| pair.ratio.as_ref().ok());
        let Some(number) = statistic.of(measured, ratio) else {
            let why = format!(
                "{}{} has no {} (n = {})",
                if is_base { "the base of " } else { "" },
                name(),
                statistic.name(),
                measured.summary.n
            );
            return Err(Obstacle::Missing(why));
        };
        if statistic.has_unit() {
            Ok(Value { number: number * factor, unit: Some(own.unit.clone()) })
        } else {
            Ok(Value { number, unit: None })
        }
    }
}

/// Why a condition is not judged.
enum Obstacle {
    /// Something was not measured.
    Missing(String),
    /// It makes no sense.
    Wrong(String),
}

fn fits(figure: &Figure, point: &Point) -> bool {
    let op = figure.op.as_ref().is_none_or(|op| *op == point.op);
    op && figure.filters.iter().all(|(name, value)| match name.as_str() {
        "system" => point.system == *value,
        name => point.place.get(name).is_some_and(|setting| setting.is(value)),
    })
}

/// Whether two points are at the same place, but for what filters name; a parameter that one does not have does not part them.
fn agree(one: &Point, other: &Point, figures: [&Figure; 2]) -> bool {
    let named = |name: &str| figures.iter().any(|figure| figure.filters.iter().any(|(filter, _)| filter == name));
    let same_system = named("system") || one.system == other.system;
    // Of figures of any operation each means the same one.
    let same_op = figures.iter().any(|figure| figure.op.is_some()) || one.op == other.op;
    same_system
        && same_op
        && one
            .place
            .iter()
            .all(|(name, setting)| named(name) || other.place.get(name).is_none_or(|other| other == setting))
}

/// Both in the unit of the first that has one.
fn same_unit(left: Value, right: Value, operator: Operator, column: usize) -> Result<(Value, Value), Obstacle> {
    let (left, right) = match (&left.unit, &right.unit) {
        (Some(to), Some(from)) => {
            let factor = unit::factor(from, to).ok_or_else(|| {
                let (from, to) = (safe::plain(from), safe::plain(to));
                Obstacle::Wrong(format!(
                    "column {column}: '{}' has {to} on its left and {from} on its right",
                    operator.name()
                ))
            })?;
            let unit = left.unit.clone();
            (left, Value { number: right.number * factor, unit })
        }
        (Some(unit), None) => {
            let unit = Some(unit.clone());
            (left, Value { unit, ..right })
        }
        (None, Some(unit)) => {
            let unit = Some(unit.clone());
            (Value { unit, ..left }, right)
        }
        (None, None) => (left, right),
    };
    if left.number.is_finite() && right.number.is_finite() {
        Ok((left, right))
    } else {
        Err(Obstacle::Missing(format!("column {column}: something is divided by zero")))
    }
}

fn calculate(operator: Operator, column: usize, left: Value, right: Value) -> Result<Value, Obstacle> {
    match operator {
        Operator::Times => {
            if left.unit.is_some() && right.unit.is_some() {
                return Err(Obstacle::Wrong(format!("column {column}: '*' has a unit on both sides")));
            }
            Ok(Value { number: left.number * right.number, unit: left.unit.or(right.unit) })
        }
        Operator::By if right.unit.is_none() => Ok(Value { number: left.number / right.number, unit: left.unit }),
        Operator::By if left.unit.is_none() => {
            Err(Obstacle::Wrong(format!("column {column}: '/' has a unit on its right only")))
        }
        Operator::By => {
            let (left, right) = same_unit(left, right, operator, column)?;
            Ok(Value { number: left.number / right.number, unit: None })
        }
        _ => {
            let (left, right) = same_unit(left, right, operator, column)?;
            let number =
                if operator == Operator::Plus { left.number + right.number } else { left.number - right.number };
            Ok(Value { number, unit: left.unit })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use crate::record::Sample;
    use crate::report::data::tests::{data, sample};
    use serde_json::json;

    fn measured(system: &str, clients: u32, values: &[f64]) -> Vec<Sample> {
        let all =
            values.iter().zip(0..).map(|(value, repeat)| sample(system, json!({"clients": clients}), repeat, *value));
        all.collect()
    }

    fn base() -> Data {
        data([measured("a", 1, &[100.0, 101.0, 99.0, 100.0, 100.0]), measured("a", 2, &[200.0; 5])].concat())
    }

    fn new() -> Data {
        let all = [
            measured("a", 1, &[80.0, 81.0, 79.0, 80.0, 80.0]),
            measured("a", 2, &[199.0; 5]),
            measured("a", 4, &[300.0]),
        ];
        data(all.concat())
    }

    fn outcome(text: &str) -> Outcome {
        let new = new();
        let comparison = Comparison::of(&new, base(), "old".to_owned(), false);
        judge(&parse(text).unwrap(), &new, Some(&comparison)).unwrap()
    }

    #[test]
    fn what_failed_is_said_with_its_figures() {
        let outcome = outcome("read.median < 0.9*base");
        assert_eq!(outcome.judged, 2);
        assert_eq!(
            outcome.failed,
            ["read of a at clients=1: 80.00 MiB/s < 90.00 MiB/s (read.median: n = 5, base n = 5)"]
        );
        assert_eq!(outcome.missing, ["the base has nothing for read of a at clients=4"]);
    }

    #[test]
    fn filters_and_any_choose() {
        assert!(outcome("read[clients=2].median < 0.9*base").failed.is_empty());
        assert_eq!(outcome("any.median < 0.9*base").failed.len(), 1);
        let none = outcome("read[clients=3].median < 1");
        assert_eq!((none.judged, none.missing.len()), (0, 1));
        assert!(none.missing[0].contains("read[clients=3].median"), "{none:?}");
    }

    #[test]
    fn figures_meet_at_the_same_place() {
        assert_eq!(outcome("read[clients=2].median < 3*read[clients=1].median").failed.len(), 1);
        // Each point with itself, not with the others.
        assert_eq!(outcome("read.max < read.min").judged, 3);
        assert_eq!(outcome("read.max < 2*read[clients=1].min").judged, 3);
    }

    #[test]
    fn units_are_minded() {
        assert_eq!(outcome("read[clients=1].mean < 84 MB/s").failed.len(), 1, "80 MiB/s are 83.9 MB/s");
        assert!(outcome("read[clients=1].mean < 83 MB/s").failed.is_empty());
        let (new, text) = (new(), "read.mean < 5 ms");
        assert!(judge(&parse(text).unwrap(), &new, None).unwrap_err().contains("column 11"));
        assert!(judge(&parse("read.mean*read.mean < 5").unwrap(), &new, None).is_err());
        assert_eq!(judge(&parse("read.mean/read.max <= 1").unwrap(), &new, None).unwrap().failed.len(), 3);
    }

    #[test]
    fn what_cannot_be_known_is_named() {
        let outcome = outcome("read[clients=4].stdev > 1");
        assert_eq!(
            (outcome.judged, outcome.missing),
            (0, vec!["read of a at clients=4 has no stdev (n = 1)".to_owned()])
        );
        assert!(self::outcome("read.mean/(read.n - read.n) > 1").missing[0].contains("divided by zero"));
    }

    #[test]
    fn ratios_and_their_intervals_are_figures() {
        assert_eq!(outcome("read.ratio_high < 0.95").failed.len(), 1);
        assert_eq!(outcome("read.ratio > 0.99 and read.n >= 5").failed.len(), 1);
        assert_eq!(outcome("not read.ratio > 0.99").failed.len(), 1);
    }

    #[test]
    fn each_side_of_or_is_judged_by_itself() {
        let outcome = outcome("write.median < 1 or read[clients=1].median < 90");
        assert_eq!((outcome.failed.len(), outcome.missing.len()), (1, 1));
    }
}
