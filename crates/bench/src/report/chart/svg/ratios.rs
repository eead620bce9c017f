//! Ratios to a base with their intervals, one below another, and the line of no difference.

use super::super::axis::Ruler;
use super::super::{Axis, Format, RatioMark, Scale};
use super::{Anchor, COLORS, Canvas, WIDTH, clipped, text_width};

/// The height of a row.
const ROW: f64 = 22.0;

/// The colours of what is better, of what is worse, and of what is neither.
fn color(mark: &RatioMark) -> usize {
    match mark.verdict.as_str() {
        "faster" => 0,
        "slower" => 1,
        _ => super::GREY,
    }
}

/// Draws it; returns where the drawing ends.
pub fn draw(canvas: &mut Canvas, marks: &[RatioMark], top: f64) -> f64 {
    let ends = marks.iter().flat_map(|mark| {
        let ends = mark.interval.map_or([mark.ratio; 2], |interval| [interval.low, interval.high]);
        ends.into_iter().chain([mark.ratio, 1.0])
    });
    let (low, high) =
        ends.filter(|end| end.is_finite()).fold((1.0f64, 1.0f64), |(low, high), end| (low.min(end), high.max(end)));
    let room = ((high - low) * 0.05).max(0.02);
    let names = marks.iter().map(|mark| text_width(&mark.name, 11.0)).fold(0.0, f64::max).min(270.0);
    let (left, right) = (20.0 + names + 12.0, WIDTH - 262.0);
    let axis = Axis {
        label: String::new(),
        scale: Scale::Linear,
        format: Format::Number,
        ticks: Vec::new(),
        from_zero: false,
    };
    let x = Ruler::of(&axis, (low - room, high + room), (left, right));
    let top = top + 8.0;
    let bottom = top + ROW * marks.len() as f64 + 6.0;
    for tick in &x.ticks {
        canvas.grid_line((x.at(*tick), top), (x.at(*tick), bottom));
        canvas.soft_text((x.at(*tick), bottom + 16.0), Anchor::Middle, 11.0, &x.label(*tick));
    }
    canvas.line((x.at(1.0), top), (x.at(1.0), bottom), "class=\"axis one\" stroke=\"#5a5a5a\" stroke-width=\"1.6\"");
    for (row, mark) in marks.iter().enumerate() {
        let y = top + ROW * (row as f64 + 0.5) + 3.0;
        let index = color(mark);
        let style = format!("class=\"s{index}\" stroke=\"{}\" stroke-width=\"2.2\"", COLORS[index]);
        canvas.text((left - 10.0, y + 4.0), Anchor::End, 11.0, &clipped(&mark.name, 11.0, 270.0));
        canvas.open("ratio", &mark.tip);
        let mut figures = format!("{:.3}", mark.ratio);
        if let Some(interval) = mark.interval {
            canvas.line((x.at(interval.low), y), (x.at(interval.high), y), &style);
            figures = format!("{figures} [{:.3}, {:.3}]", interval.low, interval.high);
        }
        let look = super::Look { color: index, is_native: false, is_faint: false };
        canvas.marker((x.at(mark.ratio), y), look, "dot");
        canvas.close();
        canvas.soft_text((right + 12.0, y + 4.0), Anchor::Start, 10.0, &figures);
        canvas.soft_text((right + 142.0, y + 4.0), Anchor::Start, 10.0, &mark.verdict);
    }
    canvas.text(((left + right) / 2.0, bottom + 36.0), Anchor::Middle, 12.0, "Ratio of medians, new / base");
    bottom + 42.0
}
