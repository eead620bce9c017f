//! `aqueduct volume`: makes the key of a volume and the stores of its servers, and shows them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use aqueduct_client::volume_map;
use aqueduct_node::{Looked, Place, VOLUME_EXPORT, Volume, keyfile, routes};
use aqueduct_wire::VolumeMode;

use crate::failure::Failure;
use crate::look::Look;
use crate::routes::Routes;
use crate::table::render;
use crate::{args, output};

/// A server that says nothing for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Does what was asked for.
pub fn run(command: &args::Volume) -> Result<ExitCode, Failure> {
    match command {
        args::Volume::Create { file } => create(file),
        args::Volume::Init { file, server } => init(file, server),
        args::Volume::Look(Look::Check { file, stores }) => check(file, stores),
        args::Volume::Look(Look::Export { file, dir, stores }) => export(file, dir, stores),
        args::Volume::Work(work) => crate::work::run(work),
        args::Volume::Show { volume, key, routes } => show(volume, key.as_deref(), routes),
    }
}

fn create(file: &Path) -> Result<ExitCode, Failure> {
    let key = Volume::read(file)?.create()?;
    output::line(format_args!("made {}: copy it and {} to all servers of the volume", key.display(), file.display()));
    Ok(ExitCode::SUCCESS)
}

fn init(file: &Path, server: &str) -> Result<ExitCode, Failure> {
    let store = Volume::read(file)?.initialise(server)?;
    output::line(format_args!("made the store {} of server {server}", store.display()));
    Ok(ExitCode::SUCCESS)
}

fn check(file: &Path, stores: &[(String, PathBuf)]) -> Result<ExitCode, Failure> {
    let what = format!("cannot check the volume of {}", file.display());
    let report = Looked::open(&Volume::read(file)?, stores)?.check();
    let report = report.map_err(|error| Failure::new(what, error, "see the messages before"))?;
    report.damaged.iter().for_each(|(path, why)| output::line(format_args!("damaged: {path}: {why}")));
    report.orphans.iter().for_each(|(id, name)| output::line(format_args!("no file's: object {name} on server {id}")));
    report.unseen.iter().for_each(|(id, why)| output::line(format_args!("not looked at: server {id}: {why}")));
    output::line(format_args!("{} files in {} objects", report.files, report.objects));
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn export(file: &Path, dir: &Path, stores: &[(String, PathBuf)]) -> Result<ExitCode, Failure> {
    let what = format!("cannot export into {}", dir.display());
    let exported = Looked::open(&Volume::read(file)?, stores)?.export(dir);
    let hint = "give a directory that does not exist yet, where there is room";
    let exported = exported.map_err(|error| Failure::new(what, error, hint))?;
    for (path, why) in &exported.failed {
        output::line(format_args!("not copied: {}: {why}", path.display()));
    }
    output::line(format_args!("{} entries, {} bytes", exported.entries, exported.bytes));
    Ok(if exported.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(text: &str, key: Option<&Path>, by: &Routes) -> Result<ExitCode, Failure> {
    let what = format!("cannot show the volume {text}");
    let hint = "name it and some of its servers: scratch@10.0.0.1:7170,10.0.0.2:7170";
    let table = by.routing()?.table()?;
    let place = Place::parse(&format!("{text}:{VOLUME_EXPORT}"), routes::is_known(&table));
    let place = place.map_err(|error| Failure::usage(&what, error, hint))?;
    let Some(volume) = &place.volume else { return Err(Failure::usage(&what, "it has no name", hint)) };
    let key = key.map(keyfile::load_client).transpose()?;
    let initiator = routes::initiator(table)?;
    let map = volume_map(&place.server(None), volume, (key, initiator), PATIENCE)
        .map_err(|error| Failure::new(&what, &error, error.hint()))?;
    let data: Vec<String> = map.data.iter().map(|server| server.addresses.join(",")).collect();
    let names = map.names.join(",");
    let roles = if data.is_empty() || data.contains(&names) { "names, data" } else { "names" };
    let mut rows = vec![vec![names.clone(), roles.to_owned()]];
    rows.extend(data.into_iter().filter(|server| *server != names).map(|server| vec![server, "data".to_owned()]));
    output::line(format_args!("volume {volume}, mode {}", mode_name(map.mode)));
    output::print(format_args!("{}", render(&["SERVER", "ROLES"], &rows)));
    Ok(ExitCode::SUCCESS)
}

/// As it stands in the volume's file.
fn mode_name(mode: VolumeMode) -> &'static str {
    match mode {
        VolumeMode::Serial => "serial",
        VolumeMode::Cluster => "cluster",
        VolumeMode::Stripe => "stripe",
        VolumeMode::LoadBalance => "loadbalance",
        VolumeMode::WholeFile => "whole-file",
        VolumeMode::Striped => "striped",
    }
}
