//! The handshake, before a connection belongs to a group: one frame out, one frame in, on a blocking socket with a time limit.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_wire::{FrameError, FrameKeys, HEADER_SIZE, Header, Kind, Opener, Sealer};
use socket2::Socket;

use crate::peer::Peer;
use crate::receive::Frame;
use crate::way::Way;

/// Frames that are kept of those that a peer sends by itself before it answers.
const ASIDE_MAX: usize = 1024;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The connection failed or the time was over.
    #[error("{0}")]
    Socket(#[from] std::io::Error),
    /// The peer closed the connection instead of answering.
    #[error("the peer closed the connection without an answer")]
    Closed,
    /// What came is not of this protocol.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// A payload where none belongs.
    #[error("the answer has a payload, which no handshake frame has")]
    Payload,
}

/// A connected socket, and what its two ends have agreed on.
pub struct Link {
    pub(crate) socket: Socket,
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
    /// It leads through a router.
    pub(crate) way: Option<Arc<Way>>,
    /// What the peer has sent by itself while it was asked.
    pub(crate) aside: Vec<Frame>,
}

impl From<Socket> for Link {
    fn from(socket: Socket) -> Link {
        Link { socket, sealer: Sealer::default(), opener: Opener::default(), way: None, aside: Vec::new() }
    }
}

impl Link {
    /// The router by which it leads.
    pub fn gateway(&self) -> Option<SocketAddr> {
        self.way.as_ref().map(|way| way.gateway)
    }

    /// Who is at the other end.
    pub fn peer(&self) -> std::io::Result<Peer> {
        Peer::of(&self.socket)
    }

    /// The address at this end; `None`: it has none.
    pub fn local_ip(&self) -> std::io::Result<Option<IpAddr>> {
        Ok(self.socket.local_addr()?.as_socket().map(|address| address.ip().to_canonical()))
    }

    /// From now on each frame has its tag, in both directions.
    pub fn set_keys(&mut self, keys: FrameKeys) {
        self.sealer.set_key(keys.send);
        self.opener = Opener::new(Some(keys.receive));
    }

    /// From now on each frame has this version, in both directions.
    pub fn set_version(&mut self, version: u16) {
        self.sealer.set_version(version);
        self.opener.set_version(version);
    }

    /// From now on each frame that is sent has its checksum. Those that come are checked if they have one.
    pub fn add_checksums(&mut self) {
        self.sealer.add_checksums();
    }

    /// Checks a frame that [`receive_unchecked`](Link::receive_unchecked) gave.
    pub fn check(&mut self, header: &Header, body: &[u8]) -> Result<(), FrameError> {
        self.opener.check(header, body)
    }

    /// Sends one frame: body and payload.
    pub fn send(
        &mut self,
        header: Header,
        (body, payload): (&[u8], &[u8]),
        timeout: Duration,
    ) -> Result<(), ExchangeError> {
        let header = Header { body_length: body.len() as u32, payload_length: payload.len() as u32, ..header };
        let mut frame = header.encode().to_vec();
        frame.extend_from_slice(body);
        self.sealer.seal(&mut frame, payload);
        self.with_stream(timeout, |stream| {
            stream.write_all(&frame)?;
            Ok(stream.write_all(payload)?)
        })
    }

    /// Receives one frame without payload, and does not look at its tag.
    pub fn receive_unchecked(&mut self, timeout: Duration) -> Result<(Header, Vec<u8>), ExchangeError> {
        self.with_stream(timeout, |stream| {
            let end = Instant::now() + timeout;
            let mut bytes = [0; HEADER_SIZE];
            read_exact(stream, &mut bytes, end)?;
            let header = self.opener.header(&bytes)?;
            if header.payload_length != 0 {
                return Err(ExchangeError::Payload);
            }
            let mut body = vec![0; header.body_length as usize];
            read_exact(stream, &mut body, end)?;
            header.check_content(&body, &[])?;
            Ok((header, body))
        })
    }

    /// Sends one frame and receives one without payload.
    pub fn exchange(
        &mut self,
        header: Header,
        content: (&[u8], &[u8]),
        timeout: Duration,
    ) -> Result<(Header, Vec<u8>), ExchangeError> {
        self.send(header, content, timeout)?;
        let (header, body) = self.receive_unchecked(timeout)?;
        self.check(&header, &body)?;
        Ok((header, body))
    }

    /// As [`exchange`](Link::exchange), of a peer that has let this side in: it may ask whether
    /// this side is there, which is answered, and tell something by itself, which is kept for
    /// whoever has the connection next.
    pub fn ask(
        &mut self,
        header: Header,
        content: (&[u8], &[u8]),
        timeout: Duration,
    ) -> Result<(Header, Vec<u8>), ExchangeError> {
        let end = Instant::now() + timeout;
        self.send(header, content, timeout)?;
        loop {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let (header, body) = self.receive_unchecked(left)?;
            self.check(&header, &body)?;
            match header.kind {
                Kind::Ping => {
                    self.send(Header { request: header.request, ..Header::new(Kind::Pong) }, (&[], &[]), timeout)?;
                }
                Kind::Callback | Kind::Completion | Kind::Notice if self.aside.len() < ASIDE_MAX => {
                    self.aside.push(Frame::of_handshake(header, body));
                }
                _ => return Ok((header, body)),
            }
        }
    }

    fn with_stream<T>(
        &self,
        timeout: Duration,
        work: impl FnOnce(&mut &Socket) -> Result<T, ExchangeError>,
    ) -> Result<T, ExchangeError> {
        crate::socket::set_timeouts(&self.socket, Some(timeout))?;
        let result = work(&mut &self.socket);
        crate::socket::set_timeouts(&self.socket, None)?;
        result
    }
}

/// Fills the buffer before `end`, also when the peer sends a byte now and then.
fn read_exact(stream: &mut &Socket, buffer: &mut [u8], end: Instant) -> Result<(), ExchangeError> {
    let mut filled = 0;
    while filled < buffer.len() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ExchangeError::Socket(ErrorKind::WouldBlock.into()));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Err(ExchangeError::Closed),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(ExchangeError::Socket(error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_peer_that_sends_a_byte_now_and_then_does_not_answer_in_time() {
        const STEP: Duration = Duration::from_millis(40);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let trickle = std::thread::spawn(move || {
            let answer = Header::new(Kind::Pong).encode();
            answer
                .iter()
                .take_while(|byte| peer.write_all(&[**byte]).map(|()| std::thread::sleep(STEP)).is_ok())
                .count()
        });
        let mut link = Link::from(Socket::from(socket));
        let started = Instant::now();
        let result = link.exchange(Header::new(Kind::Ping), (&[], &[]), 5 * STEP);
        assert!(
            matches!(&result, Err(ExchangeError::Socket(error)) if error.kind() == ErrorKind::WouldBlock),
            "{result:?}"
        );
        assert!(started.elapsed() < STEP * HEADER_SIZE as u32 / 2, "{:?}", started.elapsed());
        drop(link);
        trickle.join().unwrap();
    }
}
