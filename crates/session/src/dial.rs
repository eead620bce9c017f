//! Connections to a server by its addresses, of which some may be dead.
//!
//! An address at which nothing answers is known to be dead only after seconds. So the next one is
//! tried soon beside it, and the one that answered last is tried first.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use aqueduct_net::{self as net, Address, DialError, Link, Path, local};
use aqueduct_wire::{Lane, NetworkName};
use aqueduct_worker::lock;

use crate::connect::{ConnectError, Greeted, Greeting, Purpose};

/// How long one address is waited for before the next is tried beside it: the "connection attempt
/// delay" of RFC 8305.
const HEAD_START: Duration = Duration::from_millis(250);

/// Where a server is now: at the addresses with which its text has commas between, of which some
/// may be unknown as long as one is not. Those in a network lead there by routers.
fn resolve(server: &str) -> Result<Vec<Path>, ConnectError> {
    let mut found = Vec::new();
    let mut failed = None;
    for text in server.split(',') {
        if let Some(path) = text.strip_prefix(UNIX_PREFIX) {
            found.push(Address::Unix(PathBuf::from(path)).into());
            continue;
        }
        let (host, via) = match text.rsplit_once('@').and_then(|(host, name)| Some((host, NetworkName::new(name)?))) {
            Some((host, network)) => (host, Some(network)),
            None => (text, None),
        };
        let path = |address: SocketAddr| Path { via: via.clone(), ..Address::from(address).into() };
        match host.to_socket_addrs() {
            Ok(addresses) => found.extend(addresses.map(path)),
            Err(source) => failed = Some(ConnectError::Resolve { server: text.to_owned(), source }),
        }
    }
    if !found.is_empty() {
        return Ok(found);
    }
    let unknown = || ConnectError::Resolve { server: server.to_owned(), source: io::ErrorKind::NotFound.into() };
    Err(failed.unwrap_or_else(unknown))
}

/// What an address begins with that is a Unix socket's.
const UNIX_PREFIX: &str = "unix:";

/// Connections to some paths, in the order in which they are had or fail. Those that are still on
/// their way when this is dropped end by themselves.
struct Dials<'a> {
    greeting: &'a Greeting,
    lane: Lane,
    left: std::vec::IntoIter<Path>,
    under_way: usize,
    ends: (Sender<Dialed>, Receiver<Dialed>),
}

/// A path, and what came of it.
type Dialed = (Path, Result<Link, ConnectError>);

impl<'a> Dials<'a> {
    fn new(greeting: &'a Greeting, paths: Vec<Path>, lane: Lane) -> Dials<'a> {
        Dials { greeting, lane, left: paths.into_iter(), under_way: 0, ends: mpsc::channel() }
    }

    /// Tries a path on a thread of its own. What came of it, where there is none to be had.
    fn begin(&mut self, path: Path) -> Option<Dialed> {
        let (greeting, lane, end) = (self.greeting.clone(), self.lane, self.ends.0.clone());
        let to = path.clone();
        let dial = move || {
            let link = greeting.connect(&to, lane);
            let _not_wanted_any_more = end.send((to, link));
        };
        match std::thread::Builder::new().name("dial".into()).spawn(dial) {
            Ok(_) => {
                self.under_way += 1;
                None
            }
            Err(source) => Some((path, Err(ConnectError::Local { server: self.greeting.server.clone(), source }))),
        }
    }
}

impl Iterator for Dials<'_> {
    type Item = Dialed;

    fn next(&mut self) -> Option<Dialed> {
        loop {
            if self.under_way > 0 {
                let has_more = !self.left.as_slice().is_empty();
                let patience = if has_more { HEAD_START } else { Duration::MAX };
                match self.ends.1.recv_timeout(patience) {
                    Ok(dialed) => {
                        self.under_way -= 1;
                        return Some(dialed);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return None,
                }
            }
            let path = self.left.next()?;
            if self.under_way == 0 && self.left.as_slice().is_empty() {
                let link = self.greeting.connect(&path, self.lane);
                return Some((path, link));
            }
            if let Some(failed) = self.begin(path) {
                return Some(failed);
            }
        }
    }
}

/// What the addresses of a server have said so far.
#[derive(Default)]
struct Refusals(Option<ConnectError>);

impl Refusals {
    /// That somebody is there who is not meant says more than that nobody is elsewhere.
    fn add(&mut self, path: &Path, error: ConnectError) {
        tracing::debug!(%path, %error, "a connection could not be had");
        if self.0.as_ref().is_none_or(|last| matches!(last, ConnectError::Connect { .. })) {
            self.0 = Some(error);
        }
    }
}

impl Greeting {
    fn connect(&self, path: &Path, lane: Lane) -> Result<Link, ConnectError> {
        let failed = |source| ConnectError::Connect { server: self.server.clone(), source };
        net::dial(path, self.routes.as_deref(), lane, self.connect_timeout).map_err(|error| failed(error.into()))
    }

    /// Connects one lane: at the first of the addresses where this works. Each is tried, since at
    /// one of them another server may be by now, or one that lets this client in only from
    /// elsewhere.
    pub(crate) fn join(&self, purpose: Purpose<'_>, lane: Lane) -> Result<Greeted, ConnectError> {
        let mut refusals = Refusals::default();
        let mut far = Vec::new();
        for path in self.latest_first(resolve(&self.server)?) {
            let Some(link) = self.near(&path) else {
                far.push(path);
                continue;
            };
            match self.greet(link, purpose, lane) {
                Err(error) if error.is_of_address() => {
                    // By TCP the same server says the same, but of where this client comes from.
                    if matches!(error, ConnectError::Connect { .. } | ConnectError::LinkRefused { .. }) {
                        far.push(path.clone());
                    }
                    refusals.add(&path, error);
                }
                result => return self.reached(path, result),
            }
        }
        for (path, link) in Dials::new(self, far, lane) {
            match link.and_then(|link| self.greet(link, purpose, lane)) {
                Err(error) if error.is_of_address() => refusals.add(&path, error),
                result => return self.reached(path, result),
            }
        }
        Err(refusals.0.unwrap_or_else(|| self.broken("it has no address")))
    }

    /// The socket of the same server on this machine, where there is one: by it the server knows
    /// for certain who comes.
    fn near(&self, path: &Path) -> Option<Link> {
        match path {
            Path { remote: Address::Tcp(address), via: None, .. } => {
                local::connect(*address, self.connect_timeout).map(Link::from)
            }
            _ => None,
        }
    }

    fn latest_first(&self, mut paths: Vec<Path>) -> Vec<Path> {
        if let Some(latest) = &*lock(&self.latest) {
            paths.sort_by_key(|path| path != latest);
        }
        paths
    }

    fn reached(&self, path: Path, result: Result<Greeted, ConnectError>) -> Result<Greeted, ConnectError> {
        if result.is_ok() {
            *lock(&self.latest) = Some(path);
        }
        result
    }

    /// Connects over a certain path. The outer error: nobody answers there, or this machine cannot
    /// begin it.
    pub(crate) fn join_over(
        &self,
        (path, timeout): (&Path, Duration),
        purpose: Purpose<'_>,
        lane: Lane,
    ) -> Result<Result<Greeted, ConnectError>, DialError> {
        let link = net::dial(path, self.routes.as_deref(), lane, timeout)?;
        Ok(self.greet(link, purpose, lane))
    }

    /// The ways to the server, as it was named.
    pub(crate) fn named(&self) -> Result<Vec<Path>, ConnectError> {
        resolve(&self.server)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// An address at which the kernel answers nobody, since nobody takes those who have come.
    fn dead() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(100));
        let waiting: Vec<TcpStream> = std::iter::from_fn(|| connect().ok()).collect();
        (address, listener, waiting)
    }

    #[test]
    fn a_living_address_is_reached_beside_dead_ones() {
        let (dead, _listener, waiting) = dead();
        assert!(!waiting.is_empty() && waiting.len() < 10, "{}", waiting.len());
        let living = TcpListener::bind("127.0.0.1:0").unwrap();
        let living = living.local_addr().map(|address| (address, living)).unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let path = |address: SocketAddr| Path::from(Address::Tcp(address));
        let greeting = Greeting::of_tool(&format!("{dead},{closed},{dead},{}", living.0), None, false, LONG);
        let mut dials = Dials::new(&greeting, greeting.named().unwrap(), Lane::Control);
        let mut next = || dials.next().map(|(path, link)| (path, link.is_ok()));
        assert_eq!(next(), Some((path(closed), false)), "it says so at once");
        assert_eq!(next(), Some((path(living.0), true)));
    }

    #[test]
    fn the_address_that_answered_last_is_tried_first() {
        let greeting = Greeting::of_tool("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", None, false, LONG);
        let order = || -> Vec<String> {
            greeting.latest_first(greeting.named().unwrap()).iter().map(ToString::to_string).collect()
        };
        assert_eq!(order(), ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]);
        *lock(&greeting.latest) = Some(Address::Tcp("127.0.0.1:2".parse().unwrap()).into());
        assert_eq!(order(), ["127.0.0.1:2", "127.0.0.1:1", "127.0.0.1:3"]);
    }
}
