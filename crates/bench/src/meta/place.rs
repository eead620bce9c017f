//! The directories that a run works in: made, looked at, and cleaned up.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::StatVfs;

use crate::Failure;
use crate::meta::plan::{Needs, Plan};

/// How often, and how far apart, a directory is removed into which others still write.
const CLEAN_UP_TRIES: u32 = 50;
const CLEAN_UP_PAUSE: Duration = Duration::from_millis(100);

const GIB: f64 = (1u64 << 30) as f64;
const MEBI: f64 = (1u64 << 20) as f64;

/// The file system below a directory, or below the nearest one above it that exists.
fn statvfs(directory: &str) -> Result<StatVfs, Failure> {
    let path = Path::new(directory);
    let mut at = Some(path);
    while let Some(there) = at {
        let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
        match rustix::fs::statvfs(there) {
            Ok(found) => return Ok(found),
            Err(rustix::io::Errno::NOENT) => at = there.parent(),
            Err(error) => return Err(cannot(directory, error)),
        }
    }
    Err(cannot(directory, "there is nothing above it"))
}

fn cannot(directory: &str, why: impl std::fmt::Display) -> Failure {
    Failure::new(
        format!("cannot measure names in {directory}"),
        why,
        "name a directory of the file system to measure with -d, and see whether it is mounted",
    )
}

/// mdtest's line about the file system.
pub fn describe(directory: &str) -> Result<String, Failure> {
    let found = statvfs(directory)?;
    let used = |all: u64, free: u64| if all == 0 { 0.0 } else { 100.0 * (1.0 - free as f64 / all as f64) };
    let gib = found.f_blocks as f64 * found.f_frsize as f64 / GIB;
    let (size, unit) = if gib > 1024.0 { (gib / 1024.0, "TiB") } else { (gib, "GiB") };
    Ok(format!(
        "{size:.1} {unit}   Used FS: {:.1}%   Inodes: {:.1} Mi   Used Inodes: {:.1}%",
        used(found.f_blocks, found.f_bfree),
        found.f_files as f64 / MEBI,
        used(found.f_files, found.f_ffree),
    ))
}

/// Refuses a run that does not fit. A file system that counts no inodes (btrfs, some network file systems) is believed to have enough, and a stonewall to
/// stop in time: who sets one asks for more than he expects.
pub fn check_room(plan: &Plan, needs: Needs) -> Result<(), Failure> {
    if plan.arguments.stonewall > 0 {
        return Ok(());
    }
    let iterations = if plan.remove { 1 } else { u64::from(plan.arguments.iterations) };
    let inodes = needs.inodes(plan.remove).saturating_mul(iterations);
    for directory in &plan.directories {
        let found = statvfs(directory)?;
        let share = plan.directories.len() as u64;
        if found.f_files > 0 && inodes / share > found.f_favail {
            return Err(Failure::new(
                format!("cannot make {inodes} files and directories in {directory}"),
                format!("only {} inodes are free there", found.f_favail),
                "take a smaller -n, -I or -z, or remove what is not needed",
            ));
        }
        let (bytes, free) =
            (needs.bytes.saturating_mul(iterations) / share, found.f_bavail.saturating_mul(found.f_frsize));
        if bytes > free {
            return Err(Failure::new(
                format!("cannot write {bytes} bytes to files in {directory}"),
                format!("only {free} bytes are free there"),
                "take a smaller -w or -n, or remove what is not needed",
            ));
        }
    }
    Ok(())
}

/// What a run has made besides what it measures, and takes away again.
#[derive(Debug, Default)]
pub struct Made {
    /// The directory that was given, which did not exist.
    base: Option<PathBuf>,
    /// Directories of tests.
    tests: Vec<PathBuf>,
}

impl Made {
    /// Makes the directory that was given, unless it exists or this run makes nothing.
    pub fn base(&mut self, directory: &str, creates: bool) -> Result<(), Failure> {
        let path = Path::new(directory);
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(cannot(directory, "it is no directory")),
            Err(error) if error.kind() != io::ErrorKind::NotFound || !creates => Err(cannot(directory, error)),
            Err(_) => {
                match fs::create_dir(path) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(cannot(directory, error)),
                    // Another rank was first: that one removes it.
                    Err(_) => Ok(()),
                    Ok(()) => {
                        self.base = Some(path.to_owned());
                        Ok(())
                    }
                }
            }
        }
    }

    /// Makes a test's directory; one that an earlier run left is used again.
    pub fn test(&mut self, directory: String) -> Result<(), Failure> {
        match fs::create_dir(&directory) {
            Ok(()) => {
                self.tests.push(directory.into());
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(cannot(&directory, error)),
        }
    }

    /// An iteration is over: removes its empty directories of tests.
    pub fn remove_tests(&mut self, directories: impl Iterator<Item = String>) -> Result<(), Failure> {
        for directory in directories {
            fs::remove_dir(&directory).map_err(|error| {
                Failure::new(
                    format!("cannot remove {directory}"),
                    error,
                    "something else is in it: remove it yourself, or add what made it",
                )
            })?;
            self.tests.retain(|made| *made != Path::new(&directory));
        }
        Ok(())
    }

    /// The run is over: the directory that was given stays if anything is in it.
    pub fn finish(self) {
        if let Some(base) = self.base {
            let _ = fs::remove_dir(base);
        }
    }

    /// The run ends early: removes all that it has made. What cannot be removed is named.
    pub fn clean_up(self) {
        for test in &self.tests {
            // Where a rank was lost, others may be at work for a moment yet.
            let mut left = CLEAN_UP_TRIES;
            let outcome = loop {
                match fs::remove_dir_all(test) {
                    Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && left > 0 => {
                        left -= 1;
                        thread::sleep(CLEAN_UP_PAUSE);
                    }
                    outcome => break outcome,
                }
            };
            if let Err(error) =
                outcome.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
            {
                tell!("aqueduct: cannot remove {}: {error}", test.display());
            }
        }
        self.finish();
    }

    /// Whether there is anything to clean up.
    pub fn is_empty(&self) -> bool {
        self.tests.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::arguments::tests::arguments;

    #[test]
    fn what_does_not_fit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let plan = |line: &str| Plan::resolve(&arguments(&format!("{line} -d {}", folder.path().display()))).unwrap();
        let check = |plan: &Plan, ranks| check_room(plan, plan.needs(ranks));
        assert!(check(&plan("-n 10 -w 10"), 2).is_ok());
        let why = check(&plan("-n 1g -F -w 1g"), 1000).unwrap_err().to_string();
        assert!(why.contains("are free there"), "{why}");
    }

    #[test]
    fn only_what_was_made_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("new");
        let name = base.to_str().unwrap();
        assert!(Made::default().base(name, false).is_err(), "a run that only looks makes nothing");
        let mut made = Made::default();
        made.base(name, true).unwrap();
        fs::create_dir(base.join("old")).unwrap();
        for test in ["old", "test"] {
            made.test(base.join(test).to_str().unwrap().to_owned()).unwrap();
        }
        fs::write(base.join("test/file"), "x").unwrap();
        made.clean_up();
        assert!(base.join("old").exists() && !base.join("test").exists());
        let mut made = Made::default();
        made.base(folder.path().join("other").to_str().unwrap(), true).unwrap();
        made.clean_up();
        assert!(!folder.path().join("other").exists());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(Made::default().base(file.to_str().unwrap(), true).unwrap_err().why.contains("no directory"));
    }

    #[test]
    fn a_file_system_is_described() {
        let folder = tempfile::tempdir().unwrap();
        let text = describe(folder.path().join("not/there").to_str().unwrap()).unwrap();
        assert!(text.contains("Used FS: ") && text.contains("Inodes: "), "{text}");
    }
}
