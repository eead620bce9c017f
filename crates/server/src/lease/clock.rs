//! The clock by which leases last.

use std::time::Duration;

use super::Now;

/// The time that goes on while the machine sleeps.
pub(crate) fn now() -> Now {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.try_into().unwrap_or_default(), time.tv_nsec.try_into().unwrap_or_default())
}
