//! Which bytes of which file each rank moves, and in which order: pure.

use rand::Rng;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// The most transfers of a segment that are put in random order: their places are in memory, 8 bytes each.
pub const RANDOM_TRANSFERS_MAX: u64 = 1 << 27;

/// How ranks share the bytes of a test, as IOR lays them out: a file is so many segments, each of them a block of every rank (or of the one whose file
/// it is), and each block so many transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Ranks that take part.
    pub ranks: u64,
    /// `-s`
    pub segments: u64,
    /// `-b`
    pub block: u64,
    /// `-t`; divides the block.
    pub transfer: u64,
    /// `-F`
    pub file_per_rank: bool,
    /// `-z`, with its seed.
    pub random: Option<u64>,
}

impl Layout {
    /// Bytes of all ranks.
    pub fn total(&self) -> u64 {
        self.ranks * self.segments * self.block
    }

    /// Bytes of one segment of a file.
    fn segment(&self) -> u64 {
        if self.file_per_rank { self.block } else { self.block * self.ranks }
    }

    /// Bytes of one file.
    pub fn file(&self) -> u64 {
        self.segment() * self.segments
    }

    /// The order of the rank's transfers.
    pub fn pattern(&self, rank: u64) -> Pattern {
        let start = if self.file_per_rank { 0 } else { rank * self.block };
        let places = self.random.map(|seed| self.places(seed, rank));
        let each = places.as_ref().map_or(self.block / self.transfer, |places| places.len() as u64);
        let base = if places.is_some() { 0 } else { start };
        Pattern { layout: *self, places, each, base, done_in_segment: 0, segments_left: self.segments }
    }

    /// The places of this rank's transfers within each segment, in random order. In a file of its own a rank has all; in a shared one each transfer of
    /// the segment falls to one rank by lot, so that ranks have more and less of them, as IOR has it.
    fn places(&self, seed: u64, rank: u64) -> Vec<u64> {
        let count = self.segment() / self.transfer;
        let mut places: Vec<u64> = if self.file_per_rank {
            (0..count).map(|at| at * self.transfer).collect()
        } else {
            let mut lots = ChaCha8Rng::seed_from_u64(seed);
            let mine = (0..count).filter(|_| lots.random_range(0..self.ranks) == rank);
            mine.map(|at| at * self.transfer).collect()
        };
        // Not the lots' own stream: neighbours would be put in the same order.
        places.shuffle(&mut ChaCha8Rng::seed_from_u64(seed.wrapping_add(1 + rank)));
        places
    }
}

/// The offsets of one rank's transfers, one after the other.
#[derive(Clone, Debug)]
pub struct Pattern {
    layout: Layout,
    places: Option<Vec<u64>>,
    /// Transfers of a segment.
    each: u64,
    /// Where the segment, or this rank's part of it, begins.
    base: u64,
    done_in_segment: u64,
    segments_left: u64,
}

impl Iterator for Pattern {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.done_in_segment == self.each {
            if self.each == 0 || self.segments_left <= 1 {
                return None;
            }
            self.segments_left -= 1;
            self.done_in_segment = 0;
            self.base += self.layout.segment();
        } else if self.segments_left == 0 {
            return None;
        }
        let within = match &self.places {
            Some(places) => places[self.done_in_segment as usize],
            None => self.done_in_segment * self.layout.transfer,
        };
        self.done_in_segment += 1;
        Some(self.base + within)
    }
}

/// Whose bytes a rank reads, so that it does not find them in its own cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reorder {
    /// Its own.
    None,
    /// `-C`: those of a rank so many nodes further on, `-Q`.
    Constant(u64),
    /// `-Z`: those of any rank at least so many nodes further on, by a seed: two may read the same.
    Random {
        /// `-Q`
        at_least: u64,
        /// `-X`; negative: another order in each repetition.
        seed: i64,
    },
    /// `-Z` twice: each other order of all ranks' bytes, by a seed.
    Shuffle {
        /// `-X`, as above.
        seed: i64,
    },
}

/// Where ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// All ranks.
    pub ranks: u64,
    /// Hosts.
    pub nodes: u64,
    /// Ranks on the first.
    pub per_node: u64,
    /// Neighbours in number are on the same host, as far as they fit.
    pub blockwise: bool,
}

impl Nodes {
    /// From the host of each rank.
    pub fn of(hosts: &[String]) -> Nodes {
        let mut names: Vec<&String> = hosts.iter().collect();
        names.sort_unstable();
        names.dedup();
        let per_node = hosts.iter().filter(|host| Some(*host) == hosts.first()).count() as u64;
        let blockwise = hosts.len() < 2 || hosts[0] == hosts[1];
        Nodes { ranks: hosts.len() as u64, nodes: names.len() as u64, per_node, blockwise }
    }

    /// How many ranks further on the next node's begin. On a single node there is no other: then it is the next rank.
    fn shift(&self) -> u64 {
        if self.blockwise && self.nodes > 1 { self.per_node } else { 1 }
    }
}

impl Reorder {
    /// The rank whose bytes are read by `rank` in this repetition.
    pub fn source(self, rank: u64, nodes: &Nodes, repetition: u64) -> u64 {
        let seeded = |seed: i64, add: u64| {
            let seed = if seed < 0 { seed.unsigned_abs() + repetition } else { seed as u64 };
            ChaCha8Rng::seed_from_u64(seed.wrapping_add(add))
        };
        let on = match self {
            Reorder::None => 0,
            Reorder::Constant(tasks) => tasks * nodes.shift(),
            Reorder::Random { at_least, seed } => {
                let least = at_least.min(nodes.nodes - 1) * nodes.per_node;
                let least = least.min(nodes.ranks - 1);
                seeded(seed, rank).random_range(least..nodes.ranks)
            }
            Reorder::Shuffle { seed } => {
                let mut order: Vec<u64> = (0..nodes.ranks).collect();
                order.shuffle(&mut seeded(seed, 0));
                return order[rank as usize];
            }
        };
        (rank + on) % nodes.ranks
    }

    /// The rank whose bytes are looked at when what was written is checked: two nodes further on, where reads are moved by a constant.
    pub fn check_source(self, rank: u64, nodes: &Nodes) -> u64 {
        match self {
            Reorder::Constant(_) => (rank + 2 * nodes.shift()) % nodes.ranks,
            _ => rank,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn layout() -> impl Strategy<Value = Layout> {
        let sizes = (1u64..7, 1u64..5, 1u64..9, 1u64..4, any::<bool>(), any::<Option<u64>>());
        sizes.prop_map(|(ranks, segments, transfers, words, file_per_rank, random)| {
            let transfer = words * 8;
            Layout { ranks, segments, block: transfers * transfer, transfer, file_per_rank, random }
        })
    }

    /// How often each byte of each file is moved, by file and offset.
    fn covered(layout: &Layout, sources: impl Iterator<Item = u64>) -> BTreeMap<(u64, u64), u32> {
        let mut times = BTreeMap::new();
        for rank in sources {
            let file = if layout.file_per_rank { rank } else { 0 };
            for offset in layout.pattern(rank) {
                for byte in offset..offset + layout.transfer {
                    *times.entry((file, byte)).or_default() += 1;
                }
            }
        }
        times
    }

    fn all_once(layout: &Layout) -> BTreeMap<(u64, u64), u32> {
        let files = if layout.file_per_rank { layout.ranks } else { 1 };
        (0..files).flat_map(|file| (0..layout.file()).map(move |byte| ((file, byte), 1))).collect()
    }

    proptest! {
        #[test]
        fn each_byte_of_each_file_is_written_once(layout in layout()) {
            prop_assert_eq!(covered(&layout, 0..layout.ranks), all_once(&layout));
        }

        #[test]
        fn each_byte_is_read_once_where_reading_is_reordered(
            layout in layout(), distance in 0u64..9, per_node in 1usize..4, blockwise: bool, seed: i64, repetition in 0u64..3
        ) {
            let nodes = layout.ranks.div_ceil(per_node as u64) as usize;
            let host = |rank: usize| if blockwise { rank / per_node } else { rank % nodes };
            let hosts: Vec<String> = (0..layout.ranks as usize).map(|rank| format!("n{}", host(rank))).collect();
            let nodes = Nodes::of(&hosts);
            let seed = seed >> 2;
            for reorder in [Reorder::None, Reorder::Constant(distance), Reorder::Shuffle { seed }] {
                let sources = (0..layout.ranks).map(|rank| reorder.source(rank, &nodes, repetition));
                prop_assert_eq!(covered(&layout, sources), all_once(&layout), "{:?}", reorder);
                let sources = (0..layout.ranks).map(|rank| reorder.check_source(rank, &nodes));
                prop_assert_eq!(covered(&layout, sources), all_once(&layout), "{:?}", reorder);
            }
            for rank in 0..layout.ranks {
                let random = Reorder::Random { at_least: distance, seed };
                prop_assert!(random.source(rank, &nodes, repetition) < layout.ranks);
                prop_assert_eq!(random.source(rank, &nodes, repetition), random.source(rank, &nodes, repetition));
            }
        }

        #[test]
        fn a_pattern_that_has_ended_stays_so(layout in layout(), rank in 0u64..6) {
            let mut pattern = layout.pattern(rank % layout.ranks);
            pattern.by_ref().for_each(drop);
            prop_assert_eq!((pattern.next(), pattern.next()), (None, None));
        }
    }

    fn offsets(layout: Layout, rank: u64) -> Vec<u64> {
        layout.pattern(rank).collect()
    }

    #[test]
    fn segments_are_laid_out_as_ior_lays_them_out() {
        let shared = Layout { ranks: 2, segments: 2, block: 32, transfer: 16, file_per_rank: false, random: None };
        assert_eq!(offsets(shared, 0), [0, 16, 64, 80]);
        assert_eq!(offsets(shared, 1), [32, 48, 96, 112]);
        assert_eq!((shared.file(), shared.total()), (128, 128));
        let own = Layout { file_per_rank: true, ..shared };
        assert_eq!(offsets(own, 1), [0, 16, 32, 48]);
        assert_eq!((own.file(), own.total()), (64, 128));
        // Strided: a block of one transfer, many segments.
        let strided = Layout { block: 16, segments: 3, ..shared };
        assert_eq!(offsets(strided, 1), [16, 48, 80]);
    }

    #[test]
    fn random_order_is_the_same_in_each_segment_and_for_each_seed() {
        let layout = Layout { ranks: 1, segments: 2, block: 1024, transfer: 8, file_per_rank: true, random: Some(7) };
        let places = offsets(layout, 0);
        let again: Vec<u64> = places[..128].iter().map(|place| place + 1024).collect();
        assert_eq!(places[128..], again);
        assert_eq!(places, offsets(layout, 0));
        assert_ne!(places, offsets(Layout { random: Some(8), ..layout }, 0));
        assert!(!places[..128].is_sorted());
    }

    fn hosts(names: &[&str]) -> Nodes {
        Nodes::of(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn reads_move_by_nodes_where_there_are_several() {
        let blocks = hosts(&["a", "a", "b", "b"]);
        assert_eq!((0..4).map(|rank| Reorder::Constant(1).source(rank, &blocks, 0)).collect::<Vec<_>>(), [2, 3, 0, 1]);
        assert_eq!(Reorder::Constant(1).check_source(0, &blocks), 0);
        let cyclic = hosts(&["a", "b", "a", "b"]);
        assert_eq!(Reorder::Constant(1).source(0, &cyclic, 0), 1);
        assert_eq!(Reorder::Constant(1).check_source(0, &cyclic), 2);
        let one = hosts(&["a", "a", "a"]);
        assert_eq!((0..3).map(|rank| Reorder::Constant(1).source(rank, &one, 0)).collect::<Vec<_>>(), [1, 2, 0]);
        // At least a node further on.
        for seed in 0..50 {
            let source = Reorder::Random { at_least: 1, seed }.source(0, &blocks, 0);
            assert!([2, 3].contains(&source), "{source}");
        }
    }

    #[test]
    fn a_negative_seed_changes_with_each_repetition() {
        let nodes = hosts(&["a"; 16]);
        let sources = |seed, repetition| -> Vec<u64> {
            (0..16).map(|rank| Reorder::Shuffle { seed }.source(rank, &nodes, repetition)).collect()
        };
        assert_eq!(sources(5, 0), sources(5, 1));
        assert_ne!(sources(-5, 0), sources(-5, 1));
    }
}
