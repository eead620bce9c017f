//! Data that clients have brought to a server of data, until the server of the names says where
//! they are written. They are nobody's before: what is never asked for goes without a trace.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use aqueduct_fs::{Errno, Staged, TRANSFER_SIZE_MAX};
use aqueduct_worker::lock;
use bytes::Bytes;

use crate::origin::Identity;

/// Memory of one client, whatever sessions it has: what it writes behind at most (128 MiB) is not
/// all under way to one server.
const OF_CLIENT_MAX: usize = 64 << 20;

/// Memory of all clients. Beyond, their data go through the server of the names.
const ALL_MAX: usize = 512 << 20;

/// What each counts at least, however short: as many as 16,384 of one client cost less.
const SIZE_MIN: usize = 4 << 10;

/// Who brought something asks for it at once. What was brought so long ago is asked for no more,
/// and gives way.
const AGE_MAX: Duration = Duration::from_secs(60);

/// Who has brought something: the session, and its client.
pub(crate) type By = (u64, Identity);

struct Entry {
    by: By,
    at: Instant,
    data: Bytes,
    /// Memory that it takes.
    size: usize,
}

#[derive(Default)]
struct State {
    entries: HashMap<[u8; 16], Entry>,
    /// What was brought, the oldest first: also what has been asked for since.
    queue: VecDeque<([u8; 16], Instant)>,
    /// Memory of all.
    size: usize,
    /// Of each client that has any.
    of_clients: HashMap<Identity, usize>,
    /// How many each session has.
    of_sessions: HashMap<u64, usize>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Staging(Mutex<State>);

/// So much less is counted of somebody, who is forgotten with the last.
fn subtract<K: std::hash::Hash + Eq>(from: &mut HashMap<K, usize>, of: &K, count: usize) {
    if let Some(counted) = from.get_mut(of) {
        *counted -= count;
        if *counted == 0 {
            from.remove(of);
        }
    }
}

impl State {
    fn remove(&mut self, id: &[u8; 16]) -> Option<Bytes> {
        let Entry { by, data, size, .. } = self.entries.remove(id)?;
        self.size -= size;
        subtract(&mut self.of_clients, &by.1, size);
        subtract(&mut self.of_sessions, &by.0, 1);
        Some(data)
    }

    fn has_room(&self, client: &Identity, size: usize) -> bool {
        let own = self.of_clients.get(client).copied().unwrap_or_default();
        self.size + size <= ALL_MAX && own + size <= OF_CLIENT_MAX
    }

    /// What is too old goes, and what is no more is forgotten.
    fn age(&mut self) {
        while let Some((id, at)) = self.queue.front().copied() {
            let is_there = self.entries.get(&id).is_some_and(|entry| entry.at == at);
            if is_there && at.elapsed() <= AGE_MAX {
                break;
            }
            self.queue.pop_front();
            if is_there {
                self.remove(&id);
            }
        }
        // Behind one that nobody asks for.
        if self.queue.len() > 2 * self.entries.len() + 1024 {
            let entries = &self.entries;
            self.queue.retain(|(id, at)| entries.get(id).is_some_and(|entry| entry.at == *at));
        }
    }
}

impl Staging {
    /// Keeps what a client has brought, with the memory that it takes. EAGAIN: there is no room
    /// now. EEXIST: another session has brought something of this name.
    pub(crate) fn put(&self, by: By, id: [u8; 16], (data, size): (Bytes, usize)) -> Result<(), Errno> {
        if !(1..=TRANSFER_SIZE_MAX).contains(&data.len()) {
            return Err(Errno::EINVAL);
        }
        let (mut state, size) = (lock(&self.0), size.max(SIZE_MIN));
        if state.entries.get(&id).is_some_and(|other| other.by.0 != by.0) {
            return Err(Errno::EEXIST);
        }
        state.remove(&id); // asked once more
        state.age();
        if !state.has_room(&by.1, size) {
            return Err(Errno::EAGAIN);
        }
        state.size += size;
        *state.of_clients.entry(by.1.clone()).or_default() += size;
        *state.of_sessions.entry(by.0).or_default() += 1;
        let at = Instant::now();
        state.queue.push_back((id, at));
        state.entries.insert(id, Entry { by, at, data, size });
        Ok(())
    }

    /// What was brought, once. ENODATA: it is not there.
    pub(crate) fn take(&self, staged: &Staged) -> Result<Bytes, Errno> {
        let data = lock(&self.0).remove(&staged.id).ok_or(Errno::ENODATA)?;
        if data.len() == staged.length as usize { Ok(data) } else { Err(Errno::ENODATA) }
    }

    /// A session has ended.
    pub(crate) fn forget(&self, session: u64) {
        let mut state = lock(&self.0);
        if state.of_sessions.contains_key(&session) {
            let of_it = state.entries.iter().filter(|(_, entry)| entry.by.0 == session);
            let found: Vec<_> = of_it.map(|(id, _)| *id).collect();
            found.iter().for_each(|id| _ = state.remove(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(length: usize) -> (Bytes, usize) {
        (vec![7; length].into(), length)
    }

    fn staged(id: u8, length: u32) -> Staged {
        Staged { id: [id; 16], length }
    }

    fn by(session: u64, client: u32) -> By {
        (session, Identity::User(client))
    }

    #[test]
    fn what_was_brought_is_had_once_and_as_it_was() {
        let staging = Staging::default();
        staging.put(by(1, 1), [1; 16], data(5)).unwrap();
        assert_eq!(staging.put(by(2, 1), [1; 16], data(5)), Err(Errno::EEXIST));
        staging.put(by(1, 1), [1; 16], data(6)).unwrap();
        assert_eq!(staging.take(&staged(1, 6)), Ok(data(6).0));
        assert_eq!(staging.take(&staged(1, 6)), Err(Errno::ENODATA));
        staging.put(by(1, 1), [2; 16], data(6)).unwrap();
        assert_eq!(staging.take(&staged(2, 5)), Err(Errno::ENODATA), "it is another one");
        for length in [0, TRANSFER_SIZE_MAX + 1] {
            assert_eq!(staging.put(by(1, 1), [3; 16], data(length)), Err(Errno::EINVAL));
        }
        let state = lock(&staging.0);
        assert!(state.entries.is_empty() && state.size == 0);
        assert!(state.of_sessions.is_empty() && state.of_clients.is_empty());
    }

    #[test]
    fn it_has_limits_and_goes_with_its_client() {
        let staging = Staging::default();
        let id = |client: u32, number: usize| {
            let mut id = [client as u8; 16];
            id[..8].copy_from_slice(&number.to_le_bytes());
            id
        };
        let all = data(TRANSFER_SIZE_MAX);
        let each = OF_CLIENT_MAX / TRANSFER_SIZE_MAX;
        for number in 0..each {
            staging.put(by(1 + number as u64 % 2, 1), id(1, number), all.clone()).unwrap();
        }
        assert_eq!(staging.put(by(3, 1), id(1, each), data(1)), Err(Errno::EAGAIN), "of one client");
        let most = (ALL_MAX / OF_CLIENT_MAX) as u32;
        for client in 2..=most {
            (0..each).for_each(|number| staging.put(by(9, client), id(client, number), all.clone()).unwrap());
        }
        assert_eq!(staging.put(by(9, 99), id(99, 0), data(1)), Err(Errno::EAGAIN), "of all");
        staging.forget(1);
        staging.put(by(9, 99), id(99, 0), data(1)).unwrap();
        assert_eq!(staging.take(&Staged { id: id(1, 0), length: TRANSFER_SIZE_MAX as u32 }), Err(Errno::ENODATA));
        // Short ones count as well.
        let short = OF_CLIENT_MAX / SIZE_MIN;
        let put = (1..=short).take_while(|number| staging.put(by(9, 99), id(99, *number), data(1)).is_ok()).count();
        assert!(put < short, "{put}");
    }

    #[test]
    fn what_nobody_has_asked_for_gives_way() {
        let staging = Staging::default();
        let id = |number: usize| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_le_bytes());
            id
        };
        let each = OF_CLIENT_MAX / TRANSFER_SIZE_MAX;
        (0..each).for_each(|number| staging.put(by(1, 1), id(number), data(TRANSFER_SIZE_MAX)).unwrap());
        assert_eq!(staging.put(by(1, 1), id(each), data(1)), Err(Errno::EAGAIN));
        {
            let mut state = lock(&staging.0);
            state.entries.values_mut().for_each(|entry| entry.at -= AGE_MAX * 2);
            state.queue.iter_mut().for_each(|(_, at)| *at -= AGE_MAX * 2);
        }
        staging.put(by(1, 1), id(each), data(1)).unwrap();
        let lengths = |state: &State| (state.entries.len(), state.queue.len());
        assert_eq!(lengths(&lock(&staging.0)), (1, 1));
        // What was asked for is forgotten, also behind one that is not.
        for number in 0..10_000 {
            staging.put(by(1, 1), id(1_000 + number), data(1)).unwrap();
            staging.take(&Staged { id: id(1_000 + number), length: 1 }).unwrap();
        }
        assert!(lock(&staging.0).queue.len() < 2_000);
    }
}
