//! The grace after a restart, in which nobody takes the locks that clients of before held.

use std::collections::HashSet;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use aqueduct_fs::{Cancel, Errno};
use aqueduct_worker::lock;

/// The sessions that have not recovered yet, and the requests that wait for them: of each client at most as many as may be pending.
#[derive(Default)]
pub(crate) struct Recovery(Mutex<State>);

#[derive(Default)]
struct State {
    missing: HashSet<u64>,
    /// What clients wrote may be lost, and those who are missing have not sent it again yet.
    replays: bool,
    waiting: Vec<Waker>,
}

impl Recovery {
    /// These have to recover.
    pub(crate) fn begin(&self, sessions: impl Iterator<Item = u64>, replays: bool) {
        let mut state = lock(&self.0);
        state.missing.extend(sessions);
        state.replays = replays;
    }

    /// Whether clients may still send again what the machine has lost: until then nobody else reads what is older, or writes what they would undo.
    pub(crate) fn awaits_replays(&self) -> bool {
        let state = lock(&self.0);
        state.replays && !state.missing.is_empty()
    }

    /// A session has recovered or ended.
    pub(crate) fn settle(&self, session: u64) {
        let mut state = lock(&self.0);
        if state.missing.remove(&session) && state.missing.is_empty() {
            tracing::info!("all clients of before the restart have recovered, or have gone");
            state.end();
        }
    }

    /// Nobody is waited for any more. Returns how many were still missing.
    pub(crate) fn end(&self) -> usize {
        let mut state = lock(&self.0);
        let count = state.missing.len();
        state.end();
        count
    }

    /// How many have not recovered yet.
    pub(crate) fn missing(&self) -> usize {
        lock(&self.0).missing.len()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.missing() == 0
    }

    /// Waits for the end; EINTR when cancelled before.
    pub(crate) async fn over(&self, cancel: &Cancel) -> Result<(), Errno> {
        std::future::poll_fn(|task| {
            if cancel.poll(task).is_ready() {
                return Poll::Ready(Err(Errno::EINTR));
            }
            let mut state = lock(&self.0);
            if state.missing.is_empty() {
                return Poll::Ready(Ok(()));
            }
            state.waiting.push(task.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl State {
    fn end(&mut self) {
        self.missing.clear();
        self.waiting.drain(..).for_each(Waker::wake);
    }
}
