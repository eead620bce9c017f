//! A sink that comes back when the server that it was lent to does not fill it.

use std::future::poll_fn;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use aqueduct_fs::Sink;
use aqueduct_worker::lock;

/// What became of it.
pub(super) enum Outcome {
    /// So many bytes were delivered.
    Delivered(usize),
    /// Nothing was: it may be filled by somebody else.
    Back(Box<dyn Sink>),
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// The sink on its way.
struct Lent {
    sink: Option<Box<dyn Sink>>,
    state: Arc<Mutex<State>>,
}

/// Where its outcome is told.
pub(super) struct Lender(Arc<Mutex<State>>);

/// Lends a sink.
pub(super) fn lend(sink: Box<dyn Sink>) -> (Box<dyn Sink>, Lender) {
    let state = Arc::<Mutex<State>>::default();
    (Box::new(Lent { sink: Some(sink), state: state.clone() }), Lender(state))
}

impl Lender {
    /// Waits until whoever has it has let go of it: a connection that receives into it does so
    /// when it is whole, or ends.
    pub(super) async fn outcome(&self) -> Outcome {
        poll_fn(|task| {
            let mut state = lock(&self.0);
            if let Some(outcome) = state.outcome.take() {
                return Poll::Ready(outcome);
            }
            state.waker = Some(task.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Lent {
    fn tell(&self, outcome: Outcome) {
        let mut state = lock(&self.state);
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state); // the task may run at once
        waker.into_iter().for_each(Waker::wake);
    }

    fn sink(&mut self) -> io::Result<&mut Box<dyn Sink>> {
        self.sink.as_mut().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

impl Sink for Lent {
    fn file(&mut self, file: BorrowedFd<'_>, offset: u64, length: usize) -> io::Result<usize> {
        self.sink()?.file(file, offset, length)
    }

    fn bytes(&mut self, data: &[u8]) -> io::Result<()> {
        self.sink()?.bytes(data)
    }

    fn memory(&mut self, length: usize) -> Option<&mut [u8]> {
        self.sink.as_mut()?.memory(length)
    }

    fn finish(mut self: Box<Self>, valid: usize) -> io::Result<()> {
        let sink = self.sink.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let finished = sink.finish(valid);
        self.tell(Outcome::Delivered(valid));
        finished
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            self.tell(Outcome::Back(sink));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use aqueduct_fs::MemorySink;

    use super::*;

    fn outcome(lender: &Lender) -> Poll<Outcome> {
        pin!(lender.outcome()).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_sink_that_was_not_filled_comes_back_and_can_be() {
        let memory = MemorySink::default();
        let (mut lent, lender) = lend(Box::new(memory.clone()));
        lent.memory(4).unwrap().copy_from_slice(b"hal\0");
        assert!(outcome(&lender).is_pending(), "somebody has it");
        drop(lent);
        let Poll::Ready(Outcome::Back(mut sink)) = outcome(&lender) else { panic!("it is back") };
        sink.memory(3).unwrap().copy_from_slice(b"all");
        sink.finish(3).unwrap();
        assert_eq!(memory.take().unwrap(), b"all");

        let (mut lent, lender) = lend(Box::new(memory.clone()));
        lent.bytes(b"more").unwrap();
        lent.finish(4).unwrap();
        assert!(matches!(outcome(&lender), Poll::Ready(Outcome::Delivered(4))));
        assert_eq!(memory.take().unwrap(), b"more");
    }
}
