//! What is kept of the names in one directory: those that were looked up, there or not, and the whole listing.
//!
//! A listing is put together from its pages, with the server's cookies, and used when it is whole. Cookies so mean the same whether a page comes from here or from
//! the server. All come from one open, since what the server has read for another may be older than a change that was recalled since; and so is whole and true
//! as of its first page, for which the server reads afresh. That a name is not there is concluded from a listing only where the server says that it may be: some file systems find names by other spellings.
//!
//! Which of the names the kernel was told is known as well, name by name: to make it forget one, all names of the mount have to be looked up again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::HashMap;
use aqueduct_fs::{DirPage, NAME_LENGTH_MAX, OpenId};
use aqueduct_session::Nanos;

use super::view::View;

/// The most names kept of one directory; beyond, all are forgotten and kept anew. At 200 bytes each this is 6 MiB.
pub(super) const NAMES_MAX: usize = 32_768;

/// A name is not searched for in longer listings, which have no order.
const SEARCHED_MAX: usize = 2048;

/// The kernel is told nothing for so long of a name that was made or removed here: before the next change of it the kernel would have to forget all names.
const OWN_NAME_PAUSE: Nanos = 1_000_000_000;

/// What a name takes beside its bytes and its handle's: its place in the map, with room to grow.
const NAME_COST: usize = 144;

#[derive(Debug, Default)]
pub(super) struct Names {
    known: HashMap<Arc<[u8]>, Known>,
    listing: Listing,
    bytes: usize,
    /// How often the kernel was made to forget what it had been told of these names.
    round: u32,
    /// Until when it may have names that are not known here any more.
    unknown_told: Nanos,
    /// Since when all that is there is known: it was made here, empty, or listed; and all that was made in it since is known as well.
    complete_since: Option<Nanos>,
    /// The server says of its listings that what they do not have is not there. A folder that is made in it is of the same kind.
    is_exact: bool,
    /// The listing was fetched before anybody asked for it: where that is counted once somebody does.
    ahead: Option<Arc<AtomicUsize>>,
}

/// What a name stands for.
#[derive(Clone, Debug)]
struct Known {
    /// `None`: it is not there.
    handle: Option<Arc<[u8]>>,
    at: Nanos,
    /// Until when the kernel was told of it, and in which round.
    told: Nanos,
    round: u32,
    /// Somebody has asked for it already.
    was_asked: bool,
    /// When this client has made or removed it itself; a folder that it has made does not count.
    changed: Nanos,
}

#[derive(Debug, Default)]
struct Listing {
    entries: Vec<Listed>,
    is_whole: bool,
    /// What is not in it is not there.
    is_exact: bool,
    /// When the first of its pages was fetched.
    at: Nanos,
    /// The server's number of the open through which it came, which alone continues it, with what was asked for since then. `None`: without one.
    from: Option<(OpenId, Nanos)>,
    /// Where the latest page that was served ended: a cookie, and the index behind its entry.
    cursor: (u64, usize),
}

/// An entry of a listing, with the inode where it is known.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) ino: u64,
    pub(super) cookie: u64,
    pub(super) kind: u8,
    pub(super) name: Arc<[u8]>,
    pub(super) handle: Option<Arc<[u8]>>,
}

/// A page from the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fresh<'a> {
    /// The server's number of the open through which it came. `None`: without one.
    pub(super) open: Option<OpenId>,
    /// Behind what it was asked for.
    pub(super) cookie: u64,
    pub(super) page: &'a DirPage,
    /// When it came.
    pub(super) came: Nanos,
}

/// A part of a listing.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) entries: Vec<Listed>,
    pub(super) end: bool,
    pub(super) left: Nanos,
}

impl Names {
    /// What its memory is, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What a name stands for, and for how long that may be used. The inner `None`: it is not there.
    pub(super) fn get(&self, name: &[u8], view: &View) -> Option<(Option<Arc<[u8]>>, Nanos)> {
        let known = self.known.get(name)?;
        Some((known.handle.clone(), view.left(known.at)?))
    }

    /// Keeps that a name of which nothing is known is not there, if the listing says so.
    pub(super) fn conclude(&mut self, name: &[u8], view: &View) -> bool {
        let Listing { entries, is_whole, is_exact, at, .. } = &self.listing;
        let is_searched = *is_whole && *is_exact && entries.len() <= SEARCHED_MAX;
        let lists = || is_searched && !entries.iter().any(|entry| *entry.name == *name);
        let may = |at: Nanos| view.left(at).is_some() && name.len() <= NAME_LENGTH_MAX && self.known.len() < NAMES_MAX;
        let at = self.complete_since.unwrap_or(*at);
        let is_absent = may(at) && !self.known.contains_key(name) && (self.complete_since.is_some() || lists());
        if is_absent {
            self.keep(name, None, at);
        }
        is_absent
    }

    /// The directory was made just now, and nothing is in it.
    pub(super) fn is_new(&mut self, at: Nanos) {
        (self.complete_since, self.is_exact) = (Some(at), true);
    }

    /// The end of a listing has come, with inodes: all that is there may be known now.
    pub(super) fn is_listed(&mut self) {
        let Listing { entries, is_whole, is_exact, at, .. } = &self.listing;
        let is_known = |entry: &Listed| {
            matches!(&*entry.name, b"." | b"..")
                || self.known.get(&entry.name).is_some_and(|known| known.handle.is_some())
        };
        if *is_whole && *is_exact && entries.iter().all(is_known) {
            self.complete_since = Some(*at);
        }
    }

    /// Whether folders that are made in it are such that what they do not have is not there.
    pub(super) fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// A name has been changed, and what it stands for now may not be known.
    pub(super) fn has_changed(&mut self, name: &[u8]) {
        if !self.known.contains_key(name) {
            self.complete_since = None;
        }
    }

    /// The listing was fetched ahead: `uses` counts it when it is used first.
    pub(super) fn set_ahead(&mut self, uses: &Arc<AtomicUsize>) {
        self.ahead = Some(uses.clone());
    }

    /// Somebody uses it.
    pub(super) fn note_use(&mut self) {
        if let Some(uses) = self.ahead.take() {
            uses.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn keep(&mut self, name: &[u8], handle: Option<Arc<[u8]>>, at: Nanos) {
        if self.known.len() >= NAMES_MAX {
            self.clear();
        }
        self.bytes += known_cost(name, handle.as_ref());
        match self.known.get_mut(name) {
            Some(known) => {
                self.bytes -= known_cost(name, known.handle.as_ref());
                (known.handle, known.at) = (handle, at);
            }
            None => {
                _ = self
                    .known
                    .insert(name.into(), Known { handle, at, told: 0, round: 0, was_asked: false, changed: 0 })
            }
        }
    }

    /// Somebody asks for a name. Whether the kernel may be told: that it is not there only from the second time on, since whoever is about to make something looks
    /// whether it is there, once; and nothing of what was just made or removed here, as a lock is.
    pub(super) fn may_tell(&mut self, name: &[u8], now: Nanos) -> bool {
        let Some(known) = self.known.get_mut(name) else { return false };
        let was_asked = std::mem::replace(&mut known.was_asked, true);
        let is_settled = known.changed == 0 || now >= known.changed.saturating_add(OWN_NAME_PAUSE);
        is_settled && (known.handle.is_some() || was_asked)
    }

    /// This client has made or removed a name itself. Folders are walked through, and seldom removed soon.
    pub(super) fn keep_own(&mut self, name: &[u8], to: Option<Arc<[u8]>>, at: Nanos, is_directory: bool) {
        self.keep(name, to, at);
        if let Some(known) = self.known.get_mut(name).filter(|_| !is_directory) {
            known.changed = at;
        }
    }

    /// The kernel is told of a name.
    pub(super) fn tell(&mut self, name: &[u8], until: Nanos) {
        match self.known.get_mut(name) {
            Some(known) => (known.told, known.round) = (told_in(known, self.round).max(until), self.round),
            None => self.unknown_told = self.unknown_told.max(until),
        }
    }

    /// The name is about to be changed. Until when the kernel may have it.
    pub(super) fn drop_name(&mut self, name: &[u8]) -> Nanos {
        self.drop_listing();
        let Some(known) = self.known.remove(name) else { return self.unknown_told };
        self.bytes -= known_cost(name, known.handle.as_ref());
        told_in(&known, self.round).max(self.unknown_told)
    }

    /// The kernel is made to forget all names.
    pub(super) fn are_forgotten(&mut self) {
        (self.round, self.unknown_told) = (self.round.wrapping_add(1), 0);
    }

    pub(super) fn drop_listing(&mut self) {
        self.bytes -= cost(&self.listing.entries);
        self.listing = Listing::default();
    }

    fn clear(&mut self) {
        let told = self.known.values().map(|known| told_in(known, self.round)).max().unwrap_or(0);
        *self = Names { round: self.round, unknown_told: self.unknown_told.max(told), ..Names::default() };
    }

    /// Keeps a page that was asked for at a time, if it is the first or continues what is here. Behind the first the server may give what it has read for the same
    /// open before, which is no older than that open's first page, but may be older than another's.
    pub(super) fn keep_page(&mut self, Fresh { open, cookie, page, came }: Fresh<'_>, at: Nanos) {
        self.is_exact = page.exact;
        let listing = &mut self.listing;
        let begins = cookie == 0;
        let continues = listing.from.is_some_and(|(from, since)| open == Some(from) && at >= since);
        let is_of_use = if begins { open.is_some() || page.end } else { continues };
        // Hardly any file system lists a directory without itself, and ext4 says now and then that there is nothing at all.
        let is_nothing = begins && page.end && page.entries().next().is_none();
        if !is_of_use || is_nothing {
            return;
        }
        let from = match listing.entries.iter().rposition(|entry| entry.cookie == cookie) {
            _ if begins => 0,
            Some(index) => index + 1,
            None => return,
        };
        if begins {
            listing.from = open.map(|open| (open, came));
        }
        if listing.is_whole && is_same(&listing.entries[from..], page) && (!begins || page.end) {
            // The whole of it was fetched again, or a part that says nothing of the age of the others.
            listing.at = if begins { listing.at.max(at) } else { listing.at };
            listing.is_exact &= page.exact;
            return;
        }
        let mut entries: Vec<Listed> = Vec::new();
        for entry in page.entries() {
            let name = self.known.get_key_value(entry.name).map_or_else(|| entry.name.into(), |(name, _)| name.clone());
            let (ino, cookie, kind) = (entry.ino, entry.cookie, entry.kind);
            entries.push(Listed { ino, cookie, kind, name, handle: None });
        }
        self.bytes += cost(&entries);
        self.bytes -= cost(&listing.entries[from..]);
        listing.entries.truncate(from);
        listing.at = if begins { at } else { listing.at.min(at) };
        listing.cursor = (0, 0);
        // Where two entries have one cookie only the file system below knows where to go on.
        let before = listing.entries.last().map(|entry| entry.cookie);
        let cookies = || before.into_iter().chain(entries.iter().map(|entry| entry.cookie));
        let has_twins = cookies().zip(cookies().skip(1)).any(|(one, other)| one == other);
        listing.entries.append(&mut entries);
        listing.is_whole = page.end;
        listing.is_exact = page.exact && (begins || listing.is_exact);
        if has_twins || listing.entries.len() > NAMES_MAX {
            self.drop_listing();
        }
    }

    /// For how long the whole listing may be used, if it is here.
    pub(super) fn listing_left(&self, view: &View) -> Option<Nanos> {
        view.left(self.listing.at).filter(|_| self.listing.is_whole)
    }

    /// The entries behind `cookie` whose sizes, as `size` gives them, come to at most `room`. `None`: only the server can tell.
    pub(super) fn page(
        &mut self,
        cookie: u64,
        room: usize,
        view: &View,
        size: impl Fn(&Listed) -> usize,
    ) -> Option<Part> {
        let left = self.listing_left(view)?;
        let entries = &self.listing.entries;
        let from = match self.listing.cursor {
            _ if cookie == 0 => 0,
            (at, index) if at == cookie && index <= entries.len() => index,
            _ => entries.iter().position(|entry| entry.cookie == cookie)? + 1,
        };
        let mut part = Vec::new();
        let mut taken = 0;
        for entry in &entries[from..] {
            let handle = self.known.get(&entry.name).filter(|known| view.left(known.at).is_some());
            let entry = Listed { handle: handle.and_then(|known| known.handle.clone()), ..entry.clone() };
            taken += size(&entry);
            if taken > room {
                break;
            }
            part.push(entry);
        }
        let behind = from + part.len();
        let end = behind == entries.len();
        if let Some(last) = part.last() {
            self.listing.cursor = (last.cookie, behind);
        }
        Some(Part { entries: part, end, left })
    }
}

/// Until when the kernel was told of a name since it was made to forget all.
fn told_in(known: &Known, round: u32) -> Nanos {
    if known.round == round { known.told } else { 0 }
}

/// Whether a page says again what the listing begins with.
fn is_same(entries: &[Listed], page: &DirPage) -> bool {
    let mut count = 0;
    let same = page.entries().enumerate().all(|(at, entry)| {
        count += 1;
        entries.get(at).is_some_and(|listed| listed.cookie == entry.cookie && *listed.name == *entry.name)
    });
    same && page.end == (count == entries.len())
}

/// As if the handle were not the same memory as that of its inode, which may be kept no more.
fn known_cost(name: &[u8], handle: Option<&Arc<[u8]>>) -> usize {
    NAME_COST + name.len() + handle.map_or(0, |handle| handle.len())
}

fn cost(entries: &[Listed]) -> usize {
    entries.iter().map(|entry| size_of::<Listed>() + entry.name.len()).sum()
}
