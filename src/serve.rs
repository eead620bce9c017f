//! `aqueduct serve`: a server, until a signal.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use aqueduct_node::{ExportSettings, ServeConfig, ServeSettings, Server, Volume};
use aqueduct_transfer::third::{Executor, ExecutorConfig};
use aqueduct_wire::ClientKey;

use crate::failure::Failure;
use crate::{args, output, service};

/// Serves until SIGTERM or SIGINT.
pub fn run(arguments: args::Serve) -> Result<ExitCode, Failure> {
    let of_volume = arguments.volume.clone().zip(arguments.server.clone());
    let mut config = ServeConfig::resolve(settings(arguments)?)?;
    // This program, also when its file was replaced.
    config.watch = Some("/proc/self/exe".into());
    let signals = service::signals_and_reload()?;
    let server = match executor(&config) {
        Some(executor) => Server::start_as_agent(&config, Arc::new(executor))?,
        None => Server::start(&config)?,
    };
    for address in server.addresses() {
        output::line(format_args!("listening on {address}"));
    }
    for path in server.sockets() {
        output::line(format_args!("listening on unix:{}", path.display()));
    }
    for export in &config.exports {
        let read_only = if export.read_only { " (read-only)" } else { "" };
        let rate = export.rate.map_or_else(String::new, |rate| format!(" (at most {} MB/s)", rate as f64 / 1e6));
        output::line(format_args!("export {}{read_only}{rate}: {}", export.name, export.path.display()));
    }
    service::ready();
    service::wait_reloading(signals, || match &of_volume {
        Some((file, id)) => {
            if let Err(failure) = reload(&server, file, id) {
                tracing::error!("{failure}");
            }
        }
        None => service::has_nothing_to_reload(),
    });
    server.stop();
    Ok(ExitCode::SUCCESS)
}

/// Reads the volume's file again.
fn reload(server: &Server, file: &Path, id: &str) -> Result<(), Failure> {
    let (_, _, part) = Volume::read(file)?.part(id)?;
    Ok(server.set_volume(part)?)
}

/// What makes copies for clients, if it is to be an agent.
fn executor(config: &ServeConfig) -> Option<Executor> {
    let state = config.state.as_ref().filter(|_| config.agent)?;
    let key = config.keys.first().cloned().map(ClientKey::from);
    Some(Executor::new(ExecutorConfig {
        socket: config.own_socket()?,
        folder: state.join("agent"),
        key,
        routes: config.routes.clone(),
    }))
}

/// The configuration file, if one is named, with the arguments put over it.
fn settings(arguments: args::Serve) -> Result<ServeSettings, Failure> {
    let args::Serve {
        listen,
        config,
        state,
        read_only,
        squash,
        external,
        rate,
        key,
        checksum,
        cpus,
        metrics,
        metrics_token,
        slow,
        insecure,
        agent,
        volume,
        server,
        dirs,
    } = arguments;
    let file = config.as_deref().map_or_else(|| Ok(ServeSettings::default()), ServeSettings::read)?;
    if volume.is_some() {
        fits_volume(&file, config.as_deref())?;
    } else if dirs.is_empty() {
        let given = [("--squash", squash.is_some()), ("--external", external.is_some()), ("--rate", rate.is_some())];
        given.iter().find(|(_, is_given)| *is_given).map_or(Ok(()), |(name, _)| Err(no_directory(name)))?;
    }
    let of_argument =
        |path: PathBuf| ExportSettings { squash, external, rate: rate.clone(), ..ExportSettings::of(path) };
    let mut exports = file.export;
    exports.extend(dirs.into_iter().map(of_argument));
    let mut part = None;
    let mut of_volume = Vec::new();
    if let (Some(file), Some(id)) = (volume, server) {
        let (addresses, export, of_server) = Volume::read(&file)?.part(&id)?;
        of_volume = addresses;
        exports.push(ExportSettings { squash, external, rate: rate.clone(), ..export });
        part = Some(of_server);
    }
    exports.iter_mut().for_each(|export| export.read_only |= read_only);
    Ok(ServeSettings {
        listen: match (part.is_some(), listen.is_empty()) {
            (true, _) => of_volume,
            (false, true) => file.listen,
            (false, false) => listen,
        },
        volume: part,
        key: key.or(file.key),
        insecure: insecure || file.insecure,
        agent: agent || file.agent,
        checksum: checksum.or(file.checksum),
        cpus: cpus.or(file.cpus),
        state: state.or(file.state),
        metrics: metrics.or(file.metrics),
        metrics_token: metrics_token.or(file.metrics_token),
        slow: slow.over(file.slow),
        export: exports,
        ..file
    })
}

/// Whether a configuration file says nothing that the volume's file says.
fn fits_volume(file: &ServeSettings, path: Option<&Path>) -> Result<(), Failure> {
    let also = match () {
        () if !file.export.is_empty() => "[[export]]",
        () if !file.listen.is_empty() => "listen",
        () if file.agent => "agent",
        () => return Ok(()),
    };
    let path = path.unwrap_or(Path::new("-")).display();
    let why = "a volume's file says what its server serves and where, and its servers are no agents";
    let hint = "leave that out of the file of --config, or start another server for it, with a --state of its own";
    Err(Failure::usage(format!("cannot serve a volume's part with {also} of {path}"), why, hint))
}

/// An option that is about directories of the command line, of which there is none.
fn no_directory(name: &str) -> Failure {
    let why = "it is for the directories that are named here, and none is";
    let hint = "name one, or say the same in [[export]] of the file of --config";
    Failure::usage(format!("cannot serve with {name}"), why, hint)
}

#[cfg(test)]
mod tests {
    use aqueduct_node::{ChecksumChoice, CpuChoice, ExternalChoice, SquashChoice};

    use super::*;

    #[test]
    fn arguments_stand_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("aqueduct.toml");
        let text = "listen = ['[::1]:0']\nstate = '/s'\nchecksum = 'on'\nkey = '/k'\n[[export]]\npath = '/tmp'\n[limits]\nslots = 3\n";
        std::fs::write(&path, text).unwrap();
        let file = settings(args::Serve { config: Some(path.clone()), ..args::Serve::default() }).unwrap();
        assert_eq!((file.listen, file.state, file.key), (vec!["[::1]:0".into()], Some("/s".into()), Some("/k".into())));
        assert_eq!((file.checksum, file.limits.slots), (Some(ChecksumChoice::On), Some(3)));
        assert!(file.export.len() == 1 && !file.export[0].read_only && !file.insecure);
        let both = settings(args::Serve {
            config: Some(path),
            listen: vec!["127.0.0.1:0".into()],
            state: Some("/t".into()),
            read_only: true,
            squash: Some(SquashChoice::None),
            external: Some(ExternalChoice::Poll),
            rate: Some("2GiB/s".into()),
            key: Some("/l".into()),
            volume: None,
            server: None,
            checksum: Some(ChecksumChoice::Off),
            cpus: Some(CpuChoice::Near),
            insecure: true,
            agent: true,
            metrics: Some("127.0.0.1:0".into()),
            metrics_token: Some("/m".into()),
            slow: crate::trace::Slow::default(),
            dirs: vec!["/srv".into()],
        });
        let both = both.unwrap();
        assert_eq!(
            (both.listen, both.state, both.key),
            (vec!["127.0.0.1:0".into()], Some("/t".into()), Some("/l".into()))
        );
        assert_eq!((both.checksum, both.limits.slots, both.insecure), (Some(ChecksumChoice::Off), Some(3), true));
        assert!(both.agent);
        assert_eq!(both.cpus, Some(CpuChoice::Near));
        assert_eq!((both.metrics, both.metrics_token), (Some("127.0.0.1:0".into()), Some("/m".into())));
        assert!(both.export.iter().all(|export| export.read_only), "all are read-only");
        let [of_file, of_argument] = &both.export[..] else { panic!("{:?}", both.export) };
        assert_eq!((of_file.squash, of_argument.squash), (None, Some(SquashChoice::None)));
        assert_eq!((of_argument.external, of_argument.rate.as_deref()), (Some(ExternalChoice::Poll), Some("2GiB/s")));
    }

    #[test]
    fn what_would_be_passed_over_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("aqueduct.toml");
        let refused = |text: &str, arguments: args::Serve| {
            std::fs::write(&path, text).unwrap();
            settings(args::Serve { config: Some(path.clone()), ..arguments }).unwrap_err().to_string()
        };
        let volume = || args::Serve {
            volume: Some(folder.path().join("volume.toml")),
            server: Some("s1".into()),
            ..args::Serve::default()
        };
        for (text, told) in [
            ("[[export]]\npath = '/tmp'", "with [[export]] of"),
            ("listen = ['127.0.0.1:0']", "with listen of"),
            ("agent = true", "with agent of"),
            ("[limits]\nslots = 3", "cannot use the volume's file"),
        ] {
            let message = refused(text, volume());
            assert!(message.contains(told), "{text}: {message}");
        }
        let squash = Some(SquashChoice::All);
        let message = refused("[[export]]\npath = '/tmp'", args::Serve { squash, ..args::Serve::default() });
        assert!(message.contains("--squash") && message.contains("[[export]]"), "{message}");
    }
}
