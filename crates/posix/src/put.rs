//! Small new files, many at a time: each whole, with its attributes, and stable before any of them
//! has its name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aqueduct_fs::{Entry, Errno, Reply, Time, put::PutFile};
use rustix::fs::{AtFlags, Gid, OFlags, Timespec, Timestamps, Uid};

use crate::inodes::valid_id;
use crate::stability::is_memory;
use crate::{Posix, identity, sys};

impl Posix {
    /// Makes files; each by itself succeeds or fails, so that what is wrong with one is no reason
    /// against the others. EOPNOTSUPP: files cannot be made without a name here.
    pub(crate) fn put_files(&self, parent: &[u8], packed: &[u8], stable: bool) -> Result<Reply, Errno> {
        let files = aqueduct_fs::put::unpack(packed)?;
        let directory = self.directory(parent)?;
        let mut made = Vec::with_capacity(files.len());
        for file in &files {
            made.push(match self.put_unnamed((directory.as_fd(), parent), file) {
                Err(Errno::EOPNOTSUPP | Errno::EISDIR) if made.is_empty() => {
                    return Err(Errno::EOPNOTSUPP);
                }
                made => made,
            });
        }
        if (stable || self.sync) && !is_memory(directory.as_fd()) {
            make_stable(&mut made);
        }
        let name = |(file, made): (&PutFile<'_>, Result<OwnedFd, Errno>)| -> Result<Entry, Errno> {
            let made = made?;
            sys::link(made.as_fd(), directory.as_fd(), file.name)?;
            self.tree.entry(made.as_fd(), Some((directory.as_fd(), file.name)))
        };
        let named: Vec<_> = files.iter().zip(made).map(name).collect();
        if named.iter().any(Result::is_ok) {
            self.settle_node(&directory)?;
        }
        Ok(Reply::Put(named))
    }

    /// A file that is whole but for its name.
    fn put_unnamed(&self, (directory, parent): (BorrowedFd<'_>, &[u8]), file: &PutFile<'_>) -> Result<OwnedFd, Errno> {
        self.tree.check_name(parent, file.name, Errno::EPERM)?;
        let how = OFlags::WRONLY | OFlags::TMPFILE;
        let make = |mode| sys::open_name(directory, b".", how, mode, self.tree.cross_mounts);
        let made = identity::with_umask(0o600, 0, make)?;
        self.with_room(|| write_all(made.as_fd(), file.data))?;
        // Its group may be the directory's.
        let is = rustix::fs::fstat(&made)?;
        if (file.uid, file.gid) != (is.st_uid, is.st_gid) {
            let (uid, gid) = (Uid::from_raw(valid_id(file.uid)?), Gid::from_raw(valid_id(file.gid)?));
            rustix::fs::chownat(&made, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
        sys::change_mode(made.as_fd(), file.mode & 0o7777)?;
        let spec = |time: Time| Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanos) };
        let times = Timestamps { last_access: spec(file.atime), last_modification: spec(file.mtime) };
        sys::set_times(made.as_fd(), &times)?;
        Ok(made)
    }
}

fn write_all(fd: BorrowedFd<'_>, data: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < data.len() {
        match rustix::io::pwrite(fd, &data[done..], done as u64) {
            Ok(0) => return Err(Errno::ENOSPC),
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// All are on their way to the disk before the first is waited for: the journal of the file system
/// then takes them together.
fn make_stable(made: &mut [Result<OwnedFd, Errno>]) {
    for fd in made.iter().flatten() {
        sys::begin_writing_back(fd.as_fd());
    }
    for one in made {
        if let Ok(fd) = one
            && let Err(error) = rustix::fs::fsync(&*fd)
        {
            *one = Err(error.into());
        }
    }
}
