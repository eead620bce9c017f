//! Stores that nobody reaches, for who does not wait for them.

use std::sync::Arc;

use aqueduct_fs::{
    Call, ClientId, Context, Errno, FileSystem, Handle, ReadAt, Reply, Request, Sink, Source, WriteAt, Written,
};

use crate::plain::Plain;

/// A store that says of everything that it is not reached.
struct Absent;

impl FileSystem for Absent {
    fn call<'a>(&'a self, _context: &'a Context, _request: Request<'a>) -> Call<'a, Reply> {
        Call::ready(Err(Errno::EHOSTUNREACH))
    }

    fn read<'a>(&'a self, _context: &'a Context, _read: ReadAt, _sink: Box<dyn Sink>) -> Call<'a, usize> {
        Call::ready(Err(Errno::EHOSTUNREACH))
    }

    fn write<'a>(&'a self, _context: &'a Context, _write: WriteAt, _source: Source) -> Call<'a, Written> {
        Call::ready(Err(Errno::EHOSTUNREACH))
    }

    fn depart(&self, _client: ClientId) -> Call<'_, ()> {
        Call::ready(Ok(()))
    }
}

impl Plain {
    /// Nobody waits any more for the stores that were not reached yet, whose ids are returned.
    pub fn wait_no_longer(&self) -> Vec<String> {
        let away = self.stores.iter().filter(|store| !store.is_reached());
        away.map(|store| {
            store.reached(Arc::new(Absent), None);
            store.id().to_owned()
        })
        .collect()
    }

    /// The servers that have a part of a file; none that are known, if its layout cannot be read.
    pub async fn servers_of(&self, handle: &Handle) -> Vec<String> {
        let Ok(Some(attribute)) = self.attribute_of(handle).await else { return Vec::new() };
        let made = attribute.servers.iter().enumerate().filter(|(part, _)| attribute.made & (1 << part) != 0);
        let of = |(_, server): (usize, &u64)| self.stores.iter().find(|store| store.key() == *server);
        let mut servers: Vec<_> = made.filter_map(of).map(|store| store.id().to_owned()).collect();
        servers.sort();
        servers.dedup();
        servers
    }

    /// Whether the store of a server says anything.
    pub async fn answers(&self, id: &str) -> bool {
        match self.stores.iter().find(|store| store.id() == id) {
            Some(store) => self.in_time(store.space()).await.is_ok(),
            None => false,
        }
    }
}
