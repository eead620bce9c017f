//! How an initiator reaches a target through routers: gateways are asked in turn, and those that
//! fail are tried again in the background.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use std::{fmt, io};

use aqueduct_fs::Sink;
use aqueduct_fs::steps::Held;
use aqueduct_wire::{
    HOPS_MAX, Header, Kind, Lane, NetworkName, ROUTE_LENGTH_MAX, Route, RouteHeld, RouteHeldReply, RouteNotice,
    RouteReply, RouteStatus, Target,
};
use aqueduct_worker::{Group, lock};
use socket2::Socket;

use crate::blocking::{ExchangeError, Link};
use crate::connection::{Connection, Endpoint, Mode};
use crate::peer::Address;
use crate::pool::BufferPool;
use crate::receive::{Closed, Frame};
use crate::routes::{Next, Routes};
use crate::socket::{self, Local};
use crate::way::Way;

/// The shortest time that each gateway has to open the way: the kernel asks once more after one
/// second, which bridges a lost question.
pub(crate) const PART_MIN: Duration = Duration::from_millis(1250);

/// How long a router may take to agree that it tells of flows that end: who connects waits for it.
const NOTICES_MAX: Duration = Duration::from_secs(1);

/// How long a router may take to say what lies in it, and for how long one that did not is not
/// asked again.
const HELD_MAX: Duration = Duration::from_secs(1);
const SILENT: Duration = Duration::from_secs(30);

/// How long a gateway that fails may take to answer a question in the background.
const PROBE_MAX: Duration = Duration::from_secs(2);

/// Between looks whether one is due.
const PROBE_STEP: Duration = Duration::from_millis(50);

/// Why a target cannot be reached. `hop` counts from who asks: 0 is the gateway.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// No way is known.
    #[error("{0}")]
    NoWay(String),
    /// A gateway could not be reached, or did not answer.
    #[error("the router {gateway} cannot be reached: {source}")]
    Gateway {
        /// Which.
        gateway: SocketAddr,
        /// Why.
        source: ExchangeError,
    },
    /// A router, or the server behind, says that it cannot be.
    #[error("through the router {gateway}: {status} at {}{text}", place(*hop))]
    Told {
        /// The router that was asked.
        gateway: SocketAddr,
        /// What it says.
        status: RouteStatus,
        /// Whose word it is.
        hop: u8,
        /// In its words.
        text: String,
    },
}

fn place(hop: u8) -> String {
    match hop {
        0 => "this router: ".into(),
        hop => format!("hop {hop} behind it: "),
    }
}

impl From<ExchangeError> for io::Error {
    fn from(error: ExchangeError) -> io::Error {
        match error {
            ExchangeError::Socket(error) => error,
            error => io::Error::other(error.to_string()),
        }
    }
}

impl From<RouteError> for io::Error {
    fn from(error: RouteError) -> io::Error {
        io::Error::new(io::ErrorKind::NetworkUnreachable, error.to_string())
    }
}

/// Who makes connections through routers: one for each process or mount.
pub struct Initiator {
    /// Random, the same for all its connections.
    id: [u8; 16],
    routes: Arc<Routes>,
    flows: AtomicU64,
    ways: Mutex<HashMap<(SocketAddr, u64), Weak<Way>>>,
    notices: Mutex<HashMap<SocketAddr, Notices>>,
    askers: Mutex<HashMap<SocketAddr, Asker>>,
    this: Weak<Initiator>,
}

/// The connection on which a router is asked what lay in it.
enum Asker {
    Idle(Link),
    /// It did not answer then.
    Silent(Instant),
}

/// The connection on which a router tells of flows that end.
enum Notices {
    /// Made, and not heard yet.
    Asked(Link),
    Heard(Arc<Connection>),
}

impl Initiator {
    /// One with these ways.
    pub fn new(routes: Arc<Routes>) -> io::Result<Arc<Initiator>> {
        let id = random()?;
        Ok(Arc::new_cyclic(|this| Initiator {
            id,
            routes,
            flows: AtomicU64::new(1),
            ways: Mutex::default(),
            notices: Mutex::default(),
            askers: Mutex::default(),
            this: this.clone(),
        }))
    }

    /// Its ways, to be changed as they are used.
    pub fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// The gateways by which a network is reached best, whether they work or not.
    pub fn gateways_to(&self, network: &NetworkName) -> Vec<SocketAddr> {
        self.routes.gateways_to(network)
    }

    /// Whether a gateway takes connections, as far as is known.
    pub fn is_sound(&self, gateway: SocketAddr) -> bool {
        self.routes.is_sound(gateway, Instant::now())
    }

    /// Connects from a place of this machine to a target: itself, where it is in a network of this
    /// node, else by a gateway. Gateways are tried in turn until one has opened the way, and share
    /// the time; one of them may be asked first.
    pub fn connect(
        &self,
        (local, first): (&Local, Option<SocketAddr>),
        target: &Target,
        lane: Lane,
        timeout: Duration,
    ) -> Result<Link, RouteError> {
        let gateways = match self.routes.next_by((target, HOPS_MAX), first, Instant::now()) {
            Next::Here(_, address) => {
                let failed = |error| RouteError::Gateway { gateway: address, source: ExchangeError::Socket(error) };
                return dial_tcp(local, address, timeout).map(Link::from).map_err(failed);
            }
            Next::By(_, gateways) => gateways,
            Next::Nowhere(why) | Next::Refused(why) => return Err(RouteError::NoWay(why)),
        };
        let mut last = RouteError::NoWay(format!("no router leads to {target}"));
        let end = Instant::now() + timeout;
        for (index, gateway) in gateways.iter().copied().enumerate() {
            let part = end.saturating_duration_since(Instant::now()) / (gateways.len() - index) as u32;
            let timeout = part.max(PART_MIN.min(timeout));
            // Known before it is asked for: it may be told of before the answer is read.
            let flow = self.flows.fetch_add(1, Ordering::Relaxed);
            let way = self.way(gateway, flow);
            let asked = self.ask((local, gateway), target, (lane, flow), timeout);
            let now = Instant::now();
            last = match asked {
                Ok((mut link, reply)) => {
                    self.routes.works(gateway, now);
                    if reply.status == RouteStatus::Open {
                        self.routes.leads_to(gateway, target);
                        self.ask_for_notices(local, gateway, timeout);
                        link.way = Some(way);
                        return Ok(link);
                    }
                    let RouteReply { status, hop, text } = reply;
                    if status.is_passing() {
                        self.routes.is_full(gateway, now);
                    } else {
                        self.routes.leads_not_to(gateway, target, now);
                    }
                    RouteError::Told { gateway, status, hop, text }
                }
                Err(source) => {
                    // The interface may be to blame by which it was asked, or what lies behind.
                    let is_anywhere = *local == Local::default();
                    if is_anywhere && says_it_is_absent(&source, timeout) {
                        self.routes.failed(gateway, now);
                    } else {
                        self.routes.doubt(gateway, now);
                        if is_anywhere && timeout >= PART_MIN {
                            self.routes.leads_not_to(gateway, target, now);
                        }
                    }
                    watch_gateways(&self.routes);
                    tracing::debug!(%gateway, error = %source, "a router does not answer; trying others");
                    RouteError::Gateway { gateway, source }
                }
            };
        }
        Err(last)
    }

    fn way(&self, gateway: SocketAddr, flow: u64) -> Arc<Way> {
        let this = self.this.clone();
        let hear = move |group: &Arc<Group>, shared: bool, suspect: Duration| {
            this.upgrade().into_iter().for_each(|this| this.hear(gateway, group, shared, suspect));
        };
        let this = self.this.clone();
        let ask = move |from: Instant, to: Instant| this.upgrade()?.held((gateway, flow), from, to);
        let way = Arc::new(Way::new(gateway, Box::new(hear), Box::new(ask)));
        let mut ways = lock(&self.ways);
        ways.retain(|_, way| way.strong_count() > 0);
        ways.insert((gateway, flow), Arc::downgrade(&way));
        way
    }

    /// What a gateway answers to a preamble.
    pub(crate) fn ask(
        &self,
        (local, gateway): (&Local, SocketAddr),
        target: &Target,
        (lane, flow): (Lane, u64),
        timeout: Duration,
    ) -> Result<(Link, RouteReply), ExchangeError> {
        let mut link = Link::from(dial_tcp(local, gateway, timeout)?);
        let mut body = Vec::new();
        Route {
            target: target.clone(),
            hops_left: HOPS_MAX,
            time_left_ms: timeout.as_millis().try_into().unwrap_or(u32::MAX),
            lane,
            initiator: self.id,
            flow,
        }
        .encode(&mut body);
        let (header, body) = link.exchange(Header::new(Kind::Route).checked(&body), (&body, &[]), timeout)?;
        let other = |what: String| ExchangeError::Socket(io::Error::other(what));
        if header.kind != Kind::RouteReply {
            return Err(other(format!("it answers with {:?}: it is no router of this release", header.kind)));
        }
        let reply = RouteReply::decode(&body).map_err(|error| other(error.to_string()))?;
        Ok((link, reply))
    }

    /// Has a router tell of flows that end, unless it does. One that does not lets them end
    /// without a word.
    fn ask_for_notices(&self, local: &Local, gateway: SocketAddr, timeout: Duration) {
        if lock(&self.notices).contains_key(&gateway) {
            return;
        }
        match self.ask((local, gateway), &Target::Router, (Lane::Control, 0), timeout.min(NOTICES_MAX)) {
            Ok((link, RouteReply { status: RouteStatus::Open, .. })) => {
                lock(&self.notices).insert(gateway, Notices::Asked(link));
            }
            Ok((_, RouteReply { status, .. })) => {
                tracing::debug!(%gateway, %status, "a router tells nothing of itself")
            }
            Err(error) => tracing::debug!(%gateway, %error, "a router tells nothing of itself"),
        }
    }

    /// For how long bytes of a flow lay in a router.
    fn held(&self, (gateway, flow): (SocketAddr, u64), from: Instant, to: Instant) -> Option<Held> {
        let known = lock(&self.askers).remove(&gateway);
        let asked = match known {
            Some(Asker::Silent(at)) if at.elapsed() < SILENT => {
                lock(&self.askers).insert(gateway, Asker::Silent(at));
                return None;
            }
            // A router that was started anew has closed it.
            Some(Asker::Idle(link)) => self
                .ask_held(Some(link), (gateway, flow), from, to)
                .or_else(|_| self.ask_held(None, (gateway, flow), from, to)),
            _ => self.ask_held(None, (gateway, flow), from, to),
        };
        let (held, after) = match asked {
            Ok((held, link)) => (Some(held), Asker::Idle(link)),
            Err(error) => {
                tracing::debug!(%gateway, %error, "a router does not say what lies in it");
                (None, Asker::Silent(Instant::now()))
            }
        };
        lock(&self.askers).insert(gateway, after);
        held
    }

    fn ask_held(
        &self,
        link: Option<Link>,
        (gateway, flow): (SocketAddr, u64),
        from: Instant,
        to: Instant,
    ) -> Result<(Held, Link), ExchangeError> {
        let other = |what: String| ExchangeError::Socket(io::Error::other(what));
        let mut link = match link {
            Some(link) => link,
            None => {
                let asked = self.ask((&Local::default(), gateway), &Target::Router, (Lane::Control, 0), HELD_MAX)?;
                match asked.1.status {
                    RouteStatus::Open => asked.0,
                    status => return Err(other(format!("it is {status}"))),
                }
            }
        };
        let ago = |at: Instant| u32::try_from(at.elapsed().as_micros()).unwrap_or(u32::MAX);
        let (mut body, from_us) = (Vec::new(), ago(from));
        RouteHeld { flow, from_us, to_us: ago(to).min(from_us) }.encode(&mut body);
        link.send(Header::new(Kind::RouteHeld).checked(&body), (&body, &[]), HELD_MAX)?;
        let end = Instant::now() + HELD_MAX;
        loop {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let (header, body) = link.receive_unchecked(left)?;
            match header.kind {
                Kind::RouteNotice => {} // told where it is heard
                Kind::RouteHeldReply => {
                    let told = RouteHeldReply::decode(&body).map_err(|error| other(error.to_string()))?;
                    let [looked, held, unread] =
                        [told.looked_us, told.held_us, told.unread_us].map(|us| Duration::from_micros(us.into()));
                    return Ok((Held { looked, held, unread }, link));
                }
                kind => return Err(other(format!("it answers with {kind:?}"))),
            }
        }
    }

    /// Hears what a router has to tell, by a group.
    fn hear(&self, gateway: SocketAddr, group: &Arc<Group>, shared: bool, suspect: Duration) {
        let link = {
            let mut notices = lock(&self.notices);
            match notices.remove(&gateway) {
                Some(Notices::Asked(link)) => link,
                other => {
                    other.into_iter().for_each(|other| drop(notices.insert(gateway, other)));
                    return;
                }
            }
        };
        let mode = Mode { bulk: false, shared, suspect };
        let ear = Arc::new(Ear { initiator: self.this.clone(), gateway });
        match Connection::start(group, link, mode, BufferPool::new(0, 0), ear) {
            Ok(connection) => {
                lock(&self.notices).insert(gateway, Notices::Heard(connection.clone()));
                if connection.is_closed() {
                    lock(&self.notices).remove(&gateway); // before it was there
                }
            }
            Err(error) => tracing::debug!(%gateway, %error, "a router is not heard"),
        }
    }

    /// A router has told which flows end there, and when.
    fn told(&self, gateway: SocketAddr, notice: &RouteNotice) {
        let end = Instant::now() + Duration::from_secs(notice.stopping_seconds.into());
        let ways = lock(&self.ways);
        let its = notice.flows.iter().filter_map(|flow| ways.get(&(gateway, *flow))?.upgrade());
        let its: Vec<Arc<Way>> = its.collect();
        drop(ways);
        if !its.is_empty() {
            self.routes.is_full(gateway, Instant::now()); // others are tried first
        }
        its.iter().for_each(|way| way.ends(end));
    }
}

impl Drop for Initiator {
    fn drop(&mut self) {
        let notices = std::mem::take(&mut *lock(&self.notices));
        for heard in notices.into_values() {
            if let Notices::Heard(connection) = heard {
                connection.close("nobody listens any more".into());
            }
        }
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initiator").field("routes", &self.routes).finish_non_exhaustive()
    }
}

/// Hears what one router tells.
struct Ear {
    initiator: Weak<Initiator>,
    gateway: SocketAddr,
}

impl Endpoint for Ear {
    fn place(&self, _header: &Header) -> Option<Box<dyn Sink>> {
        None
    }

    fn takes(&self, header: &Header) -> Result<(), String> {
        let length = header.body_length as usize + header.payload_length as usize;
        if length > ROUTE_LENGTH_MAX { Err("the frame is too long for a notice".into()) } else { Ok(()) }
    }

    fn is_slow(&self, _header: &Header) -> bool {
        false
    }

    fn frame(&self, connection: &Arc<Connection>, frame: Frame) {
        if frame.header.kind != Kind::RouteNotice {
            return;
        }
        match RouteNotice::decode(&frame.body) {
            Ok(notice) => self.initiator.upgrade().into_iter().for_each(|it| it.told(self.gateway, &notice)),
            Err(error) => connection.close(format!("ROUTE NOTICE: {error}")),
        }
    }

    fn closed(&self, _connection: &Arc<Connection>, closed: Closed) {
        tracing::debug!(gateway = %self.gateway, reason = %closed.reason, "a router is not heard any more");
        if let Some(initiator) = self.initiator.upgrade() {
            lock(&initiator.notices).remove(&self.gateway);
        }
    }
}

/// Whether nobody is where a router was to be, or nobody that is one. Who was not heard in time, or
/// has closed the connection, may be there: what lies behind may be dead, or it has more to do than
/// it can.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind as Is;
    let is_silent = [
        Is::WouldBlock,
        Is::TimedOut,
        Is::UnexpectedEof,
        Is::ConnectionReset,
        Is::ConnectionAborted,
        Is::BrokenPipe,
        Is::Interrupted,
    ];
    !is_silent.contains(&error.kind())
}

/// The same of an exchange that was given so much time: it is the kernel that did not answer a
/// question to connect, twice, where that ended it.
fn says_it_is_absent(error: &ExchangeError, time: Duration) -> bool {
    match error {
        ExchangeError::Socket(error) if error.kind() == io::ErrorKind::TimedOut => time >= PART_MIN,
        ExchangeError::Socket(error) => is_absent(error),
        ExchangeError::Closed => false,
        ExchangeError::Frame(_) | ExchangeError::Payload => true,
    }
}

fn dial_tcp(local: &Local, address: SocketAddr, timeout: Duration) -> io::Result<Socket> {
    Ok(socket::connect_from(local, &Address::Tcp(address), timeout)?)
}

/// Whether a router answers at an address, and how long that takes.
pub fn ping(gateway: SocketAddr, timeout: Duration) -> Result<Duration, ExchangeError> {
    question(&mut Link::from(socket::connect(gateway, timeout)?), timeout)
}

/// How long a router takes to answer on a connection.
pub(crate) fn question(link: &mut Link, timeout: Duration) -> Result<Duration, ExchangeError> {
    let began = Instant::now();
    let (header, _) = link.exchange(Header::new(Kind::Ping), (&[], &[]), timeout)?;
    match header.kind {
        Kind::Pong => Ok(began.elapsed()),
        kind => Err(ExchangeError::Socket(io::Error::other(format!("it answers a ping with {kind:?}")))),
    }
}

/// Tries gateways that fail in the background, by a thread that ends when none does.
pub(crate) fn watch_gateways(routes: &Arc<Routes>) {
    if routes.down().is_empty() || !routes.begin_watch() {
        return;
    }
    let routes_of_thread = Arc::downgrade(routes);
    let watch = move || {
        while let Some(routes) = routes_of_thread.upgrade() {
            let down = routes.down();
            if down.is_empty() {
                routes.end_watch();
                // One that failed meanwhile has found the watch there.
                if routes.down().is_empty() || !routes.begin_watch() {
                    return;
                }
            }
            let now = Instant::now();
            for (gateway, _) in down.iter().filter(|(_, again)| *again <= now) {
                match ping(*gateway, PROBE_MAX) {
                    Ok(_) => routes.works(*gateway, Instant::now()),
                    Err(_) => routes.failed(*gateway, Instant::now()),
                }
            }
            drop(routes);
            std::thread::sleep(PROBE_STEP);
        }
    };
    if std::thread::Builder::new().name("gateways".into()).spawn(watch).is_err() {
        routes.end_watch();
    }
}

/// Random bytes by which one process is told from others.
pub(crate) fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}
