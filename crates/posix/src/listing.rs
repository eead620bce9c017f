//! Listing a directory in pages. The kernel's own position of an entry is its cookie, so that a listing goes on after any entry, in this open or
//! in a later one, and holds no more than one buffer however many entries there are.

use std::os::fd::{AsFd, BorrowedFd};

use aqueduct_fs::{DirEntry, DirPage, Errno};

use crate::opens::OpenFile;
use crate::tree::{Node, Tree};
use crate::unlinked::FOLDER;
use crate::{lock, sys};

/// The buffer of one listing in bytes: some 800 entries, and what the C library asks for at once.
const BUFFER_SIZE: usize = 32 * 1024;

/// How often a directory is read from its start that seems to have nothing, not even itself: ext4 says so, some 3 times of 100,000, to who goes back to the
/// start of one that others change (Linux 6.18). Who believed it under a lease would have an empty directory until the next change.
const STARTS_MAX: u32 = 4;

/// The most listings that keep their buffers between pages: 32 MiB in all. Beyond, each page is read from the directory anew.
const BUFFERS_MAX: usize = 1024;

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
struct Record<'a> {
    ino: u64,
    position: u64,
    kind: u8,
    name: &'a [u8],
    length: usize,
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
    fn peek(&mut self, fd: BorrowedFd<'_>) -> Result<Option<Record<'_>>, Errno> {
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

    fn advance(&mut self, length: usize, position: u64) {
        self.at += length;
        self.position = Some(position);
    }

    fn go_to(&mut self, fd: BorrowedFd<'_>, cookie: u64) -> Result<(), Errno> {
        // From the start everything is read afresh (rewinddir).
        if self.position == Some(cookie) && cookie != 0 {
            return Ok(());
        }
        self.forget();
        rustix::fs::seek(fd, rustix::fs::SeekFrom::Start(cookie))?;
        self.position = Some(cookie);
        Ok(())
    }

    fn forget(&mut self) {
        *self = Listing::default();
    }
}

/// What a page is to hold.
pub(crate) struct Wanted {
    pub(crate) cookie: u64,
    pub(crate) size: u32,
    pub(crate) plus: bool,
    /// The open directories of all clients.
    pub(crate) listings: usize,
}

/// The page of `open` after `wanted.cookie`.
pub(crate) fn page(tree: &Tree, open: &OpenFile, wanted: &Wanted) -> Result<DirPage, Errno> {
    let mut listing = lock(open.listing.as_ref().ok_or(Errno::ENOTDIR)?);
    let fd = open.fd.as_fd();
    let is_root = open.handle == *tree.root_handle();
    let hides_folders = tree.hides_folders(open.inode);
    listing.go_to(fd, wanted.cookie)?;
    let mut page = DirPage::default();
    // Only whoever asks for inodes looks for names in what it is given.
    page.exact = wanted.plus && sys::lists_exact_names(fd);
    loop {
        let record = match listing.peek(fd) {
            Ok(Some(record)) => record,
            Ok(None) => {
                page.end = true;
                break;
            }
            // What was listed is good; the next page meets the error again.
            Err(_) if !page.packed().is_empty() => break,
            Err(error) => return Err(error),
        };
        let Record { ino, position, kind, name, length } = record;
        let is_hidden = hides_folders && name.starts_with(FOLDER);
        if is_hidden || name.is_empty() || name.len() > aqueduct_fs::NAME_LENGTH_MAX {
            listing.advance(length, position);
            continue;
        }
        let is_dot = matches!(name, b"." | b"..");
        // What lies above the root is nobody's business.
        let ino = if is_root && name == b".." { tree.root_ino() } else { ino };
        let plain = DirEntry { ino, cookie: position, kind, name, inode: None };
        let room = (wanted.size as usize).saturating_sub(page.packed().len());
        if plain.packed_size() > room {
            break;
        }
        let found = if wanted.plus && !is_dot { look(tree, fd, name) } else { None };
        let full = match &found {
            Some(entry) => {
                let inode = Some((entry.handle.bytes(), entry.attr));
                // The number is that of the inode, also where a file system is mounted over the name.
                DirEntry { ino: entry.attr.ino, inode, ..plain }
            }
            None => plain,
        };
        if full.packed_size() > room {
            break;
        }
        page.push(&full);
        listing.advance(length, position);
    }
    if wanted.listings > BUFFERS_MAX {
        listing.forget();
    }
    Ok(page)
}

/// The inode of an entry; none when it has vanished, lies on another file system, or may not be looked up.
fn look(tree: &Tree, directory: BorrowedFd<'_>, name: &[u8]) -> Option<aqueduct_fs::Entry> {
    let fd = Node::Own(tree.open_path(directory, name).ok()?);
    tree.entry(fd.as_fd(), Some((directory, name))).ok()
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
