//! How a session's connections are made, and come back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::{Duration, Instant};

use aqueduct_fs::TRANSFER_SIZE_MAX;
use aqueduct_net::{self as net, BufferPool, Closed, Connection, Frame, Mode, Silence};
use aqueduct_wire::{AttachReply, Capabilities, HEADER_SIZE, Header, HelloReply, Kind, LeaseId, Map};
use aqueduct_worker::{Group, lock};

use crate::connect::{ConnectError, Greeted, Greeting, Purpose, SessionKey};
use crate::counters::Counters;
use crate::heal;
use crate::holder::Holder;
use crate::lane::Lane;
use crate::link::{Link, Move, Owner, Place, Waiters};
use crate::opens::Opens;
use crate::rails::Rails;
use crate::session::{Session, SessionConfig};
use crate::slots::Slots;
use crate::window::Window;

/// The pauses between tries to connect again: doubling from the first to the last.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_LAST: Duration = Duration::from_millis(500);

/// How long a try to connect, and each answer in it, may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a try to connect again may take: longer than any path takes to answer. The kernel
/// repeats its SYN after one second, so a lost one is bridged, and a mended path is found within two
/// seconds.
const RECONNECT_TIMEOUT: Duration = Duration::from_millis(2500);

/// How long a client that leaves waits until the server has heard its goodbye, and how often it
/// looks. A server that answers nothing frees what the client held when its grace is over.
const GOODBYE_HEARD_MAX: Duration = Duration::from_secs(1);
const GOODBYE_STEP: Duration = Duration::from_millis(1);

/// Idle bulk buffers kept. Replies go straight to their sinks, so few are ever used.
const IDLE_BUFFERS_MAX: usize = 2;

/// How a session greets that begins.
fn greeting(config: &SessionConfig, instance: [u8; 16]) -> Greeting {
    Greeting {
        server: config.server.clone(),
        client_name: config.name.clone(),
        instance,
        timeout: CONNECT_TIMEOUT,
        key: config.key.clone(),
        links: Arc::default(),
        connect_timeout: CONNECT_TIMEOUT,
        checksums: config.checksums,
        administers: false,
        routes: config.routes.clone(),
        latest: Arc::default(),
    }
}

impl Session {
    /// Connects to the server and its export: two connections for each group, or one.
    pub fn connect(
        config: SessionConfig,
        groups: &[Arc<Group>],
        holder: Option<Arc<dyn Holder>>,
    ) -> Result<Arc<Session>, ConnectError> {
        let mut instance = [0; 16];
        let local = |source| ConnectError::Local { server: config.server.clone(), source };
        getrandom::fill(&mut instance).map_err(|error| local(std::io::Error::other(error.to_string())))?;
        let greeting = greeting(&config, instance);
        let mut first = heal::join_first(&greeting, &config.rails.paths)?;
        let attached = greeting.attach(&mut first.link, &config.export, config.read_only)?;
        if let Some(holder) = &holder {
            holder.attached(&first.hello, &attached);
        }
        let hello = first.hello.clone();
        let (ways, slots) = heal::ways(&greeting, &config.rails, &first);
        let rails = Rails::new(&config.rails, slots);
        rails.set_paths(&ways);
        let counters = Arc::<Counters>::default();
        let client = Arc::new_cyclic(|this: &Weak<Session>| {
            let owner = this.clone() as Weak<dyn Owner>;
            let (lanes, links) = make_lanes((groups.len(), config.lanes_each()), &rails, &owner, &counters);
            Session {
                groups: groups.to_vec(),
                lanes,
                links,
                rails,
                joins: RwLock::default(),
                slots: Slots::new(hello.slots),
                slots_releasing: Arc::new(Slots::new(hello.slots)),
                releases: Arc::default(),
                opens: Opens::default(),
                window: Window::new(config.replay_window),
                verifier: Mutex::new(hello.verifier),
                counters: counters.clone(),
                closing: AtomicBool::new(false),
                watching: AtomicBool::new(false),
                session_number: AtomicU64::new(1),
                greeting: Greeting { connect_timeout: RECONNECT_TIMEOUT, ..greeting },
                holder,
                key: Mutex::new(key(&hello)),
                root: Mutex::new(attached.root),
                read_only: attached.read_only,
                one_user: attached.one_user,
                reconnecting: AtomicBool::new(false),
                terms_due: AtomicBool::new(false),
                unrestored: AtomicBool::new(false),
                settling: AtomicBool::new(false),
                recovery_due: AtomicBool::new(false),
                tells_times: AtomicBool::new(false),
                named: config.server.as_str().into(),
                pool: BufferPool::new(TRANSFER_SIZE_MAX, IDLE_BUFFERS_MAX),
                config,
                this: this.clone(),
            }
        });
        client.greeted(&hello);
        client.begin(first).inspect_err(|_| client.disconnect())?;
        client.listen_for_silence();
        Ok(client)
    }

    /// Makes the connections of the rail on which the first was made, or of any; the other rails
    /// follow.
    fn begin(&self, first: Greeted) -> Result<(), ConnectError> {
        match heal::rail_of(&self.rails, &first) {
            Some(rail) => self.start_link(rail, first)?,
            None => drop(self.connect_first(true)?),
        }
        if self.rails.are_many() {
            self.heal_all();
            return Ok(());
        }
        self.connect_links(&mut 0)
    }

    /// Looks from time to time whether the server is silent: on each link that waits for answers,
    /// and on the first one always.
    fn listen_for_silence(self: &Arc<Session>) {
        let (this, group) = (Arc::downgrade(self), Arc::downgrade(&self.groups[0]));
        let interval = Silence::interval(self.config.suspect);
        self.groups[0].spawn(async move {
            while let Some(pause) = group.upgrade().map(|group| group.sleep(interval)) {
                pause.await;
                let Some(session) = this.upgrade() else { return };
                let first = session.links.iter().position(|link| link.is_connected());
                let looks = |link: &Arc<Link>| link.look_for_silence(Some(link.place.index) == first);
                session.links.iter().for_each(looks);
            }
        });
    }

    /// A connection that was greeted becomes that of the link with this index.
    pub(crate) fn start_link(&self, index: usize, Greeted { link, number, .. }: Greeted) -> Result<(), ConnectError> {
        let connection = self.start_connection(index, link)?;
        let is_connected = self.links[index].connected(connection, number, self.opens.epoch());
        if self.closing.load(Ordering::SeqCst) {
            self.links[index].close("the client disconnects"); // and has closed those that were there
        } else if is_connected {
            return Ok(());
        }
        let source = std::io::ErrorKind::ConnectionReset.into();
        Err(ConnectError::Connect { server: self.config.server.clone(), source })
    }

    /// Makes another connection for a link that has one, of this number.
    pub(crate) fn move_link(&self, index: usize, before: u32, why: Move) -> Result<(), ConnectError> {
        let (epoch, key) = (self.opens.epoch(), lock(&self.key).clone());
        let Greeted { link, number, hello } = self.join_link(index, Purpose::Join(&key))?;
        self.greeted(&hello);
        if let Move::Back(gateway) = why
            && link.gateway() != Some(gateway)
        {
            return Err(self.greeting.broken("another router takes connections than the one that is meant"));
        }
        let _joined = self.joins.read().unwrap_or_else(|poison| poison.into_inner());
        if hello.recovering || self.opens.epoch() != epoch || self.unrestored.load(Ordering::SeqCst) {
            return Ok(()); // all connections are made anew
        }
        let slot = &self.links[index];
        slot.begins_to_move();
        let connection = self.start_connection(index, link)?;
        if slot.moves(connection, (before, number)) {
            match why {
                Move::Around => {
                    tracing::info!(server = %self.config.server, link = number, "went around a router that stops");
                }
                Move::Back(gateway) => {
                    tracing::debug!(%gateway, link = number, "a connection leads by its router again")
                }
                Move::Asks => {}
            }
        }
        Ok(())
    }

    fn start_connection(&self, index: usize, link: net::Link) -> Result<Arc<Connection>, ConnectError> {
        let slot = &self.links[index];
        let mode = Mode { bulk: slot.place.bulk, shared: false, suspect: self.config.suspect };
        let group = &self.groups[slot.place.worker];
        Connection::start(group, link, mode, self.pool.clone(), slot.clone())
            .map_err(|source| ConnectError::Local { server: self.config.server.clone(), source })
    }

    /// Connects every link that has no connection to the present session, from `next` on, where
    /// the next try is to begin: one that cannot be had keeps the others waiting no longer than
    /// its try takes. Where there are many rails, one connection is enough: the others follow.
    fn connect_links(&self, next: &mut usize) -> Result<(), ConnectError> {
        if self.rails.are_many() {
            self.recovery_due.store(false, Ordering::SeqCst);
            self.connect_first(false)?;
            self.heal_all();
            return Ok(());
        }
        let count = self.links.len();
        let missing =
            |from: usize| (from..from + count).map(|at| at % count).find(|at| !self.links[*at].is_connected());
        while let Some(index) = missing(*next) {
            *next = index + 1;
            let session = lock(&self.key).clone();
            let greeted = self.join_link(index, Purpose::Join(&session))?;
            self.restore(index, greeted)?;
        }
        Ok(())
    }

    /// Connects a link of whatever rail answers first. `joins_only`: the session has just begun.
    fn connect_first(&self, joins_only: bool) -> Result<(), ConnectError> {
        let session = lock(&self.key).clone();
        let (index, greeted) = self.join_any(Purpose::Join(&session))?;
        if joins_only { self.start_link(index, greeted) } else { self.restore(index, greeted) }
    }

    /// Uses a new connection: for what the session has to say first, if it has, and then as that
    /// of this link.
    fn restore(&self, index: usize, mut greeted: Greeted) -> Result<(), ConnectError> {
        let hello = greeted.hello.clone();
        self.greeted(&hello);
        if hello.recovering {
            self.terms_due.store(true, Ordering::SeqCst);
            self.recover(&mut greeted.link, hello.verifier)?;
        } else if self.unrestored.load(Ordering::SeqCst) {
            self.reopen(&mut greeted.link, hello.verifier)?;
        } else if self.settling.load(Ordering::SeqCst) {
            self.settle(); // the server has heard that all was told, and its answer was lost
        }
        if self.terms_due.load(Ordering::SeqCst) {
            let attached = self.greeting.attach(&mut greeted.link, &self.config.export, self.config.read_only)?;
            self.learn_terms(&hello, &attached);
            // What it serves there may be another directory by now.
            *lock(&self.root) = attached.root;
        }
        self.start_link(index, greeted)
    }

    /// A connection was greeted, perhaps by another server than before.
    pub(crate) fn greeted(&self, hello: &HelloReply) {
        self.learn_addresses(hello);
        self.tells_times.store(hello.capabilities.contains(Capabilities::TIMES), Ordering::Relaxed);
        if let Some(holder) = &self.holder {
            holder.greeted(hello);
        }
    }

    /// The server may have another configuration than when the client was mounted.
    fn learn_terms(&self, hello: &HelloReply, attached: &AttachReply) {
        self.terms_due.store(false, Ordering::SeqCst);
        let Some(holder) = &self.holder else { return };
        holder.attached(hello, attached);
        if attached.one_user != self.one_user {
            tracing::warn!(
                server = %self.config.server, export = %self.config.export,
                "the export's squash or maps are others than when it was mounted: nothing is kept under leases; mount it again"
            );
        }
    }

    /// The server no longer knows our session. Begins another, and opens in it again what was open
    /// in the old one.
    fn begin_session(&self) -> Result<(), ConnectError> {
        let server = lock(&self.key).server;
        let (index, mut greeted) = self.join_any(Purpose::Begin(server))?;
        let hello = greeted.hello.clone();
        let attached = self.greeting.attach(&mut greeted.link, &self.config.export, self.config.read_only)?;
        self.greeted(&hello);
        self.learn_terms(&hello, &attached);
        // Before anybody can join it: see `fill`.
        self.unrestored.store(true, Ordering::SeqCst);
        *lock(&self.key) = key(&hello);
        *lock(&self.root) = attached.root;
        self.slots.reset(hello.slots);
        self.slots_releasing.reset(hello.slots);
        self.session_number.fetch_add(1, Ordering::SeqCst);
        self.reopen(&mut greeted.link, hello.verifier)?;
        self.start_link(index, greeted)
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

    /// Asks on each connection that seems to live. One of a session that has ended is reset by its
    /// server, and so found to be gone at once; without a question that may take as long as a
    /// silent peer is waited for.
    pub(crate) fn ask_links(&self) {
        let ping = Header::new(Kind::Ping).encode();
        for link in &self.links {
            link.send_frame(&ping);
        }
    }

    fn try_reconnect(&self, next: &mut usize) -> Result<(), ConnectError> {
        match self.connect_links(next) {
            // While a connection lives the session does too, whatever is said elsewhere.
            Err(error) if error.is_unknown_session() && !self.closing.load(Ordering::SeqCst) => {
                if self.is_linked() {
                    self.ask_links();
                    return Err(error);
                }
                self.begin_session().and_then(|()| self.connect_links(next))
            }
            result => result,
        }
    }

    /// Makes stable what was written, and says goodbye: the server frees at once what this client
    /// held. Requests under way end with EIO. Never call it on a worker.
    pub fn disconnect(&self) {
        self.leave_stable();
        self.closing.store(true, Ordering::SeqCst);
        let mut frame = vec![0; HEADER_SIZE];
        frame.copy_from_slice(&Header::new(Kind::Goodbye).encode());
        let told = self.links.iter().filter(|link| link.send_frame(&frame)).count();
        // The server ends them all when it has heard that; closed before, what is unread on this
        // side would have them reset, and the goodbye lost.
        let end = Instant::now() + GOODBYE_HEARD_MAX;
        while told > 0 && self.is_linked() && Instant::now() < end {
            std::thread::sleep(GOODBYE_STEP);
        }
        self.links.iter().for_each(|link| link.close("the client disconnects"));
        self.links.iter().for_each(|link| link.lose_waits());
        self.window.end();
        self.lanes.iter().for_each(|lane| lane.wake_waiters());
    }
}

impl Session {
    /// Has the session connect again, unless that is under way.
    pub(crate) fn connect_again(&self, reason: &str) {
        if self.closing.load(Ordering::SeqCst) || self.reconnecting.swap(true, Ordering::SeqCst) {
            return;
        }
        tracing::warn!(server = %self.config.server, %reason, "lost a connection; connecting again");
        self.counters.reconnects.increment();
        if let Err(error) = self.start_reconnecting() {
            tracing::error!(%error, "could not start the thread that connects again; trying until it can be");
            self.start_reconnecting_later();
        }
    }

    /// Whether it has the connections that this thread has to see to.
    fn is_whole(&self) -> bool {
        match self.rails.are_many() {
            true => self.is_linked() && !self.recovery_due.load(Ordering::SeqCst),
            false => self.links.iter().all(|link| link.is_connected()),
        }
    }
}

impl Owner for Session {
    fn link_lost(&self, link: &Link, number: u32, closed: &Closed) {
        if self.closing.load(Ordering::SeqCst) {
            return;
        }
        if self.rails.are_many() && self.is_linked() {
            return self.rail_lost(link, number, closed);
        }
        self.connect_again(&closed.reason);
    }

    fn link_stops(&self, link: usize, number: u32, end: Instant) {
        let this = self.this.clone();
        let mover = move || move_link(&this, (link, number), end);
        if let Err(error) = std::thread::Builder::new().name("move".into()).spawn(mover) {
            tracing::error!(%error, "could not start the thread that goes around a router that stops; its connection is made again when it has ended");
        }
    }

    fn recalled(&self, epoch: Option<u64>, leases: &[LeaseId]) -> Result<(), &'static str> {
        let epoch = epoch.unwrap_or_else(|| self.opens.epoch());
        match &self.holder {
            None => Err("the server wants leases back from a client that has none"),
            Some(holder) if !holder.recalled(epoch, leases) => {
                Err("the server wants more leases back than it can have granted")
            }
            Some(_) => Ok(()),
        }
    }

    fn mapped(&self, map: Map) {
        if let Some(holder) = &self.holder {
            holder.mapped(map);
        }
    }

    fn completed_elsewhere(&self, link: usize, frame: Frame) {
        if let Some(link) = self.links.get(link) {
            link.complete(frame);
        }
    }
}

/// The lanes of so many workers, each with one for control and perhaps one for bulk data, and
/// their links.
fn make_lanes(
    (workers, each): (usize, usize),
    rails: &Rails,
    owner: &Weak<dyn Owner>,
    counters: &Arc<Counters>,
) -> (Vec<Lane>, Vec<Arc<Link>>) {
    let (mut lanes, mut links) = (Vec::new(), Vec::new());
    for (worker, kind) in (0..workers).flat_map(|worker| (0..each).map(move |kind| (worker, kind))) {
        let waiters = Arc::<Waiters>::default();
        let from = links.len();
        for rail in rails.list() {
            let (index, waiters) = (links.len(), waiters.clone());
            let place = Place { index, worker, bulk: kind == 1, rail: rail.clone(), waiters };
            links.push(Arc::new(Link::new(place, owner.clone(), counters.clone())));
        }
        lanes.push(Lane::new(worker, links[from..].to_vec(), waiters));
    }
    (lanes, links)
}

/// Has another connection take the place of one, before a router on its way ends it.
fn move_link(this: &Weak<Session>, (index, number): (usize, u32), end: Instant) {
    while let Some(session) = this.upgrade().filter(|session| !session.is_closing()) {
        match session.move_link(index, number, Move::Around) {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "could not go around a router that stops yet"),
        }
        drop(session);
        if Instant::now() + RETRY_FIRST >= end {
            return; // it is lost then, and made again
        }
        std::thread::sleep(RETRY_FIRST);
    }
}

fn key(hello: &HelloReply) -> SessionKey {
    SessionKey { id: hello.session, secret: hello.secret, server: hello.server.id }
}

fn reconnect(client: &Weak<Session>) {
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
            // A link may have been lost again before the flag fell; whoever lost it saw the flag
            // and left it to us.
            if client.is_whole() || client.reconnecting.swap(true, Ordering::SeqCst) {
                return tracing::info!(server = %client.config.server, "connected again");
            }
        }
        drop(client);
        std::thread::sleep(pause);
        pause = (pause * 2).min(RETRY_LAST);
    }
}
