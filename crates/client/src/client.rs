//! The client: its session, its lanes, and how they come back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use aqueduct_fs::{ClientId, Entry, TRANSFER_SIZE_MAX};
use aqueduct_net::{BufferPool, Closed, Connection, Link, Mode};
use aqueduct_wire::{
    AttachReply, Capabilities, Checksums, HEADER_SIZE, Header, HelloReply, Key, Kind, Lane as LaneKind,
};
use aqueduct_worker::Group;
use serde_json::json;

use crate::cache::{Leases, recall};
use crate::connect::{ConnectError, Greeting, SessionKey};
use crate::gather::Gather;
use crate::lane::{Counters, Lane, lock};
use crate::opens::Opens;
use crate::slots::Slots;
use crate::window::Window;

/// The pauses between tries to connect again: doubling from the first to the last.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_millis(500);

/// How long a try to connect, and each answer in it, may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a try to connect again may take. The kernel sends its question once more after one second, so this bridges a lost one, and a path that
/// is mended is found within two seconds; it is longer than any path takes to answer.
const RECONNECT_TIMEOUT: Duration = Duration::from_millis(2500);

/// Idle bulk buffers kept. Replies go straight to their sinks, so few are ever used.
const IDLE_BUFFERS_MAX: usize = 2;

/// What a client is.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// `host:port`.
    pub server: String,
    /// The export's name.
    pub export: String,
    /// This client's name, for the server's status and log.
    pub name: String,
    /// Nothing will be changed.
    pub read_only: bool,
    /// Give up with EIO after `timeout` without an answer; else wait, however long the server is away.
    pub soft: bool,
    /// See `soft`.
    pub timeout: Duration,
    /// The cluster's key: the server has to have it too.
    pub key: Option<Key>,
    /// Bytes that are kept until they are stable on the server, to be sent again when its machine has lost them. 0: none, and they are lost then.
    pub replay_window: usize,
    /// A server of which nothing is heard for so long, though it was asked, is connected to anew; whole seconds, at least 2.
    pub suspect: Duration,
    /// Whether what travels has checksums.
    pub checksums: Checksums,
    /// Keep what the server grants leases on: see [`Cached`](crate::Cached).
    pub leases: bool,
    /// Answer writes before the server has them, where it grants leases for that. Without `leases` it means nothing.
    pub gathers: bool,
    /// Bulk data have connections of their own, so that nothing small waits behind them. Else a client has half as many: for those that are one of thousands.
    pub bulk_lanes: bool,
}

impl ClientConfig {
    /// Connections for each worker.
    fn lanes_each(&self) -> usize {
        1 + usize::from(self.bulk_lanes)
    }
}

/// A file system over a session to one server.
pub struct Client {
    pub(crate) config: ClientConfig,
    pub(crate) groups: Vec<Arc<Group>>,
    /// The control lane of each worker, behind each its bulk lane if they have such.
    pub(crate) lanes: Vec<Arc<Lane>>,
    pub(crate) slots: Slots,
    /// For what frees others, so that it never waits behind what waits.
    pub(crate) slots_releasing: Slots,
    pub(crate) opens: Opens,
    pub(crate) window: Window,
    pub(crate) gather: Gather,
    /// The server's, when all that is kept was written, or sent again.
    pub(crate) verifier: Mutex<u64>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) closing: AtomicBool,
    pub(crate) watching: AtomicBool,
    /// Counts sessions: a request that was sent in an earlier one may or may not have been executed.
    pub(crate) session_number: AtomicU64,
    pub(crate) greeting: Greeting,
    pub(crate) leases: Option<Arc<Leases>>,
    session: Mutex<SessionKey>,
    root: Mutex<Entry>,
    read_only: bool,
    one_user: bool,
    reconnecting: AtomicBool,
    /// The server was restarted, and has not been asked what its export is like now.
    terms_due: AtomicBool,
    /// The session is a new one, and what was open in the old one has not been had again yet. For the thread that reconnects.
    pub(crate) unrestored: AtomicBool,
    pool: BufferPool,
    pub(crate) this: Weak<Client>,
}

impl Client {
    /// Connects to the server and its export: two connections for each group, or one.
    pub fn connect(config: ClientConfig, groups: &[Arc<Group>]) -> Result<Arc<Client>, ConnectError> {
        let mut instance = [0; 16];
        let server = config.server.clone();
        let local = |source| ConnectError::Local { server: server.clone(), source };
        getrandom::fill(&mut instance).map_err(|error| local(std::io::Error::other(error.to_string())))?;
        let greeting = Greeting {
            server: config.server.clone(),
            client_name: config.name.clone(),
            instance,
            timeout: CONNECT_TIMEOUT,
            key: config.key.clone(),
            connect_timeout: CONNECT_TIMEOUT,
            checksums: config.checksums,
            administers: false,
        };
        let (mut link, hello) = greeting.join(None, LaneKind::Control)?;
        let attached = greeting.attach(&mut link, &config.export, config.read_only)?;
        let leases: Option<Arc<Leases>> = config.leases.then(Arc::default);
        if let Some(leases) = &leases {
            leases.set_terms(hello.lease_seconds, attached.age_max, attached.one_user);
        }
        let client = Arc::new_cyclic(|this: &Weak<Client>| Client {
            groups: groups.to_vec(),
            lanes: (0..groups.len() * config.lanes_each())
                .map(|index| Arc::new(Lane::new(index, this.clone())))
                .collect(),
            slots: Slots::new(hello.slots),
            slots_releasing: Slots::new(hello.slots),
            opens: Opens::default(),
            window: Window::new(config.replay_window),
            gather: Gather::default(),
            verifier: Mutex::new(hello.verifier),
            counters: Arc::default(),
            closing: AtomicBool::new(false),
            watching: AtomicBool::new(false),
            session_number: AtomicU64::new(1),
            greeting: Greeting { connect_timeout: RECONNECT_TIMEOUT, ..greeting },
            leases,
            session: Mutex::new(key(&hello)),
            root: Mutex::new(attached.root),
            read_only: attached.read_only,
            one_user: attached.one_user,
            reconnecting: AtomicBool::new(false),
            terms_due: AtomicBool::new(false),
            unrestored: AtomicBool::new(false),
            pool: BufferPool::new(TRANSFER_SIZE_MAX, IDLE_BUFFERS_MAX),
            config,
            this: this.clone(),
        });
        if let Some(leases) = &client.leases {
            recall::start(&client, leases).map_err(local)?;
        }
        client.greeted(&hello);
        client.start_lane(0, link).and_then(|()| client.connect_lanes(&mut 0)).inspect_err(|_| client.disconnect())?;
        Ok(client)
    }

    /// Identifies this client to the FileSystem interface of the front end. The server has its own name for the session.
    pub fn client_id(&self) -> ClientId {
        ClientId(0)
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

    /// Of the worker, for small requests, or else for bulk data if there are such.
    pub(crate) fn lane_of(&self, worker: usize, bulk: bool) -> &Arc<Lane> {
        let each = self.config.lanes_each();
        &self.lanes[worker * each + usize::from(bulk).min(each - 1)]
    }

    /// Which are for control.
    pub(crate) fn control_lanes(&self) -> impl Iterator<Item = &Arc<Lane>> {
        self.lanes.iter().step_by(self.config.lanes_each())
    }

    fn is_bulk(&self, index: usize) -> bool {
        index % self.config.lanes_each() == 1
    }

    fn start_lane(&self, index: usize, link: Link) -> Result<(), ConnectError> {
        let lane = &self.lanes[index];
        let mode = Mode { bulk: self.is_bulk(index), shared: false, suspect: self.config.suspect };
        let group = &self.groups[index / self.config.lanes_each()];
        let connection = Connection::start(group, link, mode, self.pool.clone(), lane.clone())
            .map_err(|source| ConnectError::Local { server: self.config.server.clone(), source })?;
        if lane.connected(connection, self.opens.epoch()) {
            return Ok(());
        }
        let source = std::io::ErrorKind::ConnectionReset.into();
        Err(ConnectError::Connect { server: self.config.server.clone(), source })
    }

    /// Connects every lane that has no connection to the present session, from `next` on, where the next try is to begin: one that cannot be had keeps
    /// the others waiting no longer than its try takes.
    fn connect_lanes(&self, next: &mut usize) -> Result<(), ConnectError> {
        let count = self.lanes.len();
        let missing =
            |from: usize| (from..from + count).map(|at| at % count).find(|at| !self.lanes[*at].is_connected());
        while let Some(index) = missing(*next) {
            *next = index + 1;
            let kind = if self.is_bulk(index) { LaneKind::Bulk } else { LaneKind::Control };
            let session = lock(&self.session).clone();
            let (mut link, hello) = self.greeting.join(Some(&session), kind)?;
            self.greeted(&hello);
            if hello.recovering {
                self.terms_due.store(true, Ordering::SeqCst);
                self.recover(&mut link, hello.verifier)?;
            } else if self.unrestored.load(Ordering::SeqCst) {
                self.reopen(&mut link, hello.verifier)?;
            }
            if self.terms_due.load(Ordering::SeqCst) {
                let attached = self.greeting.attach(&mut link, &self.config.export, self.config.read_only)?;
                self.learn_terms(&hello, &attached);
            }
            self.start_lane(index, link)?;
        }
        Ok(())
    }

    /// A connection was greeted, perhaps by another server than before.
    fn greeted(&self, hello: &HelloReply) {
        let Some(leases) = &self.leases else { return };
        leases.set_lease(hello.lease_seconds);
        leases.set_tells_bare(hello.capabilities.contains(Capabilities::BARE));
        let has = |capability| self.config.gathers && hello.capabilities.contains(capability);
        self.gather.set_on(has(Capabilities::EXCLUSIVE), has(Capabilities::HELD_SETATTR));
    }

    /// The server may have another configuration than when the client was mounted.
    fn learn_terms(&self, hello: &HelloReply, attached: &AttachReply) {
        self.terms_due.store(false, Ordering::SeqCst);
        let Some(leases) = &self.leases else { return };
        leases.set_terms(hello.lease_seconds, attached.age_max, attached.one_user);
        if attached.one_user != self.one_user {
            tracing::warn!(
                server = %self.config.server, export = %self.config.export,
                "the export's squash or maps are others than when it was mounted: nothing is kept under leases; mount it again"
            );
        }
    }

    /// The server knows our session no more: begin another, and have again in it what was open in the old one.
    fn begin_session(&self) -> Result<(), ConnectError> {
        let (mut link, hello) = self.greeting.join(None, LaneKind::Control)?;
        let attached = self.greeting.attach(&mut link, &self.config.export, self.config.read_only)?;
        self.greeted(&hello);
        self.learn_terms(&hello, &attached);
        *lock(&self.session) = key(&hello);
        self.unrestored.store(true, Ordering::SeqCst);
        *lock(&self.root) = attached.root;
        self.slots.reset(hello.slots);
        self.slots_releasing.reset(hello.slots);
        self.session_number.fetch_add(1, Ordering::SeqCst);
        self.reopen(&mut link, hello.verifier)?;
        self.start_lane(0, link)
    }

    /// A lane has lost its connection: connect again, on a thread that lives as long as that takes.
    pub(crate) fn lane_lost(&self, closed: &Closed) {
        if self.closing.load(Ordering::SeqCst) || self.reconnecting.swap(true, Ordering::SeqCst) {
            return;
        }
        tracing::warn!(server = %self.config.server, reason = %closed.reason, "lost a connection; connecting again");
        self.counters.reconnects.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.start_reconnecting() {
            tracing::error!(%error, "could not start the thread that connects again; trying until it can be");
            self.start_reconnecting_later();
        }
    }

    fn start_reconnecting(&self) -> std::io::Result<()> {
        let this = self.this.clone();
        std::thread::Builder::new().name("reconnect".into()).spawn(move || reconnect(&this)).map(drop)
    }

    /// Tries to start the thread that connects again until there is room for it.
    fn start_reconnecting_later(&self) {
        let (this, group) = (self.this.clone(), self.groups[0].clone());
        self.groups[0].spawn(async move {
            loop {
                group.sleep(RETRY_LAST).await;
                let Some(client) = this.upgrade() else { return };
                if client.start_reconnecting().is_ok() {
                    return;
                }
            }
        });
    }

    fn try_reconnect(&self, next: &mut usize) -> Result<(), ConnectError> {
        match self.connect_lanes(next) {
            Err(error) if error.is_unknown_session() && !self.closing.load(Ordering::SeqCst) => {
                self.begin_session().and_then(|()| self.connect_lanes(next))
            }
            result => result,
        }
    }

    /// Makes stable what was written, and says goodbye: the server frees at once what this client held. Requests under way end with EIO. Never call it on
    /// a worker.
    pub fn disconnect(&self) {
        self.leave_nothing_held();
        self.leave_stable();
        self.closing.store(true, Ordering::SeqCst);
        let mut frame = vec![0; HEADER_SIZE];
        frame.copy_from_slice(&Header::new(Kind::Goodbye).encode());
        let _told = self.lanes.iter().any(|lane| lane.send_frame(&frame));
        for lane in &self.lanes {
            lane.close("the client disconnects");
            lane.wake_waiters();
        }
        if let Some(leases) = &self.leases {
            leases.recalls.end();
        }
    }

    /// Server, export and counters as JSON, for `aqueduct status`.
    pub fn status_json(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut status = json!({
            "server": self.config.server,
            "export": self.config.export,
            "connections": self.lanes.iter().filter(|lane| lane.is_connected()).count(),
            "operations": count(&self.counters.operations),
            "bytes_read": count(&self.counters.bytes_read),
            "bytes_written": count(&self.counters.bytes_written),
            "reconnects": count(&self.counters.reconnects),
            "replay_window": self.window.limit(),
            "replay_bytes": self.window.bytes(),
        });
        if let Some(leases) = &self.leases {
            let (inodes, bytes) = leases.kept();
            status["leases"] = json!({
                "hits": count(&leases.uses.hits),
                "misses": count(&leases.uses.misses),
                "recalls": count(&leases.uses.recalls),
                "age_max": leases.age_max(),
                "inodes": inodes,
                "bytes": bytes,
            });
            let (files, bytes) = self.gather.held();
            status["gathered"] = json!({
                "files": files,
                "bytes": bytes,
                "writes": count(&self.gather.counters.held),
                "attributes": count(&self.gather.counters.set),
                "requests": count(&self.gather.counters.sent),
            });
        }
        status.to_string()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(leases) = &self.leases {
            leases.recalls.end();
        }
    }
}

fn key(hello: &HelloReply) -> SessionKey {
    SessionKey { id: hello.session, secret: hello.secret }
}

fn reconnect(client: &Weak<Client>) {
    let (mut pause, mut next, mut told) = (RETRY_FIRST, 0, false);
    loop {
        let Some(client) = client.upgrade() else { return };
        if client.closing.load(Ordering::SeqCst) {
            return;
        }
        let result = client.try_reconnect(&mut next);
        if let Err(error) = &result {
            // That does not pass by itself, as a server that is away does.
            if error.is_of_configuration() && !told {
                tracing::error!(%error, "cannot connect again: {}; trying all the same", error.hint());
                told = true;
            }
            tracing::debug!(%error, "could not connect again yet");
        } else {
            client.reconnecting.store(false, Ordering::SeqCst);
            // A lane may have been lost again before the flag fell; whoever lost it saw the flag and left it to us.
            if client.lanes.iter().all(|lane| lane.is_connected()) || client.reconnecting.swap(true, Ordering::SeqCst) {
                return tracing::info!(server = %client.config.server, "connected again");
            }
        }
        drop(client);
        std::thread::sleep(pause);
        pause = (pause * 2).min(RETRY_LAST);
    }
}
