//! Manual pages and shell completions, from the table of commands.

use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::{Arguments, MountHelper, UmountHelper};
use crate::failure::Failure;

/// Prints a completion script.
pub fn completions(shell: Shell) {
    clap_complete::generate(shell, &mut Arguments::command(), "aqueduct", &mut io::stdout());
}

/// Writes one page for each command, and those of the helpers.
pub fn man(directory: &Path) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        std::fs::create_dir_all(directory)?;
        clap_mangen::generate_to(Arguments::command(), directory)?;
        clap_mangen::generate_to(MountHelper::command(), directory)?;
        clap_mangen::generate_to(UmountHelper::command(), directory)
    };
    write().map_err(|error| {
        Failure::new(
            format!("cannot write the manual pages into {}", directory.display()),
            error,
            "name a directory that this user may write",
        )
    })
}
