//! Servers that move bytes for the server of the names: each file's bytes go through one of them,
//! by its handle. Nobody there knows leases, so nothing is asked of them but under a lease that
//! the server of the names has granted: whoever would change what it covers waits for the answer.
//! Without one, or while a mover is away, the server of the names moves the bytes itself. All of
//! them serve one coherent file system, so that it makes no difference to what is read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use aqueduct_fs::{Errno, OpenId};
use aqueduct_session::{Nanos, Session, SessionConfig, now};
use aqueduct_wire::Map;
use aqueduct_worker::{Group, lock};

use super::adopted::{Adopted, Moved, Places};
use super::lanes::Key;
use super::opens::Open;
use super::spread::Spread;

/// A mover that has not answered for so long is not waited for: a second more than a lost packet
/// takes that the kernel sends once more.
const PATIENCE: Duration = Duration::from_secs(2);

/// One that did not answer is not asked again for so long, so that those who read do not wait for
/// it each time.
const AWAY: Nanos = 5_000_000_000;

/// Between two tries to connect to those that were not there.
pub(super) const RETRY: Duration = Duration::from_millis(500);

/// The servers that move a volume's bytes, by one map of it.
#[derive(Clone, Debug)]
pub struct MoverConfig {
    /// The map's epoch.
    pub map: u64,
    /// Which of them moves a file's.
    pub spread: Spread,
    /// Nobody changes anything: no leases are needed to read.
    pub is_constant: bool,
    /// Files' bytes lie in objects at them, where the server of the names says, instead of by the
    /// spread.
    pub has_objects: bool,
    /// What is written of a file goes straight to one of them from so many bytes on.
    pub straight_from: usize,
    /// In the order of the spread's names, with their places; `None`: the server of the names.
    pub sessions: Vec<(u16, Option<SessionConfig>)>,
}

/// Says which servers move bytes by another map; `None`: this client cannot use it.
pub type Remake = Arc<dyn Fn(&Map) -> Option<MoverConfig> + Send + Sync>;

/// One of them.
pub(super) struct Mover {
    place: u16,
    config: SessionConfig,
    /// As soon as there is one.
    session: OnceLock<Arc<Session>>,
    /// It is not asked before: it has not answered.
    away_until: AtomicU64,
    /// No right there is asked for before.
    pub(super) no_rights_until: AtomicU64,
    /// It has been told that it refuses what the server of the names allows.
    has_refused: AtomicBool,
}

/// What one map says.
pub(super) struct Shape {
    /// Its epoch.
    pub(super) map: u64,
    pub(super) spread: Spread,
    /// In the order of the spread's names, with their places; `None`: the server of the names.
    all: Vec<(u16, Option<Arc<Mover>>)>,
}

/// One that the present map has no more, or elsewhere, as long as lanes lead there.
struct Leaving {
    mover: Arc<Mover>,
    /// The first map that has it not.
    until: u64,
}

/// See the module.
pub(crate) struct Movers {
    shape: RwLock<Arc<Shape>>,
    leaving: Mutex<Vec<Leaving>>,
    remake: Option<Remake>,
    pub(super) is_constant: bool,
    pub(super) has_objects: bool,
    /// The number of the next open of an object.
    next_open: AtomicU64,
    pub(super) straight_from: usize,
    /// Programs read and write in turn: nobody writes beside others.
    pub(super) takes_turns: bool,
    /// The server of the names has said that nobody writes beside others.
    pub(super) is_alone: AtomicBool,
    /// A map that is to hold, and whether a thread sees to that.
    coming: Mutex<(Option<Map>, bool)>,
    closing: AtomicBool,
}

impl Mover {
    fn new((place, config): (u16, SessionConfig)) -> Mover {
        Mover {
            place,
            config: SessionConfig { soft: true, timeout: PATIENCE, replay_window: 0, ..config },
            session: OnceLock::new(),
            away_until: AtomicU64::new(0),
            no_rights_until: AtomicU64::new(0),
            has_refused: AtomicBool::new(false),
        }
    }

    /// Its session, while it seems to answer.
    pub(super) fn session(&self) -> Option<&Arc<Session>> {
        let session = self.session.get()?;
        (now() >= self.away_until.load(Ordering::Relaxed) && session.connections() > 0).then_some(session)
    }

    /// Whether it seems to answer.
    pub(super) fn is_there(&self) -> bool {
        self.session().is_some()
    }

    /// Its session, whether or not it seems to answer, as soon as there is one.
    pub(super) fn connected(&self) -> Option<&Arc<Session>> {
        self.session.get()
    }

    /// It has not answered.
    pub(super) fn is_away(&self) {
        let (now, server) = (now(), &self.config.server);
        if self.away_until.swap(now + AWAY, Ordering::Relaxed) < now {
            tracing::warn!(%server, "a server of the volume does not answer: the server of the names moves its files' bytes meanwhile");
        }
    }

    /// It does not open what the server of the names has opened for the same caller.
    pub(super) fn refuses(&self, error: Errno) {
        let server = &self.config.server;
        if matches!(error, Errno::EACCES | Errno::EPERM) && !self.has_refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(%server, %error, "a server of the volume does not open a file for a program for which the server of the names has opened it, since it takes this client for another: such files' bytes go through the server of the names. Give both the same --squash and access, and have this machine reach both the same way");
        }
    }
}

impl Shape {
    /// What a map says. Who is the same by both maps stays.
    fn new(config: MoverConfig, before: &[(u16, Option<Arc<Mover>>)]) -> Shape {
        let same = |place: u16, session: &SessionConfig| {
            let mut before = before.iter().filter_map(|(_, mover)| mover.as_ref());
            before.find(|mover| mover.place == place && mover.config.server == session.server).cloned()
        };
        let mover = |(place, session): (u16, Option<SessionConfig>)| {
            let mover =
                session.map(|session| same(place, &session).unwrap_or_else(|| Arc::new(Mover::new((place, session)))));
            (place, mover)
        };
        let all = config.sessions.into_iter().map(mover).collect();
        Shape { map: config.map, spread: config.spread, all }
    }

    fn movers(&self) -> impl Iterator<Item = &Arc<Mover>> {
        self.all.iter().filter_map(|(_, mover)| mover.as_ref())
    }

    /// The one at a place; `None`: there is none, or it is the server of the names.
    fn at(&self, place: u16) -> Option<&Arc<Mover>> {
        self.movers().find(|mover| mover.place == place)
    }
}

impl Movers {
    pub(crate) fn new(config: MoverConfig, remake: Option<Remake>) -> Movers {
        let (is_constant, straight_from, has_objects) = (config.is_constant, config.straight_from, config.has_objects);
        let [is_alone, closing] = [false; 2].map(AtomicBool::new);
        Movers {
            shape: RwLock::new(Arc::new(Shape::new(config, &[]))),
            leaving: Mutex::default(),
            remake,
            is_constant,
            has_objects,
            next_open: AtomicU64::new(1),
            straight_from,
            takes_turns: false,
            is_alone,
            coming: Mutex::default(),
            closing,
        }
    }

    /// The same, where programs take turns or not.
    pub(crate) fn taking_turns(self, takes_turns: bool) -> Movers {
        Movers { takes_turns, ..self }
    }

    /// What the present map says.
    pub(super) fn shape(&self) -> Arc<Shape> {
        self.shape.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Those that move the bytes of an open, by the present map.
    fn places(&self, open: &Open) -> Arc<Places> {
        let shape = self.shape();
        let mut places = lock(&open.moved);
        if let Some(places) = places.as_ref().filter(|places| places.shape.map == shape.map) {
            return places.clone();
        }
        let before = places.take();
        let known: Vec<Arc<Moved>> = before.iter().flat_map(|places| places.all().cloned()).collect();
        let moved = |at: usize| {
            let (place, mover) = &shape.all[at];
            let is_it = |moved: &&Arc<Moved>| match (&moved.mover, mover) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (one, other) => one.is_none() && other.is_none() && moved.place == *place,
            };
            let new = || Arc::new(Moved { place: *place, mover: mover.clone(), adopted: Adopted::default() });
            known.iter().find(is_it).cloned().unwrap_or_else(new)
        };
        let width = shape.spread.width_of(open.width());
        let present: Box<[Arc<Moved>]> = shape.spread.servers(&open.handle, width).into_iter().map(moved).collect();
        // What they have open they close with the file.
        let is_former = |moved: &Arc<Moved>| !present.iter().any(|other| Arc::ptr_eq(moved, other));
        let former = known.into_iter().filter(is_former).collect();
        let new = Arc::new(Places { shape, width, present, former });
        places.insert(new).clone()
    }

    /// Where the block ends that an offset is in.
    pub(super) fn block_end(&self, offset: u64) -> u64 {
        self.shape().spread.block_end(offset)
    }

    /// The map by which it was chosen, and the one that writes an open's bytes at an offset, by a
    /// map always the same, with its place; `None`: the server of the names.
    pub(super) fn designated(&self, open: &Open, offset: u64) -> (u64, Option<(u16, Arc<Mover>)>) {
        let places = self.places(open);
        let found = places.order(offset).next().and_then(|moved| Some((moved.place, moved.mover.clone()?)));
        (places.shape.map, found)
    }

    /// Whether there are any but the server of the names.
    pub(super) fn are_any(&self) -> bool {
        self.shape().movers().next().is_some()
    }

    /// Whether that is so of any of them.
    pub(super) fn has(&self, is: impl Fn(&Mover) -> bool) -> bool {
        self.shape().movers().any(|mover| is(mover))
    }

    /// The one that a lane leads to; `None`: it has gone, or is the server of the names.
    pub(super) fn of_lane(&self, key: &Key) -> Option<Arc<Mover>> {
        let leaving = lock(&self.leaving);
        let had = leaving.iter().filter(|of| of.mover.place == key.place && of.until > key.map);
        if let Some(of) = had.min_by_key(|of| of.until) {
            return Some(of.mover.clone());
        }
        drop(leaving);
        self.shape().at(key.place).cloned()
    }

    /// The one with this number in the map; the inner `None`: it is the server of the names.
    pub(super) fn nth(&self, number: u16) -> Option<Option<Arc<Mover>>> {
        self.shape().all.get(usize::from(number)).map(|(_, mover)| mover.clone())
    }

    /// A number for the open of an object, which no other has.
    pub(super) fn next_open(&self) -> OpenId {
        OpenId(self.next_open.fetch_add(1, Ordering::Relaxed))
    }

    /// What a mover knows of an open.
    pub(super) fn adopted(&self, open: &Open, mover: &Mover) -> Option<Arc<Moved>> {
        let is_it = |moved: &&Arc<Moved>| moved.mover.as_ref().is_some_and(|it| std::ptr::eq(&**it, mover));
        self.places(open).all().find(is_it).cloned()
    }

    /// The one that moves the bytes of an open from an offset on, or who stands in for it, of those
    /// that answer; `None`: the server of the names does.
    pub(super) fn of(&self, open: &Open, offset: u64) -> Option<(Arc<Mover>, Arc<Session>, Arc<Moved>)> {
        let places = self.places(open);
        for moved in places.order(offset) {
            let mover = moved.mover.as_ref()?;
            if let Some(session) = mover.session() {
                return Some((mover.clone(), session.clone(), moved.clone()));
            }
        }
        None
    }

    /// An open has ended: the sessions of those that have it open.
    pub(super) fn having(&self, open: &Open) -> Vec<Arc<Session>> {
        let places = lock(&open.moved).clone();
        let moved = places.iter().flat_map(|places| places.all()).filter(|moved| moved.adopted.close());
        moved.filter_map(|moved| moved.mover.as_ref()?.session.get().cloned()).collect()
    }

    /// The sessions that there are.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        let leaving: Vec<Arc<Mover>> = lock(&self.leaving).iter().map(|of| of.mover.clone()).collect();
        let shape = self.shape();
        shape.movers().chain(&leaving).filter_map(|mover| mover.session.get().cloned()).collect()
    }

    /// Says goodbye.
    pub(crate) fn disconnect(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.sessions().iter().for_each(|session| session.disconnect());
    }

    /// Connects to those that are not connected yet. Whether that is all.
    pub(super) fn connect(&self, groups: &[Arc<Group>]) -> bool {
        let shape = self.shape();
        for mover in shape.movers().filter(|mover| mover.session.get().is_none()) {
            if self.closing.load(Ordering::SeqCst) {
                return true;
            }
            match Session::connect(mover.config.clone(), groups, None) {
                Ok(session) => {
                    let session = mover.session.get_or_init(|| session);
                    // Looked at after it is there: who closes later finds it.
                    if self.closing.load(Ordering::SeqCst) {
                        session.disconnect();
                    }
                }
                Err(error) => tracing::debug!(%error, "a server of the volume cannot be reached yet"),
            }
        }
        shape.movers().all(|mover| mover.session.get().is_some())
    }
}

/// Another map comes.
impl Movers {
    /// Whether this is a newer map than the present one, as far as its epoch tells.
    pub(super) fn is_newer(&self, map: u64) -> bool {
        map > self.shape().map
    }

    /// There is something to be done: a map that is to hold, or servers to connect to. True: the
    /// caller starts a thread that sees to it.
    pub(super) fn comes(&self, map: Option<Map>) -> bool {
        let mut coming = lock(&self.coming);
        if let Some(map) = map
            && coming.0.as_ref().is_none_or(|other| other.epoch < map.epoch)
        {
            coming.0 = Some(map);
        }
        !std::mem::replace(&mut coming.1, true)
    }

    /// The map that is to hold, if there is one.
    pub(super) fn take_coming(&self) -> Option<Map> {
        lock(&self.coming).0.take()
    }

    /// The thread that saw to it ends, unless there is more to be done.
    pub(super) fn rests(&self) -> bool {
        let mut coming = lock(&self.coming);
        coming.1 = coming.0.is_some();
        !coming.1
    }

    /// Another map holds from now on. Returns its epoch; `None`: it is no newer one, or cannot be
    /// used.
    pub(super) fn set_map(&self, map: &Map) -> Option<u64> {
        let config = self.remake.as_ref().filter(|_| self.is_newer(map.epoch))?(map);
        let usable =
            config.filter(|config| (config.is_constant, config.has_objects) == (self.is_constant, self.has_objects));
        let Some(config) = usable else {
            let epoch = map.epoch;
            tracing::error!(epoch, "the volume has changed to what this mount cannot use: mount it anew");
            return None;
        };
        let before = self.shape();
        let shape = Arc::new(Shape::new(config, &before.all));
        let stays = |mover: &Arc<Mover>| shape.movers().any(|other| Arc::ptr_eq(mover, other));
        let gone = before.movers().filter(|mover| !stays(mover)).cloned();
        // First: who has a key by the map before finds its mover.
        lock(&self.leaving).extend(gone.map(|mover| Leaving { mover, until: shape.map }));
        tracing::info!(map = shape.map, servers = shape.all.len(), "the volume has another map");
        let map = shape.map;
        *self.shape.write().unwrap_or_else(PoisonError::into_inner) = shape;
        Some(map)
    }

    /// Says goodbye to those that have left, once no lane leads there any more. Whether that is
    /// all.
    pub(super) fn let_go(&self, has_lanes: impl Fn(u16, u64) -> bool) -> bool {
        let (stay, go): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *lock(&self.leaving)).into_iter().partition(|of| has_lanes(of.mover.place, of.until));
        let is_all = stay.is_empty();
        lock(&self.leaving).extend(stay);
        for of in go {
            tracing::info!(server = %of.mover.config.server, "left a server that is no more the volume's");
            of.mover.session.get().into_iter().for_each(|session| session.disconnect());
        }
        is_all
    }
}
