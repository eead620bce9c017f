//! Where log lines go: stderr, and from a process in the background to syslog.

use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
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

/// From now on lines go to syslog, if there is one.
pub fn to_syslog() {
    let socket = UnixDatagram::unbound().and_then(|socket| socket.connect("/dev/log").map(|()| socket));
    if let Ok(socket) = socket {
        let _ = SYSLOG.set(socket); // set once; a second time changes nothing
    }
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
        syslog.send(&message)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
