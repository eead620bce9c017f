//! A server's state folder has one living owner: whoever else took it for a server of its own
//! would give up what that one keeps for its clients.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, Kind};

/// The file that the owner has locked. It has the owner's process id in it, for who is refused.
const FILE_NAME: &str = "owner";

/// The file with the number of the server's latest start.
const INCARNATION_NAME: &str = "incarnation";

/// How long to wait for an owner that is about to end: a process that was just killed, as by
/// whoever restarts it, closes its files within this time unless its disk is stuck.
const PATIENCE: Duration = Duration::from_secs(1);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// The bytes of a process id in decimal that are read at most.
const ID_LENGTH_MAX: u64 = 20;

/// The state folder as this process's own, until it is dropped or the process ends.
#[derive(Debug)]
pub struct StateFolder {
    _locked: File,
}

impl StateFolder {
    /// Takes the folder, made if need be. Refused while another server has it.
    pub fn take(state: &Path) -> Result<StateFolder, Failure> {
        let what = format!("cannot serve with the state folder {}", state.display());
        let failed =
            |error| Failure::new(&what, error, "name a folder that this user may write with --state").of(Kind::State);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(state).map_err(failed)?;
        let path = state.join(FILE_NAME);
        // Closed in programs that this one starts, so that the lock goes with this process.
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let mut file = opened.map_err(failed)?;
        let started = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(error)) => return Err(failed(error)),
                Err(TryLockError::WouldBlock) if started.elapsed() < PATIENCE => thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => {
                    let owner = match read_id(&mut file) {
                        Some(id) => format!("process {id} serves with it"),
                        None => "another process serves with it".into(),
                    };
                    let hint = "end that process, or give this server another folder with --state";
                    return Err(Failure::new(what, owner, hint).of(Kind::State));
                }
            }
        }
        // In its place, which takes no room of a folder that is full.
        let id = std::process::id().to_string();
        let written = file.write_all_at(id.as_bytes(), 0).and_then(|()| file.set_len(id.len() as u64));
        written.or_else(|error| if is_full(&error) { Ok(()) } else { Err(failed(error)) })?;
        Ok(StateFolder { _locked: file })
    }
}

impl StateFolder {
    /// Counts the starts of the server whose folder this is: the number of this one, from 1 on, on
    /// the disk when it returns.
    pub fn begin(&self, state: &Path) -> Result<u64, Failure> {
        let path = state.join(INCARNATION_NAME);
        let what = format!("cannot count the starts of the server in {}", path.display());
        let failed = |why: &dyn std::fmt::Display| {
            let hint = "name a folder that this user may write with --state, or mend the file: it has the number of the latest start";
            Failure::new(&what, why, hint)
        };
        let latest = match fs::read_to_string(&path) {
            Ok(text) => text.trim().parse::<u64>().map_err(|error| failed(&error))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(failed(&error)),
        };
        let incarnation = latest.saturating_add(1);
        let (text, new) = (format!("{incarnation}\n"), path.with_extension("new"));
        let write = || {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(state)?.sync_all()
        };
        // A server that has died comes back though the folder is full by now. Numbers never get
        // shorter, and so few bytes are written whole or not at all.
        let write_over = || {
            drop(fs::remove_file(&new));
            let file = OpenOptions::new().write(true).open(&path)?;
            file.write_all_at(text.as_bytes(), 0)?;
            file.sync_all()
        };
        match write().or_else(|error| if is_full(&error) && latest > 0 { write_over() } else { Err(error) }) {
            Ok(()) => Ok(incarnation),
            Err(error) if is_full(&error) => {
                Err(Failure::new(&what, "the file system or the quota is full", "make room where the state folder is"))
            }
            Err(error) => Err(failed(&error)),
        }
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// Who has the file locked, as it says there.
fn read_id(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(ID_LENGTH_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_counted() {
        let home = tempfile::tempdir().unwrap();
        let state = home.path().join("state");
        let folder = StateFolder::take(&state).unwrap();
        assert_eq!([(); 3].map(|()| folder.begin(&state).unwrap()), [1, 2, 3]);
        fs::write(state.join(INCARNATION_NAME), "many").unwrap();
        let told = folder.begin(&state).unwrap_err().to_string();
        assert!(told.contains("incarnation") && told.contains("mend"), "{told}");
    }

    #[test]
    fn a_folder_has_one_owner_until_that_one_lets_go() {
        let home = tempfile::tempdir().unwrap();
        let state = home.path().join("a/state");
        let owner = StateFolder::take(&state).unwrap();
        let refused = StateFolder::take(&state).unwrap_err();
        assert!(refused.what.contains(state.to_str().unwrap()), "{refused}");
        assert!(refused.why.contains(&std::process::id().to_string()), "{refused}");
        assert!(refused.hint.contains("--state"), "{refused}");
        drop(owner);
        StateFolder::take(&state).unwrap();
    }

    #[test]
    fn an_owner_that_is_about_to_end_is_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let owner = StateFolder::take(home.path()).unwrap();
        let ends = thread::spawn(move || {
            thread::sleep(PATIENCE / 4);
            drop(owner);
        });
        StateFolder::take(home.path()).unwrap();
        ends.join().unwrap();
    }
}
