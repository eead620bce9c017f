//! Lines and bars in a frame with two axes and a legend.

use super::super::axis::Ruler;
use super::super::{Bars, Curve, Level, Lines, Look};
use super::{Anchor, COLORS, Canvas, INK, WIDTH, clipped, marker_path, stroke, text_width};
use crate::report::safe;

/// How high frames are.
const HEIGHT: f64 = 310.0;

/// Where the drawing is.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// Draws curves and levels; returns where the drawing ends.
pub fn lines(canvas: &mut Canvas, lines: &Lines, top: f64) -> f64 {
    let entries: Vec<_> = {
        let curves = lines.curves.iter().map(|curve| (curve.name.as_str(), curve.look, curve.has_markers));
        let levels = lines.levels.iter().map(|level| (level.name.as_str(), level.look, false));
        curves.chain(levels).filter(|(name, ..)| !name.is_empty()).collect()
    };
    let top = legend(canvas, &entries, top);
    let marks = || lines.curves.iter().flat_map(|curve| &curve.marks);
    let levels = || lines.levels.iter().map(|level| &level.mark);
    let xs = range(marks().map(|mark| mark.x));
    let heights = marks().chain(levels()).flat_map(|mark| {
        let ends = mark.interval.map_or([mark.y; 2], |interval| [interval.low, interval.high]);
        // On a logarithmic axis an end below zero has no place.
        ends.into_iter().chain([mark.y]).filter(|end| !is_logarithmic(&lines.y) || *end > 0.0)
    });
    let ys = range(heights);
    let bottom = top + HEIGHT;
    let y = Ruler::of(&lines.y, ys, (bottom, top));
    let left = left_of(&y);
    let frame = Frame { left, right: WIDTH - 24.0, top, bottom };
    let x = Ruler::of(&lines.x, xs, (frame.left, frame.right));
    grid(canvas, &frame, &y, &lines.y.label);
    let ticks = thinned(&x);
    for tick in &ticks {
        let at = x.at(*tick);
        canvas.grid_line((at, frame.top), (at, frame.bottom));
        canvas.axis_line((at, frame.bottom), (at, frame.bottom + 4.0));
        canvas.soft_text((at, frame.bottom + 17.0), Anchor::Middle, 11.0, &x.label(*tick));
    }
    let middle = (frame.left + frame.right) / 2.0;
    canvas.text((middle, frame.bottom + 36.0), Anchor::Middle, 12.0, &lines.x.label);
    for level in &lines.levels {
        draw_level(canvas, level, &frame, &y);
    }
    // Faint ones first, so that they hide nothing.
    let faint = lines.curves.iter().filter(|curve| curve.look.is_faint);
    for curve in faint.chain(lines.curves.iter().filter(|curve| !curve.look.is_faint)) {
        draw_curve(canvas, curve, &x, &y);
    }
    canvas.axis_line((frame.left, frame.bottom), (frame.right, frame.bottom));
    frame.bottom + 42.0
}

fn is_logarithmic(axis: &super::super::Axis) -> bool {
    axis.scale != super::super::Scale::Linear
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values
        .filter(|value| value.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

fn left_of(y: &Ruler) -> f64 {
    let widest = y.ticks.iter().map(|tick| text_width(&y.label(*tick), 11.0)).fold(0.0, f64::max);
    20.0 + 22.0 + widest
}

/// The ticks whose numbers do not touch.
fn thinned(x: &Ruler) -> Vec<f64> {
    let mut kept: Vec<f64> = Vec::new();
    let mut end = f64::NEG_INFINITY;
    for tick in &x.ticks {
        let half = text_width(&x.label(*tick), 11.0) / 2.0;
        if x.at(*tick) - half > end + 6.0 {
            end = x.at(*tick) + half;
            kept.push(*tick);
        }
    }
    kept
}

fn grid(canvas: &mut Canvas, frame: &Frame, y: &Ruler, label: &str) {
    for tick in &y.ticks {
        let at = y.at(*tick);
        canvas.grid_line((frame.left, at), (frame.right, at));
        canvas.soft_text((frame.left - 7.0, at + 4.0), Anchor::End, 11.0, &y.label(*tick));
    }
    let middle = (frame.top + frame.bottom) / 2.0;
    canvas.turned_text((24.0, middle), Anchor::Middle, (12.0, -90.0), label);
    canvas.axis_line((frame.left, frame.top), (frame.left, frame.bottom));
}

/// Draws the legend in as many rows as it takes; returns where it ends.
fn legend(canvas: &mut Canvas, entries: &[(&str, Look, bool)], top: f64) -> f64 {
    if entries.is_empty() {
        return top + 6.0;
    }
    let (mut x, mut y) = (20.0, top + 10.0);
    canvas.push("<g class=\"legend\">");
    for (name, look, has_marker) in entries {
        let name = clipped(&safe::plain(name), 12.0, WIDTH - 100.0);
        let width = 36.0 + text_width(&name, 12.0) + 18.0;
        if x + width > WIDTH - 20.0 && x > 20.0 {
            (x, y) = (20.0, y + 18.0);
        }
        let (class, style) = stroke(*look);
        canvas.line((x, y - 4.0), (x + 28.0, y - 4.0), &format!("class=\"{class}\" {style}"));
        if *has_marker {
            canvas.marker((x + 14.0, y - 4.0), *look, "key");
        }
        canvas.text((x + 34.0, y), Anchor::Start, 12.0, &name);
        x += width;
    }
    canvas.push("</g>");
    y + 16.0
}

fn draw_level(canvas: &mut Canvas, level: &Level, frame: &Frame, y: &Ruler) {
    let (class, style) = stroke(level.look);
    let name = if level.look.is_native { "level native" } else { "level" };
    canvas.open(name, &level.mark.tip);
    if let Some(interval) = level.mark.interval {
        let (low, high) = (y.at(interval.low), y.at(interval.high));
        let (index, width) = (level.look.color % COLORS.len(), frame.right - frame.left);
        canvas.push(&format!(
            "<rect class=\"band f{index}\" x=\"{:.1}\" y=\"{high:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{}\" fill-opacity=\"0.12\"/>",
            frame.left,
            (low - high).max(0.0),
            COLORS[index]
        ));
    }
    let at = y.at(level.mark.y);
    canvas.line((frame.left, at), (frame.right, at), &format!("class=\"{class}\" {style}"));
    canvas.close();
}

fn draw_curve(canvas: &mut Canvas, curve: &Curve, x: &Ruler, y: &Ruler) {
    let (class, style) = stroke(curve.look);
    let native = if curve.look.is_native { " native" } else { "" };
    canvas.open(&format!("curve{native}"), if curve.name.is_empty() { "a further repetition" } else { &curve.name });
    let mut path = String::new();
    for (index, mark) in curve.marks.iter().enumerate() {
        let (px, py) = (x.at(mark.x), y.at(mark.y));
        match index {
            0 => path.push_str(&format!("M{px:.1} {py:.1}")),
            _ if curve.is_step => path.push_str(&format!("H{px:.1}V{py:.1}")),
            _ => path.push_str(&format!("L{px:.1} {py:.1}")),
        }
    }
    if curve.marks.len() > 1 {
        canvas.push(&format!(
            "<path class=\"path {class}\" d=\"{path}\" fill=\"none\" stroke-linejoin=\"round\" {style}/>"
        ));
    }
    if curve.has_markers {
        for mark in &curve.marks {
            canvas.open("mark", &mark.tip);
            let at = x.at(mark.x);
            canvas.marker((at, y.at(mark.y)), curve.look, "dot");
            // Above the marker, wider than it: a narrow interval is to be seen as well.
            if let Some(interval) = mark.interval {
                let color = COLORS[curve.look.color % COLORS.len()];
                let ends = (y.at(interval.low), y.at(interval.high));
                canvas.error_bar(at, ends, &format!("{class}|stroke=\"{color}\" stroke-width=\"1.3\""));
            }
            canvas.close();
        }
    }
    canvas.close();
}

/// Draws groups of bars; returns where the drawing ends.
pub fn bars(canvas: &mut Canvas, bars: &Bars, top: f64) -> f64 {
    let entries: Vec<_> = bars.kinds.iter().map(|(name, look)| (name.as_str(), *look)).collect();
    let top = if entries.len() > 1 { bar_legend(canvas, &entries, top) } else { top + 6.0 };
    let all = || bars.bars.iter().flatten().flatten();
    let heights = all().flat_map(|bar| {
        let ends = bar.interval.map_or([bar.value; 2], |interval| [interval.low, interval.high]);
        ends.into_iter().chain([bar.value]).chain(bar.dots.iter().map(|dot| dot.0))
    });
    let (low, high) = range(heights);
    // An interval that reaches below zero, where the values do not, is cut there.
    let low = if all().all(|bar| bar.value >= 0.0) { low.max(0.0) } else { low };
    let y = Ruler::of(&bars.y, (low, high), (top + HEIGHT, top));
    let frame = Frame { left: left_of(&y), right: WIDTH - 24.0, top, bottom: top + HEIGHT };
    grid(canvas, &frame, &y, &bars.y.label);
    let wide = (frame.right - frame.left) / bars.groups.len().max(1) as f64;
    let each = (wide * 0.82 / bars.kinds.len().max(1) as f64).min(64.0);
    for (group, row) in bars.bars.iter().enumerate() {
        let start = frame.left + (group as f64 + 0.5) * wide - each * bars.kinds.len() as f64 / 2.0;
        for (kind, bar) in row.iter().enumerate() {
            if let Some(bar) = bar {
                let look = bars.kinds[kind].1;
                draw_bar(canvas, bar, look, (start + kind as f64 * each, each * 0.9), &y);
            }
        }
    }
    let zero = y.at(0.0);
    canvas.axis_line((frame.left, zero), (frame.right, zero));
    group_names(canvas, bars, &frame, wide)
}

fn bar_legend(canvas: &mut Canvas, entries: &[(&str, Look)], top: f64) -> f64 {
    let (mut x, mut y) = (20.0, top + 10.0);
    canvas.push("<g class=\"legend\">");
    for (name, look) in entries {
        let name = clipped(&safe::plain(name), 12.0, WIDTH - 100.0);
        let width = 18.0 + text_width(&name, 12.0) + 18.0;
        if x + width > WIDTH - 20.0 && x > 20.0 {
            (x, y) = (20.0, y + 18.0);
        }
        rectangle(canvas, (x, y - 10.0), (12.0, 12.0), *look);
        canvas.text((x + 18.0, y), Anchor::Start, 12.0, &name);
        x += width;
    }
    canvas.push("</g>");
    y + 16.0
}

fn rectangle(canvas: &mut Canvas, (x, y): (f64, f64), (width, height): (f64, f64), look: Look) {
    let index = look.color % COLORS.len();
    let color = COLORS[index];
    let style = if look.is_native {
        let rest = "fill-opacity=\"0.15\" stroke-width=\"1.4\" stroke-dasharray=\"5 3\"";
        format!("class=\"box f{index} s{index}\" fill=\"{color}\" stroke=\"{color}\" {rest}")
    } else {
        format!("class=\"box f{index}\" fill=\"{color}\" fill-opacity=\"0.85\"")
    };
    let size = format!("width=\"{width:.1}\" height=\"{height:.1}\"");
    canvas.push(&format!("<rect x=\"{x:.1}\" y=\"{y:.1}\" {size} {style}/>"));
}

fn draw_bar(canvas: &mut Canvas, bar: &super::super::Bar, look: Look, (left, width): (f64, f64), y: &Ruler) {
    let (zero, end) = (y.at(0.0), y.at(bar.value));
    canvas.open(if look.is_native { "bar native" } else { "bar" }, &bar.tip);
    rectangle(canvas, (left, zero.min(end)), (width, (zero - end).abs()), look);
    let middle = left + width / 2.0;
    for (index, (value, is_outlier)) in bar.dots.iter().enumerate() {
        // On both sides of the error bar, so that equal values are seen; always in the same places.
        let x = middle + [-2.0, 1.0, -1.0, 2.0, -3.0, 3.0][index % 6] * (width / 8.0).min(6.0);
        let rim = if *is_outlier {
            "stroke=\"#b00020\" stroke-width=\"3.4\""
        } else {
            "stroke=\"#1c1c1c\" stroke-width=\"1.6\""
        };
        let shape = marker_path((0.0, 0.0), 0);
        let class = if *is_outlier { "value outlier" } else { "value" };
        canvas.push(&format!(
            "<path class=\"{class}\" transform=\"translate({x:.1} {:.1}) scale(0.42)\" d=\"{shape}\" fill=\"#ffffff\" fill-opacity=\"0.8\" {rim}/>",
            y.at(*value)
        ));
    }
    if let Some(interval) = bar.interval {
        let ends = (y.at(interval.low), y.at(interval.high));
        canvas.error_bar(middle, ends, &format!("over|stroke=\"{INK}\" stroke-width=\"1.8\""));
    }
    canvas.close();
}

/// The names below the groups: level where they fit, else slanted.
fn group_names(canvas: &mut Canvas, bars: &Bars, frame: &Frame, wide: f64) -> f64 {
    let widest = bars.groups.iter().map(|name| text_width(name, 11.0)).fold(0.0, f64::max);
    let is_level = widest < wide - 6.0;
    let length = widest.min(210.0);
    for (group, name) in bars.groups.iter().enumerate() {
        let x = frame.left + (group as f64 + 0.5) * wide;
        if is_level {
            canvas.text((x, frame.bottom + 17.0), Anchor::Middle, 11.0, name);
        } else {
            let name = clipped(name, 11.0, 210.0);
            canvas.turned_text((x + 4.0, frame.bottom + 13.0), Anchor::End, (11.0, -35.0), &name);
        }
    }
    frame.bottom + if is_level { 22.0 } else { 20.0 + length * 0.6 }
}
