use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as Task, Poll, Waker};

use bytes::Bytes;
use proptest::prelude::*;

use super::{Bucket, Clock, Duration, Throttled};
use crate::synthetic::Synthetic;
use crate::{
    Call, ClientId, Context, Credential, Errno, FileSystem, Groups, MemorySink, OpenId, ReadAt, Request, Source,
    WriteAt,
};

const MEGABYTE: u64 = 1_000_000;

#[test]
fn a_full_bucket_gives_its_burst_and_then_its_rate() {
    let mut bucket = Bucket::new(100 * MEGABYTE, Duration::from_millis(10));
    let now = Duration::from_secs(5);
    assert_eq!(bucket.take(MEGABYTE, now), Duration::ZERO, "10 ms of 100 MB/s");
    assert_eq!(bucket.take(2 * MEGABYTE, now), Duration::from_millis(20));
    assert_eq!(bucket.take(MEGABYTE, now), Duration::from_millis(30));
    // Who comes 2 ms late for his turn loses nothing.
    assert_eq!(bucket.take(MEGABYTE, now + Duration::from_millis(32)), Duration::from_millis(8));
    // Idle for long: not more than the burst was saved.
    assert_eq!(bucket.take(MEGABYTE, now + Duration::from_secs(60)), Duration::ZERO);
    assert_eq!(bucket.take(1, now + Duration::from_secs(60)), Duration::from_nanos(10));
}

#[test]
fn what_is_given_back_can_be_taken() {
    let mut bucket = Bucket::new(MEGABYTE, Duration::ZERO);
    assert_eq!(bucket.take(MEGABYTE, Duration::ZERO), Duration::from_secs(1));
    bucket.give_back(MEGABYTE);
    assert_eq!(bucket.take(MEGABYTE, Duration::ZERO), Duration::from_secs(1));
    bucket.give_back(u64::MAX);
    assert_eq!(bucket.take(MEGABYTE, Duration::ZERO), Duration::from_secs(1));
}

proptest! {
    /// Whoever takes what whenever: in no span of time does more flow than the rate and the burst allow, and nothing is lost while somebody waits.
    #[test]
    fn no_span_of_time_has_more_than_the_rate(
        rate in 1_000u64..10_000_000_000,
        takes in prop::collection::vec((0u64..20_000_000, 0u64..1 << 20), 1..60),
    ) {
        let burst = Duration::from_millis(10);
        let mut bucket = Bucket::new(rate, burst);
        let mut now = Duration::from_secs(1);
        let mut flowed: Vec<(Duration, u64)> = Vec::new();
        for (pause, bytes) in takes {
            now += Duration::from_nanos(pause);
            let before = bucket.due;
            let at = now + bucket.take(bytes, now);
            let fair = (before.max(now - burst) + bucket.time(bytes)).max(now);
            prop_assert_eq!(at, fair, "as early as the rate allows");
            flowed.push((at, bytes));
        }
        for first in 0..flowed.len() {
            let mut sum = 0;
            for (at, bytes) in &flowed[first..] {
                sum += bytes;
                let span = (*at - flowed[first].0 + burst).as_secs_f64() * rate as f64;
                // What flowed at the span's first moment began before it.
                prop_assert!(sum as f64 <= span + flowed[first].1 as f64 + 1.0, "{sum} in {span}");
            }
        }
    }
}

/// A clock that a test turns.
#[derive(Clone, Default)]
struct Virtual(Arc<Mutex<Duration>>);

struct Until(Virtual, Duration);

impl Future for Until {
    type Output = ();

    /// Tests poll again when they have turned the clock.
    fn poll(self: Pin<&mut Self>, _task: &mut Task<'_>) -> Poll<()> {
        if self.0.now() >= self.1 { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Clock for Virtual {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(Until(self.clone(), self.now() + duration))
    }
}

impl Virtual {
    fn turn_to(&self, now: Duration) {
        *self.0.lock().unwrap() = now;
    }
}

fn context(client: u64) -> Context {
    Context::new(ClientId(client), Credential { uid: 0, gid: 0, groups: Groups::Known([].into()) })
}

fn poll<T: Unpin>(call: &mut Call<'_, T>) -> Option<Result<T, Errno>> {
    match Pin::new(call).poll(&mut Task::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// A synthetic file of 10 MB at 1 MB/s, whose burst is 10 kB.
fn slow() -> (Throttled<Synthetic>, Virtual) {
    let clock = Virtual::default();
    clock.turn_to(Duration::from_secs(100));
    (Throttled::new(Synthetic { size: 10 * MEGABYTE }, MEGABYTE, clock.clone()), clock)
}

fn read(length: u32) -> ReadAt {
    ReadAt { open: OpenId(1), offset: 0, length }
}

#[test]
fn reads_wait_for_their_turn_and_hold_nothing_up() {
    let (layer, clock) = slow();
    let (one, other) = (context(1), context(2));
    let sinks = [MemorySink::default(), MemorySink::default()];
    let mut first = layer.read(&one, read(100_000), Box::new(sinks[0].clone()));
    let mut second = layer.read(&other, read(50_000), Box::new(sinks[1].clone()));
    assert!(poll(&mut first).is_none() && poll(&mut second).is_none());
    assert!(sinks[0].take().is_none(), "nothing is delivered before its time");
    // Names and attributes do not wait.
    assert!(poll(&mut layer.call(&one, Request::Root)).is_some());
    clock.turn_to(Duration::from_millis(100_090));
    assert_eq!(poll(&mut first), Some(Ok(100_000)));
    assert_eq!(sinks[0].take().unwrap().len(), 100_000);
    assert!(poll(&mut second).is_none());
    clock.turn_to(Duration::from_millis(100_140));
    assert_eq!(poll(&mut second), Some(Ok(50_000)));
}

#[test]
fn what_was_not_read_is_given_back() {
    let (layer, clock) = slow();
    let one = context(1);
    let end = ReadAt { offset: 10 * MEGABYTE, ..read(500_000) };
    let mut past = layer.read(&one, end, Box::new(MemorySink::default()));
    let abandoned = layer.read(&one, read(500_000), Box::new(MemorySink::default()));
    drop(abandoned);
    clock.turn_to(Duration::from_secs(101));
    assert_eq!(poll(&mut past), Some(Ok(0)));
    // As if nothing had been taken: the burst is there.
    let mut next = layer.read(&one, read(10_000), Box::new(MemorySink::default()));
    assert_eq!(poll(&mut next), Some(Ok(10_000)));
}

#[test]
fn writes_are_answered_when_they_have_flowed() {
    let (layer, clock) = slow();
    let one = context(1);
    let write = WriteAt { open: OpenId(1), offset: 0, append: true, stable: false };
    let data = |length: usize| Source::Memory(Bytes::from(vec![1; length]));
    let mut first = layer.write(&one, write, data(110_000));
    assert!(poll(&mut first).is_none());
    clock.turn_to(Duration::from_millis(100_099));
    assert!(poll(&mut first).is_none());
    clock.turn_to(Duration::from_millis(100_100));
    assert_eq!(poll(&mut first).unwrap().unwrap().count, 110_000);
    // One without data only asks for the verifier.
    assert!(matches!(layer.write(&one, write, data(0)), Call::Ready(_)));
    assert_eq!(layer.data_counters(), None, "a file system that counts nothing still counts nothing");
}

#[test]
fn the_server_itself_does_not_wait() {
    let (layer, _clock) = slow();
    let nobody = context(0);
    let call = layer.read(&nobody, read(1_000_000), Box::new(MemorySink::default()));
    assert!(matches!(call, Call::Ready(Some(Ok(1_000_000)))));
}
