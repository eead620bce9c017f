//! What is measured: OSU's tests, their message sizes and counts, and who talks to whom. Pure.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::Failure;

/// Messages above this size are sent fewer times (OSU's LARGE_MESSAGE_SIZE).
const LARGE: u64 = 8192;

/// The longest message: each rank has two of them in memory.
pub(super) const SIZE_MAX: u64 = 1 << 30;

/// Messages of a window.
pub(super) const WINDOW_MAX: usize = 1 << 20;

/// Rounds of one size.
pub(super) const ROUNDS_MAX: u64 = 1 << 32;

/// Rounds of all connections whose times a rank keeps, 8 bytes each: 1 GiB.
pub(super) const ROUNDS_KEPT_MAX: u64 = 1 << 27;

/// Connections of a pair, each with a thread at both ends.
pub(super) const STREAMS_MAX: usize = 256;

/// A test, by OSU's name of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Test {
    /// Half of the round trip of one message
    #[value(alias = "osu_latency")]
    Latency,
    /// Windows of messages one way, each answered by a short one
    #[value(alias = "osu_bw")]
    Bw,
    /// Windows of messages both ways at once
    #[value(alias = "osu_bibw")]
    Bibw,
    /// As bw, all pairs together: their sum, and messages per second
    #[value(alias = "osu_mbw_mr")]
    MbwMr,
}

impl Test {
    /// All of them.
    pub(super) const ALL: [Test; 4] = [Test::Latency, Test::Bw, Test::Bibw, Test::MbwMr];

    /// OSU's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Test::Latency => "latency",
            Test::Bw => "bw",
            Test::Bibw => "bibw",
            Test::MbwMr => "mbw_mr",
        }
    }

    /// The unit of its figure.
    pub(super) fn unit(self) -> &'static str {
        if self == Test::Latency { "us" } else { "MB/s" }
    }
}

/// How often a message or window of one size is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Before it counts.
    pub(super) warm_up: u64,
    /// Measured.
    pub(super) rounds: u64,
}

/// OSU's counts, unless others are given, which then are those of all sizes.
pub(super) fn counts(test: Test, size: u64, rounds: Option<u64>, warm_up: Option<u64>) -> Counts {
    let usual = match (test, size > LARGE) {
        (Test::Latency, false) => (10_000, 100),
        (Test::Latency, true) => (1000, 10),
        (_, false) => (100, 10),
        (_, true) => (20, 2),
    };
    Counts { rounds: rounds.unwrap_or(usual.0), warm_up: warm_up.unwrap_or(usual.1) }
}

/// `MAX`, `MIN:MAX` or `MIN:`, in bytes with k, m or g.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The first.
    pub min: u64,
    /// None is longer.
    pub max: u64,
}

/// 1 B to 4 MiB, as OSU has it.
pub(super) const USUAL_SIZES: Sizes = Sizes { min: 1, max: 4 << 20 };

/// Bytes of `64`, `8k`, `4m`, `1g`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size from 1 to {SIZE_MAX} bytes; give it as 64, 8k or 4m");
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).filter(|bytes| (1..=SIZE_MAX).contains(bytes)).ok_or_else(wrong)
}

/// Reads what `-m` says.
pub(super) fn sizes(text: &str) -> Result<Sizes, String> {
    let Sizes { min, max } = match text.split_once(':') {
        None => Sizes { max: bytes(text)?, ..USUAL_SIZES },
        Some((min, "")) => Sizes { min: bytes(min)?, ..USUAL_SIZES },
        Some(("", max)) => Sizes { max: bytes(max)?, ..USUAL_SIZES },
        Some((min, max)) => Sizes { min: bytes(min)?, max: bytes(max)? },
    };
    if min > max {
        return Err(format!("the smallest size, {min}, is above the largest, {max}"));
    }
    Ok(Sizes { min, max })
}

impl Sizes {
    /// Each twice the one before, as in OSU's tests.
    pub(super) fn all(self) -> Vec<u64> {
        std::iter::successors(Some(self.min), |size| size.checked_mul(2)).take_while(|size| *size <= self.max).collect()
    }
}

/// Who talks to whom: OSU's pairs, where rank `i` of the first half sends to rank `i + pairs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pairs {
    /// How many there are.
    pub(super) count: usize,
}

/// What a rank is in its pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It sends in pair so many, and its clock counts.
    Sends(usize),
    /// It receives and answers.
    Receives(usize),
    /// It only waits.
    Idle,
}

impl Pairs {
    /// Of so many ranks; fewer if wanted.
    pub(super) fn new(ranks: usize, wanted: Option<usize>) -> Result<Pairs, Failure> {
        let wrong = |why: String| {
            Failure::usage(
                format!("pairs of {ranks} ranks"),
                why,
                "start two ranks for each pair: --ranks 2, --hosts a,b, or mpiexec -n 2",
            )
        };
        match wanted {
            Some(0) => Err(wrong("there has to be one".into())),
            Some(count) if 2 * count > ranks => Err(wrong(format!("{count} pairs need {} ranks", 2 * count))),
            Some(count) => Ok(Pairs { count }),
            None if ranks < 2 || !ranks.is_multiple_of(2) => Err(wrong("one has nobody to talk to".into())),
            None => Ok(Pairs { count: ranks / 2 }),
        }
    }

    /// What this rank is.
    pub(super) fn role(self, rank: usize) -> Role {
        match rank / self.count {
            0 => Role::Sends(rank),
            1 => Role::Receives(rank - self.count),
            _ => Role::Idle,
        }
    }

    /// Sender and receiver of a pair.
    pub(super) fn ranks(self, pair: usize) -> (usize, usize) {
        (pair, pair + self.count)
    }
}

/// The messages of a window that this stream carries.
pub(super) fn share(window: usize, streams: usize, stream: usize) -> usize {
    window / streams + usize::from(stream < window % streams)
}

/// Bytes that one pair moves for one size, warm-ups included.
pub(super) fn cost(test: Test, size: u64, counts: Counts, window: usize) -> u64 {
    let messages = match test {
        Test::Latency => 2,
        Test::Bw | Test::MbwMr => window as u64,
        Test::Bibw => 2 * window as u64,
    };
    counts.warm_up.saturating_add(counts.rounds).saturating_mul(messages).saturating_mul(size)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts_are_those_of_osu() {
        let of = |test, size| {
            let Counts { warm_up, rounds } = counts(test, size, None, None);
            (rounds, warm_up)
        };
        assert_eq!([of(Test::Latency, 8192), of(Test::Latency, 8193)], [(10_000, 100), (1000, 10)]);
        assert_eq!([of(Test::Bw, 1), of(Test::Bibw, 16_384), of(Test::MbwMr, 8192)], [(100, 10), (20, 2), (100, 10)]);
        assert_eq!(counts(Test::Bw, 1 << 20, Some(7), Some(0)), Counts { warm_up: 0, rounds: 7 });
    }

    #[test]
    fn sizes_double() {
        assert_eq!(sizes("8").unwrap().all(), [1, 2, 4, 8]);
        assert_eq!(sizes("3:20").unwrap().all(), [3, 6, 12]);
        assert_eq!(sizes("1m:").unwrap().all(), [1 << 20, 2 << 20, 4 << 20]);
        assert_eq!(sizes(":2k").unwrap().all().len(), 12);
        assert_eq!(USUAL_SIZES.all().len(), 23);
        for wrong in ["", "0", "x", "4:2", "2g:3g", "1:2:3", "-1", "18446744073709551615k"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn halves_talk_to_each_other() {
        let pairs = Pairs::new(6, None).unwrap();
        assert_eq!((pairs.role(0), pairs.role(2), pairs.role(3)), (Role::Sends(0), Role::Sends(2), Role::Receives(0)));
        assert_eq!(pairs.ranks(2), (2, 5));
        let fewer = Pairs::new(6, Some(1)).unwrap();
        assert_eq!((fewer.role(1), fewer.role(2)), (Role::Receives(0), Role::Idle));
        for (ranks, wanted) in [(1, None), (3, None), (4, Some(3)), (4, Some(0)), (0, None)] {
            assert!(Pairs::new(ranks, wanted).unwrap_err().is_usage, "{ranks} {wanted:?}");
        }
    }

    proptest! {
        #[test]
        fn streams_share_a_window(window in 1usize..1000, streams in 1usize..64) {
            let shares: Vec<_> = (0..streams).map(|stream| share(window, streams, stream)).collect();
            prop_assert_eq!(shares.iter().sum::<usize>(), window);
            prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }
    }
}
