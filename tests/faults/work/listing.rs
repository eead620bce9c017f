//! Listings that are held open while everything happens: each name that was there all the time is listed once.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::{Outcome, Stop, Work};

/// So many that a listing takes ten replies or so.
const NAMES: usize = 3000;

/// Names that come and go meanwhile.
const CHANGING: usize = 40;

fn name(number: usize) -> String {
    format!("stable-{number:05}-of-a-length-that-fills-the-pages-of-a-listing-soon")
}

/// What is listed.
pub fn prepare(folder: &Path) {
    fs::create_dir(folder).unwrap();
    fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
    (0..NAMES).for_each(|number| drop(File::create(folder.join(name(number))).unwrap()));
}

/// A life: lists again and again.
pub fn work(work: &mut Work, _life: u64) -> Outcome<()> {
    let ended = live(work);
    if matches!(ended, Err(Stop::Gone)) {
        work.await_mount();
    }
    ended
}

fn live(work: &mut Work) -> Outcome<()> {
    let folder = work.point().join("listing");
    while !work.is_over() {
        let mut entries = work.surely(&"open the listing", || fs::read_dir(&folder))?;
        let mut seen: HashMap<String, u32> = HashMap::new();
        loop {
            let count = 1 + work.random.below(300);
            let names = work.surely(&format!("list {count} names"), || {
                entries.by_ref().take(count).map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>, _>>()
            })?;
            let is_end = names.len() < count;
            for name in names {
                *seen.entry(name.to_string_lossy().into_owned()).or_default() += 1;
            }
            if is_end {
                break;
            }
            change(work, &folder)?;
            thread::sleep(Duration::from_millis(10));
        }
        for number in 0..NAMES {
            let times = seen.remove(&name(number)).unwrap_or(0);
            work.check(times == 1, format!("{} was listed {times} times", name(number)))?;
        }
        let strange = seen.keys().find(|name| !name.starts_with("changing-"));
        work.check(strange.is_none(), format!("{strange:?} was listed and is not there"))?;
    }
    Ok(())
}

/// Makes or removes a name.
fn change(work: &mut Work, folder: &Path) -> Outcome<()> {
    let path = folder.join(format!("changing-{}", work.random.below(CHANGING)));
    let what = format!("make {}", path.display());
    match work.ask(&what, || File::create_new(&path))? {
        Ok(_) => Ok(()),
        Err(libc::EEXIST) => work.must(&format!("remove {}", path.display()), || fs::remove_file(&path)).map(drop),
        Err(errno) if Work::is_refusal(errno) => Ok(()),
        Err(errno) => Err(work.unexpected(&what, errno)),
    }
}
