//! How far a run is and how long it will still take: on a terminal, and only there.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often it is drawn.
const PERIOD: Duration = Duration::from_millis(250);

/// A bar that a thread of its own draws, so that those who measure only store a number.
pub struct Progress {
    shown: Option<Shown>,
    /// Bytes of phases that are over.
    before: Arc<AtomicU64>,
}

struct Shown {
    bar: ProgressBar,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Progress {
    /// Of so many bytes in all; `moved` is what one of `ranks` has moved in the present phase.
    pub fn start(total: u64, ranks: u64, moved: Arc<AtomicU64>) -> Progress {
        let before = Arc::new(AtomicU64::new(0));
        let shown = std::io::stderr().is_terminal().then(|| {
            let style = "{prefix:>6} [{bar:32}] {bytes}/{total_bytes} {binary_bytes_per_sec}, {eta} left";
            let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(total).with_style(style);
            let ends = Arc::new(AtomicBool::new(false));
            let (drawn, over, base) = (bar.clone(), ends.clone(), before.clone());
            let thread = std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    drawn.set_position(base.load(Ordering::Relaxed) + moved.load(Ordering::Relaxed) * ranks);
                    std::thread::sleep(PERIOD);
                }
            });
            Shown { bar, ends, thread }
        });
        Progress { shown, before }
    }

    /// What is done now.
    pub fn phase(&self, name: &'static str) {
        if let Some(shown) = &self.shown {
            shown.bar.set_prefix(name);
        }
    }

    /// A phase of so many bytes is over.
    pub fn add(&self, bytes: u64) {
        self.before.fetch_add(bytes, Ordering::Relaxed);
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
