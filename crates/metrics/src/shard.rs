//! Which part of an instrument a thread writes to.
//!
//! An addition that other threads may make at the same time is five times as dear as one that they
//! cannot. So threads that record much have parts of their own, which all instruments have at the
//! same places; the others share the rest.

use std::cell::Cell;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Parts of an instrument that are threads' own, and as many that others share. With more threads
/// than parts some share one, which costs them about 20 ns an increment; more parts would cost
/// memory for little.
pub const SHARDS_MAX: usize = 8;

/// A thread that has recorded so often asks for a part of its own, and after as many again.
const ASKS_AFTER: u32 = 1024;

/// A cache line of its own, and the one that processors fetch with it.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct Padded<T>(pub(crate) T);

/// The parts that threads have of their own on this machine: a power of two, no more than it has
/// processors. As many are shared, and come behind them.
fn own() -> usize {
    static COUNT: LazyLock<usize> = LazyLock::new(|| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        processors.next_power_of_two().min(SHARDS_MAX)
    });
    *COUNT
}

/// The parts of an instrument on this machine.
pub(crate) fn count() -> usize {
    2 * own()
}

/// Of so many parts the first that is shared.
pub(crate) fn first_shared(parts: usize) -> usize {
    parts / 2
}

/// Where a thread records.
#[derive(Clone, Copy)]
enum Place {
    /// It has not recorded yet.
    Unknown,
    /// A part that is its own, as long as it lives.
    Own(usize),
    /// One of the shared ones, by the thread's number; and how often until it asks again.
    Shared(usize, u32),
}

/// Parts that are some thread's own, a bit for each.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Gives a thread's part back when the thread ends.
struct Taken(usize);

impl Drop for Taken {
    fn drop(&mut self) {
        PLACE.set(Place::Shared(self.0, u32::MAX));
        // Whoever has it next adds to what this thread has added.
        TAKEN.fetch_and(!(1 << self.0), Ordering::Release);
    }
}

thread_local! {
    // Without a destructor, so that threads that are ending have it too.
    static PLACE: Cell<Place> = const { Cell::new(Place::Unknown) };
    static TAKEN_HERE: Cell<Option<Taken>> = const { Cell::new(None) };
}

/// A part for the calling thread, if one is free.
fn take() -> Option<usize> {
    let free = |taken: u64| (!taken).trailing_zeros() as usize;
    let claim = |taken: u64| (free(taken) < own()).then(|| taken | 1 << free(taken));
    let before = TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, claim).ok()?;
    let taken = Taken(free(before));
    let at = taken.0;
    // A thread that is ending keeps nothing, and `taken` gives it back at once.
    TAKEN_HERE.try_with(|here| here.set(Some(taken))).ok().map(|()| at)
}

#[cold]
fn choose() -> Place {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let place = match PLACE.get() {
        Place::Unknown => Place::Shared(NEXT.fetch_add(1, Ordering::Relaxed), ASKS_AFTER),
        Place::Shared(number, _) => take().map_or(Place::Shared(number, ASKS_AFTER), Place::Own),
        own @ Place::Own(_) => own,
    };
    PLACE.set(place);
    place
}

/// The part, of so many ([`count`]), in which the calling thread records, and whether nobody else
/// writes to it meanwhile.
#[inline]
pub(crate) fn of_thread(parts: usize) -> (usize, bool) {
    let mut place = PLACE.get();
    if let Place::Unknown | Place::Shared(_, 0) = place {
        place = choose();
    }
    // Both halves are a power of two.
    let half = first_shared(parts);
    match place {
        Place::Own(at) => (at & (half - 1), true),
        Place::Shared(number, left) => {
            PLACE.set(Place::Shared(number, left.saturating_sub(1)));
            (half + (number & (half - 1)), false)
        }
        Place::Unknown => (half, false),
    }
}

/// Adds to a number that is nobody else's to write, if `is_own`.
#[inline]
pub(crate) fn add(cell: &AtomicU64, count: u64, is_own: bool) {
    match is_own {
        true => cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed),
        false => _ = cell.fetch_add(count, Ordering::Relaxed),
    }
}
