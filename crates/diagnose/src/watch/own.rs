//! Which of a server's sessions belong to what is watched. A server tells of all its sessions. Where
//! several mounts share it, those of the others say nothing of the way to this one.

use aqueduct_metrics::status::{ServerStatus, SessionStatus, WayStatus};

use super::servers::{self, Told};

/// A session with a server, as its client knows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    /// What is attached; empty: not known.
    pub(super) export: String,
    /// How many requests were answered between two looks, by their kinds.
    pub(super) requests: Vec<(String, f64)>,
}

/// What a server tells of one's own sessions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mine {
    /// What it sends, before and after; `None`: it does not tell.
    pub(super) ways: Option<[WayStatus; 2]>,
    /// So many times as long as all requests of their kinds they took there.
    pub(super) scale: f64,
}

/// Nothing is known of them: as all are.
const UNKNOWN: Mine = Mine { ways: None, scale: 1.0 };

/// Others that ask for less than this part of what one asks oneself change no mean.
const OTHERS_MIN: f64 = 0.05;

/// How far from the mean of all requests one's own are believed to be: beyond that it was counted
/// at other times.
const SCALE_MAX: f64 = 20.0;

/// Of sessions that have had about as many requests, whichever it is: one within this factor.
const ALIKE: f64 = 1.1;

impl Own {
    fn count(&self) -> f64 {
        self.requests.iter().map(|(_, count)| count).sum()
    }
}

/// A session, before and after.
type Pair = [SessionStatus; 2];

fn requests(pair: &Pair) -> f64 {
    pair[1].operations.saturating_sub(pair[0].operations) as f64
}

/// Seconds in which something was on its way.
fn busy(ways: [&WayStatus; 2]) -> f64 {
    let [before, now] = ways.map(|way| way.busy_us.saturating_sub(way.window_limited_us) as f64 / 1e6);
    (now - before).max(0.0)
}

fn pairs(before: &ServerStatus, now: &ServerStatus) -> Vec<Pair> {
    let is_same = |one: &SessionStatus, other: &SessionStatus| {
        (&one.client, &one.peer, &one.export) == (&other.client, &other.peer, &other.export)
    };
    let pair = |session: &SessionStatus| {
        let earlier = before.sessions.iter().find(|earlier| is_same(earlier, session)).cloned();
        [earlier.unwrap_or_default(), session.clone()]
    };
    // Who asks for the status has no export.
    now.sessions.iter().filter(|session| session.export.is_some()).map(pair).collect()
}

/// Takes out those that it may be: of this machine and with this export, if any are, and with as
/// many requests as the client has had answers. Of several like that the one with least on its way:
/// that it is the network's doing has to be so whichever it is.
fn take(pairs: &mut Vec<Pair>, own: &Own, machine: &str) -> Option<Pair> {
    let mut left: Vec<usize> = (0..pairs.len()).collect();
    let mut narrow = |is_it: &dyn Fn(&SessionStatus) -> bool| {
        let those: Vec<usize> = left.iter().copied().filter(|at| is_it(&pairs[*at][1])).collect();
        if !those.is_empty() {
            left = those;
        }
    };
    narrow(&|session| session.client == machine);
    narrow(&|session| session.export.as_ref() == Some(&own.export));
    let distance = |at: usize| ((requests(&pairs[at]) + 1.0) / (own.count() + 1.0)).ln().abs();
    let nearest = left.iter().map(|at| distance(*at)).fold(f64::INFINITY, f64::min);
    let on_way = |at: &usize| {
        let unknown = WayStatus::default();
        busy(pairs[*at].each_ref().map(|session| session.way.as_ref().unwrap_or(&unknown)))
    };
    let alike = left.into_iter().filter(|at| distance(*at) <= nearest + ALIKE.ln());
    let found = alike.min_by(|one, two| on_way(one).total_cmp(&on_way(two)))?;
    Some(pairs.swap_remove(found))
}

/// What a server tells of these sessions. `machine`: what they say that they come from. `is_kind`:
/// whether a request that the server counts under the first name is of the second kind.
pub(super) fn mine(
    (server, machine): (&str, &str),
    own: &[Own],
    (before, now): (&Told, &Told),
    is_kind: fn(&str, &str) -> bool,
) -> Mine {
    let (Ok(before), Ok(now)) = (before, now) else { return UNKNOWN };
    let mut others = pairs(before, now);
    let found: Vec<Pair> = own.iter().filter_map(|own| take(&mut others, own, machine)).collect();
    if found.is_empty() {
        return UNKNOWN;
    }
    let mut ways = [(); 2].map(|()| WayStatus { path: server.to_owned(), ..WayStatus::default() });
    for pair in &found {
        pair.iter().zip(&mut ways).for_each(|(session, sum)| session.way.iter().for_each(|way| sum.add(way)));
    }
    let ways = (ways[1].connections > 0).then_some(ways);
    let of_others: f64 = others.iter().map(requests).sum();
    let of_own: f64 = own.iter().map(Own::count).sum();
    // The sums of all sessions are those of all kinds: where there is no other, both are the same.
    if of_others < OTHERS_MIN * of_own {
        return Mine { ways, ..UNKNOWN };
    }
    let served =
        found.iter().map(|[before, now]| now.served_us.saturating_sub(before.served_us) as f64 / 1e6).sum::<f64>();
    let as_all = own.iter().flat_map(|own| &own.requests).map(|(kind, count)| {
        let [all, seconds] = servers::served(before, now, |name| is_kind(name, kind));
        if all > 0.0 { count * seconds / all } else { 0.0 }
    });
    let as_all: f64 = as_all.sum();
    let scale = if served > 0.0 && as_all > 0.0 { served / as_all } else { 1.0 };
    Mine { ways, scale: scale.clamp(1.0 / SCALE_MAX, SCALE_MAX) }
}

impl Mine {
    /// Seconds between two looks in which the server had something on its way to them, of all
    /// their connections, but for those in which this side had no room.
    pub(super) fn busy_back(&self) -> f64 {
        self.ways.as_ref().map_or(0.0, |ways| busy(ways.each_ref()))
    }
}

/// What servers have sent to these, before and after.
pub(super) fn ways(all: &[Mine]) -> (Vec<WayStatus>, Vec<WayStatus>) {
    all.iter().filter_map(|mine| mine.ways.clone()).map(|[before, now]| (before, now)).unzip()
}

#[cfg(test)]
mod tests {
    use aqueduct_metrics::table::SERVER_OPERATION_SECONDS;
    use aqueduct_metrics::{Histogram, Snapshot};

    use super::*;

    /// A session of a machine that has had so many requests, of so many seconds each, and to which
    /// something was on its way for so long.
    fn session(machine: &str, port: u16, [requests, each, busy]: [f64; 3]) -> SessionStatus {
        let way = WayStatus { connections: 2, busy_us: (busy * 1e6) as u64, ..WayStatus::default() };
        SessionStatus {
            client: machine.into(),
            peer: format!("10.0.0.1:{port}"),
            export: Some("/e".into()),
            operations: requests as u64,
            served_us: (requests * each * 1e6) as u64,
            way: Some(way),
            ..SessionStatus::default()
        }
    }

    fn told(sessions: &[SessionStatus]) -> Told {
        let histogram = Histogram::single();
        for session in sessions {
            let each = session.served_us * 1000 / session.operations.max(1);
            (0..session.operations).for_each(|_| histogram.record(each));
        }
        let mut metrics = Snapshot::default();
        metrics.put(&SERVER_OPERATION_SECONDS, &["Read"], &histogram);
        Ok(ServerStatus { sessions: sessions.to_vec(), metrics, ..ServerStatus::default() })
    }

    fn own(requests: f64) -> [Own; 1] {
        [Own { export: "/e".into(), requests: vec![("Read".into(), requests)] }]
    }

    fn seen(requests: f64, sessions: &[SessionStatus]) -> Mine {
        mine(("s", "here"), &own(requests), (&told(&[]), &told(sessions)), |name, kind| name == kind)
    }

    #[test]
    fn the_way_of_others_is_not_ones_own() {
        let others = [1, 2, 3].map(|port| session("here", port, [900.0 + f64::from(port), 0.05, 9.0]));
        let all = [&others[..], &[session("here", 9, [100.0, 0.01, 0.5])]].concat();
        let found = seen(102.0, &all);
        assert!((found.busy_back() - 0.5).abs() < 1e-9, "{found:?}");
        // What others wait for is not what it waits for.
        assert!((0.15..0.25).contains(&found.scale), "{found:?}");
        let alone = seen(100.0, &all[3..]);
        assert_eq!((alone.busy_back(), alone.scale), (0.5, 1.0));
        // Whichever of those it is that look the same: no more than the least was on its way.
        let alike = [session("here", 1, [100.0, 0.01, 8.0]), session("here", 2, [103.0, 0.01, 1.0])];
        assert!((seen(101.0, &alike).busy_back() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn sessions_of_this_machine_come_first() {
        let all = [session("there", 1, [100.0, 0.01, 9.0]), session("here", 2, [150.0, 0.01, 2.0])];
        assert!((seen(100.0, &all).busy_back() - 2.0).abs() < 1e-9);
        assert!((seen(100.0, &all[..1]).busy_back() - 9.0).abs() < 1e-9, "it may have another name there");
        assert_eq!(seen(100.0, &[]), UNKNOWN);
        let silent = Err("no answer".to_owned());
        assert_eq!(mine(("s", "here"), &own(1.0), (&silent, &silent), |_, _| true), UNKNOWN);
    }
}
