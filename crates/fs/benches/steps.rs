//! What it costs to keep the steps of an operation: nanoseconds for one that makes one request, is
//! not slow, and ends. `cargo bench -p aqueduct-fs --bench steps`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_fs::Cancel;
use aqueduct_fs::steps::{BRIEF, Sent, What};

/// The fastest of so many runs counts, which other programs have disturbed least.
const RUNS: usize = 200;

/// In one run.
const OPERATIONS: u32 = 20_000;

fn measure(operation: impl Fn()) -> f64 {
    let run = || {
        let began = Instant::now();
        (0..OPERATIONS).for_each(|_| operation());
        began.elapsed().as_nanos() as f64 / f64::from(OPERATIONS)
    };
    (0..RUNS).map(|_| run()).fold(f64::INFINITY, f64::min)
}

fn main() {
    // Test runners start benchmarks too, to see that they do; then once is enough.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let (server, start): (Arc<str>, _) = ("server:7170".into(), Instant::now());
    let sent = || {
        What::Request(Sent {
            op: "Read",
            server: server.clone(),
            router: None,
            round_trip: None,
            is_repeat: false,
            is_timed: true,
            served: None,
        })
    };
    let one = |cancel: Cancel, took: Duration| {
        cancel.steps().note(start, black_box(start + took), sent);
        black_box(&cancel);
    };
    println!("{:<44}{:>8}", "an operation of one request", "ns");
    println!("{:<44}{:>8.1}", "steps are not kept", measure(|| one(Cancel::default(), BRIEF / 2)));
    println!(
        "{:<44}{:>8.1}",
        "kept, the request takes less than 0.1 ms",
        measure(|| one(Cancel::traced(None), BRIEF / 2))
    );
    println!("{:<44}{:>8.1}", "kept, the request takes longer", measure(|| one(Cancel::traced(None), BRIEF * 2)));
}
