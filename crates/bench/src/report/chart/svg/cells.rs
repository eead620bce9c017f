//! Heat maps.

use super::super::Heat;
use super::{Anchor, Canvas, WIDTH, clipped, text_width};
use crate::report::unit;

/// Cividis, from low to high: the same to people who see all colours and to those who do not, and in grey.
const SHADES: [(f64, f64, f64); 9] = [
    (0.0, 34.0, 78.0),
    (18.0, 53.0, 112.0),
    (59.0, 73.0, 108.0),
    (87.0, 93.0, 109.0),
    (112.0, 113.0, 115.0),
    (138.0, 134.0, 120.0),
    (165.0, 156.0, 116.0),
    (195.0, 179.0, 105.0),
    (254.0, 232.0, 56.0),
];

/// The colour of a share, and of writing on it.
fn shade(share: f64) -> (String, &'static str) {
    let place = share.clamp(0.0, 1.0) * (SHADES.len() - 1) as f64;
    let (below, above) = (SHADES[place as usize], SHADES[(place as usize + 1).min(SHADES.len() - 1)]);
    let mix = |from: f64, to: f64| (from + (to - from) * place.fract()).round();
    let (r, g, b) = (mix(below.0, above.0), mix(below.1, above.1), mix(below.2, above.2));
    let is_bright = 0.299 * r + 0.587 * g + 0.114 * b > 128.0;
    (format!("rgb({r},{g},{b})"), if is_bright { "#000000" } else { "#ffffff" })
}

/// Draws it; returns where the drawing ends.
pub fn draw(canvas: &mut Canvas, heat: &Heat, top: f64) -> f64 {
    let values = || heat.cells.iter().flatten().flatten().map(|(value, _)| *value);
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(f64::NEG_INFINITY, f64::max);
    let share = |value: f64| if high > low { (value - low) / (high - low) } else { 0.5 };
    let widest = heat.rows.iter().map(|name| text_width(name, 11.0)).fold(0.0, f64::max).min(180.0);
    let (left, right) = (20.0 + 24.0 + widest, WIDTH - 110.0);
    let top = top + 8.0;
    let width = (right - left) / heat.columns.len().max(1) as f64;
    let height = (320.0 / heat.rows.len().max(1) as f64).clamp(16.0, 46.0);
    let bottom = top + height * heat.rows.len() as f64;
    for (row, name) in heat.rows.iter().enumerate() {
        let y = bottom - (row + 1) as f64 * height;
        canvas.soft_text((left - 7.0, y + height / 2.0 + 4.0), Anchor::End, 11.0, &clipped(name, 11.0, 180.0));
        for (column, cell) in heat.cells[row].iter().enumerate() {
            let Some((value, tip)) = cell else { continue };
            let (color, ink) = shade(share(*value));
            let x = left + column as f64 * width;
            canvas.open("cell", tip);
            let size = format!("width=\"{:.1}\" height=\"{:.1}\"", width - 1.0, height - 1.0);
            canvas.push(&format!("<rect x=\"{x:.1}\" y=\"{y:.1}\" {size} fill=\"{color}\"/>"));
            let text = unit::figure(*value);
            if text_width(&text, 11.0) < width - 4.0 {
                let style = format!("fill=\"{ink}\" font-size=\"11\"");
                canvas.styled_text((x + width / 2.0, y + height / 2.0 + 4.0), Anchor::Middle, &style, &text);
            }
            canvas.close();
        }
    }
    for (column, name) in heat.columns.iter().enumerate() {
        let x = left + (column as f64 + 0.5) * width;
        canvas.soft_text((x, bottom + 16.0), Anchor::Middle, 11.0, &clipped(name, 11.0, width.max(30.0)));
    }
    canvas.text(((left + right) / 2.0, bottom + 36.0), Anchor::Middle, 12.0, &heat.x);
    canvas.turned_text((24.0, (top + bottom) / 2.0), Anchor::Middle, (12.0, -90.0), &heat.y);
    key(canvas, heat, (right + 14.0, top, bottom), (low, high));
    bottom + 42.0
}

/// What the colours mean.
fn key(canvas: &mut Canvas, heat: &Heat, (x, top, bottom): (f64, f64, f64), (low, high): (f64, f64)) {
    let steps = 32;
    let height = (bottom - top) / f64::from(steps);
    for step in 0..steps {
        let (color, _) = shade((f64::from(step) + 0.5) / f64::from(steps));
        let y = bottom - f64::from(step + 1) * height;
        canvas.push(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.2}\" width=\"14\" height=\"{:.2}\" fill=\"{color}\"/>",
            height + 0.3
        ));
    }
    canvas.soft_text((x + 20.0, top + 9.0), Anchor::Start, 11.0, &unit::figure(high));
    canvas.soft_text((x + 20.0, bottom), Anchor::Start, 11.0, &unit::figure(low));
    canvas.turned_text((x + 30.0, (top + bottom) / 2.0), Anchor::Middle, (11.0, -90.0), &heat.label);
}
