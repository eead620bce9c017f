//! Where log lines go: stderr, and from a process in the background to syslog.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::str::FromStr;
use std::sync::OnceLock;

use tracing::{Level, Metadata};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// syslog's number for daemons (RFC 5424, 6.2.1), shifted as a priority has it.
const FACILITY_DAEMON: u8 = 3 << 3;

static SYSLOG: OnceLock<UnixDatagram> = OnceLock::new();

/// Starts logging: what RUST_LOG says, else `usual` and more for each -v.
pub fn start(usual: Level, verbose: u8, background: bool) {
    let level = match (verbose, usual) {
        (0, usual) => usual,
        (1, _) => Level::DEBUG,
        _ => Level::TRACE,
    };
    let asked = std::env::var("RUST_LOG").ok().and_then(|text| Targets::from_str(&text).ok());
    let filter = asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::from_level(level)));
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(Lines);
    let registry = tracing_subscriber::registry().with(filter);
    // syslog stamps lines itself.
    let result =
        if background { registry.with(layer.without_time()).try_init() } else { registry.with(layer).try_init() };
    debug_assert!(result.is_ok(), "started twice");
}

/// Where syslog listens.
const SYSLOG_PATH: &str = "/dev/log";

/// From now on lines go to syslog.
pub fn to_syslog() {
    if let Ok(socket) = syslog() {
        let _ = SYSLOG.set(socket); // set once; a second time changes nothing
    }
}

/// What sends to syslog, and never waits for it: syslog may wait for this very mount, to which it
/// writes.
fn syslog() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// By its path each time: whoever listens there may be another than before. A line that is not
/// taken is lost; there is nobody to tell.
fn send(syslog: &UnixDatagram, path: &Path, message: &[u8]) {
    let _ = syslog.send_to(message, path);
}

struct Lines;

struct Line(Level);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(Level::INFO)
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line {
        Line(*metadata.level())
    }
}

impl Write for Line {
    /// Gets one whole line at a time.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let Some(syslog) = SYSLOG.get() else { return io::stderr().write(line) };
        let severity = match self.0 {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        let mut message = format!("<{}>aqueduct[{}]: ", FACILITY_DAEMON | severity, std::process::id()).into_bytes();
        message.extend_from_slice(line.trim_ascii_end());
        send(syslog, Path::new(SYSLOG_PATH), &message);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_does_not_listen_holds_nobody_up_and_one_that_comes_back_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let syslog = syslog().unwrap();
        send(&syslog, &path, b"nobody listens");
        let first = UnixDatagram::bind(&path).unwrap();
        // More than any queue takes: whoever waited here would do so for ever.
        (0..10_000).for_each(|_| send(&syslog, &path, &[b'x'; 1024]));
        drop(first);
        std::fs::remove_file(&path).unwrap();
        let second = UnixDatagram::bind(&path).unwrap();
        send(&syslog, &path, b"again");
        let mut line = [0; 64];
        let length = second.recv(&mut line).unwrap();
        assert_eq!(&line[..length], b"again");
    }
}
