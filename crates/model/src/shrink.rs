//! A failing sequence made small.

use std::io;
use std::time::{Duration, Instant};

use crate::compare::{Divergence, Settings, Tally, replay};
use crate::op::Op;

/// What is left of a failing sequence.
#[derive(Clone, Debug)]
pub struct Minimal {
    /// The operations that are needed.
    pub ops: Vec<Op>,
    /// How it fails.
    pub divergence: Box<Divergence>,
    /// Replays that it took.
    pub tries: usize,
}

/// Leaves out operations as long as the two sides still differ, for at most `budget`. Stops at once when the subject hangs: it is of no further use.
pub fn minimise(settings: &Settings, ops: &[Op], divergence: Box<Divergence>, budget: Duration) -> io::Result<Minimal> {
    let end = ops.len().min(divergence.position + 1);
    let mut minimal = Minimal { ops: ops[..end].to_vec(), divergence, tries: 0 };
    if minimal.divergence.hung {
        return Ok(minimal);
    }
    let started = Instant::now();
    let mut chunk = minimal.ops.len().div_ceil(2);
    while chunk > 0 {
        let mut removed = false;
        let mut start = 0;
        while start < minimal.ops.len() {
            if started.elapsed() > budget {
                return Ok(minimal);
            }
            let stop = minimal.ops.len().min(start + chunk);
            let kept = [&minimal.ops[..start], &minimal.ops[stop..]].concat();
            minimal.tries += 1;
            match replay(settings, &kept, &mut Tally::default())? {
                Ok(()) => start = stop,
                Err(divergence) => {
                    let end = kept.len().min(divergence.position + 1);
                    let hung = divergence.hung;
                    minimal.ops = kept[..end].to_vec();
                    minimal.divergence = divergence;
                    removed = true;
                    if hung {
                        return Ok(minimal);
                    }
                }
            }
        }
        chunk = match (chunk, removed) {
            (1, true) => 1,
            (chunk, _) => chunk / 2,
        };
    }
    Ok(minimal)
}
