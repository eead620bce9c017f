//! Who a client is: what its connection's peer is known to be, and who it has proved to be.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use aqueduct_net::Peer;
use serde::{Deserialize, Serialize};

/// Where a session comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The name that it has proved to have a node key for. Then it is known by this, wherever it
    /// comes from.
    pub(crate) node: Option<Arc<str>>,
    /// The other end of its first connection.
    pub(crate) peer: Peer,
    /// It has proved to be one of the volume's servers.
    pub(crate) is_member: bool,
}

/// By what a client is known in rules, limits and the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Identity {
    /// A node that has proved its name.
    Node(Arc<str>),
    /// Any other client of this address.
    Host(IpAddr),
    /// Any other client that comes by the router of this address.
    Behind(IpAddr),
    /// Any other client on this machine, of this user.
    User(u32),
    /// No client: the server itself, in its log.
    Server,
}

impl Origin {
    /// Of a client that has proved no name.
    pub(crate) fn anonymous(peer: Peer) -> Origin {
        Origin { node: None, peer, is_member: false }
    }

    pub(crate) fn identity(&self) -> Identity {
        self.node.clone().map_or_else(|| self.peer.into(), Identity::Node)
    }

    /// Whether it is this process, by the kernel's word.
    pub(crate) fn is_this_process(&self) -> bool {
        matches!(self.peer, Peer::Process { pid, .. } if pid == std::process::id())
    }

    /// Whether it is a process of this machine that may do anyway whatever this server can:
    /// root's, or the server's own user's.
    pub(crate) fn is_local(&self) -> bool {
        is_local(self.peer)
    }
}

fn is_local(peer: Peer) -> bool {
    match peer {
        Peer::Process { uid, .. } => uid == 0 || uid == rustix::process::geteuid().as_raw(),
        Peer::Network(_) | Peer::Routed(_) => false,
    }
}

impl From<Peer> for Identity {
    fn from(peer: Peer) -> Identity {
        match peer {
            Peer::Network(address) => Identity::Host(address.ip().to_canonical()),
            Peer::Routed(address) => Identity::Behind(address.ip().to_canonical()),
            Peer::Process { uid, .. } => Identity::User(uid),
        }
    }
}

impl From<&Origin> for Identity {
    fn from(origin: &Origin) -> Identity {
        origin.identity()
    }
}

/// As a session's journal has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredOrigin {
    pub(crate) node: Option<String>,
    pub(crate) peer: StoredPeer,
    #[serde(default)]
    pub(crate) is_member: bool,
}

/// See [`Peer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StoredPeer {
    Network(SocketAddr),
    Routed(SocketAddr),
    Process { uid: u32, pid: u32 },
}

impl From<&Origin> for StoredOrigin {
    fn from(origin: &Origin) -> StoredOrigin {
        let peer = match origin.peer {
            Peer::Network(address) => StoredPeer::Network(address),
            Peer::Routed(address) => StoredPeer::Routed(address),
            Peer::Process { uid, pid } => StoredPeer::Process { uid, pid },
        };
        StoredOrigin { node: origin.node.as_deref().map(str::to_owned), peer, is_member: origin.is_member }
    }
}

impl From<StoredOrigin> for Origin {
    fn from(stored: StoredOrigin) -> Origin {
        let peer = match stored.peer {
            StoredPeer::Network(address) => Peer::Network(address),
            StoredPeer::Routed(address) => Peer::Routed(address),
            StoredPeer::Process { uid, pid } => Peer::Process { uid, pid },
        };
        Origin { node: stored.node.map(Arc::from), peer, is_member: stored.is_member }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Node(name) => write!(f, "node:{name}"),
            Identity::Host(address) => address.fmt(f),
            Identity::Behind(address) => write!(f, "behind router {address}"),
            Identity::User(uid) => write!(f, "local uid={uid}"),
            Identity::Server => f.write_str("this server"),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            Some(name) => write!(f, "node:{name} ({})", self.peer),
            None => self.peer.fmt(f),
        }
    }
}
