//! Waiting for a time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::group::Group;

/// Ready at an instant. See [`Group::sleep`].
pub struct Sleep {
    group: Weak<Group>,
    at: Instant,
    registered: bool,
}

impl Group {
    /// Ready after `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep { group: self.this.clone(), at: Instant::now() + duration, registered: false }
    }
}

impl Future for Sleep {
    type Output = ();

    /// The task that polls first is the one that is woken: a sleep is awaited by one task.
    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.at {
            return Poll::Ready(());
        }
        if !self.registered {
            let Some(group) = self.group.upgrade() else { return Poll::Ready(()) };
            group.add_timer(self.at, task.waker().clone());
            self.registered = true;
        }
        Poll::Pending
    }
}
