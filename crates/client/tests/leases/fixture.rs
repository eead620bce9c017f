//! A server over a directory whose sessions outlive it, and clients as mounts have them.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aqueduct_client::{Cached, Client, ClientConfig, Map, MoverConfig};
use aqueduct_fs::*;
use aqueduct_posix::{Options, Posix};
use aqueduct_server::{External, Limits, Server, ServerConfig, Squash};
use aqueduct_worker::{Group, wait};

use crate::common::*;

pub const READ: OpenFlags = OpenFlags::READ;

/// Of the servers' handles and tokens.
pub const KEY: [u8; 32] = [5; 32];

/// What the configuration says of the export.
#[derive(Default)]
pub struct Configured {
    pub external: External,
    pub squash: Option<Squash>,
    /// By which its handles are told from another's.
    pub number: u32,
    /// Of the machine; 0: what is not stable is not kept.
    pub boot: u64,
}

/// A server process that can be killed and started again.
pub struct Process {
    /// From the next start on.
    pub export: Configured,
    pub directory: Arc<tempfile::TempDir>,
    sessions: tempfile::TempDir,
    limits: Limits,
    pub server: Arc<Server>,
    group: Arc<Group>,
}

fn start(
    directory: &Path,
    sessions: &Path,
    listen: &str,
    (limits, export): (Limits, &Configured),
) -> (Arc<Server>, Arc<Group>) {
    let options = Options { key: KEY, export: export.number, boot: export.boot, ..Options::default() };
    let mut config = ServerConfig {
        listen: vec![listen.parse().unwrap()],
        limits,
        sessions: Some(sessions.to_owned()),
        ..server_config("/e", Arc::new(Posix::open(directory, options).unwrap()))
    };
    config.exports[0].external = export.external;
    config.exports[0].access.squash = export.squash.or(Some(Squash::None));
    let group = group(2);
    (Server::start(config, group.clone()).unwrap(), group)
}

/// What was recalled may be granted again at once, so that tests need not wait.
pub fn limits() -> Limits {
    Limits { recovery_grace: LONG, session_grace: LONG, lease_holdoff: Duration::ZERO, ..Limits::default() }
}

impl Process {
    pub fn new() -> Process {
        Process::within(limits())
    }

    pub fn within(limits: Limits) -> Process {
        Process::over(tempfile::tempdir().unwrap(), limits)
    }

    /// Over a directory on a disk, as far as the usual place for what is to last is on one.
    pub fn on_disk() -> Process {
        Process::over(tempfile::tempdir_in("/var/tmp").unwrap(), limits())
    }

    fn over(directory: tempfile::TempDir, limits: Limits) -> Process {
        Process::of(Arc::new(directory), limits, Configured::default())
    }

    pub fn of(directory: Arc<tempfile::TempDir>, limits: Limits, export: Configured) -> Process {
        let sessions = tempfile::tempdir().unwrap();
        let (server, group) = start(directory.path(), sessions.path(), "127.0.0.1:0", (limits.clone(), &export));
        Process { export, directory, sessions, limits, server, group }
    }

    pub fn kill(&self) {
        self.server.shutdown(Duration::ZERO);
        self.group.stop();
        self.group.join();
    }

    pub fn start(&mut self) {
        let listen = self.server.addresses()[0].to_string();
        (self.server, self.group) =
            start(self.directory.path(), self.sessions.path(), &listen, (self.limits.clone(), &self.export));
    }

    /// Where it remembers its clients.
    pub fn sessions_path(&self) -> &Path {
        self.sessions.path()
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    pub fn mount(&self) -> Mount {
        Mount::new(self.server.addresses()[0])
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Writes down what is to be forgotten.
#[derive(Default)]
pub struct Told {
    pub forgotten: Mutex<Vec<(Vec<u8>, Aspects)>>,
    pub unnamed: Mutex<Vec<Vec<u8>>>,
    pub all: Mutex<usize>,
    /// Until when names may be used that were told of, as by a kernel that cannot forget them.
    pub names_last: Mutex<Option<Instant>>,
}

impl Observer for Told {
    fn forget(&self, handle: &[u8], aspects: Aspects) {
        self.forgotten.lock().unwrap().push((handle.to_vec(), aspects));
    }

    fn forget_at_once(&self, handle: &[u8], aspects: Aspects) -> bool {
        self.forget(handle, aspects);
        true
    }

    fn names_left(&self, _: &[u8]) -> Duration {
        self.names_last.lock().unwrap().map_or(Duration::ZERO, |last| last.saturating_duration_since(Instant::now()))
    }

    fn forget_names_of(&self, handle: &[u8]) {
        self.unnamed.lock().unwrap().push(handle.to_vec());
    }

    fn forget_everything(&self) {
        *self.all.lock().unwrap() += 1;
    }
}

impl Told {
    pub fn of(&self, handle: &Handle) -> Aspects {
        let forgotten = self.forgotten.lock().unwrap();
        forgotten
            .iter()
            .filter(|(of, _)| of == handle.bytes())
            .fold(Aspects::empty(), |all, (_, aspects)| all | *aspects)
    }
}

/// A client that keeps, without a kernel.
pub struct Mount {
    pub client: Arc<Client>,
    pub cached: Arc<Cached>,
    pub group: Arc<Group>,
    pub told: Arc<Told>,
    pub root: Handle,
}

pub fn user(uid: u32) -> Context {
    Context::new(ClientId(0), Credential { uid, gid: uid, groups: Groups::Known([].into()) })
}

impl Mount {
    pub fn new(server: std::net::SocketAddr) -> Mount {
        Mount::with(ClientConfig { leases: true, ..client_config(server, "/e") })
    }

    pub fn with(config: ClientConfig) -> Mount {
        Mount::over(vec![config], None)
    }

    /// Of a volume.
    pub fn over(servers: Vec<ClientConfig>, map: Option<Arc<dyn Map>>) -> Mount {
        let group = group(1);
        let client = Client::connect_volume(servers, map, std::slice::from_ref(&group)).unwrap();
        Mount::of(client, group)
    }

    /// Of a volume in which others move bytes for a server.
    pub fn moved(server: ClientConfig, movers: MoverConfig) -> Mount {
        let group = group(1);
        let client = Client::connect_moved(server, (movers, None), std::slice::from_ref(&group)).unwrap();
        Mount::of(client, group)
    }

    fn of(client: Arc<Client>, group: Arc<Group>) -> Mount {
        let cached = Cached::new(client.clone());
        let told = Arc::<Told>::default();
        cached.set_observer(told.clone());
        let root = wait(&group, cached.call(&context(), Request::Root)).unwrap().entry().unwrap().handle;
        Mount { client, cached, group, told, root }
    }

    pub fn answer(&self, context: &Context, request: Request<'_>) -> Answer {
        wait(&self.group, self.cached.ask(context, request)).unwrap()
    }

    pub fn ask(&self, request: Request<'_>) -> Result<Reply, Errno> {
        self.answer(&context(), request).result
    }

    pub fn look_up(&self, name: &str) -> Result<Entry, Errno> {
        self.look_up_in(&self.root, name)
    }

    pub fn look_up_in(&self, parent: &Handle, name: &str) -> Result<Entry, Errno> {
        self.ask(Request::Lookup { parent: parent.bytes(), name: name.as_bytes() })?.entry()
    }

    pub fn stat(&self, handle: &Handle) -> Attr {
        self.ask(Request::GetAttr { handle: handle.bytes(), open: None }).unwrap().attr().unwrap()
    }

    pub fn open(&self, handle: &Handle, flags: OpenFlags) -> Result<OpenId, Errno> {
        self.open_as(&context(), handle, flags)
    }

    pub fn open_as(&self, context: &Context, handle: &Handle, flags: OpenFlags) -> Result<OpenId, Errno> {
        Ok(self.answer(context, Request::Open { handle: handle.bytes(), flags }).result?.opened()?.id)
    }

    pub fn create(&self, name: &str) -> (Entry, OpenId) {
        let (parent, name) = (self.root.bytes(), name.as_bytes());
        let create = Request::Create { parent, name, mode: 0o644, umask: 0, flags: READ_WRITE };
        let (entry, opened) = self.ask(create).unwrap().created().unwrap();
        (entry, opened.id)
    }

    pub fn release(&self, open: OpenId) {
        self.ask(Request::Release { open }).unwrap();
    }

    pub fn read(&self, open: OpenId) -> Result<String, Errno> {
        let sink = MemorySink::default();
        let read = ReadAt { open, offset: 0, length: 100 };
        wait(&self.group, self.cached.read(&context(), read, Box::new(sink.clone())))?;
        Ok(String::from_utf8(sink.take().unwrap()).unwrap())
    }

    pub fn write(&self, open: OpenId, text: &'static [u8]) -> Result<Written, Errno> {
        let write = WriteAt { open, offset: 0, append: false, stable: false };
        wait(&self.group, self.cached.write(&context(), write, Source::Memory(text.into())))
    }

    pub fn set_mode(&self, handle: &Handle, mode: u32) {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.ask(Request::SetAttr { handle: handle.bytes(), open: None, set }).unwrap();
    }

    pub fn unlink(&self, name: &str) -> Result<Reply, Errno> {
        self.ask(Request::Unlink { parent: self.root.bytes(), name: name.as_bytes() })
    }

    pub fn rename(&self, name: &str, new_name: &str) -> Result<Reply, Errno> {
        let (parent, new_parent) = (self.root.bytes(), self.root.bytes());
        let (name, new_name, flags) = (name.as_bytes(), new_name.as_bytes(), RenameFlags::empty());
        self.ask(Request::Rename { parent, name, new_parent, new_name, flags })
    }

    /// The names of a directory, with the inodes where they are asked for.
    pub fn list(&self, handle: &Handle, size: u32, plus: bool) -> Vec<(String, Option<Attr>)> {
        let handle = handle.bytes();
        let open = self.ask(Request::OpenDirectory { handle }).unwrap().opened().unwrap().id;
        let (mut cookie, mut all) = (0, Vec::new());
        loop {
            let page = self.ask(Request::ReadDirectory { open, cookie, size, plus }).unwrap().directory().unwrap();
            for entry in page.entries() {
                all.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.inode.map(|(_, attr)| attr)));
                cookie = entry.cookie;
            }
            if page.end || page.packed().is_empty() {
                break;
            }
        }
        self.ask(Request::ReleaseDirectory { open }).unwrap();
        all
    }

    pub fn status(&self) -> serde_json::Value {
        serde_json::to_value(self.client.status()).unwrap()
    }

    pub fn operations(&self) -> u64 {
        self.status()["operations"].as_u64().unwrap()
    }

    /// How often the server is asked.
    pub fn round_trips<T>(&self, act: impl FnOnce() -> T) -> (u64, T) {
        let before = self.operations();
        let value = act();
        (self.operations() - before, value)
    }

    /// What nobody changes costs nothing.
    #[track_caller]
    pub fn warm<T>(&self, act: impl FnOnce() -> T) -> T {
        let (count, value) = self.round_trips(act);
        assert_eq!(count, 0, "round trips");
        value
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.client.disconnect();
        self.group.stop();
        self.group.join();
    }
}

/// Waits until something is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
