//! The links of a session (its connections, numbered by its client), what ends them, and what the
//! server tells of itself.

use crate::Map;
use crate::field::*;

/// The most links that one GIVE UP names.
pub const LINKS_MAX: usize = 256;

/// Ends a link that the client cannot use any more: the body of a GIVE UP request, which is sent
/// on another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GiveUp {
    /// The link.
    pub link: u32,
    /// All links with smaller numbers are given up as well, but for those that survive.
    pub floor: u32,
    /// Links below the floor that the client still uses, at most [`LINKS_MAX`].
    pub surviving: Vec<u32>,
}

impl GiveUp {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        U32::put(&self.link, out);
        U32::put(&self.floor, out);
        let surviving = &self.surviving[..self.surviving.len().min(LINKS_MAX)];
        U16::put(&(surviving.len() as u16), out);
        surviving.iter().for_each(|link| U32::put(link, out));
    }

    /// The links of a body.
    pub fn decode(body: &[u8]) -> Result<GiveUp, BodyError> {
        let mut reader = Reader::new(body);
        let (link, floor) = (reader.get::<U32>()?, reader.get::<U32>()?);
        let count = usize::from(reader.get::<U16>()?);
        if count > LINKS_MAX {
            return Err(BodyError::Value("the number of links"));
        }
        let surviving = (0..count).map(|_| reader.get::<U32>()).collect::<Result<_, _>>()?;
        reader.end().map(|()| GiveUp { link, floor, surviving })
    }

    /// Whether a link ends by this.
    pub fn ends(&self, link: u32) -> bool {
        link == self.link || link < self.floor && !self.surviving.contains(&link)
    }
}

/// Appends the body of RETIRE: the link.
pub fn encode_retire(link: u32, out: &mut Vec<u8>) {
    U32::put(&link, out);
}

/// The link of a RETIRE.
pub fn decode_retire(body: &[u8]) -> Result<u32, BodyError> {
    let mut reader = Reader::new(body);
    let link = reader.get::<U32>()?;
    reader.end().map(|()| link)
}

const NOTICE_MAP: u8 = 1;
const NOTICE_STOPPING: u8 = 2;

/// What the server tells of itself: the body of NOTICE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// There is a newer map.
    Map(Map),
    /// It stops in so many seconds.
    Stopping(u32),
    /// Something of a later release, which means nothing to this one.
    Unknown,
}

impl Notice {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Notice::Map(map) => {
                out.push(NOTICE_MAP);
                map.encode(out);
            }
            Notice::Stopping(seconds) => {
                out.push(NOTICE_STOPPING);
                U32::put(seconds, out);
            }
            Notice::Unknown => out.push(0),
        }
    }

    /// What a body says.
    pub fn decode(body: &[u8]) -> Result<Notice, BodyError> {
        let mut reader = Reader::new(body);
        match reader.get::<U8>()? {
            NOTICE_MAP => Map::decode(reader.rest()).map(Notice::Map),
            NOTICE_STOPPING => {
                let seconds = reader.get::<U32>()?;
                reader.end().map(|()| Notice::Stopping(seconds))
            }
            _ => Ok(Notice::Unknown),
        }
    }
}

/// The number of a write, by which writes of one inode have an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteNumber {
    /// Of the server's share of the data.
    pub share_epoch: u32,
    /// Which start of the server.
    pub start: u64,
    /// Counts the inode's writes since.
    pub count: u64,
}

/// A write of the client's that is stable, and answered by this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommittedWrite {
    /// Whether its slot is of the class *releasing*.
    pub is_releasing: bool,
    /// Its slot.
    pub slot: u32,
    /// Its sequence there.
    pub sequence: u32,
    /// How it ended: 0, or an errno.
    pub status: u32,
    /// Bytes that were written.
    pub count: u32,
    /// Where.
    pub offset: u64,
    /// Its number.
    pub number: WriteNumber,
}

/// Writes of an inode that somebody else has made stable: the body of COMMITTED.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// The inode's handle.
    pub handle: Vec<u8>,
    /// Up to which number they are.
    pub up_to: WriteNumber,
    /// 0, or the errno of a sync that failed.
    pub status: u32,
    /// The client's own that it takes as answered, at most [`COMMITTED_MAX`].
    pub writes: Vec<CommittedWrite>,
}

/// The most writes of one COMMITTED.
pub const COMMITTED_MAX: usize = 512;

struct Number;
impl Field<'_> for Number {
    type Value = WriteNumber;
    fn put(number: &WriteNumber, out: &mut Vec<u8>) {
        U32::put(&number.share_epoch, out);
        U64::put(&number.start, out);
        U64::put(&number.count, out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<WriteNumber, BodyError> {
        let (share_epoch, start) = (reader.get::<U32>()?, reader.get::<U64>()?);
        Ok(WriteNumber { share_epoch, start, count: reader.get::<U64>()? })
    }
}

impl Committed {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        HandleBytes::put(&&self.handle[..], out);
        Number::put(&self.up_to, out);
        U32::put(&self.status, out);
        let writes = &self.writes[..self.writes.len().min(COMMITTED_MAX)];
        U16::put(&(writes.len() as u16), out);
        for write in writes {
            Bool::put(&write.is_releasing, out);
            for value in [write.slot, write.sequence, write.status, write.count] {
                U32::put(&value, out);
            }
            U64::put(&write.offset, out);
            Number::put(&write.number, out);
        }
    }

    /// What a body says.
    pub fn decode(body: &[u8]) -> Result<Committed, BodyError> {
        let mut reader = Reader::new(body);
        let mut committed = Committed {
            handle: reader.get::<HandleBytes>()?.to_vec(),
            up_to: reader.get::<Number>()?,
            status: reader.get::<U32>()?,
            writes: Vec::new(),
        };
        let count = usize::from(reader.get::<U16>()?);
        if count > COMMITTED_MAX {
            return Err(BodyError::Value("the number of writes"));
        }
        for _ in 0..count {
            committed.writes.push(CommittedWrite {
                is_releasing: reader.get::<Bool>()?,
                slot: reader.get::<U32>()?,
                sequence: reader.get::<U32>()?,
                status: reader.get::<U32>()?,
                count: reader.get::<U32>()?,
                offset: reader.get::<U64>()?,
                number: reader.get::<Number>()?,
            });
        }
        reader.end().map(|()| committed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_is_one_link_and_all_old_ones_that_do_not_survive() {
        let give_up = GiveUp { link: 9, floor: 5, surviving: vec![2, 4] };
        let ended: Vec<u32> = (0..12).filter(|link| give_up.ends(*link)).collect();
        assert_eq!(ended, [0, 1, 3, 9]);
    }
}
