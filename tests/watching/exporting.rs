//! Metrics over HTTP: what a real Prometheus makes of them.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::{Mount, Process, SOON, Server, aqueduct, directory, have, run, test, wait_until, within};

/// The body that an exporter answers with, or its status line where that is not 200.
pub fn scrape(address: &str, header: &str) -> Result<String, String> {
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(SOON)).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    let status = head.lines().next().unwrap().to_owned();
    if status.contains(" 200 ") { Ok(body.to_owned()) } else { Err(status) }
}

/// Where a process says that it tells its metrics.
fn told_at(log: impl Fn() -> String) -> String {
    let mut address = None;
    wait_until("metrics are told", SOON, || {
        address = log().split_once("metrics are told on http://").and_then(|(_, rest)| {
            let (address, _) = rest.split_once("/metrics")?;
            Some(address.to_owned())
        });
        address.is_some()
    });
    address.unwrap()
}

fn server(folder: &Path, more: &[&str]) -> (Server, String) {
    let arguments = [&["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"], more].concat();
    let server = Server::start_with(&mut aqueduct(), &arguments, &[folder]);
    let address = told_at(|| server.process.output());
    (server, address)
}

/// A mount whose metrics are told at the second.
fn mount(server: &Server, folder: &Path) -> (Mount, String) {
    let address = crate::common::free_addresses(1).remove(0);
    let mount = server.mount_with(folder, &format!("metrics={address}"));
    (mount, address)
}

/// What `promtool check metrics` has to say of a text.
fn check(text: &str) {
    let mut tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    tool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.trim().is_empty(), "{said}\n{text}");
}

#[test]
fn promtool_has_nothing_to_say() {
    test(|| {
        if !have(&["promtool"]) {
            return;
        }
        let export = directory();
        let (server, of_server) = server(export.path(), &[]);
        let (mount, of_mount) = mount(&server, export.path());
        fs::write(mount.join("file"), vec![7; 1 << 20]).unwrap();
        let config = export.path().join("route.toml");
        let (listen, control) = (crate::common::free_addresses(1).remove(0), export.path().join("route.sock"));
        fs::write(&config, format!("listen = ['{listen}@net1']\ncontrol = '{}'\n", control.display())).unwrap();
        let mut command = aqueduct();
        command.arg("route").arg("--config").arg(&config).args(["--metrics", "127.0.0.1:0"]);
        let router = Process::start(&mut command, &export.path().join("log"));
        let of_router = told_at(|| router.output());
        let written = format!("aqueduct_export_written_bytes_total{{export=\"{}\"}} 1048576", export.path().display());
        wait_until("what was written is counted", SOON, || scrape(&of_server, "").unwrap().contains(&written));
        for (address, part) in [
            (&of_server, "aqueduct_server_operation_seconds_bucket{operation=\"Write\",le=\"+Inf\"}"),
            (&of_mount, "aqueduct_fuse_written_bytes_total 1048576"),
            (&of_router, "aqueduct_router_memory_bytes "),
        ] {
            let text = scrape(address, "").unwrap();
            assert!(text.contains(part), "{part}: {text}");
            check(&text);
        }
    });
}

#[test]
fn who_has_no_token_learns_nothing() {
    test(|| {
        let (export, home) = (directory(), directory());
        let token = home.path().join("token");
        fs::write(&token, "a-long-secret\n").unwrap();
        let (_server, address) = server(export.path(), &["--metrics-token", token.to_str().unwrap()]);
        let refused = scrape(&address, "").unwrap_err();
        assert!(refused.contains(" 401 "), "{refused}");
        assert!(
            scrape(&address, "Authorization: Bearer a-long-secret\r\n").unwrap().contains("aqueduct_server_sessions")
        );
        let open = run(aqueduct().args(["serve", "--metrics", "0.0.0.0:0"]).arg(export.path())).failed();
        assert!(open.contains("metrics_token") && open.contains("loopback"), "{open}");
    });
}

#[test]
fn what_a_job_does_is_counted_for_it() {
    test(|| {
        let export = directory();
        let (server, of_server) = server(export.path(), &[]);
        let mount = server.mount(export.path());
        // It writes until it is counted: the first requests of a process are of no job.
        let script = "while :; do head -c 1000 /dev/zero > \"$0/file\"; rm \"$0/file\"; sleep 0.05; done";
        let mut job =
            Command::new("sh").args(["-c", script]).arg(mount.path()).env("SLURM_JOB_ID", "4711").spawn().unwrap();
        let counted = "aqueduct_server_job_operations_total{job_id=\"4711\"}";
        wait_until("the job is counted", SOON, || scrape(&of_server, "").unwrap().contains(counted));
        job.kill().unwrap();
        job.wait().unwrap();
        let status = run(aqueduct().args(["status", "--json", &server.address])).succeeded();
        assert!(status.contains("\"4711\""), "{status}");
    });
}

/// What Prometheus says to a query.
fn query(address: &str, query: &str) -> Vec<Value> {
    let Ok(mut stream) = TcpStream::connect(address) else { return Vec::new() };
    stream.set_read_timeout(Some(SOON)).unwrap();
    let request = format!("GET /api/v1/query?query={query} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    let mut answer = String::new();
    if stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer)).is_err() {
        return Vec::new();
    }
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let document: Value = serde_json::from_str(body).unwrap_or_default();
    document["data"]["result"].as_array().cloned().unwrap_or_default()
}

#[test]
fn a_real_prometheus_scrapes_servers_and_mounts() {
    within(Duration::from_secs(180), || {
        if !have(&["prometheus", "promtool"]) {
            return;
        }
        let (export, home) = (directory(), directory());
        let token = home.path().join("token");
        fs::write(&token, "secret").unwrap();
        let (server, of_server) = server(export.path(), &["--metrics-token", token.to_str().unwrap()]);
        let (mount, of_mount) = mount(&server, export.path());
        fs::write(mount.join("file"), vec![7; 3 << 20]).unwrap();
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/prometheus/aqueduct.yml");
        let config = home.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n\
             - job_name: aqueduct-server\n  authorization: {{credentials_file: '{}'}}\n  static_configs: [{{targets: ['{of_server}']}}]\n\
             - job_name: aqueduct-mount\n  static_configs: [{{targets: ['{of_mount}']}}]\n",
            rules.display(),
            token.display()
        );
        fs::write(&config, text).unwrap();
        run(Command::new("promtool").args(["check", "config"]).arg(&config)).succeeded();
        let address = crate::common::free_addresses(1).remove(0);
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", home.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"));
        let _prometheus = Process::start(&mut command, &home.path().join("log"));
        let limit = Duration::from_secs(90);
        for (expression, labels) in [
            ("aqueduct_export_written_bytes_total==3145728", ("export", export.path().to_str().unwrap())),
            ("aqueduct_fuse_written_bytes_total==3145728", ("job", "aqueduct-mount")),
            ("aqueduct_server_operation_seconds_count{operation=\"Write\"}>0", ("job", "aqueduct-server")),
            ("up{job=\"aqueduct-server\"}==1", ("instance", of_server.as_str())),
        ] {
            let escaped = expression.replace('{', "%7B").replace('}', "%7D").replace('"', "%22").replace('=', "%3D");
            wait_until(expression, limit, || {
                query(&address, &escaped).iter().any(|found| found["metric"][labels.0] == labels.1)
            });
        }
    });
}
