//! Runs of small writes by several descriptors and processes of one mount, and all that is done to files between: as on a local directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aqueduct_model::Random;
use rustix::fs::{FallocateFlags, SeekFrom as Sought, copy_file_range, fallocate, seek};

use super::{open, read};
use crate::agent::Agent;
use crate::common::{Pair, directory, disk_directory, is_linux, within};
use crate::sys;

const OPERATIONS: usize = 600;

/// Most of them meet in here, and none goes beyond.
const NEAR: usize = 30_000;
const FAR: usize = 600_000;

/// Larger ones are not held back: 128 KiB, and around it.
const LARGE: [usize; 4] = [131_071, 131_072, 131_073, 300_000];

/// Descriptors that write where they are told.
const PLAIN: usize = 4;

/// One file on a mount, or on a local file system.
struct Side {
    path: PathBuf,
    other: File,
    /// Two as usual, one each with O_DSYNC and O_DIRECT.
    files: [File; PLAIN],
    end: File,
}

impl Side {
    fn new(directory: &Path, direct: i32) -> Side {
        let path = directory.join("file");
        let usual = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let with = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).unwrap();
        let files = [usual(), usual(), with(libc::O_DSYNC), with(direct)];
        let end = OpenOptions::new().read(true).append(true).open(&path).unwrap();
        let other = File::options().read(true).write(true).create_new(true).open(directory.join("other")).unwrap();
        Side { other, files, end, path }
    }
}

/// A number, or bytes.
type Outcome = (u64, Vec<u8>);

fn number(number: usize) -> io::Result<Outcome> {
    Ok((number as u64, Vec::new()))
}

struct Case {
    mounted: Side,
    local: Side,
    /// Another process on the mount; on the local side that is the first descriptor, or the one that appends.
    agent: Agent,
    random: Random,
    done: Vec<String>,
    seed: u64,
}

impl Case {
    fn both(&mut self, what: String, act: impl Fn(&mut Side) -> io::Result<Outcome>) {
        let [mounted, local] = [&mut self.mounted, &mut self.local].map(|side| {
            act(side).map_err(|error| error.raw_os_error()) // as on the other side, not as it says so
        });
        self.same(what, mounted, local);
    }

    fn same(&mut self, what: String, mounted: Result<Outcome, Option<i32>>, local: Result<Outcome, Option<i32>>) {
        self.done.push(what);
        if mounted == local {
            return;
        }
        let short = |result: &Result<Outcome, Option<i32>>| {
            result.as_ref().map(|(number, bytes)| (*number, bytes.len())).map_err(|errno| *errno)
        };
        let at = match (&mounted, &local) {
            (Ok(mounted), Ok(local)) => mounted.1.iter().zip(&local.1).position(|(mounted, local)| mounted != local),
            _ => None,
        };
        let last = &self.done[self.done.len().saturating_sub(30)..];
        panic!("seed {}: {last:#?}: {:?}, locally {:?}, first at {at:?}", self.seed, short(&mounted), short(&local));
    }

    fn place(&mut self) -> usize {
        let is_near = self.random.chance(95);
        self.random.below(if is_near { NEAR } else { FAR })
    }

    fn write(&mut self, which: usize, length: usize) {
        let (at, letter) = (self.place(), b'a' + self.random.below(26) as u8);
        self.both(format!("write {length} of {letter} at {at} by {which}"), |side| {
            number(side.files[which].write_at(&vec![letter; length], at as u64)?)
        });
    }

    fn agent_writes(&mut self, length: usize) {
        let (at, letter) = (self.place(), (b'A' + self.random.below(26) as u8) as char);
        let text = letter.to_string().repeat(length);
        let appends = self.random.chance(20);
        let order = if appends { format!("write 1 {text}") } else { format!("writeat 0 {at} {text}") };
        let mounted = self.agent.ask(&order).map(|count| (count.parse().unwrap(), Vec::new())).map_err(Some);
        let local = match appends {
            true => (&self.local.end).write(text.as_bytes()),
            false => self.local.files[0].write_at(text.as_bytes(), at as u64),
        };
        let local = local.map(|count| (count as u64, Vec::new())).map_err(|error| error.raw_os_error());
        self.same(format!("the other process: {length} of {letter} at {at}, or the end: {appends}"), mounted, local);
    }

    /// Mostly small writes.
    fn step(&mut self, holes: bool) {
        let (which, at) = (self.random.below(PLAIN), self.place());
        let (is_small, is_usual) = (self.random.chance(90), self.random.chance(90));
        let length = 1 + self.random.below(if is_small { 500 } else { 9000 });
        match self.random.below(100) {
            0..50 => self.write(if is_usual { which % 2 } else { which }, length),
            50..62 => self.agent_writes(length),
            62..70 => self.both(format!("append {length}"), |side| number(side.end.write(&vec![b'+'; length])?)),
            70..73 => self.both(format!("truncate to {at} by {which}"), |side| {
                side.files[which].set_len(at as u64).and_then(|()| number(0))
            }),
            73..78 => self.allocate(at, 1 + length * 3, which),
            78..81 => self.copy(at, length * 4),
            81..86 => self.both(format!("read {length} at {at} by {which}"), |side| {
                let mut bytes = vec![0; length];
                let count = side.files[which].read_at(&mut bytes, at as u64)?;
                bytes.truncate(count);
                Ok((0, bytes))
            }),
            86..88 if holes => self.both(format!("data and hole from {at}"), |side| {
                let sought = [Sought::Data(at as u64), Sought::Hole(at as u64)].map(|to| seek(&side.files[1], to));
                Ok((sought[0].unwrap_or(u64::MAX), format!("{sought:?}").into()))
            }),
            88..90 => self.store(at),
            90..93 => self.both("stat by path".into(), |side| number(fs::metadata(&side.path)?.len() as usize)),
            93..95 => {
                let length = *self.random.pick(&LARGE);
                self.write(which, length);
            }
            95..97 => self.both("close and open".into(), |side| {
                sys::close(std::mem::replace(&mut side.files[1], open(&side.path))).and_then(|()| number(0))
            }),
            97 => self.both("fsync".into(), |side| side.files[which].sync_all().and_then(|()| number(0))),
            98 => self.both("write behind the end".into(), |side| {
                let end = side.files[1].seek(SeekFrom::End(0))?;
                number(side.files[1].write(b"behind")? + end as usize)
            }),
            _ => self.write(which, 1),
        }
    }

    fn allocate(&mut self, at: usize, length: usize, which: usize) {
        let keeps = FallocateFlags::KEEP_SIZE;
        let modes = [
            FallocateFlags::PUNCH_HOLE | keeps,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::ZERO_RANGE | keeps,
            keeps,
            FallocateFlags::empty(),
        ];
        let mut mode = *self.random.pick(&modes);
        if !is_linux((5, 14)) {
            mode.remove(FallocateFlags::ZERO_RANGE); // the kernel itself refuses it on FUSE
        }
        self.both(format!("fallocate {mode:?} {length} at {at}"), |side| {
            fallocate(&side.files[which], mode, at as u64, length as u64)?;
            number(0)
        });
    }

    fn copy(&mut self, at: usize, length: usize) {
        let (to, both_ways) = (self.place() as u64, self.random.chance(50));
        self.both(format!("copy {length} from {at} to {to}, and to the other file: {both_ways}"), |side| {
            let [file, end] = [&side.files[0], &side.files[1]];
            let (mut from, mut there) = (at as u64, 0);
            if !both_ways {
                return number(copy_file_range(file, Some(&mut from), end, Some(&mut (to + FAR as u64)), length)?);
            }
            let out = copy_file_range(file, Some(&mut from), &side.other, Some(&mut there), length)?;
            let back = copy_file_range(&side.other, Some(&mut 0), file, Some(&mut { to }), length)?;
            number(out * 1_000_000 + back)
        });
    }

    fn store(&mut self, at: usize) {
        self.both(format!("store at {at}, or at the end"), |side| {
            let length = side.files[0].metadata()?.len() as usize;
            if length > 0 {
                sys::store_shared(side.files[0].as_fd(), length, at.min(length - 1), b'.')?;
            }
            number(length)
        });
    }

    fn compare(&mut self) {
        self.both("read all".into(), |side| Ok((0, read(&side.files[0]))));
        self.both("read all of the other".into(), |side| Ok((0, read(&side.other))));
    }
}

fn run(pair: &Pair, local: &Path, seed: u64, holes: bool) {
    let name = format!("{seed}");
    let (here, there) = (pair.left.join(&name), local.join(&name));
    [&here, &there].iter().for_each(|path| fs::create_dir(path).unwrap());
    let (mounted, local) = (Side::new(&here, libc::O_DIRECT), Side::new(&there, 0));
    let (mut agent, path) = (Agent::start(), here.join("file").display().to_string());
    agent.ask(&format!("open 0 {path} rw")).unwrap();
    agent.ask(&format!("open 1 {path} ra")).unwrap();
    let mut case = Case { mounted, local, agent, random: Random::new(seed), done: Vec::new(), seed };
    for step in 1..=OPERATIONS {
        case.step(holes);
        if step % 50 == 0 {
            case.compare();
        }
        if step % 150 == 0 {
            let seen = fs::read(pair.right.join(&name).join("file")).unwrap();
            assert!(seen == read(&case.local.files[0]), "seed {seed}, the other mount after {step}: {:?}", case.done);
        }
    }
    case.compare();
    let Case { mounted, local, agent, .. } = case;
    drop((mounted, agent));
    let found = fs::read(pair.export.path().join(name).join("file")).unwrap();
    assert!(found == read(&local.files[0]), "seed {seed}: on the server after close");
}

#[test]
fn several_writers_of_one_mount_are_as_on_a_local_directory() {
    within(Duration::from_secs(120), || {
        let (pair, local) = (Pair::new(), directory());
        (0..6).for_each(|seed| run(&pair, local.path(), seed, true));
    });
}

/// Where zeroes are written by their range; what is a hole there depends on what was read.
#[test]
fn several_writers_of_one_mount_are_as_on_a_disk() {
    within(Duration::from_secs(120), || {
        let (export, local) = (disk_directory(), disk_directory());
        let server = crate::common::Server::start(&[export.path()]);
        let [left, right] = [(); 2].map(|()| server.mount(export.path()));
        let pair = Pair { left, right, server, export };
        (100..103).for_each(|seed| run(&pair, local.path(), seed, false));
    });
}
