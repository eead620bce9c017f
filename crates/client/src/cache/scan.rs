//! Which files somebody who reads one after another is likely to read next: those behind it in a listing. Pure.
//!
//! What is fetched ahead costs credit, what of it is read brings twice as much: who opens files here and there soon has none, who scans a tree always has.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use aqueduct_wire::{FETCH_LENGTH_MAX, FETCH_MAX, fetch_room};

/// Directories whose files are known: a scan goes down into subdirectories and comes back.
const DIRECTORIES_MAX: usize = 64;

/// Files of all of them, at about 100 bytes each.
const FILES_MAX: usize = 16_384;

/// What may be wasted on somebody of whom nothing is known yet: files of one batch.
const CREDIT_FIRST: usize = FETCH_MAX;

/// So much of it can be gathered.
const CREDIT_MAX: usize = 16 * FETCH_MAX;

/// Files of the first batch in a directory that nobody is known to scan.
const BATCH_FIRST: usize = 8;

/// Directories of which it is known how often names in them were asked for.
const LOOKUPS_MAX: usize = 4096;

/// A directory is listed when the server is asked for so many names in it.
const LISTS_AT: [u32; 3] = [2, 32, 512];

#[derive(Debug)]
struct File {
    handle: Arc<[u8]>,
    size: u64,
    is_fetched: bool,
}

#[derive(Debug)]
struct Directory {
    number: u64,
    handle: Arc<[u8]>,
    files: Vec<File>,
    /// Opens for which the server had to be asked, and the place of the latest.
    opens: u32,
    latest: usize,
}

/// The files of the directories that were listed last, in the order of the listings.
#[derive(Debug)]
pub(super) struct Scans {
    directories: VecDeque<Directory>,
    /// Directory and place of each file.
    places: HashMap<Arc<[u8]>, (u64, usize)>,
    /// What was fetched ahead and not read yet.
    unread: HashSet<Arc<[u8]>>,
    numbers: u64,
    credit: usize,
    /// How often the server was asked for a name in a directory.
    lookups: HashMap<Arc<[u8]>, u32>,
}

impl Default for Scans {
    fn default() -> Scans {
        Scans {
            directories: VecDeque::new(),
            places: HashMap::new(),
            unread: HashSet::new(),
            numbers: 0,
            credit: CREDIT_FIRST,
            lookups: HashMap::new(),
        }
    }
}

impl Scans {
    /// A page of a directory has come, with its regular files and their sizes; the first page, or one that follows.
    pub(super) fn listed(&mut self, handle: &Arc<[u8]>, is_first: bool, files: impl Iterator<Item = (Arc<[u8]>, u64)>) {
        let known = self.directories.iter().position(|directory| directory.handle == *handle);
        let mut directory = match known.and_then(|at| self.directories.remove(at)) {
            Some(directory) if !is_first => directory,
            known => {
                known.into_iter().for_each(|directory| self.forget(&directory));
                self.numbers += 1;
                Directory { number: self.numbers, handle: handle.clone(), files: Vec::new(), opens: 0, latest: 0 }
            }
        };
        for (handle, size) in files.filter(|(_, size)| *size <= u64::from(FETCH_LENGTH_MAX)) {
            if directory.files.len() >= FILES_MAX {
                break; // the others are opened one by one
            }
            let place = (directory.number, directory.files.len());
            let known = self.places.entry(handle.clone()).or_insert(place);
            if known.0 == place.0 && *known != place {
                continue; // a page that comes again, or another name
            }
            *known = place;
            directory.files.push(File { handle, size, is_fetched: false });
        }
        self.directories.push_back(directory);
        while self.directories.len() > DIRECTORIES_MAX || self.places.len() > FILES_MAX && self.directories.len() > 1 {
            let Some(oldest) = self.directories.pop_front() else { break };
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, directory: &Directory) {
        for file in &directory.files {
            self.unread.remove(&file.handle);
            if self.places.get(&file.handle).is_some_and(|(number, _)| *number == directory.number) {
                self.places.remove(&file.handle);
            }
        }
    }

    /// Somebody opens a file, and the server has to be asked: what to fetch, the file itself first. Empty: nothing is known of it, or nothing more than the
    /// file would be wanted.
    pub(super) fn opens(&mut self, handle: &[u8]) -> Vec<Arc<[u8]>> {
        let Some((number, at)) = self.places.get(handle).copied() else { return Vec::new() };
        let Some(directory) = self.directories.iter_mut().find(|directory| directory.number == number) else {
            return Vec::new();
        };
        directory.opens += 1;
        let follows = directory.opens > 1 && at == directory.latest + 1;
        directory.latest = at;
        if follows && self.credit < CREDIT_FIRST {
            self.credit += 1; // whoever has wasted it all may be another by now
        }
        let batch = match directory.opens {
            _ if self.credit > CREDIT_FIRST => FETCH_MAX,
            1 => return Vec::new(),
            opens => (BATCH_FIRST << (opens - 2).min(8)).min(FETCH_MAX),
        };
        // The file itself was asked for: it costs nothing.
        let batch = batch.min(self.credit + 1);
        let mut room = fetch_room(batch) as u64;
        let mut wanted = Vec::with_capacity(batch);
        for file in &mut directory.files[at..] {
            let is_first = wanted.is_empty();
            if file.is_fetched && !is_first {
                continue;
            }
            if wanted.len() == batch || file.size > room && !is_first {
                break;
            }
            room = room.saturating_sub(file.size);
            file.is_fetched = true;
            wanted.push(file.handle.clone());
        }
        if wanted.len() < 2 {
            return Vec::new();
        }
        self.credit -= wanted.len() - 1;
        self.unread.extend(wanted[1..].iter().cloned());
        wanted
    }

    /// The server has to be asked for a name in a directory: whether to ask for all of them. Those who look up one name and another are likely to want a
    /// third; if they ask again all the same, others change the directory, or it is too large to be listed at once.
    pub(super) fn looks_up(&mut self, directory: &[u8]) -> bool {
        if self.lookups.len() >= LOOKUPS_MAX {
            self.lookups.clear();
        }
        let Some(count) = self.lookups.get_mut(directory) else {
            self.lookups.insert(directory.into(), 1);
            return false;
        };
        *count = count.saturating_add(1);
        LISTS_AT.contains(count)
    }

    /// The server knows no FETCH: nothing more is spent on it.
    pub(super) fn fails(&mut self) {
        self.credit = 0;
    }

    /// A file is read.
    pub(super) fn reads(&mut self, handle: &[u8]) {
        if self.unread.remove(handle) {
            self.credit = (self.credit + 2).min(CREDIT_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(directory: usize, at: usize) -> Arc<[u8]> {
        format!("{directory}/{at}").into_bytes().into()
    }

    fn list(scans: &mut Scans, directory: usize, count: usize, size: u64) {
        scans.listed(&Arc::from([directory as u8]), true, (0..count).map(|at| (file(directory, at), size)));
    }

    /// Opens and reads files of a directory in this order; returns how many requests that takes, and how many files were fetched for nothing.
    fn read(scans: &mut Scans, directory: usize, order: impl Iterator<Item = usize>) -> (usize, usize) {
        let (mut requests, mut here) = (0, HashSet::new());
        for at in order {
            let handle = file(directory, at);
            if !here.remove(&handle) {
                requests += 1;
                let fetched = scans.opens(&handle);
                assert!(fetched.first().is_none_or(|first| *first == handle));
                assert!(fetched.len() <= FETCH_MAX);
                here.extend(fetched.into_iter().skip(1));
            }
            scans.reads(&handle);
        }
        (requests, here.len())
    }

    #[test]
    fn who_reads_one_after_another_is_read_ahead_for() {
        let mut scans = Scans::default();
        list(&mut scans, 1, 1000, 100);
        let (requests, wasted) = read(&mut scans, 1, 0..1000);
        assert!((16..20).contains(&requests) && wasted == 0, "{requests} {wasted}");
        // Known by now: the next directory's first file brings the others.
        list(&mut scans, 2, 20, 100);
        assert_eq!(read(&mut scans, 2, 0..20), (1, 0));
    }

    #[test]
    fn one_file_here_and_there_costs_nothing_more() {
        let mut scans = Scans::default();
        for directory in 0..60 {
            list(&mut scans, directory, 100, 100);
            assert_eq!(read(&mut scans, directory, [directory].into_iter()), (1, 0));
        }
    }

    #[test]
    fn what_is_fetched_for_nothing_is_bounded() {
        let mut scans = Scans::default();
        let mut wasted = 0;
        for directory in 0..60 {
            list(&mut scans, directory, 1000, 100);
            wasted += read(&mut scans, directory, [0, 500, 250].into_iter()).1;
        }
        assert!(wasted <= CREDIT_FIRST, "{wasted}");
    }

    #[test]
    fn whoever_begins_to_scan_gets_credit_again() {
        let mut scans = Scans { credit: 0, ..Scans::default() };
        list(&mut scans, 1, 2000, 100);
        let (requests, wasted) = read(&mut scans, 1, 0..2000);
        assert!(requests < 100 && wasted == 0, "{requests} {wasted}");
    }

    #[test]
    fn a_directory_is_listed_for_who_looks_up_names_in_it_but_not_again_and_again() {
        let mut scans = Scans::default();
        let lists = (0..10_000).filter(|_| scans.looks_up(b"directory")).count();
        assert_eq!(lists, LISTS_AT.len());
        assert!(!scans.looks_up(b"other") && scans.looks_up(b"other"));
        assert!((0..10_000u32).all(|at| !scans.looks_up(&at.to_le_bytes())));
        assert!(scans.lookups.len() <= LOOKUPS_MAX);
    }

    #[test]
    fn a_batch_fits_into_a_reply_and_large_files_are_left_out() {
        let mut scans = Scans { credit: CREDIT_MAX, ..Scans::default() };
        list(&mut scans, 1, 100, 50 << 10);
        assert_eq!(scans.opens(&file(1, 0)).len(), 2);
        assert_eq!(scans.opens(&file(1, 98)).len(), 2);
        assert!(scans.opens(&file(1, 99)).is_empty());
        list(&mut scans, 2, 10, 65 << 10);
        assert!(scans.opens(&file(2, 0)).is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut scans = Scans::default();
        for directory in 0..200 {
            list(&mut scans, directory, 1000, 100);
            scans.opens(&file(directory, 0));
            scans.opens(&file(directory, 1));
        }
        assert!(scans.places.len() <= FILES_MAX && scans.directories.len() <= DIRECTORIES_MAX);
        assert!(scans.unread.len() <= FILES_MAX);
        let known: usize = scans.directories.iter().map(|directory| directory.files.len()).sum();
        assert_eq!(known, scans.places.len());
    }

    #[test]
    fn one_directory_takes_no_more_than_all() {
        let mut scans = Scans::default();
        let known = |scans: &Scans| (scans.directories[0].files.len(), scans.places.len());
        for _ in 0..3 {
            let page = (0..1000).map(|at| (file(1, at), 100));
            scans.listed(&Arc::from([1]), false, page);
        }
        assert_eq!(known(&scans), (1000, 1000), "a page that comes again is known");
        for page in 1..40 {
            let page = (page * 1000..page * 1000 + 1000).map(|at| (file(1, at), 100));
            scans.listed(&Arc::from([1]), false, page);
        }
        assert_eq!(known(&scans), (FILES_MAX, FILES_MAX));
    }
}
