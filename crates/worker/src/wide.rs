//! The spell in which all take part, of threads that watch or readers that read, after something that one does not do well alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a spell lasts after what began it.
const WIDE_FOR: Duration = Duration::from_millis(20);

/// Whether such a spell is on.
pub struct Wide {
    /// Microseconds after `start`; 0: it is not on, and nobody has to look at the clock.
    until: AtomicU64,
    start: Instant,
}

impl Default for Wide {
    fn default() -> Wide {
        Wide { until: AtomicU64::new(0), start: Instant::now() }
    }
}

impl Wide {
    /// Small requests that hold a thread for longer than this are not small here: the disk is slow, or the cores are taken.
    pub const SMALL_WORK_MAX: Duration = Duration::from_micros(300);

    /// Begins a spell, or makes it last.
    pub fn begin(&self) {
        self.until.store((self.start.elapsed() + WIDE_FOR).as_micros() as u64, Ordering::SeqCst);
    }

    /// Whether it is on.
    pub fn is_on(&self) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        let is_on = (self.start.elapsed().as_micros() as u64) < until;
        if !is_on {
            // Unless it has begun once more meanwhile.
            let _ = self.until.compare_exchange(until, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
        is_on
    }
}
