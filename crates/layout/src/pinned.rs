//! The files that are in use: each is known once, for as long as somebody has it open or works on
//! it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use aqueduct_fs::{ClientId, Handle, OpenId};

use crate::attribute::Attribute;
use crate::changed::Changed;
use crate::gate::Gate;
use crate::spread::Spread;

/// A file in use.
pub(crate) struct File {
    pub(crate) handle: Handle,
    /// Who does I/O shares it; who changes what the file is has it alone. It is held for as long as
    /// a server of data does not answer.
    pub(crate) gate: Gate,
    /// Who finds out what the file is, writes down that it is something else, or has its names
    /// come and go has this alone, and waits for no server of data. Who takes both takes it last.
    pub(crate) names: Gate,
    /// It has lost its last name, and its objects are being removed: nobody opens it any more.
    pub(crate) goes: AtomicBool,
    /// What changed since somebody began to copy it.
    pub(crate) changed: Changed,
    kind: Mutex<Kind>,
    /// It is an ordinary file that was longer than those are made.
    pub(crate) is_large: AtomicBool,
    /// Opens and operations.
    users: AtomicUsize,
    /// How often it came to be used.
    pins: AtomicUsize,
}

/// What a file is.
#[derive(Clone, Default)]
pub(crate) enum Kind {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// An ordinary file. With an attribute, a promotion of it did not end, and there may be
    /// objects.
    Inline(Option<Attribute>),
    /// Its bytes lie in objects.
    Spread(Arc<Spread>),
}

impl File {
    pub(crate) fn kind(&self) -> Kind {
        self.place().clone()
    }

    pub(crate) fn becomes(&self, kind: Kind) {
        *self.place() = kind;
    }

    fn place(&self) -> MutexGuard<'_, Kind> {
        self.kind.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Table {
    /// As many as clients have open, and requests work on.
    files: Mutex<HashMap<Handle, Arc<File>>>,
    opens: Mutex<HashMap<(ClientId, OpenId), Arc<File>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

impl Table {
    /// A file, in use from now on until [`unpin`](Table::unpin) says otherwise.
    pub(crate) fn pin(&self, handle: &Handle) -> Arc<File> {
        let mut files = lock(&self.files);
        let file = files.entry(handle.clone()).or_insert_with(|| {
            Arc::new(File {
                handle: handle.clone(),
                gate: Gate::default(),
                names: Gate::default(),
                goes: AtomicBool::new(false),
                changed: Changed::default(),
                kind: Mutex::default(),
                is_large: AtomicBool::new(false),
                users: AtomicUsize::new(0),
                pins: AtomicUsize::new(0),
            })
        });
        file.users.fetch_add(1, Ordering::SeqCst);
        file.pins.fetch_add(1, Ordering::SeqCst);
        file.clone()
    }

    /// One uses it no more. Whether that was the last one, and something is left to be done before
    /// the file is forgotten: then who asked is its only user.
    pub(crate) fn unpin(&self, file: &Arc<File>) -> bool {
        let mut files = lock(&self.files);
        if file.users.load(Ordering::SeqCst) == 1 && matches!(file.kind(), Kind::Spread(_) | Kind::Inline(Some(_))) {
            return true;
        }
        if file.users.fetch_sub(1, Ordering::SeqCst) == 1 {
            files.remove(&file.handle);
        }
        false
    }

    /// The last user is done with what was left, and nobody came meanwhile, whose pins are those of
    /// [`sole`](Table::sole): it is forgotten. False: somebody came, and may have left more.
    pub(crate) fn forget(&self, file: &Arc<File>, pins: Option<usize>) -> bool {
        let mut files = lock(&self.files);
        let is_same = pins.is_none_or(|pins| file.pins.load(Ordering::SeqCst) == pins);
        if file.users.load(Ordering::SeqCst) != 1 || !is_same {
            return false;
        }
        file.users.store(0, Ordering::SeqCst);
        files.remove(&file.handle);
        true
    }

    /// If nobody else uses it: how often it came to be used so far.
    pub(crate) fn sole(&self, file: &File) -> Option<usize> {
        let _files = lock(&self.files);
        (file.users.load(Ordering::SeqCst) == 1).then(|| file.pins.load(Ordering::SeqCst))
    }

    /// A file that is in use.
    pub(crate) fn known(&self, handle: &[u8]) -> Option<Kind> {
        let handle = Handle::new(handle)?;
        let file = lock(&self.files).get(&handle).cloned()?;
        Some(file.kind())
    }

    /// The ids of the objects of all files that are in use.
    pub(crate) fn ids(&self) -> HashSet<[u8; 16]> {
        let kinds: Vec<Kind> = lock(&self.files).values().map(|file| file.kind()).collect();
        let id = |kind: Kind| match kind {
            Kind::Spread(spread) => Some(spread.id),
            Kind::Inline(attribute) => attribute.map(|attribute| attribute.id),
            Kind::Unknown => None,
        };
        kinds.into_iter().filter_map(id).collect()
    }

    /// What a client has open.
    pub(crate) fn open(&self, client: ClientId, open: OpenId) -> Option<Arc<File>> {
        lock(&self.opens).get(&(client, open)).cloned()
    }

    /// A client has a pinned file open. Returns what the number stood for before.
    pub(crate) fn opened(&self, key: (ClientId, OpenId), file: Arc<File>) -> Option<Arc<File>> {
        lock(&self.opens).insert(key, file)
    }

    /// An open has ended.
    pub(crate) fn closed(&self, client: ClientId, open: OpenId) -> Option<Arc<File>> {
        lock(&self.opens).remove(&(client, open))
    }

    /// All opens of a client have ended.
    pub(crate) fn departed(&self, client: ClientId) -> Vec<Arc<File>> {
        let mut opens = lock(&self.opens);
        opens.extract_if(|(of, _), _| *of == client).map(|(_, file)| file).collect()
    }
}
