//! The store of a server: its marker, and its objects.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use aqueduct_fs::{
    Attr, Context, Credential, Entry, Errno, FallocateFlags, FileSystem, Groups, Handle, OpenFlags, OpenId, ReadAt,
    Reply, Request, SetAttr, SetTime, Sink, Source, Staged, Statfs, WriteAt, Written, XattrMode,
};
use aqueduct_worker::Group;
use bytes::Bytes;

use crate::attribute::{LayoutKey, object_name};
use crate::backing::{Backing, PROJECT, SELF, look_up, own, read_all};
use crate::gate::Gate;
use crate::generations;
use crate::ledger::{Notes, Seen};
use crate::marker::{self, Marker};
use crate::stripe::{ServerKey, server_key};
use crate::told::Told;

/// The mode of objects: only the superuser of their machine reads them past the volume, whatever
/// the file allows.
const MODE: u32 = 0o600;

/// An object's mode has this, too, while it is being copied and for as long as its file does not
/// lie there: its sticky bit, which means nothing for a file. A token that was given out when the
/// file lay there before does not open it.
const UNDER_WAY: u32 = 0o1000;

/// New files avoid stores of which less than one part in so many is free: 5 %.
const FREE_MIN: u64 = 20;

/// So old may be what a store has said of its space when a new file is placed.
const SPACE_AGE_MAX: Duration = Duration::from_secs(5);

/// How long a store is asked for what may be told without it, too.
const PATIENCE: Duration = Duration::from_secs(1);

/// For so long a store that was waited for in vain is not asked again for what may be told without
/// it: who lists a folder would wait for each file in turn.
const SILENCE: Duration = Duration::from_secs(5);

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// One of the volume's stores.
pub struct Store {
    id: String,
    key: ServerKey,
    layouts: LayoutKey,
    way: Mutex<Way>,
    checked: Mutex<Option<Checked>>,
    /// It is not what it has to be, which was told: nothing of it is used.
    is_refused: AtomicBool,
    /// No object could be made there, since its file system is read-only.
    is_read_only: AtomicBool,
    /// The files of which it lacks objects.
    lacking: Told,
    /// Its file system keeps no projects, which was told.
    lacks_projects: AtomicBool,
    /// When somebody has waited in vain for its answer, unless it has answered since.
    silent: Mutex<Option<Instant>>,
    /// It lies on the tree's own file system.
    is_here: bool,
    space: Mutex<Space>,
    /// What the server of the names remembers of it; none where it is served to clients.
    notes: OnceLock<Arc<Notes>>,
    /// One looks at the marker at a time.
    checking: Gate,
    /// The generation in which it is used; 0: it is not known.
    generation: AtomicU64,
}

/// A question to a store. It is silent if that is given up before it was answered.
pub(crate) struct Asked<'a> {
    store: &'a Store,
    is_answered: bool,
}

impl Asked<'_> {
    /// The store has answered.
    pub(crate) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        *lock(&self.store.silent) = (!self.is_answered).then(Instant::now);
    }
}

/// Says which start of its server a store was reached at last.
pub type Start = Arc<dyn Fn() -> u64 + Send + Sync>;

#[derive(Default)]
struct Way {
    backing: Option<Backing>,
    start: Option<Start>,
    waiting: Vec<Waker>,
}

/// What a store said last of its space.
#[derive(Default)]
struct Space {
    asked: Option<Instant>,
    statfs: Option<Statfs>,
}

/// Its marker was right.
struct Checked {
    /// At this start of its server.
    start: u64,
    objects: Handle,
    folders: HashMap<usize, Handle>,
}

/// Whose a file is: its objects are the same's, so that quotas count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Its project. 0: none, and that of an object is its store's business.
    pub(crate) project: u32,
}

/// How an object is made.
#[derive(Clone, Copy)]
pub(crate) enum Making {
    /// Empty, should there be one or not.
    Any(Owner),
    /// Another one than there may be, [`UNDER_WAY`] from the beginning.
    UnderWay(Owner),
}

/// An object that is open.
pub(crate) struct Object {
    /// The id of its file's objects, and which of them it is.
    name: ([u8; 16], usize),
    store: Arc<Store>,
    backing: Backing,
    handle: Handle,
    open: OpenId,
    /// So many bytes it had when it was opened.
    pub(crate) length: u64,
    /// Its file system was read-only when it was opened.
    is_read_only: bool,
}

async fn root_of(backing: &Backing) -> Result<Handle, Errno> {
    Ok(backing.call(&own(), Request::Root).await?.entry()?.handle)
}

fn unread(error: Errno) -> String {
    format!("its marker cannot be read ({error})")
}

/// As the caller, whose quota counts, without groups that another machine may not know.
fn as_caller(context: &Context) -> Context {
    let Credential { uid, gid, .. } = context.credential;
    let credential = Credential { uid, gid, groups: Groups::Known(Arc::new([])) };
    Context { client: SELF, credential, ..context.clone() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

impl Store {
    /// The store of the server `id`, which nobody has reached yet. `is_here`: it lies on the
    /// tree's own file system, whose space is counted once.
    pub fn new(id: &str, layouts: LayoutKey, is_here: bool) -> Arc<Store> {
        Arc::new(Store {
            id: id.to_owned(),
            key: server_key(id),
            layouts,
            way: Mutex::default(),
            checked: Mutex::default(),
            is_refused: AtomicBool::new(false),
            is_read_only: AtomicBool::new(false),
            lacking: Told::default(),
            lacks_projects: AtomicBool::new(false),
            silent: Mutex::default(),
            is_here,
            space: Mutex::default(),
            notes: OnceLock::new(),
            checking: Gate::default(),
            generation: AtomicU64::new(0),
        })
    }

    /// It is reached this way. Whoever waited for it goes on. `start`: another one each time that
    /// its server was started, as soon as anything that was said since is heard; none: it is a
    /// directory of this machine.
    pub fn reached(&self, backing: Backing, start: Option<Start>) {
        let mut way = lock(&self.way);
        (way.backing, way.start) = (Some(backing), start);
        way.waiting.drain(..).for_each(Waker::wake);
    }

    /// The server of the names remembers this of it.
    pub(crate) fn is_noted_by(&self, notes: &Arc<Notes>) {
        let _ = self.notes.set(notes.clone()); // who uses it says so once
    }

    /// The generation in which it is used; 0: not yet.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    fn start(&self) -> u64 {
        let start = lock(&self.way).start.clone();
        start.map_or(0, |start| start())
    }

    /// Whether its marker was looked at since its server was started.
    fn is_vouched_for(&self) -> bool {
        let start = self.start();
        lock(&self.checked).as_ref().is_some_and(|checked| checked.start == start)
    }

    /// Looks at the marker, unless that was done since its server was started. EIO: it is not what
    /// it has to be.
    pub(crate) async fn vouch(&self) -> Result<(), Errno> {
        if self.is_vouched_for() {
            return Ok(());
        }
        let backing = self.backing().await;
        self.folder(&backing, 0).await.map(drop)
    }

    /// Says once of a file that an object is missing.
    pub(crate) fn lacks(&self, id: &[u8; 16], part: usize) {
        if self.lacking.is_first(u128::from_le_bytes(*id)) {
            let (_, name) = object_name(id, part);
            tracing::error!(
                "the store of server {} lacks object {name}, and a file gives EIO: 'aqueduct volume check' names it",
                self.id
            );
        }
    }

    /// The same of an object that has so many bytes, and had more.
    pub(crate) fn lacks_end(&self, (id, part): (&[u8; 16], usize), (length, least): (u64, u64)) {
        if self.lacking.is_first(u128::from_le_bytes(*id)) {
            let (_, name) = object_name(id, part);
            tracing::error!(
                "object {name} of the store of server {} has {length} bytes, and had {least}: what is lost of a file gives EIO; 'aqueduct volume check' names it",
                self.id
            );
        }
    }

    /// Something is asked of it that is not waited for for ever.
    pub(crate) fn asked(&self) -> Asked<'_> {
        Asked { store: self, is_answered: false }
    }

    /// Whether somebody has waited for it in vain lately.
    pub(crate) fn is_silent(&self) -> bool {
        lock(&self.silent).is_some_and(|since| since.elapsed() < SILENCE)
    }

    /// Whether somebody has found that its file system keeps no projects.
    pub(crate) fn keeps_no_projects(&self) -> bool {
        self.lacks_projects.load(Ordering::Relaxed)
    }

    /// Whether it has ever been reached.
    pub(crate) fn is_reached(&self) -> bool {
        lock(&self.way).backing.is_some()
    }

    /// Whether new files avoid it, as it has refused what was asked of it last.
    pub(crate) fn is_avoided(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed) || self.is_read_only.load(Ordering::Relaxed)
    }

    /// Looks how it is now: whether it may be used again, and what space it has.
    pub(crate) async fn look(&self, group: Option<&Group>) {
        if self.is_avoided() {
            in_time(self.look_again(), group).await;
        }
        self.known_space(group).await;
    }

    async fn look_again(&self) {
        let backing = self.backing().await;
        let Ok(folder) = self.folder(&backing, 0).await else { return }; // the log says why
        if self.is_read_only.load(Ordering::Relaxed) {
            let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
            let touch = Request::SetAttr { handle: folder.bytes(), open: None, set };
            if backing.call(&own(), touch).await.is_ok() && self.is_read_only.swap(false, Ordering::Relaxed) {
                tracing::info!("the store of server {} can be written to again", self.id);
            }
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn key(&self) -> ServerKey {
        self.key
    }

    pub(crate) async fn backing(&self) -> Backing {
        poll_fn(|task| {
            let mut way = lock(&self.way);
            match &way.backing {
                Some(backing) => Poll::Ready(backing.clone()),
                None => {
                    way.waiting.retain(|waker| !waker.will_wake(task.waker()));
                    way.waiting.push(task.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The folder of objects, after a look at the marker if there was none since its server was
    /// started. EIO: this is not the store that it has to be; it is looked at anew the next time.
    pub(crate) async fn folder(&self, backing: &Backing, number: usize) -> Result<Handle, Errno> {
        if self.is_vouched_for()
            && let Some(known) = lock(&self.checked).as_ref().and_then(|checked| checked.folders.get(&number).cloned())
        {
            return Ok(known);
        }
        let objects = self.objects(backing).await?;
        let found = look_up(backing, &objects, &marker::folder(number)).await;
        let handle = found.inspect_err(|error| {
            // That is of what was there before its server was started anew.
            if *error != Errno::ESTALE {
                tracing::error!("the store of server {} lacks a folder of objects: {error}", self.id);
            }
        });
        let handle = handle.map_err(|error| if error == Errno::ENOENT { Errno::EIO } else { error })?;
        if let Some(checked) = lock(&self.checked).as_mut().filter(|checked| checked.objects == objects) {
            checked.folders.insert(number, handle.clone());
        }
        Ok(handle)
    }

    /// The folder of the folders.
    async fn objects(&self, backing: &Backing) -> Result<Handle, Errno> {
        let _alone = self.checking.alone().await;
        let start = self.start();
        let known =
            lock(&self.checked).as_ref().filter(|checked| checked.start == start).map(|known| known.objects.clone());
        if let Some(objects) = known {
            return Ok(objects);
        }
        self.forget();
        match self.check(backing).await {
            Ok(objects) => {
                if self.is_refused.swap(false, Ordering::Relaxed) {
                    tracing::info!("the store of server {} is used again", self.id);
                }
                *lock(&self.checked) = Some(Checked { start, objects: objects.clone(), folders: HashMap::new() });
                Ok(objects)
            }
            Err(why) => {
                if !self.is_refused.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        "the store of server {} is not used: {why}; files with data there give EIO until it is back",
                        self.id
                    );
                }
                Err(Errno::EIO)
            }
        }
    }

    async fn check(&self, backing: &Backing) -> Result<Handle, String> {
        let (root, marker) = self.read_marker(backing).await?;
        if let Some(notes) = self.notes.get() {
            let generation = generations::confirm((backing, &root), (self.key, marker), notes).await?;
            self.generation.store(generation, Ordering::SeqCst);
        }
        look_up(backing, &root, marker::OBJECTS).await.map_err(unread)
    }

    /// Its marker, if it is the one of this server's, and its directory.
    async fn read_marker(&self, backing: &Backing) -> Result<(Handle, Marker), String> {
        let mut root = root_of(backing).await.map_err(unread)?;
        let mut found = look_up(backing, &root, marker::NAME).await;
        if found == Err(Errno::ESTALE) {
            // Its server was started anew meanwhile, over another directory.
            root = root_of(backing).await.map_err(unread)?;
            found = look_up(backing, &root, marker::NAME).await;
        }
        let marker = match found {
            Err(Errno::ENOENT) => {
                return Err("its directory has no marker: see whether its file system is mounted".to_owned());
            }
            found => found.map_err(unread)?,
        };
        let bytes = read_all(backing, &marker, marker::LENGTH).await.map_err(unread)?;
        match marker::decode(&self.layouts, &bytes) {
            None => Err("its marker is none of this volume".to_owned()),
            Some(marker) if marker.server != self.key => {
                Err("it is the store of another server of the volume".to_owned())
            }
            Some(marker) => Ok((root, marker)),
        }
    }

    /// The generation that its marker has now.
    pub(crate) async fn generation_now(&self) -> Result<u64, Errno> {
        let backing = self.backing().await;
        self.read_marker(&backing).await.map(|(_, marker)| marker.generation).map_err(|_| Errno::EIO)
    }

    /// How it is now; `None`: it was never used.
    pub(crate) async fn seen_now(&self) -> Result<Option<Seen>, Errno> {
        let backing = self.backing().await;
        let (_, Marker { identity, generation, .. }) = self.read_marker(&backing).await.map_err(|_| Errno::EIO)?;
        Ok((generation > 0).then_some(Seen { identity, generation }))
    }

    /// Nothing that is known of its folders is believed any more.
    pub(crate) fn forget(&self) {
        *lock(&self.checked) = None;
    }

    /// Opens an object, or makes it. `None`: there is none.
    pub(crate) async fn object(
        self: &Arc<Store>,
        (id, part): (&[u8; 16], usize),
        make: Option<Making>,
    ) -> Result<Option<Object>, Errno> {
        let backing = self.backing().await;
        match self.try_object(&backing, (id, part), make).await {
            Err(Errno::ESTALE) => {
                self.forget();
                self.try_object(&backing, (id, part), make).await.map_err(|_| Errno::EIO)
            }
            result => result,
        }
    }

    async fn try_object(
        self: &Arc<Store>,
        backing: &Backing,
        (id, part): (&[u8; 16], usize),
        make: Option<Making>,
    ) -> Result<Option<Object>, Errno> {
        let (folder, name) = object_name(id, part);
        let folder = self.folder(backing, folder).await?;
        let of = |handle, (open, length), is_read_only| {
            let (name, store, backing) = ((*id, part), self.clone(), backing.clone());
            Object { name, store, backing, handle, open, length, is_read_only }
        };
        let Some(make) = make else {
            let request = Request::Lookup { parent: folder.bytes(), name: name.as_bytes() };
            let (handle, length) = match backing.call(&own(), request).await.and_then(Reply::entry) {
                Err(Errno::ENOENT) => return Ok(None),
                found => found.map(|entry| (entry.handle, entry.attr.size))?,
            };
            let open = |flags| Request::Open { handle: handle.bytes(), flags };
            let (opened, is_read_only) = match backing.call(&own(), open(READ_WRITE)).await {
                Err(Errno::EROFS) => (backing.call(&own(), open(OpenFlags::READ)).await?, true),
                opened => (opened?, false),
            };
            return Ok(Some(of(handle, (opened.opened()?.id, length), is_read_only)));
        };
        let (parent, name) = (folder.bytes(), name.as_bytes());
        let (mode, flags, owner) = match make {
            Making::Any(owner) => (MODE, READ_WRITE | OpenFlags::TRUNCATE, owner),
            Making::UnderWay(owner) => {
                // Who has opened that one goes on with it.
                match backing.call(&own(), Request::Unlink { parent, name }).await {
                    Ok(_) | Err(Errno::ENOENT) => {}
                    Err(error) => return Err(error),
                }
                (MODE | UNDER_WAY, READ_WRITE | OpenFlags::EXCLUSIVE, owner)
            }
        };
        let create = Request::Create { parent, name, mode, umask: 0, flags };
        let created = backing.call(&own(), create).await;
        if matches!(created, Err(Errno::EROFS)) && !self.is_read_only.swap(true, Ordering::Relaxed) {
            tracing::warn!("the store of server {} is read-only: new files avoid it while it is", self.id);
        }
        let (entry, opened) = created?.created()?;
        let object = of(entry.handle, (opened.id, entry.attr.size), false);
        if (entry.attr.uid, entry.attr.gid) != (owner.uid, owner.gid) {
            object.own(owner).await?;
        } else {
            object.count_for(owner.project).await?;
        }
        Ok(Some(object))
    }

    /// Removes an object, if there is one.
    pub(crate) async fn remove(&self, id: &[u8; 16], part: usize) -> Result<(), Errno> {
        let backing = self.backing().await;
        let (folder, name) = object_name(id, part);
        for _ in 0..2 {
            let parent = self.folder(&backing, folder).await?;
            let unlink = Request::Unlink { parent: parent.bytes(), name: name.as_bytes() };
            match backing.call(&own(), unlink).await {
                Ok(_) | Err(Errno::ENOENT) => return Ok(()),
                Err(Errno::ESTALE) => self.forget(),
                Err(error) => return Err(error),
            }
        }
        Err(Errno::EIO)
    }

    /// Whether its space is counted beside the tree's.
    pub(crate) fn is_elsewhere(&self) -> bool {
        !self.is_here
    }

    /// Its space, or what it said last if it does not answer in time; without a group it is waited
    /// for.
    pub(crate) async fn known_space(&self, group: Option<&Group>) -> Option<Statfs> {
        let answer = in_time(self.space(), group).await.and_then(Result::ok);
        let mut space = lock(&self.space);
        space.statfs = answer.or(space.statfs);
        space.statfs
    }

    /// Whether its space is to be asked for again: then who asked does that.
    pub(crate) fn is_space_due(&self) -> bool {
        let mut space = lock(&self.space);
        let is_due = space.asked.is_none_or(|asked| asked.elapsed() >= SPACE_AGE_MAX);
        if is_due {
            space.asked = Some(Instant::now());
        }
        is_due
    }

    /// Whether it was nearly full when it was asked last.
    pub(crate) fn is_nearly_full(&self) -> bool {
        lock(&self.space).statfs.is_some_and(|space| is_nearly_full(space.blocks_available, space.blocks))
    }

    /// Its directory.
    pub(crate) async fn root(&self) -> Result<Entry, Errno> {
        self.backing().await.call(&own(), Request::Root).await?.entry()
    }

    pub(crate) async fn space(&self) -> Result<Statfs, Errno> {
        let backing = self.backing().await;
        let root = root_of(&backing).await?;
        backing.call(&own(), Request::Statfs { handle: root.bytes() }).await?.statfs()
    }
}

/// Whether an object with these attributes is not all of its file's yet: see [`UNDER_WAY`].
pub(crate) fn is_under_way(attr: &Attr) -> bool {
    attr.mode & UNDER_WAY != 0
}

/// Whether new files avoid a store of which so much is free, of so much in all.
pub fn is_nearly_full(free: u64, all: u64) -> bool {
    free < all / FREE_MIN
}

/// What is answered soon; without a group it is waited for.
pub(crate) async fn in_time<T>(asked: impl Future<Output = T>, group: Option<&Group>) -> Option<T> {
    within(PATIENCE, asked, group).await
}

/// What is answered within so long; without a group it is waited for.
pub(crate) async fn within<T>(patience: Duration, asked: impl Future<Output = T>, group: Option<&Group>) -> Option<T> {
    match group {
        Some(group) => group.within(patience, asked).await,
        None => Some(asked.await),
    }
}

impl Object {
    /// EROFS: it can only be read.
    fn may_change(&self) -> Result<(), Errno> {
        if self.is_read_only { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// What was said of it counts if its store is still what it has to be: its server may have been
    /// started anew, over an older copy.
    async fn vouched<T>(&self, result: Result<T, Errno>) -> Result<T, Errno> {
        if result.is_ok() {
            self.store.vouch().await?;
        }
        result
    }

    /// Whether it is this one.
    pub(crate) fn is(&self, name: ([u8; 16], usize)) -> bool {
        self.name == name
    }

    /// The same as [`read`](Object::read), for as long as somebody waits for it.
    pub(crate) async fn read_by(
        &self,
        context: &Context,
        at: u64,
        length: usize,
        sink: Box<dyn Sink>,
    ) -> Result<usize, Errno> {
        let read = ReadAt { open: self.open, offset: at, length: length as u32 };
        let own = Context { cancel: context.cancel.clone(), ..own() };
        self.vouched(self.backing.read(&own, read, sink).await).await
    }

    pub(crate) async fn read(&self, at: u64, length: usize, sink: Box<dyn Sink>) -> Result<usize, Errno> {
        let read = ReadAt { open: self.open, offset: at, length: length as u32 };
        self.vouched(self.backing.read(&own(), read, sink).await).await
    }

    pub(crate) async fn write(&self, context: &Context, at: u64, data: Bytes, stable: bool) -> Result<Written, Errno> {
        self.may_change()?;
        let write = WriteAt { open: self.open, offset: at, append: false, stable };
        self.vouched(self.backing.write(&as_caller(context), write, Source::Memory(data)).await).await
    }

    /// Writes what a client has brought to the object's server, stably: this server has nothing
    /// that it could write again. ENODATA: it is not there.
    pub(crate) async fn write_brought(&self, context: &Context, at: u64, staged: Staged) -> Result<Written, Errno> {
        self.may_change()?;
        let write = WriteAt { open: self.open, offset: at, append: false, stable: true };
        let written = self.backing.write(&as_caller(context), write, Source::Staged(staged)).await;
        // A store of this process is brought nothing.
        let nowhere = |error| if error == Errno::EOPNOTSUPP { Errno::ENODATA } else { error };
        self.vouched(written.map_err(nowhere)).await
    }

    pub(crate) async fn set(&self, set: SetAttr) -> Result<Attr, Errno> {
        self.may_change()?;
        let request = Request::SetAttr { handle: self.handle.bytes(), open: Some(self.open), set };
        self.vouched(self.backing.call(&own(), request).await).await?.attr()
    }

    /// It is somebody else's from now on.
    pub(crate) async fn own(&self, owner: Owner) -> Result<(), Errno> {
        self.set(SetAttr { uid: Some(owner.uid), gid: Some(owner.gid), ..SetAttr::default() }).await?;
        self.count_for(owner.project).await
    }

    /// Its space counts for a project, where its file system keeps such.
    async fn count_for(&self, project: u32) -> Result<(), Errno> {
        if project == 0 || self.store.keeps_no_projects() {
            return Ok(());
        }
        self.may_change()?;
        let (handle, value) = (self.handle.bytes(), project.to_string());
        let request = Request::SetXattr { handle, name: PROJECT, value: value.as_bytes(), mode: XattrMode::Any };
        match self.vouched(self.backing.call(&own(), request).await).await {
            // Nor does a server within a namespace of users give any.
            Err(error @ (Errno::EOPNOTSUPP | Errno::EINVAL | Errno::EPERM)) => {
                if !self.store.lacks_projects.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        %error,
                        "the store of server {} keeps no projects: what the tree's projects have there counts for none; see whether its file system is one that does",
                        self.store.id
                    );
                }
                Ok(())
            }
            set => set?.done(),
        }
    }

    pub(crate) async fn attr(&self) -> Result<Attr, Errno> {
        let request = Request::GetAttr { handle: self.handle.bytes(), open: Some(self.open) };
        self.vouched(self.backing.call(&own(), request).await).await?.attr()
    }

    /// It is all of its file's from now on: see [`UNDER_WAY`].
    pub(crate) async fn free(&self) -> Result<(), Errno> {
        if is_under_way(&self.attr().await?) {
            self.set(SetAttr { mode: Some(MODE), ..SetAttr::default() }).await?;
        }
        Ok(())
    }

    pub(crate) async fn allocate(
        &self,
        context: &Context,
        (offset, length): (u64, u64),
        flags: FallocateFlags,
    ) -> Result<(), Errno> {
        self.may_change()?;
        let request = Request::Fallocate { open: self.open, offset, length, flags };
        self.vouched(self.backing.call(&as_caller(context), request).await).await?.done()
    }

    pub(crate) async fn sync(&self) -> Result<(), Errno> {
        let request = Request::Sync { open: self.open, data_only: true };
        self.vouched(self.backing.call(&own(), request).await).await?.done()
    }

    pub(crate) async fn close(&self) {
        if let Err(error) = self.backing.call(&own(), Request::Release { open: self.open }).await {
            tracing::debug!(%error, "an object has not been closed at server {}", self.store.id);
        }
    }
}
