//! The memory that requests are read into and bulk replies are gathered in: large page-aligned buffers, of which a few are kept.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::abi::{Field, InHeader, WriteIn};
use crate::lock;
use crate::sys::Pages;

/// Before the data of a WRITE stand these headers. A request is read to the end of the first page less these, so that the data begin on a page.
const HEADERS: usize = <InHeader as Field>::SIZE + <WriteIn as Field>::SIZE;
const PAGE: usize = 4096;

/// Buffers kept when nobody uses them. With 1 MiB requests 4 MiB: a bulk stream of two workers takes and returns two to four of them all the time (a
/// fresh one costs 256 page faults), and an idle mount stays far below the 16 MiB that it may use.
const IDLE_MAX: usize = 4;

/// Buffers of one size, kept for the next use.
pub(crate) struct Pool {
    size: usize,
    idle: Mutex<Vec<Pages>>,
}

impl Pool {
    /// A pool of buffers for requests and replies that carry up to `data_max` bytes.
    pub(crate) fn new(data_max: usize) -> Arc<Pool> {
        Arc::new(Pool { size: PAGE + data_max.next_multiple_of(PAGE), idle: Mutex::default() })
    }

    /// A buffer of unspecified content.
    pub(crate) fn take(self: &Arc<Pool>) -> io::Result<Buffer> {
        let kept = lock(&self.idle).pop();
        let pages = kept.map_or_else(|| Pages::new(self.size), Ok)?;
        Ok(Buffer { pages: Some(pages), pool: self.clone() })
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
        let mut idle = lock(&self.pool.idle);
        if idle.len() < IDLE_MAX {
            idle.extend(self.pages.take());
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
    use super::*;

    #[test]
    fn data_of_a_write_begin_on_a_page_and_the_pool_is_bounded() {
        let pool = Pool::new(1 << 20);
        let mut buffers: Vec<_> = (0..10).map(|_| pool.take().unwrap()).collect();
        let area = buffers[0].request_area();
        assert!(area.len() >= (1 << 20) + HEADERS);
        assert_eq!((area.as_ptr() as usize + HEADERS) % PAGE, 0);
        area[..3].copy_from_slice(b"abc");
        let shared = buffers.swap_remove(0).into_request(3);
        assert_eq!(&shared[..], b"abc");
        drop(buffers);
        drop(shared);
        assert_eq!(pool.idle.lock().unwrap().len(), IDLE_MAX);
    }
}
