//! Tokens: the word of the server of the names, under the volume's key, that who has one may read
//! an object at its server of data.
//!
//! Little-endian: version u8 (3), part u8, id of the objects 16 bytes, server u64, generation u64
//! (in which the store is used, see [`generations`](crate::generations)), time u64 (until when it
//! is good: of the clock of the server of the names, in seconds since 1970), least u64 (the bytes
//! that the object has to have), MAC 16 bytes. Whoever has a token may use it, as it was given to
//! somebody who had the file open for reading; so it is good for as long as it takes to use it
//! first, and an open by it stays.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aqueduct_fs::stripe::OBJECT_TOKEN_LENGTH_MAX;

use crate::attribute::{LayoutKey, MAC_LENGTH, SERVERS_MAX};
use crate::stripe::ServerKey;

/// What the code is made for.
const ROLE: &[u8] = b"token of an object";

const VERSION: u8 = 3;
const BODY_LENGTH: usize = 1 + 1 + 16 + 8 + 8 + 8 + 8;
const _: () = assert!(BODY_LENGTH + MAC_LENGTH <= OBJECT_TOKEN_LENGTH_MAX);

/// For so long a token is good: clocks of servers differ by less.
pub(crate) const GOOD_FOR: Duration = Duration::from_secs(3600);

/// What a token lets read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// The id of the file's objects.
    pub(crate) id: [u8; 16],
    /// Which of them.
    pub(crate) part: usize,
    /// Where it lies.
    pub(crate) server: ServerKey,
    /// The generation of its store.
    pub(crate) generation: u64,
    /// So many bytes it has to have: else a part of it is lost.
    pub(crate) least: u64,
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Token {
    /// As bytes, good from `now` on.
    pub(crate) fn encode(&self, key: &LayoutKey, now: SystemTime) -> Box<[u8]> {
        let mut bytes = vec![VERSION, self.part as u8];
        bytes.extend(self.id);
        bytes.extend(self.server.to_le_bytes());
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(seconds(now + GOOD_FOR).to_le_bytes());
        bytes.extend(self.least.to_le_bytes());
        bytes.extend(key.mac(ROLE, &bytes));
        bytes.into()
    }

    /// What bytes let read at `server` at a time; `None`: nothing.
    pub(crate) fn decode(key: &LayoutKey, bytes: &[u8], server: ServerKey, now: SystemTime) -> Option<Token> {
        let (body, mac) = bytes.split_at_checked(BODY_LENGTH)?;
        if !key.is_mac(ROLE, body, mac) {
            return None;
        }
        let number = |at: usize| Some(u64::from_le_bytes(*body.get(at..)?.first_chunk()?));
        let &[version, part] = body.first_chunk()?;
        let id = *body.get(2..)?.first_chunk()?;
        let token = Token { id, part: part.into(), server: number(18)?, generation: number(26)?, least: number(42)? };
        let is_good = version == VERSION && token.part < SERVERS_MAX && token.server == server;
        (is_good && seconds(now) < number(34)?).then_some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_what_it_was_made_for_and_until_its_time() {
        let (key, now) = (LayoutKey::of_volume(&[7; 32]), UNIX_EPOCH + Duration::from_secs(1_000_000));
        let token = Token { id: [3; 16], part: 2, server: 9, generation: 4, least: 7 };
        let bytes = token.encode(&key, now);
        let read = |bytes: &[u8], server, now| Token::decode(&key, bytes, server, now);
        assert_eq!(read(&bytes, 9, now), Some(token));
        assert_eq!(read(&bytes, 8, now), None, "another server's");
        assert_eq!(read(&bytes, 9, now + GOOD_FOR), None, "too late");
        assert_eq!(read(&bytes, 9, UNIX_EPOCH), Some(token), "a clock that is behind");
        assert_eq!(Token::decode(&LayoutKey::of_volume(&[8; 32]), &bytes, 9, now), None, "another volume's");
        for at in 0..bytes.len() {
            let mut forged = bytes.to_vec();
            forged[at] ^= 1;
            assert_eq!(read(&forged, 9, now), None, "byte {at}");
            assert_eq!(read(&bytes[..at], 9, now), None, "{at} bytes");
        }
        assert_eq!(read(&[&bytes[..], &[0]].concat(), 9, now), None);
    }
}
