//! A session: what it is made of. Others add what it does: [`exchange`](crate::exchange) sends one
//! request, [`calls`](crate::calls) has the operations, [`replay`](crate::replay) makes stable
//! what was written, [`recovery`](crate::recovery) has again what was open, and
//! [`reconnect`](crate::reconnect) makes the connections, and [`heal`](crate::heal) those of rails
//! that failed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

use aqueduct_fs::Entry;
use aqueduct_metrics::status::WayStatus;
use aqueduct_metrics::{Collect, Snapshot, table};
use aqueduct_net::{BufferPool, Initiator};
use aqueduct_wire::{Checksums, Class, ClientKey, HEADER_SIZE, Header, Kind, LEASES_TOLD_MAX, LeaseId};
use aqueduct_worker::{Earlier, Group, lock};

use crate::connect::{Greeting, SessionKey};
use crate::counters::Counters;
use crate::holder::Holder;
use crate::lane::Lane;
use crate::link::Link;
use crate::opens::Opens;
use crate::rails::{RailState, Rails, RailsConfig};
use crate::slots::Slots;
use crate::window::Window;

/// What a session is.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// `host:port`.
    pub server: String,
    /// The export's name.
    pub export: String,
    /// This client's name, for the server's status and log.
    pub name: String,
    /// Nothing will be changed.
    pub read_only: bool,
    /// Give up with EIO after `timeout` without an answer; else wait, however long the server is
    /// away.
    pub soft: bool,
    /// See `soft`.
    pub timeout: Duration,
    /// The cluster's key, or this node's: the server has to have the cluster's too.
    pub key: Option<ClientKey>,
    /// Bytes that are kept until they are stable on the server, to be sent again when its machine
    /// has lost them. 0: none, and they are lost then.
    pub replay_window: usize,
    /// A server of which nothing is heard for so long, though it was asked, is connected to anew;
    /// whole seconds, at least 2.
    pub suspect: Duration,
    /// Whether what travels has checksums.
    pub checksums: Checksums,
    /// Bulk data have connections of their own, so that nothing small waits behind them. Else a
    /// client has half as many: for those that are one of thousands.
    pub bulk_lanes: bool,
    /// Replies are to say how long their requests waited at the server before it began with them.
    pub asks_queue_time: bool,
    /// By which routers networks are reached that have a name: `HOST:PORT@NET` in `server` is a
    /// host there.
    pub routes: Option<Arc<Initiator>>,
    /// The ways to the server that are used at once.
    pub rails: RailsConfig,
}

impl SessionConfig {
    /// Connections for each worker.
    pub(crate) fn lanes_each(&self) -> usize {
        1 + usize::from(self.bulk_lanes)
    }
}

/// A session to one server: connections come and go under it.
pub struct Session {
    pub(crate) config: SessionConfig,
    pub(crate) groups: Vec<Arc<Group>>,
    /// The control lane of each worker, behind each its bulk lane if they have such.
    pub(crate) lanes: Vec<Lane>,
    /// Those of all lanes, by their index.
    pub(crate) links: Vec<Arc<Link>>,
    pub(crate) rails: Rails,
    /// Whoever gives a link its connection reads it, and whoever begins an epoch writes it: no
    /// link gets a connection that was made in the epoch before.
    pub(crate) joins: RwLock<()>,
    pub(crate) slots: Slots,
    /// For what frees others, so that it never waits behind what waits.
    pub(crate) slots_releasing: Arc<Slots>,
    /// Closes under way, which may give room.
    pub(crate) releases: Arc<Earlier>,
    pub(crate) opens: Opens,
    pub(crate) window: Window,
    /// The server's, when all that is kept was written, or sent again.
    pub(crate) verifier: Mutex<u64>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) closing: AtomicBool,
    pub(crate) watching: AtomicBool,
    /// Counts sessions: a request that was sent in an earlier one may or may not have been
    /// executed.
    pub(crate) session_number: AtomicU64,
    pub(crate) greeting: Greeting,
    pub(crate) holder: Option<Arc<dyn Holder>>,
    pub(crate) key: Mutex<SessionKey>,
    pub(crate) root: Mutex<Entry>,
    pub(crate) read_only: bool,
    pub(crate) one_user: bool,
    pub(crate) reconnecting: AtomicBool,
    /// The server was restarted, and has not been asked what its export is like now.
    pub(crate) terms_due: AtomicBool,
    /// The session is a new one, and what was open in the old one has not been had again yet. For
    /// the thread that reconnects.
    pub(crate) unrestored: AtomicBool,
    /// All is as it was before the server was restarted, and the server was told so. It may have
    /// heard it though its answer is lost.
    pub(crate) settling: AtomicBool,
    /// The server was restarted, though some connections seem to live.
    pub(crate) recovery_due: AtomicBool,
    /// The server says how long requests took there.
    pub(crate) tells_times: AtomicBool,
    /// `config.server`, to be kept by who notes what it was waited for.
    pub(crate) named: Arc<str>,
    pub(crate) pool: BufferPool,
    pub(crate) this: Weak<Session>,
}

impl Session {
    /// `host:port`, as it was given.
    pub fn server(&self) -> &str {
        &self.config.server
    }

    /// The export's name.
    pub fn export(&self) -> &str {
        &self.config.export
    }

    /// Whether the server serves the export read-only.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether all callers act as one user at the server.
    pub fn one_user(&self) -> bool {
        self.one_user
    }

    /// The root of the export, as it was when the client attached.
    pub(crate) fn root(&self) -> Entry {
        lock(&self.root).clone()
    }

    /// The workers on which it runs.
    pub fn groups(&self) -> &[Arc<Group>] {
        &self.groups
    }

    /// What is open and locked at the server.
    pub fn opens(&self) -> &Opens {
        &self.opens
    }

    /// What was written and is not stable yet.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Since it connected.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether it has been disconnected.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// How many connections there are now.
    pub fn connections(&self) -> usize {
        self.links.iter().filter(|link| link.is_connected()).count()
    }

    /// Changes while anything comes from the server.
    pub fn heard(&self) -> u64 {
        let heard = self.links.iter().filter_map(|link| link.connection()).map(|connection| connection.heard().into());
        heard.fold(0, u64::wrapping_add)
    }

    /// Asks whether the server is there, in every way there is: one that is will be heard.
    pub fn ask_whether_there(&self) {
        self.links.iter().filter_map(|link| link.connection()).for_each(|connection| crate::silence::ask(&connection));
    }

    /// How each of its rails fares; none where it has but the way that the routing table says.
    pub fn rails(&self) -> Vec<RailState> {
        let of = |rail: usize| self.links.iter().filter(move |link| link.place.rail.index == rail);
        self.rails.states(|rail| (of(rail).filter(|link| link.is_connected()).count(), of(rail).count()))
    }

    /// The ways of its connections, one for each rail.
    pub fn ways(&self) -> Vec<WayStatus> {
        let mut ways: BTreeMap<usize, WayStatus> = BTreeMap::new();
        for link in &self.links {
            if let Some(way) = link.connection().and_then(|connection| connection.way()) {
                ways.entry(link.place.rail.index).or_default().add(&way);
            }
        }
        let rails = self.rails();
        let path = |rail: usize| match rails.get(rail) {
            Some(rail) => format!("{} {}", self.server(), rail.path),
            None => self.server().to_owned(),
        };
        ways.into_iter().map(|(rail, way)| WayStatus { path: path(rail), ..way }).collect()
    }

    /// Whether any of its connections lives.
    pub(crate) fn is_linked(&self) -> bool {
        self.links.iter().any(|link| link.is_connected())
    }

    /// Of the worker, for small requests, or else for bulk data if there are such.
    pub(crate) fn lane_of(&self, worker: usize, bulk: bool) -> &Lane {
        let each = self.config.lanes_each();
        &self.lanes[worker * each + usize::from(bulk).min(each - 1)]
    }

    pub(crate) fn slots(&self, class: Class) -> &Slots {
        if class == Class::Releasing { &self.slots_releasing } else { &self.slots }
    }

    /// Tells the server which leases, granted in this epoch, are not used any more. Those of
    /// earlier epochs it does not have.
    pub fn return_leases(&self, epoch: u64, leases: &[LeaseId]) {
        for part in leases.chunks(LEASES_TOLD_MAX) {
            let mut frame = vec![0; HEADER_SIZE];
            aqueduct_wire::encode_leases(part, &mut frame);
            let header = Header { body_length: (frame.len() - HEADER_SIZE) as u32, ..Header::new(Kind::CallbackReply) };
            frame[..HEADER_SIZE].copy_from_slice(&header.encode());
            // Without a connection the server asks again on the next.
            let mut control = self.links.iter().filter(|link| !link.place.bulk);
            let _told = control.any(|link| link.send_frame_in(epoch, &frame));
        }
    }
}

impl Collect for Session {
    fn collect(&self, into: &mut Snapshot) {
        self.counters.collect(into);
        into.put_number(&table::SESSION_CONNECTIONS, &[], self.connections() as u64);
        into.put_number(&table::SESSION_SLOTS_LENT, &[], (self.slots.lent() + self.slots_releasing.lent()) as u64);
        into.put_number(&table::SESSION_REPLAY_BYTES, &[], self.window.bytes() as u64);
        into.put_number(&table::SESSION_REPLAY_WINDOW, &[], self.window.limit() as u64);
        for rail in self.rails() {
            let labels = [rail.path.as_str()];
            into.put_number(&table::SESSION_RAIL_BYTES_READ, &labels, rail.bytes[0]);
            into.put_number(&table::SESSION_RAIL_BYTES_WRITTEN, &labels, rail.bytes[1]);
            into.put_number(&table::SESSION_RAIL_ROUND_TRIP_SECONDS, &labels, rail.round_trip.as_nanos() as u64);
            into.put_number(&table::SESSION_RAIL_DOWN, &labels, u64::from(rail.connections == 0));
            into.put_number(&table::SESSION_RAIL_OUTAGES, &labels, rail.outages);
        }
    }
}
