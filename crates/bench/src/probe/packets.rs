//! Whether packets of full size get through: small ones do where a handshake was answered, and
//! some hop may drop large ones without a word.

use std::io;
use std::time::Duration;

use aqueduct_net::{Address, Link, Path};
use aqueduct_node::{AskError, Asker, ConnectError};
use aqueduct_wire::ClientKey;
use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};

/// Bytes of a question that is several packets long.
const LONG: usize = 32 << 10;

/// Bytes of an IPv4 and a TCP header; IPv6 has 20 more.
const HEADERS: u32 = 40;

/// Packets of tunnels and wires that are in use: Ethernet with jumbo frames, plain, PPPoE, GRE,
/// VXLAN, WireGuard, IPv6's least, and what everybody passes.
const SIZES: [u32; 12] = [9000, 8000, 4000, 1500, 1492, 1476, 1450, 1420, 1380, 1280, 1000, 576];

/// What came of questions and answers longer than a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Packets {
    /// The largest packet that both ends have agreed on, in bytes; 0: not known.
    pub size: u32,
    /// Those of full size arrive there.
    pub go: bool,
    /// Those of full size arrive here; `None`: no answer was as long.
    pub come: Option<bool>,
    /// The largest of the usual sizes that passes both ways, where full ones do not.
    pub pass: Option<u32>,
}

/// A connection over a path of which this end's segments, and those of the other end, have at
/// most so many bytes.
pub(super) fn dial(path: &Path, segment: Option<u32>, timeout: Duration) -> io::Result<Socket> {
    let Address::Tcp(address) = &path.remote else {
        return Err(io::Error::other("a Unix socket has no packets"));
    };
    let socket = Socket::new(Domain::for_address(*address), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    if let Some(interface) = &path.local.interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    if let Some(source) = path.local.address {
        socket.bind(&std::net::SocketAddr::new(source, 0).into())?;
    }
    if let Some(segment) = segment {
        socket.set_tcp_mss(segment)?;
    }
    socket.connect_timeout(&(*address).into(), timeout)?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

/// Who asks, and how long an answer may take.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) path: &'a Path,
    pub(super) key: Option<&'a ClientKey>,
    pub(super) timeout: Duration,
}

impl Asked<'_> {
    /// Connects and is let in. The largest packet is the socket's.
    pub(super) fn connect(&self, segment: Option<u32>) -> Result<(Asker, u32), ConnectError> {
        let server = self.path.remote.to_string();
        let failed = |source| ConnectError::Connect { server: server.clone(), source };
        let socket = dial(self.path, segment, self.timeout).map_err(failed)?;
        let headers = match &self.path.remote {
            Address::Tcp(address) if address.is_ipv6() => HEADERS + 20,
            _ => HEADERS,
        };
        let size = socket.tcp_mss().map_or(0, |mss| mss + headers + options());
        Ok((Asker::over(Link::from(socket), &server, self.key.cloned(), self.timeout)?, size))
    }

    /// Whether full packets pass.
    pub(super) fn packets(&self) -> Result<Packets, ConnectError> {
        let (mut asker, size) = self.connect(None)?;
        let go = passes(asker.ping(LONG, self.timeout))?;
        // What is lost there hangs on that connection.
        let (mut asker, _) = self.connect(None)?;
        let come = match asker.status(self.timeout) {
            Ok((_, length)) => (length > size as usize).then_some(true),
            Err(AskError::Silent(_)) => Some(false),
            Err(AskError::Ended(error)) => return Err(error),
        };
        let pass = if go && come != Some(false) { None } else { self.largest(size) };
        Ok(Packets { size, go, come, pass })
    }

    /// The largest of the usual sizes below this that passes: by halves, since whatever is
    /// smaller passes too.
    fn largest(&self, size: u32) -> Option<u32> {
        let sizes: Vec<u32> = SIZES.into_iter().filter(|other| *other < size).collect();
        let (mut from, mut to) = (0, sizes.len());
        while from < to {
            let middle = from + (to - from) / 2;
            if self.all_pass(sizes[middle]) { to = middle } else { from = middle + 1 }
        }
        sizes.get(from).copied()
    }

    fn all_pass(&self, size: u32) -> bool {
        let Ok((mut asker, _)) = self.connect(Some(size - HEADERS)) else { return false };
        asker.ping(LONG, self.timeout).is_ok() && asker.status(self.timeout).is_ok()
    }
}

/// Bytes that options take of each segment: the time, which Linux sends unless told not to. The
/// kernel has taken them off what it tells.
fn options() -> u32 {
    let asks = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_timestamps").is_ok_and(|text| text.trim() != "0");
    if asks { 12 } else { 0 }
}

fn passes(asked: Result<Duration, AskError>) -> Result<bool, ConnectError> {
    match asked {
        Ok(_) => Ok(true),
        Err(AskError::Silent(_)) => Ok(false),
        Err(AskError::Ended(error)) => Err(error),
    }
}
