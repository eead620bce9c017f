//! What is tried beyond the legs, when it was asked for: other numbers of streams and sizes of
//! buffers, and a side that is slowed, to see whether the whole follows.

use std::sync::Arc;
use std::time::Duration;

use super::bench::{Bench, THREADS, Trouble};
use super::judge;
use super::leg::{Leg, Load, Running, State};
use super::measured::{Measured, Probe, Setting, Slowing, Swept};

/// Threads that copy.
const STREAMS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// Bytes of an operation.
const BUFFERS: [usize; 4] = [16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// How often each setting is tried.
const SWEEPS: usize = 3;

/// The share by which a side is slowed, and never more: of the whole's rate, or of the time of
/// each operation.
const SLOWED: f64 = 0.25;

/// Pairs of slices for each side: with the noise of a quiet machine (5 %) so many tell a whole
/// that follows (a fifth less) from one that does not.
const PAIRS: usize = 6;

/// Threads that load a side: so few that they do not change how much is under way by themselves.
const LOADERS: usize = 2;

/// Tries the whole with other settings, in turn.
pub(super) fn sweep(bench: &Bench, measured: &mut Measured, length: Duration) -> Result<(), Trouble> {
    let sources = BUFFERS.map(|piece| Arc::new(bench.source.in_pieces(piece as u64)));
    for _ in 0..SWEEPS {
        for threads in STREAMS {
            if bench.is_over(1.0, length) {
                return Ok(());
            }
            let sample = bench.slice(Load::usual(Leg::All, threads), length)?;
            let rate = sample.slice.rate();
            measured.swept.push(Swept { setting: Setting::Streams, value: threads as u64, rate });
        }
        for (piece, source) in BUFFERS.into_iter().zip(&sources) {
            if bench.is_over(1.0, length) {
                return Ok(());
            }
            let load = Load { piece, ..Load::usual(Leg::All, THREADS) };
            let rate = bench.slice_of(load, source, length)?.slice.rate();
            measured.swept.push(Swept { setting: Setting::Buffer, value: piece as u64, rate });
        }
    }
    Ok(())
}

/// Slows one side and then the other, each beside a slice in which nothing is slowed, which comes
/// first and last in turn; until a share of the time.
pub(super) fn probe(bench: &Bench, measured: &mut Measured, length: Duration, until: f64) -> Result<(), Trouble> {
    for pair in 0..PAIRS {
        for side in [0, 1] {
            if bench.is_over(until, 2 * length) {
                return Ok(());
            }
            let how = if judge::is_saturated(measured, side) { Slowing::Load } else { Slowing::Sleep };
            let mut rates = [0.0; 2];
            for slowed in if pair % 2 == 0 { [false, true] } else { [true, false] } {
                rates[usize::from(slowed)] = match slowed {
                    false => bench.slice(Load::usual(Leg::All, THREADS), length)?.slice.rate(),
                    true => slow(bench, measured, (side, how), length)?,
                };
            }
            measured.probes.push(Probe { side, how, slowed: SLOWED, rates });
        }
    }
    Ok(())
}

/// The rate of the whole while a side is slowed.
fn slow(bench: &Bench, measured: &Measured, (side, how): (usize, Slowing), length: Duration) -> Result<f64, Trouble> {
    const STATES: [&[State]; 2] = [&[State::Open, State::Read], &[State::Create, State::Write, State::Flush]];
    let whole = Load::usual(Leg::All, THREADS);
    if how == Slowing::Sleep {
        let load = Load { lingers: Some((STATES[side], SLOWED)), ..whole };
        return Ok(bench.slice(load, length)?.slice.rate());
    }
    let pace = Some(SLOWED * judge::rate(measured, Leg::All, THREADS));
    let beside = Load { pace, ..Load::usual([Leg::Read, Leg::Write][side], LOADERS) };
    let loading = Running::start(beside, &bench.source, &bench.target);
    let slowed = bench.slice(whole, length);
    // That it hangs or fails is for the whole to say, which does the same.
    let _ = loading.end();
    Ok(slowed?.slice.rate())
}
