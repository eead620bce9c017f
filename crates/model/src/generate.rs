//! A sequence of operations from a seed.

use crate::acl::{self, acl};
use crate::belief::Belief;
use crate::op::{
    ACTORS, Action, Allocation, Attribute, Data, FIRST_USER, From, Hold, Lock, Name, Node, Op, Open, Path, SLOTS,
    Target, Time,
};
use crate::profile::Profile;
use crate::random::Random;

/// Start of the second window of offsets: over 4 TiB.
pub const HIGH: u64 = (4 << 40) + (1 << 20);

/// Length of the two windows (from 0, from [`HIGH`]) that hold all data of a sequence, unless it writes on from the end.
pub const WINDOW: u64 = 2 << 20;

/// The extended attributes of the universe.
pub const XATTRS: [&str; 6] =
    ["user.a", "user.b", "user.\u{e4}", "trusted.t", "system.posix_acl_access", "system.posix_acl_default"];

const NAMES: [&[u8]; 7] = [b"a", b"b", b"c", b"d d", b"\xff\xfe\x01", b"new\nline", &[b'L'; 255]];
/// `.` only for root, as in [`Generator::decorated`].
const ODD_NAMES: [&[u8]; 4] = [&[b'T'; 256], b".", b"", b"\xf0\x9f\x90\x9f"];
const MODES: [u32; 14] =
    [0o644, 0o644, 0o666, 0o666, 0o666, 0o600, 0o400, 0o755, 0o777, 0o4755, 0o2755, 0o6777, 0o1777, 0];
const LENGTHS: [usize; 10] = [0, 1, 7, 100, 511, 4095, 4096, 4097, 10_000, 65_536];
const LONG_LENGTHS: [usize; 3] = [131_073, 300_000, 1_300_000];

/// `operations` steps from `seed`, using what `profile` allows.
pub fn generate(seed: u64, operations: usize, profile: &Profile) -> Vec<Op> {
    let mut generator = Generator {
        random: Random::new(seed),
        profile,
        belief: Belief::default(),
        xattrs: Vec::new(),
        held: [[false; SLOTS]; ACTORS],
        actor: 0,
    };
    (0..operations).map(|index| generator.step(index)).collect()
}

struct Generator<'a> {
    random: Random,
    profile: &'a Profile,
    belief: Belief,
    /// What was set lately.
    xattrs: Vec<(Target, &'static str)>,
    held: [[bool; SLOTS]; ACTORS],
    actor: usize,
}

impl Generator<'_> {
    fn step(&mut self, index: usize) -> Op {
        // The parity of the actor is that of the operation, so that two mounts serve in turn; root acts more often than the users.
        let user = if self.random.chance(35) { FIRST_USER } else { 0 };
        self.actor = user + index % 2;
        let action = match self.random.below(100) {
            0..20 => Action::Open(self.open()),
            20..54 => Action::Data(self.data()),
            54..76 => Action::Name(self.name()),
            76..91 => Action::Attribute(self.attribute()),
            _ => Action::Lock(self.lock()),
        };
        Op { index, actor: self.actor, action }
    }

    /// A name in some directory.
    fn new_path(&mut self) -> Path {
        let directory = self.belief.directory(&mut self.random);
        let odd = self.random.chance(2);
        let names: &[&[u8]] = if odd { &ODD_NAMES } else { &NAMES };
        let mut name = *self.random.pick::<&[u8]>(names);
        if name == b"." && self.actor >= FIRST_USER {
            name = NAMES[0];
        }
        match directory.0.is_empty() {
            true => Path(name.to_vec()),
            false => Path([directory.0.as_slice(), b"/", name].concat()),
        }
    }

    fn directory(&mut self) -> Path {
        rooted(self.belief.directory(&mut self.random))
    }

    fn decorated(&mut self, path: Path) -> Path {
        let mut bytes = path.0;
        match self.random.below(100) {
            0 => bytes.push(b'/'),
            1 if !bytes.is_empty() => bytes.splice(0..0, *b"./").for_each(drop),
            // Only root's: as with `.`, a mount is not asked whether one may pass through a directory on the way to its `..`.
            2 if !bytes.is_empty() && self.actor < FIRST_USER => bytes.splice(0..0, *b"a/../").for_each(drop),
            3 => bytes.extend_from_slice(b"/b"),
            4 => bytes.splice(0..0, *b"/").for_each(drop),
            5 if self.actor < FIRST_USER => bytes.extend_from_slice(b"/.."),
            _ => {}
        }
        Path(bytes)
    }

    /// A path that may well exist.
    fn path(&mut self) -> Path {
        let path = match self.random.below(100) {
            0..75 => self.belief.any(&mut self.random),
            75..80 => Some(self.directory()),
            _ => None,
        };
        let path = path.unwrap_or_else(|| self.new_path());
        self.decorated(path)
    }

    /// A path that may well be a file's.
    fn file_path(&mut self) -> Path {
        match self.random.chance(60) {
            true => self.belief.file(&mut self.random).unwrap_or_else(|| self.new_path()),
            false => self.path(),
        }
    }

    /// As [`Self::target`], but mostly not the root: with its mode changed, most of what follows would only be refused.
    fn own_target(&mut self) -> Target {
        let target = self.target();
        match &target {
            Target::Path(path) if path.0 == b"." && self.random.chance(95) => Target::Path(self.new_path()),
            _ => target,
        }
    }

    /// A slot that holds something, if any does.
    fn slot(&mut self) -> usize {
        let held: Vec<usize> = (0..SLOTS).filter(|&slot| self.held[self.actor][slot]).collect();
        if held.is_empty() { self.random.below(SLOTS) } else { *self.random.pick(&held) }
    }

    fn free_slot(&mut self) -> usize {
        let slot = (0..SLOTS).find(|&slot| !self.held[self.actor][slot]).unwrap_or_else(|| self.random.below(SLOTS));
        self.held[self.actor][slot] = true;
        slot
    }

    fn target(&mut self) -> Target {
        match self.random.below(100) {
            0..60 => Target::Path(self.path()),
            60..70 => Target::Link(self.path()),
            _ => Target::Open(self.slot()),
        }
    }

    fn mode(&mut self) -> u32 {
        *self.random.pick(&MODES)
    }

    fn offset(&mut self) -> u64 {
        let within = match self.random.below(4) {
            0 => 0,
            1 => 4096 * self.random.below(64) as u64,
            2 => self.random.below(5000) as u64,
            _ => self.random.below(600_000) as u64,
        };
        if self.random.chance(12) { HIGH + within } else { within }
    }

    fn length(&mut self) -> usize {
        match self.random.chance(4) {
            true => *self.random.pick(&LONG_LENGTHS),
            false => *self.random.pick(&LENGTHS),
        }
    }

    fn pattern(&mut self) -> u8 {
        self.random.bits() as u8
    }

    fn open_flags(&mut self) -> i32 {
        let mut flags = *self.random.pick(&[libc::O_RDONLY, libc::O_RDWR, libc::O_RDWR, libc::O_RDWR, libc::O_WRONLY]);
        // Not O_PATH: a mount hears nothing of it, so such a descriptor does not keep an unlinked file.
        let extras = [
            (65, libc::O_CREAT),
            (8, libc::O_EXCL),
            (12, libc::O_TRUNC),
            (15, libc::O_APPEND),
            (4, libc::O_NOFOLLOW),
            (4, libc::O_SYNC),
            (4, libc::O_DSYNC),
            (2, libc::O_NOATIME),
        ];
        for (percent, flag) in extras {
            if self.random.chance(percent) {
                flags |= flag;
            }
        }
        // Without O_CREAT the effect of O_EXCL is undefined.
        if flags & libc::O_CREAT == 0 {
            flags &= !libc::O_EXCL;
        }
        flags
    }

    fn open(&mut self) -> Open {
        match self.random.below(100) {
            0..62 => {
                let (path, flags) = (self.file_path(), self.open_flags());
                if flags & libc::O_CREAT != 0 {
                    self.belief.born(&path, false);
                }
                let there = self.belief.is_there(&path);
                let slot = if there { self.free_slot() } else { self.random.below(SLOTS) };
                Open::File { slot, path, flags, mode: self.mode() }
            }
            62..68 => {
                let path = self.directory();
                Open::File { slot: self.free_slot(), path, flags: libc::O_RDONLY | libc::O_DIRECTORY, mode: 0 }
            }
            68..73 if self.profile.temporary => {
                let flags = *self.random.pick(&[libc::O_RDWR, libc::O_WRONLY, libc::O_RDWR | libc::O_EXCL]);
                Open::Temporary { slot: self.free_slot(), path: self.directory(), flags, mode: self.mode() }
            }
            73..79 => {
                let path = self.new_path();
                self.belief.born(&path, false);
                Open::LinkTo { slot: self.slot(), path }
            }
            79..83 => Open::Duplicate { slot: self.slot(), to: self.free_slot() },
            83..87 => Open::SetAppend { slot: self.slot(), on: self.random.chance(50) },
            _ => {
                let slot = self.slot();
                self.held[self.actor][slot] = false;
                Open::Close { slot }
            }
        }
    }

    fn data(&mut self) -> Data {
        let slot = self.slot();
        match self.random.below(100) {
            0..8 => Data::Read { slot, length: self.length() },
            8..22 => Data::ReadAt { slot, offset: self.offset(), length: self.length() },
            22..34 => Data::Write { slot, length: self.length(), pattern: self.pattern() },
            34..54 => Data::WriteAt { slot, offset: self.offset(), length: self.length(), pattern: self.pattern() },
            54..60 => {
                let from = *self.random.pick(&[From::Start, From::Current, From::End]);
                let back = if self.random.chance(30) { -1 } else { 1 };
                Data::Seek { slot, from, offset: back * self.random.below(10_000) as i64 }
            }
            60..66 => Data::SeekSparse { slot, offset: self.offset(), hole: self.random.chance(50) },
            66..70 => Data::Truncate { path: self.file_path(), length: self.offset() },
            70..75 => Data::TruncateOpen { slot, length: self.offset() },
            75..81 => self.allocate(slot),
            81..87 => Data::Copy {
                slot,
                to: self.slot(),
                from_offset: self.offset(),
                to_offset: self.offset(),
                length: self.length(),
            },
            87..90 => Data::Sync { slot, data_only: self.random.chance(50) },
            90..95 => Data::MapStore {
                target: self.mapping_target(),
                offset: self.offset(),
                length: self.length(),
                pattern: self.pattern(),
            },
            _ => Data::MapLoad { target: self.mapping_target(), offset: self.offset(), length: self.length() },
        }
    }

    fn mapping_target(&mut self) -> Target {
        match self.profile.held_mappings && self.random.chance(60) {
            true => Target::Open(self.slot()),
            false => Target::Path(self.file_path()),
        }
    }

    fn allocate(&mut self, slot: usize) -> Data {
        let mut choices = vec![Allocation::Extend, Allocation::KeepSize];
        if self.profile.punch_hole {
            choices.push(Allocation::PunchHole);
        }
        if self.profile.zero_range {
            choices.extend([Allocation::ZeroRange, Allocation::ZeroKeepSize]);
        }
        let what = *self.random.pick(&choices);
        Data::Allocate { slot, what, offset: self.offset(), length: self.length() as u64 }
    }

    fn name(&mut self) -> Name {
        match self.random.below(100) {
            0..14 => {
                let path = self.new_path();
                self.belief.born(&path, true);
                Name::MakeDirectory { path, mode: self.mode() | 0o700 }
            }
            14..20 => {
                let path = self.new_path();
                self.belief.born(&path, false);
                let node = *self.random.pick(&[Node::Fifo, Node::Socket, Node::Regular, Node::Device]);
                Name::MakeNode { path, node, mode: self.mode() }
            }
            20..26 => {
                let path = self.new_path();
                self.belief.born(&path, false);
                let target = self.link_text();
                Name::Symlink { target, path }
            }
            26..31 => Name::ReadLink { path: self.path() },
            31..44 => {
                let (path, to) = (self.file_path(), self.new_path());
                self.belief.born(&to, false);
                Name::Link { path, to, follow: self.random.chance(30) }
            }
            44..53 => {
                let path = self.path();
                self.belief.gone(&path);
                Name::Unlink { path }
            }
            53..59 => {
                let path = if self.random.chance(60) { self.directory() } else { self.path() };
                Name::RemoveDirectory { path }
            }
            59..80 => self.rename(),
            _ => {
                let target = match self.random.below(100) {
                    0..70 => Target::Path(self.directory()),
                    70..85 => Target::Path(self.path()),
                    _ => Target::Open(self.slot()),
                };
                Name::List { target }
            }
        }
    }

    fn link_text(&mut self) -> Path {
        let name = *self.random.pick(&NAMES);
        match self.random.below(10) {
            0 => Path([b"../", name].concat()),
            1 => Path([b"/", name].concat()),
            2 => self.directory(),
            _ => Path(name.to_vec()),
        }
    }

    fn rename(&mut self) -> Name {
        let path = self.path();
        let to = if self.random.chance(40) { self.path() } else { self.new_path() };
        let flagged = self.profile.rename_flags;
        let exchange = flagged && self.random.chance(20);
        let no_replace = flagged && self.random.chance(if exchange { 2 } else { 20 });
        if !exchange {
            self.belief.moved(&path, &to);
        }
        Name::Rename { path, to, exchange, no_replace }
    }

    fn attribute(&mut self) -> Attribute {
        let target = self.own_target();
        match self.random.below(100) {
            0..34 => Attribute::Stat { target },
            34..46 => Attribute::Mode { target, mode: self.mode() },
            46..55 => {
                let uid = *self.random.pick(&[None, None, Some(0), Some(1000), Some(1001)]);
                let gid = *self.random.pick(&[None, None, Some(0), Some(1000), Some(1001), Some(2000)]);
                // Neither: a local directory still takes the set-id bits away, of which the kernel tells a mount nothing.
                let gid = if uid.is_none() { gid.or(Some(1000)) } else { gid };
                Attribute::Owner { target, uid, gid }
            }
            55..65 => Attribute::Times { target, access: self.time(), change: self.time() },
            65..72 => {
                let (mode, effective) = (self.random.below(8) as u32, self.random.chance(50));
                Attribute::Access { path: self.path(), mode, effective }
            }
            72..84 => self.set_xattr(target),
            84..91 => {
                let (target, name) = self.set_lately(target);
                Attribute::GetXattr { target, name }
            }
            91..95 => Attribute::ListXattr { target },
            _ => {
                let (target, name) = self.set_lately(target);
                Attribute::RemoveXattr { target, name }
            }
        }
    }

    fn time(&mut self) -> Time {
        match self.random.below(10) {
            0..2 => Time::Now,
            2..4 => Time::Omit,
            4 => Time::At(0, 0),
            5 => Time::At(-1, 5),
            _ => {
                let nanoseconds = *self.random.pick(&[0, 1, 123_456_789, 999_999_999]);
                Time::At(1_000_000_000 + self.random.below(100_000) as i64, nanoseconds)
            }
        }
    }

    fn xattr(&mut self) -> &'static str {
        let profile = self.profile;
        let usable = |name: &&str| match name.as_bytes()[0] {
            b'u' => profile.user_xattrs,
            b't' => profile.trusted_xattrs,
            _ => profile.acls,
        };
        let usable: Vec<&'static str> = XATTRS.into_iter().filter(usable).collect();
        if usable.is_empty() { "user.absent" } else { self.random.pick::<&str>(&usable) }
    }

    fn set_lately(&mut self, target: Target) -> (Target, &'static str) {
        if self.xattrs.is_empty() || self.random.chance(40) {
            return (target, self.xattr());
        }
        let (set, name) = self.random.pick(&self.xattrs).clone();
        // What root reached by dots is not for users, as in [`Self::decorated`].
        let dotted = match &set {
            Target::Path(path) | Target::Link(path) => path.0.split(|&b| b == b'/').any(|part| part.starts_with(b".")),
            Target::Open(_) => false,
        };
        if dotted && self.actor >= FIRST_USER { (target, name) } else { (set, name) }
    }

    fn set_xattr(&mut self, target: Target) -> Attribute {
        let name = self.xattr();
        let value = match name.starts_with("system.") {
            true => self.acl_value(),
            false => {
                let length = *self.random.pick(&[0, 1, 20, 200]);
                (0..length).map(|_| self.random.bits() as u8).collect()
            }
        };
        const REMEMBERED: usize = 4;
        if self.xattrs.len() == REMEMBERED {
            self.xattrs.remove(0);
        }
        self.xattrs.push((target.clone(), name));
        let (create, replace) = (self.random.chance(10), self.random.chance(10));
        Attribute::SetXattr { target, name, value, create: create && !replace, replace }
    }

    fn acl_value(&mut self) -> Vec<u8> {
        const NOBODY: u32 = u32::MAX;
        match self.random.below(6) {
            0 => acl::minimal(),
            1 => acl(&[(0x01, 6, NOBODY), (0x02, 4, 1000), (0x04, 4, NOBODY), (0x10, 6, NOBODY), (0x20, 0, NOBODY)]),
            2 => acl(&[(0x01, 7, NOBODY), (0x02, 7, 1001), (0x04, 5, NOBODY), (0x10, 4, NOBODY), (0x20, 4, NOBODY)]),
            3 => acl(&[(0x01, 6, NOBODY), (0x04, 0, NOBODY), (0x08, 7, 2000), (0x10, 7, NOBODY), (0x20, 0, NOBODY)]),
            // No mask beside a named user: refused.
            4 => acl(&[(0x01, 6, NOBODY), (0x02, 4, 1000), (0x04, 4, NOBODY), (0x20, 0, NOBODY)]),
            _ => acl::minimal()[..10].to_vec(),
        }
    }

    fn lock(&mut self) -> Lock {
        let slot = self.slot();
        let hold = *self.random.pick(&[Hold::Read, Hold::Write, Hold::Write, Hold::Unlock]);
        if self.random.chance(30) {
            return Lock::Whole { slot, hold };
        }
        let start = *self.random.pick(&[0, 0, 1, 10, 50, 4096, HIGH, i64::MAX as u64 - 1]);
        let length = *self.random.pick(&[0, 1, 1, 10, 100, 5000]);
        let open_file = self.random.chance(40);
        match self.random.chance(25) {
            // Since Linux 6.7 the test of an unlocking tells of the open file's own locks; before, it is EINVAL.
            true if hold != Hold::Unlock => Lock::Test { slot, open_file, hold, start, length },
            _ => Lock::Range { slot, open_file, hold, start, length },
        }
    }
}

/// The empty path is not one for a system call.
fn rooted(path: Path) -> Path {
    if path.0.is_empty() { Path(b".".to_vec()) } else { path }
}
