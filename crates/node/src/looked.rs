//! A volume of plain directories that is read without its servers: all its stores are mounted on
//! this machine, or their servers still run. Nothing of it is changed.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_fs::{
    Attr, ClientId, Context, Credential, Errno, FileSystem, Handle, MemorySink, OpenFlags, OpenId, ReadAt, Reply,
    Request, TRANSFER_SIZE_MAX, Time,
};
use aqueduct_layout::{Plain, Report};
use aqueduct_server::export_id;
use aqueduct_worker::{Group, wait};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use crate::failure::Failure;
use crate::plain::{self, Links};
use crate::volume::{VOLUME_EXPORT, Volume};
use crate::workers;

/// How long stores of servers that run may take to be reached.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// The packed bytes of one page of a listing.
const PAGE_SIZE: u32 = 256 << 10;

/// A volume of plain directories, to be looked at from the machine that has its tree.
pub struct Looked {
    plain: Arc<Plain>,
    group: Arc<Group>,
    _links: Links,
}

/// What was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Files, links and directories.
    pub entries: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// What was not copied: its path, and why.
    pub failed: Vec<(PathBuf, String)>,
    /// The servers that were not reached, and have a part of it.
    pub missed: BTreeSet<String>,
}

/// What is known while a volume is copied.
#[derive(Default)]
struct Copying {
    /// Where files were copied to that have other names too.
    links: HashMap<Handle, PathBuf>,
    /// Servers that do not answer.
    away: Vec<String>,
    /// Those of them that have a part of something.
    missed: BTreeSet<String>,
}

impl Looked {
    /// Looks at a volume. `stores` are directories of this machine, by the ids of their servers;
    /// others are asked from the servers.
    pub fn open(volume: &Volume, stores: &[(String, PathBuf)]) -> Result<Looked, Failure> {
        let group = workers::of_caller()
            .map_err(|error| Failure::new("cannot look at the volume", error, "check the limits on open files"))?;
        let (part, key, directory) = volume.tree()?;
        let export = export_id(VOLUME_EXPORT);
        let (plain, links) = plain::look((&part, key, &directory), (export, false), stores, &group)?;
        let end = Instant::now() + PATIENCE;
        while !plain.has_reached_all() && Instant::now() < end {
            std::thread::sleep(PAUSE);
        }
        Ok(Looked { plain, group, _links: links })
    }

    /// Whether all that files need is there.
    pub fn check(&self) -> Result<Report, Errno> {
        self.wait(self.plain.check())
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        wait(&self.group, future)
    }

    fn ask(&self, request: Request<'_>) -> Result<Reply, Errno> {
        let context = Context::new(ClientId(0), Credential::root());
        self.wait(self.plain.call(&context, request))
    }

    /// Copies the tree into a directory, which is made. What lies on servers that do not answer is
    /// not waited for.
    pub fn export(&self, target: &Path) -> io::Result<Exported> {
        private(target)?;
        let root = self.ask(Request::Root)?.entry()?;
        let mut exported = Exported::default();
        let mut copying = Copying { away: self.plain.wait_no_longer(), ..Copying::default() };
        let mut folders = vec![(root.handle, root.attr, target.to_owned())];
        let mut finished = Vec::new();
        while let Some((handle, attr, path)) = folders.pop() {
            let entries = match self.entries(&handle) {
                Ok(entries) => entries,
                Err(error) => {
                    exported.failed.push((path, error.to_string()));
                    continue;
                }
            };
            for (name, handle, attr) in entries {
                let path = path.join(std::ffi::OsStr::from_bytes(&name));
                match self.copy((&handle, &attr), &path, &mut copying) {
                    Ok(bytes) => {
                        exported.entries += 1;
                        exported.bytes += bytes;
                        if attr.is_directory() {
                            folders.push((handle, attr, path));
                        }
                    }
                    Err(error) => exported.failed.push((path, error.to_string())),
                }
            }
            finished.push((path, attr));
        }
        // Their times, when nothing is made in them any more.
        for (path, attr) in finished.into_iter().rev() {
            if let Err(error) = dress(&path, &attr) {
                exported.failed.push((path, error.to_string()));
            }
        }
        // The volume may be thrown away for it.
        rustix::fs::syncfs(File::open(target)?)?;
        exported.missed = copying.missed;
        Ok(exported)
    }

    fn entries(&self, folder: &Handle) -> Result<Vec<(Vec<u8>, Handle, Attr)>, Errno> {
        let open = self.ask(Request::OpenDirectory { handle: folder.bytes() })?.opened()?.id;
        let (mut entries, mut cookie) = (Vec::new(), 0);
        loop {
            let page = self.ask(Request::ReadDirectory { open, cookie, size: PAGE_SIZE, plus: true })?.directory()?;
            for entry in page.entries().filter(|entry| entry.name != b"." && entry.name != b"..") {
                let request = Request::Lookup { parent: folder.bytes(), name: entry.name };
                // One that cannot be looked at is named by its copy that fails.
                let found = self.ask(request).and_then(Reply::entry);
                let (handle, attr) = match found {
                    Ok(found) => (found.handle, found.attr),
                    Err(error) => {
                        tracing::error!("{}: {error}", String::from_utf8_lossy(entry.name));
                        (Handle::new(b"lost").ok_or(Errno::EIO)?, Attr { mode: 0o100_000, ..Attr::default() })
                    }
                };
                entries.push((entry.name.to_vec(), handle, attr));
            }
            cookie = page.entries().last().map_or(cookie, |entry| entry.cookie);
            if page.end {
                break;
            }
        }
        self.ask(Request::ReleaseDirectory { open })?;
        Ok(entries)
    }

    /// Copies one thing. Returns the bytes of a file.
    fn copy(&self, (handle, attr): (&Handle, &Attr), path: &Path, copying: &mut Copying) -> io::Result<u64> {
        if attr.is_directory() {
            return private(path).map(|()| 0);
        }
        if attr.is_regular() {
            if let Some(first) = copying.links.get(handle) {
                return fs::hard_link(first, path).map(|()| 0);
            }
            let bytes = self.copy_reached((handle, attr), path, copying)?;
            if attr.nlink > 1 {
                copying.links.insert(handle.clone(), path.to_owned());
            }
            return Ok(bytes);
        }
        if attr.kind() != 0o120_000 {
            return Err(io::Error::other("it is no file, directory or symbolic link"));
        }
        let text = self.ask(Request::ReadLink { handle: handle.bytes() })?.bytes()?;
        symlink(std::ffi::OsStr::from_bytes(&text), path)?;
        lchown(path, Some(attr.uid), Some(attr.gid))?;
        set_times(path, attr)?;
        Ok(0)
    }

    /// Copies a file, unless a part of it is on a server that does not answer.
    fn copy_reached(&self, of: (&Handle, &Attr), path: &Path, copying: &mut Copying) -> io::Result<u64> {
        let servers = self.wait(self.plain.servers_of(of.0));
        let missed = |copying: &mut Copying| {
            let id = servers.iter().find(|id| copying.away.contains(id))?;
            copying.missed.insert(id.clone());
            Some(io::Error::other(format!("a part of it is on server {id}, which is not reached")))
        };
        if let Some(error) = missed(copying) {
            return Err(error);
        }
        self.copy_file(of, path).map_err(|error| {
            // Those that have died meanwhile.
            copying.away.extend(servers.iter().filter(|id| !self.wait(self.plain.answers(id))).cloned());
            missed(copying).unwrap_or(error)
        })
    }

    fn copy_file(&self, (handle, attr): (&Handle, &Attr), path: &Path) -> io::Result<u64> {
        let open = self.ask(Request::Open { handle: handle.bytes(), flags: OpenFlags::READ })?.opened()?.id;
        // Nobody else's until it has its owner and mode.
        let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        let copied = self.copy_bytes(open, &file);
        let released = self.ask(Request::Release { open });
        let whole = copied.and_then(|bytes| dress(path, attr).and(Ok(released.map(|_| bytes)?)));
        // A part of it would be taken for all.
        whole.inspect_err(|_| drop(fs::remove_file(path)))
    }

    fn copy_bytes(&self, open: OpenId, file: &File) -> io::Result<u64> {
        let context = Context::new(ClientId(0), Credential::root());
        let mut offset = 0;
        loop {
            let (sink, length) = (MemorySink::default(), TRANSFER_SIZE_MAX as u32);
            let read = ReadAt { open, offset, length };
            let count = self.wait(self.plain.read(&context, read, Box::new(sink.clone())))?;
            if count == 0 {
                file.set_len(offset)?;
                return Ok(offset);
            }
            let data = sink.take().unwrap_or_default();
            // Holes stay holes.
            if data.iter().any(|byte| *byte != 0) {
                file.write_all_at(&data, offset)?;
            }
            offset += count as u64;
        }
    }
}

/// Makes a directory that nobody else enters until it has its owner and mode.
fn private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// Gives a copy its owner, mode and times.
fn dress(path: &Path, attr: &Attr) -> io::Result<()> {
    lchown(path, Some(attr.uid), Some(attr.gid))?;
    fs::set_permissions(path, fs::Permissions::from_mode(attr.mode & 0o7777))?;
    set_times(path, attr)
}

fn set_times(path: &Path, attr: &Attr) -> io::Result<()> {
    let time = |time: Time| Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanos) };
    let times = Timestamps { last_access: time(attr.atime), last_modification: time(attr.mtime) };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
