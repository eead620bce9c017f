//! The store of a server of data, as clients see it: objects that are opened by tokens of the
//! server of the names, and read. There are no names here, and nothing is changed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use aqueduct_fs::{
    Attr, Call, ClientId, Context, Errno, FileSystem, OpenId, Opened, ReadAt, Reply, Request, Sink, Source, WriteAt,
    Written,
};

use crate::attribute::LayoutKey;
use crate::store::{Object, Store, is_under_way};
use crate::token::Token;

/// The most objects that one client has open.
const OPENS_MAX: usize = 4096;

/// See the module. EREMOTE: another server answers that.
pub struct Served {
    store: Arc<Store>,
    layouts: LayoutKey,
    /// The store's generation when this process began to serve it.
    start: u64,
    /// The newest one that its marker has had since.
    newest: AtomicU64,
    clients: Mutex<HashMap<ClientId, Opens>>,
}

type Opens = HashMap<OpenId, Arc<Object>>;

impl Served {
    /// A store of the volume with this key, and the generation that it has at the process's start;
    /// `None`: it has no marker, and nothing of it is served.
    pub fn new(store: Arc<Store>, layouts: LayoutKey, start: Option<u64>) -> Served {
        let start = start.unwrap_or(u64::MAX);
        Served { store, layouts, start, newest: AtomicU64::new(start), clients: Mutex::default() }
    }

    /// Whether the server of the names has looked at the store since this process began to serve
    /// it, and has given out a token after that. So nobody reads an older copy by tokens of before.
    async fn is_of_now(&self, token: &Token) -> bool {
        if token.generation > self.newest.load(Ordering::SeqCst) {
            match self.store.generation_now().await {
                Ok(now) => self.newest.fetch_max(now, Ordering::SeqCst),
                Err(_) => return false,
            };
        }
        self.start < token.generation && token.generation <= self.newest.load(Ordering::SeqCst)
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<ClientId, Opens>> {
        self.clients.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    fn object(&self, client: ClientId, open: OpenId) -> Option<Arc<Object>> {
        self.clients().get(&client)?.get(&open).cloned()
    }

    async fn reopen(&self, client: ClientId, open: OpenId, bytes: &[u8]) -> Result<Reply, Errno> {
        let token = Token::decode(&self.layouts, bytes, self.store.key(), SystemTime::now()).ok_or(Errno::ESTALE)?;
        let opened = || Ok(Reply::Opened(Opened { id: open, token: bytes.into(), width: 0 }));
        if !self.is_of_now(&token).await {
            return Err(Errno::ESTALE);
        }
        let name = (token.id, token.part);
        if let Some(there) = self.object(client, open) {
            return if there.is(name) { opened() } else { Err(Errno::EBUSY) };
        }
        if self.clients().get(&client).is_some_and(|opens| opens.len() >= OPENS_MAX) {
            return Err(Errno::ENFILE);
        }
        let object = Arc::new(self.store.object((&token.id, token.part), None).await?.ok_or(Errno::ESTALE)?);
        let is_whole = |attr: &Attr| !is_under_way(attr) && attr.size >= token.least;
        if !object.attr().await.is_ok_and(|attr| is_whole(&attr)) {
            object.close().await;
            return Err(Errno::ESTALE);
        }
        let other = match self.clients().entry(client).or_default().entry(open) {
            Entry::Vacant(place) => {
                place.insert(object);
                return opened();
            }
            Entry::Occupied(other) => other.get().clone(),
        };
        object.close().await;
        if other.is(name) { opened() } else { Err(Errno::EBUSY) }
    }

    async fn answer(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        match request {
            Request::Root => self.store.root().await.map(Reply::Entry),
            Request::Statfs { .. } => self.store.space().await.map(Reply::Statfs),
            Request::Reopen { open, token } => self.reopen(context.client, open, token).await,
            Request::Release { open } => {
                let object = self.clients().get_mut(&context.client).and_then(|opens| opens.remove(&open));
                object.ok_or(Errno::EBADF)?.close().await;
                Ok(Reply::Done)
            }
            _ => Err(Errno::EREMOTE),
        }
    }
}

impl FileSystem for Served {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        Call::waiting(self.answer(context, request))
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        match self.object(context.client, read.open) {
            Some(object) => {
                Call::waiting(async move { object.read_by(context, read.offset, read.length as usize, sink).await })
            }
            None => Call::ready(Err(Errno::EBADF)),
        }
    }

    fn write<'a>(&'a self, _: &'a Context, _: WriteAt, _: Source) -> Call<'a, Written> {
        Call::ready(Err(Errno::EREMOTE))
    }

    fn depart(&self, client: ClientId) -> Call<'_, ()> {
        Call::waiting(async move {
            let opens = self.clients().remove(&client).unwrap_or_default();
            for object in opens.into_values() {
                object.close().await;
            }
            Ok(())
        })
    }
}
