//! Whole runs of `bench io`: ranks as processes, on a directory and against a server.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use aqueduct_bench::record::Measured;
use aqueduct_node::{ExportSettings, ServeConfig, Server, SquashChoice};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_aqueduct-bench");

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

fn command(file: &str, options: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["io", "-o", file]).args(options.split_whitespace());
    command
}

fn io(file: &str, options: &str) -> Output {
    command(file, options).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a run prints that comes to its end.
#[track_caller]
fn done(file: &str, options: &str) -> String {
    let output = io(file, options);
    assert!(output.status.success(), "{options}: {} {}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// What a run says that fails, in order: with one message of three lines, which no rank repeats.
#[track_caller]
fn refused(file: &str, options: &str) -> String {
    let output = io(file, options);
    let said = text(&output.stderr);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{options}: {:?} {said}", output.status);
    assert_eq!(said.matches("aqueduct: ").count(), 1, "{options}: {said}");
    assert!(said.contains("why: ") && said.contains("do: "), "{options}: {said}");
    said
}

/// A run as JSON.
#[track_caller]
fn json(file: &str, options: &str) -> Value {
    serde_json::from_str(&done(file, &format!("{options} -O summaryFormat=JSON"))).unwrap()
}

fn path(directory: &tempfile::TempDir, name: &str) -> String {
    directory.path().join(name).to_str().unwrap().to_owned()
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn tables_and_json_say_the_same_of_a_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "f");
    let table = done(&file, "-b 256k -t 64k -s 2 -i 2 -C --ranks 3");
    assert!(table.starts_with("IOR-4.0.0+aqueduct-"), "{table}");
    let rows = |op: &str| table.lines().filter(|line| line.starts_with(op)).map(str::to_owned).collect::<Vec<_>>();
    // Two repetitions, and a row of the summary.
    assert_eq!((rows("write ").len(), rows("read ").len(), rows("remove ").len()), (3, 3, 2), "{table}");
    let row: Vec<_> = rows("write ")[0].split_whitespace().map(str::to_owned).collect();
    assert_eq!((row.len(), &row[4][..], &row[5][..], &row[10][..]), (11, "256.00", "64.00", "0"), "{table}");
    let summary: Vec<_> = rows("read ")[2].split_whitespace().map(str::to_owned).collect();
    assert_eq!(summary.len(), 27, "{table}");
    assert_eq!(summary[12..], "0 3 3 2 0 1 1 0 0 2 262144 65536 1.5 POSIX 0".split(' ').collect::<Vec<_>>(), "{table}");
    assert!(names(directory.path()).is_empty());
    let value = json(&file, "-b 256k -t 64k -s 2 -i 2 -C -N 3");
    let results = value["tests"][0]["Results"].as_array().unwrap();
    let accesses: Vec<_> = results.iter().map(|result| result["access"].as_str().unwrap()).collect();
    assert_eq!(accesses, ["write", "read", "remove", "write", "read", "remove"]);
    assert_eq!(
        (value["tests"][0]["Options"]["tasks"].as_u64(), value["summary"].as_array().unwrap().len()),
        (Some(3), 2)
    );
}

#[test]
fn every_layout_is_written_whole_and_verified() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "f");
    for api in ["posix", "uring --depth 3"] {
        for layout in [
            "-s 3 -b 64k -t 16k",
            "-s 16 -b 16k -t 16k",
            "-F -s 2 -b 64k -t 16k",
            "-F -b 64k -t 8k -z -C",
            "-b 64k -t 8k -z",
            "-F -u -b 32k -t 8k -Z -Z -X 3",
        ] {
            for data in ["-l t", "-l o", "-l i", "-l r"] {
                let options = format!("-a {api} {layout} {data} -N 3 -w -W -r -R -e -g -k");
                let said = done(&file, &options);
                assert!(!said.contains("WARNING: incorrect"), "{options}: {said}");
            }
            // All of it is there, and no more.
            let segments = |count: u64| count * 3;
            let expected = match layout {
                "-s 3 -b 64k -t 16k" => segments(3 * 64),
                "-s 16 -b 16k -t 16k" => segments(16 * 16),
                "-F -s 2 -b 64k -t 16k" => segments(2 * 64),
                "-F -u -b 32k -t 8k -Z -Z -X 3" => segments(32),
                _ => segments(64),
            };
            let mut files = vec![directory.path().to_owned()];
            let mut bytes = 0;
            while let Some(path) = files.pop() {
                match fs::read_dir(&path) {
                    Ok(entries) => files.extend(entries.map(|entry| entry.unwrap().path())),
                    Err(_) => bytes += fs::metadata(&path).unwrap().size(),
                }
            }
            assert_eq!(bytes, expected << 10, "{layout}");
            for name in names(directory.path()) {
                let path = directory.path().join(name);
                fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path)).unwrap();
            }
        }
    }
}

#[test]
fn planted_damage_is_found_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "f");
    done(&file, "-N 2 -F -b 64k -t 16k -w -k -G 7 -l o");
    let damaged = File::options().write(true).open(path(&directory, "f.00000001")).unwrap();
    damaged.write_all_at(b"x", 40_003).unwrap();
    let lines = path(&directory, "m");
    let output = io(&file, &format!("-N 2 -F -b 64k -t 16k -R -k -G 7 -l o --measured {lines}"));
    assert!(!Path::new(&lines).exists(), "a run that read wrong data is no measurement");
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("[1]   File name = ") && said.contains("f.00000001\n"), "{said}");
    assert!(
        said.contains("[1]   File byte offset = 40000: 1 wrong")
            && said.contains("Expected: 0x")
            && said.contains("Actual:   0x"),
        "{said}"
    );
    assert!(said.contains("WARNING: incorrect data on read (1 errors found)"), "{said}");
    // It is no part of what JSON's readers get.
    let output = io(&file, "-N 2 -F -b 64k -t 16k -R -k -G 7 -l o -C -O summaryFormat=JSON");
    assert!(serde_json::from_slice::<Value>(&output.stdout).is_ok() && output.status.code() == Some(1));
    assert!(text(&output.stderr).contains("[0]   File byte offset = 40000"), "the other task reads it");
    // Another mark: nothing of it is right.
    assert!(refused(&file, "-N 2 -F -b 64k -t 16k -R -q -k -G 8 -l o").contains("words of data are wrong"));
    // With -w a good file is there again; -K keeps only what is wrong.
    done(&file, "-N 2 -F -b 64k -t 16k -w -R -K");
    assert!(names(directory.path()).is_empty());
}

#[test]
fn the_deadline_stops_all_and_wear_out_makes_them_equal() {
    let directory = tempfile::tempdir().unwrap();
    let (file, status) = (path(&directory, "f"), path(&directory, "status"));
    let wear_out = format!("-O stoneWallingWearOut=1,stoneWallingStatusFile={status}");
    let options = format!("-N 2 -F -b 1t -t 4k -Y -D 0.3 -w -W -k -v {wear_out}");
    let said = done(&file, &options);
    assert!(
        said.contains("Maybe caused by deadlineForStonewalling") && said.contains("stonewalling pairs accessed min"),
        "{said}"
    );
    let sizes = ["f.00000000", "f.00000001"].map(|name| fs::metadata(path(&directory, name)).unwrap().len());
    assert!(sizes[0] == sizes[1] && sizes[0] > 0, "{sizes:?}");
    let pairs: u64 = fs::read_to_string(&status).unwrap().trim().parse().unwrap();
    assert_eq!(pairs * 4096, sizes[0]);
    // Another run reads as much, and no more.
    let value = json(&file, &format!("-N 2 -F -b 1t -t 4k -r -k -O stoneWallingStatusFile={status}"));
    assert_eq!(value["summary"][0]["xsizeMiB"].as_f64().unwrap() * 1_048_576.0, (2 * sizes[0]) as f64);
    // Without wearing out each stops where it is, and what the other has written is read.
    done(&file, "-N 2 -F -b 1t -t 4k -D 0.2 -C");
}

#[test]
fn what_was_measured_is_appended_for_sweeps() {
    let directory = tempfile::tempdir().unwrap();
    let (file, lines) = (path(&directory, "f"), path(&directory, "m"));
    for _ in 0..2 {
        done(&file, &format!("-N 2 -b 1m -t 64k -i 2 --latency --measured {lines}"));
    }
    let all: Vec<Measured> =
        fs::read_to_string(&lines).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(all.len(), 8);
    for (at, line) in all.iter().enumerate() {
        assert_eq!(
            (line.op.as_str(), line.repeat),
            ([["write", "read"], ["write", "read"]][at / 2 % 2][at % 2], at as u32 / 2 % 2)
        );
        assert!(line.value > 0.0 && line.unit == "MiB/s" && line.seconds > 0.0);
        assert_eq!(line.series.iter().sum::<u64>(), 2 << 20);
        assert_eq!(line.more["ranks"].as_array().unwrap().len(), 2);
        let percentile = |name: &str| line.more[name].as_f64().unwrap();
        assert!(
            percentile("latency_p50") <= percentile("latency_p99")
                && percentile("latency_p99") <= percentile("latency_max")
        );
    }
    // What they say is what a plan is judged by.
    let plan = done(&file, &format!("-N 2 -b 1m -t 64k --measured {lines} --dry-run"));
    assert!(
        plan.contains("bytes written       : 2 MiB") && plan.contains("estimated time      : 0 s, at the rates of"),
        "{plan}"
    );
    assert!(names(directory.path()) == ["m"], "nothing was done");
}

#[test]
fn results_go_to_a_file_where_that_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let (file, summary) = (path(&directory, "f"), path(&directory, "s"));
    fs::write(&file, "old").unwrap();
    let said = done(&file, &format!("-b 64k -t 64k -O summaryFormat=CSV -O summaryFile={summary}"));
    assert!(said.contains("existed already and was deleted"), "{said}");
    let lines = fs::read_to_string(&summary).unwrap();
    assert_eq!(
        lines.lines().map(|line| line.split(',').next().unwrap()).collect::<Vec<_>>(),
        ["access", "write", "read"]
    );
}

#[test]
fn what_cannot_be_done_is_said_before_anything_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let file = path(&directory, "f");
    for (options, expected) in [
        ("-b 1m -t 3k", "whole transfers"),
        ("-C -Z", "choose one"),
        ("-F -N 2 -b 8388608t", "no file system holds so much"),
        ("-N 3 -b 100t", "there is room for"),
        ("-r -N 2", "No such file"),
        ("-b 1m -O nonsense=1", "no option 'nonsense'"),
        ("-O summaryFile=/no/such/file", "/no/such/file"),
        ("-N 2 --measured /no/such/file -b 64k -t 64k", "/no/such/file"),
        ("-a aqueduct", "HOST:PORT:/EXPORT/PATH"),
    ] {
        assert!(refused(&file, options).contains(expected), "{options}");
        assert!(names(directory.path()).is_empty(), "{options}");
    }
    assert!(refused(&path(&directory, "no/f"), "-N 2").contains("make the directory"));
    // A file that others have made is not removed because it is too short.
    fs::write(&file, "short").unwrap();
    assert!(refused(&file, "-r -b 64k -t 64k").contains("the file ends there"));
    assert_eq!(names(directory.path()), ["f"]);
}

/// Interrupts a run as soon as its file is there.
fn interrupt(mut child: Child, file: &str) -> Output {
    let from = Instant::now();
    while !fs::metadata(file).is_ok_and(|metadata| metadata.len() > 0) && from.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    while child.try_wait().unwrap().is_none() {
        assert!(from.elapsed() < LONG, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn an_interruption_keeps_what_was_measured_and_removes_files() {
    let directory = tempfile::tempdir().unwrap();
    let (file, lines) = (path(&directory, "f"), path(&directory, "m"));
    // The file is removed after each repetition: with -d it is there again when the second has begun.
    let mut endless = command(&file, &format!("-N 2 -b 1t -t 4k -w -Y -i 3 -D 30 --measured {lines}"));
    let output = interrupt(endless.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), &file);
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{said}{errors}");
    assert!(errors.contains("interrupted: 0 of 3"), "{errors}");
    assert!(said.contains("Summary of all tests:"), "{said}");
    assert!(names(directory.path()).is_empty());
    let mut kept = command(&file, "-N 2 -F -b 1t -t 4k -w -Y -D 30 -k");
    let first = path(&directory, "f.00000000");
    let output = interrupt(kept.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), &first);
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(names(directory.path()), ["f.00000000", "f.00000001"]);
}

/// Has a server serve a directory while `test` runs.
fn with_server(directory: &Path, test: impl FnOnce(&str)) {
    let export =
        ExportSettings { name: Some("/e/x".into()), squash: Some(SquashChoice::None), ..ExportSettings::of(directory) };
    let config = ServeConfig {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        exports: vec![export.resolve().unwrap()],
        ..ServeConfig::default()
    };
    let server = Server::start(&config).unwrap();
    test(&format!("{}:/e/x", server.addresses()[0]));
    server.stop();
}

#[test]
fn aqueducts_client_is_measured_without_a_mount() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("d")).unwrap();
    with_server(directory.path(), |target| {
        let file = format!("{target}/d/f");
        // Transfers of more than one request, too.
        for layout in ["-b 256k -t 64k -s 2", "-F -u -b 5m -t 2560k -C", "-b 128k -t 8k -z", "-F -b 64k -t 16k -m -i 2"]
        {
            for data in ["-l t", "-l o --depth 4"] {
                let options = format!("-a aqueduct -N 2 {layout} {data} -w -W -r -R -e");
                let said = done(&file, &options);
                assert!(
                    said.contains("api                 : AQUEDUCT") && !said.contains("WARNING"),
                    "{options}: {said}"
                );
                assert!(names(&directory.path().join("d")).is_empty(), "{options}");
            }
        }
        done(&file, "-a aqueduct -b 3m -t 3m -w -k -G 5 --depth 2");
        let damaged = File::options().write(true).open(directory.path().join("d/f")).unwrap();
        damaged.write_all_at(b"x", (2 << 20) + 17).unwrap();
        let output = io(&file, "-a aqueduct -b 3m -t 3m -R -k -G 5 --depth 2");
        assert!(text(&output.stdout).contains("File byte offset = 2097168"), "{}", text(&output.stdout));
        assert!(refused(&file, "-a aqueduct -b 6m -t 3m -r").contains("the file ends there"));
        assert!(refused(&format!("{target}/no/f"), "-a aqueduct -b 8k -t 8k").contains("looking for the directory"));
        let unknown = refused(&file.replace("/e/x", "/y"), "-a aqueduct");
        assert!(unknown.contains("no export '/y/d'; it has: /e/x"), "{unknown}");
        assert!(refused(&file, "-a aqueduct -b 900t").contains("there is room for"));
    });
    assert!(refused("127.0.0.1:1:/e/f", "-a aqueduct -N 2").contains("connecting to 127.0.0.1:1"));
}
