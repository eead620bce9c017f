//! What the calling thread does at the end of its turn: the output that it sends, and whether it
//! rests then.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

thread_local! {
    static RESTS: Cell<bool> = const { Cell::new(false) };
    static FLUSHES: RefCell<Vec<Arc<dyn Flush>>> = const { RefCell::new(Vec::new()) };
}

/// Collects output during a turn and sends it at the turn's end.
pub trait Flush: Send + Sync {
    /// Sends what was collected.
    fn flush(&self);
}

/// Has `flush` called once at the end of the turn, however often it is asked for.
pub(crate) fn flush_later(flush: Arc<dyn Flush>) {
    FLUSHES.with_borrow_mut(|flushes| {
        if !flushes.iter().any(|known| Arc::ptr_eq(known, &flush)) {
            flushes.push(flush);
        }
    });
}

/// Has the thread sleep at the end of its turn without a look for more.
pub(crate) fn rest() {
    RESTS.set(true);
}

/// Whether that was asked for since it was last taken.
pub(crate) fn take_rest() -> bool {
    RESTS.take()
}

/// Sends what this turn has collected so far.
pub(crate) fn flush_now() {
    loop {
        let flushes = FLUSHES.take();
        if flushes.is_empty() {
            return;
        }
        for flush in flushes {
            flush.flush();
        }
    }
}
