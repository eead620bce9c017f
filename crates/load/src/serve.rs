//! The server, over a file system without a disk.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::synthetic::{FILE, Synthetic};
use aqueduct_fs::{
    Call, ClientId, Context, Errno, FileSystem, ReadAt, Reply, Request, Sink, Source, WriteAt, Written, check_name,
};
use aqueduct_server::{Access, Export, External, Limits, Server, ServerConfig, export_id};
use aqueduct_wire::Checksums;
use aqueduct_worker::{Group, Settings};

use crate::Failure;
use crate::arguments::Serve;
use crate::process;

/// The name of the export.
const EXPORT: &str = "/";

/// As in `aqueduct serve`.
const SPIN_MAX: Duration = Duration::from_micros(200);
const THREADS_MAX: usize = 64;

/// Serves until the process is ended.
pub fn run(arguments: &Serve) -> Result<(), Failure> {
    // What it does not get is told to clients that come when there are no more.
    let _ = process::raise_descriptors(Limits::default().connections_max as u64);
    let threads_min = std::thread::available_parallelism().map_or(2, |cores| cores.get());
    let threads_max = THREADS_MAX.max(threads_min);
    let settings = Settings { name: "load-serve".into(), threads_min, threads_max, spin_max: SPIN_MAX };
    let group = Group::new(settings).map_err(|error| {
        format!("cannot start the server's threads: {error}; check the limits on processes and open files")
    })?;
    let server = Server::start(config(arguments), group)
        .map_err(|error| format!("{error}; take another address with --listen"))?;
    for address in server.addresses() {
        println!("listening on {address}");
    }
    loop {
        std::thread::park();
    }
}

fn config(arguments: &Serve) -> ServerConfig {
    let export = Export {
        name: EXPORT.into(),
        id: export_id(EXPORT),
        filesystem: Arc::new(AnyName(Synthetic { size: arguments.size })),
        read_only: false,
        path: EXPORT.into(),
        access: Access::default(),
        durable: false,
        external: External::None,
    };
    ServerConfig {
        listen: vec![arguments.listen],
        name: "aqueduct-load".into(),
        verifier: 1,
        limits: Limits::default(),
        exports: vec![export],
        keys: Vec::new(),
        administrator: None,
        checksums: Checksums::Auto,
        sessions: None,
    }
}

/// Every name in the root is the one file.
struct AnyName(Synthetic);

impl AnyName {
    fn create(&self, context: &Context, parent: &[u8], name: &[u8]) -> Result<Reply, Errno> {
        check_name(name)?;
        let below = |request| match self.0.call(context, request) {
            Call::Ready(result) => result.unwrap_or(Err(Errno::EIO)),
            Call::Waiting(_) => Err(Errno::EIO), // it never does
        };
        let entry = below(Request::Lookup { parent, name: FILE })?.entry()?;
        let open = Request::Open { handle: entry.handle.bytes(), flags: aqueduct_fs::OpenFlags::empty() };
        let opened = below(open)?.opened()?;
        Ok(Reply::Created(entry, opened))
    }
}

impl FileSystem for AnyName {
    fn call<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Reply> {
        match request {
            Request::Lookup { parent, name } if check_name(name).is_ok() => {
                self.0.call(context, Request::Lookup { parent, name: FILE })
            }
            Request::Create { parent, name, .. } => Call::ready(self.create(context, parent, name)),
            request => self.0.call(context, request),
        }
    }

    fn read<'a>(&'a self, context: &'a Context, read: ReadAt, sink: Box<dyn Sink>) -> Call<'a, usize> {
        self.0.read(context, read, sink)
    }

    fn write<'a>(&'a self, context: &'a Context, write: WriteAt, source: Source) -> Call<'a, Written> {
        self.0.write(context, write, source)
    }

    fn depart(&self, client: ClientId) {
        self.0.depart(client);
    }
}
