//! How far a run is and how long it will still take: on a terminal, and only there.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::clock::{self, Nanos};
use super::plan::Plan;

/// How often it is drawn.
const PERIOD: Duration = Duration::from_millis(250);

/// By what a run's progress is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    /// Bytes of all ranks, all phases and all repetitions.
    Bytes(u64),
    /// Phases, each of which a deadline ends after so long.
    Time(u64, Nanos),
}

impl Measure {
    fn of(plan: &Plan) -> Measure {
        let phases = u64::from(plan.options.write) + u64::from(plan.reads());
        match plan.deadline() {
            Some(deadline) => Measure::Time(phases * u64::from(plan.options.repetitions), deadline.as_nanos() as Nanos),
            None => {
                let (written, read) = plan.moved();
                Measure::Bytes(written.saturating_add(read))
            }
        }
    }

    /// The end of the bar: bytes, or milliseconds.
    fn end(self) -> u64 {
        match self {
            Measure::Bytes(bytes) => bytes,
            Measure::Time(phases, each) => phases * (each / 1_000_000) as u64,
        }
    }

    /// Where the bar is.
    fn position(self, done: &Done, moved: u64, now: Nanos) -> u64 {
        let before = done.amount.load(Ordering::Relaxed);
        match self {
            Measure::Bytes(_) => before.saturating_add(moved),
            Measure::Time(_, each) => {
                let began = done.began.load(Ordering::Relaxed);
                let here = if began == 0 { 0 } else { (now - began).clamp(0, each) };
                (before * each as u64 + here as u64) / 1_000_000
            }
        }
    }

    fn template(self) -> &'static str {
        match self {
            Measure::Bytes(_) => "{prefix:>6} [{bar:32}] {bytes}/{total_bytes} {binary_bytes_per_sec}, {eta} left",
            Measure::Time(..) => "{prefix:>6} [{bar:32}] {percent}%, {eta} left",
        }
    }
}

/// What is over.
#[derive(Debug, Default)]
struct Done {
    /// Bytes, or phases.
    amount: AtomicU64,
    /// When the present phase began; 0: there is none.
    began: AtomicI64,
}

/// A bar that a thread of its own draws, so that those who measure only store a number.
pub struct Progress {
    measure: Measure,
    done: Arc<Done>,
    shown: Option<Shown>,
}

struct Shown {
    bar: ProgressBar,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// Of a plan; `moved` is what this rank has moved in the present phase.
    pub fn start(plan: &Plan, moved: Arc<AtomicU64>) -> Progress {
        let (measure, ranks, done) = (Measure::of(plan), plan.layout.ranks, Arc::new(Done::default()));
        let shown = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(measure.template());
            let bar =
                ProgressBar::new(measure.end()).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            let ends = Arc::new(AtomicBool::new(false));
            let (drawn, over, done) = (bar.clone(), ends.clone(), done.clone());
            let thread = std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let moved = moved.load(Ordering::Relaxed).saturating_mul(ranks);
                    drawn.set_position(measure.position(&done, moved, clock::now()));
                    std::thread::sleep(PERIOD);
                }
            });
            Shown { bar, ends, thread }
        });
        Progress { measure, done, shown }
    }

    /// What is done now.
    pub fn phase(&self, name: &'static str) {
        self.done.began.store(clock::now(), Ordering::Relaxed);
        if let Some(shown) = &self.shown {
            shown.bar.set_prefix(name);
        }
    }

    /// A phase of so many bytes is over; `timed`, so that a deadline would have ended it.
    pub fn add(&self, bytes: u64, timed: bool) {
        self.done.began.store(0, Ordering::Relaxed);
        let amount = match self.measure {
            Measure::Bytes(_) => bytes,
            Measure::Time(..) => timed.into(),
        };
        self.done.amount.fetch_add(amount, Ordering::Relaxed);
    }

    /// Prints with the bar out of the way.
    pub fn hidden<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.shown {
            Some(shown) => shown.bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(Shown { bar, ends, thread }) = self.shown.take() {
            ends.store(true, Ordering::Relaxed);
            // A thread that has panicked has drawn its last bar.
            let _ = thread.join();
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::planned;
    use super::*;

    #[test]
    fn progress_is_by_bytes() {
        let plan = planned(&["-b", "1m", "-i", "2", "-w", "-W"], 3);
        let progress = Progress::start(&plan, Arc::default());
        let measure = progress.measure;
        assert_eq!((measure, measure.end()), (Measure::Bytes(12 << 20), 12 << 20));
        progress.phase("write");
        assert_eq!(measure.position(&progress.done, 5, clock::now()), 5);
        progress.add(3 << 20, true);
        progress.add(1, false);
        assert_eq!(measure.position(&progress.done, 5, clock::now()), (3 << 20) + 6);
    }

    #[test]
    fn progress_is_by_time_where_a_deadline_ends_phases() {
        let plan = planned(&["-b", "1t", "-D", "10", "-i", "3", "-w", "-W", "-r"], 3);
        let progress = Progress::start(&plan, Arc::default());
        let measure = progress.measure;
        assert_eq!(measure.end(), 60_000);
        let at = |progress: &Progress, after: Nanos| {
            let began = progress.done.began.load(Ordering::Relaxed);
            measure.position(&progress.done, 1 << 40, began + after * 1_000_000)
        };
        assert_eq!(at(&progress, 0), 0);
        progress.phase("write");
        assert_eq!((at(&progress, 2500), at(&progress, 99_000)), (2500, 10_000));
        progress.add(1 << 40, true);
        progress.add(1 << 40, false);
        progress.phase("read");
        assert_eq!(at(&progress, 4000), 14_000);
    }
}
