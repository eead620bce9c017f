//! `aqueduct volume`: makes the key of a volume and the stores of its servers, and shows them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use aqueduct_client::volume_map;
use aqueduct_node::{AttachConfig, Looked, Place, Space, VOLUME_EXPORT, Volume, keyfile, routes};
use aqueduct_wire::{DATA_EXPORT, VolumeMode};

use crate::failure::Failure;
use crate::look::{Look, Mend};
use crate::routes::Routes;
use crate::table::render;
use crate::{args, check, output, repair, width};

/// A server that says nothing for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Does what was asked for.
pub fn run(command: &args::Volume) -> Result<ExitCode, Failure> {
    match command {
        args::Volume::Create { file } => create(file),
        args::Volume::Init { file, server } => init(file, server),
        args::Volume::Look(Look::Check { volume, stores, mend, json, .. }) if mend.repair || mend.purge => {
            repair::run(Path::new(volume), stores, mend, *json)
        }
        args::Volume::Look(Look::Check { volume, mend: Mend { accept: Some(server), .. }, .. }) => {
            repair::accept(Path::new(volume), server)
        }
        args::Volume::Look(Look::Check { volume, stores, key, mend, json, routes }) => {
            if mend.dry_run || mend.accept_orphans {
                let word = if mend.dry_run { "--dry-run" } else { "--accept-orphans" };
                let (what, hint) =
                    (format!("cannot check the volume {volume}"), format!("give {word} with --repair or --purge"));
                return Err(Failure::usage(what, "a check changes nothing", hint));
            }
            check::run(volume, stores, (key.as_deref(), routes), *json)
        }
        args::Volume::Look(Look::Export { file, dir, stores }) => export(file, dir, stores),
        args::Volume::Work(work) => crate::work::run(work),
        args::Volume::Width(width::Width::Set { dir, setting }) => width::set(dir, setting),
        args::Volume::Show { volume, .. } if Path::new(volume).exists() => width::show(Path::new(volume)),
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

fn export(file: &Path, dir: &Path, stores: &[(String, PathBuf)]) -> Result<ExitCode, Failure> {
    let what = format!("cannot export into {}", dir.display());
    let exported = Looked::open(&Volume::read(file)?, stores)?.export(dir);
    let hint = "give a directory that does not exist yet, where there is room";
    let exported = exported.map_err(|error| Failure::new(what, error, hint))?;
    for (path, why) in &exported.failed {
        output::line(format_args!("not copied: {}: {why}", output::shown(&path.to_string_lossy())));
    }
    for id in &exported.missed {
        output::line(format_args!("not reached: server {id}: start it, or say where its store is: --store {id}=DIR"));
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
    let map = volume_map(&place.server(None), volume, (key.clone(), initiator.clone()), PATIENCE)
        .map_err(|error| Failure::new(&what, &error, error.hint()))?;
    let data: Vec<String> = map.data.iter().map(|server| server.addresses.join(",")).collect();
    let names = map.names.join(",");
    let roles = if data.is_empty() || data.contains(&names) { "names, data" } else { "names" };
    let others: Vec<String> = data.iter().filter(|server| **server != names).cloned().collect();
    let mut rows = vec![vec![names.clone(), roles.to_owned()]];
    rows.extend(others.iter().map(|server| vec![server.clone(), "data".to_owned()]));
    output::line(format_args!("volume {volume}, mode {}", map.mode.name()));
    if !matches!(map.mode, VolumeMode::WholeFile | VolumeMode::Striped) {
        output::print(format_args!("{}", render(&["SERVER", "ROLES"], &rows)));
        return Ok(ExitCode::SUCCESS);
    }
    let ask = |server: &str, export: &str| {
        let config = AttachConfig {
            key: key.clone(),
            routes: initiator.clone(),
            patience: Some(PATIENCE),
            ..AttachConfig::new(server, export)
        };
        Space::of(&config)
    };
    // The server of the names tells the space of all together.
    let of_others: Vec<Option<Space>> = others.iter().map(|server| ask(server, DATA_EXPORT)).collect();
    let all = ask(&names, VOLUME_EXPORT);
    let own = all.and_then(|all| of_others.iter().try_fold(all, |rest, other| Some(rest.without(other.as_ref()?))));
    let spaces: Vec<Option<Space>> = [own].into_iter().chain(of_others).collect();
    for (index, (row, space)) in rows.iter_mut().zip(&spaces).enumerate() {
        // Its own is what is left of all, which nobody knows while another is not reached.
        let without = if index == 0 && all.is_some() { "answers" } else { "no answer" };
        row.extend(space.map_or([without.into(), "-".into(), "-".into()], shown));
    }
    output::print(format_args!("{}", render(&["SERVER", "ROLES", ">SPACE", ">FREE", ">USED"], &rows)));
    let fullest = rows.iter().zip(&spaces).filter_map(|(row, space)| Some((&row[0], (*space)?)));
    if let Some((server, space)) = fullest.max_by_key(|(_, space)| space.used_permille()) {
        let avoided = if space.is_avoided() { ": new files avoid it" } else { "" };
        output::line(format_args!("the fullest is {server}{avoided}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn shown(space: Space) -> [String; 3] {
    let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
    [gigabytes(space.bytes), gigabytes(space.free), format!("{:.1} %", space.used_permille() as f64 / 10.0)]
}
