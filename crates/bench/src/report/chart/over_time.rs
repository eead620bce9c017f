//! Throughput over time, from the bytes of each tenth of a second.

use std::collections::BTreeMap;

use super::choose::{Wish, varying};
use super::{Axis, Body, Chart, Curve, Format, Kind, Lines, Look, Mark, Scale};
use crate::record::Sample;
use crate::report::data::Point;
use crate::report::{safe, unit};

/// The most charts over time.
const SERIES_CHARTS_MAX: usize = 16;

/// The most repetitions of a point that are drawn.
const REPETITIONS_MAX: usize = 15;

/// The most points of a line: more are put together.
const STEPS_MAX: usize = 600;

/// In a second.
const STEPS_PER_SECOND: f64 = 10.0;

/// The charts, and what must be said of them.
pub fn draw(wish: &Wish<'_>) -> (Vec<Chart>, Option<String>) {
    let points: Vec<&Point> = wish.data.points.iter().filter(|point| !repetitions(wish, point).is_empty()).collect();
    let names = varying(&points, &wish.data.varying);
    let mut groups: BTreeMap<(usize, String), Vec<&Point>> = BTreeMap::new();
    let mut order: Vec<(&str, Vec<_>)> = Vec::new();
    for point in &points {
        let place: Vec<_> = names.iter().map(|name| point.place.get(name)).collect();
        let key = (point.op.as_str(), place);
        let index = order.iter().position(|other| *other == key).unwrap_or_else(|| {
            order.push(key);
            order.len() - 1
        });
        groups.entry((index, point.settings(&names))).or_default().push(point);
    }
    let count = groups.len();
    let chosen = groups.into_iter().take(SERIES_CHARTS_MAX);
    let charts = chosen.filter_map(|((_, settings), points)| chart(wish, &settings, &points));
    let note = (count > SERIES_CHARTS_MAX).then(|| {
        format!("{count} points have series, and those of the first {SERIES_CHARTS_MAX} are drawn: choose with --only.")
    });
    (charts.collect(), note)
}

/// The samples of a point that have a series: the one nearest to the median first.
fn repetitions<'a>(wish: &Wish<'a>, point: &Point) -> Vec<&'a Sample> {
    let all = point.samples.iter().filter_map(|index| wish.data.samples.get(*index));
    let mut all: Vec<_> = all.filter(|sample| sample.series.len() > 1).collect();
    let distance = |sample: &Sample| (sample.value - point.summary.median).abs();
    all.sort_by(|one, two| distance(one).total_cmp(&distance(two)));
    all
}

fn chart(wish: &Wish<'_>, settings: &str, points: &[&Point]) -> Option<Chart> {
    let first = points.first()?;
    // A benchmark of operations may count bytes as well.
    let unit = if unit::kind(&first.unit) == Some(unit::Kind::Rate) { first.unit.as_str() } else { "MiB/s" };
    let factor = unit::factor("B/s", unit)? * STEPS_PER_SECOND;
    let (mut curves, mut is_thinned, mut has_cut) = (Vec::new(), false, false);
    let mut most = 0;
    for point in points {
        let samples = repetitions(wish, point);
        most = most.max(samples.len());
        for (place, sample) in samples.into_iter().take(REPETITIONS_MAX).enumerate() {
            let whole = whole_steps(sample);
            has_cut |= whole.len() < sample.series.len();
            is_thinned |= whole.len() > STEPS_MAX;
            let look = Look { is_faint: place > 0, ..wish.look(&point.system) };
            let name = if place == 0 { safe::plain(&point.system) } else { String::new() };
            curves.push(Curve { name, look, has_markers: false, is_step: false, marks: marks(whole, factor) });
        }
    }
    let mut caption = match most {
        1 => "One repetition of each.".to_owned(),
        _ => "Thick: the repetition nearest to the median; thin: the others.".to_owned(),
    };
    if most > REPETITIONS_MAX {
        caption.push_str(&format!(" {REPETITIONS_MAX} of {most} are drawn."));
    }
    if has_cut {
        caption.push_str(" The last tenth of a second, which was not a whole one, is left out.");
    }
    if is_thinned {
        caption.push_str(" Each step is the mean of several tenths of a second.");
    }
    let constants = wish.data.constants();
    if !constants.is_empty() {
        caption.push_str(&format!(" {constants}."));
    }
    let at = if settings.is_empty() { String::new() } else { format!(", {settings}") };
    let x = Axis {
        label: "Time (s)".to_owned(),
        scale: Scale::Linear,
        format: Format::Number,
        ticks: Vec::new(),
        from_zero: true,
    };
    Some(Chart {
        kind: Kind::Series,
        title: format!("{}: throughput over time{at}", safe::plain(&first.op)),
        caption,
        body: Body::Lines(Lines { x, y: wish.values_axis(unit, false), curves, levels: Vec::new() }),
    })
}

/// The series without a last step that the measurement ended in: it would look like a fall.
fn whole_steps(sample: &Sample) -> &[u64] {
    let whole = (sample.seconds * STEPS_PER_SECOND).floor();
    let is_cut = sample.seconds > 0.0 && whole >= 1.0 && sample.series.len() as f64 == whole + 1.0;
    &sample.series[..sample.series.len() - usize::from(is_cut)]
}

fn marks(series: &[u64], factor: f64) -> Vec<Mark> {
    let together = series.len().div_ceil(STEPS_MAX).max(1);
    let steps = series.chunks(together).enumerate().map(|(index, steps)| {
        let mean = steps.iter().map(|bytes| *bytes as f64).sum::<f64>() / steps.len() as f64;
        let x = (index * together) as f64 + steps.len() as f64 / 2.0;
        Mark { x: x / STEPS_PER_SECOND, y: mean * factor, interval: None, tip: String::new() }
    });
    steps.collect()
}
