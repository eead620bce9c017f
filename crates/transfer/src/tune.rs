//! Finds how many threads copy best and how much they ask for at a time, while they copy.
//!
//! A setting is compared with another in three windows, A B A, so that what changes meanwhile is
//! not taken for its effect. What is kept has to be better than both by more than noise; what is
//! no better than the first needs no third. Beside that servers are yielded to: [`Polite`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::job::Job;
use crate::polite::{self, Polite, Said};
use crate::side::STEP;

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

/// The least that a thread asks for at a time: below it system calls and round trips are all.
const STEP_MIN: usize = 64 << 10;

/// What is tried next is so much more or less: twice would stop where only the second half counts,
/// as it does beside a cache.
const STEP_RATIO: usize = 4;

/// How a copy moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Threads that copy.
    pub streams: usize,
    /// Bytes that each reads and writes at a time: [`STEP`], or a power of [`STEP_RATIO`] less.
    pub step: usize,
}

/// What is tried, each as long as it gets better.
#[derive(Clone, Copy)]
enum Change {
    /// Twice or half as many threads.
    Streams { grows: bool },
    /// More or less at a time.
    Step { grows: bool },
}

/// In this order. After one that was better its reverse is not tried.
const CHANGES: [[Change; 2]; 2] = [
    [Change::Streams { grows: true }, Change::Streams { grows: false }],
    [Change::Step { grows: false }, Change::Step { grows: true }],
];

impl Change {
    fn of(self, setting: Setting, most: usize) -> Setting {
        let next = |number: usize, ratio, grows| if grows { number * ratio } else { number / ratio };
        match self {
            Change::Streams { grows } => Setting { streams: next(setting.streams, 2, grows).clamp(1, most), ..setting },
            Change::Step { grows } => {
                Setting { step: next(setting.step, STEP_RATIO, grows).clamp(STEP_MIN, STEP), ..setting }
            }
        }
    }
}

/// Whoever tunes a copy.
struct Tuner<'a> {
    job: &'a Job,
    ended: &'a AtomicBool,
    said: &'a dyn Fn() -> Vec<Said>,
    polite: Polite,
    looked: Instant,
    setting: Setting,
}

/// Tries settings from `usual` threads up to `most`, and yields to others by what servers have
/// said, until `ended`. Returns the last setting.
pub fn tune(job: &Job, (usual, most): (usize, usize), said: &dyn Fn() -> Vec<Said>, ended: &AtomicBool) -> Setting {
    let setting = Setting { streams: usual.clamp(1, most), step: STEP };
    let mut tuner = Tuner { job, ended, said, polite: Polite::new(most), looked: Instant::now(), setting };
    search(setting, most, &mut tuner)
}

/// What a search asks of the world.
trait Trial {
    /// What moves in a second with this setting, in whatever measure; `None`: all is done.
    fn measure(&mut self, setting: Setting) -> Option<f64>;

    /// Goes on for so long with this setting; `false`: all is done.
    fn rest(&mut self, setting: Setting, length: Duration) -> bool;
}

/// Goes to what is better until all is done. Returns the last choice.
fn search(usual: Setting, most: usize, trial: &mut dyn Trial) -> Setting {
    let (mut setting, mut pause) = (usual, PAUSE_MIN);
    loop {
        let begun = setting;
        let Some(mut rate) = trial.measure(setting) else { return setting };
        for directions in CHANGES {
            for change in directions {
                let before = setting;
                if climb(change, most, (&mut setting, &mut rate), trial).is_none() {
                    return setting;
                }
                if setting != before {
                    break;
                }
            }
        }
        if setting == begun && !trial.rest(setting, pause) {
            return setting;
        }
        pause = if setting == begun { (pause * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
    }
}

/// Changes a setting as long as it gets better. `rate`: what it was measured at last. `None`: all
/// is done.
fn climb(change: Change, most: usize, (setting, rate): (&mut Setting, &mut f64), trial: &mut dyn Trial) -> Option<()> {
    loop {
        let other = change.of(*setting, most);
        if other == *setting {
            return Some(());
        }
        let with = trial.measure(other)?;
        if with <= GAIN * *rate {
            return Some(());
        }
        let after = trial.measure(*setting)?;
        if with <= GAIN * after {
            *rate = after;
            return Some(());
        }
        (*setting, *rate) = (other, with);
    }
}

impl Tuner<'_> {
    /// Has so many threads work as are wanted and polite.
    fn admit(&self) {
        self.job.queue.admit(self.setting.streams.min(self.polite.limit()));
        self.job.step.store(self.setting.step, Ordering::Relaxed);
    }

    fn set(&mut self, setting: Setting) {
        self.setting = setting;
        self.admit();
    }

    /// Waits for a moment; `false`: all is done.
    fn wait(&mut self) -> bool {
        if self.ended.load(Ordering::Acquire) {
            return false;
        }
        thread::sleep(LOOK_INTERVAL);
        if self.looked.elapsed() >= polite::LOOK_INTERVAL {
            self.looked = Instant::now();
            let before = self.polite.limit();
            let asking = self.setting.streams.min(before);
            if self.polite.look(asking, (self.said)()) != before {
                self.admit();
            }
        }
        true
    }
}

impl Trial for Tuner<'_> {
    fn measure(&mut self, setting: Setting) -> Option<f64> {
        self.set(setting);
        let watch = &self.job.watch;
        let moved = || {
            let names = watch.names.load(Ordering::Relaxed);
            watch.bytes.load(Ordering::Relaxed) + names * NAME_BYTES
        };
        let (started, before) = (Instant::now(), moved());
        loop {
            if !self.wait() {
                return None;
            }
            let (elapsed, now) = (started.elapsed(), moved() - before);
            if elapsed >= WINDOW_MAX || (elapsed >= WINDOW_MIN && now >= MOVED_MIN) {
                return Some(now as f64 / elapsed.as_secs_f64());
            }
        }
    }

    fn rest(&mut self, setting: Setting, length: Duration) -> bool {
        self.set(setting);
        let started = Instant::now();
        while started.elapsed() < length {
            if !self.wait() {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
#[path = "tune_tests.rs"]
mod tests;
