//! The map of a volume: who serves its names, and who which share of its data. A server that
//! stands alone is a serial volume of one.

use crate::field::*;

/// The most addresses of one server in a map, and the longest in bytes.
const ADDRESSES_MAX: usize = 16;
const ADDRESS_LENGTH_MAX: usize = 255;

/// The most servers of data in a map.
pub const DATA_SERVERS_MAX: usize = 256;

/// What servers of data that serve no names call what they serve: nobody mounts it.
pub const DATA_EXPORT: &str = "(data)";

/// The context in which a volume's id is made of its name.
const VOLUME_CONTEXT: &str = "aqueduct 2026 volume id";

/// The context in which a server's place is made of its id.
const PLACE_CONTEXT: &str = "aqueduct 2026 place of a server";

/// Places are below this one: what is above means something else.
const PLACES: u32 = 0xff00;

/// The id of the volume of this name.
pub fn volume_id(name: &str) -> [u8; 16] {
    let mut id = [0; 16];
    id.copy_from_slice(&blake3::derive_key(VOLUME_CONTEXT, name.as_bytes())[..16]);
    id
}

/// The place of a server of data in maps, by what the volume's file calls it: the same whichever
/// servers come or go, or move to other addresses. Two may meet, which is refused.
pub fn place_of(id: &str) -> u16 {
    let hash = blake3::derive_key(PLACE_CONTEXT, id.as_bytes());
    (u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]) % PLACES) as u16
}

/// The status of a reply whose body is a [`Map`]: the request was for another server, as that map
/// says, which is newer than the client's. Numbers from 65,536 on are no errnos.
pub const STATUS_MOVED: u32 = 1 << 16;

/// How the data of a volume are shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumeMode {
    /// One server has all.
    #[default]
    Serial,
    /// Each file is served by one server, by its handle.
    Cluster,
    /// The blocks of each file are served by several servers in turn.
    Stripe,
    /// Any server serves anything, which nobody changes.
    LoadBalance,
    /// Each file lies on one server.
    WholeFile,
    /// The blocks of each file lie on several servers.
    Striped,
}

impl VolumeMode {
    /// As it stands in a volume's file.
    pub fn name(self) -> &'static str {
        match self {
            VolumeMode::Serial => "serial",
            VolumeMode::Cluster => "cluster",
            VolumeMode::Stripe => "stripe",
            VolumeMode::LoadBalance => "loadbalance",
            VolumeMode::WholeFile => "whole-file",
            VolumeMode::Striped => "striped",
        }
    }
}

choices! {
    Mode: VolumeMode, "the mode of a volume" {
        Serial = 0, Cluster = 1, Stripe = 2, LoadBalance = 3, WholeFile = 4, Striped = 5
    }
}

/// A server of data in a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataServer {
    /// By which rights call it, and by which files are spread; see [`place_of`].
    pub place: u16,
    /// Of its share: a request that was sent by an older one is refused.
    pub share_epoch: u32,
    /// Its part of the data, in proportion to the others'.
    pub share: u32,
    /// Where it listens; see [`Map::names`].
    pub addresses: Vec<String>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// Which volume; zeros: that of a server that stands alone.
    pub volume: [u8; 16],
    /// Grows with each change; 0: there never is one.
    pub epoch: u64,
    /// How data are shared out.
    pub mode: VolumeMode,
    /// Bytes of a block, where blocks are.
    pub stripe_size: u32,
    /// Over how many servers the blocks of one file are spread.
    pub width: u16,
    /// Reads and writes of programs are whole, whatever their size: clients take turns.
    pub is_atomic: bool,
    /// Where names, attributes, opens and locks are served: `HOST:PORT` and other forms of an
    /// address, UTF-8 without control characters.
    pub names: Vec<String>,
    /// Where data are; none: where the names are.
    pub data: Vec<DataServer>,
}

fn put_addresses(addresses: &[String], out: &mut Vec<u8>) {
    let addresses = &addresses[..addresses.len().min(ADDRESSES_MAX)];
    out.push(addresses.len() as u8);
    addresses.iter().for_each(|address| Text::put(&address.as_bytes(), out));
}

fn get_addresses(reader: &mut Reader<'_>) -> Result<Vec<String>, BodyError> {
    let wrong = || BodyError::Value("an address of a map");
    let count = usize::from(reader.get::<U8>()?);
    if count > ADDRESSES_MAX {
        return Err(wrong());
    }
    let address = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).map_err(|_| wrong())?;
        let is_one = !text.is_empty() && text.len() <= ADDRESS_LENGTH_MAX && !text.contains(char::is_control);
        is_one.then(|| text.to_owned()).ok_or_else(wrong)
    };
    (0..count).map(|_| reader.get::<Text>().and_then(address)).collect()
}

impl Map {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.volume);
        U64::put(&self.epoch, out);
        Mode::put(&self.mode, out);
        U32::put(&self.stripe_size, out);
        U16::put(&self.width, out);
        Bool::put(&self.is_atomic, out);
        put_addresses(&self.names, out);
        let data = &self.data[..self.data.len().min(DATA_SERVERS_MAX)];
        U16::put(&(data.len() as u16), out);
        for server in data {
            U16::put(&server.place, out);
            U32::put(&server.share_epoch, out);
            U32::put(&server.share, out);
            put_addresses(&server.addresses, out);
        }
    }

    /// The map of a body.
    pub fn decode(body: &[u8]) -> Result<Map, BodyError> {
        let mut reader = Reader::new(body);
        let mut map = Map {
            volume: reader.array("the volume")?,
            epoch: reader.get::<U64>()?,
            mode: reader.get::<Mode>()?,
            stripe_size: reader.get::<U32>()?,
            width: reader.get::<U16>()?,
            is_atomic: reader.get::<Bool>()?,
            names: get_addresses(&mut reader)?,
            data: Vec::new(),
        };
        let count = usize::from(reader.get::<U16>()?);
        if count > DATA_SERVERS_MAX {
            return Err(BodyError::Value("the number of servers"));
        }
        for _ in 0..count {
            let (place, share_epoch, share) = (reader.get::<U16>()?, reader.get::<U32>()?, reader.get::<U32>()?);
            let is_taken = map.data.iter().any(|other| other.place == place);
            if is_taken || u32::from(place) >= PLACES {
                return Err(BodyError::Value("the place of a server"));
            }
            map.data.push(DataServer { place, share_epoch, share, addresses: get_addresses(&mut reader)? });
        }
        reader.end().map(|()| map)
    }
}
