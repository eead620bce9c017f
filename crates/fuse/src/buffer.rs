//! The memory that requests are read into and bulk replies are gathered in: large page-aligned buffers, of which a few are kept, and more for a while.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use aqueduct_worker::{Group, lock};
use bytes::Bytes;

use crate::abi::{Field, InHeader, WriteIn};
use crate::sys::Pages;

/// Before the data of a WRITE stand these headers. A request is read to the end of the first page less these, so that the data begin on a page.
const HEADERS: usize = <InHeader as Field>::SIZE + <WriteIn as Field>::SIZE;
const PAGE: usize = 4096;

/// Requests from this size on keep the buffer that they were read into; smaller ones are copied out of it (13 us for 128 KiB), since what keeps
/// the data (until they are stable) keeps a whole buffer of 1 MiB.
pub(crate) const HAND_OVER_MIN: usize = 128 << 10;

/// Buffers kept when nobody uses them. With 1 MiB requests 4 MiB: a bulk stream of two workers takes and returns two to four of them all the time (a
/// fresh one costs 256 page faults), and an idle mount stays far below the 16 MiB that it may use.
const IDLE_MAX: usize = 4;

/// Buffers kept for a while: as many as the usual replay window holds, which gives back half of them at once and takes them again. A fresh one costs as
/// much as the rest of a write to a local server (0.4 ms of page faults in a virtual machine, measured).
const BURST_MAX: usize = 256;

/// Of what nobody needed for so long, all but [`IDLE_MAX`] goes back to the system.
const TRIM_INTERVAL: Duration = Duration::from_secs(2);

/// Buffers of one size, kept for the next use.
pub(crate) struct Pool {
    size: usize,
    idle: Mutex<Idle>,
    /// Where those that are kept for a while are looked after.
    group: Weak<Group>,
}

#[derive(Default)]
struct Idle {
    pages: Vec<Pages>,
    /// The fewest since the last trim: so many nobody needed.
    least: usize,
    /// Somebody trims.
    is_trimmed: bool,
}

impl Pool {
    /// A pool of buffers for requests and replies that carry up to `data_max` bytes.
    pub(crate) fn new(data_max: usize, group: &Arc<Group>) -> Arc<Pool> {
        let size = PAGE + data_max.next_multiple_of(PAGE);
        Arc::new(Pool { size, idle: Mutex::default(), group: Arc::downgrade(group) })
    }

    /// The most bytes of data in a request or a reply.
    pub(crate) fn data_max(&self) -> usize {
        self.size - PAGE
    }

    /// A buffer of unspecified content.
    pub(crate) fn take(self: &Arc<Pool>) -> io::Result<Buffer> {
        let mut idle = lock(&self.idle);
        let kept = idle.pages.pop();
        idle.least = idle.least.min(idle.pages.len());
        drop(idle);
        let pages = kept.map_or_else(|| Pages::new(self.size), Ok)?;
        Ok(Buffer { pages: Some(pages), pool: self.clone() })
    }

    fn give_back(self: &Arc<Pool>, pages: Pages) {
        let mut idle = lock(&self.idle);
        if idle.pages.len() >= BURST_MAX {
            drop(idle);
            return drop(pages); // outside the lock: it takes a while
        }
        idle.pages.push(pages);
        let is_new = idle.pages.len() > IDLE_MAX && !std::mem::replace(&mut idle.is_trimmed, true);
        drop(idle);
        if let Some(group) = self.group.upgrade().filter(|_| is_new) {
            group.spawn(trim(Arc::downgrade(self), self.group.clone()));
        }
    }

    /// Gives to the system what nobody needed since the last call. Returns whether that is over.
    fn trim(&self) -> bool {
        let mut idle = lock(&self.idle);
        let excess = idle.pages.len().saturating_sub(IDLE_MAX).min(idle.least);
        let rest = idle.pages.len() - excess;
        let freed = idle.pages.split_off(rest);
        idle.least = rest;
        idle.is_trimmed = rest > IDLE_MAX;
        let is_over = !idle.is_trimmed;
        drop(idle);
        drop(freed);
        is_over
    }
}

async fn trim(pool: Weak<Pool>, group: Weak<Group>) {
    loop {
        let Some(pause) = group.upgrade().map(|group| group.sleep(TRIM_INTERVAL)) else { return };
        pause.await;
        if pool.upgrade().is_none_or(|pool| pool.trim()) {
            return;
        }
    }
}

/// A buffer of a pool; dropping it gives it back.
pub(crate) struct Buffer {
    /// Always there until the drop.
    pages: Option<Pages>,
    pool: Arc<Pool>,
}

impl Buffer {
    /// Where requests are read to: data of a WRITE then begin on a page.
    pub(crate) fn request_area(&mut self) -> &mut [u8] {
        &mut self.bytes_mut()[PAGE - HEADERS..]
    }

    /// The first `length` bytes of a request that was read.
    pub(crate) fn request(&self, length: usize) -> &[u8] {
        &self.bytes()[PAGE - HEADERS..][..length]
    }

    /// The first `length` bytes of a request that was read, as shared bytes that own the buffer.
    pub(crate) fn into_request(self, length: usize) -> Bytes {
        Bytes::from_owner(Shared { buffer: self, range: PAGE - HEADERS..PAGE - HEADERS + length })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.pages.as_ref().map_or(&[], Pages::bytes)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.pages.as_mut().map_or(&mut [], Pages::bytes_mut)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pages) = self.pages.take() {
            self.pool.give_back(pages);
        }
    }
}

struct Shared {
    buffer: Buffer,
    range: Range<usize>,
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.buffer.bytes()[self.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_worker::Settings;

    use super::*;

    fn pool() -> (Arc<Pool>, Arc<Group>) {
        let settings = Settings { name: "test".into(), threads_min: 0, threads_max: 0, spin_max: Duration::ZERO };
        let group = Group::new(settings).unwrap();
        (Pool::new(1 << 20, &group), group)
    }

    fn idle(pool: &Pool) -> usize {
        lock(&pool.idle).pages.len()
    }

    #[test]
    fn data_of_a_write_begin_on_a_page() {
        let (pool, _group) = pool();
        let mut buffer = pool.take().unwrap();
        let area = buffer.request_area();
        assert!(area.len() >= (1 << 20) + HEADERS);
        assert_eq!((area.as_ptr() as usize + HEADERS) % PAGE, 0);
        area[..3].copy_from_slice(b"abc");
        let shared = buffer.into_request(3);
        assert_eq!(&shared[..], b"abc");
        assert_eq!(idle(&pool), 0);
        drop(shared);
        assert_eq!(idle(&pool), 1);
    }

    #[test]
    fn what_a_burst_leaves_is_kept_while_it_is_needed() {
        let (pool, _group) = pool();
        let burst = |count: usize| (0..count).map(|_| pool.take().unwrap()).collect::<Vec<_>>();
        drop(burst(BURST_MAX + 10));
        assert_eq!(idle(&pool), BURST_MAX);
        assert!(!pool.trim(), "all of it was in use since the last look");
        assert_eq!(idle(&pool), BURST_MAX);
        drop(burst(100));
        assert!(!pool.trim());
        assert_eq!(idle(&pool), 100, "as many as were needed");
        assert!(pool.trim());
        assert_eq!(idle(&pool), IDLE_MAX);
    }
}
