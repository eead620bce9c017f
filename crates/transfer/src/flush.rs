//! Makes what a copy wrote stable, and says of which files that may have failed.
//!
//! Of data that could not be written back syncfs(2) tells once through each descriptor, whoever
//! asks, and not whose they were. So all threads ask through one descriptor for each file system,
//! one after the other, and what any of them is told counts for every file that was begun before
//! and has no name yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use aqueduct_fs::Errno;
use aqueduct_worker::lock;

use crate::side::Directory;

/// How data are made stable before a file has its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// They are not.
    No,
    /// Many files at once.
    Together,
    /// Each file by itself.
    Each,
}

/// How often making stable had failed when something was begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Since(u64);

/// Makes all of a file system stable.
type SyncAll = Box<dyn Fn() -> Result<(), Errno> + Send + Sync>;

/// A file system at the destination.
pub struct Volume {
    flush: Flush,
    is_volatile: bool,
    /// A directory of it.
    root: Arc<dyn Directory>,
    sync_all: SyncAll,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    is_running: bool,
    /// Calls that were begun, and that have ended.
    begun: u64,
    /// See `begun`.
    done: u64,
    /// Calls that failed, and why the last of them did.
    failures: u64,
    /// See `failures`.
    last: Option<Errno>,
}

impl Volume {
    /// That of a directory, which was opened before anything was written to it.
    pub fn new(root: Arc<dyn Directory>, no_flush: bool) -> Volume {
        let is_volatile = root.is_volatile();
        let flush = match is_volatile {
            _ if no_flush => Flush::No,
            true => Flush::No,
            false if root.syncs_all() => Flush::Together,
            false => Flush::Each,
        };
        let of = root.clone();
        let made = Volume::made(root, flush, Box::new(move || of.sync_all()));
        Volume { is_volatile, ..made }
    }

    fn made(root: Arc<dyn Directory>, flush: Flush, sync_all: SyncAll) -> Volume {
        Volume { flush, is_volatile: false, root, sync_all, state: Mutex::default(), ended: Condvar::new() }
    }

    /// One that many files are flushed to at once, by `sync_all`.
    #[cfg(test)]
    pub fn scripted(root: Arc<dyn Directory>, sync_all: SyncAll) -> Volume {
        Volume::made(root, Flush::Together, sync_all)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// How data are made stable.
    pub fn flush(&self) -> Flush {
        self.flush
    }

    /// Whether it keeps nothing beyond a restart of the machine, so that there is nothing to flush.
    pub fn is_volatile(&self) -> bool {
        self.is_volatile
    }

    /// To be asked before a file is begun.
    pub fn now(&self) -> Since {
        Since(self.lock().failures)
    }

    /// Makes all stable that was written before. What waits for the end of one call has the next
    /// one made for all of it.
    pub fn sync_all(&self) {
        let mut state = self.lock();
        let wanted = state.begun + 1; // one that runs already may have passed what was written
        while state.done < wanted {
            if state.is_running {
                state = self.ended.wait(state).unwrap_or_else(|poison| poison.into_inner());
                continue;
            }
            state.is_running = true;
            state.begun += 1;
            let number = state.begun;
            drop(state);
            let synced = (self.sync_all)();
            state = self.lock();
            (state.is_running, state.done) = (false, number);
            if let Err(error) = synced {
                state.failures += 1;
                state.last = Some(error);
            }
            self.ended.notify_all();
        }
    }

    /// Whether nothing failed since: else nobody knows for whose data it did.
    pub fn is_sound(&self, since: Since) -> Result<(), Errno> {
        let state = self.lock();
        match state.last {
            Some(error) if state.failures > since.0 => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the names stable that lie in its directory, and with [`Flush::Together`] all others.
    pub fn settle(&self, since: Since) -> Result<(), Errno> {
        match self.flush {
            Flush::No => Ok(()),
            Flush::Together => {
                self.sync_all();
                self.is_sound(since)
            }
            Flush::Each => sync_names(&*self.root),
        }
    }
}

/// Makes the names in a directory stable.
pub fn sync_names(directory: &dyn Directory) -> Result<(), Errno> {
    match directory.sync() {
        // Directories of this file system cannot be, or not by who may write them and not read
        // them: a server does it by itself before it answers.
        Err(Errno::EINVAL | Errno::EACCES) => Ok(()),
        synced => synced,
    }
}

/// The file systems at the destination: as many as are mounted where the copy goes.
pub struct Volumes {
    first: Arc<Volume>,
    first_device: u64,
    no_flush: bool,
    others: Mutex<BTreeMap<u64, Arc<Volume>>>,
}

impl Volumes {
    /// That of the destination's directory, so far.
    pub fn new(root: Arc<dyn Directory>, no_flush: bool) -> Volumes {
        let first_device = root.seen().map(|seen| seen.device).unwrap_or_default();
        let first = Arc::new(Volume::new(root, no_flush));
        Volumes { first, first_device, no_flush, others: Mutex::default() }
    }

    /// As [`new`](Volumes::new), with this for the first.
    #[cfg(test)]
    pub fn with(first: Volume) -> Volumes {
        let first_device = first.root.seen().unwrap().device;
        Volumes { first: Arc::new(first), first_device, no_flush: false, others: Mutex::default() }
    }

    /// That of the destination's directory.
    pub fn first(&self) -> Arc<Volume> {
        self.first.clone()
    }

    /// That in which a directory lies, into which nothing was written yet.
    pub fn of(&self, directory: &Arc<dyn Directory>) -> Result<Arc<Volume>, Errno> {
        if directory.handle().is_some() {
            return Ok(self.first()); // its server makes each file stable wherever it lies
        }
        let device = directory.seen()?.device;
        if device == self.first_device {
            return Ok(self.first());
        }
        let mut others = lock(&self.others);
        let new = || Arc::new(Volume::new(directory.clone(), self.no_flush));
        Ok(others.entry(device).or_insert_with(new).clone())
    }

    fn all(&self) -> Vec<Arc<Volume>> {
        let mut all = vec![self.first()];
        all.extend(lock(&self.others).values().cloned());
        all
    }

    /// To be asked before anything is done.
    pub fn now(&self) -> Since {
        Since(self.all().iter().map(|volume| volume.now().0).sum())
    }

    /// Makes all names stable. Also what others were told of since then is told: names that were
    /// given before may have been lost by it.
    pub fn settle(&self, since: Since) -> Result<(), Errno> {
        let all = self.all();
        let befores: Vec<Since> = all.iter().map(|volume| volume.now()).collect();
        for (volume, before) in all.iter().zip(befores) {
            volume.settle(before)?;
        }
        if self.now() == since {
            return Ok(());
        }
        Err(all.iter().find_map(|volume| volume.lock().last).unwrap_or(Errno::EIO))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::sync_channel;

    use super::*;
    use crate::side::{Access, Place};

    fn directory(path: &Path) -> Arc<dyn Directory> {
        let access = Access::new(None, aqueduct_wire::Checksums::Auto, 1);
        Place::parse(path.as_os_str()).unwrap().find_target(&access).unwrap().directory().unwrap()
    }

    #[test]
    fn an_error_counts_for_all_that_was_begun_before() {
        let folder = tempfile::tempdir().unwrap();
        let calls = AtomicU64::new(0);
        let fails_second = move || if calls.fetch_add(1, Ordering::Relaxed) == 1 { Err(Errno::EIO) } else { Ok(()) };
        let volume = Volume::scripted(directory(folder.path()), Box::new(fails_second));
        let early = volume.now();
        volume.sync_all();
        assert_eq!(volume.is_sound(early), Ok(()));
        let middle = volume.now();
        volume.sync_all(); // by whoever is told
        let late = volume.now();
        volume.sync_all();
        assert_eq!([early, middle, late].map(|since| volume.is_sound(since).is_ok()), [false, false, true]);
        assert_eq!((volume.settle(early), volume.settle(late)), (Err(Errno::EIO), Ok(())));
    }

    /// What was written while a call ran already may not be in it.
    #[test]
    fn who_comes_while_a_call_runs_gets_one_that_begins_later() {
        let folder = tempfile::tempdir().unwrap();
        let (entered, inside) = sync_channel(8);
        let (leave, left) = sync_channel::<()>(8);
        let left = Mutex::new(left);
        let calls = Arc::new(AtomicU64::new(0));
        let counted = calls.clone();
        let sync_all = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            entered.send(()).unwrap();
            lock(&left).recv().unwrap();
            Ok(())
        };
        let volume = Volume::scripted(directory(folder.path()), Box::new(sync_all));
        std::thread::scope(|scope| {
            scope.spawn(|| volume.sync_all());
            inside.recv().unwrap();
            let late: Vec<_> = (0..3).map(|_| scope.spawn(|| volume.sync_all())).collect();
            leave.send(()).unwrap();
            inside.recv().unwrap(); // the second call
            assert!(late.iter().any(|thread| !thread.is_finished()));
            (0..3).for_each(|_| leave.send(()).unwrap());
        });
        assert!(calls.load(Ordering::SeqCst) >= 2);
    }

    #[test]
    fn what_is_mounted_below_is_a_volume_of_its_own() {
        let [one, other] = ["/proc/self", "/sys"].map(|path| directory(Path::new(path)));
        let volumes = Volumes::new(one.clone(), false);
        let (first, second) = (volumes.of(&one).unwrap(), volumes.of(&other).unwrap());
        assert!(Arc::ptr_eq(&first, &volumes.first()) && !Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &volumes.of(&other).unwrap()));
        assert_eq!(volumes.all().len(), 2);
    }
}
