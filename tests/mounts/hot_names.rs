//! Names of directories that are asked for often, which kernels before Linux 6.16 keep for a
//! moment: whoever changes one waits until they have forgotten it.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use aqueduct_metrics::status::MountStatus;
use aqueduct_metrics::table::FUSE_REQUEST_SECONDS;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::common::{Mount, Pair, SOON, as_on_kernel, errno, shell, skip, test, wait_until};

/// As on Linux before 6.16, by /dev/fuse and, where the kernel has it, by io_uring.
const BEFORE_6_16: &str = "cache=lease,init_minor=43";

/// How many directories of its path a file has here.
const DEPTH: usize = 4;
const WAY: &str = "a/b/c";

/// Two mounts that keep names so, if the kernel is not too old for that too.
fn pair() -> Option<Pair> {
    if std::env::var("KERNEL").is_ok_and(|kernel| kernel == "4.18") {
        skip("needs attributes that the kernel keeps under a lease (Linux 5.10)");
        return None;
    }
    // On an older kernel, or one that is to be taken for one, it is so without this.
    Some(Pair::with(if as_on_kernel().is_some() { "cache=lease" } else { BEFORE_6_16 }))
}

fn lookups(mount: &Mount) -> u64 {
    let status: MountStatus = serde_json::from_value(mount.status()).unwrap();
    let sums = status.metrics.sums(&FUSE_REQUEST_SECONDS);
    sums.iter().find(|(opcode, ..)| opcode == "LOOKUP").map_or(0, |(_, count, _)| *count)
}

/// Looks at a file until the kernel does not ask for all that leads to it any more.
fn make_hot(mount: &Mount, file: &Path) {
    const LOOKS: u64 = 20;
    wait_until("the kernel keeps the way", SOON, || {
        let before = lookups(mount);
        (0..LOOKS).for_each(|_| assert!(fs::metadata(file).is_ok()));
        lookups(mount) - before < LOOKS * 2
    });
}

/// A folder with a file four levels below it, known in the mount on the right.
fn hot_folder(pair: &Pair, round: usize) -> (PathBuf, PathBuf) {
    let folder = format!("round-{round}");
    let made = pair.left.join(&folder).join(WAY);
    fs::create_dir_all(&made).unwrap();
    fs::write(made.join("file"), "x").unwrap();
    let (left, right) = (pair.left.join(&folder), pair.right.join(&folder));
    make_hot(&pair.right, &right.join(WAY).join("file"));
    (left, right)
}

fn is_gone(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
}

#[test]
fn what_others_change_of_a_way_that_is_used_is_seen_at_once() {
    test(|| {
        let Some(pair) = pair() else { return };
        for round in 0..3 {
            let (left, right) = hot_folder(&pair, round);
            let file = right.join(WAY).join("file");
            match round {
                0 => {
                    fs::rename(left.join("a/b"), left.join("a/other")).unwrap();
                    assert!(is_gone(&file), "it was moved");
                    assert!(fs::metadata(right.join("a/other/c/file")).is_ok());
                }
                1 => {
                    fs::create_dir_all(left.join("new/c")).unwrap();
                    renameat_with(CWD, left.join("a/b"), CWD, left.join("new"), RenameFlags::EXCHANGE).unwrap();
                    assert!(is_gone(&file), "another is in its place");
                    assert!(fs::metadata(right.join("new/c/file")).is_ok());
                }
                _ => {
                    fs::remove_file(left.join(WAY).join("file")).unwrap();
                    fs::remove_dir(left.join(WAY)).unwrap();
                    assert!(is_gone(&right.join(WAY)), "it was removed");
                    fs::create_dir(left.join(WAY)).unwrap();
                    assert!(fs::metadata(right.join(WAY)).is_ok());
                }
            }
        }
    });
}

/// The kernel judges by the owner that it knows, of what it finds without a look.
#[test]
fn what_others_make_of_the_owner_of_a_way_that_is_used_is_seen_at_once() {
    test(|| {
        let Some(pair) = pair() else { return };
        let (left, right) = hot_folder(&pair, 0);
        let changes_mode = || shell(&right, "setpriv --reuid 1000 --regid 1000 --clear-groups chmod 755 a/b");
        assert!(!changes_mode().status.success());
        make_hot(&pair.right, &right.join(WAY).join("file"));
        chown(left.join("a/b"), Some(1000), Some(1000)).unwrap();
        changes_mode().succeeded();
    });
}

/// What is renamed here takes the time that the kernel may keep its name with it, to where nobody
/// would wait for it.
#[test]
fn what_was_moved_here_is_not_found_when_others_have_moved_it_again() {
    test(|| {
        let Some(pair) = pair() else { return };
        for round in 0..3 {
            let (left, right) = hot_folder(&pair, round);
            fs::create_dir(left.join("new")).unwrap();
            make_hot(&pair.right, &right.join(WAY).join("file"));
            fs::rename(right.join("a/b"), right.join("new/b")).unwrap();
            fs::rename(left.join("new/b"), left.join("new/other")).unwrap();
            assert!(is_gone(&right.join("new/b/c/file")), "round {round}");
            assert!(fs::metadata(right.join("new/other/c/file")).is_ok());
        }
    });
}

/// What it is for: of a long way only the last name is asked for.
#[test]
fn a_way_that_is_used_is_not_asked_for_again_and_again() {
    test(|| {
        let Some(pair) = pair() else { return };
        let (_, right) = hot_folder(&pair, 0);
        (0..200).for_each(|number| fs::write(pair.left.join(format!("round-0/{WAY}/{number}")), "").unwrap());
        // What was made there had who knew the way wait, and rest.
        let way = pair.left.join("still").join(WAY);
        fs::create_dir_all(&way).unwrap();
        (0..200).for_each(|number| fs::write(way.join(number.to_string()), "").unwrap());
        let look = |folder: &Path| {
            let before = lookups(&pair.right);
            (0..200).for_each(|number| assert!(fs::metadata(folder.join(WAY).join(number.to_string())).is_ok()));
            lookups(&pair.right) - before
        };
        let all = 200 * (DEPTH as u64 + 1);
        wait_until("a way that nobody changes is kept", SOON, || look(&pair.right.join("still")) < all / 2);
        println!(
            "{} requests for 200 files {} levels deep, {} where a change was waited for",
            look(&pair.right.join("still")),
            DEPTH,
            look(&right)
        );
        assert_eq!(errno(fs::metadata(right.join(WAY).join("none"))), libc::ENOENT);
    });
}

#[test]
fn with_names_by_timeout_a_way_is_kept_for_a_moment_and_then_seen_anew() {
    test(|| {
        const LOOKS: u64 = 20;
        let options = if as_on_kernel().is_some() {
            "cache=lease,names=timeout"
        } else {
            "cache=lease,init_minor=43,names=timeout"
        };
        let pair = Pair::with(options);
        fs::create_dir_all(pair.left.join(WAY)).unwrap();
        fs::write(pair.left.join(WAY).join("file"), "x").unwrap();
        let file = pair.right.join(WAY).join("file");
        // All in one moment, which a busy machine may not give at once.
        wait_until("the kernel keeps the way and the file", SOON, || {
            let before = lookups(&pair.right);
            (0..LOOKS).for_each(|_| assert!(fs::metadata(&file).is_ok()));
            lookups(&pair.right) - before < LOOKS
        });
        fs::rename(pair.left.join("a/b"), pair.left.join("a/other")).unwrap();
        assert!(is_gone(&pair.left.join(WAY)), "who changes it sees that at once");
        assert!(fs::metadata(pair.left.join("a/other/c/file")).is_ok());
        wait_until("what was moved is not found any more", SOON, || is_gone(&file));
        assert!(fs::metadata(pair.right.join("a/other/c/file")).is_ok());
        // Of a name that is not there as well.
        assert!(is_gone(&pair.right.join("late")));
        fs::write(pair.left.join("late"), "y").unwrap();
        wait_until("what was made is found", SOON, || pair.right.join("late").exists());
    });
}
