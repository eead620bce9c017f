//! Rights to write at a server of data, and how such a server keeps in touch with that of the
//! names: tokens, beats and their answers, each with a code that only who has the volume's key can
//! make (BLAKE3, keyed).

use crate::field::*;

/// The context in which the key of rights is made of that of the volume.
const CONTEXT: &str = "aqueduct 2026 rights of a volume";

/// Bytes of a code.
const CODE_LENGTH: usize = 16;

/// What codes are made for, so that none is good for something else.
const OF_TOKEN: u8 = 1;
const OF_BEAT: u8 = 2;
const OF_ANSWER: u8 = 3;

/// By which the servers of a volume know what one of them has said.
#[derive(Clone)]
pub struct RightKey([u8; 32]);

impl std::fmt::Debug for RightKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RightKey")
    }
}

impl RightKey {
    /// That of the volume with this key.
    pub fn of_volume(key: &[u8]) -> RightKey {
        RightKey(blake3::derive_key(CONTEXT, key))
    }

    fn code(&self, of: u8, parts: [&[u8]; 2]) -> [u8; CODE_LENGTH] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[of]);
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        let mut code = [0; CODE_LENGTH];
        code.copy_from_slice(&hasher.finalize().as_bytes()[..CODE_LENGTH]);
        code
    }

    fn seal(&self, of: u8, beside: &[u8], mut body: Vec<u8>) -> Vec<u8> {
        let code = self.code(of, [&body, beside]);
        body.extend_from_slice(&code);
        body
    }

    /// What is before the code, if it is the right one.
    fn open<'a>(&self, of: u8, beside: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], BodyError> {
        let at = sealed.len().checked_sub(CODE_LENGTH).ok_or(BodyError::Short("the code"))?;
        let (body, code) = sealed.split_at(at);
        // As hashes they are compared in a time that tells nothing.
        let same = blake3::hash(code) == blake3::hash(&self.code(of, [body, beside]));
        if same { Ok(body) } else { Err(BodyError::Value("the code")) }
    }
}

/// The right of one client to write one file at one server of data, as long as the server of the
/// names lets it have the file, for itself or beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// Which start of the server of the names gave it.
    pub names: u64,
    /// The place of the server of data in the map.
    pub place: u16,
    /// Which start of it: what another one was told is no right here.
    pub data: u64,
    /// Grows from right to right.
    pub grant: u64,
    /// The tenure: the first right that was given since several clients write the inode at the
    /// same time. All their rights on it say the same. 0: the holder writes alone.
    pub tenure: u64,
}

impl Right {
    /// Its token, for this inode.
    pub fn token(&self, key: &RightKey, handle: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        U64::put(&self.names, &mut body);
        U16::put(&self.place, &mut body);
        U64::put(&self.data, &mut body);
        U64::put(&self.grant, &mut body);
        U64::put(&self.tenure, &mut body);
        key.seal(OF_TOKEN, handle, body)
    }

    /// The right of a token that was made for this inode.
    pub fn of_token(key: &RightKey, handle: &[u8], token: &[u8]) -> Result<Right, BodyError> {
        let mut reader = Reader::new(key.open(OF_TOKEN, handle, token)?);
        let (names, place) = (reader.get::<U64>()?, reader.get::<U16>()?);
        let (data, grant) = (reader.get::<U64>()?, reader.get::<U64>()?);
        let right = Right { names, place, data, grant, tenure: reader.get::<U64>()? };
        reader.end().map(|()| right)
    }
}

/// A server of data asks that of the names how long it may go on: the body of BEAT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Its place in the map.
    pub place: u16,
    /// Which start of it.
    pub data: u64,
    /// Which start of the server of the names it obeys: nothing is executed that another one gave
    /// a right to, nor will be. 0: none.
    pub names: u64,
    /// Nothing is executed of rights up to this one, nor will be.
    pub floor: u64,
    /// It has ended, says who has waited for that: it executes nothing any more.
    pub has_ended: bool,
    /// Chosen for this question.
    pub nonce: [u8; 16],
}

impl Beat {
    /// The body.
    pub fn encode(&self, key: &RightKey) -> Vec<u8> {
        let mut body = Vec::new();
        U16::put(&self.place, &mut body);
        U64::put(&self.data, &mut body);
        U64::put(&self.names, &mut body);
        U64::put(&self.floor, &mut body);
        Bool::put(&self.has_ended, &mut body);
        body.extend_from_slice(&self.nonce);
        key.seal(OF_BEAT, &[], body)
    }

    /// The question of a body.
    pub fn decode(key: &RightKey, body: &[u8]) -> Result<Beat, BodyError> {
        let mut reader = Reader::new(key.open(OF_BEAT, &[], body)?);
        let beat = Beat {
            place: reader.get::<U16>()?,
            data: reader.get::<U64>()?,
            names: reader.get::<U64>()?,
            floor: reader.get::<U64>()?,
            has_ended: reader.get::<Bool>()?,
            nonce: reader.array("the nonce")?,
        };
        reader.end().map(|()| beat)
    }
}

/// The answer to BEAT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeatReply {
    /// Which start of the server of the names this is.
    pub names: u64,
    /// Rights up to this one are over.
    pub floor: u64,
    /// For how long the server of data may execute what is written under rights, in milliseconds
    /// from when it asked.
    pub authority: u32,
}

impl BeatReply {
    /// The body of the answer to a question with this nonce.
    pub fn encode(&self, key: &RightKey, nonce: &[u8; 16]) -> Vec<u8> {
        let mut body = Vec::new();
        U64::put(&self.names, &mut body);
        U64::put(&self.floor, &mut body);
        U32::put(&self.authority, &mut body);
        key.seal(OF_ANSWER, nonce, body)
    }

    /// The answer of a body, to the question with this nonce.
    pub fn decode(key: &RightKey, nonce: &[u8; 16], body: &[u8]) -> Result<BeatReply, BodyError> {
        let mut reader = Reader::new(key.open(OF_ANSWER, nonce, body)?);
        let reply =
            BeatReply { names: reader.get::<U64>()?, floor: reader.get::<U64>()?, authority: reader.get::<U32>()? };
        reader.end().map(|()| reply)
    }
}

/// Appends the body of RIGHT: the open through which is written, and the place of the server of
/// data in the map.
pub fn encode_right(open: aqueduct_fs::OpenId, place: u16, out: &mut Vec<u8>) {
    Open::put(&open, out);
    U16::put(&place, out);
}

/// In place of a server of data in a RIGHT: no right is asked for, but a lease to write the file
/// beside others.
pub const NO_PLACE: u16 = u16::MAX;

/// The open and the place of a RIGHT.
pub fn decode_right(body: &[u8]) -> Result<(aqueduct_fs::OpenId, u16), BodyError> {
    let mut reader = Reader::new(body);
    let right = (reader.get::<Open>()?, reader.get::<U16>()?);
    reader.end().map(|()| right)
}

/// Appends the body of REVOKE: the place of the server of data in the map.
pub fn encode_revoke(place: u16, out: &mut Vec<u8>) {
    U16::put(&place, out);
}

/// The place of a REVOKE.
pub fn decode_revoke(body: &[u8]) -> Result<u16, BodyError> {
    let mut reader = Reader::new(body);
    let place = reader.get::<U16>()?;
    reader.end().map(|()| place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RIGHT_LENGTH_MAX;

    fn key(byte: u8) -> RightKey {
        RightKey::of_volume(&[byte; 32])
    }

    #[test]
    fn a_token_is_good_for_its_inode_and_its_volume() {
        let right = Right { names: 3, place: 2, data: 9, grant: 77, tenure: 70 };
        let token = right.token(&key(1), b"file");
        assert!(token.len() <= RIGHT_LENGTH_MAX);
        assert_eq!(Right::of_token(&key(1), b"file", &token), Ok(right));
        assert!(Right::of_token(&key(1), b"other", &token).is_err());
        assert!(Right::of_token(&key(2), b"file", &token).is_err());
        for at in 0..token.len() {
            let mut wrong = token.clone();
            wrong[at] ^= 1;
            assert!(Right::of_token(&key(1), b"file", &wrong).is_err(), "byte {at}");
            assert!(Right::of_token(&key(1), b"file", &token[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn a_beat_and_its_answer_are_nothing_else() {
        let beat = Beat { place: 1, data: 5, names: 4, floor: 9, has_ended: true, nonce: [8; 16] };
        let body = beat.encode(&key(1));
        assert_eq!(Beat::decode(&key(1), &body), Ok(beat));
        assert!(Beat::decode(&key(2), &body).is_err() && Beat::decode(&key(1), &body[1..]).is_err());
        let reply = BeatReply { names: 4, floor: 10, authority: 2000 };
        let body = reply.encode(&key(1), &beat.nonce);
        assert_eq!(BeatReply::decode(&key(1), &beat.nonce, &body), Ok(reply));
        assert!(BeatReply::decode(&key(1), &[9; 16], &body).is_err(), "the answer to another question");
        assert!(Beat::decode(&key(1), &body).is_err());
    }

    #[test]
    fn what_clients_ask_for_is_read() {
        let mut body = Vec::new();
        encode_right(aqueduct_fs::OpenId(7), 3, &mut body);
        assert_eq!(decode_right(&body), Ok((aqueduct_fs::OpenId(7), 3)));
        assert!(decode_right(&body[1..]).is_err());
        body.clear();
        encode_revoke(3, &mut body);
        assert_eq!(decode_revoke(&body), Ok(3));
        body.push(0);
        assert!(decode_revoke(&body).is_err());
    }
}
