//! Listings from memory, in pages of any size, with and without inodes.

use aqueduct_fs::*;

use crate::fixture::*;

fn tree(process: &Process, count: usize) {
    for number in 0..count {
        std::fs::write(process.path(&format!("file{number:04}")), "text").unwrap();
    }
}

/// Somebody who lists the root page by page.
struct Lister<'a> {
    mount: &'a Mount,
    open: OpenId,
    cookie: u64,
    names: Vec<String>,
    is_done: bool,
}

impl<'a> Lister<'a> {
    fn new(mount: &'a Mount) -> Lister<'a> {
        let open = mount.ask(Request::OpenDirectory { handle: mount.root.bytes() }).unwrap().opened().unwrap().id;
        Lister { mount, open, cookie: 0, names: Vec::new(), is_done: false }
    }

    fn next(&mut self, size: u32) {
        let read = Request::ReadDirectory { open: self.open, cookie: self.cookie, size, plus: true };
        let page = self.mount.ask(read).unwrap().directory().unwrap();
        for entry in page.entries() {
            self.names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            self.cookie = entry.cookie;
        }
        self.is_done = page.end;
    }

    fn finish(&mut self, size: u32) {
        while !self.is_done {
            self.next(size);
        }
    }

    fn rewind(&mut self) {
        (self.cookie, self.is_done) = (0, false);
        self.names.clear();
    }
}

fn create(mount: &Mount, names: &[String]) {
    for name in names {
        let (_, open) = mount.create(name);
        mount.release(open);
    }
}

/// All of them are found, and listed.
#[track_caller]
fn assert_there(mount: &Mount, new: &[String]) {
    let missing: Vec<&String> = new.iter().filter(|name| mount.look_up(name).is_err()).collect();
    assert!(missing.is_empty(), "not found: {missing:?}");
    let list = mount.list(&mount.root, 65_536, true);
    let listed = names(&list);
    let missing: Vec<&String> = new.iter().filter(|name| !listed.contains(&&name[..])).collect();
    assert!(missing.is_empty(), "not listed: {missing:?}");
}

/// Says so if new names come first in listings, or last: then nothing could be missing in the midst. ext4 lists in the order of hashes.
fn say_if_unsuited(mount: &Mount, new: &[String]) {
    let list = mount.list(&mount.root, 65_536, true);
    let is_new = |name: &str| new.iter().any(|new| new == name);
    let files = names(&list).into_iter().filter(|name| is_new(name) || name.starts_with("file"));
    let is_new: Vec<bool> = files.map(is_new).collect();
    if is_new.is_sorted() || is_new.iter().rev().is_sorted() {
        eprintln!("this shows nothing: /var/tmp is on a file system that lists in the order of creation");
    }
}

fn names(list: &[(String, Option<Attr>)]) -> Vec<&str> {
    list.iter().map(|(name, _)| &name[..]).collect()
}

#[test]
fn a_listing_is_served_from_memory_in_the_servers_order() {
    let process = Process::new();
    tree(&process, 300);
    let mount = process.mount();
    mount.look_up("file0000").unwrap();
    mount.stat(&mount.root);
    let first = mount.list(&mount.root, 4096, true);
    assert_eq!(first.len(), 302);
    for size in [600, 4096, 65_536] {
        for plus in [true, false] {
            let again = mount.warm(|| mount.list(&mount.root, size, plus));
            assert_eq!(names(&again), names(&first), "pages of {size} bytes");
            let with_inodes = again.iter().filter(|(_, inode)| inode.is_some()).count();
            assert_eq!(with_inodes, if plus { 300 } else { 0 });
        }
    }
    // With the inodes of a listing all its names and attributes are known.
    mount.warm(|| assert_eq!(mount.look_up("file0123").unwrap().attr.size, 4));
}

#[test]
fn a_listing_goes_on_at_the_server_where_memory_has_ended() {
    let process = Process::new();
    tree(&process, 200);
    let (mount, other) = (process.mount(), process.mount());
    mount.stat(&mount.root);
    let whole = mount.list(&mount.root, 4096, false);
    let open =
        mount.warm(|| mount.ask(Request::OpenDirectory { handle: mount.root.bytes() }).unwrap().opened().unwrap().id);
    let page = |cookie| {
        let read = Request::ReadDirectory { open, cookie, size: 1000, plus: false };
        mount.ask(read).unwrap().directory().unwrap()
    };
    let first = mount.warm(|| page(0));
    // What is recalled leaves memory; the descriptor and its place in the listing stay.
    other.create("new");
    let (mut cookie, mut seen) = (0, Vec::new());
    for entry in first.entries() {
        seen.push(String::from_utf8(entry.name.to_vec()).unwrap());
        cookie = entry.cookie;
    }
    loop {
        let next = page(cookie);
        for entry in next.entries() {
            seen.push(String::from_utf8(entry.name.to_vec()).unwrap());
            cookie = entry.cookie;
        }
        if next.end {
            break;
        }
    }
    seen.retain(|name| name != "new");
    assert_eq!(seen, names(&whole), "nothing twice, nothing left out");
    mount.ask(Request::ReleaseDirectory { open }).unwrap();
    assert_eq!(mount.list(&mount.root, 4096, false).len(), 203);
}

#[test]
fn an_own_change_is_in_the_next_listing() {
    let process = Process::new();
    tree(&process, 10);
    let mount = process.mount();
    let before = mount.list(&mount.root, 4096, true).len();
    mount.create("new");
    assert_eq!(mount.list(&mount.root, 4096, true).len(), before + 1);
    mount.unlink("new").unwrap();
    assert_eq!(mount.list(&mount.root, 4096, true).len(), before);
}

/// A page with inodes needs all of them; one that is missing is asked for.
#[test]
fn a_page_with_inodes_has_them_as_they_are_now() {
    let process = Process::new();
    tree(&process, 20);
    let (mount, other) = (process.mount(), process.mount());
    mount.list(&mount.root, 4096, true);
    mount.warm(|| mount.list(&mount.root, 4096, true));
    let file = other.look_up("file0007").unwrap().handle;
    other.set_mode(&file, 0o600);
    let list = mount.list(&mount.root, 4096, true);
    let mode = |name: &str| list.iter().find(|(of, _)| of == name).unwrap().1.unwrap().mode & 0o777;
    assert_eq!((mode("file0007"), mode("file0008")), (0o600, 0o644));
}

/// Searching for what is nowhere takes no more memory than there may be, and what is looked at after it is kept as ever.
#[test]
fn names_that_are_concluded_to_be_absent_are_bounded() {
    const BYTES_MAX: u64 = 32 << 20;
    let process = Process::new();
    (0..8).for_each(|at| std::fs::create_dir(process.path(&format!("d{at}"))).unwrap());
    let (mount, other) = (process.mount(), process.mount());
    let bytes = || mount.status()["leases"]["bytes"].as_u64().unwrap();
    let long = "x".repeat(NAME_LENGTH_MAX - 10);
    let asked = mount.operations();
    for at in 0..8 {
        let directory = mount.look_up(&format!("d{at}")).unwrap().handle;
        mount.list(&directory, 65536, true);
        for number in 0..20_000 {
            assert_eq!(mount.look_up_in(&directory, &format!("{long}{number}")).unwrap_err(), Errno::ENOENT);
            if mount.operations() > asked + 100 {
                break;
            }
        }
        assert!(bytes() < BYTES_MAX + BYTES_MAX / 2, "{at}: {}", mount.status());
    }
    assert!(mount.operations() > asked + 100, "nothing was full: {}", mount.status());
    let (file, _open) = other.create("later");
    mount.look_up("later").unwrap();
    mount.warm(|| mount.stat(&file.handle));
}

/// Behind the first page a server gives what it has read for the same open before: as good as the listing that began then, and no part of a later one.
#[test]
fn what_was_read_for_one_listing_is_no_part_of_another() {
    let process = Process::on_disk();
    tree(&process, 900);
    let (mount, other) = (process.mount(), process.mount());
    let mut one = Lister::new(&mount);
    one.next(4096);
    let new: Vec<String> = (0..20).map(|at| format!("new{at}")).collect();
    create(&other, &new);
    Lister::new(&mount).next(65_536);
    one.finish(65_536);
    assert_there(&mount, &new);
    say_if_unsuited(&mount, &new);
}

/// The server reads a small directory at once, and gives it page by page.
#[test]
fn who_lists_slowly_puts_nothing_old_into_memory() {
    let process = Process::on_disk();
    tree(&process, 200);
    let (mount, other) = (process.mount(), process.mount());
    let new: Vec<String> = (0..20).map(|at| format!("new{at}")).collect();
    let mut slow = Lister::new(&mount);
    for part in new.chunks(10) {
        slow.next(4096);
        create(&other, part);
    }
    mount.list(&mount.root, 65_536, true);
    slow.finish(4096);
    assert_there(&mount, &new);
    say_if_unsuited(&mount, &new);
}

/// Also where the server was not told of it, since memory had the first page.
#[test]
fn a_listing_that_is_begun_again_has_nothing_from_before() {
    let process = Process::on_disk();
    tree(&process, 200);
    let (mount, other) = (process.mount(), process.mount());
    let new: Vec<String> = (0..20).map(|at| format!("new{at}")).collect();
    mount.stat(&mount.root);
    mount.list(&mount.root, 65_536, true);
    let mut lister = mount.warm(|| Lister::new(&mount));
    lister.next(4096);
    create(&other, &["first".into()]);
    lister.next(4096); // from the server, which has read all by now
    let place = lister.cookie;
    create(&other, &new);
    mount.list(&mount.root, 65_536, true);
    lister.rewind();
    while lister.cookie != place {
        lister.next(200); // one entry
    }
    create(&other, &["last".into()]);
    lister.finish(4096);
    let missing: Vec<&String> = new.iter().filter(|name| !lister.names.contains(name)).collect();
    assert!(missing.is_empty(), "they were there before it began again: {missing:?}");
    say_if_unsuited(&mount, &new);
}
