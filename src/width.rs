//! `aqueduct volume set` and `show` of a directory: over how many servers the blocks of its new
//! files are spread.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use aqueduct_fs::wide::{WIDTH, WIDTH_MAX};
use clap::Subcommand;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::failure::Failure;
use crate::output;

/// See the module.
#[derive(Debug, Subcommand)]
pub enum Width {
    /// Say over how many servers the blocks of new files in a directory are spread
    #[command(after_help = "\\
New files and directories have what their directory has. Those that are there stay as they are.
The volume's mode is stripe or striped.

Example:
  aqueduct volume set /mnt/scratch/checkpoints width=2")]
    Set {
        /// A directory of a mount
        dir: PathBuf,
        /// width=N: N servers; 0: as the volume says
        setting: String,
    },
}

/// The attribute's name, as system calls have it.
fn name() -> String {
    String::from_utf8_lossy(WIDTH).into_owned()
}

pub fn set(dir: &Path, setting: &str) -> Result<ExitCode, Failure> {
    let what = format!("cannot set {setting} for {}", dir.display());
    let width = setting.strip_prefix("width=").and_then(|width| width.parse::<u16>().ok());
    let Some(width) = width.filter(|width| *width <= WIDTH_MAX) else {
        let why = format!("'{setting}' is not width=N with N from 0 to {WIDTH_MAX}");
        return Err(Failure::usage(what, why, "write, say, width=2; width=0 is as the volume says"));
    };
    rustix::fs::setxattr(dir, name(), width.to_string().as_bytes(), XattrFlags::empty())
        .map_err(|error| failed(what, error))?;
    Ok(ExitCode::SUCCESS)
}

pub fn show(path: &Path) -> Result<ExitCode, Failure> {
    let mut value = [0; 16];
    let width = match rustix::fs::getxattr(path, name(), &mut value) {
        Ok(length) => String::from_utf8_lossy(&value[..length]).into_owned(),
        Err(Errno::NODATA) => "0".to_owned(),
        Err(error) => return Err(failed(format!("cannot show {}", path.display()), error)),
    };
    let told = if width == "0" { "as the volume says".to_owned() } else { format!("{width} servers") };
    output::line(format_args!("{}: width={width} ({told})", path.display()));
    Ok(ExitCode::SUCCESS)
}

fn failed(what: String, error: Errno) -> Failure {
    let hint = match error {
        Errno::PERM | Errno::ACCESS => "only who owns a directory says how wide it is",
        Errno::INVAL => "the blocks of a file of the mode striped are spread over 64 servers at most: give no more",
        Errno::NOTDIR => "name a directory: a file keeps the width that it was made with",
        Errno::OPNOTSUPP => "name a directory of a mounted volume with mode = \"stripe\" or \"striped\"",
        _ => "see whether the path exists, and is in a mounted volume",
    };
    Failure::new(what, io::Error::from(error), hint)
}
