//! Slow operations, and works of tools, as spans to a collector of OpenTelemetry: OTLP over HTTP,
//! in JSON (`POST /v1/traces`), encrypted where the address says https. A thread of its own sends
//! them. What it cannot take or send in time is dropped, and counted.

mod config;
mod document;
mod tls;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use aqueduct_metrics::trace::{Record, SlowOperation};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

pub use config::OtlpConfig;
use config::PORT;
use document::Item;
pub use document::{Said, Work};
use tls::Encryption;

/// Operations and works that wait for the sender at most, and those that are sent at once.
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

/// Sends spans until it is dropped.
pub struct Otlp {
    over_us: u64,
    dropped: Arc<AtomicU64>,
    queue: Option<SyncSender<Item>>,
    sender: Option<JoinHandle<()>>,
}

impl Otlp {
    /// Starts the thread that sends.
    pub fn start(config: OtlpConfig) -> std::io::Result<Otlp> {
        let roots = std::env::var_os(tls::ROOTS).map(PathBuf::from);
        Otlp::believing(config, roots.as_deref())
    }

    /// Where collectors are encrypted, those are believed for whom this file vouches.
    fn believing(config: OtlpConfig, roots: Option<&Path>) -> std::io::Result<Otlp> {
        let is_encrypted = config.endpoint.scheme_str() == Some("https");
        let encryption = is_encrypted.then(|| Encryption::new(&config.endpoint, roots)).transpose()?;
        let (queue, operations) = sync_channel(QUEUE_MAX);
        let dropped = Arc::<AtomicU64>::default();
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let over_us = config.over_us;
        let sending = Sending { config, encryption, runtime, dropped: dropped.clone(), said: None, batch: Vec::new() };
        let sender = thread::Builder::new().name("otlp".into()).spawn(move || sending.run(&operations))?;
        Ok(Otlp { over_us, dropped, queue: Some(queue), sender: Some(sender) })
    }

    /// Has a work sent.
    pub fn send(&self, work: Work) {
        self.put(Item::Work(Box::new(work)));
    }

    fn put(&self, item: Item) {
        let taken = self.queue.as_ref().is_some_and(|queue| queue.try_send(item).is_ok());
        self.dropped.fetch_add(u64::from(!taken), Ordering::Relaxed);
    }

    /// Operations and works that were not sent, since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Record for Otlp {
    fn wants(&self, took_us: u64) -> bool {
        took_us >= self.over_us
    }

    fn record(&self, operation: &Arc<SlowOperation>) {
        self.put(Item::Operation(operation.clone()));
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
    encryption: Option<Encryption>,
    runtime: Runtime,
    dropped: Arc<AtomicU64>,
    /// When a failure was told last.
    said: Option<Instant>,
    batch: Vec<Item>,
}

impl Sending {
    fn run(mut self, operations: &Receiver<Item>) {
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
    fn gather(&mut self, operations: &Receiver<Item>, time: Duration) -> bool {
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
    fn wait(&mut self, operations: &Receiver<Item>, time: Duration) -> bool {
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
        let text = document::document(&self.config, &self.batch).to_string();
        let posted = async {
            match tokio::time::timeout(patience, self.post(text)).await {
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

    async fn post(&self, text: String) -> Result<StatusCode, String> {
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let endpoint = &self.config.endpoint;
        let host = endpoint.host().unwrap_or_default().trim_matches(['[', ']']);
        let place = (host, endpoint.port_u16().unwrap_or(PORT));
        let stream = TcpStream::connect(place).await.map_err(|error| said(&error))?;
        match &self.encryption {
            Some(encryption) => {
                exchange(encryption.over(stream).await.map_err(|error| said(&error))?, endpoint, text).await
            }
            None => exchange(stream, endpoint, text).await,
        }
    }
}

async fn exchange<S>(stream: S, endpoint: &Uri, text: String) -> Result<StatusCode, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let said = |error: &dyn std::fmt::Display| error.to_string();
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use aqueduct_metrics::trace::{Hop, HopTime};
    use serde_json::Value;

    use super::*;

    pub(super) fn config(endpoint: &str, is_server: bool) -> OtlpConfig {
        let endpoint = OtlpConfig::endpoint(endpoint).unwrap();
        OtlpConfig { endpoint, service: "aqueduct-mount".into(), host: "h".into(), is_server, over_us: 10 }
    }

    pub(super) fn operation() -> SlowOperation {
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

    #[test]
    fn endpoints_are_completed_or_refused() {
        let read = |text| OtlpConfig::endpoint(text).map(|uri| uri.to_string());
        assert_eq!(read("http://c"), Ok("http://c:4318/v1/traces".into()));
        assert_eq!(read("http://[::1]:9/x/y"), Ok("http://[::1]:9/x/y".into()));
        assert_eq!(read("https://c"), Ok("https://c:4318/v1/traces".into()));
        for wrong in ["", "c:4318", "ftp://c", "https://", "http://", "http://me:secret@c:1", "http://c/x?y=z"] {
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
