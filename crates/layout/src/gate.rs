//! A lock for operations that wait: many share it, or one has it alone, in the order in which they
//! came. Whoever waits holds no thread.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// The lock of one file.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sharing: usize,
    is_alone: bool,
    /// Who waits, the first first: as many as requests are under way.
    queue: VecDeque<Waiting>,
    next: u64,
}

struct Waiting {
    number: u64,
    alone: bool,
    waker: Waker,
}

/// The right to go on, until it is dropped.
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    alone: bool,
}

/// Waits for a [`Pass`].
pub(crate) struct Coming<'a> {
    gate: &'a Gate,
    alone: bool,
    number: Option<u64>,
}

impl State {
    fn admits(&self, alone: bool) -> bool {
        !self.is_alone && (!alone || self.sharing == 0)
    }

    fn enter(&mut self, alone: bool) {
        if alone {
            self.is_alone = true
        } else {
            self.sharing += 1
        }
        self.wake_first();
    }

    fn wake_first(&self) {
        if let Some(first) = self.queue.front().filter(|first| self.admits(first.alone)) {
            first.waker.wake_by_ref();
        }
    }
}

impl Gate {
    /// With others who share it.
    pub(crate) fn shared(&self) -> Coming<'_> {
        Coming { gate: self, alone: false, number: None }
    }

    /// With nobody else.
    pub(crate) fn alone(&self) -> Coming<'_> {
        Coming { gate: self, alone: true, number: None }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}

impl<'a> Future for Coming<'a> {
    type Output = Pass<'a>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Pass<'a>> {
        let (gate, alone) = (self.gate, self.alone);
        let mut state = gate.state();
        let is_first = match self.number {
            None => state.queue.is_empty(),
            Some(number) => state.queue.front().is_some_and(|first| first.number == number),
        };
        if is_first && state.admits(alone) {
            if self.number.take().is_some() {
                state.queue.pop_front();
            }
            state.enter(alone);
            return Poll::Ready(Pass { gate, alone });
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
                state.queue.push_back(Waiting { number, alone, waker: task.waker().clone() });
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
        if self.alone {
            state.is_alone = false
        } else {
            state.sharing -= 1
        }
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
        assert!(poll(later.as_mut()).is_none());
        drop(pass);
        assert!(poll(later.as_mut()).is_some());
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
}
