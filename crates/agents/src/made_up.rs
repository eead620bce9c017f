//! A host that is made up: a card with virtual functions, `ip` as far as agents use it, control
//! groups. Its files are in a folder of the test's. It can fail at any step, and die.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::host::{Host, Lock, ThisHost};

/// The card, of which it has one.
pub const CARD: &str = "ens1";

pub struct MadeUp {
    root: TempDir,
    /// Interfaces, by the namespace that they are in ("": the host's).
    links: RefCell<BTreeMap<(String, String), u64>>,
    namespaces: RefCell<BTreeSet<String>>,
    /// The process of each namespace.
    processes: RefCell<BTreeMap<String, u32>>,
    next: Cell<u64>,
    /// What `ip addr` tells of interfaces that the host uses, by their names.
    pub uses: RefCell<BTreeMap<String, Value>>,
    /// All that was run, in order.
    pub ran: RefCell<Vec<String>>,
    /// A command that holds this text fails.
    pub fails: RefCell<Option<String>>,
    /// After so many changes all that is tried fails: the process has died.
    pub lives: Cell<u64>,
}

impl MadeUp {
    /// Its card can have so many virtual functions; 0: it has no SR-IOV.
    pub fn new(functions: u32) -> MadeUp {
        let host = MadeUp {
            // In memory, as /run is: a disk would write each file that is replaced.
            root: tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap(),
            links: RefCell::default(),
            namespaces: RefCell::default(),
            processes: RefCell::default(),
            next: Cell::new(7),
            uses: RefCell::default(),
            ran: RefCell::default(),
            fails: RefCell::default(),
            lives: Cell::new(u64::MAX),
        };
        host.file("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-7\n");
        host.file("/proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
        host.file("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory\n");
        host.file("/sys/fs/cgroup/cgroup.subtree_control", "cpu\n");
        host.file("/sys/devices/system/node/node1/cpulist", "4-7\n");
        host.add("", CARD);
        host.file(&format!("/sys/class/net/{CARD}/ifindex"), "7\n");
        host.file(&format!("/sys/class/net/{CARD}/address"), "02:00:00:00:00:07\n");
        host.file(&format!("/sys/class/net/{CARD}/device/numa_node"), "1\n");
        if functions > 0 {
            host.file(&format!("/sys/class/net/{CARD}/device/sriov_totalvfs"), &functions.to_string());
            host.file(&format!("/sys/class/net/{CARD}/device/sriov_numvfs"), "0");
        }
        host
    }

    fn at(&self, path: &Path) -> PathBuf {
        self.root.path().join(path.strip_prefix("/").unwrap())
    }

    /// Puts a file there.
    pub fn file(&self, path: &str, text: &str) {
        let path = self.at(Path::new(path));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn add(&self, namespace: &str, name: &str) {
        let index = self.next.replace(self.next.get() + 1);
        self.links.borrow_mut().insert((namespace.into(), name.into()), index);
    }

    /// A change: `Err` where the host has died.
    fn change(&self) -> io::Result<()> {
        match self.lives.get().checked_sub(1) {
            Some(left) => {
                self.lives.set(left);
                Ok(())
            }
            None => Err(io::Error::other("died")),
        }
    }

    /// Who has died sees nothing.
    fn look(&self) -> io::Result<()> {
        if self.lives.get() > 0 { Ok(()) } else { Err(io::Error::other("died")) }
    }

    /// All that setting agents up could leave.
    pub fn left(&self) -> Vec<String> {
        let links = self.links.borrow();
        let mut left: Vec<String> =
            links.keys().filter(|(_, name)| name != CARD && name != "lo").map(|key| format!("{key:?}")).collect();
        left.extend(self.namespaces.borrow().iter().cloned());
        for folder in ["/run/aqueduct/agents", "/proc"] {
            let names = self.names(Path::new(folder)).unwrap_or_default();
            left.extend(names.into_iter().filter(|name| name != "self"));
        }
        let groups = self.names(Path::new("/sys/fs/cgroup")).unwrap();
        left.extend(groups.into_iter().filter(|name| name.starts_with("aqueduct")));
        let text = |path: &str| self.read(Path::new(path)).unwrap_or_default().trim().to_owned();
        left.extend(
            Some(text(&format!("/sys/class/net/{CARD}/device/sriov_numvfs")))
                .filter(|made| made.len() == 1 && made != "0"),
        );
        left.extend(Some(text("/sys/fs/cgroup/cgroup.subtree_control")).filter(|lent| lent != "cpu"));
        left
    }

    /// The card makes its virtual functions, or ends them.
    fn functions(&self, count: u32) {
        let device = PathBuf::from(format!("/sys/class/net/{CARD}/device"));
        for index in 0..64 {
            let _ = fs::remove_dir_all(self.at(&device.join(format!("virtfn{index}"))));
        }
        self.links.borrow_mut().retain(|(_, name), _| !name.starts_with("ens1v"));
        for index in 0..count {
            self.add("", &format!("ens1v{index}"));
            fs::create_dir_all(self.at(&device.join(format!("virtfn{index}/net/ens1v{index}")))).unwrap();
        }
    }

    fn namespace(&self, words: &[&str]) -> Result<String, String> {
        let mut namespaces = self.namespaces.borrow_mut();
        match words {
            ["list"] => Ok(namespaces.iter().cloned().collect::<Vec<_>>().join("\n")),
            ["pids", name] => Ok(self.processes.borrow().get(*name).map_or_else(String::new, u32::to_string)),
            ["add", name] => {
                self.add(name, "lo");
                namespaces.insert((*name).into()).then(String::new).ok_or("File exists".into())
            }
            ["del", name] => {
                let mut links = self.links.borrow_mut();
                links.retain(|(namespace, _), _| namespace != name);
                namespaces.remove(*name).then(String::new).ok_or("No such file or directory".into())
            }
            other => panic!("ip netns {other:?}"),
        }
    }

    fn link(&self, namespace: &str, words: &[&str]) -> Result<String, String> {
        let key = |name: &str| (namespace.to_owned(), name.to_owned());
        match words {
            ["show", "dev", name] => {
                let index = *self.links.borrow().get(&key(name)).ok_or(format!("Device \"{name}\" does not exist."))?;
                let address = format!("02:00:00:00:00:{index:02x}");
                let told = json!([{"ifname": name, "ifindex": index, "link_type": "ether", "address": address,
                    "stats64": {"rx": {"bytes": 5}, "tx": {"bytes": 6}}}]);
                Ok(told.to_string())
            }
            ["add", "link", _, "name", name, "netns", there, ..] => {
                self.add(there, name);
                Ok(String::new())
            }
            ["add", "name", name, ..] | ["add", "link", _, "name", name, ..] => {
                self.add(namespace, name);
                Ok(String::new())
            }
            ["add", name, "type", "veth", "peer", "name", peer, "netns", there] => {
                self.add(namespace, name);
                self.add(there, peer);
                Ok(String::new())
            }
            ["del", name] => {
                self.links.borrow_mut().remove(&key(name)).map(|_| String::new()).ok_or("Cannot find device".into())
            }
            ["set", name, rest @ ..] => {
                let mut links = self.links.borrow_mut();
                let index = links.get(&key(name)).copied().ok_or(format!("Cannot find device \"{name}\""))?;
                let to = match rest {
                    ["netns", there] => {
                        // A process stands for the host's own namespace.
                        let there = if there.parse::<u32>().is_ok() { "" } else { there };
                        (there.to_owned(), (*name).to_owned())
                    }
                    ["name", new] => key(new),
                    _ => return Ok(String::new()),
                };
                links.remove(&key(name));
                links.insert(to, index);
                Ok(String::new())
            }
            other => panic!("ip link {other:?}"),
        }
    }
}

impl Host for MadeUp {
    fn read(&self, path: &Path) -> io::Result<String> {
        self.look()?;
        ThisHost.read(&self.at(path))
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        self.change()?;
        self.ran.borrow_mut().push(format!("{text} > {}", path.display()));
        if path.ends_with("sriov_numvfs") {
            self.functions(text.parse().unwrap());
        }
        let text = match text.split_at(1) {
            ("+", more) => format!("{} {more}", self.read(path)?.trim()),
            ("-", less) => self.read(path)?.replace(less, "").trim().to_owned(),
            _ => text.to_owned(),
        };
        ThisHost.write(&self.at(path), &text)
    }

    fn replace(&self, path: &Path, text: &str) -> io::Result<()> {
        self.change()?;
        ThisHost.replace(&self.at(path), text)
    }

    fn lock(&self, folder: &Path) -> io::Result<Lock> {
        self.change()?;
        Lock::of(&self.at(folder))
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        self.look()?;
        ThisHost.names(&self.at(path))
    }

    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.change()?;
        ThisHost.make_folder(&self.at(path))
    }

    fn remove_folder(&self, path: &Path, only_itself: bool) -> io::Result<()> {
        self.change()?;
        // The files of a control group are no obstacle to its end.
        let is_group = path.starts_with("/sys/fs/cgroup");
        ThisHost.remove_folder(&self.at(path), only_itself && !is_group)
    }

    fn image(&self, path: &Path, files: &[(std::path::PathBuf, crate::image::Content)]) -> io::Result<()> {
        self.change()?;
        let names: Vec<_> = files.iter().map(|(path, _)| path.display().to_string()).collect();
        ThisHost.write(&self.at(path), &names.join("\n"))
    }

    fn run(&self, command: &[String]) -> Result<String, String> {
        let line = command.join(" ");
        let words: Vec<&str> =
            command.iter().map(String::as_str).filter(|word| !["-d", "-s", "-j"].contains(word)).collect();
        if !line.contains("-j") && !line.contains("netns list") && !line.contains("netns pids") {
            self.change().map_err(|error| error.to_string())?;
            self.ran.borrow_mut().push(line.clone());
        }
        if self.fails.borrow().as_ref().is_some_and(|text| line.contains(text)) {
            return Err("Operation not supported".into());
        }
        let (namespace, words) = match &words[..] {
            [_, "-n", namespace, rest @ ..] => (*namespace, rest),
            [_, rest @ ..] => ("", rest),
            [] => panic!("nothing to run"),
        };
        match words {
            ["netns", rest @ ..] => self.namespace(rest),
            ["link", rest @ ..] => self.link(namespace, rest),
            _ if line.starts_with("ldd ") => Ok("\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)".into()),
            _ if line.starts_with("qemu-") => Ok("QEMU 7.2".into()),
            _ if line.starts_with("sh -c command -v ") => {
                Ok(format!("/bin/{}", words[words.len() - 1].trim_start_matches("command -v ")))
            }
            _ if line.starts_with("modprobe ") => Ok("builtin x\ninsmod /lib/modules/6.1.0/y.ko".into()),
            ["addr", "show", "dev", name] => {
                let free = json!({"ifname": name, "flags": ["BROADCAST"], "addr_info": []});
                Ok(json!([self.uses.borrow().get(*name).unwrap_or(&free)]).to_string())
            }
            ["addr" | "route" | "qdisc" | "tuntap", ..] => Ok(String::new()),
            other => panic!("{other:?}"),
        }
    }

    fn start(&self, command: &[String], log: &Path) -> io::Result<u32> {
        self.change()?;
        self.ran.borrow_mut().push(command.join(" "));
        let pid = 1000 + self.next.replace(self.next.get() + 1) as u32;
        let rest = "0 ".repeat(18);
        self.file(&format!("/proc/{pid}/stat"), &format!("{pid} (an) agent) S {rest}77 0\n"));
        let namespace = command.iter().skip_while(|word| *word != "--namespace").nth(1).unwrap();
        self.processes.borrow_mut().insert(namespace.clone(), pid);
        ThisHost.write(&self.at(log), "listening\nexport /srv: /srv\n")?;
        Ok(pid)
    }

    fn signal(&self, pid: u32, _: Signal) {
        if self.change().is_ok() {
            let _ = fs::remove_dir_all(self.at(Path::new(&format!("/proc/{pid}"))));
        }
    }
}
