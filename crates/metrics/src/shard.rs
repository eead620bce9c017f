//! Which part of an instrument a thread writes to.

use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Parts of an instrument that many threads record into. With more threads than parts some share
/// one, which costs them about 20 ns an increment; more parts would cost memory for little.
pub const SHARDS_MAX: usize = 8;

/// A cache line of its own, and the one that processors fetch with it.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Padded<T>(pub(crate) T);

/// The parts that are used on this machine: a power of two, no more than it has processors.
pub(crate) fn count() -> usize {
    static COUNT: LazyLock<usize> = LazyLock::new(|| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        processors.next_power_of_two().min(SHARDS_MAX)
    });
    *COUNT
}

/// The number of the calling thread. Threads are numbered as they first record something.
pub(crate) fn of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    // A thread that is ending has no locals any more: it shares the first part.
    NUMBER
        .try_with(|number| match number.get() {
            usize::MAX => {
                let next = NEXT.fetch_add(1, Ordering::Relaxed) & (usize::MAX >> 1);
                number.set(next);
                next
            }
            known => known,
        })
        .unwrap_or(0)
}
