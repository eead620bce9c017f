//! The handshake, before a connection belongs to a group: one frame out, one frame in, on a blocking socket with a time limit.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use aqueduct_wire::{FrameError, HEADER_SIZE, Header};
use socket2::Socket;

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

/// Sends one frame without payload.
pub fn send(socket: &Socket, mut header: Header, body: &[u8], timeout: Duration) -> Result<(), ExchangeError> {
    header.body_length = body.len() as u32;
    let mut frame = header.encode().to_vec();
    frame.extend_from_slice(body);
    with_stream(socket, timeout, |stream| Ok(stream.write_all(&frame)?))
}

/// Sends one frame without payload and receives one.
pub fn exchange(
    socket: &Socket,
    header: Header,
    body: &[u8],
    timeout: Duration,
) -> Result<(Header, Vec<u8>), ExchangeError> {
    send(socket, header, body, timeout)?;
    with_stream(socket, timeout, |stream| {
        let mut bytes = [0; HEADER_SIZE];
        read_exact(stream, &mut bytes)?;
        let header = Header::decode(&bytes)?;
        if header.payload_length != 0 {
            return Err(ExchangeError::Payload);
        }
        let mut body = vec![0; header.body_length as usize];
        read_exact(stream, &mut body)?;
        Ok((header, body))
    })
}

fn read_exact(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<(), ExchangeError> {
    stream.read_exact(buffer).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => ExchangeError::Closed,
        _ => ExchangeError::Socket(error),
    })
}

fn with_stream<T>(
    socket: &Socket,
    timeout: Duration,
    work: impl FnOnce(&mut TcpStream) -> Result<T, ExchangeError>,
) -> Result<T, ExchangeError> {
    let mut stream = TcpStream::from(socket.try_clone()?);
    crate::socket::set_timeouts(&stream, Some(timeout))?;
    let result = work(&mut stream);
    crate::socket::set_timeouts(&stream, None)?;
    result
}
