//! How a client is put together: sessions, the volume above them, and above that what is kept and
//! held back.

use std::sync::Arc;

use aqueduct_fs::{
    Answer, Call, ClientId, Context, FileSystem, Handle, Hold, Layout, Observer, OpenId, ReadAt, Reply, Request, Sink,
    Source, WriteAt, Written,
};
use aqueduct_metrics::status::{ClientStatus, GatheredStatus, LeaseStatus};
use aqueduct_metrics::{Collect, Snapshot, table};
use aqueduct_session::{Brought, ConnectError, Holder, Nanos, Recovery, Session, SessionConfig};
use aqueduct_wire::{AttachReply, Capabilities, HelloReply, LeaseId};
use aqueduct_worker::Group;

use crate::cache::{self, Cache, Leases};
use crate::volume::{Above, Map, Member, MoverConfig, Movers, Opens, Remake, Volume};
use crate::writeback::Writeback;

/// What a client is.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Its session to a server.
    pub session: SessionConfig,
    /// Keep what the server grants leases on: see [`Cached`](crate::Cached).
    pub leases: bool,
    /// Answer writes before the server has them, where it grants leases for that. Without `leases`
    /// it means nothing.
    pub gathers: bool,
    /// Reads and writes of programs are to be whole: front ends take turns
    /// ([`LockSpace::Turn`](aqueduct_fs::LockSpace::Turn)).
    pub is_atomic: bool,
}

/// A file system over the sessions of a volume; what it keeps under leases is for [`Cached`].
pub struct Client {
    volume: Arc<Volume>,
    is_atomic: bool,
    /// Of each session that grants some which are kept.
    leases: Box<[Option<Arc<Leases>>]>,
}

impl Client {
    /// Connects to the server and its export: two connections for each group, or one.
    pub fn connect(config: ClientConfig, groups: &[Arc<Group>]) -> Result<Arc<Client>, ConnectError> {
        Client::connect_volume(vec![config], None, groups)
    }

    /// The same of a volume of which one server has the names, and others move bytes. `remake`
    /// says which do when the volume's map changes; `None`: it is not to be followed.
    pub fn connect_moved(
        config: ClientConfig,
        (movers, remake): (MoverConfig, Option<Remake>),
        groups: &[Arc<Group>],
    ) -> Result<Arc<Client>, ConnectError> {
        Client::connect_all(vec![config], (None, Some(Movers::new(movers, remake))), groups)
    }

    /// Connects to the servers of a volume, whose map says which serves what. The root is the
    /// first one's.
    pub fn connect_volume(
        servers: Vec<ClientConfig>,
        map: Option<Arc<dyn Map>>,
        groups: &[Arc<Group>],
    ) -> Result<Arc<Client>, ConnectError> {
        Client::connect_all(servers, (map, None), groups)
    }

    fn connect_all(
        servers: Vec<ClientConfig>,
        roles: (Option<Arc<dyn Map>>, Option<Movers>),
        groups: &[Arc<Group>],
    ) -> Result<Arc<Client>, ConnectError> {
        let (opens, is_alone) = (Arc::<Opens>::default(), servers.len() == 1);
        let is_atomic = servers.iter().any(|config| config.is_atomic);
        let (mut members, mut leases) = (Vec::new(), Vec::new());
        for (session, config) in servers.into_iter().enumerate() {
            let (keeps, gathers) = (config.leases, config.gathers);
            let of_session = keeps
                .then(|| Arc::new(Leases::new((session, is_alone), Arc::new(Writeback::new(session, opens.clone())))));
            let above = of_session.clone().map(|leases| Arc::new(Keeper { leases, gathers }) as Arc<dyn Above>);
            leases.push(of_session);
            members.push(Member { config: config.session, above });
        }
        let roles = (roles.0, roles.1.map(|movers| movers.taking_turns(is_atomic)));
        let volume = Volume::connect(members, roles, opens, groups)?;
        let client = Client { volume, is_atomic, leases: leases.into() };
        client.start()?;
        Ok(Arc::new(client))
    }

    /// Starts what gives back leases and sends what is held back.
    fn start(&self) -> Result<(), ConnectError> {
        let failed = |server: &str, source| {
            self.disconnect();
            ConnectError::Local { server: server.to_owned(), source }
        };
        for (leases, session) in self.leases.iter().zip(&self.volume.sessions) {
            let Some(leases) = leases else { continue };
            let covers: Arc<dyn crate::writeback::Covers> = leases.clone();
            leases.writeback.start(&self.volume, Arc::downgrade(&covers));
            cache::start(&self.volume, leases).map_err(|source| failed(session.server(), source))?;
        }
        self.volume.connect_movers().map_err(|source| failed(self.first().server(), source))
    }

    /// From now on operations whose steps are kept take over those of tasks that work for several.
    pub fn keep_steps(&self) {
        self.volume.behind.keep();
    }

    /// The session of the root.
    fn first(&self) -> &Arc<Session> {
        &self.volume.sessions[0]
    }

    /// Identifies this client to the FileSystem interface of the front end. The server has its own
    /// name for the session.
    pub fn client_id(&self) -> ClientId {
        ClientId(0)
    }

    /// Another one each time that the server of the names was started, from before anything that
    /// it has said since is heard.
    pub fn epoch(&self) -> u64 {
        self.volume.sessions[0].opens().epoch()
    }

    /// Whether the server serves the export read-only.
    pub fn is_read_only(&self) -> bool {
        self.first().is_read_only()
    }

    /// Whether who reads or writes takes a turn.
    pub fn is_atomic(&self) -> bool {
        self.is_atomic
    }

    /// Whether all callers act as one user at the server.
    pub fn one_user(&self) -> bool {
        self.first().one_user()
    }

    /// Makes stable what was written, and says goodbye: the server frees at once what this client
    /// held. Requests under way end with EIO. Never call it on a worker.
    pub fn disconnect(&self) {
        self.leases.iter().flatten().for_each(|leases| leases.writeback.leave());
        self.volume.leave_lanes();
        self.volume.movers.iter().for_each(Movers::disconnect);
        self.volume.sessions.iter().for_each(|session| session.disconnect());
        self.leases.iter().flatten().for_each(|leases| leases.recalls.end());
    }

    /// Server, export and counters, for `aqueduct status`: those of the session of the root.
    pub fn status(&self) -> ClientStatus {
        let (session, counters) = (self.first(), self.first().counters());
        let leases = self.leases[0].as_ref();
        ClientStatus {
            server: session.server().to_owned(),
            export: session.export().to_owned(),
            connections: session.connections() as u64,
            operations: counters.operations.get(),
            bytes_read: counters.bytes_read.get(),
            bytes_written: counters.bytes_written.get(),
            reconnects: counters.reconnects.get(),
            rails: session.rails().into_iter().map(Into::into).collect(),
            replay_window: session.window().limit() as u64,
            replay_bytes: session.window().bytes() as u64,
            leases: leases.map(|leases| kept(leases)),
            gathered: leases.map(|leases| gathered(&leases.writeback)),
            ways: self.all().iter().flat_map(|session| session.ways()).collect(),
            activity: self.all().iter().flat_map(|session| session.counters().activity(session.server())).collect(),
            rest_from: None,
        }
    }

    /// All its sessions.
    fn all(&self) -> Vec<Arc<Session>> {
        let movers = self.volume.movers.iter().flat_map(Movers::sessions);
        self.volume.sessions.iter().cloned().chain(movers).collect()
    }
}

impl Collect for Client {
    /// Of all sessions together.
    fn collect(&self, into: &mut Snapshot) {
        self.all().iter().for_each(|session| session.collect(into));
        for leases in self.leases.iter().flatten() {
            let (inodes, bytes) = leases.kept();
            into.put(&table::CACHE_HITS, &[], &leases.uses.hits);
            into.put(&table::CACHE_MISSES, &[], &leases.uses.misses);
            into.put(&table::CACHE_RECALLS, &[], &leases.uses.recalls);
            into.put_number(&table::CACHE_INODES, &[], inodes as u64);
            into.put_number(&table::CACHE_BYTES, &[], bytes as u64);
            let (files, bytes) = leases.writeback.held();
            into.put(&table::WRITEBACK_WRITES, &[], &leases.writeback.counters.held);
            into.put(&table::WRITEBACK_ATTRIBUTES, &[], &leases.writeback.counters.set);
            into.put(&table::WRITEBACK_REQUESTS, &[], &leases.writeback.counters.sent);
            into.put_number(&table::WRITEBACK_FILES, &[], files as u64);
            into.put_number(&table::WRITEBACK_BYTES, &[], bytes as u64);
        }
    }
}

fn kept(leases: &Leases) -> LeaseStatus {
    let (inodes, bytes) = leases.kept();
    LeaseStatus::Kept {
        hits: leases.uses.hits.get(),
        misses: leases.uses.misses.get(),
        recalls: leases.uses.recalls.get(),
        age_max: leases.age_max(),
        inodes: inodes as u64,
        bytes: bytes as u64,
    }
}

fn gathered(writeback: &Writeback) -> GatheredStatus {
    let (files, bytes) = writeback.held();
    GatheredStatus {
        files: files as u64,
        bytes: bytes as u64,
        writes: writeback.counters.held.get(),
        attributes: writeback.counters.set.get(),
        requests: writeback.counters.sent.get(),
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.leases.iter().flatten().for_each(|leases| leases.recalls.end());
    }
}

impl FileSystem for Client {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        Call::waiting(async move { self.volume.call(context, &request, &mut Brought::default()).await })
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        Call::waiting(self.volume.read(context, read, sink))
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        Call::waiting(async move {
            match source {
                Source::Memory(data) => self.volume.write(context, (write, data), &mut Brought::default()).await,
                Source::Staged(staged) => self.volume.write_staged(context, write, staged).await,
            }
        })
    }

    /// The server frees what a session held when it ends; within a session the front end is the
    /// only client.
    fn depart(&self, _client: ClientId) -> Call<'_, ()> {
        Call::ready(Ok(()))
    }

    fn inode(&self, _client: ClientId, open: OpenId) -> Call<'_, Handle> {
        Call::ready(self.volume.inode(open))
    }
}

/// A client that answers from memory what it has leases on.
pub struct Cached {
    client: Arc<Client>,
    cache: Cache,
}

impl Cached {
    /// Over a client whose configuration says that it keeps what leases are granted on.
    pub fn new(client: Arc<Client>) -> Arc<Cached> {
        let cache = Cache { volume: client.volume.clone(), leases: client.leases.clone() };
        Arc::new(Cached { client, cache })
    }

    /// From now on this one is told what whoever gets answers has to forget. It is called by two
    /// threads of each session's, and by one that connects again. What is to forget attributes and
    /// names, and no data, must not wait for anybody who forgets data: those may wait for writes.
    pub fn set_observer(&self, observer: Arc<dyn Observer>) {
        self.cache.set_observer(&observer);
    }

    /// The client below.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }
}

impl FileSystem for Cached {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        self.cache.call(context, request)
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        self.cache.ask(context, request)
    }

    fn hold_data(&self, handle: &[u8]) -> Option<Hold> {
        self.cache.hold_data(handle)
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        self.cache.read(context, read, sink)
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        self.cache.write(context, write, source)
    }

    fn depart(&self, client: ClientId) -> Call<'_, ()> {
        self.cache.depart(client)
    }

    fn inode(&self, client: ClientId, open: OpenId) -> Call<'_, Handle> {
        self.cache.inode(client, open)
    }
}

/// Keeps what a session grants, and holds back what programs did under that.
struct Keeper {
    leases: Arc<Leases>,
    /// The mount's configuration uses exclusive leases.
    gathers: bool,
}

impl Holder for Keeper {
    fn greeted(&self, hello: &HelloReply) {
        self.leases.set_lease(hello.lease_seconds);
        self.leases.set_tells_bare(hello.capabilities.contains(Capabilities::BARE));
        let has = |capability| self.gathers && hello.capabilities.contains(capability);
        let takes = (has(Capabilities::HELD_SETATTR), has(Capabilities::HELD_APPEND));
        self.leases.writeback.set_on(has(Capabilities::EXCLUSIVE), takes);
    }

    fn attached(&self, hello: &HelloReply, attached: &AttachReply) {
        self.leases.set_terms(hello.lease_seconds, attached.age_max, attached.one_user);
    }

    fn asks(&self) -> bool {
        self.leases.is_on()
    }

    fn renewed(&self, epoch: u64, sent: Nanos) {
        self.leases.renew(epoch, sent);
    }

    fn recalled(&self, epoch: u64, leases: &[LeaseId]) -> bool {
        self.leases.recalls.add(epoch, leases)
    }

    fn epoch_begins(&self, epoch: u64) {
        self.leases.writeback.ground(epoch);
        self.leases.begin_epoch(epoch);
    }

    fn send_held(&self, recovery: &mut dyn Recovery) -> Result<usize, ConnectError> {
        self.leases.writeback.recover(&*self.leases, recovery)
    }

    fn lose_held(&self, recovery: &mut dyn Recovery) {
        self.leases.writeback.lose(&*self.leases, recovery);
    }

    fn goes_on(&self) {
        self.leases.writeback.take_up();
    }
}

impl Above for Keeper {
    fn settled(&self) {
        self.leases.recalls.nudge();
    }

    fn hold_content(&self, handle: &[u8]) -> Option<Hold> {
        self.leases.hold_content(handle)
    }

    fn keep_lease(&self, handle: &[u8], of: (u64, &Brought)) {
        self.leases.keep_lease(handle, of);
    }

    fn number(&self) -> u64 {
        self.leases.asks()
    }

    fn layout(&self, handle: &[u8]) -> Option<Arc<Layout>> {
        self.leases.layout(handle)
    }

    fn keep_layout(&self, handle: &[u8], layout: Arc<Layout>, of: (u64, &Brought)) {
        self.leases.keep_layout(handle, layout, of);
    }

    fn forget_layout(&self, handle: &[u8]) {
        self.leases.forget_layout(handle);
    }
}
