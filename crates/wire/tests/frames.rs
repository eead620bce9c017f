//! Headers and trailers.

use aqueduct_wire::*;
use proptest::prelude::*;

fn header() -> impl Strategy<Value = Header> {
    let codes = (1u8..=24, 0u8..=2, 0u16..128);
    let numbers = (any::<[u32; 5]>(), any::<u16>(), any::<u64>(), any::<[u8; 8]>());
    let lengths = (0..=BODY_LENGTH_MAX as u32, 0..=PAYLOAD_LENGTH_MAX as u32);
    (codes, numbers, lengths).prop_map(|((kind, class, flags), numbers, (body_length, payload_length))| {
        let ([status, slot, sequence, content_checksum, epoch], op, request, tag) = numbers;
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
            content_checksum: if flags.contains(Flags::CHECKSUM) { content_checksum } else { 0 },
            epoch,
            tag: if flags.contains(Flags::KEYED) { tag } else { [0; 8] },
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
    assert_eq!(with(4, &[2, 0]), Err(FrameError::Version { found: 2, expected: 1 }));
    assert_eq!(with(6, &[0]), unknown("kind", 0));
    assert_eq!(with(6, &[200]), unknown("kind", 200));
    assert_eq!(with(7, &[3]), unknown("class", 3));
    assert_eq!(with(8, &[0, 4]), unknown("flags", 0x400), "a PING has no extensions");
    assert_eq!(with(8, &[0, 0x10]), unknown("flags", 0x1000));
    assert_eq!(with(8, &[0, 0x80]), unknown("flags", 0x8000));
    assert_eq!(with(56, &[1, 0]), unknown("reserved field", 1));
    assert_eq!(with(59, &[1]), unknown("reserved field", 1 << 24));
    assert_eq!(with(40, &[1]), Err(FrameError::Stray("content checksum")));
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
    assert_eq!(message(with(4, &[9, 0])), "the frame is of version 9, those of this connection are of version 1");
    assert_eq!(message(with(6, &[99])), "the header's kind is 99, which this release does not know");
    assert_eq!(message(with(32, &[0, 0, 0, 1])), "the body is 16777216 bytes long, more than the 131072 allowed");
    assert_eq!(message(with(55, &[1])), "the header's tag is set without its flag");
}

/// A frame with its checksum, and what is found wrong with it after `damage`.
fn damaged(flags: Flags, damage: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>)) -> Result<(), FrameError> {
    let (mut body, mut payload) = (b"body".to_vec(), vec![7; 100]);
    let header = Header { flags, body_length: 4, payload_length: 100, ..Header::new(Kind::Request) };
    let mut frame = [&header.encode()[..], &body].concat();
    Sealer::new(None, true).seal(&mut frame, &payload);
    damage(&mut body, &mut payload);
    Header::decode(frame.first_chunk().unwrap())?.check_content(&body, &payload)
}

#[test]
fn a_damaged_body_or_payload_is_found() {
    assert_eq!(damaged(Flags::empty(), |_, _| {}), Ok(()));
    assert_eq!(damaged(Flags::empty(), |body, _| body[0] ^= 1), Err(FrameError::Content));
    assert_eq!(damaged(Flags::empty(), |_, payload| payload[99] ^= 0x80), Err(FrameError::Content));
    assert_eq!(damaged(Flags::TRAILER, |body, _| body[0] ^= 1), Ok(()), "its trailer tells");
    let payload = [7; 100];
    let header = Header { flags: Flags::TRAILER | Flags::CHECKSUM, payload_length: 100, ..Header::new(Kind::Reply) };
    let trailer = Sealer::new(None, true).trailer(60, &[], &payload);
    assert_eq!(trailer.check_content(&header, &[], &payload), Ok(()));
    assert_eq!(Trailer { valid: 59, ..trailer }.check_content(&header, &[], &payload), Err(FrameError::Content));
    assert_eq!(trailer.check_content(&header, b"x", &payload), Err(FrameError::Content));
    assert_eq!(trailer.check_content(&header, &[], &payload[1..]), Err(FrameError::Content));
    let unchecked = Header { flags: Flags::TRAILER, ..header };
    assert_eq!(Trailer { valid: 59, ..trailer }.check_content(&unchecked, &[], &payload), Ok(()));
}

#[test]
fn what_is_not_asked_for_changes_no_frame() {
    let frame = [&Header { body_length: 4, ..Header::new(Kind::Ping) }.encode()[..], b"body"].concat();
    let mut sealed = frame.clone();
    Sealer::default().seal(&mut sealed, &[]);
    assert_eq!(sealed, frame);
    assert_eq!(Sealer::default().trailer(5, &[], &[1; 9]), Trailer { valid: 5, checksum: 0 });
}

/// What a server and a client of each mind agree on: near each other and far.
#[test]
fn checksums_are_agreed_on() {
    use Checksums::*;
    let agree = |server: Checksums, client: Checksums| {
        [true, false].map(|is_near| server.agree(client.offered(), is_near).map_err(drop))
    };
    assert_eq!(agree(Auto, Auto), [Ok(false), Ok(true)]);
    for both in [(On, Auto), (Auto, On), (On, On)] {
        assert_eq!(agree(both.0, both.1), [Ok(true), Ok(true)], "{both:?}");
    }
    for none in [(Off, Auto), (Auto, Off), (Off, Off)] {
        assert_eq!(agree(none.0, none.1), [Ok(false), Ok(false)], "{none:?}");
    }
    assert_eq!(agree(On, Off), [Err(()), Err(())]);
    assert_eq!(agree(Off, On), [Err(()), Err(())]);
}

/// Whatever version two sides agree on, its frames are theirs only.
#[test]
fn a_connections_frames_have_its_version() {
    let mut frame = Header::new(Kind::Ping).encode();
    let mut sealer = Sealer::default();
    sealer.set_version(7);
    sealer.seal(&mut frame, &[]);
    assert_eq!(frame[4..6], [7, 0]);
    assert_eq!(Header::decode(&frame), Err(FrameError::Version { found: 7, expected: 1 }));
    assert_eq!(Opener::default().header(&frame), Err(FrameError::Version { found: 7, expected: 1 }));
    let mut opener = Opener::default();
    opener.set_version(7);
    assert_eq!(opener.header(&frame), Ok(Header::new(Kind::Ping)));
    assert!(opener.header(&Header::new(Kind::Ping).encode()).is_err());
}

#[test]
fn the_newest_common_version_is_agreed_on() {
    assert_eq!(agree_on_version(1, 1), Some(1));
    assert_eq!(agree_on_version(0, VERSION + 5), Some(VERSION));
    assert_eq!((agree_on_version(VERSION + 1, VERSION + 2), agree_on_version(0, 0)), (None, None));
    assert_eq!(agree_on_version(3, 1), None);
}
