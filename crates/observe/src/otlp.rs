//! Slow operations as spans, to a collector of OpenTelemetry: OTLP over HTTP, in JSON
//! (opentelemetry-proto 1.x, `POST /v1/traces`). By a thread of its own; what it cannot take or
//! send in time is dropped, and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aqueduct_metrics::trace::{Hop, HopTime, Record, SlowOperation};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

/// Operations that wait for the sender at most, and those that are sent at once.
const QUEUE_MAX: usize = 2048;
const BATCH_MAX: usize = 256;

/// How long the first operation of a batch waits for others.
const GATHERED: Duration = Duration::from_secs(1);

/// How long a collector may take to answer, and of one that this is to leave behind.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const LAST_ANSWER_MAX: Duration = Duration::from_secs(2);

/// How much longer the end waits for the sender, and between two looks.
const LEAVE_MORE: Duration = Duration::from_millis(500);
const LEAVE_STEP: Duration = Duration::from_millis(5);

/// After a collector could not be had: at first, and at most.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The port and path of OTLP over HTTP, where none is said.
const PORT: u16 = 4318;
const PATH: &str = "/v1/traces";

/// Where spans are sent, and of whom.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpConfig {
    /// `http://HOST[:PORT][/PATH]`.
    pub endpoint: Uri,
    /// What sends: `service.name`.
    pub service: String,
    /// This machine: `host.name`.
    pub host: String,
    /// It answers requests, rather than making them.
    pub is_server: bool,
    /// Operations are sent that took so many microseconds or longer.
    pub over_us: u64,
}

impl OtlpConfig {
    /// Reads an endpoint. An error says what is wrong with it.
    pub fn endpoint(text: &str) -> Result<Uri, String> {
        let uri: Uri = text.parse().map_err(|error| format!("it is no address: {error}"))?;
        match (uri.scheme_str(), uri.host()) {
            (Some("http"), Some(_)) => {}
            (Some("https"), _) => {
                return Err(
                    "spans are sent without encryption: name a collector on this machine, which passes them on".into(),
                );
            }
            _ => return Err("it is not of the form http://HOST:4318".into()),
        }
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("it has a name or password, which is not sent: name a collector that asks for none".into());
        }
        if uri.query().is_some() {
            return Err("what is behind its ? is not sent: leave it out".into());
        }
        let path = if uri.path() == "/" { PATH } else { uri.path() };
        let authority = match uri.port() {
            Some(_) => uri.authority().map_or_else(String::new, ToString::to_string),
            None => format!("{}:{PORT}", uri.host().unwrap_or_default()),
        };
        let whole = Uri::builder().scheme("http").authority(authority).path_and_query(path);
        whole.build().map_err(|error| format!("it is no address: {error}"))
    }
}

/// Sends spans until it is dropped.
pub struct Otlp {
    over_us: u64,
    dropped: Arc<AtomicU64>,
    queue: Option<SyncSender<Arc<SlowOperation>>>,
    sender: Option<JoinHandle<()>>,
}

impl Otlp {
    /// Starts the thread that sends.
    pub fn start(config: OtlpConfig) -> std::io::Result<Otlp> {
        let (queue, operations) = sync_channel(QUEUE_MAX);
        let dropped = Arc::<AtomicU64>::default();
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let over_us = config.over_us;
        let sending = Sending { config, runtime, dropped: dropped.clone(), said: None, batch: Vec::new() };
        let sender = thread::Builder::new().name("otlp".into()).spawn(move || sending.run(&operations))?;
        Ok(Otlp { over_us, dropped, queue: Some(queue), sender: Some(sender) })
    }

    /// Operations that were not sent, since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Record for Otlp {
    fn wants(&self, took_us: u64) -> bool {
        took_us >= self.over_us
    }

    fn record(&self, operation: &Arc<SlowOperation>) {
        let taken = self.queue.as_ref().is_some_and(|queue| queue.try_send(operation.clone()).is_ok());
        self.dropped.fetch_add(u64::from(!taken), Ordering::Relaxed);
    }
}

impl Drop for Otlp {
    fn drop(&mut self) {
        self.queue = None; // the sender ends with a last try
        let Some(sender) = self.sender.take() else { return };
        let end = Instant::now() + LAST_ANSWER_MAX + LEAVE_MORE;
        while !sender.is_finished() && Instant::now() < end {
            thread::sleep(LEAVE_STEP);
        }
        // One that still waits for its collector ends with the process.
    }
}

/// What came of a batch.
enum Sent {
    Taken,
    /// It may be taken later.
    Later(String),
    /// It never will be.
    Refused(String),
}

struct Sending {
    config: OtlpConfig,
    runtime: Runtime,
    dropped: Arc<AtomicU64>,
    /// When a failure was told last.
    said: Option<Instant>,
    batch: Vec<Arc<SlowOperation>>,
}

impl Sending {
    fn run(mut self, operations: &Receiver<Arc<SlowOperation>>) {
        let mut pause = PAUSE_FIRST;
        loop {
            let goes_on = self.gather(operations, GATHERED);
            if !self.batch.is_empty() {
                let patience = if goes_on { ANSWER_MAX } else { LAST_ANSWER_MAX };
                match self.send(patience) {
                    Sent::Taken => {
                        self.batch.clear();
                        pause = PAUSE_FIRST;
                    }
                    Sent::Refused(why) => self.lose(&why),
                    Sent::Later(why) if !goes_on => self.lose(&why),
                    Sent::Later(why) => {
                        self.complain(&why);
                        if !self.wait(operations, pause) {
                            return self.lose(&why);
                        }
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
            }
            if !goes_on {
                return;
            }
        }
    }

    /// Takes what comes, until there is enough or the first has waited long enough. False: nothing
    /// comes any more.
    fn gather(&mut self, operations: &Receiver<Arc<SlowOperation>>, time: Duration) -> bool {
        let mut end = Instant::now() + time;
        while self.batch.len() < BATCH_MAX {
            match operations.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(operation) => {
                    if self.batch.is_empty() {
                        end = Instant::now() + time;
                    }
                    self.batch.push(operation);
                }
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }

    /// Lets some time pass. Where the batch is full, new operations wait in the queue. False: the
    /// end came first.
    fn wait(&mut self, operations: &Receiver<Arc<SlowOperation>>, time: Duration) -> bool {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if self.batch.len() < BATCH_MAX {
                if !self.gather(operations, end.saturating_duration_since(Instant::now()).min(GATHERED)) {
                    return false;
                }
            } else {
                // The end is noticed with the next try.
                thread::sleep(end.saturating_duration_since(Instant::now()).min(GATHERED));
            }
        }
        true
    }

    fn lose(&mut self, why: &str) {
        self.dropped.fetch_add(self.batch.len() as u64, Ordering::Relaxed);
        self.batch.clear();
        self.complain(why);
    }

    /// Once a minute.
    fn complain(&mut self, why: &str) {
        if self.said.is_none_or(|said| said.elapsed() > PAUSE_MAX) {
            self.said = Some(Instant::now());
            let dropped = self.dropped.load(Ordering::Relaxed);
            tracing::warn!(endpoint = %self.config.endpoint, why, dropped, "slow operations cannot be sent to the collector");
        }
    }

    fn send(&self, patience: Duration) -> Sent {
        let text = document(&self.config, &self.batch).to_string();
        let posted = async {
            match tokio::time::timeout(patience, post(&self.config.endpoint, text)).await {
                Ok(posted) => posted,
                Err(_) => Err("it does not answer".to_owned()),
            }
        };
        match self.runtime.block_on(posted) {
            Err(why) => Sent::Later(why),
            Ok(status) if status.is_success() => Sent::Taken,
            // As OTLP has it: these may be tried again.
            Ok(status) if [429, 502, 503, 504].contains(&status.as_u16()) => Sent::Later(status.to_string()),
            Ok(status) => Sent::Refused(status.to_string()),
        }
    }
}

async fn post(endpoint: &Uri, text: String) -> Result<StatusCode, String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let host = endpoint.host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, endpoint.port_u16().unwrap_or(PORT))).await.map_err(|error| said(&error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| said(&error))?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(endpoint.path())
        .header(HOST, endpoint.authority().map_or("", |authority| authority.as_str()))
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(text)))
        .map_err(|error| said(&error))?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(|error| said(&error));
    connection.abort();
    Ok(answer?.status())
}

/// A batch as OTLP's JSON has it.
fn document(config: &OtlpConfig, batch: &[Arc<SlowOperation>]) -> Value {
    let spans: Vec<Value> = batch.iter().flat_map(|operation| spans(config, operation)).collect();
    let resource = [text("service.name", &config.service), text("host.name", &config.host)];
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": { "name": "aqueduct", "version": env!("CARGO_PKG_VERSION") }, "spans": spans }],
    }] })
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Numbers of 64 bits are text in the JSON of protocol buffers.
fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

/// Kinds of spans.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
const CLIENT: u8 = 3;

/// The identity of a trace: the operation's, or one made up of what tells it apart.
fn trace_of(config: &OtlpConfig, operation: &SlowOperation) -> (String, String) {
    let own = |salt: &str| {
        let what = format!("{salt} {} {} {} {}", config.host, config.service, operation.at_us, operation.number);
        blake3::hash(what.as_bytes()).to_hex()
    };
    match &operation.trace {
        // The span of the operation is named as the end of its trace: so a server knows its
        // parent.
        Some(trace) if trace.len() == 32 && !config.is_server => (trace.clone(), trace[16..].to_owned()),
        Some(trace) if trace.len() == 32 => (trace.clone(), own(&operation.operation)[..16].to_owned()),
        _ => (own("trace")[..32].to_owned(), own("span")[..16].to_owned()),
    }
}

/// The span of an operation, and one for each hop. How long each took is measured; they stand one
/// behind the other, though where in the operation a hop was is not known.
fn spans(config: &OtlpConfig, operation: &SlowOperation) -> Vec<Value> {
    let (trace, own) = trace_of(config, operation);
    let nanos = |us: u64| us.saturating_mul(1000).to_string();
    let mut attributes = vec![text("rpc.system", "aqueduct"), text("rpc.method", &operation.operation)];
    let texts = [
        ("file.path", &operation.path),
        ("aqueduct.job", &operation.job),
        ("aqueduct.export", &operation.export),
        ("client.address", &operation.client),
    ];
    attributes.extend(texts.iter().filter_map(|(key, value)| Some(text(key, value.as_deref()?))));
    let numbers = [
        ("process.pid", operation.pid.map(u64::from)),
        ("aqueduct.offset", operation.offset),
        ("aqueduct.bytes", operation.bytes),
        ("aqueduct.repeats", Some(operation.repeats).filter(|repeats| *repeats > 0)),
    ];
    attributes.extend(numbers.iter().filter_map(|(key, value)| Some(number(key, (*value)?))));
    attributes.extend(operation.errno.map(|errno| text("error.type", &errno.to_string())));
    let status = match operation.errno {
        Some(errno) => json!({ "code": 2, "message": format!("errno {errno}") }),
        None => json!({}),
    };
    let mut whole = json!({
        "traceId": trace, "spanId": own, "name": operation.operation, "status": status,
        "kind": if config.is_server { SERVER } else { INTERNAL },
        "startTimeUnixNano": nanos(operation.at_us),
        "endTimeUnixNano": nanos(operation.at_us.saturating_add(operation.took_us)),
        "attributes": attributes,
    });
    if let Some(trace) = operation.trace.as_ref().filter(|trace| config.is_server && trace.len() == 32) {
        whole["parentSpanId"] = json!(trace[16..]);
    }
    let mut at = operation.at_us;
    let hop = |(index, hop): (usize, &HopTime)| {
        let id = blake3::hash(format!("{trace} {own} {index}").as_bytes()).to_hex();
        let start = at;
        at = at.saturating_add(hop.us);
        let mut attributes: Vec<Value> = hop.detail.iter().map(|detail| text("aqueduct.detail", detail)).collect();
        attributes.extend(hop.server.iter().flat_map(|server| address(server)));
        json!({
            "traceId": trace, "spanId": id[..16], "parentSpanId": own, "name": hop.hop.name(), "status": {},
            "kind": if hop.hop == Hop::Wire { CLIENT } else { INTERNAL },
            "startTimeUnixNano": nanos(start), "endTimeUnixNano": nanos(at), "attributes": attributes,
        })
    };
    let hops: Vec<Value> = operation.hops.iter().enumerate().map(hop).collect();
    std::iter::once(whole).chain(hops).collect()
}

/// The conventions have host and port apart.
fn address(server: &str) -> Vec<Value> {
    match server.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
        Some((host, port)) => {
            vec![text("server.address", host.trim_matches(['[', ']'])), number("server.port", port.into())]
        }
        None => vec![text("server.address", server)],
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    fn config(endpoint: &str, is_server: bool) -> OtlpConfig {
        let endpoint = OtlpConfig::endpoint(endpoint).unwrap();
        OtlpConfig { endpoint, service: "aqueduct-mount".into(), host: "h".into(), is_server, over_us: 10 }
    }

    fn operation() -> SlowOperation {
        let hop = |hop, us, server: Option<&str>| HopTime { hop, us, server: server.map(str::to_owned), detail: None };
        SlowOperation {
            at_us: 1_000_000,
            took_us: 30,
            operation: "READ".into(),
            path: Some("/a".into()),
            errno: Some(5),
            trace: Some("000102030405060708090a0b0c0d0e0f".into()),
            hops: vec![hop(Hop::Client, 10, None), hop(Hop::Wire, 20, Some("[::1]:7170"))],
            ..SlowOperation::default()
        }
    }

    fn id(value: &Value, length: usize) -> &str {
        let id = value.as_str().unwrap();
        assert!(
            id.len() == length
                && id.bytes().all(|byte| byte.is_ascii_hexdigit())
                && id.bytes().any(|byte| byte != b'0'),
            "{id}"
        );
        id
    }

    #[test]
    fn an_operation_is_a_span_with_its_hops_below() {
        let spans_of_client = spans(&config("http://h", false), &operation());
        let [whole, client, wire] = &spans_of_client[..] else { panic!("{spans_of_client:?}") };
        assert_eq!(
            (id(&whole["traceId"], 32), id(&whole["spanId"], 16)),
            ("000102030405060708090a0b0c0d0e0f", "08090a0b0c0d0e0f")
        );
        assert!(whole["parentSpanId"].is_null());
        assert_eq!(
            (&whole["startTimeUnixNano"], &whole["endTimeUnixNano"]),
            (&json!("1000000000"), &json!("1000030000"))
        );
        assert_eq!(whole["status"]["code"], 2);
        for (hop, start, end) in [(client, "1000000000", "1000010000"), (wire, "1000010000", "1000030000")] {
            assert_eq!((id(&hop["traceId"], 32), &hop["parentSpanId"]), (id(&whole["traceId"], 32), &whole["spanId"]));
            assert_ne!(id(&hop["spanId"], 16), id(&whole["spanId"], 16));
            assert_eq!((&hop["startTimeUnixNano"], &hop["endTimeUnixNano"]), (&json!(start), &json!(end)));
        }
        assert_eq!(wire["attributes"], json!([text("server.address", "::1"), number("server.port", 7170)]));
        // The server's span of the same trace is below the client's.
        let of_server = &spans(&config("http://h", true), &operation())[0];
        assert_eq!((&of_server["traceId"], &of_server["parentSpanId"]), (&whole["traceId"], &whole["spanId"]));
        assert_ne!(id(&of_server["spanId"], 16), id(&whole["spanId"], 16));
        let alone = SlowOperation { trace: None, ..operation() };
        id(&spans(&config("http://h", false), &alone)[0]["traceId"], 32);
    }

    #[test]
    fn endpoints_are_completed_or_refused() {
        let read = |text| OtlpConfig::endpoint(text).map(|uri| uri.to_string());
        assert_eq!(read("http://c"), Ok("http://c:4318/v1/traces".into()));
        assert_eq!(read("http://[::1]:9/x/y"), Ok("http://[::1]:9/x/y".into()));
        for wrong in ["", "c:4318", "ftp://c", "https://c", "http://", "http://me:secret@c:1", "http://c/x?y=z"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    /// Answers one request with this status, and returns its body.
    fn answer(listener: &TcpListener, status: &str) -> Value {
        let mut stream = listener.accept().unwrap().0;
        let (mut request, mut part) = (Vec::new(), [0; 4096]);
        let body = loop {
            let count = stream.read(&mut part).unwrap();
            request.extend_from_slice(&part[..count]);
            let text = String::from_utf8_lossy(&request);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.to_lowercase();
                let length = length.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().to_owned();
                if body.len() >= length.parse().unwrap() {
                    assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
                    break serde_json::from_str(body).unwrap();
                }
            }
            assert!(count > 0, "{text}");
        };
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}").unwrap();
        body
    }

    #[test]
    fn what_cannot_be_taken_now_is_sent_again_and_what_is_refused_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let otlp = Otlp::start(config(&format!("http://{}", listener.local_addr().unwrap()), false)).unwrap();
        assert!(otlp.wants(10) && !otlp.wants(9));
        otlp.record(&Arc::new(operation()));
        let first = answer(&listener, "503 Service Unavailable");
        let again = answer(&listener, "200 OK");
        assert_eq!(first, again);
        assert_eq!(first["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().len(), 3);
        otlp.record(&Arc::new(operation()));
        answer(&listener, "400 Bad Request");
        let dropped = otlp.dropped.clone();
        drop(otlp);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }
}
