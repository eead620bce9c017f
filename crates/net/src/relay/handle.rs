//! A router that runs: where it listens, and what can be asked of it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use aqueduct_metrics::Snapshot;
use aqueduct_worker::{Group, Interest, Readiness, Ready, Registration, lock};
use socket2::Socket;

use crate::initiator;
use crate::relay::admission::{BUFFER_MAX, BUFFER_MIN};
use crate::relay::core::{Core, FlowStatus, RelayConfig};
use crate::relay::flow::set_buffers;
use crate::relay::{greet, watch};
use crate::routes::{GatewayState, Routes, Table};
use crate::socket;

/// How long a listener rests when a connection cannot be accepted (no descriptors, no memory).
const LISTENER_RESTS: Duration = Duration::from_millis(100);

/// Connections accepted before others get their turn.
const ACCEPTS_PER_TURN: usize = 64;

const ACCEPT: Interest = Interest { read: true, write: false, once: true };

/// A router. Dropping it ends all its flows.
pub struct Relay {
    core: Arc<Core>,
    listeners: Vec<Arc<Listener>>,
    addresses: Vec<SocketAddr>,
}

/// How a router fares.
#[derive(Clone, Debug)]
pub struct RelayStatus {
    /// In so many seconds its flows end, and it takes no more.
    pub stops_in: Option<u32>,
    /// Its networks and ways.
    pub table: Table,
    /// How gateways fare.
    pub gateways: Vec<GatewayState>,
    /// All its flows.
    pub flows: Vec<FlowStatus>,
    /// What it has counted.
    pub metrics: Snapshot,
}

struct Listener {
    socket: Socket,
    registration: Mutex<Option<Registration>>,
    core: Weak<Core>,
    this: Weak<Listener>,
}

impl Relay {
    /// Listens on all addresses, and passes on from there. The first group greets who comes, and
    /// all move what flows: each of one thread, or flows are moved by several that are in each
    /// other's way.
    pub fn start(
        config: RelayConfig,
        listen: &[SocketAddr],
        routes: Arc<Routes>,
        groups: &[Arc<Group>],
    ) -> io::Result<Relay> {
        let group = groups.first().ok_or(io::ErrorKind::InvalidInput)?;
        let core = Core::new(config, (group, groups), routes.clone(), initiator::random()?);
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for address in listen {
            let failed = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
            let socket = socket::listen(*address).map_err(failed)?;
            // What is accepted has them from the start, before the window's scale is agreed on.
            set_buffers(&socket, BUFFER_MAX);
            addresses.push(socket.local_addr()?.as_socket().unwrap_or(*address));
            let listener = Arc::new_cyclic(|this| Listener {
                socket,
                registration: Mutex::default(),
                core: Arc::downgrade(&core),
                this: this.clone(),
            });
            listeners.push(listener);
        }
        let relay = Relay { core, listeners, addresses };
        for listener in &relay.listeners {
            let mut registration = lock(&listener.registration);
            *registration = Some(group.register(listener.socket.as_fd(), ACCEPT, listener.clone())?);
        }
        relay.core.look();
        Ok(relay)
    }

    /// Where it listens, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Its routes, to be changed as they are used.
    pub fn routes(&self) -> &Arc<Routes> {
        &self.core.routes
    }

    /// Takes no more flows, and tells initiators that theirs end in so many seconds, so that they
    /// make others first. Those that are left then are reset.
    pub fn drain(&self, seconds: u32) {
        let pause = Duration::from_secs(seconds.into());
        let end = Instant::now() + pause;
        self.core.set_stopping(Some(end));
        watch::tell(&self.core, seconds, None);
        let (core, sleep) = (Arc::downgrade(&self.core), self.core.group.sleep(pause));
        self.core.group.spawn(async move {
            sleep.await;
            // Unless it goes on, or was given another time.
            if let Some(core) = core.upgrade().filter(|core| core.is_stopping_at(end)) {
                core.flows().iter().for_each(|flow| flow.abort());
            }
        });
    }

    /// Takes flows again.
    pub fn resume(&self) {
        self.core.set_stopping(None);
    }

    /// How many flows are open.
    pub fn flows(&self) -> usize {
        self.core.flows().len()
    }

    /// How it fares.
    pub fn status(&self) -> RelayStatus {
        RelayStatus {
            stops_in: self.core.stops_in(),
            table: self.core.routes.table(),
            gateways: self.core.routes.gateways(),
            flows: self.core.status(),
            metrics: Snapshot::of(&*self.core),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        for listener in &self.listeners {
            lock(&listener.registration).take(); // which keeps the listener
        }
        let watchers: Vec<_> = lock(&self.core.watchers).drain().collect();
        watchers.iter().for_each(|(_, watcher)| watcher.side.leave());
        self.core.flows().iter().for_each(|flow| flow.abort());
    }
}

impl Listener {
    fn welcome(&self, socket: Socket, client: IpAddr) {
        let Some(core) = self.core.upgrade() else { return };
        // Without a word: whoever floods it shall not have it write.
        let Some(greeting) = core.begin_greeting(client) else { return };
        // Until it is a flow it has no more than its share of what all may have.
        set_buffers(&socket, BUFFER_MIN);
        let group = core.group.clone();
        group.spawn(greet::greet(core, socket, client, greeting));
    }

    fn arm(&self) {
        let armed = lock(&self.registration).as_ref().map_or(Ok(()), |registration| registration.arm(ACCEPT));
        if let Err(error) = armed {
            tracing::error!(%error, "a listener cannot be watched any more");
        }
    }

    fn rest(&self) {
        let Some(core) = self.core.upgrade() else { return };
        let (this, pause) = (self.this.clone(), core.group.sleep(LISTENER_RESTS));
        core.group.spawn(async move {
            pause.await;
            if let Some(listener) = this.upgrade() {
                listener.arm();
            }
        });
    }
}

impl Ready for Listener {
    fn ready(&self, _readiness: Readiness) {
        for _ in 0..ACCEPTS_PER_TURN {
            match socket::accept(&self.socket) {
                Ok(Some((socket, peer))) => {
                    self.welcome(socket, peer.ip().unwrap_or(std::net::Ipv4Addr::LOCALHOST.into()));
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "connections cannot be accepted; raise this process's limits on open files and memory");
                    return self.rest();
                }
            }
        }
        self.arm();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use aqueduct_wire::Lane;
    use aqueduct_worker::Settings;

    use super::*;
    use crate::relay::RelayLimits;

    /// LNet's LU-20039 and LU-17999: a router that was enabled again had lost the sizes of its
    /// buffers, and credits.
    #[test]
    fn who_takes_flows_again_has_all_places_and_the_same_buffers() {
        let settings = Settings { name: "r".into(), threads_min: 0, threads_max: 0, spin_max: Duration::ZERO };
        let group = Group::new(settings).unwrap();
        let limits = RelayLimits { flows_max: 64, memory: 256 << 20, ..RelayLimits::default() };
        let config = RelayConfig { name: "r".into(), limits, suspect: Duration::from_secs(5) };
        let routes = Arc::new(Routes::new(Table::default()));
        let relay = Relay::start(config, &["127.0.0.1:0".parse().unwrap()], routes, &[group]).unwrap();
        let client = |number: u8| IpAddr::from(Ipv4Addr::new(10, 0, 0, number));
        let fill = || (0..=u8::MAX).take_while(|number| relay.core.enter(client(*number), Lane::Bulk).is_ok()).count();
        let places = fill();
        let buffer = relay.core.buffer(Lane::Bulk);
        assert!(places > 32 && buffer < BUFFER_MAX, "{places} places, buffers of {buffer} bytes");
        relay.drain(30);
        assert!(relay.core.enter(client(0), Lane::Bulk).is_err(), "it stops");
        (0..places).for_each(|number| relay.core.leave(client(number as u8), Lane::Bulk));
        relay.resume();
        assert_eq!((fill(), relay.core.buffer(Lane::Bulk)), (places, buffer));
    }
}
