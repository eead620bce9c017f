//! The server, over a file system without a disk.

use std::sync::Arc;

use aqueduct_fs::layer::Layer;
use aqueduct_fs::synthetic::{FILE, Synthetic};
use aqueduct_fs::{Answer, Call, Context, Errno, FileSystem, Reply, Request, check_name};
use aqueduct_node::{ServeConfig, Server};
use aqueduct_server::{Access, Export, External, Squash, export_id};

use crate::arguments::Serve;
use crate::failure::Failure;
use crate::process;

/// The name of the export.
const EXPORT: &str = "/";

/// Serves until the process is ended.
pub fn run(arguments: &Serve) -> Result<(), Failure> {
    let config = ServeConfig { listen: vec![arguments.listen], name: "aqueduct-load".into(), ..ServeConfig::default() };
    // What it does not get is told to clients that come when there are no more.
    let _ = process::raise_descriptors(config.limits.connections_max as u64);
    let export = Export {
        name: EXPORT.into(),
        id: export_id(EXPORT),
        filesystem: Arc::new(AnyName(Synthetic { size: arguments.size })),
        read_only: false,
        path: EXPORT.into(),
        access: Access { squash: Some(Squash::None), ..Access::default() },
        durable: false,
        external: External::None,
    };
    let server = Server::start_with(&config, vec![export])
        .map_err(|failure| format!("{}: {}; {}", failure.what, failure.why, failure.hint))?;
    for address in server.addresses() {
        println!("listening on {address}");
    }
    server.wait();
    Ok(())
}

/// Every name in the root is the one file.
struct AnyName(Synthetic);

impl AnyName {
    fn create(&self, context: &Context, parent: &[u8], name: &[u8]) -> Result<Reply, Errno> {
        check_name(name)?;
        // It never waits.
        let below = |request| self.0.call(context, request).now().unwrap_or(Err(Errno::EIO));
        let entry = below(Request::Lookup { parent, name: FILE })?.entry()?;
        let open = Request::Open { handle: entry.handle.bytes(), flags: aqueduct_fs::OpenFlags::empty() };
        let opened = below(open)?.opened()?;
        Ok(Reply::Created(entry, opened))
    }
}

impl Layer for AnyName {
    type Below = Synthetic;

    fn below(&self) -> &Synthetic {
        &self.0
    }

    fn ask<'a>(&'a self, context: &'a Context, request: Request<'a>) -> Call<'a, Answer> {
        match request {
            Request::Lookup { parent, name } if check_name(name).is_ok() => {
                self.0.ask(context, Request::Lookup { parent, name: FILE })
            }
            Request::Create { parent, name, .. } => Call::ready(Ok(self.create(context, parent, name).into())),
            request => self.0.ask(context, request),
        }
    }
}
