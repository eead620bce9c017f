//! A lock for operations that wait: many share it, or many of another kind do, or one has it alone,
//! in the order in which they came. Whoever waits holds no thread.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// The lock of one file.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
}

/// How it is had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shared,
    /// Shared with others of this kind.
    Beside,
    Alone,
}

#[derive(Default)]
struct State {
    /// So many have it.
    sharing: usize,
    /// What they share.
    kind: Option<Kind>,
    /// Who waits, the first first: as many as requests are under way.
    queue: VecDeque<Waiting>,
    next: u64,
}

struct Waiting {
    number: u64,
    kind: Kind,
    waker: Waker,
}

/// The right to go on, until it is dropped.
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    kind: Kind,
}

impl Pass<'_> {
    /// Whether nobody else has one.
    pub(crate) fn is_alone(&self) -> bool {
        self.kind == Kind::Alone
    }
}

/// Waits for a [`Pass`].
pub(crate) struct Coming<'a> {
    gate: &'a Gate,
    kind: Kind,
    number: Option<u64>,
}

impl State {
    fn admits(&self, kind: Kind) -> bool {
        self.sharing == 0 || kind != Kind::Alone && self.kind == Some(kind)
    }

    fn enter(&mut self, kind: Kind) {
        self.sharing += 1;
        self.kind = Some(kind);
        self.wake_first();
    }

    fn wake_first(&self) {
        if let Some(first) = self.queue.front().filter(|first| self.admits(first.kind)) {
            first.waker.wake_by_ref();
        }
    }
}

impl Gate {
    /// With others who share it.
    pub(crate) fn shared(&self) -> Coming<'_> {
        Coming { gate: self, kind: Kind::Shared, number: None }
    }

    /// With others of this other kind.
    pub(crate) fn beside(&self) -> Coming<'_> {
        Coming { gate: self, kind: Kind::Beside, number: None }
    }

    /// With nobody else.
    pub(crate) fn alone(&self) -> Coming<'_> {
        Coming { gate: self, kind: Kind::Alone, number: None }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}

impl<'a> Future for Coming<'a> {
    type Output = Pass<'a>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Pass<'a>> {
        let (gate, kind) = (self.gate, self.kind);
        let mut state = gate.state();
        let is_first = match self.number {
            None => state.queue.is_empty(),
            Some(number) => state.queue.front().is_some_and(|first| first.number == number),
        };
        if is_first && state.admits(kind) {
            if self.number.take().is_some() {
                state.queue.pop_front();
            }
            state.enter(kind);
            return Poll::Ready(Pass { gate, kind });
        }
        match self.number {
            Some(number) => {
                let mut waiting = state.queue.iter_mut();
                if let Some(mine) = waiting.find(|waiting| waiting.number == number) {
                    mine.waker.clone_from(task.waker());
                }
            }
            None => {
                let number = state.next;
                state.next += 1;
                state.queue.push_back(Waiting { number, kind, waker: task.waker().clone() });
                drop(state);
                self.number = Some(number);
            }
        }
        Poll::Pending
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.gate.state();
        state.queue.retain(|waiting| waiting.number != number);
        state.wake_first();
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        state.sharing -= 1;
        state.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn poll<'a>(coming: Pin<&mut Coming<'a>>) -> Option<Pass<'a>> {
        match coming.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(pass) => Some(pass),
            Poll::Pending => None,
        }
    }

    #[test]
    fn who_wants_to_be_alone_waits_for_others_and_is_not_overtaken() {
        let gate = Gate::default();
        let one = poll(pin!(gate.shared())).unwrap();
        let other = poll(pin!(gate.shared())).unwrap();
        let mut alone = pin!(gate.alone());
        assert!(poll(alone.as_mut()).is_none());
        let mut later = pin!(gate.shared());
        assert!(poll(later.as_mut()).is_none(), "it came after one that waits");
        drop(one);
        assert!(poll(alone.as_mut()).is_none());
        drop(other);
        let pass = poll(alone.as_mut()).unwrap();
        assert!(pass.is_alone() && poll(later.as_mut()).is_none());
        drop(pass);
        assert!(poll(later.as_mut()).is_some_and(|pass| !pass.is_alone()));
    }

    #[test]
    fn who_gives_up_lets_others_pass() {
        let gate = Gate::default();
        let one = poll(pin!(gate.shared())).unwrap();
        let mut later = pin!(gate.shared());
        {
            let mut alone = pin!(gate.alone());
            assert!(poll(alone.as_mut()).is_none());
            assert!(poll(later.as_mut()).is_none());
        }
        assert!(poll(later.as_mut()).is_some());
        drop(one);
        assert!(poll(pin!(gate.alone())).is_some());
    }

    #[test]
    fn who_shares_it_in_one_way_keeps_out_who_does_in_the_other() {
        let gate = Gate::default();
        let (one, other) = (poll(pin!(gate.beside())).unwrap(), poll(pin!(gate.beside())).unwrap());
        let mut shared = pin!(gate.shared());
        assert!(poll(shared.as_mut()).is_none());
        let mut later = pin!(gate.beside());
        assert!(poll(later.as_mut()).is_none(), "it came after one that waits");
        drop((one, other));
        let pass = poll(shared.as_mut()).unwrap();
        assert!(poll(later.as_mut()).is_none());
        drop(pass);
        assert!(poll(later.as_mut()).is_some());
    }
}
