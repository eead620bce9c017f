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

/// Reads a document; `None`: it is of neither.
pub(super) fn parse(text: &str) -> Option<(Vec<Measurement>, &'static str)> {
    let document: Value = serde_json::from_str(text).ok()?;
    iperf3(&document).map(|found| (found, "a report of iperf3")).or_else(|| Some((ior(&document)?, "a report of IOR")))
}

fn iperf3(document: &Value) -> Option<Vec<Measurement>> {
    let received = document.get("end")?.get("sum_received")?;
    let rate = received.get("bits_per_second")?.as_f64()? / 8.0;
    let place = document["start"]["connecting_to"]["host"].as_str().unwrap_or_default().to_owned();
    let resent = document["end"]["sum_sent"]["retransmits"].as_u64().unwrap_or(0);
    Some(vec![Measurement { stage: Stage::Network, place, rate, resent }])
}

fn ior(document: &Value) -> Option<Vec<Measurement>> {
    let tests = document.get("tests")?.as_array()?;
    let of_test = |test: &Value| -> Vec<Measurement> {
        let place = test["Parameters"]["testFileName"].as_str().unwrap_or_default().to_owned();
        let results = test["Results"].as_array().into_iter().flatten();
        let of_result = |result: &Value| {
            let stage = match result["access"].as_str()? {
                "read" => Stage::Read,
                "write" => Stage::Write,
                _ => return None,
            };
            // MiB a second.
            let rate = result["bwMiB"].as_f64()? * 1_048_576.0;
            Some(Measurement { stage, place: place.clone(), rate, resent: 0 })
        };
        results.filter_map(of_result).collect()
    };
    Some(tests.iter().flat_map(of_test).collect())
}
