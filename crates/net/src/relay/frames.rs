//! Frames on connections that are greeted, by tasks that wait for them.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use aqueduct_wire::{HEADER_SIZE, Header, ROUTE_LENGTH_MAX};
use aqueduct_worker::Group;
use socket2::{Domain, Protocol, Socket, Type};

use crate::relay::flow::{Side, set_buffers};
use crate::socket;

/// How long a peer may leave an answer of a few bytes without room.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Tries until there is something else to say than that it would have to wait.
async fn when_ready<T>(side: &Side, mut attempt: impl FnMut(&Socket) -> io::Result<T>) -> io::Result<T> {
    poll_fn(|task| {
        // First, so that what happens after the attempt wakes this task.
        side.wake_by(task.waker());
        loop {
            match attempt(&side.socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return Poll::Ready(result),
            }
        }
    })
    .await
}

async fn read_exact(side: &Side, buffer: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        let count = when_ready(side, |mut socket| socket.read(&mut buffer[filled..])).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += count;
    }
    Ok(())
}

/// The next frame, of which not a byte behind its end is taken: what follows may be for another.
/// Longer ones than a preamble are an error.
pub(crate) async fn receive(side: &Side) -> io::Result<(Header, Vec<u8>)> {
    let mut bytes = [0; HEADER_SIZE];
    read_exact(side, &mut bytes).await?;
    let invalid = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let header = Header::decode(&bytes).map_err(|error| invalid(&error))?;
    if header.body_length as usize > ROUTE_LENGTH_MAX || header.payload_length > 0 {
        return Err(invalid(&"the frame is too long for a preamble"));
    }
    let mut body = vec![0; header.body_length as usize];
    read_exact(side, &mut body).await?;
    header.check_content(&body, &[]).map_err(|error| invalid(&error))?;
    Ok((header, body))
}

/// Sends a frame, after those that others send on this connection. A peer that has no room for it
/// in time is an error, after which the connection is of no more use: the frame may be there in
/// part.
pub(crate) async fn send(group: &Group, side: &Side, header: Header, body: &[u8]) -> io::Result<()> {
    let mut frame = header.checked(body).encode().to_vec();
    frame.extend_from_slice(body);
    let work = async {
        let _alone = alone(side).await;
        let mut sent = 0;
        while sent < frame.len() {
            sent += when_ready(side, |mut socket| socket.write(&frame[sent..])).await?;
        }
        Ok(())
    };
    let full = || io::Error::new(io::ErrorKind::TimedOut, "it does not read what it is answered");
    group.within(ANSWER_MAX, work).await.unwrap_or_else(|| Err(full()))
}

/// Nobody else sends on a connection until this is dropped.
struct Alone<'a>(&'a Side);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.end_sending();
    }
}

async fn alone(side: &Side) -> Alone<'_> {
    poll_fn(|task| {
        side.wake_by(task.waker()); // first, as above
        if side.begin_sending() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    Alone(side)
}

/// What a future gives, unless the peer of a connection goes away meanwhile, who is to send nothing
/// before it is answered.
pub(crate) async fn unless_gone<T>(side: &Side, work: impl Future<Output = T>) -> io::Result<T> {
    let mut work = pin!(work);
    poll_fn(|task| {
        side.wake_by(task.waker());
        if let Poll::Ready(value) = work.as_mut().poll(task) {
            return Poll::Ready(Ok(value));
        }
        match side.socket.peek(&mut [std::mem::MaybeUninit::uninit()]) {
            Ok(0) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Poll::Ready(Err(error)),
            _ => Poll::Pending,
        }
    })
    .await
}

/// A connection that is watched no more, and closed, when nobody takes it: also where who waits for
/// it loses patience.
pub(crate) struct Guarded(Option<Arc<Side>>);

impl Guarded {
    pub(crate) fn new(side: Arc<Side>) -> Guarded {
        Guarded(Some(side))
    }

    /// Somebody has it now.
    pub(crate) fn hand_over(mut self) {
        self.0 = None;
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.iter().for_each(|side| side.leave());
    }
}

/// Connects, with buffers of this size.
pub(crate) async fn connect(group: &Group, address: SocketAddr, buffer: usize) -> io::Result<Arc<Side>> {
    let new = Socket::new(Domain::for_address(address), Type::STREAM.cloexec().nonblocking(), Some(Protocol::TCP))?;
    // Before the window's scale is agreed on.
    set_buffers(&new, buffer);
    match new.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        _ => {}
    }
    let side = Side::new(group, new)?;
    let guarded = Guarded::new(side.clone());
    let connected = when_ready(&side, |socket| match socket.take_error()? {
        Some(error) => Err(error),
        None => socket.peer_addr().map(drop).map_err(|error| match error.kind() {
            io::ErrorKind::NotConnected => io::ErrorKind::WouldBlock.into(),
            _ => error,
        }),
    });
    connected.await.and_then(|()| socket::prepare(&side.socket))?;
    guarded.hand_over();
    Ok(side)
}
