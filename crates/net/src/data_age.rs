//! For how long what comes by a connection has waited in the kernel. To ask takes a system call
//! (TCP_INFO, 0.23 us), so it is asked only when the answer can be new.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aqueduct_worker::lock;

/// The kernel counts in jiffies, of 1 to 10 ms.
const PRECISION: Duration = Duration::from_millis(1);

/// What is known of one connection.
#[derive(Debug, Default)]
pub(crate) struct DataAge {
    /// How many looks into the socket have found something.
    looks: AtomicU32,
    /// The latest left nothing there.
    is_drained: AtomicBool,
    last: Mutex<Option<Last>>,
}

/// A frame that it was asked for.
#[derive(Debug)]
struct Last {
    /// The look that found it.
    look: u32,
    /// When it was whole.
    came: Instant,
    was_drained: bool,
    age: Duration,
}

impl DataAge {
    /// So many looks have found something, and the latest left nothing, or not. Said before its
    /// frames are handed on.
    pub(crate) fn looked(&self, looks: u32, is_drained: bool) {
        self.is_drained.store(is_drained, Ordering::Relaxed);
        self.looks.store(looks, Ordering::Relaxed);
    }

    /// See [`looked`](DataAge::looked).
    pub(crate) fn looks(&self) -> u32 {
        self.looks.load(Ordering::Relaxed)
    }

    /// For how long the data of a frame have waited, which was whole when it `came`, by the
    /// latest look. What came after a look that left nothing has waited since then at most.
    pub(crate) fn of(&self, came: Instant, ask: impl FnOnce() -> Duration) -> Duration {
        let (look, mut last) = (self.looks(), lock(&self.last));
        let age = match &*last {
            Some(last) if last.look == look => last.age,
            Some(last) if last.was_drained && came.saturating_duration_since(last.came) < PRECISION => Duration::ZERO,
            _ => ask(),
        };
        *last = Some(Last { look, came, was_drained: self.is_drained.load(Ordering::Relaxed), age });
        age
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked_when_the_answer_can_be_new() {
        const AGE: Duration = Duration::from_millis(70);
        let (data, start) = (DataAge::default(), Instant::now());
        let of = |(looks, is_drained), after: Duration, age: Duration| {
            data.looked(looks, is_drained);
            let mut asked = false;
            let age = data.of(start + after, || {
                asked = true;
                age
            });
            (age, asked)
        };
        let (us, ms) = (Duration::from_micros, Duration::from_millis);
        assert_eq!(of((1, true), us(0), AGE), (AGE, true), "the first");
        assert_eq!(of((1, true), us(3), ms(1)), (AGE, false), "came with it");
        assert_eq!(of((2, true), us(300), AGE), (Duration::ZERO, false), "so soon after that nothing can have waited");
        assert_eq!(of((3, false), us(1400), AGE), (AGE, true), "there was time to wait");
        assert_eq!(of((4, true), us(1500), AGE), (AGE, true), "it was there when the last look was made");
    }
}
