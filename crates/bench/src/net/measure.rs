//! The loops of OSU's tests, over the connections of one pair.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::plan::{Counts, Test, share};
use super::wires::{Broken, Wire};
use crate::stats::quantile;

/// The answer to a window.
const ANSWER_LENGTH: usize = 4;

/// One size of one test, at one end of a pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) test: Test,
    pub(super) size: u64,
    pub(super) counts: Counts,
    pub(super) window: usize,
    pub(super) sends: bool,
}

/// What the clock of a pair's sender says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Clocked {
    /// All measured rounds, from the beginning of the first stream to the end of the last.
    pub(super) seconds: f64,
    /// Of single rounds: shortest, median, 99th percentile, longest; of windows over several connections, each connection's.
    pub(super) rounds: [f64; 4],
}

/// What one stream's rounds took.
struct Stream {
    began: Instant,
    ended: Instant,
    rounds: Vec<f64>,
}

/// Runs one size over all connections, a thread each, while `watch` is called now and then, and says whether it is to end.
pub(super) fn run(
    wires: &[Wire],
    step: Step,
    stop: &AtomicBool,
    mut watch: impl FnMut() -> bool,
) -> Result<Clocked, Broken> {
    // A message that is answered at once has no use for more than one.
    let wires = if step.test == Test::Latency { &wires[..wires.len().min(1)] } else { wires };
    let (sender, results) = mpsc::channel();
    let all: Result<Vec<Stream>, Broken> = std::thread::scope(|scope| {
        for (number, wire) in wires.iter().enumerate() {
            let sender = sender.clone();
            let messages = share(step.window, wires.len(), number);
            scope.spawn(move || sender.send(stream(wire, step, messages, stop)));
        }
        drop(sender);
        let mut all = Vec::new();
        loop {
            match results.recv_timeout(Duration::from_millis(50)) {
                Ok(result) => {
                    if result.is_err() {
                        stop.store(true, std::sync::atomic::Ordering::Relaxed);
                    }
                    all.push(result);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if watch() {
                        stop.store(true, std::sync::atomic::Ordering::Relaxed);
                    }
                }
                // A failure says more than that the others have stopped.
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    all.sort_by_key(|result| !matches!(result, Err(Broken::Failed(_))));
                    return all.into_iter().collect();
                }
            }
        }
    });
    let all = all?;
    let began = all.iter().map(|stream| stream.began).min();
    let ended = all.iter().map(|stream| stream.ended).max();
    let seconds = began.zip(ended).map_or(0.0, |(began, ended)| (ended - began).as_secs_f64());
    let mut rounds: Vec<f64> = all.into_iter().flat_map(|stream| stream.rounds).collect();
    rounds.sort_by(f64::total_cmp);
    let at = |share: f64| if rounds.is_empty() { 0.0 } else { quantile(&rounds, share) };
    Ok(Clocked { seconds, rounds: [at(0.0), at(0.5), at(0.99), at(1.0)] })
}

/// Where a message lies begins with a page, as in OSU's tests: the kernel copies faster so.
const PAGE: usize = 4096;

fn memory(size: usize) -> Vec<u8> {
    vec![0; size + PAGE]
}

/// The part of such memory that begins with a page.
fn aligned(memory: &mut [u8], size: usize) -> &mut [u8] {
    let skip = memory.as_ptr().align_offset(PAGE).min(PAGE);
    &mut memory[skip..skip + size]
}

fn stream(wire: &Wire, step: Step, messages: usize, stop: &AtomicBool) -> Result<Stream, Broken> {
    let size = step.size as usize;
    let (mut out, mut into) = (memory(size), memory(size));
    let (out, into) = (aligned(&mut out, size), aligned(&mut into, size));
    // Not zeros: nothing on the way has it easier than with true data.
    out.iter_mut().zip(0u64..).for_each(|(byte, at)| *byte = (at.wrapping_mul(0x9e37_79b9) >> 13) as u8);
    let out = &*out;
    let mut answer = [0; ANSWER_LENGTH];
    let mut round = || match (step.test, step.sends) {
        (Test::Latency, true) => {
            wire.send(out, stop)?;
            wire.receive(into, stop)
        }
        (Test::Latency, false) => {
            wire.receive(into, stop)?;
            wire.send(out, stop)
        }
        (Test::Bibw, _) => wire.exchange((out, into), messages, stop),
        (_, true) => {
            (0..messages).try_for_each(|_| wire.send(out, stop))?;
            wire.receive(&mut answer, stop)
        }
        (_, false) => {
            (0..messages).try_for_each(|_| wire.receive(into, stop))?;
            wire.send(&answer, stop)
        }
    };
    (0..step.counts.warm_up).try_for_each(|_| round())?;
    let mut rounds = Vec::with_capacity(step.counts.rounds.min(1 << 20) as usize);
    let began = Instant::now();
    let mut last = began;
    for _ in 0..step.counts.rounds {
        round()?;
        let now = Instant::now();
        rounds.push((now - last).as_secs_f64());
        last = now;
    }
    Ok(Stream { began, ended: last, rounds })
}

#[cfg(test)]
mod tests {
    use super::super::wires;
    use super::*;

    fn pair(streams: usize) -> (Vec<Wire>, Vec<Wire>) {
        let listener = wires::listen().unwrap();
        let address = ([127, 0, 0, 1], listener.1).into();
        let far = std::thread::spawn(move || listener.accept(&[7; 16], (streams, None), || false).unwrap());
        (wires::connect(&[address], &[7; 16], (streams, None)).unwrap(), far.join().unwrap())
    }

    fn step(test: Test, size: u64, sends: bool) -> Step {
        Step { test, size, counts: Counts { warm_up: 1, rounds: 3 }, window: 5, sends }
    }

    #[test]
    fn each_test_ends_at_both_ends() {
        for streams in [1, 3] {
            let (near, far) = pair(streams);
            for (test, size) in Test::ALL.into_iter().flat_map(|test| [1, 1000, 3 << 20].map(|size| (test, size))) {
                let stop = AtomicBool::new(false);
                let clocked = std::thread::scope(|scope| {
                    let other = scope.spawn(|| run(&far, step(test, size, false), &AtomicBool::new(false), || false));
                    let clocked = run(&near, step(test, size, true), &stop, || false).unwrap();
                    other.join().unwrap().unwrap();
                    clocked
                });
                let [min, median, p99, max] = clocked.rounds;
                assert!(
                    min > 0.0 && min <= median && median <= p99 && p99 <= max && max <= clocked.seconds,
                    "{clocked:?}"
                );
            }
        }
    }

    #[test]
    fn it_ends_when_it_is_asked_to_and_when_the_other_end_is_gone() {
        let (near, far) = pair(2);
        for test in Test::ALL {
            assert_eq!(run(&near, step(test, 1, false), &AtomicBool::new(false), || true), Err(Broken::Stopped));
        }
        drop(far);
        let result = run(&near, step(Test::Bw, 1, false), &AtomicBool::new(false), || false);
        assert!(matches!(result, Err(Broken::Failed(_))), "{result:?}");
    }

    #[test]
    fn strangers_are_turned_away() {
        use std::io::Write;
        let listener = wires::listen().unwrap();
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], listener.1));
        let far = std::thread::spawn(move || listener.accept(&[7; 16], (1, None), || false).map(|wires| wires.len()));
        let mut stranger = std::net::TcpStream::connect(address).unwrap();
        stranger.write_all(&[0; 20]).unwrap();
        assert!(wires::connect(&[address], &[7; 16], (1, None)).is_ok());
        assert_eq!(far.join().unwrap(), Ok(1));
    }

    #[test]
    fn an_unknown_congestion_control_is_refused_by_name() {
        let listener = wires::listen().unwrap();
        let address = ([127, 0, 0, 1], listener.1).into();
        let error = wires::connect(&[address], &[7; 16], (1, Some("nonsense"))).err().unwrap();
        assert!(error.contains("'nonsense'") && error.contains("it has:"), "{error}");
    }
}
