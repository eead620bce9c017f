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
        credits: 0x6261,
    };
    let expected = "41514454 0100 03 01 0d00 0500 01020304 11121314 21222324 3132333435363738 28000000 00001000 \
                    41424344 51525354 7461672d7461672d 6162 0000";
    let bytes = header.encode();
    assert_eq!(bytes[..60], hex(expected));
    assert_eq!(bytes[60..], hex("4f1afc22"));
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
        session: 0x0807_0605_0403_0201,
        secret: *b"secret-of-16-byt",
        lane: Lane::Bulk,
        client_instance: *b"instance-16-byte",
        client_name: "né".into(),
        nonce: None,
    };
    let expected = "0100 0200 0600000000000000 0102030405060708 7365637265742d6f662d31362d627974 01 \
                    696e7374616e63652d31362d62797465 0300 6ec3a9";
    assert_eq!(body(|out| hello.encode(out)), hex(&format!("{expected} 00")));
    let with_nonce = Hello { nonce: Some(*b"client-nonce-of-thirty-two-bytes"), ..hello };
    let nonce = "01 636c69656e742d6e6f6e63652d6f662d7468697274792d74776f2d6279746573";
    assert_eq!(body(|out| with_nonce.encode(out)), hex(&format!("{expected} {nonce}")));
    assert_eq!(body(|out| Challenge { nonce: [0xab; 32] }.encode(out)), [0xab; 32]);
    assert_eq!(body(|out| Proof { proof: [0xcd; 32] }.encode(out)), [0xcd; 32]);
    let reply = HelloReply {
        version: 1,
        capabilities: Capabilities::CHECKSUM,
        session: 5,
        secret: [0xaa; 16],
        verifier: 6,
        slots: 256,
        credits: 1024,
        payload_max: 1 << 20,
        lease_seconds: 7,
        server_name: "s".into(),
        recovering: true,
    };
    let expected = "0100 0100000000000000 0500000000000000 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 0600000000000000 00010000 \
                    00040000 00001000 07000000 0100 73 01";
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
    let opened = Opened { id: OpenId(9), token };
    let opened_hex = "0900000000000000 0300 746f6b";
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
