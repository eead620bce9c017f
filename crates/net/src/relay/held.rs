//! For how long bytes of a flow lay in this router, for an initiator who asks. Until somebody
//! does, nothing is looked at, and for a while after.
//!
//! Two things hold bytes up here. They have come, and nobody reads them: the router has no
//! processor. Or they are read, and wait in the socket of the next wire, which carries less. What
//! waits there since the receiver has no room is not the router's.

use std::collections::VecDeque;
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aqueduct_wire::{RouteHeld, RouteHeldReply};
use aqueduct_worker::lock;
use socket2::Socket;

use crate::sys::tcp_info;

/// A flow is looked at for so long after it was asked about.
const LOOKS: Duration = Duration::from_secs(60);

/// Spans that are remembered of a flow: at 10 ms each, what is asked about lies within them.
const SPANS_MAX: usize = 1024;

/// What the kernel says of how old data are is as coarse as its clock: 4 ms at 250 ticks a second.
const TICK: Duration = Duration::from_millis(4);

/// Turns that follow one another so closely belong to one stream of bytes, some of which have
/// come since the turn before.
const STREAM: Duration = Duration::from_millis(200);

/// When bytes lay here.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    from: Instant,
    to: Instant,
    /// Nobody had read them.
    is_unread: bool,
}

/// Of one flow.
#[derive(Default)]
pub(crate) struct Held {
    is_asked: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Since when it is looked at, and when it was asked about last.
    asked: Option<(Instant, Instant)>,
    spans: VecDeque<Span>,
    /// Of each direction: for how long its thread had waited for a processor when its last turn
    /// ended, and its sink then.
    last: [Option<(Duration, Sink)>; 2],
}

/// What the kernel says of the socket of a next wire at a moment.
#[derive(Clone, Copy, Debug)]
struct Sink {
    at: Instant,
    /// For how long it had had something to send, that its receiver had room for.
    busy: Duration,
    /// The least round trip: so long what was sent is on the wire, and not here.
    least: Duration,
}

impl Sink {
    fn now(socket: &Socket) -> Sink {
        let info = tcp_info(socket.as_fd()).unwrap_or_default();
        let busy = Duration::from_micros(info.busy.saturating_sub(info.window_limited));
        Sink { at: Instant::now(), busy, least: Duration::from_micros(info.round_trip_min.into()) }
    }

    /// When something was before the next wire since a look before.
    fn since(&self, before: &Sink) -> Span {
        let (busy, passed) = (self.busy.saturating_sub(before.busy), self.at.saturating_duration_since(before.at));
        let is_through = busy < passed;
        let here = if is_through { busy.saturating_sub(self.least) } else { passed };
        // What came then was there at once.
        Span { from: before.at, to: before.at + here, is_unread: false }
    }
}

/// A turn of a direction that is looked at.
pub(crate) struct Turn {
    from: usize,
    waited: Duration,
}

impl Held {
    /// A turn begins, in which a direction is moved; `None`: nobody asks.
    pub(crate) fn begins(&self, from: usize, source: &Socket) -> Option<Turn> {
        if !self.is_asked.load(Ordering::Relaxed) {
            return None;
        }
        let (began, waited) = (Instant::now(), waited());
        let mut state = lock(&self.state);
        if state.asked.is_none_or(|(_, last)| began.saturating_duration_since(last) > LOOKS) {
            self.is_asked.store(false, Ordering::Relaxed);
            *state = State::default();
            return None;
        }
        if rustix::io::ioctl_fionread(source).is_ok_and(|bytes| bytes > 0) {
            let age = tcp_info(source.as_fd()).map_or(0, |info| info.data_age);
            let unread = state.unread((from, began), waited, Duration::from_millis(age.into()));
            let since = began.checked_sub(unread).unwrap_or(began);
            state.put(Span { from: since, to: began, is_unread: true });
        }
        Some(Turn { from, waited })
    }

    /// And ends: how long its sink takes for what it has is known when it is looked at again.
    pub(crate) fn ends(&self, turn: &Turn, sink: &Socket) {
        let sink = Sink::now(sink);
        let mut state = lock(&self.state);
        state.looked(turn.from, turn.waited, sink);
    }

    /// Its initiator asks, about this flow or another of its: from now on it is looked at.
    pub(crate) fn look(&self) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let began = state.asked.map_or(now, |(began, _)| began);
        state.asked = Some((began, now));
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// Answers who asks, of what was looked at so far: the sinks of both directions.
    pub(crate) fn answer(&self, asked: &RouteHeld, sinks: [&Socket; 2]) -> RouteHeldReply {
        let now = Instant::now();
        let at = |us: u32| now.checked_sub(Duration::from_micros(us.into())).unwrap_or(now);
        let mut state = lock(&self.state);
        for (from, sink) in sinks.into_iter().enumerate() {
            if let Some((waited, _)) = state.last[from] {
                state.looked(from, waited, Sink::now(sink));
            }
        }
        let began = state.asked.map_or(now, |(began, _)| began);
        let (from, to) = (at(asked.from_us).max(began), at(asked.to_us));
        let us = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let held = |only: &dyn Fn(&Span) -> bool| us(covered(state.spans.iter().filter(|span| only(span)), from, to));
        RouteHeldReply {
            looked_us: us(to.saturating_duration_since(from)),
            held_us: held(&|_| true),
            unread_us: held(&|span| span.is_unread),
        }
    }
}

impl State {
    /// For how long what has come has not been read: at least as long as the last of it, and in a
    /// stream for as long as this thread had no processor.
    fn unread(&self, (from, now): (usize, Instant), waited: Duration, age: Duration) -> Duration {
        let in_stream = self.last[from].and_then(|(before, sink)| {
            let since = now.saturating_duration_since(sink.at);
            (since <= STREAM).then(|| waited.saturating_sub(before).min(since))
        });
        age.saturating_sub(TICK).max(in_stream.unwrap_or_default())
    }

    /// A direction's sink was looked at.
    fn looked(&mut self, from: usize, waited: Duration, sink: Sink) {
        if let Some((_, before)) = self.last[from].replace((waited, sink)) {
            self.put(sink.since(&before));
        }
    }

    fn put(&mut self, span: Span) {
        if span.from >= span.to {
            return;
        }
        if let Some(last) = self.spans.iter_mut().rev().take(2).find(|last| last.is_unread == span.is_unread)
            && last.to >= span.from
        {
            (last.from, last.to) = (last.from.min(span.from), last.to.max(span.to));
            return;
        }
        if self.spans.len() == SPANS_MAX {
            self.spans.pop_front();
        }
        self.spans.push_back(span);
    }
}

/// How much of a time spans cover together.
fn covered<'a>(spans: impl Iterator<Item = &'a Span>, from: Instant, to: Instant) -> Duration {
    let mut within: Vec<(Instant, Instant)> = spans.map(|span| (span.from.max(from), span.to.min(to))).collect();
    within.sort();
    let (mut sum, mut end) = (Duration::ZERO, from);
    for (start, stop) in within {
        sum += stop.saturating_duration_since(start.max(end));
        end = end.max(stop);
    }
    sum
}

/// For how long this thread has waited for a processor, as far as the kernel tells.
fn waited() -> Duration {
    let mut text = [0; 96];
    let read = std::fs::File::open("/proc/thread-self/schedstat").and_then(|mut file| file.read(&mut text));
    let text = std::str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn span(start: Instant, (from, to): (u32, u32), is_unread: bool) -> Span {
        Span { from: start + MS * from, to: start + MS * to, is_unread }
    }

    #[test]
    fn what_lies_here_twice_at_a_time_counts_once() {
        let start = Instant::now();
        let spans = [span(start, (0, 10), true), span(start, (5, 20), false), span(start, (30, 90), false)];
        assert_eq!(covered(spans.iter(), start, start + MS * 50), MS * 40);
        assert_eq!(covered(spans.iter(), start + MS * 8, start + MS * 9), MS);
        assert_eq!(covered(spans.iter(), start + MS * 21, start + MS * 29), Duration::ZERO);
        assert_eq!(covered(spans.iter(), start + MS * 9, start), Duration::ZERO);
    }

    #[test]
    fn what_is_before_the_next_wire_is_known_when_it_is_looked_at_again_and_memory_is_bounded() {
        let start = Instant::now();
        let sink = |at: u32, busy: u32| Sink { at: start + MS * at, busy: MS * busy, least: MS };
        assert_eq!(sink(100, 60).since(&sink(0, 10)), span(start, (0, 49), false), "it was through by then");
        assert_eq!(sink(100, 110).since(&sink(0, 10)), span(start, (0, 100), false), "it is not through yet");
        assert_eq!(sink(100, 10).since(&sink(0, 10)).to, start, "there was nothing");
        let mut state = State::default();
        [sink(0, 0), sink(40, 40), sink(100, 61)].into_iter().for_each(|sink| state.looked(1, MS, sink));
        assert_eq!(Vec::from(state.spans.clone()), [span(start, (0, 60), false)]);
        (0..2000).for_each(|at| state.put(span(start, (100 + 2 * at, 101 + 2 * at), true)));
        assert_eq!(state.spans.len(), SPANS_MAX);
    }

    #[test]
    fn a_thread_that_had_no_processor_has_left_a_stream_unread() {
        let (now, mut state) = (Instant::now() + STREAM * 4, State::default());
        assert_eq!(state.unread((0, now), MS * 40, MS * 3), Duration::ZERO, "that is the clock's");
        assert_eq!(state.unread((0, now), MS * 40, MS * 24), MS * 20);
        let ended = |at: Instant| Some((MS * 10, Sink { at, busy: Duration::ZERO, least: Duration::ZERO }));
        state.last[0] = ended(now - MS * 50);
        assert_eq!(state.unread((0, now), MS * 40, Duration::ZERO), MS * 30);
        assert_eq!(state.unread((0, now), MS * 400, Duration::ZERO), MS * 50, "never before the turn before");
        state.last[0] = ended(now - STREAM * 2);
        assert_eq!(state.unread((0, now), MS * 40, Duration::ZERO), Duration::ZERO, "it was for others");
    }

    #[test]
    fn nothing_is_looked_at_before_somebody_asks() {
        let (held, ends) = (Held::default(), Socket::pair(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap());
        assert!(held.begins(0, &ends.0).is_none());
        let asked = RouteHeld { flow: 1, from_us: 1_000_000, to_us: 0 };
        assert_eq!(held.answer(&asked, [&ends.0, &ends.1]), RouteHeldReply::default());
        assert!(held.begins(0, &ends.0).is_none());
        held.look();
        assert!(held.begins(0, &ends.0).is_some());
        lock(&held.state).asked = Some((Instant::now() - LOOKS * 3, Instant::now() - LOOKS * 2));
        assert!(held.begins(0, &ends.0).is_none() && held.begins(0, &ends.0).is_none(), "nobody asks any more");
    }
}
