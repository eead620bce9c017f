//! IOR's JSON and CSV.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

use super::api::Space;
use super::data::Packet;
use super::output::{Header, Removal};
use super::plan::Plan;
use super::results::{Measurement, mib};
use super::table::{self, Summary};

/// JSON whose keys stay in order, as people read it.
enum Json {
    Value(Value),
    Array(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Json::Value(value) => value.serialize(serializer),
            Json::Array(items) => items.serialize(serializer),
            Json::Object(pairs) => {
                let mut map = serializer.serialize_map(Some(pairs.len()))?;
                pairs.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
        }
    }
}

fn object<const N: usize>(pairs: [(&'static str, Value); N]) -> Vec<(&'static str, Json)> {
    pairs.into_iter().map(|(key, value)| (key, Json::Value(value))).collect()
}

/// All that was measured, as IOR's `summaryFormat=JSON` has it.
pub fn document(
    header: &Header,
    plan: &Plan,
    measurements: &[Measurement],
    removals: &[Removal],
    finished: &str,
) -> String {
    let mut results: Vec<Json> = Vec::new();
    for repetition in 0..plan.options.repetitions {
        let of = measurements.iter().filter(|measured| measured.repetition == repetition);
        results.extend(of.map(|measured| Json::Object(result(plan, measured))));
        let removed = removals.iter().filter(|removal| removal.repetition == repetition);
        results.extend(
            removed.map(|removal| {
                Json::Object(object([("access", json!("remove")), ("totalTime", json!(removal.seconds))]))
            }),
        );
    }
    let options = table::options(plan).into_iter().map(|(key, value)| {
        let number = value.parse::<i64>().map(Value::from);
        (key, Json::Value(number.unwrap_or(Value::String(value))))
    });
    let mut test = object([("TestID", json!(0)), ("StartTime", json!(header.began)), ("Path", json!(header.path))]);
    test.extend(space(&header.space));
    test.push(("Parameters", Json::Object(parameters(plan))));
    test.push(("Options", Json::Object(options.collect())));
    test.push(("Results", Json::Array(results)));
    test.push(("max", Json::Object(greatest(measurements))));
    let summary =
        table::summaries(plan, measurements).iter().map(|summary| Json::Object(summarized(plan, summary))).collect();
    let mut all = object([
        ("Version", json!(header.version)),
        ("Began", json!(header.began)),
        ("Command line", json!(header.command)),
        ("Machine", json!(header.machine)),
    ]);
    all.push(("tests", Json::Array(vec![Json::Object(test)])));
    all.push(("summary", Json::Array(summary)));
    all.extend(object([("Finished", json!(finished))]));
    // No number here is infinite or none, and no key is not a string: nothing can fail.
    serde_json::to_string_pretty(&Json::Object(all)).unwrap_or_default() + "\n"
}

fn space(space: &Space) -> Vec<(&'static str, Json)> {
    let shown = super::output::shown_space(space);
    object([
        ("Capacity", json!(shown.capacity)),
        ("Used Capacity", json!(shown.used)),
        ("Inodes", json!(shown.inodes)),
        ("Used Inodes", json!(shown.inodes_used)),
    ])
}

fn result(plan: &Plan, measured: &Measurement) -> Vec<(&'static str, Json)> {
    object([
        ("access", json!(measured.op)),
        ("bwMiB", json!(mib(measured.rate()))),
        ("blockKiB", json!(plan.layout.block as f64 / 1024.0)),
        ("xferKiB", json!(plan.layout.transfer as f64 / 1024.0)),
        ("iops", json!(measured.iops)),
        ("latency", json!(measured.latency)),
        ("openTime", json!(measured.open)),
        ("wrRdTime", json!(measured.access)),
        ("closeTime", json!(measured.close)),
        ("totalTime", json!(measured.total)),
        ("numTasks", json!(plan.layout.ranks)),
        ("iter", json!(measured.repetition)),
    ])
}

fn greatest(measurements: &[Measurement]) -> Vec<(&'static str, Json)> {
    let mut pairs = Vec::new();
    for (op, binary, decimal) in [("write", "writeMiB", "writeMB"), ("read", "readMiB", "readMB")] {
        let rates = measurements.iter().filter(|measured| measured.op == op).map(Measurement::rate);
        if let Some(greatest) = rates.reduce(f64::max) {
            pairs.extend(object([(binary, json!(mib(greatest))), (decimal, json!(greatest / 1e6))]));
        }
    }
    pairs
}

fn parameters(plan: &Plan) -> Vec<(&'static str, Json)> {
    let options = &plan.options;
    let packet = match options.packet {
        Packet::Timestamp => "t",
        Packet::Offset => "o",
        Packet::Incompressible => "i",
        Packet::Random => "r",
    };
    let is = |flag: bool| json!(u8::from(flag));
    object([
        ("testID", json!(0)),
        ("refnum", json!(options.reference)),
        ("api", json!(options.api.name())),
        ("platform", json!(super::output::platform())),
        ("testFileName", json!(options.file)),
        ("deadlineForStonewall", json!(options.deadline)),
        ("stoneWallingWearOut", is(options.named.wear_out)),
        ("maxTimeDuration", json!(options.minutes)),
        ("outlierThreshold", json!(options.outlier)),
        ("options", json!("")),
        ("dryRun", is(options.dry_run)),
        ("nodes", json!(plan.nodes.nodes)),
        ("memoryPerTask", json!(0)),
        ("memoryPerNode", json!(0)),
        ("tasksPerNode", json!(plan.nodes.per_node)),
        ("repetitions", json!(options.repetitions)),
        ("multiFile", is(options.multi_file)),
        ("interTestDelay", json!(options.delay)),
        ("fsync", is(options.fsync)),
        ("fsyncperwrite", is(options.fsync_each)),
        ("useExistingTestFile", is(options.use_existing)),
        ("uniqueDir", is(options.unique_directory)),
        ("readFile", is(options.read)),
        ("writeFile", is(options.write)),
        ("filePerProc", is(options.file_per_rank)),
        ("reorderTasks", is(options.reorder_constant)),
        ("reorderTasksRandom", json!(options.reorder_random)),
        ("reorderTasksRandomSeed", json!(options.reorder_seed)),
        ("randomOffset", is(options.random)),
        ("checkWrite", is(options.check_write)),
        ("checkRead", is(options.check_read)),
        ("keepFile", is(options.keep)),
        ("keepFileWithError", is(options.keep_with_error)),
        ("quitOnError", is(options.quit_on_error)),
        ("verbose", json!(options.verbose)),
        ("data packet type", json!(packet)),
        ("setTimeStampSignature/incompressibleSeed", json!(options.stamp)),
        ("collective", json!(0)),
        ("segmentCount", json!(plan.layout.segments)),
        ("transferSize", json!(plan.layout.transfer)),
        ("blockSize", json!(plan.layout.block)),
        ("useO_DIRECT", is(options.direct)),
        ("depth", json!(options.depth)),
    ])
}

fn summarized(plan: &Plan, summary: &Summary) -> Vec<(&'static str, Json)> {
    let options = &plan.options;
    let mut pairs = object([
        ("operation", json!(summary.op)),
        ("API", json!(options.api.name())),
        ("TestID", json!(0)),
        ("ReferenceNumber", json!(options.reference)),
        ("segmentCount", json!(plan.layout.segments)),
        ("blockSize", json!(plan.layout.block)),
        ("transferSize", json!(plan.layout.transfer)),
        ("numTasks", json!(plan.layout.ranks)),
        ("tasksPerNode", json!(plan.nodes.per_node)),
        ("repetitions", json!(options.repetitions)),
        ("filePerProc", json!(u8::from(options.file_per_rank))),
        ("reorderTasks", json!(u8::from(options.reorder_constant))),
        ("taskPerNodeOffset", json!(options.task_offset)),
        ("reorderTasksRandom", json!(options.reorder_random)),
        ("reorderTasksRandomSeed", json!(options.reorder_seed)),
        ("bwMaxMIB", json!(mib(summary.rates.max))),
        ("bwMinMIB", json!(mib(summary.rates.min))),
        ("bwMeanMIB", json!(mib(summary.rates.mean))),
        ("bwStdMIB", json!(mib(summary.rates.deviation))),
        ("OPsMax", json!(summary.operations.max)),
        ("OPsMin", json!(summary.operations.min)),
        ("OPsMean", json!(summary.operations.mean)),
        ("OPsSD", json!(summary.operations.deviation)),
        ("MeanTime", json!(summary.time)),
    ]);
    if let Some((time, rate)) = summary.stonewall {
        pairs.extend(object([("StoneWallTime", json!(time)), ("StoneWallbwMeanMIB", json!(mib(rate)))]));
    }
    pairs.extend(object([("xsizeMiB", json!(mib(summary.bytes as f64)))]));
    pairs
}

/// The first line of CSV.
pub fn csv_heading() -> String {
    "access,bw(MiB/s),IOPS,Latency,block(KiB),xfer(KiB),open(s),wr/rd(s),close(s),total(s),numTasks,iter\n".to_owned()
}

/// A line of CSV.
pub fn csv_row(plan: &Plan, measured: &Measurement) -> String {
    let Measurement { op, repetition, iops, latency, open, access, close, total, .. } = measured;
    let (block, transfer) = (plan.layout.block as f64 / 1024.0, plan.layout.transfer as f64 / 1024.0);
    let (rate, ranks) = (mib(measured.rate()), plan.layout.ranks);
    // IOR has four digits; open and close often take less than that shows.
    format!(
        "{op},{rate:.4},{iops:.4},{latency:.6},{block:.4},{transfer:.4},{open:.6},{access:.6},{close:.6},{total:.6},{ranks},{repetition}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::planned;
    use super::*;

    fn measured(op: &'static str, repetition: u32) -> Measurement {
        Measurement {
            op,
            repetition,
            bytes: 2 << 20,
            open: 0.1,
            access: 0.5,
            close: 0.2,
            total: 1.0,
            iops: 16.0,
            latency: 0.0625,
            stonewall: Some((0.5, 1 << 20)),
            ..Measurement::default()
        }
    }

    #[test]
    fn json_has_the_keys_where_iors_readers_look_for_them() {
        let plan = planned(&["-w", "-r", "-i", "2", "-D", "1", "-O", "stoneWallingWearOut=1", "-A", "4"], 2);
        let header =
            Header { version: "v".into(), command: "c \"x\"".into(), path: "/d/f".into(), ..Header::default() };
        let all = [measured("write", 0), measured("read", 0), measured("write", 1)];
        let removals = [Removal { repetition: 0, seconds: 0.25 }];
        let text = document(&header, &plan, &all, &removals, "now");
        let value: Value = serde_json::from_str(&text).unwrap();
        let results = &value["tests"][0]["Results"];
        assert_eq!(results.as_array().unwrap().len(), 4);
        assert_eq!((&results[0]["access"], &results[2]["access"]), (&json!("write"), &json!("remove")));
        assert_eq!((&results[0]["bwMiB"], &results[0]["iops"]), (&json!(2.0), &json!(16.0)));
        for key in ["blockKiB", "xferKiB", "latency", "openTime", "wrRdTime", "closeTime", "totalTime"] {
            assert!(results[1][key].is_f64(), "{key}");
        }
        assert_eq!(value["tests"][0]["Options"]["tasks"], json!(2));
        assert_eq!(value["tests"][0]["Options"]["xfersize"], json!("262144 bytes"));
        assert_eq!(value["tests"][0]["Parameters"]["transferSize"], json!(262_144));
        assert_eq!(value["tests"][0]["max"]["writeMiB"], json!(2.0));
        let summary = &value["summary"][0];
        assert_eq!((&summary["operation"], &summary["bwMeanMIB"]), (&json!("write"), &json!(2.0)));
        assert_eq!((&summary["StoneWallTime"], &summary["StoneWallbwMeanMIB"]), (&json!(0.5), &json!(2.0)));
        assert_eq!((&summary["ReferenceNumber"], &summary["xsizeMiB"]), (&json!(4), &json!(2.0)));
        assert_eq!((&value["Command line"], &value["Finished"]), (&json!("c \"x\""), &json!("now")));
        // In the order in which IOR prints them.
        let keys = [
            "\"Version\"",
            "\"Began\"",
            "\"Machine\"",
            "\"tests\"",
            "\"Parameters\"",
            "\"Options\"",
            "\"Results\"",
            "\"summary\"",
        ];
        let places: Vec<_> = keys.iter().map(|key| text.find(key).unwrap()).collect();
        assert!(places.is_sorted(), "{places:?}");
    }

    #[test]
    fn csv_has_a_column_for_each_heading() {
        let row = csv_row(&planned(&[], 3), &measured("write", 1));
        assert_eq!(row.split(',').count(), csv_heading().split(',').count());
        assert!(
            row.starts_with("write,2.0000,16.0000,0.062500,1024.0000,256.0000,") && row.ends_with(",3,1\n"),
            "{row}"
        );
    }
}
