//! The connections of a pair: TCP with the socket options that Aqueduct's own have.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aqueduct_net::socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::Socket;

/// What each connection begins with, so that strangers are known: it is made for one measurement, and told by rank 0.
pub(super) const TOKEN_LENGTH: usize = 16;

/// All connections have to be there within this time.
const MEET_MAX: Duration = Duration::from_secs(30);

/// For one address to be reached.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// For the token to come.
const TOKEN_MAX: Duration = Duration::from_secs(2);

/// How long a call waits before it is looked whether the measurement is to end.
const TICK: Duration = Duration::from_millis(100);

/// Why nothing more can be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The measurement is to end.
    Stopped,
    /// The connection has failed.
    Failed(String),
}

impl From<Errno> for Broken {
    fn from(error: Errno) -> Broken {
        Broken::Failed(std::io::Error::from(error).to_string())
    }
}

/// One connection.
pub(super) struct Wire {
    socket: Socket,
    /// Its congestion control, as the kernel says.
    pub(super) congestion: String,
    /// Own and other end.
    pub(super) ends: String,
}

impl Wire {
    fn new(socket: Socket, congestion: Option<&str>) -> Result<Wire, String> {
        if let Some(name) = congestion {
            socket.set_tcp_congestion(name.as_bytes()).map_err(|error| {
                let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
                format!(
                    "the kernel does not use congestion control '{name}': {error}; it has: {}",
                    available.unwrap_or_default().trim()
                )
            })?;
        }
        // A call that waits comes back now and then, to see whether it is to end.
        socket.set_read_timeout(Some(TICK)).map_err(|error| error.to_string())?;
        let name = socket.tcp_congestion().unwrap_or_default();
        let congestion = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
        let shown = |address: std::io::Result<socket2::SockAddr>| {
            address.ok().and_then(|address| address.as_socket()).map_or("?".to_owned(), |address| address.to_string())
        };
        let ends = format!("{} - {}", shown(socket.local_addr()), shown(socket.peer_addr()));
        Ok(Wire { socket, congestion, ends })
    }

    /// Sends all of it.
    pub(super) fn send(&self, mut bytes: &[u8], stop: &AtomicBool) -> Result<(), Broken> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::AGAIN | Errno::INTR) if stop.load(Ordering::Relaxed) => return Err(Broken::Stopped),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Fills the buffer.
    pub(super) fn receive(&self, buffer: &mut [u8], stop: &AtomicBool) -> Result<(), Broken> {
        let mut filled = 0;
        while filled < buffer.len() {
            match rustix::net::recv(&self.socket, &mut buffer[filled..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(Broken::Failed("the other end has closed the connection".into())),
                Ok((_, count)) => filled += count,
                Err(Errno::AGAIN | Errno::INTR) if stop.load(Ordering::Relaxed) => return Err(Broken::Stopped),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends and receives so many bytes at once, in messages of the two buffers' length, as there is room and data.
    pub(super) fn exchange(
        &self,
        (out, into): (&[u8], &mut [u8]),
        messages: usize,
        stop: &AtomicBool,
    ) -> Result<(), Broken> {
        let total = out.len() * messages;
        let (mut sent, mut received) = (0, 0);
        while sent < total || received < total {
            let mut moved = false;
            if sent < total {
                let rest = &out[sent % out.len()..];
                match rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                    Ok(count) => (sent, moved) = (sent + count, true),
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if received < total {
                let rest = into.len() - received % into.len();
                match rustix::net::recv(&self.socket, &mut into[..rest], RecvFlags::DONTWAIT) {
                    Ok((0, _)) => return Err(Broken::Failed("the other end has closed the connection".into())),
                    Ok((_, count)) => (received, moved) = (received + count, true),
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if !moved {
                if stop.load(Ordering::Relaxed) {
                    return Err(Broken::Stopped);
                }
                let room = if sent < total { PollFlags::OUT } else { PollFlags::empty() };
                let data = if received < total { PollFlags::IN } else { PollFlags::empty() };
                let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
                // Interrupted or failed: the next calls tell.
                let _ = poll(&mut [PollFd::new(&self.socket, room | data)], Some(&tick));
            }
        }
        Ok(())
    }
}

/// A receiver's end before it is connected.
pub(super) struct Listener(Socket, pub(super) u16);

/// Listens for the sender of the pair on a free port of all addresses.
pub(super) fn listen() -> Result<Listener, String> {
    let any: SocketAddr = ([0, 0, 0, 0], 0).into();
    let socket = socket::listen(any).map_err(|error| error.to_string())?;
    let port = socket.local_addr().ok().and_then(|address| address.as_socket()).map_or(0, |address| address.port());
    Ok(Listener(socket, port))
}

impl Listener {
    /// Takes so many connections that begin with the token, unless `ends` says that it is in vain.
    pub(super) fn accept(
        self,
        token: &[u8; TOKEN_LENGTH],
        (streams, congestion): (usize, Option<&str>),
        mut ends: impl FnMut() -> bool,
    ) -> Result<Vec<Wire>, String> {
        let mut wires: Vec<Option<Wire>> = (0..streams).map(|_| None).collect();
        let end = Instant::now() + MEET_MAX;
        while wires.iter().any(Option::is_none) {
            if ends() {
                return Err("the measurement has ended".into());
            }
            if Instant::now() > end {
                return Err(format!("the sender has not made all connections within {MEET_MAX:?}"));
            }
            let tick = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&tick)); // asked again
            let Some((socket, _)) = socket::accept(&self.0).map_err(|error| error.to_string())? else { continue };
            let wire = Wire::new(socket, congestion)?;
            let mut greeting = [0; TOKEN_LENGTH + 4];
            if !wire.has_greeted(&mut greeting) || greeting[..TOKEN_LENGTH] != token[..] {
                tracing::warn!(ends = wire.ends, "somebody else than the sender has connected");
                continue;
            }
            let number = u32::from_le_bytes([greeting[16], greeting[17], greeting[18], greeting[19]]);
            match wires.get_mut(number as usize) {
                Some(place @ None) => {
                    wire.send(token, &AtomicBool::new(false)).map_err(|broken| format!("{broken:?}"))?;
                    *place = Some(wire);
                }
                _ => return Err(format!("the sender names a connection {number} of {streams}")),
            }
        }
        Ok(wires.into_iter().flatten().collect())
    }
}

impl Wire {
    /// Whether that much has come in time.
    fn has_greeted(&self, greeting: &mut [u8]) -> bool {
        let (end, mut filled) = (Instant::now() + TOKEN_MAX, 0);
        while filled < greeting.len() && Instant::now() < end {
            match rustix::net::recv(&self.socket, &mut greeting[filled..], RecvFlags::empty()) {
                Ok((0, _)) => return false,
                Ok((_, count)) => filled += count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        filled == greeting.len()
    }
}

/// Connects so many times to the first of the addresses where the receiver of the pair answers.
pub(super) fn connect(
    addresses: &[SocketAddr],
    token: &[u8; TOKEN_LENGTH],
    (streams, congestion): (usize, Option<&str>),
) -> Result<Vec<Wire>, String> {
    let mut why = Vec::new();
    for address in addresses {
        let wires = (0..streams as u32).map(|number| {
            let socket = socket::connect(*address, CONNECT_MAX).map_err(|error| error.to_string())?;
            let wire = Wire::new(socket, congestion)?;
            let greeting = [&token[..], &number.to_le_bytes()].concat();
            wire.send(&greeting, &AtomicBool::new(false)).map_err(|broken| format!("{broken:?}"))?;
            let mut answer = [0; TOKEN_LENGTH];
            // Another may listen there where addresses are not unique.
            if wire.has_greeted(&mut answer) && answer == *token {
                Ok(wire)
            } else {
                Err("somebody else listens there".to_owned())
            }
        });
        match wires.collect() {
            Ok(wires) => return Ok(wires),
            Err(error) => why.push(format!("{address}: {error}")),
        }
    }
    Err(why.join("; "))
}
