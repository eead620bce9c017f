//! Clients that ask for leases, and what is known of each.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::time::Duration;

use aqueduct_fs::ClientId;
use aqueduct_worker::lock;

use super::{Clients, Now};

/// A session, as far as it is written down what became of its leases.
pub(crate) trait Noted: Send + Sync {
    /// Whether what its client held back so far is lost.
    fn note_broken(&self, is_broken: bool);
}

/// A client that asks for leases, until the last of them has gone.
pub(crate) struct Holder {
    session: Weak<dyn Noted>,
    /// Nanoseconds.
    renewed: AtomicU64,
    /// How many shards have it suspended.
    suspended: AtomicUsize,
    /// Its session has ended.
    pub(super) departs: AtomicBool,
    /// The next process knows that it may hold something back.
    pub(super) writes: OnceLock<()>,
    /// What the client held back is lost, and the next process knows it, until the client has
    /// returned all that it owes.
    broken: Mutex<bool>,
}

impl Holder {
    pub(super) fn new(session: Weak<dyn Noted>) -> Holder {
        Holder {
            session,
            renewed: AtomicU64::new(0),
            suspended: AtomicUsize::new(0),
            departs: AtomicBool::new(false),
            writes: OnceLock::new(),
            broken: Mutex::default(),
        }
    }

    pub(super) fn renewed(&self) -> Now {
        Duration::from_nanos(self.renewed.load(Ordering::SeqCst))
    }

    /// A request has come. Returns whether its reply renews. That is looked at again after the
    /// time is noted, so that whoever suspends the client and then looks sees it.
    pub(super) fn renew(&self, now: Now) -> bool {
        let may = || self.suspended.load(Ordering::SeqCst) == 0;
        may() && {
            self.renewed.fetch_max(now.as_nanos() as u64, Ordering::SeqCst);
            may()
        }
    }

    /// Notes for the next process whether what it held back is lost.
    pub(super) fn note_broken(&self, is_broken: bool) {
        let mut broken = lock(&self.broken);
        if *broken == is_broken || !is_broken && self.suspended.load(Ordering::SeqCst) > 0 {
            return;
        }
        *broken = is_broken;
        if let Some(session) = self.session.upgrade() {
            session.note_broken(is_broken);
        }
    }
}

/// Those clients.
#[derive(Default)]
pub(super) struct Holders(RwLock<HashMap<ClientId, Arc<Holder>>>);

impl Holders {
    pub(super) fn get(&self, client: ClientId) -> Option<Arc<Holder>> {
        self.0.read().unwrap_or_else(|poison| poison.into_inner()).get(&client).cloned()
    }

    pub(super) fn insert(&self, client: ClientId, holder: Arc<Holder>) {
        self.0.write().unwrap_or_else(|poison| poison.into_inner()).insert(client, holder);
    }

    pub(super) fn remove(&self, client: ClientId) {
        self.0.write().unwrap_or_else(|poison| poison.into_inner()).remove(&client);
    }
}

impl Clients for Holders {
    fn renewed(&self, client: ClientId) -> Option<Now> {
        self.get(client).map(|holder| holder.renewed())
    }

    fn is_suspended(&self, client: ClientId) -> bool {
        self.get(client).is_some_and(|holder| holder.suspended.load(Ordering::SeqCst) > 0)
    }

    fn suspend(&self, client: ClientId) {
        if let Some(holder) = self.get(client) {
            holder.suspended.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn resume(&self, client: ClientId) {
        if let Some(holder) = self.get(client) {
            holder.suspended.fetch_sub(1, Ordering::SeqCst);
            holder.note_broken(false);
        }
    }
}
