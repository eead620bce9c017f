//! What benchmarks say of themselves, as JSON: iperf3, and IOR.

use serde_json::Value;

use crate::verdict::Stage;

/// A rate that was measured of one part of the way alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Of which part.
    pub stage: Stage,
    /// Where: a host, or a test file.
    pub place: String,
    /// Bytes in a second.
    pub rate: f64,
    /// Segments that were sent again.
    pub resent: u64,
}

/// Reads a document; `None`: it is of neither. Before and behind it may be what the program, or who
/// started it, has said besides.
pub(super) fn parse(text: &str) -> Option<(Vec<Measurement>, &'static str)> {
    let from = if text.starts_with('{') { 0 } else { text.find("\n{")? + 1 };
    let document: Value = serde_json::Deserializer::from_str(&text[from..]).into_iter().next()?.ok()?;
    iperf3(&document).map(|found| (found, "a report of iperf3")).or_else(|| Some((ior(&document)?, "a report of IOR")))
}

fn iperf3(document: &Value) -> Option<Vec<Measurement>> {
    let received = document.get("end")?.get("sum_received")?;
    let rate = received.get("bits_per_second")?.as_f64()? / 8.0;
    let place = document["start"]["connecting_to"]["host"].as_str().unwrap_or_default().to_owned();
    let resent = document["end"]["sum_sent"]["retransmits"].as_u64().unwrap_or(0);
    Some(vec![Measurement { stage: Stage::Network, place, rate, resent }])
}

/// Bytes of a MiB, in which IOR counts.
const MIB: f64 = 1_048_576.0;

/// What IOR writes with `-O summaryFormat=JSON`: of each test the results, by repetitions; and a
/// summary of all, which is used where the results are missing.
fn ior(document: &Value) -> Option<Vec<Measurement>> {
    let tests = document.get("tests")?.as_array()?;
    let results: Vec<Measurement> = tests.iter().flat_map(of_test).collect();
    if !results.is_empty() {
        return Some(results);
    }
    let place = tests.first().map(place).unwrap_or_default();
    let of_summary = |summary: &Value| measurement(&place, &summary["operation"], &summary["bwMeanMIB"]);
    let summaries: Vec<Measurement> = document["summary"].as_array()?.iter().filter_map(of_summary).collect();
    (!summaries.is_empty()).then_some(summaries)
}

fn place(test: &Value) -> String {
    let names = [&test["Parameters"]["testFileName"], &test["Options"]["test filename"]];
    names.iter().find_map(|name| name.as_str()).unwrap_or_default().to_owned()
}

fn of_test(test: &Value) -> Vec<Measurement> {
    let place = place(test);
    let lists = [&test["Results"], &test["Options"]["Results"]];
    let results = lists.iter().find_map(|list| list.as_array()).map_or(&[][..], Vec::as_slice);
    // A list for each repetition; other programs write them without.
    let of_repetition = |repetition: &Value| -> Vec<Measurement> {
        let each = repetition.as_array().map_or_else(|| std::slice::from_ref(repetition), Vec::as_slice);
        each.iter().filter_map(|result| measurement(&place, &result["access"], &result["bwMiB"])).collect()
    };
    results.iter().flat_map(of_repetition).collect()
}

/// `None`: it is none, as of a repetition that moved nothing.
fn measurement(place: &str, access: &Value, rate: &Value) -> Option<Measurement> {
    let stage = match access.as_str()? {
        "read" => Stage::Read,
        "write" => Stage::Write,
        _ => return None,
    };
    let rate = rate.as_f64().filter(|rate| *rate > 0.0)? * MIB;
    Some(Measurement { stage, place: place.to_owned(), rate, resent: 0 })
}
