//! What somebody who goes through a tree is likely to want next: the files and directories behind the present one. Pure.
//!
//! A walk comes from a directory to what is in it, and then to its neighbour: in that order all directories are kept of which listings have told. What is fetched
//! ahead costs credit, what of it is used brings twice as much: who opens files here and there soon has none, who scans a tree always has.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::{HashMap, HashSet};
use aqueduct_wire::{FETCH_LENGTH_MAX, FETCH_MAX, LIST_MAX, fetch_room};

use super::coming::Coming;

/// Directories that are known, listed or not, at about 250 bytes each; if there are more, all are forgotten.
const DIRECTORIES_MAX: usize = 8192;

/// Files of all of them, at about 100 bytes each.
const FILES_MAX: usize = 16_384;

/// What may be wasted on somebody of whom nothing is known yet: files of one batch.
const CREDIT_FIRST: usize = FETCH_MAX;

/// So much of it can be gathered.
const CREDIT_MAX: usize = 16 * FETCH_MAX;

/// Files of the first batch in a directory that nobody is known to scan.
const BATCH_FIRST: usize = 8;

/// The same for directories.
const LIST_CREDIT_FIRST: usize = LIST_MAX / 2;
const LIST_CREDIT_MAX: usize = 16 * LIST_MAX;
const LIST_BATCH_FIRST: usize = 4;

/// So far behind a directory, and as far before it, others are looked for that are to be listed with it: the walk of whoever sorts names may go the other way.
const NEIGHBOURS_MAX: usize = 4 * LIST_MAX;

/// So many directories behind that of a file others are looked for that are to be fetched with it.
const FOLLOWING_MAX: usize = 64;

/// Directories of which it is known how often names in them were asked for, and those that are not to be listed.
const LOOKUPS_MAX: usize = 4096;

/// Files that were fetched in vain, at about 100 bytes each; if there are more, all are forgotten.
const IN_VAIN_MAX: usize = 4096;

/// So often a file that was fetched in vain is opened without that, before it is tried again: of 52 requests (three for each open file) one is wasted.
const IN_VAIN_OPENS: u32 = 16;

/// A directory is listed when the server is asked for so many names in it: the first page at the first of these, all of it at the others.
const LISTS_AT: [u32; 3] = [2, 16, 256];

#[derive(Debug)]
struct File {
    handle: Arc<[u8]>,
    size: u64,
    is_fetched: bool,
}

#[derive(Debug)]
struct Directory {
    handle: Arc<[u8]>,
    /// Its neighbours in the order of a walk.
    before: Option<u64>,
    behind: Option<u64>,
    /// The latest of its own directories that a listing has told of.
    latest_inside: Option<u64>,
    files: Vec<File>,
    /// Opens for which the server had to be asked, and the place of the latest.
    opens: u32,
    latest: usize,
}

/// Why a directory is not listed ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Useless {
    /// It has more than a page.
    Large,
    /// This user may not list it.
    RefusedTo(u32),
}

/// What to ask for when the server has to be asked for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// That name.
    Name,
    /// The first page of the directory.
    Page,
    /// The name, and meanwhile all pages of a directory of which the first does not do.
    Pages,
}

/// What is known of the tree.
#[derive(Debug)]
pub(super) struct Scans {
    directories: HashMap<u64, Directory>,
    numbers: HashMap<Arc<[u8]>, u64>,
    /// Those that have files, as they were listed.
    listed: VecDeque<u64>,
    /// Directory and place of each file.
    places: HashMap<Arc<[u8]>, (u64, usize)>,
    /// What was fetched ahead and not read yet.
    unread: HashSet<Arc<[u8]>>,
    /// Files that could not be opened here although they had been fetched (others change them, say), and how often they are to be opened without that.
    in_vain: HashMap<Arc<[u8]>, u32>,
    /// The server cannot be asked for more at once.
    is_unknown: bool,
    number: u64,
    credit: usize,
    /// How often the server was asked for a name in a directory.
    lookups: HashMap<Arc<[u8]>, u32>,
    useless: HashMap<Arc<[u8]>, Useless>,
    /// Directories that the server is being asked for.
    pub(super) coming: Coming,
    list_credit: usize,
    /// Where it is counted that a directory is used that was listed ahead.
    uses: Arc<AtomicUsize>,
    /// How often a directory was listed of which a listing has told before, and which was the latest.
    walked: u32,
    latest_listed: u64,
}

impl Default for Scans {
    fn default() -> Scans {
        Scans {
            directories: HashMap::default(),
            numbers: HashMap::default(),
            listed: VecDeque::new(),
            places: HashMap::default(),
            unread: HashSet::default(),
            in_vain: HashMap::default(),
            is_unknown: false,
            number: 0,
            credit: CREDIT_FIRST,
            lookups: HashMap::default(),
            useless: HashMap::default(),
            coming: Coming::default(),
            list_credit: LIST_CREDIT_FIRST,
            uses: Arc::default(),
            walked: 0,
            latest_listed: 0,
        }
    }
}

impl Scans {
    /// A page of a directory has come, with its directories, and its regular files with their sizes; the first page, or one that follows.
    pub(super) fn listed(
        &mut self,
        handle: &Arc<[u8]>,
        is_first: bool,
        entries: impl Iterator<Item = (Arc<[u8]>, Option<u64>)>,
    ) {
        if self.directories.len() >= DIRECTORIES_MAX {
            self.forget_all();
        }
        let number = self.number_of(handle);
        if is_first {
            self.forget_files(number);
        }
        let inside = |directory: &Directory| directory.latest_inside.filter(|_| !is_first);
        let mut latest = self.directories.get(&number).and_then(inside).unwrap_or(number);
        for (handle, size) in entries {
            match size {
                Some(size) => self.add_file(number, handle, size),
                None if self.directories.len() < DIRECTORIES_MAX => latest = self.add_directory(handle, latest),
                None => {} // found when it is listed itself
            }
        }
        let Some(directory) = self.directories.get_mut(&number) else { return };
        directory.latest_inside = (latest != number).then_some(latest);
        if !directory.files.is_empty() {
            self.listed.retain(|other| *other != number);
            self.listed.push_back(number);
        }
        while self.places.len() > FILES_MAX && self.listed.len() > 1 {
            let Some(oldest) = self.listed.pop_front() else { break };
            self.forget_files(oldest);
        }
    }

    /// The number of a directory, which is known from now on.
    fn number_of(&mut self, handle: &Arc<[u8]>) -> u64 {
        if let Some(number) = self.numbers.get(handle) {
            return *number;
        }
        self.number += 1;
        let handle = handle.clone();
        self.numbers.insert(handle.clone(), self.number);
        let (before, behind, latest_inside) = (None, None, None);
        let directory = Directory { handle, before, behind, latest_inside, files: Vec::new(), opens: 0, latest: 0 };
        self.directories.insert(self.number, directory);
        self.number
    }

    /// Puts a directory behind another, unless it has its place.
    fn add_directory(&mut self, handle: Arc<[u8]>, before: u64) -> u64 {
        let number = self.number_of(&handle);
        let is_alone = |directory: &Directory| directory.before.is_none() && directory.behind.is_none();
        if number == before || !self.directories.get(&number).is_some_and(is_alone) {
            return before;
        }
        let behind = self.directories.get_mut(&before).and_then(|directory| directory.behind.replace(number));
        if let Some(directory) = self.directories.get_mut(&number) {
            (directory.before, directory.behind) = (Some(before), behind);
        }
        if let Some(directory) = behind.and_then(|behind| self.directories.get_mut(&behind)) {
            directory.before = Some(number);
        }
        number
    }

    fn add_file(&mut self, number: u64, handle: Arc<[u8]>, size: u64) {
        let Some(directory) = self.directories.get_mut(&number) else { return };
        if size > u64::from(FETCH_LENGTH_MAX) || directory.files.len() >= FILES_MAX {
            return; // opened by itself
        }
        let place = (number, directory.files.len());
        let known = self.places.entry(handle.clone()).or_insert(place);
        if known.0 == number && *known != place {
            return; // a page that comes again, or another name
        }
        *known = place;
        directory.files.push(File { handle, size, is_fetched: false });
    }

    fn forget_files(&mut self, number: u64) {
        let Some(directory) = self.directories.get_mut(&number) else { return };
        directory.opens = 0;
        for file in std::mem::take(&mut directory.files) {
            self.unread.remove(&file.handle);
            if self.places.get(&file.handle).is_some_and(|(of, _)| *of == number) {
                self.places.remove(&file.handle);
            }
        }
    }

    fn forget_all(&mut self) {
        self.directories.clear();
        self.numbers.clear();
        self.listed.clear();
        self.places.clear();
        self.unread.clear();
    }

    /// Somebody opens a file, and the server has to be asked: what to fetch, the file itself first. Empty: it is not known to be a small one.
    pub(super) fn opens(&mut self, handle: &[u8]) -> Vec<Arc<[u8]>> {
        if self.is_unknown {
            return Vec::new();
        }
        let Some((number, at)) = self.places.get(handle).copied() else { return Vec::new() };
        let Some(directory) = self.directories.get_mut(&number) else { return Vec::new() };
        directory.opens += 1;
        let follows = directory.opens > 1 && at == directory.latest + 1;
        directory.latest = at;
        if follows && self.credit < CREDIT_FIRST {
            self.credit += 1; // whoever has wasted it all may be another by now
        }
        let scans = self.credit > CREDIT_FIRST;
        let batch = match directory.opens {
            _ if scans => FETCH_MAX,
            1 => 1,
            opens => (BATCH_FIRST << (opens - 2).min(8)).min(FETCH_MAX),
        };
        // The file itself was asked for: it costs nothing.
        let wanted = self.files_from((number, at), batch.min(self.credit + 1), scans);
        self.credit -= wanted.len().saturating_sub(1);
        self.unread.extend(wanted.iter().skip(1).cloned());
        if wanted.len() == 1 && self.would_be_in_vain(handle) { Vec::new() } else { wanted }
    }

    fn would_be_in_vain(&mut self, handle: &[u8]) -> bool {
        let Some(left) = self.in_vain.get_mut(handle) else { return false };
        *left -= 1;
        if *left == 0 {
            self.in_vain.remove(handle);
        }
        true
    }

    /// A file was fetched for who opens it, and still the server has to be asked.
    pub(super) fn fetched_in_vain(&mut self, handle: Arc<[u8]>) {
        if self.in_vain.len() >= IN_VAIN_MAX {
            self.in_vain.clear();
        }
        self.in_vain.insert(handle, IN_VAIN_OPENS);
    }

    /// As many small files from this one on as a reply has room for, also of the directories behind if `goes_on`.
    fn files_from(&mut self, (mut number, mut at): (u64, usize), batch: usize, goes_on: bool) -> Vec<Arc<[u8]>> {
        let mut room = fetch_room(batch) as u64;
        let mut wanted = Vec::with_capacity(batch);
        for _ in 0..if goes_on { FOLLOWING_MAX } else { 1 } {
            let Some(directory) = self.directories.get_mut(&number) else { break };
            for file in directory.files.iter_mut().skip(at) {
                let is_first = wanted.is_empty();
                if file.is_fetched && !is_first {
                    continue;
                }
                if wanted.len() == batch || file.size > room && !is_first {
                    return wanted;
                }
                room = room.saturating_sub(file.size);
                file.is_fetched = true;
                wanted.push(file.handle.clone());
            }
            let Some(behind) = directory.behind else { break };
            (number, at) = (behind, 0);
        }
        wanted
    }

    /// The server has to be asked for a name in a directory: whether to ask for more of them. Those who look up one name and another are likely to want a
    /// third; if they ask again all the same, the directory is large, or others change it. Whoever is known to go through a tree wants the third already.
    pub(super) fn looks_up(&mut self, directory: &[u8]) -> Look {
        if self.is_unknown || !self.is_due(directory) {
            return Look::Name;
        }
        if self.useless.get(directory) == Some(&Useless::Large) { Look::Pages } else { Look::Page }
    }

    /// Whether names in a directory were asked for so often that it is to be listed.
    fn is_due(&mut self, directory: &[u8]) -> bool {
        if self.lookups.len() >= LOOKUPS_MAX {
            self.lookups.clear();
        }
        let Some(count) = self.lookups.get_mut(directory) else {
            self.lookups.insert(directory.into(), 1);
            self.count_uses();
            return self.list_credit > LIST_CREDIT_FIRST && self.is_inside(directory);
        };
        *count = count.saturating_add(1);
        LISTS_AT.contains(count)
    }

    /// Whether a listing has told of it.
    fn is_inside(&self, handle: &[u8]) -> bool {
        let directory = self.numbers.get(handle).and_then(|number| self.directories.get(number));
        directory.is_some_and(|directory| directory.before.is_some())
    }

    fn count_uses(&mut self) {
        let used = self.uses.swap(0, Ordering::Relaxed);
        self.list_credit = (self.list_credit + 2 * used).min(LIST_CREDIT_MAX);
    }

    /// A directory has to be listed for this user: how many others may be with it, and which are near, the likeliest first. `None`: that would be in vain.
    pub(super) fn lists(&mut self, handle: &[u8], user: u32) -> Option<(usize, Vec<Arc<[u8]>>)> {
        if self.is_unknown || self.is_useless(handle, user) {
            return None;
        }
        self.count_uses();
        let place = |number: &u64| Some((*number, self.directories.get(number)?));
        let Some((number, directory)) = self.numbers.get(handle).and_then(place) else { return Some((0, Vec::new())) };
        let neighbours = [directory.before, directory.behind];
        let follows = neighbours.contains(&Some(self.latest_listed));
        self.latest_listed = number;
        if directory.before.is_none() {
            return Some((0, Vec::new())); // nobody has come down to it
        }
        if follows && self.list_credit < LIST_CREDIT_FIRST {
            self.list_credit += 1; // as above
        }
        self.walked = self.walked.saturating_add(1);
        let batch = match self.walked {
            _ if self.list_credit > LIST_CREDIT_FIRST => LIST_MAX,
            1 => 1,
            walked => (LIST_BATCH_FIRST << (walked - 2).min(8)).min(LIST_MAX),
        };
        let others = (batch - 1).min(self.list_credit);
        Some((others, if others == 0 { Vec::new() } else { self.near(neighbours, user) }))
    }

    fn is_useless(&self, handle: &[u8], user: u32) -> bool {
        self.useless.get(handle).is_some_and(|why| matches!(why, Useless::Large) || *why == Useless::RefusedTo(user))
    }

    /// The directories behind and before.
    fn near(&self, [before, behind]: [Option<u64>; 2], user: u32) -> Vec<Arc<[u8]>> {
        let go = |from: Option<u64>, next: fn(&Directory) -> Option<u64>| {
            let mut place = from;
            std::iter::from_fn(move || {
                let directory = self.directories.get(&place?)?;
                place = next(directory);
                Some(&directory.handle)
            })
            .take(NEIGHBOURS_MAX)
        };
        let both = go(behind, |directory| directory.behind).chain(go(before, |directory| directory.before));
        both.filter(|handle| !self.coming.contains(handle) && !self.is_useless(handle, user)).cloned().collect()
    }

    /// So many directories have come that nobody has asked for yet. Returns where it is counted when somebody does.
    pub(super) fn came_ahead(&mut self, count: usize) -> Arc<AtomicUsize> {
        self.list_credit = self.list_credit.saturating_sub(count);
        self.uses.clone()
    }

    /// This was listed in vain.
    pub(super) fn lists_in_vain(&mut self, handle: &Arc<[u8]>, refused_to: Option<u32>) {
        if self.useless.len() >= LOOKUPS_MAX {
            self.useless.clear();
        }
        self.useless.insert(handle.clone(), refused_to.map_or(Useless::Large, Useless::RefusedTo));
    }

    /// Somebody has opened it: if he was refused it before, he is not any more.
    pub(super) fn opens_directory(&mut self, handle: &[u8]) {
        if matches!(self.useless.get(handle), Some(Useless::RefusedTo(_))) {
            self.useless.remove(handle);
        }
    }

    /// The server knows no FETCH or LIST: it is asked for neither.
    pub(super) fn fails(&mut self) {
        self.is_unknown = true;
    }

    /// The session begins anew, maybe with another version of the server.
    pub(super) fn begins(&mut self) {
        self.is_unknown = false;
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

    fn folder(number: usize) -> Arc<[u8]> {
        format!("{number}").into_bytes().into()
    }

    fn list(scans: &mut Scans, directory: usize, count: usize, size: u64) {
        scans.listed(&folder(directory), true, (0..count).map(|at| (file(directory, at), Some(size))));
    }

    /// Opens and reads files of a directory in this order; returns how many requests that takes, and how many files were fetched for nothing.
    fn read(scans: &mut Scans, directory: usize, order: impl Iterator<Item = usize>) -> (usize, usize) {
        let mut here = HashSet::default();
        let requests = read_into(scans, directory, order, &mut here);
        (requests, here.len())
    }

    fn read_into(
        scans: &mut Scans,
        directory: usize,
        order: impl Iterator<Item = usize>,
        here: &mut HashSet<Arc<[u8]>>,
    ) -> usize {
        let mut requests = 0;
        for at in order {
            let handle = file(directory, at);
            if !here.remove(&handle) {
                requests += 1;
                let fetched = scans.opens(&handle);
                assert!(fetched.first() == Some(&handle) && fetched.len() <= FETCH_MAX);
                here.extend(fetched.into_iter().skip(1));
            }
            scans.reads(&handle);
        }
        requests
    }

    /// A directory of directories, each with as many again.
    struct Tree {
        scans: Scans,
        width: usize,
        /// Listings that are here, and whether anybody has used them.
        here: HashMap<Arc<[u8]>, bool>,
        requests: usize,
        listed: usize,
    }

    impl Tree {
        fn new(width: usize) -> Tree {
            Tree { scans: Scans::default(), width, here: HashMap::default(), requests: 0, listed: 0 }
        }

        /// Somebody lists the directory of this number: 0 has those from 1 to the width, number n those from n * width + 1.
        fn look(&mut self, number: usize) {
            let handle = folder(number);
            if let Some(is_used) = self.here.get_mut(&handle) {
                if !std::mem::replace(is_used, true) {
                    self.scans.uses.fetch_add(1, Ordering::Relaxed);
                }
                return;
            }
            let (others, near) = self.scans.lists(&handle, 0).unwrap();
            assert!(others < LIST_MAX && near.len() <= 2 * NEIGHBOURS_MAX);
            let ahead: Vec<_> = near.into_iter().filter(|near| !self.here.contains_key(near)).take(others).collect();
            self.requests += 1;
            self.listed += 1 + ahead.len();
            self.scans.came_ahead(ahead.len());
            for (handle, is_used) in [(handle, true)].into_iter().chain(ahead.into_iter().map(|handle| (handle, false)))
            {
                let number: usize = str::from_utf8(&handle).unwrap().parse().unwrap();
                let inside = if number <= self.width { self.width } else { 0 };
                let first = number * self.width + 1;
                self.scans.listed(&handle, true, (first..first + inside).map(|number| (folder(number), None)));
                self.here.insert(handle, is_used);
            }
        }
    }

    #[test]
    fn who_walks_through_a_tree_has_its_directories_listed_many_at_once() {
        let walk = |order: &dyn Fn(usize, usize) -> usize| {
            let mut tree = Tree::new(40);
            tree.look(0);
            for outer in 0..40 {
                let outer = order(outer, 40) + 1;
                tree.look(outer);
                (0..40).for_each(|inner| tree.look(outer * 40 + 1 + order(inner, 40)));
            }
            assert_eq!(tree.listed, 1 + 40 + 1600, "each once");
            tree.requests
        };
        let requests = walk(&|at, _| at);
        assert!(requests < 120, "{requests}");
        let requests = walk(&|at, of| of - 1 - at);
        assert!(requests < 120, "the other way, as whoever sorts names may: {requests}");
    }

    #[test]
    fn one_directory_here_and_there_has_few_others_listed_with_it() {
        let mut tree = Tree::new(60);
        (0..=60).for_each(|number| tree.look(number));
        let known = (tree.requests, tree.listed);
        // Of 3600 each hundredth: no two are neighbours.
        (61..=3660).step_by(100).for_each(|number| tree.look(number));
        let (requests, listed) = (tree.requests - known.0, tree.listed - known.1);
        assert!(requests <= 36 && listed <= 36 + LIST_CREDIT_MAX, "{requests} {listed}");
        // And for somebody who has never walked.
        let mut tree = Tree::new(60);
        tree.look(0);
        for number in [7, 31, 55] {
            tree.look(number);
            (0..3).for_each(|inner| tree.look(number * 60 + 10 + 20 * inner));
        }
        assert!(tree.listed <= tree.requests + LIST_CREDIT_FIRST, "{} {}", tree.listed, tree.requests);
    }

    #[test]
    fn what_is_listed_in_vain_is_not_listed_again() {
        let mut scans = Scans::default();
        let (root, large, refused) = (folder(0), folder(1), folder(2));
        let inside = [large.clone(), refused.clone(), folder(3), folder(4)];
        scans.listed(&root, true, inside.iter().map(|handle| (handle.clone(), None)));
        scans.lists_in_vain(&large, None);
        scans.lists_in_vain(&refused, Some(1000));
        assert!(scans.lists(&large, 0).is_none() && scans.lists(&refused, 1000).is_none());
        scans.lists(&folder(3), 0);
        assert_eq!(
            scans.lists(&folder(4), 0).unwrap().1,
            [folder(3), refused.clone(), root],
            "only where it is worth it"
        );
        scans.opens_directory(&large);
        scans.opens_directory(&refused);
        assert!(scans.lists(&large, 0).is_none() && scans.lists(&refused, 1000).is_some());
    }

    #[test]
    fn nobody_else_asks_for_what_is_being_asked_for() {
        let mut scans = Scans::default();
        scans.listed(&folder(0), true, (1..=4).map(|number| (folder(number), None)));
        scans.lists(&folder(1), 0);
        let asked = [folder(2), folder(3)];
        scans.coming.begin(&asked);
        assert_eq!(scans.lists(&folder(1), 0).unwrap().1, [folder(4), folder(0)]);
        scans.coming.end(&asked);
        assert_eq!(scans.lists(&folder(1), 0).unwrap().1, [folder(2), folder(3), folder(4), folder(0)]);
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
    fn small_directories_are_read_several_at_once() {
        let mut scans = Scans::default();
        scans.listed(&folder(0), true, (1..=100).map(|number| (folder(number), None)));
        (1..=100).for_each(|directory| list(&mut scans, directory, 10, 100));
        let mut here = HashSet::default();
        let requests: usize = (1..=100).map(|directory| read_into(&mut scans, directory, 0..10, &mut here)).sum();
        assert!(requests < 40 && here.is_empty(), "{requests} {}", here.len());
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
        let mut tree = Tree::new(60);
        tree.scans.list_credit = 0;
        (0..=3660).for_each(|number| tree.look(number));
        assert!(tree.requests < 400, "{}", tree.requests);
    }

    #[test]
    fn a_directory_is_listed_for_who_looks_up_names_in_it_but_not_again_and_again() {
        let mut scans = Scans::default();
        let lists = (0..10_000).filter(|_| scans.looks_up(b"directory") == Look::Page).count();
        assert_eq!(lists, LISTS_AT.len());
        assert_eq!([(); 2].map(|()| scans.looks_up(b"other")), [Look::Name, Look::Page]);
        assert!((0..10_000u32).all(|at| scans.looks_up(&at.to_le_bytes()) == Look::Name));
        assert!(scans.lookups.len() <= LOOKUPS_MAX);
    }

    #[test]
    fn a_large_directory_is_listed_to_its_end_for_who_goes_on_looking_up_names() {
        let mut scans = Scans::default();
        let looks = |scans: &mut Scans| {
            (0..1000).map(|_| scans.looks_up(&folder(1))).filter(|look| *look != Look::Name).collect::<Vec<_>>()
        };
        scans.looks_up(&folder(1));
        assert_eq!(scans.looks_up(&folder(1)), Look::Page);
        scans.lists_in_vain(&folder(1), None);
        assert_eq!(looks(&mut scans), [Look::Pages; LISTS_AT.len() - 1]);
        // Who may not list it is not helped by more pages.
        scans.lists_in_vain(&folder(2), Some(1000));
        assert!((0..1000).all(|_| scans.looks_up(&folder(2)) != Look::Pages));
    }

    #[test]
    fn a_server_that_does_not_know_how_is_asked_for_one_at_a_time() {
        let mut scans = Scans::default();
        list(&mut scans, 1, 3, 100);
        let asks = |scans: &mut Scans| {
            let fetches = !scans.opens(&file(1, 0)).is_empty();
            let lists = scans.lists(&folder(1), 0).is_some();
            [fetches, lists, (0..LISTS_AT[0]).any(|_| scans.looks_up(&folder(1)) != Look::Name)]
        };
        scans.fails();
        assert_eq!(asks(&mut scans), [false; 3]);
        scans.begins();
        assert_eq!(asks(&mut scans), [true; 3]);
    }

    #[test]
    fn what_was_fetched_in_vain_is_tried_again_seldom() {
        let mut scans = Scans::default();
        list(&mut scans, 1, 3, 100);
        let fetched = (0..100).filter(|_| {
            let is_fetched = !scans.opens(&file(1, 2)).is_empty();
            if is_fetched {
                scans.fetched_in_vain(file(1, 2));
            }
            is_fetched
        });
        assert_eq!(fetched.count(), 100usize.div_ceil(IN_VAIN_OPENS as usize + 1));
        assert_eq!(scans.opens(&file(1, 0)).len(), 2, "others are not meant");
        (0..2 * IN_VAIN_MAX).for_each(|at| scans.fetched_in_vain(file(2, at)));
        assert!(scans.in_vain.len() <= IN_VAIN_MAX);
    }

    #[test]
    fn who_walks_has_a_directory_listed_with_the_first_name_in_it() {
        let mut scans = Scans::default();
        scans.listed(&folder(0), true, [1, 2].into_iter().map(|number| (folder(number), None)));
        assert_eq!(scans.looks_up(&folder(1)), Look::Name);
        scans.uses.fetch_add(1, Ordering::Relaxed);
        assert_eq!([2, 3].map(|number| scans.looks_up(&folder(number))), [Look::Page, Look::Name]);
    }

    #[test]
    fn a_batch_fits_into_a_reply_and_large_files_are_left_out() {
        let mut scans = Scans { credit: CREDIT_MAX, ..Scans::default() };
        list(&mut scans, 1, 100, 50 << 10);
        assert_eq!(scans.opens(&file(1, 0)).len(), 2);
        assert_eq!(scans.opens(&file(1, 98)).len(), 2);
        assert_eq!(scans.opens(&file(1, 99)).len(), 1);
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
        assert!(scans.places.len() <= FILES_MAX && scans.unread.len() <= FILES_MAX);
        let known: usize = scans.directories.values().map(|directory| directory.files.len()).sum();
        assert_eq!(known, scans.places.len());
        for outer in 0..200 {
            scans.listed(&folder(outer), true, (0..1000).map(|at| (folder(1000 * outer + at), None)));
            assert!(scans.directories.len() <= DIRECTORIES_MAX + 1 && scans.numbers.len() == scans.directories.len());
        }
        assert!(scans.listed.len() <= scans.directories.len());
    }

    #[test]
    fn one_directory_takes_no_more_than_all() {
        let mut scans = Scans::default();
        let known = |scans: &Scans| (scans.directories[&1].files.len(), scans.places.len());
        for _ in 0..3 {
            let page = (0..1000).map(|at| (file(1, at), Some(100)));
            scans.listed(&folder(1), false, page);
        }
        assert_eq!(known(&scans), (1000, 1000), "a page that comes again is known");
        for page in 1..40 {
            let page = (page * 1000..page * 1000 + 1000).map(|at| (file(1, at), Some(100)));
            scans.listed(&folder(1), false, page);
        }
        assert_eq!(known(&scans), (FILES_MAX, FILES_MAX));
    }
}
