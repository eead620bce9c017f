//! Operations through an open file: data, their layout and their stability.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;

use aqueduct_fs::{
    Context, Errno, OpenFlags, OpenId, ReadAt, Reply, Request, SeekTo, Sink, Source, TRANSFER_SIZE_MAX, WriteAt,
    Written,
};
use rustix::io::ReadWriteFlags;

use crate::lock::lock;
use crate::open_file::OpenFile;
use crate::page::{self, Wanted};
use crate::prefetch::{Later, SMALL_READ};
use crate::{Posix, identity, sum, sys};

/// The most bytes that one copy inside the file system moves: 64 MiB take some 50 ms where they are really copied, which is how long a thread
/// may be busy for one caller; the caller asks again.
const COPY_LENGTH_MAX: u64 = 64 << 20;

impl Posix {
    pub(crate) fn answer_through_open(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        match request {
            Request::Sync { open, data_only } | Request::SyncDirectory { open, data_only } => {
                let open = self.opens.get(context.client, open)?;
                open.settle(make_stable(&open, data_only))?;
                Ok(Reply::Done)
            }
            Request::Commit { open, .. } => {
                let open = self.opens.get(context.client, open)?;
                open.settle(make_stable(&open, true))?;
                Ok(Reply::Written(Written { count: 0, verifier: open.verifier, offset: 0 }))
            }
            Request::ReadDirectory { open, cookie, size, plus } => {
                let open = self.opens.get(context.client, open)?;
                page::page(&self.tree, &open, &Wanted { cookie, size, plus, listings: self.opens.listings() })
                    .map(Reply::Directory)
            }
            Request::Fallocate { open, offset, length, flags } => {
                let open = self.open_with(context, open, OpenFlags::WRITE)?;
                self.with_room(|| sys::allocate(open.fd.as_fd(), flags.bits(), offset, length))?;
                self.settle_data(&open)?;
                Ok(Reply::Done)
            }
            Request::Seek { open, offset, to } => {
                let open = self.opens.get(context.client, open)?;
                let to = match to {
                    SeekTo::Data => rustix::fs::SeekFrom::Data(offset),
                    SeekTo::Hole => rustix::fs::SeekFrom::Hole(offset),
                };
                if offset > i64::MAX as u64 {
                    return Err(Errno::ENXIO);
                }
                let _alone = lock(&open.position);
                Ok(Reply::Size(rustix::fs::seek(&open.fd, to)?))
            }
            Request::Checksum { open, offset, length, kind, past_cache } => {
                let open = self.open_with(context, open, OpenFlags::READ)?;
                sum::sum_of(&open, (offset, length), (kind, past_cache)).map(Reply::Sum)
            }
            Request::CopyRange { from, mut from_offset, to, mut to_offset, length } => {
                let from = self.open_with(context, from, OpenFlags::READ)?;
                let to = self.open_with(context, to, OpenFlags::WRITE)?;
                let length = length.min(COPY_LENGTH_MAX) as usize;
                let (at, onto) = (Some(&mut from_offset), Some(&mut to_offset));
                let copied = rustix::fs::copy_file_range(&from.fd, at, &to.fd, onto, length)?;
                self.settle_data(&to)?;
                Ok(Reply::Size(copied as u64))
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    /// A file of this client that is open with this right; EBADF when it is not.
    fn open_with(&self, context: &Context, id: OpenId, right: OpenFlags) -> Result<Arc<OpenFile>, Errno> {
        let open = self.opens.get(context.client, id)?;
        if open.listing.is_some() {
            return Err(Errno::EISDIR);
        }
        if open.flags.contains(right) { Ok(open) } else { Err(Errno::EBADF) }
    }

    pub(crate) fn read_range(&self, context: &Context, read: ReadAt, mut sink: Box<dyn Sink>) -> Result<usize, Errno> {
        let open = self.open_with(context, read.open, OpenFlags::READ)?;
        identity::act_through_open(&context.credential)?;
        let wanted = (read.length as usize).min(TRANSFER_SIZE_MAX);
        if i64::try_from(read.offset).is_err() {
            return Err(Errno::EINVAL);
        }
        if wanted > 0 && wanted as u64 <= SMALL_READ {
            return self.read_small(&open, (read.offset, wanted), sink);
        }
        let size = rustix::fs::fstat(&open.fd)?.st_size as u64;
        let available = size.saturating_sub(read.offset).min(wanted as u64) as usize;
        let whole = (read.offset, available as u64, size);
        let mut later = Later::Nothing;
        let valid = if available > 0 {
            later = self.prefetch.before(&open, read.offset, available as u64, size);
            let valid = sink.file(open.fd.as_fd(), read.offset, available)?;
            later = later.timed();
            valid
        } else {
            // Where a file says 0 there may be content all the same, as below /proc.
            let data = if size == 0 { read_unsized(&open, read.offset, wanted)? } else { Vec::new() };
            sink.bytes(&data)?;
            data.len()
        };
        sink.finish(valid)?;
        self.prefetch.after(&open, later, whole);
        Ok(valid)
    }

    /// Does not ask for the file's size before: what comes tells the end. To ask takes 0.15 us on a
    /// local file system, and a round trip to a server on one of a cluster.
    fn read_small(&self, open: &OpenFile, (at, wanted): (u64, usize), mut sink: Box<dyn Sink>) -> Result<usize, Errno> {
        let later = self.prefetch.before_small(open);
        let valid = sink.file(open.fd.as_fd(), at, wanted)?;
        let later = later.timed();
        sink.finish(valid)?;
        self.prefetch.after_small(open, later, (at, valid as u64), valid < wanted);
        Ok(valid)
    }

    pub(crate) fn write_range(&self, context: &Context, write: WriteAt, source: &Source) -> Result<Written, Errno> {
        let open = self.open_with(context, write.open, OpenFlags::WRITE)?;
        identity::act_through_open(&context.credential)?;
        let Source::Memory(data) = source else { return Err(Errno::EOPNOTSUPP) };
        let mut flags = ReadWriteFlags::empty();
        flags.set(ReadWriteFlags::APPEND, write.append);
        flags.set(ReadWriteFlags::DSYNC, write.stable);
        let written = self.write_to(&open, write, data, flags)?;
        self.prefetch.wrote(&open, (!write.append).then_some(written.offset), written.count);
        Ok(written)
    }

    /// A file system may append, and then have no room for what makes that stable (btrfs, NFS). So
    /// where the file has grown it is not appended once more, here or by who asked, and what is
    /// told is EIO: ENOSPC would say that nothing was.
    fn append_stably(&self, open: &OpenFile, data: &[u8], flags: ReadWriteFlags) -> Result<Written, Errno> {
        let length = || rustix::fs::fstat(&open.fd).map(|stat| stat.st_size).map_err(Errno::from);
        let before = length()?;
        self.with_room(|| match append(open, data, flags) {
            Err(Errno::ENOSPC | Errno::EDQUOT) if length()? != before => Err(Errno::EIO),
            result => result,
        })
    }

    fn write_to(&self, open: &OpenFile, write: WriteAt, data: &[u8], flags: ReadWriteFlags) -> Result<Written, Errno> {
        if write.append && write.stable {
            return self.append_stably(open, data, flags);
        }
        if write.append {
            return self.with_room(|| append(open, data, flags));
        }
        let offset = write.offset;
        if i64::try_from(offset).is_err() {
            return Err(Errno::EFBIG);
        }
        let mut count = 0;
        while count < data.len() {
            let at = offset + count as u64;
            match rustix::io::pwritev2(&open.fd, &[IoSlice::new(&data[count..])], at, flags) {
                Ok(0) => break,
                Ok(written) => count += written,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) if self.let_go_of_departed() => {}
                Err(error) => {
                    if write.stable && error == rustix::io::Errno::IO {
                        // The kernel may have said by it that something before was lost, and says
                        // so once.
                        open.note(&Err(Errno::EIO));
                    }
                    if count == 0 {
                        return Err(error.into());
                    }
                    break; // what was written counts; the next write meets the error again
                }
            }
        }
        Ok(Written { count: count as u32, verifier: open.verifier, offset })
    }
}

/// Writes at the end, in one piece: what did not fit there meets its error in the next write. Where writes may have to be sent again, the kernel is asked
/// where the data went: it moves the descriptor's own position, which nothing else here uses, to their end.
fn append(open: &OpenFile, data: &[u8], flags: ReadWriteFlags) -> Result<Written, Errno> {
    /// -1: at the descriptor's position, and moves it.
    const OWN_POSITION: u64 = u64::MAX;
    let write = |at| loop {
        match rustix::io::pwritev2(&open.fd, &[IoSlice::new(data)], at, flags) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result,
        }
    };
    if open.verifier == 0 || data.is_empty() {
        return Ok(Written { count: write(0)? as u32, verifier: open.verifier, offset: 0 });
    }
    let _alone = lock(&open.position);
    let count = write(OWN_POSITION)?;
    let end = rustix::fs::tell(&open.fd)?;
    Ok(Written { count: count as u32, verifier: open.verifier, offset: end - count as u64 })
}

fn make_stable(open: &OpenFile, data_only: bool) -> Result<(), Errno> {
    if data_only {
        rustix::fs::fdatasync(&open.fd)?
    } else {
        rustix::fs::fsync(&open.fd)?
    }
    Ok(())
}

fn read_unsized(open: &OpenFile, offset: u64, wanted: usize) -> Result<Vec<u8>, Errno> {
    let mut probe = [0];
    if wanted == 0 || aqueduct_fs::data::read_full(open.fd.as_fd(), &mut probe, offset)? == 0 {
        return Ok(Vec::new());
    }
    let mut data = vec![0; wanted];
    let valid = aqueduct_fs::data::read_full(open.fd.as_fd(), &mut data, offset)?;
    data.truncate(valid);
    Ok(data)
}
