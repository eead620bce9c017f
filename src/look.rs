//! `aqueduct volume check` and `export`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::routes::Routes;

/// What changes nothing of the volume.
#[derive(Debug, Subcommand)]
pub enum Look {
    /// Look whether the servers of a volume are as its file says, and have the same directory; of
    /// plain directories, whether all data are there
    #[command(after_help = "\
Examples:
  aqueduct volume check /etc/aqueduct/volume.toml                     ask all servers
  aqueduct volume check scratch@10.0.0.1                              the same without the file
  aqueduct volume check /etc/aqueduct/volume.toml --store d1=/mnt/d1  its server does not run: its disk is mounted here
  aqueduct volume check /etc/aqueduct/volume.toml --repair --dry-run  what could be mended of plain directories

Servers before one file system are asked whether they answer, were started with this file, have the
same key, a file system that the mode allows, and clocks that agree. Then a file without a name is
written at the server of the names, and read, changed and removed under the eyes of the others: run
this as root on that server's machine, else files that are there may have to do. Of plain
directories (on the machine of the server of the names) there is a line for each file that cannot
be read, of which something wrong is written down, and for each object that no file names. Nothing
is changed, while the volume is used or not.

With --repair the server of the names mends what it can while programs use the volume; if it does
not run, this command does, over the stores of all servers, which --store names. There is a line for
each thing that was found, with what was done, or why nothing was. Nothing is removed: objects that
no file names go to the folder .lost of their store, and --purge removes those.
Exit codes: 0 all is as it should be, or is mended, 1 something is not, or was not looked at.")]
    Check {
        /// The volume's file, or VOLUME@ADDR[,ADDR...]: some of its servers
        volume: String,
        /// ID=DIR: the store of a server of plain directories, mounted on this machine [default:
        /// the server is asked]
        #[arg(long = "store", value_name = "ID=DIR", value_parser = store)]
        stores: Vec<(String, PathBuf)>,
        /// The file with the servers' key
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
        #[command(flatten)]
        mend: Mend,
        /// As JSON; with --repair or --purge a line for each thing
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        routes: Routes,
    },
    /// Copy a volume of plain directories into a directory, with its servers or without
    #[command(after_help = "\
Example:
  aqueduct volume export /etc/aqueduct/volume.toml /srv/copy --store d1=/mnt/d1 --store d2=/mnt/d2

On the machine of the server of the names, or one that has its disk. Nothing of the volume is changed.
Files, directories and symbolic links are copied, with owner, mode, times, hard links and holes; not:
extended attributes, and what is none of these. Files on a server that is not reached within 10 s are
named, and not copied.
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

/// What is to be done about what is found.
#[derive(Clone, Debug, Args)]
pub struct Mend {
    /// Mend what is wrong with plain directories, as far as nothing has to be guessed
    #[arg(long)]
    pub repair: bool,
    /// Remove for good what repairs have moved to the folders .lost
    #[arg(long, conflicts_with = "repair")]
    pub purge: bool,
    /// Use the store of this server as it is from now on, though it is an older copy, or another
    /// one, than the one that was used
    #[arg(long, value_name = "ID", conflicts_with_all = ["repair", "purge", "dry_run", "accept_orphans"])]
    pub accept: Option<String>,
    /// Move objects that no file names though they are most, or all: the tree is the right one
    #[arg(long)]
    pub accept_orphans: bool,
    /// Tell what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
}

fn store(text: &str) -> Result<(String, PathBuf), String> {
    let (id, path) = text.split_once('=').ok_or("give ID=DIR, such as d1=/mnt/d1")?;
    Ok((id.to_owned(), path.into()))
}
