//! Sums of what lies in files, made where they lie, and what the kernel keeps of it.

use std::hash::Hasher as _;
use std::os::fd::{AsFd, BorrowedFd};

use aqueduct_fs::data::read_full;
use aqueduct_fs::{Errno, SUM_LENGTH_MAX, Sum, SumKind};
use blake3::hazmat::HasherExt as _;
use rustix::fs::Advice;
use rustix::io::ReadWriteFlags;
use twox_hash::XxHash3_64;

use crate::open_file::OpenFile;

/// Bytes that are read at a time: they are hashed while the processor still has them.
const STEP: usize = 256 << 10;

/// Bytes between two looks at what is kept: a read-ahead of the kernel is no longer.
const LOOK: usize = 1 << 20;

enum Hashing {
    Xxh3(Box<XxHash3_64>),
    Blake3(Box<blake3::Hasher>),
    Part(Box<blake3::Hasher>),
}

impl Hashing {
    fn new(kind: SumKind, offset: u64) -> Hashing {
        match kind {
            SumKind::Xxh3 => Hashing::Xxh3(Box::new(XxHash3_64::with_seed(0))),
            SumKind::Blake3 => Hashing::Blake3(Box::default()),
            SumKind::Blake3Part => {
                let mut hasher = Box::<blake3::Hasher>::default();
                hasher.set_input_offset(offset);
                Hashing::Part(hasher)
            }
        }
    }

    fn update(&mut self, data: &[u8]) {
        match self {
            Hashing::Xxh3(hasher) => hasher.write(data),
            Hashing::Blake3(hasher) | Hashing::Part(hasher) => drop(hasher.update(data)),
        }
    }

    fn value(&self) -> [u8; 32] {
        match self {
            Hashing::Xxh3(hasher) => {
                let mut value = [0; 32];
                value[..8].copy_from_slice(&hasher.finish().to_le_bytes());
                value
            }
            Hashing::Blake3(hasher) => *hasher.finalize().as_bytes(),
            Hashing::Part(hasher) => hasher.finalize_non_root(),
        }
    }
}

/// The sum of a range of an open file, all of which has to be there.
pub(crate) fn sum_of(open: &OpenFile, (offset, length): (u64, u64), how: (SumKind, bool)) -> Result<Sum, Errno> {
    let (kind, past_cache) = how;
    if length > SUM_LENGTH_MAX {
        return Err(Errno::EINVAL);
    }
    // A part of a tree begins at a multiple of its length, or of a greater power of two.
    let may_begin = kind != SumKind::Blake3Part || (length > 0 && offset % length.next_power_of_two().max(1024) == 0);
    let end = offset.checked_add(length).filter(|end| *end <= i64::MAX as u64);
    let (Some(end), true) = (end, may_begin) else { return Err(Errno::EINVAL) };
    let fd = open.fd.as_fd();
    let is_past_cache = past_cache && forget(fd, offset, length);
    let mut hashing = Hashing::new(kind, offset);
    let mut buffer = vec![0; STEP.min(length as usize)];
    let mut at = offset;
    while at < end {
        let wanted = (end - at).min(STEP as u64) as usize;
        let count = read_full(fd, &mut buffer[..wanted], at)?;
        // Less came where the file ends, or before an error: the next read meets it.
        if count == 0 {
            return Err(Errno::ENODATA);
        }
        hashing.update(&buffer[..count]);
        at += count as u64;
    }
    Ok(Sum { value: hashing.value(), is_past_cache })
}

/// Has the kernel let go of what it keeps of a range of a file, which has to be stable. Says
/// whether it did: it does not while somebody maps the file, nor on a file system in memory.
pub fn forget(fd: BorrowedFd<'_>, offset: u64, length: u64) -> bool {
    let Some(whole) = std::num::NonZeroU64::new(length) else { return true };
    if rustix::fs::fadvise(fd, offset, Some(whole), Advice::DontNeed).is_err() {
        return false;
    }
    // What a read that may not wait gets was kept after all.
    let mut byte = [0];
    let mut is_kept = |at: u64| {
        let mut parts = [std::io::IoSliceMut::new(&mut byte)];
        rustix::io::preadv2(fd, &mut parts, at, ReadWriteFlags::NOWAIT) != Err(rustix::io::Errno::AGAIN)
    };
    (offset..offset.saturating_add(length)).step_by(LOOK).all(|at| !is_kept(at))
}
