//! Changes that others than clients make to an export: how they come to light, by what was asked for and what the export's file system offers.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_posix::{Origin, Posix, Watch, Watcher};
use aqueduct_server::{External, Server};

use crate::choice::ExternalChoice;
use crate::exports::{ExportConfig, ExternalConfig};
use crate::failure::Failure;

/// The oldest that clients keep where changes are not told, unless said otherwise: as NFS has it for files (acregmin).
const POLL_AGE: Duration = Duration::from_secs(3);

/// The same where they are told: a second line, for the few changes of which the kernel does not tell. Each costs a client a question a minute.
const WATCH_AGE: Duration = Duration::from_secs(60);

/// The exports of a server, while it is decided which are watched.
#[derive(Default)]
pub struct Choices {
    watch: Watch,
    watched: usize,
}

impl Choices {
    /// Decides for one of the exports; if it is watched, then from now on.
    /// Others write to it that are servers of the same volume, if `is_shared`.
    pub fn choose(&mut self, export: &ExportConfig, posix: &Posix, is_shared: bool) -> Result<External, Failure> {
        let ExternalConfig { choice, age } = export.external;
        let poll = External::Poll(age.unwrap_or(POLL_AGE));
        // What clients change through any export of this server is recalled in all.
        match choice {
            Some(ExternalChoice::Poll) => return Ok(poll),
            Some(ExternalChoice::None) => return Ok(External::None),
            Some(ExternalChoice::Watch) | None => {}
        }
        if choice.is_none() {
            let why = match posix.origin() {
                _ if is_shared => Some("the other servers of its volume write to it, too".to_owned()),
                Origin::Local => None,
                Origin::Shared(name) => Some(format!("its file system is {name}, which others may change")),
                Origin::Unknown => Some("who changes its file system is not known".to_owned()),
            };
            if let Some(why) = why {
                tracing::info!("export {}: {why}: {}", export.name, told(poll));
                return Ok(poll);
            }
        }
        match (self.watch.add(posix), choice) {
            (Ok(_), _) => {
                self.watched += 1;
                Ok(External::Watch(age.unwrap_or(WATCH_AGE)))
            }
            (Err(error), Some(choice)) => Err(refusal(export, choice, error, error.remedy())),
            (Err(error), None) => {
                tracing::warn!(
                    "export {}: {error}: {}; {}, or say external = \"poll\"",
                    export.name,
                    told(poll),
                    error.remedy()
                );
                Ok(poll)
            }
        }
    }

    /// Begins to tell `server` what has happened since the exports were chosen.
    pub fn start(self, server: &Arc<Server>) -> Result<Watcher, Failure> {
        let told = (0..self.watched).map(|_| server.outside()).collect();
        self.watch.start(told).map_err(|error| {
            Failure::new("cannot watch for changes from outside", error, "check the limits on processes and open files")
        })
    }
}

fn told(external: External) -> String {
    match external {
        External::Watch(age) | External::Poll(age) => {
            format!("what clients keep may miss changes by others for {} s", age.as_secs_f64())
        }
        External::None => "changes by others are not noticed".into(),
    }
}

fn refusal(export: &ExportConfig, choice: ExternalChoice, why: impl std::fmt::Display, remedy: &str) -> Failure {
    let asked = match choice {
        ExternalChoice::Watch => "watch",
        ExternalChoice::Poll => "poll",
        ExternalChoice::None => "none",
    };
    let what = format!("cannot serve {} with external = \"{asked}\"", export.path.display());
    Failure::new(what, why, format!("{remedy}, or say external = \"poll\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::ExportSettings;

    /// Exports of these directories below a folder, each with lines of the configuration.
    fn exports(folder: &std::path::Path, all: &[(&str, &str)]) -> Vec<ExportConfig> {
        let export = |(number, (name, lines)): (usize, &(&str, &str))| {
            let path = folder.join(name);
            std::fs::create_dir_all(&path).unwrap();
            let text = format!("name = '{number}'\npath = '{}'\n{lines}", path.display());
            toml::from_str::<ExportSettings>(&text).unwrap().resolve().unwrap()
        };
        all.iter().enumerate().map(export).collect()
    }

    /// What becomes of the first of them.
    fn chosen(all: &[(&str, &str)]) -> Result<External, String> {
        let folder = tempfile::tempdir().unwrap();
        let exports = exports(folder.path(), all);
        let posix = Posix::open(
            &exports[0].path,
            aqueduct_posix::Options { cross_mounts: exports[0].cross_mounts, ..aqueduct_posix::Options::default() },
        );
        Choices::default().choose(&exports[0], &posix.unwrap(), false).map_err(|failure| failure.to_string())
    }

    #[test]
    fn what_is_asked_for_is_had_or_refused() {
        let seconds = Duration::from_secs;
        assert_eq!(chosen(&[("a", "external = 'poll'")]), Ok(External::Poll(seconds(3))));
        let age = "external = 'poll'\nexternal_age_seconds = 0.25";
        assert_eq!(chosen(&[("a", age)]), Ok(External::Poll(Duration::from_millis(250))));
        assert_eq!(chosen(&[("a", "external = 'none'")]), Ok(External::None));
        let crossing = "external = 'watch'\ncross_mounts = true";
        let message = chosen(&[("a", crossing)]).unwrap_err();
        assert!(message.contains("cannot serve /") && message.contains("external = \"watch\""), "{message}");
        assert!(message.contains("cross_mounts") && message.contains("or say external = \"poll\""), "{message}");
        assert_eq!(chosen(&[("a", "cross_mounts = true")]), Ok(External::Poll(seconds(3))), "what there is");
    }

    #[test]
    fn exports_of_the_same_files_are_watched_as_others_are() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        for second in ["a", "a/b"] {
            let exports = exports(folder.path(), &[("a", ""), (second, "external = 'watch'")]);
            let mut choices = Choices::default();
            for export in &exports {
                let posix = Posix::open(&export.path, aqueduct_posix::Options::default()).unwrap();
                assert_eq!(
                    choices.choose(export, &posix, false),
                    Ok(External::Watch(WATCH_AGE)),
                    "{}",
                    export.path.display()
                );
            }
        }
    }
}
