//! Changes that other processes of this machine make to what is served: the kernel tells of all that happens on a local file system (fanotify).
//!
//! It names inodes by the same handles that clients are given, sealed. So nothing is opened or looked at to say which inode has changed, and what lies
//! outside of the export needs no check: nobody has a handle of it.
//!
//! One queue for each file system, whatever the number of exports on it, and one thread that reads them all. The process's own changes are in the queues
//! too, and are passed over: whoever asked for them has answered for them. That thread waits for a moment after each reading, so that a busy server
//! wakes it 200 times a second at most and not once for each change.
//!
//! What the kernel does not tell: stores through a mapping before the last unmapping or close, and what a directory that is removed while this process
//! has it open becomes.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use aqueduct_fs::{Aspects, Errno, Outside};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

use crate::seal::{Place, Seal};
use crate::sys::{self, KernelHandle};
use crate::{Posix, identity};

/// How long changes gather before they are read again, in nanoseconds: what a change can be late by, beside a round trip, when others came just before.
/// Being woken then takes the thread at most some 0.5 % of a core's time.
const GATHER_NANOS: i64 = 5_000_000;

/// The bytes of events that are read at once: some 2,000 of them.
const READ_SIZE: usize = 128 * 1024;

/// The readings of one file system before the others have their turn: its whole queue, of 16,384 unless the machine is told otherwise.
const READS_MAX: usize = 8;

/// File systems of which this machine's kernel does not see all changes, by the number that statfs(2) gives them: other machines change them, or
/// programs do beneath them.
const SHARED: [(u32, &str); 28] = [
    (0x0000_6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x0000_517b, "SMB"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x00c3_6400, "CephFS"),
    (0x6573_5546, "FUSE"),
    (0x1983_0326, "BeeGFS"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x0102_1997, "9P"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0xaad7_aaea, "PanFS"),
    (0x2003_0528, "OrangeFS"),
    (0x7375_7245, "Coda"),
    (0x0000_564c, "NCP"),
    (0x6163_6673, "ACFS"),
    (0x0131_11a8, "Ibrix"),
    (0xbeef_dead, "StorNext"),
    (0xa501_fcf5, "VxFS"),
    (0xbacb_acbc, "VMware's shared folders"),
    (0x786f_4256, "VirtualBox's shared folders"),
    (0x7c7c_6673, "Parallels' shared folders"),
    (0x794c_7630, "overlayfs"),
    (0x6175_6673, "aufs"),
    (0x0000_f15f, "eCryptfs"),
];

/// File systems that only this machine changes.
const LOCAL: [(u32, &str); 16] = [
    (0x0000_ef53, "ext4"), // and ext2, ext3
    (0x5846_5342, "XFS"),
    (BTRFS, "Btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x2fc1_2fc1, "ZFS"),
    (0xf2f5_2010, "F2FS"),
    (0xca45_1a4e, "bcachefs"),
    (0x3153_464a, "JFS"),
    (0x0000_3434, "NILFS2"),
    (0x2011_bab0, "exFAT"),
    (0x0000_4d44, "FAT"),
    (0x7366_746e, "NTFS"),
    (0x0000_9660, "ISO 9660"),
    (0x7371_7368, "squashfs"),
    (0xe0f5_e1e2, "EROFS"),
];

const BTRFS: u32 = 0x9123_683e;

/// Who changes a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This machine alone.
    Local,
    /// Others too, or it lies over another one that may be changed; this is its name.
    Shared(&'static str),
    /// We do not know this one.
    Unknown,
}

/// Why changes from outside cannot be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotWatch {
    /// See [`Origin::Shared`].
    #[error("its file system is {0}, of whose changes this machine's kernel does not hear all")]
    Shared(&'static str),
    /// More may be mounted at any time.
    #[error("it shows all that is mounted below it (cross_mounts)")]
    Several,
    /// Changes are told by handle.
    #[error("the kernel has no file handles or no number for its file system, or takes handles from nobody but root")]
    Handles,
    /// The process may not.
    #[error("watching a whole file system takes root's rights (CAP_SYS_ADMIN)")]
    Permission,
    /// It is too old, or was built without.
    #[error("this kernel cannot: it takes Linux 5.1, with fanotify")]
    Kernel,
    /// Too many watch already.
    #[error("as many programs of this user watch as fs.fanotify.max_user_groups allows")]
    Groups,
    /// It refused otherwise.
    #[error("the kernel refused it for its file system ({0})")]
    System(Errno),
}

impl CannotWatch {
    /// What would help.
    pub fn remedy(self) -> &'static str {
        match self {
            CannotWatch::Permission => "run the server as root",
            CannotWatch::Several => "export each file system by itself",
            CannotWatch::Kernel => "take a newer kernel",
            CannotWatch::Groups => "raise fs.fanotify.max_user_groups",
            CannotWatch::Shared(_) | CannotWatch::Handles | CannotWatch::System(_) => "export another file system",
        }
    }
}

impl Posix {
    /// Who changes the root's file system.
    pub fn origin(&self) -> Origin {
        origin(magic(self.tree.root_fd()))
    }
}

fn magic(fd: BorrowedFd<'_>) -> u32 {
    rustix::fs::fstatfs(fd).map_or(0, |stat| stat.f_type as u32)
}

/// What the file system of a directory is called, of those that are known here; else its number
/// as statfs(2) gives it.
pub fn file_system(directory: &Path) -> Result<String, Errno> {
    let magic = rustix::fs::statfs(directory)?.f_type as u32;
    let known = SHARED.iter().chain(&LOCAL).find(|(known, _)| *known == magic);
    Ok(known.map_or_else(|| format!("{magic:#x}"), |(_, name)| (*name).to_owned()))
}

fn origin(magic: u32) -> Origin {
    match SHARED.iter().find(|(shared, _)| *shared == magic) {
        Some((_, name)) => Origin::Shared(name),
        None if LOCAL.iter().any(|(local, _)| *local == magic) => Origin::Local,
        None => Origin::Unknown,
    }
}

/// The exports whose changes from outside are told. What happens from [`add`](Watch::add) on is told after [`start`](Watch::start).
#[derive(Default)]
pub struct Watch {
    queues: Vec<Queue>,
    exports: usize,
}

/// The changes of one file system.
struct Queue {
    events: OwnedFd,
    device: u64,
    /// The exports on it: their numbers, and what makes their handles.
    exports: Vec<(usize, Seal)>,
}

/// Tells of changes until it is dropped.
pub struct Watcher {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the file system of `posix` from now on. The number of the export among those that were added.
    pub fn add(&mut self, posix: &Posix) -> Result<usize, CannotWatch> {
        if let Origin::Shared(name) = posix.origin() {
            return Err(CannotWatch::Shared(name));
        }
        if posix.tree.cross_mounts {
            return Err(CannotWatch::Several);
        }
        let device = posix.tree.root_device();
        let known = self.queues.iter().position(|queue| queue.device == device);
        let new = if known.is_none() { Some(queue(posix.tree.root_fd())?) } else { None };
        if !posix.tree.has_kernel_handles() {
            return Err(CannotWatch::Handles);
        }
        self.queues.extend(new.map(|events| Queue { events, device, exports: Vec::new() }));
        let queue = known.unwrap_or(self.queues.len() - 1);
        self.queues[queue].exports.push((self.exports, posix.tree.seal().clone()));
        self.exports += 1;
        Ok(self.exports - 1)
    }

    /// Tells what has happened and what will: `told` has whom for each export, in the order in which they were added.
    pub fn start(self, told: Vec<Arc<dyn Outside>>) -> std::io::Result<Watcher> {
        debug_assert_eq!(told.len(), self.exports);
        identity::restore();
        let stop = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?);
        let reader = Reader { queues: self.queues, told, stop: stop.clone(), own: std::process::id() };
        let thread = std::thread::Builder::new().name("watch".into()).spawn(move || reader.run())?;
        Ok(Watcher { stop, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes()); // which a new counter always takes
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // should it have panicked, it has said so
        }
    }
}

fn queue(root: BorrowedFd<'_>) -> Result<OwnedFd, CannotWatch> {
    identity::restore();
    let refused = |error| match error {
        Errno::EPERM => CannotWatch::Permission,
        Errno::EINVAL | Errno::ENOSYS => CannotWatch::Kernel,
        Errno::EMFILE => CannotWatch::Groups,
        Errno::EOPNOTSUPP | Errno::ENODEV => CannotWatch::Handles,
        error => CannotWatch::System(error),
    };
    let events = sys::change_queue().map_err(refused)?;
    let result = match sys::queue_changes(events.as_fd(), root) {
        // A subvolume has a number of its own, with which no whole file system is watched.
        Err(Errno::EXDEV) if magic(root) == BTRFS => {
            btrfs_top(root).and_then(|top| sys::queue_changes(events.as_fd(), top.as_fd()))
        }
        result => result,
    };
    result.map(|()| events).map_err(refused)
}

/// The root of the whole of the Btrfs file system on which `fd` lies, wherever it is mounted, if at all.
fn btrfs_top(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    /// The type of a handle without a parent (FILEID_BTRFS_WITHOUT_PARENT).
    const KIND: i32 = 0x4d;
    /// The first inode of each tree, the number of the first tree, and any generation.
    const TOP: (u64, u64, u32) = (256, 5, 0);
    let bytes = [&TOP.0.to_ne_bytes()[..], &TOP.1.to_ne_bytes(), &TOP.2.to_ne_bytes()].concat();
    let handle = KernelHandle::new(KIND, &bytes).ok_or(Errno::EINVAL)?;
    let top = sys::open_by_handle(fd, &handle)?;
    sys::reopen(top.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY)
}

/// What the thread has.
struct Reader {
    queues: Vec<Queue>,
    told: Vec<Arc<dyn Outside>>,
    stop: Arc<OwnedFd>,
    own: u32,
}

impl Reader {
    fn run(self) {
        let mut buffer = vec![0; READ_SIZE];
        let gather = Timespec { tv_sec: 0, tv_nsec: GATHER_NANOS };
        let stop = PollFd::new(&*self.stop, PollFlags::IN);
        loop {
            let queues = self.queues.iter().map(|queue| PollFd::new(&queue.events, PollFlags::IN));
            let mut all: Vec<_> = [stop.clone()].into_iter().chain(queues).collect();
            wait(&mut all, None);
            for (queue, ready) in self.queues.iter().zip(&all[1..]) {
                if !ready.revents().is_empty() {
                    self.read(queue, &mut buffer);
                }
            }
            if wait(&mut [stop.clone()], Some(&gather)) {
                return;
            }
        }
    }

    /// Reads what a queue has, and tells it.
    fn read(&self, queue: &Queue, buffer: &mut [u8]) {
        for _ in 0..READS_MAX {
            match rustix::io::read(&queue.events, &mut *buffer) {
                Ok(0) | Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                Ok(length) => {
                    if !changes(&buffer[..length], self.own).is_some_and(|changes| self.tell(queue, &changes)) {
                        self.tell_everything(queue);
                    }
                }
                // What the kernel could not hand out is gone from the queue.
                Err(_) => return self.tell_everything(queue),
            }
        }
    }

    fn tell_everything(&self, queue: &Queue) {
        queue.exports.iter().for_each(|(export, _)| self.told[*export].everything());
    }

    /// Whether all could be told.
    fn tell(&self, queue: &Queue, changes: &Changes<'_>) -> bool {
        changes.iter().all(|((kind, bytes), aspects)| {
            let Some(kernel) = KernelHandle::new(*kind, bytes) else { return false };
            let place = Place::Own(kernel);
            queue.exports.iter().all(|(export, seal)| {
                let handle = seal.handle(&place);
                handle.is_ok_and(|handle| {
                    self.told[*export].changed(&handle, *aspects);
                    true
                })
            })
        })
    }
}

/// Whether one of them is ready now or in time. Without a time there is none to wait for but that.
fn wait(fds: &mut [PollFd<'_>], time: Option<&Timespec>) -> bool {
    loop {
        match rustix::event::poll(fds, time) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Which inodes (type and bytes of the kernel's handle) have changed in what.
type Changes<'a> = HashMap<(i32, &'a [u8]), Aspects>;

/// What events say, but for those of the process `own`; `None`: not all that has happened.
fn changes(mut events: &[u8], own: u32) -> Option<Changes<'_>> {
    let mut changes = Changes::new();
    while !events.is_empty() {
        let (event, rest) = split(events)?;
        events = rest;
        if event.mask & libc::FAN_Q_OVERFLOW != 0 {
            return None;
        }
        if event.process != own {
            *changes.entry(object(event.records)?).or_default() |= aspects(event.mask);
        }
    }
    Some(changes)
}

/// A struct fanotify_event_metadata and the records behind it.
struct Event<'a> {
    mask: u64,
    process: u32,
    records: &'a [u8],
}

/// Takes the first event off.
fn split(bytes: &[u8]) -> Option<(Event<'_>, &[u8])> {
    /// Length u32, version u8, reserved u8, length of this part u16, mask u64, descriptor i32, process i32.
    const START: usize = 24;
    let start = bytes.first_chunk::<START>()?;
    let length = u32::from_ne_bytes(start[..4].try_into().ok()?) as usize;
    let records = usize::from(u16::from_ne_bytes([start[6], start[7]]));
    let (event, rest) = bytes.split_at_checked(length)?;
    if start[4] != libc::FANOTIFY_METADATA_VERSION || records < START {
        return None;
    }
    let mask = u64::from_ne_bytes(start[8..16].try_into().ok()?);
    let process = u32::from_ne_bytes(start[20..24].try_into().ok()?);
    Some((Event { mask, process, records: event.get(records..)? }, rest))
}

/// The handle in the record that comes with each change: type and bytes. One that the kernel could not make has none.
fn object(record: &[u8]) -> Option<(i32, &[u8])> {
    /// Kind u8, padding u8, length u16, number of the file system 8 bytes; then a struct file_handle: length u32, type i32.
    const START: usize = 20;
    let (start, data) = record.split_first_chunk::<START>()?;
    let length = u32::from_ne_bytes(start[12..16].try_into().ok()?) as usize;
    let kind = i32::from_ne_bytes(start[16..20].try_into().ok()?);
    let is_object = start[0] == libc::FAN_EVENT_INFO_TYPE_FID && length > 0;
    data.get(..length).filter(|_| is_object).map(|bytes| (kind, bytes))
}

/// What of the inode has changed. Changes of names are told of the directory; the inode that has or had the name is told of by itself, as its count of
/// links or its time of change moves.
fn aspects(mask: u64) -> Aspects {
    let of = |bits, aspects| if mask & bits != 0 { aspects } else { Aspects::empty() };
    of(libc::FAN_MODIFY | libc::FAN_CLOSE_WRITE, Aspects::DATA | Aspects::ATTRIBUTES)
        | of(libc::FAN_ATTRIB | libc::FAN_DELETE_SELF | libc::FAN_MOVE_SELF, Aspects::ATTRIBUTES)
        | of(
            libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_MOVED_FROM | libc::FAN_MOVED_TO,
            Aspects::NAMES | Aspects::ATTRIBUTES,
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: u32 = 77;

    /// As the kernel writes them.
    fn event(mask: u64, process: u32, handle: Option<&[u8]>) -> Vec<u8> {
        let mut record = Vec::new();
        if let Some(handle) = handle {
            record.extend([libc::FAN_EVENT_INFO_TYPE_FID, 0]);
            record.extend((20 + handle.len() as u16).to_ne_bytes());
            record.extend([7; 8]);
            record.extend((handle.len() as u32).to_ne_bytes());
            record.extend(1i32.to_ne_bytes());
            record.extend(handle);
        }
        let mut event = Vec::new();
        event.extend((24 + record.len() as u32).to_ne_bytes());
        event.extend([libc::FANOTIFY_METADATA_VERSION, 0]);
        event.extend(24u16.to_ne_bytes());
        event.extend(mask.to_ne_bytes());
        event.extend((-1i32).to_ne_bytes());
        event.extend(process.to_ne_bytes());
        event.extend(record);
        event
    }

    #[test]
    fn changes_of_others_are_gathered_by_inode() {
        let events = [
            event(libc::FAN_MODIFY, 1, Some(b"file")),
            event(libc::FAN_MODIFY | libc::FAN_CREATE, OWN, Some(b"mine")),
            event(libc::FAN_CREATE | libc::FAN_ONDIR, 2, Some(b"folder")),
            event(libc::FAN_ATTRIB, 3, Some(b"file")),
            event(libc::FAN_MOVE_SELF, 0, Some(b"moved")),
        ];
        let events = events.concat();
        let changes = changes(&events, OWN).unwrap();
        let of = |handle: &'static [u8]| changes.get(&(1, handle)).copied();
        assert_eq!(of(b"file"), Some(Aspects::DATA | Aspects::ATTRIBUTES));
        assert_eq!(of(b"folder"), Some(Aspects::NAMES | Aspects::ATTRIBUTES));
        assert_eq!((of(b"moved"), of(b"mine"), changes.len()), (Some(Aspects::ATTRIBUTES), None, 3));
    }

    #[test]
    fn what_was_not_told_is_everything() {
        let change = event(libc::FAN_MODIFY, 1, Some(b"file"));
        assert!(changes(&[change.clone(), event(libc::FAN_Q_OVERFLOW, 0, None)].concat(), OWN).is_none());
        assert!(changes(&event(libc::FAN_MODIFY, 1, None), OWN).is_none(), "of which inode?");
        assert!(changes(&event(libc::FAN_MODIFY, 1, Some(b"")), OWN).is_none(), "the kernel found no handle");
        let mut strange = change.clone();
        strange[4] += 1;
        assert!(changes(&strange, OWN).is_none(), "another version");
        for length in 1..change.len() {
            assert!(changes(&change[..length], OWN).is_none(), "{length} bytes");
        }
        assert_eq!(changes(&[], OWN), Some(Changes::new()));
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..200), length in 0u32..200) {
            let _ = changes(&bytes, OWN);
            let mut likely = event(libc::FAN_MODIFY, 1, Some(b"file"));
            likely.extend(&bytes);
            likely[..4].copy_from_slice(&length.to_ne_bytes());
            let _ = changes(&likely, OWN);
        }
    }

    #[test]
    fn network_file_systems_are_not_local() {
        assert_eq!(origin(0x6969), Origin::Shared("NFS"));
        assert_eq!(origin(0x0102_1994), Origin::Local);
        assert_eq!(origin(0x1234_5678), Origin::Unknown);
        assert!(LOCAL.iter().all(|(local, _)| SHARED.iter().all(|(shared, _)| shared != local)));
    }
}
