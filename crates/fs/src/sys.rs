//! The memory of one sink, lent to several who fill it at once.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use crate::Sink;

/// A sink whose memory is divided into pieces. It is had back when no piece is left.
pub(crate) struct Divided {
    /// Behind a lock only so that threads may share it: nobody uses it while there are pieces.
    sink: Mutex<Box<dyn Sink>>,
    start: NonNull<u8>,
}

// SAFETY: the sink itself is Send and behind a lock, and `start` is used by pieces alone, each for
// bytes that no other has.
unsafe impl Send for Divided {}

// SAFETY: as above; of a shared `Divided` nothing can be had.
unsafe impl Sync for Divided {}

/// A piece of the memory.
pub(crate) struct Piece {
    whole: Arc<Divided>,
    range: Range<usize>,
}

impl Divided {
    /// Divides the first bytes of a sink's memory, into pieces of these lengths, in order. Gives
    /// the sink back when it is no memory.
    pub(crate) fn new(mut sink: Box<dyn Sink>, lengths: &[usize]) -> Result<(Arc<Divided>, Vec<Piece>), Box<dyn Sink>> {
        let total = lengths.iter().try_fold(0usize, |sum, length| sum.checked_add(*length));
        let start = match total.and_then(|total| sink.memory(total).filter(|memory| memory.len() >= total)) {
            Some(memory) => NonNull::from(memory).cast::<u8>(),
            None => return Err(sink),
        };
        let whole = Arc::new(Divided { sink: Mutex::new(sink), start });
        let mut end = 0;
        let pieces = lengths
            .iter()
            .map(|length| {
                let range = end..end + length;
                end = range.end;
                Piece { whole: whole.clone(), range }
            })
            .collect();
        Ok((whole, pieces))
    }

    /// The sink, when no piece is left.
    pub(crate) fn into_sink(self: Arc<Divided>) -> Option<Box<dyn Sink>> {
        let divided = Arc::into_inner(self)?;
        Some(divided.sink.into_inner().unwrap_or_else(|poison| poison.into_inner()))
    }
}

impl Piece {
    /// Its bytes.
    pub(crate) fn memory(&mut self) -> &mut [u8] {
        // SAFETY: `start` leads to at least as many bytes as all pieces have, which live as long
        // as the sink is neither used nor dropped (see `Sink::memory`): this piece keeps it, and
        // `into_sink` gives it to nobody meanwhile. The ranges of pieces do not overlap, and a
        // piece lends its own to one at a time.
        unsafe { std::slice::from_raw_parts_mut(self.whole.start.as_ptr().add(self.range.start), self.range.len()) }
    }
}
