//! A volume over directories of this machine, with processes that end at any step.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use aqueduct_fs::*;
use aqueduct_posix::{Options, Posix};
use aqueduct_worker::{Group, Settings, wait};
use bytes::Bytes;

use crate::attribute::LayoutKey;
use crate::marker;
use crate::plain::{Config, FOLDER, Plain};
use crate::store::{Start, Store};
use crate::stripe::server_key;

mod avoided;
mod brought;
mod checks;
mod crashes;
mod files;
mod generations;
mod losses;
mod moves;
mod names;
mod repairs;
mod served;
mod syncs;

pub(super) const KEY: [u8; 32] = [9; 32];
pub(super) const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
pub(super) const INLINE_MAX: u64 = 8 << 10;
const BLOCK: u32 = 16 << 10;

/// Something that is done when so many directories have been opened.
type Meddler = Arc<Mutex<Option<(usize, Box<dyn FnOnce() + Send>)>>>;

/// Fails each call from the one on that it was told: the process is dead.
pub(super) struct Mortal {
    below: Arc<dyn FileSystem>,
    left: Arc<AtomicUsize>,
    meddler: Meddler,
    /// No attribute can be read now.
    is_sick: Arc<AtomicBool>,
    /// Of a store, or the tree.
    disk: Option<Arc<Disk>>,
    /// Which store it is of.
    number: usize,
}

/// What a test has the disk of all stores do, or that of the tree.
#[derive(Default)]
pub(super) struct Disk {
    /// Nothing is made stable, or written, meanwhile.
    pub(super) holds_syncs: AtomicBool,
    pub(super) holds_writes: AtomicBool,
    /// What was written is answered later.
    pub(super) holds_answers: AtomicBool,
    /// No attributes are set, or looked at, meanwhile.
    pub(super) holds_attributes: AtomicBool,
    pub(super) holds_looks: AtomicBool,
    /// No layout is stored meanwhile; and that fails then.
    pub(super) holds_layouts: AtomicBool,
    pub(super) fails_layouts: AtomicBool,
    /// Nothing is removed meanwhile.
    pub(super) holds_removals: AtomicBool,
    /// There is no room for attributes that are set.
    pub(super) fails_attributes: AtomicBool,
    /// There is no room for what is allocated.
    pub(super) is_full: AtomicBool,
    /// The store of this number is read-only.
    pub(super) read_only: Mutex<Option<usize>>,
    /// So every write fails.
    pub(super) refuses: Mutex<Option<Errno>>,
    /// The next time that something is made stable fails.
    pub(super) fails: AtomicBool,
    /// How often something was made stable.
    pub(super) syncs: AtomicUsize,
    /// How often something was written that is to be stable.
    pub(super) stable: AtomicUsize,
    /// What was brought there.
    pub(super) brought: Mutex<HashMap<[u8; 16], Bytes>>,
}

async fn until_free(holds: &AtomicBool) {
    // Tests poll by themselves.
    poll_fn(|_| if holds.load(Ordering::SeqCst) { Poll::Pending } else { Poll::Ready(()) }).await;
}

impl Mortal {
    /// A directory is opened.
    fn meddle(&self) {
        let mut meddler = self.meddler.lock().unwrap();
        let Some((left, does)) = meddler.take() else { return };
        if left > 1 {
            *meddler = Some((left - 1, does));
            return;
        }
        drop(meddler);
        std::thread::spawn(does).join().unwrap();
    }

    fn lives(&self) -> Result<(), Errno> {
        let lives = |left: usize| left.checked_sub(1);
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, lives).map(drop).map_err(|_| Errno::EIO)
    }
}

impl layer::Layer for Mortal {
    type Below = dyn FileSystem;

    fn below(&self) -> &(dyn FileSystem + 'static) {
        &*self.below
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        if matches!(request, Request::OpenDirectory { .. }) {
            self.meddle();
        }
        if let Request::GetXattr { .. } = request
            && self.is_sick.load(Ordering::SeqCst)
        {
            return Call::ready(Err(Errno::EMFILE));
        }
        if let (Request::Sync { .. }, Some(disk)) = (&request, &self.disk) {
            return Call::waiting(async move {
                until_free(&disk.holds_syncs).await;
                if disk.fails.swap(false, Ordering::SeqCst) {
                    return Err(Errno::EIO);
                }
                let answer = self.below.ask(context, request).await?;
                disk.syncs.fetch_add(1, Ordering::SeqCst);
                Ok(answer)
            });
        }
        if let Some(disk) = &self.disk {
            if request.writes() && *disk.read_only.lock().unwrap() == Some(self.number) {
                return Call::ready(Err(Errno::EROFS));
            }
            match request {
                Request::Fallocate { flags, .. }
                    if !flags.contains(FallocateFlags::PUNCH_HOLE) && disk.is_full.load(Ordering::SeqCst) =>
                {
                    return Call::ready(Err(Errno::ENOSPC));
                }
                Request::SetAttr { .. } if disk.fails_attributes.load(Ordering::SeqCst) => {
                    return Call::ready(Err(Errno::ENOSPC));
                }
                _ => {}
            }
            let holds = match request {
                Request::SetAttr { .. } => Some(&disk.holds_attributes),
                Request::GetAttr { .. } => Some(&disk.holds_looks),
                Request::SetXattr { .. } => Some(&disk.holds_layouts),
                Request::Unlink { .. } => Some(&disk.holds_removals),
                _ => None,
            };
            let fails = matches!(request, Request::SetXattr { .. }).then_some(&disk.fails_layouts);
            let is_set = |one: &&AtomicBool| one.load(Ordering::SeqCst);
            if let Some(holds) = holds.filter(is_set) {
                return Call::waiting(async move {
                    until_free(holds).await;
                    if fails.filter(is_set).is_some() {
                        return Err(Errno::EIO);
                    }
                    self.below.ask(context, request).await
                });
            }
        }
        let changes = request.writes() && !matches!(request, Request::Access { .. } | Request::Open { .. });
        match if changes { self.lives() } else { self.left_any() } {
            Ok(()) => self.below.ask(context, request),
            Err(error) => Call::ready(Err(error)),
        }
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        if let Some(error) = self.disk.as_ref().and_then(|disk| *disk.refuses.lock().unwrap()) {
            return Call::ready(Err(error));
        }
        let brought = |staged: Staged| self.disk.as_ref()?.brought.lock().unwrap().remove(&staged.id);
        let source = match source {
            Source::Staged(staged) => match brought(staged) {
                Some(data) => Source::Memory(data),
                None => return Call::ready(Err(Errno::ENODATA)),
            },
            source => source,
        };
        match (self.lives(), &self.disk) {
            (Ok(()), Some(disk)) => Call::waiting(async move {
                until_free(&disk.holds_writes).await;
                if write.stable {
                    disk.stable.fetch_add(1, Ordering::SeqCst);
                }
                let written = self.below.write(context, write, source).await;
                until_free(&disk.holds_answers).await;
                written
            }),
            (Ok(()), None) => self.below.write(context, write, source),
            (Err(error), _) => Call::ready(Err(error)),
        }
    }
}

impl Mortal {
    fn left_any(&self) -> Result<(), Errno> {
        if self.left.load(Ordering::SeqCst) == 0 { Err(Errno::EIO) } else { Ok(()) }
    }
}

/// The directories of a volume, which outlive its processes.
pub(super) struct Volume {
    home: tempfile::TempDir,
    width: usize,
    names: Vec<String>,
}

/// A process.
pub(super) struct Process {
    pub(super) plain: Arc<Plain>,
    pub(super) left: Arc<AtomicUsize>,
    pub(super) meddler: Meddler,
    pub(super) is_sick: Arc<AtomicBool>,
    /// How often the servers of the stores were started meanwhile.
    pub(super) starts: Arc<AtomicU64>,
    pub(super) disk: Arc<Disk>,
    pub(super) tree_disk: Arc<Disk>,
    group: Arc<Group>,
}

pub(super) fn context() -> Context {
    Context::new(ClientId(1), Credential::root())
}

impl Volume {
    /// Of so many stores, over so many of which a file is spread (0: all).
    pub(super) fn new(stores: usize, width: usize) -> Volume {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("tree")).unwrap();
        let names: Vec<_> = (0..stores).map(|number| format!("d{number}")).collect();
        for name in &names {
            marker::initialise(&home.path().join(name), &LayoutKey::of_volume(&KEY), server_key(name)).unwrap();
        }
        Volume { home, width, names }
    }

    pub(super) fn tree(&self) -> PathBuf {
        self.home.path().join("tree")
    }

    pub(super) fn store(&self, number: usize) -> PathBuf {
        self.home.path().join(&self.names[number])
    }

    /// Another store.
    pub(super) fn add(&mut self) {
        let name = format!("d{}", self.names.len());
        marker::initialise(&self.home.path().join(&name), &LayoutKey::of_volume(&KEY), server_key(&name)).unwrap();
        self.names.push(name);
    }

    /// A process that ends after so many changes.
    pub(super) fn start(&self, changes: usize) -> Process {
        self.start_as(changes, true)
    }

    /// The same, where clients bring what they write, or do not.
    pub(super) fn start_as(&self, changes: usize, brings: bool) -> Process {
        let starts = Arc::<AtomicU64>::default();
        let server_starts: Start = Arc::new({
            let starts = starts.clone();
            move || starts.load(Ordering::SeqCst)
        });
        let (left, meddler) = (Arc::new(AtomicUsize::new(usize::MAX)), Meddler::default());
        let is_sick = Arc::<AtomicBool>::default();
        // Nobody cuts the power here.
        let options = Options { key: KEY, keep_unlinked: true, ..Options::default() };
        let disk = Arc::<Disk>::default();
        let open = |path: &Path, keep_unlinked, (disk, number)| {
            let options = Options { keep_unlinked, ..options.clone() };
            let below: Arc<dyn FileSystem> = Arc::new(Posix::open(path, options).unwrap());
            let (left, meddler, is_sick) = (left.clone(), meddler.clone(), is_sick.clone());
            Arc::new(Mortal { below, left, meddler, is_sick, disk, number }) as Arc<dyn FileSystem>
        };
        let spin_max = std::time::Duration::ZERO;
        let settings = Settings { name: "test".into(), threads_min: 0, threads_max: 0, spin_max };
        let group = Group::new(settings).unwrap();
        let stores = self.names.iter().enumerate().map(|(number, name)| {
            let store = Store::new(name, LayoutKey::of_volume(&KEY), false);
            let backing = open(&self.home.path().join(name), false, (Some(disk.clone()), number));
            store.reached(backing, Some(server_starts.clone()));
            store
        });
        let config = Config { key: KEY, block: BLOCK, width: self.width, inline_max: INLINE_MAX, brings };
        let tree_disk = Arc::<Disk>::default();
        let [tree, quiet] = [true, false].map(|keeps| open(&self.tree(), keeps, (Some(tree_disk.clone()), 0)));
        let trees = (tree, quiet);
        let plain = wait(&group, Plain::open(trees, stores.collect(), config, None)).unwrap();
        // Nobody was away.
        plain.is_swept.store(true, Ordering::SeqCst);
        left.store(changes, Ordering::SeqCst);
        Process { plain, left, meddler, is_sick, starts, disk, tree_disk, group }
    }

    /// How many objects there are.
    pub(super) fn objects(&self) -> usize {
        let of = |name: &String| {
            let folders = std::fs::read_dir(self.home.path().join(name).join(marker::OBJECTS)).unwrap();
            folders.map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap().count()).sum::<usize>()
        };
        self.names.iter().map(of).sum()
    }

    /// How many links there are to stubs that are to go.
    pub(super) fn gone(&self) -> usize {
        std::fs::read_dir(self.tree().join(FOLDER).join("gone")).unwrap().count()
    }
}

impl Process {
    pub(super) fn is_dead(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    pub(super) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        wait(&self.group, future)
    }

    pub(super) fn ask(&self, request: Request<'_>) -> Result<Reply, Errno> {
        self.wait(self.plain.call(&context(), request))
    }

    pub(super) fn root(&self) -> Handle {
        self.plain.root.clone()
    }

    pub(super) fn look_up(&self, name: &str) -> Result<Entry, Errno> {
        self.ask(Request::Lookup { parent: self.root().bytes(), name: name.as_bytes() })?.entry()
    }

    pub(super) fn open(&self, name: &str, flags: OpenFlags) -> Result<OpenId, Errno> {
        let entry = self.look_up(name)?;
        Ok(self.ask(Request::Open { handle: entry.handle.bytes(), flags })?.opened()?.id)
    }

    pub(super) fn create(&self, name: &str, flags: OpenFlags) -> Result<(Entry, OpenId), Errno> {
        let (root, flags) = (self.root(), flags | READ_WRITE);
        let (parent, name) = (root.bytes(), name.as_bytes());
        let (entry, opened) = self.ask(Request::Create { parent, name, mode: 0o644, umask: 0, flags })?.created()?;
        Ok((entry, opened.id))
    }

    pub(super) fn close(&self, open: OpenId) -> Result<(), Errno> {
        self.ask(Request::Release { open }).map(drop)
    }

    pub(super) fn write(&self, open: OpenId, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let write = WriteAt { open, offset, append: offset == u64::MAX, stable: false };
        let source = Source::Memory(data.to_vec().into());
        Ok(self.wait(self.plain.write(&context(), write, source))?.count as usize)
    }

    /// Writes a whole file, in parts of at most 40,000 bytes.
    pub(super) fn put(&self, name: &str, data: &[u8]) -> Result<(), Errno> {
        let (_, open) = self.create(name, OpenFlags::TRUNCATE)?;
        let mut at = 0;
        let result = loop {
            let part = &data[at..data.len().min(at + 40_000)];
            if part.is_empty() {
                break Ok(());
            }
            match self.write(open, at as u64, part) {
                Ok(count) => at += count,
                Err(error) => break Err(error),
            }
        };
        self.close(open).and(result)
    }

    pub(super) fn read(&self, open: OpenId, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let sink = MemorySink::default();
        let read = ReadAt { open, offset, length: length as u32 };
        let count = self.wait(self.plain.read(&context(), read, Box::new(sink.clone())))?;
        let data = sink.take().unwrap();
        assert_eq!(data.len(), count);
        Ok(data)
    }

    /// All of a file, whose size the attributes tell.
    pub(super) fn get(&self, name: &str) -> Result<Vec<u8>, Errno> {
        let entry = self.look_up(name)?;
        let open = self.open(name, OpenFlags::READ)?;
        let mut data = Vec::new();
        let result = loop {
            match self.read(open, data.len() as u64, 50_000) {
                Ok(part) if part.is_empty() => break Ok(()),
                Ok(part) => data.extend(part),
                Err(error) => break Err(error),
            }
        };
        self.close(open)?;
        result?;
        assert_eq!(entry.attr.size, data.len() as u64, "{name}");
        Ok(data)
    }

    pub(super) fn set_size(&self, name: &str, size: u64) -> Result<Attr, Errno> {
        let entry = self.look_up(name)?;
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.ask(Request::SetAttr { handle: entry.handle.bytes(), open: None, set })?.attr()
    }

    pub(super) fn unlink(&self, name: &str) -> Result<(), Errno> {
        self.ask(Request::Unlink { parent: self.root().bytes(), name: name.as_bytes() })?.done()
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        let root = self.root();
        let (parent, new_parent, flags) = (root.bytes(), root.bytes(), RenameFlags::empty());
        let (name, new_name) = (from.as_bytes(), to.as_bytes());
        self.ask(Request::Rename { parent, name, new_parent, new_name, flags })?.done()
    }

    pub(super) fn allocate(&self, open: OpenId, range: (u64, u64), flags: FallocateFlags) -> Result<(), Errno> {
        let (offset, length) = range;
        self.ask(Request::Fallocate { open, offset, length, flags })?.done()
    }

    pub(super) fn sweep(&self) {
        self.wait(self.plain.sweep()).unwrap();
    }

    /// All files of the root and what is in them.
    pub(super) fn all(&self) -> BTreeMap<String, Result<Vec<u8>, Errno>> {
        let open = self.ask(Request::OpenDirectory { handle: self.root().bytes() }).unwrap().opened().unwrap().id;
        let list = Request::ReadDirectory { open, cookie: 0, size: 60_000, plus: true };
        let page = self.ask(list).unwrap().directory().unwrap();
        self.ask(Request::ReleaseDirectory { open }).unwrap();
        let names = page.entries().map(|entry| String::from_utf8(entry.name.to_vec()).unwrap());
        names.filter(|name| name != "." && name != "..").map(|name| (name.clone(), self.get(&name))).collect()
    }
}

/// A look at what an operation has come to.
pub(super) fn poll<F: Future>(operation: &mut Pin<&mut F>) -> Option<F::Output> {
    match operation.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Bytes that differ from place to place, and from seed to seed.
pub(super) fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}
