//! Servers that move bytes for the server of the names: each file's bytes go through one of them,
//! by its handle. Nobody there knows leases, so nothing is asked of them but under a lease that
//! the server of the names has granted: whoever would change what it covers waits for the answer.
//! Without one, or while a mover is away, the server of the names moves the bytes itself. All of
//! them serve one coherent file system, so that it makes no difference to what is read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use aqueduct_fs::OpenId;
use aqueduct_session::Session;
use aqueduct_wire::Map;
use aqueduct_worker::{Group, lock};

use super::adopted::{Adopted, Moved, Places};
use super::lanes::Key;
use super::mover::{Mover, MoverConfig, Shape};
use super::opens::Open;
use super::turns::Turns;

/// Between two tries to connect to those that were not there.
pub(super) const RETRY: Duration = Duration::from_millis(500);

/// Says which servers move bytes by another map; `None`: this client cannot use it.
pub type Remake = Arc<dyn Fn(&Map) -> Option<MoverConfig> + Send + Sync>;

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
    /// The server of the names has said that it has nothing written that was brought elsewhere.
    pub(super) brings_nothing: AtomicBool,
    /// The epoch of the newest map of which the server of the names has told.
    told: AtomicU64,
    /// That of the newest map of which it has named but the epoch.
    named: AtomicU64,
    /// Somebody asks for the newest.
    is_asked_for: AtomicBool,
    /// A map that is to hold, and whether a thread sees to that.
    coming: Mutex<(Option<Map>, bool)>,
    closing: AtomicBool,
}

impl Movers {
    pub(crate) fn new(config: MoverConfig, remake: Option<Remake>) -> Movers {
        let (is_constant, straight_from, has_objects) = (config.is_constant, config.straight_from, config.has_objects);
        let [told, named] = [config.map; 2].map(AtomicU64::new);
        let [is_alone, brings_nothing, closing, is_asked_for] = [false; 4].map(AtomicBool::new);
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
            brings_nothing,
            told,
            named,
            is_asked_for,
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
            let (adopted, opening) = (Adopted::default(), Turns::default());
            let new = || Arc::new(Moved { place: *place, mover: mover.clone(), adopted, opening });
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
    /// Whether this is a newer map than all that were told, as far as its epoch tells: one that
    /// cannot be used is not asked for again.
    pub(super) fn is_newer(&self, map: u64) -> bool {
        map > self.told.load(Ordering::SeqCst)
    }

    /// A map of this epoch holds, of which nothing else was told. True: the caller asks for it,
    /// until [`asks_no_more`](Movers::asks_no_more).
    pub(super) fn is_named(&self, map: u64) -> bool {
        self.named.fetch_max(map, Ordering::SeqCst);
        self.lacks_map() && !self.is_asked_for.swap(true, Ordering::SeqCst)
    }

    /// Whether a newer map was named than any that was told.
    pub(super) fn lacks_map(&self) -> bool {
        self.is_newer(self.named.load(Ordering::SeqCst)) && !self.closing.load(Ordering::SeqCst)
    }

    /// Whoever asks for a map is done, if there is none to be asked for.
    pub(super) fn asks_no_more(&self) -> bool {
        if self.lacks_map() {
            return false;
        }
        self.is_asked_for.store(false, Ordering::SeqCst);
        // One that was named meanwhile has found somebody who asks.
        !self.lacks_map() || self.is_asked_for.swap(true, Ordering::SeqCst)
    }

    /// Whether the map by which this client writes is no longer the volume's: no rights are given
    /// by it.
    pub(super) fn is_behind(&self) -> bool {
        self.is_newer_than_present(self.told.load(Ordering::Relaxed))
    }

    fn is_newer_than_present(&self, map: u64) -> bool {
        map > self.shape().map
    }

    /// There is something to be done: a map that is to hold, or servers to connect to. True: the
    /// caller starts a thread that sees to it.
    pub(super) fn comes(&self, map: Option<Map>) -> bool {
        let mut coming = lock(&self.coming);
        map.iter().for_each(|map| _ = self.told.fetch_max(map.epoch, Ordering::SeqCst));
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

    /// No thread can be started: the next that comes is to start one.
    pub(super) fn is_not_seen_to(&self) {
        lock(&self.coming).1 = false;
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
        let config = self.remake.as_ref().filter(|_| self.is_newer_than_present(map.epoch))?(map);
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
        let (go, is_all) = {
            // At once: what stays is found by its lanes at any time.
            let mut leaving = lock(&self.leaving);
            let go: Vec<Leaving> = leaving.extract_if(.., |of| !has_lanes(of.mover.place, of.until)).collect();
            (go, leaving.is_empty())
        };
        for of in go {
            tracing::info!(server = %of.mover.config.server, "left a server that is no more the volume's");
            of.mover.session.get().into_iter().for_each(|session| session.disconnect());
        }
        is_all
    }
}

#[cfg(test)]
mod tests {
    use super::super::spread::Spread;
    use super::*;

    #[test]
    fn a_map_that_was_named_is_asked_for_until_it_is_told() {
        let config = MoverConfig {
            map: 3,
            spread: Spread::new([]),
            is_constant: false,
            has_objects: false,
            straight_from: usize::MAX,
            sessions: Vec::new(),
        };
        let movers = Movers::new(config, None);
        assert!(!movers.is_named(3), "it is the present one");
        assert!(movers.is_named(5), "this one asks");
        assert!(!movers.is_named(4) && !movers.is_named(6), "somebody asks already");
        assert!(!movers.asks_no_more(), "a try that failed");
        movers.comes(Some(Map { epoch: 5, ..Map::default() }));
        assert!(!movers.asks_no_more(), "a newer one was named meanwhile");
        movers.comes(Some(Map { epoch: 6, ..Map::default() }));
        assert!(movers.asks_no_more());
        assert!(movers.is_named(7), "and the next is asked for");
        movers.closing.store(true, Ordering::SeqCst);
        assert!(movers.asks_no_more(), "nobody wants it any more");
    }
}
