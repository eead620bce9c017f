//! The interfaces by which files are read and written, as the inner loop sees them: transfers that are started and waited for.

use std::fmt;
use std::io;

use super::data::{Difference, Signature};

/// What is free where a file lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes that this user may fill.
    pub bytes_free: u64,
    /// Inodes in all; 0 where they are not counted.
    pub files: u64,
    /// Inodes that are left.
    pub files_free: u64,
}

/// Names, apart from what is timed.
pub trait Names {
    /// The size of a file and the bytes that it takes, if it is there.
    fn size(&mut self, path: &str) -> io::Result<Option<(u64, u64)>>;
    /// Removes a file; whether it was there.
    fn remove(&mut self, path: &str) -> io::Result<bool>;
    /// Makes a directory, if it is not there.
    fn make_directory(&mut self, path: &str) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&mut self, path: &str) -> io::Result<()>;
    /// What is free where this file lies, or would.
    fn space(&mut self, path: &str) -> io::Result<Space>;
}

/// One file, and buffers for as many transfers as can be under way, each of the same length.
pub trait Transfers {
    /// Opens a file for writing; it is made if it is not there.
    fn create(&mut self, path: &str) -> io::Result<()>;
    /// Opens a file for reading.
    fn open(&mut self, path: &str) -> io::Result<()>;
    /// Closes the file.
    fn close(&mut self) -> io::Result<()>;
    /// Makes what was written stable.
    fn sync(&mut self) -> io::Result<()>;
    /// How many transfers can be under way.
    fn depth(&self) -> usize;
    /// Fills all buffers with this rank's data.
    fn fill(&mut self, signature: &Signature);
    /// Fills a buffer with what nobody has written, so that a read that brings nothing is found.
    fn invalidate(&mut self, slot: usize);
    /// Starts to write a buffer, with its place in it if the data have such.
    fn start_write(&mut self, slot: usize, offset: u64, placed: Option<&Signature>) -> io::Result<()>;
    /// Starts to read into a buffer.
    fn start_read(&mut self, slot: usize, offset: u64) -> io::Result<()>;
    /// Waits for any transfer to be complete: whole, or an error. Which buffer's.
    fn wait(&mut self) -> io::Result<usize>;
    /// How what was read is different.
    fn compare(&mut self, slot: usize, expected: &[u8]) -> Option<Difference>;
}

/// What is in a buffer before a read that is checked.
pub const INVALID: u8 = b'a';

/// The file ended within a transfer.
pub fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, Ended)
}

#[derive(Debug)]
struct Ended;

impl std::error::Error for Ended {}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the file ends there")
    }
}
