//! What others put in place of something else, or elsewhere: whoever asks by name finds the old
//! file or the new one, and whoever renames a directory renames the one that is there now.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags, CWD};

use crate::common::{Mount, Pair, within};

/// How long each mode of caching is tried.
const TRIED: Duration = Duration::from_secs(8);

/// The ways in which a mount caches.
const MODES: [&str; 2] = ["cache=none", "cache=lease"];

/// What every file holds.
const CONTENT: &[u8; 100] = &[b'x'; 100];

#[test]
fn who_asks_by_name_finds_the_old_file_or_the_new_one() {
    within(Duration::from_secs(100), || {
        for options in MODES {
            let until = Instant::now() + TRIED;
            let (operations, failed) = ask_while_replaced(&Pair::with(options), |_| Instant::now() >= until);
            assert!(operations > 100 * TRIED.as_secs(), "{operations} operations only");
            assert!(failed.is_empty(), "{options}: of {operations} operations failed {failed:?}");
        }
    });
}

/// The same for OPERATIONS by name (1,000,000) in each mode of caching.
#[test]
#[ignore = "make test-long"]
fn of_a_million_who_ask_by_name_none_misses() {
    let wanted = std::env::var("OPERATIONS").map_or(1_000_000, |count| count.parse().expect("OPERATIONS is a number"));
    // A thousand a second are few, also on a busy machine.
    within(Duration::from_secs(600 + wanted / 500), move || {
        for options in MODES {
            let (operations, failed) = ask_while_replaced(&Pair::with(options), |operations| operations >= wanted);
            assert!(failed.is_empty(), "{options}: of {operations} operations failed {failed:?}");
        }
    });
}

/// Asks until it is enough. The number of operations, and how often each failed how.
fn ask_while_replaced(pair: &Pair, is_enough: impl Fn(u64) -> bool) -> (u64, BTreeMap<String, u64>) {
    replace(&pair.left, 0).unwrap();
    let (ended, began) = (AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        let replacer = scope.spawn(|| {
            let mut round = 0;
            while !ended.load(Ordering::Relaxed) {
                round += 1;
                replace(&pair.left, round).unwrap();
            }
            round
        });
        let (mut operations, mut failed) = (0, BTreeMap::new());
        while !is_enough(operations) {
            for (what, result) in ask(pair.right.path()) {
                operations += 1;
                if let Err(error) = result {
                    *failed.entry(format!("{what}: {error}")).or_default() += 1;
                }
            }
        }
        ended.store(true, Ordering::Relaxed);
        let replaced: u64 = replacer.join().unwrap();
        println!("{operations} operations by name while {replaced} files were replaced, {failed:?} failed");
        assert!(replaced > began.elapsed().as_secs() * 10, "replaced {replaced} times only");
        (operations, failed)
    })
}

/// Puts a new file and a new link into place, as programs do that save something.
fn replace(mount: &Mount, round: u64) -> io::Result<()> {
    let new = mount.join("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&new)?;
    file.write_all(CONTENT)?;
    drop(file);
    fs::rename(&new, mount.join("file"))?;
    symlink(format!("target{round}"), &new)?;
    fs::rename(&new, mount.join("link"))
}

/// All that is done by name, once. Whoever makes a file shorter does not disturb the next who
/// reads.
fn ask(directory: &Path) -> [(&'static str, io::Result<()>); 9] {
    let (file, link) = (directory.join("file"), directory.join("link"));
    let read = || {
        let (mut file, mut content) = (File::open(&file)?, Vec::new());
        file.read_to_end(&mut content)?;
        if content == CONTENT { Ok(()) } else { Err(io::Error::other(format!("{} bytes", content.len()))) }
    };
    [
        ("read", read()),
        ("open for writing", OpenOptions::new().write(true).open(&file).map(drop)),
        ("open or create", OpenOptions::new().append(true).create(true).open(&file).map(drop)),
        ("stat", fs::metadata(&file).map(drop)),
        ("chmod", fs::set_permissions(&file, Permissions::from_mode(0o640))),
        ("truncate", crate::sys::truncate(&file, CONTENT.len() as i64)),
        ("access", rustix::fs::accessat(CWD, &file, Access::READ_OK, AtFlags::empty()).map_err(Into::into)),
        ("readlink", fs::read_link(&link).map(drop)),
        ("lstat", fs::symlink_metadata(&link).map(drop)),
    ]
}

#[test]
fn a_directory_that_another_client_moved_is_renamed() {
    within(Duration::from_secs(100), || {
        for options in ["cache=none", "cache=lease"] {
            let pair = Pair::with(options);
            ["from", "to", "on"].iter().for_each(|name| fs::create_dir(pair.left.join(name)).unwrap());
            for round in 0..30 {
                rename_what_was_moved(&pair, round);
            }
        }
    });
}

/// One mount knows a directory, another moves it, and some time later the first one renames it,
/// without a look at it before.
fn rename_what_was_moved(pair: &Pair, round: u32) {
    let (left, right) = (pair.left.path(), pair.right.path());
    let name = format!("directory{round}");
    fs::create_dir_all(left.join("from").join(&name).join("below")).unwrap();
    fs::write(left.join("from").join(&name).join("below/file"), name.as_bytes()).unwrap();
    assert_eq!(fs::read_dir(right.join("from").join(&name)).unwrap().count(), 1);
    assert_eq!(fs::read(right.join("from").join(&name).join("below/file")).unwrap(), name.as_bytes());
    fs::rename(left.join("from").join(&name), left.join("to").join(&name)).unwrap();
    thread::sleep(Duration::from_millis([0, 20][round as usize % 2]));
    // Back to where it was, too: then the rename itself holds the directory in which it was known.
    let onto = right.join(["on", "from"][round as usize / 2 % 2]).join(format!("renamed{round}"));
    fs::rename(right.join("to").join(&name), &onto).unwrap_or_else(|error| panic!("round {round}: {error}"));
    assert_eq!(fs::read(onto.join("below/file")).unwrap(), name.as_bytes());
    assert!(!left.join("to").join(&name).exists() && left.join(onto.strip_prefix(right).unwrap()).exists());
}
