//! A job as one agent has it open.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use aqueduct_fs::{Credential, Errno};
use aqueduct_node::ChecksumChoice;
use aqueduct_node::routes::Routing;
use aqueduct_wire::ClientKey;
use aqueduct_worker::lock;

use super::board::JobRow;
use super::order::{Base, Mark, Order};
use super::unit::{Claimed, Unit};
use crate::Failure;
use crate::attributes;
use crate::earlier::{self, Earlier};
use crate::flush::Volumes;
use crate::job::{Dir, Item, Job, Teller};
use crate::ledger::Watch;
use crate::manifest::Text;
use crate::options::{Options, Verify};
use crate::outcome::{Fault, Trying};
use crate::run::check_of;
use crate::side::{Access, Directory, Place};
use crate::throttle::Throttle;

/// Threads that carry the requests of an export.
const CARRIERS: usize = 2;

/// A source, opened.
struct Opened {
    source: Arc<dyn Directory>,
    /// A name at the source, and what it becomes.
    name: Option<(Vec<u8>, Vec<u8>)>,
}

/// A job as one agent has it open.
pub struct Context {
    /// As whom it is done.
    pub credential: Credential,
    /// What is wanted.
    pub options: Arc<Options>,
    /// Somebody has ended it.
    pub is_ended: Arc<AtomicBool>,
    /// All data of this agent.
    pub throttle: Option<Arc<Throttle>>,
    /// The file systems of the destination, for all units together.
    pub volumes: Arc<Volumes>,
    /// The directory of the destination.
    pub target: Arc<dyn Directory>,
    bases: Vec<Opened>,
    check: &'static str,
    /// What tells the job from all others.
    pub name: u64,
}

/// The path above a path, and its last name.
pub fn cut(path: &[u8]) -> (&[u8], &[u8]) {
    let at = path.iter().rposition(|byte| *byte == b'/');
    at.map_or((&path[..0], path), |at| (&path[..at], &path[at + 1..]))
}

fn descend(root: &Arc<dyn Directory>, names: &[&[u8]]) -> Result<Arc<dyn Directory>, Errno> {
    names.iter().try_fold(root.clone(), |directory, name| directory.directory(name))
}

fn names_of(path: &[u8]) -> Vec<&[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect()
}

fn not_the_same(place: &Place) -> Failure {
    let hint = "start agents where the path is the same directory, or name it as HOST:/EXPORT/path";
    Failure::new(format!("cannot use {place}"), "it is another directory on this machine than on the submitter's", hint)
}

impl Context {
    /// Opens both sides, as the submitter (this thread acts as whom).
    pub fn open(row: &JobRow, credential: Credential, key: Option<ClientKey>) -> Result<Context, Failure> {
        let unreadable = || Failure::new("cannot read the job", "another release wrote it", "use one release for all");
        let order = Order::read(&row.plan).ok_or_else(unreadable)?;
        let options = Arc::new(order.options.clone());
        let checksums = if options.verify == Verify::Off { ChecksumChoice::Auto } else { ChecksumChoice::On };
        let routes = Routing::default().resolve()?;
        let access = Access::new(key, checksums.checksums(), CARRIERS).by(routes).acting_as(credential.clone());
        let place = order.target.place()?;
        let failed = |place: &Place, error: Errno| {
            Failure::new(format!("cannot open {place}"), error, "check that it is there and may be entered")
        };
        let found = place.find_target(&access)?;
        let is_inside = order.bases.iter().all(|base| base.is_inside);
        let target = if is_inside { found.directory().map_err(|error| failed(&place, error))? } else { found.parent };
        if Mark::of(&*target, &place) != order.target_mark {
            return Err(not_the_same(&place));
        }
        let mut is_projected = place.is_projected();
        let mut bases = Vec::new();
        for Base { source, mark, name, .. } in &order.bases {
            let place = source.place()?;
            is_projected |= place.is_projected();
            let found = place.find(&access)?;
            let source = if name.is_none() { found.directory() } else { Ok(found.parent) };
            let source = source.map_err(|error| failed(&place, error))?;
            if Mark::of(&*source, &place) != *mark {
                return Err(not_the_same(&place));
            }
            let name = name
                .as_ref()
                .map(|(name, target)| (name.bytes().unwrap_or_default(), target.bytes().unwrap_or_default()));
            bases.push(Opened { source, name });
        }
        Ok(Context {
            volumes: Arc::new(Volumes::new(target.clone(), options.no_flush)),
            check: check_of(&options, is_projected),
            throttle: options.rate.map(Throttle::new).map(Arc::new),
            is_ended: Arc::default(),
            name: row.name,
            credential,
            options,
            target,
            bases,
        })
    }

    /// What does a unit. What it tells of paths is gathered in `said`.
    pub fn job(&self, claimed: &Claimed, said: &Arc<Mutex<Vec<String>>>) -> Job {
        let options = self.options.clone();
        let job = Job::new(options, self.target.clone(), self.volumes.clone(), self.check, Arc::new(Watch::default()));
        let into = said.clone();
        let teller: Teller = Box::new(move |line| lock(&into).push(line.to_owned()));
        Job {
            teller: self.options.is_verbose.then_some(teller),
            claim: Some(claimed.claim(self.is_ended.clone())),
            gathered: self.options.hashes().then(Mutex::default),
            throttle: self.throttle.clone(),
            redoes: claimed.redoes(),
            run: self.name,
            ..job
        }
    }

    /// The name at the source of the last name of a path.
    pub fn source_name<'a>(&'a self, base: usize, path: &'a [u8]) -> &'a [u8] {
        match self.bases.get(base).and_then(|base| base.name.as_ref()) {
            Some((name, target)) if target == path => name,
            _ => cut(path).1,
        }
    }

    /// Whether a unit is the first of its job.
    pub fn is_first(&self, unit: &Unit) -> bool {
        let is_root = |path: &Text| path.bytes().is_some_and(|path| path.is_empty());
        match unit {
            Unit::Directory { base: 0, path } => is_root(path),
            Unit::Files { base: 0, directory, .. } => {
                is_root(directory) && self.bases.first().is_some_and(|base| base.name.is_some())
            }
            _ => false,
        }
    }

    /// Looks for a path in all sources; that of no source gives the last one's error.
    pub fn find(&self, path: &[u8]) -> Result<(), Errno> {
        let mut found = Err(Errno::ENOENT);
        for (at, base) in self.bases.iter().enumerate() {
            let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
            if base.name.as_ref().is_some_and(|(_, target)| target != first) {
                continue; // that source is one other name
            }
            let looked = self.source(at, cut(path).0).and_then(|above| above.look(self.source_name(at, path)));
            found = looked.map(drop);
            if found.is_ok() {
                break;
            }
        }
        found
    }

    fn source(&self, base: usize, path: &[u8]) -> Result<Arc<dyn Directory>, Errno> {
        let base = self.bases.get(base).ok_or(Errno::ENOENT)?;
        let mut names = names_of(path);
        if let (Some((name, target)), Some(first)) = (&base.name, names.first_mut())
            && *first == target.as_slice()
        {
            *first = name;
        }
        descend(&base.source, &names)
    }

    /// What the sources before have in a directory.
    fn earlier(&self, base: usize, path: &[u8]) -> Result<Vec<Earlier>, Errno> {
        let before = self.bases.iter().take(base).map(|base| Earlier::new(base.source.clone(), base.name.clone()));
        let below = |all: Vec<Earlier>, name: &&[u8]| earlier::below(&all, name);
        names_of(path).iter().try_fold(before.collect(), below)
    }

    /// A directory, open at both ends, which gets no attributes now.
    pub fn directory(&self, job: &Arc<Job>, base: usize, path: &[u8], is_new: bool) -> Result<Arc<Dir>, Fault> {
        let source = self.source(base, path).trying("opening its directory")?;
        let target = descend(&self.target, &names_of(path)).trying("opening its directory at the destination")?;
        let bequeaths = attributes::bequeaths(&*target).trying("reading its access control list")?;
        let volume = self.volumes.of(&target).trying("looking at its directory at the destination")?;
        let earlier = self.earlier(base, path).trying("looking for it at the sources before")?;
        let mut dir = Dir::new(job, path.to_vec(), source, (Some(target), volume));
        (dir.is_new, dir.bequeaths, dir.earlier) = (is_new, bequeaths, earlier);
        Ok(Arc::new(dir))
    }

    /// A name in a directory.
    pub fn item(&self, dir: &Arc<Dir>, base: usize, name: &[u8], kind: u32) -> Item {
        let source = match dir.path.is_empty() {
            true => self.source_name(base, name),
            false => name,
        };
        let target_name = (source != name).then(|| name.into());
        Item {
            dir: dir.clone(),
            name: source.into(),
            target_name,
            kind,
            seen: None,
            attempt: 0,
            is_first: false,
            by_itself: false,
        }
    }
}
