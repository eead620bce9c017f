//! The bodies of replies, and of what surrounds requests.

mod common;

use aqueduct_fs::*;
use aqueduct_wire::*;
use common::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn encoded(reply: &Reply) -> Vec<u8> {
    body(|out| encode_reply(reply, out))
}

/// Whether the reply to `op` has a part that takes the rest of the body.
fn is_open_ended(op: Op) -> bool {
    matches!(op, Op::ReadLink | Op::GetXattr | Op::ListXattr | Op::ReadDirectory)
}

fn hello() -> impl Strategy<Value = Hello> {
    (any::<[u16; 2]>(), any::<[[u8; 16]; 2]>(), any::<u64>(), 0u64..8, any::<bool>(), "\\PC{0,60}").prop_map(
        |([version_min, version_max], [server, client_instance], session, capabilities, bulk, client_name)| Hello {
            version_min,
            version_max,
            capabilities: Capabilities::from_bits_truncate(capabilities),
            server: bulk.then_some(ServerId(server)),
            session,
            link: session as u32,
            lane: if bulk { Lane::Bulk } else { Lane::Control },
            client_instance,
            client_name,
            nonce: [session as u8; NONCE_LENGTH],
            keyed: bulk,
            node: NodeName::new("node").filter(|_| bulk),
        },
    )
}

fn hello_reply() -> impl Strategy<Value = HelloReply> {
    (any::<[u64; 2]>(), any::<[u8; 16]>(), 0..=SLOTS_MAX, any::<[u32; 2]>(), any::<u16>(), "\\PC{0,60}").prop_map(
        |([session, verifier], secret, slots, [payload_max, lease_seconds], version, server_name)| {
            let capabilities = Capabilities::COMPOUND | Capabilities::PENDING;
            HelloReply {
                version,
                capabilities,
                session,
                secret,
                verifier,
                slots,
                payload_max,
                lease_seconds,
                server_name,
                recovering: session % 2 == 0,
                server: ServerIdentity { id: ServerId(secret), incarnation: verifier },
                volume: secret,
                epoch: session,
                addresses: vec!["host:1".into(); usize::from(version % 3)],
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_reply_round_trips(replies in replies()) {
        for (op, reply) in replies {
            let out = encoded(&reply);
            prop_assert!(out.len() <= BODY_LENGTH_MAX);
            prop_assert_eq!(decode_reply(op, &out), Ok(reply), "{:?}", op);
        }
    }

    #[test]
    fn a_cut_or_prolonged_reply_is_refused(replies in replies(), extra: u8) {
        for (op, reply) in replies {
            let mut out = encoded(&reply);
            for end in (0..out.len()).filter(|_| !is_open_ended(op)) {
                prop_assert!(decode_reply(op, &out[..end]).is_err(), "{:?} cut at {}", op, end);
            }
            out.push(extra);
            if !matches!(reply, Reply::Bytes(_)) {
                prop_assert!(decode_reply(op, &out).is_err(), "{:?}", op);
            }
        }
    }

    #[test]
    fn a_damaged_reply_is_refused_or_well_formed(replies in replies(), at: usize, by in 1u8..) {
        for (op, reply) in replies {
            let out = damage(&encoded(&reply), at, by);
            for op in Op::ALL {
                if let Ok(reply) = decode_reply(*op, &out) {
                    prop_assert_eq!(decode_reply(*op, &encoded(&reply)), Ok(reply));
                }
            }
            let _ = op;
        }
    }

    #[test]
    fn noise_never_panics(noise in vec(any::<u8>(), 0..300), small in vec(0u8..3, 0..300)) {
        for noise in [&noise, &small] {
            for op in Op::ALL {
                let _ = decode_reply(*op, noise);
            }
            let _ = decode_compound_reply(Op::ALL, noise);
            let _ = (Hello::decode(noise), HelloReply::decode(noise), Attach::decode(noise), AttachReply::decode(noise));
            let _ = (decode_cancel(noise), decode_release_locks(noise), CancelReply::decode(noise), take_grants(noise).is_ok(), decode_leases(noise), decode_fetched(noise).is_ok(), decode_listed(noise).is_ok());
        }
    }

    #[test]
    fn greetings_round_trip_and_bear_what_a_newer_version_adds(hello in hello(), reply in hello_reply(), more in vec(any::<u8>(), 0..9)) {
        let mut out = body(|out| hello.encode(out));
        prop_assert!((0..out.len()).all(|end| Hello::decode(&out[..end]).is_err()));
        out.extend_from_slice(&more);
        prop_assert_eq!(Hello::decode(&out), Ok(hello));
        let mut out = body(|out| reply.encode(out));
        prop_assert!((0..out.len()).all(|end| HelloReply::decode(&out[..end]).is_err()));
        out.extend_from_slice(&more);
        prop_assert_eq!(HelloReply::decode(&out), Ok(reply));
    }

    #[test]
    fn attaching_and_cancelling_round_trip(export in "\\PC{0,60}", read_only: bool, root in entry(), export_id: u32, age_max: u32, one_user: bool, request: u64) {
        let attach = Attach { export: &export, read_only };
        let mut out = body(|out| attach.encode(out));
        prop_assert_eq!(Attach::decode(&out), Ok(attach));
        out.push(0);
        prop_assert_eq!(Attach::decode(&out), Err(BodyError::Trailing(1)));
        let reply = AttachReply { root, export_id, read_only, age_max, one_user };
        let mut out = body(|out| reply.encode(out));
        prop_assert_eq!(AttachReply::decode(&out), Ok(reply));
        out.push(0);
        prop_assert_eq!(AttachReply::decode(&out), Err(BodyError::Trailing(1)));
        let mut out = body(|out| encode_cancel(request, out));
        prop_assert_eq!(decode_cancel(&out), Ok(request));
        out.push(0);
        prop_assert_eq!(decode_cancel(&out), Err(BodyError::Trailing(1)));
        prop_assert_eq!(decode_slow(&body(|out| encode_slow(request, out))), Ok(request));
        let mut out = body(|out| encode_release_locks(request, out));
        prop_assert_eq!(decode_release_locks(&out), Ok(request));
        out.push(0);
        prop_assert_eq!(decode_release_locks(&out), Err(BodyError::Trailing(1)));
    }

    #[test]
    fn grants_and_leases_round_trip(grants in vec((0..5u8, 0..200u16, 1..8u8, any::<u64>()), 0..40), attr in attr(), rest in vec(any::<u8>(), 0..20)) {
        let subject = |kind, at| match kind { 0 => Subject::Inode, 1 => Subject::Parent, 2 => Subject::Changed, 3 => Subject::Bare, _ => Subject::Entry(at) };
        let grants: Vec<_> = grants.into_iter().map(|(kind, at, aspects, lease)| Grant {
            subject: subject(kind, at),
            aspects: Aspects::from_bits_truncate(aspects),
            lease: LeaseId(lease),
        }).collect();
        let changed = grants.iter().any(|grant: &Grant| grant.subject == Subject::Changed).then_some(attr);
        let granted = Granted { grants: grants.clone(), changed };
        let mut out = body(|out| encode_grants(&granted, out));
        prop_assert!((0..out.len()).all(|end| take_grants(&out[..end]).is_err()));
        out.extend_from_slice(&rest);
        prop_assert_eq!(take_grants(&out), Ok((granted, &rest[..])));
        let leases: Vec<_> = grants.iter().map(|grant| grant.lease).collect();
        let mut out = body(|out| encode_leases(&leases, out));
        prop_assert_eq!(decode_leases(&out), Ok(leases));
        out.push(0);
        prop_assert_eq!(decode_leases(&out), Err(BodyError::Trailing(1)));
    }

    #[test]
    fn fetched_files_round_trip(files in vec(prop_oneof![(attr(), vec(any::<u8>(), 0..300)).prop_map(Ok), (1i32..=4095).prop_map(|error| Err(Errno::from_raw(error)))], 0..=FETCH_MAX)) {
        let told: Vec<Fetched<'_>> = files.iter().map(|file| file.as_ref().map(|(attr, data)| (*attr, &data[..])).map_err(|error| *error)).collect();
        let mut out = body(|out| encode_fetched(told.iter().copied(), out));
        prop_assert_eq!(decode_fetched(&out), Ok(told));
        prop_assert!(decode_fetched(&out[..out.len() - 1]).is_err());
        out.push(0);
        prop_assert_eq!(decode_fetched(&out), Err(BodyError::Trailing(1)));
    }

    #[test]
    fn listings_round_trip(listings in vec(prop_oneof![reply(Op::ReadDirectory).prop_map(|reply| reply.directory()), (1i32..=4095).prop_map(|error| Err(Errno::from_raw(error)))], 0..=LIST_MAX)) {
        let mut out = body(|out| encode_listed(&listings, out));
        prop_assert_eq!(decode_listed(&out), Ok(listings));
        prop_assert!((0..out.len()).all(|end| decode_listed(&out[..end]).is_err()));
        out.push(0);
        prop_assert_eq!(decode_listed(&out), Err(BodyError::Trailing(1)));
    }

    #[test]
    fn compound_replies_round_trip(replies in replies(), count in 1..=COMPOUND_MAX, error in proptest::option::of(1i32..=4095)) {
        let ops: Vec<Op> = replies.iter().map(|(op, _)| *op).take(count).collect();
        let mut results: Vec<_> = replies.into_iter().map(|(_, reply)| Ok(reply)).take(count).collect();
        if let Some(error) = error {
            results[count - 1] = Err(Errno::from_raw(error));
        }
        let mut out = body(|out| encode_compound_reply(&results, out));
        prop_assert_eq!(decode_compound_reply(&ops, &out), Ok(results));
        prop_assert!((0..out.len()).all(|end| decode_compound_reply(&ops, &out[..end]).is_err()));
        out.push(0);
        prop_assert_eq!(decode_compound_reply(&ops, &out), Err(BodyError::Trailing(1)));
    }
}

#[test]
fn a_compound_ends_at_its_first_error_and_nowhere_else() {
    let decode = |ops: &[Op], results: &[Result<Reply, Errno>]| {
        decode_compound_reply(ops, &body(|out| encode_compound_reply(results, out)))
    };
    let ops = [Op::Unlink, Op::Release, Op::Flush];
    let (done, failed) = (Ok(Reply::Done), Err(Errno::ENOENT));
    assert!(decode(&ops, &[done.clone(), failed.clone()]).is_ok());
    let refused = Err(BodyError::Value("the number of results"));
    assert_eq!(decode(&ops, &[]), refused);
    assert_eq!(decode(&ops, &[done.clone(), done.clone()]), refused);
    assert_eq!(decode(&ops, &[failed.clone(), done.clone(), done.clone()]), refused);
    assert_eq!(decode(&ops, &[done.clone(), failed.clone(), failed]), refused);
    assert_eq!(decode(&ops, &[done.clone(), done.clone(), done.clone(), done]), refused);
}

#[test]
fn replies_beyond_their_limits_are_refused() {
    let refused = |op, reply: Reply| decode_reply(op, &encoded(&reply)).is_err();
    assert!(!refused(Op::GetXattr, Reply::Bytes(vec![1; XATTR_SIZE_MAX])));
    assert!(refused(Op::GetXattr, Reply::Bytes(vec![1; XATTR_SIZE_MAX + 1])));
    assert!(!refused(Op::ReadLink, Reply::Bytes(vec![1; SYMLINK_LENGTH_MAX])));
    assert!(refused(Op::ReadLink, Reply::Bytes(vec![1; SYMLINK_LENGTH_MAX + 1])));
    assert!(refused(Op::ReadLink, Reply::Bytes(Vec::new())));
    assert!(refused(Op::ReadLink, Reply::Bytes(vec![0])));
    assert!(refused(Op::ReadLink, Reply::Size(1)));
    assert!(refused(Op::Seek, Reply::Bytes(vec![1; 9])));
    assert!(refused(
        Op::Write,
        Reply::Written(Written { count: TRANSFER_SIZE_MAX as u32 + 1, verifier: 0, offset: 0 })
    ));
    let token = |length| Reply::Opened(Opened { id: OpenId(1), token: vec![0; length].into(), width: 3 });
    assert!(!refused(Op::Open, token(TOKEN_LENGTH_MAX)));
    assert!(refused(Op::Open, token(TOKEN_LENGTH_MAX + 1)));
    assert_eq!(CancelReply::decode(&[2]), Err(BodyError::Value("the outcome")));
    for op in [Op::Attach, Op::Status, Op::Compound, Op::Recovered, Op::Fetch, Op::List, Op::Locks, Op::ReleaseLocks] {
        assert_eq!(decode_reply(op, &[]), Err(BodyError::Value("the operation")));
    }
}

#[test]
fn names_of_peers_are_cut_and_slots_are_bounded() {
    let mut reply = HelloReply {
        version: VERSION,
        capabilities: Capabilities::empty(),
        session: 1,
        secret: [0; 16],
        verifier: 0,
        slots: SLOTS_MAX,
        payload_max: 1,
        lease_seconds: 0,
        server_name: "é".repeat(200),
        recovering: false,
        ..HelloReply::default()
    };
    let out = body(|out| reply.encode(out));
    assert_eq!(HelloReply::decode(&out).unwrap().server_name, "é".repeat(PEER_NAME_LENGTH_MAX / 2));
    reply.slots += 1;
    assert_eq!(HelloReply::decode(&body(|out| reply.encode(out))), Err(BodyError::Value("the number of slots")));
    reply.slots = 1;
    for name in ["line\nbreak", "\u{1b}[2J", "\0"] {
        reply.server_name = name.into();
        let refused = HelloReply::decode(&body(|out| reply.encode(out)));
        assert_eq!(refused, Err(BodyError::Value("the server's name")));
    }
    let mut out = body(|out| Attach { export: "/e", read_only: false }.encode(out));
    out[2] = 0xff;
    assert_eq!(Attach::decode(&out), Err(BodyError::Value("the export's name")));
    let long = "e".repeat(EXPORT_NAME_LENGTH_MAX + 1);
    let attach = |export| Attach::decode(&body(|out| Attach { export, read_only: true }.encode(out))).is_ok();
    assert!(attach(&long[1..]) && !attach(&long));
}
