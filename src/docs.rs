//! Manual pages and shell completions, from the table of commands.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::{Arguments, MountHelper, UmountHelper};
use crate::failure::Failure;

/// Prints a completion script.
pub fn completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "aqueduct", &mut script);
    crate::output::print(format_args!("{}", String::from_utf8_lossy(&script)));
}

/// Writes one page for each command (section 1), and those of the helpers (section 8).
pub fn man(directory: &Path) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        std::fs::create_dir_all(directory)?;
        pages(Arguments::command(), "1", directory)?;
        pages(MountHelper::command(), "8", directory)?;
        pages(UmountHelper::command(), "8", directory)
    };
    write().map_err(|error| {
        Failure::new(
            format!("cannot write the manual pages into {}", directory.display()),
            error,
            "name a directory that this user may write",
        )
    })
}

fn pages(command: Command, section: &str, directory: &Path) -> io::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    all_pages(&command, section, directory)
}

/// The page of a command, and those of the commands below it, to which it refers.
fn all_pages(command: &Command, section: &str, directory: &Path) -> io::Result<()> {
    page(command, section, directory)?;
    let mut below = command.get_subcommands().filter(|inner| inner.get_name() != "help");
    below.try_for_each(|inner| all_pages(inner, section, directory))
}

fn page(command: &Command, section: &str, directory: &Path) -> io::Result<()> {
    let man = Man::new(command.clone()).section(section).manual("Aqueduct").date("");
    let mut file = BufWriter::new(File::create(directory.join(man.get_filename()))?);
    let out: &mut dyn Write = &mut file;
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    if let Some(text) = command.get_after_long_help().or(command.get_after_help()) {
        // The examples and tables are set as they are: filled lines would mangle them.
        write!(out, ".SH NOTES\n.nf\n{}\n.fi\n", verbatim(&text.to_string()))?;
    }
    file.flush()
}

/// Text that roff shows as it is.
fn verbatim(text: &str) -> String {
    let escape = |line: &str| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    };
    text.lines().map(escape).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_examples() {
        let folder = tempfile::tempdir().unwrap();
        man(folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        for command in [
            "serve",
            "mount",
            "route",
            "umount",
            "status",
            "release-locks",
            "cp",
            "sync",
            "verify",
            "keygen",
            "completions",
            "man",
            "volume-check",
            "route-show",
            "bench-io",
            "net-rails",
        ] {
            assert!(read(&format!("aqueduct-{command}.1")).contains("Example"), "{command}");
        }
        assert!(read("mount.aqueduct.8").contains("\n  cache=lease|none|close\\-to\\-open|immutable"));
        assert!(read("umount.aqueduct.8").contains(".TH"));
    }

    #[test]
    fn roff_takes_text_as_it_is() {
        assert_eq!(verbatim(".a\n'b\nc\\d -e"), "\\&.a\n\\&'b\nc\\ed \\-e");
    }
}
