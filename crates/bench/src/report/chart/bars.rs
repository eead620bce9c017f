//! A bar for each point, for what varies in nothing that is a number.

use super::choose::{Wish, skip_grey, varying};
use super::{Bar, Bars, Body, Chart, Kind, Look};
use crate::report::data::{Point, Setting};
use crate::report::{safe, unit};

/// More groups than this go into further charts.
const GROUPS_MAX: usize = 16;

/// With more single values than this beside a bar none is seen.
const DOTS_MAX: usize = 40;

/// The most bars of a group that are told apart.
const KINDS_MAX: usize = 7;

/// The charts of these points, with their unit; those with the same unit share charts.
pub fn draw(wish: &Wish<'_>, families: Vec<(&str, Vec<&Point>)>) -> Vec<Chart> {
    let mut units: Vec<&str> = Vec::new();
    for (unit, _) in &families {
        if !units.contains(unit) {
            units.push(unit);
        }
    }
    let charts = units.into_iter().flat_map(|unit| {
        let points = families.iter().filter(|family| family.0 == unit).flat_map(|family| family.1.clone());
        of_unit(wish, unit, &points.collect::<Vec<_>>())
    });
    charts.collect()
}

fn of_unit(wish: &Wish<'_>, unit: &str, points: &[&Point]) -> Vec<Chart> {
    let rest = varying(points, &wish.data.varying);
    let kinds = kinds(wish, points, &rest);
    let names: Vec<String> = rest.iter().filter(|name| kinds.by.as_ref() != Some(*name)).cloned().collect();
    let mut groups: Vec<(String, Vec<Option<&Point>>)> = Vec::new();
    for point in points {
        let settings = point.settings(&names);
        let name = if settings.is_empty() {
            safe::plain(&point.op)
        } else {
            format!("{}, {settings}", safe::plain(&point.op))
        };
        let Some(kind) = kinds.place(point) else { continue };
        let place = groups.iter().position(|group| group.0 == name).unwrap_or_else(|| {
            groups.push((name, vec![None; kinds.all.len()]));
            groups.len() - 1
        });
        groups[place].1[kind] = Some(point);
    }
    let count = groups.len().div_ceil(GROUPS_MAX);
    let size = groups.len().div_ceil(count.max(1)).max(1);
    let parts = groups.chunks(size).enumerate().map(|(part, groups)| {
        let mut ops: Vec<String> = Vec::new();
        for point in groups.iter().flat_map(|group| &group.1).flatten() {
            let op = safe::plain(&point.op);
            if !ops.contains(&op) {
                ops.push(op);
            }
        }
        let of = if count > 1 { format!(" ({} of {count})", part + 1) } else { String::new() };
        let title = format!("{}: {}{of}", ops.join(", "), unit::quantity(unit).to_lowercase());
        chart(wish, (title, unit), groups, &kinds)
    });
    parts.collect()
}

/// What the bars of a group are: systems, or the values of a parameter.
struct Kinds {
    by: Option<String>,
    all: Vec<(String, Look)>,
    settings: Vec<Option<Setting>>,
    systems: Vec<String>,
}

impl Kinds {
    fn place(&self, point: &Point) -> Option<usize> {
        match &self.by {
            Some(name) => self.settings.iter().position(|setting| setting.as_ref() == point.place.get(name)),
            None => self.systems.iter().position(|system| *system == point.system),
        }
    }
}

fn kinds(wish: &Wish<'_>, points: &[&Point], rest: &[String]) -> Kinds {
    let systems = wish.data.systems().into_iter().filter(|system| points.iter().any(|point| point.system == **system));
    let systems: Vec<String> = systems.map(str::to_owned).collect();
    if let ([_], [only]) = (systems.as_slice(), rest) {
        let mut settings: Vec<_> = points.iter().map(|point| point.place.get(only).cloned()).collect();
        settings.sort();
        settings.dedup();
        if settings.len() <= KINDS_MAX {
            let look = |place| Look { color: skip_grey(place), is_native: false, is_faint: false };
            let text =
                |setting: &Option<Setting>| setting.as_ref().map_or("none".to_owned(), |setting| setting.text.clone());
            let name = |setting| format!("{}={}", safe::plain(only), safe::plain(&text(setting)));
            let all = settings.iter().enumerate().map(|(place, setting)| (name(setting), look(place))).collect();
            return Kinds { by: Some(only.clone()), all, settings, systems };
        }
    }
    let all = systems.iter().map(|system| (safe::plain(system), wish.look(system))).collect();
    Kinds { by: None, all, settings: Vec::new(), systems }
}

fn chart(
    wish: &Wish<'_>,
    (title, unit): (String, &str),
    groups: &[(String, Vec<Option<&Point>>)],
    kinds: &Kinds,
) -> Chart {
    let points: Vec<&Point> = groups.iter().flat_map(|group| group.1.iter().flatten().copied()).collect();
    let has_dots = points.iter().any(|point| (2..=DOTS_MAX).contains(&point.summary.n));
    let bar = |point: &Point| {
        let is_shown = (2..=DOTS_MAX).contains(&point.summary.n);
        let all = point.values.iter().enumerate();
        let dots = all.map(|(index, value)| (*value, point.summary.outliers.contains(&index)));
        Bar {
            value: wish.value(point),
            interval: wish.interval(point),
            n: point.summary.n,
            dots: if is_shown { dots.collect() } else { Vec::new() },
            tip: wish.tip(point),
        }
    };
    let rows = groups.iter().map(|group| group.1.iter().map(|point| point.map(bar)).collect());
    let dots = if has_dots { " Rings: the single values; red ones are outliers." } else { "" };
    Chart {
        kind: Kind::Bars,
        title,
        caption: format!("{}{dots}", wish.caption(&points)),
        body: Body::Bars(Bars {
            // Bars say by their length how much they are: that has no meaning on a logarithmic axis.
            y: wish.values_axis(unit, false),
            groups: groups.iter().map(|group| group.0.clone()).collect(),
            kinds: kinds.all.clone(),
            bars: rows.collect(),
        }),
    }
}
