//! What one mount did, another sees at once.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Gid, Uid, XattrFlags, chownat, getxattr, removexattr, setxattr};

use crate::common::{Mount, One, Pair, errno, test};
use crate::kernels::BEFORE_6_6;
use crate::sys;

fn names(path: &Path) -> HashSet<String> {
    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// What has to make no difference.
const CACHES: [&str; 2] = ["cache=none", "cache=lease"];

#[test]
fn data_written_on_one_mount_is_read_on_the_other() {
    test(|| CACHES.iter().chain(&BEFORE_6_6).for_each(|options| data_is_seen(&Pair::with(options))));
}

/// Descriptors of one file on both mounts, and a name that is opened anew each time.
fn data_is_seen(pair: &Pair) {
    let open = |mount: &Mount| {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(mount.join("file")).unwrap()
    };
    let (left, right) = (open(&pair.left), open(&pair.right));
    // Those that are opened for reading may be cached.
    let readers = [&pair.left, &pair.right].map(|mount| File::open(mount.join("file")).unwrap());
    for round in 0..500u32 {
        let (writer, reader) = if round % 2 == 0 { (&left, &right) } else { (&right, &left) };
        // Mostly of the same size, several within one tick of the clock: neither size nor time tells that there is something new.
        let data = vec![round as u8; if round % 50 == 49 { 70_000 } else { 5000 }];
        writer.write_all_at(&data, 0).unwrap();
        let mut back = vec![0; data.len()];
        reader.read_exact_at(&mut back, 0).unwrap();
        assert!(back == data, "round {round}, by a held descriptor");
        for reader in &readers {
            back.fill(0);
            reader.read_exact_at(&mut back, 0).unwrap();
            assert!(back == data, "round {round}, by one that was opened for reading");
        }
        assert_eq!(reader.metadata().unwrap().len(), writer.metadata().unwrap().len());
        let name = if round % 2 == 0 { pair.right.join("file") } else { pair.left.join("file") };
        assert!(fs::read(name).unwrap()[..data.len()] == data, "round {round}, by name");
        if round % 50 == 49 {
            writer.set_len(5000).unwrap();
            assert_eq!(reader.metadata().unwrap().len(), 5000);
            assert_eq!(reader.read_at(&mut back, 5000).unwrap(), 0);
        }
    }
}

#[test]
fn names_and_attributes_are_seen_at_once() {
    test(|| {
        for options in CACHES {
            let pair = Pair::with(options);
            for round in 0..20 {
                let (here, there) = if round % 2 == 0 { (&pair.left, &pair.right) } else { (&pair.right, &pair.left) };
                names_are_seen(here, there);
                attributes_are_seen(here, there);
            }
        }
    });
}

fn names_are_seen(here: &Mount, there: &Mount) {
    assert_eq!(fs::metadata(there.join("new")).unwrap_err().kind(), ErrorKind::NotFound);
    File::create_new(here.join("new")).unwrap();
    assert_eq!(fs::metadata(there.join("new")).unwrap().len(), 0, "a name that was asked for in vain before");
    fs::rename(here.join("new"), here.join("moved")).unwrap();
    assert_eq!(fs::metadata(there.join("new")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(names(there.path()), HashSet::from(["moved".to_owned()]));
    fs::hard_link(there.join("moved"), there.join("linked")).unwrap();
    assert_eq!(fs::metadata(here.join("moved")).unwrap().nlink(), 2);
    fs::remove_file(here.join("moved")).unwrap();
    assert_eq!(errno(File::open(there.join("moved"))), libc::ENOENT);
    // Another kind of thing of the same name.
    fs::remove_file(here.join("linked")).unwrap();
    fs::create_dir(here.join("linked")).unwrap();
    assert!(fs::metadata(there.join("linked")).unwrap().is_dir());
    fs::write(there.join("linked/inside"), "inside").unwrap();
    assert_eq!(errno(fs::remove_dir(here.join("linked"))), libc::ENOTEMPTY);
    fs::remove_file(here.join("linked/inside")).unwrap();
    fs::remove_dir(here.join("linked")).unwrap();
    symlink("one", here.join("linked")).unwrap();
    assert_eq!(fs::read_link(there.join("linked")).unwrap(), Path::new("one"));
    fs::remove_file(there.join("linked")).unwrap();
    symlink("two", there.join("linked")).unwrap();
    assert_eq!(fs::read_link(here.join("linked")).unwrap(), Path::new("two"));
    fs::remove_file(here.join("linked")).unwrap();
    assert_eq!(names(there.path()), HashSet::new());
}

fn attributes_are_seen(here: &Mount, there: &Mount) {
    let (path, other) = (here.join("file"), there.join("file"));
    fs::write(&path, "12345").unwrap();
    let seen = || fs::metadata(&other).unwrap();
    assert_eq!(seen().len(), 5);
    fs::set_permissions(&path, Permissions::from_mode(0o4751)).unwrap();
    assert_eq!(seen().mode() & 0o7777, 0o4751);
    chownat(CWD, &path, Some(Uid::from_raw(12)), Some(Gid::from_raw(34)), AtFlags::empty()).unwrap();
    assert_eq!((seen().uid(), seen().gid(), seen().mode() & 0o7777), (12, 34, 0o751));
    let file = File::options().write(true).open(&path).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::new(77, 88)).unwrap();
    assert_eq!((seen().mtime(), seen().mtime_nsec()), (77, 88));
    file.set_len(3).unwrap();
    assert_eq!((seen().len(), seen().mtime() > 77), (3, true));
    let mut value = [0; 10];
    setxattr(&path, "user.x", b"one", XattrFlags::empty()).unwrap();
    assert_eq!(getxattr(&other, "user.x", &mut value[..]), Ok(3));
    removexattr(&path, "user.x").unwrap();
    assert_eq!(getxattr(&other, "user.x", &mut value[..]), Err(rustix::io::Errno::NODATA));
    fs::remove_file(&path).unwrap();
}

#[test]
fn changes_on_the_server_are_seen_at_once() {
    test(|| {
        let one = One::with("cache=none");
        let (there, here) = (one.export.path().join("file"), one.path("file"));
        for round in 0..100u8 {
            fs::write(&there, [round; 100]).unwrap();
            assert_eq!(fs::read(&here).unwrap(), [round; 100]);
            fs::remove_file(&there).unwrap();
            assert_eq!(errno(fs::metadata(&here)), libc::ENOENT);
        }
    });
}

#[test]
fn appends_from_two_mounts_lose_nothing() {
    test(|| {
        const RECORDS: usize = 1500;
        let pair = Pair::new();
        let append = |mount: &Mount, writer: u8| {
            let mut file = OpenOptions::new().append(true).create(true).open(mount.join("log")).unwrap();
            move || {
                for number in 0..RECORDS {
                    // Of several lengths, some above a page.
                    let filler = "x".repeat(number % 37 * 150);
                    file.write_all(format!("{writer} {number} {filler}\n").as_bytes()).unwrap();
                }
            }
        };
        let writers = [append(&pair.left, 0), append(&pair.right, 1), append(&pair.left, 2)];
        writers.map(thread::spawn).into_iter().for_each(|writer| writer.join().unwrap());
        let text = fs::read_to_string(pair.right.join("log")).unwrap();
        let mut next = [0; 3];
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let (writer, number): (usize, usize) = (words[0].parse().unwrap(), words[1].parse().unwrap());
            assert_eq!((number, words[2].len()), (next[writer], number % 37 * 150), "a record is lost or torn");
            next[writer] += 1;
        }
        assert_eq!(next, [RECORDS; 3]);
    });
}

/// A program that writes at the end of what it has open asks the kernel where that is. The kernel
/// goes by what it believes of the file.
#[test]
fn the_end_of_an_open_file_is_where_others_have_left_it() {
    test(|| {
        let pair = Pair::new();
        let [name, other] = [&pair.left, &pair.right].map(|mount| mount.join("file"));
        let set_length = |path: &Path, length| OpenOptions::new().write(true).open(path).unwrap().set_len(length);
        type Look<'a> = (&'a str, &'a dyn Fn(&File));
        let looks: [Look; 4] = [
            ("made longer here", &|_| set_length(&name, 3000).unwrap()),
            ("made longer by the open file", &|file| file.set_len(3000).unwrap()),
            ("seen longer by name", &|_| {
                set_length(&other, 3000).unwrap();
                assert_eq!(fs::metadata(&name).unwrap().len(), 3000);
            }),
            ("read when it was longer", &|file| {
                set_length(&other, 3000).unwrap();
                let mut all = Vec::new();
                (&*file).seek(SeekFrom::Start(0)).and_then(|_| (&*file).read_to_end(&mut all)).unwrap();
                assert_eq!(all.len(), 3000);
            }),
        ];
        for (what, look) in looks {
            for (end, wrote) in [(2500, false), (2600, true), (1500, false), (2000, false), (4000, false)] {
                fs::write(&name, vec![b'1'; 2000]).unwrap();
                let mut file = OpenOptions::new().read(true).write(true).open(&name).unwrap();
                assert_eq!(file.metadata().unwrap().len(), 2000);
                look(&file);
                set_length(&other, if wrote { end - 100 } else { end }).unwrap();
                if wrote {
                    OpenOptions::new().append(true).open(&other).unwrap().write_all(&[b'2'; 100]).unwrap();
                }
                assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), end, "{what}, then cut to {end}");
                file.write_all(b"at the end").unwrap();
                assert_eq!(fs::metadata(&other).unwrap().len(), end + 10, "{what}, then cut to {end}");
                let content = fs::read(&other).unwrap();
                assert!(
                    content.ends_with(b"at the end"),
                    "{what}, then cut to {end}: {:?}",
                    &content[content.len() - 20..]
                );
            }
        }
    });
}

#[test]
fn an_exclusive_create_has_one_winner() {
    test(|| {
        let pair = Pair::new();
        let barrier = Barrier::new(2);
        let race = |mount: &Mount| -> Vec<bool> {
            let create = |round| {
                barrier.wait();
                match File::create_new(mount.join(format!("lock-{round}"))) {
                    Ok(_) => true,
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
                    Err(error) => panic!("{error}"),
                }
            };
            (0..300).map(create).collect()
        };
        let (left, right) = thread::scope(|scope| {
            let left = scope.spawn(|| race(&pair.left));
            (race(&pair.right), left.join().unwrap())
        });
        assert!(left.iter().zip(&right).all(|(left, right)| left != right));
    });
}

#[test]
fn a_shared_mapping_is_seen_after_msync() {
    test(|| {
        let pair = Pair::new();
        fs::write(pair.left.join("file"), vec![0; 20_000]).unwrap();
        for round in 1..50u8 {
            let (here, there) = if round % 2 == 0 { (&pair.left, &pair.right) } else { (&pair.right, &pair.left) };
            let file = File::options().read(true).write(true).open(here.join("file")).unwrap();
            sys::store_shared(file.as_fd(), 20_000, 10_000 + usize::from(round), round).unwrap();
            let reader = File::open(there.join("file")).unwrap();
            let mut byte = [0];
            reader.read_exact_at(&mut byte, 10_000 + u64::from(round)).unwrap();
            assert_eq!(byte, [round], "by read");
            let mapped = sys::load_private(reader.as_fd(), 20_000).unwrap();
            let wanted: Vec<u8> = (0..20_000)
                .map(|at| if (10_001..=10_000 + usize::from(round)).contains(&at) { (at - 10_000) as u8 } else { 0 })
                .collect();
            assert!(mapped == wanted, "by a new mapping, round {round}");
        }
    });
}

#[test]
fn close_to_open_sees_what_was_closed_before_the_open() {
    test(|| {
        let pair = Pair::with("cache=close-to-open");
        for round in 0..200u8 {
            let (here, there) = if round % 2 == 0 { (&pair.left, &pair.right) } else { (&pair.right, &pair.left) };
            fs::write(here.join("file"), vec![round; 9000]).unwrap();
            assert!(fs::read(there.join("file")).unwrap() == vec![round; 9000], "round {round}");
        }
    });
}

/// Both mounts change the same few names as fast as they can: nobody waits for ever, and the tree stays in order.
#[test]
fn contended_churn_ends() {
    test(|| {
        let pair = Pair::new();
        let until = Instant::now() + Duration::from_secs(4);
        let churn = |mount: &Mount, mut seed: u64| {
            let root = mount.path().to_owned();
            move || {
                let mut done = 0u64;
                while Instant::now() < until {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let name = |shift: u32| root.join(["a", "b", "a/c", "a/d", "b/c"][(seed >> shift) as usize % 5]);
                    // Each may fail, for the other was there first.
                    let result = match (seed >> 60) % 8 {
                        0 | 1 => fs::create_dir(name(40)),
                        2 => fs::remove_dir(name(40)),
                        3 => fs::write(name(40), "x"),
                        4 => fs::remove_file(name(40)),
                        5 => fs::rename(name(40), name(50)),
                        6 => fs::read_dir(name(40)).map(|entries| entries.for_each(drop)),
                        _ => fs::hard_link(name(40), name(50)),
                    };
                    done += u64::from(result.is_ok());
                }
                done
            }
        };
        let churners = [(&pair.left, 1), (&pair.right, 2), (&pair.left, 3), (&pair.right, 4)];
        let threads = churners.map(|(mount, seed)| thread::spawn(churn(mount, seed)));
        let done: Vec<u64> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        // Some hundreds; fewer where much else runs.
        assert!(done.iter().all(|&done| done > 10), "{done:?}");
        // Clients do not see the folder in which the server keeps what is removed while open.
        let find = "find . -name .aqueduct-unlinked -prune -o -printf '%p %y %s\\n' | sort";
        let tree = |root: &Path| crate::common::shell(root, find).succeeded();
        assert_eq!(tree(pair.left.path()), tree(pair.right.path()));
        assert_eq!(tree(pair.left.path()).lines().count(), tree(pair.export.path()).lines().count());
    });
}
