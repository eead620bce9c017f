//! Controllers that agents have groups below the root of version 2 use: taken from them again only
//! when nobody else has come to use them meanwhile.

use std::io;
use std::path::Path;

use crate::command::words;
use crate::host::Host;

/// The file of a group that says which controllers the groups below it use.
pub(crate) const SUBTREE: &str = "cgroup.subtree_control";

/// The files of each controller in a group that nobody limits, with what they say then: the
/// kernel's documentation, `admin-guide/cgroup-v2.rst`.
const UNLIMITED: [(&str, &[(&str, &str)]); 3] = [
    ("cpu", &[("cpu.max", "max 100000"), ("cpu.weight", "100"), ("cpu.idle", "0")]),
    (
        "memory",
        &[
            ("memory.max", "max"),
            ("memory.high", "max"),
            ("memory.low", "0"),
            ("memory.min", "0"),
            ("memory.swap.max", "max"),
        ],
    ),
    ("cpuset", &[("cpuset.cpus", ""), ("cpuset.mems", ""), ("cpuset.cpus.partition", "member")]),
];

/// Whether a group hands a controller on, or is limited by it.
fn uses(host: &dyn Host, group: &Path, controller: &str) -> bool {
    let says = |file: &str| host.read(&group.join(file)).ok();
    if says(SUBTREE).is_some_and(|lent| words(&lent).iter().any(|lent| lent == controller)) {
        return true;
    }
    let known = UNLIMITED.iter().find(|(name, _)| *name == controller);
    known
        .into_iter()
        .flat_map(|(_, files)| *files)
        .any(|(file, free)| says(file).is_some_and(|now| now.trim() != *free))
}

/// Takes a controller from the groups below, where none of them uses it: without it the kernel
/// forgets their limits. `file`: that of the group above which lends it.
pub(crate) fn take_back(host: &dyn Host, file: &Path, controller: &str) -> io::Result<()> {
    let root = file.parent().unwrap_or(file);
    let used_by =
        host.names(root).unwrap_or_default().into_iter().find(|name| uses(host, &root.join(name), controller));
    if let Some(group) = used_by {
        tracing::info!(controller, group, "the controller stays: another control group uses it");
        return Ok(());
    }
    match host.write(file, &format!("-{controller}")) {
        // Somebody below hands it on since just now.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
        result => result,
    }
}
