//! What was found in files, each known by its content.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::darshan::{Dump, FileOfRun};
use super::gridftp::{self, Transfer};
use super::lmt::{self, Activity};
use super::reports::{self, Measurement};
use super::series::{self, Series};
use super::text::{Stop, Text};

/// The most bytes of a file, unpacked: logs of months of a large site. They are read in minutes.
const FILE_MAX: u64 = 64 << 30;

/// The most bytes of a document that is read as a whole: reports of benchmarks are far shorter.
const DOCUMENT_MAX: u64 = 64 << 20;

/// The most transfers of a log, files of a run, or counts of targets, that are kept: a day of 248
/// targets at 5 s. Each takes 100 to 300 bytes.
const RECORDS_MAX: usize = 5_000_000;

/// Between two looks at how much is kept, in lines.
const LINES_BETWEEN: usize = 10_000;

/// The first bytes of a database of SQLite.
const SQLITE: &[u8] = b"SQLite format 3\0";

/// Within so many bytes a text has said what it is.
const HEAD: usize = 4096;

/// What was found in files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    /// Transfers of GridFTP servers.
    pub transfers: Vec<Transfer>,
    /// What targets of a file system did, from the Lustre Monitoring Tool or our own series.
    pub activity: Vec<Activity>,
    /// Files of a run that Darshan watched.
    pub files: Vec<FileOfRun>,
    /// Rates that iperf3 and IOR measured.
    pub measurements: Vec<Measurement>,
    /// Each file with what it was taken for.
    pub known_as: Vec<(PathBuf, &'static str)>,
}

/// Why a file says nothing.
#[derive(Debug, Error)]
pub enum ReadError {
    /// It cannot be read.
    #[error("cannot read {path}: {error}; name a file that this user may read")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// There is more in it than is kept.
    #[error("cannot use {path}: it has more than {most}; cut out the time in question")]
    Long {
        /// Which.
        path: PathBuf,
        /// Of what it has more.
        most: String,
    },
    /// It is none of what is known.
    #[error(
        "cannot use {path}: {why}; known are logs of GridFTP, databases of LMT, dumps of darshan-parser, the JSON of IOR and iperf3, and the lines of 'aqueduct observe'"
    )]
    Unknown {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl Records {
    /// Reads a file, whatever of these it is.
    pub fn add(&mut self, path: &Path) -> Result<(), ReadError> {
        let failed = |error| ReadError::Read { path: path.to_owned(), error };
        let unknown = |why: &str| ReadError::Unknown { path: path.to_owned(), why: why.to_owned() };
        let text = Text::open(path, HEAD, FILE_MAX).map_err(failed)?;
        if text.head.starts_with(SQLITE) {
            if text.is_packed {
                return Err(unknown("it is a packed database: unpack it first (gunzip)"));
            }
            let activity = lmt::read(path).map_err(|error| unknown(&format!("as a database of LMT: {error}")))?;
            self.activity.extend(activity);
            self.known_as.push((path.to_owned(), "a database of LMT"));
            return Ok(());
        }
        let head = String::from_utf8_lossy(&text.head).into_owned();
        let is_binary = text.head.first().is_some_and(|byte| !byte.is_ascii());
        let known = if head.contains("NL.EVNT=FTP_INFO") || head.contains("Transfer stats:") {
            let transfers = kept(path, text, "transfers", (Vec::new(), Vec::len), |all: &mut Vec<Transfer>, line| {
                all.extend(gridftp::parse(line));
            })?;
            self.transfers.extend(transfers);
            "a log of GridFTP"
        } else if head.contains("# darshan log version") {
            self.files.extend(kept(path, text, "files", (Dump::default(), Dump::len), Dump::line)?.files());
            "a dump of Darshan"
        } else if series::is_known(&head) {
            let series = kept(path, text, "counts of targets", (Series::default(), Series::len), Series::line)?;
            self.activity.extend(series.activity());
            "a series of aqueduct observe"
        } else if is_binary {
            return Err(unknown("it is binary; a log of Darshan is dumped with 'darshan-parser'"));
        } else {
            let document = text.whole(DOCUMENT_MAX).map_err(|stop| refused(path, stop, DOCUMENT_MAX))?;
            let (measurements, what) = reports::parse(&document).ok_or_else(|| unknown("nothing in it is known"))?;
            self.measurements.extend(measurements);
            what
        };
        self.known_as.push((path.to_owned(), known));
        Ok(())
    }
}

fn refused(path: &Path, stop: Stop, length_max: u64) -> ReadError {
    let path = path.to_owned();
    match stop {
        Stop::Failed(error) => ReadError::Read { path, error },
        Stop::Long => ReadError::Long { path, most: format!("{length_max} bytes") },
    }
}

/// What is kept of a file's lines, as long as that is not too much.
fn kept<T>(
    path: &Path,
    text: Text,
    what: &str,
    (mut all, count): (T, impl Fn(&T) -> usize),
    read: impl Fn(&mut T, &str),
) -> Result<T, ReadError> {
    let (mut lines, mut is_full) = (0usize, false);
    let result = text.lines(|line| {
        read(&mut all, line);
        lines += 1;
        is_full = lines.is_multiple_of(LINES_BETWEEN) && count(&all) > RECORDS_MAX;
        if is_full { Err(Stop::Long) } else { Ok(()) }
    });
    match result {
        Ok(()) => Ok(all),
        Err(_) if is_full => Err(ReadError::Long { path: path.to_owned(), most: format!("{RECORDS_MAX} {what}") }),
        Err(stop) => Err(refused(path, stop, FILE_MAX)),
    }
}
