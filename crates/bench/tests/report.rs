//! Whole reports from records as a sweep writes them: what people read, what they paste into papers, and what CI decides by.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use aqueduct_bench::record::{Environment, Line, Sample};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// Makes records that look like a sweep's: rates that saturate with clients and sizes, noise of some percent, one repetition that something disturbed.
struct Recorder {
    run: String,
    random: ChaCha8Rng,
    order: u32,
    lines: Vec<Line>,
}

impl Recorder {
    fn new(run: &str, seed: u64, kernel: &str) -> Recorder {
        let facts = json!({
            "kernel": kernel, "host": "n0421", "cpu": "AMD EPYC 7763 64-Core Processor", "cpus": 128,
            "tcp_congestion_control": "cubic", "steal_percent": 0.0, "load_1min": 0.31,
            "mounts": ["/mnt/aqueduct fuse.aqueduct rw,nosuid", "/mnt/nfs nfs4 rw,vers=4.2,rsize=1048576"],
        });
        let facts: BTreeMap<String, Value> = facts.as_object().unwrap().clone().into_iter().collect();
        let environment = Environment {
            schema: 1,
            run: run.to_owned(),
            time: "2026-11-20T09:30:00Z".to_owned(),
            name: "clients on one server".to_owned(),
            plan: "[matrix]\nclients = [1, 2, 4, 8, 12, 16, 20]\n".to_owned(),
            facts,
        };
        let lines = vec![Line::Environment(environment)];
        Recorder { run: run.to_owned(), random: ChaCha8Rng::seed_from_u64(seed), order: 0, lines }
    }

    /// Repetitions of one point around a value.
    fn point(
        &mut self,
        (system, op, unit): (&str, &str, &str),
        parameters: Value,
        (value, spread): (f64, f64),
        count: u32,
    ) {
        let parameters: BTreeMap<String, Value> = parameters.as_object().unwrap().clone().into_iter().collect();
        for repeat in 0..=count {
            let noise: f64 = (0..6).map(|_| self.random.random_range(-1.0..1.0f64)).sum::<f64>() / 2.5;
            // The first is for warming up, and slower than any other.
            let warmup = repeat == 0;
            let value = if warmup { value * 0.6 } else { value * (1.0 + spread * noise) };
            let seconds = 2.0 + self.random.random_range(0.0..0.09);
            let series = (0..21).map(|step| {
                let share = if step == 20 { 0.3 } else { 1.0 + 0.04 * self.random.random_range(-1.0..1.0f64) };
                (value * 1_048_576.0 / 10.0 * share) as u64
            });
            let series: Vec<u64> = if unit == "MiB/s" { series.collect() } else { Vec::new() };
            self.order += 1;
            self.lines.push(Line::Sample(Sample {
                run: self.run.clone(),
                time: format!("2026-11-20T09:{:02}:{:02}Z", self.order / 60 % 60, self.order % 60),
                system: system.to_owned(),
                parameters: parameters.clone(),
                op: op.to_owned(),
                repeat: repeat.saturating_sub(1),
                order: self.order,
                warmup,
                value,
                unit: unit.to_owned(),
                seconds,
                series,
                ..Sample::default()
            }));
        }
    }

    /// A server at 160 MB/s: the native directory alone, and clients on it.
    fn clients(self, factor: f64) -> Recorder {
        self.some_clients(&["write", "read"], &[1, 2, 4, 8, 12, 16, 20], factor)
    }

    fn some_clients(mut self, ops: &[&str], all: &[u32], factor: f64) -> Recorder {
        let rate = 160e6 / 1_048_576.0;
        for op in ops {
            self.point(("native", op, "MiB/s"), json!({"api": "posix"}), (rate * 1.002, 0.003), 5);
            for &clients in all {
                let parameters = json!({"api": "posix", "clients": clients});
                let few = 1.0 - 0.25 / f64::from(clients);
                self.point(
                    ("aqueduct", op, "MiB/s"),
                    parameters.clone(),
                    (rate * factor * (1.0 - 0.001 * f64::from(clients)), 0.01),
                    5,
                );
                self.point(("nfs", op, "MiB/s"), parameters, (rate * few * 0.92, 0.03), 5);
            }
        }
        self
    }

    /// One client, by transfer size and clients.
    fn matrix(mut self) -> Recorder {
        for transfer in ["4k", "16k", "64k", "256k", "1m"] {
            for clients in [1, 4, 16] {
                let size: f64 = match transfer {
                    "4k" => 0.45,
                    "16k" => 0.7,
                    "64k" => 0.93,
                    "256k" => 0.99,
                    _ => 1.0,
                };
                let value = 1800.0 * size * (1.0 - 0.3 / f64::from(clients));
                self.point(
                    ("aqueduct", "read", "MiB/s"),
                    json!({"transfer": transfer, "clients": clients}),
                    (value, 0.015),
                    5,
                );
                self.point(
                    ("nfs", "read", "MiB/s"),
                    json!({"transfer": transfer, "clients": clients}),
                    (value * 0.7, 0.04),
                    5,
                );
            }
        }
        self
    }

    /// Messages, as OSU's tests measure them.
    fn messages(mut self) -> Recorder {
        for power in (0..=22).step_by(2) {
            let size = 1u64 << power;
            let time = 11.0 + size as f64 / 2900.0;
            self.point(("tcp", "latency", "us"), json!({"message_size": size}), (time, 0.02), 7);
            self.point(("aqueduct", "latency", "us"), json!({"message_size": size}), (time * 1.2 + 3.0, 0.03), 7);
        }
        self
    }

    /// Names, as mdtest measures them; a point with an outlier, and enough repetitions for a distribution.
    fn names(mut self) -> Recorder {
        for (op, rate) in [("create", 21_000.0), ("stat", 96_000.0), ("read", 33_000.0), ("remove", 25_000.0)] {
            self.point(("native", op, "op/s"), json!({}), (rate * 1.6, 0.02), 12);
            self.point(("aqueduct", op, "op/s"), json!({}), (rate, 0.03), 12);
            self.point(("nfs", op, "op/s"), json!({}), (rate * 0.35, 0.08), 12);
        }
        let disturbed = self.lines.iter_mut().rev().find_map(|line| match line {
            Line::Sample(sample) if sample.system == "aqueduct" && sample.op == "stat" => Some(sample),
            _ => None,
        });
        disturbed.unwrap().value = 61_000.0;
        self
    }

    fn samples(&self) -> Vec<&Sample> {
        let samples = self.lines.iter().filter_map(|line| match line {
            Line::Sample(sample) if !sample.warmup => Some(sample),
            _ => None,
        });
        samples.collect()
    }

    fn write(&self, path: &Path) -> PathBuf {
        let lines: String = self.lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
        fs::write(path, lines).unwrap();
        path.to_owned()
    }
}

/// A folder, and reports in it.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn report(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aqueduct-bench"));
        command.arg("report").args(arguments).current_dir(self.folder.path()).output().unwrap()
    }

    #[track_caller]
    fn good(&self, arguments: &[&str]) -> String {
        let output = self.report(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn bad(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.report(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        text
    }

    /// The SVG of each chart, by the name of its file.
    fn drawings(&self, folder: &str) -> BTreeMap<String, String> {
        let entries = fs::read_dir(self.path(folder)).unwrap().map(|entry| entry.unwrap().path());
        entries
            .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(path).unwrap()))
            .collect()
    }
}

/// Elements of a class, each with its text.
fn of_class<'a>(document: &'a roxmltree::Document<'_>, class: &str) -> Vec<roxmltree::Node<'a, 'a>> {
    let has = |node: &roxmltree::Node<'_, '_>| {
        node.attribute("class").is_some_and(|all| all.split(' ').any(|one| one == class))
    };
    document.descendants().filter(has).collect()
}

fn title<'a>(node: roxmltree::Node<'a, 'a>) -> &'a str {
    node.children()
        .find(|child| child.has_tag_name("title") || child.tag_name().name() == "title")
        .and_then(|title| title.text())
        .unwrap_or("")
}

#[test]
fn the_terminal_has_every_point_with_its_figures() {
    let place = Place::new();
    let recorder = Recorder::new("r1", 1, "6.1.0").clients(0.99);
    recorder.write(&place.path("a.jsonl"));
    let text = place.good(&["a.jsonl"]);
    let heading = text.lines().find(|line| line.starts_with("Op ")).unwrap();
    let words: Vec<_> = heading.split_whitespace().collect();
    assert_eq!(words[..11], ["Op", "System", "clients", "Mean", "Max", "Min", "Stdev", "n", "Median", "Q1", "Q3"]);
    for system in ["native", "aqueduct", "nfs"] {
        let rows = text.lines().filter(|line| line.split_whitespace().nth(1) == Some(system));
        assert_eq!(rows.count(), if system == "native" { 2 } else { 14 }, "{system}\n{text}");
    }
    // The mean, as anybody would compute it.
    let values: Vec<f64> =
        recorder.samples().iter().filter(|s| s.system == "native" && s.op == "read").map(|s| s.value).collect();
    let mean = format!("{:.1}", values.iter().sum::<f64>() / values.len() as f64);
    assert!(
        text.lines().any(|line| line.contains("read") && line.contains("native") && line.contains(&mean)),
        "{mean}\n{text}"
    );
    assert!(
        text.contains("30 samples for warming up count nowhere") && text.contains("Everywhere: api=posix"),
        "{text}"
    );
    assert!(text.contains("AMD EPYC 7763") && text.contains("cubic"), "{text}");
}

#[test]
fn the_page_is_well_formed_and_whole() {
    let place = Place::new();
    Recorder::new("r1", 1, "6.1.0").clients(0.99).matrix().messages().names().write(&place.path("a.jsonl"));
    place.good(&["a.jsonl", "--html", "a.html"]);
    let page = fs::read_to_string(place.path("a.html")).unwrap();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..roxmltree::ParsingOptions::default() };
    let document = roxmltree::Document::parse_with_options(&page, options).unwrap();
    // Nothing is fetched, and nothing runs.
    for node in document.descendants() {
        assert!(!["script", "link", "img", "iframe"].contains(&node.tag_name().name()), "{node:?}");
        for name in ["src", "href", "onload", "onclick"] {
            assert!(node.attribute(name).is_none(), "{node:?}");
        }
    }
    assert!(!page.contains("url(") && !page.contains("@import"));
    for id in ["charts", "tables", "environment", "notes"] {
        assert!(document.descendants().any(|node| node.attribute("id") == Some(id)), "{id}");
    }
    let kinds = ["clients", "sizes", "bars", "series", "cdf", "heat"];
    for kind in kinds {
        assert!(!of_class(&document, kind).is_empty(), "no chart of kind {kind}");
    }
    let rows: usize = of_class(&document, "summary")
        .iter()
        .map(|table| table.descendants().filter(|node| node.tag_name().name() == "tr").count() - 1)
        .sum();
    assert_eq!(rows, 30 + 30 + 24 + 12);
    assert_eq!(of_class(&document, "flagged").len(), page.matches("<tr class=\"flagged\">").count());
    assert!(page.contains("title=\"outlier\">61000 !"), "the disturbed repetition is marked");
}

#[test]
fn clients_are_drawn_with_the_native_line_dashed() {
    let place = Place::new();
    let recorder = Recorder::new("r1", 1, "6.1.0").clients(0.99);
    recorder.write(&place.path("a.jsonl"));
    place.good(&["a.jsonl", "--svg", "svg", "--chart", "clients"]);
    let drawings = place.drawings("svg");
    assert_eq!(drawings.len(), 2, "{:?}", drawings.keys());
    for (name, text) in &drawings {
        let document = roxmltree::Document::parse(text).unwrap();
        let native = of_class(&document, "native");
        assert_eq!(native.len(), 1, "{name}");
        assert!(native[0].descendants().any(|node| node.attribute("stroke-dasharray").is_some()), "{name}");
        assert!(title(native[0]).contains("n = 5"), "{name}");
        let curves = of_class(&document, "curve");
        let names: Vec<_> = curves.iter().map(|curve| title(*curve)).collect();
        assert_eq!(names, ["aqueduct", "nfs"]);
        for curve in curves {
            assert!(
                !curve.descendants().any(|node| node.attribute("stroke-dasharray").is_some()),
                "only what is native is dashed"
            );
            let marks: Vec<_> = curve.children().filter(|node| node.attribute("class") == Some("mark")).collect();
            assert_eq!(marks.len(), 7, "every point is there");
            for mark in marks {
                assert!(title(mark).contains("n = 5") && title(mark).contains("95 % interval"), "{}", title(mark));
                assert!(
                    mark.descendants()
                        .any(|node| node.attribute("class").is_some_and(|class| class.starts_with("error")))
                );
            }
        }
        assert!(text.contains("Throughput (MiB/s)") && text.contains("n = 5 repetitions"), "{name}");
    }
}

#[test]
fn single_runs_get_no_error_bars() {
    let place = Place::new();
    let mut recorder = Recorder::new("r1", 1, "6.1.0");
    for clients in [1, 2, 4] {
        recorder.point(("aqueduct", "read", "MiB/s"), json!({"clients": clients}), (100.0, 0.0), 1);
    }
    recorder.write(&place.path("a.jsonl"));
    place.good(&["a.jsonl", "--svg", "svg", "--chart", "clients,bars"]);
    for (name, text) in place.drawings("svg") {
        assert!(!text.contains("class=\"error") && text.contains("Single measurements (n = 1)"), "{name}");
        let document = roxmltree::Document::parse(&text).unwrap();
        let marks = of_class(&document, if name.starts_with("bars") { "bar" } else { "mark" });
        assert_eq!(marks.len(), 3, "{name}");
    }
}

/// Two repetitions that scatter have an interval from far below nothing, which no throughput is.
#[test]
fn an_interval_pulls_no_axis_below_zero() {
    let mut recorder = Recorder::new("r", 3, "6.18");
    for (clients, values) in [(1, [100.0, 300.0]), (2, [250.0, 260.0])] {
        for (value, repeat) in values.into_iter().zip(0..) {
            recorder.lines.push(Line::Sample(Sample {
                run: "r".into(),
                system: "a".into(),
                parameters: [("clients".to_owned(), json!(clients))].into(),
                op: "read".into(),
                repeat,
                value,
                unit: "MB/s".into(),
                ..Sample::default()
            }));
        }
    }
    let place = Place::new();
    let file = recorder.write(&place.path("scatter.jsonl"));
    place.good(&[file.to_str().unwrap(), "--svg", place.path("svg").to_str().unwrap()]);
    let drawings = place.drawings("svg");
    let has_bar = |svg: &String| svg.contains("95 % interval");
    assert!(drawings.values().any(has_bar), "{:?}", drawings.keys());
    for (name, svg) in &drawings {
        assert!(!svg.contains(">-") && !svg.contains(">\u{2212}"), "{name} has a tick below zero: {svg}");
    }
}

#[test]
fn bars_begin_at_zero() {
    let place = Place::new();
    Recorder::new("r1", 1, "6.1.0").names().write(&place.path("a.jsonl"));
    place.good(&["a.jsonl", "--svg", "svg", "--chart", "bars", "--log"]);
    let (name, text) = place.drawings("svg").pop_first().unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    let number = |node: &roxmltree::Node<'_, '_>, name: &str| node.attribute(name).unwrap().parse::<f64>().unwrap();
    let bars: Vec<_> = of_class(&document, "bar")
        .iter()
        .map(|bar| {
            let rect = bar.children().find(|node| node.tag_name().name() == "rect").unwrap();
            (number(&rect, "y") + number(&rect, "height"), number(&rect, "height"), title(*bar).to_owned())
        })
        .collect();
    assert_eq!(bars.len(), 12, "{name}");
    assert!(bars.iter().all(|bar| (bar.0 - bars[0].0).abs() < 0.2), "all stand on one line: {bars:?}");
    // As high as their values: the ratio of two heights is the ratio of two means.
    let mean = |title: &str| title.split("mean ").nth(1).unwrap().split(' ').next().unwrap().parse::<f64>().unwrap();
    let (one, two) = (&bars[0], &bars[3]);
    assert!((one.1 / two.1 - mean(&one.2) / mean(&two.2)).abs() < 0.01, "{bars:?}");
    let outliers =
        bars.iter().filter_map(|bar| bar.2.split("outliers: ").nth(1)).map(|values| values.split(", ").count());
    assert_eq!(of_class(&document, "outlier").len(), outliers.sum::<usize>());
}

#[test]
fn hostile_records_harm_nobody() {
    let place = Place::new();
    let evil = "\x1b]0;owned\x07</title><script>alert(1)</script>\"' \u{202e}&amp;\n..\\/../x";
    let mut recorder = Recorder::new(evil, 1, evil);
    for clients in [1, 2, 3] {
        recorder.point((evil, evil, evil), json!({evil: evil, "clients": clients}), (100.0, 0.01), 3);
        recorder.point(("other", evil, evil), json!({evil: "b", "clients": clients}), (100.0, 0.01), 3);
    }
    recorder.write(&place.path("a.jsonl"));
    let text = place.good(&["a.jsonl", "--html", "a.html", "--svg", "svg", "--against", "other", "--native", evil]);
    assert!(
        !text.chars().any(|letter| letter.is_control() && letter != '\n') && !text.contains('\u{202e}'),
        "{text:?}"
    );
    let page = fs::read_to_string(place.path("a.html")).unwrap();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..roxmltree::ParsingOptions::default() };
    let document = roxmltree::Document::parse_with_options(&page, options).unwrap();
    assert!(!document.descendants().any(|node| node.tag_name().name() == "script"));
    assert!(!page.contains('\x1b') && !page.contains("<script"));
    for (name, text) in place.drawings("svg") {
        assert!(roxmltree::Document::parse(&text).is_ok(), "{name}");
        assert!(name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-'), "{name}");
    }
    assert!(!place.path("x").exists());
}

#[test]
fn damaged_lines_are_named_by_file_and_line() {
    let place = Place::new();
    let path = Recorder::new("r1", 1, "6.1.0").names().write(&place.path("a.jsonl"));
    let mut text = fs::read_to_string(&path).unwrap();
    let end = text.len();
    text.insert_str(0, "\u{0}{]\n");
    fs::write(&path, &text).unwrap();
    assert!(place.bad(1, &["a.jsonl"]).contains("a.jsonl:1: "));
    assert!(place.good(&["a.jsonl", "--skip-damaged"]).contains("a.jsonl:1 was left out"));
    fs::write(&path, &text[4..end - 20]).unwrap();
    assert!(place.good(&["a.jsonl"]).contains("the last line, was cut off"));
    assert!(place.bad(1, &["none.jsonl"]).contains("cannot read none.jsonl"));
    assert!(place.bad(1, &["."]).contains("it is a folder"));
}

#[test]
fn two_runs_are_compared_with_their_circumstances() {
    let place = Place::new();
    Recorder::new("old", 1, "6.1.0").some_clients(&["read"], &[1, 4, 8, 20], 0.99).write(&place.path("old.jsonl"));
    Recorder::new("new", 2, "6.12.0").some_clients(&["read"], &[1, 4, 8, 20], 0.80).write(&place.path("new.jsonl"));
    let text = place.good(&["--compare", "old.jsonl", "new.jsonl", "--html", "a.html"]);
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!(
        at("not run under the same circumstances") < at("6.12.0\nOp") || at("kernel") < at("Verdict"),
        "first what differs"
    );
    assert!(at("6.1.0") < at("Verdict") && at("6.12.0") < at("Verdict"));
    let verdict = |system: &str, word: &str| {
        let rows = text
            .lines()
            .filter(|line| line.split_whitespace().nth(1) == Some(system) && line.trim_end().ends_with(word));
        rows.count()
    };
    assert_eq!(verdict("aqueduct", "slower"), 4, "{text}");
    assert!(verdict("nfs", "no difference shown") + verdict("native", "no difference shown") >= 4, "{text}");
    let page = fs::read_to_string(place.path("a.html")).unwrap();
    assert!(page.contains("class=\"slower\"") && page.contains("class=\"chart ratio\""));
    let json: Value = serde_json::from_str(&place.good(&["--compare", "old.jsonl", "new.jsonl", "--json"])).unwrap();
    let points = json["comparison"]["points"].as_array().unwrap();
    assert_eq!(points.len(), 9);
    for point in points.iter().filter(|point| point["system"] == "aqueduct") {
        let (low, high) =
            (point["ratio_interval"]["low"].as_f64().unwrap(), point["ratio_interval"]["high"].as_f64().unwrap());
        assert!(low < 0.81 && high > 0.79 && high < 0.9, "{point}");
    }
}

#[test]
fn the_same_run_shows_no_difference() {
    let place = Place::new();
    Recorder::new("one", 1, "6.1.0").some_clients(&["read"], &[1, 4, 8, 20], 0.99).write(&place.path("one.jsonl"));
    let json: Value = serde_json::from_str(&place.good(&["--compare", "one.jsonl", "one.jsonl", "--json"])).unwrap();
    let points = json["comparison"]["points"].as_array().unwrap();
    assert!(
        points.iter().all(|point| point["verdict"] == "no-difference-shown" && point["ratio"] == 1.0),
        "{points:?}"
    );
    assert_eq!(json["comparison"]["differences"], json!([]));
}

#[test]
fn a_condition_that_holds_ends_with_code_one() {
    let place = Place::new();
    Recorder::new("old", 1, "6.1.0").some_clients(&["read"], &[1, 4, 8, 20], 0.99).write(&place.path("old.jsonl"));
    let mut new = Recorder::new("new", 2, "6.1.0").some_clients(&["read"], &[1, 4, 8, 20], 0.97);
    new.point(("aqueduct", "read", "MiB/s"), json!({"api": "posix", "clients": 40}), (100.0, 0.01), 5);
    new.write(&place.path("new.jsonl"));
    let run = |conditions: &[&str]| {
        let all = conditions.iter().flat_map(|condition| ["--fail-if", condition]);
        let arguments: Vec<_> = ["new.jsonl", "--base", "old.jsonl"].into_iter().chain(all).collect();
        let output = place.report(&arguments);
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = run(&["read.median < 0.9*base"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("not judged: the base has nothing for read of aqueduct at clients=40"), "{said}");
    let (code, said) = run(&["read.median < 0.9*base", "read[clients=4,system=aqueduct].median < 0.99*base"]);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("read of aqueduct at clients=4: ")
            && said.contains("MiB/s <")
            && said.contains("n = 5, base n = 5"),
        "{said}"
    );
    let (code, said) = run(&["read.median > 200 MB/s or read.cv > 50 %"]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = run(&["erase.median < 1"]);
    assert!(code == 1 && said.contains("could be judged at no point"), "{said}");
    let strict = ["new.jsonl", "--base", "old.jsonl", "--strict", "--fail-if", "read.median < 0.5*base"];
    assert!(place.bad(1, &strict).contains("could not be judged everywhere"));
    let against = ["new.jsonl", "--against", "native", "--fail-if", "read[system=nfs].median < 0.95*base"];
    let said = place.bad(1, &against);
    assert!(said.contains("read of nfs"), "{said}");
}

#[test]
fn what_cannot_be_meant_is_said_before_anything_is_read() {
    let place = Place::new();
    let said = place.bad(2, &["none.jsonl", "--fail-if", "read.medain < 3"]);
    assert!(said.contains("column 6: 'medain' is no statistic") && said.contains("\n               ^"), "{said}");
    assert!(place.bad(2, &["none.jsonl", "--fail-if", "read.median < base"]).contains("there is none"));
    assert!(place.bad(2, &["none.jsonl", "--only", "clients"]).contains("NAME=VALUE"));
    assert!(place.bad(2, &[]).contains("FILE"));
}

#[test]
fn json_has_all_figures() {
    let place = Place::new();
    let recorder = Recorder::new("r1", 1, "6.1.0").messages();
    recorder.write(&place.path("a.jsonl"));
    let json: Value = serde_json::from_str(&place.good(&["a.jsonl", "--json"])).unwrap();
    let points = json["points"].as_array().unwrap();
    assert_eq!(points.len(), 24);
    for point in points {
        for name in ["mean", "max", "min", "stdev", "median", "q1", "q3", "cv"] {
            assert!(point[name].is_f64(), "{name}: {point}");
        }
        assert!(point["n"] == 7 && point["values"].as_array().unwrap().len() == 7 && point["unit"] == "us");
        assert!(point["mean_interval"]["low"].as_f64() < point["mean"].as_f64());
    }
    assert_eq!(json["runs"][0]["facts"]["cpus"], 128);
}

#[test]
fn sizes_run_by_doublings() {
    let place = Place::new();
    Recorder::new("r1", 1, "6.1.0").messages().write(&place.path("a.jsonl"));
    place.good(&["a.jsonl", "--svg", "svg", "--chart", "sizes"]);
    let (_, text) = place.drawings("svg").pop_first().unwrap();
    let document = roxmltree::Document::parse(&text).unwrap();
    assert!(text.contains(">1 KiB<") && text.contains(">4 MiB<") && text.contains("Time (us)"), "{text}");
    // Equal distances for equal ratios: the paths' points from 1 B to 4 MiB, by fours.
    let curve = of_class(&document, "path")[0].attribute("d").unwrap().to_owned();
    let xs: Vec<f64> =
        curve.trim_start_matches('M').split('L').map(|at| at.split(' ').next().unwrap().parse().unwrap()).collect();
    assert_eq!(xs.len(), 12);
    let steps: Vec<_> = xs.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(steps.iter().all(|step| (step - steps[0]).abs() < 0.25), "{steps:?}");
}

#[cfg(feature = "reports")]
#[test]
fn pictures_show_what_is_drawn() {
    let place = Place::new();
    Recorder::new("r1", 1, "6.1.0").names().write(&place.path("a.jsonl"));
    place.good(&["a.jsonl", "--png", "png", "--png-scale", "1", "--chart", "bars"]);
    let path = fs::read_dir(place.path("png")).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(path).unwrap();
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
    let width = u32::from_be_bytes(bytes[16..20].try_into().unwrap());
    assert!(width == 760 && bytes.len() > 5000, "{width} wide, {} bytes", bytes.len());
    assert!(place.bad(1, &["a.jsonl", "--png", "png", "--font", "a.jsonl"]).contains("font"));
}

#[cfg(not(feature = "reports"))]
#[test]
fn pictures_say_how_to_be_built() {
    let place = Place::new();
    assert!(place.bad(2, &["none.jsonl", "--png", "png"]).contains("--features reports"));
}
