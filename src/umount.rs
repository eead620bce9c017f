//! `aqueduct umount`.

use std::path::Path;
use std::process::ExitCode;

use aqueduct_fuse::MountError;

use crate::failure::{Failure, MOUNT_FAILED};
use crate::{args, mounts};

/// Ends the mount on a directory, also when its process has died.
pub fn run(target: &Path, lazy: bool) -> Result<ExitCode, Failure> {
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
        Some(_) => aqueduct_fuse::unmount(&point, lazy).map(|()| ExitCode::SUCCESS).map_err(|error| match error {
            MountError::Busy { target } => {
                let hint = format!("end what uses it (see 'fuser -vm {}'), or unmount with --lazy", target.display());
                Failure::new(what(), "the target is busy: programs have files or their working directory there", hint)
            }
            error => Failure::from_line(error, "see the kernel's log (dmesg)"),
        }),
    }
}

/// As umount(8) calls it.
pub fn run_helper(helper: &args::UmountHelper) -> Result<ExitCode, Failure> {
    run(&helper.target, helper.lazy).map_err(|failure| failure.with_code(MOUNT_FAILED))
}
