//! Things that are under way, for whoever has to wait for those that began before it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::lock;

/// Those of one kind, in the order of their beginning.
#[derive(Default)]
pub struct Earlier(Mutex<State>);

#[derive(Default)]
struct State {
    entered: u64,
    under_way: BTreeSet<u64>,
    waiters: Vec<Waker>,
}

/// One that is under way; it has ended when this is dropped.
pub struct Entered {
    all: Arc<Earlier>,
    number: u64,
}

/// Those that had begun at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Begun(u64);

/// A moment, to be asked later whether anything was under way since.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    begun: Begun,
    was_quiet: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let waiters = {
            let mut state = lock(&self.all.0);
            state.under_way.remove(&self.number);
            std::mem::take(&mut state.waiters)
        };
        waiters.into_iter().for_each(Waker::wake);
    }
}

impl Earlier {
    /// One begins.
    pub fn enter(self: &Arc<Earlier>) -> Entered {
        let mut state = lock(&self.0);
        state.entered += 1;
        let number = state.entered;
        state.under_way.insert(number);
        Entered { all: self.clone(), number }
    }

    /// Those that have begun by now.
    pub fn begun(&self) -> Begun {
        Begun(lock(&self.0).entered)
    }

    /// This moment.
    pub fn moment(&self) -> Moment {
        let state = lock(&self.0);
        Moment { begun: Begun(state.entered), was_quiet: state.under_way.is_empty() }
    }

    /// Whether any was under way at that moment or has begun since, ended or not.
    pub fn was_any_since(&self, moment: Moment) -> bool {
        !moment.was_quiet || self.begun().0 != moment.begun.0
    }

    /// Ready when these have ended, whatever has begun since.
    pub fn poll_ended(&self, begun: Begun, task: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.0);
        if state.under_way.first().is_none_or(|first| *first > begun.0) {
            return Poll::Ready(());
        }
        if !state.waiters.iter().any(|waiter| waiter.will_wake(task.waker())) {
            state.waiters.push(task.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Task>) {}
    }

    #[test]
    fn those_that_began_later_are_not_waited_for() {
        let all = Arc::<Earlier>::default();
        let waker = Waker::from(Arc::new(Task));
        let mut task = Context::from_waker(&waker);
        assert!(all.poll_ended(all.begun(), &mut task).is_ready());
        let [first, second] = [all.enter(), all.enter()];
        let begun = all.begun();
        let _later = all.enter();
        drop(second);
        assert!((0..3).all(|_| all.poll_ended(begun, &mut task).is_pending()));
        assert_eq!(lock(&all.0).waiters.len(), 1, "who looks again and again waits once");
        drop(first);
        assert!(all.poll_ended(begun, &mut task).is_ready());
    }

    #[test]
    fn what_has_ended_meanwhile_was_under_way() {
        let all = Arc::<Earlier>::default();
        let quiet = all.moment();
        assert!(!all.was_any_since(quiet));
        let first = all.enter();
        let busy = all.moment();
        drop(first);
        assert!(all.was_any_since(quiet), "it has begun since");
        assert!(all.was_any_since(busy), "it was under way then");
        assert!(!all.was_any_since(all.moment()));
    }
}
