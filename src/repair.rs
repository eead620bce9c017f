//! `aqueduct volume check --repair` and `--purge`: asked of the server of the names, or done here
//! while it does not run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use aqueduct_node::{Question, Repaired, Told, Volume, Work};
use serde_json::json;

use crate::failure::Failure;
use crate::look::Mend;
use crate::output;

/// Does it, with a line for each thing that is found.
pub fn run(file: &Path, stores: &[(String, PathBuf)], mend: &Mend, as_json: bool) -> Result<ExitCode, Failure> {
    let volume = Volume::read(file)?;
    let work = if mend.purge { Work::Purge } else { Work::Repair };
    let question = Question { work, rate: None, dry_run: mend.dry_run, accept_orphans: mend.accept_orphans };
    let told = |told: &Told| {
        if let Told::Repaired(repaired) = told {
            show(repaired, mend, as_json);
        }
    };
    let done = match volume.is_served()? {
        true if !stores.is_empty() => {
            let what = format!("cannot repair the volume of {}", file.display());
            let why = "its server of the names runs, and repairs it by what it knows of who uses what";
            return Err(Failure::usage(what, why, "leave --store out, or end the servers"));
        }
        true => volume.work(&question, told)?,
        false => volume.repair_here(&question, stores, told)?,
    };
    let (found, left) = (done.files, done.failed);
    match as_json {
        true => {
            let word = json!({ "found_all": found, "left_all": left, "dry_run": mend.dry_run });
            output::line(format_args!("{word}"));
        }
        false if mend.dry_run => output::line(format_args!("{found} found, {} would be mended", found - left)),
        false => output::line(format_args!("{found} found, {} mended", found - left)),
    }
    // Damage that is found and not mended is told by the code, too.
    let stays = if mend.dry_run { found } else { left };
    Ok(if stays == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Has the server of the names use a store as it is.
pub fn accept(file: &Path, server: &str) -> Result<ExitCode, Failure> {
    let question =
        Question { work: Work::Accept(server.to_owned()), rate: None, dry_run: false, accept_orphans: false };
    Volume::read(file)?.work(&question, |_| {})?;
    output::line(format_args!(
        "the store of server {server} is used as it is: 'aqueduct volume check' says what it lacks"
    ));
    Ok(ExitCode::SUCCESS)
}

fn show(repaired: &Repaired, mend: &Mend, as_json: bool) {
    let Repaired { at, found, mend: how, done, left } = repaired;
    if as_json {
        let word = json!({ "at": at, "found": found, "mend": how, "done": done, "left": left });
        return output::line(format_args!("{word}"));
    }
    // Names are others': nothing that a terminal obeys.
    let [at, found, how] = [at, found, how].map(|text| output::shown(text));
    match left.as_ref().map(|why| output::shown(why)) {
        Some(why) => output::line(format_args!("left: {at}: {found}: {why}")),
        None if mend.dry_run => output::line(format_args!("would be mended: {at}: {found}: {how}")),
        None => output::line(format_args!("mended: {at}: {found}: {how}")),
    }
}
