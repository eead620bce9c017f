//! Buffers for bulk data that are used again: a fresh megabyte costs its page faults (about 100 us), as much as moving the data does.

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::budget::Budget;

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Small memory that each thread uses again: fresh memory would be cleared before it is filled.
pub(crate) struct Scratch {
    memory: Vec<u8>,
    length: usize,
}

impl Scratch {
    /// `length` bytes with unspecified content.
    pub(crate) fn take(length: usize) -> Scratch {
        let mut memory = SCRATCH.take();
        if memory.len() < length {
            memory.resize(length, 0);
        }
        Scratch { memory, length }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[..self.length]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        SCRATCH.set(std::mem::take(&mut self.memory));
    }
}

/// Hands out buffers of one size and takes them back when the last [`Bytes`] made of one is dropped.
#[derive(Clone)]
pub struct BufferPool(Arc<Shared>, Option<Arc<Budget>>);

#[derive(Debug)]
struct Shared {
    buffer_size: usize,
    idle_max: usize,
    idle: Mutex<Vec<Box<[u8]>>>,
}

/// A buffer on loan.
#[derive(Debug)]
pub struct PoolBuffer {
    memory: Option<Box<[u8]>>,
    length: usize,
    pool: Arc<Shared>,
}

impl BufferPool {
    /// A pool of buffers of `buffer_size` bytes that keeps at most `idle_max` of them when nobody uses them.
    pub fn new(buffer_size: usize, idle_max: usize) -> BufferPool {
        BufferPool(Arc::new(Shared { buffer_size, idle_max, idle: Mutex::default() }), None)
    }

    /// The same, for connections that share what memory there is for their peers.
    pub fn with_budget(self, budget: Arc<Budget>) -> BufferPool {
        BufferPool(self.0, Some(budget))
    }

    /// What the connections share.
    pub(crate) fn budget(&self) -> Option<&Arc<Budget>> {
        self.1.as_ref()
    }

    /// The memory that a buffer of `length` bytes takes.
    pub fn size_for(&self, length: usize) -> usize {
        if self.is_pooled(length) { self.0.buffer_size } else { length }
    }

    fn is_pooled(&self, length: usize) -> bool {
        length <= self.0.buffer_size && length > self.0.buffer_size / 16
    }

    /// A buffer of `length` bytes with unspecified content. Longer ones than the pool's, and much shorter ones, come from the allocator.
    pub fn take(&self, length: usize) -> PoolBuffer {
        let pooled = self.is_pooled(length);
        let kept = if pooled { self.0.idle.lock().unwrap_or_else(|poison| poison.into_inner()).pop() } else { None };
        let size = if pooled { self.0.buffer_size } else { length };
        let memory = kept.unwrap_or_else(|| vec![0; size].into_boxed_slice());
        PoolBuffer { memory: Some(memory), length, pool: self.0.clone() }
    }
}

impl PoolBuffer {
    /// The memory, of the length that was asked for.
    pub fn memory(&mut self) -> &mut [u8] {
        let length = self.length;
        &mut self.memory.as_mut().expect("a buffer has its memory until it is dropped")[..length]
    }

    /// Shares the content.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for PoolBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory.as_ref().expect("a buffer has its memory until it is dropped")[..self.length]
    }
}

impl Drop for PoolBuffer {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut idle = self.pool.idle.lock().unwrap_or_else(|poison| poison.into_inner());
        if memory.len() == self.pool.buffer_size && idle.len() < self.pool.idle_max {
            idle.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_idle_ones_are_bounded() {
        let pool = BufferPool::new(1024, 1);
        let mut first = pool.take(1000);
        first.memory().fill(7);
        let (first, second) = (first.into_bytes(), pool.take(1024).into_bytes());
        assert!(first.len() == 1000 && second.len() == 1024);
        drop((first, second));
        assert_eq!(pool.0.idle.lock().unwrap().len(), 1);
        assert_eq!(pool.take(10).memory().len(), 10);
        assert_eq!(pool.take(4096).memory().len(), 4096);
    }
}
