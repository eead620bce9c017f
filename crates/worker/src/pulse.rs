//! A heartbeat: whether this process ran at all while something took long. It does not while it is
//! stopped (SIGSTOP, a debugger), or its machine is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::sentinel::{Found, Sentinel};

/// Between two beats: a fraction of what anybody calls slow, and nothing to the processor.
const BEAT: Duration = Duration::from_millis(250);

/// A beat that is late by more was not just waiting for a processor.
const LATE: Duration = Duration::from_millis(500);

/// The heartbeat. Idle, it costs nothing.
pub struct Pulse {
    sentinel: Arc<Sentinel>,
    beats: Arc<Beats>,
}

struct Beats {
    origin: Instant,
    /// When the last one was, in nanoseconds since the origin.
    last: AtomicU64,
    /// For how long there should have been some, in nanoseconds.
    missed: AtomicU64,
}

impl Beats {
    fn at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.origin).as_nanos() as u64
    }

    fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    /// For how long there should have been some since the last one.
    fn gap(&self, now: u64) -> u64 {
        let since = now.saturating_sub(self.last.load(Ordering::SeqCst));
        if since > (BEAT + LATE).as_nanos() as u64 { since - BEAT.as_nanos() as u64 } else { 0 }
    }

    fn beat(&self) {
        let now = self.now();
        let gap = self.gap(now);
        self.missed.fetch_add(gap, Ordering::SeqCst);
        self.last.store(now, Ordering::SeqCst);
        if gap > 0 {
            let time = Duration::from_nanos(gap);
            tracing::warn!("this process did not run for {time:.1?}: it, or its machine, was stopped");
        }
    }
}

impl Default for Pulse {
    fn default() -> Pulse {
        let beats = Beats { origin: Instant::now(), last: AtomicU64::new(0), missed: AtomicU64::new(0) };
        Pulse { sentinel: Arc::default(), beats: Arc::new(beats) }
    }
}

impl Pulse {
    /// Has it beat from now on, as long as something `is_busy`; `None` ends it. Called for each
    /// piece of work: one load while it beats already.
    pub fn call<F: FnMut() -> Option<bool> + Send + 'static>(&self, is_busy: impl FnOnce() -> F) {
        if self.sentinel.is_looking() {
            return;
        }
        self.beats.last.store(self.beats.now(), Ordering::SeqCst);
        let beats = self.beats.clone();
        let look = || {
            let mut is_busy = is_busy();
            move || {
                beats.beat();
                match is_busy() {
                    Some(true) => Found::Busy,
                    Some(false) => Found::Quiet,
                    None => Found::Over,
                }
            }
        };
        // Without it what takes long is blamed on others; the next piece of work tries again.
        let _ = self.sentinel.call(BEAT, look);
    }

    /// For how long this process did not run until `now`, in all, as far as it beat then. The
    /// difference between two looks is for how long it did not between them.
    pub fn missed(&self, now: Instant) -> Duration {
        let missed = self.beats.missed.load(Ordering::SeqCst);
        let present = if self.sentinel.is_looking() { self.beats.gap(self.beats.at(now)) } else { 0 };
        Duration::from_nanos(missed + present)
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.sentinel.wake(); // to its end
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_late_beat_is_missed_and_a_punctual_one_is_not() {
        let pulse = Pulse::default();
        let beats = &pulse.beats;
        let second = Duration::from_secs(1).as_nanos() as u64;
        assert_eq!((beats.gap(0), beats.gap(second / 2)), (0, 0));
        assert_eq!(beats.gap(10 * second), 10 * second - second / 4);
    }

    #[test]
    fn it_beats_while_something_is_busy_and_rests_are_not_missed() {
        let (pulse, busy) = (Pulse::default(), Arc::new(AtomicBool::new(true)));
        let call = || {
            let busy = busy.clone();
            pulse.call(|| move || Some(busy.load(Ordering::SeqCst)));
        };
        let last = || pulse.beats.last.load(Ordering::SeqCst);
        for _ in 0..2 {
            busy.store(true, Ordering::SeqCst);
            let (before, end) = (last(), Instant::now() + Duration::from_secs(20));
            call();
            while last() <= before + BEAT.as_nanos() as u64 / 2 {
                assert!(Instant::now() < end, "it does not beat");
                std::thread::sleep(BEAT / 5);
            }
            busy.store(false, Ordering::SeqCst);
            while pulse.sentinel.is_looking() {
                assert!(Instant::now() < end, "it does not rest");
                std::thread::sleep(BEAT / 5);
            }
            let missed = pulse.beats.missed.load(Ordering::SeqCst);
            std::thread::sleep(2 * (BEAT + LATE));
            call();
            assert_eq!(pulse.beats.missed.load(Ordering::SeqCst), missed, "it rested");
        }
    }
}
