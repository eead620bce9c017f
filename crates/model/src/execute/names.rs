//! Names.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, RawDir, RenameFlags, SeekFrom};
use rustix::io::Errno;

use super::hand::{Hand, Step, done};
use crate::op::{Name, Node, Path};
use crate::outcome::Outcome;

/// The number of /dev/null.
const DEVICE: (u32, u32) = (1, 3);

impl Hand {
    pub(super) fn name(&mut self, name: &Name) -> Step {
        match name {
            Name::MakeDirectory { path, mode } => done(fs::mkdirat(CWD, path.0.as_slice(), Mode::from_raw_mode(*mode))),
            Name::MakeNode { path, node, mode } => {
                let (kind, device) = match node {
                    Node::Fifo => (FileType::Fifo, 0),
                    Node::Socket => (FileType::Socket, 0),
                    Node::Regular => (FileType::RegularFile, 0),
                    Node::Device => (FileType::CharacterDevice, fs::makedev(DEVICE.0, DEVICE.1)),
                };
                done(fs::mknodat(CWD, path.0.as_slice(), kind, Mode::from_raw_mode(*mode), device))
            }
            Name::Symlink { target, path } => done(fs::symlinkat(target.0.as_slice(), CWD, path.0.as_slice())),
            Name::ReadLink { path } => {
                Ok(Outcome::Bytes(fs::readlinkat(CWD, path.0.as_slice(), Vec::new())?.into_bytes()))
            }
            Name::Link { path, to, follow } => {
                let flags = if *follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
                done(fs::linkat(CWD, path.0.as_slice(), CWD, to.0.as_slice(), flags))
            }
            Name::Unlink { path } => done(fs::unlinkat(CWD, path.0.as_slice(), AtFlags::empty())),
            Name::RemoveDirectory { path } => done(fs::unlinkat(CWD, path.0.as_slice(), AtFlags::REMOVEDIR)),
            Name::Rename { path, to, exchange, no_replace } => {
                let mut flags = RenameFlags::empty();
                flags.set(RenameFlags::EXCHANGE, *exchange);
                flags.set(RenameFlags::NOREPLACE, *no_replace);
                done(fs::renameat_with(CWD, path.0.as_slice(), CWD, to.0.as_slice(), flags))
            }
            Name::List { target } => {
                let directory = self.descriptor(target, OFlags::DIRECTORY)?;
                Ok(Outcome::Names(list(std::os::fd::AsFd::as_fd(&directory))?))
            }
        }
    }
}

/// The names of an open directory with their types, sorted, without `.` and `..`.
pub fn list(directory: BorrowedFd<'_>) -> Result<Vec<(Path, FileType)>, Errno> {
    fs::seek(directory, SeekFrom::Start(0))?;
    let mut names = Vec::new();
    let mut buffer = [const { MaybeUninit::<u8>::uninit() }; 8192];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push((Path(name.to_vec()), entry.file_type()));
        }
    }
    // Back to the start: at another position, which is the file system's own number, read(2) may give EINVAL instead of EISDIR.
    fs::seek(directory, SeekFrom::Start(0))?;
    names.sort_by(|a, b| a.0.0.cmp(&b.0.0));
    Ok(names)
}
