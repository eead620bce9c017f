//! The files of sessions as the kernel has them: sessions are many and descriptors few, so that only those are open that were used lately. Whose they are, the lock
//! of a file of the process tells, one for all of its sessions.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, Weak};

use aqueduct_worker::lock;

/// Files of sessions that are open at once. To open one again takes 50 us or so, before the first change after the client was idle for long.
const OPEN_MAX: usize = 1024;

/// Processes that listen on the same addresses and share a folder, each with a file to lock: one, unless they are apart in containers.
const OWNERS_MAX: u32 = 64;

/// A thread for what takes the permissions of this process: the threads that execute requests act as whoever asked last.
#[derive(Clone)]
pub(crate) struct Keeper(Sender<Box<dyn FnOnce() + Send>>);

impl Keeper {
    /// Starts the thread, which acts as the calling one does; it ends with the last who might have something for it.
    pub(crate) fn start(name: &str) -> io::Result<Keeper> {
        let (sender, tasks) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        std::thread::Builder::new().name(name.into()).spawn(move || tasks.iter().for_each(|task| task()))?;
        Ok(Keeper(sender))
    }

    pub(crate) fn run_later(&self, task: impl FnOnce() + Send + 'static) {
        let _ = self.0.send(Box::new(task)); // the thread lives as long as there is a sender
    }

    pub(crate) fn run<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (done, result) = mpsc::sync_channel(1);
        self.run_later(move || drop(done.send(task())));
        result.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }
}

/// Removes a session's file.
pub(crate) fn remove_kept(path: &Path, durable: bool) {
    remove(path);
    // Else the next boot would wait for a client that has gone.
    if durable && let Some(Err(error)) = path.parent().map(|folder| File::open(folder)?.sync_all()) {
        tracing::warn!(path = %path.display(), %error, "the memory of a session may come back");
    }
}

pub(crate) fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "could not remove the memory of a session");
    }
}

/// Those that are open.
pub(crate) struct Opened {
    /// Opens them. It does nothing else, so that nobody waits behind what waits for the disk.
    keeper: Keeper,
    /// In the order in which they are looked at.
    files: Mutex<VecDeque<Weak<Stored>>>,
    open_max: usize,
}

/// A session's file.
pub(crate) struct Stored {
    pub(crate) path: PathBuf,
    file: Mutex<Option<Arc<File>>>,
    /// Since it was last looked at whether it can be closed.
    used: AtomicBool,
    opened: Arc<Opened>,
}

impl Opened {
    pub(crate) fn new() -> io::Result<Arc<Opened>> {
        Opened::within(OPEN_MAX)
    }

    fn within(open_max: usize) -> io::Result<Arc<Opened>> {
        Ok(Arc::new(Opened { keeper: Keeper::start("journals")?, files: Mutex::default(), open_max }))
    }

    /// A file that is open now.
    pub(crate) fn store(self: &Arc<Opened>, path: PathBuf, file: File) -> Arc<Stored> {
        let (file, used) = (Mutex::new(Some(Arc::new(file))), AtomicBool::new(true));
        let stored = Arc::new(Stored { path, file, used, opened: self.clone() });
        self.add(&stored);
        stored
    }

    /// Closes another if there are too many: the first that was not used since the last look at it.
    fn add(&self, stored: &Arc<Stored>) {
        let mut files = lock(&self.files);
        files.push_back(Arc::downgrade(stored));
        let mut closed = None;
        if files.len() > self.open_max {
            for _ in 0..files.len() {
                let Some(first) = files.pop_front() else { break };
                let Some(other) = first.upgrade() else { break }; // it is closed already
                if !other.used.swap(false, Ordering::Relaxed) {
                    closed = Some(other);
                    break;
                }
                files.push_back(first);
            }
        }
        if files.len() > self.open_max {
            closed = files.pop_front().and_then(|first| first.upgrade());
        }
        drop(files); // nobody who has a file of his own locked waits for all of them
        if let Some(other) = closed {
            lock(&other.file).take();
        }
    }
}

impl Stored {
    /// The file, opened if need be.
    pub(crate) fn file(self: &Arc<Stored>) -> io::Result<Arc<File>> {
        let present = lock(&self.file).clone();
        if let Some(file) = present {
            self.used.store(true, Ordering::Relaxed);
            return Ok(file);
        }
        let path = self.path.clone();
        let open = move || OpenOptions::new().read(true).write(true).open(path);
        let opened = Arc::new(self.opened.keeper.run(open)?);
        let mut present = lock(&self.file);
        let is_first = present.is_none();
        let file = present.get_or_insert(opened).clone();
        drop(present);
        if is_first {
            self.used.store(true, Ordering::Relaxed);
            self.opened.add(self);
        }
        Ok(file)
    }
}

/// The files that the processes of servers lock as long as they live. What they have written down belongs to nobody else until then: the names of these files say
/// whose they are, ahead of anything in them.
pub(crate) struct Owners {
    folder: PathBuf,
    /// Of the addresses.
    server: u32,
    /// Which of the processes with these addresses this one is.
    number: u32,
    /// Those whose sessions this process has: its own, and what dead ones left.
    locked: Mutex<HashMap<u32, File>>,
}

impl Owners {
    /// Finds a number for this process. Call it with the folder locked.
    pub(crate) fn find(folder: &Path, server: u32) -> io::Result<Owners> {
        let mut owners = Owners { folder: folder.to_owned(), server, number: 0, locked: Mutex::default() };
        for number in 0..OWNERS_MAX {
            if owners.has(number)? {
                owners.number = number;
                owners.remove_others()?;
                return Ok(owners);
            }
        }
        Err(io::Error::other(format!("{OWNERS_MAX} servers with the same addresses keep their sessions there already")))
    }

    /// The name of the file of a session of this process.
    pub(crate) fn name(&self, session: u64) -> String {
        format!("{session:016x}.{:08x}-{}", self.server, self.number)
    }

    /// The session whose file this is, if nobody who lives has it. Call it with the folder locked.
    pub(crate) fn may_have(&self, path: &Path) -> io::Result<Option<u64>> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // Earlier releases named only the session.
        let own = format!("{:08x}-{}", self.server, self.number);
        let (session, owner) = name.split_once('.').unwrap_or((name, &own));
        let session = u64::from_str_radix(session, 16).ok().filter(|_| session.len() == 16);
        let numbers = owner.split_once('-').and_then(|(server, number)| {
            Some((u32::from_str_radix(server, 16).ok()?, number.parse().ok().filter(|number| *number < OWNERS_MAX)?))
        });
        let (Some(session), Some((server, number))) = (session, numbers) else { return Ok(None) };
        let may = if server == self.server { self.has(number)? } else { is_free(&self.path(server, number)) };
        Ok(may.then_some(session))
    }

    fn path(&self, server: u32, number: u32) -> PathBuf {
        self.folder.join(format!("server-{server:08x}-{number}"))
    }

    /// Whether what this process of the server has written down is ours: then it is from now on.
    fn has(&self, number: u32) -> io::Result<bool> {
        let mut locked = lock(&self.locked);
        if locked.contains_key(&number) {
            return Ok(true);
        }
        let path = self.path(self.server, number);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(false),
            result => result.map_err(io::Error::from)?,
        }
        locked.insert(number, file);
        Ok(true)
    }

    /// Removes the files of servers with other addresses that are no more: what they left is read without.
    fn remove_others(&self) -> io::Result<()> {
        let own = format!("server-{:08x}-", self.server);
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with("server-") && !name.starts_with(&own) && is_free(&path) {
                remove(&path);
            }
        }
        Ok(())
    }

    /// Leaves all to the next process.
    pub(crate) fn leave(&self) {
        lock(&self.locked).clear();
    }
}

/// Whether nobody lives who has this file locked.
fn is_free(path: &Path) -> bool {
    match File::open(path) {
        Ok(file) => file.try_lock().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn few_files_are_open_and_all_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let opened = Opened::within(3).unwrap();
        let create = |number: usize| {
            let path = folder.path().join(number.to_string());
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
            opened.store(path, file)
        };
        let stored: Vec<_> = (0..20).map(create).collect();
        let open = || stored.iter().filter(|stored| lock(&stored.file).is_some()).count();
        assert_eq!(open(), 3);
        for round in 0..3u8 {
            for one in &stored {
                one.file().unwrap().write_all_at(&[round], round.into()).unwrap();
                assert_eq!(open(), 3);
            }
        }
        for one in &stored {
            assert_eq!(fs::read(&one.path).unwrap(), [0, 1, 2]);
        }
        // Whose session has ended makes room.
        drop(stored);
        let stored: Vec<_> = (20..23).map(create).collect();
        assert!(stored.iter().all(|stored| lock(&stored.file).is_some()));
        assert_eq!(lock(&opened.files).len(), 3);
    }

    #[test]
    fn what_is_used_stays_open() {
        let folder = tempfile::tempdir().unwrap();
        let opened = Opened::within(4).unwrap();
        let create = |number: usize| {
            let path = folder.path().join(number.to_string());
            opened.store(path.clone(), File::create(path).unwrap())
        };
        let busy = create(0);
        for number in 1..50 {
            create(number).used.store(false, Ordering::Relaxed);
            assert!(lock(&busy.file).is_some(), "{number} others");
            busy.file().unwrap();
        }
    }

    #[test]
    fn a_file_that_is_gone_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let opened = Opened::within(1).unwrap();
        let path = folder.path().join("it");
        let stored = opened.store(path.clone(), File::create(&path).unwrap());
        let other = folder.path().join("other");
        let _other = opened.store(other.clone(), File::create(other).unwrap());
        fs::remove_file(path).unwrap();
        assert_eq!(stored.file().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_a_process_has_written_down_is_its_own_while_it_lives() {
        let folder = tempfile::tempdir().unwrap();
        let find = |server| Owners::find(folder.path(), server).unwrap();
        let has = |owners: &Owners, name: &str| owners.may_have(&folder.path().join(name)).unwrap().is_some();
        let count = || fs::read_dir(folder.path()).unwrap().count();
        let (first, second) = (find(1), find(1));
        let (of_first, of_second) = (first.name(7), second.name(8));
        assert_eq!(
            (of_first.as_str(), of_second.as_str()),
            ("0000000000000007.00000001-0", "0000000000000008.00000001-1")
        );
        assert_eq!(first.may_have(&folder.path().join(&of_first)).unwrap(), Some(7));
        assert!(!has(&first, &of_second) && !has(&second, &of_first) && has(&second, &of_second));
        first.leave();
        let third = find(1);
        assert_eq!(third.name(7), of_first);
        assert!(!has(&third, &of_second));
        // Of other addresses: theirs while they live, and then theirs who find that in it.
        let other = find(2);
        assert!(!has(&other, &of_first) && !has(&other, &of_second) && !has(&third, &other.name(1)));
        assert_eq!(count(), 3);
        drop(second);
        assert!(has(&other, &of_second) && has(&third, &of_second) && !has(&other, &of_second), "it has been taken");
        drop(third);
        let next = find(3);
        assert_eq!(count(), 2, "of those who live");
        assert!(has(&next, &of_first) && has(&next, "0000000000000009"));
        for bad in [
            "",
            "7",
            "server-00000001-0",
            "leases-00000001",
            "0000000000000007.1",
            "0000000000000007.1-64",
            "000000000000000x.1-0",
        ] {
            assert!(!has(&next, bad), "{bad}");
        }
    }
}
