//! One sink filled in parts: each by a read of its own, in any order and at once.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::Sink;
use crate::data::read_full;
use crate::sys::{Divided, Piece};

/// What was taken apart, to be put together when its parts are filled.
pub struct Whole(Arc<Divided>);

/// The sinks of the parts, in order.
pub type Parts = Vec<Box<dyn Sink>>;

/// Takes a sink apart: the parts have these lengths in bytes, one behind the other. Gives it back
/// when it takes its bytes in order only.
pub fn take_apart(sink: Box<dyn Sink>, lengths: &[usize]) -> Result<(Whole, Parts), Box<dyn Sink>> {
    let (whole, pieces) = Divided::new(sink, lengths)?;
    let parts = pieces.into_iter().map(|piece| Box::new(Part(piece)) as Box<dyn Sink>).collect();
    Ok((Whole(whole), parts))
}

impl Whole {
    /// All parts have been finished or dropped, and the first `valid` bytes are good: delivers.
    pub fn finish(self, valid: usize) -> io::Result<()> {
        self.into_sink()?.finish(valid)
    }

    /// All parts have been finished or dropped: the sink, to be filled anew or finished.
    pub fn into_sink(self) -> io::Result<Box<dyn Sink>> {
        let in_use = || io::Error::other("a part of what was read is still being filled");
        self.0.into_sink().ok_or_else(in_use)
    }
}

/// One part. What it is given is in its place when it is finished.
struct Part(Piece);

impl Part {
    fn room(&mut self, length: usize) -> io::Result<&mut [u8]> {
        let too_long = || io::Error::other("more came than was asked for");
        self.0.memory().get_mut(..length).ok_or_else(too_long)
    }
}

impl Sink for Part {
    fn file(&mut self, file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<usize> {
        read_full(file, self.room(length)?, offset)
    }

    fn bytes(&mut self, data: &[u8]) -> io::Result<()> {
        self.room(data.len())?.copy_from_slice(data);
        Ok(())
    }

    fn memory(&mut self, length: usize) -> Option<&mut [u8]> {
        self.room(length).ok()
    }

    fn finish(self: Box<Self>, _valid: usize) -> io::Result<()> {
        Ok(())
    }
}

/// A part of a sink that takes zeros for what does not come.
pub struct Padded {
    inner: Box<dyn Sink>,
    length: usize,
}

impl Padded {
    /// A part of this length in bytes, which is memory.
    pub fn new(inner: Box<dyn Sink>, length: usize) -> Padded {
        Padded { inner, length }
    }
}

impl Sink for Padded {
    fn file(&mut self, file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<usize> {
        self.inner.file(file, offset, length)
    }

    fn bytes(&mut self, data: &[u8]) -> io::Result<()> {
        self.inner.bytes(data)
    }

    fn memory(&mut self, length: usize) -> Option<&mut [u8]> {
        self.inner.memory(length)
    }

    fn finish(mut self: Box<Self>, valid: usize) -> io::Result<()> {
        let length = self.length;
        if valid < length {
            let memory = self.inner.memory(length).and_then(|memory| memory.get_mut(valid..));
            memory.ok_or_else(|| io::Error::other("a part of a sink is no memory"))?.fill(0);
        }
        self.inner.finish(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemorySink;

    #[test]
    fn parts_that_are_filled_in_any_order_make_a_whole() {
        let sink = MemorySink::default();
        let (whole, mut parts) = take_apart(Box::new(sink.clone()), &[3, 0, 4]).ok().unwrap();
        let mut last = parts.pop().unwrap();
        last.memory(4).unwrap()[..2].copy_from_slice(b"de");
        last.memory(4).unwrap()[2..].copy_from_slice(b"fg");
        last.finish(4).unwrap();
        assert!(parts[0].memory(4).is_none(), "it is no longer than it is");
        assert!(parts[0].bytes(b"abcd").is_err());
        parts[0].bytes(b"abc").unwrap();
        parts.into_iter().for_each(|part| part.finish(0).unwrap());
        whole.finish(6).unwrap();
        assert_eq!(sink.take().unwrap(), b"abcdef");
    }

    #[test]
    fn a_part_may_be_filled_anew() {
        let sink = MemorySink::default();
        let (whole, mut parts) = take_apart(Box::new(sink.clone()), &[2]).ok().unwrap();
        parts[0].memory(2).unwrap().copy_from_slice(b"xx");
        parts[0].bytes(b"ab").unwrap();
        drop(parts);
        whole.finish(2).unwrap();
        assert_eq!(sink.take().unwrap(), b"ab");
    }

    #[test]
    fn nothing_is_delivered_while_a_part_is_out() {
        let sink = MemorySink::default();
        let (whole, mut parts) = take_apart(Box::new(sink.clone()), &[2, 2]).ok().unwrap();
        parts.pop();
        assert!(whole.finish(4).is_err());
        parts[0].bytes(b"ab").unwrap();
        assert!(sink.take().is_none());
    }

    #[test]
    fn what_does_not_come_is_zeros() {
        let sink = MemorySink::default();
        let (whole, mut parts) = take_apart(Box::new(sink.clone()), &[4, 2]).ok().unwrap();
        parts[1].bytes(b"xx").unwrap();
        let (rest, first) = (parts.pop().unwrap(), parts.pop().unwrap());
        Box::new(Padded::new(rest, 2)).finish(0).unwrap();
        let mut first = Box::new(Padded::new(first, 4));
        first.memory(4).unwrap().copy_from_slice(b"abxx");
        first.finish(2).unwrap();
        whole.into_sink().unwrap().finish(6).unwrap();
        assert_eq!(sink.take().unwrap(), b"ab\0\0\0\0");
    }

    /// A sink that takes its bytes in order.
    struct Ordered;

    impl Sink for Ordered {
        fn file(&mut self, _: BorrowedFd<'_>, _: u64, length: usize) -> io::Result<usize> {
            Ok(length)
        }
        fn bytes(&mut self, _: &[u8]) -> io::Result<()> {
            Ok(())
        }
        fn memory(&mut self, _: usize) -> Option<&mut [u8]> {
            None
        }
        fn finish(self: Box<Self>, _: usize) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_no_memory_stays_whole() {
        assert!(take_apart(Box::new(Ordered), &[1, 2]).is_err());
        assert!(take_apart(Box::new(MemorySink::default()), &[usize::MAX, 2]).is_err());
    }
}
