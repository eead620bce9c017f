//! Sockets with the options that this traffic needs.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::liveness::SUSPECT_MIN;
use crate::sys;

/// Questions that an idle peer may leave unanswered.
const KEEPALIVE_QUESTIONS: u32 = 3;

/// A blocking send (of a file's range) that makes no progress for this long is left to wait in memory, and its thread goes on: the peer reads slowly,
/// or not at all. Longer than any pause of one that reads, shorter than is felt where many do not.
const SEND_STALL_MAX: Duration = Duration::from_millis(50);

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

/// Accepts one connection; `None` when no more wait, or one has gone already.
pub fn accept(listener: &Socket) -> io::Result<Option<(Socket, SocketAddr)>> {
    match listener.accept() {
        Ok((socket, address)) => {
            let prepared = socket.set_nonblocking(false).and_then(|()| prepare(&socket));
            Ok(prepared.ok().and_then(|()| Some((socket, address.as_socket()?))))
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) => Ok(None),
        Err(error) => Err(error),
    }
}

fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_write_timeout(Some(SEND_STALL_MAX))?;
    if socket.peer_addr()?.as_socket().is_some_and(|peer| peer.ip().is_loopback()) {
        // BBR paces, which makes it 3 to 5 times slower than cubic on loopback (measured), where no queue is to be spared. Not having
        // cubic is no reason to fail.
        let _ = socket.set_tcp_congestion(b"cubic");
    }
    Ok(())
}

/// The longest time and interval that the kernel takes (MAX_TCP_KEEPIDLE and MAX_TCP_KEEPINTVL of `net/tcp.h`): nine hours.
const KEEPALIVE_SECONDS_MAX: u64 = 32_767;

/// Has the kernel ask an idle peer whether it is there, so that a dead one is found out within `suspect`, and try again soon where nobody answers.
pub(crate) fn guard(socket: &Socket, suspect: Duration) -> io::Result<()> {
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

/// A standard stream's view of a connected socket, for the blocking handshake.
pub(crate) fn set_timeouts(stream: &TcpStream, timeout: Option<Duration>) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_read_timeout(timeout)?;
    socket.set_write_timeout(timeout.or(Some(SEND_STALL_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_takes_any_time_to_suspect_a_peer() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        for seconds in [0, 1, 2, 3, 5, 32_767, 32_768, 1_000_000_000, 1 << 32, u64::MAX] {
            guard(&socket, Duration::from_secs(seconds)).unwrap_or_else(|error| panic!("{seconds} s: {error}"));
        }
    }
}
