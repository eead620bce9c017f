//! Manifests in Parquet files, for pandas, DuckDB and Polars.
//!
//! Such a file begins with the manifest in lines, which is all that is read of it here: programs
//! that read Parquet pass over what lies before the first column. So a manifest from anywhere is
//! parsed by one reader, which bears whatever it is given. Behind it each line is a row.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use aqueduct_fs::Errno;
use rustix::fs::Access;

use crate::Failure;
use crate::manifest::{self, Line, ManifestError, Provenance};
use crate::sign::Signer;
use crate::store::random;

/// What the name of a manifest ends with that is a Parquet file.
const EXTENSION: &str = "parquet";

/// What a Parquet file begins with.
const MAGIC: &[u8] = b"PAR1";

/// Whether a manifest of this name is a Parquet file.
fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(EXTENSION))
}

/// Whether this program can write a manifest of this name: before anything is copied, since what
/// was copied without one has to be read again for it.
pub fn check(path: &Path) -> Result<(), Failure> {
    if !cfg!(feature = "reports") && is_table(path) {
        let hint = "build it with --features reports, or give the manifest another name: it is lines of JSON then";
        return Err(Failure::usage("cannot write Parquet", "this program was built without it", hint));
    }
    let why: io::Error = match rustix::fs::access(folder_of(path), Access::WRITE_OK | Access::EXEC_OK) {
        Err(error) => error.into(),
        Ok(()) if path.is_dir() => Errno::EISDIR.into(),
        Ok(()) if !folder_of(path).is_dir() => Errno::ENOTDIR.into(),
        // Its name is given to a new file: /dev/null would be none any more.
        Ok(()) if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) => {
            io::Error::other("what is there is no regular file")
        }
        Ok(()) => return Ok(()),
    };
    let hint = "name a file in a folder that is there and may be written";
    Err(Failure::new(format!("cannot write the manifest {}", path.display()), why, hint))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the name of a manifest stable, and that of its signature beside it.
fn sync_folder(path: &Path) -> io::Result<()> {
    match File::open(folder_of(path)).and_then(|folder| folder.sync_all()) {
        // As for directories of a copy: this file system cannot, or not for who may not read it.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) => Ok(()),
        synced => synced,
    }
}

/// A temporary name beside a manifest's own.
pub fn part_of(path: &Path) -> PathBuf {
    folder_of(path).join(format!(".aqueduct-part-{:016x}", random()))
}

/// Gives a manifest in lines, which is whole and stable, its name: as a Parquet file where that
/// says so. What is signed is what was written here, and not what others put under its name.
pub fn settle(part: &Path, path: &Path, signer: Option<&Signer>) -> io::Result<()> {
    let name = |whole: &Path| -> io::Result<()> {
        let signature = signer.map(|signer| signer.sign(whole)).transpose().map_err(io::Error::other)?;
        fs::rename(whole, path)?;
        signature.map_or(Ok(()), |signature| signature.write(path)).map_err(io::Error::other)?;
        sync_folder(path)
    };
    if !is_table(path) {
        return name(part);
    }
    let table = part_of(path);
    let made = File::create_new(&table).and_then(|out| convert(File::open(part)?, out));
    made.and_then(|()| name(&table)).inspect_err(|_| drop(fs::remove_file(&table)))?;
    fs::remove_file(part)
}

/// Reads a manifest of either kind. As [`manifest::read`]; only a Parquet file goes on behind it.
pub fn read(file: File, each: impl FnMut(Line) -> io::Result<()>) -> Result<Provenance, ManifestError> {
    let mut input = BufReader::new(file);
    let is_table = input.fill_buf()?.starts_with(MAGIC);
    if is_table {
        input.consume(MAGIC.len());
    }
    let provenance = manifest::read(&mut input, each)?;
    match is_table || input.fill_buf()?.is_empty() {
        true => Ok(provenance),
        false => Err(ManifestError::Behind),
    }
}

#[cfg(feature = "reports")]
use table::convert;

#[cfg(not(feature = "reports"))]
fn convert(_: File, _: File) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this program was built without Parquet"))
}

#[cfg(feature = "reports")]
mod table {
    use std::fs::File;
    use std::io::{self, BufReader, Read, Seek};

    use aqueduct_observe::parquet::{Table, Values};

    use crate::manifest::{self, Line, Text};

    /// Rows that are written together, and bytes of their lines: what is kept in memory meanwhile.
    const ROWS: usize = 16 << 10;
    const BYTES: usize = 16 << 20;

    /// What is no text is as in the line: `{"base64":"..."}`.
    fn shown(text: &Text) -> String {
        match text {
            Text::Plain(text) => text.clone(),
            Text::Coded { .. } => serde_json::to_string(text).expect("a text is JSON"),
        }
    }

    /// Microseconds since 1970.
    fn micros(time: &str) -> Option<i64> {
        let (seconds, nanos) = time.split_once('.')?;
        let (seconds, nanos) = (seconds.parse::<i64>().ok()?, nanos.parse::<i64>().ok()?);
        seconds.checked_mul(1_000_000)?.checked_add(nanos / 1000)
    }

    /// Lines as rows.
    pub fn columns(lines: &[Line]) -> Vec<(String, Values)> {
        let text = |of: &dyn Fn(&Line) -> Option<String>| Values::Text(lines.iter().map(of).collect());
        let whole = |of: &dyn Fn(&Line) -> Option<i64>| Values::Whole(lines.iter().map(of).collect());
        let xattrs = |line: &Line| (!line.xattrs.is_empty()).then(|| serde_json::to_string(&line.xattrs).ok())?;
        let columns = [
            ("path", text(&|line| Some(shown(&line.path)))),
            ("type", text(&|line| Some(line.kind.clone()))),
            ("mode", text(&|line| line.mode.clone())),
            ("uid", whole(&|line| Some(line.uid.into()))),
            ("gid", whole(&|line| Some(line.gid.into()))),
            ("mtime", Values::Time(lines.iter().map(|line| micros(&line.mtime)).collect())),
            ("size", whole(&|line| line.size.and_then(|size| size.try_into().ok()))),
            ("b3", text(&|line| line.b3.clone())),
            ("target", text(&|line| line.target.as_ref().map(shown))),
            ("device", text(&|line| line.device.clone())),
            ("xattrs", text(&xattrs)),
            ("link", text(&|line| line.link.as_ref().map(shown))),
        ];
        columns.into_iter().map(|(name, values)| (name.to_owned(), values)).collect()
    }

    /// Makes a Parquet file of a manifest in lines.
    pub fn convert(mut lines: File, out: File) -> io::Result<()> {
        let mut table = Table::new(out, "manifest", &columns(&[]))?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            match lines.read(&mut buffer)? {
                0 => break,
                length => table.raw(&buffer[..length])?,
            }
        }
        lines.rewind()?;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let read = manifest::read(&mut BufReader::new(lines), |line| {
            bytes += line.text().len();
            rows.push(line);
            if rows.len() >= ROWS || bytes >= BYTES {
                table.add(&columns(&rows))?;
                (rows, bytes) = (Vec::new(), 0);
            }
            Ok(())
        });
        read.map_err(io::Error::other)?;
        if !rows.is_empty() {
            table.add(&columns(&rows))?;
        }
        table.finish()
    }
}

#[cfg(all(test, feature = "reports"))]
#[path = "manifest_table_tests.rs"]
mod tests;
