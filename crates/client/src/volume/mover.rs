//! A server that moves bytes, and what one map says of all of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aqueduct_fs::Errno;
use aqueduct_session::{Nanos, Session, SessionConfig, now};

use super::spread::Spread;

/// A mover that has not answered for so long is not waited for: a second more than a lost packet
/// takes that the kernel sends once more.
const PATIENCE: Duration = Duration::from_secs(2);

/// One that did not answer is not asked again for so long, so that those who read do not wait for
/// it each time.
const AWAY: Nanos = 5_000_000_000;

/// To one that has refused data none are brought for so long.
const TAKES_NOTHING: Nanos = 60_000_000_000;

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

/// One of them.
pub(super) struct Mover {
    pub(super) place: u16,
    pub(super) config: SessionConfig,
    /// As soon as there is one.
    pub(super) session: OnceLock<Arc<Session>>,
    /// It is not asked before: it has not answered.
    away_until: AtomicU64,
    /// No right there is asked for before.
    pub(super) no_rights_until: AtomicU64,
    /// Nothing is brought there before.
    brought_from: AtomicU64,
    /// It has been told that it refuses what the server of the names allows.
    has_refused: AtomicBool,
}

/// What one map says.
pub(super) struct Shape {
    /// Its epoch.
    pub(super) map: u64,
    pub(super) spread: Spread,
    /// In the order of the spread's names, with their places; `None`: the server of the names.
    pub(super) all: Vec<(u16, Option<Arc<Mover>>)>,
}

impl Mover {
    pub(super) fn new((place, config): (u16, SessionConfig)) -> Mover {
        Mover {
            place,
            config: SessionConfig { soft: true, timeout: PATIENCE, replay_window: 0, ..config },
            session: OnceLock::new(),
            away_until: AtomicU64::new(0),
            no_rights_until: AtomicU64::new(0),
            brought_from: AtomicU64::new(0),
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

    /// Whether data may be brought there.
    pub(super) fn may_be_brought(&self) -> bool {
        now() >= self.brought_from.load(Ordering::Relaxed)
    }

    /// It takes none, as of another release.
    pub(super) fn takes_nothing(&self) {
        self.brought_from.store(now() + TAKES_NOTHING, Ordering::Relaxed);
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
    pub(super) fn new(config: MoverConfig, before: &[(u16, Option<Arc<Mover>>)]) -> Shape {
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

    pub(super) fn movers(&self) -> impl Iterator<Item = &Arc<Mover>> {
        self.all.iter().filter_map(|(_, mover)| mover.as_ref())
    }

    /// The one at a place; `None`: there is none, or it is the server of the names.
    pub(super) fn at(&self, place: u16) -> Option<&Arc<Mover>> {
        self.movers().find(|mover| mover.place == place)
    }
}
