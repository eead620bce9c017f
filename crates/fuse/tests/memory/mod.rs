//! A small file system in memory, for tests of the front end: everything is allowed to everybody. A file named `stall` has reads that
//! end only when they are cancelled.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};

use aqueduct_fs::*;

pub const STALL: &[u8] = b"stall";
const ROOT: u64 = 1;

#[derive(Clone, Debug, Default)]
struct Node {
    attr: Attr,
    data: Vec<u8>,
    names: BTreeMap<Vec<u8>, u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Debug)]
struct Held {
    node: u64,
    open: OpenId,
    owner: u64,
    space: LockSpace,
    lock: Lock,
}

#[derive(Debug, Default)]
struct State {
    nodes: HashMap<u64, Node>,
    opens: HashMap<OpenId, (u64, OpenFlags)>,
    issued: u64,
    locks: Vec<Held>,
    lock_waiters: Vec<Waker>,
    clock: i64,
    departed: usize,
    cancelled: usize,
    callers: Vec<Credential>,
}

#[derive(Debug)]
pub struct Memory(Mutex<State>);

impl Default for Memory {
    fn default() -> Memory {
        let mut state = State { issued: ROOT, ..State::default() };
        let attr = Attr { ino: ROOT, mode: libc::S_IFDIR | 0o777, nlink: 2, ..Attr::default() };
        state.nodes.insert(ROOT, Node { attr, ..Node::default() });
        Memory(Mutex::new(state))
    }
}

fn bytes(id: u64) -> [u8; 8] {
    id.to_le_bytes()
}

fn id(handle: &[u8]) -> Result<u64, Errno> {
    Ok(u64::from_le_bytes(handle.try_into().map_err(|_| Errno::ESTALE)?))
}

impl State {
    fn node(&mut self, handle: &[u8]) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&id(handle)?).ok_or(Errno::ESTALE)
    }

    fn opened(&self, open: OpenId) -> Result<u64, Errno> {
        self.opens.get(&open).map(|(node, _)| *node).ok_or(Errno::EBADF)
    }

    fn entry(&self, id: u64) -> Result<Entry, Errno> {
        let node = self.nodes.get(&id).ok_or(Errno::ESTALE)?;
        Ok(Entry { handle: Handle::new(&bytes(id)).ok_or(Errno::EIO)?, attr: node.attr })
    }

    fn tick(&mut self) -> Time {
        self.clock += 1;
        Time { seconds: 1_700_000_000 + self.clock, nanos: 5 }
    }

    fn find(&mut self, parent: &[u8], name: &[u8]) -> Result<u64, Errno> {
        self.node(parent)?.names.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn make(&mut self, mode: u32, rdev: u64, data: &[u8]) -> u64 {
        self.issued += 1;
        let (ino, now) = (self.issued, self.tick());
        let nlink = if mode & libc::S_IFMT == libc::S_IFDIR { 2 } else { 1 };
        let size = data.len() as u64;
        let attr =
            Attr { ino, mode, nlink, rdev, size, atime: now, mtime: now, ctime: now, btime: now, ..Attr::default() };
        self.nodes.insert(ino, Node { attr, data: data.to_vec(), ..Node::default() });
        ino
    }

    fn add(&mut self, parent: &[u8], name: &[u8], mode: u32, rdev: u64, data: &[u8]) -> Result<u64, Errno> {
        if self.find(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let node = self.make(mode, rdev, data);
        self.node(parent)?.names.insert(name.into(), node);
        Ok(node)
    }

    fn open(&mut self, node: u64, flags: OpenFlags) -> Result<Opened, Errno> {
        if flags.contains(OpenFlags::TRUNCATE) {
            let now = self.tick();
            let node = self.node(&bytes(node))?;
            (node.attr.size, node.attr.mtime) = (0, now);
            node.data.clear();
        }
        self.issued += 1;
        let id = OpenId(self.issued);
        self.opens.insert(id, (node, flags));
        Ok(Opened { id, token: Box::new([]), width: 0 })
    }

    fn drop_locks(&mut self, keep: impl Fn(&Held) -> bool) {
        self.locks.retain(keep);
        self.lock_waiters.drain(..).for_each(Waker::wake);
    }

    fn release(&mut self, open: OpenId) -> Result<(), Errno> {
        let (node, _) = self.opens.remove(&open).ok_or(Errno::EBADF)?;
        self.drop_locks(|held| held.open != open);
        self.reap(node);
        Ok(())
    }

    fn reap(&mut self, node: u64) {
        let unused = self.nodes.get(&node).is_some_and(|found| found.attr.nlink == 0);
        if unused && !self.opens.values().any(|(opened, _)| *opened == node) {
            self.nodes.remove(&node);
        }
    }

    fn unlink(&mut self, parent: &[u8], name: &[u8], directory: bool) -> Result<(), Errno> {
        let id = self.find(parent, name)?;
        let node = self.node(&bytes(id))?;
        match (node.attr.is_directory(), directory) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            (true, true) if !node.names.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        node.attr.nlink = if directory { 0 } else { node.attr.nlink - 1 };
        self.node(parent)?.names.remove(name);
        self.reap(id);
        Ok(())
    }

    fn rename(&mut self, from: (&[u8], &[u8]), to: (&[u8], &[u8]), flags: RenameFlags) -> Result<(), Errno> {
        let moved = self.find(from.0, from.1)?;
        let target = self.find(to.0, to.1);
        if flags.contains(RenameFlags::EXCHANGE) {
            let target = target?;
            self.node(from.0)?.names.insert(from.1.into(), target);
        } else {
            if target.is_ok() {
                if flags.contains(RenameFlags::NOREPLACE) {
                    return Err(Errno::EEXIST);
                }
                let directory = self.node(&bytes(target?))?.attr.is_directory();
                self.unlink(to.0, to.1, directory)?;
            }
            self.node(from.0)?.names.remove(from.1);
        }
        self.node(to.0)?.names.insert(to.1.into(), moved);
        Ok(())
    }

    fn set_attr(&mut self, handle: &[u8], set: SetAttr) -> Result<Attr, Errno> {
        let now = self.tick();
        let time = |set| match set {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let node = self.node(handle)?;
        let attr = &mut node.attr;
        attr.mode = set.mode.map_or(attr.mode, |mode| attr.mode & libc::S_IFMT | mode);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = now;
        if let Some(size) = set.size {
            node.data.resize(size as usize, 0);
            (attr.size, attr.mtime) = (size, now);
        }
        Ok(*attr)
    }

    fn list(&mut self, open: OpenId, cookie: u64, size: u32, plus: bool) -> Result<DirPage, Errno> {
        let node = self.opened(open)?;
        let names: Vec<_> = self.node(&bytes(node))?.names.iter().map(|(name, id)| (name.clone(), *id)).collect();
        let dots = [(b".".to_vec(), node), (b"..".to_vec(), node)];
        let mut page = DirPage::default();
        page.end = true;
        for (at, (name, id)) in dots.iter().chain(&names).enumerate().skip(cookie as usize) {
            let attr = self.nodes.get(id).ok_or(Errno::EIO)?.attr;
            let kind = (attr.kind() >> 12) as u8;
            let (handle, cookie) = (bytes(*id), at as u64 + 1);
            let inode = (plus && at >= dots.len()).then_some((&handle[..], attr));
            let entry = DirEntry { ino: *id, cookie, kind, name, inode };
            if page.packed().len() + entry.packed_size() > size as usize {
                page.end = false;
                break;
            }
            page.push(&entry);
        }
        Ok(page)
    }

    fn conflict(&self, node: u64, owner: u64, space: LockSpace, lock: &Lock) -> Option<Lock> {
        let clash = |held: &&Held| {
            held.node == node
                && (held.owner, held.space) != (owner, space)
                && held.space == space
                && held.lock.start <= lock.end
                && lock.start <= held.lock.end
                && (held.lock.kind == LockKind::Write || lock.kind == LockKind::Write)
        };
        self.locks.iter().find(clash).map(|held| held.lock)
    }

    fn set_lock(&mut self, open: OpenId, owner: u64, space: LockSpace, lock: Lock) -> Result<(), Errno> {
        let node = self.opened(open)?;
        if lock.kind != LockKind::Unlock && self.conflict(node, owner, space, &lock).is_some() {
            return Err(Errno::EAGAIN);
        }
        // Whole overlapping locks are replaced: the tests lock one range at a time.
        self.drop_locks(|held| {
            (held.node, held.owner, held.space) != (node, owner, space)
                || held.lock.start > lock.end
                || lock.start > held.lock.end
        });
        if lock.kind != LockKind::Unlock {
            self.locks.push(Held { node, open, owner, space, lock });
        }
        Ok(())
    }

    fn xattr(value: Option<Vec<u8>>, size: u32) -> Result<Reply, Errno> {
        let value = value.ok_or(Errno::ENODATA)?;
        match size as usize {
            0 => Ok(Reply::Size(value.len() as u64)),
            room if value.len() > room => Err(Errno::ERANGE),
            _ => Ok(Reply::Bytes(value)),
        }
    }

    fn answer(&mut self, request: Request<'_>) -> Result<Reply, Errno> {
        use Request::*;
        match request {
            Root => Ok(Reply::Entry(self.entry(ROOT)?)),
            Lookup { parent, name } => {
                let id = self.find(parent, name)?;
                Ok(Reply::Entry(self.entry(id)?))
            }
            GetAttr { handle, .. } => Ok(Reply::Attr(self.node(handle)?.attr)),
            SetAttr { handle, set, .. } => Ok(Reply::Attr(self.set_attr(handle, set)?)),
            ReadLink { handle } => Ok(Reply::Bytes(self.node(handle)?.data.clone())),
            Symlink { parent, name, text } => {
                let id = self.add(parent, name, libc::S_IFLNK | 0o777, 0, text)?;
                Ok(Reply::Entry(self.entry(id)?))
            }
            MakeNode { parent, name, mode, umask, rdev } => {
                let id = self.add(parent, name, mode & !umask, rdev, b"")?;
                Ok(Reply::Entry(self.entry(id)?))
            }
            MakeDirectory { parent, name, mode, umask } => {
                let id = self.add(parent, name, libc::S_IFDIR | mode & 0o7777 & !umask, 0, b"")?;
                Ok(Reply::Entry(self.entry(id)?))
            }
            Unlink { parent, name } => self.unlink(parent, name, false).map(|()| Reply::Done),
            RemoveDirectory { parent, name } => self.unlink(parent, name, true).map(|()| Reply::Done),
            Rename { parent, name, new_parent, new_name, flags } => {
                self.rename((parent, name), (new_parent, new_name), flags).map(|()| Reply::Done)
            }
            Link { handle, parent, name } => {
                if self.find(parent, name).is_ok() {
                    return Err(Errno::EEXIST);
                }
                self.node(handle)?.attr.nlink += 1;
                self.node(parent)?.names.insert(name.into(), id(handle)?);
                Ok(Reply::Entry(self.entry(id(handle)?)?))
            }
            Open { handle, flags } => Ok(Reply::Opened(self.open(id(handle)?, flags)?)),
            OpenDirectory { handle } => Ok(Reply::Opened(self.open(id(handle)?, OpenFlags::READ)?)),
            Create { parent, name, mode, umask, flags } => {
                let found = self.find(parent, name);
                let id = match found {
                    Ok(_) if flags.contains(OpenFlags::EXCLUSIVE) => return Err(Errno::EEXIST),
                    Ok(id) => id,
                    Err(_) => self.add(parent, name, libc::S_IFREG | mode & 0o7777 & !umask, 0, b"")?,
                };
                let opened = self.open(id, flags)?;
                Ok(Reply::Created(self.entry(id)?, opened))
            }
            CreateUnnamed { mode, umask, flags, .. } => {
                let id = self.make(libc::S_IFREG | mode & 0o7777 & !umask, 0, b"");
                self.node(&bytes(id))?.attr.nlink = 0;
                let opened = self.open(id, flags)?;
                Ok(Reply::Created(self.entry(id)?, opened))
            }
            Release { open } | ReleaseDirectory { open } => self.release(open).map(|()| Reply::Done),
            Flush { open, owner } => {
                let node = self.opened(open)?;
                self.drop_locks(|held| (held.node, held.owner, held.space) != (node, owner, LockSpace::Posix));
                Ok(Reply::Done)
            }
            Sync { .. } | SyncDirectory { .. } | Access { .. } => Ok(Reply::Done),
            ReadDirectory { open, cookie, size, plus } => Ok(Reply::Directory(self.list(open, cookie, size, plus)?)),
            Statfs { .. } => Ok(Reply::Statfs(aqueduct_fs::Statfs {
                blocks: 1 << 20,
                block_size: 4096,
                fragment_size: 4096,
                name_length: 255,
                ..Default::default()
            })),
            GetXattr { handle, name, size } => Self::xattr(self.node(handle)?.xattrs.get(name).cloned(), size),
            ListXattr { handle, size } => {
                let names = self.node(handle)?.xattrs.keys().flat_map(|name| [&name[..], b"\0"].concat()).collect();
                Self::xattr(Some(names), size)
            }
            SetXattr { handle, name, value, .. } => {
                self.node(handle)?.xattrs.insert(name.into(), value.into());
                Ok(Reply::Done)
            }
            RemoveXattr { handle, name } => {
                self.node(handle)?.xattrs.remove(name).map(|_| Reply::Done).ok_or(Errno::ENODATA)
            }
            Fallocate { open, offset, length, .. } => {
                let node = bytes(self.opened(open)?);
                let size = self.node(&node)?.attr.size.max(offset + length);
                self.set_attr(&node, aqueduct_fs::SetAttr { size: Some(size), ..Default::default() })?;
                Ok(Reply::Done)
            }
            Seek { open, offset, to } => {
                let node = bytes(self.opened(open)?);
                let size = self.node(&node)?.attr.size;
                if offset >= size {
                    Err(Errno::ENXIO)
                } else {
                    Ok(Reply::Size(if to == SeekTo::Data { offset } else { size }))
                }
            }
            CopyRange { from, from_offset, to, to_offset, length } => {
                let data = self.read(from, from_offset, length as usize)?;
                Ok(Reply::Size(u64::from(self.write(to, to_offset, &data)?)))
            }
            GetLock { open, owner, space, lock } => {
                let found = self.conflict(self.opened(open)?, owner, space, &lock);
                Ok(Reply::Lock(found.unwrap_or(aqueduct_fs::Lock { kind: LockKind::Unlock, ..lock })))
            }
            SetLock { open, owner, space, lock, .. } => self.set_lock(open, owner, space, lock).map(|()| Reply::Done),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn read(&mut self, open: OpenId, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let node = self.opened(open)?;
        let data = &self.node(&bytes(node))?.data;
        let start = data.len().min(offset as usize);
        Ok(data[start..data.len().min(start + length)].to_vec())
    }

    fn write(&mut self, open: OpenId, offset: u64, bytes: &[u8]) -> Result<u32, Errno> {
        let (node, now) = (self.opened(open)?, self.tick());
        let node = self.nodes.get_mut(&node).ok_or(Errno::ESTALE)?;
        let end = offset as usize + bytes.len();
        node.data.resize(node.data.len().max(end), 0);
        node.data[offset as usize..end].copy_from_slice(bytes);
        (node.attr.size, node.attr.mtime) = (node.data.len() as u64, now);
        Ok(bytes.len() as u32)
    }
}

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Puts a file there behind the kernel's back.
    pub fn put(&self, name: &[u8], data: &[u8]) {
        let mut state = self.state();
        let root = bytes(ROOT);
        let id = match state.find(&root, name) {
            Ok(id) => id,
            Err(_) => state.add(&root, name, libc::S_IFREG | 0o666, 0, b"").unwrap(),
        };
        let now = state.tick();
        let node = state.node(&bytes(id)).unwrap();
        node.data = data.to_vec();
        (node.attr.size, node.attr.mtime) = (data.len() as u64, now);
    }

    /// The handle of the root.
    pub fn root(&self) -> Vec<u8> {
        bytes(ROOT).to_vec()
    }

    /// The handle of what has a name in the root.
    pub fn find(&self, name: &[u8]) -> Option<Vec<u8>> {
        Some(bytes(self.state().find(&bytes(ROOT), name).ok()?).to_vec())
    }

    /// Puts other data there, as many as before and at the same time by its clock.
    pub fn rewrite(&self, name: &[u8], data: &[u8]) {
        let mut state = self.state();
        let id = state.find(&bytes(ROOT), name).unwrap();
        state.node(&bytes(id)).unwrap().data = data.to_vec();
    }

    /// Removes a file from the root behind the kernel's back.
    pub fn remove(&self, name: &[u8]) {
        self.state().unlink(&bytes(ROOT), name, false).unwrap();
    }

    /// Files and directories that are open.
    pub fn open_count(&self) -> usize {
        self.state().opens.len()
    }

    /// How often the client was said to have gone.
    pub fn departed(&self) -> usize {
        self.state().departed
    }

    /// Operations that ended because they were cancelled.
    pub fn cancelled(&self) -> usize {
        self.state().cancelled
    }

    /// The callers of all lookups.
    pub fn callers(&self) -> Vec<Credential> {
        self.state().callers.clone()
    }

    fn lock_when_free<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        Call::waiting(poll_fn(move |task| {
            let mut state = self.state();
            let result = state.answer(request.clone());
            if result != Err(Errno::EAGAIN) {
                return Poll::Ready(result);
            }
            if context.cancel.poll(task).is_ready() {
                state.cancelled += 1;
                return Poll::Ready(Err(Errno::EINTR));
            }
            state.lock_waiters.push(task.waker().clone());
            Poll::Pending
        }))
    }

    fn stall<'a, T: 'a>(&'a self, context: &'a Context) -> Call<'a, T> {
        Call::waiting(poll_fn(move |task| {
            context.cancel.poll(task).map(|()| {
                self.state().cancelled += 1;
                Err(Errno::EINTR)
            })
        }))
    }
}

impl FileSystem for Memory {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        if matches!(request, Request::SetLock { wait: true, .. }) {
            return self.lock_when_free(context, request);
        }
        let mut state = self.state();
        if matches!(request, Request::Lookup { .. }) {
            state.callers.push(context.credential.clone());
        }
        Call::ready(state.answer(request))
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, mut sink: Box<dyn Sink>) -> Call<'a, usize> {
        let mut state = self.state();
        let stalled = state.find(&bytes(ROOT), STALL).ok();
        if stalled.is_some() && state.opened(read.open).ok() == stalled {
            drop(state);
            return self.stall(context);
        }
        let result = state.read(read.open, read.offset, read.length as usize);
        drop(state);
        Call::ready(result.and_then(|data| {
            sink.bytes(&data)?;
            sink.finish(data.len())?;
            Ok(data.len())
        }))
    }

    fn write<'a>(&'a self, _: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        let Source::Memory(data) = source else { return Call::ready(Err(Errno::EOPNOTSUPP)) };
        let mut state = self.state();
        let result = (|| {
            let node = state.opened(write.open)?;
            let end = state.node(&bytes(node))?.attr.size;
            state.write(write.open, if write.append { end } else { write.offset }, &data)
        })();
        Call::ready(result.map(|count| Written { count, verifier: 1, offset: 0 }))
    }

    fn inode(&self, _: ClientId, open: OpenId) -> Call<'_, Handle> {
        let node = self.state().opened(open);
        Call::ready(node.and_then(|node| Handle::new(&bytes(node)).ok_or(Errno::EBADF)))
    }

    fn depart(&self, _: ClientId) -> Call<'_, ()> {
        let mut state = self.state();
        state.departed += 1;
        state.opens.clear();
        state.drop_locks(|_| false);
        Call::ready(Ok(()))
    }
}
