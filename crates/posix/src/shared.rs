//! Files that a database maps as the shared memory of its processes: SQLite's log index, LMDB's table of readers.
//!
//! What a process stores through a mapping is in the memory of its own client; another client's processes see it late or never. Both engines would
//! work on, and overwrite what the other has committed. But both first take a shared lock on one byte of that file, and hold it for as long as they
//! have it mapped: so one client's lock there keeps all other clients out.

use std::os::fd::AsFd;

use aqueduct_fs::{LockKind, LockSpace};

use crate::locks::Ask;
use crate::open_file::OpenFile;
use crate::sys::path_of;

/// The byte of SQLite's `NAME-shm` on which each connection holds a shared lock (`UNIX_SHM_DMS` in its os_unix.c, since 3.7.0).
const SQLITE_BYTE: u64 = 128;

/// The byte of LMDB's `lock.mdb`, or `NAME-lock`, on which each process holds a shared lock (`mdb_env_excl_lock`).
const LMDB_BYTE: u64 = 0;

/// Whether who gets this lock will use the file as memory that it shares with all others who have the lock.
pub(crate) fn is_attached_by(open: &OpenFile, ask: &Ask) -> bool {
    let byte = ask.lock.start;
    let may_be = ask.space == LockSpace::Posix
        && ask.lock.kind == LockKind::Read
        && ask.lock.end == byte
        && (byte == SQLITE_BYTE || byte == LMDB_BYTE);
    if !may_be {
        return false; // as nearly all locks, which cost nothing here
    }
    // The name that it has now; of a removed file there is none, and nobody else can come.
    let Some(path) = path_of(open.fd.as_fd()) else { return false };
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    match byte {
        SQLITE_BYTE => name.ends_with(b"-shm"),
        _ => name == b"lock.mdb" || name.ends_with(b"-lock"),
    }
}
