//! Whole runs of `bench net`.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aqueduct-bench"));
    command.arg("net").args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> (String, String) {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).into()
}

/// The columns of each row.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    rows.map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn all_tests_print_osus_tables() {
    let (out, err) = text(&bench(&["-m", "1:64", "-i", "5", "-x", "1"]));
    let headings = ["Latency (us)", "Bandwidth (MB/s)", "MB/s          Messages/s"];
    assert!(headings.iter().all(|heading| out.contains(heading)), "{out}{err}");
    let rows = rows(&out);
    assert_eq!(rows.len(), 4 * 7, "{out}");
    for row in rows {
        assert!(row.iter().all(|field| field.parse::<f64>().unwrap() > 0.0), "{row:?}");
    }
}

#[test]
fn each_pair_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("measured");
    let name = file.to_str().unwrap();
    let arguments =
        ["--ranks", "4", "--json", "-m", "4k:8k", "-i", "5", "--streams", "2", "--measured", name, "bw", "mbw_mr"];
    let output = bench(&arguments);
    let (out, err) = text(&output);
    let document: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert_eq!(document["connections"].as_array().map(Vec::len), Some(4), "{document}");
    assert!(!document["connections"][0]["congestion"][1].as_str().unwrap().is_empty());
    for (test, name) in document["tests"].as_array().unwrap().iter().zip(["bw", "mbw_mr"]) {
        assert_eq!(test["test"], name);
        let results = test["results"].as_array().unwrap();
        assert_eq!(results.len(), 2);
        for result in results {
            let pairs = result["pairs"].as_array().unwrap();
            let ranks: Vec<_> = pairs.iter().map(|pair| (pair["sender"].as_u64(), pair["receiver"].as_u64())).collect();
            assert_eq!(ranks, [(Some(0), Some(2)), (Some(1), Some(3))]);
            let values = pairs.iter().map(|pair| pair["value"].as_f64().unwrap());
            let least = values.fold(f64::INFINITY, f64::min);
            assert_eq!(result["pair_min"].as_f64(), Some(least));
            let slowest = result["slowest"]["sender"].as_u64().unwrap() as usize;
            assert_eq!(pairs[slowest]["value"].as_f64(), Some(least));
        }
    }
    let lines: Vec<aqueduct_bench::record::Measured> =
        std::fs::read_to_string(&file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said: Vec<_> =
        lines.iter().map(|line| (line.op.as_str(), line.unit.as_str(), line.more["size"].as_u64())).collect();
    assert_eq!(said[..2], [("bw", "MB/s", Some(4096)), ("bw", "MB/s", Some(8192))]);
    assert_eq!(lines.len(), 4);
}

#[test]
fn congestion_control_is_chosen_and_recorded() {
    let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    for name in available.split_whitespace() {
        let (out, err) = text(&bench(&["latency", "-m", "1:1", "-i", "3", "--json", "--congestion", name]));
        let document: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {err}"));
        assert_eq!(document["connections"][0]["congestion"], serde_json::json!([name, name]));
    }
    let (_, err) = text(&bench(&["latency", "--congestion", "nonsense"]));
    assert!(err.contains("'nonsense'") && err.contains("it has:"), "{err}");
}

#[test]
fn a_plan_moves_nothing() {
    let (out, err) = text(&bench(&["--dry-run", "--ranks", "6", "--pairs", "2", "-m", "1m", "bibw"]));
    assert!(out.contains("2 pairs") && out.contains("rank 1 on") && out.contains("bibw: 21 sizes"), "{out}{err}");
    assert!(out.contains("Nothing was measured") && rows(&out).iter().all(|row| row[0] != "1"), "{out}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let wrong: [(&[&str], &str); 7] = [
        (&["--ranks", "3"], "one has nobody to talk to"),
        (&["--ranks", "1"], "one has nobody to talk to"),
        (&["--ranks", "4", "--pairs", "3"], "3 pairs need 6 ranks"),
        (&["--streams", "65"], "fewer streams"),
        (&["--window-size", "0"], "window"),
        (&["-m", "8:4"], "above the largest"),
        (&["--network", "203.0.113.0/24", "latency"], "no address in the network"),
    ];
    for (arguments, said) in wrong {
        let output = bench(arguments);
        let (out, err) = text(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {out}{err}");
        assert!(err.contains(said), "{arguments:?}: {err}");
    }
}

#[test]
fn an_interrupt_keeps_what_is_done() {
    use std::io::{BufRead, BufReader, Read};
    let mut child = Command::new(env!("CARGO_BIN_EXE_aqueduct-bench"))
        .args(["net", "latency", "-m", "1:4m", "-i", "20000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("1 ") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "it has ended without a row");
    }
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{line}{rest}");
    assert!(rows(&rest).iter().all(|row| row.len() == 2 && row[0] != "4194304"), "{rest}");
}
