//! The operations as a dense list, for tables with a row for each.

use crate::Op;

/// Codes of operations are less than this.
const CODES: usize = 256;

const INDEX: [u8; CODES] = {
    let mut index = [0; CODES];
    let mut at = 0;
    while at < Op::ALL.len() {
        index[Op::ALL[at] as usize] = at as u8;
        at += 1;
    }
    index
};

impl Op {
    /// The names of all operations, in the order of [`Op::ALL`].
    pub const NAMES: [&'static str; Op::ALL.len()] = {
        let mut names = [""; Op::ALL.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = Op::ALL[at].name();
            at += 1;
        }
        names
    };

    /// Its index in [`Op::ALL`] and [`Op::NAMES`].
    pub const fn index(self) -> usize {
        INDEX[self as usize] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_its_index() {
        for (index, op) in Op::ALL.iter().enumerate() {
            assert_eq!((op.index(), Op::NAMES[index]), (index, op.name()));
        }
    }
}
