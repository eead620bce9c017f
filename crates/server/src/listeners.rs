//! Where a server listens.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use aqueduct_net::named::{self, Name};
use aqueduct_net::{Address, Peer, local, socket};
use aqueduct_worker::{Group, Interest, Readiness, Ready, Registration, lock};
use socket2::Socket;

use crate::config::StartError;

/// How long a listener rests when a connection cannot be accepted (no descriptors, no memory):
/// those that wait would only fail again.
const LISTENER_RESTS: Duration = Duration::from_millis(100);

/// A listener: watched once at a time, so that one that rests costs nothing.
const ACCEPT: Interest = Interest { read: true, write: false, once: true };

/// Where those go who have come.
pub(crate) trait Door: Send + Sync {
    /// Whose threads work for it.
    fn group(&self) -> &Arc<Group>;

    /// A connection was accepted.
    fn welcome(&self, socket: Socket, peer: Peer);

    /// None can be accepted for now.
    fn refuses(&self, error: &io::Error);
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
    door: Weak<dyn Door>,
    this: Weak<Listener>,
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

    /// Lets in who comes.
    pub(crate) fn open(&self, bound: Bound, group: &Arc<Group>, door: &Weak<dyn Door>) -> Result<(), StartError> {
        for (address, socket) in bound {
            let (registration, door) = (Mutex::default(), door.clone());
            let listener = Arc::new_cyclic(|this| Listener { socket, registration, door, this: this.clone() });
            // Registered under the lock: an event that comes at once finds the registration in
            // place.
            let mut registration = lock(&listener.registration);
            let registered = group.register(listener.socket.as_fd(), ACCEPT, listener.clone());
            *registration = Some(registered.map_err(|source| StartError::Listen { address, source })?);
            drop(registration);
            lock(&self.present).push(listener);
        }
        Ok(())
    }

    /// Whether nobody reaches it from elsewhere, except by others of this machine who pass it on.
    pub(crate) fn are_on_loopback_alone(&self) -> bool {
        self.addresses().iter().all(|address| address.ip().is_loopback())
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

impl Ready for Listener {
    fn ready(&self, _readiness: Readiness) {
        /// Connections accepted before others get their turn.
        const ACCEPTS_PER_TURN: usize = 64;
        let Some(door) = self.door.upgrade() else { return };
        for _ in 0..ACCEPTS_PER_TURN {
            match socket::accept(&self.socket) {
                Ok(Some((socket, peer))) => door.welcome(socket, peer),
                Ok(None) => break,
                Err(error) => {
                    door.refuses(&error);
                    return self.rest(door.group());
                }
            }
        }
        self.arm();
    }
}

impl Listener {
    /// Has it go on after a while.
    fn rest(&self, group: &Group) {
        let (listener, pause) = (self.this.clone(), group.sleep(LISTENER_RESTS));
        group.spawn(async move {
            pause.await;
            if let Some(listener) = listener.upgrade() {
                listener.arm();
            }
        });
    }

    fn arm(&self) {
        let armed = lock(&self.registration).as_ref().map_or(Ok(()), |registration| registration.arm(ACCEPT));
        if let Err(error) = armed {
            tracing::error!(%error, "a listener cannot be watched any more");
        }
    }
}
