//! `aqueduct diagnose` between real servers, of which one is held back: before a copy, and of one
//! that runs.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Process, SOON, Server, aqueduct, directory, mount_status, run_within, signal, wait_until, within};

/// What a diagnosis may take here, and what the test then waits for on a busy machine.
const SECONDS: &str = "14";
const LIMIT: Duration = Duration::from_secs(100);

fn data() -> TempDir {
    let folder = directory();
    fs::write(folder.path().join("data"), vec![7; 64 << 20]).unwrap();
    folder
}

fn server(folder: &Path, options: &[&str]) -> Server {
    let arguments = [&["--listen", "127.0.0.1:0", "--squash", "none"], options].concat();
    Server::start_with(&mut aqueduct(), &arguments, &[folder])
}

fn diagnose(source: &str, target: &str) -> Value {
    let mut command = aqueduct();
    let output = run_within(LIMIT, command.args(["diagnose", "--json", "--seconds", SECONDS, source, target]));
    serde_json::from_str(&output.text).unwrap_or_else(|error| panic!("{error}: {}", output.text))
}

/// One side is held to a rate. Nothing else is: neither the way to the servers nor the machine.
fn held_back(options: [&[&str]; 2], expected: (&str, usize)) {
    let (from, to) = (data(), directory());
    let servers = [server(from.path(), options[0]), server(to.path(), options[1])];
    let places = [servers[0].source(from.path()), servers[1].source(to.path())];
    let found = diagnose(&places[0], &places[1]);
    assert_eq!(found["verdict"], expected.0, "{found:#}");
    assert_eq!(found["target"], places[expected.1].as_str(), "{found:#}");
    assert!(found["confidence"].as_f64().unwrap() >= 0.7 && found["gain"].as_f64().unwrap() > 1.2, "{found:#}");
    assert!(found["evidence"].as_array().unwrap().len() >= 3, "{found:#}");
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0, "nothing stays behind");
}

#[test]
fn a_slow_source_is_named() {
    within(LIMIT, || held_back([&["--rate", "15MB/s"], &[]], ("read", 0)));
}

#[test]
fn a_slow_destination_is_named() {
    within(LIMIT, || held_back([&[], &["--rate", "15MB/s"]], ("write", 1)));
}

/// All that can be asked for, of a destination that is held to a rate: each part is measured, the
/// whole follows when the destination is slowed, and the page has it.
#[test]
fn more_is_tried_when_it_is_asked_for() {
    within(LIMIT, || {
        let (from, to, pages) = (data(), directory(), directory());
        let servers = [server(from.path(), &[]), server(to.path(), &["--rate", "20MB/s"])];
        let places = [servers[0].source(from.path()), servers[1].source(to.path())];
        let page = pages.path().join("page.html");
        let mut command = aqueduct();
        command.args(["diagnose", "--json", "--sweep", "--probe", "--seconds", "40", "--html"]);
        let output = run_within(LIMIT, command.arg(&page).args(&places));
        let found: Value =
            serde_json::from_str(&output.text).unwrap_or_else(|error| panic!("{error}: {}", output.text));
        let legs: Vec<&str> =
            found["legs"].as_array().unwrap().iter().map(|leg| leg["leg"].as_str().unwrap()).collect();
        for leg in ["read", "network from source", "read+network", "network to destination", "network+write", "all"] {
            assert!(legs.contains(&leg), "{leg}: {found:#}");
        }
        let followed = |stage: &str| {
            let probe = found["probes"].as_array().unwrap().iter().find(|probe| probe["stage"] == stage);
            probe.unwrap_or_else(|| panic!("{stage}: {found:#}"))["followed"].as_f64().unwrap()
        };
        // A quarter of its rate went to what slowed it.
        assert!(followed("write") < 0.97 && followed("read") > 0.0, "{found:#}");
        assert!(!found["sweep"].as_array().unwrap().is_empty(), "{found:#}");
        let page = fs::read_to_string(page).unwrap();
        assert!(page.contains("Distribution of throughput") && page.contains("Throughput by streams"), "{page}");
        assert!(page.contains("Activity of the destination against throughput"), "{page}");
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0, "nothing stays behind");
    });
}

#[test]
fn a_diagnosis_that_is_interrupted_leaves_nothing_behind() {
    within(LIMIT, || {
        let (from, to, log) = (data(), directory(), directory());
        let mut command = aqueduct();
        command.arg("diagnose").args([from.path(), to.path()]);
        let mut process = Process::start(&mut command, &log.path().join("log"));
        let is_writing = || {
            fs::read_dir(to.path())
                .unwrap()
                .flatten()
                .any(|made| fs::read_dir(made.path()).is_ok_and(|mut files| files.next().is_some()))
        };
        wait_until("it writes", SOON, is_writing);
        process.signal(Signal::TERM);
        let status = process.ended_within(SOON);
        assert_eq!(status.and_then(|status| status.code()), Some(128 + 15), "{status:?}");
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0, "nothing stays behind");
    });
}

#[test]
fn what_does_not_answer_is_said_in_time() {
    within(LIMIT, || {
        let (from, to) = (data(), directory());
        let server = server(from.path(), &[]);
        let place = server.source(from.path());
        server.process.stop();
        let began = Instant::now();
        let found = diagnose(&place, to.path().to_str().unwrap());
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        assert_eq!(found["verdict"], "undetermined", "{found:#}");
        assert_eq!(found["target"], server.address.as_str(), "{found:#}");
        assert!(found["evidence"][0].as_str().unwrap().contains("does not answer"), "{found:#}");
    });
}

/// A copy between two servers, and what the one that watches it says.
fn watched(options: [&[&str]; 2], while_it_runs: impl FnOnce(&[Server; 2], &Process)) -> (Value, [String; 2]) {
    let (from, to, log) = (data(), directory(), directory());
    let servers = [server(from.path(), options[0]), server(to.path(), options[1])];
    let places = [servers[0].source(from.path()), servers[1].source(to.path())];
    let mut copy = aqueduct();
    let copy = Process::start(copy.args(["cp", "-r", "--no-journal", &places[0], &places[1]]), &log.path().join("log"));
    let is_told = || !listed(copy.pid()).is_null();
    wait_until("the copy is listed", SOON, is_told);
    while_it_runs(&servers, &copy);
    let began = Instant::now();
    let pid = copy.pid().to_string();
    let output = run_within(LIMIT, aqueduct().args(["diagnose", "--json", "--seconds", "5", &pid]));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    (serde_json::from_str(&output.text).unwrap_or_else(|error| panic!("{error}: {}", output.text)), places)
}

/// What is listed of a copy.
fn listed(pid: u32) -> Value {
    let all = run_within(LIMIT, aqueduct().args(["transfers", "list", "--json"])).succeeded();
    let all: Value = serde_json::from_str(&all).unwrap();
    all.as_array().unwrap().iter().find(|told| told["pid"] == pid).cloned().unwrap_or_default()
}

#[test]
fn a_copy_that_runs_is_watched() {
    within(LIMIT, || {
        let check = |_: &[Server; 2], copy: &Process| {
            let told = listed(copy.pid());
            let percents = told["spent"].as_object().unwrap().values().map(|percent| percent.as_u64().unwrap());
            assert!([0, 100].contains(&percents.sum::<u64>()), "{told:#}");
        };
        let (found, places) = watched([&[], &["--rate", "4MB/s"]], check);
        assert_eq!((&found["verdict"], &found["stage"]), (&"write".into(), &"write".into()), "{found:#}");
        assert_eq!(found["target"], places[1].as_str(), "{found:#}");
        assert!(found["confidence"].as_f64().unwrap() >= 0.7, "{found:#}");
        let shares = found["spent"].as_array().unwrap().iter().map(|spent| spent["share"].as_f64().unwrap());
        assert!((shares.sum::<f64>() - 1.0).abs() < 0.03, "{found:#}");
    });
}

#[test]
fn a_copy_that_is_watched_for_a_second_goes_on() {
    within(LIMIT, || {
        let check = |_: &[Server; 2], copy: &Process| {
            let pid = copy.pid().to_string();
            let output = run_within(LIMIT, aqueduct().args(["diagnose", "--json", "--seconds", "1", &pid]));
            assert!(!output.text.contains("it ended"), "{}", output.text);
            assert!(!listed(copy.pid()).is_null(), "the copy is still under way");
        };
        watched([&[], &["--rate", "2MB/s"]], check);
    });
}

#[test]
fn a_copy_whose_server_hangs_is_said_to_wait_for_it() {
    within(LIMIT, || {
        let hang = |servers: &[Server; 2], _: &Process| servers[0].process.stop();
        let (found, places) = watched([&["--rate", "2MB/s"], &[]], hang);
        assert_eq!(found["verdict"], "undetermined", "{found:#}");
        let target = found["target"].as_str().unwrap();
        assert!(!target.is_empty() && places[0].starts_with(target), "{found:#}");
        let evidence = found["evidence"].to_string();
        assert!(evidence.contains("does not answer") && evidence.contains("does not tell"), "{found:#}");
    });
}

/// What is said of a mount that is read all the time, of which the server is or is not stopped.
fn of_mount(hangs: bool) -> (Value, String) {
    of_reader(hangs, |_, mount| mount.to_str().unwrap().to_owned())
}

/// What is said of a mount that is read all the time, or of its server.
fn of_reader(hangs: bool, subject: impl Fn(&str, &Path) -> String) -> (Value, String) {
    let folder = data();
    let server = server(folder.path(), &["--rate", "5MB/s"]);
    let mount = server.mount(folder.path());
    let mut file = fs::File::open(mount.join("data")).unwrap();
    // It reads until the mount ends: what comes of it is nothing to this test.
    std::thread::spawn(move || std::io::copy(&mut file, &mut std::io::sink()));
    wait_until("somebody reads", SOON, || {
        let told = mount_status(mount.path());
        told["activity"].as_array().is_some_and(|all| all.iter().any(|of| of["class"] == "read"))
    });
    if hangs {
        server.process.stop();
    }
    let began = Instant::now();
    let subject = subject(&server.address, mount.path());
    let output = run_within(LIMIT, aqueduct().args(["diagnose", "--json", "--seconds", "5", &subject]));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let found = serde_json::from_str(&output.text).unwrap_or_else(|error| panic!("{error}: {}", output.text));
    (found, server.address.clone())
}

#[test]
fn a_mount_is_watched() {
    within(LIMIT, || {
        let (found, server) = of_mount(false);
        assert_eq!((&found["verdict"], &found["stage"]), (&"read".into(), &"read".into()), "{found:#}");
        assert!(found["target"].as_str().unwrap().starts_with(&server), "{found:#}");
        assert!(found["advice"].as_str().unwrap().contains("is held to 5 MB/s"), "{found:#}");
    });
}

#[test]
fn a_mount_whose_server_hangs_is_said_to_wait_for_it() {
    within(LIMIT, || {
        let (found, server) = of_mount(true);
        assert_eq!(found["verdict"], "undetermined", "{found:#}");
        assert!(found["target"].as_str().unwrap().starts_with(&server), "{found:#}");
    });
}

/// What a mount tells of itself comes from its process alone. The kernel here keeps no attributes
/// of the root, so that it would have to ask for them to check a permission.
#[test]
fn a_mount_whose_server_is_away_tells_of_itself() {
    within(LIMIT, || {
        let folder = data();
        let server = server(folder.path(), &[]);
        let mount = server.mount_with(folder.path(), "cache=none,default_permissions");
        assert!(mount.join("data").exists());
        server.process.stop();
        let point = mount.path().to_str().unwrap();
        for words in [&["net", "rails", "--json", point][..], &["trace", "--json", point], &["status", "--once"]] {
            let output = run_within(LIMIT, aqueduct().args(words).current_dir("/"));
            let lines: Vec<_> =
                output.text.lines().filter(|line| words[0] != "status" || line.contains(point)).collect();
            assert!(
                !lines.is_empty() && lines.iter().all(|line| !line.contains("does not answer")),
                "{words:?}: {output:?}"
            );
        }
    });
}

/// Whatever is asked of the mount waits for a server that does not come back. So does the kernel's
/// look-up of a name.
#[test]
fn a_mount_that_hangs_holds_no_diagnosis_up() {
    within(LIMIT, || {
        let folder = data();
        let server = server(folder.path(), &[]);
        let mount = server.mount(folder.path());
        assert!(mount.join("data").exists());
        server.process.stop();
        let asked = |subject: &Path| {
            let began = Instant::now();
            let mut command = aqueduct();
            command.args(["diagnose", "--json", "--seconds", "1"]).arg(subject).current_dir("/");
            let output = run_within(LIMIT, &mut command);
            assert!(began.elapsed() < Duration::from_secs(30), "{}: {:?}", subject.display(), began.elapsed());
            output
        };
        let whole: Value = serde_json::from_str(&asked(mount.path()).text).unwrap();
        assert_eq!(whole["verdict"], "undetermined", "{whole:#}");
        let within = asked(&mount.join("nobody/asked/for/this")).failed();
        assert!(within.contains("does not answer") && within.contains("aqueduct status"), "{within}");
    });
}

/// The process of the mount is stopped, so that the kernel cannot take back what was asked of it.
#[test]
fn a_mount_whose_process_is_stopped_holds_no_command_up() {
    within(LIMIT, || {
        let folder = data();
        let server = server(folder.path(), &[]);
        let mount = server.mount(folder.path());
        let pid = mount_status(mount.path())["pid"].as_u64().unwrap() as u32;
        signal(pid, Signal::STOP);
        let point = mount.path().to_str().unwrap();
        let inside = mount.join("nobody/asked/for/this");
        let inside = inside.to_str().unwrap();
        let asked = [["diagnose", "--seconds", "1", point], ["diagnose", "--seconds", "1", inside]];
        let asked = asked.iter().map(|words| &words[..]).chain([&["status", "--once"][..]]);
        let told: Vec<_> = asked
            .map(|words| {
                let began = Instant::now();
                let output = run_within(LIMIT, aqueduct().args(words).current_dir("/"));
                (began.elapsed(), output.text)
            })
            .collect();
        signal(pid, Signal::CONT);
        for (took, text) in told {
            assert!(took < Duration::from_secs(30) && text.contains("does not answer"), "{took:?}: {text}");
        }
    });
}

#[test]
fn a_server_is_watched_by_itself() {
    within(LIMIT, || {
        let (found, server) = of_reader(false, |server, _| server.to_owned());
        let evidence = found["evidence"].to_string();
        assert!(evidence.contains(&format!("{server}, read: ")), "{found:#}");
        assert!(found["verdict"] != "none" && found["rate"].as_f64().unwrap() > 1e6, "{found:#}");
        let (found, server) = of_reader(true, |server, _| server.to_owned());
        assert_eq!(
            (&found["verdict"], &found["target"]),
            (&"undetermined".into(), &server.as_str().into()),
            "{found:#}"
        );
    });
}

#[test]
fn what_others_wrote_is_understood() {
    within(LIMIT, || {
        let folder = directory();
        let (network, files) = (folder.path().join("iperf3.json"), folder.path().join("ior.json"));
        let report = r#"{"start":{"connecting_to":{"host":"dtn2"}},"end":{"sum_sent":{},"sum_received":{"bits_per_second":1e9}}}"#;
        fs::write(&network, report).unwrap();
        let result = r#"{"access":"write","bwMiB":300.0}"#;
        fs::write(&files, format!(r#"{{"tests":[{{"Parameters":{{"testFileName":"/s/f"}},"Results":[{result}]}}]}}"#))
            .unwrap();
        let asked = |files: &[&Path]| {
            let mut command = aqueduct();
            command.args(["diagnose", "--json"]);
            files.iter().for_each(|file| _ = command.arg("--from").arg(file));
            run_within(LIMIT, &mut command)
        };
        let found: Value = serde_json::from_str(&asked(&[&network, &files]).succeeded()).unwrap();
        assert_eq!((&found["verdict"], &found["target"]), (&"network".into(), &"dtn2".into()), "{found:#}");
        let one = asked(&[&network]);
        assert_eq!(one.status.code(), Some(3), "{one:?}");
        let refused = asked(&[Path::new("/etc/hostname")]).failed();
        assert!(refused.contains("known are logs of GridFTP"), "{refused}");
    });
}
