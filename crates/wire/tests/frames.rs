//! Headers and trailers.

use aqueduct_wire::*;
use proptest::prelude::*;

fn header() -> impl Strategy<Value = Header> {
    let codes = (1u8..=15, 0u8..=2, 0u16..16);
    let numbers = (any::<[u32; 5]>(), any::<[u16; 2]>(), any::<u64>(), any::<[u8; 8]>());
    let lengths = (0..=BODY_LENGTH_MAX as u32, 0..=PAYLOAD_LENGTH_MAX as u32);
    (codes, numbers, lengths).prop_map(|((kind, class, flags), numbers, (body_length, payload_length))| {
        let ([status, slot, sequence, payload_checksum, epoch], [op, credits], request, tag) = numbers;
        let flags = Flags::from_bits(flags).unwrap();
        Header {
            kind: Kind::from_code(kind).unwrap(),
            class: Class::from_code(class).unwrap(),
            flags,
            op,
            status,
            slot,
            sequence,
            request,
            body_length,
            payload_length,
            payload_checksum: if flags.contains(Flags::PAYLOAD_CHECKSUM) { payload_checksum } else { 0 },
            epoch,
            tag: if flags.contains(Flags::KEYED) { tag } else { [0; 8] },
            credits,
        }
    })
}

proptest! {
    #[test]
    fn headers_round_trip(header in header()) {
        prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
    }

    /// CRC32C finds any damage of up to 32 bits in a row, and every single bit.
    #[test]
    fn a_damaged_header_is_refused(header in header(), at in 0..HEADER_SIZE - 3, by in 1u32..) {
        let mut bytes = header.encode();
        for (byte, by) in bytes[at..].iter_mut().zip(by.to_le_bytes()) {
            *byte ^= by;
        }
        prop_assert!(Header::decode(&bytes).is_err());
    }

    /// Also noise with a good checksum is refused, or means what its encoding says.
    #[test]
    fn noise_is_refused_or_a_header(noise in any::<[u8; 32]>(), small in any::<[u8; 32]>(), low: bool) {
        let mut bytes = [0; HEADER_SIZE];
        bytes[..32].copy_from_slice(&noise);
        bytes[32..].copy_from_slice(&small);
        if low {
            bytes.iter_mut().for_each(|byte| *byte &= 3);
        }
        prop_assert!(Header::decode(&bytes).is_err());
        sign(&mut bytes);
        if let Ok(header) = Header::decode(&bytes) {
            prop_assert_eq!(header.encode(), bytes);
        }
    }

    #[test]
    fn trailers_round_trip(valid: u32, checksum: u32, noise in any::<[u8; TRAILER_SIZE]>()) {
        let trailer = Trailer { valid, checksum };
        prop_assert_eq!(Trailer::decode(&trailer.encode()), Ok(trailer));
        prop_assert_eq!(Trailer::decode(&noise), Err(FrameError::Trailer));
    }
}

/// Gives 64 bytes the magic, the version and a good checksum.
fn sign(bytes: &mut [u8; HEADER_SIZE]) {
    bytes[..4].copy_from_slice(b"AQDT");
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_le_bytes());
}

/// What decoding says to an empty PING with these bytes at `at` and a good checksum.
fn with(at: usize, value: &[u8]) -> Result<Header, FrameError> {
    let mut bytes = Header::new(Kind::Ping).encode();
    bytes[at..at + value.len()].copy_from_slice(value);
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&checksum.to_le_bytes());
    Header::decode(&bytes)
}

#[test]
fn each_field_is_checked() {
    let unknown = |field, value| Err(FrameError::Unknown { field, value });
    assert_eq!(with(0, b"HTTP"), Err(FrameError::Magic(u32::from_le_bytes(*b"HTTP"))));
    assert_eq!(with(4, &[2, 0]), Err(FrameError::Version(2)));
    assert_eq!(with(6, &[0]), unknown("kind", 0));
    assert_eq!(with(6, &[16]), unknown("kind", 16));
    assert_eq!(with(7, &[3]), unknown("class", 3));
    assert_eq!(with(8, &[16, 0]), unknown("flags", 16));
    assert_eq!(with(8, &[0, 0x80]), unknown("flags", 0x8000));
    assert_eq!(with(58, &[1, 0]), unknown("reserved field", 1));
    assert_eq!(with(40, &[1]), Err(FrameError::Stray("payload checksum")));
    assert!(with(8, &[1]).is_ok());
    assert_eq!(with(55, &[1]), Err(FrameError::Stray("tag")));
    let length = |part, length: usize, limit| Err(FrameError::Length { part, length: length as u32, limit });
    let bytes = |length: usize| (length as u32).to_le_bytes();
    assert!(with(32, &bytes(BODY_LENGTH_MAX)).is_ok());
    assert_eq!(with(32, &bytes(BODY_LENGTH_MAX + 1)), length("body", BODY_LENGTH_MAX + 1, BODY_LENGTH_MAX));
    assert!(with(36, &bytes(PAYLOAD_LENGTH_MAX)).is_ok());
    let beyond = PAYLOAD_LENGTH_MAX + 1;
    assert_eq!(with(36, &bytes(beyond)), length("payload", beyond, PAYLOAD_LENGTH_MAX));
    assert_eq!(with(36, &[0xff; 4]), length("payload", u32::MAX as usize, PAYLOAD_LENGTH_MAX));
    let mut damaged = Header::new(Kind::Ping).encode();
    damaged[63] ^= 1;
    assert_eq!(Header::decode(&damaged), Err(FrameError::Checksum));
}

#[test]
fn an_error_says_what_was_wrong() {
    let message = |error: Result<Header, FrameError>| error.unwrap_err().to_string();
    assert_eq!(message(with(4, &[9, 0])), "the frame is of version 9, this is version 1");
    assert_eq!(message(with(6, &[99])), "the header's kind is 99, which version 1 does not have");
    assert_eq!(message(with(32, &[0, 0, 0, 1])), "the body is 16777216 bytes long, more than the 131072 allowed");
    assert_eq!(message(with(55, &[1])), "the header's tag is set without its flag");
}
