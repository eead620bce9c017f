//! The spell in which all take part, of threads that watch or readers that read, after something that one does not do well alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a spell lasts after what began it.
const WIDE_FOR: Duration = Duration::from_millis(20);

/// Whether such a spell is on.
pub struct Wide {
    /// Microseconds after `start`.
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
        (self.start.elapsed().as_micros() as u64) < self.until.load(Ordering::Relaxed)
    }
}
