//! An export that is held to a rate.

use std::fs;
use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::{Server, aqueduct, directory, test};

const RATE: u64 = 20_000_000;

/// Each way: a second's worth, in two files.
const FILE: usize = 10_000_000;

/// What two clients may have of that sooner: what a bucket saves.
const AHEAD: Duration = Duration::from_millis(20);

#[test]
fn clients_together_get_no_more_than_the_rate() {
    test(|| {
        let export = directory();
        for name in ["a", "b"] {
            fs::write(export.path().join(name), vec![7; FILE]).unwrap();
        }
        let server =
            Server::start_with(&mut aqueduct(), &["--listen", "127.0.0.1:0", "--rate", "20MB/s"], &[export.path()]);
        let mounts = [server.mount(export.path()), server.mount(export.path())];
        let second = Duration::from_secs_f64((2 * FILE) as f64 / RATE as f64) - AHEAD;

        let start = Instant::now();
        std::thread::scope(|scope| {
            for (mount, name) in mounts.iter().zip(["a", "b"]) {
                scope.spawn(move || {
                    let mut content = Vec::new();
                    fs::File::open(mount.join(name)).unwrap().read_to_end(&mut content).unwrap();
                    assert!(content.len() == FILE && content.iter().all(|byte| *byte == 7));
                });
            }
        });
        assert!(start.elapsed() >= second, "read in {:?}", start.elapsed());

        let start = Instant::now();
        std::thread::scope(|scope| {
            for (mount, name) in mounts.iter().zip(["c", "d"]) {
                scope.spawn(move || {
                    let content = vec![8; FILE];
                    fs::write(mount.join(name), &content).unwrap();
                    fs::File::open(mount.join(name)).unwrap().sync_all().unwrap();
                });
            }
        });
        assert!(start.elapsed() >= second, "written in {:?}", start.elapsed());
        assert_eq!(fs::read(export.path().join("d")).unwrap(), vec![8; FILE]);

        let status = server.status();
        let data = &status["exports"][0]["data"];
        assert_eq!(data["rate"], json!(RATE), "{status}");
        assert!(data["throttled"].as_u64().is_some_and(|waits| waits > 10), "{status}");
    });
}

#[test]
fn an_export_is_unlimited_unless_it_says_otherwise() {
    test(|| {
        let export = directory();
        let server = Server::start(&[export.path()]);
        let status = server.status();
        let data = &status["exports"][0]["data"];
        assert!(data.is_object() && data["rate"].is_null() && data["throttled"] == json!(0), "{status}");
    });
}
