//! Holds all threads together to a rate.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_worker::lock;

/// Holds those who ask to a rate.
pub struct Throttle {
    /// Bytes in a second.
    rate: AtomicU64,
    /// When what was let through so far is over.
    free_at: Mutex<Instant>,
}

impl Throttle {
    /// Lets `rate` bytes through in a second.
    pub fn new(rate: u64) -> Throttle {
        Throttle { rate: AtomicU64::new(rate.max(1)), free_at: Mutex::new(Instant::now()) }
    }

    /// Lets another number of bytes through from now on.
    pub fn set(&self, rate: u64) {
        self.rate.store(rate.max(1), Ordering::Relaxed);
    }

    /// Waits until so many bytes may move.
    pub fn take(&self, bytes: usize) {
        let until = {
            let mut free_at = lock(&self.free_at);
            let start = (*free_at).max(Instant::now());
            *free_at = start + Duration::from_secs_f64(bytes as f64 / self.rate.load(Ordering::Relaxed) as f64);
            start
        };
        thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_let_through_takes_its_time() {
        let (throttle, started) = (Throttle::new(1_000_000), Instant::now());
        (0..6).for_each(|_| throttle.take(10_000));
        assert!(started.elapsed() >= Duration::from_millis(50), "{:?}", started.elapsed());
    }
}
