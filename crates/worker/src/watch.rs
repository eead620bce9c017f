//! Who watches the descriptors of a group that has several threads.
//!
//! Every event wakes one thread in epoll_wait, also when another is just about to look for itself: on a virtual machine that costs the sender of the
//! event about 10 us and the woken thread finds nothing. So while requests are small one thread watches, and the others are *parked* where no event
//! wakes them. All watch (the group is *wide*) while requests are long, come faster than one thread takes them, or hold threads up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use crate::lock::lock;
use crate::wide::Wide;

/// What a thread that wanted to watch is to do.
pub(crate) enum Place {
    /// Watch, until [`Watch::leave`].
    Watching,
    /// Look again at what there is to do: it was parked and has been summoned, or something came before it was parked.
    Again,
    /// It was parked for all of its time.
    Idle,
}

#[derive(Default)]
pub(crate) struct Watch {
    /// Threads that wait for events, asleep or not.
    watchers: AtomicUsize,
    parked: AtomicUsize,
    /// Parked threads that are to come and have not yet woken.
    summoned: Mutex<usize>,
    summons: Condvar,
    /// All threads watch.
    wide: Wide,
}

impl Watch {
    /// Whether some thread waits for events.
    pub(crate) fn is_watched(&self) -> bool {
        self.watchers.load(Ordering::SeqCst) > 0
    }

    /// Has all threads watch for a while.
    pub(crate) fn widen(&self) {
        self.wide.begin();
        while self.summon() {}
    }

    /// Has a parked thread come; whether there was one.
    pub(crate) fn summon(&self) -> bool {
        if self.parked.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut summoned = lock(&self.summoned);
        let any = *summoned < self.parked.load(Ordering::SeqCst);
        if any {
            *summoned += 1;
            self.summons.notify_one();
        }
        any
    }

    /// Asks to watch. Parks the thread, until `limit` at most, while another one watches and
    /// `has_work` says that there is nothing else to do. `has_work` is asked after the thread
    /// counts as parked, so that whoever adds work later can wake it.
    pub(crate) fn enter(&self, limit: impl FnOnce() -> Option<Duration>, has_work: impl Fn() -> bool) -> Place {
        if self.wide.is_on() {
            self.watchers.fetch_add(1, Ordering::SeqCst);
            return Place::Watching;
        }
        if self.watchers.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return Place::Watching;
        }
        let mut summoned = lock(&self.summoned);
        self.parked.fetch_add(1, Ordering::SeqCst);
        let mut place = Place::Again;
        if self.is_watched() && !self.wide.is_on() && !has_work() {
            let uncalled = |summoned: &mut usize| *summoned == 0;
            summoned = match limit() {
                None => self.summons.wait_while(summoned, uncalled).unwrap_or_else(|poison| poison.into_inner()),
                Some(limit) => {
                    let waited = self.summons.wait_timeout_while(summoned, limit, uncalled);
                    let (summoned, timeout) = waited.unwrap_or_else(|poison| poison.into_inner());
                    if timeout.timed_out() {
                        place = Place::Idle;
                    }
                    summoned
                }
            };
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
        *summoned = summoned.saturating_sub(1);
        place
    }

    /// Watches no more.
    pub(crate) fn leave(&self) {
        self.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}
