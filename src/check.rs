//! `aqueduct volume check`: says of each server of a volume what is right with it and what is not,
//! and of plain directories what is missing.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use aqueduct_node::{
    Checked, CheckedServer, Looked, Place, Reach, VOLUME_EXPORT, Volume, VolumeCheck, keyfile, routes,
};
use aqueduct_wire::VolumeMode;
use serde_json::json;

use crate::failure::Failure;
use crate::output;
use crate::routes::Routes;
use crate::table::render;

/// Checks the volume of a file, or the one that servers tell of (`VOLUME@ADDR`).
pub fn run(
    volume: &str,
    stores: &[(String, PathBuf)],
    (key, by): (Option<&Path>, &Routes),
    as_json: bool,
) -> Result<ExitCode, Failure> {
    let what = format!("cannot check the volume {volume}");
    let table = by.routing()?.table()?;
    let place = Place::parse(&format!("{volume}:{VOLUME_EXPORT}"), routes::is_known(&table));
    let place = place.ok().filter(|place| place.volume.is_some() && !Path::new(volume).exists());
    let key = key.map(keyfile::load_client).transpose()?;
    let reach: Reach = (key, routes::initiator(table)?);
    let hint = "give the volume's file, on the machine of the server of the names";
    let check = match place.as_ref().and_then(|place| Some((place.volume.as_ref()?, place.server(None)))) {
        Some((name, server)) => VolumeCheck::of_server(name, &server, reach)?,
        None => {
            let file = Path::new(volume);
            let read = Volume::read(file)?;
            let check = VolumeCheck::of_file(file, &read, reach);
            if is_plain(check.mode()) {
                return plain(&read, stores, as_json);
            }
            check
        }
    };
    if is_plain(check.mode()) {
        return Err(Failure::usage(
            what,
            "its servers share nothing: their directories are looked at themselves",
            hint,
        ));
    }
    if !stores.is_empty() {
        let why = "its servers share one file system, and have no stores";
        return Err(Failure::usage(what, why, "leave --store out"));
    }
    let checked = check.run()?;
    match as_json {
        true => output::json(&json!({ "ok": checked.is_right(), "checked": &checked })),
        false => show(&checked),
    }
    Ok(if checked.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_plain(mode: VolumeMode) -> bool {
    matches!(mode, VolumeMode::WholeFile | VolumeMode::Striped)
}

fn show(checked: &Checked) {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let row = |server: &CheckedServer| {
        let filesystem = match (&server.filesystem, &server.allowed) {
            (Some(kind), Some(why)) => format!("{kind} ({why})"),
            (Some(kind), None) => format!("{kind} (not allowed)"),
            (None, _) => "-".to_owned(),
        };
        let directory = match server.same_directory {
            Some(true) => "same",
            Some(false) => "WRONG",
            None => "not compared",
        };
        let clock = server.clock_ahead_ms.map_or("-".to_owned(), |ahead| format!("{:+.1} s", ahead as f64 / 1000.0));
        let state = match (server.answers, server.wrong.is_empty()) {
            (false, _) => "NO ANSWER",
            (true, true) => "ok",
            (true, false) => "WRONG",
        };
        vec![
            server.id.clone(),
            server.addresses.clone(),
            server.role.clone(),
            state.to_owned(),
            filesystem,
            directory.to_owned(),
            server.epoch.map_or("-".to_owned(), |epoch| epoch.to_string()),
            clock,
            known(&server.version),
        ]
    };
    let rows: Vec<_> = checked.servers.iter().map(row).collect();
    let headings =
        ["SERVER", "ADDRESSES", "ROLE", "STATE", "FILE SYSTEM", "DIRECTORY", ">MAP EPOCH", ">CLOCK", "VERSION"];
    output::line(format_args!("volume {}, mode {}", checked.volume, checked.mode));
    output::print(format_args!("{}", render(&headings, &rows)));
    output::line(format_args!("directories: {}", checked.compared));
    checked.notes.iter().for_each(|note| output::line(format_args!("note: {note}")));
    for server in &checked.servers {
        let name = if server.id.is_empty() { &server.addresses } else { &server.id };
        for wrong in &server.wrong {
            output::line(format_args!("wrong: server {name}: {}\n   do: {}", wrong.what, wrong.remedy));
        }
    }
    if checked.is_right() {
        output::line(format_args!("nothing is wrong"));
    }
}

/// Whether all data of a volume of plain directories are there.
fn plain(volume: &Volume, stores: &[(String, PathBuf)], as_json: bool) -> Result<ExitCode, Failure> {
    let what = "cannot check the volume's data";
    let report = Looked::open(volume, stores)?.check();
    let report = report.map_err(|error| Failure::new(what, error, "see the messages before"))?;
    let (damaged, orphans, unseen) = (&report.damaged, &report.orphans, &report.unseen);
    let sizes = &report.sizes;
    if as_json {
        let (files, objects) = (report.files, report.objects);
        output::json(&json!({
            "ok": report.is_clean(), "files": files, "objects": objects,
            "damaged": damaged, "sizes": sizes, "orphans": orphans, "unseen": unseen,
        }));
    } else {
        let say = |what: &str, (path, why): &(String, String)| {
            output::line(format_args!("{what}: {}: {}", output::shown(path), output::shown(why)));
        };
        damaged.iter().for_each(|found| say("damaged", found));
        sizes.iter().for_each(|found| say("not as written down", found));
        orphans.iter().for_each(|(id, name)| output::line(format_args!("no file's: object {name} on server {id}")));
        unseen.iter().for_each(|(id, why)| output::line(format_args!("not looked at: server {id}: {why}")));
        output::line(format_args!("{} files in {} objects", report.files, report.objects));
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
