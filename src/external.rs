//! Changes that others than clients make to an export: how they come to light, by what was asked for and what the export's file system offers.

use std::sync::Arc;
use std::time::Duration;

use aqueduct_posix::{Origin, Posix, Watch, Watcher};
use aqueduct_server::{External, Server};
use clap::ValueEnum;
use serde::Deserialize;

use crate::exports::ExportConfig;
use crate::failure::Failure;
use crate::options;

/// The oldest that clients keep where changes are not told, unless said otherwise: as NFS has it for files (acregmin).
const POLL_AGE: Duration = Duration::from_secs(3);

/// The same where they are told: a second line, for the few changes of which the kernel does not tell. Each costs a client a question a minute.
const WATCH_AGE: Duration = Duration::from_secs(60);

/// How changes from outside come to light.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ExternalChoice {
    /// They are recalled at once
    Watch,
    /// Clients keep nothing for longer than some seconds
    Poll,
    /// Nobody makes any
    None,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExternalConfig {
    pub choice: Option<ExternalChoice>,
    pub age: Option<Duration>,
}

impl ExternalConfig {
    /// Checks the age. `what` was tried.
    pub fn resolve(
        what: &str,
        choice: Option<ExternalChoice>,
        seconds: Option<f64>,
    ) -> Result<ExternalConfig, Failure> {
        let bad = |why: String, hint: &str| Failure::usage(what, format!("external_age_seconds: {why}"), hint);
        let age = match seconds {
            None => None,
            Some(seconds) => match options::duration(seconds).filter(|age| !age.is_zero()) {
                Some(_) if choice == Some(ExternalChoice::None) => {
                    return Err(bad("with external = \"none\" nothing gets too old".into(), "leave one of them out"));
                }
                None => {
                    return Err(bad(
                        format!("{seconds} is no time, or longer than {} seconds", options::SECONDS_MAX),
                        "give seconds above 0; external = \"none\" sets no limit",
                    ));
                }
                age => age,
            },
        };
        Ok(ExternalConfig { choice, age })
    }
}

/// The exports of a server, while it is decided which are watched.
pub struct Choices<'a> {
    exports: &'a [ExportConfig],
    watch: Watch,
    watched: usize,
}

impl<'a> Choices<'a> {
    pub fn new(exports: &'a [ExportConfig]) -> Choices<'a> {
        Choices { exports, watch: Watch::default(), watched: 0 }
    }

    /// Decides for one of the exports; if it is watched, then from now on.
    pub fn choose(&mut self, export: &ExportConfig, posix: &Posix) -> Result<External, Failure> {
        let ExternalConfig { choice, age } = export.external;
        let poll = External::Poll(age.unwrap_or(POLL_AGE));
        let other = self.overlapping(export).map(|other| {
            (format!("clients of the export {} change the same files", other.name), "serve them as one export")
        });
        match (choice, other) {
            (Some(ExternalChoice::Poll), _) => return Ok(poll),
            // What clients change through any export is recalled in all.
            (Some(ExternalChoice::None), _) => return Ok(External::None),
            (Some(choice), Some((why, remedy))) => return Err(refusal(export, choice, why, remedy)),
            (None, Some((why, remedy))) => {
                tracing::warn!("export {}: {why}: {}; {remedy}", export.name, told(poll));
                return Ok(poll);
            }
            _ => {}
        }
        if choice.is_none() {
            let why = match posix.origin() {
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

    /// Another export that shows the same files. What its clients change is done by this process, and so not told as from outside.
    fn overlapping(&self, export: &ExportConfig) -> Option<&'a ExportConfig> {
        let is_other = |other: &&ExportConfig| !std::ptr::eq(*other, export);
        let overlaps =
            |other: &&ExportConfig| other.path.starts_with(&export.path) || export.path.starts_with(&other.path);
        self.exports.iter().filter(is_other).find(overlaps)
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
    use crate::exports::FileExport;

    /// Exports of these directories below a folder, each with lines of the configuration.
    fn exports(folder: &std::path::Path, all: &[(&str, &str)]) -> Vec<ExportConfig> {
        let export = |(number, (name, lines)): (usize, &(&str, &str))| {
            let path = folder.join(name);
            std::fs::create_dir_all(&path).unwrap();
            let text = format!("name = '{number}'\npath = '{}'\n{lines}", path.display());
            toml::from_str::<FileExport>(&text).unwrap().resolve(false).unwrap()
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
        Choices::new(&exports).choose(&exports[0], &posix.unwrap()).map_err(|failure| failure.to_string())
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
    fn exports_of_the_same_files_are_not_watched() {
        for (first, second) in [("a", "a"), ("a", "a/b"), ("a/b", "a")] {
            assert_eq!(chosen(&[(first, ""), (second, "")]), Ok(External::Poll(POLL_AGE)), "{first} {second}");
            let message = chosen(&[(first, "external = 'watch'"), (second, "")]).unwrap_err();
            assert!(message.contains("the export 1 change the same files"), "{message}");
            let none = "external = 'none'";
            assert_eq!(chosen(&[(first, none), (second, none)]), Ok(External::None), "clients' changes are recalled");
        }
        assert_eq!(chosen(&[("a", "external = 'none'"), ("ab", "")]), Ok(External::None), "others");
    }

    #[test]
    fn an_age_is_a_time_above_zero() {
        let resolve = |choice, seconds| ExternalConfig::resolve("cannot serve /x", choice, Some(seconds));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e10] {
            let message = resolve(None, bad).unwrap_err().to_string();
            assert!(message.contains("external_age_seconds") && message.contains("above 0"), "{message}");
        }
        assert!(resolve(Some(ExternalChoice::None), 3.0).unwrap_err().to_string().contains("nothing gets too old"));
        assert_eq!(resolve(None, 1.5).unwrap().age, Some(Duration::from_millis(1500)));
    }
}
