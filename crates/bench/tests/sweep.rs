//! Whole sweeps, with commands of the shell for benchmarks: what is planned, measured, written down, resumed and judged.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_bench::record::{self, Environment, Line, Sample};
use aqueduct_bench::sweep::file::Source;
use aqueduct_bench::sweep::plan::Plan;
use proptest::prelude::*;
use tempfile::TempDir;

/// Says that it has measured 100 times a number.
const SAY: &str = r#"printf '{{"op":"%s","repeat":0,"value":%s,"unit":"MiB/s","seconds":0.1}}\n'"#;

/// A folder with a sweep file and its results.
struct Sweep {
    folder: TempDir,
}

impl Sweep {
    fn new(text: &str) -> Sweep {
        let folder = tempfile::tempdir().unwrap();
        let sweep = Sweep { folder };
        sweep.write(text);
        sweep
    }

    fn write(&self, text: &str) {
        let text = text.replace("SAY", SAY).replace("FOLDER", self.folder.path().to_str().unwrap());
        fs::write(self.path("sweep.toml"), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_aqueduct-bench"));
        command.arg("sweep").arg(self.path("sweep.toml")).arg("--results").arg(self.path("results")).args(options);
        command
    }

    fn run(&self, options: &[&str]) -> Output {
        self.command(options).output().unwrap()
    }

    fn start(&self) -> Child {
        self.command(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn lines(&self) -> Vec<Line> {
        record::read(&self.path("results/samples.jsonl")).unwrap()
    }

    fn samples(&self) -> Vec<Sample> {
        let sample = |line| match line {
            Line::Sample(sample) => Some(sample),
            Line::Environment(_) => None,
        };
        self.lines().into_iter().filter_map(sample).collect()
    }

    fn environments(&self) -> Vec<Environment> {
        let environment = |line| match line {
            Line::Environment(environment) => Some(environment),
            Line::Sample(_) => None,
        };
        self.lines().into_iter().filter_map(environment).collect()
    }
}

#[track_caller]
fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", said(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Three points of two systems, two steps.
const PLAIN: &str = r#"
name = "plain"
about = "What a test measures."
seed = 7
[matrix]
transfer = ["4k", "64k", "1m"]
[run]
bench = "command"
sequence = ["write", "read"]
[run.steps]
write = '''SAY write 100'''
read = '''SAY read 200'''
[measure]
repeat = 2
warmup = 1
[[system]]
name = "native"
[[system]]
name = "ours"
"#;

fn plan(text: &str) -> Plan {
    let source = Source { path: "a.toml".into(), text: text.replace("SAY", SAY) };
    Plan::new(&source, false, &BTreeMap::new(), None).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_block_holds_each_point_once(seed in 0u64..1 << 60, transfers in 1u64..9, clients in 1u64..5, together in 0..3) {
        let head = format!("seed = {seed}\n");
        let matrix = format!(
            "[matrix]\ntransfer = {{ from = 1, to = {transfers}, add = 1 }}\nclients = {{ from = 1, to = {clients}, add = 1 }}\n"
        );
        let together = ["each", "all", "both"][together as usize];
        let text = PLAIN.replace("seed = 7\n", &head).replace("[matrix]\ntransfer = [\"4k\", \"64k\", \"1m\"]\n", &matrix);
        let text = text.replace("bench = \"command\"\n", &format!("bench = \"command\"\ntogether = \"{together}\"\n"));
        let (first, second) = (plan(&text), plan(&text));
        let groups = match together { "each" => 2, "all" => 1, _ => 3 };
        prop_assert_eq!(first.visits.len() as u64, groups * transfers * clients);
        for block in 0..4 {
            let order = first.order(block);
            prop_assert_eq!(&order, &second.order(block), "the same seed, the same order");
            let unique: BTreeSet<_> = order.iter().collect();
            prop_assert_eq!((unique.len(), order.len()), (first.visits.len(), first.visits.len()));
        }
        if first.visits.len() > 8 {
            prop_assert_ne!(first.order(0), first.order(1), "each block has an order of its own");
        }
    }
}

#[test]
fn another_seed_is_another_order() {
    let (first, second) = (plan(PLAIN), plan(&PLAIN.replace("seed = 7", "seed = 8")));
    assert!((0..4).any(|block| first.order(block) != second.order(block)));
    assert_ne!(first.hash(), second.hash());
}

#[test]
fn comments_and_repetitions_leave_a_plan_the_same() {
    let same = [
        PLAIN.replace("seed = 7", "# new\n\nseed = 7"),
        PLAIN.replace("repeat = 2", "repeat = 20\ntimeout = '5s'"),
        PLAIN.replace("repeat = 2", "repeat = 2\nuntil = { width = '5%', most = 9 }"),
        PLAIN.replace("name = \"ours\"\n", "name = \"ours\"\n[[expect]]\nop = 'read'\nat_least = 5\n"),
        PLAIN.replace("name = \"plain\"", "name = \"other\""),
    ];
    for text in same {
        assert_eq!(plan(PLAIN).hash(), plan(&text).hash(), "{text}");
    }
    let others = [
        PLAIN.replace("\"4k\", ", ""),
        PLAIN.replace("warmup = 1", "warmup = 0"),
        PLAIN.replace("read 200", "read 201"),
        PLAIN.replace("name = \"ours\"", "name = \"ours\"\nsetup = \"true\""),
    ];
    for text in others {
        assert_ne!(plan(PLAIN).hash(), plan(&text).hash(), "{text}");
    }
}

#[test]
fn all_is_measured_and_shown() {
    let sweep = Sweep::new(PLAIN);
    let shown = done(&sweep.run(&[]));
    let samples = sweep.samples();
    assert_eq!(samples.len(), 3 * 3 * 2 * 2, "blocks, points, systems, steps");
    for system in ["native", "ours"] {
        for transfer in [4096u64, 65536, 1 << 20] {
            for op in ["write", "read"] {
                let of =
                    samples.iter().filter(|s| s.system == system && s.op == op && s.parameters["transfer"] == transfer);
                let seen: Vec<_> = of.map(|sample| (sample.warmup, sample.repeat)).collect();
                assert_eq!(seen, [(true, 0), (false, 0), (false, 1)], "{system} {transfer} {op}");
            }
        }
    }
    let orders: Vec<u32> = samples.iter().map(|sample| sample.order).collect();
    assert_eq!(orders, (0..18).flat_map(|order| [order, order]).collect::<Vec<_>>());
    let environments = sweep.environments();
    assert_eq!((environments.len(), environments[0].name.as_str()), (1, "plain"));
    assert!(environments[0].plan.contains("What a test measures") && environments[0].facts.contains_key("kernel"));
    assert!(
        samples.iter().all(|sample| sample.run == environments[0].run && sample.more.contains_key("steal_percent"))
    );
    assert!(shown.lines().next().unwrap().contains("Mean"), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.contains(" write ")).count(), 6, "{shown}");
    assert_eq!(fs::read_to_string(sweep.path("results/table.txt")).unwrap(), shown);
    // Once more there is nothing to do.
    assert_eq!(done(&sweep.run(&[])), shown);
    assert_eq!(done(&sweep.run(&["--judge"])), shown);
    assert_eq!(sweep.samples().len(), 36);
}

#[test]
fn repetitions_can_be_added_and_other_plans_not() {
    let sweep = Sweep::new(PLAIN);
    done(&sweep.run(&[]));
    sweep.write(&PLAIN.replace("repeat = 2", "repeat = 3"));
    done(&sweep.run(&[]));
    assert_eq!(sweep.samples().len(), 48);
    sweep.write(&PLAIN.replace("seed = 7", "seed = 8"));
    let output = sweep.run(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("another plan") && said(&output).contains("--restart"), "{}", said(&output));
    done(&sweep.run(&["--restart"]));
    assert_eq!(sweep.samples().len(), 36);
    let aside = fs::read_dir(sweep.path("results")).unwrap().flatten();
    assert_eq!(aside.filter(|entry| entry.file_name().to_string_lossy().starts_with("before-")).count(), 1);
}

/// Slow enough to be interrupted anywhere, and each call leaves a trace of its own.
const SLOW: &str = r#"
name = "slow"
[matrix]
number = [1, 2, 3]
[run]
bench = "command"
sequence = ["write", "read"]
[run.steps]
write = '''sleep 0.01; SAY write {number}'''
read = '''sleep 0.01; SAY read {number}; echo some more'''
[measure]
repeat = 3
[[system]]
name = "native"
setup = "echo {number} > FOLDER/set-up"
teardown = "rm FOLDER/set-up"
"#;

/// Each step of each point of each block was measured once.
#[track_caller]
fn each_once(samples: &[Sample]) {
    let mut seen: BTreeMap<(String, u64, u32), usize> = BTreeMap::new();
    for sample in samples {
        let number = sample.parameters["number"].as_u64().unwrap();
        *seen.entry((sample.op.clone(), number, sample.repeat)).or_default() += 1;
    }
    assert_eq!(seen.len(), 2 * 3 * 3, "{seen:?}");
    assert!(seen.values().all(|count| *count == 1), "{seen:?}");
}

#[test]
fn a_kill_at_any_moment_loses_and_doubles_nothing() {
    let sweep = Sweep::new(SLOW);
    let mut before = 0;
    for turn in 0..12 {
        let mut child = sweep.start();
        thread::sleep(Duration::from_millis(20 + 17 * turn));
        child.kill().unwrap();
        child.wait().unwrap();
        if sweep.path("results/samples.jsonl").exists() {
            let now = sweep.samples().len();
            assert!(now + 1 >= before, "{before} samples became {now}");
            before = now;
        }
    }
    done(&sweep.run(&[]));
    each_once(&sweep.samples());
    let runs: BTreeSet<_> = sweep.environments().into_iter().map(|environment| environment.run).collect();
    assert_eq!(runs.len(), 1, "it stays one run");
}

#[test]
fn ctrl_c_keeps_what_is_done_and_cleans_up() {
    let sweep = Sweep::new(&SLOW.replace("sleep 0.01; SAY read", "touch FOLDER/reading; sleep 30; SAY read"));
    let child = sweep.command(&[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(&sweep.path("reading"));
    assert!(sweep.path("set-up").exists());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert!(said(&output).contains("1 steps are done") && said(&output).contains("goes on"), "{}", said(&output));
    assert!(!sweep.path("set-up").exists(), "the teardown is run all the same");
    assert_eq!(sweep.samples().len(), 1);
}

#[track_caller]
fn wait_for(path: &Path) {
    let end = Instant::now() + Duration::from_secs(20);
    while !path.exists() {
        assert!(Instant::now() < end, "{} does not come", path.display());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn points_go_on_until_they_are_certain() {
    let text = r#"
name = "until"
[matrix]
spread = [0, 50]
[run]
bench = "command"
[run.steps]
go = '''n=$(cat FOLDER/n 2>/dev/null || echo 0); echo $((n + 1)) > FOLDER/n; SAY go $((100 + n % 2 * {spread}))'''
[measure]
repeat = 2
until = { statistic = "median", width = "5%", most = 9 }
[[system]]
name = "native"
"#;
    let sweep = Sweep::new(text);
    done(&sweep.run(&[]));
    let count = |spread: u64| sweep.samples().iter().filter(|sample| sample.parameters["spread"] == spread).count();
    assert_eq!(count(0), 6, "an interval of the median takes six");
    assert!((7..=9).contains(&count(50)), "{}", count(50));
}

/// Each of two waits for the other.
const MEET: &str = r#"
name = "meet"
[run]
bench = "command"
sequence = ["write", "write+read"]
[run.steps]
write = '''touch FOLDER/w; while [ {step} != write ] && [ ! -e FOLDER/r ]; do sleep 0.01; done; SAY write 1'''
read = '''touch FOLDER/r; while [ ! -e FOLDER/w ]; do sleep 0.01; done; SAY read 2'''
[measure]
repeat = 1
timeout = "20s"
[[system]]
name = "native"
"#;

#[test]
fn parts_of_a_step_run_at_once() {
    let sweep = Sweep::new(MEET);
    done(&sweep.run(&[]));
    let ops: Vec<String> = sweep.samples().into_iter().map(|sample| sample.op).collect();
    assert_eq!(ops, ["write", "write (write+read)", "read (write+read)"]);
}

#[test]
fn systems_are_measured_together() {
    let text = r#"
name = "together"
[run]
bench = "command"
together = "both"
[run.steps]
go = '''touch FOLDER/{system}; SAY go 1'''
[measure]
repeat = 1
[[system]]
name = "a"
[[system]]
name = "b"
"#;
    let sweep = Sweep::new(text);
    done(&sweep.run(&[]));
    let mut seen: Vec<(String, String)> =
        sweep.samples().into_iter().map(|sample| (sample.system, sample.op)).collect();
    seen.sort();
    let expected = [("a", "go"), ("a", "go (all)"), ("b", "go"), ("b", "go (all)")];
    assert_eq!(seen, expected.map(|(system, op)| (system.to_owned(), op.to_owned())));
}

#[test]
fn what_is_expected_is_judged() {
    let expect = |bound: &str| {
        format!(
            "{PLAIN}[[expect]]\nop = 'read'\nreference = {{ op = 'write' }}\nat_least = '{bound} * reference'\nwhy = 'caches'\n"
        )
    };
    let sweep = Sweep::new(&expect("2"));
    let shown = done(&sweep.run(&[]));
    assert!(shown.contains("PASS (6 compared)") && shown.contains("why: caches"), "{shown}");
    sweep.write(&expect("2.5"));
    let output = sweep.run(&["--judge"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("DIFFERS") && said(&output).contains("-20.0 %"), "{}", said(&output));
    assert_eq!(sweep.samples().len(), 36, "it was only judged");
}

#[test]
fn commands_see_their_point() {
    let text = r#"
name = "commands"
[values]
word = "unset"
[matrix]
size = ["4k", "8k"]
[run]
bench = "command"
[run.steps]
go = '''touch {dir}/aqueduct-sweep-0.data.00000007; SAY go 1'''
[measure]
repeat = 1
[[system]]
name = "native"
dir = "FOLDER"
start = "echo start {word} >> FOLDER/log"
setup = "echo setup {size} >> FOLDER/log"
before = "echo before {system} >> FOLDER/log"
teardown = "echo teardown {size} >> FOLDER/log"
stop = "echo stop >> FOLDER/log"
"#;
    let sweep = Sweep::new(text);
    done(&sweep.run(&["--set", "word=hello"]));
    let log = fs::read_to_string(sweep.path("log")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!((lines[0], lines[7], lines.len()), ("start hello", "stop", 8));
    assert_eq!(lines[1].replace("setup", "teardown"), lines[3]);
    assert_eq!(lines[2], "before native");
    assert!(!sweep.path("aqueduct-sweep-0.data.00000007").exists(), "what was measured with is removed");
    let output = sweep.run(&["--set", "other=1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("word"), "{}", said(&output));
}

#[test]
fn what_fails_stops_or_is_passed_over() {
    let text =
        PLAIN.replace("SAY read 200", "test {system} = native && SAY read 200 || {{ echo broken >&2; exit 3; }}");
    let sweep = Sweep::new(&text.replace("warmup = 1\n", ""));
    let output = sweep.run(&[]);
    assert_eq!(output.status.code(), Some(1));
    let text = said(&output);
    assert!(text.contains("exit code 3") && text.contains("broken") && text.contains("--keep-going"), "{text}");
    let output = sweep.run(&["--keep-going"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("6 points failed"), "{}", said(&output));
    let samples = sweep.samples();
    assert_eq!(samples.iter().filter(|sample| sample.op == "read").count(), 6, "native only");
    assert_eq!(samples.iter().filter(|sample| sample.op == "write").count(), 12, "what was measured stays");
}

#[test]
fn what_says_nothing_of_use_has_failed() {
    for (command, why) in
        [("true", "measured nothing"), ("echo '{{\"op\": 5}}'", "says no measurement"), ("sleep 30", "not ended after")]
    {
        let sweep = Sweep::new(&format!(
            "name = 'x'\n[run]\nbench = 'command'\n[run.steps]\ngo = '''{command}'''\n[measure]\ntimeout = '300ms'\n[[system]]\nname = 'a'\n"
        ));
        let output = sweep.run(&[]);
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains(why), "{command}: {}", said(&output));
    }
}

#[test]
fn mistakes_are_told_with_their_place() {
    let cases = [
        ("repeat = 2", "repeat = 'two'", "sweep.toml:14:10"),
        ("bench = \"command\"", "bench = \"commands\"", "sweep.toml:8:9"),
        ("[\"write\", \"read\"]", "[\"write\", \"raed\"]", "[run.steps] has no raed"),
        ("transfer = [", "dir = [", "has a meaning of its own"),
        ("write 100", "write {size}", "{size} stands for nothing; there are"),
        ("name = \"ours\"", "name = \"native\"", "two systems called native"),
        ("name = \"ours\"", "name = \"ours\"\nlaunch = \"x\"", "launch means nothing to a command"),
        ("warmup = 1", "until = { width = '5%', most = 1 }", "most is less than repeat"),
        (
            "warmup = 1",
            "until = { statistic = 'max', width = '5%', most = 9 }",
            "interval of the median and of the mean",
        ),
        ("[run]", "[run]\nbytes = '{transfer} * 1024t * 1024t'", "more than can be counted"),
        ("[run]", "[run]\nbytes = 'some'", "some is no size"),
        ("[run]", "[run]\ntakes = 'long'", "this is no time"),
        ("warmup = 1", "memory = 'much'", "this is no size"),
        ("name = \"plain\"", "name = \"../plain\"", "name of a folder"),
        ("seed = 7", "seed = 7\nskip = [{ transfer = '>= 1' }]", "all points are skipped"),
        ("seed = 7", "seed = 7\nskip = [{ size = 1 }]", "size is no parameter"),
    ];
    for (find, replace, why) in cases {
        assert!(PLAIN.contains(find), "{find}");
        let sweep = Sweep::new(&PLAIN.replace(find, replace));
        let output = sweep.run(&["--dry-run"]);
        assert_eq!(output.status.code(), Some(2), "{replace}: {}", said(&output));
        assert!(said(&output).contains(why), "{replace}: {}", said(&output));
    }
    let sweep = Sweep::new(PLAIN);
    assert!(said(&sweep.run(&["--reduced"])).contains("[reduced]"));
}

#[test]
fn a_plan_is_shown_with_its_cost() {
    let text = PLAIN.replace("[run]\n", "[run]\nbytes = '{transfer} * 1024'\ntakes = '2s'\n");
    let sweep = Sweep::new(&text);
    let shown = done(&sweep.run(&["--dry-run"]));
    // 3 blocks of 2 systems by 2 steps by (4 + 64 + 1024) MiB.
    for part in ["3 of transfer; 2 of native, ours", "Calls     36", "12.8 GiB; at most 1.0 GiB", "about 72 s"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!sweep.path("results").exists(), "nothing was measured");
}

#[test]
fn a_target_must_be_there_and_have_room() {
    let text = PLAIN.replace("name = \"ours\"", "name = \"ours\"\ndir = \"FOLDER/nowhere\"");
    let output = Sweep::new(&text).run(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("cannot measure ours in") && said(&output).contains("nowhere"), "{}", said(&output));
    let started = text.replace("name = \"native\"", "name = \"native\"\nstart = \"mkdir FOLDER/nowhere\"");
    done(&Sweep::new(&started).run(&[]));
    let text = PLAIN.replace("name = \"ours\"", "name = \"ours\"\ndir = \"FOLDER\"");
    let output = Sweep::new(&text.replace("[run]\n", "[run]\nbytes = '{transfer} * 1t'\n")).run(&["--dry-run"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("too little room"), "{}", said(&output));
}

#[test]
fn parquet_is_written_or_refused_at_once() {
    let sweep = Sweep::new(PLAIN);
    let file = sweep.path("a.parquet");
    let output = sweep.run(&["--parquet", file.to_str().unwrap()]);
    if cfg!(feature = "reports") {
        done(&output);
        assert!(fs::read(&file).unwrap().starts_with(b"PAR1"));
    } else {
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).contains("--features reports") && !sweep.path("results").exists());
    }
}

/// What a sweep of a benchmark of ours has measured: operations with their units, in order.
#[track_caller]
fn ours(run: &str) -> Vec<(String, String)> {
    let sweep = Sweep::new(&format!(
        "name = 'ours'\n{run}\n[measure]\nrepeat = 1\ntimeout = '60s'\n[[system]]\nname = 'native'\ndir = 'FOLDER'\n"
    ));
    done(&sweep.run(&[]));
    let left: Vec<_> = fs::read_dir(sweep.folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left.len(), 2, "the file and the results: {left:?}");
    let samples = sweep.samples();
    assert!(samples.iter().all(|sample| sample.value > 0.0), "{samples:?}");
    samples.into_iter().map(|sample| (sample.op, sample.unit)).collect()
}

#[test]
fn io_is_measured_with_ranks() {
    let found = ours(
        "[matrix]\ntransfer = ['64k']\n[run]\nbench = 'io'\noptions = '--ranks 2 -b 1m -t {transfer} -F'\nsequence = ['write', 'read', 'write+read']",
    );
    let ops: Vec<&str> = found.iter().map(|(op, _)| op.as_str()).collect();
    assert_eq!(ops, ["write", "read", "write (write+read)", "read (write+read)"]);
    assert!(found.iter().all(|(_, unit)| unit == "MiB/s"), "{found:?}");
}

#[test]
fn names_and_messages_are_measured() {
    let found = ours("[run]\nbench = 'meta'\noptions = '-n 20 -F'");
    assert!(found.len() > 2 && found.iter().all(|(_, unit)| unit == "op/s"), "{found:?}");
    let found = ours("[run]\nbench = 'net'\noptions = 'latency -m 8:32 -i 20 -x 5'");
    assert_eq!(found.len(), 3, "8, 16 and 32 bytes: {found:?}");
}
