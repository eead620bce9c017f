use super::*;
use crate::active::{STATES, Slice, Way};
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
            Leg::Read => (1.0, 0.0),
            Leg::Write => (0.0, 1.0),
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
        Sample { leg, threads, slice, served, busy: case.busy, own: case.own, resent: case.resent, round_trips }
    };
    let mut samples = Vec::new();
    for _ in 0..5 {
        samples.push(sample(Leg::Read, 8, case.read));
        samples.push(sample(Leg::Write, 8, case.write));
        samples.push(sample(Leg::All, 8, case.read.min(case.write)));
    }
    let suspect = if case.read <= case.write { (Leg::Read, case.read) } else { (Leg::Write, case.write) };
    samples.push(sample(suspect.0, 16, suspect.1 * case.more));
    Measured { sides: [side(0), side(1)], samples, threads: 8, processors: 2, mean_size: 1 << 30, trouble: None }
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
