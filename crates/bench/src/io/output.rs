//! What rank 0 prints, in which format, and where.

use std::fs::File;
use std::io::{self, Write};

use super::api::Space;
use super::arguments::Format;
use super::plan::Plan;
use super::results::Measurement;
use super::{json, table};
use crate::Failure;

/// IOR's version whose output this is, and ours.
const VERSION: &str = concat!("4.0.0+aqueduct-", env!("CARGO_PKG_VERSION"));

/// What is known before anything is measured.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// Which version of which program.
    pub version: String,
    /// When.
    pub began: String,
    /// The command line.
    pub command: String,
    /// System and host.
    pub machine: String,
    /// The file of rank 0.
    pub path: String,
    /// What is free there.
    pub space: Space,
}

/// How long removing took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Removal {
    /// After which repetition.
    pub repetition: u32,
    /// How long.
    pub seconds: f64,
}

/// The time as ctime(3) writes it, UTC.
pub fn date() -> String {
    jiff::Timestamp::now().strftime("%a %b %e %H:%M:%S %Y").to_string()
}

/// Host and system, as IOR names a platform.
pub fn platform() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    format!("{}({})", host.trim_end_matches(|letter: char| letter.is_ascii_digit()), system.sysname().to_string_lossy())
}

impl Header {
    /// Of this process, now.
    pub fn new(plan: &Plan, space: Space) -> Header {
        let system = rustix::system::uname();
        let mut machine = format!("{} {}", system.sysname().to_string_lossy(), system.nodename().to_string_lossy());
        if plan.options.verbose >= 2 {
            let (release, version) = (system.release().to_string_lossy(), system.version().to_string_lossy());
            machine += &format!(" {release} {version} {}", system.machine().to_string_lossy());
        }
        let command: Vec<_> = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
        Header {
            version: VERSION.into(),
            began: date(),
            command: command.join(" "),
            machine,
            path: plan.file(0, 0),
            space,
        }
    }
}

/// Space as IOR shows it.
pub struct ShownSpace {
    /// Of all.
    pub capacity: String,
    /// In percent.
    pub used: String,
    /// Of all.
    pub inodes: String,
    /// In percent.
    pub inodes_used: String,
}

/// Space as IOR shows it.
pub fn shown_space(space: &Space) -> ShownSpace {
    let percent = |free: u64, all: u64| {
        let used = all.saturating_sub(free) as f64;
        format!("{:.1}%", if all == 0 { 0.0 } else { used * 100.0 / all as f64 })
    };
    let (unit, name) = match space.bytes {
        0..0x100_0000_0000 => (1u64 << 30, "GiB"),
        _ => (1 << 40, "TiB"),
    };
    ShownSpace {
        capacity: format!("{:.1} {name}", space.bytes as f64 / unit as f64),
        used: percent(space.bytes_free, space.bytes),
        inodes: format!("{:.1} Mi", space.files as f64 / f64::from(1 << 20)),
        inodes_used: percent(space.files_free, space.files),
    }
}

/// Where results go, and what beside them is said.
pub struct Printer {
    format: Format,
    /// `-O summaryFile`
    file: Option<File>,
    header: Header,
    measurements: Vec<Measurement>,
    removals: Vec<Removal>,
}

impl Printer {
    /// Opens the file for results, if there is one, and prints the header.
    pub fn start(plan: &Plan, header: Header) -> Result<Printer, Failure> {
        let named = &plan.options.named;
        let open = |path: &std::path::PathBuf| {
            File::create(path).map_err(|error| {
                Failure::new(
                    format!("writing the summary to {}", path.display()),
                    error,
                    "give another with -O summaryFile=",
                )
            })
        };
        let file = named.summary.as_ref().map(open).transpose()?;
        let mut printer =
            Printer { format: named.format, file, header, measurements: Vec::new(), removals: Vec::new() };
        printer.begin(plan)?;
        Ok(printer)
    }

    fn begin(&mut self, plan: &Plan) -> Result<(), Failure> {
        let text = match self.format {
            Format::Json => return Ok(()),
            Format::Csv => json::csv_heading(),
            Format::Default => {
                let Header { version, began, command, machine, path, space } = &self.header;
                let mut text = format!("IOR-{version}: MPI Coordinated Test of Parallel I/O\n");
                for (key, value) in [("Began", began), ("Command line", command), ("Machine", machine)] {
                    text += &table::pair(key, value);
                }
                text += &(table::pair("TestID", 0) + &table::pair("StartTime", began) + &table::pair("Path", path));
                let ShownSpace { capacity, used, inodes, inodes_used } = shown_space(space);
                let line = format!("{capacity}   Used FS: {used}   Inodes: {inodes}   Used Inodes: {inodes_used}");
                text += &table::pair("FS", line);
                text += "\nOptions: \n";
                table::options(plan).iter().for_each(|(key, value)| text += &table::pair(key, value));
                text + "\nResults: \n" + &table::heading()
            }
        };
        self.result(&text)
    }

    /// Prints results: to the file for them, or to the standard output.
    fn result(&mut self, text: &str) -> Result<(), Failure> {
        let written = match &mut self.file {
            Some(file) => file.write_all(text.as_bytes()),
            None => io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()),
        };
        written.map_err(|error| Failure::new("printing results", error, "see whether there is room where they go"))
    }

    /// Says something beside the results: among IOR's tables, and never within JSON or CSV.
    pub fn log(&self, text: &str) {
        if self.format == Format::Default || self.file.is_some() {
            // Whoever has closed the output does not want to know.
            let _ = writeln!(io::stdout(), "{text}");
        } else {
            tell!("{text}");
        }
    }

    /// A phase was measured.
    pub fn measured(&mut self, plan: &Plan, measured: &Measurement) -> Result<(), Failure> {
        self.measurements.push(measured.clone());
        match self.format {
            Format::Default => self.result(&table::row(plan, measured)),
            Format::Csv => self.result(&json::csv_row(plan, measured)),
            Format::Json => Ok(()),
        }
    }

    /// Files were removed.
    pub fn removed(&mut self, removal: Removal) -> Result<(), Failure> {
        self.removals.push(removal);
        match self.format {
            Format::Default => self.result(&table::removed(removal.seconds, removal.repetition)),
            Format::Json | Format::Csv => Ok(()),
        }
    }

    /// Prints the summary of what was measured, however much that is.
    pub fn finish(&mut self, plan: &Plan) -> Result<(), Failure> {
        let text = match self.format {
            Format::Csv => return Ok(()),
            Format::Json => json::document(&self.header, plan, &self.measurements, &self.removals, &date()),
            Format::Default => {
                let mut text = table::greatest(&self.measurements) + &table::summary_heading();
                for summary in table::summaries(plan, &self.measurements) {
                    text += &table::summary_row(plan, &summary);
                }
                text + &table::pair("Finished", date())
            }
        };
        self.result(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_shown_as_iors() {
        let space =
            Space { bytes: 502_403_000_000, bytes_free: 70_839_000_000, files: 31_250_000, files_free: 24_656_000 };
        let ShownSpace { capacity, used, inodes, inodes_used } = shown_space(&space);
        assert_eq!((capacity.as_str(), used.as_str()), ("467.9 GiB", "85.9%"));
        assert_eq!((inodes.as_str(), inodes_used.as_str()), ("29.8 Mi", "21.1%"));
        assert_eq!(shown_space(&Space::default()).used, "0.0%");
        assert_eq!(shown_space(&Space { bytes: 6 << 40, ..Space::default() }).capacity, "6.0 TiB");
    }

    #[test]
    fn dates_are_as_ctime_writes_them() {
        let date = date();
        assert_eq!(date.len(), 24, "{date}");
        assert_eq!(date.split_whitespace().count(), 5, "{date}");
    }
}
