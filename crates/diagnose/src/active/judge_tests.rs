use super::*;
use crate::active::{Probe, STATES, Slice, Slowing, Swept, Way};
use crate::verdict::Cause;

/// What the legs do, in a word.
#[derive(Clone, Copy)]
struct Case {
    read: f64,
    write: f64,
    /// Shares of time at the servers of source and target; `None`: there is none.
    served: [Option<f64>; 2],
    /// Round trips idle and loaded, in seconds.
    trips: (f64, f64),
    /// What twice as much under way brings.
    more: f64,
    /// The share of names.
    names: f64,
    busy: f64,
    own: [f64; 2],
    /// What servers had of processors and waited for them, in seconds of each second.
    at_server: [f64; 2],
    resent: f64,
}

const USUAL: Case = Case {
    read: 500e6,
    write: 400e6,
    served: [None, None],
    trips: (1e-4, 2e-4),
    more: 1.0,
    names: 0.0,
    busy: 0.3,
    own: [0.2, 0.0],
    at_server: [0.2, 0.2],
    resent: 0.0,
};

fn measured(case: Case) -> Measured {
    let side = |number: usize| Side {
        place: ["/from", "/to"][number].into(),
        server: case.served[number].map(|_| ["a:7170", "b:7170"][number].into()),
        way: case.served[number].map(|_| Way { least: case.trips.0, median: case.trips.0 }),
        ..Side::default()
    };
    let sample = |leg: Leg, threads: usize, rate: f64| {
        let (own, other) = (threads as f64 * (1.0 - case.names), threads as f64 * case.names);
        let mut states = [0.0; STATES];
        let (reads, writes) = (case.write / (case.read + case.write), case.read / (case.read + case.write));
        let (reads, writes) = match leg {
            Leg::Read | Leg::There | Leg::From => (1.0, 0.0),
            Leg::Write | Leg::To => (0.0, 1.0),
            Leg::All => (reads, writes),
        };
        states[State::Read as usize] = own * reads;
        states[State::Open as usize] = other * reads;
        states[State::Write as usize] = own * writes;
        states[State::Create as usize] = other * writes;
        let slice = Slice { bytes: rate as u64, files: 1, operations: 100, seconds: 1.0, states };
        let served = [0, 1].map(|side: usize| {
            let time: f64 = OF_SIDE[side].iter().map(|state| states[*state as usize]).sum();
            case.served[side].map(|share| share * time)
        });
        let round_trips = case.served.map(|served| served.map(|_| case.trips.1));
        let at_server = case.served.map(|served| served.map(|_| case.at_server));
        Sample {
            leg,
            threads,
            slice,
            served,
            at_server,
            busy: case.busy,
            own: case.own,
            resent: case.resent,
            round_trips,
        }
    };
    let mut samples = Vec::new();
    for _ in 0..5 {
        samples.push(sample(Leg::Read, 8, case.read));
        samples.push(sample(Leg::Write, 8, case.write));
        samples.push(sample(Leg::All, 8, case.read.min(case.write)));
    }
    let suspect = if case.read <= case.write { (Leg::Read, case.read) } else { (Leg::Write, case.write) };
    samples.push(sample(suspect.0, 16, suspect.1 * case.more));
    let sides = [side(0), side(1)];
    Measured { sides, samples, threads: 8, processors: 2, mean_size: 1 << 30, ..Measured::default() }
}

fn said(case: Case) -> (Cause, String) {
    let verdict = judge(&measured(case));
    (verdict.verdict, verdict.target)
}

#[test]
fn the_least_leg_limits() {
    assert_eq!(said(Case { read: 100e6, ..USUAL }), (Cause::Read, "/from".into()));
    assert_eq!(said(Case { write: 100e6, ..USUAL }), (Cause::Write, "/to".into()));
    let verdict = judge(&measured(Case { write: 100e6, ..USUAL }));
    assert!(verdict.confidence > 0.9 && verdict.next == "read" && (verdict.gain - 5.0).abs() < 0.01, "{verdict:?}");
}

#[test]
fn what_is_alike_is_not_told_apart() {
    let verdict = judge(&measured(Case { read: 100e6, write: 105e6, ..USUAL }));
    assert_eq!((verdict.verdict, verdict.candidates), (Cause::Undetermined, vec![Stage::Read, Stage::Write]));
}

#[test]
fn where_requests_are_tells_a_server_from_the_way_to_it() {
    let there = |share| Case { read: 100e6, served: [Some(share), None], ..USUAL };
    assert_eq!(said(there(0.9)), (Cause::Read, "/from".into()));
    assert_eq!(said(Case { trips: (1e-4, 5e-3), ..there(0.1) }), (Cause::Network, "a:7170".into()));
    let to = |share| Case { write: 100e6, served: [None, Some(share)], ..USUAL };
    assert_eq!(said(to(0.9)), (Cause::Write, "/to".into()));
    assert_eq!(said(Case { trips: (1e-4, 5e-3), ..to(0.1) }), (Cause::Network, "b:7170".into()));
}

#[test]
fn a_long_way_is_no_full_one() {
    let far = Case { read: 100e6, served: [Some(0.05), None], trips: (2e-2, 2.1e-2), ..USUAL };
    assert_eq!(said(far), (Cause::Latency, "a:7170".into()));
    assert_eq!(said(Case { trips: (2e-2, 4.5e-2), ..far }).0, Cause::Network);
    assert_eq!(said(Case { resent: 0.01, ..far }).0, Cause::Network);
}

#[test]
fn kinds_are_told() {
    assert_eq!(said(Case { read: 100e6, more: 1.9, ..USUAL }).0, Cause::Latency);
    assert_eq!(said(Case { read: 1e6, names: 0.8, ..USUAL }), (Cause::Metadata, "/from".into()));
    let cpu = Case { read: 100e6, busy: 0.97, own: [1.2, 0.3], ..USUAL };
    assert_eq!(said(cpu), (Cause::Cpu, "this machine".into()));
    // A machine that others keep busy is no reason.
    assert_eq!(said(Case { own: [0.1, 0.1], ..cpu }).0, Cause::Read);
    // Nor is this machine what holds up requests that are at a server.
    let there = Case { served: [Some(0.8), None], ..cpu };
    assert_eq!(said(there), (Cause::Read, "/from".into()));
    assert_eq!(said(Case { at_server: [0.1, 1.5], ..there }), (Cause::Cpu, "a:7170".into()));
}

#[test]
fn what_hangs_is_named() {
    let hangs = |state| Measured { trouble: Some((state, "it did not come back".into())), ..measured(USUAL) };
    let verdict = judge(&hangs(State::Read));
    assert_eq!((verdict.verdict, verdict.target.as_str()), (Cause::Read, "/from"));
    assert_eq!(judge(&hangs(State::Flush)).verdict, Cause::Write);
    assert_eq!(judge(&hangs(State::Own)).verdict, Cause::Undetermined);
    let empty = Measured::default();
    assert_eq!(judge(&empty).verdict, Cause::Undetermined);
}

/// A probe of each side, with what the whole did then in parts of what it did.
fn probed(case: Case, followed: [f64; 2]) -> Measured {
    let probe = |side: usize| Probe { side, how: Slowing::Load, slowed: 0.25, rates: [1e8, 1e8 * followed[side]] };
    Measured { probes: (0..6).map(|at| probe(at % 2)).collect(), ..measured(case) }
}

#[test]
fn a_probe_tells_apart_what_the_legs_do_not() {
    let tie = Case { read: 100e6, write: 105e6, ..USUAL };
    let verdict = judge(&probed(tie, [0.99, 0.78]));
    assert_eq!((verdict.verdict, verdict.target.as_str()), (Cause::Write, "/to"), "{verdict:?}");
    assert_eq!(judge(&probed(tie, [0.78, 0.79])).verdict, Cause::Undetermined, "both follow");
    assert_eq!(judge(&probed(tie, [0.91, 0.78])).verdict, Cause::Undetermined, "one is not clear");
    let slow = Case { read: 300e6, ..USUAL };
    let sure = judge(&measured(slow)).confidence;
    assert!(judge(&probed(slow, [0.78, 1.0])).confidence > sure);
    // What the whole does not follow is not said to limit it.
    assert_eq!(judge(&probed(slow, [1.0, 0.78])).verdict, Cause::Undetermined);
}

#[test]
fn what_a_part_carries_alone_is_the_least_that_it_does() {
    let slow = Case { read: 100e6, served: [Some(0.55), None], ..USUAL };
    let next = |alone: Option<f64>| {
        let mut measured = measured(slow);
        let sample = measured.samples.iter().find(|sample| sample.leg == Leg::Read).copied();
        let of_way = |rate: f64| {
            sample.map(|of| Sample { leg: Leg::From, slice: Slice { bytes: rate as u64, ..of.slice }, ..of })
        };
        measured.samples.extend(alone.and_then(of_way));
        judge(&measured)
    };
    // 45 % of the time on the way: it could carry 122 MB/s at least, and carries more alone.
    assert_eq!(next(None).next, "network");
    assert!((next(None).gain - 1.22).abs() < 0.01);
    assert_eq!(next(Some(300e6)).next, "network");
    assert!((next(Some(300e6)).gain - 3.0).abs() < 0.01);
    // A server that is held to a rate is so with what it has in memory as well.
    assert!((next(Some(100e6)).gain - 1.22).abs() < 0.01);
}

#[test]
fn what_parts_carry_alone_tells_more_than_where_requests_are() {
    let of = |case: Case, served: f64, there: f64, way: f64| {
        let mut measured = measured(Case { read: 11.5e6, served: [Some(served), None], ..case });
        let read = measured.samples.iter().find(|sample| sample.leg == Leg::Read).copied();
        for (leg, rate) in [(Leg::There, there), (Leg::From, way)] {
            let alone = |of: Sample| Sample { leg, slice: Slice { bytes: (rate * 1e6) as u64, ..of.slice }, ..of };
            measured.samples.extend(read.map(alone));
        }
        judge(&measured)
    };
    let said = |served, there, way| of(USUAL, served, there, way);
    // The server has the requests while it waits for the wire.
    let thin = said(0.85, 3839.0, 12.5);
    assert_eq!((thin.verdict, thin.target.as_str(), thin.next.as_str()), (Cause::Network, "a:7170", "write"));
    let waits = thin.evidence.iter().any(|sentence| sentence.contains("until the way takes"));
    assert!(waits, "{thin:?}");
    let slow = said(0.2, 12.0, 400.0);
    assert_eq!((slow.verdict, slow.target.as_str()), (Cause::Read, "/from"), "{slow:?}");
    // Neither has room: where requests are says which.
    assert_eq!(said(0.85, 12.0, 12.5).verdict, Cause::Read);
    assert_eq!(said(0.15, 12.0, 12.5).verdict, Cause::Network);
    // Others keep this machine busy, so that its threads wait for the little that they compute.
    let beside = Case { busy: 1.0, own: [0.2, 1.2], ..USUAL };
    assert_eq!(of(beside, 0.85, 3839.0, 12.5).verdict, Cause::Network);
    assert_eq!(of(Case { own: [1.2, 1.2], ..beside }, 0.85, 3839.0, 12.5).verdict, Cause::Cpu);
}

#[test]
fn a_whole_that_is_less_than_its_parts_is_told() {
    let shares = |whole: f64| {
        let mut measured = measured(USUAL);
        let of_whole = measured.samples.iter_mut().filter(|sample| sample.leg == Leg::All);
        of_whole.for_each(|sample| sample.slice.bytes = whole as u64);
        together(&measured).unwrap_or_default()
    };
    assert_eq!(shares(390e6), "");
    assert!(shares(230e6).contains("in turn"), "{}", shares(230e6));
    assert!(shares(100e6).contains("75 % less") && shares(100e6).contains("share"), "{}", shares(100e6));
}

#[test]
fn a_setting_that_helps_is_told() {
    let swept = |value: u64, rate: f64| Swept { setting: Setting::Streams, value, rate };
    let of = |best: f64| helps(&Measured { swept: vec![swept(8, 100e6), swept(16, best)], ..measured(USUAL) });
    assert_eq!(of(150e6), ["with 16 streams the whole moves 1.50 times as much"]);
    assert!(of(110e6).is_empty());
}
