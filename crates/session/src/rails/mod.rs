//! The rails of a session: the ways to its server over several network interfaces, used as one.
//! What each carries, how it fares, and whose fault it is if it does not.

mod load;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_metrics::status::RailStatus;
use aqueduct_net::interfaces::Watch;
use aqueduct_net::{Interface, PATHS_MAX, Path};
use aqueduct_worker::lock;

pub use load::Policy;
pub(crate) use load::{Asker, Candidate, Need, cut, pick};

use load::Flow;

/// A rail of which nothing is heard for so long, while others of the same server are, is given up,
/// unless told otherwise: what a network loses is sent again in a fifth of it.
pub const RAIL_SUSPECT: Duration = Duration::from_secs(1);

/// The least of it: several looks, and a slow answer.
pub const RAIL_SUSPECT_MIN: Duration = Duration::from_millis(200);

/// A rail that fails again so soon after it came back flaps: it is taken back later each time,
/// from the first pause to the last.
const FLAPS_WITHIN: Duration = Duration::from_secs(10);
const HOLD_OFF_FIRST: Duration = Duration::from_millis(500);
const HOLD_OFF_LAST: Duration = Duration::from_secs(30);

/// How long what has failed so often in a row, each time soon after it was back, is left alone.
fn hold_off(flaps: u32) -> Duration {
    match flaps {
        0 => Duration::ZERO,
        _ => HOLD_OFF_FIRST.saturating_mul(1 << (flaps - 1).min(16)).min(HOLD_OFF_LAST),
    }
}

/// A link over which bulk data do not come while small messages over its rail do, as where a
/// network takes no large packets: it would be made again at once, and cost the next requests as
/// much as those before.
#[derive(Default)]
pub(crate) struct Choking {
    flaps: u32,
    at: Option<Instant>,
}

impl Choking {
    /// It was given up once more. Returns how long it is left alone.
    pub(crate) fn failed(&mut self) -> Duration {
        let soon = hold_off(self.flaps) + FLAPS_WITHIN;
        let flaps = self.at.replace(Instant::now()).is_some_and(|before| before.elapsed() < soon);
        self.flaps = if flaps { self.flaps + 1 } else { 0 };
        hold_off(self.flaps)
    }

    /// How long it is still left alone.
    pub(crate) fn held_off(&self) -> Duration {
        self.at.map_or(Duration::ZERO, |at| hold_off(self.flaps).saturating_sub(at.elapsed()))
    }
}

/// Which ways to the server are rails.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RailPaths {
    /// The one that the routing table says.
    #[default]
    Single,
    /// One for each pair of interfaces of both sides that share a subnet, as they come and go.
    Auto,
    /// These, at most [`PATHS_MAX`].
    Listed(Vec<Path>),
}

/// The rails of a session, as they are wanted.
#[derive(Clone, Debug)]
pub struct RailsConfig {
    /// Which.
    pub paths: RailPaths,
    /// How they share.
    pub policy: Policy,
    /// One of which nothing is heard for so long, while others are, is given up; at least
    /// [`RAIL_SUSPECT_MIN`].
    pub suspect: Duration,
}

impl Default for RailsConfig {
    fn default() -> RailsConfig {
        RailsConfig { paths: RailPaths::Single, policy: Policy::Adaptive, suspect: RAIL_SUSPECT }
    }
}

impl RailsConfig {
    /// How many rails there may be.
    pub(crate) fn slots(&self) -> usize {
        match &self.paths {
            RailPaths::Single => 1,
            RailPaths::Auto => PATHS_MAX,
            RailPaths::Listed(paths) => paths.len().clamp(1, PATHS_MAX),
        }
    }
}

/// Where a rail is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// At this machine's interface.
    Local,
    /// On the way: others to the same server work.
    Path,
    /// At the server, or all the way to it: no rail works.
    Peer,
}

impl Fault {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Local => "local",
            Fault::Path => "path",
            Fault::Peer => "peer",
        }
    }
}

/// How a rail fares.
#[derive(Clone, Debug)]
pub struct RailState {
    /// `from/to`.
    pub path: String,
    /// Its connections.
    pub connections: usize,
    /// How many it is to have.
    pub wanted: usize,
    /// Something is overdue there.
    pub is_suspected: bool,
    /// Why it is down, if it is.
    pub fault: Option<Fault>,
    /// Bytes that came and went since the session began, of bulk data.
    pub bytes: [u64; 2],
    /// Of what comes and goes, in bytes per second, where it was measured.
    pub rates: [Option<f64>; 2],
    /// Bytes that are asked for or sent, and not answered.
    pub outstanding: [u64; 2],
    /// As the kernel measures it.
    pub round_trip: Duration,
    /// How often it was down.
    pub outages: u64,
    /// Since it went down or came back.
    pub since: Duration,
}

impl RailState {
    /// In a word.
    pub fn name(&self) -> &'static str {
        match self {
            RailState { connections: 0, .. } => "down",
            RailState { is_suspected: true, .. } => "suspected",
            RailState { connections, wanted, .. } if connections < wanted => "partial",
            RailState { .. } => "up",
        }
    }
}

impl From<RailState> for RailStatus {
    fn from(state: RailState) -> RailStatus {
        let [bytes_read, bytes_written] = state.bytes;
        let [read_rate, write_rate] = state.rates;
        RailStatus {
            state: state.name().to_owned(),
            fault: state.fault.map(|fault| fault.name().to_owned()),
            connections: state.connections as u64,
            wanted: state.wanted as u64,
            bytes_read,
            bytes_written,
            read_rate,
            write_rate,
            outstanding: state.outstanding.iter().sum(),
            round_trip_us: state.round_trip.as_micros() as u64,
            outages: state.outages,
            seconds: state.since.as_secs_f64(),
            path: state.path,
        }
    }
}

/// Which way the data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the server.
    In,
    /// To it.
    Out,
}

/// One rail, or the place of one.
pub(crate) struct Rail {
    pub(crate) index: usize,
    path: Mutex<Option<Path>>,
    flows: [Mutex<Flow>; 2],
    bytes: [AtomicU64; 2],
    /// In microseconds.
    round_trip: AtomicU32,
    is_suspected: AtomicBool,
    /// A thread makes its connections again.
    is_healing: AtomicBool,
    /// It has had a connection.
    has_been_up: AtomicBool,
    health: Mutex<Health>,
}

struct Health {
    fault: Option<Fault>,
    since: Instant,
    outages: u64,
    /// How often in a row it failed soon after it came back.
    flaps: u32,
}

impl Health {
    fn new() -> Health {
        Health { fault: None, since: Instant::now(), outages: 0, flaps: 0 }
    }
}

/// Bytes that are under way on a rail, until it is dropped.
pub(crate) struct Carried {
    rail: Arc<Rail>,
    direction: Direction,
    bytes: u64,
    is_done: bool,
}

impl Carried {
    /// They have arrived.
    pub(crate) fn is_done(&mut self) {
        self.is_done = true;
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let at = self.direction as usize;
        lock(&self.rail.flows[at]).end(Instant::now(), self.bytes, self.is_done);
        if self.is_done {
            self.rail.bytes[at].fetch_add(self.bytes, Ordering::Relaxed);
        }
    }
}

impl Rail {
    fn new(index: usize, path: Option<Path>) -> Rail {
        Rail {
            index,
            path: Mutex::new(path),
            flows: Default::default(),
            bytes: Default::default(),
            round_trip: AtomicU32::new(0),
            is_suspected: AtomicBool::new(false),
            is_healing: AtomicBool::new(false),
            has_been_up: AtomicBool::new(false),
            health: Mutex::new(Health::new()),
        }
    }

    /// Its way; `None`: it is no rail, or the only one, which goes as the routing table says.
    pub(crate) fn path(&self) -> Option<Path> {
        lock(&self.path).clone()
    }

    /// Bytes begin their way on it.
    pub(crate) fn carry(self: &Arc<Rail>, direction: Direction, bytes: u64) -> Carried {
        lock(&self.flows[direction as usize]).begin(Instant::now(), bytes);
        Carried { rail: self.clone(), direction, bytes, is_done: false }
    }

    /// What it is to whoever has something to be carried.
    pub(crate) fn candidate(&self, direction: Direction) -> Candidate {
        let flow = lock(&self.flows[direction as usize]);
        let (outstanding, rate, doubt) = (flow.outstanding(), flow.rate(), flow.doubt(Instant::now()));
        Candidate { rail: self.index, outstanding, rate, doubt, round_trip: self.round_trip.load(Ordering::Relaxed) }
    }

    pub(crate) fn note_round_trip(&self, round_trip: Duration) {
        let microseconds = round_trip.as_micros().min(u32::MAX.into()) as u32;
        self.round_trip.store(microseconds, Ordering::Relaxed);
    }

    pub(crate) fn is_suspected(&self) -> bool {
        self.is_suspected.load(Ordering::Relaxed)
    }

    pub(crate) fn suspect(&self, is_suspected: bool) {
        self.is_suspected.store(is_suspected, Ordering::Relaxed);
    }

    /// It is down. Returns whether that is news.
    pub(crate) fn failed(&self, fault: Fault) -> bool {
        let mut health = lock(&self.health);
        let is_news = health.fault.is_none();
        if is_news {
            let flaps = health.since.elapsed() < FLAPS_WITHIN && health.outages > 0;
            health.flaps = if flaps { health.flaps + 1 } else { 0 };
            health.outages += 1;
            health.since = Instant::now();
        }
        health.fault = Some(fault);
        is_news
    }

    /// It is another rail from now on.
    fn renew(&self, path: Path) {
        *lock(&self.path) = Some(path);
        self.returned();
        self.has_been_up.store(false, Ordering::Relaxed);
        *lock(&self.health) = Health::new();
    }

    /// Whether it has had a connection: what looks like a way may be none.
    pub(crate) fn has_been_up(&self) -> bool {
        self.has_been_up.load(Ordering::Relaxed)
    }

    /// It has a connection again. What was measured before holds no more.
    pub(crate) fn returned(&self) -> bool {
        self.has_been_up.store(true, Ordering::Relaxed);
        self.flows.iter().for_each(|flow| lock(flow).forget());
        self.suspect(false);
        let mut health = lock(&self.health);
        let was_down = health.fault.take().is_some();
        if was_down {
            health.since = Instant::now();
        }
        was_down
    }

    /// How long it is still left alone, since it flaps.
    pub(crate) fn held_off(&self) -> Duration {
        let health = lock(&self.health);
        if health.fault.is_none() {
            return Duration::ZERO;
        }
        hold_off(health.flaps).saturating_sub(health.since.elapsed())
    }

    /// Whoever gets true makes its connections again, until it says that it has
    /// [`healed`](Rail::healed).
    pub(crate) fn heals(&self) -> bool {
        !self.is_healing.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn healed(&self) {
        self.is_healing.store(false, Ordering::SeqCst);
    }

    fn state(&self, path: &Path, (connections, wanted): (usize, usize)) -> RailState {
        let health = lock(&self.health);
        let flows = self.flows.each_ref().map(|flow| {
            let flow = lock(flow);
            (flow.rate(), flow.outstanding())
        });
        RailState {
            path: path.to_string(),
            connections,
            wanted,
            is_suspected: self.is_suspected(),
            fault: health.fault,
            bytes: self.bytes.each_ref().map(|bytes| bytes.load(Ordering::Relaxed)),
            rates: flows.map(|(rate, _)| rate),
            outstanding: flows.map(|(_, outstanding)| outstanding),
            round_trip: Duration::from_micros(self.round_trip.load(Ordering::Relaxed).into()),
            outages: health.outages,
            since: health.since.elapsed(),
        }
    }
}

/// All rails of a session.
pub(crate) struct Rails {
    pub(crate) policy: Policy,
    pub(crate) suspect: Duration,
    list: Vec<Arc<Rail>>,
    turn: AtomicUsize,
    /// What the server says that its addresses are.
    told: Mutex<Vec<String>>,
    interfaces: Option<Watch>,
    /// When it was looked last whether connections lead by another router.
    returned: Mutex<Instant>,
    /// A task looks whether one of them is silent.
    pub(crate) is_watched: AtomicBool,
    pub(crate) finding: Finding,
}

/// Whether rails are to be found anew, and a thread does so.
#[derive(Default)]
pub(crate) struct Finding {
    pub(crate) is_due: AtomicBool,
    pub(crate) is_under_way: AtomicBool,
    /// A thread asks the server for its addresses.
    pub(crate) is_asking: AtomicBool,
    /// The addresses of this machine whose wires worked at the last look.
    known: Mutex<Option<Vec<IpAddr>>>,
}

impl Finding {
    /// Whether one of these was not there at the last look, if there was one.
    pub(crate) fn has_more(&self, present: &[Interface]) -> bool {
        let up = present.iter().filter(|one| one.is_up).map(|one| one.address).collect();
        let mut known = lock(&self.known);
        let before = known.replace(up);
        let is_new = |before: &Vec<IpAddr>| known.iter().flatten().any(|address| !before.contains(address));
        before.as_ref().is_none_or(is_new)
    }
}

impl Rails {
    pub(crate) fn new(config: &RailsConfig, slots: usize) -> Rails {
        let list = (0..slots).map(|index| Arc::new(Rail::new(index, None))).collect();
        let suspect = config.suspect.max(RAIL_SUSPECT_MIN);
        // Without it a rail whose interface is down is found as one that is cut.
        let interfaces = (slots > 1).then(|| Watch::new().ok()).flatten();
        let (turn, is_watched) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (told, returned) = (Mutex::default(), Mutex::new(Instant::now()));
        let finding = Finding::default();
        Rails { policy: config.policy, suspect, list, turn, told, interfaces, returned, is_watched, finding }
    }

    /// The server has told these addresses. Returns whether that is news.
    pub(crate) fn learn(&self, addresses: &[String]) -> bool {
        let mut told = lock(&self.told);
        let is_news = told.as_slice() != addresses;
        if is_news {
            *told = addresses.to_vec();
        }
        is_news
    }

    /// What it has told last.
    pub(crate) fn told(&self) -> Vec<String> {
        lock(&self.told).clone()
    }

    /// Whether interfaces of this machine may have changed since this was asked last.
    pub(crate) fn interfaces_changed(&self) -> bool {
        self.interfaces.as_ref().is_some_and(|watch| watch.changed().unwrap_or(false))
    }

    /// Whether so long nobody has looked whether connections lead by another router; the caller
    /// does.
    pub(crate) fn returns_are_due(&self, pause: Duration) -> bool {
        let mut returned = lock(&self.returned);
        let is_due = returned.elapsed() >= pause;
        if is_due {
            *returned = Instant::now();
        }
        is_due
    }

    /// There may be more than one.
    pub(crate) fn are_many(&self) -> bool {
        self.list.len() > 1
    }

    pub(crate) fn list(&self) -> &[Arc<Rail>] {
        &self.list
    }

    pub(crate) fn next_turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// These are the ways now. Those that stay keep their places; returns the places of those that
    /// are no more.
    pub(crate) fn set_paths(&self, paths: &[Path]) -> Vec<usize> {
        let mut new: Vec<&Path> = paths.iter().collect();
        let mut gone = Vec::new();
        for rail in &self.list {
            let mut present = lock(&rail.path);
            match present.as_ref().map(|present| new.iter().position(|path| *path == present)) {
                Some(Some(found)) => drop(new.remove(found)),
                Some(None) => {
                    *present = None;
                    gone.push(rail.index);
                }
                None => {}
            }
        }
        let mut free = self.list.iter().filter(|rail| lock(&rail.path).is_none());
        for (path, rail) in new.into_iter().zip(&mut free) {
            rail.renew(path.clone());
        }
        gone
    }

    /// How each fares; `connections` counts those of a rail, and how many it is to have.
    pub(crate) fn states(&self, connections: impl Fn(usize) -> (usize, usize)) -> Vec<RailState> {
        let state = |rail: &Arc<Rail>| Some(rail.state(&rail.path()?, connections(rail.index)));
        self.list.iter().filter_map(state).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use aqueduct_net::Address;

    use super::*;

    fn path(port: u16) -> Path {
        Path::from(Address::Tcp(SocketAddr::from(([127, 0, 0, 1], port))))
    }

    fn rails(paths: RailPaths) -> Rails {
        let config = RailsConfig { paths, ..RailsConfig::default() };
        Rails::new(&config, config.slots())
    }

    #[test]
    fn rails_that_stay_keep_their_places() {
        let rails = rails(RailPaths::Auto);
        assert!(rails.set_paths(&[path(1), path(2), path(3)]).is_empty());
        assert_eq!(rails.set_paths(&[path(3), path(4)]), [0, 1]);
        let shown: Vec<_> = rails.list().iter().map(|rail| rail.path()).collect();
        assert_eq!(shown[..4], [Some(path(4)), None, Some(path(3)), None]);
        let many: Vec<Path> = (1..20).map(path).collect();
        rails.set_paths(&many);
        assert_eq!(rails.states(|_| (0, 1)).len(), PATHS_MAX, "there are no more than places");
    }

    #[test]
    fn a_rail_that_flaps_is_taken_back_later_each_time() {
        let rail = Rail::new(0, Some(path(1)));
        let pauses: Vec<Duration> = (0..10)
            .map(|_| {
                assert!(rail.failed(Fault::Path) && !rail.failed(Fault::Local));
                let pause = rail.held_off();
                assert!(rail.returned() && !rail.returned());
                pause
            })
            .collect();
        assert_eq!(pauses[0], Duration::ZERO, "the first return counts at once");
        assert!(pauses[1] > HOLD_OFF_FIRST / 2 && pauses[1] <= HOLD_OFF_FIRST, "{pauses:?}");
        assert!(pauses[2] > HOLD_OFF_FIRST && pauses[9] > HOLD_OFF_LAST / 2, "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= HOLD_OFF_LAST));
    }

    #[test]
    fn a_link_that_chokes_is_made_again_later_each_time() {
        let mut choking = Choking::default();
        assert_eq!((choking.held_off(), choking.failed()), (Duration::ZERO, Duration::ZERO));
        let pauses: Vec<_> = (0..8).map(|_| choking.failed()).collect();
        assert!(pauses[0] == HOLD_OFF_FIRST && pauses.is_sorted() && pauses[7] == HOLD_OFF_LAST, "{pauses:?}");
        assert!(choking.held_off() > HOLD_OFF_LAST / 2);
        choking.at = Instant::now().checked_sub(HOLD_OFF_LAST + FLAPS_WITHIN);
        assert_eq!((choking.held_off(), choking.failed()), (Duration::ZERO, Duration::ZERO), "it went well for long");
    }

    #[test]
    fn what_is_carried_counts_until_it_has_arrived() {
        let rail = Arc::new(Rail::new(2, Some(path(1))));
        let mut first = rail.carry(Direction::In, 100);
        let second = rail.carry(Direction::In, 10);
        assert_eq!(rail.candidate(Direction::In).outstanding, 110);
        assert_eq!(rail.candidate(Direction::Out).outstanding, 0);
        first.is_done();
        drop((first, second));
        let state = rail.state(&path(1), (1, 4));
        assert_eq!((state.bytes, state.outstanding), ([100, 0], [0, 0]), "what was given up was not carried");
    }
}
