//! What copies, and the agents of jobs, send to a collector of OpenTelemetry.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::agents::{Agent, Cluster, test};
use crate::collector::{collector, spans};
use crate::common::{Process, TEST_MAX, aqueduct, directory, run_within, skip, wait_until};
use crate::tree::{noise, text};

const TOOL: &str = "aqueduct";

/// A tree with files of both classes: of a few bytes, and one that agents copy in parts.
fn plant(root: &Path) {
    (0..20).for_each(|number| fs::write(root.join(number.to_string()), noise(3000, number)).unwrap());
    fs::write(root.join("large"), noise(70 << 20, 7)).unwrap();
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a str {
    let all = span["attributes"].as_array().unwrap().iter();
    let of = all.filter(|attribute| attribute["key"] == key).map(|attribute| &attribute["value"]);
    of.filter_map(|value| value["stringValue"].as_str().or(value["intValue"].as_str())).next().unwrap_or_default()
}

fn below<'a>(all: &'a [Value], span: &Value) -> Vec<&'a Value> {
    let is_below = |of: &&Value| of["traceId"] == span["traceId"] && of["parentSpanId"] == span["spanId"];
    all.iter().filter(is_below).collect()
}

#[test]
fn a_copy_is_a_span_with_its_stages_below() {
    test(|| {
        let (source, target, (endpoint, got)) = (directory(), directory(), collector());
        plant(source.path());
        let from = format!("{}/", source.path().display());
        let to = target.path().join("copy");
        run_within(TEST_MAX, aqueduct().args(["cp", "-r", "--no-journal", "--otlp", &endpoint, &from]).arg(&to))
            .succeeded();
        let all = spans(&got, TOOL);
        let [copy] = all.iter().filter(|span| span["name"] == "cp").collect::<Vec<_>>()[..] else { panic!("{all:#?}") };
        assert_eq!(copy["status"], serde_json::json!({}));
        assert_eq!((attribute(copy, "aqueduct.files"), attribute(copy, "aqueduct.troubles")), ("21", "0"));
        assert_eq!(attribute(copy, "aqueduct.bytes"), (20 * 3000 + (70 << 20)).to_string());
        assert_eq!(attribute(copy, "aqueduct.destination"), text(&to));
        let stages: Vec<&str> = below(&all, copy).iter().map(|span| span["name"].as_str().unwrap()).collect();
        assert!(["read", "write"].iter().all(|stage| stages.contains(stage)), "{stages:?}");
        // One that cannot begin says why.
        let missing = source.path().join("missing");
        run_within(TEST_MAX, aqueduct().args(["cp", "--no-journal", "--otlp", &endpoint]).arg(&missing).arg(&to))
            .failed();
        let failed = spans(&got, TOOL).into_iter().find(|span| span["status"]["code"] == 2);
        let failed = failed.unwrap_or_else(|| panic!("{:#?}", spans(&got, TOOL)));
        assert!(failed["status"]["message"].as_str().unwrap().contains("missing"), "{failed:#}");
        let refused =
            run_within(TEST_MAX, aqueduct().args(["cp", "--otlp", "ftp://c"]).arg(&missing).arg(&to)).failed();
        assert!(refused.contains("cannot send spans to 'ftp://c'"), "{refused}");
    });
}

#[test]
fn the_units_of_agents_are_below_the_span_of_their_job() {
    test(|| {
        let Some(cluster) = Cluster::start() else { return };
        let (source, target, (endpoint, got)) = (directory(), directory(), collector());
        plant(source.path());
        let mut agent = aqueduct();
        agent.args(["agents", "run", "--allow-root", "--name", "one", "--otlp", &endpoint, "--store", &cluster.url()]);
        let agent = Agent::start(&mut agent);
        let from = format!("{}/", source.path().display());
        let mut submit = aqueduct();
        submit
            .args(["cp", "-r", "--otlp", &endpoint, "--store", &cluster.url(), &from])
            .arg(target.path().join("copy"));
        run_within(TEST_MAX, &mut submit).succeeded();
        let kinds = || {
            let all = spans(&got, TOOL);
            let Some(job) = all.iter().find(|span| span["name"] == "cp") else { return Vec::new() };
            let units = below(&all, job).into_iter().filter(|span| attribute(span, "aqueduct.agent") == "one");
            units.map(|span| span["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let has_all =
            || ["directory", "files", "large file: chunks"].iter().all(|kind| kinds().iter().any(|of| of == kind));
        wait_until("the agent has sent its units", TEST_MAX, has_all);
        drop(agent);
    });
}

/// Who vouches for the collector, and the collector's certificate.
const MADE: &str = r#"
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=one -keyout one.key -out one.pem \
  -addext basicConstraints=critical,CA:TRUE
openssl req -newkey rsa:2048 -nodes -subj /CN=collector -keyout collector.key -out collector.csr
echo subjectAltName=DNS:localhost > extension
openssl x509 -req -in collector.csr -CA one.pem -CAkey one.key -CAcreateserial -days 2 -extfile extension -out collector.pem
"#;

/// A collector over TLS, of Python's library: what it got is in a file.
const SECURE: &str = r#"
import http.server, ssl, sys
class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        open("got", "ab").write(body + b"\n")
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
server = http.server.HTTPServer(("127.0.0.1", 0), Collector)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("collector.pem", "collector.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
print("at", server.server_address[1], flush=True)
server.serve_forever()
"#;

#[test]
fn spans_go_to_a_collector_over_tls_that_is_believed() {
    test(|| {
        let (home, source) = (directory(), directory());
        fs::write(source.path().join("f"), "x").unwrap();
        let made = Command::new("sh").args(["-ec", MADE]).current_dir(home.path()).output().unwrap();
        if !made.status.success() {
            return skip(&format!("needs openssl: {}", String::from_utf8_lossy(&made.stderr)));
        }
        let mut server = Command::new("python3");
        let server = Process::start(server.args(["-c", SECURE]).current_dir(home.path()), &home.path().join("log"));
        let port = || server.output().lines().find_map(|line| line.strip_prefix("at ").map(str::to_owned));
        wait_until("the collector listens", TEST_MAX, || port().is_some());
        let endpoint = format!("https://localhost:{}", port().unwrap());
        let copy = |name: &str| {
            let mut command = aqueduct();
            command.args(["cp", "--no-journal", "--otlp", &endpoint]).arg(source.path().join("f"));
            command.arg(home.path().join(name));
            command
        };
        let got = || fs::read_to_string(home.path().join("got")).unwrap_or_default();
        // Nobody vouches for it: the copy is made, and nothing is sent.
        run_within(TEST_MAX, &mut copy("one")).succeeded();
        assert_eq!(got(), "");
        run_within(TEST_MAX, copy("two").env("OTEL_EXPORTER_OTLP_CERTIFICATE", home.path().join("one.pem")))
            .succeeded();
        let told: Value = serde_json::from_str(got().trim()).unwrap();
        assert_eq!(told["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"], "cp", "{told:#}");
    });
}
