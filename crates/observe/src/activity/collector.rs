//! Reads the files of this machine.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::reading::Readings;
use super::{kernel, lustre, nfs};

/// Bytes of one file that are read: /proc/self/mountstats of 500 mounts is a quarter of it.
const FILE_MAX: u64 = 8 << 20;

/// Entries of a directory that are looked at.
const ENTRIES_MAX: usize = 4096;

/// Where Lustre has its parameters: until 2.11, since then, and those that only root may read.
const LUSTRE: [&str; 3] = ["proc/fs/lustre", "sys/fs/lustre", "sys/kernel/debug/lustre"];

/// Below these, each target has a folder with such a file.
const LUSTRE_FILES: [(&str, &str); 7] = [
    ("obdfilter", "stats"),
    ("mdt", "md_stats"),
    ("llite", "stats"),
    ("osc", "stats"),
    ("mdc", "stats"),
    ("osd-ldiskfs", "brw_stats"),
    ("osd-zfs", "brw_stats"),
];

/// Reads all that is known below a root folder. None of these files waits for a disk or a server.
#[derive(Clone, Debug)]
pub struct Collector {
    root: PathBuf,
    parameters: Option<PathBuf>,
}

impl Collector {
    /// For the machine whose /proc and /sys lie below `root`, and what `lctl get_param` wrote into
    /// a file, if one is given.
    pub fn new(root: &Path, parameters: Option<&Path>) -> Collector {
        Collector { root: root.to_owned(), parameters: parameters.map(Path::to_owned) }
    }

    /// Reads all now. What this kernel does not have, or this user may not read, is left out.
    pub fn look(&self) -> Readings {
        let mut readings = Readings::default();
        let all = &mut readings;
        kernel::diskstats(&self.read("proc/diskstats"), all);
        kernel::xfs(&self.read("proc/fs/xfs/stat"), all);
        self.ext4(all);
        self.lustre(all);
        nfs::mountstats(&self.read("proc/self/mountstats"), all);
        kernel::interfaces(&self.read("proc/net/dev"), all);
        for file in ["proc/net/snmp", "proc/net/netstat"] {
            kernel::protocols(&self.read(file), all);
        }
        for resource in ["cpu", "memory", "io"] {
            kernel::pressure(resource, &self.read(&format!("proc/pressure/{resource}")), all);
        }
        kernel::processors(&self.read("proc/stat"), all);
        kernel::schedstat(&self.read("proc/schedstat"), all);
        readings
    }

    fn ext4(&self, readings: &mut Readings) {
        for device in self.entries("sys/fs/ext4") {
            for file in ["lifetime_write_kbytes", "errors_count", "warning_count"] {
                kernel::ext4(&device, file, &self.read(&format!("sys/fs/ext4/{device}/{file}")), readings);
            }
        }
    }

    fn lustre(&self, readings: &mut Readings) {
        for (kind, file) in LUSTRE_FILES {
            // Each file is in one of them, and its folder may be in more.
            for place in LUSTRE.map(|place| format!("{place}/{kind}")) {
                for target in self.entries(&place) {
                    let text = self.read(&format!("{place}/{target}/{file}"));
                    lustre::parameters(&format!("{kind}.{target}.{file}=\n{text}"), readings);
                }
            }
        }
        if let Some(path) = &self.parameters {
            lustre::parameters(&contents(path), readings);
        }
    }

    fn read(&self, path: &str) -> String {
        contents(&self.root.join(path))
    }

    /// The names in a folder, in order.
    fn entries(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten().flatten().take(ENTRIES_MAX);
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

/// What a file says, up to a limit; nothing where there is none.
fn contents(path: &Path) -> String {
    let mut bytes = Vec::new();
    // What was read before an error counts.
    let _ = File::open(path).and_then(|file| file.take(FILE_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}
