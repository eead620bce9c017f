//! The figure against a number: clients, ranks, sizes.

use std::collections::BTreeMap;

use super::choose::{Wish, settings, skip_grey, varying};
use super::{Axis, Body, Chart, Curve, Format, Kind, Level, Lines, Look, Mark, Scale, svg};
use crate::report::data::{Point, Setting};
use crate::report::{safe, unit};

/// More lines than this are told apart by nobody: they go into charts of their own.
const LINES_MAX: usize = 7;

/// From this ratio of the greatest to the least on, counts are drawn by doublings.
const LOG_FROM: f64 = 16.0;

/// From this ratio on, times are drawn by tens.
const LOG_TIMES_FROM: f64 = 30.0;

/// What makes a line: the system, and the parameters that are not along x.
type Key<'a> = (System<'a>, Vec<Option<&'a Setting>>);

/// A system, in the order of the data.
type System<'a> = (usize, &'a str);

/// Points with what they have in common, as it is said in a title.
pub type Facet<'a> = (String, Vec<&'a Point>);

/// Cuts points into charts, by one parameter after another, until each has few enough lines.
pub fn facets<'a>(wish: &Wish<'_>, points: Vec<&'a Point>, rest: &[String]) -> Vec<Facet<'a>> {
    let own = || points.iter().filter(|point| point.system != wish.native);
    let lines: std::collections::BTreeSet<_> = own().map(|point| key(wish, point, rest)).collect();
    let most = rest.iter().max_by_key(|name| settings(&points, name).len());
    let (true, Some(name)) = (lines.len() > LINES_MAX, most) else {
        return vec![(String::new(), points)];
    };
    let others: Vec<String> = rest.iter().filter(|other| *other != name).cloned().collect();
    let values = settings(&points, name);
    let parts = values.into_iter().flat_map(|value| {
        // What is native may not have been measured with this parameter: it belongs into each.
        let belongs =
            |point: &&&Point| point.place.get(name).map_or(point.system == wish.native, |setting| setting == value);
        let part: Vec<_> = points.iter().filter(belongs).copied().collect();
        let label = format!("{}={}", safe::plain(name), safe::plain(&value.text));
        facets(wish, part, &others).into_iter().map(move |(more, points)| {
            (if more.is_empty() { label.clone() } else { format!("{label}, {more}") }, points)
        })
    });
    parts.collect()
}

fn key<'a>(wish: &Wish<'_>, point: &'a Point, rest: &[String]) -> Key<'a> {
    let place = wish.data.systems().iter().position(|system| *system == point.system).unwrap_or_default();
    ((place, &point.system), rest.iter().map(|name| point.place.get(name)).collect())
}

/// The charts of one operation over one parameter.
pub fn draw(wish: &Wish<'_>, kind: Kind, points: &[&Point], x: &str) -> Vec<Chart> {
    let names: Vec<String> = wish.data.varying.iter().filter(|name| *name != x).cloned().collect();
    let rest = varying(points, &names);
    let charts = facets(wish, points.to_vec(), &rest).into_iter().filter_map(|(label, points)| {
        let rest = varying(&points, &rest);
        chart(wish, (kind, x), (&label, &points), &rest)
    });
    charts.collect()
}

fn chart(
    wish: &Wish<'_>,
    (kind, x): (Kind, &str),
    (label, points): (&str, &[&Point]),
    rest: &[String],
) -> Option<Chart> {
    let mut groups: BTreeMap<Key<'_>, Vec<(f64, &Point)>> = BTreeMap::new();
    let mut levels: Vec<&Point> = Vec::new();
    let mut without = 0;
    for point in points {
        match point.place.get(x).and_then(|setting| setting.number) {
            Some(number) if kind != Kind::Sizes || number > 0.0 => {
                groups.entry(key(wish, point, rest)).or_default().push((number, point));
            }
            None if point.system == wish.native => levels.push(point),
            _ => without += 1,
        }
    }
    // What is native at one place only is what the others are measured by, everywhere.
    groups.retain(|(system, _), members| {
        let is_level = system.1 == wish.native && members.len() == 1;
        if is_level {
            levels.extend(members.iter().map(|(_, point)| *point));
        }
        !is_level
    });
    let mut xs: Vec<f64> = groups.values().flatten().map(|(number, _)| *number).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    if xs.len() < 2 {
        return None;
    }
    let looks = looks(wish, groups.keys().collect());
    let curves = groups.iter().map(|(key, members)| {
        let mut members = members.clone();
        members.sort_by(|one, two| one.0.total_cmp(&two.0));
        let marks = members.iter().map(|(x, point)| mark(wish, *x, point)).collect();
        let name = line_name(wish, members[0].1, rest, groups.keys().map(|key| key.0.1));
        Curve { name, look: looks[key], has_markers: true, is_step: false, marks }
    });
    let curves: Vec<_> = curves.collect();
    let levels: Vec<_> = levels.into_iter().map(|point| level(wish, point, (x, rest), &looks)).collect();
    let first = points.first()?;
    let log = wish.log || wants_log(&first.unit, &curves);
    let (op, at) = (safe::plain(&first.op), if label.is_empty() { String::new() } else { format!(", {label}") });
    let mut caption = wish.caption(points);
    if without > 0 {
        caption.push_str(&format!(" {without} points have no {} that could be drawn here.", safe::plain(x)));
    }
    Some(Chart {
        kind,
        title: format!("{op}: {} against {}{at}", unit::quantity(&first.unit).to_lowercase(), safe::plain(x)),
        caption,
        body: Body::Lines(Lines { x: x_axis(kind, x, xs), y: wish.values_axis(&first.unit, log), curves, levels }),
    })
}

/// Times over sizes span decades.
fn wants_log(unit: &str, curves: &[Curve]) -> bool {
    let values = || curves.iter().flat_map(|curve| &curve.marks).map(|mark| mark.y);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    unit::kind(unit) == Some(unit::Kind::Time) && low > 0.0 && high / low >= LOG_TIMES_FROM
}

fn x_axis(kind: Kind, name: &str, ticks: Vec<f64>) -> Axis {
    let (low, high) = (ticks[0], ticks[ticks.len() - 1]);
    let is_log = kind == Kind::Sizes || (low > 0.0 && high / low >= LOG_FROM);
    Axis {
        label: safe::plain(name),
        scale: if is_log { Scale::Log2 } else { Scale::Linear },
        format: if kind == Kind::Sizes { Format::Bytes } else { Format::Number },
        ticks,
        from_zero: false,
    }
}

fn mark(wish: &Wish<'_>, x: f64, point: &Point) -> Mark {
    Mark { x, y: wish.value(point), interval: wish.interval(point), tip: wish.tip(point) }
}

fn level(wish: &Wish<'_>, point: &Point, (x, rest): (&str, &[String]), looks: &BTreeMap<Key<'_>, Look>) -> Level {
    let (_, own) = key(wish, point, rest);
    // The colour of the line that was measured at the same place, if lines are told apart by places.
    let has_kin = looks.keys().any(|(_, other)| *other != own);
    let kin = looks.iter().find(|((_, other), _)| has_kin && *other == own);
    let color = kin.map_or(svg::GREY, |(_, look)| look.color);
    let settings = point.settings(rest.iter().chain(std::iter::once(&x.to_owned())));
    let at = if settings.is_empty() { String::new() } else { format!(" ({settings})") };
    let name = format!("{}{at}", safe::plain(&point.system));
    Level { name, look: Look { color, is_native: true, is_faint: false }, mark: mark(wish, 0.0, point) }
}

/// One colour for each system, the same in all charts; where a system has several lines, one for each line.
fn looks<'a>(wish: &Wish<'_>, keys: Vec<&Key<'a>>) -> BTreeMap<Key<'a>, Look> {
    let own: Vec<_> = keys.iter().filter(|key| key.0.1 != wish.native).collect();
    let is_by_system = own.iter().all(|key| own.iter().filter(|other| other.0 == key.0).count() == 1);
    let mut looks = BTreeMap::new();
    for (place, key) in own.iter().enumerate() {
        let look =
            if is_by_system { wish.look(key.0.1) } else { Look { color: skip_grey(place), ..wish.look(key.0.1) } };
        looks.insert((**key).clone(), look);
    }
    let natives = keys.iter().filter(|key| key.0.1 == wish.native);
    for key in natives {
        let kin = own.iter().find(|other| other.1 == key.1).and_then(|other| looks.get(**other)).copied();
        let color = kin.filter(|_| !is_by_system).map_or(svg::GREY, |look| look.color);
        looks.insert((*key).clone(), Look { color, is_native: true, is_faint: false });
    }
    looks
}

/// What tells a line from the others.
pub fn line_name<'a>(
    wish: &Wish<'_>,
    point: &Point,
    rest: &[String],
    mut systems: impl Iterator<Item = &'a str>,
) -> String {
    let settings = point.settings(rest);
    let is_only = systems.all(|system| system == point.system);
    match (settings.is_empty(), is_only && point.system != wish.native) {
        (true, _) => safe::plain(&point.system),
        (false, true) => settings,
        (false, false) => format!("{}, {settings}", safe::plain(&point.system)),
    }
}
