//! The future that every operation returns.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::Errno;

/// An operation under way. One that completed at once, as those of a leaf do, carries its result and costs no allocation; one that waits for
/// somebody else is a future.
pub enum Call<'a, T> {
    /// Complete; `None` once the result was taken.
    Ready(Option<Result<T, Errno>>),
    /// Waits for a peer, a lock or a token.
    Waiting(Pin<Box<dyn Future<Output = Result<T, Errno>> + Send + 'a>>),
}

impl<'a, T> Call<'a, T> {
    /// A call that has completed.
    pub fn ready(result: Result<T, Errno>) -> Call<'a, T> {
        Call::Ready(Some(result))
    }

    /// A call that may have to wait.
    pub fn waiting(future: impl Future<Output = Result<T, Errno>> + Send + 'a) -> Call<'a, T> {
        Call::Waiting(Box::pin(future))
    }

    /// The result of a call that has completed; `None`: it waits. For who knows that the file
    /// system does not.
    pub fn now(self) -> Option<Result<T, Errno>> {
        match self {
            Call::Ready(result) => result,
            Call::Waiting(_) => None,
        }
    }
}

impl<T: Unpin> Future for Call<'_, T> {
    type Output = Result<T, Errno>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Call::Ready(result) => Poll::Ready(result.take().expect("a call is not polled again after it completed")),
            Call::Waiting(future) => future.as_mut().poll(task),
        }
    }
}
