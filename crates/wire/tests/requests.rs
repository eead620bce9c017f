//! The bodies of requests: what goes in comes out, and nothing else gets in.

mod common;

use aqueduct_fs::*;
use aqueduct_wire::*;
use common::*;
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_request_round_trips(parts in parts(), context in context()) {
        for op in request_ops() {
            let request = parts.request(op);
            let mut out = Vec::new();
            prop_assert_eq!(encode_request(&context, &request, &mut out), op);
            prop_assert!(out.len() <= BODY_LENGTH_MAX);
            prop_assert_eq!(decode_request(op, &out), Ok((caller(&context), request)));
        }
    }

    #[test]
    fn a_cut_or_prolonged_request_is_refused(parts in parts(), extra: u8) {
        let context = Context::new(ClientId(0), Credential::root());
        for op in request_ops() {
            let mut out = body(|out| { encode_request(&context, &parts.request(op), out); });
            for end in 0..out.len() {
                prop_assert!(matches!(decode_request(op, &out[..end]), Err(BodyError::Short(_))), "{:?} cut at {}", op, end);
            }
            out.push(extra);
            prop_assert_eq!(decode_request(op, &out), Err(BodyError::Trailing(1)));
        }
    }

    /// There is one encoding of a request: what is accepted is what would have been sent.
    #[test]
    fn a_damaged_request_is_refused_or_another_request(parts in parts(), context in context(), at: usize, by in 1u8..) {
        for op in request_ops() {
            let out = damage(&body(|out| { encode_request(&context, &parts.request(op), out); }), at, by);
            for op in request_ops() {
                if let Ok((caller, request)) = decode_request(op, &out) {
                    let mut context = Context::new(ClientId(0), caller.credential);
                    context.pid = caller.pid;
                    prop_assert_eq!(&body(|out| { encode_request(&context, &request, out); }), &out);
                }
            }
        }
    }

    #[test]
    fn a_fetch_round_trips(handles in vec(vec(any::<u8>(), 1..HANDLE_LENGTH_MAX), 0..=FETCH_MAX), length in 0..=FETCH_LENGTH_MAX, context in context()) {
        let handles: Vec<&[u8]> = handles.iter().map(Vec::as_slice).collect();
        let directories = &handles[..handles.len().min(LIST_MAX)];
        let mut out = body(|out| encode_list(&context, &handles, out));
        prop_assert_eq!(decode_list(&out), Ok((caller(&context), directories.to_vec())));
        prop_assert!(decode_list(&out[..out.len() - 1]).is_err());
        out.push(0);
        prop_assert_eq!(decode_list(&out), Err(BodyError::Trailing(1)));
        let mut out = body(|out| encode_fetch(&context, &handles, length, out));
        prop_assert_eq!(decode_fetch(&out), Ok((caller(&context), handles, length)));
        prop_assert!(decode_fetch(&out[..out.len() - 1]).is_err());
        out.push(0);
        prop_assert_eq!(decode_fetch(&out), Err(BodyError::Trailing(1)));
    }

    #[test]
    fn noise_never_panics(noise in vec(any::<u8>(), 0..300), small in vec(0u8..3, 0..300)) {
        for noise in [&noise, &small] {
            for op in Op::ALL {
                let _ = decode_request(*op, noise);
            }
            let _ = (decode_read(noise), decode_write(noise), decode_compound(noise), decode_fetch(noise).is_ok(), decode_list(noise).is_ok());
        }
    }

    #[test]
    fn reads_and_writes_round_trip(context in context(), open: u64, offset: u64, length in 0..=TRANSFER_SIZE_MAX as u32, yes: [bool; 2]) {
        let read = ReadAt { open: OpenId(open), offset, length };
        let mut out = body(|out| encode_read(&context, &read, out));
        prop_assert_eq!(decode_read(&out), Ok((caller(&context), read)));
        out.push(0);
        prop_assert_eq!(decode_read(&out), Err(BodyError::Trailing(1)));
        let write = WriteAt { open: OpenId(open), offset, append: yes[0], stable: yes[1] };
        let mut out = body(|out| encode_write(&context, &write, out));
        prop_assert_eq!(decode_write(&out), Ok((caller(&context), write)));
        prop_assert!((0..out.len()).all(|end| decode_write(&out[..end]).is_err()));
        out.push(0);
        prop_assert_eq!(decode_write(&out), Err(BodyError::Trailing(1)));
    }

    #[test]
    fn compounds_round_trip(parts in vec((parts(), any::<prop::sample::Index>()), 1..=COMPOUND_MAX), context in context(), at: usize, by in 1u8..) {
        let ops: Vec<Op> = request_ops().filter(|op| !matches!(op, Op::ReadDirectory | Op::GetXattr | Op::ListXattr)).collect();
        let requests: Vec<Request<'_>> = parts.iter().map(|(parts, op)| parts.request(*op.get(&ops))).collect();
        let mut out = body(|out| encode_compound(&context, &requests, out));
        prop_assert_eq!(decode_compound(&out), Ok((caller(&context), requests)));
        let _ = decode_compound(&damage(&out, at, by));
        prop_assert!(decode_compound(&out[..out.len() - 1]).is_err());
        out.push(0);
        prop_assert_eq!(decode_compound(&out), Err(BodyError::Trailing(1)));
    }
}

fn root() -> Context {
    Context::new(ClientId(0), Credential::root())
}

fn answer(request: &Request<'_>) -> Result<(), Errno> {
    let out = body(|out| {
        encode_request(&root(), request, out);
    });
    decode_request(Op::of(request), &out).map(|_| ()).map_err(|error| error.errno())
}

#[test]
fn names_and_texts_beyond_their_limits_get_the_errno_that_linux_gives() {
    let long = vec![b'n'; 65_536 + 5];
    let lookup = |name| answer(&Request::Lookup { parent: b"h", name });
    assert_eq!(lookup(&long[..255]), Ok(()));
    for length in [256, 4096, 65_535, 65_536, 65_541] {
        assert_eq!(lookup(&long[..length]), Err(Errno::ENAMETOOLONG), "{length}");
    }
    assert_eq!(lookup(b""), Err(Errno::ENOENT));
    for name in [&b"."[..], b"..", b"a/b", b"a\0b"] {
        assert_eq!(lookup(name), Err(Errno::EINVAL));
    }
    let symlink = |text| answer(&Request::Symlink { parent: b"h", name: b"n", text });
    assert_eq!(symlink(&long[..4095]), Ok(()));
    assert_eq!(symlink(&long[..4096]), Err(Errno::ENAMETOOLONG));
    assert_eq!(symlink(b""), Err(Errno::ENOENT));
    assert_eq!(symlink(b"a\0"), Err(Errno::EPROTO));
    let xattr = |name, value| answer(&Request::SetXattr { handle: b"h", name, value, mode: XattrMode::Any });
    assert_eq!(xattr(&long[..255], &long[..65_536]), Ok(()));
    assert_eq!(xattr(&long[..256], b""), Err(Errno::ERANGE));
    assert_eq!(xattr(b"", b""), Err(Errno::ERANGE));
    assert_eq!(xattr(b"user.a", &long[..65_537]), Err(Errno::E2BIG));
    let handle = |handle| answer(&Request::ReadLink { handle });
    assert_eq!(handle(&long[..160]), Ok(()));
    assert_eq!(handle(&long[..161]), Err(Errno::EPROTO));
    assert_eq!(handle(b""), Err(Errno::EPROTO));
    assert_eq!(answer(&Request::Reopen { open: OpenId(1), token: &long[..512] }), Ok(()));
    assert_eq!(answer(&Request::Reopen { open: OpenId(1), token: &long[..513] }), Err(Errno::EPROTO));
}

/// The body of `request` from root, with the bytes at `at` from the end replaced.
fn with_end(request: &Request<'_>, at: usize, bytes: &[u8]) -> Result<(), BodyError> {
    let mut out = body(|out| {
        encode_request(&root(), request, out);
    });
    let start = out.len() - at;
    out[start..start + bytes.len()].copy_from_slice(bytes);
    decode_request(Op::of(request), &out).map(|_| ())
}

#[test]
fn values_that_do_not_exist_are_refused() {
    let refused = |what| Err(BodyError::Value(what));
    let open = OpenId(1);
    let opening = Request::Open { handle: b"h", flags: OpenFlags::READ };
    assert_eq!(with_end(&opening, 4, &0x3ffu32.to_le_bytes()), Ok(()));
    assert_eq!(with_end(&opening, 4, &0x400u32.to_le_bytes()), refused("a set of open flags"));
    let rename =
        Request::Rename { parent: b"h", name: b"a", new_parent: b"h", new_name: b"b", flags: RenameFlags::empty() };
    assert_eq!(with_end(&rename, 4, &[8]), refused("a set of rename flags"));
    let fallocate = Request::Fallocate { open, offset: 0, length: 1, flags: FallocateFlags::empty() };
    assert_eq!(with_end(&fallocate, 4, &[4]), refused("a set of fallocate flags"));
    let access = Request::Access { handle: b"h", mask: AccessMask::READ };
    assert_eq!(with_end(&access, 4, &[8]), refused("an access mask"));
    assert_eq!(with_end(&Request::Sync { open, data_only: true }, 1, &[2]), refused("a yes or no"));
    assert_eq!(with_end(&Request::Seek { open, offset: 0, to: SeekTo::Data }, 1, &[2]), refused("a seek"));
    let set = SetAttr { mtime: Some(SetTime::At(Time { seconds: 0, nanos: 1 })), ..SetAttr::default() };
    let set = Request::SetAttr { handle: b"h", open: None, set };
    assert_eq!(with_end(&set, 4, &999_999_999u32.to_le_bytes()), Ok(()));
    assert_eq!(with_end(&set, 4, &1_000_000_000u32.to_le_bytes()), refused("a time"));
    let lock = Lock { start: 5, end: 9, kind: LockKind::Read, pid: 0 };
    let get_lock = Request::GetLock { open, owner: 0, space: LockSpace::Posix, lock };
    assert_eq!(with_end(&get_lock, 5, &[3]), refused("a lock kind"));
    assert_eq!(with_end(&get_lock, 13, &4u64.to_le_bytes()), refused("a lock's range"));
    assert_eq!(with_end(&get_lock, 22, &[3]), refused("a lock space"));
    let xattr = Request::SetXattr { handle: b"h", name: b"user.a", value: b"", mode: XattrMode::Any };
    assert_eq!(with_end(&xattr, 1, &[3]), refused("an attribute mode"));
    let list = Request::ReadDirectory { open, cookie: 0, size: 1, plus: false };
    assert_eq!(with_end(&list, 5, &(DIRECTORY_PAGE_MAX + 1).to_le_bytes()), refused("the size of a directory page"));
    let read = ReadAt { open, offset: 0, length: TRANSFER_SIZE_MAX as u32 + 1 };
    assert_eq!(
        decode_read(&body(|out| encode_read(&root(), &read, out))),
        Err(BodyError::Value("the length of a read"))
    );
}

#[test]
fn a_wish_for_a_large_page_is_cut() {
    let list = Request::ReadDirectory { open: OpenId(1), cookie: 0, size: 1 << 20, plus: true };
    let out = body(|out| {
        encode_request(&root(), &list, out);
    });
    let (_, decoded) = decode_request(Op::ReadDirectory, &out).unwrap();
    assert!(matches!(decoded, Request::ReadDirectory { size: DIRECTORY_PAGE_MAX, .. }));
}

#[test]
fn more_groups_than_travel_are_looked_up_at_the_server() {
    let mut context = root();
    context.credential.groups = Groups::Known(vec![1; GROUPS_MAX + 1].into());
    let out = body(|out| {
        encode_request(&context, &Request::Root, out);
    });
    assert_eq!(decode_request(Op::Root, &out).unwrap().0.credential.groups, Groups::Resolve);
    let mut many = out.clone();
    many[12..14].copy_from_slice(&(GROUPS_MAX as u16 + 1).to_le_bytes());
    many.extend_from_slice(&vec![0; 4 * (GROUPS_MAX + 1)]);
    assert_eq!(decode_request(Op::Root, &many), Err(BodyError::Value("the number of groups")));
}

#[test]
fn a_compound_is_bounded_in_number_nesting_and_reply() {
    let refused = |requests: &[Request<'_>]| {
        decode_compound(&body(|out| encode_compound(&root(), requests, out))).unwrap_err().to_string()
    };
    assert!(refused(&[]).contains("number of requests"));
    assert!(refused(&vec![Request::Root; COMPOUND_MAX + 1]).contains("number of requests"));
    assert!(refused(&vec![Request::Root; 65_536 + 1]).contains("number of requests"));
    let list = Request::ReadDirectory { open: OPEN_LATEST, cookie: 0, size: DIRECTORY_PAGE_MAX, plus: true };
    assert!(refused(&[list.clone(), list.clone()]).contains("sum"));
    let xattr = Request::ListXattr { handle: b"h", size: u32::MAX };
    assert!(refused(&[xattr.clone(), xattr]).contains("sum"));
    let open = Request::OpenDirectory { handle: b"" };
    let listing = [open, list, Request::ReleaseDirectory { open: OPEN_LATEST }];
    assert!(decode_compound(&body(|out| encode_compound(&root(), &listing, out))).is_ok());
    for op in [
        Op::Attach,
        Op::Status,
        Op::Compound,
        Op::Read,
        Op::Write,
        Op::Recovered,
        Op::Fetch,
        Op::List,
        Op::Locks,
        Op::ReleaseLocks,
    ] {
        let mut out = body(|out| encode_compound(&root(), &[Request::Root], out));
        let at = out.len() - 2;
        out[at..].copy_from_slice(&(op as u16).to_le_bytes());
        assert_eq!(decode_compound(&out), Err(BodyError::Value("the operation")));
    }
}

#[test]
fn an_empty_handle_and_the_latest_open_are_put_in_place() {
    let link = Request::Link { handle: b"", parent: b"p", name: b"n" };
    let expected = Request::Link { handle: b"latest", parent: b"p", name: b"n" };
    assert_eq!(substitute_latest(link.clone(), b"latest", None), expected);
    assert_eq!(substitute_latest(link.clone(), b"", None), link);
    let through = Request::GetAttr { handle: b"", open: Some(OPEN_LATEST) };
    let expected = Request::GetAttr { handle: b"latest", open: Some(OpenId(7)) };
    assert_eq!(substitute_latest(through.clone(), b"latest", Some(OpenId(7))), expected);
    assert_eq!(
        substitute_latest(Request::Release { open: OpenId(3) }, b"", Some(OpenId(7))),
        Request::Release { open: OpenId(3) }
    );
    // Every operation with an empty handle is refused outside a compound, whichever of its handles it is.
    let rename = |parent, new_parent| {
        answer(&Request::Rename { parent, name: b"a", new_parent, new_name: b"b", flags: RenameFlags::empty() })
    };
    assert_eq!(rename(b"h", b"h"), Ok(()));
    assert_eq!(rename(b"", b"h"), Err(Errno::EPROTO));
    assert_eq!(rename(b"h", b""), Err(Errno::EPROTO));
}
