//! Bytes.

use std::ffi::CString;
use std::os::fd::BorrowedFd;

use rustix::fs::{self, AtFlags, CWD, FallocateFlags, FileType, OFlags, SeekFrom};
use rustix::io::{self, Errno};

use super::hand::{Hand, Step, done};
use crate::op::{Allocation, Data, From, Target, pattern_bytes};
use crate::outcome::Outcome;
use crate::sys::{self, Mapping};

/// Bytes read at a time to look whether a range is zero.
const LOOK: usize = 64 << 10;

/// Holes longer than this are believed at their two ends: reading 4 TiB of zeros takes too long.
const LOOK_MAX: u64 = 4 << 20;

impl Hand {
    pub(super) fn data(&mut self, data: &Data) -> Step {
        match data {
            Data::Read { slot, length } => {
                let mut bytes = vec![0; *length];
                let count = io::read(self.slot(*slot)?, &mut bytes)?;
                bytes.truncate(count);
                Ok(Outcome::Bytes(bytes))
            }
            Data::ReadAt { slot, offset, length } => Ok(Outcome::Bytes(read_at(self.slot(*slot)?, *offset, *length)?)),
            Data::Write { slot, length, pattern } => {
                let fd = self.slot(*slot)?;
                refresh_size(fd);
                Ok(Outcome::Count(io::write(fd, &pattern_bytes(*pattern, 0, *length))? as u64))
            }
            Data::WriteAt { slot, offset, length, pattern } => {
                let bytes = pattern_bytes(*pattern, *offset, *length);
                Ok(Outcome::Count(io::pwrite(self.slot(*slot)?, &bytes, *offset)? as u64))
            }
            Data::Seek { slot, from, offset } => self.seek(*slot, *from, *offset),
            Data::SeekSparse { slot, offset, hole } => seek_data(self.slot(*slot)?, *offset, *hole),
            Data::Truncate { path, length } => {
                // To the size it has: ext4 moves the modification time, tmpfs does not, POSIX lets them.
                let stat = fs::statat(CWD, path.0.as_slice(), AtFlags::empty());
                let regular = |mode| FileType::from_raw_mode(mode) == FileType::RegularFile;
                if stat.is_ok_and(|stat| regular(stat.st_mode) && stat.st_size as u64 == *length) {
                    return Ok(Outcome::Skipped("no change of size"));
                }
                let path = CString::new(path.0.as_slice()).map_err(|_| Errno::INVAL)?;
                done(sys::truncate(&path, *length))
            }
            Data::TruncateOpen { slot, length } => done(fs::ftruncate(self.slot(*slot)?, *length)),
            Data::Allocate { slot, what, offset, length } => self.allocate(*slot, *what, *offset, *length),
            Data::Copy { slot, to, from_offset, to_offset, length } => {
                let (mut from_at, mut to_at) = (*from_offset, *to_offset);
                let (from, to) = (self.slot(*slot)?, self.slot(*to)?);
                refresh_size(from);
                Ok(Outcome::Count(fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), *length)? as u64))
            }
            Data::Sync { slot, data_only } => match data_only {
                true => done(fs::fdatasync(self.slot(*slot)?)),
                false => done(fs::fsync(self.slot(*slot)?)),
            },
            Data::MapStore { target, offset, length, pattern } => self.map_store(target, *offset, *length, *pattern),
            Data::MapLoad { target, offset, length } => self.map_load(target, *offset, *length),
        }
    }

    fn seek(&self, slot: usize, from: From, offset: i64) -> Step {
        let fd = self.slot(slot)?;
        if FileType::from_raw_mode(fs::fstat(fd)?.st_mode) == FileType::Directory {
            return Ok(Outcome::Skipped("positions in directories are the file system's own"));
        }
        let from = match from {
            From::Start if offset < 0 => return Ok(Outcome::Skipped("no such position")),
            From::Start => SeekFrom::Start(offset as u64),
            From::Current => SeekFrom::Current(offset),
            From::End => SeekFrom::End(offset),
        };
        Ok(Outcome::Count(fs::seek(fd, from)?))
    }

    fn allocate(&self, slot: usize, what: Allocation, offset: u64, length: u64) -> Step {
        let mode = match what {
            Allocation::Extend => FallocateFlags::empty(),
            Allocation::KeepSize => FallocateFlags::KEEP_SIZE,
            Allocation::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Allocation::ZeroRange => FallocateFlags::ZERO_RANGE,
            Allocation::ZeroKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        done(fs::fallocate(self.slot(slot)?, mode, offset, length))
    }

    fn map_store(&self, target: &Target, offset: u64, length: usize, pattern: u8) -> Step {
        let file = self.descriptor(target, OFlags::RDWR)?;
        let fd = std::os::fd::AsFd::as_fd(&file);
        let length = mappable(fd, offset, length)?;
        if fs::fcntl_getfl(fd)?.contains(OFlags::APPEND) {
            return Ok(Outcome::Skipped("append"));
        }
        let bytes = pattern_bytes(pattern, offset, length);
        let mapping = Mapping::new(fd, offset, length, true)?;
        mapping.store(&bytes)?;
        drop(mapping);
        // Whether a store moves the modification time is the file system's choice (tmpfs: no), so it is moved here.
        io::pwrite(fd, &bytes[..1], offset)?;
        Ok(Outcome::Done)
    }

    fn map_load(&self, target: &Target, offset: u64, length: usize) -> Step {
        let file = self.descriptor(target, OFlags::RDONLY)?;
        let fd = std::os::fd::AsFd::as_fd(&file);
        let length = mappable(fd, offset, length)?;
        Ok(Outcome::Bytes(Mapping::new(fd, offset, length, false)?.load()))
    }
}

/// The size that the kernel of a mount believes decides where an appending descriptor stands afterwards, and how much copy_file_range(2) asks for.
/// Nothing tells that kernel what another mount has written until it asks (SEMANTICS.md); so it asks.
fn refresh_size(fd: BorrowedFd<'_>) {
    let _ = fs::fstat(fd);
}

/// How much of the range lies inside the file.
fn mappable(fd: BorrowedFd<'_>, offset: u64, length: usize) -> Result<usize, Outcome> {
    let stat = fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Outcome::Skipped("no regular file"));
    }
    let inside = (stat.st_size as u64).saturating_sub(offset).min(length as u64);
    match inside {
        0 => Err(Outcome::Skipped("nothing to map")),
        inside => Ok(inside as usize),
    }
}

fn read_at(fd: BorrowedFd<'_>, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; length];
    let count = io::pread(fd, &mut bytes, offset)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// SEEK_DATA and SEEK_HOLE may treat zeros as data, but must not call data a hole. Leaves the position at the start.
fn seek_data(fd: BorrowedFd<'_>, offset: u64, hole: bool) -> Step {
    let stat = fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Ok(Outcome::Skipped("no regular file"));
    }
    let size = stat.st_size as u64;
    let found = fs::seek(fd, if hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) });
    fs::seek(fd, SeekFrom::Start(0))?;
    let lie = |what: &str| Ok(Outcome::Illegal(format!("{what}: from {offset} found {found:?}, size {size}")));
    let zero = |start, end| match is_zero(fd, start, end) {
        // Nothing can be said about a file that is open for writing only.
        Err(Errno::BADF) => Ok(true),
        other => other,
    };
    match found {
        Err(Errno::NXIO) if offset >= size => Ok(Outcome::Failed(Errno::NXIO)),
        Err(Errno::NXIO) if hole => lie("there is always a hole at the end"),
        Err(Errno::NXIO) if !zero(offset, size)? => lie("there are data"),
        Err(Errno::NXIO) => Ok(Outcome::Done),
        Err(errno) => Ok(Outcome::Failed(errno)),
        Ok(at) if offset >= size => lie(if at == offset { "past the end" } else { "elsewhere" }),
        Ok(at) if at < offset || at > size || (at == size && !hole) => lie("out of range"),
        Ok(at) if !hole && !zero(offset, at)? => lie("data were passed over"),
        Ok(at) if hole && at < size && !zero(at, at + 1)? => lie("data called a hole"),
        Ok(_) => Ok(Outcome::Done),
    }
}

fn is_zero(fd: BorrowedFd<'_>, start: u64, end: u64) -> Result<bool, Errno> {
    if end - start > LOOK_MAX {
        return Ok(is_zero(fd, start, start + LOOK_MAX / 2)? && is_zero(fd, end - LOOK_MAX / 2, end)?);
    }
    let mut at = start;
    while at < end {
        let bytes = read_at(fd, at, LOOK.min((end - at) as usize))?;
        if bytes.is_empty() {
            break;
        }
        if bytes.iter().any(|&b| b != 0) {
            return Ok(false);
        }
        at += bytes.len() as u64;
    }
    Ok(true)
}
