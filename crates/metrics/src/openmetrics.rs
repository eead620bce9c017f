//! Snapshots as text that Prometheus and its like read.

use std::fmt::Write;

use crate::instrument::{Kind, Value};
use crate::snapshot::{MetricSnapshot, Sample, Snapshot};
use crate::table::{self, Definition, Unit};
use crate::{HistogramSnapshot, histogram};

/// Which of the two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus 0.0.4, for tools that do not ask for the other.
    Prometheus,
}

impl Format {
    /// The media type of the text.
    pub const fn media_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// What an HTTP client is given that accepts these media types.
    pub fn accepted(accept: &str) -> Format {
        if accept.contains("application/openmetrics-text") { Format::OpenMetrics } else { Format::Prometheus }
    }
}

/// Buckets end at powers of two: of nanoseconds from 4 us to 34 s, of anything else from 1 to
/// 2^40. A histogram's own buckets are eight times as narrow, and would be as many series more.
fn bounds(unit: Unit) -> impl Iterator<Item = u32> {
    let (range, step) = if unit == Unit::Seconds { (12..=35, 1) } else { (0..=histogram::VALUE_BITS, 4) };
    range.step_by(step)
}

/// The snapshot as text. Metrics that the table does not have, as a peer of another release may
/// tell them, are left out.
pub fn encode(snapshot: &Snapshot, format: Format) -> String {
    let mut text = String::new();
    for row in table::all() {
        if let Some(metric) = snapshot.0.get(row.name).filter(|metric| !metric.samples.is_empty()) {
            family(row, metric, format, &mut text);
        }
    }
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

// Writing to a string cannot fail.
fn family(row: &Definition, metric: &MetricSnapshot, format: Format, text: &mut String) {
    let kind = match row.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let name = match format {
        Format::OpenMetrics => row.name.strip_suffix("_total").unwrap_or(row.name),
        Format::Prometheus => row.name,
    };
    let _ = writeln!(text, "# HELP {name} {}", escaped(row.meaning.trim()));
    let _ = writeln!(text, "# TYPE {name} {kind}");
    if format == Format::OpenMetrics && row.unit != Unit::None {
        let _ = writeln!(text, "# UNIT {name} {}", &row.unit.suffix()[1..]);
    }
    for sample in &metric.samples {
        let labels = labels(sample);
        match &sample.value {
            Value::Number(number) => {
                let _ = writeln!(text, "{}{} {}", row.name, braced(&labels, ""), scaled(*number, row.unit));
            }
            Value::Histogram(values) => histogram_lines((row, values), &labels, text),
        }
    }
}

fn histogram_lines((row, values): (&Definition, &HistogramSnapshot), labels: &str, text: &mut String) {
    let mut line = |suffix: &str, more: &str, value: String| {
        let _ = writeln!(text, "{}{suffix}{} {value}", row.name, braced(labels, more));
    };
    let mut ranges = values.ranges().peekable();
    let mut below = 0u64;
    for exponent in bounds(row.unit) {
        let bound = 1u64 << exponent;
        while let Some((_, _, count)) = ranges.next_if(|(_, last, _)| *last < bound) {
            below = below.saturating_add(count);
        }
        line("_bucket", &format!("le=\"{}\"", scaled(bound, row.unit)), below.to_string());
    }
    line("_bucket", "le=\"+Inf\"", values.count().to_string());
    line("_sum", "", scaled(values.sum, row.unit));
    line("_count", "", values.count().to_string());
}

fn labels(sample: &Sample) -> String {
    let all: Vec<_> = sample.labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    all.join(",")
}

fn braced(labels: &str, more: &str) -> String {
    match (labels.is_empty(), more.is_empty()) {
        (true, true) => String::new(),
        (false, false) => format!("{{{labels},{more}}}"),
        _ => format!("{{{labels}{more}}}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

/// Times in seconds, with a point as OpenMetrics wants it of `le`.
fn scaled(number: u64, unit: Unit) -> String {
    match unit {
        Unit::Seconds => format!("{:?}", number as f64 / 1e9),
        Unit::None | Unit::Bytes => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, Histogram};

    fn snapshot() -> Snapshot {
        let (read, took) = (Counter::default(), Histogram::single());
        read.add(7);
        [3_000, 5_000, 1 << 30, 1 << 39].iter().for_each(|nanos| took.record(*nanos));
        let mut snapshot = Snapshot::default();
        snapshot.put(&table::EXPORT_BYTES_READ, &["a\"b\\c\nd"], &read);
        snapshot.put(&table::SERVER_OPERATION_SECONDS, &["READ"], &took);
        snapshot.put_number(&table::SERVER_SESSIONS, &[], 0);
        snapshot
    }

    #[test]
    fn both_formats_have_their_form() {
        let text = encode(&snapshot(), Format::OpenMetrics);
        for line in [
            "# TYPE aqueduct_export_read_bytes counter",
            "# UNIT aqueduct_export_read_bytes bytes",
            r#"aqueduct_export_read_bytes_total{export="a\"b\\c\nd"} 7"#,
            "# UNIT aqueduct_server_operation_seconds seconds",
            r#"aqueduct_server_operation_seconds_bucket{operation="READ",le="4.096e-6"} 1"#,
            r#"aqueduct_server_operation_seconds_bucket{operation="READ",le="8.192e-6"} 2"#,
            r#"aqueduct_server_operation_seconds_bucket{operation="READ",le="2.147483648"} 3"#,
            r#"aqueduct_server_operation_seconds_bucket{operation="READ",le="+Inf"} 4"#,
            r#"aqueduct_server_operation_seconds_count{operation="READ"} 4"#,
            "aqueduct_server_sessions 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
        let text = encode(&snapshot(), Format::Prometheus);
        assert!(text.contains("# TYPE aqueduct_export_read_bytes_total counter\n"), "{text}");
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"), "{text}");
    }

    #[test]
    fn who_asks_for_openmetrics_gets_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        assert_eq!([Format::accepted("*/*"), Format::accepted("")], [Format::Prometheus; 2]);
    }

    /// A snapshot that was made coarse for want of room tells the same.
    #[test]
    fn coarse_histograms_have_the_same_buckets() {
        let (fine, mut coarse) = (snapshot(), snapshot());
        coarse.coarsen();
        assert_eq!(encode(&fine, Format::OpenMetrics), encode(&coarse, Format::OpenMetrics));
    }
}
