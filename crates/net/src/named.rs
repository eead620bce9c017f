//! Unix sockets with a name in the file system: to take a name, to give it back, and what
//! becomes of those that killed processes have left.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::socket::BACKLOG;

/// How long whoever makes or removes a Unix socket waits for others that do so in the same folder.
const FOLDER_LOCK_MAX: Duration = Duration::from_secs(1);

/// The entries of a folder that are looked at for sockets that nobody listens on: each costs two
/// system calls. Those beyond wait for another start.
const SWEPT_MAX: usize = 4096;

/// The name of a socket on which this process listens.
#[derive(Debug)]
pub struct Name {
    path: PathBuf,
    /// The device and number of its inode.
    inode: (u64, u64),
}

impl Name {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the name, unless it is another socket's by now. Call it while the socket listens:
    /// then nobody takes the name for one that a dead process left.
    pub fn remove(self) -> io::Result<()> {
        let _others_wait = lock(folder_of(&self.path))?;
        let found = fs::symlink_metadata(&self.path)?;
        if (found.dev(), found.ino()) != self.inode {
            return Err(io::Error::other("somebody has put another file into the socket's place"));
        }
        fs::remove_file(&self.path)
    }
}

/// Listens on a Unix socket, which anybody on this machine may connect to: the kernel says who
/// did. A socket that is there already is replaced if nobody listens on it, else the error is
/// `AddrInUse`; anything else that is there stays. The folder has to exist.
pub fn listen(path: &Path) -> io::Result<(Socket, Name)> {
    // Held until the socket listens, so that nobody takes it for one that a dead process left.
    let _others_wait = lock(folder_of(path))?;
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM.cloexec().nonblocking(), None)?;
    match socket.bind(&address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path)? => {
            fs::remove_file(path)?;
            socket.bind(&address)?;
        }
        result => result?,
    }
    let inode = open_to_all(path)?;
    socket.listen(BACKLOG)?;
    Ok((socket, Name { path: path.to_owned(), inode }))
}

/// Removes the sockets of a folder on which nobody listens. Returns how many those were.
pub fn sweep(folder: &Path) -> io::Result<usize> {
    // Without the lock one of them may be a server's that is about to listen.
    let Some(_others_wait) = lock(folder)? else { return Ok(0) };
    let mut removed = 0;
    for entry in fs::read_dir(folder)?.take(SWEPT_MAX) {
        let path = entry?.path();
        let is_socket = path.extension().is_some_and(|extension| extension == "sock");
        if is_socket && is_abandoned(&path).unwrap_or(false) {
            fs::remove_file(&path)?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Keeps others from making or removing sockets beside this one. `None`: somebody holds the lock
/// for long. Anybody who may read the folder may do so, and must not keep a server from starting.
fn lock(folder: &Path) -> io::Result<Option<File>> {
    let folder = File::open(folder)?;
    let end = Instant::now() + FOLDER_LOCK_MAX;
    while folder.try_lock().is_err() {
        if Instant::now() >= end {
            return Ok(None);
        }
        std::thread::sleep(FOLDER_LOCK_MAX / 100);
    }
    Ok(Some(folder))
}

/// Lets everybody connect. The socket itself is changed, whatever its name leads to by now.
/// Returns the device and number of its inode.
fn open_to_all(path: &Path) -> io::Result<(u64, u64)> {
    use rustix::fs::{FileType, Mode, OFlags};
    let made = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::fstat(&made)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(io::Error::other("somebody has put another file into the socket's place"));
    }
    fs::set_permissions(format!("/proc/self/fd/{}", made.as_raw_fd()), Permissions::from_mode(0o666))?;
    Ok((found.st_dev, found.st_ino))
}

/// Whether there is a socket, and nobody listens on it.
fn is_abandoned(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM.cloexec().nonblocking(), None)?;
    let tried = probe.connect(&SockAddr::unix(path)?);
    Ok(matches!(tried, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(folder: &Path, name: &str) -> PathBuf {
        let path = folder.join(name);
        drop(listen(&path).unwrap()); // as a process that was killed: the name stays
        path
    }

    #[test]
    fn what_killed_processes_left_is_swept_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (_listens, name) = listen(&at("lives.sock")).unwrap();
        let gone = ["1.sock", "2-v6.sock"].map(|name| left(folder.path(), name));
        let other = left(folder.path(), "other");
        fs::write(at("file.sock"), "precious").unwrap();
        fs::create_dir(at("folder.sock")).unwrap();
        assert_eq!(sweep(folder.path()).unwrap(), 2);
        assert!(gone.iter().all(|path| !path.exists()));
        assert!([name.path(), &other, &at("file.sock"), &at("folder.sock")].iter().all(|path| path.exists()));
        // Whoever holds the lock may be about to listen on one of them.
        let path = left(folder.path(), "3.sock");
        let held = File::open(folder.path()).unwrap();
        held.lock().unwrap();
        assert_eq!(sweep(folder.path()).unwrap(), 0);
        assert!(path.exists());
        drop(held);
        assert_eq!(sweep(folder.path()).unwrap(), 1);
    }

    #[test]
    fn a_name_is_removed_by_whose_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let (_first, name) = listen(&path).unwrap();
        // Somebody has removed it, and another server has come.
        fs::remove_file(&path).unwrap();
        let (_second, its) = listen(&path).unwrap();
        assert!(name.remove().is_err() && path.exists());
        its.remove().unwrap();
        assert!(!path.exists());
    }

    /// Many servers at one name, each of which ends: a name that is there is always one that is
    /// listened on.
    #[test]
    fn servers_that_come_and_go_take_no_name_of_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let Ok((socket, name)) = listen(&path) else { continue };
                        let probe = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
                        probe.connect(&SockAddr::unix(&path).unwrap()).unwrap();
                        let (mut accepted, end) = (socket.accept(), Instant::now() + Duration::from_secs(10));
                        while accepted.is_err() && Instant::now() < end {
                            accepted = socket.accept();
                        }
                        assert!(accepted.is_ok(), "whoever connects comes here");
                        name.remove().unwrap();
                    }
                });
            }
        });
        assert!(!path.exists());
    }
}
