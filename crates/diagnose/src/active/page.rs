//! One page with the verdict and its figures, as the study drew them: how throughput is
//! distributed, throughput against what goes on at each side with a straight line fitted to it,
//! and by setting. The drawing is that of `aqueduct bench report`.

use aqueduct_bench::report::chart::{Axis, Body, Chart, Curve, Format, Kind, Lines, Look, Mark, Scale, svg};
use aqueduct_bench::report::{html, safe};

use super::judge::called;
use super::leg::{Leg, State};
use super::measured::{LegReport, Report, Sample, Setting};

/// Bytes of a megabyte, as axes have it.
const MEGA: f64 = 1e6;

/// The page, whole in itself.
pub fn page(report: &Report) -> String {
    let title = format!("What limits {} to {}", report.samples.sides[0].place, report.samples.sides[1].place);
    let mut body = format!("<section id=\"verdict\">\n<pre>{}</pre>\n", safe::xml_lines(&report.verdict.to_string()));
    body.push_str(&format!(
        "<p class=\"soft\">The whole moved {:.1} MB/s; its parts let expect {:.1} MB/s at most. Measured for {:.0} s.</p>\n",
        report.measured / MEGA,
        report.predicted / MEGA,
        report.seconds
    ));
    body.push_str("</section>\n<section id=\"figures\">\n<h2>Figures</h2>\n");
    let charts = charts(report);
    for chart in &charts {
        body.push_str(&format!("<figure>\n{}</figure>\n", svg::draw(chart)));
    }
    if charts.is_empty() {
        body.push_str("<p>Nothing was measured that could be drawn.</p>\n");
    }
    body.push_str("</section>\n<section id=\"tables\">\n<h2>Figures as numbers</h2>\n");
    body.push_str(&table(report));
    body.push_str("</section>\n");
    html::framed(&title, &body)
}

fn table(report: &Report) -> String {
    let row = |name: &str, rates: &[f64]| {
        let all: Vec<String> = rates.iter().map(|rate| format!("{:.1}", rate / MEGA)).collect();
        format!("<tr><td>{}</td><td class=\"wrap\">{}</td></tr>\n", safe::xml(name), all.join(" "))
    };
    let legs = report.legs.iter().map(|leg| row(&leg.leg, &leg.rates));
    let settings = report.sweep.iter().map(|swept| row(&setting(swept.setting, swept.value), &swept.rates));
    let probes = report.probes.iter().map(|probe| {
        let name = format!("{} slowed by {:.0} %", probe.stage, probe.slowed * 100.0);
        let (followed, pairs) = (probe.followed * 100.0, probe.pairs);
        format!("<tr><td>{name}</td><td>{followed:.1} % of what it did, {pairs} pairs</td></tr>\n")
    });
    let rows: String = legs.chain(settings).chain(probes).collect();
    format!(
        "<div class=\"scroll\"><table><thead><tr><th>What</th><th>MB/s of each slice</th></tr></thead><tbody>\n{rows}</tbody></table></div>\n"
    )
}

fn setting(setting: Setting, value: u64) -> String {
    match setting {
        Setting::Streams => format!("{value} streams"),
        Setting::Buffer => format!("{} KiB at a time", value / 1024),
    }
}

fn charts(report: &Report) -> Vec<Chart> {
    let mut charts: Vec<Chart> = distribution(report).into_iter().collect();
    charts.extend([0, 1].into_iter().filter_map(|side| activity(report, side)));
    charts.extend([Setting::Streams, Setting::Buffer].into_iter().filter_map(|of| by_setting(report, of)));
    charts
}

fn look(color: usize) -> Look {
    Look { color, is_native: false, is_faint: false }
}

fn axis(label: &str) -> Axis {
    let (scale, format) = (Scale::Linear, Format::Number);
    Axis { label: label.to_owned(), scale, format, ticks: Vec::new(), from_zero: true }
}

fn mark(x: f64, y: f64, tip: &str) -> Mark {
    Mark { x, y, interval: None, tip: tip.to_owned() }
}

/// The share of slices of each leg that moved so much or less.
fn distribution(report: &Report) -> Option<Chart> {
    let curve = |(color, leg): (usize, &LegReport)| {
        let mut rates = leg.rates.clone();
        rates.sort_by(f64::total_cmp);
        let count = rates.len() as f64;
        let first = rates.first().map(|rate| mark(rate / MEGA, 0.0, ""));
        let steps = rates.iter().enumerate().map(|(at, rate)| mark(rate / MEGA, (at + 1) as f64 / count, ""));
        let name = format!("{} (n = {count})", leg.leg);
        Curve {
            name,
            look: look(color),
            has_markers: false,
            is_step: true,
            marks: first.into_iter().chain(steps).collect(),
        }
    };
    let curves: Vec<Curve> = report.legs.iter().enumerate().map(curve).collect();
    (!curves.is_empty()).then(|| Chart {
        kind: Kind::Cdf,
        title: "Distribution of throughput".into(),
        caption: "The share of slices at or below each rate, of each leg.".into(),
        body: Body::Lines(Lines { x: axis("MB/s"), y: axis("share of slices"), curves, levels: Vec::new() }),
    })
}

/// What goes on at a side in a slice: its server's requests of ours at a time, or else our
/// threads.
fn active(sample: &Sample, side: usize, has_server: bool) -> Option<f64> {
    let seconds = sample.slice.seconds.max(1e-9);
    if has_server {
        return sample.served[side].map(|served| served / seconds);
    }
    const STATES: [&[State]; 2] = [&[State::Open, State::Read], &[State::Create, State::Write, State::Flush]];
    Some(STATES[side].iter().map(|state| sample.slice.states[*state as usize]).sum::<f64>() / seconds)
}

/// Throughput against what goes on at a side, with a straight line fitted by least squares.
fn activity(report: &Report, side: usize) -> Option<Chart> {
    let measured = &report.samples;
    let legs = [[Leg::Read, Leg::All], [Leg::Write, Leg::All]][side];
    let has_server = measured.sides[side].server.is_some();
    let mut curves: Vec<Curve> = Vec::new();
    let mut points = Vec::new();
    for sample in measured.samples.iter().filter(|sample| legs.contains(&sample.leg)) {
        let Some(x) = active(sample, side, has_server) else { continue };
        let y = sample.slice.rate() / MEGA;
        points.push((x, y));
        let name = format!("{}, {} threads", called(measured, sample.leg), sample.threads);
        let known = curves.iter().find(|curve| curve.name == name).map(|curve| curve.look.color);
        let color = known.unwrap_or_else(|| curves.iter().filter(|curve| !curve.name.is_empty()).count());
        let marks = vec![mark(x, y, &name)];
        let name = if known.is_some() { String::new() } else { name };
        curves.push(Curve { name, look: look(color), has_markers: true, is_step: false, marks });
    }
    let (slope, start, explained) = fit(&points)?;
    let ends =
        points.iter().map(|point| point.0).fold((f64::INFINITY, 0.0_f64), |(low, high), x| (low.min(x), high.max(x)));
    let marks = [ends.0, ends.1].map(|x| mark(x, start + slope * x, "fit")).to_vec();
    let is_dashed = Look { color: svg::GREY, is_native: true, is_faint: false };
    let name = format!("fit: {slope:.1} MB/s for one more, r² = {explained:.2}");
    curves.push(Curve { name, look: is_dashed, has_markers: false, is_step: false, marks });
    let place = &measured.sides[side].place;
    let what = if has_server { "requests of ours at its server" } else { "threads there" };
    Some(Chart {
        kind: Kind::Clients,
        title: format!("Activity of the {} against throughput", ["source", "destination"][side]),
        caption: format!("{place}: a point for each slice. The line is fitted by least squares to all of them."),
        body: Body::Lines(Lines {
            x: axis(&format!("{what} at a time, mean of a slice")),
            y: axis("MB/s"),
            curves,
            levels: Vec::new(),
        }),
    })
}

/// Slope, start and the share of the variance that the line explains; `None`: too few or all
/// alike.
fn fit(points: &[(f64, f64)]) -> Option<(f64, f64, f64)> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|point| of(point.0 - x, point.1 - y)).sum::<f64>();
    let (xx, xy, yy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
    let has_spread = points.len() >= 3 && xx > 1e-12;
    has_spread.then(|| (xy / xx, y - xy / xx * x, if yy > 0.0 { xy * xy / (xx * yy) } else { 1.0 }))
}

/// The whole by a setting: the median of its slices, and each of them.
fn by_setting(report: &Report, of: Setting) -> Option<Chart> {
    let all: Vec<_> = report.sweep.iter().filter(|swept| swept.setting == of).collect();
    if all.is_empty() {
        return None;
    }
    let value = |value: u64| value as f64;
    let medians = all.iter().map(|swept| mark(value(swept.value), swept.rate / MEGA, &setting(of, swept.value)));
    let line =
        Curve { name: "median".into(), look: look(0), has_markers: true, is_step: false, marks: medians.collect() };
    let faint = Look { is_faint: true, ..look(1) };
    let slices = all.iter().flat_map(|swept| swept.rates.iter().map(|rate| (swept.value, *rate)));
    let slices = slices.map(|(at, rate)| Curve {
        name: String::new(),
        look: faint,
        has_markers: true,
        is_step: false,
        marks: vec![mark(value(at), rate / MEGA, "a slice")],
    });
    let ticks: Vec<f64> = all.iter().map(|swept| value(swept.value)).collect();
    let (label, format) = match of {
        Setting::Streams => ("streams", Format::Number),
        Setting::Buffer => ("bytes of an operation", Format::Bytes),
    };
    let x = Axis { label: label.to_owned(), scale: Scale::Log2, format, ticks, from_zero: false };
    Some(Chart {
        kind: if of == Setting::Streams { Kind::Clients } else { Kind::Sizes },
        title: format!("Throughput by {label}"),
        caption: format!(
            "The whole, read and written. A copy by itself has {} streams and 1 MiB at a time.",
            report.samples.threads
        ),
        body: Body::Lines(Lines { x, y: axis("MB/s"), curves: slices.chain([line]).collect(), levels: Vec::new() }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;
    use crate::active::{Measured, STATES, Slice, Swept, judge};

    #[test]
    fn a_line_is_fitted() {
        let (slope, start, explained) = fit(&[(1.0, 12.0), (2.0, 22.0), (3.0, 32.0)]).unwrap();
        assert!((slope - 10.0).abs() < 1e-9 && (start - 2.0).abs() < 1e-9 && (explained - 1.0).abs() < 1e-9);
        assert_eq!(fit(&[(1.0, 2.0), (1.0, 3.0), (1.0, 4.0)]), None);
        assert_eq!(fit(&[(1.0, 2.0), (2.0, 3.0)]), None);
    }

    #[test]
    fn what_was_measured_is_drawn() {
        let sample = |leg: Leg, threads: usize, rate: u64, busy: f64| {
            let mut states = [0.0; STATES];
            (states[State::Read as usize], states[State::Write as usize]) = (busy, 2.0 * busy);
            let slice = Slice { bytes: rate, files: 1, operations: 10, seconds: 1.0, states };
            let (served, at_server, round_trips) = ([None; 2], [None; 2], [None; 2]);
            Sample { leg, threads, slice, served, at_server, busy: 0.1, own: [0.1, 0.0], resent: 0.0, round_trips }
        };
        let mut measured = Measured { threads: 8, ..Measured::default() };
        measured.sides[0].place = "<from>".into();
        for at in 1..4_u64 {
            measured.samples.push(sample(Leg::Read, 8, at * 100_000_000, at as f64));
            measured.samples.push(sample(Leg::All, 8, at * 90_000_000, at as f64));
            measured.swept.push(Swept { setting: Setting::Streams, value: 1 << at, rate: at as f64 * 1e8 });
        }
        let verdict = Verdict::unknown("a <test>");
        let (legs, sweep, probes) = (judge::legs(&measured), judge::swept(&measured), judge::probes(&measured));
        let report =
            Report { verdict, legs, predicted: 1e8, measured: 1e8, sweep, probes, seconds: 3.0, samples: measured };
        let page = page(&report);
        assert_eq!(page.matches("<svg").count(), 4, "{page}");
        assert!(
            page.contains("fit: 100.0 MB/s for one more") || page.contains("fit: 95.0 MB/s for one more"),
            "{page}"
        );
        assert!(page.contains("Throughput by streams") && page.contains("&lt;from&gt;"));
        assert!(!page.contains("<from>") && !page.contains("<script"));
    }
}
