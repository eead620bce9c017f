//! One connection between rank 0 and another rank: messages in the frames of Aqueduct's protocol, each with its tag.
//!
//! A message is one or several REQUESTs, on the way to rank 0, or REPLYs: `op` says what it is, `request` which one of the collective calls it belongs to,
//! `slot` whether more of it follows. The body is JSON.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use aqueduct_wire::{BODY_LENGTH_MAX, FrameKeys, HEADER_SIZE, Header, Kind, Opener, Sealer};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Socket, TcpKeepalive};

/// The longest message: what all ranks say in one collective call, rank 0 sends to each.
pub(super) const MESSAGE_LENGTH_MAX: usize = 256 << 20;

/// Messages that wait to be taken: a rank is at most a few calls ahead of rank 0, since it waits for an answer to most.
const WAITING_MAX: usize = 4096;

/// A rank that takes nothing of what it is sent for so long is lost.
const STALL_MAX: Duration = Duration::from_secs(120);

/// What is received at once.
pub(super) const RECEIVE_SIZE: usize = 64 << 10;

/// An idle rank is asked whether its host is still there, after so long and so often.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Op {
    /// All have joined: the hosts.
    Welcome = 1,
    /// The sender is at a barrier; all are.
    Barrier,
    /// What a rank says for rank 0.
    Gather,
    /// What rank 0 says.
    Broadcast,
    /// The sender has nothing more to do.
    End,
    /// See [`super::Team::say`]: needs no answer.
    Said,
    /// The user wants it to end: needs no answer.
    Interrupt,
    /// A rank has failed, and with it the measurement.
    Failed,
    /// What time is it?
    Time,
}

impl Op {
    fn from_code(code: u16) -> Option<Op> {
        use Op::*;
        [Welcome, Barrier, Gather, Broadcast, End, Said, Interrupt, Failed, Time]
            .into_iter()
            .find(|op| *op as u16 == code)
    }

    /// Whether it is part of a collective call, and waits until that is made here too.
    fn is_collective(self) -> bool {
        !matches!(self, Op::Said | Op::Interrupt | Op::Failed)
    }
}

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) op: Op,
    /// Which collective call.
    pub(super) sequence: u64,
    pub(super) body: Vec<u8>,
}

/// The connection to another rank.
pub(super) struct Channel {
    pub(super) socket: Socket,
    /// The other end's number.
    pub(super) rank: usize,
    pub(super) host: String,
    /// Messages of collective calls, in order.
    pub(super) waiting: VecDeque<Message>,
    /// It said that it has nothing more to do, or has ended otherwise.
    pub(super) ended: bool,
    sealer: Sealer,
    opener: Opener,
    /// What we send, and what we take.
    kinds: (Kind, Kind),
    received: Vec<u8>,
    /// The parts of a message so far.
    parts: Vec<u8>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Channel({} on {})", self.rank, self.host)
    }
}

impl Channel {
    /// Over a socket whose two ends have proved to have the same key.
    pub(super) fn new(
        socket: Socket,
        keys: FrameKeys,
        (rank, host): (usize, String),
        is_leader: bool,
    ) -> std::io::Result<Channel> {
        let (after, interval, questions) = KEEPALIVE;
        socket.set_keepalive(true)?;
        let keepalive = TcpKeepalive::new().with_time(after).with_interval(interval).with_retries(questions);
        socket.set_tcp_keepalive(&keepalive)?;
        // While something is on its way keepalive rests.
        socket.set_tcp_user_timeout(Some(STALL_MAX))?;
        let kinds = if is_leader { (Kind::Reply, Kind::Request) } else { (Kind::Request, Kind::Reply) };
        Ok(Channel {
            socket,
            rank,
            host,
            waiting: VecDeque::new(),
            ended: false,
            sealer: Sealer::new(Some(keys.send), false),
            opener: Opener::new(Some(keys.receive)),
            kinds,
            received: Vec::new(),
            parts: Vec::new(),
        })
    }

    /// Sends a message.
    pub(super) fn send(&mut self, op: Op, sequence: u64, body: &[u8]) -> Result<(), String> {
        if body.len() > MESSAGE_LENGTH_MAX {
            return Err(format!("a message of {} bytes is longer than {MESSAGE_LENGTH_MAX}", body.len()));
        }
        let mut rest = body;
        loop {
            let (part, more) = rest.split_at(rest.len().min(BODY_LENGTH_MAX));
            let header = Header {
                op: op as u16,
                request: sequence,
                slot: u32::from(!more.is_empty()),
                body_length: part.len() as u32,
                ..Header::new(self.kinds.0)
            };
            let mut frame = Vec::with_capacity(HEADER_SIZE + part.len());
            frame.extend_from_slice(&header.encode());
            frame.extend_from_slice(part);
            self.sealer.seal(&mut frame, &[]);
            self.send_bytes(&frame)?;
            if more.is_empty() {
                return Ok(());
            }
            rest = more;
        }
    }

    fn send_bytes(&self, mut bytes: &[u8]) -> Result<(), String> {
        let mut moved = Instant::now();
        while !bytes.is_empty() {
            match rustix::net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    moved = Instant::now();
                }
                Err(Errno::INTR) => {}
                // The socket's own limit for one call, which is short.
                Err(Errno::AGAIN) if moved.elapsed() < STALL_MAX => {}
                Err(Errno::AGAIN) => return Err(format!("it has taken nothing of what it was sent for {STALL_MAX:?}")),
                Err(error) => return Err(said(error)),
            }
        }
        Ok(())
    }

    /// Takes what has come, without waiting; gives what needs no answer. An error is the end of the connection.
    pub(super) fn receive(&mut self, buffer: &mut [u8; RECEIVE_SIZE]) -> Result<Vec<Message>, String> {
        let mut told = Vec::new();
        loop {
            match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err("it has ended, or was killed".into()),
                Ok((_, count)) => {
                    self.received.extend_from_slice(&buffer[..count]);
                    self.take_frames(&mut told)?;
                    if count < RECEIVE_SIZE {
                        return Ok(told);
                    }
                }
                Err(Errno::AGAIN) => return Ok(told),
                Err(Errno::INTR) => {}
                Err(error) => return Err(said(error)),
            }
        }
    }

    /// Waits for one message that is part of a call.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<Message, String> {
        let mut buffer = Box::new([0; RECEIVE_SIZE]);
        let end = Instant::now() + timeout;
        loop {
            if let Some(message) = self.waiting.pop_front() {
                return Ok(message);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("nothing has come for {timeout:?}"));
            }
            let left = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut waits = [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::IN)];
            // Interrupted or failed: what the socket says counts.
            let _ = rustix::event::poll(&mut waits, Some(&left));
            self.receive(&mut buffer)?;
        }
    }

    fn take_frames(&mut self, told: &mut Vec<Message>) -> Result<(), String> {
        let received = std::mem::take(&mut self.received);
        let mut rest = &received[..];
        while let Some((head, after)) = rest.split_first_chunk::<HEADER_SIZE>() {
            let header = Header::decode(head).map_err(|error| error.to_string())?;
            if header.payload_length != 0 || header.kind != self.kinds.1 {
                return Err(format!("it sent a frame that no rank sends ({:?})", header.kind));
            }
            let Some((body, after)) = after.split_at_checked(header.body_length as usize) else { break };
            self.opener.check(&header, body).map_err(|error| error.to_string())?;
            self.take_part(&header, body, told)?;
            rest = after;
        }
        self.received = rest.to_vec();
        Ok(())
    }

    fn take_part(&mut self, header: &Header, body: &[u8], told: &mut Vec<Message>) -> Result<(), String> {
        if self.parts.len() + body.len() > MESSAGE_LENGTH_MAX {
            return Err(format!("it sent a message of more than {MESSAGE_LENGTH_MAX} bytes"));
        }
        self.parts.extend_from_slice(body);
        if header.slot != 0 {
            return Ok(());
        }
        let op = Op::from_code(header.op).ok_or_else(|| format!("it sent a message of unknown kind {}", header.op))?;
        let message = Message { op, sequence: header.request, body: std::mem::take(&mut self.parts) };
        if !op.is_collective() {
            told.push(message);
        } else if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(message);
        } else {
            return Err(format!("it is more than {WAITING_MAX} messages ahead"));
        }
        Ok(())
    }
}

/// What a socket's error means here.
fn said(error: Errno) -> String {
    match error {
        Errno::CONNRESET | Errno::PIPE => "it has ended, or was killed".into(),
        Errno::TIMEDOUT => "its host does not answer any more".into(),
        error => std::io::Error::from(error).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use aqueduct_wire::{Key, Transcript};
    use rand::{Rng, SeedableRng};

    use super::*;

    fn pair() -> (Channel, Channel) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = Socket::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let far = Socket::from(listener.accept().unwrap().0);
        let hello = Header::new(Kind::Hello);
        let transcript = Transcript::new((&hello, b"a"), (&hello, b"b"));
        let key = Key::new([7; 32]);
        let near = Channel::new(near, key.of_client(&transcript), (0, "near".into()), false).unwrap();
        (near, Channel::new(far, key.of_server(&transcript), (1, "far".into()), true).unwrap())
    }

    /// Receives until there is something.
    fn receive(channel: &mut Channel) -> Result<Vec<Message>, String> {
        let mut buffer = Box::new([0; RECEIVE_SIZE]);
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let told = channel.receive(&mut buffer)?;
            if !told.is_empty() || !channel.waiting.is_empty() || Instant::now() > end {
                return Ok(told);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn messages_of_any_length_come_whole_and_in_order() {
        let (mut near, mut far) = pair();
        let bodies = [vec![], vec![1; BODY_LENGTH_MAX], vec![2; BODY_LENGTH_MAX + 1], vec![3; 900_000]];
        let sent = bodies.clone();
        let sender = std::thread::spawn(move || {
            for (at, body) in sent.iter().enumerate() {
                near.send(Op::Gather, at as u64, body).unwrap();
            }
            near.send(Op::Said, 0, b"").unwrap();
            near
        });
        let mut buffer = Box::new([0; RECEIVE_SIZE]);
        let mut told = Vec::new();
        while told.is_empty() {
            told = far.receive(&mut buffer).unwrap();
        }
        assert_eq!(told[0].op, Op::Said);
        let got: Vec<_> = far.waiting.drain(..).map(|message| (message.sequence, message.body)).collect();
        assert_eq!(got, bodies.into_iter().enumerate().map(|(at, body)| (at as u64, body)).collect::<Vec<_>>());
        drop(sender.join().unwrap());
        assert!(receive(&mut far).unwrap_err().contains("ended"));
    }

    #[test]
    fn foreign_bytes_end_the_connection() {
        let mut random = rand::rngs::SmallRng::seed_from_u64(1);
        for round in 0..64 {
            let (near, mut far) = pair();
            let header = Header { op: 2, request: 1, body_length: round % 3, ..Header::new(Kind::Request) };
            // Nothing of a frame, or a frame without a tag.
            let bytes: Vec<u8> = match round % 2 {
                0 => (0..200).map(|_| random.random()).collect(),
                _ => [&header.encode()[..], &[0; 2][..(round % 3) as usize]].concat(),
            };
            near.send_bytes(&bytes).unwrap();
            assert!(receive(&mut far).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn what_a_rank_may_make_us_keep_is_limited() {
        let (mut near, mut far) = pair();
        for sequence in 0..=WAITING_MAX as u64 {
            near.send(Op::Barrier, sequence, b"").unwrap();
        }
        let mut buffer = Box::new([0; RECEIVE_SIZE]);
        let end = Instant::now() + Duration::from_secs(20);
        let error = loop {
            match far.receive(&mut buffer) {
                Err(error) => break error,
                Ok(_) => assert!(Instant::now() < end, "all of it was kept"),
            }
        };
        assert!(error.contains("ahead"), "{error}");
    }

    #[test]
    fn a_message_of_unknown_kind_ends_the_connection() {
        let (mut near, mut far) = pair();
        let mut frame = Header { op: 99, ..Header::new(Kind::Request) }.encode().to_vec();
        near.sealer.seal(&mut frame, &[]);
        near.send_bytes(&frame).unwrap();
        assert!(receive(&mut far).unwrap_err().contains("unknown kind 99"));
    }
}
