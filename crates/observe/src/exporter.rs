//! The listener, its thread and its connections.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use aqueduct_metrics::Snapshot;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};

use crate::respond::{Metrics, respond};

/// Connections at a time; the next wait until one ends. Each has one request under way, of at most
/// 8 KiB, and one answer.
pub const CONNECTIONS_MAX: usize = 16;

/// The longest request line and headers together, in bytes; the least that the library takes.
const BUFFER_MAX: usize = 8192;

/// A connection that has not sent its request for so long is closed: more than from one scrape of
/// Prometheus to the next would only save a handshake.
const HEADERS_MAX: Duration = Duration::from_secs(5);

/// A connection lives so long at most, also where its answer is not read.
const CONNECTION_MAX: Duration = Duration::from_secs(60);

/// After a failed accept, as when there are no descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where metrics are told, and to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where it listens; port 0 takes a free one.
    pub address: SocketAddr,
    /// Only who has this token is answered; `None`: everybody.
    pub token: Option<String>,
}

/// Why metrics cannot be told.
#[derive(Debug, Error)]
pub enum StartError {
    /// The address cannot be had.
    #[error("cannot tell metrics on {address}: {error}; give another address, or end what listens there")]
    Listen {
        /// That was asked for.
        address: SocketAddr,
        /// What the kernel says.
        error: io::Error,
    },
    /// There is no thread or no descriptor to be had.
    #[error("cannot start the thread that tells metrics: {0}; check the limits on processes and open files")]
    Thread(io::Error),
}

/// Tells metrics until it is dropped.
#[derive(Debug)]
pub struct Exporter {
    address: SocketAddr,
    ends: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Tells what `metrics` says at the moment of each request. It may be asked when this returns.
    pub fn start(
        config: &Config,
        metrics: impl Fn() -> Snapshot + Send + Sync + 'static,
    ) -> Result<Exporter, StartError> {
        let address = config.address;
        let listen = || -> io::Result<TcpListener> {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = listen().map_err(|error| StartError::Listen { address, error })?;
        let address = listener.local_addr().map_err(|error| StartError::Listen { address, error })?;
        let runtime = Builder::new_current_thread().enable_io().enable_time().build().map_err(StartError::Thread)?;
        let (ends, ended) = oneshot::channel::<()>();
        let (token, metrics): (Arc<Option<String>>, Metrics) = (Arc::new(config.token.clone()), Arc::new(metrics));
        let work = move || run(&runtime, listener, ended, &token, &metrics);
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(work).map_err(StartError::Thread)?;
        Ok(Exporter { address, ends: Some(ends), thread: Some(thread) })
    }

    /// Where it listens, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.ends.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it has nothing to tell
        }
    }
}

fn run(
    runtime: &Runtime,
    listener: TcpListener,
    ended: oneshot::Receiver<()>,
    token: &Arc<Option<String>>,
    metrics: &Metrics,
) {
    runtime.block_on(async {
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "metrics cannot be told"),
        };
        let accepts = async {
            let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
            // Never closed.
            while let Ok(place) = room.clone().acquire_owned().await {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let connection = serve(stream, token.clone(), metrics.clone());
                        tokio::spawn(async move {
                            let _ = tokio::time::timeout(CONNECTION_MAX, connection).await; // then it is closed
                            drop(place);
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "whoever asks for metrics cannot be let in; trying again");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        tokio::pin!(accepts);
        tokio::pin!(ended);
        std::future::poll_fn(|context| match ended.as_mut().poll(context) {
            std::task::Poll::Ready(_) => std::task::Poll::Ready(()),
            std::task::Poll::Pending => accepts.as_mut().poll(context),
        })
        .await;
    });
}

async fn serve(stream: TcpStream, token: Arc<Option<String>>, metrics: Metrics) {
    let answer = service_fn(move |request| {
        let response = respond(&request, token.as_deref(), &metrics);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS_MAX).max_buf_size(BUFFER_MAX);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), answer).await {
        tracing::debug!(%error, "a connection for metrics ended early");
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use aqueduct_metrics::table;

    use super::*;

    fn exporter(token: Option<&str>) -> Exporter {
        let config = Config { address: "127.0.0.1:0".parse().unwrap(), token: token.map(str::to_owned) };
        let metrics = || {
            let mut snapshot = Snapshot::default();
            snapshot.put_number(&table::SERVER_SESSIONS, &[], 3);
            snapshot
        };
        Exporter::start(&config, metrics).unwrap()
    }

    fn ask(exporter: &Exporter, request: &str) -> String {
        let mut stream = TcpStream::connect(exporter.address()).unwrap();
        stream.write_all(format!("{request}\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn metrics_are_told_in_the_format_that_is_asked_for() {
        let exporter = exporter(None);
        let old = ask(&exporter, "GET /metrics HTTP/1.1");
        assert!(old.starts_with("HTTP/1.1 200") && old.contains("version=0.0.4"), "{old}");
        assert!(old.ends_with("aqueduct_server_sessions 3\n"), "{old}");
        let new = ask(&exporter, "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text");
        assert!(new.contains("content-type: application/openmetrics-text") && new.ends_with("# EOF\n"), "{new}");
        assert!(ask(&exporter, "GET / HTTP/1.1").starts_with("HTTP/1.1 404"));
        assert!(ask(&exporter, "POST /metrics HTTP/1.1").starts_with("HTTP/1.1 405"));
        assert!(ask(&exporter, "\0\0 HTTP/9").starts_with("HTTP/1.1 400"));
        assert!(ask(&exporter, &format!("GET /{} HTTP/1.1", "x".repeat(3 * BUFFER_MAX))).starts_with("HTTP/1.1 4"));
    }

    #[test]
    fn who_has_no_token_is_told_nothing() {
        let exporter = exporter(Some("open"));
        for (header, code) in [("X: y", 401), ("Authorization: Bearer shut", 401), ("Authorization: Bearer open", 200)]
        {
            let answer = ask(&exporter, &format!("GET /metrics HTTP/1.1\r\n{header}"));
            assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{header}: {answer}");
            assert_eq!(answer.contains("aqueduct_server_sessions"), code == 200, "{answer}");
        }
    }

    #[test]
    fn silent_connections_end_and_hold_up_no_end() {
        let exporter = exporter(None);
        let silent: Vec<_> = (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(exporter.address()).unwrap()).collect();
        // All places are taken: it is answered when the first of them are closed.
        assert!(ask(&exporter, "GET /metrics HTTP/1.1").starts_with("HTTP/1.1 200"));
        drop((exporter, silent));
    }
}
