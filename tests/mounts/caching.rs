//! What clients keep under leases, and for how long.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{RawDir, SeekFrom};
use rustix::process::Signal;

use crate::common::{
    FileSystem, Mount, One, Pair, Server, aqueduct, directory, is_linux, keeps_names, patience, shell, skip, test,
    within,
};

/// What a client that does not answer holds up a change: 7 s of its lease and 3 more; on a busy machine a little longer.
const HELD_UP_MAX: Duration = Duration::from_secs(14);

/// Answers that did not come from memory.
fn asked(mount: &Mount) -> u64 {
    mount.status()["leases"]["misses"].as_u64().unwrap()
}

#[test]
fn what_was_looked_at_is_not_asked_for_again() {
    test(|| {
        let one = One::with("cache=lease");
        let script = "for d in 1 2 3 4 5; do mkdir $d; for f in 1 2 3 4 5 6 7 8 9; do echo $d$f > $d/$f; done; ln -s 1 $d/link; done";
        shell(one.export.path(), script).succeeded();
        let look = "find . -ls > /dev/null; cat ?/? | wc -c; ls -R | wc -l; for d in ?; do test ! -e $d/none; readlink $d/link; done";
        let first = shell(one.mount.path(), look).succeeded();
        // News of what was just made on the server may still come, and recall what was looked at before.
        let is_kept = || {
            thread::sleep(Duration::from_millis(200));
            let before = asked(&one.mount);
            assert_eq!(shell(one.mount.path(), look).succeeded(), first);
            asked(&one.mount) == before
        };
        assert!((0..10).any(|_| is_kept()));
        // What it does itself ends that for what it changes only.
        fs::write(one.path("1/1"), "new").unwrap();
        assert_eq!(fs::read_to_string(one.path("1/1")).unwrap(), "new");
        let before = asked(&one.mount);
        assert_eq!(shell(one.mount.path(), "cat 2/?").succeeded(), "21\n22\n23\n24\n25\n26\n27\n28\n29\n");
        assert_eq!(asked(&one.mount) - before, 0);
    });
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

/// The kernel of a stopped daemon goes on for as long as its timeouts say, and no change is made before they are over.
#[test]
fn a_stopped_client_holds_up_a_change_once_and_shows_nothing_old() {
    within(Duration::from_secs(90), || {
        if !keeps_names() {
            return;
        }
        let pair = Pair::with("cache=lease");
        // By the other: a mount does not let its kernel keep for a while what it has changed itself.
        fs::create_dir(pair.right.join("d")).unwrap();
        for name in ["a", "d/b", "c"] {
            fs::write(pair.right.join(name), "old").unwrap();
        }
        let held = File::open(pair.left.join("c")).unwrap();
        for name in ["a", "d/b", "c"] {
            assert_eq!(
                (mode(&pair.left.join(name)), fs::read(pair.left.join(name)).unwrap()),
                (0o644, b"old".to_vec())
            );
        }
        // Until the kernel keeps that there is none.
        let asks = |name: &str| {
            let before = upcalls(&pair.left);
            assert!(!pair.left.join(name).exists());
            upcalls(&pair.left) > before
        };
        let is_kept = || {
            thread::sleep(Duration::from_millis(50));
            !asks("d/new")
        };
        assert!((0..100).any(|_| is_kept()));
        pair.left.process.stop();
        let began = Instant::now();
        fs::set_permissions(pair.right.join("a"), Permissions::from_mode(0o600)).unwrap();
        let took = began.elapsed();
        assert!(took < HELD_UP_MAX, "{took:?}");
        let again = Instant::now();
        fs::write(pair.right.join("c"), "new").unwrap();
        fs::remove_file(pair.right.join("d/b")).unwrap();
        fs::write(pair.right.join("d/new"), "new").unwrap();
        assert!(again.elapsed() < Duration::from_secs(3), "{:?}", again.elapsed());

        // Whatever is asked there now waits, or is the truth.
        let left = pair.left.path().to_owned();
        let looks: Vec<thread::JoinHandle<()>> = vec![
            thread::spawn({
                let path = left.join("a");
                move || assert_eq!(mode(&path), 0o600)
            }),
            thread::spawn({
                let path = left.join("d/b");
                move || assert!(!path.exists())
            }),
            thread::spawn({
                let path = left.join("d/new");
                move || assert_eq!(fs::read(path).unwrap(), b"new")
            }),
            thread::spawn(move || {
                let mut data = [0; 3];
                held.read_exact_at(&mut data, 0).unwrap();
                assert_eq!(&data, b"new", "through a descriptor that was opened before");
            }),
        ];
        thread::sleep(Duration::from_millis(300));
        pair.left.process.signal(Signal::CONT);
        looks.into_iter().for_each(|look| look.join().unwrap());
        // It is as before.
        fs::set_permissions(pair.right.join("a"), Permissions::from_mode(0o640)).unwrap();
        assert_eq!(mode(&pair.left.join("a")), 0o640);
    });
}

/// Both hold a directory, and both change it, in threads of their own: nobody waits for anybody for ever.
#[test]
fn who_holds_a_directory_and_changes_it_waits_for_nobody_who_does_the_same() {
    within(Duration::from_secs(60), || {
        let pair = Pair::with("cache=lease");
        fs::create_dir(pair.left.join("d")).unwrap();
        let until = Instant::now() + Duration::from_secs(4);
        let churn = |mount: &Mount, own: usize| {
            let root = mount.join("d");
            move || {
                let mut rounds = 0usize;
                while Instant::now() < until {
                    let (one, two) = (root.join(format!("{own}")), root.join(format!("{own}-{}", rounds % 3)));
                    // Names that are held, listed and missing on both sides.
                    assert!(!one.exists());
                    fs::create_dir(&one).unwrap();
                    assert!(fs::read_dir(&root).unwrap().count() >= 1);
                    fs::rename(&one, &two).unwrap();
                    assert!(two.is_dir() && !one.exists());
                    // Never shorter: who reads while another client cuts it may see zeros.
                    let both =
                        OpenOptions::new().write(true).create(true).truncate(false).open(root.join("both")).unwrap();
                    both.write_all_at(&[b'x'; 100], 0).unwrap();
                    drop(both);
                    let mut text = Vec::new();
                    File::open(root.join("both")).unwrap().read_to_end(&mut text).unwrap();
                    assert!(text.iter().all(|byte| *byte == b'x'));
                    fs::remove_dir(&two).unwrap();
                    rounds += 1;
                }
                rounds
            }
        };
        let churners = [(&pair.left, 1), (&pair.right, 2), (&pair.left, 3), (&pair.right, 4)];
        let threads = churners.map(|(mount, own)| thread::spawn(churn(mount, own)));
        let rounds = threads.map(|thread| thread.join().unwrap());
        // 50 to 90 mostly; who waits for a recall that nobody answers makes one.
        println!("{rounds:?} rounds");
        assert!(rounds.iter().all(|rounds| *rounds > 1), "{rounds:?}");
    });
}

/// Threads of one mount empty a file, write it and read it, each at its own time: some read nothing, nobody what was never written. Readers that had opened it
/// before somebody wrote have it from the kernel's pages.
#[test]
fn nobody_reads_zeros_from_a_file_that_is_emptied_and_written() {
    // Where processors are emulated readers wait for longer than that for one: SEMANTICS.md.
    if patience() > 1 && !is_linux((6, 6)) {
        return skip("needs readers that get a processor within 3 ms");
    }
    within(Duration::from_secs(60), || {
        let pair = Pair::with("cache=lease");
        let until = Instant::now() + Duration::from_secs(5);
        let churn = |path: PathBuf| {
            move || {
                let mut rounds = 0usize;
                while Instant::now() < until {
                    fs::write(&path, [b'x'; 100]).unwrap();
                    let text = fs::read(&path).unwrap();
                    assert!(text.iter().all(|byte| *byte == b'x'), "{} bytes: {text:?}", text.len());
                    rounds += 1;
                }
                rounds
            }
        };
        let threads = [&pair.left; 3].map(|mount| thread::spawn(churn(mount.join("file"))));
        let rounds = threads.map(|thread| thread.join().unwrap());
        assert!(rounds.iter().all(|rounds| *rounds > 1), "{rounds:?}");
    });
}

/// What the kernel asked the mount for.
fn upcalls(mount: &Mount) -> u64 {
    let leases = &mount.status()["leases"];
    leases["hits"].as_u64().unwrap() + leases["misses"].as_u64().unwrap()
}

/// As git does with its lock whenever it looks at a tree.
#[test]
fn what_a_mount_makes_and_removes_leaves_other_names_known() {
    test(|| {
        if !keeps_names() {
            return;
        }
        let one = One::with("cache=lease");
        shell(one.export.path(), "mkdir d locks; for f in 1 2 3; do echo $f > d/$f; done").succeeded();
        let look = || {
            let before = upcalls(&one.mount);
            (1..4).for_each(|f| assert!(fs::metadata(one.path(format!("d/{f}"))).unwrap().is_file()));
            upcalls(&one.mount) - before
        };
        let lock = one.path("locks/lock");
        let leaves_all = || {
            // A mount does not let its kernel keep for a second what it has changed itself.
            thread::sleep(Duration::from_millis(1100));
            let known = (0..3).any(|_| look() == 0);
            File::options().write(true).create_new(true).open(&lock).unwrap();
            fs::remove_file(&lock).unwrap();
            known && look() == 0
        };
        assert!((0..5).any(|_| leaves_all()));
        // What the kernel does keep of it is forgotten first.
        thread::sleep(Duration::from_millis(1100));
        for _ in 0..3 {
            assert!(!lock.exists());
        }
        fs::write(&lock, "new").unwrap();
        assert!(lock.exists());
        fs::remove_file(&lock).unwrap();
        assert!(!lock.exists());
    });
}

/// What a descriptor lists from its beginning, or from a cookie on, asked for with so much room: names, and the cookies behind them.
fn list(directory: &File, from: u64, room: usize) -> Vec<(String, u64)> {
    rustix::fs::seek(directory, SeekFrom::Start(from)).unwrap();
    let mut buffer = vec![MaybeUninit::uninit(); room];
    let mut entries = RawDir::new(directory, &mut buffer);
    let mut listed = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.unwrap();
        listed.push((entry.file_name().to_str().unwrap().to_owned(), entry.next_entry_cookie()));
    }
    listed
}

fn names(listed: &[(String, u64)]) -> BTreeSet<String> {
    let names = listed.iter().map(|(name, _)| name.clone()).filter(|name| name != "." && name != "..");
    let count = listed.len();
    let names: BTreeSet<String> = names.collect();
    assert!(names.len() + 2 >= count, "one is listed twice: {listed:?}");
    names
}

#[test]
fn a_listing_that_the_kernel_keeps_costs_its_opening_and_is_true() {
    within(Duration::from_secs(180), || {
        if !keeps_names() {
            return;
        }
        let pair = Pair::with("cache=lease");
        fs::create_dir(pair.right.join("d")).unwrap();
        let mut truth = BTreeSet::new();
        for number in 0..500 {
            let name = format!("some-longer-name-{number}");
            fs::write(pair.right.join("d").join(&name), "").unwrap();
            truth.insert(name);
        }
        let (left, right) = (pair.left.join("d"), pair.right.join("d"));
        let is_kept = || {
            thread::sleep(Duration::from_millis(100));
            let before = upcalls(&pair.left);
            assert_eq!(fs::read_dir(&left).unwrap().count(), truth.len());
            upcalls(&pair.left) - before <= 1
        };
        assert!((0..50).any(|_| is_kept()));
        let (one, other) = (File::open(&left).unwrap(), File::open(&left).unwrap());
        let cookies = list(&one, 0, 300);
        for round in 0..40usize {
            // Whoever changes it, and however much is read at once.
            let by = if round % 3 == 0 { &left } else { &right };
            let (gone, new) = (truth.iter().nth(round * 7).unwrap().clone(), format!("new-{round}"));
            fs::remove_file(by.join(&gone)).unwrap();
            truth.remove(&gone);
            if round % 2 == 0 {
                fs::write(by.join(&new), "").unwrap();
                truth.insert(new);
            }
            let room = [80, 300, 5000, 40_000][round % 4];
            assert_eq!(names(&list(&one, 0, room)), truth, "round {round}");
            assert_eq!(names(&list(&other, 0, 40_000)), truth, "round {round}");
            assert_eq!(fs::read_dir(&left).unwrap().count(), truth.len());
            // From the middle on: all that was there behind it, and is.
            let (before, behind) = cookies.split_at(cookies.len() / 2);
            let rest = names(&list(&other, before.last().unwrap().1, room));
            let stayed = behind.iter().map(|(name, _)| name).filter(|name| truth.contains(*name));
            stayed.for_each(|name| assert!(rest.contains(name), "{name} in round {round}"));
        }
    });
}

/// Its pages are filled under a lease that did not come with an open; that the directory was changed again, nobody can see by its time.
#[test]
fn a_descriptor_that_lists_again_after_a_recall_shows_nothing_old_after_the_next() {
    within(Duration::from_secs(120), || {
        if !keeps_names() {
            return;
        }
        let pair = Pair::with("cache=lease");
        let (left, right) = (pair.left.join("d"), pair.right.join("d"));
        fs::create_dir(&right).unwrap();
        fs::write(right.join("old"), "").unwrap();
        let is_kept = |list: &dyn Fn() -> usize, count: usize| {
            thread::sleep(Duration::from_millis(200));
            let before = upcalls(&pair.left);
            assert_eq!(list(), count);
            upcalls(&pair.left) - before <= 1
        };
        let anew = || fs::read_dir(&left).unwrap().count();
        assert!((0..50).any(|_| is_kept(&anew, 1)));
        let held = File::open(&left).unwrap();
        let again = || names(&list(&held, 0, 4096)).len();
        assert_eq!(again(), 1);
        fs::write(right.join("new"), "").unwrap();
        assert!((0..50).any(|_| is_kept(&again, 2)));
        let time = fs::metadata(&left).unwrap().modified().unwrap();
        fs::write(right.join("newer"), "").unwrap();
        File::open(&right).unwrap().set_modified(time).unwrap();
        thread::sleep(Duration::from_millis(1000)); // what was recalled is not granted at once, and what is not, is asked for
        assert_eq!(fs::metadata(&left).unwrap().modified().unwrap(), time);
        assert_eq!(again(), 3);
    });
}

/// The descriptor is from before; that the directory was changed, nobody can see by its time.
#[test]
fn a_stopped_client_shows_no_old_listing() {
    within(Duration::from_secs(60), || {
        if !keeps_names() {
            return;
        }
        let pair = Pair::with("cache=lease");
        fs::create_dir(pair.right.join("d")).unwrap();
        fs::write(pair.right.join("d/old"), "").unwrap();
        let left = pair.left.join("d");
        let time = fs::metadata(&left).unwrap().modified().unwrap();
        let is_kept = || {
            thread::sleep(Duration::from_millis(100));
            let before = upcalls(&pair.left);
            assert_eq!(fs::read_dir(&left).unwrap().count(), 1);
            upcalls(&pair.left) - before <= 1
        };
        assert!((0..50).any(|_| is_kept()));
        let held = File::open(&left).unwrap();
        assert_eq!(names(&list(&held, 0, 4096)).len(), 1);
        pair.left.process.stop();
        fs::write(pair.right.join("d/new"), "").unwrap();
        File::open(pair.right.join("d")).unwrap().set_modified(time).unwrap();
        let looks = thread::spawn(move || assert_eq!(names(&list(&held, 0, 4096)).len(), 2, "through a descriptor"));
        let again = thread::spawn(move || assert_eq!(fs::read_dir(left).unwrap().count(), 2));
        thread::sleep(Duration::from_millis(300));
        pair.left.process.signal(Signal::CONT);
        looks.join().unwrap();
        again.join().unwrap();
    });
}

#[test]
fn parts_of_a_mount_are_kept_as_their_rules_say() {
    test(|| {
        if !keeps_names() {
            return;
        }
        // Where others change more in the same file system than the server is told of, all is recalled, and the kernel looks up every name anew.
        let quiet = FileSystem::tmpfs("size=1m");
        let one = One::over(quiet.directory(), "cache=lease,cache=none:/none,cache=immutable:/sw");
        shell(one.export.path(), "for d in none sw other; do mkdir -p $d/d; echo $d > $d/d/f; done").succeeded();
        let look = |of: &str| {
            let before = upcalls(&one.mount);
            assert_eq!(fs::metadata(one.path(format!("{of}/d/f"))).unwrap().len(), of.len() as u64 + 1);
            upcalls(&one.mount) - before
        };
        let all = || [look("none"), look("sw"), look("other")];
        // News of what was just made may still come, and has the kernel look up every name again: it is tried thrice.
        let settled = |after, expected: &dyn Fn([u64; 3]) -> bool| {
            let mut seen = Vec::new();
            let found = (0..3).any(|_| {
                thread::sleep(after);
                seen.push(all());
                seen.last().is_some_and(|seen| expected(*seen))
            });
            assert!(found, "{seen:?}");
        };
        all();
        settled(Duration::from_millis(500), &|[none, sw, other]| none > 0 && sw == 0 && other == 0);
        // Longer than a lease.
        settled(Duration::from_secs(8), &|[none, sw, other]| none > 0 && sw == 0 && other > 0);
        assert_eq!(fs::read_to_string(one.path("none/d/f")).unwrap(), "none\n");
        drop(one);
    });
}

/// What is found through two exports is one inode: its leases are recalled by whoever changes it through either.
#[test]
fn exports_that_share_files_show_each_others_changes_at_once() {
    test(|| {
        let (home, export) = (directory(), directory());
        let inner = export.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), "0").unwrap();
        fs::hard_link(inner.join("file"), export.path().join("link")).unwrap();
        let paths = [export.path(), &inner];
        let exports = paths.map(|path| format!("[[export]]\npath = {path:?}\nexternal = 'none'\n"));
        let file = home.path().join("aqueduct.toml");
        fs::write(&file, format!("listen = ['127.0.0.1:0']\n{}", exports.concat())).unwrap();
        let server = Server::start_with(&mut aqueduct(), &["--config", file.to_str().unwrap()], &[]);
        let [left, right] = paths.map(|path| server.mount_with(path, "cache=lease"));
        let places = [[left.join("inner/file"), left.join("link")], [right.join("file"), right.join("file")]];
        let directories = [left.join("inner"), right.path().to_owned()];
        for round in 1..30 {
            let (here, there) = (round % 2, 1 - round % 2);
            for path in &places[there] {
                fs::read(path).unwrap();
                mode(path);
            }
            let (text, bits) = (round.to_string(), 0o600 + round as u32);
            let new = format!("new-{round}");
            assert!(!directories[there].join(&new).exists() && !directories[there].join(&new).exists());
            fs::write(&places[here][round / 2 % 2], &text).unwrap();
            fs::set_permissions(&places[here][1 - round / 2 % 2], Permissions::from_mode(bits)).unwrap();
            fs::write(directories[here].join(&new), "").unwrap();
            for path in &places[there] {
                assert_eq!((fs::read_to_string(path).unwrap(), mode(path)), (text.clone(), bits), "{}", path.display());
            }
            assert!(directories[there].join(&new).exists(), "{new}");
        }
    });
}
