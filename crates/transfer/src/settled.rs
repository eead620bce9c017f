//! Looks at a file so that each later change shows.
//!
//! A file system counts time in grains: what is changed twice within one has the same time after
//! both. Who looks between the two and reads would take what came of the second for what he saw.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aqueduct_fs::{Errno, Time};

use crate::side::{File, Seen};

/// The longest grain of a file system of Linux's own: its clock goes on at 100 Hz at least.
const GRAIN: Duration = Duration::from_millis(10);

/// Of those that count seconds, as Lustre does.
const GRAIN_COARSE: Duration = Duration::from_secs(1);

/// How often a file is waited for that is changed again and again.
const WAITS_MAX: usize = 3;

/// Looks at an open file. One of this machine that was changed within this grain is waited for; at
/// servers the time is another clock's, as that of a network file system that this machine has
/// mounted may be.
pub fn settled(file: &dyn File) -> Result<Seen, Errno> {
    let mut seen = file.seen()?;
    if file.descriptor().is_none() {
        return Ok(seen);
    }
    for _ in 0..WAITS_MAX {
        let Some(rest) = rest_of_grain(seen.attr.ctime, now()) else { break };
        thread::sleep(rest);
        seen = file.seen()?;
    }
    Ok(seen)
}

fn now() -> Time {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: now.as_secs() as i64, nanos: now.subsec_nanos() }
}

/// How long the grain lasts in which something was changed; `None`: it is over, or the time is one
/// to come, of a clock that was set.
fn rest_of_grain(changed: Time, now: Time) -> Option<Duration> {
    let grain = if changed.nanos == 0 { GRAIN_COARSE } else { GRAIN };
    let nanos = |time: Time| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
    let age = u64::try_from(nanos(now) - nanos(changed)).ok()?;
    grain.checked_sub(Duration::from_nanos(age)).filter(|rest| !rest.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_changed_just_now_is_waited_for() {
        let at = |seconds, nanos| Time { seconds, nanos };
        let millis = Duration::from_millis;
        for (changed, now, rest) in [
            (at(100, 5_000_000), at(100, 8_000_000), Some(millis(7))),
            (at(100, 999_000_000), at(101, 1_000_000), Some(millis(8))),
            (at(100, 5_000_000), at(100, 15_000_000), None),
            (at(100, 5_000_000), at(100, 4_999_999), None),
            (at(100, 0), at(100, 400_000_000), Some(millis(600))),
            (at(100, 0), at(101, 0), None),
            (at(i64::MIN, 1), at(100, 0), None),
            (at(i64::MAX, 1), at(100, 0), None),
        ] {
            assert_eq!(rest_of_grain(changed, now), rest, "{changed:?} {now:?}");
        }
    }
}
