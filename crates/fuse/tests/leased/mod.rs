//! Leases granted and recalled by hand, over any file system: what a client and its server do, in a hundred lines.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use aqueduct_fs::*;

/// Longer than any test takes, so that nothing is forgotten by itself.
pub const LONG: Duration = Duration::from_secs(300);

#[derive(Default)]
struct State {
    /// Inodes that are being changed: nobody is granted anything of them.
    changing: HashMap<Vec<u8>, usize>,
    /// Changes that have ended.
    ended: u64,
    /// Answers on their way, by inode.
    held: HashMap<Vec<u8>, usize>,
}

pub struct Leased<F> {
    pub inner: F,
    /// For how long what is granted may be kept.
    pub lease: Mutex<Duration>,
    /// Whether pages may be kept.
    pub data: AtomicBool,
    /// Answers to lookups wait while this is set.
    pub stalled: AtomicBool,
    /// So are writes while this is.
    pub stalled_writes: AtomicBool,
    state: Arc<(Mutex<State>, Condvar)>,
    observer: Arc<Mutex<Option<Arc<dyn Observer>>>>,
    counts: Mutex<BTreeMap<&'static str, usize>>,
    /// Pages asked for that a lease covered.
    pub covered: AtomicUsize,
}

/// An answer on its way.
struct Held(Arc<(Mutex<State>, Condvar)>, Vec<Vec<u8>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = lock(&self.0.0);
        for handle in &self.1 {
            *state.held.get_mut(handle).unwrap() -= 1;
        }
        self.0.1.notify_all();
    }
}

fn kind(request: &Request<'_>) -> &'static str {
    match request {
        Request::Lookup { .. } => "lookup",
        Request::GetAttr { .. } => "getattr",
        Request::Open { .. } => "open",
        Request::OpenDirectory { .. } => "opendir",
        Request::ReadDirectory { .. } => "readdir",
        Request::ReadLink { .. } => "readlink",
        Request::GetXattr { .. } => "getxattr",
        Request::Flush { .. } => "flush",
        Request::Access { .. } => "access",
        Request::ReleaseDirectory { .. } => "releasedir",
        Request::Release { .. } => "release",
        _ => "other",
    }
}

impl<F: FileSystem> Leased<F> {
    pub fn new(inner: F) -> Leased<F> {
        Leased {
            inner,
            lease: Mutex::new(LONG),
            data: AtomicBool::new(true),
            stalled: AtomicBool::new(false),
            stalled_writes: AtomicBool::new(false),
            state: Arc::default(),
            observer: Arc::default(),
            counts: Mutex::default(),
            covered: AtomicUsize::new(0),
        }
    }

    /// Takes whom to tell what is to be forgotten, for [`Config::observed`](aqueduct_fuse::Config).
    pub fn observed(&self) -> Box<dyn FnOnce(Arc<dyn Observer>) + Send + Sync> {
        let place = self.observer.clone();
        Box::new(move |observer| *lock(&place) = Some(observer))
    }

    pub fn observer(&self) -> Arc<dyn Observer> {
        lock(&self.observer).clone().expect("it was given when the mount began")
    }

    /// How many requests of a kind have come.
    pub fn count(&self, kind: &str) -> usize {
        lock(&self.counts).get(kind).copied().unwrap_or_default()
    }

    /// How many requests of each kind have come.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        lock(&self.counts).clone()
    }

    /// Whether an answer about this inode is on its way.
    pub fn is_held(&self, handle: &[u8]) -> bool {
        lock(&self.state.0).held.get(handle).is_some_and(|held| *held > 0)
    }

    fn counted(&self, request: &Request<'_>) {
        *lock(&self.counts).entry(kind(request)).or_default() += 1;
    }

    /// Recalls what is touched, changes it, and lets it be granted again.
    pub fn change<T>(&self, touched: &[(&[u8], Aspects)], change: impl FnOnce() -> T) -> T {
        {
            let mut state = lock(&self.state.0);
            for (handle, _) in touched {
                *state.changing.entry(handle.to_vec()).or_default() += 1;
            }
            let is_held = |state: &State, handle: &[u8]| state.held.get(handle).is_some_and(|held| *held > 0);
            while touched.iter().any(|(handle, _)| is_held(&state, handle)) {
                state = self.state.1.wait(state).unwrap();
            }
        }
        for (handle, aspects) in touched {
            while !self.observer().names_left(handle).is_zero() {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.observer().forget(handle, *aspects);
        }
        let result = change();
        let mut state = lock(&self.state.0);
        state.ended += 1;
        for (handle, _) in touched {
            *state.changing.get_mut(*handle).unwrap() -= 1;
        }
        result
    }

    /// Holds the answer about these inodes, unless one of them is being changed, or anything was since `stamp`.
    fn hold(&self, handles: &[&[u8]], stamp: u64) -> Option<Hold> {
        let mut state = lock(&self.state.0);
        let is_changing = |handle: &&[u8]| state.changing.get(*handle).is_some_and(|changing| *changing > 0);
        if state.ended != stamp || handles.iter().any(is_changing) {
            return None;
        }
        for handle in handles {
            *state.held.entry(handle.to_vec()).or_default() += 1;
        }
        Some(Hold::new(Held(self.state.clone(), handles.iter().map(|handle| handle.to_vec()).collect())))
    }

    fn stamp(&self) -> u64 {
        lock(&self.state.0).ended
    }

    /// The inodes that an answer is about.
    async fn about(&self, context: &Context, request: &Request<'_>, result: &Result<Reply, Errno>) -> Vec<Vec<u8>> {
        let mut handles: Vec<Vec<u8>> = match request {
            Request::Lookup { parent, .. } => vec![parent.to_vec()],
            Request::GetAttr { handle, .. }
            | Request::Open { handle, .. }
            | Request::OpenDirectory { handle }
            | Request::ReadLink { handle }
            | Request::GetXattr { handle, .. } => vec![handle.to_vec()],
            Request::ReadDirectory { open, .. } => {
                let handle = self.inner.inode(context.client, *open).await;
                handle.map(|handle| handle.bytes().to_vec()).into_iter().collect()
            }
            _ => Vec::new(),
        };
        match result {
            Ok(Reply::Entry(entry) | Reply::Created(entry, _)) => handles.push(entry.handle.bytes().to_vec()),
            Ok(Reply::Directory(page)) => {
                handles.extend(page.entries().filter_map(|entry| Some(entry.inode?.0.to_vec())));
            }
            _ => {}
        }
        handles
    }
}

impl<F: FileSystem> FileSystem for Leased<F> {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        self.counted(&request);
        self.inner.call(context, request)
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        self.counted(&request);
        Call::waiting(async move {
            let stamp = self.stamp();
            let result = self.inner.call(context, request.clone()).await;
            let handles = self.about(context, &request, &result).await;
            let hold = self.hold(&handles.iter().map(Vec::as_slice).collect::<Vec<_>>(), stamp);
            while self.stalled.load(Ordering::SeqCst) && matches!(request, Request::Lookup { .. }) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let lease = if hold.is_some() && !handles.is_empty() { *lock(&self.lease) } else { Duration::ZERO };
            let opens = match request {
                // What a descriptor for writing writes goes through pages only if it is one for
                // both.
                Request::Open { flags, .. } => {
                    flags == OpenFlags::READ | OpenFlags::WRITE
                        || !flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE)
                }
                Request::OpenDirectory { .. } => true,
                _ => false,
            };
            let data = !lease.is_zero() && self.data.load(Ordering::SeqCst) && opens;
            Ok(Answer { result, keep: Keep { attributes: lease, names: lease, data, hold, ..Keep::default() } })
        })
    }

    fn hold_data(&self, handle: &[u8]) -> Option<Hold> {
        let hold = self.hold(&[handle], self.stamp()).filter(|_| self.data.load(Ordering::SeqCst));
        self.covered.fetch_add(usize::from(hold.is_some()), Ordering::SeqCst);
        hold
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        *lock(&self.counts).entry("read").or_default() += 1;
        self.inner.read(context, read, sink)
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        *lock(&self.counts).entry("write").or_default() += 1;
        while self.stalled_writes.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.inner.write(context, write, source)
    }

    fn depart(&self, client: ClientId) -> Call<'_, ()> {
        self.inner.depart(client)
    }

    fn inode(&self, client: ClientId, open: OpenId) -> Call<'_, Handle> {
        self.inner.inode(client, open)
    }
}
