//! Routers on a way, which are asked one by one whether they are there.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use aqueduct_wire::{Lane, NetworkName, RouteReply, RouteStatus, Target};

use crate::blocking::{ExchangeError, Link};
use crate::initiator::{Initiator, RouteError, question};
use crate::socket::Local;

/// A connection to a router on the way to a network, through those before it.
pub struct Hop {
    link: Link,
    /// How many routers are before it.
    pub passed: u8,
    /// What it says that it is called, and its address.
    pub name: String,
}

impl fmt::Debug for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hop").field("passed", &self.passed).field("name", &self.name).finish_non_exhaustive()
    }
}

impl Hop {
    /// How long an answer takes.
    pub fn ping(&mut self, timeout: Duration) -> Result<Duration, ExchangeError> {
        question(&mut self.link, timeout)
    }
}

impl Initiator {
    /// The router behind so many others on the way by this gateway to a network, or the last on
    /// that way if there are fewer. One of an earlier release says [`RouteStatus::Bad`].
    pub fn hop(
        &self,
        gateway: SocketAddr,
        (network, behind): (&NetworkName, u8),
        timeout: Duration,
    ) -> Result<Hop, RouteError> {
        let target = Target::Hop { network: network.clone(), behind };
        let asked = self.ask((&Local::default(), gateway), &target, (Lane::Control, 0), timeout);
        match asked.map_err(|source| RouteError::Gateway { gateway, source })? {
            (link, RouteReply { status: RouteStatus::Open, hop, text }) => Ok(Hop { link, passed: hop, name: text }),
            (_, RouteReply { status, hop, text }) => Err(RouteError::Told { gateway, status, hop, text }),
        }
    }
}
