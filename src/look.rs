//! The arguments of `aqueduct volume check` and `export`.

use std::path::PathBuf;

use clap::Subcommand;

/// What is done on the machine of the server of the names, and changes nothing of the volume.
#[derive(Debug, Subcommand)]
pub enum Look {
    /// Look whether all data of a volume of plain directories are there, while it is used or not
    #[command(after_help = "\
Examples:
  aqueduct volume check /etc/aqueduct/volume.toml                     on the machine of the server of the names
  aqueduct volume check /etc/aqueduct/volume.toml --store d1=/mnt/d1  its server does not run: its disk is mounted here

Nothing is changed. A line for each file that cannot be read, and for each object that no file names.
Exit codes: 0 all is there, 1 something is not, or was not looked at.")]
    Check {
        /// The volume's file
        file: PathBuf,
        /// ID=DIR: the store of a server, mounted on this machine [default: the server is asked]
        #[arg(long = "store", value_name = "ID=DIR", value_parser = store)]
        stores: Vec<(String, PathBuf)>,
    },
    /// Copy a volume of plain directories into a directory, with its servers or without
    #[command(after_help = "\
Example:
  aqueduct volume export /etc/aqueduct/volume.toml /srv/copy --store d1=/mnt/d1 --store d2=/mnt/d2

On the machine of the server of the names, or one that has its disk. Nothing of the volume is changed.
Files, directories and symbolic links are copied, with owner, mode, times, hard links and holes; not:
extended attributes, and what is none of these.
Exit codes: 0 all was copied, 1 something was not.")]
    Export {
        /// The volume's file
        file: PathBuf,
        /// The directory; it must not exist yet
        dir: PathBuf,
        /// ID=DIR: the store of a server, mounted on this machine [default: the server is asked]
        #[arg(long = "store", value_name = "ID=DIR", value_parser = store)]
        stores: Vec<(String, PathBuf)>,
    },
}

fn store(text: &str) -> Result<(String, PathBuf), String> {
    let (id, path) = text.split_once('=').ok_or("give ID=DIR, such as d1=/mnt/d1")?;
    Ok((id.to_owned(), path.into()))
}
