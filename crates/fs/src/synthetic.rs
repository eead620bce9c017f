//! A file system without a disk: a root directory with one file, `zero`, of a fixed size. Reads give zeros, writes vanish. It measures the
//! layers above it, and lets them be tested without touching any machine's files.

use crate::types::*;
use crate::{
    Call, ClientId, Context, DirEntry, DirPage, Errno, FileSystem, ReadAt, Reply, Request, Sink, Source, WriteAt,
    Written, check_name,
};

const ROOT: &[u8] = b"root";
/// The name of the file.
pub const FILE: &[u8] = b"zero";
const FILE_OPEN: OpenId = OpenId(1);
const ROOT_OPEN: OpenId = OpenId(2);
const BLOCK_SIZE: u32 = 4096;

/// The synthetic file system; see the module.
#[derive(Debug)]
pub struct Synthetic {
    /// The size of the file in bytes.
    pub size: u64,
}

impl Synthetic {
    fn attr(&self, handle: &[u8]) -> Result<Attr, Errno> {
        let common = Attr { nlink: 1, blksize: BLOCK_SIZE, ..Attr::default() };
        match handle {
            ROOT => Ok(Attr { ino: 1, mode: libc::S_IFDIR | 0o755, nlink: 2, ..common }),
            FILE => Ok(Attr { ino: 2, mode: libc::S_IFREG | 0o666, size: self.size, ..common }),
            _ => Err(Errno::ESTALE),
        }
    }

    fn entry(&self, handle: &[u8]) -> Result<Entry, Errno> {
        Ok(Entry { handle: Handle::new(handle).ok_or(Errno::ESTALE)?, attr: self.attr(handle)? })
    }

    fn list(&self, cookie: u64, plus: bool) -> Result<DirPage, Errno> {
        let mut page = DirPage::default();
        page.end = true;
        let attr = self.attr(FILE)?;
        if cookie == 0 {
            page.push(&DirEntry {
                ino: 2,
                cookie: 1,
                kind: libc::DT_REG,
                name: FILE,
                inode: plus.then_some((FILE, attr)),
            });
        }
        Ok(page)
    }

    fn answer(&self, request: Request<'_>) -> Result<Reply, Errno> {
        let opened = |id| Opened { id, token: Box::new([]), width: 0 };
        match request {
            Request::Root => Ok(Reply::Entry(self.entry(ROOT)?)),
            Request::Lookup { parent: ROOT, name: FILE } => Ok(Reply::Entry(self.entry(FILE)?)),
            Request::Lookup { name, .. } => check_name(name).and(Err(Errno::ENOENT)),
            Request::GetAttr { handle, .. } | Request::SetAttr { handle, .. } => Ok(Reply::Attr(self.attr(handle)?)),
            Request::Open { handle: FILE, .. } => Ok(Reply::Opened(opened(FILE_OPEN))),
            Request::OpenDirectory { handle: ROOT } => Ok(Reply::Opened(opened(ROOT_OPEN))),
            Request::ReadDirectory { open: ROOT_OPEN, cookie, plus, .. } => {
                Ok(Reply::Directory(self.list(cookie, plus)?))
            }
            Request::Statfs { .. } => Ok(Reply::Statfs(Statfs {
                block_size: BLOCK_SIZE,
                fragment_size: BLOCK_SIZE,
                name_length: NAME_LENGTH_MAX as u32,
                ..Statfs::default()
            })),
            Request::Flush { .. }
            | Request::Release { .. }
            | Request::ReleaseDirectory { .. }
            | Request::Access { .. } => Ok(Reply::Done),
            Request::Sync { .. } | Request::SyncDirectory { .. } => Ok(Reply::Done),
            Request::Commit { .. } => Ok(Reply::Written(Written::default())),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

impl FileSystem for Synthetic {
    fn call<'a>(&'a self, _context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        Call::ready(self.answer(request))
    }

    fn read<'a>(&'a self, _context: &'a Context, read: ReadAt, mut sink: Box<dyn Sink>) -> Call<'a, usize> {
        static ZEROS: [u8; TRANSFER_SIZE_MAX] = [0; TRANSFER_SIZE_MAX];
        let length =
            u64::from(read.length).min(self.size.saturating_sub(read.offset)).min(TRANSFER_SIZE_MAX as u64) as usize;
        Call::ready(
            sink.bytes(&ZEROS[..length]).and_then(|()| sink.finish(length)).map(|()| length).map_err(Errno::from),
        )
    }

    fn write<'a>(&'a self, _context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        Call::ready(Ok(Written { count: source.length() as u32, verifier: 0, offset: write.offset }))
    }

    fn depart(&self, _client: ClientId) -> Call<'_, ()> {
        Call::ready(Ok(()))
    }
}
