//! Checksums of what travels behind a header, and whether two sides add them.

use crate::capabilities::Capabilities;

/// The CRC32C of a frame's body and payload, and of `valid` where a trailer says how much of the payload counts.
pub fn content_checksum(body: &[u8], payload: &[u8], valid: Option<u32>) -> u32 {
    let checksum = crc32c::crc32c_append(crc32c::crc32c(body), payload);
    valid.map_or(checksum, |valid| crc32c::crc32c_append(checksum, &valid.to_le_bytes()))
}

/// What one side wants of checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksums {
    /// Between machines, and else if the other insists.
    #[default]
    Auto,
    /// Always: a side that does not is not talked to.
    On,
    /// Never.
    Off,
}

impl Checksums {
    /// What a client's greeting says.
    pub fn offered(self) -> Capabilities {
        match self {
            Checksums::Auto => Capabilities::CHECKSUM,
            Checksums::On => Capabilities::CHECKSUM | Capabilities::CHECKSUM_REQUIRED,
            Checksums::Off => Capabilities::empty(),
        }
    }

    /// What a server makes of it: whether both add them, or why they cannot agree. `is_near`: the client is on this machine.
    pub fn agree(self, client: Capabilities, is_near: bool) -> Result<bool, &'static str> {
        let (offered, required) =
            (client.contains(Capabilities::CHECKSUM), client.contains(Capabilities::CHECKSUM_REQUIRED));
        match self {
            Checksums::Off if required => Err(
                "it adds no checksums (checksum = off), and this client insists on them: set one of the two to auto",
            ),
            Checksums::On if !offered => {
                Err("it insists on checksums (checksum = on), and this client adds none: set one of the two to auto")
            }
            Checksums::Off => Ok(false),
            Checksums::On => Ok(true),
            Checksums::Auto => Ok(required || offered && !is_near),
        }
    }
}
