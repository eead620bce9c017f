//! What is looked at.

use std::fs;
use std::path::{Path, PathBuf};

use aqueduct_fuse::Offer;
use rustix::process::{Resource, getrlimit};

/// Where plain programs are looked for where PATH does not say.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a host has.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The kernel's release, as `6.1.0-18-amd64`.
    pub release: String,
    /// Why /dev/fuse cannot be opened, if it cannot.
    pub device: Option<String>,
    /// What the kernel's FUSE offers, or why it could not be asked.
    pub offer: Result<Offer, String>,
    /// The parameter `enable_uring` of the module `fuse`, if it has it: `Y` or `N`.
    pub enable_uring: Option<String>,
    /// Pages that a request may have at most, where that can be set.
    pub max_pages_limit: Option<u64>,
    /// Where fusermount3 is.
    pub helper: Option<PathBuf>,
    /// Whether /etc/fuse.conf lets plain users let others in.
    pub user_allow_other: bool,
    /// The congestion control that TCP begins with.
    pub congestion_control: Option<String>,
    /// What may be had at most.
    pub limits: Limits,
}

/// What the kernel lets processes and connections have at most. `None`: it does not say, or has no
/// limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Descriptors of a process.
    pub descriptors: Option<u64>,
    /// Bytes that a TCP connection may have received and not read.
    pub receive: Option<u64>,
    /// Bytes that a TCP connection may have written and not got acknowledged.
    pub send: Option<u64>,
    /// Connections that wait for a server to accept them.
    pub connecting: Option<u64>,
}

impl Facts {
    /// Those of this host. Mounts and unmounts once, in a directory of its own.
    pub fn gather() -> Facts {
        Facts { offer: ask(), ..Facts::read(Path::new("/")) }
    }

    /// What files below `root` tell.
    fn read(root: &Path) -> Facts {
        let line = |path: &str| fs::read_to_string(root.join(path)).ok().map(|text| text.trim().to_owned());
        let number = |path: &str| line(path)?.split_whitespace().last()?.parse().ok();
        let device = fs::OpenOptions::new().read(true).write(true).open(root.join("dev/fuse")).err();
        Facts {
            release: line("proc/sys/kernel/osrelease").unwrap_or_default(),
            device: device.map(|error| error.to_string()),
            offer: Err("nobody has asked".to_owned()),
            enable_uring: line("sys/module/fuse/parameters/enable_uring"),
            max_pages_limit: number("proc/sys/fs/fuse/max_pages_limit"),
            helper: find(root, "fusermount3"),
            user_allow_other: line("etc/fuse.conf")
                .is_some_and(|text| text.lines().any(|line| line.trim() == "user_allow_other")),
            congestion_control: line("proc/sys/net/ipv4/tcp_congestion_control"),
            limits: Limits {
                descriptors: getrlimit(Resource::Nofile).maximum,
                receive: number("proc/sys/net/ipv4/tcp_rmem"),
                send: number("proc/sys/net/ipv4/tcp_wmem"),
                connecting: number("proc/sys/net/core/somaxconn"),
            },
        }
    }
}

fn ask() -> Result<Offer, String> {
    let target = tempfile::Builder::new().prefix("aqueduct-doctor-").tempdir().map_err(|error| error.to_string())?;
    aqueduct_fuse::offered(target.path()).map_err(|error| error.to_string())
}

/// A program in the directories of PATH.
fn find(root: &Path, program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
    let candidates = std::env::split_paths(&path).map(|directory| directory.join(program));
    candidates.into_iter().find(|path| root.join(path.strip_prefix("/").unwrap_or(path)).is_file())
}

#[cfg(test)]
mod tests {
    use super::super::{State, examine};
    use super::*;

    /// A host made of files, and its findings by what they are about.
    fn host(files: &[(&str, &str)]) -> impl Fn(&str) -> Option<State> + use<> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let findings = examine(&Facts::read(root.path()));
        move |what| findings.iter().find(|finding| finding.what == what).map(|finding| finding.state)
    }

    #[test]
    fn what_is_missing_is_told() {
        let poor = host(&[
            ("proc/sys/fs/fuse/max_pages_limit", "32\n"),
            ("proc/sys/net/ipv4/tcp_congestion_control", "bbr\n"),
            ("proc/sys/net/ipv4/tcp_rmem", "4096\t87380\t212992\n"),
            ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
            ("proc/sys/net/core/somaxconn", "128\n"),
            ("etc/fuse.conf", "#user_allow_other\n"),
        ]);
        for what in ["fs.fuse.max_pages_limit", "congestion control", "net.ipv4.tcp_rmem", "net.core.somaxconn"] {
            assert_eq!(poor(what), Some(State::Less), "{what}");
        }
        assert_eq!(poor("user_allow_other"), Some(State::Less), "a comment sets nothing");
        assert_eq!(poor("net.ipv4.tcp_wmem"), Some(State::Good));
        assert_eq!(poor("FUSE of the kernel"), Some(State::Unknown));
        assert_eq!(poor("/dev/fuse"), Some(State::Missing), "nothing can be mounted");
    }

    /// By the minor versions and flags of INIT that these kernels have.
    #[test]
    fn what_each_kernel_lacks_is_told() {
        const ACL_AND_PAGES: u64 = 1 << 20 | 1 << 22;
        const MMAP: u64 = 1 << 36;
        const RINGS: u64 = 1 << 41;
        let names_and_rings = ["kept names", "requests by io_uring"];
        let unnamed = ["files without a name"];
        let mappings = ["shared mappings beside direct I/O"];
        let old = ["requests of 1 MiB", "kept attributes"];
        let kernels: [(&str, u32, u64, &[&[&str]]); 6] = [
            ("4.18", 27, 1 << 20, &[&old, &mappings, &["quiet closes"], &unnamed, &names_and_rings]),
            ("5.10", 32, ACL_AND_PAGES, &[&mappings, &["quiet closes"], &unnamed, &names_and_rings]),
            ("6.1", 37, ACL_AND_PAGES, &[&mappings, &names_and_rings]),
            ("6.12", 41, ACL_AND_PAGES | MMAP, &[&names_and_rings]),
            ("6.14", 42, ACL_AND_PAGES | MMAP | RINGS, &[&["kept names"]]),
            ("6.16", 44, ACL_AND_PAGES | MMAP | RINGS, &[]),
        ];
        let root = tempfile::tempdir().unwrap();
        for (kernel, minor, flags, lacks) in kernels {
            let facts = Facts { offer: Ok(Offer::told(minor, flags)), ..Facts::read(root.path()) };
            let findings = examine(&facts);
            let from = findings.iter().position(|finding| finding.what == "FUSE of the kernel").unwrap();
            let of_kernel = &findings[from..=from + 7];
            let less: Vec<&str> = of_kernel.iter().filter(|of| of.state == State::Less).map(|of| of.what).collect();
            assert_eq!(less, lacks.concat(), "{kernel}");
            assert!(of_kernel.iter().all(|of| (of.state == State::Good) == of.advice.is_none()), "{kernel}");
        }
        // What can be switched on is not left to another kernel.
        let off = Facts {
            offer: Ok(Offer::told(44, ACL_AND_PAGES | MMAP)),
            enable_uring: Some("N".into()),
            ..Facts::read(root.path())
        };
        let advice = examine(&off).into_iter().find(|finding| finding.what == "requests by io_uring").unwrap().advice;
        assert!(advice.unwrap().contains("enable_uring"));
    }

    #[test]
    fn what_is_there_is_good_and_what_a_kernel_has_not_is_no_finding() {
        let rich = host(&[
            ("proc/sys/net/ipv4/tcp_congestion_control", "cubic\n"),
            ("etc/fuse.conf", "# for all\n user_allow_other \n"),
            ("usr/bin/fusermount3", ""),
            ("dev/fuse", ""),
        ]);
        assert_eq!(rich("congestion control"), Some(State::Good));
        assert_eq!(rich("user_allow_other"), Some(State::Good));
        assert_eq!(rich("fusermount3"), Some(State::Good));
        assert_eq!(rich("/dev/fuse"), Some(State::Good));
        assert_eq!(rich("fs.fuse.max_pages_limit"), None);
    }
}
