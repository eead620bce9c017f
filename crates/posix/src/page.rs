//! Pages of a listing, as clients see the directory.

use std::os::fd::{AsFd, BorrowedFd};

use aqueduct_fs::{DirEntry, DirPage, Errno};

use crate::listing::Record;
use crate::lock::lock;
use crate::open_file::OpenFile;
use crate::sys;
use crate::tree::{Node, Tree};
use crate::unlinked::FOLDER;

/// The most listings that keep their buffers between pages: 32 MiB in all. Beyond, each page is
/// read from the directory anew.
const BUFFERS_MAX: usize = 1024;

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
                // The number is that of the inode, also where a file system is mounted over the
                // name.
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

/// The inode of an entry; none when it has vanished, lies on another file system, or may not be
/// looked up.
fn look(tree: &Tree, directory: BorrowedFd<'_>, name: &[u8]) -> Option<aqueduct_fs::Entry> {
    let fd = Node::Own(tree.open_path(directory, name).ok()?);
    tree.entry(fd.as_fd(), Some((directory, name))).ok()
}
