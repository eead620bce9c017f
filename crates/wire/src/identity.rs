//! Who is who: the names by which nodes and servers are known, wherever they are.

use std::fmt;

/// The longest name of a node in bytes: as that of a host (HOST_NAME_MAX of Linux).
pub const NODE_NAME_LENGTH_MAX: usize = 64;

/// The name of a node: letters and digits of ASCII, and dots, hyphens and underscores between
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(Box<str>);

impl NodeName {
    /// The name of this text; `None`: it is none.
    pub fn new(text: &str) -> Option<NodeName> {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric();
        let ends = [text.bytes().next()?, text.bytes().next_back()?];
        let is_name = text.len() <= NODE_NAME_LENGTH_MAX
            && ends.into_iter().all(is_word)
            && text.bytes().all(|byte| is_word(byte) || b".-_".contains(&byte));
        is_name.then(|| NodeName(text.into()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The identity of a server: made once, and kept in its state folder. Addresses come and go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(pub [u8; 16]);

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A server, and this start of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Which server.
    pub id: ServerId,
    /// Counts its starts, from 1 on.
    pub incarnation: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nodes_are_short_words() {
        let long = "n".repeat(NODE_NAME_LENGTH_MAX);
        for name in ["n", "node17", "gpu-3.rack_2.example", "7", &long] {
            assert_eq!(NodeName::new(name).map(|name| name.to_string()).as_deref(), Some(name));
        }
        for text in ["", ".", "-n", "n-", "a b", "a:b", "a/b", "a\n", "né", "a*", &format!("{long}n")] {
            assert_eq!(NodeName::new(text), None, "{text}");
        }
    }

    #[test]
    fn a_servers_identity_is_shown_in_hexadecimal() {
        assert_eq!(ServerId([0xab; 16]).to_string(), "ab".repeat(16));
    }
}
