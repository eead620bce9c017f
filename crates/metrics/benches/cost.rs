//! What it costs to record: nanoseconds an increment and a record, by one thread and by two at the
//! same time. `cargo bench -p aqueduct-metrics`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use aqueduct_metrics::{Counter, Histogram, Recorder};

/// Each is measured so often; the fastest run counts, which other programs have disturbed least.
const RUNS: usize = 50;

/// In one run of one thread.
const RECORDS: u64 = 500_000;

/// Nanoseconds for one call of `record` in the fastest run, while so many threads call it.
fn measure(threads: usize, record: impl Fn(u64) + Sync) -> f64 {
    let one = || {
        let began = Instant::now();
        (0..RECORDS).for_each(|number| record(black_box(number)));
        began.elapsed().as_nanos() as f64 / RECORDS as f64
    };
    let run = || {
        let times = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN)).collect::<Vec<_>>()
        });
        times.iter().sum::<f64>() / threads as f64
    };
    (0..RUNS).map(|_| run()).fold(f64::INFINITY, f64::min)
}

fn main() {
    // Test runners start benchmarks too, to see that they do; then once is enough.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let (single, sharded) = (Counter::default(), Counter::sharded());
    let (one, parts) = (Histogram::single(), Histogram::sharded());
    println!("{:<28}{:>12}{:>12}", "ns each", "1 thread", "2 threads");
    let row = |name: &str, record: &(dyn Fn(u64) + Sync)| {
        println!("{name:<28}{:>12.1}{:>12.1}", measure(1, record), measure(2, record));
    };
    row("nothing", &|number| {
        black_box(number);
    });
    row("a counter", &|_| single.increment());
    row("a counter, sharded", &|_| sharded.increment());
    row("a histogram", &|number| one.record(1000 + number % 1000));
    row("a histogram, sharded", &|number| parts.record(1000 + number % 1000));
    let (recorder, now) = (Recorder::default(), Instant::now());
    row("an operation under way", &|number| {
        let end = now + Duration::from_nanos(number);
        recorder.begin(now);
        recorder.end(end, end - now);
    });
    row("the clock", &|_| {
        black_box(Instant::now());
    });
}
