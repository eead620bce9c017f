//! Data that clients have brought to a server of data, until the server of the names says where
//! they are written. They are nobody's before: what is never asked for goes without a trace.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use aqueduct_fs::{Errno, Staged, TRANSFER_SIZE_MAX};
use aqueduct_worker::lock;
use bytes::Bytes;

/// Bytes of one client: what it writes behind at most (128 MiB) is not all under way to one server.
const OF_CLIENT_MAX: usize = 64 << 20;

/// Bytes of all clients. Beyond, their data go through the server of the names.
const ALL_MAX: usize = 512 << 20;

/// Who brought something asks for it at once. What was brought so long ago is asked for no more,
/// and gives way.
const AGE_MAX: Duration = Duration::from_secs(60);

struct Entry {
    session: u64,
    at: Instant,
    data: Bytes,
}

#[derive(Default)]
struct State {
    entries: HashMap<[u8; 16], Entry>,
    /// Bytes of all.
    bytes: usize,
    /// Of each session that has any.
    of_sessions: HashMap<u64, usize>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Staging(Mutex<State>);

impl State {
    fn remove(&mut self, id: &[u8; 16]) -> Option<Bytes> {
        let Entry { session, data, .. } = self.entries.remove(id)?;
        self.bytes -= data.len();
        if let Some(bytes) = self.of_sessions.get_mut(&session) {
            *bytes -= data.len();
            if *bytes == 0 {
                self.of_sessions.remove(&session);
            }
        }
        Some(data)
    }

    fn has_room(&self, session: u64, length: usize) -> bool {
        let own = self.of_sessions.get(&session).copied().unwrap_or_default();
        self.bytes + length <= ALL_MAX && own + length <= OF_CLIENT_MAX
    }

    fn remove_all(&mut self, is: impl Fn(&Entry) -> bool) {
        let found: Vec<_> = self.entries.iter().filter(|(_, entry)| is(entry)).map(|(id, _)| *id).collect();
        found.iter().for_each(|id| _ = self.remove(id));
    }
}

impl Staging {
    /// Keeps what a client has brought. EAGAIN: there is no room now. EEXIST: another one has
    /// brought something of this name.
    pub(crate) fn put(&self, session: u64, id: [u8; 16], data: Bytes) -> Result<(), Errno> {
        if !(1..=TRANSFER_SIZE_MAX).contains(&data.len()) {
            return Err(Errno::EINVAL);
        }
        let mut state = lock(&self.0);
        if state.entries.get(&id).is_some_and(|other| other.session != session) {
            return Err(Errno::EEXIST);
        }
        state.remove(&id); // asked once more
        if !state.has_room(session, data.len()) {
            state.remove_all(|entry| entry.at.elapsed() > AGE_MAX);
        }
        if !state.has_room(session, data.len()) {
            return Err(Errno::EAGAIN);
        }
        state.bytes += data.len();
        *state.of_sessions.entry(session).or_default() += data.len();
        state.entries.insert(id, Entry { session, at: Instant::now(), data });
        Ok(())
    }

    /// What was brought, once. ENODATA: it is not there.
    pub(crate) fn take(&self, staged: &Staged) -> Result<Bytes, Errno> {
        let data = lock(&self.0).remove(&staged.id).ok_or(Errno::ENODATA)?;
        if data.len() == staged.length as usize { Ok(data) } else { Err(Errno::ENODATA) }
    }

    /// A client has gone.
    pub(crate) fn forget(&self, session: u64) {
        let mut state = lock(&self.0);
        if state.of_sessions.contains_key(&session) {
            state.remove_all(|entry| entry.session == session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(length: usize) -> Bytes {
        vec![7; length].into()
    }

    fn staged(id: u8, length: u32) -> Staged {
        Staged { id: [id; 16], length }
    }

    #[test]
    fn what_was_brought_is_had_once_and_as_it_was() {
        let staging = Staging::default();
        staging.put(1, [1; 16], data(5)).unwrap();
        assert_eq!(staging.put(2, [1; 16], data(5)), Err(Errno::EEXIST));
        staging.put(1, [1; 16], data(6)).unwrap();
        assert_eq!(staging.take(&staged(1, 6)), Ok(data(6)));
        assert_eq!(staging.take(&staged(1, 6)), Err(Errno::ENODATA));
        staging.put(1, [2; 16], data(6)).unwrap();
        assert_eq!(staging.take(&staged(2, 5)), Err(Errno::ENODATA), "it is another one");
        for length in [0, TRANSFER_SIZE_MAX + 1] {
            assert_eq!(staging.put(1, [3; 16], data(length)), Err(Errno::EINVAL));
        }
        let state = lock(&staging.0);
        assert!(state.entries.is_empty() && state.bytes == 0 && state.of_sessions.is_empty());
    }

    #[test]
    fn it_has_limits_and_goes_with_its_client() {
        let staging = Staging::default();
        let id = |session: u64, number: usize| {
            let mut id = [session as u8; 16];
            id[..8].copy_from_slice(&number.to_le_bytes());
            id
        };
        let all = data(TRANSFER_SIZE_MAX);
        let each = OF_CLIENT_MAX / TRANSFER_SIZE_MAX;
        for number in 0..each {
            staging.put(1, id(1, number), all.clone()).unwrap();
        }
        assert_eq!(staging.put(1, id(1, each), data(1)), Err(Errno::EAGAIN), "of one client");
        for session in 2..=(ALL_MAX / OF_CLIENT_MAX) as u64 {
            (0..each).for_each(|number| staging.put(session, id(session, number), all.clone()).unwrap());
        }
        assert_eq!(staging.put(99, id(99, 0), data(1)), Err(Errno::EAGAIN), "of all");
        staging.forget(1);
        staging.put(99, id(99, 0), data(1)).unwrap();
        assert_eq!(staging.take(&Staged { id: id(1, 0), length: TRANSFER_SIZE_MAX as u32 }), Err(Errno::ENODATA));
        // What nobody has asked for gives way.
        lock(&staging.0).entries.values_mut().for_each(|entry| entry.at -= AGE_MAX * 2);
        for number in 0..each + 1 {
            staging.put(99, id(99, number + 1), data(1)).unwrap();
        }
        (0..each).for_each(|number| staging.put(2, id(2, number), all.clone()).unwrap());
        staging.put(2, id(2, each), data(1)).unwrap_err();
        assert_eq!(lock(&staging.0).of_sessions.len(), 2);
    }
}
