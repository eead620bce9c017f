//! Which charts the data are good for.

use std::collections::BTreeSet;

use clap::ValueEnum;

use super::{Axis, Chart, Format, Kind, Look, Scale, bars, curves, over_time, spread, svg};
use crate::report::data::{Data, Point, Role, Setting, role};
use crate::report::{safe, unit};
use crate::stats::{Interval, MEDIAN_INTERVAL_MIN};

/// The most charts of one report.
pub const CHARTS_MAX: usize = 300;

/// From so many repetitions on their distribution is worth a look without being asked for.
const CDF_MIN: usize = 10;

/// From so many values of each of two parameters on, their map is.
const HEAT_MIN: usize = 3;

/// Which figure of the repetitions is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Drawn {
    /// The mean, with its interval from two repetitions on
    #[default]
    Mean,
    /// The median, with its interval from six repetitions on
    Median,
}

/// What charts are made of, and how.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The data.
    pub data: &'a Data,
    /// Which figure.
    pub drawn: Drawn,
    /// The system that is drawn dashed.
    pub native: &'a str,
    /// Values on logarithmic axes.
    pub log: bool,
    /// Only these kinds; empty for what fits.
    pub kinds: &'a [Kind],
}

impl<'a> Wish<'a> {
    /// The figure that is drawn.
    pub fn value(&self, point: &Point) -> f64 {
        match self.drawn {
            Drawn::Mean => point.summary.mean,
            Drawn::Median => point.summary.median,
        }
    }

    /// Its interval, where there are enough repetitions for one; what cannot be below nothing,
    /// as a rate, is not drawn there.
    pub fn interval(&self, point: &Point) -> Option<Interval> {
        let interval = match self.drawn {
            Drawn::Mean => point.summary.mean_interval,
            Drawn::Median => point.summary.median_interval,
        };
        let least = if point.summary.min < 0.0 { f64::NEG_INFINITY } else { 0.0 };
        interval.map(|Interval { low, high }| Interval { low: low.max(least), high })
    }

    /// How a system is drawn, the same in all charts.
    pub fn look(&self, system: &str) -> Look {
        if system == self.native {
            return Look { color: svg::GREY, is_native: true, is_faint: false };
        }
        let systems = self.data.systems();
        let others = systems.iter().filter(|other| **other != self.native);
        let place = others.enumerate().find(|(_, other)| **other == system).map_or(0, |(place, _)| place);
        Look { color: skip_grey(place), is_native: false, is_faint: false }
    }

    /// Whether this kind is asked for by name.
    pub fn asks_for(&self, kind: Kind) -> bool {
        self.kinds.contains(&kind)
    }

    /// Whether this kind may be drawn.
    fn allows(&self, kind: Kind) -> bool {
        self.kinds.is_empty() || self.asks_for(kind)
    }

    /// The axis of values in this unit.
    pub fn values_axis(&self, unit: &str, log: bool) -> Axis {
        let scale = if log { Scale::Log10 } else { Scale::Linear };
        let label = format!("{} ({})", unit::quantity(unit), safe::plain(unit));
        Axis { label, scale, format: Format::Number, ticks: Vec::new(), from_zero: !log }
    }

    /// Which figures a chart of these points shows, and how sure they are.
    pub fn caption(&self, points: &[&Point]) -> String {
        self.caption_of(points, "error bars")
    }

    /// The same, where intervals are to be seen elsewhere or otherwise.
    pub fn caption_of(&self, points: &[&Point], intervals: &str) -> String {
        let most = points.iter().map(|point| point.summary.n).max().unwrap_or(0);
        let least = points.iter().map(|point| point.summary.n).min().unwrap_or(0);
        let count = if least == most { format!("n = {most}") } else { format!("n = {least} to {most}") };
        let first = if most == 1 {
            "Single measurements (n = 1): nothing is known of their spread.".to_owned()
        } else {
            let have = points.iter().filter(|point| self.interval(point).is_some()).count();
            let which = if have == points.len() { "" } else { ", where there are enough repetitions" };
            match self.drawn {
                Drawn::Mean => {
                    format!("Mean of {count} repetitions; {intervals}{which}: 95 % interval of the mean (Student's t).")
                }
                Drawn::Median if have == 0 => {
                    format!("Median of {count} repetitions; an interval takes {MEDIAN_INTERVAL_MIN}, so there is none.")
                }
                Drawn::Median => {
                    format!(
                        "Median of {count} repetitions; {intervals}{which}: 95 % interval of the median (order statistics)."
                    )
                }
            }
        };
        let constants = self.data.constants();
        if constants.is_empty() { first } else { format!("{first} {constants}.") }
    }

    /// All that is known of a point.
    pub fn tip(&self, point: &Point) -> String {
        tip(point, &self.data.varying)
    }
}

/// All that is known of a point, in some lines.
pub fn tip(point: &Point, varying: &[String]) -> String {
    let (s, unit) = (&point.summary, safe::plain(&point.unit));
    let f = unit::figure;
    let between = |interval: Option<Interval>| {
        interval.map_or("no 95 % interval".to_owned(), |i| format!("95 % interval {} to {}", f(i.low), f(i.high)))
    };
    let mut text = format!(
        "{}\nn = {}\nmean {} {unit}, {}\nmedian {} {unit}, {}\nquartiles {} and {}, from {} to {}",
        point.name(varying),
        s.n,
        f(s.mean),
        between(s.mean_interval),
        f(s.median),
        between(s.median_interval),
        f(s.q1),
        f(s.q3),
        f(s.min),
        f(s.max)
    );
    if let (Some(stdev), Some(cv)) = (s.stdev, s.cv) {
        text.push_str(&format!("\nstandard deviation {}, CV {:.1} %", f(stdev), cv * 100.0));
    }
    if !s.outliers.is_empty() {
        let values: Vec<_> =
            s.outliers.iter().filter_map(|index| point.values.get(*index)).map(|value| f(*value)).collect();
        text.push_str(&format!("\noutliers: {}", values.join(", ")));
    }
    text
}

/// The colour at this place; the one of what is native is left out.
pub fn skip_grey(place: usize) -> usize {
    let others = svg::GREY;
    (place / others) * svg::COLORS.len() + place % others
}

/// The values of a parameter among these points.
pub fn settings<'a>(points: &[&'a Point], name: &str) -> BTreeSet<&'a Setting> {
    points.iter().filter_map(|point| point.place.get(name)).collect()
}

/// The parameters that vary among these points.
pub fn varying(points: &[&Point], names: &[String]) -> Vec<String> {
    // One that only some have tells them apart as well.
    let differs = |name: &&String| {
        let kinds: BTreeSet<_> = points.iter().map(|point| point.place.get(*name)).collect();
        kinds.len() > 1
    };
    names.iter().filter(differs).cloned().collect()
}

/// The numeric parameters of these points with how many values each has.
fn numeric(wish: &Wish<'_>, points: &[&Point]) -> Vec<(String, usize)> {
    let own: Vec<_> = points.iter().copied().filter(|point| point.system != wish.native).collect();
    let points = if own.is_empty() { points.to_vec() } else { own };
    let found = wish.data.varying.iter().filter_map(|name| {
        let settings = settings(&points, name);
        let is_numeric = settings.iter().all(|setting| setting.number.is_some());
        (is_numeric && settings.len() > 1).then(|| (name.clone(), settings.len()))
    });
    found.collect()
}

/// The charts, and what must be said of them.
pub fn choose(wish: &Wish<'_>) -> (Vec<Chart>, Vec<String>) {
    let (mut charts, mut notes) = (Vec::new(), Vec::new());
    let mut for_bars = Vec::new();
    for (op, unit) in wish.data.families() {
        let points: Vec<_> = wish.data.points.iter().filter(|point| point.op == op && point.unit == unit).collect();
        let numeric = numeric(wish, &points);
        let mut has_curves = false;
        for (name, count) in &numeric {
            let kind = if role(name) == Role::Size { Kind::Sizes } else { Kind::Clients };
            // A number that is neither a count nor a size may be a mere name: two of it are no curve.
            if role(name) != Role::Other || *count > 2 {
                has_curves = true;
                if wish.allows(kind) {
                    charts.extend(curves::draw(wish, kind, &points, name));
                }
            }
        }
        if !has_curves || wish.asks_for(Kind::Bars) {
            for_bars.push((unit, points.clone()));
        }
        if wish.allows(Kind::Heat) {
            let least = if wish.asks_for(Kind::Heat) { 2 } else { HEAT_MIN };
            let axes: Vec<_> = numeric.iter().filter(|(_, count)| *count >= least).map(|(name, _)| name).collect();
            for (place, x) in axes.iter().enumerate() {
                for y in &axes[place + 1..] {
                    charts.extend(spread::heat(wish, &points, (x, y)));
                }
            }
        }
        let has_many = points.iter().any(|point| point.summary.n >= CDF_MIN);
        if wish.asks_for(Kind::Cdf) || (wish.kinds.is_empty() && has_many) {
            charts.extend(spread::cdf(wish, &points));
        }
    }
    if wish.allows(Kind::Bars) {
        charts.extend(bars::draw(wish, for_bars));
    }
    if wish.allows(Kind::Series) {
        let (drawn, note) = over_time::draw(wish);
        charts.extend(drawn);
        notes.extend(note);
    }
    if charts.len() > CHARTS_MAX {
        notes.push(format!(
            "{} charts fit the data, and the first {CHARTS_MAX} are drawn: choose with --chart and --only.",
            charts.len()
        ));
        charts.truncate(CHARTS_MAX);
    }
    for kind in wish.kinds.iter().filter(|kind| **kind != Kind::Ratio) {
        if !charts.iter().any(|chart| chart.kind == *kind) {
            notes.push(format!("There is nothing in the data for --chart {}: {}.", kind.name(), needs(*kind)));
        }
    }
    (charts, notes)
}

fn needs(kind: Kind) -> &'static str {
    match kind {
        Kind::Clients => "it takes a number of clients, ranks or the like that varies",
        Kind::Sizes => "it takes a size that varies",
        Kind::Bars => "it takes points",
        Kind::Series => "it takes samples with a series",
        Kind::Cdf => "it takes points with two repetitions or more",
        Kind::Heat => "it takes two numeric parameters that vary",
        Kind::Ratio => "it takes a base to compare with",
    }
}
