//! The files that a program needs to start where nothing else is.

use std::path::{Path, PathBuf};

use aqueduct_node::Failure;

use crate::host::Host;

/// The program, its libraries and what loads them, each by its path on this host.
pub(crate) fn files(host: &dyn Host, program: &Path) -> Result<Vec<PathBuf>, Failure> {
    let told = match host.run(&["ldd".into(), program.display().to_string()]) {
        // It needs none.
        Err(why) if why.contains("not a dynamic executable") => String::new(),
        told => told.map_err(|why| {
            Failure::new(
                format!("cannot tell which libraries {} needs", program.display()),
                why,
                "see whether the program is there, and ldd (package libc-bin)",
            )
        })?,
    };
    if let Some(line) = told.lines().find(|line| line.contains("not found")) {
        return Err(Failure::new(
            format!("cannot put {} where nothing else is", program.display()),
            format!("a library is missing: {}", line.trim()),
            "install what the program needs",
        ));
    }
    let mut all = vec![program.to_owned()];
    // "libm.so.6 => /lib/libm.so.6 (0x1)" and "/lib64/ld-linux-x86-64.so.2 (0x1)". The vDSO, which
    // the kernel supplies, has no path.
    let paths = told.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    all.extend(paths.map(PathBuf::from));
    Ok(all)
}
