//! Every system call that may wait for a server, one each: what a program is in when it is to be ended.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, chown, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, RenameFlags, SeekFrom, XattrFlags};

use crate::sys::{self, Hold, Request};

/// A call on the things that [`prepare`] made; `file` is the file of that name, opened for reading and writing.
type Call = fn(path: &Path, file: &File) -> io::Result<()>;

/// The bytes of `file`.
const SIZE: usize = 8192;

/// Makes what the calls are about.
pub fn prepare(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::write(path.join("file"), [b'x'; SIZE])?;
    fs::write(path.join("other"), "other")?;
    fs::create_dir(path.join("empty"))?;
    symlink("file", path.join("link"))?;
    Ok(rustix::fs::setxattr(path.join("file"), "user.there", b"value", XattrFlags::empty())?)
}

/// The calls by their names.
pub const CALLS: [(&str, Call); 37] = [
    ("stat", |path, _| fs::metadata(path.join("file")).map(drop)),
    ("statfs", |path, _| Ok(rustix::fs::statfs(path).map(drop)?)),
    ("access", |path, _| Ok(rustix::fs::access(path.join("file"), rustix::fs::Access::READ_OK)?)),
    ("readlink", |path, _| fs::read_link(path.join("link")).map(drop)),
    ("open", |path, _| File::open(path.join("file")).map(drop)),
    ("create", |path, _| File::create_new(path.join("new")).map(drop)),
    ("mkdir", |path, _| fs::create_dir(path.join("new"))),
    ("mkfifo", |path, _| Ok(rustix::fs::mkfifoat(CWD, path.join("new"), Mode::RUSR)?)),
    ("symlink", |path, _| symlink("text", path.join("new"))),
    ("link", |path, _| fs::hard_link(path.join("file"), path.join("new"))),
    ("rename", |path, _| fs::rename(path.join("file"), path.join("new"))),
    ("renameat2", |path, _| {
        let (from, to) = (path.join("file"), path.join("other"));
        Ok(rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE)?)
    }),
    ("unlink", |path, _| fs::remove_file(path.join("other"))),
    ("rmdir", |path, _| fs::remove_dir(path.join("empty"))),
    ("readdir", |path, _| fs::read_dir(path)?.try_for_each(|entry| entry.map(drop))),
    ("chmod", |path, _| Ok(rustix::fs::chmod(path.join("file"), Mode::RUSR)?)),
    ("fchmod", |_, file| Ok(rustix::fs::fchmod(file, Mode::RUSR)?)),
    ("chown", |path, _| chown(path.join("file"), Some(1), Some(1))),
    ("utimensat", |path, _| {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
        Ok(rustix::fs::utimensat(CWD, path.join("file"), &times, AtFlags::empty())?)
    }),
    ("truncate", |path, _| File::options().write(true).truncate(true).open(path.join("other")).map(drop)),
    ("ftruncate", |_, file| file.set_len(1)),
    ("fstat", |_, file| file.metadata().map(drop)),
    ("read", |_, file| file.read_at(&mut [0; 100], 0).map(drop)),
    ("write", |_, file| file.write_at(b"written", 0).map(drop)),
    ("append", |path, _| {
        use std::io::Write;
        File::options().append(true).open(path.join("file"))?.write_all(b"appended")
    }),
    ("fsync", |_, file| file.sync_all()),
    ("fdatasync", |_, file| file.sync_data()),
    ("fallocate", |_, file| Ok(rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 2 * SIZE as u64)?)),
    ("lseek", |_, file| Ok(rustix::fs::seek(file, SeekFrom::Data(0)).map(drop)?)),
    ("copy_file_range", |path, file| {
        let other = File::options().write(true).open(path.join("other"))?;
        Ok(rustix::fs::copy_file_range(file, Some(&mut 0), other, Some(&mut 0), SIZE).map(drop)?)
    }),
    ("getxattr", |path, _| Ok(rustix::fs::getxattr(path.join("file"), "user.there", &mut [0u8; 64]).map(drop)?)),
    ("listxattr", |path, _| Ok(rustix::fs::listxattr(path.join("file"), &mut [0u8; 256]).map(drop)?)),
    ("setxattr", |path, _| Ok(rustix::fs::setxattr(path.join("file"), "user.new", b"value", XattrFlags::CREATE)?)),
    ("removexattr", |path, _| Ok(rustix::fs::removexattr(path.join("file"), "user.there")?)),
    ("fcntl", |_, file| sys::lock(file.as_fd(), Request::Process, Hold::Write, 0, 0, true)),
    ("flock", |_, file| Ok(rustix::fs::flock(file, FlockOperation::LockExclusive)?)),
    ("page fault", |_, file| sys::load_private(file.as_fd(), SIZE).map(drop)),
];

/// Makes the call of this name.
pub fn call(name: &str, path: &Path, file: &File) -> io::Result<()> {
    let (_, call) = CALLS.iter().find(|(known, _)| *known == name).expect("a call of this name");
    call(path, file)
}
