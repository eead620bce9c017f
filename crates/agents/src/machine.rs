//! An agent as a virtual machine (QEMU): a kernel of its own, our program as its first file system,
//! and of the host the folders that it is given, by virtio.
//!
//! Processors, control groups and the network namespace are the agent's as of any other kind: QEMU
//! runs within them. In the namespace a bridge joins the agent's interface and the machine's.

use std::path::{Path, PathBuf};

use aqueduct_node::Failure;

use crate::agent::Agent;
use crate::cards::WIRE;
use crate::host::Host;
use crate::image::{Content, newest_kernel, of_host};
use crate::programs;
use crate::settings::{Accelerator, Settings};
use crate::step::Step;

/// What runs virtual machines.
const QEMU: &str = "qemu-system-x86_64";

/// Memory of a machine unless told: its first file system, twice while it is unpacked, and a
/// server's.
const MEMORY: u64 = 1 << 30;

/// What a machine needs of its kernel, where that has it as modules: the bus, the card, the files.
const MODULES: [&str; 3] = ["virtio_pci", "virtio_net", "virtiofs"];

/// What its first program needs.
const PROGRAMS: [&str; 5] = ["sh", "mount", "mkdir", "insmod", "ip"];

/// Where programs that serve a folder to a machine are, and whether they are QEMU's of before 8.0,
/// which takes other options than its successor.
const SERVERS: [(&str, bool); 3] =
    [("/usr/libexec/virtiofsd", false), ("/usr/lib/qemu/virtiofsd", true), ("/usr/lib/virtiofsd", false)];

/// A machine that is to be.
pub(crate) struct Machine<'a> {
    /// What is wanted.
    pub settings: &'a Settings,
    /// The agent.
    pub agent: &'a Agent,
    /// Its folder.
    pub folder: &'a Path,
    /// The packets' address of its card.
    pub mac: String,
    /// Files that its command reads.
    pub files: Vec<(PathBuf, Content)>,
    /// Folders of the host that it sees under the same paths: whether it may change them.
    pub shares: Vec<(PathBuf, bool)>,
    /// What runs in it.
    pub command: &'a [String],
}

/// What joins the agent's interface and the machine's card, in the agent's namespace.
pub(crate) fn bridge(namespace: &str) -> Vec<Step> {
    let ip = format!("ip -n {namespace}");
    [
        format!("{ip} link add name inner type bridge"),
        format!("{ip} tuntap add dev card mode tap"),
        format!("{ip} link set card master inner up"),
        format!("{ip} link set {WIRE} master inner up"),
        format!("{ip} link set inner up"),
    ]
    .iter()
    .map(|line| Step::set(line))
    .collect()
}

fn missing(what: &str, why: impl std::fmt::Display, package: &str) -> Failure {
    Failure::new(format!("cannot make a virtual machine without {what}"), why, format!("install it: package {package}"))
}

impl Machine<'_> {
    /// What makes it, and the command that runs it.
    pub(crate) fn plan(&self, host: &dyn Host) -> Result<(Vec<Step>, Vec<String>), Failure> {
        let run = |words: &[&str]| host.run(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>());
        run(&[QEMU, "--version"]).map_err(|why| missing("QEMU", why, "qemu-system-x86"))?;
        let (kernel, version) = self.kernel(host)?;
        let mut files = self.files.clone();
        let program = self.command.first().map(PathBuf::from).unwrap_or_default();
        let found = PROGRAMS.iter().map(|name| {
            let path = run(&["sh", "-c", &format!("command -v {name}")]);
            path.map(PathBuf::from).map_err(|why| missing(name, why, "kmod, iproute2 or mount"))
        });
        let found = found.chain([Ok(program)]).collect::<Result<Vec<PathBuf>, Failure>>()?;
        let mut programs = Vec::new();
        for path in &found {
            programs.extend(programs::files(host, path)?);
        }
        let modules = self.modules(host, &version)?;
        programs.extend(modules.iter().cloned());
        programs.sort();
        programs.dedup();
        files.extend(of_host(programs));
        files.push(("/init".into(), Content::Text(self.init(&found[0], &modules))));
        let image = self.folder.join("image");
        let script = self.folder.join("machine");
        let text = self.script(host, &kernel, &image)?;
        let steps = vec![Step::Image { path: image, files }, Step::Write { path: script.clone(), text, back: None }];
        Ok((steps, vec!["sh".into(), script.display().to_string()]))
    }

    /// The kernel, and its version.
    fn kernel(&self, host: &dyn Host) -> Result<(PathBuf, String), Failure> {
        let path = match &self.settings.kernel {
            Some(path) => path.clone(),
            None => {
                let names = host.names(Path::new("/boot")).unwrap_or_default();
                let hint = "linux-image-cloud-amd64; or name one with kernel = \"/PATH/vmlinuz-VERSION\"";
                let name = newest_kernel(&names).ok_or_else(|| missing("a kernel", "there is none in /boot", hint))?;
                Path::new("/boot").join(name)
            }
        };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let version = name.strip_prefix("vmlinuz-").ok_or_else(|| {
            let why = "its name does not say of which version its modules are";
            Failure::usage(format!("cannot use the kernel {}", path.display()), why, "call it vmlinuz-VERSION")
        })?;
        let version = version.to_owned();
        Ok((path, version))
    }

    /// The modules, in the order in which they are loaded.
    fn modules(&self, host: &dyn Host, version: &str) -> Result<Vec<PathBuf>, Failure> {
        let root = self.settings.modules.as_deref().unwrap_or(Path::new("/")).display().to_string();
        let mut found: Vec<PathBuf> = Vec::new();
        for name in MODULES {
            let words = ["modprobe", "-d", &root, "-S", version, "--show-depends", name].map(str::to_owned);
            let told = host.run(&words).map_err(|why| {
                let hint = format!(
                    "install the kernel's package and kmod, or name the folder above lib/modules/{version} with modules"
                );
                Failure::new(format!("cannot find the kernel module {name}"), why, hint)
            })?;
            // "insmod /lib/modules/6.1/virtio_net.ko", or "builtin virtio_net".
            let paths = told.lines().filter_map(|line| line.strip_prefix("insmod ")?.split_whitespace().next());
            for path in paths.map(PathBuf::from) {
                if !found.contains(&path) {
                    found.push(path);
                }
            }
        }
        Ok(found)
    }

    /// What the machine does first.
    fn init(&self, shell: &Path, modules: &[PathBuf]) -> String {
        let Agent { address, .. } = self.agent;
        let (prefix, network) = (self.settings.address.prefix_len(), self.settings.address.trunc());
        let at_once = if address.is_ipv6() { " nodad" } else { "" };
        let congestion = self.settings.congestion.as_ref().map_or_else(String::new, |name| format!(" congctl {name}"));
        let mut lines = vec![
            format!("#!{}", shell.display()),
            "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            "mkdir -p /proc /sys /dev /tmp /run".to_owned(),
            "mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev".to_owned(),
        ];
        lines.extend(modules.iter().map(|path| format!("insmod {}", path.display())));
        lines.push("ip link set lo up".to_owned());
        lines.push(format!("ip link set eth0 name {WIRE}"));
        lines.push(format!("ip addr add {address}/{prefix} dev {WIRE}{at_once} noprefixroute"));
        lines.push(format!("ip link set {WIRE} up"));
        lines.push(format!("ip route add {network} dev {WIRE} src {address}{congestion}"));
        lines.extend(self.settings.gateway.map(|gateway| format!("ip route add default via {gateway}{congestion}")));
        for (at, (path, may_change)) in self.shares.iter().enumerate() {
            let path = quoted(&path.display().to_string());
            let how = if *may_change { "rw" } else { "ro" };
            lines.push(format!("mkdir -p {path}; mount -t virtiofs -o {how} share{at} {path} || exit 1"));
        }
        let words: Vec<String> = self.command.iter().map(|word| quoted(word)).collect();
        lines.push(format!("exec {}", words.join(" ")));
        lines.join("\n") + "\n"
    }

    /// What runs on the host: who serves the folders, then the machine, which they end with.
    fn script(&self, host: &dyn Host, kernel: &Path, image: &Path) -> Result<String, Failure> {
        let there = |path: &str| {
            let path = Path::new(path);
            let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return false };
            host.names(folder).is_ok_and(|names| names.iter().any(|found| **found == *name))
        };
        let server = SERVERS.iter().find(|(path, _)| there(path));
        let (server, is_old) = server.ok_or_else(|| {
            missing("virtiofsd", "none is on this host", "virtiofsd, or before QEMU 8 qemu-system-common")
        })?;
        let memory = match self.settings.memory_bytes()? {
            // Its limit has to hold QEMU too.
            Some(limit) => limit / 8 * 7,
            None => MEMORY,
        } >> 20;
        let mut lines = vec!["#!/bin/sh".to_owned()];
        let mut words = vec![
            QEMU.to_owned(),
            format!("-machine q35,accel={},memory-backend=mem", self.settings.accelerator.words()),
            format!("-object memory-backend-memfd,id=mem,size={memory}M,share=on -m {memory}M"),
            format!(
                "-smp {} -cpu max -nodefaults -no-reboot -display none -serial stdio",
                self.settings.processors.max(1)
            ),
            format!(
                "-kernel {} -initrd {}",
                quoted(&kernel.display().to_string()),
                quoted(&image.display().to_string())
            ),
            "-append 'console=ttyS0 panic=-1 quiet'".to_owned(),
            format!(
                "-netdev tap,id=net,ifname=card,script=no,downscript=no -device virtio-net-pci,netdev=net,mac={}",
                self.mac
            ),
            "-device virtio-rng-pci".to_owned(),
        ];
        for (at, (path, _)) in self.shares.iter().enumerate() {
            let socket = quoted(&self.folder.join(format!("share{at}.sock")).display().to_string());
            let path = quoted(&path.display().to_string());
            lines.push(match is_old {
                true => format!("{server} --socket-path={socket} -o source={path} -o sandbox=chroot -o xattr -f &"),
                false => format!("{server} --socket-path={socket} --shared-dir {path} --sandbox chroot --xattr &"),
            });
            lines.push(format!("n=0; while [ ! -S {socket} ] && [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); done"));
            words.push(format!("-chardev socket,id=share{at},path={socket}"));
            words.push(format!("-device vhost-user-fs-pci,chardev=share{at},tag=share{at}"));
        }
        lines.push(format!("exec {} < /dev/null", words.join(" \\\n  ")));
        Ok(lines.join("\n") + "\n")
    }
}

impl Accelerator {
    fn words(self) -> &'static str {
        match self {
            Accelerator::Auto => "kvm:tcg",
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        }
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
