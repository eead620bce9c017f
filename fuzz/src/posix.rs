//! Handles, tokens and names, given to a local directory: what was not made there is refused, and no name leads out of it.
//!
//! Input: the operation, which of the known handles and tokens it begins with, how many of that one's bytes are kept, how many are put behind them,
//! these, and a name.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::symlink;
use std::pin::pin;
use std::task::{Context as TaskContext, Poll, Waker};

use aqueduct_fs::{
    AccessMask, ClientId, Context, Credential, Errno, FileSystem, Groups, OpenFlags, OpenId, Opened, Reply, Request,
};
use aqueduct_posix::{HandleSource, Options, Posix};
use tempfile::TempDir;

const CLIENT: ClientId = ClientId(1);

/// The names in the exported directory.
const NAMES: [&[u8]; 3] = [b"file", b"directory", b"link"];

/// An exported directory, and all that it has given out.
struct World {
    posix: Posix,
    context: Context,
    /// Handles of the root and of what is in it, then tokens of the file and the directory.
    known: Vec<Vec<u8>>,
    _directory: TempDir,
}

thread_local! {
    static WORLDS: RefCell<Option<[World; 2]>> = const { RefCell::new(None) };
}

impl World {
    fn new(handles: HandleSource) -> World {
        let directory = tempfile::tempdir().expect("there is room for a directory");
        let path = directory.path();
        fs::write(path.join("file"), "some text").expect("there is room for a file");
        fs::create_dir(path.join("directory")).expect("the name is free");
        symlink("/etc/passwd", path.join("link")).expect("the name is free");
        let posix = Posix::open(path, Options { key: [7; 32], handles, ..Options::default() });
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let context = Context::new(CLIENT, Credential { uid, gid, groups: Groups::Known([].into()) });
        let posix = posix.expect("the directory is there");
        let mut world = World { posix, context, known: Vec::new(), _directory: directory };
        world.learn().expect("everything is there and ours");
        world
    }

    fn learn(&mut self) -> Result<(), Errno> {
        let root = self.call(Request::Root)?.entry()?.handle;
        self.known.push(root.bytes().to_vec());
        for name in NAMES {
            let entry = self.call(Request::Lookup { parent: root.bytes(), name })?.entry()?;
            self.known.push(entry.handle.bytes().to_vec());
        }
        let file: Opened = self.call(Request::Open { handle: &self.known[1], flags: OpenFlags::READ })?.opened()?;
        let directory = self.call(Request::OpenDirectory { handle: &self.known[2] })?.opened()?;
        self.known.extend([file.token.into_vec(), directory.token.into_vec()]);
        self.posix.depart(CLIENT);
        Ok(())
    }

    fn call(&self, request: Request<'_>) -> Result<Reply, Errno> {
        match pin!(self.posix.call(&self.context, request)).poll(&mut TaskContext::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("nothing here waits"),
        }
    }

    /// Asks for the operation about what `bytes` name.
    fn ask(&self, operation: u8, bytes: &[u8], name: &[u8]) -> Result<Reply, Errno> {
        match operation {
            0 => self.call(Request::GetAttr { handle: bytes, open: None }),
            1 => self.call(Request::Lookup { parent: bytes, name }),
            2 => self.call(Request::ReadLink { handle: bytes }),
            3 => self.call(Request::Access { handle: bytes, mask: AccessMask::READ }),
            4 => self.call(Request::Statfs { handle: bytes }),
            5 => self.call(Request::ListXattr { handle: bytes, size: 100 }),
            6 => self.call(Request::GetXattr { handle: bytes, name, size: 100 }),
            7 => self.call(Request::Open { handle: bytes, flags: OpenFlags::READ }),
            8 => {
                let open = self.call(Request::OpenDirectory { handle: bytes })?.opened()?.id;
                let cookie = name.first_chunk().map_or(0, |cookie| u64::from_le_bytes(*cookie));
                self.call(Request::ReadDirectory { open, cookie, size: 4096, plus: true })
            }
            _ => {
                let open = name.first_chunk().map_or(9, |id| u64::from_le_bytes(*id));
                self.call(Request::Reopen { open: OpenId(open), token: bytes })
            }
        }
    }

    fn run(&self, data: &[u8]) -> Option<()> {
        let ([operation, which, keep, add], rest) = data.split_first_chunk()?;
        let base = &self.known[usize::from(*which) % self.known.len()];
        let (added, name) = rest.split_at_checked(usize::from(*add))?;
        let bytes = [&base[..base.len().min(usize::from(*keep))], added].concat();
        let result = self.ask(operation >> 1, &bytes, name);
        let _ = self.ask(operation >> 1, &bytes, name).is_ok();
        self.posix.depart(CLIENT);
        if let Ok(reply) = result {
            assert!(self.known.contains(&bytes), "{bytes:?} was never given out, and gave {reply:?}");
            if let Reply::Entry(_) = reply {
                assert!(NAMES.contains(&name), "{name:?} is no name in the directory, and gave {reply:?}");
            }
        }
        Some(())
    }
}

/// The lowest bit of the operation says where handles come from.
pub fn run(data: &[u8]) {
    let Some(first) = data.first() else { return };
    WORLDS.with_borrow_mut(|worlds| {
        let make = || [World::new(HandleSource::Kernel), World::new(HandleSource::Table)];
        worlds.get_or_insert_with(make)[usize::from(first & 1)].run(data)
    });
}

/// Every operation with everything known, as it is and without its end.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for operation in 0..20 {
        for which in 0..6 {
            seeds.push([&[operation, which, u8::MAX, 0], &b"file"[..]].concat());
        }
        seeds.push([&[operation, 1, 20, 3, 1, 2, 3], &b"../../etc/passwd"[..]].concat());
    }
    seeds
}
