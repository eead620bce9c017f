//! `aqueduct top` on a real server and mount, while somebody reads.

use std::fs::{self, File};
use std::time::Duration;

use serde_json::Value;

use crate::common::{Server, aqueduct, directory, run_within, within};

/// What it may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(150);

fn top(arguments: &[&str]) -> Value {
    let output = run_within(LIMIT, aqueduct().args(["top", "--once", "--json"]).args(arguments));
    serde_json::from_str(&output.text).unwrap_or_else(|error| panic!("{error}: {}", output.text))
}

#[test]
fn top_shows_who_reads_and_how_long_that_takes() {
    within(LIMIT, || {
        let folder = directory();
        fs::write(folder.path().join("data"), vec![7; 100 << 20]).unwrap();
        let arguments = ["--listen", "127.0.0.1:0", "--squash", "none", "--rate", "5MB/s"];
        let server = Server::start_with(&mut aqueduct(), &arguments, &[folder.path()]);
        let mount = server.mount(folder.path());
        let mut file = File::open(mount.join("data")).unwrap();
        // It reads until the mount ends: whether it comes to the end is nothing to this test.
        std::thread::spawn(move || std::io::copy(&mut file, &mut std::io::sink()));
        let point = mount.path().to_str().unwrap();
        let found = top(&["--interval", "3"]);
        let ours = found["mounts"].as_array().unwrap().iter().find(|row| row["target"] == point).unwrap();
        assert!(ours["bytes_read_per_second"].as_f64().unwrap() > 1e5, "{found:#}");
        assert!(ours["operations"].as_array().unwrap().iter().any(|of| of["operation"] == "READ"), "{found:#}");
        let found = top(&["--interval", "3", &server.address]);
        let session = &found["servers"][0]["sessions"][0];
        assert!(session["bytes_read_per_second"].as_f64().unwrap() > 1e5, "{found:#}");
        let shown = run_within(LIMIT, aqueduct().args(["top", "--once", &server.address])).succeeded();
        assert!(shown.contains("CLIENT") && shown.contains("UNDER WAY"), "{shown}");
        let silent = run_within(LIMIT, aqueduct().args(["top", "--once", "127.0.0.1:1"])).failed();
        assert!(silent.contains("cannot get the status"), "{silent}");
    });
}
