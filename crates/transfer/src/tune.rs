//! Finds how many threads copy best, while they copy.
//!
//! A setting is compared with another in three windows, A B A, so that what changes meanwhile is
//! not taken for its effect. What is kept has to be better than both by more than noise.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::job::Job;

/// A window is at least so long.
const WINDOW_MIN: Duration = Duration::from_millis(500);

/// And at most, where little moves.
const WINDOW_MAX: Duration = Duration::from_secs(4);

/// What has to move in a window that tells something, in bytes.
const MOVED_MIN: u64 = 16 << 20;

/// A name costs about as much as so many bytes.
const NAME_BYTES: u64 = 64 << 10;

/// So much better a setting has to be that is kept.
const GAIN: f64 = 1.03;

/// Where nothing was better it is tried again after this, and then after twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(4);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Between two looks at whether all is done.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Tries numbers of threads from `usual` up to `most`, until `ended`. Returns the last.
pub fn tune(job: &Job, usual: usize, most: usize, ended: &AtomicBool) -> usize {
    let mut measure = |streams: usize| {
        job.queue.admit(streams);
        rate(job, ended)
    };
    search(usual, most, &mut measure, &mut |pause| wait(pause, ended))
}

/// Goes to what is better, until `wait` or `measure` says that all is done. Returns the last
/// choice.
fn search(
    usual: usize,
    most: usize,
    measure: &mut dyn FnMut(usize) -> Option<f64>,
    wait: &mut dyn FnMut(Duration) -> bool,
) -> usize {
    let (mut streams, mut pause) = (usual.clamp(1, most), PAUSE_MIN);
    loop {
        let mut is_better = false;
        for doubles in [true, false] {
            loop {
                let other = if doubles { (streams * 2).min(most) } else { (streams / 2).max(1) };
                if other == streams {
                    break;
                }
                let rates = [streams, other, streams].map(&mut *measure);
                let [Some(before), Some(with), Some(after)] = rates else { return streams };
                if with <= GAIN * before.max(after) {
                    break;
                }
                (streams, is_better) = (other, true);
            }
        }
        if measure(streams).is_none() || (!is_better && !wait(pause)) {
            return streams;
        }
        pause = if is_better { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
    }
}

/// Waits; `false`: all is done.
fn wait(length: Duration, ended: &AtomicBool) -> bool {
    let started = Instant::now();
    while started.elapsed() < length {
        if ended.load(Ordering::Acquire) {
            return false;
        }
        thread::sleep(LOOK_INTERVAL);
    }
    true
}

/// What moves in a second, in bytes, now; `None`: all is done.
fn rate(job: &Job, ended: &AtomicBool) -> Option<f64> {
    let moved = || {
        let names = job.watch.names.load(Ordering::Relaxed);
        job.watch.bytes.load(Ordering::Relaxed) + names * NAME_BYTES
    };
    let (started, before) = (Instant::now(), moved());
    loop {
        if !wait(LOOK_INTERVAL, ended) {
            return None;
        }
        let (elapsed, now) = (started.elapsed(), moved() - before);
        if elapsed >= WINDOW_MAX || (elapsed >= WINDOW_MIN && now >= MOVED_MIN) {
            return Some(now as f64 / elapsed.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of a path whose rate depends on the number of threads alone, and how many
    /// windows it took.
    fn found(usual: usize, most: usize, rate: impl Fn(usize) -> f64) -> (usize, usize) {
        let mut windows = 0;
        let mut measure = |streams: usize| {
            windows += 1;
            (windows < 40).then(|| rate(streams))
        };
        (search(usual, most, &mut measure, &mut |_| false), windows)
    }

    #[test]
    fn the_best_is_found_from_either_side() {
        let latency = |streams: usize| streams.min(24) as f64;
        assert_eq!(found(4, 32, latency).0, 32);
        let disk = |streams: usize| 10.0 / streams as f64;
        assert_eq!(found(4, 32, disk).0, 1);
        let flat = |_| 7.0;
        assert_eq!(found(4, 32, flat).0, 4);
        // Within 15 s, at half a second each.
        assert!(found(4, 32, latency).1 <= 30, "{:?}", found(4, 32, latency));
    }

    #[test]
    fn what_gets_faster_by_itself_is_not_taken_for_a_gain() {
        let mut windows = 0;
        let mut measure = |_| {
            windows += 1;
            (windows < 30).then_some(f64::from(windows))
        };
        assert_eq!(search(4, 32, &mut measure, &mut |_| true), 4);
    }
}
