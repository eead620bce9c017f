//! A directory served to the tests, on disk and in memory, with the kernel's handles and with the table.
#![allow(dead_code, reason = "each test file uses a part")]

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::Thread;

use aqueduct_fs::*;
use aqueduct_posix::{Domain, HandleSource, OpenError, Options, Posix};
use bytes::Bytes;

/// A folder in memory on every Linux.
const MEMORY: &str = "/dev/shm";

pub const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

pub struct Served {
    pub posix: Posix,
    pub root: Vec<u8>,
    pub path: PathBuf,
    pub name: String,
    options: Options,
    folder: Option<tempfile::TempDir>,
}

impl Drop for Served {
    fn drop(&mut self) {
        // Removing the folder takes the test's own identity.
        aqueduct_posix::restore();
        drop(self.folder.take());
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says why a test cannot run here.
pub fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
}

pub fn serve_with(parent: &Path, options: Options) -> Served {
    aqueduct_posix::restore();
    let folder = tempfile::Builder::new().prefix("aqueduct-").tempdir_in(parent).unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let path = folder.path().to_path_buf();
    let posix = Posix::open(&path, options.clone()).unwrap();
    let name = format!("{} {:?}", parent.display(), options.handles);
    let mut served = Served { posix, root: Vec::new(), path, name, options, folder: Some(folder) };
    served.root = served.root_call(Request::Root).unwrap().entry().unwrap().handle.bytes().to_vec();
    served
}

pub fn serve(parent: &Path, handles: HandleSource) -> Served {
    serve_with(parent, Options { handles, ..Options::default() })
}

/// Runs `test` on ext4 or what else the temporary folder lies on, and in memory, each with both kinds of handles.
pub fn everywhere(test: impl Fn(&Served)) {
    for parent in [std::env::temp_dir().as_path(), Path::new(MEMORY)] {
        for handles in [HandleSource::Kernel, HandleSource::Table] {
            let served = serve(parent, handles);
            eprintln!("on {}", served.name);
            test(&served);
        }
    }
}

pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Credential {
    Credential { uid, gid, groups: Groups::Known(groups.into()) }
}

pub fn context(client: u64, credential: Credential) -> Context {
    Context::new(ClientId(client), credential)
}

pub fn own() -> Credential {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    user(uid, gid, &[])
}

/// Waits for a future on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

impl Served {
    /// The same directory, served by another process with the same key.
    pub fn restarted(&self) -> Posix {
        self.try_restarted().unwrap()
    }

    /// As [`restarted`](Served::restarted), or why it does not start.
    pub fn try_restarted(&self) -> Result<Posix, OpenError> {
        aqueduct_posix::restore();
        Posix::open(&self.path, Options { domain: Domain::default(), ..self.options() })
    }

    /// The process of several exports ends and another takes its place.
    pub fn restart_together(exports: &mut [&mut Served]) {
        aqueduct_posix::restore();
        let domain = Domain::default();
        for served in exports {
            served.options.domain = domain.clone();
            served.posix = Posix::open(&served.path, served.options()).unwrap();
        }
    }

    /// Another export of the same server, of the directory `path` below this one.
    pub fn beside(&self, path: &Path) -> Served {
        aqueduct_posix::restore();
        let options = Options { export: self.options.export + 1, ..self.options() };
        let path = self.path.join(path);
        let posix = Posix::open(&path, options.clone()).unwrap();
        let mut served = Served { posix, root: Vec::new(), path, name: self.name.clone(), options, folder: None };
        served.root = served.root_call(Request::Root).unwrap().entry().unwrap().handle.bytes().to_vec();
        served
    }

    pub fn options(&self) -> Options {
        self.options.clone()
    }

    /// The server's process ends and another takes its place.
    pub fn restart(&mut self) {
        self.posix = self.restarted();
    }

    pub fn call(&self, context: &Context, request: Request<'_>) -> Result<Reply, Errno> {
        block_on(self.posix.call(context, request))
    }

    pub fn root_call(&self, request: Request<'_>) -> Result<Reply, Errno> {
        self.call(&context(1, own()), request)
    }

    pub fn lookup(&self, parent: &[u8], name: &[u8]) -> Result<Entry, Errno> {
        self.root_call(Request::Lookup { parent, name })?.entry()
    }

    pub fn attr(&self, handle: &Handle) -> Result<Attr, Errno> {
        self.root_call(Request::GetAttr { handle: handle.bytes(), open: None })?.attr()
    }

    pub fn set(&self, context: &Context, handle: &Handle, set: SetAttr) -> Result<Attr, Errno> {
        self.call(context, Request::SetAttr { handle: handle.bytes(), open: None, set })?.attr()
    }

    pub fn mkdir(&self, parent: &[u8], name: &[u8], mode: u32) -> Entry {
        self.root_call(Request::MakeDirectory { parent, name, mode, umask: 0 }).unwrap().entry().unwrap()
    }

    pub fn create_as(&self, context: &Context, name: &[u8], mode: u32) -> Result<(Entry, Opened), Errno> {
        let flags = READ_WRITE;
        self.call(context, Request::Create { parent: &self.root, name, mode, umask: 0, flags })?.created()
    }

    pub fn create(&self, name: &[u8]) -> (Entry, OpenId) {
        let (entry, opened) = self.create_as(&context(1, own()), name, 0o644).unwrap();
        (entry, opened.id)
    }

    pub fn open_as(&self, context: &Context, handle: &Handle, flags: OpenFlags) -> Result<OpenId, Errno> {
        Ok(self.call(context, Request::Open { handle: handle.bytes(), flags })?.opened()?.id)
    }

    pub fn open(&self, handle: &Handle, flags: OpenFlags) -> Result<OpenId, Errno> {
        self.open_as(&context(1, own()), handle, flags)
    }

    pub fn release(&self, open: OpenId) {
        self.root_call(Request::Release { open }).unwrap().done().unwrap();
    }

    pub fn write_as(&self, context: &Context, write: WriteAt, data: &[u8]) -> Result<Written, Errno> {
        block_on(self.posix.write(context, write, Source::Memory(Bytes::copy_from_slice(data))))
    }

    pub fn write(&self, open: OpenId, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let write = WriteAt { open, offset, append: false, stable: false };
        Ok(self.write_as(&context(1, own()), write, data)?.count)
    }

    pub fn read_as(&self, context: &Context, open: OpenId, offset: u64, length: u32) -> Result<Vec<u8>, Errno> {
        let sink = MemorySink::default();
        let read = ReadAt { open, offset, length };
        let count = block_on(self.posix.read(context, read, Box::new(sink.clone())))?;
        let data = sink.take().expect("what was read is delivered");
        assert_eq!(data.len(), count);
        Ok(data)
    }

    pub fn read(&self, open: OpenId, offset: u64, length: u32) -> Result<Vec<u8>, Errno> {
        self.read_as(&context(1, own()), open, offset, length)
    }
}
