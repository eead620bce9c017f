//! What one connection holds of the memory that its server's connections share.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use aqueduct_worker::lock;

use crate::budget::{Budget, UNSENT_FREE};
use crate::receive::{Closed, Frame};

/// What one connection holds, and since when it makes nothing of it.
#[derive(Default)]
pub(crate) struct Holding {
    /// Bytes that wait to be sent.
    unsent: AtomicUsize,
    /// When the last of them went; in milliseconds of [`now`], 0 when none wait.
    sent: AtomicU64,
    /// When the frame began that has room and is not whole, and when the last of it came.
    began: AtomicU64,
    came: AtomicU64,
    /// Its peer has held room in vain lately.
    hoards: AtomicBool,
    /// It has yet to finish a frame that takes room.
    unproven: AtomicBool,
    /// It waits for room for a frame.
    pub(crate) starved: AtomicBool,
    /// Frames that wait until replies are read.
    deferred: Mutex<Vec<Frame>>,
    has_deferred: AtomicBool,
    /// How many have received frames that are not handed on yet.
    handing: AtomicUsize,
    /// Why nothing more comes, while it is to be told after those frames.
    ending: Mutex<Option<Closed>>,
    is_ending: AtomicBool,
    /// The end was told.
    is_told: AtomicBool,
}

/// Milliseconds since this was first asked, and one.
fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_millis() as u64 + 1
}

fn since(then: &AtomicU64) -> Option<Duration> {
    match then.load(Ordering::Relaxed) {
        0 => None,
        then => Some(Duration::from_millis(now().saturating_sub(then))),
    }
}

/// What whoever has handed on frames does next.
pub(crate) enum Handed {
    /// Nothing: more may come, or others still hand on.
    More,
    /// Nothing more comes, and these have waited for replies to be read: they are handed on as
    /// frames that were received just now, which this is counted for already.
    Deferred(Vec<Frame>),
    /// The connection ends.
    End(Closed),
}

impl Holding {
    /// Whether it has to leave half of the room to others.
    pub(crate) fn leaves_half(&self) -> bool {
        self.hoards.load(Ordering::Relaxed) || self.unproven.load(Ordering::Relaxed)
    }

    /// See [`Connection::set_unproven`](crate::Connection::set_unproven).
    pub(crate) fn set_unproven(&self) {
        self.unproven.store(true, Ordering::Relaxed);
    }

    /// It is proven; whether it was not before.
    pub(crate) fn set_proven(&self) -> bool {
        self.unproven.swap(false, Ordering::Relaxed)
    }

    /// Whether its peer has held room in vain lately; returns what was known before.
    pub(crate) fn set_hoards(&self, hoards: bool) -> bool {
        self.hoards.swap(hoards, Ordering::Relaxed)
    }

    /// How long a frame that has room has been coming, and how long nothing of it has; `None`:
    /// there is none.
    pub(crate) fn unfinished(&self) -> Option<(Duration, Duration)> {
        Some((since(&self.began)?, since(&self.came)?))
    }

    /// How many bytes wait to be sent, and for how long none of them was; `None`: few or none.
    pub(crate) fn unread(&self) -> Option<(usize, Duration)> {
        Some((self.unsent(), since(&self.sent)?))
    }

    /// It has finished frames: with one that takes room it shows what it needs room for.
    pub(crate) fn note_finished(&self, frames: &[Frame]) {
        if self.unproven.load(Ordering::Relaxed) && frames.iter().any(Frame::has_room) {
            self.unproven.store(false, Ordering::Relaxed);
        }
    }

    pub(crate) fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// So many bytes wait to be sent now; call it with the sender locked.
    pub(crate) fn note_unsent(&self, bytes: usize, budget: Option<&Arc<Budget>>) {
        let before = self.unsent.swap(bytes, Ordering::Relaxed);
        if let Some(budget) = budget.filter(|_| before.max(bytes) > UNSENT_FREE) {
            budget.unsent_changed(before, bytes);
            if bytes <= UNSENT_FREE {
                self.sent.store(0, Ordering::Relaxed);
            } else if before <= UNSENT_FREE || bytes < before {
                self.sent.store(now(), Ordering::Relaxed);
            }
        }
    }

    /// Something has come. `holds`: a frame has room and is not whole; `finished`: others before
    /// it have become so.
    pub(crate) fn note_received(&self, holds: bool, finished: bool) {
        let began = self.began.load(Ordering::Relaxed);
        if holds {
            let now = now();
            self.came.store(now, Ordering::Relaxed);
            if began == 0 || finished {
                self.began.store(now, Ordering::Relaxed);
            }
        } else if began != 0 {
            self.began.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn defer(&self, frames: impl Iterator<Item = Frame>) {
        lock(&self.deferred).extend(frames);
        self.has_deferred.store(true, Ordering::SeqCst);
    }

    pub(crate) fn has_deferred(&self) -> bool {
        self.has_deferred.load(Ordering::SeqCst)
    }

    pub(crate) fn take_deferred(&self) -> Vec<Frame> {
        let mut deferred = lock(&self.deferred);
        self.has_deferred.store(false, Ordering::SeqCst);
        std::mem::take(&mut *deferred)
    }

    /// Frames have been received; call it while nobody else can receive.
    pub(crate) fn begin_handing(&self) {
        self.handing.fetch_add(1, Ordering::SeqCst);
    }

    /// Those frames are handed on, or others have taken them over. What is to be done next.
    pub(crate) fn handed(&self) -> Handed {
        let others = self.handing.fetch_sub(1, Ordering::SeqCst) - 1;
        // Looked at after it was counted: of two that are the last, one sees the end.
        if others > 0 || !self.is_ending() {
            return Handed::More;
        }
        if self.has_deferred() {
            self.begin_handing();
            return Handed::Deferred(self.take_deferred());
        }
        lock(&self.ending).take().map_or(Handed::More, Handed::End)
    }

    /// Whether nothing more comes: then no frame is deferred any more.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// The connection has ended. Returns what is to be told of that now; `None`: whoever hands on
    /// the last frame tells it.
    pub(crate) fn ended(&self, closed: Closed) -> Option<Closed> {
        self.end_after_frames(closed);
        // Looked at after it was said: of this one and whoever hands on last, one takes it.
        if self.handing.load(Ordering::SeqCst) > 0 { None } else { lock(&self.ending).take() }
    }

    /// Whether the end is to be told, which is done once.
    pub(crate) fn is_told_now(&self) -> bool {
        !self.is_told.swap(true, Ordering::SeqCst)
    }

    /// Nothing more comes: whoever hands on the last frame ends the connection.
    pub(crate) fn end_after_frames(&self, closed: Closed) {
        lock(&self.ending).get_or_insert(closed);
        self.is_ending.store(true, Ordering::SeqCst);
    }
}
