//! Directories and files of a server's export, by handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use aqueduct_fs::data::ReadBuffer;
use aqueduct_fs::put::PutFile;
use aqueduct_fs::{
    Attr, Context, Entry, Errno, FileSystem, Handle, Lock, LockKind, LockSpace, OpenFlags, OpenId, ReadAt, RenameFlags,
    Reply, Request, SUM_LENGTH_MAX, SeekTo, SetAttr, Source, Sum, SumKind, WriteAt, XATTR_SIZE_MAX, XattrMode,
};
use aqueduct_metrics::{HistogramSnapshot, table};
use aqueduct_node::Attachment;
use bytes::Bytes;

use super::{Became, Directory, File, Listed, Node, Seen, Xattrs};
use crate::running::{OperationRecord, SessionRecord};

/// Bytes of a listing asked for at a time.
const LISTING_SIZE: u32 = 256 << 10;

/// What an extended attribute, and the list of their names, mostly has room in, in bytes.
const XATTR_USUAL: u32 = 1024;

/// An export, attached.
pub struct Export {
    client: Arc<dyn FileSystem>,
    context: Context,
    attachment: Attachment,
    /// The server makes sums of what it has.
    makes_sums: AtomicBool,
}

impl Export {
    /// Uses an attachment that has threads of its own, as whom `context` says.
    pub fn new(attachment: Attachment, context: Context) -> Arc<Export> {
        let (client, makes_sums) = (attachment.filesystem(), AtomicBool::new(true));
        Arc::new(Export { client, context, attachment, makes_sums })
    }

    /// The export's root.
    pub fn root(self: &Arc<Export>) -> Result<Arc<dyn Directory>, Errno> {
        let entry = self.call(Request::Root)?.entry()?;
        Ok(Arc::new(ProjectedDirectory(self.held(entry.handle))))
    }

    /// What the session has counted.
    pub fn record(&self, server: &str, export: &str) -> SessionRecord {
        let requests = self.attachment.metrics().sums(&table::SESSION_REQUEST_SECONDS);
        let operation = |(operation, count, nanos): (String, u64, u64)| OperationRecord {
            operation,
            count: count as f64,
            seconds: nanos as f64 / 1e9,
        };
        SessionRecord {
            server: server.to_owned(),
            export: export.to_owned(),
            operations: requests.into_iter().map(operation).collect(),
            ways: self.attachment.status().ways,
        }
    }

    /// How long requests waited at the server before it began with them, as it says.
    pub fn queue_times(&self) -> HistogramSnapshot {
        let metrics = self.attachment.metrics();
        let samples = metrics.samples(table::SESSION_QUEUE_SECONDS.definition.name);
        let mut all = HistogramSnapshot::default();
        samples.iter().filter_map(|sample| sample.histogram()).for_each(|of| all.merge(of));
        all
    }

    fn held(self: &Arc<Export>, handle: Handle) -> Held {
        Held { export: self.clone(), handle }
    }

    fn call(&self, request: Request<'_>) -> Result<Reply, Errno> {
        self.attachment.call(&self.context, request)
    }
}

/// An inode of an export.
struct Held {
    export: Arc<Export>,
    handle: Handle,
}

/// A directory of an export.
struct ProjectedDirectory(Held);

/// An open regular file of an export.
struct ProjectedFile {
    held: Held,
    open: OpenId,
    /// Something was written that could be lost.
    has_unstable: AtomicBool,
    /// Something was written.
    has_written: AtomicBool,
}

fn seen(handle: &Handle, attr: Attr) -> Seen {
    Seen { attr, device: 0, handle: Some(handle.clone()) }
}

impl Held {
    fn call(&self, request: Request<'_>) -> Result<Reply, Errno> {
        self.export.call(request)
    }

    fn seen_through(&self, open: Option<OpenId>) -> Result<Seen, Errno> {
        let attr = self.call(Request::GetAttr { handle: self.handle.bytes(), open })?.attr()?;
        Ok(seen(&self.handle, attr))
    }

    fn set_through(&self, open: Option<OpenId>, set: &SetAttr) -> Result<(), Errno> {
        self.call(Request::SetAttr { handle: self.handle.bytes(), open, set: *set }).map(drop)
    }

    /// Asks for something of a length that is not known. A server, and its kernel, set aside as
    /// much as is asked for.
    fn sized(&self, ask: impl Fn(u32) -> Result<Reply, Errno>) -> Result<Vec<u8>, Errno> {
        let asked = match ask(XATTR_USUAL) {
            Err(Errno::ERANGE) => ask(XATTR_SIZE_MAX as u32),
            asked => asked,
        };
        asked?.bytes()
    }

    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.sized(|size| self.call(Request::GetXattr { handle: self.handle.bytes(), name, size }))
    }

    fn all_xattrs(&self) -> Result<Xattrs, Errno> {
        let list = |size| self.call(Request::ListXattr { handle: self.handle.bytes(), size });
        let names = match self.sized(list) {
            Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
            names => names?,
        };
        let mut found = Vec::new();
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            match self.xattr(name) {
                Ok(value) => found.push((name.to_vec(), value)),
                Err(Errno::ENODATA) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn change_xattr(&self, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
        let handle = self.handle.bytes();
        match value {
            Some(value) => self.call(Request::SetXattr { handle, name, value, mode: XattrMode::Any })?.done(),
            None => self.call(Request::RemoveXattr { handle, name })?.done(),
        }
    }

    /// Opens the directory, and ends that whatever comes of it.
    fn with_directory<T>(&self, work: impl FnOnce(OpenId) -> Result<T, Errno>) -> Result<T, Errno> {
        let open = self.call(Request::OpenDirectory { handle: self.handle.bytes() })?.opened()?.id;
        let result = work(open);
        let ended = self.call(Request::ReleaseDirectory { open });
        result.and_then(|value| ended.map(|_| value))
    }

    fn opened(&self, entry: Entry, open: OpenId) -> Arc<dyn File> {
        let held = self.export.held(entry.handle);
        let [has_unstable, has_written] = [false; 2].map(AtomicBool::new);
        Arc::new(ProjectedFile { held, open, has_unstable, has_written })
    }
}

impl Node for Held {
    fn seen(&self) -> Result<Seen, Errno> {
        self.seen_through(None)
    }

    fn set(&self, set: &SetAttr) -> Result<(), Errno> {
        self.set_through(None, set)
    }

    fn xattrs(&self) -> Result<Xattrs, Errno> {
        self.all_xattrs()
    }

    fn set_xattr(&self, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
        self.change_xattr(name, value)
    }

    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn handle(&self) -> Option<&Handle> {
        Some(&self.handle)
    }
}

impl Node for ProjectedDirectory {
    fn seen(&self) -> Result<Seen, Errno> {
        self.0.seen()
    }

    fn set(&self, set: &SetAttr) -> Result<(), Errno> {
        self.0.set(set)
    }

    fn xattrs(&self) -> Result<Xattrs, Errno> {
        self.0.xattrs()
    }

    fn set_xattr(&self, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
        self.0.set_xattr(name, value)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.0.with_directory(|open| self.0.call(Request::SyncDirectory { open, data_only: false })?.done())
    }

    fn handle(&self) -> Option<&Handle> {
        Some(&self.0.handle)
    }
}

impl Node for ProjectedFile {
    fn seen(&self) -> Result<Seen, Errno> {
        self.held.seen_through(Some(self.open))
    }

    fn set(&self, set: &SetAttr) -> Result<(), Errno> {
        self.held.set_through(Some(self.open), set)
    }

    fn xattrs(&self) -> Result<Xattrs, Errno> {
        self.held.all_xattrs()
    }

    fn set_xattr(&self, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
        self.held.change_xattr(name, value)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.held.call(Request::Sync { open: self.open, data_only: false })?.done()
    }

    fn handle(&self) -> Option<&Handle> {
        Some(&self.held.handle)
    }
}

impl File for ProjectedFile {
    fn read(&self, offset: u64, length: usize, buffer: &mut Vec<u8>) -> Result<(), Errno> {
        let place = ReadBuffer::default();
        place.with(|memory| std::mem::swap(memory, buffer));
        let at = ReadAt { open: self.open, offset, length: length as u32 };
        let export = &self.held.export;
        let read = export.client.read(&export.context, at, place.sink(length));
        let count = export.attachment.wait(read);
        place.with(|memory| std::mem::swap(memory, buffer));
        buffer.truncate(count?);
        Ok(())
    }

    fn write(&self, offset: u64, data: Bytes) -> Result<(), Errno> {
        let export = &self.held.export;
        let mut done = 0;
        while done < data.len() {
            let at = WriteAt { open: self.open, offset: offset + done as u64, append: false, stable: false };
            let source = Source::Memory(data.slice(done..));
            let written = export.attachment.wait(export.client.write(&export.context, at, source))?;
            self.has_written.store(true, Ordering::Relaxed);
            if written.verifier != 0 {
                self.has_unstable.store(true, Ordering::Relaxed);
            }
            if written.count == 0 {
                return Err(Errno::ENOSPC);
            }
            done += written.count as usize;
        }
        Ok(())
    }

    fn lock(&self, alone: bool) -> Result<bool, Errno> {
        let kind = if alone { LockKind::Write } else { LockKind::Read };
        let lock = Lock { start: 0, end: u64::MAX, kind, pid: std::process::id() };
        let request =
            Request::SetLock { open: self.open, owner: self.open.0, space: LockSpace::Flock, lock, wait: false };
        match self.held.call(request) {
            Err(Errno::EAGAIN) => Ok(false),
            locked => locked?.done().map(|()| true),
        }
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.set(&SetAttr { size: Some(size), ..SetAttr::default() })
    }

    fn data_after(&self, offset: u64) -> Result<Option<(u64, u64)>, Errno> {
        let seek = |offset, to| self.held.call(Request::Seek { open: self.open, offset, to })?.size();
        match seek(offset, SeekTo::Data) {
            Err(Errno::ENXIO) => Ok(None),
            start => start.and_then(|start| Ok(Some((start, seek(start, SeekTo::Hole)?)))),
        }
    }

    fn sum(&self, (start, end): (u64, u64), kind: SumKind, past_cache: bool) -> Result<Option<Sum>, Errno> {
        let (length, export) = (end - start, &self.held.export);
        if length > SUM_LENGTH_MAX || !export.makes_sums.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let request = Request::Checksum { open: self.open, offset: start, length, kind, past_cache };
        match self.held.call(request) {
            // A server of an earlier release.
            Err(Errno::ENOSYS) => {
                export.makes_sums.store(false, Ordering::Relaxed);
                Ok(None)
            }
            Err(Errno::EOPNOTSUPP) => Ok(None),
            summed => summed?.sum().map(Some),
        }
    }

    fn forget(&self, _: u64) -> bool {
        false // who asks for the sums of what is kept for good is told by them
    }

    fn is_volatile(&self) -> bool {
        self.has_written.load(Ordering::Relaxed) && !self.has_unstable.load(Ordering::Relaxed)
    }
}

impl Drop for ProjectedFile {
    fn drop(&mut self) {
        if let Err(error) = self.held.call(Request::Release { open: self.open }) {
            tracing::debug!("the end of an open file was not answered: {error}");
        }
    }
}

impl ProjectedDirectory {
    fn entry(&self, name: &[u8]) -> Result<Entry, Errno> {
        aqueduct_fs::check_name(name)?;
        self.0.call(Request::Lookup { parent: self.0.handle.bytes(), name })?.entry()
    }

    fn open_file(&self, entry: Entry, flags: OpenFlags) -> Result<Arc<dyn File>, Errno> {
        let open = self.0.call(Request::Open { handle: entry.handle.bytes(), flags })?.opened()?.id;
        Ok(self.0.opened(entry, open))
    }

    fn list_open(&self, open: OpenId, found: &mut dyn FnMut(Listed)) -> Result<(), Errno> {
        let mut cookie = 0;
        loop {
            let request = Request::ReadDirectory { open, cookie, size: LISTING_SIZE, plus: true };
            let page = self.0.call(request)?.directory()?;
            let before = cookie;
            for entry in page.entries() {
                cookie = entry.cookie;
                if matches!(entry.name, b"." | b"..") {
                    continue;
                }
                aqueduct_fs::check_name(entry.name).map_err(|_| Errno::EPROTO)?;
                let inode = entry.inode.and_then(|(handle, attr)| Some(seen(&Handle::new(handle)?, attr)));
                found(Listed { name: entry.name.into(), kind: u32::from(entry.kind) << 12, seen: inode });
            }
            if page.end {
                return Ok(());
            }
            if cookie == before {
                return Err(Errno::EPROTO); // it would go on for ever
            }
        }
    }
}

impl Directory for ProjectedDirectory {
    fn list(&self, found: &mut dyn FnMut(Listed)) -> Result<(), Errno> {
        self.0.with_directory(|open| self.list_open(open, found))
    }

    fn look(&self, name: &[u8]) -> Result<Seen, Errno> {
        self.entry(name).map(|entry| seen(&entry.handle, entry.attr))
    }

    fn xattrs_of(&self, name: &[u8], seen: &Seen) -> Result<Xattrs, Errno> {
        match &seen.handle {
            Some(handle) => self.0.export.held(handle.clone()).xattrs(),
            None => self.other(name)?.xattrs(),
        }
    }

    fn directory(&self, name: &[u8]) -> Result<Arc<dyn Directory>, Errno> {
        let entry = self.entry(name)?;
        match entry.attr.kind() {
            libc::S_IFDIR => Ok(Arc::new(ProjectedDirectory(self.0.export.held(entry.handle)))),
            libc::S_IFLNK => Err(Errno::ELOOP),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn file(&self, name: &[u8], known: Option<&Seen>) -> Result<Arc<dyn File>, Errno> {
        let known = known.and_then(|seen| Some(Entry { handle: seen.handle.clone()?, attr: seen.attr }));
        let entry = known.map_or_else(|| self.entry(name), Ok)?;
        match entry.attr.kind() {
            libc::S_IFREG => self.open_file(entry, OpenFlags::READ),
            libc::S_IFLNK => Err(Errno::ELOOP),
            _ => Err(Errno::EINVAL),
        }
    }

    fn part(&self, name: &[u8]) -> Result<Arc<dyn File>, Errno> {
        let entry = self.entry(name)?;
        self.open_file(entry, OpenFlags::READ | OpenFlags::WRITE)
    }

    fn other(&self, name: &[u8]) -> Result<Box<dyn Node>, Errno> {
        Ok(Box::new(self.0.export.held(self.entry(name)?.handle)))
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let entry = self.entry(name)?;
        self.0.call(Request::ReadLink { handle: entry.handle.bytes() })?.bytes()
    }

    fn make_directory(&self, name: &[u8]) -> Result<Arc<dyn Directory>, Errno> {
        let parent = self.0.handle.bytes();
        let entry = self.0.call(Request::MakeDirectory { parent, name, mode: 0o700, umask: 0 })?.entry()?;
        Ok(Arc::new(ProjectedDirectory(self.0.export.held(entry.handle))))
    }

    fn make_symlink(&self, name: &[u8], text: &[u8]) -> Result<(), Errno> {
        self.0.call(Request::Symlink { parent: self.0.handle.bytes(), name, text }).map(drop)
    }

    fn make_other(&self, name: &[u8], kind: u32, rdev: u64) -> Result<(), Errno> {
        let (parent, mode) = (self.0.handle.bytes(), kind | 0o600);
        self.0.call(Request::MakeNode { parent, name, mode, umask: 0, rdev }).map(drop)
    }

    fn create(&self, name: &[u8]) -> Result<Arc<dyn File>, Errno> {
        let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXCLUSIVE;
        let request = Request::Create { parent: self.0.handle.bytes(), name, mode: 0o600, umask: 0, flags };
        let (entry, opened) = self.0.call(request)?.created()?;
        Ok(self.0.opened(entry, opened.id))
    }

    fn create_unnamed(&self, mode: u32) -> Result<Arc<dyn File>, Errno> {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let request = Request::CreateUnnamed { parent: self.0.handle.bytes(), mode, umask: 0, flags };
        let (entry, opened) = self.0.call(request)?.created()?;
        Ok(self.0.opened(entry, opened.id))
    }

    fn put(&self, files: &[PutFile<'_>], stable: bool) -> Result<Option<Became>, Errno> {
        let mut packed = Vec::with_capacity(files.iter().map(PutFile::packed_length).sum());
        files.iter().for_each(|file| file.pack(&mut packed));
        let request = Request::PutFiles { parent: self.0.handle.bytes(), files: &packed, stable };
        let became = match self.0.call(request) {
            Err(Errno::ENOSYS | Errno::EOPNOTSUPP) => return Ok(None),
            became => became?.put()?,
        };
        if became.len() != files.len() {
            return Err(Errno::EPROTO);
        }
        Ok(Some(became.into_iter().map(|one| one.map(|entry| seen(&entry.handle, entry.attr))).collect()))
    }

    fn name_file(&self, file: &dyn File, name: &[u8]) -> Result<(), Errno> {
        let handle = file.handle().ok_or(Errno::EXDEV)?.bytes();
        self.0.call(Request::Link { handle, parent: self.0.handle.bytes(), name }).map(drop)
    }

    fn link(&self, from: &dyn Directory, from_name: &[u8], name: &[u8]) -> Result<(), Errno> {
        let handle = from.look(from_name)?.handle.ok_or(Errno::EXDEV)?;
        self.0.call(Request::Link { handle: handle.bytes(), parent: self.0.handle.bytes(), name }).map(drop)
    }

    fn rename(&self, name: &[u8], new_name: &[u8], replaces: bool) -> Result<(), Errno> {
        let parent = self.0.handle.bytes();
        let flags = if replaces { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        self.0.call(Request::Rename { parent, name, new_parent: parent, new_name, flags })?.done()
    }

    fn unlink(&self, name: &[u8]) -> Result<(), Errno> {
        self.0.call(Request::Unlink { parent: self.0.handle.bytes(), name })?.done()
    }

    fn remove_directory(&self, name: &[u8]) -> Result<(), Errno> {
        self.0.call(Request::RemoveDirectory { parent: self.0.handle.bytes(), name })?.done()
    }

    fn sync_all(&self) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn syncs_all(&self) -> bool {
        false
    }

    fn free(&self) -> Result<(u64, u64), Errno> {
        let stat = self.0.call(Request::Statfs { handle: self.0.handle.bytes() })?.statfs()?;
        Ok((stat.blocks_available.saturating_mul(stat.fragment_size.into()), stat.files_free))
    }

    fn is_volatile(&self) -> bool {
        false
    }
}
