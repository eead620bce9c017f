//! Tables as OSU's tests print them, JSON, and lines for sweeps.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::plan::{Pairs, Test};
use super::summary::Row;
use crate::Failure;
use crate::record::Measured;

/// OSU's widths: of the size, and of a figure.
const SIZE_WIDTH: usize = 10;
const FIELD_WIDTH: usize = 20;

/// What a table says besides its rows.
pub(super) struct Frame<'a> {
    pub(super) pairs: Pairs,
    pub(super) window: usize,
    pub(super) streams: usize,
    pub(super) full: bool,
    pub(super) hosts: &'a [String],
    /// Congestion control of the connections, each once.
    pub(super) congestion: &'a str,
}

/// Prints, whole and now; a reader that has left is no reason to fail.
pub(crate) fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

fn fields(first: &str, fields: &[String]) -> String {
    let rest: String = fields.iter().map(|field| format!("{field:>FIELD_WIDTH$}")).collect();
    format!("{first:<SIZE_WIDTH$}{rest}\n")
}

/// The lines above a test's rows.
pub(super) fn head(test: Test, frame: &Frame<'_>) -> String {
    let title = match test {
        Test::Latency => "Latency Test",
        Test::Bw => "Bandwidth Test",
        Test::Bibw => "Bi-Directional Bandwidth Test",
        Test::MbwMr => "Multiple Bandwidth / Message Rate Test",
    };
    let mut text = format!("\n# Aqueduct TCP {title} v{} (as osu_{})\n", env!("CARGO_PKG_VERSION"), test.name());
    let Frame { pairs, window, streams, congestion, .. } = frame;
    if test == Test::MbwMr || pairs.count > 1 {
        text += &format!("# [ pairs: {} ] [ window size: {window} ]\n", pairs.count);
    }
    text += &format!("# [ streams: {streams} ] [ congestion control: {congestion} ]\n");
    let mut headings: Vec<&str> = match test {
        Test::Latency => vec!["Latency (us)"],
        Test::Bw | Test::Bibw => vec!["Bandwidth (MB/s)"],
        Test::MbwMr => vec!["MB/s", "Messages/s"],
    };
    if frame.full {
        headings.extend(["Min Round(us)", "P50 Round(us)", "P99 Round(us)", "Max Round(us)", "Iterations"]);
    }
    if pairs.count > 1 {
        headings.extend(["Pair Min", "Pair Median", "Pair Max", "Slowest Pair"]);
    }
    text + &fields("# Size", &headings.iter().map(|heading| (*heading).to_owned()).collect::<Vec<_>>())
}

/// A row, and with `-f` the pairs behind it.
pub(super) fn row(row: &Row, frame: &Frame<'_>) -> String {
    let figure = |value: f64| format!("{value:.2}");
    let mut columns = vec![figure(row.value)];
    columns.extend(row.messages_per_second.map(figure));
    if frame.full {
        columns.extend(row.all_rounds().map(figure));
        columns.push(row.counts.rounds.to_string());
    }
    let named = |pair: usize| {
        let (sender, receiver) = frame.pairs.ranks(pair);
        format!("{sender}-{receiver}")
    };
    if frame.pairs.count > 1 {
        columns.extend(row.spread().map(figure));
        columns.push(named(row.slowest()));
    }
    let mut text = fields(&row.size.to_string(), &columns);
    if frame.full && frame.pairs.count > 1 {
        for (pair, value) in row.pairs.iter().enumerate() {
            let (sender, receiver) = frame.pairs.ranks(pair);
            let hosts = format!("{} - {}", frame.hosts[sender], frame.hosts[receiver]);
            text += &format!("#   pair {:<9}{value:>16.2} {}   {hosts}\n", named(pair), row.test.unit());
        }
    }
    text
}

/// All of it as one document.
pub(super) fn document(rows: &[Row], frame: &Frame<'_>, (connections, interrupted): (&[Value], bool)) -> Value {
    let of = |test: Test| -> Vec<Value> {
        rows.iter().filter(|row| row.test == test).map(|row| row.json(frame.pairs, frame.hosts)).collect()
    };
    let tests = Test::ALL.into_iter().map(|test| (test, of(test))).filter(|(_, results)| !results.is_empty());
    let tests: Vec<Value> =
        tests.map(|(test, results)| json!({ "test": test.name(), "unit": test.unit(), "results": results })).collect();
    json!({
        "benchmark": "net", "version": env!("CARGO_PKG_VERSION"),
        "command": std::env::args().collect::<Vec<_>>().join(" "),
        "transport": "tcp", "window": frame.window, "streams": frame.streams, "hosts": frame.hosts,
        "connections": connections, "interrupted": interrupted, "tests": tests,
    })
}

/// Appends a line for a sweep.
pub(super) fn append(path: &Path, row: &Row, frame: &Frame<'_>) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        let hint = "see whether its directory is there and has room, or give another with --measured";
        Failure::new(format!("appending to {}", path.display()), error, hint)
    };
    let mut more: BTreeMap<String, Value> = match row.json(frame.pairs, frame.hosts) {
        Value::Object(fields) => {
            fields.into_iter().filter(|(name, _)| !["value", "unit", "seconds"].contains(&name.as_str())).collect()
        }
        _ => BTreeMap::new(),
    };
    more.insert("window".into(), json!(frame.window));
    more.insert("streams".into(), json!(frame.streams));
    more.insert("congestion".into(), json!(frame.congestion));
    let measured = Measured {
        op: row.test.name().to_owned(),
        value: row.value,
        unit: row.test.unit().to_owned(),
        seconds: row.seconds,
        more,
        ..Measured::default()
    };
    // One call for the whole line: nobody reads half of it.
    let text = serde_json::to_string(&measured).map_err(|error| failed(error.into()))? + "\n";
    let mut file = File::options().append(true).create(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::super::measure::Clocked;
    use super::super::plan::Counts;
    use super::super::summary::Told;
    use super::*;

    fn told(seconds: f64) -> Told {
        Told { span: (0.0, seconds), clocked: Clocked { seconds, rounds: [1e-6, 2e-6, 4e-6, 8e-6] } }
    }

    #[test]
    fn one_pair_has_osus_columns_alone() {
        let hosts = ["a".to_owned(), "b".to_owned()];
        let frame = Frame {
            pairs: Pairs { count: 1 },
            window: 64,
            streams: 1,
            full: false,
            hosts: &hosts,
            congestion: "cubic",
        };
        let counts = Counts { warm_up: 0, rounds: 1000 };
        let text =
            head(Test::Latency, &frame) + &row(&Row::new(Test::Latency, 4, (counts, 64), &[told(0.0246)]), &frame);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[3], "# Size            Latency (us)");
        assert_eq!(lines[4], "4                        12.30");
        assert!(head(Test::MbwMr, &frame).contains("# [ pairs: 1 ] [ window size: 64 ]"));
    }

    #[test]
    fn several_pairs_are_all_there() {
        let hosts = ["a", "b", "c", "d"].map(str::to_owned);
        let frame =
            Frame { pairs: Pairs { count: 2 }, window: 64, streams: 2, full: true, hosts: &hosts, congestion: "bbr" };
        let counts = Counts { warm_up: 0, rounds: 100 };
        let measured = Row::new(Test::MbwMr, 1000, (counts, 64), &[told(0.1), told(0.2)]);
        let text = row(&measured, &frame);
        assert!(text.starts_with("1000                     64.00            64000.00"), "{text}");
        assert!(text.contains("#   pair 1-3") && text.contains("b - d"), "{text}");
        let headings = head(Test::MbwMr, &frame).lines().last().unwrap().chars().count();
        assert_eq!(text.lines().next().unwrap().chars().count(), headings);
        let document = document(&[measured], &frame, (&[], true));
        assert_eq!(
            (document["interrupted"].as_bool(), document["tests"][0]["test"].as_str()),
            (Some(true), Some("mbw_mr"))
        );
    }
}
