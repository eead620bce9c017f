//! Sockets with the options that this traffic needs.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// After this much silence the kernel asks once a second whether the peer is there; [`UNACKNOWLEDGED_MAX`] says how long it may be silent.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(5);

/// Sent data, or questions, that nobody acknowledges for this long break the connection: so long a half-open one goes unnoticed.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(20);

/// A blocking send (of a file's range) that makes no progress for this long breaks the connection: the peer does not read.
pub const SEND_STALL_MAX: Duration = Duration::from_secs(30);

/// Connections that wait to be accepted: a thousand clients may start in one second.
const BACKLOG: i32 = 4096;

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
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    socket.connect_timeout(&address.into(), timeout)?;
    prepare(&socket)?;
    Ok(socket)
}

/// Accepts one connection; `None` when no more wait.
pub fn accept(listener: &Socket) -> io::Result<Option<(Socket, SocketAddr)>> {
    match listener.accept() {
        Ok((socket, address)) => {
            socket.set_nonblocking(false)?;
            prepare(&socket)?;
            Ok(address.as_socket().map(|address| (socket, address)))
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => Ok(None),
        Err(error) => Err(error),
    }
}

fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_keepalive(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(Duration::from_secs(1));
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    socket.set_write_timeout(Some(SEND_STALL_MAX))?;
    if socket.peer_addr()?.as_socket().is_some_and(|peer| peer.ip().is_loopback()) {
        // BBR paces, which makes it 3 to 5 times slower than cubic on loopback (measured), where no queue is to be spared. Not having
        // cubic is no reason to fail.
        let _ = socket.set_tcp_congestion(b"cubic");
    }
    Ok(())
}

/// A standard stream's view of a connected socket, for the blocking handshake.
pub(crate) fn set_timeouts(stream: &TcpStream, timeout: Option<Duration>) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_read_timeout(timeout)?;
    socket.set_write_timeout(timeout.or(Some(SEND_STALL_MAX)))
}
