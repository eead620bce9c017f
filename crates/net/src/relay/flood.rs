//! What is refused of a flood of connections: all is counted, and little of it is told.

use std::time::{Duration, Instant};

/// Between two that are told.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Connections that were refused before they had said anything.
#[derive(Debug, Default)]
pub(crate) struct Flood {
    /// Since one was told.
    refused: u64,
    told: Option<Instant>,
}

impl Flood {
    /// One more; how many there were, if that is to be told now.
    pub(crate) fn refuses(&mut self, now: Instant) -> Option<u64> {
        self.refused += 1;
        if self.told.is_some_and(|told| now.duration_since(told) < TOLD_EVERY) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_once_in_a_while_with_how_many_there_were() {
        let (mut flood, start) = (Flood::default(), Instant::now());
        assert_eq!(flood.refuses(start), Some(1));
        assert!((0..1000).all(|_| flood.refuses(start).is_none()));
        assert_eq!(flood.refuses(start + TOLD_EVERY), Some(1001));
        assert_eq!(flood.refuses(start + TOLD_EVERY), None);
    }
}
