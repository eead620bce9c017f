//! Mounted file systems: names, and files by pread and pwrite or by io_uring.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fsync, open, statvfs};
use rustix::io::{Errno, pread, pwrite};

use super::api::{INVALID, Names, Space, Transfers, ended};
use super::data::{Difference, Signature, compare};
use crate::sys::{self, Aligned, Ring, Submission};

/// Permissions of test files, as IOR's.
const MODE: u32 = 0o664;

/// Names of a mounted file system.
#[derive(Debug, Default)]
pub struct Mounted;

impl Names for Mounted {
    fn size(&mut self, path: &str) -> io::Result<Option<(u64, u64)>> {
        match fs::metadata(path) {
            Ok(metadata) => Ok(Some((metadata.len(), metadata.blocks().saturating_mul(512)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn remove(&mut self, path: &str) -> io::Result<bool> {
        match fs::remove_file(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn make_directory(&mut self, path: &str) -> io::Result<()> {
        match fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && Path::new(path).is_dir() => Ok(()),
            result => result,
        }
    }

    fn remove_directory(&mut self, path: &str) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn space(&mut self, path: &str) -> io::Result<Space> {
        let parent = Path::new(path).parent().filter(|parent| !parent.as_os_str().is_empty());
        let stat = statvfs(parent.unwrap_or(Path::new(".")))?;
        Ok(Space {
            bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            bytes_free: stat.f_bavail.saturating_mul(stat.f_frsize),
            files: stat.f_files,
            files_free: stat.f_favail,
        })
    }
}

fn opened(path: &str, creates: bool, direct: bool) -> io::Result<OwnedFd> {
    let way = if creates { OFlags::RDWR | OFlags::CREATE } else { OFlags::RDONLY };
    let past_cache = if direct { OFlags::DIRECT } else { OFlags::empty() };
    Ok(open(path, way | past_cache | OFlags::CLOEXEC, Mode::from_raw_mode(MODE))?)
}

/// pread(2) and pwrite(2): a transfer is complete when it was started.
pub struct Posix {
    buffer: Aligned,
    file: Option<OwnedFd>,
    direct: bool,
}

impl Posix {
    /// With a buffer for transfers of this length.
    pub fn new(length: usize, direct: bool) -> io::Result<Posix> {
        Ok(Posix { buffer: Aligned::new(length)?, file: None, direct })
    }

    fn file(file: &Option<OwnedFd>) -> io::Result<&OwnedFd> {
        file.as_ref().ok_or(io::ErrorKind::NotConnected.into())
    }
}

impl Transfers for Posix {
    fn create(&mut self, path: &str) -> io::Result<()> {
        self.file = Some(opened(path, true, self.direct)?);
        Ok(())
    }

    fn open(&mut self, path: &str) -> io::Result<()> {
        self.file = Some(opened(path, false, self.direct)?);
        Ok(())
    }

    /// What was written late may fail here alone, and then was not written.
    fn close(&mut self) -> io::Result<()> {
        self.file.take().map_or(Ok(()), sys::close)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(fsync(Self::file(&self.file)?)?)
    }

    fn depth(&self) -> usize {
        1
    }

    fn fill(&mut self, signature: &Signature) {
        signature.fill(&mut self.buffer);
    }

    fn invalidate(&mut self, _slot: usize) {
        self.buffer.fill(INVALID);
    }

    #[inline]
    fn start_write(&mut self, _slot: usize, offset: u64, placed: Option<&Signature>) -> io::Result<()> {
        if let Some(signature) = placed {
            signature.place(&mut self.buffer, offset);
        }
        let file = Self::file(&self.file)?;
        let mut done = 0;
        while done < self.buffer.len() {
            match pwrite(file, &self.buffer[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    #[inline]
    fn start_read(&mut self, _slot: usize, offset: u64) -> io::Result<()> {
        let file = Self::file(&self.file)?;
        let mut done = 0;
        while done < self.buffer.len() {
            match pread(file, &mut self.buffer[done..], offset + done as u64) {
                Ok(0) => return Err(ended()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    #[inline]
    fn wait(&mut self) -> io::Result<usize> {
        Ok(0)
    }

    fn compare(&mut self, _slot: usize, expected: &[u8]) -> Option<Difference> {
        compare(expected, &self.buffer)
    }
}

/// io_uring: as many transfers under way as there are buffers.
pub struct Uring {
    ring: Ring,
    length: usize,
    /// What each buffer's transfer is, and how much of it is done.
    transfers: Vec<(Submission, usize)>,
    direct: bool,
}

impl Uring {
    /// With so many buffers for transfers of this length.
    pub fn new(depth: u32, length: usize, direct: bool) -> io::Result<Uring> {
        let ring = Ring::new(depth, length)?;
        let idle = |slot| (Submission { slot, writes: false, from: 0, offset: 0 }, 0);
        let transfers = (0..ring.depth()).map(idle).collect();
        Ok(Uring { ring, length, transfers, direct })
    }

    fn start(&mut self, slot: usize, offset: u64, writes: bool) -> io::Result<()> {
        let submission = Submission { slot, writes, from: 0, offset };
        self.transfers[slot] = (submission, 0);
        self.ring.submit(submission)
    }
}

impl Transfers for Uring {
    fn create(&mut self, path: &str) -> io::Result<()> {
        self.ring.set_file(Some(opened(path, true, self.direct)?))
    }

    fn open(&mut self, path: &str) -> io::Result<()> {
        self.ring.set_file(Some(opened(path, false, self.direct)?))
    }

    fn close(&mut self) -> io::Result<()> {
        self.ring.set_file(None)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(fsync(self.ring.file().ok_or(io::ErrorKind::NotConnected)?)?)
    }

    fn depth(&self) -> usize {
        self.ring.depth()
    }

    fn fill(&mut self, signature: &Signature) {
        (0..self.depth()).for_each(|slot| signature.fill(self.ring.buffer(slot)));
    }

    fn invalidate(&mut self, slot: usize) {
        self.ring.buffer(slot).fill(INVALID);
    }

    fn start_write(&mut self, slot: usize, offset: u64, placed: Option<&Signature>) -> io::Result<()> {
        if let Some(signature) = placed {
            signature.place(self.ring.buffer(slot), offset);
        }
        self.start(slot, offset, true)
    }

    fn start_read(&mut self, slot: usize, offset: u64) -> io::Result<()> {
        self.start(slot, offset, false)
    }

    fn wait(&mut self) -> io::Result<usize> {
        loop {
            let (slot, moved) = self.ring.wait()?;
            let (submission, done) = &mut self.transfers[slot];
            let moved = match moved {
                Err(error) if [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock].contains(&error.kind()) => 0,
                Err(error) => return Err(error),
                Ok(0) if submission.writes => return Err(io::ErrorKind::WriteZero.into()),
                Ok(0) => return Err(ended()),
                Ok(moved) => moved,
            };
            *done += moved;
            if *done >= self.length {
                return Ok(slot);
            }
            // The rest of one that was cut short.
            let rest = Submission { from: *done, offset: submission.offset + *done as u64, ..*submission };
            self.ring.submit(rest)?;
        }
    }

    fn compare(&mut self, slot: usize, expected: &[u8]) -> Option<Difference> {
        compare(expected, self.ring.buffer(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_fails_when_it_is_closed_was_not_written() {
        let mut posix = Posix { file: Some(sys::unclosable()), ..Posix::new(8, false).unwrap() };
        assert!(posix.close().is_err());
        assert!(posix.close().is_ok(), "it is closed once");
        let Ok(mut uring) = Uring::new(1, 8, false) else {
            return; // kernels can be told to offer no io_uring
        };
        uring.ring.set_file(Some(sys::unclosable())).unwrap();
        assert!(uring.close().is_err());
    }
}
