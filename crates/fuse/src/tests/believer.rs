//! Random requests and recalls: what a kernel that believes what it is told keeps is never old.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aqueduct_fs::Aspects;

use super::leases::{LeasedFixture, ROOT_HANDLE, leases};
use super::*;

/// A kernel that believes what it is told, and notes what it keeps. A file's length is its version.
struct Believer<'a> {
    kernel: &'a Kernel,
    nodes: HashMap<u64, &'static str>,
    attributes: HashMap<&'static str, u64>,
    names: HashMap<&'static str, u64>,
    pages: HashMap<&'static str, u64>,
    /// The latest version of each whose recall is over.
    recalled: HashMap<String, u64>,
    /// Drops of pages.
    drops: usize,
    kept: usize,
}

impl<'a> Believer<'a> {
    fn new(kernel: &'a Kernel) -> Believer<'a> {
        let recalled = HashMap::new();
        let (nodes, attributes, names, pages) = Default::default();
        Believer { kernel, nodes, attributes, names, pages, recalled, drops: 0, kept: 0 }
    }

    /// Everything up to the answer to a request; then that.
    fn ask(&mut self, opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
        let unique = self.kernel.send(opcode, node, body);
        loop {
            let (header, body) = self.kernel.message(Duration::from_secs(10)).unwrap();
            if header.unique == unique {
                assert_eq!(header.error, 0, "opcode {opcode}");
                return body;
            }
            self.notified(header.error, &body);
        }
    }

    fn notified(&mut self, code: i32, body: &[u8]) {
        match code {
            notify::INC_EPOCH => self.names.clear(),
            notify::INVAL_INODE => {
                let inode = NotifyInvalInode::parse(body).unwrap().0;
                let Some(name) = self.nodes.get(&inode.ino) else { return };
                self.attributes.remove(name);
                if inode.off >= 0 {
                    self.pages.remove(name);
                    self.drops += 1;
                }
            }
            _ => self.recall_is_over(std::str::from_utf8(&body[24..body.len() - 1]).unwrap()),
        }
    }

    fn recall_is_over(&mut self, mark: &str) {
        let (name, version) = mark.split_once(' ').unwrap();
        assert!(self.names.is_empty(), "{mark}: {:?}", self.names);
        assert_eq!(self.attributes.get(name), None, "{mark}: attributes");
        self.recalled.insert(name.to_owned(), version.parse().unwrap());
    }

    fn entry(&mut self, entry: &EntryOut, name: &'static str) {
        self.nodes.insert(entry.nodeid, name);
        self.attr(name, entry.attr_valid, entry.attr.size);
    }

    fn attr(&mut self, name: &'static str, valid: u64, size: u64) {
        if valid > 0 {
            self.kept += 1;
            self.attributes.insert(name, size);
        }
    }

    fn look_up(&mut self, name: &'static str) -> u64 {
        let body = self.ask(opcode::LOOKUP, ROOT_ID, &[name.as_bytes(), b"\0"].concat());
        let entry = EntryOut::parse(&body).unwrap().0;
        self.entry(&entry, name);
        if entry.entry_valid > 0 {
            self.names.insert(name, entry.attr.size);
        }
        entry.nodeid
    }

    fn get_attr(&mut self, name: &'static str, node: u64) {
        let body = self.ask(opcode::GETATTR, node, &GetattrIn::default().to_vec());
        let out = AttrOut::parse(&body).unwrap().0;
        self.attr(name, out.attr_valid, out.attr.size);
    }

    /// Opens, reads and closes it.
    fn read(&mut self, name: &'static str, node: u64) {
        let open = OpenOut::parse(&self.ask(opcode::OPEN, node, &OpenIn::default().to_vec())).unwrap().0;
        let flags = FopenFlags::from_bits_retain(open.open_flags);
        let recalled = self.recalled.get(name).copied().unwrap_or_default();
        if !flags.contains(FopenFlags::KEEP_CACHE) {
            self.pages.remove(name);
        } else if let Some(pages) = self.pages.get(name) {
            self.kept += 1;
            assert!(*pages >= recalled, "{name}: pages of version {pages} are used after that of {recalled} began");
        }
        let read = ReadIn { fh: open.fh, size: 4096, ..ReadIn::default() };
        let drops = self.drops;
        let data = self.ask(opcode::READ, node, &read.to_vec());
        // A drop that comes meanwhile waits for the page, which is locked already.
        if self.drops == drops {
            self.pages.insert(name, data.len() as u64);
        }
        self.ask(opcode::RELEASE, node, &ReleaseIn { fh: open.fh, ..ReleaseIn::default() }.to_vec());
    }

    /// Lists the directory, and enters the names when it has been told more.
    fn list(&mut self, fh: u64) {
        let body = self.ask(opcode::READDIRPLUS, ROOT_ID, &ReadIn { fh, size: 8192, ..ReadIn::default() }.to_vec());
        let mut rest = &body[..];
        let mut found = Vec::new();
        while !rest.is_empty() {
            let (entry, after) = EntryOut::parse(rest).unwrap();
            let (dirent, after) = Dirent::parse(after).unwrap();
            let name = &after[..dirent.namelen as usize];
            found.extend(FILES.iter().find(|file| file.as_bytes() == name).map(|name| (*name, entry)));
            rest = &after[abi::record_size(24 + dirent.namelen as usize) - 24..];
        }
        found.iter().for_each(|(name, entry)| self.entry(entry, name));
        while let Some((header, body)) = self.kernel.message(Duration::from_micros(200)) {
            self.notified(header.error, &body);
        }
        let named = found.iter().filter(|(_, entry)| entry.entry_valid > 0);
        self.names.extend(named.map(|(name, entry)| (*name, entry.attr.size)));
        self.ask(opcode::READDIRPLUS, ROOT_ID, &ReadIn { fh, offset: 1000, size: 8192, ..ReadIn::default() }.to_vec());
    }
}

const FILES: [&str; 3] = ["file", "a", "b"];

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 40
}

/// Requests come in any order, and so do recalls of changes elsewhere. After a recall the kernel
/// keeps nothing old.
#[test]
fn nothing_of_before_is_kept_after_a_recall() {
    let mut kept = (1..=100).map(any_schedule).scan(0, |kept, more| Some(std::mem::replace(kept, *kept + more)));
    assert!(kept.any(|kept| kept > 1000), "the kernel was told to keep little");
}

fn any_schedule(seed: u64) -> usize {
    let LeasedFixture { layer, fixture } = leases(45);
    let (kernel, memory, session) = (&fixture.kernel, &fixture.memory, &fixture.session);
    FILES.iter().for_each(|name| memory.put(name.as_bytes(), b"1"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (layer, over, keeping) = (&layer, &over, &session.shared.keeping);
        let changes = scope.spawn(move || {
            let mut state = seed;
            for version in 2..80usize {
                let name = FILES[random(&mut state) as usize % FILES.len()];
                let file = memory.find(name.as_bytes()).unwrap();
                let names = (&ROOT_HANDLE[..], Aspects::NAMES | Aspects::ATTRIBUTES);
                layer.change(&[names, (&file[..], Aspects::ATTRIBUTES | Aspects::DATA)], || {
                    // The recall is over: this name stands for nothing else.
                    let mark = format!("{name} {version}");
                    assert!(session.notify_delete(&ROOT_HANDLE, &ROOT_HANDLE, mark.as_bytes()).unwrap());
                    memory.put(name.as_bytes(), &vec![b'x'; version]);
                });
                std::thread::sleep(Duration::from_micros(random(&mut state) % 1000));
                if random(&mut state).is_multiple_of(2) {
                    keeping.keep_again();
                }
            }
            over.store(true, Ordering::SeqCst);
        });
        let mut believer = Believer::new(kernel);
        let nodes = FILES.map(|name| believer.look_up(name));
        let open = believer.ask(opcode::OPENDIR, ROOT_ID, &OpenIn::default().to_vec());
        let root = OpenOut::parse(&open).unwrap().0.fh;
        let mut state = !seed;
        while !over.load(Ordering::SeqCst) {
            let which = random(&mut state) as usize % FILES.len();
            match random(&mut state) % 4 {
                0 => drop(believer.look_up(FILES[which])),
                1 => believer.get_attr(FILES[which], nodes[which]),
                2 => believer.read(FILES[which], nodes[which]),
                _ => believer.list(root),
            }
        }
        changes.join().unwrap();
        believer.kept
    })
}
