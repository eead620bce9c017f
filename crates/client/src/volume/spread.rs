//! Which server moves the bytes of a file: rendezvous hashing (Thaler, Ravishankar 1998), so that
//! every client finds the same one by itself, and that only the files of a server that comes or
//! goes move.

/// The context in which servers and files are hashed.
const CONTEXT: &str = "aqueduct 2026 files over servers";

/// How many servers may be away before a file has none left but that of the names.
const SPARE: usize = 2;

/// Files spread over servers by their handles.
#[derive(Clone, Debug)]
pub struct Spread {
    /// The hash of each server's name.
    servers: Box<[u64]>,
    /// Over how many of them the blocks of one file are spread; at least 1.
    width: usize,
    /// Bytes of a block.
    block: u64,
}

fn hash(bytes: &[u8]) -> u64 {
    let hash = blake3::derive_key(CONTEXT, bytes);
    u64::from_le_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]])
}

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014): each bit of the result depends on each
/// bit of what comes in.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Spread {
    /// Over servers of these names, each file over one of them.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Spread {
        let servers = names.into_iter().map(|name| hash(name.as_bytes())).collect();
        Spread { servers, width: 1, block: u64::MAX }
    }

    /// The same, the blocks of a file over so many of them; with 0 over all.
    pub fn striped(self, width: usize, block: u64) -> Spread {
        let all = self.servers.len().max(1);
        let width = if width == 0 { all } else { width.min(all) };
        Spread { width, block: block.max(1), ..self }
    }

    /// The same for this client alone: others have other servers for a file.
    pub fn salted(self, salt: u64) -> Spread {
        Spread { servers: self.servers.iter().map(|server| mix(server ^ salt)).collect(), ..self }
    }

    /// Over how many servers a file is spread that has a width of its own, or none (0).
    pub(super) fn width_of(&self, own: u16) -> usize {
        match usize::from(own) {
            0 => self.width,
            own => own.min(self.servers.len().max(1)),
        }
    }

    /// The places of a file's servers among the names: first those over which its blocks are
    /// spread, so many, then those that stand in for them.
    pub(super) fn servers(&self, handle: &[u8], width: usize) -> Vec<usize> {
        let file = hash(handle);
        let mut all: Vec<usize> = (0..self.servers.len()).collect();
        all.sort_unstable_by_key(|at| std::cmp::Reverse(mix(file ^ self.servers[*at])));
        all.truncate(width + SPARE);
        all
    }

    /// Where the block ends that an offset is in.
    pub(super) fn block_end(&self, offset: u64) -> u64 {
        (offset / self.block).saturating_add(1).saturating_mul(self.block)
    }

    /// In which order the servers of a file are asked for what begins at an offset.
    pub(super) fn order(&self, offset: u64, width: usize, servers: usize) -> impl Iterator<Item = usize> + use<> {
        let first = (offset / self.block) as usize % width.max(1);
        std::iter::once(first).chain(width..servers).filter(move |at| *at < servers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("10.0.{number}.1:7170")).collect()
    }

    fn spread(names: &[String]) -> Spread {
        Spread::new(names.iter().map(String::as_str))
    }

    fn handle(number: u64) -> [u8; 24] {
        let mut handle = [7; 24];
        handle[8..16].copy_from_slice(&number.to_le_bytes());
        handle
    }

    #[test]
    fn shares_are_even() {
        const FILES: u64 = 100_000;
        for count in [2, 3, 5, 64] {
            let (spread, mut shares) = (spread(&names(count)), vec![0u64; count]);
            (0..FILES).for_each(|number| shares[spread.servers(&handle(number), 1)[0]] += 1);
            let mean = FILES as f64 / count as f64;
            let largest = *shares.iter().max().unwrap() as f64;
            assert!(largest <= 1.15 * mean, "{count} servers: {largest} of {mean}");
        }
        assert!(spread(&[]).servers(b"file", 1).is_empty());
    }

    #[test]
    fn only_the_share_of_a_server_that_goes_moves() {
        for count in [2, 3, 5, 16, 64] {
            let all = names(count);
            let gone = count / 2;
            let rest: Vec<_> =
                all.iter().enumerate().filter(|(at, _)| *at != gone).map(|(_, name)| name.clone()).collect();
            let (before, after) = (spread(&all), spread(&rest));
            for number in 0..20_000 {
                let was = &all[before.servers(&handle(number), 1)[0]];
                let is = &rest[after.servers(&handle(number), 1)[0]];
                assert!(was == is || *was == all[gone], "a file of {was} moved to {is}");
            }
        }
    }

    #[test]
    fn who_stands_in_for_a_server_is_who_has_its_files_when_it_goes() {
        let all = names(5);
        for number in 0..1000 {
            let ranked = spread(&all).servers(&handle(number), 1);
            let rest: Vec<_> = all.iter().filter(|name| **name != all[ranked[0]]).cloned().collect();
            assert_eq!(rest[spread(&rest).servers(&handle(number), 1)[0]], all[ranked[1]]);
            assert_eq!(spread(&all).order(1 << 40, 1, ranked.len()).collect::<Vec<_>>(), [0, 1, 2]);
        }
    }

    #[test]
    fn the_blocks_of_a_file_have_servers_in_turn() {
        let order = |spread: &Spread, offset| {
            let width = spread.width_of(0);
            spread.order(offset, width, spread.servers(b"file", width).len()).next()
        };
        let all = spread(&names(5)).striped(0, 100);
        let turns: Vec<_> = (0..12).map(|block| order(&all, block * 100 + block).unwrap()).collect();
        assert_eq!(turns, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]);
        let two = spread(&names(5)).striped(2, 100);
        assert_eq!([0, 99, 100, 250].map(|offset| order(&two, offset).unwrap()), [0, 0, 1, 0]);
        assert_eq!(two.order(100, two.width_of(0), 4).collect::<Vec<_>>(), [1, 2, 3], "and who stands in");
        assert_eq!(spread(&[]).striped(0, 0).order(7, 1, 0).next(), None);
    }

    #[test]
    fn a_file_has_a_width_of_its_own() {
        let all = spread(&names(5)).striped(0, 100);
        assert_eq!([0, 1, 2, 5, 9].map(|own| all.width_of(own)), [5, 1, 2, 5, 5]);
        let turns: Vec<_> = (0..6).map(|block| all.order(block * 100, 2, 4).next().unwrap()).collect();
        assert_eq!(turns, [0, 1, 0, 1, 0, 1]);
        // It lies on the first ones of those that it would have without.
        assert_eq!(all.servers(b"file", 2)[..2], all.servers(b"file", 5)[..2]);
    }

    #[test]
    fn a_salt_spreads_one_file_over_servers_by_clients() {
        let servers: std::collections::HashSet<usize> =
            (0..64).map(|client| spread(&names(3)).salted(client).servers(b"file", 1)[0]).collect();
        assert_eq!(servers.len(), 3);
    }
}
