//! PROTOCOL.md says what the code does, wherever that can be compared.

use aqueduct_wire::{self as wire, Class, Flags, Kind, Lane, Op};

const DOCUMENT: &str = include_str!("../../../PROTOCOL.md");

/// The cells of the rows of the table under a heading.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let start = DOCUMENT.find(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no section '{heading}'"));
    let section = &DOCUMENT[start + 4..];
    let section = &section[..section.find("\n## ").unwrap_or(section.len())];
    let rows = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

fn coded(heading: &str) -> Vec<(u16, &'static str)> {
    table(heading).iter().map(|row| (row[0].parse().expect("a code"), row[1])).collect()
}

#[test]
fn the_table_of_operations_is_the_codes() {
    let codes: Vec<(u16, &str)> = Op::ALL.iter().map(|op| (*op as u16, op.name())).collect();
    assert_eq!(coded("Operations"), codes);
    for code in 0..=u16::MAX {
        let expected = codes.iter().find(|(known, _)| *known == code).map(|(_, name)| *name);
        assert_eq!(Op::from_code(code).map(Op::name), expected);
    }
}

#[test]
fn the_table_of_kinds_is_the_codes() {
    let kinds = (0..=u8::MAX).filter_map(Kind::from_code).map(|kind| (u16::from(kind as u8), format!("{kind:?}")));
    let documented: Vec<(u16, String)> =
        coded("Kinds").into_iter().map(|(code, name)| (code, name.to_owned())).collect();
    assert_eq!(documented, kinds.collect::<Vec<_>>());
}

#[test]
fn the_header_is_as_the_table_says() {
    let rows = table("Header");
    let mut end = 0;
    for row in &rows {
        let [offset, size] = [row[0], row[1]].map(|cell| cell.parse::<usize>().expect("a number"));
        assert_eq!(offset, end, "{}", row[2]);
        end = offset + size;
    }
    assert_eq!(end, wire::HEADER_SIZE);
    let meaning = |field: &str| rows.iter().find(|row| row[2] == field).expect("a field")[3];
    let flags: Vec<String> = Flags::all().iter_names().map(|(name, flag)| format!("{} {name}", flag.bits())).collect();
    assert_eq!(meaning("flags"), flags.join(", "));
    let classes = (0..=u8::MAX).filter_map(Class::from_code).map(|class| format!("{} {class:?}", class as u8));
    let classes = classes.collect::<Vec<_>>().join(", ").to_lowercase();
    assert_eq!(meaning("class"), format!("of the slot: {classes}"));
    let lanes = (0..=u8::MAX).filter_map(Lane::from_code).map(|lane| format!("{} {lane:?}", lane as u8).to_lowercase());
    assert!(lanes.into_iter().all(|lane| DOCUMENT.contains(&lane)));
}

#[test]
fn the_limits_are_the_constants() {
    macro_rules! limits {
        ($($krate:ident::$name:ident)*) => { vec![$((concat!("`", stringify!($krate), "::", stringify!($name), "`"), $krate::$name as u64)),*] };
    }
    use aqueduct_fs as fs;
    let limits = limits! {
        wire::HEADER_SIZE wire::TRAILER_SIZE wire::BODY_LENGTH_MAX wire::PAYLOAD_LENGTH_MAX wire::DIRECTORY_PAGE_MAX
        wire::COMPOUND_MAX wire::GRANTS_MAX wire::LEASES_TOLD_MAX wire::FETCH_MAX wire::FETCH_LENGTH_MAX wire::LIST_MAX wire::KEY_LENGTH wire::KEYS_MAX wire::NONCE_LENGTH wire::PROOF_LENGTH wire::NODE_NAME_LENGTH_MAX wire::ADDRESSES_MAX wire::ADDRESS_LENGTH_MAX wire::SLOTS_MAX wire::EXTENSIONS_LENGTH_MAX wire::JOB_LENGTH_MAX wire::RIGHT_LENGTH_MAX wire::DATA_SERVERS_MAX wire::LINKS_MAX wire::COMMITTED_MAX wire::NETWORK_NAME_LENGTH_MAX wire::ROUTE_TEXT_LENGTH_MAX wire::HOPS_MAX wire::FLOWS_TOLD_MAX wire::ROUTE_LENGTH_MAX wire::PEER_NAME_LENGTH_MAX wire::EXPORT_NAME_LENGTH_MAX fs::HANDLE_LENGTH_MAX
        fs::NAME_LENGTH_MAX fs::SYMLINK_LENGTH_MAX fs::XATTR_NAME_LENGTH_MAX fs::XATTR_SIZE_MAX fs::TOKEN_LENGTH_MAX
        fs::GROUPS_MAX
    };
    let documented: Vec<(&str, u64)> =
        table("Limits").iter().map(|row| (row[0], row[1].parse().expect("a value"))).collect();
    assert_eq!(documented, limits);
}

/// *S* marks what a client must send in a slot, which `changes_state` decides.
#[test]
fn the_requests_that_need_a_slot_are_marked() {
    use aqueduct_fs::*;
    let slotted = |name: &str| {
        let row = table("Operations").into_iter().find(|row| row[1] == name).expect("an operation");
        row[2].starts_with("S;")
    };
    let open = OpenId(1);
    let lock = Lock { start: 0, end: 0, kind: LockKind::Read, pid: 0 };
    let space = LockSpace::Posix;
    let (handle, parent, name) = (&b"h"[..], &b"h"[..], &b"n"[..]);
    let requests = [
        Request::Root,
        Request::Lookup { parent, name },
        Request::GetAttr { handle, open: None },
        Request::SetAttr { handle, open: None, set: SetAttr::default() },
        Request::ReadLink { handle },
        Request::Statfs { handle },
        Request::Symlink { parent, name, text: b"t" },
        Request::MakeNode { parent, name, mode: 0, umask: 0, rdev: 0 },
        Request::MakeDirectory { parent, name, mode: 0, umask: 0 },
        Request::Unlink { parent, name },
        Request::RemoveDirectory { parent, name },
        Request::Rename { parent, name, new_parent: parent, new_name: name, flags: RenameFlags::empty() },
        Request::Link { handle, parent, name },
        Request::Open { handle, flags: OpenFlags::READ },
        Request::Create { parent, name, mode: 0, umask: 0, flags: OpenFlags::READ },
        Request::CreateUnnamed { parent, mode: 0, umask: 0, flags: OpenFlags::READ },
        Request::Reopen { open, token: b"" },
        Request::Flush { open, owner: 0 },
        Request::Release { open },
        Request::Sync { open, data_only: false },
        Request::Commit { open, offset: 0, length: 0 },
        Request::Fallocate { open, offset: 0, length: 0, flags: FallocateFlags::empty() },
        Request::Seek { open, offset: 0, to: SeekTo::Data },
        Request::Checksum { open, offset: 0, length: 0, kind: SumKind::Xxh3, past_cache: false },
        Request::Layout { handle, open },
        Request::CopyRange { from: open, from_offset: 0, to: open, to_offset: 0, length: 0 },
        Request::PutFiles { parent, files: b"", stable: true },
        Request::OpenDirectory { handle },
        Request::ReadDirectory { open, cookie: 0, size: 0, plus: false },
        Request::ReleaseDirectory { open },
        Request::SyncDirectory { open, data_only: false },
        Request::GetXattr { handle, name, size: 0 },
        Request::SetXattr { handle, name, value: b"", mode: XattrMode::Any },
        Request::ListXattr { handle, size: 0 },
        Request::RemoveXattr { handle, name },
        Request::GetLock { open, owner: 0, space, lock },
        Request::SetLock { open, owner: 0, space, lock, wait: false },
    ];
    for request in &requests {
        let op = Op::of(request);
        assert_eq!(slotted(op.name()), request.changes_state(), "{}", op.name());
    }
    // All but Access, which needs one for W_OK only, and the seventeen that are no requests of the
    // file system.
    assert_eq!(requests.len(), Op::ALL.len() - 18);
    assert!(slotted("Write") && slotted("Compound"));
    assert!(
        [
            "Attach",
            "Status",
            "Read",
            "Recovered",
            "Fetch",
            "List",
            "Locks",
            "ReleaseLocks",
            "Map",
            "GiveUp",
            "Right",
            "Revoke",
            "Beat",
            "Transfer",
            "Stage"
        ]
        .into_iter()
        .all(|name| !slotted(name))
    );
}
