//! What peers do wrong, told once for each peer, kind and minute: a flood must not become one of
//! the log, which keeps the first and the number.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_worker::{Group, lock};

use crate::origin::Identity;

/// So long one line stands for all of its kind.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Peers and kinds that are told apart, about 100 bytes each; what goes beyond shares a line for
/// each kind.
const REMEMBERED_MAX: usize = 4096;

/// Kinds of what a peer does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Complaint {
    /// A connection that is not taken.
    Refused,
    /// What came is no frame, or out of place.
    Damaged,
    /// A connection ended, or was silent, before its HELLO.
    Unjoined,
    /// A client that went without a word, and did not come back.
    Forsaken,
    /// A client with another key.
    Stranger,
    /// A request that no client of ours sends.
    Request,
    /// Memory that is held in vain.
    Hoards,
    /// An operation that the backing file system took long for.
    Slow,
    /// The shared memory of a database is wanted by two clients.
    Shared,
    /// The server itself lacks something: descriptors, memory.
    Exhausted,
    /// Changes from outside that could not all be told.
    Outside,
}

/// What is counted under one key.
struct Told {
    until: Instant,
    suppressed: u64,
}

/// Whether to tell.
#[derive(Debug, PartialEq, Eq)]
enum Note {
    Tell,
    /// The first that is not told: how often there were more is to be told after this time.
    SumUpAfter(Duration),
    Suppress,
}

/// Of whom it is told, and what. `None`: of several, which share a line.
type Key = (Option<Identity>, Complaint);

/// What was told lately.
#[derive(Default)]
struct Notes(Mutex<HashMap<Key, Told>>);

impl Notes {
    fn note(&self, key: Key, now: Instant) -> (Note, Key) {
        let mut told = lock(&self.0);
        if told.len() >= REMEMBERED_MAX && !told.contains_key(&key) {
            told.retain(|_, told| told.until > now);
        }
        let key = if told.len() >= REMEMBERED_MAX && !told.contains_key(&key) { (None, key.1) } else { key };
        let fresh = Told { until: now + TOLD_AGAIN_AFTER, suppressed: 0 };
        let note = match told.entry(key.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(fresh);
                Note::Tell
            }
            Entry::Occupied(mut entry) if entry.get().until <= now && entry.get().suppressed == 0 => {
                entry.insert(fresh);
                Note::Tell
            }
            Entry::Occupied(mut entry) => {
                let told = entry.get_mut();
                told.suppressed += 1;
                let first = told.suppressed == 1;
                if first { Note::SumUpAfter(told.until.saturating_duration_since(now)) } else { Note::Suppress }
            }
        };
        (note, key)
    }

    /// How often there were more.
    fn sum_up(&self, key: &Key) -> u64 {
        lock(&self.0).remove(key).map_or(0, |told| told.suppressed)
    }
}

/// What is told of peers, for the log.
#[derive(Clone)]
pub(crate) struct Complaints {
    notes: Arc<Notes>,
    /// Whose threads sum up.
    group: Arc<Group>,
}

impl Complaints {
    pub(crate) fn new(group: &Arc<Group>) -> Complaints {
        Complaints { notes: Arc::default(), group: group.clone() }
    }

    /// Logs what a peer did wrong, unless that was done within the minute.
    pub(crate) fn tell(&self, peer: impl Into<Identity>, kind: Complaint, what: impl Display) {
        let peer = peer.into();
        let (note, key) = self.notes.note((Some(peer.clone()), kind), Instant::now());
        match note {
            Note::Tell => tracing::warn!(%peer, "{what}"),
            Note::Suppress => {}
            Note::SumUpAfter(pause) => {
                let (notes, pause) = (Arc::downgrade(&self.notes), self.group.sleep(pause));
                self.group.spawn(async move {
                    pause.await;
                    let Some(notes) = notes.upgrade() else { return };
                    let times = notes.sum_up(&key);
                    let (peer, kind) = key;
                    let peer = peer.map_or_else(|| "several".to_owned(), |peer| peer.to_string());
                    tracing::warn!(%peer, ?kind, times, "the like came more often within the minute");
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn address(number: u32) -> Option<Identity> {
        Some(Identity::Host(IpAddr::V4(number.into())))
    }

    #[test]
    fn each_peer_and_kind_is_told_once_a_minute() {
        let (complaints, now) = (Notes::default(), Instant::now());
        let note = |peer, kind, now| complaints.note((address(peer), kind), now).0;
        assert_eq!(note(1, Complaint::Refused, now), Note::Tell);
        assert_eq!(note(1, Complaint::Damaged, now), Note::Tell);
        assert_eq!(note(2, Complaint::Refused, now), Note::Tell);
        let later = now + Duration::from_secs(20);
        assert_eq!(note(1, Complaint::Refused, later), Note::SumUpAfter(Duration::from_secs(40)));
        assert_eq!(note(1, Complaint::Refused, later), Note::Suppress);
        assert_eq!(complaints.sum_up(&(address(1), Complaint::Refused)), 2);
        assert_eq!(note(1, Complaint::Refused, later), Note::Tell);
        assert_eq!(
            note(2, Complaint::Refused, now + Duration::from_secs(60)),
            Note::Tell,
            "nothing was left to sum up"
        );
    }

    #[test]
    fn the_table_is_bounded() {
        let (complaints, now) = (Notes::default(), Instant::now());
        let told =
            (0..100_000).filter(|peer| complaints.note((address(*peer), Complaint::Refused), now).0 == Note::Tell);
        assert_eq!(told.count(), REMEMBERED_MAX + 1);
        assert_eq!(lock(&complaints.0).len(), REMEMBERED_MAX + 1);
        // Those of the minute before make room.
        let later = now + TOLD_AGAIN_AFTER;
        assert_eq!(complaints.note((address(200_000), Complaint::Refused), later).0, Note::Tell);
    }
}
