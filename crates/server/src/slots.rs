//! The reply memory of a session: its slots, which take memory only where they are used.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Slots that come to life together. Clients use low numbers first, so that one with little under way has one of these in each class: about 3 KiB.
const TOGETHER: usize = 16;

/// Slots, in each class, that are given out freely. With what each session gets in any case ([`SLOTS_MIN`]) that is 164,000 with 16,384 sessions: at about
/// 400 bytes for a slot with its reply, in both classes, 130 MiB if all are used.
const SLOTS_FREE: usize = 32_768;

/// Slots of a session in any case: enough for a busy client with eight programs.
const SLOTS_MIN: usize = 8;

/// Replies longer than this are few (those of Compound), and are remembered only as far as there is room.
const LARGE: usize = 2048;

/// Bytes of large replies that are remembered, of all sessions.
const LARGE_MAX: usize = 32 << 20;

/// What all sessions of a server share.
#[derive(Default)]
pub(crate) struct ReplyMemory {
    slots: AtomicUsize,
    large: AtomicUsize,
}

impl ReplyMemory {
    /// How many slots a new session gets: what it may have, less when many have been given out.
    pub(crate) fn grant(self: &Arc<ReplyMemory>, most: u32) -> Granted {
        let left = SLOTS_FREE.saturating_sub(self.slots.load(Ordering::SeqCst));
        self.take((left / 8).max(SLOTS_MIN).min(most as usize) as u32)
    }

    /// Slots that sessions have, of each class.
    pub(crate) fn slots(&self) -> usize {
        self.slots.load(Ordering::Relaxed)
    }

    /// These are in use already.
    pub(crate) fn take(self: &Arc<ReplyMemory>, count: u32) -> Granted {
        self.slots.fetch_add(count as usize, Ordering::SeqCst);
        Granted { memory: self.clone(), count }
    }

    /// Room for a reply; `None`: it cannot be remembered.
    pub(crate) fn keep(self: &Arc<ReplyMemory>, body: &[u8]) -> Option<Kept> {
        let charged = if body.len() > LARGE { body.len() } else { 0 };
        if charged > 0 {
            let add = |large: usize| Some(large + charged).filter(|sum| *sum <= LARGE_MAX);
            self.large.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).ok()?;
        }
        let memory = (charged > 0).then(|| self.clone());
        Some(Kept { body: body.into(), memory })
    }
}

/// The body of a remembered reply.
pub(crate) struct Kept {
    pub(crate) body: Box<[u8]>,
    /// Where a large one is counted.
    memory: Option<Arc<ReplyMemory>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            memory.large.fetch_sub(self.body.len(), Ordering::SeqCst);
        }
    }
}

/// The slots of a session, in each class.
pub(crate) struct Granted {
    pub(crate) memory: Arc<ReplyMemory>,
    pub(crate) count: u32,
}

impl Drop for Granted {
    fn drop(&mut self) {
        self.memory.slots.fetch_sub(self.count as usize, Ordering::SeqCst);
    }
}

/// The slots of one class.
pub(crate) struct Row<T> {
    count: u32,
    parts: Box<[OnceLock<Part<T>>]>,
}

type Part<T> = Box<[Mutex<T>]>;

impl<T: Default> Row<T> {
    pub(crate) fn new(count: u32) -> Row<T> {
        let parts = (0..(count as usize).div_ceil(TOGETHER)).map(|_| OnceLock::new()).collect();
        Row { count, parts }
    }

    /// One slot, if there is such.
    pub(crate) fn get(&self, number: u32) -> Option<&Mutex<T>> {
        if number >= self.count {
            return None;
        }
        let part = self.parts.get(number as usize / TOGETHER)?;
        let slots = part.get_or_init(|| (0..TOGETHER).map(|_| Mutex::default()).collect());
        slots.get(number as usize % TOGETHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_take_memory_where_they_are_used() {
        let row: Row<u64> = Row::new(40);
        let in_use = || row.parts.iter().filter(|part| part.get().is_some()).count();
        assert_eq!(in_use(), 0);
        *row.get(39).unwrap().lock().unwrap() = 7;
        assert_eq!((in_use(), *row.get(39).unwrap().lock().unwrap()), (1, 7));
        assert!(row.get(40).is_none() && row.get(u32::MAX).is_none());
    }

    #[test]
    fn the_more_sessions_the_fewer_slots() {
        let memory = Arc::new(ReplyMemory::default());
        let mut granted: Vec<_> = (0..16_384).map(|_| memory.grant(256)).collect();
        assert_eq!((granted[0].count, granted[100].count), (256, 256));
        assert_eq!(granted[16_383].count as usize, SLOTS_MIN);
        let sum: usize = granted.iter().map(|granted| granted.count as usize).sum();
        assert!(sum <= SLOTS_FREE + 16_384 * SLOTS_MIN, "{sum}");
        granted.clear();
        assert_eq!(memory.grant(256).count, 256);
        assert_eq!(memory.grant(4).count, 4);
    }

    #[test]
    fn large_replies_are_bounded() {
        let memory = Arc::new(ReplyMemory::default());
        let body = vec![1; 1 << 20];
        let kept: Vec<_> = (0..40).filter_map(|_| memory.keep(&body)).collect();
        assert_eq!(kept.len(), 32);
        assert!(memory.keep(&body[..LARGE]).is_some(), "small ones are always remembered");
        drop(kept);
        assert!(memory.keep(&body).is_some());
    }
}
