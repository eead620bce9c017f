//! What the objects of a file take, against what was written down when it was closed.

use aqueduct_fs::Attr;

/// What the objects of a file may take more or less than was written down when it was closed, in
/// units of 512 bytes for each: local file systems allocate ahead, and give back later.
const BLOCKS_SLACK: u64 = 2048;

/// What is not as it was written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Odd {
    /// Objects take less, and not all that the file is long: a part of it may be lost.
    Shrunk,
    /// Objects have so many bytes behind the file's end.
    Longer(u64),
    /// Objects take another space, and no byte of the file is missing for that.
    Blocks,
}

/// The objects of a file, one added after the other.
#[derive(Default)]
pub(crate) struct Taken {
    /// In units of 512 bytes.
    blocks: u64,
    /// Bytes behind the file's end.
    behind: u64,
    /// One of them is shorter than the file makes it, or has holes.
    has_holes: bool,
    count: u64,
}

impl Taken {
    /// One more, of which so many bytes are the file's.
    pub(crate) fn add(&mut self, attr: &Attr, length: u64) {
        self.blocks += attr.blocks;
        self.behind = self.behind.saturating_add(attr.size.saturating_sub(length));
        self.has_holes |= attr.size < length || attr.blocks < length.div_ceil(512);
        self.count += 1;
    }

    /// In units of 512 bytes.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Whether that is as it was written down. Where objects have no holes, what was given back
    /// was allocated ahead, and nobody's.
    pub(crate) fn judge(&self, written: u64) -> Option<Odd> {
        let differs = self.blocks.abs_diff(written) > BLOCKS_SLACK * self.count;
        match () {
            () if differs && self.blocks < written && self.has_holes => Some(Odd::Shrunk),
            () if self.behind > 0 => Some(Odd::Longer(self.behind)),
            () => differs.then_some(Odd::Blocks),
        }
    }
}
