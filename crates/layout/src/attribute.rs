//! What says where a file's bytes are: an extended attribute of its stub, and the stub's first
//! block, each under a MAC.
//!
//! The attribute, little-endian: version u8 (3), state u8, count of servers u8, count of other
//! places u8 (0 or that of servers), block u32, id 16 bytes, hash of the stub's handle 16 bytes,
//! made u64, size u64, blocks u64, epoch u64, servers u64 each, other places u64 each, of each
//! object its least length u64 and its time u64; MAC 16 bytes. Version 2 has nothing of objects,
//! and is written while nothing is known of them; version 1 has neither an epoch nor other places.
//! The first block: [`MAGIC`], the length of an attribute u16, the attribute, and a text for who
//! looks at it.

use crate::stripe::{ServerKey, Stripe};

/// The attribute's name: only the superuser sees it on the machine, and no client does.
pub const NAME: &[u8] = b"trusted.aqueduct.layout";

/// Bytes of a stub's first block, and the least length of a stub.
pub const BLOCK: u64 = 4096;

/// The first bytes of a stub.
pub const MAGIC: [u8; 16] = *b"Aqueduct stub 1\n";

/// The most servers of a layout: [`Attribute::made`] has a bit for each.
pub const SERVERS_MAX: usize = aqueduct_fs::stripe::PARTS_MAX;

/// What a number has that is not known, or does not count.
pub const UNKNOWN: u64 = u64::MAX;

/// Without what is known of objects, and with it.
const VERSION: u8 = 2;
const VERSION_KNOWN: u8 = 3;

/// Bytes before the servers, in version 1 and in later ones.
const FIXED_LENGTH_1: usize = 64;
const FIXED_LENGTH: usize = 72;
pub(crate) const MAC_LENGTH: usize = 16;
const NOTE: &[u8] = b"\nThis file is a part of an Aqueduct volume. Its data lie in objects of the volume's servers,\nand are read through a mount of the volume.\n";

/// How far the promotion of a file has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The file's bytes are still its own; objects may have been made.
    Making = 1,
    /// The bytes are in the objects; the stub still has to be made of the file, with
    /// [`Attribute::size`].
    Moved = 2,
    /// The stub is one.
    Spread = 3,
}

/// What an object was when its file was used last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Was {
    /// It had so many bytes at least; it has had no less since.
    pub length: u64,
    /// When its bytes were changed last by its server's clock, in seconds since 1970, for as long
    /// as [`Attribute::blocks`] holds. 0: that is not known.
    pub changed: u64,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// How far it has come.
    pub state: State,
    /// Names the objects.
    pub id: [u8; 16],
    /// Bytes of a stripe's block.
    pub block: u32,
    /// Where the objects lie, in order.
    pub servers: Vec<ServerKey>,
    /// Of the handle of the stub that this attribute belongs to.
    pub stub: [u8; 16],
    /// Which objects there are: a bit for each. Others are holes.
    pub made: u64,
    /// The file's size while the stub is no longer than a block, or not yet made; [`UNKNOWN`]: the
    /// stub's length.
    pub size: u64,
    /// What all objects take, in units of 512 bytes; [`UNKNOWN`]: they have been written to since.
    pub blocks: u64,
    /// Grows whenever objects come to lie elsewhere: what was known of an older one is of no use.
    pub epoch: u64,
    /// Where else objects of these names may lie, part by part, which nobody reads: copies that
    /// are being made, or what was left when [`servers`](Attribute::servers) changed. Empty:
    /// nowhere.
    pub other: Vec<ServerKey>,
    /// What the objects were, part by part. Empty: that is not known.
    pub were: Vec<Was>,
}

/// The volume's key for attributes, stubs and markers.
#[derive(Clone)]
pub struct LayoutKey([u8; 32]);

impl LayoutKey {
    /// Derived from the volume's key.
    pub fn of_volume(key: &[u8; 32]) -> LayoutKey {
        LayoutKey(blake3::derive_key("aqueduct 2026 layouts of a volume", key))
    }

    /// Makes a MAC of `bytes` in the role of `what`.
    pub(crate) fn mac(&self, what: &[u8], bytes: &[u8]) -> [u8; MAC_LENGTH] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&(what.len() as u64).to_le_bytes()).update(what).update(bytes);
        *hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes")
    }

    /// Whether a MAC is right.
    pub(crate) fn is_mac(&self, what: &[u8], bytes: &[u8], mac: &[u8]) -> bool {
        let expected = self.mac(what, bytes);
        let differs = expected.iter().zip(mac).fold(0, |differs, (one, other)| differs | (one ^ other));
        mac.len() == MAC_LENGTH && differs == 0
    }
}

/// What stands for a handle in an attribute.
pub fn stub_of(handle: &[u8]) -> [u8; 16] {
    *blake3::hash(handle).as_bytes().first_chunk().expect("a hash has 32 bytes")
}

impl Attribute {
    /// How the bytes are cut.
    pub fn stripe(&self) -> Stripe {
        Stripe { block: self.block.into(), width: self.servers.len() as u64 }
    }

    /// How many bytes an object has to have at least while the file is so long.
    pub(crate) fn least(&self, part: usize, size: u64) -> u64 {
        let length = self.were.get(part).map_or(0, |was| was.length);
        length.min(self.stripe().length_of(size, part))
    }

    /// The same of a file that is not to be longer than so much; whether that is another one.
    pub(crate) fn lower(&mut self, size: u64) -> bool {
        let lower = |(part, was): (usize, &Was)| Was { length: self.least(part, size), ..*was };
        let lowered: Vec<_> = self.were.iter().enumerate().map(lower).collect();
        let is_other = lowered != self.were;
        self.were = lowered;
        is_other
    }

    /// As it is stored.
    pub fn encode(&self, key: &LayoutKey) -> Vec<u8> {
        let version = if self.were.is_empty() { VERSION } else { VERSION_KNOWN };
        let mut bytes = vec![version, self.state as u8, self.servers.len() as u8, self.other.len() as u8];
        bytes.extend(self.block.to_le_bytes());
        bytes.extend(self.id);
        bytes.extend(self.stub);
        bytes.extend([self.made, self.size, self.blocks, self.epoch].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(self.servers.iter().chain(&self.other).flat_map(|server| server.to_le_bytes()));
        bytes.extend(self.were.iter().flat_map(|was| [was.length, was.changed]).flat_map(u64::to_le_bytes));
        bytes.extend(key.mac(NAME, &bytes));
        bytes
    }

    /// What was stored; `None`: it is none of this volume.
    pub fn decode(key: &LayoutKey, bytes: &[u8]) -> Option<Attribute> {
        let body = bytes.len().checked_sub(MAC_LENGTH)?;
        let (bytes, mac) = bytes.split_at(body);
        if !key.is_mac(NAME, bytes, mac) {
            return None;
        }
        let number = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let &[version, state, count, others] = bytes.first_chunk()?;
        let block = bytes.get(4..)?.first_chunk()?;
        let (fixed, epoch) = match (version, others) {
            (1, 0) => (FIXED_LENGTH_1, 0),
            (VERSION | VERSION_KNOWN, others) if others == 0 || others == count => {
                (FIXED_LENGTH, number(FIXED_LENGTH_1)?)
            }
            _ => return None,
        };
        let state = [State::Making, State::Moved, State::Spread].into_iter().find(|known| *known as u8 == state)?;
        let (numbers, rest) = bytes.get(fixed..)?.as_chunks::<8>();
        let (count, others) = (usize::from(count), usize::from(others));
        let known = if version == VERSION_KNOWN { count } else { 0 };
        let is_whole = numbers.len() == count + others + 2 * known && (1..=SERVERS_MAX).contains(&count);
        let block = u32::from_le_bytes(*block);
        if !is_whole || !rest.is_empty() || block == 0 {
            return None;
        }
        let mut servers: Vec<_> = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
        let were = servers.split_off(count + others);
        let were = were.as_chunks::<2>().0.iter().map(|[length, changed]| Was { length: *length, changed: *changed });
        let (other, were) = (servers.split_off(count), were.collect());
        Some(Attribute {
            state,
            block,
            id: *bytes.get(8..)?.first_chunk()?,
            stub: *bytes.get(24..)?.first_chunk()?,
            made: number(40)?,
            size: number(48)?,
            blocks: number(56)?,
            servers,
            epoch,
            other,
            were,
        })
    }

    /// The first block of the stub: [`BLOCK`] bytes.
    pub fn first_block(&self, key: &LayoutKey) -> Vec<u8> {
        let encoded = self.encode(key);
        let mut block = MAGIC.to_vec();
        block.extend((encoded.len() as u16).to_le_bytes());
        block.extend(encoded);
        block.extend(NOTE);
        block.resize(BLOCK as usize, 0);
        block
    }

    /// What the first block of a stub says; `None`: it is no stub's.
    pub fn of_first_block(key: &LayoutKey, block: &[u8]) -> Option<Attribute> {
        let (length, rest) = block.strip_prefix(&MAGIC)?.split_first_chunk::<2>()?;
        Attribute::decode(key, rest.get(..u16::from_le_bytes(*length).into())?)
    }
}

/// The name of an object below `objects/`: the number of a folder, and a name in it.
pub fn object_name(id: &[u8; 16], part: usize) -> (usize, String) {
    let text: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    (usize::from(id[0] >> 4), format!("{text}.{part}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;

    fn key() -> LayoutKey {
        LayoutKey::of_volume(&[7; 32])
    }

    fn any_attribute() -> impl Strategy<Value = Attribute> {
        let states = prop::sample::select(vec![State::Making, State::Moved, State::Spread]);
        let numbers = (1u32.., any::<[u8; 16]>(), any::<[u8; 16]>(), any::<[u64; 4]>());
        let places = prop::collection::vec(any::<(u64, u64, (u64, u64))>(), 1..=SERVERS_MAX);
        (states, numbers, places, any::<[bool; 2]>()).prop_map(
            |(state, (block, id, stub, [made, size, blocks, epoch]), places, [has_other, has_known])| {
                let servers = places.iter().map(|(server, _, _)| *server).collect();
                let other = places.iter().filter(|_| has_other).map(|(_, other, _)| *other).collect();
                let known = places.iter().filter(|_| has_known);
                let were = known.map(|(_, _, (length, changed))| Was { length: *length, changed: *changed }).collect();
                Attribute { state, id, block, servers, stub, made, size, blocks, epoch, other, were }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_stored_is_read_and_nothing_else(attribute in any_attribute(), at: usize, bit in 0u8..8) {
            let mut bytes = attribute.encode(&key());
            prop_assert_eq!(Attribute::decode(&key(), &bytes), Some(attribute.clone()));
            prop_assert_eq!(Attribute::decode(&LayoutKey::of_volume(&[8; 32]), &bytes), None);
            let block = attribute.first_block(&key());
            prop_assert_eq!(block.len() as u64, BLOCK);
            prop_assert_eq!(Attribute::of_first_block(&key(), &block), Some(attribute));
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(Attribute::decode(&key(), &bytes), None);
            prop_assert_eq!(Attribute::decode(&key(), &bytes[..at]), None);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            let _ = Attribute::decode(&key(), &bytes);
            let _ = Attribute::of_first_block(&key(), &bytes);
            let _ = Attribute::of_first_block(&key(), &[&MAGIC[..], &bytes].concat());
        }
    }

    #[test]
    fn what_older_releases_have_stored_is_read() {
        let mut bytes = vec![1, State::Spread as u8, 1, 0];
        bytes.extend(4096u32.to_le_bytes());
        bytes.extend([3; 32]);
        bytes.extend([1u64, UNKNOWN, 7, 99].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(key().mac(NAME, &bytes));
        let attribute = Attribute::decode(&key(), &bytes).unwrap();
        assert_eq!((&attribute.servers[..], attribute.blocks, attribute.epoch), (&[99][..], 7, 0));
        assert!(attribute.other.is_empty() && attribute.were.is_empty());
        let bytes = Attribute { epoch: 3, ..attribute }.encode(&key());
        assert_eq!((bytes[0], bytes.len()), (2, 96), "as long as nothing is known of objects");
    }

    #[test]
    fn what_objects_have_at_least_ends_with_their_file() {
        let mut attribute = any_attribute().new_tree(&mut TestRunner::deterministic()).unwrap().current();
        let was = |length| Was { length, changed: 5 };
        (attribute.block, attribute.servers, attribute.were) = (100, vec![1, 2], vec![was(200), was(150)]);
        assert_eq!([0, 1].map(|part| attribute.least(part, 1000)), [200, 150]);
        assert_eq!([0, 1].map(|part| attribute.least(part, 230)), [130, 100]);
        assert!(!attribute.lower(350));
        assert!(attribute.lower(230));
        assert_eq!(attribute.were, [was(130), was(100)]);
        assert_eq!(attribute.least(0, 1000), 130, "also when the file is longer again");
    }
}
