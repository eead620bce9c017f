//! Listings from memory, in pages of any size, with and without inodes.

use aqueduct_fs::*;

use crate::fixture::*;

fn tree(process: &Process, count: usize) {
    for number in 0..count {
        std::fs::write(process.path(&format!("file{number:04}")), "text").unwrap();
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
