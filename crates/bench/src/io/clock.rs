//! Time, on a clock that all processes of a host share.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// A point in time, or a length of it, in nanoseconds.
pub type Nanos = i64;

fn nanos(time: Timespec) -> Nanos {
    time.tv_sec * 1_000_000_000 + time.tv_nsec as Nanos
}

/// Now (CLOCK_MONOTONIC).
pub fn now() -> Nanos {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Now on the same clock, as of the kernel's last tick: it costs a few nanoseconds, and is right to some milliseconds.
pub fn tick() -> Nanos {
    nanos(clock_gettime(ClockId::MonotonicCoarse))
}

/// In seconds.
pub fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_follow_the_clock() {
        let (before, tick) = (now(), tick());
        assert!((before - tick).abs() < 1_000_000_000, "{before} {tick}");
        assert!(now() >= before);
        assert_eq!(seconds(1_500_000_000), 1.5);
    }
}
