//! A layer that holds a file system to a rate: so many bytes of data a second, read and written, for all its clients together.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::layer::Layer;
use crate::{
    Answer, Call, ClientId, Context, DataCounters, Errno, FileSystem, ReadAt, Reply, Request, Sink, Source, WriteAt,
    Written,
};

/// How much of its rate an idle bucket saves, as time: who waits for its turn is woken late on a busy machine, by some milliseconds where this was measured, and
/// asks for the next bytes a round trip later. What would be lost with that is made up for from here; more would only be a burst.
pub const BURST: Duration = Duration::from_millis(10);

/// Whoever looks from within the server (what an append came to) is no client: what it reads is
/// not sent to anybody, and not counted.
const NOBODY: ClientId = ClientId(0);

/// Time, and the wait for it, from outside: this crate has neither.
pub trait Clock: Send + Sync {
    /// Since some moment; never goes back.
    fn now(&self) -> Duration;

    /// Ready after `duration`, holding no thread.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// A token bucket, in the form of the time at which all that was taken from it will have flowed (GCRA, as ATM networks police rates). In any span of time no more flows
/// than its rate gives in that span and `burst` together.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Bytes per second.
    rate: u64,
    burst: Duration,
    /// When all that was taken has flowed.
    due: Duration,
}

impl Bucket {
    /// Full. The rate is in bytes per second, and not 0.
    pub fn new(rate: u64, burst: Duration) -> Bucket {
        Bucket { rate: rate.max(1), burst, due: Duration::ZERO }
    }

    /// Takes bytes, and says how long to wait until they have flowed.
    pub fn take(&mut self, bytes: u64, now: Duration) -> Duration {
        self.due = self.due.max(now.saturating_sub(self.burst)).saturating_add(self.time(bytes));
        self.due.saturating_sub(now)
    }

    /// Bytes that were taken are not used after all. Those who wait already wait as long as they were told.
    pub fn give_back(&mut self, bytes: u64) {
        self.due = self.due.saturating_sub(self.time(bytes));
    }

    /// How long bytes take; rounded up, so that the rate is not exceeded.
    fn time(&self, bytes: u64) -> Duration {
        let nanos = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(self.rate));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The layer; see the module. Requests have their turn in the order in which they come, whoever sends them.
///
/// A read waits before it is executed. A write is executed at once and answered when its bytes
/// would have flowed: how many those are is known only then. So in its first moment a store may be
/// given what clients can have under way, and in the long run its rate.
pub struct Throttled<F> {
    below: F,
    rate: u64,
    state: Mutex<State>,
    clock: Box<dyn Clock>,
}

#[derive(Debug)]
struct State {
    bucket: Bucket,
    /// Requests that have waited.
    waits: u64,
}

/// Bytes that were taken, and are given back if nothing is done with them.
struct Taken<'a, F> {
    layer: &'a Throttled<F>,
    bytes: u64,
}

impl<F> Taken<'_, F> {
    /// So many of them were used.
    fn used(mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes as u64);
    }
}

impl<F> Drop for Taken<'_, F> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.layer.state().bucket.give_back(self.bytes);
        }
    }
}

impl<F: FileSystem> Throttled<F> {
    /// Holds `below` to so many bytes per second.
    pub fn new(below: F, rate: u64, clock: impl Clock + 'static) -> Throttled<F> {
        let state = Mutex::new(State { bucket: Bucket::new(rate, BURST), waits: 0 });
        Throttled { below, rate, state, clock: Box::new(clock) }
    }

    /// Delays the answer until the bytes that it says were moved have flowed.
    fn after<'a, T: Send + Unpin + 'a>(
        &'a self,
        call: Call<'a, T>,
        moved: impl Fn(&T) -> u64 + Send + 'a,
    ) -> Call<'a, T> {
        let bytes = move |result: &Result<T, Errno>| result.as_ref().map_or(0, &moved);
        match call {
            Call::Ready(Some(result)) => {
                let wait = self.take(bytes(&result));
                if wait.is_zero() {
                    return Call::ready(result);
                }
                let turn = self.clock.sleep(wait); // from now, whenever it is polled first
                Call::waiting(async move {
                    turn.await;
                    result
                })
            }
            Call::Ready(None) => Call::Ready(None),
            Call::Waiting(future) => Call::waiting(async move {
                let result = future.await;
                let wait = self.take(bytes(&result));
                if !wait.is_zero() {
                    self.clock.sleep(wait).await;
                }
                result
            }),
        }
    }
}

impl<F> Throttled<F> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Takes bytes, and says how long to wait for them.
    fn take(&self, bytes: u64) -> Duration {
        if bytes == 0 {
            return Duration::ZERO;
        }
        let now = self.clock.now();
        let mut state = self.state();
        let wait = state.bucket.take(bytes, now);
        state.waits += u64::from(!wait.is_zero());
        wait
    }
}

impl<F: fmt::Debug> fmt::Debug for Throttled<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttled").field("below", &self.below).field("rate", &self.rate).finish_non_exhaustive()
    }
}

impl<F: FileSystem> Layer for Throttled<F> {
    type Below = F;

    fn below(&self) -> &F {
        &self.below
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        let summed = match request {
            Request::Checksum { length, .. } => length,
            Request::PutFiles { files, .. } => files.len() as u64,
            Request::CopyRange { .. } => 0,
            _ => return self.below.ask(context, request),
        };
        let call = self.below.ask(context, request);
        self.after(call, move |answer| match &answer.result {
            Ok(Reply::Size(bytes)) => *bytes,
            Ok(_) => summed,
            Err(_) => 0,
        })
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        if context.client == NOBODY {
            return self.below.read(context, read, sink);
        }
        let bytes = u64::from(read.length);
        let wait = self.take(bytes);
        let taken = Taken { layer: self, bytes };
        let turn = (!wait.is_zero()).then(|| self.clock.sleep(wait));
        Call::waiting(async move {
            if let Some(turn) = turn {
                turn.await;
            }
            let result = self.below.read(context, read, sink).await;
            taken.used(result.unwrap_or(0));
            result
        })
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        self.after(self.below.write(context, write, source), |written| u64::from(written.count))
    }

    fn data_counters(&self) -> Option<DataCounters> {
        let waits = self.state().waits;
        self.below.data_counters().map(|below| DataCounters { rate: Some(self.rate), throttled: waits, ..below })
    }
}

#[cfg(test)]
#[path = "throttled_tests.rs"]
mod tests;
