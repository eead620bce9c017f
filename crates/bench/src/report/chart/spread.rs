//! How repetitions are distributed, and how two parameters work together.

use super::choose::{Wish, settings, varying};
use super::curves::{facets, line_name};
use super::{Axis, Body, Chart, Curve, Format, Heat, Kind, Lines, Look, Mark, Scale};
use crate::report::data::Point;
use crate::report::{safe, unit};

/// The share of repetitions that stay at a value or below it.
pub fn cdf(wish: &Wish<'_>, points: &[&Point]) -> Vec<Chart> {
    let points: Vec<_> = points.iter().copied().filter(|point| point.summary.n > 1).collect();
    let rest = varying(&points, &wish.data.varying);
    let charts = facets(wish, points, &rest).into_iter().filter_map(|(label, points)| {
        let rest = varying(&points, &rest);
        let first = points.first()?;
        let is_by_system = rest.is_empty();
        let curves = points.iter().enumerate().map(|(place, point)| {
            let look = wish.look(&point.system);
            let look = if is_by_system { look } else { Look { color: super::choose::skip_grey(place), ..look } };
            let name = line_name(wish, point, &rest, points.iter().map(|point| point.system.as_str()));
            let name = format!("{name} (n = {})", point.summary.n);
            Curve { name, look, has_markers: false, is_step: true, marks: steps(point) }
        });
        let curves = curves.collect();
        let at = if label.is_empty() { String::new() } else { format!(", {label}") };
        let x = Axis { from_zero: false, ..wish.values_axis(&first.unit, wish.log) };
        let y = Axis {
            label: "Share of repetitions".to_owned(),
            scale: Scale::Linear,
            format: Format::Number,
            ticks: Vec::new(),
            from_zero: true,
        };
        let constants = wish.data.constants();
        Some(Chart {
            kind: Kind::Cdf,
            title: format!("{}: distribution of repetitions{at}", safe::plain(&first.op)),
            caption: format!("The share of repetitions at or below each value. {constants}").trim_end().to_owned(),
            body: Body::Lines(Lines { x, y, curves, levels: Vec::new() }),
        })
    });
    charts.collect()
}

fn steps(point: &Point) -> Vec<Mark> {
    let mut values = point.values.clone();
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let first = values.first().map(|value| (*value, 0.0));
    let all = values.iter().enumerate().map(|(index, value)| (*value, (index + 1) as f64 / count));
    first.into_iter().chain(all).map(|(x, y)| Mark { x, y, interval: None, tip: String::new() }).collect()
}

/// One map for each system, and for each place of what varies else.
pub fn heat(wish: &Wish<'_>, points: &[&Point], (x, y): (&str, &str)) -> Vec<Chart> {
    let mut charts = Vec::new();
    let names: Vec<String> = wish.data.varying.iter().filter(|name| *name != x && *name != y).cloned().collect();
    let rest = varying(points, &names);
    let mut groups: Vec<(String, Vec<&Point>)> = Vec::new();
    for point in points.iter().filter(|point| point.place.contains_key(x) && point.place.contains_key(y)) {
        let settings = point.settings(&rest);
        let more = if settings.is_empty() { String::new() } else { format!(", {settings}") };
        let name = format!("{}{more}", safe::plain(&point.system));
        match groups.iter_mut().find(|group| group.0 == name) {
            Some(group) => group.1.push(point),
            None => groups.push((name, vec![point])),
        }
    }
    for (name, points) in groups {
        let (columns, rows) = (settings(&points, x), settings(&points, y));
        if columns.len() < 2 || rows.len() < 2 {
            continue;
        }
        let cell = |row, column| {
            let is_here = |point: &&&Point| point.place.get(x) == Some(column) && point.place.get(y) == Some(row);
            points.iter().find(is_here).map(|point| (wish.value(point), wish.tip(point)))
        };
        let cells = rows.iter().map(|row| columns.iter().map(|column| cell(*row, *column)).collect()).collect();
        let Some(first) = points.first() else { continue };
        charts.push(Chart {
            kind: Kind::Heat,
            title: format!("{} of {name}: {} and {}", safe::plain(&first.op), safe::plain(x), safe::plain(y)),
            caption: wish.caption_of(&points, "in the tables"),
            body: Body::Heat(Heat {
                x: safe::plain(x),
                y: safe::plain(y),
                columns: columns.iter().map(|setting| safe::plain(&setting.text)).collect(),
                rows: rows.iter().map(|setting| safe::plain(&setting.text)).collect(),
                label: format!("{} ({})", unit::quantity(&first.unit), safe::plain(&first.unit)),
                cells,
            }),
        });
    }
    charts
}
