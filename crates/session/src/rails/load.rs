//! How much is under way on a rail, how fast it goes, and what follows for the next request: pure
//! numbers, of which the caller has the clock.

use std::time::{Duration, Instant};

/// So long a rail has to be busy until its rate is measured: long enough that one request more or
/// less makes little difference, and several samples are taken in the second in which a changed
/// rail has to be known.
const SAMPLE: Duration = Duration::from_millis(50);

/// The weight of a new sample: an old rate is forgotten after some 0.2 s of traffic.
const WEIGHT: f64 = 0.25;

/// A rate is believed for so long. Each further period without traffic doubles it, up to the best
/// rate of the other rails. Else a rail that looked slow once, on a busy machine or before its wire
/// was mended, would get no traffic any more, and no new sample would correct its rate.
const BELIEVED: Duration = Duration::from_secs(1);

/// Beyond that it makes no difference, as a power of two.
const DOUBT_MAX: f64 = 20.0;

/// The least part of a cut request, in bytes: a smaller one costs more than it brings.
const SHARE_MIN: usize = 64 << 10;

/// Parts are multiples of so many bytes, so that the server reads whole pages.
const GRANULE: usize = 16 << 10;

/// Rates above this part of the best are taken for equal: what differs less is noise of the
/// measurement, and would make one of equal rails the last each time.
const EQUAL: f64 = 0.9;

/// Round trips are alike up to this factor, and this many microseconds: what differs less is
/// noise.
const ALIKE: (u32, u32) = (2, 200);

/// How requests are shared among rails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// By rate, round trip and what is under way; long reads are cut.
    #[default]
    Adaptive,
    /// In turn; long reads are cut in equal parts.
    Stripe,
    /// Each worker stays on a rail of its own.
    Independent,
}

/// One direction of a rail.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// Bytes that were asked for, or sent, and are not answered.
    outstanding: u64,
    /// Since when there are any, or since the last sample.
    since: Option<Instant>,
    /// For how long there were any, of this sample, before.
    busy: Duration,
    /// Bytes of this sample.
    done: u64,
    /// In bytes per second, and when that was measured; `None`: not known yet.
    rate: Option<(f64, Instant)>,
}

impl Flow {
    pub(crate) fn begin(&mut self, now: Instant, bytes: u64) {
        if self.outstanding == 0 {
            self.since = Some(now);
        }
        self.outstanding += bytes;
    }

    /// `is_done`: they have been carried; else given up.
    pub(crate) fn end(&mut self, now: Instant, bytes: u64, is_done: bool) {
        self.outstanding = self.outstanding.saturating_sub(bytes);
        self.done += if is_done { bytes } else { 0 };
        self.busy += self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.since = (self.outstanding > 0).then_some(now);
        if self.busy >= SAMPLE {
            let sample = self.done as f64 / self.busy.as_secs_f64();
            let rate = self.rate.map_or(sample, |(rate, _)| rate + WEIGHT * (sample - rate));
            self.rate = Some((rate, now));
            (self.busy, self.done) = (Duration::ZERO, 0);
        }
    }

    /// Nothing that was measured holds any more.
    pub(crate) fn forget(&mut self) {
        (self.busy, self.done, self.rate) = (Duration::ZERO, 0, None);
    }

    pub(crate) fn outstanding(&self) -> u64 {
        self.outstanding
    }

    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate.map(|(rate, _)| rate)
    }

    /// By how much the rate may be greater by now. What is under way will show it.
    pub(crate) fn doubt(&self, now: Instant) -> f64 {
        let measured = self.rate.filter(|_| self.outstanding == 0).map_or(now, |(_, measured)| measured);
        let old = now.saturating_duration_since(measured).saturating_sub(BELIEVED);
        (old.as_secs_f64() / BELIEVED.as_secs_f64()).min(DOUBT_MAX).exp2()
    }
}

/// A rail that could carry a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) rail: usize,
    /// Bytes that are under way in the direction of the request.
    pub(crate) outstanding: u64,
    /// In bytes per second.
    pub(crate) rate: Option<f64>,
    /// By how much that may be greater by now.
    pub(crate) doubt: f64,
    /// In microseconds.
    pub(crate) round_trip: u32,
}

/// What is to be carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Something small, whose time is the round trip.
    Small,
    /// So many bytes.
    Bulk(u64),
}

/// Whoever asks: a worker, and how many requests it and the others have asked for before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) worker: usize,
    pub(crate) turn: usize,
}

/// The rate of each, where one that is not known is taken for the best that is: what is not tried
/// is never known.
fn rates(candidates: &[Candidate]) -> Vec<f64> {
    let best = candidates.iter().filter_map(|candidate| candidate.rate).fold(0.0, f64::max);
    let best = if best > 0.0 { best } else { 1.0 };
    let rate = |candidate: &Candidate| match candidate.rate {
        Some(rate) if rate * candidate.doubt < best * EQUAL => {
            (rate * candidate.doubt).max(best / 1e4) // slow, and not infinitely so
        }
        _ => best,
    };
    candidates.iter().map(rate).collect()
}

/// Which of them carries a request whole. There is at least one.
pub(crate) fn pick(policy: Policy, candidates: &[Candidate], need: Need, asker: Asker) -> usize {
    let count = candidates.len().max(1);
    let index = match (policy, need) {
        (Policy::Independent, _) => asker.worker % count,
        (Policy::Stripe, _) => asker.turn % count,
        (Policy::Adaptive, Need::Small) => nearest(candidates, asker.worker),
        (Policy::Adaptive, Need::Bulk(bytes)) => soonest(candidates, bytes),
    };
    candidates[index].rail
}

/// One of those with the least round trip; the workers share them.
fn nearest(candidates: &[Candidate], worker: usize) -> usize {
    let least = candidates.iter().map(|candidate| candidate.round_trip).min().unwrap_or(0);
    let limit = least.saturating_mul(ALIKE.0).saturating_add(ALIKE.1);
    let near: Vec<usize> = (0..candidates.len()).filter(|index| candidates[*index].round_trip <= limit).collect();
    near.get(worker % near.len().max(1)).copied().unwrap_or(0)
}

/// The one on which these bytes arrive first.
fn soonest(candidates: &[Candidate], bytes: u64) -> usize {
    let rates = rates(candidates);
    let time = |index: &usize| (candidates[*index].outstanding + bytes) as f64 / rates[*index];
    (0..candidates.len()).min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(0)
}

/// How a request of this length is cut over rails: for each that gets a part, in the order of the
/// candidates, its rail and how many bytes. Together they are the length.
pub(crate) fn cut(policy: Policy, candidates: &[Candidate], length: usize) -> Vec<(usize, usize)> {
    let mut members: Vec<usize> = (0..candidates.len()).collect();
    if policy == Policy::Independent {
        members.truncate(1);
    }
    let rates = rates(candidates);
    loop {
        let shares = match policy {
            Policy::Stripe => vec![length as f64 / members.len() as f64; members.len()],
            Policy::Adaptive | Policy::Independent => level(candidates, &rates, &members, length),
        };
        // The smallest part goes to the others when it is too small to pay.
        let least = (0..members.len()).min_by(|a, b| shares[*a].total_cmp(&shares[*b]));
        match least.filter(|least| members.len() > 1 && shares[*least] < SHARE_MIN as f64) {
            Some(least) => members.remove(least),
            None => return whole_granules(candidates, &members, &shares, length),
        };
    }
}

/// Shares with which all finish at once, counting what is under way on each: as water finds its
/// level. One that is too busy gets nothing.
fn level(candidates: &[Candidate], rates: &[f64], members: &[usize], length: usize) -> Vec<f64> {
    let busy = |member: &usize| candidates[*member].outstanding as f64 / rates[*member];
    let mut order = members.to_vec();
    order.sort_by(|a, b| busy(a).total_cmp(&busy(b)));
    let (mut bytes, mut rate, mut end) = (length as f64, 0.0, f64::INFINITY);
    for member in &order {
        if busy(member) >= end {
            break;
        }
        bytes += candidates[*member].outstanding as f64;
        rate += rates[*member];
        end = bytes / rate;
    }
    members.iter().map(|member| (end * rates[*member] - candidates[*member].outstanding as f64).max(0.0)).collect()
}

fn whole_granules(candidates: &[Candidate], members: &[usize], shares: &[f64], length: usize) -> Vec<(usize, usize)> {
    let mut parts: Vec<(usize, usize)> = Vec::with_capacity(members.len());
    let (mut given, mut sum) = (0, 0.0);
    for (member, share) in members.iter().zip(shares) {
        // What rounding takes from one the next gets.
        sum += share;
        let end = ((sum as usize + GRANULE / 2) / GRANULE * GRANULE).min(length);
        parts.push((candidates[*member].rail, end.saturating_sub(given)));
        given = given.max(end);
    }
    if let Some(last) = parts.last_mut() {
        last.1 += length - given;
    }
    parts.retain(|(_, bytes)| *bytes > 0);
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: usize = 1 << 20;

    fn candidate(rail: usize, outstanding: u64, rate: f64, round_trip: u32) -> Candidate {
        Candidate { rail, outstanding, rate: (rate > 0.0).then_some(rate), doubt: 1.0, round_trip }
    }

    #[test]
    fn a_request_is_cut_by_the_rates() {
        let two = [candidate(3, 0, 1e8, 9), candidate(5, 0, 2e8, 9)];
        let parts = cut(Policy::Adaptive, &two, 3 * MIB);
        assert_eq!(parts, [(3, MIB), (5, 2 * MIB)]);
        assert_eq!(cut(Policy::Stripe, &two, 4 * MIB), [(3, 2 * MIB), (5, 2 * MIB)]);
        assert_eq!(cut(Policy::Independent, &two, 4 * MIB), [(3, 4 * MIB)]);
    }

    #[test]
    fn what_is_under_way_counts() {
        let busy = [candidate(0, MIB as u64, 1e8, 9), candidate(1, 0, 1e8, 9)];
        assert_eq!(cut(Policy::Adaptive, &busy, MIB), [(1, MIB)]);
        assert_eq!(cut(Policy::Adaptive, &busy, 3 * MIB), [(0, MIB), (1, 2 * MIB)]);
    }

    #[test]
    fn a_rail_of_which_nothing_is_known_is_tried() {
        let unknown = [candidate(0, 0, 1e8, 9), candidate(1, 0, 0.0, 9)];
        assert_eq!(cut(Policy::Adaptive, &unknown, MIB), [(0, MIB / 2), (1, MIB / 2)]);
        let none = [candidate(0, 0, 0.0, 9), candidate(1, 0, 0.0, 9)];
        assert_eq!(cut(Policy::Adaptive, &none, MIB), [(0, MIB / 2), (1, MIB / 2)]);
    }

    #[test]
    fn a_rail_that_is_much_slower_gets_nothing() {
        let alike = [candidate(0, 0, 1e9, 9), candidate(1, 0, 0.93e9, 9)];
        assert_eq!(cut(Policy::Adaptive, &alike, MIB), [(0, MIB / 2), (1, MIB / 2)]);
        let slow = [candidate(0, 0, 1e9, 9), candidate(1, 0, 1e6, 9)];
        assert_eq!(cut(Policy::Adaptive, &slow, MIB), [(0, MIB)]);
    }

    #[test]
    fn a_whole_request_goes_where_it_arrives_first() {
        let asker = Asker { worker: 1, turn: 0 };
        let rails = [candidate(0, 0, 1e8, 50), candidate(1, 3 << 20, 4e8, 900)];
        assert_eq!(pick(Policy::Adaptive, &rails, Need::Bulk(4 << 20), asker), 1);
        assert_eq!(pick(Policy::Adaptive, &rails, Need::Bulk(1 << 10), asker), 0);
        assert_eq!(pick(Policy::Adaptive, &rails, Need::Small, asker), 0, "the other is far");
        let near = [candidate(0, 0, 1e8, 50), candidate(1, 0, 1e8, 60)];
        assert_eq!(pick(Policy::Adaptive, &near, Need::Small, asker), 1, "workers share what is near");
        assert_eq!(pick(Policy::Independent, &rails, Need::Bulk(1), asker), 1);
        assert_eq!(pick(Policy::Stripe, &rails, Need::Small, Asker { turn: 2, ..asker }), 0);
    }

    #[test]
    fn a_rate_is_that_of_the_time_in_which_there_was_something_to_do() {
        let mut flow = Flow::default();
        let start = Instant::now();
        let at = |milliseconds: u64| start + Duration::from_millis(milliseconds);
        for round in 0..20 {
            flow.begin(at(round * 100), 1_000_000);
            flow.end(at(round * 100 + 10), 1_000_000, true);
        }
        let rate = flow.rate().unwrap();
        assert!((9.9e7..1.01e8).contains(&rate), "1 MB in 10 ms, with pauses of 90: {rate}");
        flow.begin(at(5000), 1_000_000);
        flow.end(at(6000), 1_000_000, false);
        assert!(flow.rate().unwrap() < rate, "what was given up was not carried");
        flow.forget();
        assert_eq!((flow.rate(), flow.outstanding()), (None, 0));
    }

    #[test]
    fn a_rail_that_looked_slow_is_tried_again() {
        let (mut flow, start) = (Flow::default(), Instant::now());
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        flow.begin(at(0.0), 1000);
        flow.end(at(1.0), 1_000_000, true);
        assert_eq!([1.0, 2.0, 3.0, 5.0, 3600.0].map(|time| flow.doubt(at(time))), [1.0, 1.0, 2.0, 8.0, 1_048_576.0]);
        let fast = candidate(0, 0, 1e8, 100);
        let of = |doubt| Candidate { doubt, ..candidate(1, 0, 1e7, 100) };
        let asker = Asker { worker: 0, turn: 0 };
        let busy = Candidate { outstanding: 1 << 20, ..fast };
        let picked =
            [1.0, 2.0, 8.0].map(|doubt| pick(Policy::Adaptive, &[busy, of(doubt)], Need::Bulk(1 << 20), asker));
        assert_eq!(picked, [0, 0, 1], "beside one that is busy");
        assert_eq!(rates(&[fast, of(1e6)]), [1e8, 1e8], "no better than the best that is known");
        flow.begin(at(5.0), 1000);
        assert_eq!(flow.doubt(at(6.0)), 1.0, "what is under way will show it");
    }

    proptest! {
        #[test]
        fn parts_make_the_whole(
            rails in proptest::collection::vec((0u64..8 << 20, 0f64..1e10, 0u32..1000), 1..8),
            length in 1usize..16 << 20,
        ) {
            let candidates: Vec<Candidate> =
                rails.iter().enumerate().map(|(rail, (out, rate, rtt))| candidate(rail, *out, *rate, *rtt)).collect();
            for policy in [Policy::Adaptive, Policy::Stripe, Policy::Independent] {
                let parts = cut(policy, &candidates, length);
                prop_assert_eq!(parts.iter().map(|(_, bytes)| bytes).sum::<usize>(), length);
                prop_assert!(parts.iter().all(|(rail, bytes)| *rail < rails.len() && *bytes > 0));
                prop_assert!(parts.windows(2).all(|pair| pair[0].0 < pair[1].0));
            }
        }
    }
}
