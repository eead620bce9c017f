//! Headers and trailers.

use aqueduct_wire::{Class, Flags, HEADER_SIZE, Header, Kind, TRAILER_SIZE, Trailer};

/// A header, and if there is more a trailer. The header is tried as it is, and with the checksum that it should have, which no fuzzer guesses.
pub fn run(data: &[u8]) {
    let Some((header, rest)) = data.split_first_chunk::<HEADER_SIZE>() else { return };
    check(header);
    let mut sealed = *header;
    seal(&mut sealed);
    check(&sealed);
    if let Some(bytes) = rest.first_chunk::<TRAILER_SIZE>()
        && let Ok(trailer) = Trailer::decode(bytes)
    {
        assert_eq!(&trailer.encode(), bytes);
    }
}

fn check(bytes: &[u8; HEADER_SIZE]) {
    if let Ok(header) = Header::decode(bytes) {
        assert_eq!(&header.encode(), bytes);
        assert!(header.body_length as usize <= aqueduct_wire::BODY_LENGTH_MAX);
        assert!(header.payload_length as usize <= aqueduct_wire::PAYLOAD_LENGTH_MAX);
    }
}

/// Gives a header its checksum.
pub(crate) fn seal(header: &mut [u8; HEADER_SIZE]) {
    let checksum = crc32c::crc32c(&header[..HEADER_SIZE - 4]);
    header[HEADER_SIZE - 4..].copy_from_slice(&checksum.to_le_bytes());
}

/// A header of every kind, with and without flags, each with a trailer behind it.
pub fn seeds() -> Vec<Vec<u8>> {
    let kinds = (1..=19).filter_map(Kind::from_code);
    let headers = kinds.flat_map(|kind| {
        let plain = Header::new(kind);
        let full = Header {
            class: Class::Releasing,
            flags: if kind.is_extensible() { Flags::all() } else { Flags::all() - Flags::EXTENDED },
            op: 17,
            status: 2,
            slot: 7,
            sequence: 9,
            request: 0x0102_0304_0506_0708,
            body_length: 100,
            payload_length: 4096,
            content_checksum: 5,
            epoch: 6,
            tag: [3; 8],
            ..plain
        };
        [plain, full]
    });
    let trailer = Trailer { valid: 4000, checksum: 5 }.encode();
    headers.map(|header| [&header.encode()[..], &trailer].concat()).collect()
}
