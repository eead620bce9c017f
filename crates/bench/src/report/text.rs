//! The view for terminals, and for whatever report it is pasted into: no colours, no control characters, aligned by spaces.

use std::collections::BTreeSet;

use super::compare::{self, Comparison};
use super::data::{Data, Point};
use super::unit::{self, figure};
use super::{Report, safe};
use crate::record::Sample;
use crate::stats::Summary;

/// How many letters a bar has at most.
const BAR: usize = 12;

/// How many repetitions a sparkline shows at most.
const SPARKS_MAX: usize = 16;

/// The longest fact that is shown whole.
const FACT_MAX: usize = 90;

/// The most further figures of an operation that are shown.
const FURTHER_MAX: usize = 24;

/// Blocks by eighths: of a bar from the left, and of a sparkline from below.
const ACROSS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
const UPWARDS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A table: cells, of which those under a heading with '>' stand to the right.
struct Table {
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn render(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.headings[column].trim_start_matches('>').chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.headings.len()).map(width).collect();
        let first: Vec<String> =
            self.headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
        let mut text = String::new();
        for row in std::iter::once(&first).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), heading) in row.iter().zip(&widths).zip(&self.headings) {
                let room = " ".repeat(width - cell.chars().count());
                let (before, after) = if heading.starts_with('>') { (room.as_str(), "") } else { ("", room.as_str()) };
                line.push_str(&format!("{before}{cell}{after}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// All of it.
pub fn report(report: &Report<'_>, compared: &Data) -> String {
    let mut text = format!("{}\n", safe::plain(&report.title));
    environment(&mut text, report.data);
    let constants = report.data.constants();
    if !constants.is_empty() {
        text.push_str(&format!("Everywhere: {constants}\n"));
    }
    if let Some(comparison) = report.comparison {
        comparison_text(&mut text, comparison, compared);
    }
    for (op, unit) in report.data.families() {
        let points: Vec<_> = report.data.points.iter().filter(|point| point.op == op && point.unit == unit).collect();
        text.push_str(&format!("\n{} ({})\n", safe::plain(op), safe::plain(unit)));
        text.push_str(&summary_table(report.data, &points).render());
        outliers(&mut text, report.data, &points);
        if let Some(table) = further_table(report.data, &points) {
            text.push_str(&format!("Measured with it (medians):\n{}", table.render()));
        }
    }
    if report.data.points.iter().any(|point| point.summary.n > 1) {
        text.push_str("\n95 % interval: of the mean, by Student's t. CV: standard deviation / mean. Last columns: the mean as a bar from 0, and the repetitions in the order they were measured, between their least and greatest.\n");
    }
    for outcome in report.outcomes {
        let said = super::verdict(outcome, report.strict);
        let how = if said.is_some() { "FAILED" } else { "ok" };
        text.push_str(&format!(
            "\n{how}: --fail-if '{}': judged at {} points, holds at {}, not judged: {}\n",
            safe::plain(&outcome.text),
            outcome.judged,
            outcome.failed.len(),
            outcome.missing.len()
        ));
    }
    if !report.notes.is_empty() {
        text.push_str("\nNotes\n");
        for note in report.notes {
            text.push_str(&format!("  {}\n", safe::plain_lines(note).replace('\n', " ")));
        }
    }
    text
}

/// Where the runs measured: what all have in common first.
fn environment(text: &mut String, data: &Data) {
    for run in &data.runs {
        text.push_str(&format!("Run {} at {}\n", safe::plain(&run.run), safe::plain(&run.time)));
    }
    let all: Vec<_> = data.runs.iter().map(compare::facts).collect();
    let names: BTreeSet<&String> = all.iter().flat_map(|facts| facts.keys()).collect();
    let mut rows = Vec::new();
    for name in names {
        let values: BTreeSet<&String> = all.iter().filter_map(|facts| facts.get(name)).collect();
        let shown: Vec<_> = values.iter().map(|value| short(&safe::plain_lines(value).replace('\n', "; "))).collect();
        rows.push(vec![format!("  {}", safe::plain(name)), shown.join(" | ")]);
    }
    let table = Table { headings: vec![String::new(), String::new()], rows };
    text.push_str(table.render().trim_start_matches('\n'));
}

fn short(text: &str) -> String {
    if text.chars().count() <= FACT_MAX {
        return text.to_owned();
    }
    format!("{}…", text.chars().take(FACT_MAX).collect::<String>())
}

/// The headings of all tables of figures.
pub const HEADINGS: [&str; 12] =
    [">Mean", ">Max", ">Min", ">Stdev", ">n", ">Median", ">Q1", ">Q3", ">CV %", ">95 % interval", ">Outliers", ">Unit"];

/// How many decimals a table of these points has.
pub fn decimals(points: &[&Point]) -> usize {
    unit::decimals(points.iter().map(|point| point.summary.mean))
}

/// The figures of a point, as the headings say.
pub fn figures(point: &Point, decimals: usize) -> Vec<String> {
    let s = &point.summary;
    let fixed = |value: f64| unit::fixed(value, decimals);
    vec![
        fixed(s.mean),
        fixed(s.max),
        fixed(s.min),
        s.stdev.map_or("-".to_owned(), |stdev| unit::fixed(stdev, decimals + 1)),
        s.n.to_string(),
        fixed(s.median),
        fixed(s.q1),
        fixed(s.q3),
        s.cv.map_or("-".to_owned(), |cv| format!("{:.1}", cv * 100.0)),
        s.mean_interval
            .map_or("-".to_owned(), |interval| format!("{} .. {}", fixed(interval.low), fixed(interval.high))),
        if s.outliers.is_empty() { "-".to_owned() } else { format!("{} !", s.outliers.len()) },
        safe::plain(&point.unit),
    ]
}

/// The parameters that tell these points apart.
pub fn columns(data: &Data, points: &[&Point]) -> Vec<String> {
    super::chart::choose::varying(points, &data.varying)
}

fn summary_table(data: &Data, points: &[&Point]) -> Table {
    let names = columns(data, points);
    let decimals = decimals(points);
    let greatest = points.iter().map(|point| point.summary.mean.abs()).fold(0.0, f64::max);
    let headings = ["Op".to_owned(), "System".to_owned()].into_iter();
    let headings = headings.chain(names.iter().map(|name| format!(">{}", safe::plain(name))));
    // The unit stands above the table.
    let headings = headings.chain(HEADINGS[..HEADINGS.len() - 1].iter().map(|heading| (*heading).to_owned()));
    let rows = points.iter().map(|point| {
        let mut row = vec![safe::plain(&point.op), safe::plain(&point.system)];
        row.extend(
            names.iter().map(|name| point.place.get(name).map_or("-".to_owned(), |setting| safe::plain(&setting.text))),
        );
        row.extend(figures(point, decimals).into_iter().take(HEADINGS.len() - 1));
        row.extend([bar(point.summary.mean, greatest), sparks(&point.values)]);
        row
    });
    Table { headings: headings.chain(["Bar".to_owned(), "In order".to_owned()]).collect(), rows: rows.collect() }
}

/// The names and medians of whatever else was measured with the values, by point.
pub fn further(data: &Data, points: &[&Point]) -> (Vec<String>, Vec<Vec<String>>) {
    let samples =
        |point: &Point| -> Vec<&Sample> { point.samples.iter().filter_map(|index| data.samples.get(*index)).collect() };
    let all = points.iter().flat_map(|point| samples(point)).flat_map(|sample| &sample.more);
    let names: BTreeSet<&String> = all.filter(|(_, value)| value.is_number()).map(|(name, _)| name).collect();
    let names: Vec<&String> = names.into_iter().take(FURTHER_MAX).collect();
    let cell = |point: &Point, name: &str| {
        let values: Vec<f64> = samples(point).iter().filter_map(|sample| sample.more.get(name)?.as_f64()).collect();
        Summary::of(&values).map_or("-".to_owned(), |summary| figure(summary.median))
    };
    let rows = points.iter().map(|point| names.iter().map(|name| cell(point, name)).collect()).collect();
    (names.into_iter().cloned().collect(), rows)
}

fn further_table(data: &Data, points: &[&Point]) -> Option<Table> {
    let (names, cells) = further(data, points);
    if names.is_empty() {
        return None;
    }
    let settings = columns(data, points);
    let headings = ["Op", "System"].map(str::to_owned).into_iter();
    let headings = headings.chain(settings.iter().chain(&names).map(|name| format!(">{}", safe::plain(name))));
    let rows = points.iter().zip(cells).map(|(point, cells)| {
        let mut row = vec![safe::plain(&point.op), safe::plain(&point.system)];
        row.extend(
            settings
                .iter()
                .map(|name| point.place.get(name).map_or("-".to_owned(), |setting| safe::plain(&setting.text))),
        );
        row.extend(cells);
        row
    });
    Some(Table { headings: headings.collect(), rows: rows.collect() })
}

/// A bar from zero.
fn bar(value: f64, greatest: f64) -> String {
    if value <= 0.0 || greatest <= 0.0 {
        return String::new();
    }
    let eighths = (value / greatest * (BAR * 8) as f64).round().clamp(0.0, (BAR * 8) as f64) as usize;
    format!("{}{}", "█".repeat(eighths / 8), ACROSS[eighths % 8])
}

/// The values in order, between the least and the greatest; nothing where there are none to compare.
fn sparks(values: &[f64]) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if values.len() < 2 {
        return String::new();
    }
    let together = values.len().div_ceil(SPARKS_MAX);
    let steps = values.chunks(together).map(|part| part.iter().sum::<f64>() / part.len() as f64);
    let letter = |value: f64| {
        let share = if high > low { (value - low) / (high - low) } else { 0.5 };
        UPWARDS[((share * 8.0) as usize).min(7)]
    };
    steps.map(letter).collect()
}

fn outliers(text: &mut String, data: &Data, points: &[&Point]) {
    for point in points.iter().filter(|point| !point.summary.outliers.is_empty()) {
        let values = point.summary.outliers.iter().filter_map(|index| {
            let sample = data.samples.get(*point.samples.get(*index)?)?;
            Some(format!(
                "{} (repetition {}, at {})",
                figure(*point.values.get(*index)?),
                sample.repeat,
                safe::plain(&sample.time)
            ))
        });
        let values: Vec<_> = values.take(8).collect();
        text.push_str(&format!("  ! {}: {}\n", point.name(&data.varying), values.join(", ")));
    }
}

fn comparison_text(text: &mut String, comparison: &Comparison, new: &Data) {
    text.push_str(&format!("\nCompared with {}\n", safe::plain(&comparison.base_name)));
    let lasting: Vec<_> = comparison.differences.iter().filter(|difference| !difference.is_fleeting).collect();
    if !lasting.is_empty() {
        text.push_str("They did not run under the same circumstances:\n");
        let rows = lasting.iter().map(|difference| {
            let value = |text: &str| short(&safe::plain_lines(text).replace('\n', "; "));
            vec![format!("  {}", safe::plain(&difference.name)), value(&difference.base), value(&difference.new)]
        });
        let headings = ["  Fact", "Base", "New"].map(str::to_owned).into();
        text.push_str(&Table { headings, rows: rows.collect() }.render());
    }
    let names = compare::all_varying(new, &comparison.base);
    let headings = ["Op", "System"]
        .map(str::to_owned)
        .into_iter()
        .chain(names.iter().map(|name| format!(">{}", safe::plain(name))));
    let rest = [">New median", ">Base median", "Unit", ">n", ">Base n", ">Ratio", ">95 % interval", "Verdict"];
    let rows = comparison.pairs.iter().map(|pair| {
        let (point, base) = (&new.points[pair.new], &comparison.base.points[pair.base]);
        let mut row = vec![safe::plain(&point.op), safe::plain(&point.system)];
        row.extend(
            names.iter().map(|name| point.place.get(name).map_or("-".to_owned(), |setting| safe::plain(&setting.text))),
        );
        let (ratio, interval, verdict) = ratio_cells(pair);
        row.extend([
            figure(point.summary.median),
            figure(base.summary.median * pair.factor),
            safe::plain(&point.unit),
            point.summary.n.to_string(),
            base.summary.n.to_string(),
            ratio,
            interval,
            verdict,
        ]);
        row
    });
    let headings = headings.chain(rest.map(str::to_owned)).collect();
    text.push_str(&Table { headings, rows: rows.collect() }.render());
    for sentence in comparison.sentences(new) {
        text.push_str(&format!("{sentence}\n"));
    }
}

/// The ratio, its interval and the verdict, as they stand in tables.
pub fn ratio_cells(pair: &compare::Pair) -> (String, String, String) {
    match &pair.ratio {
        Ok(ratio) => {
            let (low, high) = (ratio.interval.low, ratio.interval.high);
            let interval = if ratio.n > 1 { format!("{low:.3} .. {high:.3}") } else { "-".to_owned() };
            (format!("{:.3}", ratio.ratio), interval, pair.verdict.to_string())
        }
        Err(problem) => ("-".to_owned(), "-".to_owned(), safe::plain(problem)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_they_say() {
        assert_eq!(bar(50.0, 100.0), "██████");
        assert_eq!(bar(100.0, 100.0).chars().count(), BAR);
        assert_eq!((bar(0.0, 1.0), bar(1.0, 0.0)), (String::new(), String::new()));
    }

    #[test]
    fn sparks_go_up_and_down() {
        assert_eq!(sparks(&[1.0, 2.0, 3.0]), "▁▅█");
        assert_eq!((sparks(&[1.0]), sparks(&[2.0, 2.0])), (String::new(), "▅▅".to_owned()));
        assert_eq!(sparks(&[1.0; 100]).chars().count(), 15);
    }

    #[test]
    fn columns_are_aligned() {
        let rows = vec![vec!["a".to_owned(), "1".to_owned()], vec!["bcd".to_owned(), "1000".to_owned()]];
        let table = Table { headings: vec!["Op".to_owned(), ">n".to_owned()], rows };
        assert_eq!(table.render(), "Op      n\na       1\nbcd  1000\n");
    }
}
