//! Where the server listens, and the connections that come there until they have a session.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use aqueduct_net::named::{self, Name};
use aqueduct_net::{Address, Connection, Mode, Peer, local, socket};
use aqueduct_worker::{Interest, Readiness, Ready, Registration, lock};
use socket2::Socket;

use crate::complaints::Complaint;
use crate::endpoint::ServerEndpoint;
use crate::origin::Identity;
use crate::server::{Server, StartError, goodbye};

/// How long a listener rests when a connection cannot be accepted (no descriptors, no memory):
/// those that wait would only fail again.
const LISTENER_RESTS: Duration = Duration::from_millis(100);

/// A listener: watched once at a time, so that one that rests costs nothing.
const ACCEPT: Interest = Interest { read: true, write: false, once: true };

/// The connections without a session, in all and of each client.
pub(crate) type Unjoined = Mutex<UnjoinedCounts>;

#[derive(Default)]
pub(crate) struct UnjoinedCounts {
    all: usize,
    of: HashMap<Identity, usize>,
}

/// All that a server listens on.
#[derive(Default)]
pub(crate) struct Listeners {
    present: Mutex<Vec<Arc<Listener>>>,
    /// Of networks.
    addresses: Mutex<Vec<SocketAddr>>,
    /// In the file system: removed in the end.
    names: Mutex<Vec<Name>>,
}

/// What is listened on, before anybody is let in.
pub(crate) type Bound = Vec<(Address, Socket)>;

struct Listener {
    socket: Socket,
    registration: Mutex<Option<Registration>>,
    server: Weak<Server>,
}

impl Listeners {
    /// Takes the addresses, and a Unix socket in the folder `near` for each of them that this
    /// machine reaches by a loopback address.
    pub(crate) fn bind(
        &self,
        listen: Vec<SocketAddr>,
        sockets: Vec<PathBuf>,
        near: Option<&Path>,
    ) -> Result<Bound, StartError> {
        let mut bound = Bound::new();
        for address in listen {
            let failed = |source| StartError::Listen { address: address.into(), source };
            let socket = socket::listen(address).map_err(failed)?;
            let own = socket.local_addr().map_err(failed)?.as_socket().unwrap_or(address);
            lock(&self.addresses).push(own);
            bound.push((own.into(), socket));
        }
        for path in sockets {
            let (address, listening) = (Address::Unix(path.clone()), self.listen_unix(&path));
            let socket = listening.map_err(|source| StartError::Listen { address: address.clone(), source })?;
            bound.push((address, socket));
        }
        let Some(folder) = near else { return Ok(bound) };
        for address in self.addresses() {
            match self.listen_near(folder, address) {
                Ok(found) => bound.extend(found),
                Err(error) => tracing::warn!(
                    folder = %folder.display(), %address, %error,
                    "no socket for mounts of this machine: they come by TCP, and their root is squashed; name a folder that only this user may change with local_sockets"
                ),
            }
        }
        Ok(bound)
    }

    /// The socket by which this machine reaches an address, unless it does not, or there is one
    /// already.
    fn listen_near(&self, folder: &Path, address: SocketAddr) -> io::Result<Option<(Address, Socket)>> {
        let in_network = local::folder_of_network(folder);
        let mut last = None;
        for folder in [Some(folder), in_network.as_deref()].into_iter().flatten() {
            let Some(path) = local::socket_of(folder, address) else { return Ok(None) };
            if self.sockets().contains(&path) {
                return Ok(None); // of 127.0.0.1 and 0.0.0.0 together
            }
            let made = local::make_folder(folder);
            if made.is_ok() {
                sweep(folder);
            }
            match made.and_then(|()| self.listen_unix(&path)) {
                Ok(socket) => return Ok(Some((Address::Unix(path), socket))),
                // A server of another network namespace has these addresses too.
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        last.map_or(Ok(None), Err)
    }

    fn listen_unix(&self, path: &Path) -> io::Result<Socket> {
        let (socket, name) = named::listen(path)?;
        lock(&self.names).push(name);
        Ok(socket)
    }

    /// The addresses of networks, with the ports that the kernel chose.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        lock(&self.addresses).clone()
    }

    /// The Unix sockets.
    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        lock(&self.names).iter().map(|name| name.path().to_owned()).collect()
    }

    /// All are free when this returns.
    pub(crate) fn close(&self) {
        // While the sockets listen nobody takes their names for those of a dead process.
        for name in lock(&self.names).drain(..) {
            let path = name.path().to_owned();
            if let Err(error) = name.remove() {
                tracing::debug!(path = %path.display(), %error, "could not remove a socket");
            }
            path.parent().into_iter().for_each(local::leave_folder);
        }
        for listener in lock(&self.present).drain(..) {
            lock(&listener.registration).take(); // which keeps the listener
        }
    }
}

/// Removes what servers that were killed have left in the folder for sockets.
fn sweep(folder: &Path) {
    match named::sweep(folder) {
        Ok(0) => {}
        Ok(count) => tracing::info!(folder = %folder.display(), count, "removed sockets that nobody listens on"),
        Err(error) => tracing::debug!(folder = %folder.display(), %error, "could not look for abandoned sockets"),
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        self.close();
    }
}

impl Server {
    /// Lets in who comes.
    pub(crate) fn accept(&self, bound: Bound) -> Result<(), StartError> {
        for (address, socket) in bound {
            let listener = Arc::new(Listener { socket, registration: Mutex::default(), server: self.weak() });
            // Registered under the lock: an event that comes at once finds the registration in
            // place.
            let mut registration = lock(&listener.registration);
            let registered = self.group.register(listener.socket.as_fd(), ACCEPT, listener.clone());
            *registration = Some(registered.map_err(|source| StartError::Listen { address, source })?);
            drop(registration);
            lock(&self.listeners.present).push(listener);
        }
        Ok(())
    }

    /// Whether nobody reaches it from elsewhere, except by others of this machine who pass it on.
    pub(crate) fn is_on_loopback_alone(&self) -> bool {
        self.listeners.addresses().iter().all(|address| address.ip().is_loopback())
    }

    /// Has a listener go on after a while.
    fn rest(&self, listener: &Listener) {
        let same = |other: &&Arc<Listener>| std::ptr::eq(Arc::as_ptr(other), listener);
        let Some(listener) = lock(&self.listeners.present).iter().find(same).cloned() else { return };
        let (listener, pause) = (Arc::downgrade(&listener), self.group.sleep(LISTENER_RESTS));
        self.group.spawn(async move {
            pause.await;
            if let Some(listener) = listener.upgrade() {
                listener.arm();
            }
        });
    }

    /// Whether another connection of a client is taken, which is then counted; else why not.
    fn may_come(&self, peer: Identity) -> Result<(), String> {
        let limits = &self.config.limits;
        if self.connections.load(Ordering::SeqCst) >= limits.connections_max {
            return Err(format!("all {} are taken", limits.connections_max));
        }
        let mut unjoined = lock(&self.unjoined);
        let all: usize = unjoined.all;
        let its = unjoined.of.get(&peer).copied().unwrap_or_default();
        if its >= limits.unjoined_per_address_max || all >= limits.unjoined_max {
            return Err(format!("{its} of this address, of {all} in all, have no session yet"));
        }
        unjoined.all += 1;
        unjoined.of.insert(peer, its + 1);
        Ok(())
    }

    /// A connection has joined a session, or has ended without.
    pub(crate) fn joined_or_gone(&self, peer: Identity) {
        let mut unjoined = lock(&self.unjoined);
        unjoined.all = unjoined.all.saturating_sub(1);
        if let Some(its) = unjoined.of.get_mut(&peer) {
            *its -= 1;
            if *its == 0 {
                unjoined.of.remove(&peer);
            }
        }
    }

    fn welcome(&self, socket: Socket, peer: Peer) {
        if self.draining.load(Ordering::SeqCst) {
            return;
        }
        if let Err(reason) = self.may_come(peer.into()) {
            self.metrics.refused.increment();
            self.complain(peer, Complaint::Refused, format_args!("refused a connection: {reason}"));
            // There is room for it, unless the peer has gone.
            let _ = socket.send(&goodbye(&reason));
            return;
        }
        let Some(server) = self.this.upgrade() else { return };
        self.answer_where_it_came(&socket, peer);
        let endpoint = Arc::new(ServerEndpoint::new(server, peer));
        // The lane is not known yet: read ahead little, which serves both.
        let mode = Mode { bulk: true, shared: true, suspect: self.config.limits.suspect };
        self.connections.fetch_add(1, Ordering::SeqCst);
        self.metrics.accepted.increment();
        match Connection::start(&self.group, socket, mode, self.pool.clone(), endpoint.clone()) {
            Ok(connection) => {
                connection.set_unproven();
                connection.set_hoards(self.hoarders.has(&peer.into()));
                let (group, pause) = (Arc::downgrade(&self.group), self.config.limits.hello_timeout);
                let connection = Arc::downgrade(&connection);
                let mut timeout = self.group.sleep(pause);
                self.group.spawn(async move {
                    loop {
                        timeout.await;
                        let (Some(group), Some(connection)) = (group.upgrade(), connection.upgrade()) else { return };
                        if endpoint.is_in_time(&connection) {
                            return;
                        }
                        timeout = group.sleep(pause);
                    }
                });
            }
            Err(error) => {
                self.connections.fetch_sub(1, Ordering::SeqCst);
                endpoint.joined_or_gone();
                self.complain(peer, Complaint::Exhausted, format_args!("could not start a connection: {error}"));
            }
        }
    }
}

impl Ready for Listener {
    fn ready(&self, _readiness: Readiness) {
        /// Connections accepted before others get their turn.
        const ACCEPTS_PER_TURN: usize = 64;
        let Some(server) = self.server.upgrade() else { return };
        for _ in 0..ACCEPTS_PER_TURN {
            match socket::accept(&self.socket) {
                Ok(Some((socket, peer))) => server.welcome(socket, peer),
                Ok(None) => break,
                Err(error) => {
                    let what = format_args!(
                        "connections cannot be accepted: {error}; raise this process's limits on open files and memory"
                    );
                    server.complain(Identity::Server, Complaint::Exhausted, what);
                    return server.rest(self);
                }
            }
        }
        self.arm();
    }
}

impl Listener {
    fn arm(&self) {
        let armed = lock(&self.registration).as_ref().map_or(Ok(()), |registration| registration.arm(ACCEPT));
        if let Err(error) = armed {
            tracing::error!(%error, "a listener cannot be watched any more");
        }
    }
}
