//! Whether a peer is silent: nothing comes from it though it was asked, end to end.
//!
//! [`Liveness`](crate::liveness) knows of dead paths, by what the kernels tell each other. But the
//! kernel of a router that stands still, or of a process that does, acknowledges for ever. So each
//! side of a session also asks with frames (PING), and gives up a peer that answers none. Time is
//! counted in looks at what has come, so that a process that stood still itself does not take its
//! own silence for its peer's.

use std::time::Duration;

/// Looks at which nothing new was found, after which the peer is asked, and after each further
/// one.
const LOOKS_UNASKED: u32 = 2;

/// Looks at which nothing new was found, after which the peer is given up: as many again as it had
/// to answer in.
const LOOKS_MAX: u32 = 4;

/// What a look finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hush {
    /// It was heard, or has not been silent for long.
    Heard,
    /// It is to be asked whether it is there.
    Ask,
    /// It was asked, and is to be asked once more, in every way there is.
    AskAgain,
    /// It was asked, and has not answered: it is given up.
    Gone,
}

/// The silence of one peer.
#[derive(Debug, Default)]
pub struct Silence {
    signs: (u64, u64),
    looks: u32,
}

impl Silence {
    /// The time between two looks, where a peer is suspected after `suspect`. So it is asked when
    /// it was silent for two to three times as long, and given up after four to five times.
    pub fn interval(suspect: Duration) -> Duration {
        suspect.max(crate::SUSPECT_MIN)
    }

    /// One look. `heard` changes while anything comes from the peer; `moved`, which is asked for
    /// only when nothing has, while the peer takes what is on its way to it. A peer whose path is
    /// slow is not silent.
    pub fn look(&mut self, heard: u64, moved: impl FnOnce() -> u64) -> Hush {
        let moved = if heard == self.signs.0 { moved() } else { self.signs.1 };
        if (heard, moved) != self.signs {
            *self = Silence { signs: (heard, moved), looks: 0 };
            return Hush::Heard;
        }
        self.looks += 1;
        match self.looks {
            looks if looks < LOOKS_UNASKED => Hush::Heard,
            LOOKS_UNASKED => Hush::Ask,
            looks if looks < LOOKS_MAX => Hush::AskAgain,
            _ => Hush::Gone,
        }
    }

    /// Nothing is expected of the peer now: it may be silent.
    pub fn excuse(&mut self) {
        self.looks = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_silent_is_asked_and_then_given_up() {
        let mut silence = Silence::default();
        let mut look = |heard, moved| silence.look(heard, || moved);
        assert_eq!([look(1, 0), look(1, 0)], [Hush::Heard; 2]);
        assert_eq!([look(1, 0), look(1, 0), look(1, 0)], [Hush::Ask, Hush::AskAgain, Hush::Gone]);
    }

    #[test]
    fn an_answer_begins_it_anew() {
        let mut silence = Silence::default();
        for heard in 1..100 {
            assert_eq!(silence.look(heard, || 0), Hush::Heard);
            assert_eq!([silence.look(heard, || 0), silence.look(heard, || 0)], [Hush::Heard, Hush::Ask]);
        }
    }

    #[test]
    fn a_peer_that_takes_what_is_sent_is_slow_and_not_silent() {
        let mut silence = Silence::default();
        assert!((1..100).all(|moved| silence.look(7, || moved) == Hush::Heard));
    }

    #[test]
    fn nobody_is_given_up_who_owes_nothing() {
        let mut silence = Silence::default();
        for _ in 0..100 {
            assert_ne!(silence.look(7, || 0), Hush::Gone);
            silence.excuse();
        }
    }
}
