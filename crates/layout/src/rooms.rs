//! Memory for what is read of stores and not delivered yet, with a limit for each: reads that wait
//! for a server which does not answer take that much together, and others wait without any.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use crate::stripe::ServerKey;

/// The most bytes that are read of one store at once: 64 of the largest reads, more than a fast
/// network has on its way.
const READ_MAX: usize = 64 << 20;

/// See the module.
#[derive(Default)]
pub(crate) struct Rooms(Mutex<State>);

#[derive(Default)]
struct State {
    /// As many as the volume has servers.
    rooms: HashMap<ServerKey, Room>,
    next: u64,
}

#[derive(Default)]
struct Room {
    taken: usize,
    /// Who waits, the first first: as many as reads are under way.
    queue: VecDeque<(u64, Waker)>,
}

/// Room at each of these, until it is dropped.
pub(crate) struct Taken<'a> {
    rooms: &'a Rooms,
    wanted: Vec<(ServerKey, usize)>,
}

/// Waits for it, and has none meanwhile.
struct Coming<'a> {
    rooms: &'a Rooms,
    wanted: Vec<(ServerKey, usize)>,
    number: u64,
    /// In whose queue it is.
    waits_at: Option<ServerKey>,
}

impl State {
    /// Whether one may take so much: all that is wanted by who is larger than the room, once it is
    /// empty.
    fn has_room(&mut self, server: ServerKey, bytes: usize, number: u64) -> bool {
        let room = self.rooms.entry(server).or_default();
        let is_first = room.queue.front().is_none_or(|(first, _)| *first == number);
        is_first && (room.taken == 0 || room.taken.saturating_add(bytes) <= READ_MAX)
    }

    fn wake_first(&self, server: ServerKey) {
        let first = self.rooms.get(&server).and_then(|room| room.queue.front());
        first.iter().for_each(|(_, waker)| waker.wake_by_ref());
    }

    fn leave(&mut self, server: ServerKey, number: u64) {
        if let Some(room) = self.rooms.get_mut(&server) {
            room.queue.retain(|(waiting, _)| *waiting != number);
        }
        self.wake_first(server);
    }
}

impl Rooms {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Takes room for bytes of servers, each of which may be named several times.
    pub(crate) async fn take(&self, wanted: impl Iterator<Item = (ServerKey, usize)>) -> Taken<'_> {
        let mut all: Vec<(ServerKey, usize)> = Vec::new();
        for (server, bytes) in wanted {
            match all.iter_mut().find(|(known, _)| *known == server) {
                Some((_, sum)) => *sum += bytes,
                None => all.push((server, bytes)),
            }
        }
        let number = {
            let mut state = self.state();
            state.next += 1;
            state.next
        };
        Coming { rooms: self, wanted: all, number, waits_at: None }.await
    }
}

impl<'a> Future for Coming<'a> {
    type Output = Taken<'a>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Taken<'a>> {
        let (rooms, number, waited) = (self.rooms, self.number, self.waits_at.take());
        let mut state = rooms.state();
        let lacking = self.wanted.iter().find(|(server, bytes)| !state.has_room(*server, *bytes, number));
        let lacking = lacking.map(|(server, _)| *server);
        if let Some(server) = waited.filter(|server| lacking != Some(*server)) {
            state.leave(server, number);
        }
        let Some(server) = lacking else {
            for (server, bytes) in &self.wanted {
                state.rooms.entry(*server).or_default().taken += bytes;
            }
            drop(state);
            return Poll::Ready(Taken { rooms, wanted: std::mem::take(&mut self.wanted) });
        };
        let room = state.rooms.entry(server).or_default();
        match room.queue.iter_mut().find(|(waiting, _)| *waiting == number) {
            Some((_, waker)) => waker.clone_from(task.waker()),
            None => room.queue.push_back((number, task.waker().clone())),
        }
        drop(state);
        self.waits_at = Some(server);
        Poll::Pending
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        if let Some(server) = self.waits_at {
            self.rooms.state().leave(server, self.number);
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.rooms.state();
        for (server, bytes) in &self.wanted {
            if let Some(room) = state.rooms.get_mut(server) {
                room.taken -= bytes;
            }
            state.wake_first(*server);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn poll<F: Future>(coming: Pin<&mut F>) -> Option<F::Output> {
        match coming.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(taken) => Some(taken),
            Poll::Pending => None,
        }
    }

    #[test]
    fn reads_of_one_store_take_so_much_and_hold_up_no_other() {
        let rooms = Rooms::default();
        let take = |wanted: Vec<(ServerKey, usize)>| rooms.take(wanted.into_iter());
        let half = READ_MAX / 2;
        let one = poll(pin!(take(vec![(1, half), (1, half - 1)]))).unwrap();
        let mut both = pin!(take(vec![(2, 1), (1, 2)]));
        assert!(poll(both.as_mut()).is_none(), "the first has all but one byte");
        let mut behind = pin!(take(vec![(1, 1)]));
        assert!(poll(behind.as_mut()).is_none(), "nobody is overtaken");
        assert!(poll(pin!(take(vec![(2, READ_MAX)]))).is_some(), "who waits has nothing");
        {
            let mut given_up = pin!(take(vec![(1, 1)]));
            assert!(poll(given_up.as_mut()).is_none());
        }
        drop(one);
        assert!(poll(behind.as_mut()).is_none(), "it is not its turn");
        let taken = poll(both.as_mut()).unwrap();
        assert!(poll(behind.as_mut()).is_some());
        assert!(poll(pin!(take(vec![(2, READ_MAX)]))).is_none());
        drop(taken);
        assert!(poll(pin!(take(vec![(2, READ_MAX * 2)]))).is_some(), "one that is larger has it alone");
    }
}
