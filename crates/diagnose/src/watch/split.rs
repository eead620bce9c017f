//! A step at a server, divided: at the server, on the way, and on this machine before it was sent.

use aqueduct_metrics::activity::{LEVELS, Station, level, middle};
use aqueduct_metrics::status::WayStatus;
use aqueduct_worker::boot_of_machine;

use super::servers::{self, Told};
use crate::host::{lacks_more, lacks_processors, wants_processors};
use crate::passive::{RailCounts, STATES, StageCounts, State, Window};
use crate::verdict::Stage;

/// The parts of a step's time: the rest is spent on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Split {
    /// At the server.
    there: f64,
    /// On the way.
    way: f64,
    /// Of the time at the server: its process computes, and waits for a processor.
    computes: f64,
    waits: f64,
    /// The way is longer than one within a machine room.
    is_far: bool,
}

/// Round trips that are longer, in microseconds, leave the machine room.
const FAR: u64 = 1000;

/// Nothing is known: it waits for the server or the way to it.
const UNKNOWN: Split = Split { there: 0.5, way: 0.5, computes: 0.0, waits: 0.0, is_far: false };

/// A part of a whole.
pub(super) fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 }
}

/// Seconds in one state.
pub(super) fn by_state(seconds: f64, state: State) -> [f64; STATES] {
    let mut states = [0.0; STATES];
    states[state as usize] = seconds;
    states
}

impl Split {
    /// From what ended in a `whole` of seconds: steps (how many, and their seconds), the requests
    /// that they sent (likewise), and what the server told before and after, of requests of the
    /// kind. `scale`: so many times as long as those of all its clients one's own took there.
    pub(super) fn of(
        steps: [f64; 2],
        requests: [f64; 2],
        told: Option<(&Told, &Told)>,
        is_kind: impl Fn(&str) -> bool,
        (scale, whole): (f64, f64),
    ) -> Split {
        if requests.contains(&0.0) || steps.contains(&0.0) {
            return UNKNOWN;
        }
        let sent = share(requests[1], steps[1].max(requests[1]));
        let Some((Ok(before), Ok(now))) = told else {
            return Split { there: sent / 2.0, way: sent / 2.0, ..UNKNOWN };
        };
        let [count, seconds] = servers::served(before, now, is_kind);
        let [_, all] = servers::served(before, now, |_| true);
        let there = if count > 0.0 { share(scale * seconds / count, requests[1] / requests[0]) } else { 0.5 };
        let used = [0, 1].map(|at: usize| (now.processor_seconds[at] - before.processor_seconds[at]).max(0.0));
        // One whose threads hardly want a processor waits for something else, however short its
        // requests are.
        let [computes, waits] =
            if wants_processors(used, whole) { used.map(|used| share(used, all)) } else { [0.0; 2] };
        let waits = waits.min(1.0 - computes);
        Split { there: sent * there, way: sent * (1.0 - there), computes, waits, is_far: false }
    }

    /// A server that gets too little of processors does not take what comes: that it waits on the
    /// way is not the way's doing. But for one that loses: that is slow anyway. Nor for `least`,
    /// the part of a step's time that a round trip takes at least: so long it is on the way,
    /// whatever the server does.
    /// `own`: what this process had of processors, and waited for: beside a server on the same
    /// machine that is not worse off the machine lacks them, and not the server.
    pub(super) fn with_starved(
        self,
        told: Option<(&Told, &Told)>,
        seconds: f64,
        (loses, least): (bool, f64),
        own: [f64; 2],
    ) -> Split {
        let Some((Ok(before), Ok(now))) = told else { return self };
        let is_here = !now.boot.is_empty() && now.boot == boot_of_machine();
        let [ran, waited] = [0, 1].map(|at: usize| (now.processor_seconds[at] - before.processor_seconds[at]).max(0.0));
        let waits = share(waited, ran + waited);
        if is_here && !lacks_more([ran, waited], own) {
            return Split { waits: 0.0, ..self };
        }
        if loses || !lacks_processors([ran, waited], seconds) {
            return self;
        }
        let moves = (self.way - least).max(0.0) * waits;
        let there = self.there + moves;
        // What it had taken was not waiting for that.
        let of_moved = |part: f64, moved: f64| share(part * self.there + moved * moves, there);
        let (computes, waits) = (of_moved(self.computes, 1.0 - waits), of_moved(self.waits, waits));
        Split { there, way: self.way - moves, computes, waits, ..self }
    }

    /// The server's time of a read includes that for which its socket had no room: while something
    /// is on its way for most of the time, in seconds of all connections, that is the way's.
    pub(super) fn with_way_back(self, busy: f64, seconds: f64) -> Split {
        /// A way that is so busy is what a server waits for.
        const BUSY_MIN: f64 = 0.5;
        let busy = share(busy, seconds);
        if busy < BUSY_MIN {
            return self;
        }
        let moves = self.there * busy;
        Split { there: self.there - moves, way: self.way + moves, ..self }
    }

    /// Over these ways.
    pub(super) fn over(self, ways: &[WayStatus]) -> Split {
        Split { is_far: ways.iter().any(|way| way.round_trip_min_us > FAR), ..self }
    }

    /// What waits at the server to be taken has not come there yet, as it counts: in this part of
    /// the time in which something was to be sent the server had no room. Before a router it is the
    /// router that had none: for the server's sake or that of the wire behind it.
    pub(super) fn with_backlog(self, server: &str, backlog: f64) -> Split {
        if is_behind_router(server) {
            return self;
        }
        let moves = self.way * backlog;
        Split { there: self.there + moves, way: self.way - moves, ..self }
    }

    /// Puts so many seconds of a step into a window. `carries`: the part of the time on the way
    /// that is spent waiting for the threads that carry requests.
    pub(super) fn put(
        &self,
        window: &mut Window,
        (stage, side): (Stage, usize),
        (workers, seconds): (f64, f64),
        station: &Station,
        carries: f64,
    ) {
        let mut part = |stage: Stage, share: f64, states: [f64; STATES]| {
            window.put(StageCounts { stage, side, workers, states, stations: vec![scaled(station, share)] });
        };
        let there = seconds * self.there;
        let rest = if stage == Stage::Metadata { State::Metadata } else { State::Io };
        let mut states = by_state(there * (1.0 - self.computes - self.waits), rest);
        states[State::Cpu as usize] = there * self.computes;
        states[State::Runnable as usize] = there * self.waits;
        part(stage, self.there, states);
        // Names on a way that is not far: what takes the time is how many there are.
        if stage == Stage::Metadata && !self.is_far {
            part(stage, self.way, by_state(seconds * self.way, State::Metadata));
            let here = (1.0 - self.there - self.way).max(0.0);
            part(Stage::Send, here, by_state(seconds * here, State::Cpu));
            return;
        }
        let way = self.way * (1.0 - carries);
        part(Stage::Network, way, by_state(seconds * way, State::Window));
        let here = (1.0 - self.there - self.way).max(0.0) + self.way * carries;
        part(Stage::Send, here, by_state(seconds * here, State::Cpu));
    }
}

/// Whether an address is reached through routers: `HOST:PORT@NET`.
fn is_behind_router(server: &str) -> bool {
    server.contains('@')
}

/// How the times of operations follow one another is the doing of where they are for most of it.
const OWN_TIMES_MIN: f64 = 0.4;

/// A station of which each operation is there for a part of its time: by Little's law so many
/// fewer are there at a time, and as many end.
pub(super) fn scaled(station: &Station, share: f64) -> Station {
    let mut scaled = Station { time: [0.0; LEVELS], done: [0.0; LEVELS], ..station.clone() };
    for at in 1..LEVELS {
        let there = middle(at) * share;
        let to = level((there.round() as usize).max(1));
        scaled.time[to] += station.time[at] * there.min(1.0);
        scaled.done[to] += station.done[at];
    }
    (scaled.spent, scaled.under_way) = (station.spent * share, station.under_way * share);
    if share < OWN_TIMES_MIN {
        (scaled.count, scaled.log_sum, scaled.log_squares, scaled.log_lag) = (0.0, 0.0, 0.0, 0.0);
    }
    scaled
}

/// What ways did between two looks.
pub(super) fn rails(before: &[WayStatus], now: &[WayStatus], seconds: f64) -> Vec<RailCounts> {
    let counts = |way: &WayStatus| {
        let unknown = WayStatus::default();
        let earlier = before.iter().find(|other| other.path == way.path).unwrap_or(&unknown);
        let since = |of: fn(&WayStatus) -> u64| of(way).saturating_sub(of(earlier)) as f64;
        // Of all connections: as long as each, in the mean.
        let each = |micros: f64| (micros / 1e6 / way.connections.max(1) as f64).min(seconds);
        let limited = since(|way| way.window_limited_us + way.buffer_limited_us);
        RailCounts {
            name: way.path.clone(),
            round_trips: [way.round_trip_us as f64 / 1e6, 1.0],
            round_trip_min: way.round_trip_min_us as f64 / 1e6,
            segments: [since(|way| way.segments), since(|way| way.resent)],
            full: each((since(|way| way.busy_us) - limited).max(0.0)),
            backlog: each(since(|way| way.window_limited_us)),
        }
    };
    now.iter().map(counts).collect()
}

/// Of the time in which something was to be sent: the part in which the receiver had no room.
pub(super) fn backlog(before: &[WayStatus], now: &[WayStatus]) -> f64 {
    let sum = |ways: &[WayStatus], of: fn(&WayStatus) -> u64| ways.iter().map(of).sum::<u64>();
    let since = |of: fn(&WayStatus) -> u64| sum(now, of).saturating_sub(sum(before, of)) as f64;
    share(since(|way| way.window_limited_us), since(|way| way.busy_us))
}

/// The part of a step's time, in the mean of those that ended, that a round trip takes at least.
pub(super) fn least_on_way(ways: &[WayStatus], station: &Station) -> f64 {
    let trips = ways.iter().map(|way| way.round_trip_min_us).filter(|micros| *micros > 0);
    let least = trips.min().unwrap_or(0) as f64 / 1e6;
    share(least * station.completions(), station.spent)
}

/// Whether ways have lost segments between two looks.
pub(super) fn lose(before: &[WayStatus], now: &[WayStatus]) -> bool {
    /// A share of segments that were sent again from which on it matters.
    const LOSES: f64 = 2e-3;
    let sum = |ways: &[WayStatus], of: fn(&WayStatus) -> u64| ways.iter().map(of).sum::<u64>();
    let since = |of: fn(&WayStatus) -> u64| sum(now, of).saturating_sub(sum(before, of)) as f64;
    share(since(|way| way.resent), since(|way| way.segments)) > LOSES
}

#[cfg(test)]
mod tests {
    use aqueduct_metrics::status::ServerStatus;
    use aqueduct_metrics::table::SERVER_OPERATION_SECONDS;
    use aqueduct_metrics::{Histogram, Snapshot};

    use super::*;

    /// A server whose process has run and waited.
    fn told(processor_seconds: [f64; 2]) -> Told {
        Ok(ServerStatus { processor_seconds, ..ServerStatus::default() })
    }

    fn near(split: &Split, there: f64, way: f64) {
        assert!((split.there - there).abs() < 1e-9 && (split.way - way).abs() < 1e-9, "{split:?}");
    }

    #[test]
    fn what_a_socket_has_no_room_for_is_the_ways() {
        let split = Split { there: 0.9, way: 0.1, ..UNKNOWN };
        near(&split.with_way_back(9.0, 10.0), 0.09, 0.91);
        near(&split.with_way_back(9.0, 100.0), 0.9, 0.1);
        near(&split.with_backlog("10.0.0.1:7170", 0.5), 0.95, 0.05);
        // What a router has no room for is not at the server.
        near(&split.with_backlog("10.0.0.1:7170@far", 0.5), 0.9, 0.1);
    }

    /// What the process has that watches: enough.
    const OWN: [f64; 2] = [1.0, 0.0];

    #[test]
    fn a_server_without_processors_takes_nothing() {
        let split = Split { there: 0.1, way: 0.9, ..UNKNOWN };
        let (before, now) = (told([0.0; 2]), told([1.0, 9.0]));
        let starved = split.with_starved(Some((&before, &now)), 10.0, (false, 0.0), OWN);
        near(&starved, 0.91, 0.09);
        assert!((starved.waits - 0.81 * 0.9 / 0.91).abs() < 1e-9, "{starved:?}");
        let busy =
            Split { there: 0.9, way: 0.1, ..UNKNOWN }.with_starved(Some((&before, &now)), 10.0, (false, 0.0), OWN);
        assert!(busy.waits + busy.computes < 0.1, "what it works at is not what it waits for: {busy:?}");
        near(&split.with_starved(Some((&before, &now)), 10.0, (true, 0.0), OWN), 0.1, 0.9);
        near(&split.with_starved(Some((&before, &now)), 100.0, (false, 0.0), OWN), 0.1, 0.9);
        near(&split.with_starved(Some((&before, &told([9.0, 1.0]))), 10.0, (false, 0.0), OWN), 0.1, 0.9);
        // On this machine it is the machine that lacks them, unless others have more.
        let here = |processor_seconds| Ok(ServerStatus { boot: boot_of_machine(), ..told(processor_seconds).unwrap() });
        let starved = |own| split.with_starved(Some((&here([0.0; 2]), &here([1.0, 9.0]))), 10.0, (false, 0.0), own);
        let as_all = Split { waits: 0.8, ..split }.with_starved(
            Some((&here([0.0; 2]), &here([1.0, 9.0]))),
            10.0,
            (false, 0.0),
            [1.0, 6.0],
        );
        near(&as_all, 0.1, 0.9);
        assert!(as_all.waits < 1e-9, "all of the machine waits: {as_all:?}");
        near(&starved([1.0, 4.0]), 0.91, 0.09);
        // Of 60 ms that a write takes, 42 are the way's.
        let way = WayStatus { round_trip_min_us: 42_000, ..WayStatus::default() };
        let mut station = Station { spent: 6.0, ..Station::default() };
        station.done[1] = 100.0;
        let least = least_on_way(&[way], &station);
        near(&split.with_starved(Some((&before, &now)), 10.0, (false, least), OWN), 0.28, 0.72);
    }

    #[test]
    fn what_was_not_answered_is_divided_in_halves() {
        assert_eq!(Split::of([0.0, 0.0], [1.0, 1.0], None, |_| true, (1.0, 1.0)), UNKNOWN);
        near(&Split::of([4.0, 8.0], [4.0, 4.0], None, |_| true, (1.0, 1.0)), 0.25, 0.25);
    }

    /// Requests that a server had for 1.2 s in all of 8, of which its threads waited most for a
    /// processor, are not what a thin wire behind a router takes.
    #[test]
    fn a_server_whose_threads_hardly_want_a_processor_lacks_none() {
        let served = |processor_seconds: [f64; 2]| {
            let histogram = Histogram::single();
            (0..100).for_each(|_| histogram.record(12_000_000));
            let mut metrics = Snapshot::default();
            metrics.put(&SERVER_OPERATION_SECONDS, &["Read"], &histogram);
            Ok(ServerStatus { processor_seconds, metrics, ..ServerStatus::default() })
        };
        let of = |used: [f64; 2]| {
            let steps = [100.0, 64.0];
            Split::of(steps, steps, Some((&told([0.0; 2]), &served(used))), |_| true, (1.0, 8.0))
        };
        let split = of([0.29, 0.928]);
        assert_eq!((split.computes, split.waits), (0.0, 0.0), "{split:?}");
        let split = of([0.9, 7.0]);
        assert!((split.computes - 0.75).abs() < 1e-3 && (split.waits - 0.25).abs() < 1e-3, "{split:?}");
    }

    #[test]
    fn as_many_end_and_fewer_are_there() {
        let mut station = Station::default();
        (station.time[4], station.done[4]) = (10.0, 130.0);
        let half = scaled(&station, 0.5);
        assert_eq!((half.time[3], half.done[3]), (10.0, 130.0));
        let little = scaled(&station, 0.01);
        assert!((little.time[1] - 0.65).abs() < 1e-9 && little.done[1] == 130.0, "{little:?}");
    }
}
