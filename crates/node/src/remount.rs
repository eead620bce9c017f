//! Changing a mount that is there, by whoever asks the kernel to: the process that serves it goes
//! on as it was.

use std::time::Duration;

use aqueduct_fuse::{MountError, MountOptions, Remount};
use aqueduct_metrics::status::MountStatus;

use crate::failure::{Failure, Kind};
use crate::mounts::{self, Mount};
use crate::options::{self, Options};
use crate::source::MountSettings;

/// A mount that says nothing for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether the settings are those of a change, and not of a mount.
pub fn is_remount(settings: &MountSettings) -> bool {
    settings.options.iter().any(|option| option.trim() == "remount")
}

/// Changes the mount on the target as the options say. What the kernel does for a mount can be
/// changed, and what is not named stays; an option that the process decides by is refused unless
/// the mount has it already, as mount(8) names those of /etc/fstab again.
pub fn remount(settings: &MountSettings) -> Result<(), Failure> {
    let what = format!("cannot change the mount on {}", settings.target.display());
    let options = settings.options.iter().map(|option| option.trim()).filter(|option| *option != "remount");
    let mut wanted = Wanted::default();
    options.for_each(|option| wanted.add(option));
    let mount = find(settings, &what)?;
    // mount(8) names again what it has read of the mount.
    wanted.others.retain(|option| !mount.options.contains(option));
    let changed = wanted.flags(&mount);
    let wakes = mount.read_only && !changed.read_only;
    if !wanted.others.is_empty() || wakes {
        let told = mounts::ask(std::slice::from_ref(&mount), PATIENCE).pop().unwrap_or(Err("does not answer".into()));
        wanted.check_others(&what, &told)?;
        if wakes && told.is_ok_and(|told| told.server_read_only) {
            let hint = "have the server let this machine write there, and mount it again";
            return Err(Failure::new(what, "the server serves it read-only", hint).of(Kind::Mount));
        }
    }
    let alone = if wanted.bind { Remount::MountPoint } else { Remount::Whole };
    aqueduct_fuse::remount(&mount.target, &changed, alone).map_err(|error| {
        let hint = match &error {
            MountError::NotPermitted { .. } => "do it as root, or unmount it and mount it again with the other options",
            _ => "see the kernel's log (dmesg)",
        };
        Failure::from_line(error, hint).of(Kind::Mount)
    })
}

/// The mount on the target, which has to be ours.
fn find(settings: &MountSettings, what: &str) -> Result<Mount, Failure> {
    let failed = |why: String, hint: &str| Failure::new(what, why, hint).of(Kind::Mount);
    let all = mounts::all().map_err(|error| failed(format!("/proc/self/mountinfo: {error}"), "mount proc on /proc"))?;
    let point = mounts::mount_point(&settings.target, &all);
    match all.into_iter().rfind(|mount| mount.target == point) {
        None => Err(failed("nothing is mounted there".into(), "mount it without remount")),
        Some(mount) if !mount.is_ours() => {
            Err(failed(format!("it is not ours, but of type {}", mount.kind), "use mount(8) with its own type"))
        }
        Some(mount) => Ok(mount),
    }
}

/// What is asked for.
#[derive(Debug, Default)]
struct Wanted {
    /// What the kernel can be told at any time, in the order in which it was named.
    flags: Vec<String>,
    /// Of this mount point alone, and not of others of the same mount.
    bind: bool,
    /// All else.
    others: Vec<String>,
}

impl Wanted {
    fn add(&mut self, option: &str) {
        const FLAGS: [&str; 11] =
            ["ro", "rw", "nosuid", "suid", "nodev", "dev", "devices", "noexec", "exec", "noatime", "atime"];
        if option == "bind" {
            self.bind = true;
            return;
        }
        let list = if FLAGS.contains(&option) { &mut self.flags } else { &mut self.others };
        list.push(option.to_owned());
    }

    /// The flags of the mount with what is asked for. Synchronous writes are the kernel's too, but
    /// the mount's requests were agreed on without them.
    fn flags(&self, mount: &Mount) -> MountOptions {
        let has = |name: &str| mount.options.iter().any(|option| option == name);
        let mut options = Options {
            read_only: mount.read_only,
            nosuid: has("nosuid"),
            nodev: has("nodev"),
            noexec: has("noexec"),
            noatime: has("noatime"),
            ..Options::default()
        };
        self.flags.iter().for_each(|flag| {
            options.flag(flag);
        });
        let Options { read_only, nosuid, nodev, noexec, noatime, .. } = options;
        let (sync, dirsync) = (has("sync"), has("dirsync"));
        MountOptions { read_only, nosuid, nodev, noexec, noatime, sync, dirsync, ..MountOptions::default() }
    }

    /// Each of the others has to be what the mount has.
    fn check_others(&self, what: &str, told: &Result<MountStatus, String>) -> Result<(), Failure> {
        let parse = |list: &[String]| {
            // Whether it was said at all makes no difference here.
            Options::parse(list, true).map(|options| Options { cache_is_said: true, ..options })
        };
        parse(&self.others)?;
        let changes: Vec<&String> = self.others.iter().filter(|option| !options::is_ignored(option)).collect();
        if changes.is_empty() {
            return Ok(());
        }
        let listed = told.as_ref().map(|told| told.options.clone()).map_err(String::clone);
        let had: Vec<String> = match listed {
            Ok(Some(list)) => list,
            Ok(None) => return Err(unsure(what, "it does not tell which options it has")),
            Err(why) => return Err(unsure(what, &why)),
        };
        let before = parse(&had)?;
        for option in changes {
            if parse(&[had.as_slice(), std::slice::from_ref(option)].concat()).ok().as_ref() != Some(&before) {
                return Err(Failure::usage(
                    what,
                    format!("{option} cannot be changed while it is mounted"),
                    "unmount it and mount it again with that; ro, rw, suid, devices, exec, atime and their opposites can be changed",
                ));
            }
        }
        Ok(())
    }
}

fn unsure(what: &str, why: &str) -> Failure {
    let hint = "name ro, rw, suid, devices, exec, atime and their opposites alone: they need no answer";
    Failure::new(what, why, hint).of(Kind::Mount)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(options: &[&str]) -> Wanted {
        let mut wanted = Wanted::default();
        options.iter().for_each(|option| wanted.add(option));
        wanted
    }

    fn mount(options: &[&str]) -> Mount {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        Mount { read_only: options.contains(&"ro".to_owned()), options, ..Mount::default() }
    }

    #[test]
    fn what_is_not_named_stays() {
        let all = ["ro", "nosuid", "nodev", "noexec", "noatime", "sync"];
        let shown = |options: MountOptions| {
            let MountOptions { read_only, nosuid, nodev, noexec, noatime, sync, .. } = options;
            [read_only, nosuid, nodev, noexec, noatime, sync]
        };
        assert_eq!(shown(wanted(&[]).flags(&mount(&all))), [true; 6]);
        assert_eq!(shown(wanted(&[]).flags(&mount(&["rw", "relatime"]))), [false; 6]);
        assert_eq!(shown(wanted(&["rw", "exec"]).flags(&mount(&all))), [false, true, true, false, true, true]);
        let opposites = wanted(&["rw", "suid", "devices", "exec", "atime"]);
        assert_eq!(shown(opposites.flags(&mount(&all))), [false, false, false, false, false, true]);
        assert_eq!(
            shown(wanted(&["ro", "rw", "ro"]).flags(&mount(&["rw"]))),
            [true, false, false, false, false, false]
        );
    }

    #[test]
    fn bind_is_about_one_mount_point() {
        let bound = wanted(&["bind", "ro"]);
        assert!(bound.bind && bound.others.is_empty() && bound.flags(&mount(&["rw"])).read_only);
        assert!(!wanted(&["ro"]).bind);
    }

    #[test]
    fn what_the_process_decides_by_has_to_be_as_it_is() {
        let options = ["soft", "timeo=9", "cache=none"].map(str::to_owned).into();
        let told = Ok(MountStatus { options: Some(options), ..MountStatus::default() });
        let check = |options: &[&str], told: &Result<MountStatus, String>| {
            wanted(options).check_others("cannot change the mount on /m", told).map_err(|failure| failure.to_string())
        };
        check(&["ro", "soft", "cache=none", "timeo=9", "_netdev", "nofail", "relatime"], &told).unwrap();
        for changed in ["hard", "timeo=10", "cache=lease", "workers=3", "allow_other=1"] {
            let message = check(&["ro", changed], &told).unwrap_err();
            assert!(message.contains(changed), "{message}");
        }
        let silent = Err("does not answer".to_owned());
        check(&["ro", "_netdev"], &silent).unwrap();
        assert!(check(&["soft"], &silent).unwrap_err().contains("does not answer"));
        assert!(check(&["soft"], &Ok(MountStatus::default())).unwrap_err().contains("does not tell"));
    }
}
