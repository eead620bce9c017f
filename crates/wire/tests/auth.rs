//! Who has the key, and whose frame it is.

use aqueduct_wire::*;
use proptest::collection::vec;
use proptest::prelude::*;

const BODY: &[u8] = b"what is asked for";

fn key(number: u8) -> Key {
    Key::new([number; KEY_LENGTH])
}

fn header(kind: Kind, body: &[u8]) -> Header {
    Header { body_length: body.len() as u32, request: 77, ..Header::new(kind) }
}

fn transcript(hello: &[u8], challenge: &[u8]) -> Transcript {
    Transcript::new((&header(Kind::Hello, hello), hello), (&header(Kind::Challenge, challenge), challenge))
}

/// The two ends of the client's frames.
fn ends(key: &Key, transcript: &Transcript) -> (Sealer, Opener) {
    (Sealer::new(Some(key.of_client(transcript).send), false), Opener::new(Some(key.of_server(transcript).receive)))
}

/// A frame as it is sent.
fn sealed(sealer: &mut Sealer, body: &[u8]) -> Vec<u8> {
    let mut frame = header(Kind::Request, body).encode().to_vec();
    frame.extend_from_slice(body);
    sealer.seal(&mut frame, &[]);
    frame
}

fn opened(opener: &mut Opener, frame: &[u8]) -> Result<(), FrameError> {
    let (bytes, body) = frame.split_first_chunk::<HEADER_SIZE>().unwrap();
    Header::decode(bytes).and_then(|header| opener.check(&header, body))
}

/// Gives a header that was changed its checksum, as whoever changes it on purpose does.
fn resealed(mut frame: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c::crc32c(&frame[..60]);
    frame[60..64].copy_from_slice(&checksum.to_le_bytes());
    frame
}

#[test]
fn a_proof_is_of_one_key_and_one_handshake() {
    let here = transcript(b"hello", b"challenge");
    let proof = key(1).proof(&here);
    assert!(key(1).has_made(&proof, &here));
    assert!(!key(2).has_made(&proof, &here));
    // A recorded proof is none for another challenge, nor for a greeting that was changed.
    assert!(!key(1).has_made(&proof, &transcript(b"hello", b"challengf")));
    assert!(!key(1).has_made(&proof, &transcript(b"hellp", b"challenge")));
    assert!(!key(1).has_made(&proof, &transcript(b"helloc", b"hallenge")));
    for bit in 0..PROOF_LENGTH * 8 {
        let mut changed = proof;
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(!key(1).has_made(&changed, &here), "bit {bit}");
    }
    let retried = Header { flags: Flags::RETRY, ..header(Kind::Hello, b"hello") };
    let challenge = header(Kind::Challenge, b"challenge");
    assert!(!key(1).has_made(&proof, &Transcript::new((&retried, b"hello"), (&challenge, b"challenge"))));
}

#[test]
fn frames_are_taken_in_their_order_only() {
    let (mut sealer, _) = ends(&key(1), &transcript(b"a", b"b"));
    let frames: Vec<Vec<u8>> = (0..4).map(|_| sealed(&mut sealer, BODY)).collect();
    let take = |order: &[usize]| -> Vec<bool> {
        let (_, mut opener) = ends(&key(1), &transcript(b"a", b"b"));
        order.iter().map(|at| opened(&mut opener, &frames[*at]).is_ok()).collect()
    };
    assert_eq!(take(&[0, 1, 2, 3]), [true; 4]);
    assert_eq!(take(&[0, 0]), [true, false], "a repeated frame");
    assert_eq!(take(&[0, 2]), [true, false], "a frame left out");
    assert_eq!(take(&[1, 0]), [false, false], "frames out of order");
}

#[test]
fn a_frame_is_of_one_connection_direction_and_key() {
    let here = transcript(b"a", b"b");
    let frame = sealed(&mut ends(&key(1), &here).0, BODY);
    let wrong = Err(FrameError::Tag);
    assert_eq!(opened(&mut ends(&key(1), &here).1, &frame), Ok(()));
    assert_eq!(opened(&mut ends(&key(1), &transcript(b"a", b"c")).1, &frame), wrong);
    assert_eq!(opened(&mut ends(&key(2), &here).1, &frame), wrong);
    // Sent back to the client from which it came.
    assert_eq!(opened(&mut Opener::new(Some(key(1).of_client(&here).receive)), &frame), wrong);
}

#[test]
fn frames_with_and_without_a_key_do_not_mix() {
    let (mut sealer, mut opener) = ends(&key(1), &transcript(b"a", b"b"));
    let plain = sealed(&mut Sealer::default(), BODY);
    assert_eq!(opened(&mut opener, &plain), Err(FrameError::NotKeyed));
    let keyed = sealed(&mut sealer, BODY);
    assert_eq!(opened(&mut Opener::default(), &keyed), Err(FrameError::Keyed));
    assert_eq!(opened(&mut Opener::default(), &plain), Ok(()));
}

/// Whoever adds a frame to those of a client that is about to be let in must not be let in with it.
#[test]
fn nothing_is_taken_between_the_proof_and_its_answer() {
    let mut opener = Opener::default();
    opener.check(&header(Kind::Hello, BODY), BODY).unwrap();
    opener.check(&header(Kind::Proof, BODY), BODY).unwrap();
    assert_eq!(opener.check(&header(Kind::Request, BODY), BODY), Err(FrameError::Early));
    let mut flagged = header(Kind::Request, BODY);
    flagged.flags = Flags::KEYED;
    assert_eq!(opener.check(&flagged, BODY), Err(FrameError::Early));
}

#[test]
fn a_key_is_not_shown() {
    let shown = format!("{:?} {:?}", key(0xab), key(0xab).of_client(&transcript(b"a", b"b")));
    assert_eq!(shown, "Key(..) FrameKeys { send: FrameKey(.., 0 frames), receive: FrameKey(.., 0 frames) }");
}

proptest! {
    /// Every bit of a frame counts, also where the checksum was computed anew.
    #[test]
    fn a_changed_frame_is_refused(body in vec(any::<u8>(), 0..200), bit: prop::sample::Index) {
        let (mut sealer, _) = ends(&key(1), &transcript(b"a", b"b"));
        let mut frame = sealed(&mut sealer, &body);
        prop_assert_eq!(opened(&mut ends(&key(1), &transcript(b"a", b"b")).1, &frame), Ok(()));
        let bit = bit.index(frame.len() * 8);
        frame[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(opened(&mut ends(&key(1), &transcript(b"a", b"b")).1, &frame).is_err());
        if !(480..512).contains(&bit) { // the checksum itself is put right again
            prop_assert!(opened(&mut ends(&key(1), &transcript(b"a", b"b")).1, &resealed(frame)).is_err());
        }
    }
}
