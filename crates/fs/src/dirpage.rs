//! A page of directory entries in one packed buffer, which is also its form on the wire: made once at the server, read once where the kernel is
//! answered, and passed on between without being taken apart.
//!
//! Each entry, little-endian: ino u64, cookie u64, kind u8 (DT_*), flags u8 (1: an inode follows), name length u16, name bytes; with an
//! inode: handle length u16, handle bytes, [`Attr`] in [`ATTR_SIZE`] bytes.

use crate::Errno;
use crate::types::{Attr, HANDLE_LENGTH_MAX, NAME_LENGTH_MAX, Time};

/// The packed size of an [`Attr`] in bytes.
pub const ATTR_SIZE: usize = 112;

const FIXED_SIZE: usize = 20;
const FLAG_INODE: u8 = 1;

/// Entries of a directory in the order of the listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirPage {
    packed: Vec<u8>,
    /// Whether the listing ends with this page. An empty page that is not the end means that `size` held not even one entry.
    pub end: bool,
    /// A name that no page of the listing has is not there: this file system finds names by no other spelling than the one that it lists.
    pub exact: bool,
}

/// One entry, borrowed from its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Inode number.
    pub ino: u64,
    /// Continues the listing after this entry.
    pub cookie: u64,
    /// File type as `DT_*`; 0 unknown.
    pub kind: u8,
    /// The name, any bytes; also `.` and `..`.
    pub name: &'a [u8],
    /// Handle and attributes where asked for and to be had (never for `.` and `..`).
    pub inode: Option<(&'a [u8], Attr)>,
}

impl DirEntry<'_> {
    /// Its packed size in bytes.
    pub fn packed_size(&self) -> usize {
        FIXED_SIZE + self.name.len() + self.inode.map_or(0, |(handle, _)| 2 + handle.len() + ATTR_SIZE)
    }
}

impl DirPage {
    /// A page from its packed form; EPROTO when it is not well-formed.
    pub fn from_packed(packed: Vec<u8>, end: bool) -> Result<DirPage, Errno> {
        let mut rest = &packed[..];
        while !rest.is_empty() {
            rest = parse(rest).ok_or(Errno::EPROTO)?.1;
        }
        Ok(DirPage { packed, end, exact: false })
    }

    /// The packed form.
    pub fn packed(&self) -> &[u8] {
        &self.packed
    }

    /// Appends an entry. Its name and handle must be within their limits, which whoever made them has checked.
    pub fn push(&mut self, entry: &DirEntry<'_>) {
        debug_assert!(entry.name.len() <= NAME_LENGTH_MAX);
        let packed = &mut self.packed;
        packed.extend_from_slice(&entry.ino.to_le_bytes());
        packed.extend_from_slice(&entry.cookie.to_le_bytes());
        packed.push(entry.kind);
        packed.push(if entry.inode.is_some() { FLAG_INODE } else { 0 });
        packed.extend_from_slice(&(entry.name.len() as u16).to_le_bytes());
        packed.extend_from_slice(entry.name);
        if let Some((handle, attr)) = &entry.inode {
            packed.extend_from_slice(&(handle.len() as u16).to_le_bytes());
            packed.extend_from_slice(handle);
            packed.extend_from_slice(&pack_attr(attr));
        }
    }

    /// Changes the attributes of the entries that have an inode.
    pub fn change_attrs(&mut self, change: impl Fn(&mut Attr)) {
        let mut at = 0;
        while let Some((entry, rest)) = parse(&self.packed[at..]) {
            let end = self.packed.len() - rest.len();
            if let Some((_, mut attr)) = entry.inode {
                change(&mut attr);
                self.packed[end - ATTR_SIZE..end].copy_from_slice(&pack_attr(&attr));
            }
            at = end;
        }
    }

    /// Takes the inodes out of some entries.
    pub fn hide_inodes(&mut self, hides: impl Fn(&[u8], &Attr) -> bool) {
        let hides = |entry: &DirEntry<'_>| entry.inode.is_some_and(|(handle, attr)| hides(handle, &attr));
        let hidden: Vec<bool> = self.entries().map(|entry| hides(&entry)).collect();
        if !hidden.contains(&true) {
            return;
        }
        let mut page = DirPage { packed: Vec::with_capacity(self.packed.len()), ..*self };
        for (entry, is_hidden) in self.entries().zip(hidden) {
            page.push(&DirEntry { inode: entry.inode.filter(|_| !is_hidden), ..entry });
        }
        *self = page;
    }

    /// The entries in order.
    pub fn entries(&self) -> impl Iterator<Item = DirEntry<'_>> {
        let mut rest = &self.packed[..];
        std::iter::from_fn(move || {
            let (entry, after) = parse(rest)?;
            rest = after;
            Some(entry)
        })
    }
}

fn split(bytes: &[u8], length: usize) -> Option<(&[u8], &[u8])> {
    (bytes.len() >= length).then(|| bytes.split_at(length))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn parse(bytes: &[u8]) -> Option<(DirEntry<'_>, &[u8])> {
    let (fixed, rest) = split(bytes, FIXED_SIZE)?;
    let name_length = usize::from(u16_at(fixed, 18));
    if name_length == 0 || name_length > NAME_LENGTH_MAX || fixed[17] & !FLAG_INODE != 0 {
        return None;
    }
    let (name, mut rest) = split(rest, name_length)?;
    if name.contains(&0) || name.contains(&b'/') {
        return None;
    }
    let mut inode = None;
    if fixed[17] & FLAG_INODE != 0 {
        let (length, after) = split(rest, 2)?;
        let handle_length = usize::from(u16_at(length, 0));
        if handle_length == 0 || handle_length > HANDLE_LENGTH_MAX {
            return None;
        }
        let (handle, after) = split(after, handle_length)?;
        let (attr, after) = split(after, ATTR_SIZE)?;
        inode = Some((handle, unpack_attr(attr.try_into().ok()?)?));
        rest = after;
    }
    Some((DirEntry { ino: u64_at(fixed, 0), cookie: u64_at(fixed, 8), kind: fixed[16], name, inode }, rest))
}

/// Packs attributes, little-endian: ino, size, blocks, rdev u64; atime, mtime, ctime, btime seconds i64; their nanos u32; mode, nlink, uid, gid,
/// blksize u32; then zeros.
pub fn pack_attr(attr: &Attr) -> [u8; ATTR_SIZE] {
    let mut packed = [0; ATTR_SIZE];
    let times = [attr.atime, attr.mtime, attr.ctime, attr.btime];
    for (at, value) in [attr.ino, attr.size, attr.blocks, attr.rdev].into_iter().enumerate() {
        packed[at * 8..at * 8 + 8].copy_from_slice(&value.to_le_bytes());
    }
    for (at, time) in times.into_iter().enumerate() {
        packed[32 + at * 8..40 + at * 8].copy_from_slice(&time.seconds.to_le_bytes());
        packed[64 + at * 4..68 + at * 4].copy_from_slice(&time.nanos.to_le_bytes());
    }
    for (at, value) in [attr.mode, attr.nlink, attr.uid, attr.gid, attr.blksize].into_iter().enumerate() {
        packed[80 + at * 4..84 + at * 4].copy_from_slice(&value.to_le_bytes());
    }
    packed
}

/// The attributes from their packed form; `None` when a time's nanoseconds are a second or more.
pub fn unpack_attr(packed: &[u8; ATTR_SIZE]) -> Option<Attr> {
    let time = |at: usize| {
        let nanos = u32_at(packed, 64 + at * 4);
        (nanos < 1_000_000_000).then_some(Time { seconds: u64_at(packed, 32 + at * 8) as i64, nanos })
    };
    Some(Attr {
        ino: u64_at(packed, 0),
        size: u64_at(packed, 8),
        blocks: u64_at(packed, 16),
        rdev: u64_at(packed, 24),
        atime: time(0)?,
        mtime: time(1)?,
        ctime: time(2)?,
        btime: time(3)?,
        mode: u32_at(packed, 80),
        nlink: u32_at(packed, 84),
        uid: u32_at(packed, 88),
        gid: u32_at(packed, 92),
        blksize: u32_at(packed, 96),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packed_pages_round_trip(names in prop::collection::vec(prop::collection::vec(1u8..=46, 1..40), 0..20), with_inode: bool, ino: u64, seconds: i64) {
            let attr = Attr { ino, size: 7, mtime: Time { seconds, nanos: 999_999_999 }, mode: 0o100644, ..Attr::default() };
            let handle = [9u8; 33];
            let mut page = DirPage::default();
            let mut expected_size = 0;
            for (at, name) in names.iter().enumerate() {
                let entry = DirEntry { ino, cookie: at as u64, kind: 8, name, inode: with_inode.then_some((&handle[..], attr)) };
                expected_size += entry.packed_size();
                page.push(&entry);
            }
            prop_assert_eq!(page.packed().len(), expected_size);
            let again = DirPage::from_packed(page.packed().to_vec(), false).unwrap();
            let seen: Vec<_> = again.entries().map(|entry| (entry.cookie, entry.name.to_vec(), entry.inode.map(|(_, attr)| attr))).collect();
            let expected: Vec<_> = names.iter().enumerate().map(|(at, name)| (at as u64, name.clone(), with_inode.then_some(attr))).collect();
            prop_assert_eq!(seen, expected);
        }

        #[test]
        fn only_the_inodes_that_are_hidden_go(hidden in prop::collection::vec(any::<bool>(), 0..20)) {
            let handles: Vec<[u8; 1]> = (0..hidden.len() as u8).map(|at| [at + 1]).collect();
            let mut page = DirPage { end: true, exact: true, ..DirPage::default() };
            for (at, handle) in handles.iter().enumerate() {
                page.push(&DirEntry { ino: 1, cookie: at as u64, kind: 8, name: b"name", inode: Some((handle, Attr::default())) });
            }
            let before = page.clone();
            page.hide_inodes(|handle, _| hidden[usize::from(handle[0]) - 1]);
            prop_assert_eq!((page.end, page.exact), (true, true));
            let expected: Vec<_> = before.entries().zip(&hidden).map(|(entry, hidden)| DirEntry { inode: entry.inode.filter(|_| !hidden), ..entry }).collect();
            prop_assert_eq!(page.entries().collect::<Vec<_>>(), expected);
        }

        #[test]
        fn damaged_pages_are_refused_or_well_formed(packed in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(page) = DirPage::from_packed(packed, true) {
                for entry in page.entries() {
                    prop_assert!(!entry.name.is_empty() && !entry.name.contains(&b'/'));
                }
            }
        }
    }
}
