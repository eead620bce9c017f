//! A layer that answers everything late: what waits for somebody else is tested with it, as a
//! server over another server does.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::layer::Layer;
use crate::throttled::Clock;
use crate::{
    Answer, Call, ClientId, Context, FileSystem, Handle, LockSeen, OpenId, ReadAt, Request, Sink, Source, WriteAt,
    Written,
};

/// One call in so many takes as long as any does, before or after it is executed; the others a
/// sixteenth of that, so that calls overtake each other and a test's thousands of calls still take
/// seconds.
const LONG_ONE_IN: u64 = 8;

/// The layer; see the module. Each call waits once before it goes on to the file system below and
/// once after that has answered, for times that follow from a seed.
pub struct Late<F> {
    below: F,
    longest: Duration,
    clock: Box<dyn Clock>,
    /// Where the sequence of times is.
    state: AtomicU64,
}

impl<F: FileSystem> Late<F> {
    /// Makes `below` late, by `longest` at most before a call and as much after it. The clock must
    /// not let a sleep end at once.
    pub fn new(below: F, longest: Duration, seed: u64, clock: impl Clock + 'static) -> Late<F> {
        Late { below, longest, clock: Box::new(clock), state: AtomicU64::new(seed) }
    }

    async fn pause(&self) {
        let random = mix(self.state.fetch_add(1, Ordering::Relaxed));
        let most = if random.is_multiple_of(LONG_ONE_IN) { self.longest } else { self.longest / 16 };
        let part = (random >> 32) as u32; // of 2^32
        self.clock.sleep(most.mul_f64(f64::from(part) / f64::from(u32::MAX))).await;
    }

    fn late<'a, T: Send + Unpin + 'a>(&'a self, call: impl FnOnce() -> Call<'a, T> + Send + 'a) -> Call<'a, T> {
        Call::waiting(async move {
            self.pause().await;
            let result = call().await;
            self.pause().await;
            result
        })
    }
}

/// The n-th of a sequence of random numbers (SplitMix64, Steele, Lea and Flood 2014).
fn mix(n: u64) -> u64 {
    let z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl<F: fmt::Debug> fmt::Debug for Late<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Late").field("below", &self.below).field("longest", &self.longest).finish_non_exhaustive()
    }
}

impl<F: FileSystem> Layer for Late<F> {
    type Below = F;

    fn below(&self) -> &F {
        &self.below
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        self.late(move || self.below.ask(context, request))
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        self.late(move || self.below.read(context, read, sink))
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        self.late(move || self.below.write(context, write, source))
    }

    fn depart(&self, client: ClientId) -> Call<'_, ()> {
        self.late(move || self.below.depart(client))
    }

    fn locks(&self, limit: usize) -> Call<'_, (Vec<LockSeen>, usize)> {
        self.late(move || self.below.locks(limit))
    }

    fn inode(&self, client: ClientId, open: OpenId) -> Call<'_, Handle> {
        self.late(move || self.below.inode(client, open))
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::{Arc, Mutex};
    use std::task::{Context as Task, Poll, Waker};

    use super::{Duration, Late};
    use crate::synthetic::Synthetic;
    use crate::throttled::Clock;
    use crate::{Call, ClientId, Context, Credential, Errno, FileSystem, Request};

    /// A clock whose sleeps end at their second look, and which knows them all.
    #[derive(Clone, Default)]
    struct Sleeps(Arc<Mutex<Vec<Duration>>>);

    struct Once(bool);

    impl Future for Once {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, _: &mut Task<'_>) -> Poll<()> {
            if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    impl Clock for Sleeps {
        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
            self.0.lock().unwrap().push(duration);
            Box::pin(Once(false))
        }
    }

    fn polls<T: Unpin>(mut call: Call<'_, T>) -> (usize, Result<T, Errno>) {
        for pending in 0.. {
            if let Poll::Ready(result) = Pin::new(&mut call).poll(&mut Task::from_waker(Waker::noop())) {
                return (pending, result);
            }
        }
        unreachable!()
    }

    #[test]
    fn every_call_waits_before_and_after_and_one_seed_gives_the_same_times() {
        let longest = Duration::from_millis(4);
        let times = |seed| {
            let sleeps = Sleeps::default();
            let late = Late::new(Synthetic { size: 9 }, longest, seed, sleeps.clone());
            let context = Context::new(ClientId(1), Credential::root());
            for _ in 0..100 {
                let (pending, root) = polls(late.call(&context, Request::Root));
                assert!(pending == 2 && root.is_ok());
            }
            let (pending, departed) = polls(late.depart(ClientId(1)));
            assert!(pending == 2 && departed.is_ok());
            let sleeps = sleeps.0.lock().unwrap();
            assert_eq!(sleeps.len(), 202);
            assert!(sleeps.iter().all(|sleep| *sleep <= longest));
            assert!(sleeps.iter().any(|sleep| *sleep > longest / 16), "some are long");
            sleeps.clone()
        };
        assert_eq!(times(7), times(7));
        assert_ne!(times(7), times(8));
    }
}
