//! The language of `--fail-if`: conditions on what was measured, as `read.median < 0.9*base`.
//!
//! ```text
//! condition  = all { ("or" | "||") all }
//! all        = not { ("and" | "&&") not }
//! not        = [ "not" | "!" ] compared
//! compared   = sum [ ("<" | "<=" | ">" | ">=" | "==" | "!=") sum ]
//! sum        = product { ("+" | "-") product }
//! product    = signed { ("*" | "/") signed }
//! signed     = [ "-" ] ( NUMBER [ UNIT | "%" ] | figure | "base" | "base" "." STATISTIC | "base" "." figure | "(" condition ")" )
//! figure     = OP [ "[" NAME "=" VALUE { "," NAME "=" VALUE } "]" ] "." STATISTIC
//! ```
//!
//! OP is a word, any text in quotation marks, or `any`. A condition is judged at every point that its figures fit; with several figures, at every combination whose system and
//! parameters are the same, but for those that a figure's filter names. `base` is what the base has for the only figure of the same comparison. A number without a unit is in the
//! unit of what it is compared with.

mod judge;
mod parse;

pub use judge::{Outcome, judge};
pub use parse::parse;

use super::data::Point;
use crate::stats::Ratio;

/// The longest expression, in bytes.
pub const LENGTH_MAX: usize = 4096;
/// The most parentheses, negations and operators within each other.
pub const DEPTH_MAX: usize = 64;
/// The most figures of an expression.
pub const FIGURES_MAX: usize = 16;
/// The most combinations of points at which a condition is judged.
pub const COMBINATIONS_MAX: usize = 200_000;

/// What is wrong with an expression, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// From 1, in characters.
    pub column: usize,
    /// What.
    pub what: String,
}

impl Problem {
    /// With the expression, and a mark below the column.
    pub fn shown(&self, expression: &str) -> String {
        let expression = super::safe::plain_lines(expression).replace('\n', " ");
        let room = " ".repeat(self.column.saturating_sub(1));
        format!("column {}: {}\n          {expression}\n          {room}^", self.column, self.what)
    }
}

/// A whole expression: conditions any of which is to fail, with what they speak of.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    /// As it was written.
    pub text: String,
    /// Joined by "or" at the top.
    pub conditions: Vec<Node>,
    /// What the conditions speak of.
    pub figures: Vec<Figure>,
}

impl Expression {
    /// Whether it takes a base.
    pub fn needs_base(&self) -> bool {
        self.figures.iter().any(|figure| figure.is_base || figure.statistic.is_of_ratio())
            || self.conditions.iter().any(Node::has_base)
    }
}

/// A statistic of some points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Which operation; none for any.
    pub op: Option<String>,
    /// Which points: names and values, all of which must fit.
    pub filters: Vec<(String, String)>,
    /// Which statistic.
    pub statistic: Statistic,
    /// It is the base's.
    pub is_base: bool,
    /// As it was written.
    pub text: String,
}

/// What may be asked of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// The arithmetic mean.
    Mean,
    /// The median.
    Median,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// The standard deviation.
    Stdev,
    /// The coefficient of variation, as a share.
    Cv,
    /// How many repetitions.
    N,
    /// The lower quartile.
    Q1,
    /// The upper quartile.
    Q3,
    /// The lower end of the 95 % interval of the mean.
    Low,
    /// The upper end.
    High,
    /// The ratio of the medians to the base's.
    Ratio,
    /// The lower end of its 95 % interval.
    RatioLow,
    /// The upper end.
    RatioHigh,
}

/// Names of statistics.
const STATISTICS: [(&str, Statistic); 14] = [
    ("mean", Statistic::Mean),
    ("median", Statistic::Median),
    ("min", Statistic::Min),
    ("max", Statistic::Max),
    ("stdev", Statistic::Stdev),
    ("cv", Statistic::Cv),
    ("n", Statistic::N),
    ("q1", Statistic::Q1),
    ("q3", Statistic::Q3),
    ("low", Statistic::Low),
    ("high", Statistic::High),
    ("ratio", Statistic::Ratio),
    ("ratio_low", Statistic::RatioLow),
    ("ratio_high", Statistic::RatioHigh),
];

impl Statistic {
    fn of_name(name: &str) -> Option<Statistic> {
        STATISTICS.iter().find(|(known, _)| *known == name).map(|(_, statistic)| *statistic)
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        STATISTICS.iter().find(|(_, statistic)| *statistic == self).map_or("", |(name, _)| name)
    }

    /// It compares with the base.
    pub fn is_of_ratio(self) -> bool {
        matches!(self, Statistic::Ratio | Statistic::RatioLow | Statistic::RatioHigh)
    }

    /// It is in the unit of the values.
    fn has_unit(self) -> bool {
        !self.is_of_ratio() && !matches!(self, Statistic::Cv | Statistic::N)
    }

    /// Of this point, where that is known.
    fn of(self, point: &Point, ratio: Option<&Ratio>) -> Option<f64> {
        let s = &point.summary;
        match self {
            Statistic::Mean => Some(s.mean),
            Statistic::Median => Some(s.median),
            Statistic::Min => Some(s.min),
            Statistic::Max => Some(s.max),
            Statistic::Stdev => s.stdev,
            Statistic::Cv => s.cv,
            Statistic::N => Some(s.n as f64),
            Statistic::Q1 => Some(s.q1),
            Statistic::Q3 => Some(s.q3),
            Statistic::Low => s.mean_interval.map(|interval| interval.low),
            Statistic::High => s.mean_interval.map(|interval| interval.high),
            Statistic::Ratio => ratio.map(|ratio| ratio.ratio),
            // One value on a side has no interval, though a bootstrap gives a number.
            Statistic::RatioLow => ratio.filter(|ratio| ratio.n > 1).map(|ratio| ratio.interval.low),
            Statistic::RatioHigh => ratio.filter(|ratio| ratio.n > 1).map(|ratio| ratio.interval.high),
        }
    }
}

/// How two things are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// Both hold.
    And,
    /// Either holds.
    Or,
    /// Is less.
    Less,
    /// Is less or the same.
    AtMost,
    /// Is greater.
    Greater,
    /// Is greater or the same.
    AtLeast,
    /// Is the same.
    Equal,
    /// Is not the same.
    Unequal,
    /// The sum.
    Plus,
    /// The difference.
    Minus,
    /// The product.
    Times,
    /// The quotient.
    By,
}

impl Operator {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Operator::And => "and",
            Operator::Or => "or",
            Operator::Less => "<",
            Operator::AtMost => "<=",
            Operator::Greater => ">",
            Operator::AtLeast => ">=",
            Operator::Equal => "==",
            Operator::Unequal => "!=",
            Operator::Plus => "+",
            Operator::Minus => "-",
            Operator::Times => "*",
            Operator::By => "/",
        }
    }
}

/// A part of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// A number, with its unit if it has one.
    Number(f64, Option<&'static str>),
    /// A figure: its place in [`Expression::figures`].
    Figure(usize),
    /// What the base has for a figure; another statistic of it if one is named.
    Base {
        /// The figure: its place in [`Expression::figures`].
        figure: usize,
        /// Which statistic; none for the figure's own.
        statistic: Option<Statistic>,
    },
    /// The same below zero.
    Negative(Box<Node>),
    /// What does not hold.
    Not(Box<Node>),
    /// Two put together.
    Both {
        /// How.
        operator: Operator,
        /// Where the operator stands, from 1.
        column: usize,
        /// The left one.
        left: Box<Node>,
        /// The right one.
        right: Box<Node>,
    },
}

impl Node {
    fn has_base(&self) -> bool {
        match self {
            Node::Base { .. } => true,
            Node::Number(..) | Node::Figure(_) => false,
            Node::Negative(inner) | Node::Not(inner) => inner.has_base(),
            Node::Both { left, right, .. } => left.has_base() || right.has_base(),
        }
    }

    /// The figures that it speaks of, each once.
    fn figures(&self, found: &mut Vec<usize>) {
        match self {
            Node::Number(..) => {}
            Node::Figure(figure) | Node::Base { figure, .. } => {
                if !found.contains(figure) {
                    found.push(*figure);
                }
            }
            Node::Negative(inner) | Node::Not(inner) => inner.figures(found),
            Node::Both { left, right, .. } => {
                left.figures(found);
                right.figures(found);
            }
        }
    }
}
