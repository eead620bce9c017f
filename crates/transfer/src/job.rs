//! A copy under way: what all threads share, and the directories and names that they work on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use aqueduct_fs::Errno;
use aqueduct_worker::lock;
use blake3::hazmat::ChainingValue;

use crate::attributes;
use crate::claim::Claim;
use crate::earlier::Earlier;
use crate::flush::{self, Flush, Since, Volume, Volumes};
use crate::hash::Hash;
use crate::ledger::{Stage, Watch, within};
use crate::links::Links;
use crate::listed::Unseen;
use crate::manifest::Line;
use crate::options::{Options, Verify};
use crate::outcome::{Counting, Fault, Told, Trying, add, shown};
use crate::queue::{Queue, Shared};
use crate::side::{Directory, File, PART, Peculiarity, STEP, Seen, Xattrs};
use crate::store::{Entry, Store, fingerprint, random};
use crate::throttle::Throttle;
use crate::ways::Ways;
use crate::writable;

/// A copy under way.
pub struct Job {
    /// What is wanted.
    pub options: Arc<Options>,
    /// Whether chunks have sums, by which they are known again.
    pub sums: bool,
    /// How data are checked on the way, as the manifest calls it.
    pub check: &'static str,
    /// What moved, and where the time went.
    pub watch: Arc<Watch>,
    /// What was done.
    pub counts: Counting,
    /// What went wrong.
    pub told: Told,
    /// What is to be done.
    pub queue: Queue<Big, Item>,
    /// Names of one inode.
    pub links: Links<Item>,
    /// Inodes of the destination with several names that were left as they are, with the inodes of
    /// the source that they are of.
    pub kept: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    /// What was done, for the manifest and for a later run.
    pub store: Option<Store>,
    /// What was done, gathered: for a store of many agents, to which it goes with all else.
    pub gathered: Option<Mutex<Vec<Entry>>>,
    /// The claim by which this is done, of many agents; `None`: there is one process.
    pub claim: Option<Claim>,
    /// Another agent may have done a part of this: what is as it should be is its work.
    pub redoes: bool,
    /// What an earlier run did counts.
    pub goes_on: bool,
    /// How data of one machine are copied.
    pub ways: Ways,
    /// Bytes that each thread reads and writes at a time: at most [`STEP`].
    pub step: AtomicUsize,
    /// All data together.
    pub throttle: Option<Arc<Throttle>>,
    /// The file systems at the destination, by which data are made stable.
    pub volumes: Arc<Volumes>,
    /// Before anything was done.
    pub since: Since,
    /// The destination.
    pub target_root: Arc<dyn Directory>,
    /// The directory that the destination is, so that it is not copied into itself.
    pub target_identity: Vec<u8>,
    /// Distinguishes temporary names of this copy from those of others.
    pub run: u64,
    /// The number of the first temporary name of this process.
    pub first_part: u64,
    /// The number of the next temporary name.
    pub next_part: AtomicU64,
    /// Files can be made without a name.
    pub makes_unnamed: AtomicBool,
    /// Small files go to the destination's server many at a time.
    pub puts: AtomicBool,
    /// Files of one file system can share their data, and may: nothing is to be known of them.
    pub shares: AtomicBool,
    /// Tells paths, where that is wanted.
    pub teller: Option<Teller>,
    /// The paths of a list that were not come upon so far.
    pub unseen: Unseen,
    /// Directories that were gone through, with their times: what is deleted below changes them.
    pub gone_through: Mutex<BTreeMap<Vec<u8>, Seen>>,
    /// Directories of the destination, with names in them, that make way for something else when
    /// what the source does not have is removed; `None`: none does.
    pub making_way: Mutex<Option<BTreeSet<Vec<u8>>>>,
    /// What gets its name then.
    pub held: Mutex<Vec<Held>>,
    /// The sums of chunks that are all hole, by their length: computed once.
    pub hole_sums: Mutex<BTreeMap<u64, u64>>,
}

/// A directory that is gone through. When nobody works below it any more it gets its attributes.
pub struct Dir {
    /// The copy.
    pub job: Arc<Job>,
    /// The one above, which is not done before this is.
    pub above: Option<Arc<Dir>>,
    /// The path below the root; empty for the root.
    pub path: Vec<u8>,
    /// The source.
    pub source: Arc<dyn Directory>,
    /// The destination; `None`: it would only be made.
    pub target: Option<Arc<dyn Directory>>,
    /// The source as it was before it was listed; `None`: the directory itself is not copied.
    pub seen: Option<Seen>,
    /// It was made by this copy, so that nothing was in it.
    pub is_new: bool,
    /// What is made in it gets access control lists from it.
    pub bequeaths: bool,
    /// What is in the source may have projects.
    pub has_projects: bool,
    /// The project of the source itself; 0: none.
    pub project: u32,
    /// The source is a directory of Lustre's.
    pub is_lustre: bool,
    /// Of the files in the source nobody says how long they are.
    pub is_unsized: bool,
    /// The file system at the destination.
    pub volume: Arc<Volume>,
    /// What the sources before this one have in it.
    pub earlier: Vec<Earlier>,
    /// Names of the source that the destination takes for one, where it ignores case: see
    /// [`crate::folded`].
    pub twins: OnceLock<Vec<Vec<u8>>>,
    /// What the first file had that was made in it with its final permissions.
    pub given: OnceLock<attributes::Given>,
}

/// A name to copy.
pub struct Item {
    /// Where it is.
    pub dir: Arc<Dir>,
    /// Its name at the source.
    pub name: Box<[u8]>,
    /// Its name at the destination, if that is another.
    pub target_name: Option<Box<[u8]>>,
    /// Its type; 0: not known yet.
    pub kind: u32,
    /// The inode, if it is known.
    pub seen: Option<Seen>,
    /// How often it was tried before.
    pub attempt: u8,
    /// It is the first name of its inode: others wait for it.
    pub is_first: bool,
    /// It does not go with others, though it is small.
    pub by_itself: bool,
}

/// An item that failed, and why.
pub struct Failed(Box<(Item, Fault)>);

/// What came of an item.
pub type Done<T = ()> = Result<T, Failed>;

impl Failed {
    /// This item failed.
    pub fn new(item: Item, fault: Fault) -> Failed {
        Failed(Box::new((item, fault)))
    }
}

/// Is told each path.
pub type Teller = Box<dyn Fn(&str) + Send + Sync>;

/// A file of several chunks under way.
pub struct Big {
    /// Which.
    pub item: Mutex<Option<Item>>,
    /// Its path.
    pub path: Vec<u8>,
    /// It.
    pub source: Arc<dyn File>,
    /// As it was when it was begun.
    pub seen: Seen,
    /// What had its name at the destination.
    pub present: Option<Seen>,
    /// Where it is written.
    pub target: Arc<dyn File>,
    /// Before it was begun.
    pub since: Since,
    /// The temporary name.
    pub part: Vec<u8>,
    /// Only data are read.
    pub has_holes: bool,
    /// The length of its chunks.
    pub chunk: u64,
    /// Those that are to be copied, and which of them is next.
    pub chunks: Vec<u64>,
    /// The next of them.
    pub next: AtomicUsize,
    /// How many are not done.
    pub left: AtomicUsize,
    /// Sums and values of all.
    pub sums: Mutex<Vec<(u64, ChainingValue)>>,
    /// Why it failed.
    pub fault: Mutex<Option<Fault>>,
}

/// A file that is whole but for its name.
pub struct Unnamed {
    /// Which.
    pub item: Item,
    /// The source, as it was copied.
    pub seen: Seen,
    /// What has its name at the destination.
    pub present: Option<Seen>,
    /// It.
    pub target: Arc<dyn File>,
    /// Before it was begun.
    pub since: Since,
    /// Its temporary name, if it has one.
    pub part: Option<Vec<u8>>,
    /// Its extended attributes, for the manifest.
    pub xattrs: Xattrs,
    /// Its hash, if wanted.
    pub hash: Option<Hash>,
    /// The sums of its chunks, if wanted, and their length.
    pub sums: (Vec<u64>, u64),
    /// How its data were checked so far.
    pub check: &'static str,
}

/// What waits for a directory of the destination that has its name, and names in it.
pub enum Held {
    /// A file that is whole.
    Whole(Box<Unnamed>),
    /// A name that is made when that one is free.
    Unmade(Item),
}

/// A small file that waits for others to go with it.
pub struct Packed {
    /// Which.
    pub item: Item,
    /// The source, as it was read.
    pub seen: Seen,
    /// Its hash, if wanted.
    pub hash: Option<Hash>,
    /// What it holds.
    pub data: Vec<u8>,
}

/// Small files of one directory that go to a server together.
#[derive(Default)]
pub struct Batch {
    /// They.
    pub files: Vec<Packed>,
    /// Their bytes when they are packed.
    pub bytes: usize,
}

/// What one thread has.
#[derive(Default)]
pub struct Worker {
    /// Memory for data.
    pub buffer: Vec<u8>,
    /// Files that wait for a flush and their names.
    pub unnamed: Vec<Unnamed>,
    /// Their bytes.
    pub unnamed_bytes: u64,
    /// Small files that go to a server together.
    pub batch: Batch,
}

impl Worker {
    /// Whether nothing waits for its name.
    pub fn is_idle(&self) -> bool {
        self.unnamed.is_empty() && self.batch.files.is_empty()
    }
}

impl Shared for Big {
    fn take(&self) -> Option<u64> {
        self.chunks.get(self.next.fetch_add(1, Ordering::Relaxed)).copied()
    }
}

/// A path below another.
pub fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

impl Item {
    /// The name that it gets.
    pub fn target_name(&self) -> &[u8] {
        self.target_name.as_ref().unwrap_or(&self.name)
    }

    /// The path below the root.
    pub fn path(&self) -> Vec<u8> {
        below(&self.dir.path, self.target_name())
    }

    /// The directory at the destination.
    pub fn target(&self) -> Result<&dyn Directory, Fault> {
        self.dir.target.as_deref().ok_or_else(|| Fault::new("opening its directory", Errno::ENOENT))
    }

    /// Makes something in the directory at the destination. Where it gets its mode last it need
    /// not be one that its owner may write to.
    pub fn making<T>(&self, what: &'static str, work: impl Fn(&dyn Directory) -> Result<T, Errno>) -> Result<T, Fault> {
        let directory = self.target()?;
        let made = match self.dir.gets_mode() {
            true => writable::within(directory, work).map(|(made, _)| made),
            false => work(directory),
        };
        made.trying(what)
    }

    /// What has its name at the destination.
    pub fn present(&self) -> Result<Option<Seen>, Fault> {
        if self.dir.is_new || self.dir.target.is_none() {
            return Ok(None);
        }
        match self.target()?.look(self.target_name()) {
            Err(Errno::ENOENT) => Ok(None),
            seen => seen.map(Some).trying("looking at the destination"),
        }
    }
}

impl Job {
    /// A copy to `target_root`, of which nothing is done. `check`: how data are checked on the
    /// way, as the manifest calls it.
    pub fn new(
        options: Arc<Options>,
        target_root: Arc<dyn Directory>,
        volumes: Arc<Volumes>,
        check: &'static str,
        watch: Arc<Watch>,
    ) -> Job {
        let is_projected = target_root.handle().is_some();
        // Names of an earlier run of this copy may still be there.
        let first_part = random() >> 16;
        Job {
            sums: options.verify == Verify::Stable,
            throttle: None,
            check,
            watch,
            counts: Counting::default(),
            told: Told::default(),
            queue: Queue::new(),
            links: Links::new(),
            kept: Mutex::default(),
            store: None,
            gathered: None,
            claim: None,
            ways: Ways::default(),
            step: AtomicUsize::new(STEP),
            redoes: false,
            goes_on: false,
            since: volumes.now(),
            volumes,
            unseen: Unseen::default(),
            target_identity: target_root.seen().map(|seen| seen.identity()).unwrap_or_default(),
            target_root,
            run: random(),
            first_part,
            next_part: AtomicU64::new(first_part),
            makes_unnamed: AtomicBool::new(true),
            puts: AtomicBool::new(is_projected),
            shares: AtomicBool::new(!options.hashes() && options.verify != Verify::Stable),
            teller: None,
            gone_through: Mutex::default(),
            making_way: Mutex::new(options.delete.then(BTreeSet::new)),
            held: Mutex::default(),
            hole_sums: Mutex::default(),
            options,
        }
    }

    /// Whether this may go on: the claim holds, and nobody has ended the job.
    pub fn may_go_on(&self) -> Result<(), Fault> {
        if self.options.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Acquire)) {
            return Err(Fault::new("copying it", "somebody has ended the copy"));
        }
        self.claim.as_ref().map_or(Ok(()), Claim::check)
    }

    /// A name that nothing has.
    pub fn part_name(&self) -> Vec<u8> {
        let number = self.next_part.fetch_add(1, Ordering::Relaxed);
        [self.part_prefix(), format!("{number:x}").into_bytes()].concat()
    }

    /// What temporary names of this copy begin with, also those of earlier runs.
    pub fn part_prefix(&self) -> Vec<u8> {
        [PART, format!("{:016x}-", self.run).as_bytes()].concat()
    }

    /// Whether this process has made that temporary name.
    pub fn made_part(&self, name: &[u8]) -> bool {
        let number = name.strip_prefix(&*self.part_prefix()).and_then(|number| std::str::from_utf8(number).ok());
        let number = number.and_then(|number| u64::from_str_radix(number, 16).ok());
        number.is_some_and(|number| (self.first_part..self.next_part.load(Ordering::Relaxed)).contains(&number))
    }

    /// Whether an earlier run of this copy may have left something unfinished.
    pub fn sweeps(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.has_earlier)
    }

    /// Tells a path, if that is wanted.
    pub fn tell(&self, what: &str, path: &[u8]) {
        if let Some(teller) = &self.teller {
            teller(&format!("{what} {}", shown(path)));
        }
    }

    /// Does something in a stage.
    pub fn within<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        within(&self.watch, stage, work)
    }

    /// Waits until so many bytes may move.
    pub fn throttled(&self, bytes: usize) {
        if let Some(throttle) = &self.throttle {
            self.within(Stage::Throttle, || throttle.take(bytes));
        }
    }

    /// A directory is to be gone through.
    pub fn directory(&self, item: Item) {
        add(&self.watch.directories, 1);
        self.queue.directory(item);
    }

    /// The size of a name is known.
    pub fn sized(&self, bytes: u64) {
        add(&self.watch.names_sized, 1);
        add(&self.watch.bytes_found, bytes);
    }

    /// A name is done that needs no more work.
    pub fn progress(&self, bytes: u64) {
        self.sized(bytes);
        add(&self.watch.names, 1);
        add(&self.watch.bytes, bytes);
    }

    /// An item failed: it is tried again, or told.
    pub fn failed(&self, failed: Failed) {
        let (mut item, fault) = *failed.0;
        let mut again = Vec::new();
        if let Some(seen) = item.seen.take().filter(|_| item.is_first) {
            again = self.links.failed(&seen.moment());
            item.is_first = false;
        }
        if fault.is_passing && item.attempt < 2 {
            item.attempt += 1;
            item.kind = 0;
            again.push(item);
        } else {
            self.told.trouble(&item.path(), &fault);
        }
        if !again.is_empty() {
            self.queue.again(again);
        }
    }

    /// Whether what is at the destination may be left as it is for this inode of the source. Names
    /// of one inode there may be of several at the source, with other attributes: the first that
    /// comes keeps it, and the others are copied, which parts them.
    pub fn keeps(&self, present: &Seen, seen: &Seen) -> bool {
        if present.attr.nlink < 2 {
            return true;
        }
        // Another agent may keep it for another inode.
        if self.claim.is_some() && present.attr.nlink != seen.attr.nlink {
            return false;
        }
        let source = seen.identity();
        *lock(&self.kept).entry(present.identity()).or_insert_with(|| source.clone()) == source
    }

    /// What has a name at the destination makes way, if it is of another type.
    pub fn replaces(&self, item: &Item, present: Option<&Seen>) {
        if present.is_some_and(|present| present.attr.kind() != item.kind) {
            add(&self.counts.replaced, 1);
            self.tell(if self.options.dry_run { "would replace" } else { "replaced" }, &item.path());
        }
    }

    /// Whether the name of something is that of a directory which makes way at the end.
    pub fn waits(&self, item: &Item, present: Option<&Seen>) -> bool {
        let is_directory = present.is_some_and(|present| present.attr.is_directory());
        let waits = || lock(&self.making_way).as_ref().is_some_and(|paths| paths.contains(&item.path()));
        is_directory && !self.options.dry_run && waits()
    }

    /// Something is done: a line for the manifest, and what a later run believes.
    pub fn record(&self, path: &[u8], line: &dyn Fn() -> Line, source: &Seen, target: &[u8]) {
        if self.store.is_none() && self.gathered.is_none() {
            return;
        }
        let is_directory = source.attr.is_directory();
        let key = if is_directory && !path.is_empty() { [path, b"/"].concat() } else { path.to_vec() };
        let group = (!is_directory && source.attr.nlink > 1).then(|| source.moment());
        // Only a manifest has the line, and a run with one does not go on with one without.
        let line = if self.options.hashes() { line().text() } else { String::new() };
        let (source, target) = (fingerprint(source), target.to_vec());
        let entry = Entry { key, group, line, source, target };
        match (&self.store, &self.gathered) {
            (Some(store), _) => store.done(entry),
            (None, Some(gathered)) => lock(gathered).push(entry),
            (None, None) => {}
        }
    }

    /// A directory is gone through: what it does not have may be deleted later.
    pub fn goes_through(&self, path: &[u8], seen: &Seen) {
        if self.options.delete {
            lock(&self.gone_through).insert(path.to_vec(), seen.clone());
        }
    }

    /// What the destination could not hold.
    pub fn lost(&self, path: &[u8], lost: attributes::Lost) {
        lost.into_iter().for_each(|(what, why)| self.told.lost(path, what, why));
    }

    /// Makes names stable that were given.
    pub fn settle(&self) -> Result<(), Fault> {
        self.within(Stage::Flush, || self.volumes.settle(self.since)).trying("making names stable")
    }

    fn finish(&self, dir: &Dir, seen: &Seen, target: &dyn Directory) -> Result<(), Fault> {
        let wanted = attributes::wanted_xattrs(&*dir.source, dir.is_lustre);
        let (xattrs, mut lost) = wanted.trying("reading its extended attributes")?;
        let is_other = if dir.is_new {
            false
        } else {
            let present = target.xattrs().trying("reading its extended attributes at the destination")?;
            let is_other = dir.is_other(seen, (&xattrs, &present))?;
            lost.extend(attributes::strip(&xattrs, &present, target).trying("removing extended attributes")?);
            is_other
        };
        lost.extend(attributes::carry(seen, &xattrs, target, None).trying("setting its attributes")?);
        if is_other {
            add(&self.counts.attributes, 1);
            self.tell("changed the attributes of", &dir.path);
        }
        self.lost(&dir.path, lost);
        if dir.volume.flush() == Flush::Each {
            flush::sync_names(target).trying("making it stable")?;
        }
        self.record(&dir.path, &|| Line::new(&dir.path, seen, &xattrs, None, None), seen, &[]);
        Ok(())
    }
}

impl Dir {
    /// A directory of a copy, open at both ends: nothing was above it, and it gets no attributes.
    pub fn new(
        job: &Arc<Job>,
        path: Vec<u8>,
        source: Arc<dyn Directory>,
        (target, volume): (Option<Arc<dyn Directory>>, Arc<Volume>),
    ) -> Dir {
        let (project, peculiarity) = (attributes::project_of(&*source), source.peculiarity());
        Dir {
            job: job.clone(),
            above: None,
            path,
            has_projects: project.is_some(),
            project: project.map_or(0, |project| project.id),
            is_lustre: peculiarity == Peculiarity::Lustre,
            is_unsized: peculiarity == Peculiarity::Unsized,
            source,
            target,
            seen: None,
            is_new: false,
            bequeaths: false,
            volume,
            earlier: Vec::new(),
            twins: OnceLock::new(),
            given: OnceLock::new(),
        }
    }

    /// Whether it gets the mode of its source when all in it is done: here, or by the last agent.
    fn gets_mode(&self) -> bool {
        self.seen.is_some() || (self.job.claim.is_some() && !self.path.is_empty())
    }

    /// Whether one that is there already has other attributes than it is to have. Its times are not
    /// compared: whatever is made in it changes them.
    fn is_other(&self, seen: &Seen, (wanted, present): (&Xattrs, &Xattrs)) -> Result<bool, Fault> {
        let Some(target) = &self.target else { return Ok(false) };
        let there = target.seen().trying("looking at it at the destination")?;
        let is_same = attributes::are_same(seen, &there);
        Ok(!is_same || !attributes::are_same_xattrs(wanted, present, self.is_lustre))
    }

    /// Says what would be changed of it, in a dry run.
    fn tell_other(&self, seen: &Seen, target: &dyn Directory) -> Result<(), Fault> {
        let wanted = attributes::wanted_xattrs(&*self.source, self.is_lustre);
        let (xattrs, _) = wanted.trying("reading its extended attributes")?;
        let present = target.xattrs().trying("reading its extended attributes at the destination")?;
        if self.is_other(seen, (&xattrs, &present))? {
            add(&self.job.counts.attributes, 1);
            self.job.tell("would change the attributes of", &self.path);
        }
        Ok(())
    }

    /// The directory at the destination gets the project of its source before anything is made in
    /// it, which then has it from there.
    pub fn give_project(&self) -> Result<(), Fault> {
        let Some(target) = self.target.as_ref().filter(|_| self.has_projects && !self.job.options.dry_run) else {
            return Ok(());
        };
        let above = self.above.as_ref().filter(|_| !self.is_new).and_then(|above| above.target.as_ref());
        let gives = above.map(|above| attributes::given_in(&**above)).transpose();
        let lost = gives.and_then(|gives| attributes::give_project(&*self.source, &**target, gives));
        let lost = lost.trying("setting its project")?;
        self.job.lost(&self.path, lost);
        Ok(())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let (Some(seen), Some(target)) = (&self.seen, &self.target) else { return };
        let job = self.job.clone();
        let finish = || match job.options.dry_run {
            true if self.is_new => Ok(()),
            true => self.tell_other(seen, &**target),
            false => job.finish(self, seen, &**target),
        };
        if let Err(fault) = job.within(Stage::Attributes, finish) {
            job.told.trouble(&self.path, &fault);
        }
    }
}
