//! An agent as a container: a bundle as the Open Container Initiative writes it, with our program,
//! its libraries and what it serves, and nothing else of the host.
//!
//! Network, processors and control groups are the agent's as of any other kind: the runtime is
//! started within them, and told to make none.

use std::path::{Path, PathBuf};

use aqueduct_node::Failure;
use serde_json::{Value, json};

use crate::host::Host;
use crate::programs;
use crate::step::Step;

/// What a server of files must be allowed, with the kernel's numbers: to act as its clients'
/// users, to open by handle, to make devices, to watch (fanotify), and no more.
const CAPABILITIES: [(&str, u32); 13] = [
    ("CAP_CHOWN", 0),
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_DAC_READ_SEARCH", 2),
    ("CAP_FOWNER", 3),
    ("CAP_FSETID", 4),
    ("CAP_SETGID", 6),
    ("CAP_SETUID", 7),
    ("CAP_NET_BIND_SERVICE", 10),
    ("CAP_SYS_ADMIN", 21),
    ("CAP_SYS_RESOURCE", 24),
    ("CAP_MKNOD", 27),
    ("CAP_LEASE", 28),
    ("CAP_SETFCAP", 31),
];

/// Those of them that this process may hand on: a host may itself be held to fewer.
fn capabilities(host: &dyn Host) -> Vec<&'static str> {
    let status = host.read(Path::new("/proc/self/status")).unwrap_or_default();
    let own = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapPrm:")?.trim(), 16).ok());
    let own = own.unwrap_or(u64::MAX);
    CAPABILITIES.iter().filter(|(_, number)| own >> number & 1 == 1).map(|(name, _)| *name).collect()
}

/// A container that is to be.
pub(crate) struct Container<'a> {
    /// The program that runs containers.
    pub runtime: &'a str,
    /// What it is called.
    pub name: &'a str,
    /// The agent's folder.
    pub folder: &'a Path,
    /// What it sees of the host, under the same paths: whether it may change it.
    pub binds: Vec<(PathBuf, bool)>,
    /// A mount of the host that the runtime does not bear.
    pub hidden: Option<PathBuf>,
    /// What runs in it.
    pub command: &'a [String],
}

impl Container<'_> {
    /// What makes it, and the command that runs it.
    pub(crate) fn plan(&self, host: &dyn Host) -> Result<(Vec<Step>, Vec<String>), Failure> {
        let bundle = self.folder.join("bundle");
        let program = self.command.first().map(Path::new).unwrap_or(Path::new(""));
        let mut binds = self.binds.clone();
        // What is bound has its programs already, with what they need.
        if !self.binds.iter().any(|(bind, _)| program.starts_with(bind)) {
            binds.extend(programs::files(host, program)?.into_iter().map(|path| (path, false)));
        }
        // What is within another comes behind it.
        binds.sort();
        let text = format!("{:#}", self.config(&binds, &capabilities(host)));
        let steps = vec![
            Step::Folder { path: bundle.join("rootfs") },
            Step::Write { path: bundle.join("config.json"), text, back: None },
        ];
        let state = self.folder.join("runtime").display().to_string();
        let bundle = bundle.display().to_string();
        let words =
            [self.runtime, "--root", &state, "--cgroup-manager", "disabled", "run", "--bundle", &bundle, self.name];
        let mut command: Vec<String> = Vec::new();
        if let Some(hidden) = &self.hidden {
            let hide = format!("umount -l {} && exec \"$@\"", hidden.display());
            command.extend(["unshare", "-m", "sh", "-c", &hide, "sh"].map(str::to_owned));
        }
        command.extend(words.map(str::to_owned));
        Ok((steps, command))
    }

    fn config(&self, binds: &[(PathBuf, bool)], capabilities: &[&str]) -> Value {
        let mount = |to: &str, kind: &str, options: &[&str]| json!({"destination": to, "type": kind, "source": kind, "options": options});
        let mut mounts = vec![
            mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/dev", "tmpfs", &["nosuid", "mode=755", "size=64k"]),
            mount("/tmp", "tmpfs", &["nosuid", "nodev", "mode=1777"]),
        ];
        mounts.extend(binds.iter().map(|(path, may_change)| {
            let options = ["rbind", "nosuid", if *may_change { "rw" } else { "ro" }];
            json!({"destination": path, "type": "bind", "source": path, "options": options})
        }));
        // The network is that in which the runtime is started.
        let namespaces = ["mount", "pid", "ipc", "uts"].map(|kind| json!({"type": kind}));
        json!({
            "ociVersion": "1.0.2",
            "hostname": self.name,
            "root": {"path": "rootfs", "readonly": true},
            "process": {
                "terminal": false,
                "cwd": "/",
                "user": {"uid": 0, "gid": 0},
                "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "args": self.command,
                "noNewPrivileges": true,
                "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            },
            "mounts": mounts,
            "linux": {
                "namespaces": namespaces,
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi"],
                "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"],
            },
        })
    }
}
