//! Lustre's parameters, as `lctl get_param` prints them and its files below /proc and /sys have
//! them.

use super::reading::{Readings, number};

/// What a parameter of this name counts.
#[derive(Clone, Copy)]
enum Form {
    /// `NAME N samples [UNIT] MIN MAX SUM SUMSQ`.
    Samples,
    /// Histograms of bulk I/O, of reads beside writes.
    Histograms,
}

/// Parameters that are of use: by the first part of their name, and the last.
const WANTED: [(&str, &str, Form); 6] = [
    ("obdfilter", "stats", Form::Samples),
    ("mdt", "md_stats", Form::Samples),
    ("llite", "stats", Form::Samples),
    ("osc", "stats", Form::Samples),
    ("mdc", "stats", Form::Samples),
    ("osd", "brw_stats", Form::Histograms),
];

/// Reads what `lctl get_param` prints: `NAME=VALUE`, or `NAME=` and then lines. Targets are
/// `obdfilter.fs-OST0000` and the like.
pub fn parameters(text: &str, readings: &mut Readings) {
    let (mut at, mut reader) = (("", None), Reader::default());
    for line in text.lines() {
        let begun = line.split_once('=').map(|(name, _)| name);
        if let Some(name) = begun.filter(|name| name.contains('.') && !name.contains(char::is_whitespace)) {
            at = wanted(name);
            reader = Reader::default();
            continue;
        }
        if let (target, Some(form)) = at {
            reader.line(form, target, line, readings);
        }
    }
}

/// The target of a parameter, and what it counts, if that is of use.
fn wanted(name: &str) -> (&str, Option<Form>) {
    let Some((target, last)) = name.rsplit_once('.') else { return (name, None) };
    let kind = target.split(['.', '-']).next().unwrap_or_default();
    let form = WANTED.iter().find(|(first, end, _)| *first == kind && *end == last);
    (target, form.map(|(_, _, form)| *form))
}

/// Reads the lines of one parameter.
#[derive(Default)]
struct Reader {
    /// The histogram that has begun.
    histogram: String,
}

impl Reader {
    fn line(&mut self, form: Form, target: &str, line: &str, readings: &mut Readings) {
        match form {
            Form::Samples => samples(target, line, readings),
            Form::Histograms => self.bucket(target, line, readings),
        }
    }

    fn bucket(&mut self, target: &str, line: &str, readings: &mut Readings) {
        let Some((left, right)) = line.split_once('|') else { return };
        if let Some((title, _)) = left.split_once(" rpcs ").or_else(|| left.split_once(" ios ")) {
            self.histogram = slug(title);
            return;
        }
        let Some((bucket, left)) = left.split_once(':') else { return };
        for (way, side) in [("read", left), ("write", right)] {
            let words: Vec<&str> = side.split_whitespace().take(1).collect();
            if let (false, Some(value)) = (self.histogram.is_empty(), number(&words, 0)) {
                let counter = format!("{}_{}_{way}", self.histogram, bucket.trim());
                readings.add("lustre", target, counter, value);
            }
        }
    }
}

fn samples(target: &str, line: &str, readings: &mut Readings) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (Some(name), Some(count), Some(&"samples")) = (words.first(), number(&words, 1), words.get(2)) else { return };
    readings.add("lustre", target, format!("{name}_samples"), count);
    let Some(sum) = number(&words, 6) else { return };
    let counter = match words.get(3) {
        Some(&"[bytes]") if name.ends_with("_bytes") => (*name).to_owned(),
        Some(&"[bytes]") => format!("{name}_bytes"),
        Some(&("[usecs]" | "[usec]")) => format!("{name}_microseconds"),
        _ => return,
    };
    readings.add("lustre", target, counter, sum);
}

/// `disk I/O size` as `disk_io_size`.
fn slug(title: &str) -> String {
    let words = title.split_whitespace().map(|word| word.chars().filter(char::is_ascii_alphanumeric).collect());
    words.filter(|word: &String| !word.is_empty()).collect::<Vec<_>>().join("_").to_lowercase()
}
