//! What one task does at a time while others wait for what comes of it.

use std::future::poll_fn;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use aqueduct_fs::{Cancel, Errno};
use aqueduct_worker::lock;

#[derive(Default)]
pub(super) struct Turns(Mutex<State>);

#[derive(Default)]
struct State {
    is_taken: bool,
    /// As many as reads are under way.
    waiting: Vec<Waker>,
}

/// Until it is dropped nobody else has a turn.
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for a turn. EINTR: nobody waits for what it is for any more.
    pub(super) async fn take(&self, cancel: &Cancel) -> Result<Turn<'_>, Errno> {
        poll_fn(|task| {
            if cancel.poll(task).is_ready() {
                return Poll::Ready(Err(Errno::EINTR));
            }
            let mut state = lock(&self.0);
            if !std::mem::replace(&mut state.is_taken, true) {
                return Poll::Ready(Ok(Turn(self)));
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(task.waker())) {
                state.waiting.push(task.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.0);
        state.is_taken = false;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state); // a task may run at once
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn one_has_a_turn_and_who_gives_up_waits_no_more() {
        let (turns, cancel, none) = (Turns::default(), Cancel::default(), Cancel::default());
        let mut task = Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(first)) = pin!(turns.take(&none)).poll(&mut task) else { panic!("nobody has it") };
        let mut second = pin!(turns.take(&none));
        assert!(second.as_mut().poll(&mut task).is_pending());
        let mut third = pin!(turns.take(&cancel));
        assert!(third.as_mut().poll(&mut task).is_pending());
        cancel.raise();
        assert!(matches!(third.as_mut().poll(&mut task), Poll::Ready(Err(Errno::EINTR))));
        drop(first);
        assert!(matches!(second.as_mut().poll(&mut task), Poll::Ready(Ok(_))));
    }
}
