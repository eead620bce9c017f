//! The open files and directories of all clients.

use std::collections::hash_map::Entry as MapEntry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use ahash::{HashMap, HashSet};
use aqueduct_fs::{ClientId, Errno, OpenFlags, OpenId};

use crate::domain::Domain;
use crate::lock::lock;
use crate::locks::Inode;
use crate::open_file::{OpenFile, Opening};

/// The parts of the table, each with its own lock: 16 keep apart as many threads as a server has.
const SHARDS: usize = 16;

type ById = RwLock<HashMap<u64, Arc<OpenFile>>>;
type ByClient = Mutex<HashMap<ClientId, HashSet<u64>>>;
type ByHandle = RwLock<HashMap<Box<[u8]>, Vec<Arc<OpenFile>>>>;

/// The table. Ids count up and never come back, not even after a restart: each table begins at a random number, so that what was open before can
/// have its id again.
pub(crate) struct Opens {
    by_id: [ById; SHARDS],
    by_handle: [ByHandle; SHARDS],
    by_client: [ByClient; SHARDS],
    domain: Domain,
    next: AtomicU64,
    count: AtomicUsize,
    listings: AtomicUsize,
    limit: usize,
    /// When the log was told last that the table is full.
    told_full: Mutex<Option<Instant>>,
}

/// A full table is told in the log again after this time.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(60);

impl Opens {
    /// Of at most `limit` opens, whose files are counted in `domain`.
    pub(crate) fn new(limit: usize, domain: Domain) -> Opens {
        Opens {
            by_id: Default::default(),
            by_handle: Default::default(),
            by_client: Default::default(),
            domain,
            next: AtomicU64::new(first_id()),
            count: AtomicUsize::new(0),
            listings: AtomicUsize::new(0),
            limit,
            told_full: Mutex::default(),
        }
    }

    /// The opens at present.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Those of them that are directories.
    pub(crate) fn listings(&self) -> usize {
        self.listings.load(Ordering::Relaxed)
    }

    /// The most opens at once.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    fn ids(&self, id: OpenId) -> &ById {
        &self.by_id[id.0 as usize % SHARDS]
    }

    fn handles(&self, handle: &[u8]) -> &ByHandle {
        // The last bytes are a MAC, as good as random.
        &self.by_handle[usize::from(handle.last().copied().unwrap_or(0)) % SHARDS]
    }

    fn clients(&self, client: ClientId) -> &ByClient {
        &self.by_client[client.0 as usize % SHARDS]
    }

    /// ENFILE when the table is full: asked before a file is created in vain.
    pub(crate) fn check_room(&self) -> Result<(), Errno> {
        if self.count() < self.limit { Ok(()) } else { Err(self.full()) }
    }

    /// What who opens one more gets; told in the log now and then.
    fn full(&self) -> Errno {
        let now = Instant::now();
        let mut told = lock(&self.told_full);
        if told.is_none_or(|told| now.duration_since(told) >= TOLD_AGAIN_AFTER) {
            *told = Some(now);
            tracing::warn!(
                "a file could not be opened (ENFILE): {} are open in this export, the most that there may be. Raise opens_max, and the limit on descriptors \
                 with it (LimitNOFILE= of the service, or ulimit -Hn)",
                self.limit
            );
        }
        Errno::ENFILE
    }

    /// A new open.
    pub(crate) fn insert(&self, opening: Opening) -> Result<Arc<OpenFile>, Errno> {
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.limit {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(self.full());
        }
        let id = opening.id.unwrap_or_else(|| OpenId(self.next.fetch_add(1, Ordering::Relaxed)));
        let open = Arc::new(OpenFile::new(id, opening));
        match write(self.ids(id)).entry(id.0) {
            MapEntry::Vacant(entry) => entry.insert(open.clone()),
            MapEntry::Occupied(_) => {
                self.count.fetch_sub(1, Ordering::Relaxed);
                return Err(Errno::EBUSY);
            }
        };
        lock(self.clients(open.client)).entry(open.client).or_default().insert(open.id.0);
        if open.listing.is_some() {
            self.listings.fetch_add(1, Ordering::Relaxed);
        } else {
            self.domain.files().opened(open.inode);
        }
        write(self.handles(open.handle.bytes())).entry(open.handle.bytes().into()).or_default().push(open.clone());
        Ok(open)
    }

    /// An open of this client; EBADF when it is not.
    pub(crate) fn get(&self, client: ClientId, id: OpenId) -> Result<Arc<OpenFile>, Errno> {
        let opens = self.ids(id).read().unwrap_or_else(|poison| poison.into_inner());
        opens.get(&id.0).filter(|open| open.client == client).cloned().ok_or(Errno::EBADF)
    }

    /// Any open of an inode: it stands for the inode where the handle alone cannot (removed, or without a name).
    pub(crate) fn of_handle(&self, handle: &[u8]) -> Option<Arc<OpenFile>> {
        let opens = self.handles(handle).read().unwrap_or_else(|poison| poison.into_inner());
        opens.get(handle)?.first().cloned()
    }

    /// Whether this client has the file open for writing.
    pub(crate) fn is_written(&self, client: ClientId, handle: &[u8]) -> bool {
        let opens = self.handles(handle).read().unwrap_or_else(|poison| poison.into_inner());
        let writes = |open: &Arc<OpenFile>| open.client == client && open.flags.contains(OpenFlags::WRITE);
        opens.get(handle).is_some_and(|opens| opens.iter().any(writes))
    }

    /// Whether any client has this file open, through whichever export.
    pub(crate) fn has_file(&self, inode: Inode) -> bool {
        self.domain.files().contains(inode)
    }

    /// Whether this client has anything open here.
    pub(crate) fn has_client(&self, client: ClientId) -> bool {
        lock(self.clients(client)).contains_key(&client)
    }

    /// Takes an open of this client out of the table; its descriptor closes when the last operation on it has ended.
    pub(crate) fn remove(&self, client: ClientId, id: OpenId) -> Result<Arc<OpenFile>, Errno> {
        let open = match write(self.ids(id)).entry(id.0) {
            MapEntry::Occupied(entry) if entry.get().client == client => entry.remove(),
            _ => return Err(Errno::EBADF),
        };
        if let MapEntry::Occupied(mut entry) =
            write(self.handles(open.handle.bytes())).entry(open.handle.bytes().into())
        {
            entry.get_mut().retain(|other| other.id != id);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
        if let MapEntry::Occupied(mut entry) = lock(self.clients(client)).entry(client) {
            entry.get_mut().remove(&id.0);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        if open.listing.is_some() {
            self.listings.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.domain.files().closed(open.inode);
        }
        Ok(open)
    }

    /// The opens of a client.
    pub(crate) fn of_client(&self, client: ClientId) -> Vec<OpenId> {
        let opens = lock(self.clients(client));
        opens.get(&client).into_iter().flatten().map(|id| OpenId(*id)).collect()
    }
}

/// Random, and so far from the end that counting never comes round.
fn first_id() -> u64 {
    let mut random = [0; 8];
    // Without randomness ids may meet those of an earlier process: then reopening is refused, and nothing else.
    let _ = getrandom::fill(&mut random);
    (u64::from_le_bytes(random) >> 2).max(1)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(|poison| poison.into_inner())
}

#[cfg(test)]
mod tests {
    use aqueduct_fs::Handle;

    use super::*;

    fn opening(client: u64) -> Opening {
        Opening {
            id: None,
            client: ClientId(client),
            fd: std::fs::File::open("/").unwrap().into(),
            handle: Handle::new(b"handle").unwrap(),
            inode: Inode { device: 1, number: 1 },
            flags: OpenFlags::READ,
            verifier: 0,
            listing: None,
            is_memory: false,
        }
    }

    #[test]
    fn ids_never_come_back_and_belong_to_one_client() {
        let opens = Opens::new(2, Domain::default());
        let first = opens.insert(opening(1)).unwrap();
        let second = opens.insert(opening(2)).unwrap();
        assert_eq!(opens.insert(opening(1)).err(), Some(Errno::ENFILE));
        assert!(opens.get(ClientId(1), first.id).is_ok());
        assert_eq!(opens.get(ClientId(2), first.id).err(), Some(Errno::EBADF));
        assert_eq!(opens.remove(ClientId(2), first.id).err(), Some(Errno::EBADF));
        assert!(opens.remove(ClientId(1), first.id).is_ok());
        assert_eq!(opens.remove(ClientId(1), first.id).err(), Some(Errno::EBADF));
        let third = opens.insert(opening(1)).unwrap();
        assert!(third.id > second.id);
        assert_eq!(opens.of_client(ClientId(1)), [third.id]);
        assert!(opens.of_handle(b"handle").is_some());
        assert!(opens.has_file(Inode { device: 1, number: 1 }));
        opens.remove(ClientId(1), third.id).unwrap();
        opens.remove(ClientId(2), second.id).unwrap();
        assert!(opens.of_handle(b"handle").is_none());
        assert!(!opens.has_file(Inode { device: 1, number: 1 }));
        assert!(opens.count() == 0 && opens.domain.files().is_empty());
        assert_eq!((opens.of_client(ClientId(1)), opens.of_client(ClientId(2))), (vec![], vec![]));
        assert!(
            opens.by_client.iter().all(|clients| lock(clients).is_empty()),
            "a client that has gone takes no memory"
        );
    }

    #[test]
    fn the_first_error_sticks() {
        let open = Opens::new(1, Domain::default()).insert(opening(1)).unwrap();
        assert_eq!(open.settle(Ok(())), Ok(()));
        assert_eq!(open.settle(Err(Errno::EINVAL)), Err(Errno::EINVAL));
        assert_eq!(open.settle(Ok(())), Ok(()), "what loses nothing does not stick");
        assert_eq!(open.settle(Err(Errno::EIO)), Err(Errno::EIO));
        assert_eq!(open.settle(Err(Errno::ENOSPC)), Err(Errno::ENOSPC));
        assert_eq!(open.settle(Ok(())), Err(Errno::EIO));
        assert_eq!(open.late_error(), Err(Errno::EIO));
    }
}
