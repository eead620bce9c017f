//! Draws charts as SVG. Colours stand in the elements, so that a file looks the same everywhere, and have classes, so that a page may turn them for dark rooms.

use super::{Body, Chart, Look};
use crate::report::safe;

mod cells;
mod frame;
mod ratios;

/// How wide charts are, in pixels.
pub const WIDTH: f64 = 760.0;

/// Colours that people tell apart whatever they see: Okabe and Ito's, without the yellow, which white paper swallows. The last is for what is native.
pub const COLORS: [&str; 8] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A4FA3", "#4A4A4A"];

/// The same on dark ground.
pub const COLORS_DARK: [&str; 8] =
    ["#4BA3E0", "#FF8A3D", "#2CC79B", "#E79BC4", "#F5B93D", "#8FD0F7", "#B593DE", "#C8C8C8"];

/// The colour of what is native.
pub const GREY: usize = COLORS.len() - 1;

/// Names of fonts that look alike.
pub const FONTS: &str = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif";

const INK: &str = "#1c1c1c";
const SOFT: &str = "#5a5a5a";
const GRID: &str = "#e2e2e2";

/// Turns the colours for dark rooms; on paper they stay.
pub fn dark_style() -> String {
    let mut style = String::from(
        ".ink{fill:#e8e8e8}.soft{fill:#a8a8a8}.axis{stroke:#a8a8a8}.grid{stroke:#33373d}.paper{fill:#15171a}.rim{stroke:#15171a}.over{stroke:#fff}",
    );
    for (index, color) in COLORS_DARK.iter().enumerate() {
        style.push_str(&format!(".f{index}{{fill:{color}}}.s{index}{{stroke:{color}}}"));
    }
    style
}

/// How far a text reaches, by and large: fonts differ.
fn text_width(text: &str, size: f64) -> f64 {
    let em = |letter: char| match letter {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | ' ' | '.' | ',' | ':' | ';' | '|' | '\'' | '(' | ')' | '/' => 0.36,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.92,
        letter if letter.is_ascii_uppercase() => 0.70,
        letter if letter.is_ascii() => 0.60,
        _ => 0.8,
    };
    text.chars().map(em).sum::<f64>() * size
}

/// The text in lines that fit, broken between words.
fn wrapped(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().map(std::mem::take).unwrap_or_default();
        lines.pop();
        let longer = if last.is_empty() { word.to_owned() } else { format!("{last} {word}") };
        if last.is_empty() || text_width(&longer, size) <= width {
            lines.push(longer);
        } else {
            lines.extend([last, word.to_owned()]);
        }
    }
    lines
}

/// As much of a text as fits, with an ellipsis for the rest.
fn clipped(text: &str, size: f64, width: f64) -> String {
    if text_width(text, size) <= width {
        return text.to_owned();
    }
    let mut out = String::new();
    for letter in text.chars() {
        if text_width(&out, size) + 2.0 * size > width {
            break;
        }
        out.push(letter);
    }
    format!("{}…", out.trim_end())
}

/// Where a text stands to its point.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// An SVG that grows.
struct Canvas {
    out: String,
}

impl Canvas {
    fn push(&mut self, element: &str) {
        self.out.push_str(element);
        self.out.push('\n');
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, size: f64, text: &str) {
        self.styled_text((x, y), anchor, &format!("class=\"ink\" fill=\"{INK}\" font-size=\"{size}\""), text);
    }

    fn soft_text(&mut self, (x, y): (f64, f64), anchor: Anchor, size: f64, text: &str) {
        self.styled_text((x, y), anchor, &format!("class=\"soft\" fill=\"{SOFT}\" font-size=\"{size}\""), text);
    }

    fn styled_text(&mut self, (x, y): (f64, f64), anchor: Anchor, style: &str, text: &str) {
        let (anchor, text) = (anchor.name(), safe::xml(text));
        self.push(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{text}</text>"));
    }

    fn turned_text(&mut self, (x, y): (f64, f64), anchor: Anchor, (size, degrees): (f64, f64), text: &str) {
        let style =
            format!("class=\"ink\" fill=\"{INK}\" font-size=\"{size}\" transform=\"rotate({degrees} {x:.1} {y:.1})\"");
        self.styled_text((x, y), anchor, &style, text);
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(&format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>"));
    }

    fn axis_line(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.line(from, to, &format!("class=\"axis\" stroke=\"{SOFT}\" stroke-width=\"1\""));
    }

    fn grid_line(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.line(from, to, &format!("class=\"grid\" stroke=\"{GRID}\" stroke-width=\"1\""));
    }

    /// Begins an element that says what it is when it is pointed at.
    fn open(&mut self, class: &str, tip: &str) {
        self.push(&format!("<g class=\"{class}\"><title>{}</title>", safe::xml_lines(tip)));
    }

    fn close(&mut self) {
        self.push("</g>");
    }

    /// An upright error bar.
    fn error_bar(&mut self, x: f64, (low, high): (f64, f64), style: &str) {
        let cap = 5.5;
        self.push(&format!(
            "<path class=\"error {}\" d=\"M{:.1} {low:.1}H{:.1}M{x:.1} {low:.1}V{high:.1}M{:.1} {high:.1}H{:.1}\" fill=\"none\" {}/>",
            style.split_once('|').map_or("", |(class, _)| class),
            x - cap,
            x + cap,
            x - cap,
            x + cap,
            style.split_once('|').map_or(style, |(_, rest)| rest),
        ));
    }

    fn marker(&mut self, (x, y): (f64, f64), look: Look, class: &str) {
        let index = look.color % COLORS.len();
        let color = COLORS[index];
        let shape = marker_path((x, y), look.color + look.color / COLORS.len());
        if look.is_native {
            self.push(&format!(
                "<path class=\"{class} paper s{index}\" d=\"{shape}\" fill=\"#ffffff\" stroke=\"{color}\" stroke-width=\"1.5\"/>"
            ));
        } else {
            self.push(&format!(
                "<path class=\"{class} f{index} rim\" d=\"{shape}\" fill=\"{color}\" stroke=\"#ffffff\" stroke-width=\"0.8\"/>"
            ));
        }
    }
}

/// The outline of a marker: each colour has its own shape.
fn marker_path((x, y): (f64, f64), shape: usize) -> String {
    let closed = |points: &[(f64, f64)]| {
        let points: Vec<_> = points.iter().map(|(dx, dy)| format!("{:.1} {:.1}", x + dx, y + dy)).collect();
        format!("M{}Z", points.join("L"))
    };
    match shape % COLORS.len() {
        0 => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z", x - 4.0),
        1 => closed(&[(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)]),
        2 => closed(&[(0.0, -4.8), (4.5, 3.4), (-4.5, 3.4)]),
        3 => closed(&[(0.0, -5.0), (5.0, 0.0), (0.0, 5.0), (-5.0, 0.0)]),
        4 => closed(&[(0.0, 4.8), (4.5, -3.4), (-4.5, -3.4)]),
        5 => closed(&[(-4.6, 0.0), (-2.3, -4.0), (2.3, -4.0), (4.6, 0.0), (2.3, 4.0), (-2.3, 4.0)]),
        6 => closed(&[
            (-1.6, -4.6),
            (1.6, -4.6),
            (1.6, -1.6),
            (4.6, -1.6),
            (4.6, 1.6),
            (1.6, 1.6),
            (1.6, 4.6),
            (-1.6, 4.6),
            (-1.6, 1.6),
            (-4.6, 1.6),
            (-4.6, -1.6),
            (-1.6, -1.6),
        ]),
        _ => format!("M{:.1} {y:.1}a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0Z", x - 3.6),
    }
}

/// What a line of this look has for attributes, and its classes before a '|'.
fn stroke(look: Look) -> (String, String) {
    let index = look.color % COLORS.len();
    let width = if look.is_faint { 0.8 } else { 2.0 };
    let dash = if look.is_native { " stroke-dasharray=\"7 4\"" } else { "" };
    let opacity = if look.is_faint { " stroke-opacity=\"0.45\"" } else { "" };
    let rest = format!("stroke=\"{}\" stroke-width=\"{width}\"{dash}{opacity}", COLORS[index]);
    (format!("s{index}"), rest)
}

/// Draws a chart; a whole document.
pub fn draw(chart: &Chart) -> String {
    let mut canvas = Canvas { out: String::new() };
    let mut top = 10.0;
    for line in wrapped(&safe::plain(&chart.title), 15.0, WIDTH - 40.0) {
        top += 19.0;
        let style = format!("class=\"ink title\" fill=\"{INK}\" font-size=\"15\" font-weight=\"bold\"");
        canvas.styled_text((20.0, top), Anchor::Start, &style, &line);
    }
    top += 10.0;
    let bottom = match &chart.body {
        Body::Lines(lines) => frame::lines(&mut canvas, lines, top),
        Body::Bars(bars) => frame::bars(&mut canvas, bars, top),
        Body::Heat(heat) => cells::draw(&mut canvas, heat, top),
        Body::Ratios(marks) => ratios::draw(&mut canvas, marks, top),
    };
    let mut y = bottom + 8.0;
    for line in wrapped(&safe::plain_lines(&chart.caption), 11.0, WIDTH - 40.0) {
        y += 14.5;
        canvas.soft_text((20.0, y), Anchor::Start, 11.0, &line);
    }
    let height = y + 14.0;
    let (label, kind) = (safe::xml(&chart.title), chart.kind.name());
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart {kind}\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\" aria-label=\"{label}\" font-family=\"{FONTS}\">\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"#ffffff\"/>\n{}</svg>\n",
        canvas.out
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_broken_and_clipped() {
        let lines = wrapped("one two three four", 10.0, 60.0);
        assert!(lines.len() > 1 && lines.join(" ") == "one two three four", "{lines:?}");
        assert!(clipped(&"x".repeat(100), 10.0, 100.0).ends_with('…'));
        assert_eq!(clipped("short", 10.0, 100.0), "short");
        assert_eq!(wrapped("", 10.0, 60.0), [""]);
    }

    #[test]
    fn each_colour_has_its_shape() {
        let shapes: std::collections::BTreeSet<_> =
            (0..COLORS.len()).map(|shape| marker_path((0.0, 0.0), shape)).collect();
        assert_eq!(shapes.len(), COLORS.len());
    }
}
