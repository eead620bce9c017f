//! The other end of a connection, and where a server can be reached.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;

use socket2::{Domain, Socket};

use crate::sys;

/// The other end of a connection, as this machine's kernel tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A host of a network. 127.0.0.1 is one like any other: what a forwarder passes on comes from
    /// there too.
    Network(SocketAddr),
    /// A host of some network, behind the router that has this address.
    Routed(SocketAddr),
    /// A process of this machine, over a Unix socket.
    Process {
        /// As whom it connected.
        uid: u32,
        /// Its number, 0 if it is not visible from here.
        pid: u32,
    },
}

impl Peer {
    /// The peer of a connected socket.
    pub(crate) fn of(socket: &Socket) -> io::Result<Peer> {
        match socket.peer_addr()?.as_socket() {
            Some(address) => Ok(Peer::Network(address)),
            None if socket.domain()? == Domain::UNIX => {
                let (uid, pid) = sys::credentials(socket.as_fd())?;
                Ok(Peer::Process { uid, pid })
            }
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The same peer, of which is known that a router passes on what it sends.
    pub fn behind_router(self) -> Peer {
        match self {
            Peer::Network(address) => Peer::Routed(address),
            // A router of this machine: what matters is that nobody is local who comes by it.
            Peer::Process { .. } => Peer::Routed((Ipv4Addr::UNSPECIFIED, 0).into()),
            routed @ Peer::Routed(_) => routed,
        }
    }

    /// Its address, if it has one that is known; an IPv4 address is never in the form of IPv6.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Peer::Network(address) => Some(address.ip().to_canonical()),
            Peer::Routed(_) | Peer::Process { .. } => None,
        }
    }

    /// Whether what travels does not leave this machine's memory, as far as the kernel knows.
    pub fn is_near(&self) -> bool {
        match self {
            Peer::Network(_) => self.ip().is_some_and(|ip| ip.is_loopback()),
            Peer::Routed(_) => false,
            Peer::Process { .. } => true,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Network(address) => address.fmt(f),
            Peer::Routed(address) => write!(f, "{address} (a router)"),
            Peer::Process { uid, pid } => write!(f, "local uid={uid} pid={pid}"),
        }
    }
}

/// Where a server listens, or is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host and its port.
    Tcp(SocketAddr),
    /// A socket in the file system of this machine.
    Unix(PathBuf),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Tcp(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
