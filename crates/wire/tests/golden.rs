//! Bytes as they were when version 1 was settled. A failure here is a change of the protocol, not a test to mend.

mod common;

use aqueduct_fs::*;
use aqueduct_wire::*;
use common::body;

/// Bytes written in hexadecimal, with spaces between fields.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn context() -> Context {
    let groups = Groups::Known([4, 1000].into());
    let mut context = Context::new(ClientId(0), Credential { uid: 1000, gid: 100, groups });
    context.pid = 7;
    context
}

/// uid 1000, gid 100, pid 7, groups 4 and 1000.
const CALLER: &str = "e8030000 64000000 07000000 0200 04000000 e8030000";

fn request_is(request: Request<'_>, code: u16, fields: &str) {
    let expected = [hex(CALLER), hex(fields)].concat();
    let mut out = Vec::new();
    let op = encode_request(&context(), &request, &mut out);
    assert_eq!((op as u16, &out), (code, &expected), "{}", op.name());
    assert_eq!(decode_request(op, &expected).unwrap().1, request);
}

fn reply_is(op: Op, reply: Reply, fields: &str) {
    let expected = hex(fields);
    assert_eq!(body(|out| encode_reply(&reply, out)), expected, "{}", op.name());
    assert_eq!(decode_reply(op, &expected), Ok(reply));
}

#[test]
fn the_header_and_the_trailer() {
    let header = Header {
        kind: Kind::Request,
        class: Class::Releasing,
        flags: Flags::CHECKSUM | Flags::RETRY | Flags::KEYED,
        op: Op::Write as u16,
        status: 0x0403_0201,
        slot: 0x1413_1211,
        sequence: 0x2423_2221,
        request: 0x3837_3635_3433_3231,
        body_length: 0x28,
        payload_length: 0x10_0000,
        content_checksum: 0x4443_4241,
        epoch: 0x5453_5251,
        tag: *b"tag-tag-",
    };
    let expected = "41514454 0100 03 01 0d00 0500 01020304 11121314 21222324 3132333435363738 28000000 00001000 \
                    41424344 51525354 7461672d7461672d 00000000";
    let bytes = header.encode();
    assert_eq!(bytes[..60], hex(expected));
    assert_eq!(bytes[60..], hex("5bd274ea"));
    assert_eq!(Header::decode(&bytes), Ok(header));
    assert_eq!(Header::new(Kind::Ping).encode()[60..], hex("528700dd"));
    let trailer = Trailer { valid: 0x0403_0201, checksum: 0x1413_1211 }.encode();
    assert_eq!(trailer[..], hex("41515452 01020304 11121314 00000000"));
}

#[test]
fn greetings() {
    let hello = Hello {
        version_min: 1,
        version_max: 2,
        capabilities: Capabilities::COMPOUND | Capabilities::PENDING,
        server: None,
        session: 0x0807_0605_0403_0201,
        link: 0x0d0c_0b0a,
        lane: Lane::Bulk,
        client_instance: *b"instance-16-byte",
        client_name: "né".into(),
        nonce: *b"client-nonce-of-thirty-two-bytes",
        keyed: false,
        node: None,
    };
    let before = "0100 0200 0600000000000000";
    let rest = "0102030405060708 0a0b0c0d 01 696e7374616e63652d31362d62797465 0300 6ec3a9 \
                636c69656e742d6e6f6e63652d6f662d7468697274792d74776f2d6279746573";
    assert_eq!(body(|out| hello.encode(out)), hex(&format!("{before} 00 {rest} 00 0000")));
    let server = Some(ServerId(*b"server-16-bytes-"));
    let of_node = Hello { server, keyed: true, node: NodeName::new("n7"), ..hello };
    let named = format!("{before} 01 7365727665722d31362d62797465732d {rest} 01 0200 6e37");
    assert_eq!(body(|out| of_node.encode(out)), hex(&named));
    assert_eq!(body(|out| Challenge { nonce: [0xab; 32] }.encode(out)), [0xab; 32]);
    let both = Proof { key: Some([0xcd; 32]), session: Some([0xef; 32]) };
    assert_eq!(body(|out| both.encode(out)), [&[1][..], &[0xcd; 32], &[1], &[0xef; 32]].concat());
    let of_session = Proof { key: None, session: Some([0xef; 32]) };
    assert_eq!(body(|out| of_session.encode(out)), [&[0, 1][..], &[0xef; 32]].concat());
    let reply = HelloReply {
        version: 1,
        capabilities: Capabilities::CHECKSUM,
        session: 5,
        secret: [0xaa; 16],
        verifier: 6,
        slots: 256,
        payload_max: 1 << 20,
        lease_seconds: 7,
        server_name: "s".into(),
        recovering: true,
        server: ServerIdentity { id: ServerId([0xbb; 16]), incarnation: 9 },
        volume: [0xcc; 16],
        epoch: 3,
        addresses: vec!["[::1]:1".into(), "h".into()],
    };
    let expected = "0100 0100000000000000 0500000000000000 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 0600000000000000 00010000 \
                    00001000 07000000 0100 73 01 \
                    bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb 0900000000000000 cccccccccccccccccccccccccccccccc 0300000000000000 \
                    0200 0700 5b3a3a315d3a31 0100 68";
    assert_eq!(body(|out| reply.encode(out)), hex(expected));
    let attached = AttachReply { root: entry(), export_id: 2, read_only: true, age_max: 3000, one_user: true };
    assert_eq!(body(|out| attached.encode(out)), hex(&format!("0200 6868 {ATTR} 02000000 01 b80b0000 01")));
    assert_eq!(body(|out| Attach { export: "/e", read_only: true }.encode(out)), hex("0200 2f65 01"));
    assert_eq!(body(|out| encode_cancel(0x0102, out)), hex("0201000000000000"));
    let grants = [
        Grant { subject: Subject::Inode, aspects: Aspects::ATTRIBUTES | Aspects::DATA, lease: LeaseId(0x0304) },
        Grant { subject: Subject::Parent, aspects: Aspects::NAMES, lease: LeaseId(5) },
        Grant { subject: Subject::Changed, aspects: Aspects::ATTRIBUTES, lease: LeaseId(8) },
        Grant { subject: Subject::Entry(6), aspects: Aspects::ATTRIBUTES, lease: LeaseId(7) },
        Grant { subject: Subject::Bare, aspects: Aspects::ATTRIBUTES, lease: LeaseId(9) },
    ];
    let attr = "00".repeat(aqueduct_fs::dirpage::ATTR_SIZE);
    let expected = format!(
        "0500 ffff 03 0403000000000000 feff 04 0500000000000000 fdff 01 0800000000000000 {attr} 0600 01 0700000000000000 \
         fcff 01 0900000000000000"
    );
    let granted = Granted { grants: grants.to_vec(), changed: Some(Attr::default()) };
    assert_eq!(body(|out| encode_grants(&granted, out)), hex(&expected));
    let leases = [LeaseId(0x0102), LeaseId(3)];
    assert_eq!(body(|out| encode_leases(&leases, out)), hex("0200 0201000000000000 0300000000000000"));
    assert_eq!(body(|out| CancelReply { outcome: CancelOutcome::Never }.encode(out)), hex("01"));
}

/// What may stand before a body, and what says who serves what.
#[test]
fn extensions_maps_links_and_notices() {
    let extensions = Extensions {
        job: Some("j1".into()),
        trace: Some(*b"trace-16-bytes--"),
        asks_queue_time: true,
        queue_time: Some(0x0403_0201),
        times: Some(Times { lease_us: 0x0807_0605, served_us: 9 }),
        right: Some((*b"rt").into()),
        ordinal: Some(Ordinal { number: 9, settled: 8 }),
        staged: Some(Staged { id: *b"staged-16-bytes-", length: 5 }),
    };
    let expected = "6400 0100 0200 6a31 0200 1000 74726163652d31362d62797465732d2d 0300 0000 0400 0400 01020304 0500 0800 05060708 09000000 0180 0200 7274 \
                    0280 1000 09000000000000000800000000000000 0380 1400 7374616765642d31362d62797465732d05000000";
    assert_eq!(body(|out| extensions.encode(out)), hex(expected));
    assert_eq!(body(|out| Extensions::default().encode(out)), hex("0000"));
    let map = Map {
        volume: *b"volume-16-bytes-",
        epoch: 5,
        mode: VolumeMode::Stripe,
        stripe_size: 1 << 20,
        width: 4,
        is_atomic: true,
        names: vec!["n:1".into()],
        data: vec![DataServer { place: 5, share_epoch: 6, share: 7, addresses: vec!["d:2".into(), "e:3".into()] }],
    };
    let bytes = "766f6c756d652d31362d62797465732d 0500000000000000 02 00001000 0400 01 01 0300 6e3a31 0100 0500 06000000 07000000 02 \
                 0300 643a32 0300 653a33";
    assert_eq!(body(|out| map.encode(out)), hex(bytes));
    assert_eq!(Map::decode(&hex(bytes)), Ok(map.clone()));
    assert_eq!(STATUS_MOVED, 65_536);
    let notice = Notice::Map(map);
    assert_eq!(body(|out| notice.encode(out)), hex(&format!("01 {bytes}")));
    assert_eq!(Notice::decode(&hex(&format!("01 {bytes}"))), Ok(notice));
    assert_eq!(body(|out| Notice::Stopping(9).encode(out)), hex("02 09000000"));
    assert_eq!(Notice::decode(&hex("02 09000000")), Ok(Notice::Stopping(9)));
    assert_eq!(Notice::decode(&hex("07 0102")), Ok(Notice::Unknown));
    let give_up = GiveUp { link: 3, floor: 4, surviving: vec![1, 2] };
    assert_eq!(body(|out| give_up.encode(out)), hex("03000000 04000000 0200 01000000 02000000"));
    assert_eq!(GiveUp::decode(&hex("03000000 04000000 0200 01000000 02000000")), Ok(give_up));
    assert_eq!(body(|out| encode_retire(3, out)), hex("03000000"));
    let number = |count| WriteNumber { share_epoch: 1, start: 2, count };
    let write =
        CommittedWrite { is_releasing: true, slot: 4, sequence: 5, status: 28, count: 6, offset: 7, number: number(8) };
    let committed = Committed { handle: b"hh".to_vec(), up_to: number(9), status: 5, writes: vec![write] };
    let expected = "0200 6868 01000000 0200000000000000 0900000000000000 05000000 0100 \
                    01 04000000 05000000 1c000000 06000000 0700000000000000 01000000 0200000000000000 0800000000000000";
    assert_eq!(body(|out| committed.encode(out)), hex(expected));
    assert_eq!(Committed::decode(&hex(expected)), Ok(committed));
}

/// Whatever a hostile peer says of maps and links is bounded.
#[test]
fn maps_links_and_notices_that_make_no_sense_are_refused() {
    let zeros = "00".repeat(16);
    for wrong in [
        format!("{zeros} 0000000000000000 06 00000000 0000 00 00 0000"), // no mode
        format!("{zeros} 0000000000000000 00 00000000 0000 02 00 0000"), // neither atomic nor not
        format!("{zeros} 0000000000000000 00 00000000 0000 00 11 0000"), // 17 addresses
        format!("{zeros} 0000000000000000 00 00000000 0000 00 01 0000 0000"), // an empty one
        format!("{zeros} 0000000000000000 00 00000000 0000 00 00 0100 00ff 00000000 00000000 00"), // no place: 65,280
        // A control character.
        format!("{zeros} 0000000000000000 00 00000000 0000 00 01 0100 0a 0000"),
        format!("{zeros} 0000000000000000 00 00000000 0000 00 00 0101"), // 257 servers
        format!("{zeros} 0000000000000000 00 00000000 0000 00 00 0000 00"), // more
        zeros.clone(),
    ] {
        assert!(Map::decode(&hex(&wrong)).is_err(), "{wrong}");
        assert!(Notice::decode(&hex(&format!("01 {wrong}"))).is_err(), "{wrong}");
    }
    assert!(GiveUp::decode(&hex("03000000 04000000 0101")).is_err(), "257 links");
    assert!(GiveUp::decode(&hex("03000000 04000000 0100")).is_err() && Notice::decode(&[]).is_err());
    assert!(decode_retire(&hex("030000")).is_err() && decode_retire(&hex("0300000000")).is_err());
    assert!(Committed::decode(&hex("0000")).is_err());
}

#[test]
fn routes() {
    let network = NetworkName::new("net2").unwrap();
    let address = Target::Address { network: network.clone(), address: ([10, 2, 0, 5], 7170).into() };
    let v6 = Target::Address { network, address: (std::net::Ipv6Addr::LOCALHOST, 9).into() };
    for (target, bytes, shown) in [
        (Target::Router, "00".to_owned(), "the router itself"),
        (address, "01 0a020005 021c 0400 6e657432".to_owned(), "10.2.0.5:7170@net2"),
        (v6, format!("02 {}01 0900 0400 6e657432", "00".repeat(15)), "[::1]:9@net2"),
        (
            Target::Server(ServerId([7; 16])),
            format!("03 {}", "07".repeat(16)),
            "server 07070707070707070707070707070707",
        ),
        (
            Target::Hop { network: NetworkName::new("net2").unwrap(), behind: 2 },
            "04 02 0400 6e657432".to_owned(),
            "the router behind 2 others to net2",
        ),
    ] {
        assert_eq!(target.to_string(), shown);
        let route = Route { target, hops_left: 3, time_left_ms: 2500, lane: Lane::Bulk, initiator: [5; 16], flow: 77 };
        let expected = hex(&format!("{bytes} 03 c4090000 01 {} 4d00000000000000", "05".repeat(16)));
        assert_eq!(body(|out| route.encode(out)), expected);
        assert!(expected.len() <= ROUTE_LENGTH_MAX);
        let longer = [&expected[..], &[0; 9]].concat();
        assert_eq!(Route::decode(&longer), Ok(route), "a newer version adds fields");
        assert!((0..expected.len()).all(|end| Route::decode(&expected[..end]).is_err()));
    }
    let reply = RouteReply { status: RouteStatus::Full, hop: 1, text: "r1".into() };
    assert_eq!(body(|out| reply.encode(out)), hex("01 01 0200 7231"));
    assert_eq!(RouteReply::decode(&hex("01 01 0200 7231")), Ok(reply));
    let notice = RouteNotice { stopping_seconds: 30, flows: vec![77] };
    assert_eq!(body(|out| notice.encode(out)), hex("1e000000 0100 4d00000000000000"));
    assert_eq!(RouteNotice::decode(&hex("1e000000 0100 4d00000000000000")), Ok(notice));
    let held = RouteHeld { flow: 77, from_us: 20_000, to_us: 16 };
    assert_eq!(body(|out| held.encode(out)), hex("4d00000000000000 204e0000 10000000"));
    assert_eq!(RouteHeld::decode(&hex("4d00000000000000 204e0000 10000000")), Ok(held));
    let reply = RouteHeldReply { looked_us: 20_000, held_us: 18, unread_us: 16 };
    assert_eq!(body(|out| reply.encode(out)), hex("204e0000 12000000 10000000"));
    assert_eq!(RouteHeldReply::decode(&hex("204e0000 12000000 10000000")), Ok(reply));
}

/// Whatever a hostile peer says of routes is bounded.
#[test]
fn routes_that_make_no_sense_are_refused() {
    let rest = format!("{} 4d00000000000000", "05".repeat(16));
    for wrong in [
        format!("05 03 c4090000 01 {rest}"),                           // no target
        format!("04 08 0400 6e657432 03 c4090000 01 {rest}"),          // behind 8 routers
        format!("04 01 0000 03 c4090000 01 {rest}"),                   // to a network without a name
        format!("00 09 c4090000 01 {rest}"),                           // 9 hops
        format!("00 03 c4090000 02 {rest}"),                           // no lane
        format!("01 0a020005 021c 0000 03 c4090000 01 {rest}"),        // a network without a name
        format!("01 0a020005 021c 0300 612f62 03 c4090000 01 {rest}"), // a slash in it
        format!("01 0a020005 021c 4100 {} 03 c4090000 01 {rest}", "61".repeat(65)), // too long
    ] {
        assert!(Route::decode(&hex(&wrong)).is_err(), "{wrong}");
    }
    for wrong in
        ["09 00 0000", "01 00 0100 0a", "01 00 0100", "01 00 0100 ff", &format!("01 00 0001 {}", "61".repeat(256))]
    {
        assert!(RouteReply::decode(&hex(wrong)).is_err(), "{wrong}");
    }
    let long = RouteReply { status: RouteStatus::Bad, hop: 0, text: "\u{e9}".repeat(200) };
    let cut = RouteReply::decode(&body(|out| long.encode(out))).unwrap();
    assert_eq!(cut.text, "\u{e9}".repeat(127));
    assert!(RouteNotice::decode(&hex("00000000 0110")).is_err(), "4097 flows");
    assert!(RouteNotice::decode(&hex("00000000 0000 00")).is_err());
    for wrong in
        ["4d00000000000000 10000000 11000000", "4d00000000000000 10000000", "4d00000000000000 01000000 00000000 00"]
    {
        assert!(RouteHeld::decode(&hex(wrong)).is_err(), "{wrong}");
    }
    for wrong in [
        "10000000 11000000 00000000",
        "10000000 10000000 11000000",
        "10000000 10000000",
        "00000000 00000000 00000000 00",
    ] {
        assert!(RouteHeldReply::decode(&hex(wrong)).is_err(), "{wrong}");
    }
}

/// The proof and the tags, as another implementation has to compute them.
#[test]
fn the_proof_and_the_tags() {
    let key = Key::new(*b"a-cluster-key-of-thirty-two-byte");
    let hello = Header { body_length: 5, ..Header::new(Kind::Hello) };
    let challenge = Header { body_length: 32, ..Header::new(Kind::Challenge) };
    let transcript = Transcript::new((&hello, b"hello"), (&challenge, &[7; 32]));
    assert_eq!(key.proof(&transcript)[..], hex("a865b1f63106a1df999d7f15e34f784270fe879a4e6973691183637e41fff3d2"));
    let mut frame = Header { body_length: 4, ..Header::new(Kind::Ping) }.encode().to_vec();
    frame.extend_from_slice(b"body");
    let tag = |sealer: &mut Sealer| {
        let mut frame = frame.clone();
        sealer.seal(&mut frame, &[]);
        assert_eq!(frame[8..10], [8, 0]);
        frame[48..56].to_vec()
    };
    let (mut client, mut server) = (
        Sealer::new(Some(key.of_client(&transcript).send), false),
        Sealer::new(Some(key.of_server(&transcript).send), false),
    );
    assert_eq!([tag(&mut client), tag(&mut client)], [hex("18a3f067795fa7ec"), hex("e13f5e1f24af91fd")]);
    assert_eq!([tag(&mut server), tag(&mut server)], [hex("2298f311566fc70d"), hex("c54474dc5ea32a17")]);
}

type Golden = Vec<(Request<'static>, u16, String)>;

/// One file, packed: its name, owner, group, permissions, times and content.
const PUT: &[u8] =
    b"\x01\0a\x01\0\0\0\x02\0\0\0\xed\x01\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\x05\0\0\0\0\0\0\0\x06\0\0\0\x05\0\0\0hello";

/// The handles `h` and `p`, the name `n`, the open 1.
const HEX: [&str; 4] = ["0100 68", "0100 70", "0100 6e", "0100000000000000"];

/// Each operation with values that differ from field to field, so that fields of one type cannot change places unseen.
#[test]
fn every_request() {
    let all: Golden = [requests_of_names(), requests_of_opens()].concat();
    let codes: Vec<u16> = all.iter().map(|(_, code, _)| *code).collect();
    assert_eq!(codes, common::request_ops().map(|op| op as u16).collect::<Vec<_>>());
    for (request, code, fields) in all {
        request_is(request, code, &fields);
    }
}

fn requests_of_names() -> Golden {
    let (handle, parent, name, open) = (&b"h"[..], &b"p"[..], &b"n"[..], OpenId(1));
    let [h, p, n, o] = HEX;
    let three = "0300000000000000";
    vec![
        (Request::Root, 16, String::new()),
        (Request::Lookup { parent, name }, 17, format!("{p} {n}")),
        (Request::GetAttr { handle, open: Some(open) }, 18, format!("{h} 01 {o}")),
        (Request::SetAttr { handle, open: None, set: SetAttr::default() }, 19, format!("{h} 00 000000000000")),
        (Request::ReadLink { handle }, 20, h.into()),
        (Request::Access { handle, mask: AccessMask::READ }, 21, format!("{h} 04000000")),
        (Request::Statfs { handle }, 22, h.into()),
        (Request::Symlink { parent, name, text: b"t" }, 32, format!("{p} {n} 0100 74")),
        (
            Request::MakeNode { parent, name, mode: 1, umask: 2, rdev: 3 },
            33,
            format!("{p} {n} 01000000 02000000 {three}"),
        ),
        (Request::MakeDirectory { parent, name, mode: 1, umask: 2 }, 34, format!("{p} {n} 01000000 02000000")),
        (Request::Unlink { parent, name }, 35, format!("{p} {n}")),
        (Request::RemoveDirectory { parent, name }, 36, format!("{p} {n}")),
        (
            Request::Rename { parent, name, new_parent: b"P", new_name: b"N", flags: RenameFlags::WHITEOUT },
            37,
            format!("{p} {n} 0100 50 0100 4e 04000000"),
        ),
        (Request::Link { handle, parent, name }, 38, format!("{h} {p} {n}")),
    ]
}

fn requests_of_opens() -> Golden {
    let (handle, parent, name, open) = (&b"h"[..], &b"p"[..], &b"n"[..], OpenId(1));
    let lock = Lock { start: 3, end: 4, kind: LockKind::Unlock, pid: 5 };
    let [h, p, n, o] = HEX;
    let [two, three, four] = ["0200000000000000", "0300000000000000", "0400000000000000"];
    vec![
        (Request::Open { handle, flags: OpenFlags::APPEND }, 48, format!("{h} 04000000")),
        (
            Request::Create { parent, name, mode: 1, umask: 2, flags: OpenFlags::TRUNCATE },
            49,
            format!("{p} {n} 01000000 02000000 08000000"),
        ),
        (
            Request::CreateUnnamed { parent, mode: 1, umask: 2, flags: OpenFlags::EXCLUSIVE },
            50,
            format!("{p} 01000000 02000000 10000000"),
        ),
        (Request::Reopen { open, token: b"tok" }, 51, format!("{o} 0300 746f6b")),
        (Request::Flush { open, owner: 2 }, 52, format!("{o} {two}")),
        (Request::Release { open }, 53, o.into()),
        (Request::Sync { open, data_only: true }, 54, format!("{o} 01")),
        (Request::Commit { open, offset: 2, length: 3 }, 55, format!("{o} {two} {three}")),
        (
            Request::Fallocate { open, offset: 2, length: 3, flags: FallocateFlags::UNSHARE_RANGE },
            56,
            format!("{o} {two} {three} 40000000"),
        ),
        (Request::Seek { open, offset: 2, to: SeekTo::Hole }, 57, format!("{o} {two} 01")),
        (
            Request::CopyRange { from: open, from_offset: 2, to: OpenId(3), to_offset: 4, length: 5 },
            58,
            format!("{o} {two} {three} {four} 0500000000000000"),
        ),
        (
            Request::Checksum { open, offset: 2, length: 3, kind: SumKind::Blake3Part, past_cache: true },
            59,
            format!("{o} {two} {three} 02 01"),
        ),
        (
            Request::PutFiles { parent, files: PUT, stable: true },
            60,
            format!(
                "{p} 30000000 0100 61 01000000 02000000 ed010000 0300000000000000 04000000 0500000000000000 06000000 05000000 68656c6c6f 01"
            ),
        ),
        (Request::Layout { handle, open }, 61, format!("{h} {o}")),
        (Request::OpenDirectory { handle }, 64, h.into()),
        (Request::ReadDirectory { open, cookie: 2, size: 4096, plus: true }, 65, format!("{o} {two} 00100000 01")),
        (Request::ReleaseDirectory { open }, 66, o.into()),
        (Request::SyncDirectory { open, data_only: false }, 67, format!("{o} 00")),
        (Request::GetXattr { handle, name, size: 1 }, 80, format!("{h} {n} 01000000")),
        (
            Request::SetXattr { handle, name, value: b"v", mode: XattrMode::Create },
            81,
            format!("{h} {n} 01000000 76 01"),
        ),
        (Request::ListXattr { handle, size: 1 }, 82, format!("{h} 01000000")),
        (Request::RemoveXattr { handle, name }, 83, format!("{h} {n}")),
        (
            Request::GetLock { open, owner: 2, space: LockSpace::Posix, lock },
            96,
            format!("{o} {two} 00 {three} {four} 02 05000000"),
        ),
        (
            Request::SetLock { open, owner: 2, space: LockSpace::Flock, lock, wait: true },
            97,
            format!("{o} {two} 01 {three} {four} 02 05000000 01"),
        ),
    ]
}

#[test]
fn requests() {
    request_is(Request::Root, 16, "");
    request_is(Request::Lookup { parent: b"hh", name: b"name" }, 17, "0200 6868 0400 6e616d65");
    let set = SetAttr {
        mode: Some(0o644),
        size: Some(9),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(Time { seconds: -1, nanos: 5 })),
        ..SetAttr::default()
    };
    let fields =
        "0100 68 01 0300000000000000 01 a4010000 00 00 01 0900000000000000 01 00 01 01 ffffffffffffffff 05000000";
    request_is(Request::SetAttr { handle: b"h", open: Some(OpenId(3)), set }, 19, fields);
    let flags = RenameFlags::EXCHANGE;
    let rename = Request::Rename { parent: b"a", name: b"b", new_parent: b"c", new_name: b"d", flags };
    request_is(rename, 37, "0100 61 0100 62 0100 63 0100 64 02000000");
    let flags = OpenFlags::READ | OpenFlags::DATA_SYNC;
    let create = Request::Create { parent: b"h", name: b"n", mode: 0o100600, umask: 0o22, flags };
    request_is(create, 49, "0100 68 0100 6e 80810000 12000000 01020000");
    let list = Request::ReadDirectory { open: OpenId(1), cookie: 2, size: 4096, plus: true };
    request_is(list, 65, "0100000000000000 0200000000000000 00100000 01");
    let set = Request::SetXattr { handle: b"h", name: b"user.a", value: b"v", mode: XattrMode::Replace };
    request_is(set, 81, "0100 68 0600 757365722e61 01000000 76 02");
    let lock = Lock { start: 1, end: u64::MAX, kind: LockKind::Write, pid: 7 };
    let set = Request::SetLock { open: OpenId(1), owner: 2, space: LockSpace::Flock, lock, wait: true };
    request_is(set, 97, "0100000000000000 0200000000000000 01 0100000000000000 ffffffffffffffff 01 07000000 01");
    let read = ReadAt { open: OpenId(1), offset: 2, length: 3 };
    let expected = [hex(CALLER), hex("0100000000000000 0200000000000000 03000000")].concat();
    assert_eq!(body(|out| encode_read(&context(), &read, out)), expected);
    let write = WriteAt { open: OpenId(1), offset: 2, append: true, stable: false };
    let expected = [hex(CALLER), hex("0100000000000000 0200000000000000 01 00")].concat();
    assert_eq!(body(|out| encode_write(&context(), &write, out)), expected);
    let compound = [Request::OpenDirectory { handle: b"" }, Request::ReleaseDirectory { open: OPEN_LATEST }];
    let expected = [hex(CALLER), hex("0200 4000 0000 4200 ffffffffffffffff")].concat();
    assert_eq!(body(|out| encode_compound(&context(), &compound, out)), expected);
    let mut context = context();
    context.credential.groups = Groups::Resolve;
    let mut out = Vec::new();
    encode_request(&context, &Request::Root, &mut out);
    assert_eq!(out, hex("e8030000 64000000 07000000 ffff"));
}

const ATTR: &str = "0100000000000000 0600000000000000 0700000000000000 0500000000000000 \
                    0a00000000000000 0b00000000000000 0c00000000000000 0d00000000000000 \
                    14000000 15000000 16000000 17000000 a4810000 02000000 03000000 04000000 08000000 \
                    000000000000000000000000";

fn entry() -> Entry {
    let time = |seconds, nanos| Time { seconds, nanos };
    let attr = Attr {
        ino: 1,
        mode: 0o100644,
        nlink: 2,
        uid: 3,
        gid: 4,
        rdev: 5,
        size: 6,
        blocks: 7,
        blksize: 8,
        atime: time(10, 20),
        mtime: time(11, 21),
        ctime: time(12, 22),
        btime: time(13, 23),
    };
    Entry { handle: Handle::new(b"hh").unwrap(), attr }
}

#[test]
fn replies() {
    let token: Box<[u8]> = (*b"tok").into();
    let opened = Opened { id: OpenId(9), token, width: 5 };
    let opened_hex = "0900000000000000 0300 746f6b 0500";
    reply_is(Op::Unlink, Reply::Done, "");
    reply_is(Op::GetAttr, Reply::Attr(entry().attr), ATTR);
    reply_is(Op::Lookup, Reply::Entry(entry()), &format!("0200 6868 {ATTR}"));
    reply_is(Op::Open, Reply::Opened(opened.clone()), opened_hex);
    reply_is(Op::Create, Reply::Created(entry(), opened), &format!("0200 6868 {ATTR} {opened_hex}"));
    reply_is(Op::ReadLink, Reply::Bytes(b"to".to_vec()), "01 746f");
    reply_is(Op::GetXattr, Reply::Size(2), "00 0200000000000000");
    let lock = Lock { start: 3, end: 4, kind: LockKind::Read, pid: 5 };
    reply_is(Op::GetLock, Reply::Lock(lock), "0300000000000000 0400000000000000 00 05000000");
    let statfs = Statfs {
        blocks: 1,
        blocks_free: 2,
        blocks_available: 3,
        files: 4,
        files_free: 5,
        block_size: 6,
        fragment_size: 7,
        name_length: 8,
    };
    let expected = "0100000000000000 0200000000000000 0300000000000000 0400000000000000 0500000000000000 06000000 \
                    07000000 08000000";
    reply_is(Op::Statfs, Reply::Statfs(statfs), expected);
    let written = Reply::Written(Written { count: 1, verifier: 2, offset: 3 });
    reply_is(Op::Write, written, "01000000 0200000000000000 0300000000000000");
    let parts =
        vec![Part::Hole { place: 2 }, Part::Untold { place: 4 }, Part::At { place: 3, token: (*b"tok").into() }];
    let layout = Layout { size: 1, block: 2, id: [4; 16], epoch: 5, parts };
    let expected = "0100000000000000 02000000 04040404040404040404040404040404 0500000000000000 03 00 0200 02 0400 01 0300 0300 746f6b";
    reply_is(Op::Layout, Reply::Layout(layout), expected);
    let mut page = DirPage::default();
    page.end = true;
    let Entry { handle, attr } = entry();
    page.push(&DirEntry { ino: 1, cookie: 2, kind: 4, name: b"d", inode: None });
    page.push(&DirEntry { ino: 1, cookie: 3, kind: 8, name: b"f", inode: Some((handle.bytes(), attr)) });
    let plain = "0100000000000000 0200000000000000 04 00 0100 64";
    let plus = format!("0100000000000000 0300000000000000 08 01 0100 66 0200 6868 {ATTR}");
    reply_is(Op::ReadDirectory, Reply::Directory(page), &format!("01 {plain} {plus}"));
    let results = [Ok(Reply::Size(3)), Err(Errno::ENOENT)];
    let expected = hex("0200 00000000 09000000 00 0300000000000000 02000000");
    assert_eq!(body(|out| encode_compound_reply(&results, out)), expected);
}
