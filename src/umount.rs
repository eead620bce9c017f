//! `aqueduct umount`.

use std::path::Path;
use std::process::ExitCode;

use aqueduct_fuse::{MountError, Unmount};
use aqueduct_node::mounts;

use crate::args;
use crate::failure::{Failure, MOUNT_FAILED};

/// Ends the mount on a directory, also when its process has died.
pub fn run(target: &Path, how: Unmount) -> Result<ExitCode, Failure> {
    let what = || format!("cannot unmount {}", target.display());
    let all = mounts::all()
        .map_err(|error| Failure::new(what(), format!("/proc/self/mountinfo: {error}"), "mount proc on /proc"))?;
    let point = mounts::mount_point(target, &all);
    match all.iter().rfind(|mount| mount.target == point) {
        None => {
            Err(Failure::new(what(), "nothing is mounted there", "see 'aqueduct status' for what is mounted where"))
        }
        Some(other) if !other.is_ours() => {
            Err(Failure::new(what(), format!("it is not ours, but of type {}", other.kind), "use umount(8)"))
        }
        Some(_) => aqueduct_fuse::unmount(&point, how).map(|()| ExitCode::SUCCESS).map_err(|error| match error {
            MountError::Busy { target } => {
                let hint = format!("end what uses it (see 'fuser -vm {}'), or unmount with --lazy, or with --force, which gives them errors", target.display());
                Failure::new(what(), "the target is busy: programs have files or their working directory there", hint)
            }
            error => Failure::from_line(error, "see the kernel's log (dmesg)"),
        }),
    }
}

/// As umount(8) calls it.
pub fn run_helper(helper: &args::UmountHelper) -> Result<ExitCode, Failure> {
    run(&helper.target, args::how(helper.lazy, helper.force)).map_err(|failure| failure.with_code(MOUNT_FAILED))
}
