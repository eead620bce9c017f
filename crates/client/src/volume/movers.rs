//! Servers that move bytes for the server of the names: each file's bytes go through one of them,
//! by its handle. Nobody there knows leases, so nothing is asked of them but under a lease that
//! the server of the names has granted: whoever would change what it covers waits for the answer.
//! Without one, or while a mover is away, the server of the names moves the bytes itself. All of
//! them serve one coherent file system, so that it makes no difference to what is read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aqueduct_fs::{Errno, OpenId};
use aqueduct_session::{Nanos, Session, SessionConfig, now};
use aqueduct_worker::Group;

use super::adopted::{Adopted, Moved};
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

/// The servers that move a volume's bytes.
#[derive(Clone, Debug)]
pub struct MoverConfig {
    /// Which of them moves a file's.
    pub spread: Spread,
    /// Nobody changes anything: no leases are needed to read.
    pub is_constant: bool,
    /// Files' bytes lie in objects at them, where the server of the names says, instead of by the
    /// spread.
    pub has_objects: bool,
    /// What is written of a file goes straight to one of them from so many bytes on.
    pub straight_from: usize,
    /// In the order of the spread's names; `None`: the server of the names.
    pub sessions: Vec<Option<SessionConfig>>,
}

/// One of them.
pub(super) struct Mover {
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

/// See the module.
pub(crate) struct Movers {
    spread: Spread,
    pub(super) is_constant: bool,
    pub(super) has_objects: bool,
    /// The number of the next open of an object.
    next_open: AtomicU64,
    pub(super) straight_from: usize,
    /// Programs read and write in turn: nobody writes beside others.
    pub(super) takes_turns: bool,
    /// The server of the names has said that nobody writes beside others.
    pub(super) is_alone: AtomicBool,
    all: Vec<Option<Mover>>,
    closing: AtomicBool,
}

impl Mover {
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

impl Movers {
    pub(crate) fn new(config: MoverConfig) -> Movers {
        let mover = |session: SessionConfig| Mover {
            config: SessionConfig { soft: true, timeout: PATIENCE, replay_window: 0, ..session },
            session: OnceLock::new(),
            away_until: AtomicU64::new(0),
            no_rights_until: AtomicU64::new(0),
            has_refused: AtomicBool::new(false),
        };
        let all = config.sessions.into_iter().map(|session| session.map(mover)).collect();
        let (spread, is_constant, straight_from) = (config.spread, config.is_constant, config.straight_from);
        let [is_alone, closing] = [false; 2].map(AtomicBool::new);
        let (has_objects, next_open, takes_turns) = (config.has_objects, AtomicU64::new(1), false);
        Movers { spread, is_constant, has_objects, next_open, straight_from, takes_turns, is_alone, all, closing }
    }

    /// The same, where programs take turns or not.
    pub(crate) fn taking_turns(self, takes_turns: bool) -> Movers {
        Movers { takes_turns, ..self }
    }

    fn places<'a>(&self, open: &'a Open) -> &'a [Moved] {
        open.moved.get_or_init(|| {
            let servers = self.spread.servers(&open.handle).into_iter();
            servers.map(|server| Moved { server, adopted: Adopted::default() }).collect()
        })
    }

    /// Where the block ends that an offset is in.
    pub(super) fn block_end(&self, offset: u64) -> u64 {
        self.spread.block_end(offset)
    }

    /// The one that writes an open's bytes at an offset, always the same; `None`: the server of
    /// the names.
    pub(super) fn designated(&self, open: &Open, offset: u64) -> Option<(u16, &Mover)> {
        let places = self.places(open);
        let first = self.spread.order(offset, places.len()).next()?;
        let place = u16::try_from(places[first].server).ok()?;
        Some((place, self.at(place)?))
    }

    /// Whether that is so of any of them.
    pub(super) fn has(&self, is: impl Fn(&Mover) -> bool) -> bool {
        self.all.iter().flatten().any(is)
    }

    /// The one at a place of the map; `None`: it is the server of the names.
    pub(super) fn at(&self, place: u16) -> Option<&Mover> {
        self.all.get(usize::from(place))?.as_ref()
    }

    /// Whether the map has such a place.
    pub(super) fn has_place(&self, place: u16) -> bool {
        usize::from(place) < self.all.len()
    }

    /// A number for the open of an object, which no other has.
    pub(super) fn next_open(&self) -> OpenId {
        OpenId(self.next_open.fetch_add(1, Ordering::Relaxed))
    }

    /// What the one at a place knows of an open.
    pub(super) fn adopted<'a>(&self, open: &'a Open, place: u16) -> Option<&'a Adopted> {
        let mut places = self.places(open).iter();
        places.find(|moved| moved.server == usize::from(place)).map(|moved| &moved.adopted)
    }

    /// The one that moves the bytes of an open from an offset on, or who stands in for it, of those
    /// that answer; `None`: the server of the names does. With its session, and what it knows of
    /// the open.
    pub(super) fn of<'a>(&'a self, open: &'a Open, offset: u64) -> Option<(&'a Mover, &'a Arc<Session>, &'a Adopted)> {
        let places = self.places(open);
        for at in self.spread.order(offset, places.len()) {
            let Moved { server, adopted } = &places[at];
            let mover = self.all.get(*server)?.as_ref()?;
            if let Some(session) = mover.session() {
                return Some((mover, session, adopted));
            }
        }
        None
    }

    /// An open has ended: the sessions of those that have it open.
    pub(super) fn having<'a>(&'a self, open: &'a Open) -> impl Iterator<Item = &'a Arc<Session>> {
        let places = open.moved.get().into_iter().flatten().filter(|moved| moved.adopted.close());
        places.filter_map(|moved| self.all.get(moved.server)?.as_ref()?.session.get())
    }

    /// The sessions that there are.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.all.iter().flatten().filter_map(|mover| mover.session.get())
    }

    /// Says goodbye.
    pub(crate) fn disconnect(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.sessions().for_each(|session| session.disconnect());
    }

    /// Connects to those that are not connected yet. Whether that is all.
    pub(super) fn connect(&self, groups: &[Arc<Group>]) -> bool {
        for mover in self.all.iter().flatten().filter(|mover| mover.session.get().is_none()) {
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
        self.all.iter().flatten().all(|mover| mover.session.get().is_some())
    }
}
