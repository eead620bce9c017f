//! What may never be answered, asked by another process. A thread that the kernel has wait for a
//! mount cannot always be ended, as where its request lies in the io_uring of a process that is
//! stopped; and as long as it waits its own process does not end. Another process is left behind,
//! and ends with the mount.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;

use crate::pages::PAGE_LENGTH_MAX;

/// What the program is called when it is to ask.
pub const ASK_NAME: &str = "aqueduct-ask";

/// The program that does what another process has to; none: there is none.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// From now on this program is started for what another process has to do: under the name
/// [`ASK_NAME`], by which it has to call [`ask`], and under
/// [`ORPHAN_NAME`](crate::ORPHAN_NAME), by which it has to call
/// [`end_orphan`](crate::end_orphan). Without it the end of a process that has asked may have to
/// wait for the mount, and a mount that is killed may stay.
pub fn run_beside(program: PathBuf) {
    let _ = PROGRAM.set(program); // the first stays
}

/// The part of a program that is called [`ASK_NAME`]: does what its arguments say, and prints what
/// comes of it, or the number of the error.
pub fn ask() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let answer = match &arguments[..] {
        [target, name] => attribute_here(Path::new(target), name),
        [target] => path_here(Path::new(target)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    };
    let (text, code) = match answer {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(error) => (error.raw_os_error().unwrap_or(0).to_string().into_bytes(), ExitCode::FAILURE),
    };
    // Whoever asked may have gone.
    let _ = io::stdout().write_all(&text).and_then(|()| io::stdout().flush());
    code
}

fn attribute_here(target: &Path, name: &OsStr) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; PAGE_LENGTH_MAX];
    let length = rustix::fs::getxattr(target, name, &mut buffer)?;
    buffer.truncate(length);
    Ok(buffer)
}

fn path_here(target: &Path) -> io::Result<Vec<u8>> {
    Ok(std::fs::canonicalize(target)?.into_os_string().into_vec())
}

/// The program that was given.
pub(crate) fn program() -> Option<&'static Path> {
    PROGRAM.get().map(PathBuf::as_path)
}

/// An extended attribute of a directory. It may never come back.
pub(crate) fn attribute(target: &Path, name: &str) -> io::Result<Vec<u8>> {
    asked(&[target.as_os_str(), name.as_ref()]).unwrap_or_else(|| attribute_here(target, name.as_ref()))
}

/// A path without links. It may never come back.
pub(crate) fn path(target: &Path) -> io::Result<PathBuf> {
    let bytes = asked(&[target.as_os_str()]).unwrap_or_else(|| path_here(target))?;
    Ok(PathBuf::from(OsStr::from_bytes(&bytes)))
}

/// Has the program ask; `None`: there is none, or it cannot be started.
fn asked(arguments: &[&OsStr]) -> Option<io::Result<Vec<u8>>> {
    let mut command = Command::new(program()?);
    command.arg0(ASK_NAME).args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok()?;
    if output.status.success() {
        return Some(Ok(output.stdout));
    }
    let number = String::from_utf8_lossy(&output.stdout).trim().parse().ok().filter(|number| *number != 0);
    Some(Err(number.map_or_else(|| io::Error::other("who asked it has failed"), io::Error::from_raw_os_error)))
}
