//! What a program believes to be there, and what each operation makes of it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::rc::Rc;

use aqueduct_model::Random;

use crate::work::content::Content;

/// Descriptors at a time.
pub const HELD: usize = 5;

/// A file's size at most.
const SIZE_MAX: usize = 16 << 10;

const XATTRS: [&str; 2] = ["user.one", "user.two"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    File,
    Directory,
    Symlink,
    Fifo,
}

#[derive(Clone, Debug)]
pub struct Node {
    sort: Sort,
    pub links: u32,
    pub mode: u32,
    /// Of a file, or a symbolic link's text.
    pub content: Rc<Content>,
    xattrs: BTreeMap<&'static str, String>,
    /// Known until the next change.
    modified: Option<i64>,
    /// Something of it may be lost, as its writer was told, and it could not be read since.
    is_unsure: bool,
    /// The modes that it had since it was safe, and whether its times were set: through an open file these are held back as content is.
    modes_before: Vec<u32>,
    times_held: bool,
}

impl Node {
    /// All of it is safe.
    fn settle(&mut self) {
        if !self.is_unsure {
            Rc::make_mut(&mut self.content).settle();
        }
        self.modes_before.clear();
        self.times_held = false;
    }
}

/// One operation, with paths below the program's folder.
#[derive(Clone, Debug)]
pub enum Op {
    Create {
        path: String,
        mode: u32,
        slot: usize,
    },
    Open {
        path: String,
        slot: usize,
    },
    Close {
        slot: usize,
    },
    Mkdir {
        path: String,
    },
    Fifo {
        path: String,
    },
    Symlink {
        text: String,
        path: String,
    },
    Link {
        path: String,
        to: String,
    },
    Unlink {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Rename {
        path: String,
        to: String,
        exchange: bool,
        no_replace: bool,
    },
    Write {
        slot: usize,
        offset: usize,
        length: usize,
    },
    Resize {
        slot: usize,
        length: usize,
    },
    /// By an open with O_TRUNC.
    Truncate {
        path: String,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Times {
        path: String,
        seconds: i64,
    },
    SetXattr {
        path: String,
        name: &'static str,
        value: String,
        create: bool,
        replace: bool,
    },
    RemoveXattr {
        path: String,
        name: &'static str,
    },
    Sync {
        slot: usize,
    },
    Look,
}

/// What is there, and what is open.
#[derive(Clone, Debug)]
pub struct Belief {
    nodes: BTreeMap<u32, Node>,
    names: BTreeMap<String, u32>,
    open: [Option<u32>; HELD],
    /// Of the next write.
    pub version: u64,
    next: u32,
    /// Modes bind it.
    plain_user: bool,
    /// Removed files that are open are not kept where a quota binds the server as well: it has none.
    keeps_names: bool,
    /// What was neither synced nor closed may be lost.
    pub may_lack: bool,
}

/// Why something is not as believed.
pub enum Difference {
    Io(io::Error),
    Wrong(String),
}

impl From<io::Error> for Difference {
    fn from(error: io::Error) -> Self {
        Difference::Io(error)
    }
}

/// What a write of this version writes there.
pub fn bytes(seed: u64, version: u64, offset: usize, length: usize) -> Vec<u8> {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version.wrapping_mul(0xd134_2543_de82_ef95);
    let word = |at: usize| (mixed ^ (at as u64 / 8)).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes();
    (offset..offset + length).map(|at| word(at)[at % 8] | 1).collect()
}

fn name(random: &mut Random, belief: &Belief) -> String {
    let top = format!("{}", (b'a' + random.below(6) as u8) as char);
    let directories: Vec<_> = belief.names.iter().filter(|(_, id)| belief.nodes[id].sort == Sort::Directory).collect();
    match (random.chance(50), directories.is_empty()) {
        (true, false) => {
            let parent = random.pick(&directories).0;
            format!("{parent}/{}", random.below(3))
        }
        _ => top,
    }
}

/// A random operation; not all make sense.
pub fn draw(belief: &Belief, random: &mut Random) -> Op {
    let (path, to) = (name(random, belief), name(random, belief));
    let slot = random.below(HELD);
    let length = random.below(SIZE_MAX / 2);
    let xattr = *random.pick(&XATTRS);
    let flag = random.below(3);
    match random.below(100) {
        0..12 => Op::Create { path, mode: *random.pick(&[0o644, 0o600, 0o444, 0o000]), slot },
        12..16 => Op::Open { path, slot },
        16..19 => Op::Close { slot },
        19..25 => Op::Mkdir { path },
        25..29 => Op::Fifo { path },
        29..34 => Op::Symlink { text: format!("text-{length}"), path },
        34..41 => Op::Link { path, to },
        41..49 => Op::Unlink { path },
        49..54 => Op::Rmdir { path },
        54..66 => Op::Rename { path, to, exchange: flag == 1, no_replace: flag == 2 },
        66..76 => Op::Write { slot, offset: random.below(SIZE_MAX / 2), length },
        76..79 => Op::Resize { slot, length },
        79..82 => Op::Truncate { path },
        82..86 => Op::Chmod { path, mode: *random.pick(&[0o644, 0o600, 0o400, 0o000]) },
        86..88 => Op::Times { path, seconds: 1_000_000 + length as i64 },
        88..94 => Op::SetXattr { path, name: xattr, value: length.to_string(), create: flag == 1, replace: flag == 2 },
        94..96 => Op::RemoveXattr { path, name: xattr },
        96..97 => Op::Sync { slot },
        _ => Op::Look,
    }
}

impl Belief {
    pub fn new(plain_user: bool, limited: bool) -> Belief {
        let (nodes, names) = Default::default();
        Belief {
            nodes,
            names,
            open: [None; HELD],
            version: 1,
            next: 1,
            plain_user,
            keeps_names: limited,
            may_lack: false,
        }
    }

    pub fn held(&self, slot: usize) -> Option<&Node> {
        self.open[slot].map(|id| &self.nodes[&id])
    }

    pub fn bytes(&self) -> u64 {
        self.names.values().map(|id| self.nodes[id].content.len() as u64).sum()
    }

    fn at(&self, path: &str) -> Option<&Node> {
        self.names.get(path).map(|id| &self.nodes[id])
    }

    fn is_directory(&self, path: &str) -> bool {
        self.at(path).is_some_and(|node| node.sort == Sort::Directory)
    }

    fn is_empty(&self, path: &str) -> bool {
        !self.names.keys().any(|name| is_below(name, path))
    }

    /// Whether the name's directory is there.
    fn has_parent(&self, path: &str) -> bool {
        path.rsplit_once('/').is_none_or(|(parent, _)| self.is_directory(parent))
    }

    fn may_write(&self, path: &str) -> bool {
        !self.plain_user || self.at(path).is_none_or(|node| node.mode & 0o600 == 0o600)
    }

    /// What holds after the operation, or the errno that it gives; nothing for one that is not to be done.
    pub fn after(&self, op: &Op, seed: u64) -> Option<Result<Belief, i32>> {
        let mut belief = self.clone();
        let done = match op {
            Op::Create { path, mode, slot } => {
                let made = belief.make(path, Sort::File, *mode, Vec::new())?;
                if made.is_ok() {
                    belief.hold(*slot, belief.names.get(path).copied());
                }
                made
            }
            Op::Open { path, slot } => {
                let id = *belief.names.get(path)?;
                if belief.nodes[&id].sort != Sort::File || !belief.may_write(path) {
                    return None;
                }
                belief.hold(*slot, Some(id));
                Ok(())
            }
            Op::Close { slot } => {
                belief.open[*slot]?;
                belief.hold(*slot, None);
                Ok(())
            }
            Op::Mkdir { path } if path.matches('/').count() < 2 => {
                belief.make(path, Sort::Directory, 0o755, Vec::new())?
            }
            Op::Mkdir { .. } | Op::Look => return None,
            Op::Fifo { path } => belief.make(path, Sort::Fifo, 0o644, Vec::new())?,
            Op::Symlink { text, path } => belief.make(path, Sort::Symlink, 0o777, text.as_bytes().to_vec())?,
            Op::Link { path, to } => belief.link(path, to)?,
            Op::Unlink { path } => belief.unlink(path)?,
            Op::Rmdir { path } => belief.rmdir(path)?,
            Op::Rename { path, to, exchange, no_replace } => belief.rename(path, to, *exchange, *no_replace)?,
            Op::Write { slot, offset, length } => {
                let content = bytes(seed, self.version, *offset, *length);
                let node = belief.open_node(*slot)?;
                if *length > 0 {
                    Rc::make_mut(&mut node.content).write(*offset, &content);
                    node.modified = None;
                }
                belief.version += 1;
                Ok(())
            }
            Op::Resize { slot, length } => {
                let node = belief.open_node(*slot)?;
                Rc::make_mut(&mut node.content).resize(*length);
                node.modified = None;
                Ok(())
            }
            Op::Sync { slot } => {
                belief.open_node(*slot)?.settle();
                Ok(())
            }
            _ => belief.change_attribute(op)?,
        };
        let nameless = |id: &u32| belief.nodes[id].links == 0;
        if self.keeps_names && belief.open.iter().flatten().any(nameless) {
            return None;
        }
        Some(done.map(|()| belief))
    }

    /// A change that was refused for want of room may have moved a time already.
    pub fn forget_times(&mut self) {
        self.nodes.values_mut().for_each(|node| node.modified = None);
    }

    /// The file of a descriptor.
    pub fn opened(&self, slot: usize) -> Option<u32> {
        self.open[slot]
    }

    /// What was written to it is safe.
    pub fn settle(&mut self, id: u32) {
        self.nodes.get_mut(&id).into_iter().for_each(Node::settle);
    }

    /// Files of which something may be lost, each with a descriptor, or a name by which it can be read.
    pub fn unsettled(&self) -> Vec<(u32, Option<usize>, Option<String>)> {
        let files = self.nodes.iter().filter(|(_, node)| !node.content.is_settled());
        let named = |id: u32| self.names.iter().find(|(path, named)| **named == id && self.may_write(path));
        let of = |id: u32| {
            (id, self.open.iter().position(|open| *open == Some(id)), named(id).map(|(path, _)| path.clone()))
        };
        files.map(|(id, _)| of(*id)).collect()
    }

    /// There is this left of a file; false: it cannot be.
    pub fn is_left_with(&mut self, id: u32, got: Vec<u8>) -> bool {
        let Some(node) = self.nodes.get_mut(&id) else { return false };
        let may_be = node.content.may_be(&got);
        node.content = Rc::new(Content::of(got));
        node.is_unsure = false;
        may_be
    }

    /// Something of a file may be lost, and nobody can look what is left now.
    pub fn is_unsure_of(&mut self, id: u32) {
        self.nodes.get_mut(&id).into_iter().for_each(|node| node.is_unsure = true);
    }

    fn open_node(&mut self, slot: usize) -> Option<&mut Node> {
        let id = self.open[slot]?;
        self.nodes.get_mut(&id)
    }

    fn change_attribute(&mut self, op: &Op) -> Option<Result<(), i32>> {
        let path = match op {
            Op::Truncate { path } | Op::Chmod { path, .. } | Op::Times { path, .. } => path,
            Op::SetXattr { path, .. } | Op::RemoveXattr { path, .. } => path,
            _ => return None,
        };
        let writes = !matches!(op, Op::Chmod { .. } | Op::Times { .. });
        if writes && !self.may_write(path) {
            return None;
        }
        let id = *self.names.get(path)?;
        let is_open = self.open.contains(&Some(id));
        let node = self.nodes.get_mut(&id)?;
        if node.sort != Sort::File {
            return None;
        }
        match op {
            Op::Truncate { .. } => {
                Rc::make_mut(&mut node.content).resize(0);
                node.modified = None;
            }
            Op::Chmod { mode, .. } => {
                let before = std::mem::replace(&mut node.mode, *mode);
                node.modes_before.extend(is_open.then_some(before));
            }
            Op::Times { seconds, .. } => {
                node.modified = Some(*seconds);
                node.times_held |= is_open;
            }
            Op::SetXattr { name, create: true, .. } if node.xattrs.contains_key(name) => {
                return Some(Err(libc::EEXIST));
            }
            Op::SetXattr { name, replace: true, .. } if !node.xattrs.contains_key(name) => {
                return Some(Err(libc::ENODATA));
            }
            Op::SetXattr { name, value, .. } => drop(node.xattrs.insert(name, value.clone())),
            Op::RemoveXattr { name, .. } => return Some(node.xattrs.remove(name).map(drop).ok_or(libc::ENODATA)),
            _ => return None,
        }
        Some(Ok(()))
    }

    fn make(&mut self, path: &str, sort: Sort, mode: u32, content: Vec<u8>) -> Option<Result<(), i32>> {
        if !self.has_parent(path) {
            return None;
        }
        if self.names.contains_key(path) {
            return Some(Err(libc::EEXIST));
        }
        let node = Node {
            sort,
            links: 1,
            mode,
            content: Rc::new(Content::of(content)),
            xattrs: BTreeMap::new(),
            modified: None,
            is_unsure: false,
            modes_before: Vec::new(),
            times_held: false,
        };
        self.nodes.insert(self.next, node);
        self.names.insert(path.to_owned(), self.next);
        self.next += 1;
        Some(Ok(()))
    }

    fn hold(&mut self, slot: usize, id: Option<u32>) {
        let before = std::mem::replace(&mut self.open[slot], id);
        before.into_iter().for_each(|id| self.forget(id));
    }

    /// A node that has neither name nor descriptor is no more.
    fn forget(&mut self, id: u32) {
        if self.nodes[&id].links == 0 && !self.open.contains(&Some(id)) {
            self.nodes.remove(&id);
        }
    }

    fn drop_name(&mut self, path: &str) {
        let id = self.names.remove(path).expect("looked up before");
        self.nodes.get_mut(&id).expect("named").links -= 1;
        self.forget(id);
    }

    fn link(&mut self, path: &str, to: &str) -> Option<Result<(), i32>> {
        if !self.has_parent(path) || !self.has_parent(to) {
            return None;
        }
        let Some(id) = self.names.get(path).copied() else { return Some(Err(libc::ENOENT)) };
        // A plain user may link only what is safe (fs.protected_hardlinks).
        if self.nodes[&id].sort != Sort::File || !self.may_write(path) {
            return None;
        }
        if self.names.contains_key(to) {
            return Some(Err(libc::EEXIST));
        }
        self.names.insert(to.to_owned(), id);
        self.nodes.get_mut(&id)?.links += 1;
        Some(Ok(()))
    }

    fn unlink(&mut self, path: &str) -> Option<Result<(), i32>> {
        if !self.has_parent(path) {
            return None;
        }
        if !self.names.contains_key(path) {
            return Some(Err(libc::ENOENT));
        }
        if self.is_directory(path) {
            return Some(Err(libc::EISDIR));
        }
        self.drop_name(path);
        Some(Ok(()))
    }

    fn rmdir(&mut self, path: &str) -> Option<Result<(), i32>> {
        if !self.has_parent(path) {
            return None;
        }
        if !self.names.contains_key(path) {
            return Some(Err(libc::ENOENT));
        }
        if !self.is_directory(path) {
            return Some(Err(libc::ENOTDIR));
        }
        if !self.is_empty(path) {
            return Some(Err(libc::ENOTEMPTY));
        }
        self.drop_name(path);
        Some(Ok(()))
    }

    fn rename(&mut self, path: &str, to: &str, exchange: bool, no_replace: bool) -> Option<Result<(), i32>> {
        let deep = |path: &str| path.matches('/').count() > 0;
        if !self.has_parent(path) || !self.has_parent(to) || is_below(path, to) || is_below(to, path) {
            return None;
        }
        // Directories move at the top only, which bounds the depth.
        if (self.is_directory(path) || self.is_directory(to)) && (deep(path) || deep(to)) {
            return None;
        }
        let Some(from) = self.names.get(path).copied() else { return Some(Err(libc::ENOENT)) };
        let there = self.names.get(to).copied();
        match there {
            None if exchange => return Some(Err(libc::ENOENT)),
            Some(_) if no_replace => return Some(Err(libc::EEXIST)),
            Some(there) if there == from => return Some(Ok(())),
            Some(_) if exchange => self.swap(path, to),
            Some(_) => {
                match (self.is_directory(path), self.is_directory(to)) {
                    (true, false) => return Some(Err(libc::ENOTDIR)),
                    (false, true) => return Some(Err(libc::EISDIR)),
                    (true, true) if !self.is_empty(to) => return Some(Err(libc::ENOTEMPTY)),
                    _ => {}
                }
                self.drop_name(to);
                self.swap(path, to);
            }
            None => self.swap(path, to),
        }
        Some(Ok(()))
    }

    /// Exchanges two names, with all that is below them; either may be absent.
    fn swap(&mut self, one: &str, other: &str) {
        let renamed = |name: &String| match () {
            () if name == one || is_below(name, one) => format!("{other}{}", &name[one.len()..]),
            () if name == other || is_below(name, other) => format!("{one}{}", &name[other.len()..]),
            () => name.clone(),
        };
        self.names = self.names.iter().map(|(name, id)| (renamed(name), *id)).collect();
    }

    /// Compares everything, on the server's own directory.
    pub fn matches(&self, root: &Path) -> Result<(), String> {
        self.look(root).map_err(|difference| match difference {
            Difference::Io(error) => format!("looking at {}: {error}", root.display()),
            Difference::Wrong(text) => format!("on the server, {text}"),
        })
    }

    pub fn look(&self, root: &Path) -> Result<(), Difference> {
        let (mut found, mut folders) = (Vec::new(), vec![String::new()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(root.join(&folder))? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                if self.is_directory(&path) {
                    folders.push(path.clone());
                }
                found.push(path);
            }
        }
        found.sort();
        let wanted: Vec<_> = self.names.keys().cloned().collect();
        if found != wanted {
            return Err(Difference::Wrong(format!("there are {found:?} instead of {wanted:?}")));
        }
        found.iter().try_for_each(|path| self.look_at(root, path))
    }

    fn look_at(&self, root: &Path, path: &str) -> Result<(), Difference> {
        let node = self.at(path).expect("a name of ours");
        let place = root.join(path);
        let meta = fs::symlink_metadata(&place)?;
        let kind = meta.file_type();
        let sort = match () {
            () if kind.is_dir() => Sort::Directory,
            () if kind.is_symlink() => Sort::Symlink,
            () if kind.is_fifo() => Sort::Fifo,
            () => Sort::File,
        };
        let wrong = |what: String| Err(Difference::Wrong(format!("{path} {what}")));
        if sort != node.sort {
            return wrong(format!("is a {sort:?} instead of a {:?}", node.sort));
        }
        if sort != Sort::Directory && meta.nlink() != u64::from(node.links) {
            return wrong(format!("has {} links instead of {}", meta.nlink(), node.links));
        }
        let mode = meta.mode() & 0o7777;
        if mode != node.mode && !(self.may_lack && node.modes_before.contains(&mode)) {
            return wrong(format!("has mode {:o} instead of {:o}", meta.mode() & 0o7777, node.mode));
        }
        let may_be_moved = self.may_lack && node.times_held;
        if node.modified.is_some_and(|seconds| seconds != meta.mtime() && !may_be_moved) {
            return wrong(format!("was modified at {} instead of {:?}", meta.mtime(), node.modified));
        }
        let content = match sort {
            Sort::Symlink => fs::read_link(&place)?.to_string_lossy().into_owned().into_bytes(),
            Sort::File if self.may_write(path) => fs::read(&place)?,
            _ => return Ok(()),
        };
        let differs = first_difference(&content, &node.content);
        let may_lack = self.may_lack || node.is_unsure;
        if let Some(at) = differs.filter(|_| !may_lack || !node.content.may_be(&content)) {
            return wrong(format!("differs at {at} ({} bytes instead of {})", content.len(), node.content.len()));
        }
        for name in XATTRS.iter().filter(|_| sort == Sort::File) {
            let mut value = [0; 100];
            let got = match rustix::fs::getxattr(&place, *name, &mut value[..]) {
                Ok(length) => Some(String::from_utf8_lossy(&value[..length]).into_owned()),
                Err(rustix::io::Errno::NODATA) => None,
                Err(error) => return Err(io::Error::from(error).into()),
            };
            if got.as_ref() != node.xattrs.get(name) {
                return wrong(format!("has {name} {got:?} instead of {:?}", node.xattrs.get(name)));
            }
        }
        Ok(())
    }
}

fn is_below(name: &str, directory: &str) -> bool {
    name.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// Where two contents differ first, lengths included.
pub fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    (same < one.len().max(other.len())).then_some(same)
}
