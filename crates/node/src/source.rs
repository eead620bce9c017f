//! What a mount projects, and from where: the text of its source taken apart, and the
//! configuration that its settings come to.

use std::path::PathBuf;
use std::sync::Arc;

use aqueduct_client::{RailPaths, RailsConfig};
use aqueduct_fuse::CacheMode;
use aqueduct_net::Initiator;
use aqueduct_wire::ClientKey;

use crate::attach::AttachConfig;
use crate::failure::{Failure, Kind};
use crate::keyfile;
use crate::options::Options;
use crate::place::Place;
use crate::processors::{self, Processors};
use crate::routes::{self, Routing};

/// What is mounted.
#[derive(Debug, PartialEq)]
pub enum Source {
    /// A server and its export.
    Remote {
        /// Its addresses, as `host:port`, with commas.
        server: String,
        /// The name of the export.
        export: String,
        /// The volume of which it has a part, if one is meant.
        volume: Option<String>,
    },
    /// A directory of this machine.
    Local(PathBuf),
}

/// A mount, resolved.
#[derive(Debug)]
pub struct MountConfig {
    /// What is mounted.
    pub source: Source,
    /// The source as it is shown by mount(8) and df(1).
    pub shown: String,
    /// The directory to mount on.
    pub target: PathBuf,
    /// The cluster's or this node's: the server has to have the cluster's too.
    pub key: Option<ClientKey>,
    /// The ways to the server that are used at once.
    pub rails: RailsConfig,
    /// How it is mounted.
    pub options: Options,
    /// Where its threads run; `None`: wherever this process may.
    pub processors: Option<Processors>,
    /// The options that were named, for who changes the mount later.
    pub named: Vec<String>,
    /// Who connects to networks that have a name.
    pub routes: Option<Arc<Initiator>>,
    /// Where its metrics are told; `None`: nowhere but in its status.
    pub metrics: Option<aqueduct_observe::Config>,
}

/// The settings of a mount, as a person wrote them.
#[derive(Clone, Debug, Default)]
pub struct MountSettings {
    /// `ADDR[,ADDR...]:/EXPORT` (see [`Place`]), or a directory.
    pub source: String,
    /// The directory to mount on.
    pub target: PathBuf,
    /// Mount options, each as in fstab.
    pub options: Vec<String>,
    /// The source is a directory of this machine.
    pub local: bool,
}

impl MountConfig {
    /// How the export of a server is had, or that of a volume.
    pub fn attach(&self, (server, volume): (&str, Option<&str>), export: &str) -> AttachConfig {
        let options = &self.options;
        AttachConfig {
            volume: volume.map(str::to_owned),
            key: self.key.clone(),
            read_only: options.read_only,
            patience: options.soft.then_some(options.timeout),
            suspect: options.suspect,
            replay_window: options.replay_window,
            straight_from: options.straight_from,
            checksums: options.checksum.checksums(),
            leases: options.cache == CacheMode::Lease,
            rails: self.rails.clone(),
            // What a soft mount gives up could be executed late, over what was written since.
            gathers: !options.write_through && !options.soft,
            routes: self.routes.clone(),
            ..AttachConfig::new(server, export)
        }
    }

    /// What the settings come to: files are looked up, and everything is checked.
    pub fn resolve(settings: &MountSettings) -> Result<MountConfig, Failure> {
        let options = Options::parse(&settings.options, rustix::process::geteuid().is_root())?;
        let (file, ways) = (options.routes.clone(), options.ways.clone());
        let table = Routing { file, ways, ..Routing::default() }.table()?;
        let source = if settings.local {
            let path = std::fs::canonicalize(&settings.source).map_err(|error| {
                Failure::new(format!("cannot serve {}", settings.source), error, "name a directory that exists")
                    .of(Kind::Export)
            })?;
            Source::Local(path)
        } else {
            parse_source(&settings.source, options.port, routes::is_known(&table))?
        };
        let shown = match &source {
            Source::Local(path) => path.to_string_lossy().into_owned(),
            Source::Remote { .. } => settings.source.clone(),
        };
        let key = options.key.as_deref().map(keyfile::load_client).transpose()?;
        let (target, named) = (settings.target.clone(), settings.options.clone());
        let processors = processors::resolve(options.cpus.as_ref(), || match &source {
            Source::Local(_) => Vec::new(),
            Source::Remote { server, .. } => processors::cards_of(&processors::ways_to(server)),
        })?;
        let routes = routes::initiator(table)?;
        let rails = options.rails.resolve(options.port)?;
        if matches!((&source, &rails.paths), (Source::Remote { volume: Some(_), .. }, RailPaths::Listed(_))) {
            return Err(Failure::usage(
                format!("cannot mount '{}' over these rails", settings.source),
                "they lead to one server, and a volume may have several",
                "say rails=auto, which finds those to each server",
            ));
        }
        let metrics = options.metrics.resolve()?;
        Ok(MountConfig { processors, source, shown, target, key, rails, options, named, routes, metrics })
    }
}

/// Takes the place of a server's export apart.
fn parse_source(text: &str, port: Option<u16>, is_network: impl Fn(&str) -> bool) -> Result<Source, Failure> {
    let bad = |why: &dyn std::fmt::Display| {
        Failure::usage(
            format!("cannot mount '{text}'"),
            why,
            "name the source as HOST:/EXPORT or HOST:PORT:/EXPORT, several addresses of the server with commas, or use --local for a directory of this machine",
        )
    };
    let place = Place::parse(text, is_network).map_err(|error| bad(&error))?;
    Ok(Source::Remote { server: place.server(port), export: place.export, volume: place.volume })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_names_a_server_and_its_export() {
        let of = |server: &str| Source::Remote { server: server.into(), export: "/x".into(), volume: None };
        let parse = |text, port| parse_source(text, port, |name| name == "net2");
        assert_eq!(parse("host:/x", Some(9)).unwrap(), of("host:9"));
        assert_eq!(parse("10.0.0.5,10.1.0.5:1:/x", None).unwrap(), of("10.0.0.5:7170,10.1.0.5:1"));
        assert_eq!(parse("10.2.0.5@net2:/x", None).unwrap(), of("10.2.0.5:7170@net2"));
        let settings = MountSettings {
            source: "a@b:/".into(),
            target: "/mnt".into(),
            options: vec!["rails=127.0.0.1".into(), "127.0.0.2".into()],
            local: false,
        };
        assert!(MountConfig::resolve(&settings).unwrap_err().to_string().contains("over these rails"));
        let of_volume = Source::Remote { server: "b:7170,c:1".into(), export: "/".into(), volume: Some("a".into()) };
        assert_eq!(parse("a@b,c:1:/", None).unwrap(), of_volume);
        assert!(parse("host:7170", None).unwrap_err().to_string().contains("it names no export"));
    }
}
