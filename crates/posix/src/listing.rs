//! Listing a directory in pages. The kernel's own position of an entry is its cookie, so that a listing goes on after any entry, in this open or
//! in a later one, and holds no more than one buffer however many entries there are.

use std::os::fd::BorrowedFd;

use aqueduct_fs::Errno;

use crate::sys;

/// The buffer of one listing in bytes: some 800 entries, and what the C library asks for at once.
const BUFFER_SIZE: usize = 32 * 1024;

/// How often a directory is read from its start that seems to have nothing, not even itself: ext4 says so, some 3 times of 100,000, to who goes back to the
/// start of one that others change (Linux 6.18). Who believed it under a lease would have an empty directory until the next change.
const STARTS_MAX: u32 = 4;

/// The fields before the name in struct linux_dirent64: inode u64, position i64, length u16, type u8.
const RECORD_FIXED_SIZE: usize = 19;

/// Where a listing stands.
#[derive(Default)]
pub(crate) struct Listing {
    /// Records that the kernel gave and that have not been passed on.
    buffer: Vec<u8>,
    at: usize,
    /// The position after the last entry passed on; `None`: the descriptor stands elsewhere.
    position: Option<u64>,
}

/// One record.
pub(crate) struct Record<'a> {
    pub(crate) ino: u64,
    pub(crate) position: u64,
    pub(crate) kind: u8,
    pub(crate) name: &'a [u8],
    pub(crate) length: usize,
}

fn parse(bytes: &[u8]) -> Option<Record<'_>> {
    let (fixed, _) = bytes.split_first_chunk::<RECORD_FIXED_SIZE>()?;
    let length = usize::from(u16::from_ne_bytes([fixed[16], fixed[17]]));
    let name = bytes.get(RECORD_FIXED_SIZE..length)?;
    let name = &name[..name.iter().position(|byte| *byte == 0)?];
    let number = |at: usize| fixed[at..at + 8].try_into().map(u64::from_ne_bytes).ok();
    Some(Record { ino: number(0)?, position: number(8)?, kind: fixed[18], name, length })
}

/// Reads the start of a directory, given how often that was tried: again if it seems to have nothing. Some file systems do not list a directory itself, so
/// that is believed in the end.
fn read_start(mut read: impl FnMut(u32) -> Result<usize, Errno>) -> Result<usize, Errno> {
    for tries in 0..STARTS_MAX {
        let filled = read(tries)?;
        if filled > 0 {
            return Ok(filled);
        }
    }
    Ok(0)
}

impl Listing {
    /// The next record; the position moves on with [`advance`](Listing::advance) only.
    pub(crate) fn peek(&mut self, fd: BorrowedFd<'_>) -> Result<Option<Record<'_>>, Errno> {
        if self.at >= self.buffer.len() {
            self.buffer.resize(BUFFER_SIZE, 0);
            let filled = match self.position {
                Some(0) => read_start(|tries| {
                    if tries > 0 {
                        rustix::fs::seek(fd, rustix::fs::SeekFrom::Start(0))?;
                    }
                    sys::read_directory(fd, &mut self.buffer)
                }),
                _ => sys::read_directory(fd, &mut self.buffer),
            };
            self.buffer.truncate(*filled.as_ref().unwrap_or(&0));
            self.at = 0;
            if filled? == 0 {
                // Nothing is kept of a listing at its end, so that memory follows what is in use.
                self.buffer = Vec::new();
                return Ok(None);
            }
        }
        parse(&self.buffer[self.at..]).map(Some).ok_or(Errno::EIO)
    }

    pub(crate) fn advance(&mut self, length: usize, position: u64) {
        self.at += length;
        self.position = Some(position);
    }

    pub(crate) fn go_to(&mut self, fd: BorrowedFd<'_>, cookie: u64) -> Result<(), Errno> {
        // From the start everything is read afresh (rewinddir).
        if self.position == Some(cookie) && cookie != 0 {
            return Ok(());
        }
        self.forget();
        rustix::fs::seek(fd, rustix::fs::SeekFrom::Start(cookie))?;
        self.position = Some(cookie);
        Ok(())
    }

    pub(crate) fn forget(&mut self) {
        *self = Listing::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_seems_empty_is_read_again() {
        let read = |answers: &[Result<usize, Errno>]| {
            let mut tries = Vec::new();
            let filled = read_start(|number| {
                tries.push(number);
                answers[tries.len() - 1]
            });
            (filled, tries)
        };
        assert_eq!(read(&[Ok(48)]), (Ok(48), vec![0]));
        assert_eq!(read(&[Ok(0), Ok(0), Ok(48)]), (Ok(48), vec![0, 1, 2]));
        assert_eq!(read(&[Ok(0), Err(Errno::EIO)]), (Err(Errno::EIO), vec![0, 1]));
        assert_eq!(read(&[Ok(0); STARTS_MAX as usize]), (Ok(0), vec![0, 1, 2, 3]));
    }
}
