//! A connection of a tool to a server: it asks whether the server answers, and how soon.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_fs::Errno;
use aqueduct_net::blocking::ExchangeError;
use aqueduct_net::{Initiator, Link};
use aqueduct_wire::{ClientKey, Header, Kind, Lane, Op};

use crate::connect::{ConnectError, Greeted, Greeting, Purpose, told};

/// The most bytes that a question is padded with: frames have room for more.
pub const PADDING_MAX: usize = 64 << 10;

/// Why a server that was reached does not answer a question.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nothing came in time. The connection is of no use any more.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// The connection has ended, or the server refuses.
    #[error("{0}")]
    Ended(ConnectError),
}

/// One connection, with a session of its own.
pub struct Asker {
    greeting: Greeting,
    link: Link,
    addresses: Vec<SocketAddr>,
    asked: u64,
}

impl Asker {
    /// Connects to a server as a mount does, by routes where it is in a network that has a name,
    /// and proves what there is to prove. `timeout` is for each step.
    pub fn connect(
        server: &str,
        key: Option<ClientKey>,
        routes: Option<Arc<Initiator>>,
        timeout: Duration,
    ) -> Result<Asker, ConnectError> {
        let greeting = Greeting { routes, ..Greeting::of_tool(server, key, false, timeout) };
        let Greeted { link, hello: reply, .. } = greeting.join(Purpose::Any, Lane::Control)?;
        Ok(Asker::new(greeting, link, &reply.addresses))
    }

    /// The same over a connection that was made already. `server` is for messages.
    pub fn over(link: Link, server: &str, key: Option<ClientKey>, timeout: Duration) -> Result<Asker, ConnectError> {
        let greeting = Greeting::of_tool(server, key, false, timeout);
        let Greeted { link, hello: reply, .. } = greeting.greet(link, Purpose::Any, Lane::Control)?;
        Ok(Asker::new(greeting, link, &reply.addresses))
    }

    fn new(greeting: Greeting, link: Link, addresses: &[String]) -> Asker {
        // Hints: what is no address says nothing.
        let addresses = addresses.iter().filter_map(|address| address.parse().ok()).collect();
        Asker { greeting, link, addresses, asked: 0 }
    }

    /// Where else the server listens, as it says.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// How long an answer takes, to a question with so many bytes of padding, at most
    /// [`PADDING_MAX`].
    pub fn ping(&mut self, padding: usize, timeout: Duration) -> Result<Duration, AskError> {
        let padding = vec![0; padding.min(PADDING_MAX)];
        self.ask(Header::new(Kind::Ping), &padding, Kind::Pong, timeout).map(|(took, _)| took)
    }

    /// Asks for what the server tells of itself, which is longer than a packet: how long that
    /// took, and the bytes that came.
    pub fn status(&mut self, timeout: Duration) -> Result<(Duration, usize), AskError> {
        let header = Header { op: Op::Status as u16, ..Header::new(Kind::Request) };
        self.ask(header, &[], Kind::Reply, timeout)
    }

    /// Asks for something that needs no slot: the body of the answer, or the error that it is.
    pub fn request(&mut self, op: Op, body: &[u8], timeout: Duration) -> Result<Result<Vec<u8>, Errno>, AskError> {
        let header = Header { op: op as u16, ..Header::new(Kind::Request) };
        let (_, answer) = self.answer(header, body, Kind::Reply, timeout)?;
        let (header, body) = answer;
        Ok(if header.status == 0 { Ok(body) } else { Err(Errno::from_raw(header.status as i32)) })
    }

    fn ask(
        &mut self,
        header: Header,
        body: &[u8],
        expected: Kind,
        timeout: Duration,
    ) -> Result<(Duration, usize), AskError> {
        self.answer(header, body, expected, timeout).map(|(took, (_, body))| (took, body.len()))
    }

    /// The answer that belongs to a question, and nothing else: the server may ask as well.
    fn answer(
        &mut self,
        header: Header,
        body: &[u8],
        expected: Kind,
        timeout: Duration,
    ) -> Result<(Duration, (Header, Vec<u8>)), AskError> {
        self.asked += 1;
        let header = Header { request: self.asked, ..header }.checked(body);
        let began = Instant::now();
        self.send(header, body, timeout)?;
        loop {
            let left = timeout.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
            let answer = self.link.receive_unchecked(left).map_err(|error| self.failed(error, timeout))?;
            self.link.check(&answer.0, &answer.1).map_err(|error| AskError::Ended(self.greeting.broken(error)))?;
            match answer.0 {
                got if got.kind == expected && got.request == self.asked => {
                    return Ok((began.elapsed(), answer));
                }
                Header { kind: Kind::Ping, request, .. } => {
                    self.send(Header { request, ..Header::new(Kind::Pong) }, &[], timeout)?;
                }
                Header { kind: Kind::Goodbye, .. } => {
                    let reason = told(&answer.1);
                    return Err(AskError::Ended(ConnectError::Refused {
                        server: self.greeting.server.clone(),
                        reason,
                    }));
                }
                _ => {} // of the session, which this has no use for
            }
        }
    }

    fn send(&mut self, header: Header, body: &[u8], timeout: Duration) -> Result<(), AskError> {
        self.link.send(header, (body, &[]), timeout).map_err(|error| self.failed(error, timeout))
    }

    fn failed(&self, error: ExchangeError, timeout: Duration) -> AskError {
        match error {
            ExchangeError::Socket(source)
                if matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                AskError::Silent(timeout)
            }
            error => AskError::Ended(self.greeting.failed(error)),
        }
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        // The server need not wait for who will not come back; where it is not heard it does.
        let _ = self.link.send(Header::new(Kind::Goodbye), (&[], &[]), Duration::from_millis(100));
    }
}
