//! The load program against a server of its own, and against one whose files can be looked at.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use aqueduct_node::{ExportSettings, ServeConfig, Server, SquashChoice};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_aqueduct-load");

fn load(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

fn measured(arguments: &[&str]) -> Value {
    let output = load(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 1);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What it says when it fails, which it does without a panic (101) or a signal.
fn refused(arguments: &[&str]) -> String {
    let output = load(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(1 | 2)) && output.stdout.is_empty(), "{arguments:?}: {said}");
    said
}

/// A server without a disk, in a process of its own.
struct Served(Child, String);

impl Served {
    fn start(size: &str) -> Served {
        let mut child = Command::new(PROGRAM).args(["serve", "--size", size]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let target = format!("{}:/", line.trim().strip_prefix("listening on ").unwrap());
        Served(child, target)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Has a server serve a directory while `test` runs.
fn with_directory(directory: &Path, test: impl FnOnce(&str)) {
    let export =
        ExportSettings { name: Some("/e".into()), squash: Some(SquashChoice::None), ..ExportSettings::of(directory) };
    let config = ServeConfig {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        exports: vec![export.resolve().unwrap()],
        ..ServeConfig::default()
    };
    let server = Server::start(&config).unwrap();
    test(&format!("{}:/e", server.addresses()[0]));
    server.stop();
}

fn io<'a>(target: &'a str, op: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["io", target, "--name", "f", "--op", op], more].concat()
}

#[test]
fn what_is_written_is_there_and_is_read() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("f.0"), vec![7; 2 << 20]).unwrap();
    with_directory(directory.path(), |target| {
        // The last block of each file is a short one.
        let sizes = ["--block", "64K", "--size", "200004", "--jobs", "2", "--depth", "3"];
        let written = measured(&io(target, "write", &sizes));
        assert_eq!((written["bytes"].as_u64(), written["operations"].as_u64()), (Some(200_004), Some(4)), "{written}");
        assert!(written["seconds"].as_f64() > Some(0.0) && written["cpu_seconds"].as_f64() > Some(0.0), "{written}");
        let files: Vec<_> = ["f.0", "f.1"].map(|name| std::fs::read(directory.path().join(name)).unwrap()).into();
        assert!(files.iter().all(|file| file.len() == 100_002), "they were emptied first");
        assert!(files[0] != files[1] && files[0][..4096] != files[0][4096..8192], "true data");
        let read = measured(&io(target, "read", &sizes));
        assert_eq!(read["bytes"].as_u64(), Some(200_004), "{read}");
        let random = measured(&io(target, "randread", &[&sizes[..], &["--seconds", "1"]].concat()));
        assert!(random["operations"].as_u64() > Some(10) && random["seconds"].as_f64() >= Some(1.0), "{random}");
        let random = measured(&io(target, "randwrite", &sizes));
        assert_eq!(random["operations"].as_u64(), Some(2), "as many whole blocks as there are: {random}");
        assert_eq!(std::fs::metadata(directory.path().join("f.1")).unwrap().len(), 100_002);
        let shared = ["--block", "4K", "--size", "64K", "--jobs", "4", "--shared"];
        measured(&io(target, "write", &shared));
        assert_eq!(std::fs::metadata(directory.path().join("f")).unwrap().len(), 65_536);
        assert_eq!(measured(&io(target, "read", &shared))["operations"].as_u64(), Some(16));
        assert!(refused(&io(target, "read", &["--block", "4K", "--size", "128K"])).contains("100002 bytes"));
    });
}

#[test]
fn a_server_without_a_disk_takes_any_name() {
    let served = Served::start("1M");
    let sizes = ["--block", "128K", "--size", "1M"];
    for op in ["write", "read", "randread", "randwrite"] {
        let moved = measured(&io(&served.1, op, &sizes));
        assert_eq!(moved["bytes"].as_u64(), Some(1 << 20), "{op}: {moved}");
    }
    assert!(refused(&io(&served.1, "read", &["--block", "1M", "--size", "2M"])).contains("1048576 bytes"));
}

#[test]
fn clients_have_sessions_of_their_own_in_one_process_or_more() {
    let served = Served::start("1M");
    for processes in ["1", "3"] {
        for op in ["read", "stat", "idle"] {
            let common = ["sessions", &served.1, "--clients", "20", "--seconds", "1", "--name", "any"];
            let worked = measured(&[&common[..], &["--op", op, "--processes", processes]].concat());
            let count = |name: &str| worked[name].as_u64().unwrap();
            assert_eq!((count("clients"), count("errors")), (20, 0), "{worked}");
            assert_eq!(count("least") > 0, op != "idle", "each has its turn: {worked}");
            assert!(count("least") <= count("median") && count("median") <= count("greatest"), "{worked}");
            assert_eq!(count("bytes"), if op == "read" { count("operations") * 4096 } else { 0 }, "{worked}");
        }
    }
}

#[test]
fn what_cannot_be_meant_is_said() {
    let nobody = "127.0.0.1:1:/e"; // tcpmux, which nobody runs
    let sizes = ["--block", "4K", "--size", "1M"];
    assert!(refused(&io(nobody, "read", &sizes)).contains("cannot connect to 127.0.0.1:1"));
    assert!(refused(&io("here", "read", &sizes)).contains("HOST:PORT:EXPORT"));
    assert!(refused(&io(nobody, "read", &["--block", "2M", "--size", "2M"])).contains("at most 1048576"));
    assert!(refused(&io(nobody, "read", &["--block", "1M", "--size", "2M", "--jobs", "4"])).contains("4 jobs"));
    assert!(refused(&io(nobody, "read", &[&sizes[..], &["--seconds", "1"]].concat())).contains("--seconds"));
    let much = ["--block", "1M", "--size", "1T", "--jobs", "1024", "--depth", "1024"];
    assert!(refused(&io(nobody, "read", &much)).contains("under way"));
    let sessions = |more: &[&str]| refused(&[&["sessions", nobody, "--seconds", "1"], more].concat());
    assert!(sessions(&["--clients", "2", "--op", "read"]).contains("--name"));
    assert!(sessions(&["--clients", "2", "--op", "stat", "--processes", "3"]).contains("3 processes"));
    assert!(sessions(&["--clients", "2", "--op", "stat"]).contains("of 2 clients 0 could connect"));
    assert!(sessions(&["--clients", "2", "--op", "stat", "--processes", "2"]).contains("one of the processes"));
    assert!(sessions(&["--clients", "0", "--op", "stat"]).contains("--clients"));
    let served = Served::start("1M");
    let taken = served.1.strip_suffix(":/").unwrap();
    assert!(refused(&["serve", "--size", "1M", "--listen", taken]).contains("cannot listen on"));
}
