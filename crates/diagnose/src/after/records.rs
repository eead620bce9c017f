//! What was found in files, each known by its content.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::darshan::{self, FileOfRun};
use super::gridftp::{self, Transfer};
use super::lmt::{self, Activity};
use super::reports::{self, Measurement};
use super::series;

/// The most bytes of a file, unpacked: logs of a day of a large site.
const FILE_MAX: u64 = 1 << 30;

/// The first bytes of what gzip has packed, and of a database of SQLite.
const GZIP: &[u8] = &[0x1f, 0x8b];
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
    /// It is longer than a gibibyte, unpacked.
    #[error("cannot use {path}: it has more than {FILE_MAX} bytes; cut out the time in question")]
    Long {
        /// Which.
        path: PathBuf,
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
        let bytes = contents(path)?;
        let unknown = |why: &str| ReadError::Unknown { path: path.to_owned(), why: why.to_owned() };
        if bytes.starts_with(SQLITE) {
            let activity = lmt::read(path).map_err(|error| unknown(&format!("as a database of LMT: {error}")))?;
            self.activity.extend(activity);
            self.known_as.push((path.to_owned(), "a database of LMT"));
            return Ok(());
        }
        let text = String::from_utf8_lossy(&bytes);
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(HEAD)]);
        let known = if head.contains("NL.EVNT=FTP_INFO") || head.contains("Transfer stats:") {
            self.transfers.extend(text.lines().filter_map(gridftp::parse));
            "a log of GridFTP"
        } else if head.contains("# darshan log version") {
            self.files.extend(darshan::parse(&text));
            "a dump of Darshan"
        } else if let Some(activity) = series::parse(&text) {
            self.activity.extend(activity);
            "a series of aqueduct observe"
        } else if let Some((measurements, what)) = reports::parse(&text) {
            self.measurements.extend(measurements);
            what
        } else if bytes.first().is_some_and(|byte| !byte.is_ascii()) {
            return Err(unknown("it is binary; a log of Darshan is dumped with 'darshan-parser'"));
        } else {
            return Err(unknown("nothing in it is known"));
        };
        self.known_as.push((path.to_owned(), known));
        Ok(())
    }
}

/// The bytes of a file, unpacked.
fn contents(path: &Path) -> Result<Vec<u8>, ReadError> {
    let failed = |error| ReadError::Read { path: path.to_owned(), error };
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.starts_with(GZIP) {
        let packed = std::mem::take(&mut bytes);
        flate2::read::GzDecoder::new(&packed[..]).take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    }
    if bytes.len() as u64 > FILE_MAX {
        return Err(ReadError::Long { path: path.to_owned() });
    }
    Ok(bytes)
}
