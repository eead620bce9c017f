//! The sentinel of a group: a thread that looks from time to time while any of the group's are
//! busy, and sleeps while none is.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, Thread};
use std::time::Duration;

use crate::lock::lock;

/// Looks at a quiet group before the sentinel rests. More would keep an idle server awake, whose
/// clocks do something every second; fewer would wake the sentinel for each of many requests.
const QUIET_LOOKS: u32 = 3;

/// A sentinel that has rested for so long ends.
const REST: Duration = Duration::from_secs(30);

const ABSENT: u8 = 0;
const LOOKING: u8 = 1;
const RESTING: u8 = 2;

/// What a look finds.
pub(crate) enum Found {
    /// Some thread of the group is busy.
    Busy,
    /// None is.
    Quiet,
    /// The group has ended, or is about to.
    Over,
}

/// Whether there is one, and what it does.
#[derive(Default)]
pub(crate) struct Sentinel {
    state: AtomicU8,
    thread: Mutex<Option<Thread>>,
}

impl Sentinel {
    /// Has it `look` at each interval from now on. Called for each piece of work, after the group
    /// counts as busy: one load while the sentinel looks already.
    pub(crate) fn call<L>(self: &Arc<Sentinel>, interval: Duration, look: impl FnOnce() -> L) -> io::Result<()>
    where
        L: FnMut() -> Found + Send + 'static,
    {
        if self.state.load(Ordering::SeqCst) == LOOKING {
            return Ok(());
        }
        match self.state.swap(LOOKING, Ordering::SeqCst) {
            ABSENT => {
                let (this, look) = (self.clone(), look());
                let started = Builder::new().name("sentinel".into()).spawn(move || this.run(interval, look));
                // The next piece of work tries again.
                started.map(drop).inspect_err(|_| self.state.store(ABSENT, Ordering::SeqCst))
            }
            RESTING => {
                self.wake();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether it looks at present, and does not rest.
    pub(crate) fn is_looking(&self) -> bool {
        self.state.load(Ordering::SeqCst) == LOOKING
    }

    /// Ends its rest, if it rests.
    pub(crate) fn wake(&self) {
        if let Some(thread) = &*lock(&self.thread) {
            thread.unpark();
        }
    }

    fn run(&self, interval: Duration, mut look: impl FnMut() -> Found) {
        *lock(&self.thread) = Some(std::thread::current());
        let mut quiet = 0;
        loop {
            std::thread::sleep(interval);
            quiet = match look() {
                Found::Over => return,
                Found::Busy => 0,
                Found::Quiet => quiet + 1,
            };
            if quiet < QUIET_LOOKS {
                continue;
            }
            quiet = 0;
            self.state.store(RESTING, Ordering::SeqCst);
            // Whoever became busy just before saw it looking, and did not call it.
            match look() {
                Found::Over => return,
                Found::Busy => self.state.store(LOOKING, Ordering::SeqCst),
                Found::Quiet => {
                    std::thread::park_timeout(REST);
                    let uncalled = self.state.compare_exchange(RESTING, ABSENT, Ordering::SeqCst, Ordering::SeqCst);
                    if uncalled.is_ok() {
                        return;
                    }
                }
            }
        }
    }
}
