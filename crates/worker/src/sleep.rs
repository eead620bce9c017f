//! Waiting for a time.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
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

    /// What a future gives, unless it takes longer. `None`: it was given up.
    pub async fn within<T>(&self, time: Duration, work: impl Future<Output = T>) -> Option<T> {
        let (mut work, mut late) = (pin!(work), pin!(self.sleep(time)));
        poll_fn(|task| match work.as_mut().poll(task) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => late.as_mut().poll(task).map(|()| None),
        })
        .await
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
