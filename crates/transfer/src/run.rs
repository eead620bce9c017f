//! A copy from the first look to the last name.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use aqueduct_fs::{Errno, SetAttr, SetTime};
use aqueduct_worker::lock;
use rustix::process::{Resource, Rlimit};

use crate::earlier::Earlier;
use crate::flush::{Flush, Volume, Volumes};
use crate::job::{Dir, Item, Job, Teller, Worker};
use crate::ledger::{Clock, Sides, Stage, Watch, uncounted};
use crate::listed::Unseen;
use crate::manifest::{Line, Provenance, Text, Writer};
use crate::options::{Options, Verify};
use crate::outcome::{Fault, Summary, add, by_kind, shown};
use crate::queue::{Idle, Work};
use crate::running::{About, Telling};
use crate::side::{Access, Directory, Place, Root, STEP, Seen};
use crate::sign::Signer;
use crate::store::{Each, Store, StoreError};
use crate::throttle::Throttle;
use crate::{Failure, attributes, content, delete, manifest_table, naming, nested, signature, tune, walk};

/// Threads between directories of one machine: what more of them would do waits for the same
/// memory.
const STREAMS_LOCAL: usize = 4;

/// Threads where one side is at a server: each waits for one answer at a time.
const STREAMS_PROJECTED: usize = 16;

/// The most threads that are tried where their number is found online.
const STREAMS_LOCAL_MAX: usize = 16;
pub const STREAMS_PROJECTED_MAX: usize = 64;

/// The most threads that a copy has, whoever asks for more.
const STREAMS_MAX: usize = 256;

/// What is to be copied, and where to.
pub struct Plan {
    /// From where.
    pub sources: Vec<Place>,
    /// Where to.
    pub target: Place,
    /// As rsync has it: a source without a slash at its end goes into the destination under its
    /// name, which is made if it is missing. Else as cp has it: where the destination is no
    /// directory it becomes the copy itself.
    pub is_sync: bool,
    /// What is wanted.
    pub options: Options,
    /// How servers are reached.
    pub access: Access,
    /// Who signs the manifest.
    pub signer: Option<Signer>,
}

impl Plan {
    /// Whether data travel.
    pub(crate) fn is_projected(&self) -> bool {
        let Sides { source, target } = self.sides();
        source || target
    }

    /// What is told of it, if it is.
    fn about(&self) -> Option<About> {
        let server = |place: &Place| place.server().map(str::to_owned);
        let folder = self.options.told_in.clone().filter(|_| !self.options.dry_run)?;
        Some(About {
            folder,
            sources: self.sources.iter().map(ToString::to_string).collect(),
            destination: self.target.to_string(),
            servers: [self.sources.iter().find_map(server), server(&self.target)],
        })
    }

    /// Which sides are at servers.
    pub(crate) fn sides(&self) -> Sides {
        Sides { source: self.sources.iter().any(Place::is_projected), target: self.target.is_projected() }
    }
}

/// What one source becomes.
pub enum Start {
    /// The content of one directory becomes that of another, which may have to be made.
    Content { source: Arc<dyn Directory>, seen: Seen, target: Option<Arc<dyn Directory>>, is_new: bool },
    /// A name becomes a name of a directory.
    Name {
        source: Arc<dyn Directory>,
        name: Vec<u8>,
        seen: Seen,
        target: Option<Arc<dyn Directory>>,
        target_name: Vec<u8>,
        /// The directory is the destination as it was written, and not the one above.
        is_inside: bool,
    },
}

/// Copies. `watch` may be looked at meanwhile, and `teller` is told each path if the options say
/// so.
pub fn copy(plan: Plan, watch: Arc<Watch>, teller: Option<Teller>) -> Result<Summary, Failure> {
    let started = Instant::now();
    raise_descriptors();
    let starts = find(&plan)?;
    let (usual, most) = match plan.is_projected() {
        true => (STREAMS_PROJECTED, STREAMS_PROJECTED_MAX),
        false => (STREAMS_LOCAL, STREAMS_LOCAL_MAX),
    };
    let usual = plan.options.streams.unwrap_or(usual).clamp(1, STREAMS_MAX);
    let tunes = plan.options.tune && plan.options.streams.is_none() && plan.options.rate.is_none();
    let most = if tunes { most } else { usual };
    let job = Arc::new(prepare(&plan, &starts, watch.clone(), teller)?);
    let bases = lay_out(&job, starts)?;
    job.queue.admit(usual);
    let ended = AtomicBool::new(false);
    let sessions = || plan.access.sessions();
    let telling = plan.about().map(|about| Telling::begin(about, &watch, &sessions));
    let setting = thread::scope(|scope| {
        let (job, ended) = (&job, &ended);
        let teller = telling.as_ref().map(|telling| scope.spawn(|| telling.run(ended)));
        let said = || plan.access.queue_times();
        let tuner = tunes.then(|| scope.spawn(move || tune::tune(job, (usual, most), &said, ended)));
        let started = (0..most).map(|number| {
            let builder = thread::Builder::new().name(format!("aqueduct-copy{number}"));
            builder.spawn_scoped(scope, move || work(job, number))
        });
        let threads: Vec<_> = started.collect();
        if threads.iter().all(Result::is_err) {
            work(job, 0); // at least this thread is there
        }
        let joined: Vec<_> = threads.into_iter().flatten().map(thread::ScopedJoinHandle::join).collect();
        ended.store(true, Ordering::Release);
        teller.iter().for_each(|teller| teller.thread().unpark());
        joined.into_iter().for_each(|joined| joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        tuner.and_then(|tuner| tuner.join().ok())
    });
    drop(telling);
    let contents = bases.iter().filter(|base| base.seen.is_some()); // lists name what is in a source
    job.unseen.tell(&contents.map(|base| base.source.clone()).collect::<Vec<_>>(), &job.told);
    if job.options.delete
        && !job.options.dry_run
        && let Err(fault) = job.settle()
    {
        job.told.trouble(b"", &fault); // what is not stable here may have been moved there
    }
    let not_deleted = match job.options.delete {
        true => bases.iter().find_map(|base| delete::delete(&job, base).err()),
        false => None,
    };
    if !lock(&job.held).is_empty() {
        naming::name_held(&job, not_deleted.as_deref());
        work(&job, 0); // and what waited for that
    }
    drop(bases); // the roots get their attributes
    let summary = finish(&plan, job, started, &watch)?;
    let (streams, step) = setting.map_or((usual, STEP), |setting| (setting.streams, setting.step));
    Ok(Summary { not_deleted, streams: Some(streams), step: Some(step), ..summary })
}

/// A batch of files and each directory under way hold descriptors: as many as the hard limit has.
pub fn raise_descriptors() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::debug!("the limit of open files stays: {error}");
    }
}

/// Works until there is nothing to do, as one of several threads.
pub fn work(job: &Arc<Job>, thread: usize) {
    let _clock = Clock::start(job.watch.clone());
    let mut worker = Worker::default();
    loop {
        let next = job.queue.try_next(thread);
        if next.is_none() && !worker.is_idle() {
            naming::name_all(job, &mut worker);
            continue;
        }
        let next = match next.map_or_else(|| job.within(Stage::Idle, || job.queue.next(thread)), Ok) {
            Ok(next) => next,
            Err(Idle::Over) => return,
            Err(Idle::Held) => {
                uncounted(&job.watch, || job.queue.hold(thread));
                continue;
            }
        };
        match next {
            Work::Part(big, index) => {
                content::copy_chunk(job, &mut worker, &big, index);
                if content::is_full(&worker) {
                    naming::name_all(job, &mut worker);
                }
            }
            Work::Batch(items) => walk::all(job, &mut worker, items),
            Work::Directory(item) => {
                walk::enter(job, &mut worker, item);
                job.watch.directories.fetch_sub(1, Ordering::Relaxed);
            }
        }
        job.queue.done();
    }
}

/// The destination as a directory: it is one, or it is made.
fn into(plan: &Plan, root: &Root, is_there: bool) -> Result<Option<Arc<dyn Directory>>, Failure> {
    let failed = |error: Errno| {
        let hint = "name a directory, or a name in one that is there and may be written";
        Failure::new(format!("cannot use {} as a directory", plan.target), error, hint)
    };
    match &root.name {
        None => Ok(Some(root.parent.clone())),
        Some(_) if is_there => root.directory().map(Some).map_err(failed),
        Some(_) if plan.options.dry_run => Ok(None),
        Some(name) => {
            let above = Volume::new(root.parent.clone(), plan.options.no_flush);
            let made = root.parent.make_directory(name).map_err(failed)?;
            if above.flush() == Flush::Each {
                above.settle(above.now()).map_err(failed)?; // nothing above is made stable later
            }
            let inherits = attributes::bequeaths(&*made).map_err(failed)?;
            if inherits {
                attributes::disinherit(&*made).map_err(failed)?;
            }
            Ok(Some(made))
        }
    }
}

/// Finds both ends, and decides what becomes what.
pub fn find(plan: &Plan) -> Result<Vec<Start>, Failure> {
    let target = plan.target.find_target(&plan.access)?;
    let failed = |place: &Place, error: Errno| {
        Failure::new(format!("cannot look at {place}"), error, "check that it is there and may be entered")
    };
    let present = target.seen().map_err(|error| failed(&plan.target, error))?;
    let is_directory = present.as_ref().is_some_and(|seen| seen.attr.is_directory());
    let became = !plan.is_sync && signature::became(&plan.options, &journal_name(plan));
    let (mut starts, mut folder) = (Vec::new(), None);
    for (place, before) in plan.sources.iter().enumerate().map(|(index, place)| (place, &plan.sources[..index])) {
        let root = place.find(&plan.access)?;
        let seen = root.seen().and_then(|seen| seen.ok_or(Errno::ENOENT)).map_err(|error| failed(place, error))?;
        if seen.attr.is_directory() && !plan.options.recursive && !plan.is_sync {
            let hint = "give -r, with which directories are copied with what is in them";
            return Err(Failure::usage(format!("cannot copy {place}"), "it is a directory", hint));
        }
        let is_content = seen.attr.is_directory() && (place.is_content || root.name.is_none());
        let is_several = plan.sources.len() > 1;
        let becomes = is_content || became && seen.attr.is_directory();
        let goes_inside = !becomes
            && (is_directory || is_several || plan.target.is_content || (plan.is_sync && seen.attr.is_directory()));
        if present.is_some() && !is_directory && (goes_inside || seen.attr.is_directory()) {
            return Err(failed(&plan.target, Errno::ENOTDIR));
        }
        if goes_inside && !is_directory && !plan.is_sync {
            let hint = "make the directory first, or use 'aqueduct sync', which makes it";
            return Err(Failure::new(format!("cannot copy into {}", plan.target), Errno::ENOENT, hint));
        }
        nested::check(&plan.options, (place, &root), (&plan.target, &target), goes_inside)?;
        starts.push(if goes_inside {
            if folder.is_none() {
                folder = Some(into(plan, &target, is_directory)?);
            }
            let (source, name) = named(place, &root)?;
            is_only_one(place, &name, before.iter().zip(&starts))?;
            Start::Name {
                source,
                seen,
                target: folder.clone().flatten(),
                target_name: name.clone(),
                name,
                is_inside: true,
            }
        } else if seen.attr.is_directory() {
            let source = root.directory().map_err(|error| failed(place, error))?;
            let seen = source.seen().map_err(|error| failed(place, error))?;
            if present.as_ref().is_some_and(|present| present.identity() == seen.identity()) {
                let why = "the source and the destination are the same directory";
                return Err(Failure::usage(format!("cannot copy {place}"), why, "name another destination"));
            }
            Start::Content { source, seen, target: into(plan, &target, is_directory)?, is_new: !is_directory }
        } else {
            let (source, name) = named(place, &root)?;
            let (parent, target_name) = named(&plan.target, &target)?;
            Start::Name { source, name, seen, target: Some(parent), target_name, is_inside: false }
        });
    }
    Ok(starts)
}

/// Of two sources that get one name the second would replace the first.
fn is_only_one<'a>(
    place: &Place,
    name: &[u8],
    mut before: impl Iterator<Item = (&'a Place, &'a Start)>,
) -> Result<(), Failure> {
    let has_it = |start: &Start| matches!(start, Start::Name { target_name, .. } if target_name == name);
    match before.find(|(_, start)| has_it(start)) {
        None => Ok(()),
        Some((other, _)) => {
            let why = format!("{other} gets the same name, {}, and one would replace the other", shown(name));
            Err(Failure::usage(format!("cannot copy {place}"), why, "copy them into two directories"))
        }
    }
}

fn named(place: &Place, root: &Root) -> Result<(Arc<dyn Directory>, Vec<u8>), Failure> {
    match &root.name {
        Some(name) => Ok((root.parent.clone(), name.clone())),
        None => Err(Failure::usage(format!("cannot copy {place}"), "it has no name", "name a file or directory")),
    }
}

fn target_of(start: &Start) -> Option<&Arc<dyn Directory>> {
    match start {
        Start::Content { target, .. } | Start::Name { target, .. } => target.as_ref(),
    }
}

/// How data are checked on the way, as the manifest calls it.
pub fn check_of(options: &Options, is_projected: bool) -> &'static str {
    match options.verify {
        Verify::Off => "off",
        Verify::Wire | Verify::Stable if is_projected => "wire",
        Verify::Stable => "read",
        Verify::Wire if options.hashes() => "read",
        // By memory or within the kernel: nothing was made of what was read.
        Verify::Wire => "copied",
    }
}

fn prepare(plan: &Plan, starts: &[Start], watch: Arc<Watch>, teller: Option<Teller>) -> Result<Job, Failure> {
    let options = Arc::new(plan.options.clone());
    let target_root = match starts.iter().find_map(target_of) {
        Some(target) => target.clone(),
        None => plan.target.find_target(&plan.access)?.parent,
    };
    let volumes = Arc::new(Volumes::new(target_root.clone(), options.no_flush));
    let check = check_of(&options, plan.is_projected());
    let is_named = plan.sources.first().is_some_and(|source| !source.is_content);
    let becomes = is_named && !plan.is_sync && matches!(starts, [Start::Content { .. }]);
    let (store, goes_on) = open_store(plan, &signature::signature(&plan.options, plan.is_sync, becomes))?;
    let job = Job::new(options, target_root, volumes, check, watch);
    Ok(Job {
        // What is read here again when it goes on is compared itself: see `content::is_there`.
        sums: job.sums || plan.is_projected() && store.as_ref().is_some_and(|store| store.is_journal),
        throttle: job.options.rate.map(Throttle::new).map(Arc::new),
        unseen: Unseen::new(&job.options.filter),
        run: store.as_ref().map_or(job.run, |store| store.name),
        store,
        goes_on,
        teller: teller.filter(|_| job.options.is_verbose),
        ..job
    })
}

fn open_store(plan: &Plan, signature: &str) -> Result<(Option<Store>, bool), Failure> {
    let options = &plan.options;
    let failed = |what: String, error: StoreError| match error {
        StoreError::Other(known) => {
            let hint = "give the same options again, or leave --resume out to begin anew";
            Failure::new("cannot go on with the copy", signature::difference(&known, signature), hint)
        }
        StoreError::Busy => Failure::new(what, error, "wait for it, or end it"),
        _ => {
            let hint = "check that the folder may be written and has room, or choose another with --journal";
            Failure::new(what, error, hint)
        }
    };
    if options.dry_run {
        return Ok((None, false));
    }
    if let Some(folder) = &options.journals {
        let what = format!("cannot use the journal in {}", folder.display());
        let journal = Store::journal(folder, &journal_name(plan), signature, options.resume);
        return journal.map(|(store, goes_on)| (Some(store), goes_on)).map_err(|error| failed(what, error));
    }
    if options.manifest.is_some() {
        let folder = std::env::temp_dir();
        let what = format!("cannot sort the manifest in {}", folder.display());
        return Store::temporary(&folder).map(|store| (Some(store), false)).map_err(|error| failed(what, error));
    }
    Ok((None, false))
}

/// What names a copy: from where, and where to.
pub fn journal_name(plan: &Plan) -> String {
    let mut hasher = blake3::Hasher::new();
    for place in plan.sources.iter().chain([&plan.target]) {
        let name = place.canonical();
        hasher.update(&(name.len() as u64).to_le_bytes()).update(&name).update(&[u8::from(place.is_content)]);
    }
    hasher.finalize().to_hex()[..24].to_owned()
}

/// The directory of a beginning, with what the sources before it have in theirs.
fn base(job: &Arc<Job>, start: &Start, before: &[Start]) -> Result<Arc<Dir>, Failure> {
    let (source, target, seen, is_new) = match start {
        Start::Content { source, seen, target, is_new } => (source, target, Some(seen.clone()), *is_new),
        Start::Name { source, target, .. } => (source, target, None, target.is_none()),
    };
    let failed = |error: Errno| Failure::new("cannot look at the destination", error, "check that it is still there");
    let bequeaths = match target {
        Some(target) if !is_new => attributes::bequeaths(&**target).unwrap_or(false),
        _ => false,
    };
    let volume = match target {
        Some(target) => job.volumes.of(target).map_err(failed)?,
        None => job.volumes.first(),
    };
    let earlier = before.iter().map(|start| match start {
        Start::Content { source, .. } => Earlier::new(source.clone(), None),
        Start::Name { source, name, target_name, .. } => {
            Earlier::new(source.clone(), Some((name.clone(), target_name.clone())))
        }
    });
    let mut dir = Dir::new(job, Vec::new(), source.clone(), (target.clone(), volume));
    (dir.seen, dir.is_new, dir.bequeaths, dir.earlier) = (seen, is_new, bequeaths, earlier.collect());
    Ok(Arc::new(dir))
}

/// Puts the beginnings into the queue. What is returned is held until all is done.
fn lay_out(job: &Arc<Job>, starts: Vec<Start>) -> Result<Vec<Arc<Dir>>, Failure> {
    let bases = (0..starts.len()).map(|index| base(job, &starts[index], &starts[..index]));
    let bases = bases.collect::<Result<Vec<_>, _>>()?;
    let mut worker = Worker::default();
    for (start, dir) in starts.into_iter().zip(&bases) {
        match start {
            Start::Content { seen, .. } => {
                job.goes_through(b"", &seen);
                if let (Some(target), true) = (&dir.target, job.sweeps())
                    && let Err(error) = walk::sweep_earlier(job, &**target, b"")
                {
                    job.told.trouble(b"", &Fault::new("removing what an earlier run left", error));
                }
                if let Err(fault) = dir.give_project() {
                    job.told.trouble(b"", &fault);
                }
                walk::list(job, &mut worker, dir);
            }
            Start::Name { name, seen, target_name, .. } => {
                let kind = seen.attr.kind();
                // As rsync has it, a pattern may leave out a source as well.
                if !job.options.filter.takes(&target_name, seen.attr.is_directory()) {
                    add(&job.counts.skipped, 1);
                    continue;
                }
                let renamed = (target_name != name).then(|| target_name.into());
                let item = Item {
                    dir: dir.clone(),
                    name: name.into(),
                    target_name: renamed,
                    kind,
                    seen: None,
                    attempt: 0,
                    is_first: false,
                    by_itself: false,
                };
                match kind {
                    libc::S_IFDIR => job.directory(item),
                    _ => job.queue.again(vec![item]),
                }
            }
        }
    }
    naming::name_all(job, &mut worker);
    Ok(bases)
}

/// Makes names stable, writes the manifest and ends the journal.
fn finish(plan: &Plan, job: Arc<Job>, started: Instant, watch: &Watch) -> Result<Summary, Failure> {
    let settled = if plan.options.dry_run { Ok(()) } else { job.settle() };
    let is_settled = settled.is_ok();
    if let Err(fault) = settled {
        job.told.trouble(b"", &fault);
    }
    let mut job = Arc::into_inner(job).expect("all threads have ended, and all directories are done");
    let store = job.store.take();
    let counts = job.counts.now();
    let told = std::mem::take(&mut job.told);
    let mut summary = Summary::new(told.into_all(), counts, 0.0, watch.stages(), plan.sides());
    summary.dry_run = plan.options.dry_run;
    if let Some(mut store) = store {
        let closed = store.close();
        if let Some(path) = &plan.options.manifest {
            let written =
                closed.map_err(io::Error::other).and_then(|()| write_manifest(plan, &mut store, path, &summary));
            written.map_err(|error| {
                let hint = "check that the folder may be written and has room; what was copied is there";
                Failure::new(format!("cannot write the manifest {}", path.display()), error, hint)
            })?;
        } else if let Err(error) = closed {
            tracing::warn!("the journal could not be written, so that --resume would begin anew: {error}");
        }
        // With what is in it a later run knows what is still to be done. Of what may not be stable
        // it knows nothing: that one begins anew.
        if summary.trouble_count == 0 || !is_settled {
            if store.has_earlier {
                sweep_all(&job.target_root, &store);
            }
            store.remove();
        }
    }
    summary.seconds = started.elapsed().as_secs_f64();
    Ok(summary)
}

/// Removes what an earlier run began and this one had no use for: another name of the inode was
/// the first.
fn sweep_all(target: &Arc<dyn Directory>, store: &Store) {
    for (path, name) in &store.earlier {
        let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        names.pop();
        let directory = names.into_iter().try_fold(target.clone(), |directory, name| directory.directory(name));
        let removed = directory.and_then(|directory| {
            let seen = directory.seen()?;
            directory.unlink(name)?;
            // The directory was done: it has the times of the source again.
            let at = |time| Some(SetTime::At(time));
            directory.set(&SetAttr { atime: at(seen.attr.atime), mtime: at(seen.attr.mtime), ..SetAttr::default() })
        });
        if let Err(error) = removed
            && error != Errno::ENOENT
        {
            tracing::warn!("{} stays beside {}: {error}", shown(name), shown(path));
        }
    }
}

fn write_manifest(plan: &Plan, store: &mut Store, path: &Path, summary: &Summary) -> io::Result<()> {
    let sources = plan.sources.iter().map(ToString::to_string).collect();
    let to = (path, plan.signer.as_ref());
    write_lines(to, sources, plan.target.to_string(), summary, |each| store.finish(each).map_err(io::Error::other))
}

/// Writes a manifest of what `entries` gives, under its name only when it is whole, and has it
/// signed.
pub fn write_lines(
    (path, signer): (&Path, Option<&Signer>),
    sources: Vec<String>,
    destination: String,
    summary: &Summary,
    entries: impl FnOnce(Each<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let part = manifest_table::part_of(path);
    let written = || -> io::Result<()> {
        let mut writer = Writer::new(BufWriter::new(File::create_new(&part)?));
        entries(&mut |key, line, group| match group {
            None => writer.line(line),
            Some((first, lines)) => writer.line(&linked(key, line, first, lines)?),
        })?;
        let out = writer.finish(|body_b3, lines| Provenance {
            aqueduct_manifest: 1,
            body_b3,
            lines,
            tool: format!("aqueduct {}", env!("CARGO_PKG_VERSION")),
            sources,
            destination,
            checks: by_kind(&summary.checks),
            troubles: summary.trouble_count,
            lost: summary.lost_count,
            spent: by_kind(&summary.spent),
        })?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        manifest_table::settle(&part, path, signer)
    };
    written().inspect_err(|_| drop(std::fs::remove_file(&part)))
}

/// The line of a name of an inode with several: whichever was copied, the first has the hash, and
/// the others say which is the first.
fn linked(key: &[u8], line: &str, first: &[u8], lines: &[String]) -> io::Result<String> {
    let mut line: Line = serde_json::from_str(line)?;
    if key == first {
        for other in lines {
            let other: Line = serde_json::from_str(other)?;
            line.b3 = line.b3.or(other.b3);
        }
    } else {
        (line.b3, line.link) = (None, Some(Text::new(first)));
    }
    Ok(line.text())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_name_of_what_was_changed_since_another_was_copied_is_no_link_to_that() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("from")).unwrap();
        fs::write(at("from/a"), "one").unwrap();
        fs::hard_link(at("from/a"), at("from/b")).unwrap();
        let place = |name: &str| Place::parse(format!("{}/{name}", folder.path().display()).as_ref()).unwrap();
        let options = Options {
            recursive: true,
            is_verbose: true,
            streams: Some(1),
            manifest: Some(at("manifest")),
            ..Options::default()
        };
        let plan = Plan {
            sources: vec![place("from/")],
            target: place("to"),
            is_sync: true,
            options,
            access: Access::new(None, aqueduct_wire::Checksums::Auto, 1),
            signer: None,
        };
        // As another inode does that was given its number, it has other content once one is copied.
        let changed = at("from/a");
        let teller = move |line: &str| {
            if line.starts_with("copied ") {
                fs::write(&changed, "other").unwrap();
            }
        };
        let summary = copy(plan, Arc::new(Watch::default()), Some(Box::new(teller))).unwrap();
        assert_eq!((summary.counts.files, summary.counts.links, summary.trouble_count), (2, 0, 0));
        let mut found = ["to/a", "to/b"].map(|name| fs::read_to_string(at(name)).unwrap());
        found.sort();
        assert_eq!(found, ["one", "other"]);
        let text = fs::read_to_string(at("manifest")).unwrap();
        assert_eq!((text.matches("b3\":").count(), text.contains("\"link\"")), (3, false), "{text}");
    }
}
