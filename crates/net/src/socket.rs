//! Sockets with the options that this traffic needs.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use crate::interfaces::{Interface, nearest};
use crate::liveness::SUSPECT_MIN;
use crate::peer::{Address, Peer};
use crate::sys;

/// Questions that an idle peer may leave unanswered.
const KEEPALIVE_QUESTIONS: u32 = 3;

/// A blocking send (of a file's range) that makes no progress for this long is left to wait in memory, and its thread goes on: the peer reads slowly,
/// or not at all. Longer than any pause of one that reads, shorter than is felt where many do not.
const SEND_STALL_MAX: Duration = Duration::from_millis(50);

/// Connections that wait to be accepted: a thousand clients may start in one second.
pub(crate) const BACKLOG: i32 = 4096;

/// Where on this machine a connection begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Local {
    /// The network interface by which everything goes. Else the routing table says it, which sends
    /// what goes to one subnet by one interface, however many lead there.
    pub interface: Option<String>,
    /// The source address.
    pub address: Option<IpAddr>,
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Local { interface: Some(interface), .. } => interface.fmt(f),
            Local { address: Some(address), .. } => address.fmt(f),
            Local { .. } => "any".fmt(f),
        }
    }
}

/// Why a socket could not be connected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// This machine cannot begin it there: it has no such interface or address.
    #[error("cannot connect from {local}: {source}")]
    Local {
        /// Which.
        local: Local,
        /// Why.
        source: io::Error,
    },
    /// Nobody answers at the remote address.
    #[error("{0}")]
    Remote(io::Error),
}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> io::Error {
        match error {
            ConnectError::Remote(source) => source,
            ConnectError::Local { ref source, .. } => io::Error::new(source.kind(), error.to_string()),
        }
    }
}

/// Listens on an address.
pub fn listen(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec().nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Connects within `timeout`. The socket stays blocking: receiving and ordinary sending ask not to wait in each call.
pub fn connect(address: SocketAddr, timeout: Duration) -> io::Result<Socket> {
    Ok(connect_tcp(&Local::default(), address, timeout)?)
}

fn connect_tcp(local: &Local, address: SocketAddr, timeout: Duration) -> Result<Socket, ConnectError> {
    let from = |source| ConnectError::Local { local: local.clone(), source };
    let socket =
        Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), Some(Protocol::TCP)).map_err(from)?;
    if let Some(interface) = &local.interface {
        match socket.bind_device(Some(interface.as_bytes())) {
            // Kernels before 5.7 ask for a privilege. Its source address is bound all the same.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::debug!(interface, %error, "could not bind a connection to its interface");
            }
            result => result.map_err(from)?,
        }
    }
    if let Some(source) = local.address {
        // The port is chosen when it connects: as many connections to each remote as there are
        // ports. Kernels before 4.2 do not know this.
        let _ = sys::set_bind_without_port(socket.as_fd());
        socket.bind(&SocketAddr::new(source, 0).into()).map_err(from)?;
    }
    socket.connect_timeout(&address.into(), timeout).map_err(ConnectError::Remote)?;
    prepare(&socket).map_err(ConnectError::Remote)?;
    Ok(socket)
}

/// As [`connect`], to either kind of address.
pub fn connect_to(address: &Address, timeout: Duration) -> io::Result<Socket> {
    Ok(connect_from(&Local::default(), address, timeout)?)
}

/// As [`connect_to`], from a certain place of this machine; a Unix socket has but one.
pub(crate) fn connect_from(local: &Local, address: &Address, timeout: Duration) -> Result<Socket, ConnectError> {
    match address {
        Address::Tcp(address) => connect_tcp(local, *address, timeout),
        Address::Unix(path) => connect_unix(path, timeout).map_err(ConnectError::Remote),
    }
}

fn connect_unix(path: &Path, timeout: Duration) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.cloexec(), None)?;
    // A listener whose queue is full is waited for as long as sending may take.
    socket.set_write_timeout(Some(timeout))?;
    socket.connect(&SockAddr::unix(path)?)?;
    prepare(&socket)?;
    Ok(socket)
}

/// Who listens at the other end of a connection that was made to a Unix socket.
pub fn peer(socket: &Socket) -> io::Result<Peer> {
    Peer::of(socket)
}

/// Accepts one connection; `None` when no more wait, or one has gone already.
pub fn accept(listener: &Socket) -> io::Result<Option<(Socket, Peer)>> {
    match listener.accept() {
        Ok((socket, _)) => {
            let prepared = socket.set_nonblocking(false).and_then(|()| prepare(&socket));
            Ok(prepared.and_then(|()| Peer::of(&socket)).ok().map(|peer| (socket, peer)))
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Has all of an accepted connection go by the interface by which it came, where several of these
/// are in the subnet of its other end: the routing table would send it by one of them, whichever
/// of them its other end has chosen.
pub fn bind_to_arrival(socket: &Socket, interfaces: &[Interface]) -> io::Result<()> {
    let Some(peer) = socket.peer_addr()?.as_socket().map(|peer| peer.ip().to_canonical()) else { return Ok(()) };
    let wires = nearest(interfaces, peer);
    if wires.len() < 2 {
        return Ok(());
    }
    let index = sys::arrival(socket.as_fd(), socket.domain()? == Domain::IPV6)?;
    let name = rustix::net::netdevice::index_to_name(socket, index)?;
    // What this machine sends to itself comes by loopback.
    if wires.iter().any(|wire| wire.name == name) { socket.bind_device(Some(name.as_bytes())) } else { Ok(()) }
}

pub(crate) fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_write_timeout(Some(SEND_STALL_MAX))?;
    if socket.domain()? == Domain::UNIX {
        return Ok(());
    }
    socket.set_tcp_nodelay(true)?;
    if socket.peer_addr()?.as_socket().is_some_and(|peer| peer.ip().is_loopback()) {
        // BBR paces, which makes it 3 to 5 times slower than cubic on loopback (measured), where no queue is to be spared. Not having
        // cubic is no reason to fail.
        let _ = socket.set_tcp_congestion(b"cubic");
    }
    Ok(())
}

/// The longest time and interval that the kernel takes (MAX_TCP_KEEPIDLE and MAX_TCP_KEEPINTVL of `net/tcp.h`): nine hours.
const KEEPALIVE_SECONDS_MAX: u64 = 32_767;

/// Has the kernel ask an idle peer whether it is there, so that a dead one is found out within
/// `suspect`, and try again soon where nobody answers. The end of a peer on this machine is told
/// at once.
pub(crate) fn guard(socket: &Socket, suspect: Duration) -> io::Result<()> {
    if socket.domain()? == Domain::UNIX {
        return Ok(());
    }
    let seconds = suspect.max(SUSPECT_MIN).as_secs().min(KEEPALIVE_SECONDS_MAX) as u32;
    let questions = KEEPALIVE_QUESTIONS.min(seconds - 1);
    let interval = (seconds / 5).max(1);
    let after = seconds - questions * interval;
    let [after, interval] = [after, interval].map(|seconds| Duration::from_secs(seconds.into()));
    socket.set_keepalive(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(after).with_interval(interval).with_retries(questions))?;
    // Without it the pauses between tries grow to two minutes, and a path that is mended is found as late. Older kernels do not have it.
    let _ = sys::set_retry_max(socket.as_fd(), (suspect.as_millis() / 2).clamp(1000, 120_000) as u32);
    Ok(())
}

/// Has the kernel forget what it would still send when the socket is closed: nobody is there to take it, and it must not arrive late.
pub(crate) fn discard_unsent(socket: &Socket) {
    let _ = socket.set_linger(Some(Duration::ZERO)); // else it tries for some minutes
}

/// Has the kernel say at once that the connection is over (RST), and forget what it would still
/// send. An orderly end (FIN) would say that whoever sends it has gone; here it is the peer that
/// is not heard.
pub(crate) fn reset(socket: &Socket) {
    discard_unsent(socket);
    // Where that cannot be had, the close that follows resets as well.
    let _ = rustix::net::connect_unspec(socket);
}

/// For the blocking handshake; afterwards without.
pub(crate) fn set_timeouts(socket: &Socket, timeout: Option<Duration>) -> io::Result<()> {
    socket.set_read_timeout(timeout)?;
    socket.set_write_timeout(timeout.or(Some(SEND_STALL_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_by_which_interface_a_connection_came() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = listen(address.parse().unwrap()).unwrap();
            let own = listener.local_addr().unwrap().as_socket().unwrap();
            let _client = connect(own, Duration::from_secs(5)).unwrap();
            let accepted = std::iter::repeat_with(|| accept(&listener).unwrap()).flatten().next().unwrap().0;
            let index = sys::arrival(accepted.as_fd(), own.is_ipv6()).unwrap();
            assert_eq!(rustix::net::netdevice::index_to_name(&accepted, index).unwrap(), "lo", "{address}");
        }
    }

    #[test]
    fn the_kernel_takes_any_time_to_suspect_a_peer() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        for seconds in [0, 1, 2, 3, 5, 32_767, 32_768, 1_000_000_000, 1 << 32, u64::MAX] {
            guard(&socket, Duration::from_secs(seconds)).unwrap_or_else(|error| panic!("{seconds} s: {error}"));
        }
    }
}
