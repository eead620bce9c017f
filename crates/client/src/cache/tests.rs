//! What is kept and told, against a model of a server, of other clients who change things, and of a network that delivers when it likes.

use std::sync::Arc;

use aqueduct_fs::{Aspects, Attr, Credential, DirEntry, DirPage, Groups, NAME_LENGTH_MAX, OpenFlags, OpenId, Time};
use aqueduct_session::{Brought, Nanos, now};
use aqueduct_wire::LeaseId;
use proptest::prelude::*;

use super::gate::Number;
use super::hold::OfAnswer;
use super::leases::Leases;
use super::names::{Fresh, Listed, NAMES_MAX, Names};
use super::shard::{Granted, Shard};
use super::view::{Fetched, Hash, Reach, Touch, View};

/// What may be kept.
const ALL: Aspects = Aspects::ATTRIBUTES.union(Aspects::DATA).union(Aspects::NAMES);
const SECOND: Nanos = 1_000_000_000;

fn attr(size: u64) -> Attr {
    Attr { size, ..Attr::default() }
}

fn view(now: Nanos) -> View {
    View { now, until: 100 * SECOND, age_max: Nanos::MAX }
}

fn fetched(asked: Number, at: Nanos) -> Fetched {
    Fetched { asked, at }
}

const HASH: Hash = Hash(77 << 8);

fn name(generation: u64, place: u64) -> LeaseId {
    LeaseId(generation << 32 | place)
}

fn shard_with(handle: &[u8], size: u64) -> Shard {
    let mut shard = Shard::default();
    let key: Arc<[u8]> = handle.into();
    assert_eq!(shard.grant((&key, HASH), (name(1, 1), ALL), (fetched(1, 5), 5), 0), Granted::New);
    assert!(shard.keep_attr(handle, HASH, &attr(size), fetched(1, 5)));
    shard
}

#[test]
fn what_is_kept_is_used_until_its_lease_or_its_age_is_over() {
    let mut shard = shard_with(b"f", 3);
    let told =
        |shard: &mut Shard, view: View| shard.attr(b"f", HASH, &view).map(|(attr, told)| (attr.size, told.as_millis()));
    assert_eq!(told(&mut shard, view(40 * SECOND)), Some((3, 60_000)));
    assert_eq!(told(&mut shard, view(100 * SECOND)), None);
    let short = View { now: 100 * SECOND - 999_999, ..view(0) };
    assert_eq!(told(&mut shard, short), Some((3, 0)), "a kernel is told of no time that short");
    let aged = |now| View { now, age_max: 3 * SECOND, ..view(0) };
    assert_eq!(told(&mut shard, aged(2 * SECOND + 5)), Some((3, 1000)));
    assert_eq!(told(&mut shard, aged(3 * SECOND + 5)), None);
}

#[test]
fn of_two_answers_the_one_with_the_later_name_is_kept() {
    let mut shard = shard_with(b"f", 3);
    let key: Arc<[u8]> = b"f"[..].into();
    let grant = |shard: &mut Shard, lease| shard.grant((&key, HASH), (lease, ALL), (fetched(1, 5), 5), 0);
    assert_eq!(grant(&mut shard, name(3, 1)), Granted::Kept);
    assert_eq!(grant(&mut shard, name(2, 1)), Granted::Late);
    assert_eq!(shard.lease(b"f"), Some((name(3, 1), ALL)));
    assert_eq!(grant(&mut shard, name(9, 2)), Granted::Late, "one inode has one lease");
    assert_eq!(
        shard.grant((&key, HASH), (name(4, 1), ALL), (fetched(1, 5), 5), 1),
        Granted::Late,
        "of another session"
    );
}

#[test]
fn what_leaves_is_neither_used_nor_kept_and_goes_by_its_latest_name() {
    let mut shard = shard_with(b"f", 3);
    let key: Arc<[u8]> = b"f"[..].into();
    assert!(shard.leave(b"f"));
    assert!(shard.attr(b"f", HASH, &view(6)).is_none());
    assert_eq!(shard.grant((&key, HASH), (name(2, 1), ALL), (fetched(1, 5), 5), 0), Granted::Late);
    assert!(!shard.keep_attr(b"f", HASH, &attr(4), fetched(9, 9)));
    assert_eq!(shard.give_back(b"f", HASH, 7), Some((name(2, 1), false)));
    assert_eq!((shard.len(), shard.bytes()), (0, 0));
    assert_eq!(shard.grant((&key, HASH), (name(3, 1), ALL), (fetched(6, 9), 9), 0), Granted::Late, "asked before");
    assert_eq!(shard.grant((&key, HASH), (name(3, 1), ALL), (fetched(7, 9), 9), 0), Granted::New);
}

#[test]
fn an_own_change_drops_what_it_touches_and_has_the_kernel_forget_it() {
    let mut shard = shard_with(b"f", 3);
    let touch = Touch::Inode { handle: b"f", aspects: Aspects::ATTRIBUTES, reach: Reach::Itself };
    assert_eq!(shard.attr(b"f", HASH, &view(6)).unwrap().1.as_secs(), 99);
    assert_eq!(shard.begin(&touch, HASH, 6), Aspects::ATTRIBUTES);
    assert!(shard.attr(b"f", HASH, &view(7)).is_none());
    assert!(!shard.keep_attr(b"f", HASH, &attr(3), fetched(1, 5)));
    assert!(shard.end(&touch, HASH, (1, 2), true).is_alone);
    assert!(!shard.keep_attr(b"f", HASH, &attr(3), fetched(1, 5)), "asked before its end");
    let key: Arc<[u8]> = b"f"[..].into();
    shard.keep_own_attr(&key, HASH, (name(2, 1), ALL), (&attr(4), 6, 8, 0));
    let (now, told) = shard.attr(b"f", HASH, &view(SECOND / 100)).unwrap();
    assert_eq!((now.size, told.as_secs()), (4, 99), "the kernel can be told at once");
    assert_eq!(shard.begin(&touch, HASH, 200 * SECOND), Aspects::empty(), "it has forgotten by itself");
}

/// Nothing but a change of extended attributes makes one.
#[test]
fn that_there_is_no_list_outlives_own_changes_of_other_things() {
    const LIST: &[u8] = b"system.posix_acl_access";
    let list = |shard: &mut Shard| shard.xattr(b"f", HASH, LIST, &view(9));
    let known: [fn(&mut Shard); 2] = [
        |shard| shard.keep_bare(b"f", HASH, fetched(1, 5)),
        |shard| shard.keep_xattr(b"f", HASH, (LIST, None), fetched(1, 5)),
    ];
    for keep in known {
        let mut shard = shard_with(b"f", 3);
        assert_eq!(list(&mut shard), None);
        keep(&mut shard);
        for (reach, stays) in [(Reach::Itself, true), (Reach::Rights, true), (Reach::Xattrs, false)] {
            let touch = Touch::Inode { handle: b"f", aspects: Aspects::ATTRIBUTES, reach };
            shard.begin(&touch, HASH, 6);
            assert_eq!(list(&mut shard), stays.then_some(None), "{reach:?}");
            keep(&mut shard);
            assert_eq!(list(&mut shard), stays.then_some(None), "what was asked before its end is not kept");
            shard.end(&touch, HASH, (1, 2), true);
            assert_eq!(list(&mut shard), stays.then_some(None));
        }
    }
    let mut shard = shard_with(b"f", 3);
    shard.keep_xattr(b"f", HASH, (LIST, Some(b"list")), fetched(1, 5));
    assert_eq!(list(&mut shard).unwrap().as_deref(), Some(&b"list"[..]));
    shard.begin(&Touch::Inode { handle: b"f", aspects: Aspects::ATTRIBUTES, reach: Reach::Itself }, HASH, 6);
    assert_eq!(list(&mut shard), None, "a chmod changes it");
}

#[test]
fn names_that_others_may_change_first_are_known_for_such() {
    let mut shard = shard_with(b"d", 0);
    let hash = Hash(5 << 8);
    let (one, other) =
        (Touch::Name { parent: b"d", name: b"a", hash }, Touch::Name { parent: b"d", name: b"b", hash: Hash(6 << 8) });
    assert!(shard.keep_name(b"d", (HASH, hash), (b"a", None), fetched(1, 5)));
    assert_eq!(shard.known(b"d", HASH, b"a", &view(6)), Some(None));
    shard.begin(&one, HASH, 6);
    shard.begin(&other, HASH, 6);
    assert_eq!(shard.known(b"d", HASH, b"a", &view(6)), None);
    assert_eq!(shard.give_back(b"d", HASH, 2), Some((name(1, 1), true)));
    assert!(!shard.end(&one, HASH, (1, 3), true).mends, "another is under way");
    let ended = shard.end(&other, HASH, (1, 4), true);
    assert!(ended.mends && !ended.is_alone);
}

#[test]
fn the_kernel_need_not_forget_names_that_it_was_not_told() {
    let begin = |shard: &mut Shard, name: &[u8], hash, now| {
        let touch = Touch::Name { parent: b"d", name, hash };
        let told = shard.begin(&touch, HASH, now);
        assert!(shard.end(&touch, HASH, (1, 1), true).is_alone);
        told
    };
    let mut shard = shard_with(b"d", 0);
    let key = |name: &[u8]| Some(Arc::<[u8]>::from(name));
    let hashes = [Hash(5 << 8), Hash(6 << 8), Hash(7 << 8), Hash(8 << 8)];
    let names: [&[u8]; 4] = [b"lock", b"a", b"b", b"c"];
    let asked = |shard: &mut Shard, at: usize, now| {
        shard.name(b"d", (HASH, hashes[at]), names[at], &view(now)).unwrap().1.is_zero()
    };
    // Whoever makes a file looks whether it is there.
    assert!(shard.keep_name(b"d", (HASH, hashes[0]), (names[0], None), fetched(1, 5)));
    assert!(asked(&mut shard, 0, 6), "the first that asks is not told to keep it");
    assert_eq!(begin(&mut shard, names[0], hashes[0], 7), Aspects::empty());
    shard.keep_own_name(b"d", (names[0], key(b"l"), false), 7);
    assert_eq!(begin(&mut shard, names[0], hashes[0], 8), Aspects::empty(), "and is removed again");
    shard.keep_own_name(b"d", (names[0], None, false), 8);
    assert!(asked(&mut shard, 0, 2 * SECOND));
    assert!(!asked(&mut shard, 0, 2 * SECOND), "the second is");
    for at in 1..4 {
        assert!(shard.keep_name(b"d", (HASH, hashes[at]), (names[at], key(names[at])), fetched(1, 5)));
    }
    assert!(!asked(&mut shard, 1, 2 * SECOND), "what is there is told at once");
    assert_eq!(begin(&mut shard, names[2], hashes[2], 3 * SECOND), Aspects::empty(), "nobody has asked for this one");
    assert_eq!(begin(&mut shard, names[0], hashes[0], 3 * SECOND), Aspects::NAMES);
    assert_eq!(begin(&mut shard, names[1], hashes[1], 3 * SECOND), Aspects::empty(), "it was forgotten with the other");
    // All of a listing are told, also those that are not known here any more.
    let told = shard.tell_names(b"d", HASH, [names[3], b"unknown"], &view(5 * SECOND));
    assert!(!told.is_zero());
    assert_eq!(begin(&mut shard, b"another", Hash(9 << 8), 6 * SECOND), Aspects::NAMES);
    assert!(!shard.tell_names(b"d", HASH, [names[3]], &view(8 * SECOND)).is_zero());
    assert_eq!(begin(&mut shard, b"another", Hash(9 << 8), 8 * SECOND), Aspects::empty());
    assert_eq!(begin(&mut shard, names[3], hashes[3], 9 * SECOND), Aspects::NAMES);
    assert!(!shard.tell_names(b"d", HASH, [names[2]], &view(10 * SECOND)).is_zero());
    assert_eq!(shard.take_told(b"d", ALL, 11 * SECOND), Aspects::NAMES, "who gives all back has all forgotten");
}

#[test]
fn a_name_that_is_dropped_for_others_stays_told() {
    let mut names = Names::default();
    names.keep(b"told", None, 5);
    names.tell(b"told", 70);
    (0..NAMES_MAX).for_each(|at| names.keep(format!("{at}").as_bytes(), None, 5));
    assert!(names.get(b"told", &view(6)).is_none());
    assert_eq!((names.drop_name(b"told"), names.drop_name(b"7")), (70, 70));
    names.are_forgotten();
    assert_eq!(names.drop_name(b"told"), 0);
}

#[test]
fn only_whom_the_server_has_let_opens_here() {
    let mut shard = shard_with(b"f", 3);
    let (root, user) = (Credential::root(), Arc::new(Credential { uid: 7, ..Credential::root() }));
    let reads = OpenFlags::READ.bits();
    shard.keep_verdict(b"f", HASH, (&user, reads), fetched(1, 5));
    assert!(shard.allows(b"f", HASH, (&user, reads), &view(6)));
    assert!(!shard.allows(b"f", HASH, (&root, reads), &view(6)));
    assert!(!shard.allows(b"f", HASH, (&user, reads | OpenFlags::NOATIME.bits()), &view(6)));
    assert!(!shard.allows(b"f", HASH, (&user, reads), &view(100 * SECOND)));
    let writes = Touch::Inode { handle: b"f", aspects: ALL - Aspects::NAMES, reach: Reach::Itself };
    shard.begin(&writes, HASH, 6);
    assert!(!shard.allows(b"f", HASH, (&user, reads), &view(7)));
    shard.end(&writes, HASH, (1, 2), true);
    assert!(shard.allows(b"f", HASH, (&user, reads), &view(7)));
    let changes = Touch::Inode { handle: b"f", aspects: Aspects::ATTRIBUTES, reach: Reach::Rights };
    shard.begin(&changes, HASH, 7);
    shard.end(&changes, HASH, (2, 3), true);
    assert!(!shard.allows(b"f", HASH, (&user, reads), &view(8)));
    shard.keep_verdict(b"f", HASH, (&user, reads), fetched(2, 5));
    assert!(!shard.allows(b"f", HASH, (&user, reads), &view(8)), "asked before");
    shard.keep_verdict(b"f", HASH, (&user, reads), fetched(3, 5));
    assert!(shard.allows(b"f", HASH, (&user, reads), &view(8)));
}

#[test]
fn the_data_of_a_file_that_is_open_for_writing_here_are_not_the_kernels_to_keep() {
    let mut shard = shard_with(b"f", 3);
    assert!(shard.data(b"f", HASH, &view(6)));
    assert_eq!(shard.add_writer(b"f", 7), Aspects::DATA);
    assert_eq!(shard.add_writer(b"f", 7), Aspects::empty());
    assert!(!shard.data(b"f", HASH, &view(8)));
    assert!(!shard.attr(b"f", HASH, &view(8)).unwrap().1.is_zero(), "attributes it forgets before they are changed");
    assert!(!shard.remove_writer(b"f", HASH, 9), "it was nobody's own");
    assert!(!shard.data(b"f", HASH, &view(9)));
    assert!(!shard.remove_writer(b"f", HASH, 9), "it was nobody's own");
    assert!(shard.data(b"f", HASH, &view(9)));
}

#[test]
fn who_shares_a_file_has_it_for_himself_only_by_an_answer_to_what_he_asks_later() {
    let mut shard = Shard::default();
    let key: Arc<[u8]> = b"f"[..].into();
    let grant = |shard: &mut Shard, generation, asked| {
        shard.grant((&key, HASH), (name(generation, 1), ALL | Aspects::WRITES), (fetched(asked, 5), 5), 0);
        shard.may_hold_back(b"f", &view(6))
    };
    assert!(grant(&mut shard, 1, 1));
    shard.add_writer(b"f", 5);
    assert!(shard.remove_writer(b"f", HASH, 7));
    assert!(!shard.may_hold_back(b"f", &view(6)));
    assert!(!grant(&mut shard, 2, 8), "the server has not been told");
    shard.end_sharing(HASH, 9);
    assert!(!grant(&mut shard, 3, 8), "it may not have been when it answered");
    assert!(grant(&mut shard, 4, 9));
}

#[test]
fn content_is_not_older_than_the_times_that_are_told() {
    let mut shard = shard_with(b"f", 3);
    shard.keep_content(b"f", HASH, b"old", fetched(1, 5));
    let content = |shard: &mut Shard| shard.content(b"f", HASH, &view(30)).map(|content| content.to_vec());
    assert!(shard.keep_attr(b"f", HASH, &attr(3), fetched(2, 20)));
    assert_eq!(content(&mut shard).as_deref(), Some(&b"old"[..]), "nothing has changed");
    let later = Attr { mtime: Time { seconds: 1, nanos: 0 }, ..attr(3) };
    // The content of an answer comes after its attributes, and is of the same time.
    assert!(shard.keep_attr(b"f", HASH, &later, fetched(2, 5)));
    assert!(content(&mut shard).is_some());
    assert!(shard.keep_attr(b"f", HASH, &attr(3), fetched(3, 21)));
    assert_eq!(content(&mut shard), None);
}

#[test]
fn what_is_kept_is_counted() {
    let mut shard = shard_with(b"d", 3);
    let before = shard.bytes();
    shard.keep_content(b"d", HASH, &[7; 100], fetched(1, 5));
    shard.keep_xattr(b"d", HASH, (b"security.capability", Some(&[1; 50])), fetched(1, 5));
    assert!(shard.bytes() >= before + 150);
    let with_values = shard.bytes();
    for number in 0..100u32 {
        let name = number.to_le_bytes();
        assert!(shard.keep_name(b"d", (HASH, HASH), (&name, None), fetched(1, 5)));
    }
    assert!(shard.bytes() >= with_values + 100 * 100, "a name takes its places in a map and a list");
    let touch = Touch::Inode { handle: b"d", aspects: ALL, reach: Reach::Rights };
    shard.begin(&touch, HASH, 6);
    assert!(shard.bytes() < with_values);
    assert_eq!(shard.leave_eldest(1).len(), 1);
    shard.give_back(b"d", HASH, 9);
    assert_eq!(shard.bytes(), 0);
}

fn pages(counts: &[usize]) -> Vec<(u64, DirPage)> {
    let (mut number, mut pages) = (0u64, Vec::new());
    for (at, count) in counts.iter().enumerate() {
        let (mut page, from) = (DirPage::default(), number * 10);
        for _ in 0..*count {
            number += 1;
            let name = format!("name{number}");
            page.push(&DirEntry { ino: number, cookie: number * 10, kind: 8, name: name.as_bytes(), inode: None });
        }
        page.end = at + 1 == counts.len();
        pages.push((from, page));
    }
    pages
}

fn through(open: u64, cookie: u64, page: &DirPage) -> Fresh<'_> {
    Fresh { open: Some(OpenId(open)), cookie, page, came: 5 }
}

fn listed(names: &mut Names, room: usize) -> Option<Vec<u64>> {
    let size = |entry: &Listed| 20 + entry.name.len();
    let (mut cookie, mut all) = (0, Vec::new());
    loop {
        let part = names.page(cookie, room, &view(6), size)?;
        all.extend(part.entries.iter().map(|entry| entry.ino));
        if part.end {
            return Some(all);
        }
        cookie = part.entries.last()?.cookie;
    }
}

#[test]
fn a_listing_is_put_together_from_its_pages_and_served_in_others() {
    let mut names = Names::default();
    for (cookie, page) in pages(&[3, 4, 2]) {
        assert_eq!(listed(&mut names, 1000), None, "it is not whole");
        names.keep_page(through(1, cookie, &page), 5);
    }
    let whole: Vec<u64> = (1..=9).collect();
    for room in [25, 60, 1000] {
        assert_eq!(listed(&mut names, room).as_ref(), Some(&whole));
    }
    assert_eq!(names.page(40, 1000, &view(6), |_| 1).unwrap().entries[0].ino, 5, "from wherever one was");
    assert!(names.page(41, 1000, &view(6), |_| 1).is_none(), "a cookie that only the server knows");
    assert!(names.page(0, 1000, &View { age_max: 1, ..view(6) }, |_| 1).is_none());
    let again = pages(&[3, 4, 2]).remove(1);
    names.keep_page(through(1, again.0, &again.1), 5);
    assert_eq!(listed(&mut names, 1000), Some(whole), "a page that says the same");
    names.drop_name(b"other");
    assert_eq!(listed(&mut names, 1000), None);
    assert_eq!(names.bytes(), 0);
}

#[test]
fn what_a_listing_does_not_have_is_not_there_only_if_the_server_says_so() {
    let concluded = |exact: [bool; 2], now| {
        let mut names = Names::default();
        for ((cookie, page), exact) in pages(&[3, 2]).iter().zip(exact) {
            assert!(!names.conclude(b"none", &view(6)), "it is not whole");
            let mut page = page.clone();
            page.exact = exact;
            names.keep_page(through(1, *cookie, &page), 5);
        }
        let listed = names.page(0, 1000, &view(6), |_| 1).unwrap().entries[4].name.clone();
        let aged = View { age_max: 10, ..view(now) };
        assert!(!names.conclude(&listed, &aged), "though nothing is known of its inode");
        assert!(!names.conclude(&[b'x'; NAME_LENGTH_MAX + 1], &aged), "which is another error");
        let concludes = names.conclude(b"none", &aged);
        assert_eq!(names.get(b"none", &aged).is_some(), concludes);
        let mut changed = names;
        changed.drop_name(b"none");
        assert!(!changed.conclude(b"none", &aged));
        concludes
    };
    assert!(concluded([true, true], 6));
    assert!(!concluded([true, false], 6) && !concluded([false, true], 6) && !concluded([true, true], 20));
}

#[test]
fn a_listing_that_is_fetched_again_is_as_young_as_its_first_page() {
    let aged = |now| View { age_max: 10, ..view(now) };
    let serves = |names: &mut Names, now| names.page(0, 1000, &aged(now), |_| 1).map(|part| part.left);
    for counts in [&[3][..], &[3, 2]] {
        let mut names = Names::default();
        pages(counts).iter().for_each(|(cookie, page)| names.keep_page(through(1, *cookie, page), 5));
        assert_eq!((serves(&mut names, 6), serves(&mut names, 15)), (Some(9), None));
        let again = pages(counts);
        for (at, (cookie, page)) in again.iter().enumerate() {
            names.keep_page(through(1, *cookie, page), 20 + at as Nanos);
            assert_eq!(serves(&mut names, 26).is_some(), at + 1 == again.len(), "as soon as all is");
        }
        assert_eq!(serves(&mut names, 26), Some(4));
        names.keep_page(through(1, again[0].0, &again[0].1), 7);
        assert_eq!(serves(&mut names, 26), (counts.len() == 1).then_some(4), "what comes late makes nothing younger");
    }
}

#[test]
fn a_listing_is_continued_only_through_the_open_that_began_it() {
    let given = pages(&[3, 2]);
    let [(first, head), (second, tail)] = &given[..] else { panic!("two pages") };
    let mut names = Names::default();
    let begin = |names: &mut Names, open| names.keep_page(through(open, *first, head), 5);
    begin(&mut names, 1);
    begin(&mut names, 2);
    names.keep_page(through(1, *second, tail), 5);
    assert_eq!(listed(&mut names, 1000), None, "what another has read before");
    names.keep_page(through(2, *second, tail), 4);
    assert_eq!(listed(&mut names, 1000), None, "or was asked for before it began");
    names.keep_page(through(2, *second, tail), 5);
    assert!(listed(&mut names, 1000).is_some());
    let (empty, mut ended) = (DirPage::default(), DirPage::default());
    ended.end = true;
    names.keep_page(through(1, *second, &ended), 5);
    assert_eq!(listed(&mut names, 1000).unwrap().len(), 5, "nor does it take the place of what is here");

    // Without an open a listing is one page or none.
    let mut names = Names::default();
    let alone = |page| Fresh { open: None, ..through(0, 0, page) };
    names.keep_page(alone(head), 5);
    names.keep_page(Fresh { cookie: *second, ..alone(tail) }, 5);
    assert_eq!((listed(&mut names, 1000), names.bytes()), (None, 0));
    begin(&mut names, 2);
    names.keep_page(alone(&empty), 5);
    names.keep_page(through(2, *second, tail), 5);
    assert!(listed(&mut names, 1000).is_some(), "and another's goes on");
    names.keep_page(alone(&ended), 5);
    assert_eq!(listed(&mut names, 1000).unwrap().len(), 5, "without itself no directory is listed");
}

#[test]
fn a_listing_with_two_equal_cookies_is_not_kept() {
    let mut names = Names::default();
    let mut page = DirPage::default();
    for ino in 1..=2 {
        let name = [b'a' + ino as u8];
        page.push(&DirEntry { ino, cookie: 10, kind: 8, name: &name, inode: None });
    }
    page.end = true;
    names.keep_page(through(1, 0, &page), 5);
    assert_eq!(listed(&mut names, 1000), None);
}

/// What a client, its server and others do; numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    Ask(usize),
    Execute(usize),
    Deliver(usize),
    Foreign(usize),
    Recall(usize),
    Return(usize),
    BeginChange(usize),
    ExecuteChange(usize),
    EndChange(usize),
    Evict(usize),
    NewSession,
}

fn step() -> impl Strategy<Value = Step> {
    let any = 0..100usize;
    prop_oneof![
        8 => any.clone().prop_map(Step::Ask),
        8 => any.clone().prop_map(Step::Execute),
        8 => any.clone().prop_map(Step::Deliver),
        4 => any.clone().prop_map(Step::Foreign),
        6 => any.clone().prop_map(Step::Recall),
        6 => any.clone().prop_map(Step::Return),
        2 => any.clone().prop_map(Step::BeginChange),
        3 => any.clone().prop_map(Step::ExecuteChange),
        3 => any.clone().prop_map(Step::EndChange),
        2 => any.prop_map(Step::Evict),
        1 => Just(Step::NewSession),
    ]
}

const INODES: usize = 3;

/// A request for the attributes of an inode, and its answer.
struct Asked {
    inode: usize,
    asked: Number,
    epoch: u64,
    answer: Option<(u64, Option<LeaseId>)>,
}

struct Changing {
    inode: usize,
    asked: Number,
    epoch: u64,
    answer: Option<(u64, Option<LeaseId>)>,
}

#[derive(Default)]
struct World {
    leases: Arc<Leases>,
    epoch: u64,
    truth: [u64; INODES],
    /// The server's: generation and whether it is recalled.
    held: [Option<(u64, bool)>; INODES],
    generations: [u64; INODES],
    foreign: [bool; INODES],
    asked: Vec<Asked>,
    changing: Vec<Changing>,
    recalls: Vec<(u64, LeaseId)>,
    returns: Vec<(u64, LeaseId)>,
    uses: usize,
}

fn handle(inode: usize) -> [u8; 1] {
    [inode as u8]
}

fn pick<T>(from: &mut Vec<T>, which: usize) -> Option<T> {
    if from.is_empty() { None } else { Some(from.swap_remove(which % from.len())) }
}

fn touch(handle: &[u8]) -> Touch<'_> {
    Touch::Inode { handle, aspects: Aspects::ATTRIBUTES, reach: Reach::Rights }
}

impl World {
    fn new() -> World {
        let world = World::default();
        world.leases.set_terms(60, 0, false);
        world.leases.renew(0, now());
        world
    }

    /// The server looks, and grants.
    fn grant(&mut self, inode: usize, epoch: u64) -> (u64, Option<LeaseId>) {
        if epoch != self.epoch {
            return (self.truth[inode], Some(name(99, inode as u64))); // what an earlier process has said
        }
        if self.foreign[inode] || self.held[inode].is_some_and(|(_, recalled)| recalled) {
            return (self.truth[inode], None);
        }
        self.generations[inode] += 1;
        self.held[inode] = Some((self.generations[inode], false));
        (self.truth[inode], Some(name(self.generations[inode], inode as u64)))
    }

    fn foreign(&mut self, inode: usize) {
        match &mut self.held[inode] {
            None => self.truth[inode] += 1,
            Some((generation, recalled)) => {
                if !std::mem::replace(recalled, true) {
                    self.recalls.push((self.epoch, name(*generation, inode as u64)));
                }
                self.foreign[inode] = true;
            }
        }
    }

    fn returned(&mut self, epoch: u64, lease: LeaseId) {
        let inode = lease.place() as usize;
        if epoch != self.epoch || self.held[inode].is_none_or(|(generation, _)| name(generation, inode as u64) != lease)
        {
            return;
        }
        self.held[inode] = None;
        self.generations[inode] += 1;
        self.truth[inode] += u64::from(std::mem::take(&mut self.foreign[inode]));
    }

    fn deliver(&mut self, asked: &Asked) {
        let Some((size, Some(lease))) = asked.answer else { return };
        let brought = Brought { epoch: asked.epoch, sent: now(), ..Brought::default() };
        let handle = handle(asked.inode);
        self.leases.keep(&handle, (lease, Aspects::ATTRIBUTES), (asked.asked, &brought), |shard, hash, fetched| {
            shard.keep_attr(&handle, hash, &attr(size), fetched)
        });
    }

    fn end(&mut self, change: &Changing) {
        let handle = handle(change.inode);
        let key = self.leases.key(&handle);
        let hash = self.leases.hash(&handle);
        self.leases.end(&touch(&handle), change.asked, change.answer.is_some(), |shard| {
            if let Some((size, Some(lease))) = change.answer {
                let times = (&attr(size), now(), now(), change.epoch);
                shard.keep_own_attr(&key, hash, (lease, Aspects::ATTRIBUTES), times);
            }
        });
    }

    fn new_session(&mut self) {
        self.epoch += 1;
        self.held = [None; INODES];
        for inode in 0..INODES {
            self.truth[inode] += u64::from(std::mem::take(&mut self.foreign[inode]));
        }
        self.leases.begin_epoch(self.epoch);
        self.leases.renew(self.epoch, now());
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Ask(which) => {
                let (asked, epoch) = (self.leases.asks(), self.epoch);
                self.asked.push(Asked { inode: which % INODES, asked, epoch, answer: None });
            }
            Step::Execute(which) if !self.asked.is_empty() => {
                let at = which % self.asked.len();
                let (inode, epoch, is_new) =
                    (self.asked[at].inode, self.asked[at].epoch, self.asked[at].answer.is_none());
                if is_new {
                    self.asked[at].answer = Some(self.grant(inode, epoch));
                }
            }
            Step::Deliver(which) => {
                if let Some(asked) = pick(&mut self.asked, which) {
                    self.deliver(&asked);
                }
            }
            Step::Foreign(which) => self.foreign(which % INODES),
            Step::Recall(which) => {
                let Some((epoch, lease)) = pick(&mut self.recalls, which) else { return };
                if epoch == self.epoch {
                    let back = self.leases.recall(lease).and_then(|handle| self.leases.give_back(&handle));
                    self.returns.push((epoch, back.into_iter().chain([lease]).max().unwrap()));
                }
            }
            Step::Return(which) => {
                if let Some((epoch, lease)) = pick(&mut self.returns, which) {
                    self.returned(epoch, lease);
                }
            }
            Step::BeginChange(which) => {
                let inode = which % INODES;
                self.leases.begin(&touch(&handle(inode)));
                let (asked, epoch) = (self.leases.asks(), self.epoch);
                self.changing.push(Changing { inode, asked, epoch, answer: None });
            }
            Step::ExecuteChange(which) if !self.changing.is_empty() => {
                let at = which % self.changing.len();
                let (inode, epoch) = (self.changing[at].inode, self.changing[at].epoch);
                if self.changing[at].answer.is_none() && epoch == self.epoch {
                    self.truth[inode] += 1; // nothing of this client's is recalled for it
                    self.changing[at].answer = Some(self.grant(inode, epoch));
                }
            }
            // One that has not been executed is given up: it will not be, or only in this session.
            Step::EndChange(which) => {
                if let Some(change) = pick(&mut self.changing, which) {
                    self.end(&change);
                    if change.answer.is_none() && change.epoch == self.epoch {
                        self.truth[change.inode] += 1; // it is made all the same
                    }
                }
            }
            Step::Evict(which) => {
                let hash = self.leases.hash(&handle(which % INODES));
                for handle in self.leases.shard(hash, |shard| shard.leave_eldest(1)) {
                    self.returns.extend(self.leases.give_back(&handle).map(|lease| (self.epoch, lease)));
                }
            }
            Step::NewSession => self.new_session(),
            Step::Execute(_) | Step::ExecuteChange(_) => {}
        }
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        for inode in 0..INODES {
            let handle = handle(inode);
            let view = self.leases.view().unwrap();
            let mut hold = OfAnswer::new(&self.leases);
            let found = self.leases.find(&handle, &mut hold, |shard, hash| shard.attr(&handle, hash, &view));
            if let Some((attr, _)) = found {
                self.uses += 1;
                prop_assert_eq!(attr.size, self.truth[inode], "inode {}", inode);
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn nothing_that_is_told_is_old(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
            world.check()?;
        }
    }
}

/// The histories are such that something is kept and used.
#[test]
fn the_model_keeps_what_it_may() {
    let mut world = World::new();
    for step in [Step::Ask(0), Step::Execute(0), Step::Deliver(0)] {
        world.take(&step);
    }
    world.check().unwrap();
    assert_eq!(world.uses, 1);
    for step in [Step::BeginChange(0), Step::ExecuteChange(0), Step::EndChange(0)] {
        world.take(&step);
    }
    world.check().unwrap();
    assert_eq!(world.uses, 2, "the answer to an own change says how things are");
}

#[test]
fn what_is_recalled_before_its_reply_is_used_and_not_kept() {
    let mut world = World::new();
    world.take(&Step::Ask(0));
    world.take(&Step::Execute(0));
    world.take(&Step::Foreign(0));
    world.take(&Step::Recall(0));
    world.take(&Step::Return(0));
    world.take(&Step::Deliver(0));
    world.check().unwrap();
    assert_eq!((world.uses, world.leases.kept().0, world.truth[0]), (0, 0, 1));
}

#[test]
fn who_loses_a_lease_while_it_changes_names_keeps_attributes_again_afterwards() {
    let leases = Leases::default();
    leases.set_terms(60, 0, false);
    leases.renew(0, now());
    let touch = Touch::Name { parent: b"d", name: b"a", hash: leases.name_hash(leases.hash(b"d"), b"a") };
    let brought = Brought { epoch: 0, sent: now(), ..Brought::default() };
    let comes = |handle: &[u8], lease, asked| leases.keep(handle, (lease, ALL), (asked, &brought), |_, _, _| ());
    // The lease is recalled before it comes.
    leases.begin_name(&touch, b"d", b"a");
    let asked = leases.asks();
    assert_eq!(leases.recall(name(1, 7)), None);
    assert_eq!(comes(b"d", name(1, 7), asked), None);
    assert!(leases.keeps_attributes(leases.asks()), "no change has relied on it");
    leases.end(&touch, asked, true, |_| {});
    assert!(leases.keeps_attributes(leases.asks()));
    // Its name is given to another.
    assert!(comes(b"d", name(2, 7), leases.asks()).is_some());
    leases.begin_name(&touch, b"d", b"a");
    assert!(comes(b"e", name(3, 7), leases.asks()).is_some());
    assert!(!leases.keeps_attributes(leases.asks()), "others may change the name first now");
    leases.end(&touch, leases.asks(), true, |_| {});
    assert!(leases.keeps_attributes(leases.asks()));
}

#[test]
fn who_may_open_is_not_kept_where_only_the_server_knows_the_groups() {
    let leases = Leases::default();
    let with = |groups| leases.credential(&Credential { uid: 7, gid: 7, groups });
    assert!(with(Groups::Known([9].into())).is_some());
    assert!(with(Groups::Resolve).is_none() && with(Groups::ResolveSquashed(9)).is_none());
}

#[test]
fn credentials_are_shared_and_bounded() {
    let leases = Leases::default();
    let of = |uid| leases.credential(&Credential { uid, ..Credential::root() });
    assert!(Arc::ptr_eq(&of(1).unwrap(), &of(1).unwrap()));
    let kept: Vec<_> = (0..1500).filter_map(of).collect();
    assert_eq!(kept.len(), 1024);
    assert!(of(2000).is_none());
    drop(kept);
    assert!(of(2000).is_some());
}

#[test]
fn a_million_recalls_of_what_there_is_not_take_no_memory() {
    let leases = Leases::default();
    for number in 0..1_000_000 {
        assert!(leases.recall(LeaseId(number)).is_none());
    }
    assert_eq!(leases.kept(), (0, 0));
}

#[test]
fn who_holds_too_much_gives_back_what_was_not_used_for_longest() {
    let leases = Arc::new(Leases::of_test((64, usize::MAX / 4)));
    leases.set_terms(60, 0, false);
    leases.renew(0, now());
    for number in 0..1000u32 {
        let handle = number.to_le_bytes();
        let brought = Brought { sent: now(), ..Brought::default() };
        leases.keep(&handle, (LeaseId(number.into()), ALL), (leases.asks(), &brought), |_, _, _| ());
    }
    let (inodes, bytes) = leases.kept();
    assert!((64..=128).contains(&inodes), "{inodes}: what leaves stays until it is given back, and no more comes");
    assert!(bytes > inodes * 200);
}
