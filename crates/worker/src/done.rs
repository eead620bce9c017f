//! Something that another thread does once, and a task waits for.

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};

/// Whether it is done, and who waits for it: one task.
#[derive(Default)]
pub struct Done(Mutex<(bool, Option<Waker>)>);

impl Done {
    fn state(&self) -> MutexGuard<'_, (bool, Option<Waker>)> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// It is done.
    pub fn set(&self) {
        let mut state = self.state();
        state.0 = true;
        let waker = state.1.take();
        drop(state); // the task may run at once
        waker.into_iter().for_each(Waker::wake);
    }

    /// Ends when it is done.
    pub async fn wait(&self) {
        poll_fn(|task| {
            let mut state = self.state();
            if state.0 {
                return Poll::Ready(());
            }
            state.1 = Some(task.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
