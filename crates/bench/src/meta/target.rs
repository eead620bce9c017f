//! The system calls that are measured, and nothing around them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use rustix::fs::{CWD, FileType, Mode, OFlags};

use crate::sys::close;

/// As mdtest makes them, less the umask.
const FILE_MODE: u32 = 0o664;
const DIRECTORY_MODE: u32 = 0o775;

/// The first bytes of a file say which it is, where they fit.
const STAMP_LENGTH: usize = 8;

/// What is in files: bytes of a seed behind a stamp of the file.
#[derive(Debug)]
pub struct Pattern {
    bytes: Vec<u8>,
    scratch: Vec<u8>,
}

impl Pattern {
    /// For files of at most so many bytes.
    pub fn new(seed: u64, length: usize) -> Pattern {
        let mut bytes = vec![0; length];
        SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
        Pattern { bytes, scratch: vec![0; length] }
    }

    /// The first bytes of a file.
    fn of(&mut self, stamp: u64, length: usize) -> &[u8] {
        let stamped = length.min(STAMP_LENGTH);
        self.bytes[..stamped].copy_from_slice(&stamp.to_le_bytes()[..stamped]);
        &self.bytes[..length]
    }
}

/// How files are made and read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// Bytes to write to each.
    pub write: usize,
    /// Bytes to read from each.
    pub read: usize,
    /// mknod instead of open.
    pub mknod: bool,
    /// fsync after writing.
    pub sync: bool,
    /// Read back and check after writing.
    pub verify_write: bool,
    /// Check what was read.
    pub verify_read: bool,
}

/// A mounted file system. It counts files whose content was not what it should be.
#[derive(Debug)]
pub struct Posix {
    manner: Manner,
    pattern: Pattern,
    /// Files that were found damaged.
    pub damaged: u64,
}

impl Posix {
    /// Files are made and read in this manner, with data of this seed.
    pub fn new(manner: Manner, seed: u64) -> Posix {
        Posix { manner, pattern: Pattern::new(seed, manner.write.max(manner.read)), damaged: 0 }
    }

    /// Opens a file for writing, making it if need be, writes its bytes, and closes it.
    pub fn create(&mut self, path: &str, stamp: u64) -> io::Result<()> {
        if self.manner.mknod {
            let mode = Mode::from_raw_mode(FILE_MODE);
            return Ok(rustix::fs::mknodat(CWD, path, FileType::RegularFile, mode, 0)?);
        }
        let access = if self.manner.verify_write { OFlags::RDWR } else { OFlags::WRONLY };
        let file = rustix::fs::open(path, access | OFlags::CREATE | OFlags::CLOEXEC, Mode::from_raw_mode(FILE_MODE))?;
        let length = self.manner.write;
        if length > 0 {
            write_all(&file, self.pattern.of(stamp, length))?;
            if self.manner.sync {
                rustix::fs::fsync(&file)?;
            }
            if self.manner.verify_write {
                self.check(&file, stamp, length)?;
            }
        }
        close(file)
    }

    /// Opens a file, reads its bytes, and closes it.
    pub fn read(&mut self, path: &str, stamp: u64) -> io::Result<()> {
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let length = self.manner.read;
        if self.manner.verify_read {
            self.check(&file, stamp, length)?;
        } else if length > 0 {
            read_all(&file, &mut self.pattern.scratch[..length])?;
        }
        close(file)
    }

    fn check(&mut self, file: &OwnedFd, stamp: u64, length: usize) -> io::Result<()> {
        let mut found = std::mem::take(&mut self.pattern.scratch);
        let outcome = read_all(file, &mut found[..length]);
        if outcome.is_ok() && found[..length] != *self.pattern.of(stamp, length) {
            self.damaged += 1;
        }
        self.pattern.scratch = found;
        outcome
    }

    /// stat.
    pub fn stat(&mut self, path: &str) -> io::Result<()> {
        rustix::fs::stat(path)?;
        Ok(())
    }

    /// unlink.
    pub fn remove(&mut self, path: &str) -> io::Result<()> {
        Ok(rustix::fs::unlink(path)?)
    }

    /// mkdir.
    pub fn make_directory(&mut self, path: &str) -> io::Result<()> {
        Ok(rustix::fs::mkdir(path, Mode::from_raw_mode(DIRECTORY_MODE))?)
    }

    /// rmdir.
    pub fn remove_directory(&mut self, path: &str) -> io::Result<()> {
        Ok(rustix::fs::rmdir(path)?)
    }

    /// rename.
    pub fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::rename(from, to)?)
    }
}

fn write_all(file: impl AsFd, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match rustix::io::write(&file, data) {
            Ok(count) => data = &data[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// From the start; a file that ends before is an error.
fn read_all(file: impl AsFd, buffer: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(&file, &mut buffer[filled..], filled as u64) {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("it has only {filled} bytes of {}", buffer.len()),
                ));
            }
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_found_wherever_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let name = path.to_str().unwrap();
        for length in [1, 7, 8, 9, 4096] {
            let manner =
                Manner { write: length, read: length, verify_read: true, verify_write: true, ..Manner::default() };
            let mut posix = Posix::new(manner, 3);
            posix.create(name, 77).unwrap();
            posix.read(name, 77).unwrap();
            assert_eq!(posix.damaged, 0, "{length}");
            let good = std::fs::read(&path).unwrap();
            assert_eq!(good.len(), length);
            for place in [0, length / 2, length - 1] {
                let mut bad = good.clone();
                bad[place] ^= 1;
                std::fs::write(&path, bad).unwrap();
                let before = posix.damaged;
                posix.read(name, 77).unwrap();
                assert_eq!(posix.damaged, before + 1, "{length}, {place}");
            }
            std::fs::write(&path, &good).unwrap();
            let before = posix.damaged;
            posix.read(name, 78).unwrap();
            assert_eq!(posix.damaged, before + 1, "another file's content");
            std::fs::write(&path, &good[1..]).unwrap();
            assert_eq!(posix.read(name, 77).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn nodes_are_empty_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut posix = Posix::new(Manner { mknod: true, ..Manner::default() }, 0);
        posix.create(path.to_str().unwrap(), 0).unwrap();
        assert!(path.metadata().unwrap().is_file());
    }
}
