//! The memory that frames of clients take: who had it in vain, and where that of a request is
//! counted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_net::Charge;
use aqueduct_worker::lock;

use crate::origin::Identity;

/// So long a client is remembered of which a frame was not finished, and so many are.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
const REMEMBERED_MAX: usize = 4096;

/// Clients that held memory in vain lately: they get half of it at most, and the others the rest.
#[derive(Default)]
pub(crate) struct Hoarders(Mutex<HashMap<Identity, Instant>>);

impl Hoarders {
    pub(crate) fn add(&self, peer: Identity) {
        let mut known = lock(&self.0);
        if known.len() >= REMEMBERED_MAX {
            known.retain(|_, since| since.elapsed() < REMEMBERED_FOR);
        }
        if known.len() < REMEMBERED_MAX {
            known.insert(peer, Instant::now());
        }
    }

    pub(crate) fn has(&self, peer: &Identity) -> bool {
        lock(&self.0).get(peer).is_some_and(|since| since.elapsed() < REMEMBERED_FOR)
    }
}

/// Bytes of requests that wait for others' leases, of all clients. Up to this they are not counted
/// as frames, whose room others need meanwhile; beyond it they are.
const WAITING_MAX: usize = 64 << 20;

/// How many such bytes there are.
#[derive(Default)]
pub(crate) struct Waiting(AtomicUsize);

/// Where the frame of a request under way is counted.
#[derive(Default)]
pub(crate) enum Room {
    /// Nowhere: it is short.
    #[default]
    None,
    /// Among the frames.
    Frame(Charge),
    /// Among those that wait for leases, or have waited.
    Waiting(Arc<Waiting>, usize),
}

impl Room {
    pub(crate) fn of(charge: Option<Charge>) -> Room {
        charge.map_or(Room::None, Room::Frame)
    }

    /// Its request begins to wait.
    pub(crate) fn wait(&mut self, waiting: &Arc<Waiting>) {
        let Room::Frame(charge) = self else { return };
        let size = charge.size();
        let add = |bytes: usize| Some(bytes + size).filter(|sum| *sum <= WAITING_MAX);
        if waiting.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok() {
            *self = Room::Waiting(waiting.clone(), size);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Room::Waiting(waiting, size) = self {
            waiting.0.fetch_sub(*size, Ordering::SeqCst);
        }
    }
}
