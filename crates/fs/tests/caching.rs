//! How much of which paths may be kept.

use std::time::Duration;

use aqueduct_fs::caching::{Caching, IMMUTABLE, Ruled, Rules};
use aqueduct_fs::*;

const LEASE: Duration = Duration::from_secs(5);
const ROOT: &[u8] = b"/";

/// A tree whose handles are paths: what ends with `/` is a directory, and names with an `x` are not there. Everything may be kept for [`LEASE`].
struct Tree;

impl Tree {
    fn attr(handle: &[u8]) -> Attr {
        let kind = if handle.ends_with(b"/") { libc::S_IFDIR } else { libc::S_IFREG };
        Attr { mode: kind | 0o755, ..Attr::default() }
    }

    fn answer(request: &Request<'_>) -> Result<Reply, Errno> {
        let entry = |handle: &[u8]| Entry { handle: Handle::new(handle).unwrap(), attr: Tree::attr(handle) };
        match *request {
            Request::Root => Ok(Reply::Entry(entry(ROOT))),
            Request::Lookup { name, .. } if name.contains(&b'x') => Err(Errno::ENOENT),
            Request::Lookup { parent, name } | Request::MakeDirectory { parent, name, .. } => {
                Ok(Reply::Entry(entry(&Tree::child(parent, name))))
            }
            Request::GetAttr { handle, .. } => Ok(Reply::Attr(Tree::attr(handle))),
            Request::Open { .. } => Ok(Reply::Opened(Opened { id: OpenId(1), token: Box::new([]), width: 0 })),
            Request::OpenDirectory { .. } => Ok(Reply::Opened(Opened { id: OpenId(2), token: Box::new([]), width: 0 })),
            Request::ReadDirectory { .. } => {
                let mut page = DirPage::default();
                for name in [&b"."[..], b"a", b"D"] {
                    let handle = Tree::child(ROOT, name);
                    let inode = (name != b".").then(|| (&handle[..], Tree::attr(&handle)));
                    page.push(&DirEntry { ino: 1, cookie: 1, kind: 0, name, inode });
                }
                Ok(Reply::Directory(page))
            }
            _ => Ok(Reply::Done),
        }
    }

    /// Directories have upper-case names.
    fn child(parent: &[u8], name: &[u8]) -> Vec<u8> {
        let end: &[u8] = if name[0].is_ascii_uppercase() { b"/" } else { b"" };
        [parent, name, end].concat()
    }
}

impl FileSystem for Tree {
    fn call<'a>(&'a self, _: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        Call::ready(Tree::answer(&request))
    }

    fn ask<'a>(&'a self, _: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        let keep = Keep { attributes: LEASE, names: LEASE, data: true, is_written: false, hold: Some(Hold::new(())) };
        Call::ready(Ok(Answer { result: Tree::answer(&request), keep }))
    }

    fn hold_data(&self, _: &[u8]) -> Option<Hold> {
        None
    }

    fn read<'a>(&'a self, _: &'a Context, _: ReadAt, _: Box<dyn Sink>) -> Call<'a, usize> {
        Call::ready(Ok(0))
    }

    fn write<'a>(&'a self, _: &'a Context, _: WriteAt, _: Source) -> Call<'a, Written> {
        Call::ready(Err(Errno::EROFS))
    }

    fn depart(&self, _: ClientId) -> Call<'_, ()> {
        Call::ready(Ok(()))
    }
}

fn ruled(default: Caching, rules: &[(&str, Caching)]) -> Ruled<Tree> {
    let mut all = Rules::new(default);
    rules.iter().for_each(|(pattern, caching)| all.add(pattern, *caching).unwrap());
    let ruled = Ruled::new(Tree, all);
    ask(&ruled, Request::Root);
    ruled
}

fn ask(ruled: &Ruled<Tree>, request: Request<'_>) -> Answer {
    let context = Context::new(ClientId(1), Credential::root());
    match ruled.ask(&context, request) {
        Call::Ready(answer) => answer.unwrap().unwrap(),
        Call::Waiting(_) => panic!("nothing waits"),
    }
}

/// How a path is treated, which is walked to.
fn walk(ruled: &Ruled<Tree>, path: &str) -> Caching {
    let mut handle = ROOT.to_vec();
    let mut keep = ask(ruled, Request::GetAttr { handle: &handle, open: None }).keep;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let answer = ask(ruled, Request::Lookup { parent: &handle, name: name.as_bytes() });
        (handle, keep) = (Tree::child(&handle, name.as_bytes()), answer.keep);
        if answer.result.is_ok() {
            let again = ask(ruled, Request::GetAttr { handle: &handle, open: None }).keep;
            assert_eq!(again.attributes, keep.attributes, "{path}: by handle as by name");
        }
    }
    treated(&keep)
}

fn treated(keep: &Keep) -> Caching {
    match keep.attributes {
        Duration::ZERO if !keep.data && keep.names.is_zero() => Caching::None,
        LEASE => Caching::Lease,
        IMMUTABLE if keep.names == IMMUTABLE => Caching::Immutable,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_last_rule_that_fits_counts_for_all_below() {
    use Caching::*;
    let rules = [("/S", Immutable), ("/S/V/*.log", None), ("/T/**/o?", None), ("/T/A/B/ok", Lease)];
    let ruled = ruled(Lease, &rules);
    for (path, expected) in [
        ("", Lease),
        ("a", Lease),
        ("S", Immutable),
        ("S/V/D/f", Immutable),
        ("S/V/a.log", None),
        ("S/V/D/a.log", Immutable),
        ("S/x", Immutable),
        ("T/o1", None),
        ("T/A/B/on", None),
        ("T/A/B/ok", Lease),
        ("T/A/B/oxx", Lease),
    ] {
        assert_eq!(walk(&ruled, path), expected, "{path}");
    }
}

#[test]
fn a_mount_as_a_whole_has_a_rule() {
    for caching in [Caching::None, Caching::Lease, Caching::Immutable] {
        let ruled = ruled(caching, &[]);
        assert_eq!((walk(&ruled, ""), walk(&ruled, "A/b")), (caching, caching));
        let ruled = self::ruled(Caching::Lease, &[("/", caching)]);
        assert_eq!((walk(&ruled, ""), walk(&ruled, "A/b")), (caching, caching));
    }
}

#[test]
fn a_page_is_kept_as_its_strictest_entry() {
    let list = |rules: &[(&str, Caching)]| {
        let ruled = ruled(Caching::Immutable, rules);
        ask(&ruled, Request::OpenDirectory { handle: ROOT });
        let page = ask(&ruled, Request::ReadDirectory { open: OpenId(2), cookie: 0, size: 4096, plus: true });
        (treated(&page.keep), walk(&ruled, "D"))
    };
    assert_eq!(list(&[]), (Caching::Immutable, Caching::Immutable));
    assert_eq!(list(&[("/D", Caching::Lease)]), (Caching::Lease, Caching::Lease));
    assert_eq!(list(&[("/a", Caching::None)]), (Caching::None, Caching::Immutable));
}

#[test]
fn data_are_kept_by_who_opens_to_read_only() {
    let ruled = ruled(Caching::Lease, &[("/S", Caching::Immutable), ("/N", Caching::None)]);
    let open = |path: &str, flags| {
        walk(&ruled, path);
        ask(&ruled, Request::Open { handle: path.as_bytes(), flags }).keep.data
    };
    assert!(open("/S/f", OpenFlags::READ) && !open("/S/f", OpenFlags::READ | OpenFlags::WRITE));
    assert!(!open("/N/f", OpenFlags::READ));
    assert!(ruled.hold_data(b"/S/f").is_some() && ruled.hold_data(b"/N/f").is_none());
    assert!(ruled.hold_data(b"/other").is_none(), "as below");
}

/// Whom nobody knows any more is not taken for what does not change.
#[test]
fn what_is_not_known_is_as_below() {
    let ruled = ruled(Caching::Immutable, &[]);
    assert_eq!(treated(&ask(&ruled, Request::GetAttr { handle: b"/A/b", open: None }).keep), Caching::Lease);
}

/// More inodes than are remembered: rules count for what is looked up after that.
#[test]
fn rules_outlast_what_is_remembered() {
    let ruled = ruled(Caching::Immutable, &[("/N", Caching::None)]);
    for number in 0..70_000 {
        ask(&ruled, Request::Lookup { parent: ROOT, name: number.to_string().as_bytes() });
    }
    assert_eq!((walk(&ruled, "S/a"), walk(&ruled, "N/a")), (Caching::Immutable, Caching::None));
}

/// The kernel's front end asks again when an answer of which something may be kept comes too late.
#[test]
fn of_changes_nothing_is_kept() {
    let ruled = ruled(Caching::Immutable, &[]);
    walk(&ruled, "f");
    let changes = [
        Request::MakeDirectory { parent: ROOT, name: b"D", mode: 0o755, umask: 0 },
        Request::Open { handle: b"/f", flags: OpenFlags::WRITE | OpenFlags::TRUNCATE },
        Request::SetAttr { handle: b"/f", open: None, set: SetAttr::default() },
    ];
    for change in changes {
        assert_eq!(treated(&ask(&ruled, change.clone()).keep), Caching::None, "{change:?}");
    }
}

#[test]
fn patterns_that_are_none_are_refused() {
    let refused = |pattern: &str| Rules::new(Caching::Lease).add(pattern, Caching::None).unwrap_err().to_string();
    assert_eq!(refused("sw"), "'sw' is no pattern for paths: it does not begin with '/'");
    assert!(refused("/sw/[a").starts_with("'/sw/[a' is no pattern for paths: "));
}
