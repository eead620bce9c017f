//! Directories gone through, and what each name in them needs.

use std::sync::Arc;

use aqueduct_fs::Errno;
use aqueduct_worker::lock;

use crate::attributes;
use crate::compare::{hash_of, is_still};
use crate::content;
use crate::done::settle;
use crate::earlier;
use crate::folded;
use crate::hash::Hash;
use crate::job::{Dir, Done, Failed, Held, Item, Job, Worker, below};
use crate::ledger::Stage;
use crate::links::Claim;
use crate::manifest::Line;
use crate::naming;
use crate::outcome::{Fault, Trying, add};
use crate::replace;
use crate::settled::settled;
use crate::side::{Directory, File, Listed, STEP, Seen, UNSIZED_MAX, Xattrs, read_unsized};
use crate::store::fingerprint;
use crate::writable;

/// The path of the first name of an inode that would only be made.
const NOT_MADE: &[u8] = b"";

/// Names that are handed on together.
const BATCH: usize = 64;

/// Goes through a directory: makes it at the destination, and hands on what is in it.
pub fn enter(job: &Arc<Job>, worker: &mut Worker, item: Item) {
    match job.within(Stage::Walk, || open(job, &item)) {
        Ok(Some(dir)) => list(job, worker, &Arc::new(dir)),
        Ok(None) => {}
        Err(fault) => job.failed(Failed::new(item, fault)),
    }
}

/// Opens both ends of a directory. `None`: it is left out.
pub fn open(job: &Arc<Job>, item: &Item) -> Result<Option<Dir>, Fault> {
    let path = item.path();
    if !job.options.recursive {
        job.told.trouble(&path, &Fault::new("copying it", "it is a directory, and -r was not given"));
        return Ok(None);
    }
    job.may_go_on()?;
    let source = item.dir.source.directory(&item.name).trying("opening it")?;
    let seen = source.seen().trying("looking at it")?;
    if seen.identity() == job.target_identity && !job.options.dry_run {
        return Err(Fault::new("copying it", "it is the destination, which would be copied into itself"));
    }
    let (name, present) = (item.target_name(), item.present()?);
    present.as_ref().map_or(Ok(()), |present| folded::is_only_one(item, present))?;
    let (target, is_new) = match (&item.dir.target, present) {
        (None, _) => (None, true),
        (Some(_), Some(present)) if !present.attr.is_directory() => {
            (replace::with_directory(job, item, (&*source, &present), || make(item))?, true)
        }
        (Some(target), Some(_)) => (Some(target.directory(name).trying("opening it at the destination")?), false),
        (Some(_), None) if job.options.dry_run => (None, true),
        (Some(_), None) => (Some(make(item)?), true),
    };
    add(&job.counts.directories, u64::from(is_new));
    job.unseen.seen(|| path.clone());
    let volume = match &target {
        Some(target) if !is_new => job.volumes.of(target).trying("looking at it at the destination")?,
        _ => item.dir.volume.clone(),
    };
    let earlier = earlier::below(&item.dir.earlier, name).trying("looking for it at the sources before")?;
    let bequeaths = match &target {
        Some(target) if !is_new => attributes::bequeaths(&**target).trying("reading its access control list")?,
        _ => false,
    };
    if let (Some(target), false, true) = (&target, is_new, job.sweeps()) {
        sweep_earlier(job, &**target, &path).trying("removing what an earlier run left")?;
    }
    job.goes_through(&path, &seen);
    let mut dir = Dir::new(job, path, source, (target, volume));
    (dir.above, dir.seen, dir.earlier) = (Some(item.dir.clone()), Some(seen), earlier);
    (dir.is_new, dir.bequeaths) = (is_new, bequeaths);
    dir.give_project()?;
    Ok(Some(dir))
}

/// Removes what an earlier run of this copy left unfinished, but for what can be gone on with.
/// Where two sources have the directory, files of the one may be under way when that of the other
/// is opened.
pub fn sweep_earlier(job: &Job, target: &dyn Directory, path: &[u8]) -> Result<(), Errno> {
    sweep_but(job, target, path, |name| job.made_part(name))
}

/// Removes whatever of this copy is not finished, but for what can be gone on with: nothing of it
/// is under way.
pub fn sweep(job: &Job, target: &dyn Directory, path: &[u8]) -> Result<(), Errno> {
    sweep_but(job, target, path, |_| false)
}

fn sweep_but(
    job: &Job,
    target: &dyn Directory,
    path: &[u8],
    is_under_way: impl Fn(&[u8]) -> bool,
) -> Result<(), Errno> {
    let knows = |name: &[u8]| job.store.as_ref().is_some_and(|store| store.knows_part(path, name));
    let is_kept = |name: &[u8]| is_under_way(name) || knows(name);
    let mut left = Vec::new();
    target.list(&mut |listed| {
        if listed.is_part() && listed.name.starts_with(&job.part_prefix()) {
            left.push(listed.name);
        }
    })?;
    for name in left.into_iter().filter(|name| !is_kept(name)) {
        match writable::within(target, |directory| directory.unlink(&name)) {
            Ok(_) | Err(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn make(item: &Item) -> Result<Arc<dyn Directory>, Fault> {
    let made = item.making("making it", |directory| match directory.make_directory(item.target_name()) {
        Err(Errno::EEXIST) => Ok(None),
        made => made.map(Some),
    })?;
    let made = match made {
        Some(made) => made,
        None if !folded::lists(item.target()?, item.target_name()).trying("listing the destination")? => {
            return Err(folded::fault());
        }
        // Another source has it too, or somebody else made it: what is in both goes there.
        None => return Err(Fault { is_passing: true, ..Fault::new("making it", Errno::EEXIST) }),
    };
    if item.dir.bequeaths {
        attributes::disinherit(&*made).trying("removing what its directory gave it")?;
    }
    Ok(made)
}

/// Whether a name of the source is something that another copy, into the source, has not ended.
/// That is counted, and told at the end.
pub fn is_left_out(job: &Job, path: &[u8], listed: &Listed) -> bool {
    let is_part = listed.is_part();
    if is_part {
        add(&job.counts.unfinished, 1);
        job.tell("left out, since it is not whole:", &below(path, &listed.name));
    }
    is_part
}

/// Hands on what is in a directory. When too much waits already, the lister works on it himself.
pub fn list(job: &Arc<Job>, worker: &mut Worker, dir: &Arc<Dir>) {
    let mut batch = Vec::new();
    let filter = &job.options.filter;
    let mut found = |listed: Listed| {
        let is_directory = listed.kind == libc::S_IFDIR;
        if !filter.takes_all() && listed.kind != 0 && !filter.takes(&below(&dir.path, &listed.name), is_directory) {
            return;
        }
        if is_left_out(job, &dir.path, &listed) {
            return;
        }
        let Listed { name, kind, seen } = listed;
        add(&job.watch.names_found, 1);
        let item = Item {
            dir: dir.clone(),
            name,
            target_name: None,
            kind,
            seen,
            attempt: 0,
            is_first: false,
            by_itself: false,
        };
        if is_directory {
            return job.directory(item);
        }
        job.unseen.seen(|| item.path());
        batch.push(item);
        if batch.len() == BATCH
            && let Some(items) = job.queue.batch(std::mem::take(&mut batch))
        {
            all(job, worker, items);
        }
    };
    let listed = job.within(Stage::Walk, || dir.source.list(&mut found));
    if let Err(fault) = listed.trying("listing it") {
        job.told.trouble(&dir.path, &fault);
    }
    if !batch.is_empty()
        && let Some(items) = job.queue.batch(batch)
    {
        all(job, worker, items);
    }
}

/// Works on items one after the other.
pub fn all(job: &Arc<Job>, worker: &mut Worker, items: Vec<Item>) {
    for item in items {
        if let Err(failed) = one(job, worker, item) {
            job.failed(failed);
        }
        if content::is_full(worker) {
            naming::name_all(job, worker);
        }
    }
}

fn one(job: &Arc<Job>, worker: &mut Worker, mut item: Item) -> Done {
    if let Err(fault) = job.may_go_on() {
        return Err(Failed::new(item, fault));
    }
    if item.kind == 0 {
        match job.within(Stage::Walk, || item.dir.source.look(&item.name)).trying("looking at it") {
            Ok(seen) => item.kind = seen.attr.kind(),
            Err(fault) => return Err(Failed::new(item, fault)),
        }
        if !job.options.filter.takes(&item.path(), item.kind == libc::S_IFDIR) {
            return Ok(());
        }
    }
    match item.kind {
        libc::S_IFDIR => {
            job.directory(item);
            Ok(())
        }
        libc::S_IFREG => file(job, worker, item),
        _ => other(job, item),
    }
}

/// What is known of a name at both ends before anything is done.
fn look(job: &Job, item: &Item) -> Result<Option<Seen>, Fault> {
    job.within(Stage::Walk, || {
        let present = item.present()?;
        if let Some(present) = &present {
            folded::is_only_one(item, present)?;
            replace::may_make_way(job, item, present)?;
        }
        Ok(present)
    })
}

/// What has the name at the destination is not of this inode: another name of it may be the first.
fn skip(job: &Job, item: &Item, seen: &Seen) {
    add(&job.counts.skipped, 1);
    job.progress(0);
    if item.is_first {
        let again = job.links.failed(&seen.moment());
        if !again.is_empty() {
            job.queue.again(again);
        }
    }
}

/// Takes the first name of an inode with several; other names wait, or are linked. `None`: nothing
/// is left to do.
fn claim(job: &Arc<Job>, mut item: Item, seen: &Seen, text: Option<&[u8]>) -> Done<Option<Item>> {
    item.seen = Some(seen.clone());
    if seen.attr.nlink < 2 || item.is_first {
        return Ok(Some(item));
    }
    // What has to make way is known before others are removed, also for a name that waits.
    if job.options.delete
        && let Err(fault) = look(job, &item)
    {
        return Err(Failed::new(item, fault));
    }
    match job.links.claim(&seen.moment(), item) {
        Claim::First(mut item) => {
            item.is_first = true;
            Ok(Some(item))
        }
        Claim::Waits => Ok(None),
        Claim::LinkTo(item, to) => link(job, item, seen, &to, text).map(|()| None),
    }
}

fn file(job: &Arc<Job>, worker: &mut Worker, item: Item) -> Done {
    match opened(job, worker, item)? {
        Some((item, source, present)) => content::copy(job, worker, item, source, present),
        None => Ok(()),
    }
}

/// A name that a source before has as well is that source's. `None`: it is left as it is.
fn only_one(job: &Job, item: Item) -> Done<Option<Item>> {
    let (earlier, name) = (&item.dir.earlier, item.target_name());
    match earlier::has(earlier, name, || item.dir.source.look(&item.name)) {
        Ok(false) => Ok(Some(item)),
        Ok(true) if job.options.no_clobber => {
            add(&job.counts.skipped, 1);
            job.progress(0);
            Ok(None)
        }
        Ok(true) => Err(Failed::new(item, earlier::fault())),
        Err(fault) => Err(Failed::new(item, fault)),
    }
}

/// A file that is to be copied: its item with what was seen of it, it, and what has its name at
/// the destination.
type ToCopy = (Item, Arc<dyn File>, Option<Seen>);

/// Opens a file that has to be copied. `None`: there is nothing to do, or not now.
pub fn opened(job: &Arc<Job>, worker: &mut Worker, item: Item) -> Done<Option<ToCopy>> {
    let Some(mut item) = only_one(job, item)? else { return Ok(None) };
    if job.options.update || job.options.no_clobber || job.options.dry_run || job.redoes {
        let looked = match &item.seen {
            Some(seen) => Ok(seen.clone()),
            None => job.within(Stage::Walk, || item.dir.source.look(&item.name)).trying("looking at it"),
        };
        let seen = match looked {
            Ok(seen) => seen,
            Err(fault) => return Err(Failed::new(item, fault)),
        };
        match claim(job, item, &seen, None)? {
            Some(first) => item = first,
            None => return Ok(None),
        }
        match decide(job, worker, &item, &seen) {
            Ok(true) => return Ok(None),
            Ok(false) => {}
            Err(fault) => return Err(Failed::new(item, fault)),
        }
    }
    let (source, seen, present) = match open_file(job, &item) {
        Ok(opened) => opened,
        Err(fault) => return Err(Failed::new(item, fault)),
    };
    let Some(item) = claim(job, item, &seen, None)? else { return Ok(None) };
    if is_resumed(job, &item, &seen, present.as_ref(), &item.path()) {
        return Ok(None);
    }
    if !item.by_itself {
        job.sized(seen.attr.size);
    }
    Ok(Some((item, source, present)))
}

type Opened = (Arc<dyn File>, Seen, Option<Seen>);

fn open_file(job: &Job, item: &Item) -> Result<Opened, Fault> {
    let present = look(job, item)?;
    let opened = job.within(Stage::Walk, || item.dir.source.file(&item.name, item.seen.as_ref()));
    let source = match opened.trying("opening it")? {
        source if item.dir.is_unsized => job.within(Stage::Read, || whole(&*source))?,
        source => source,
    };
    let seen = job.within(Stage::Walk, || settled(&*source)).trying("looking at it")?;
    // Other names of the inode wait for the one that was looked at, not for this.
    let is_other = |before: &Seen| before.moment() != seen.moment() || before.attr.nlink != seen.attr.nlink;
    if !seen.attr.is_regular() || (item.is_first && item.seen.as_ref().is_some_and(is_other)) {
        return Err(Fault::changed());
    }
    if present.as_ref().is_some_and(|present| present.identity() == seen.identity()) {
        return Err(Fault::new("copying it", "the source and the destination are the same file"));
    }
    is_at_hand(job, item, &*source)?;
    Ok((source, seen, present))
}

/// A file that has no size before it is read.
fn whole(source: &dyn File) -> Result<Arc<dyn File>, Fault> {
    match read_unsized(source) {
        Err(Errno::EFBIG) => {
            let why = format!("it is made while it is read, and has more than {} MiB", UNSIZED_MAX >> 20);
            Err(Fault::new("reading it", why))
        }
        read => read.trying("reading it, which is made meanwhile"),
    }
}

/// Reading a file whose data are in an archive alone would have it recalled: for hours, and onto
/// targets that may have no room. Nobody is surprised by that.
fn is_at_hand(job: &Job, item: &Item, source: &dyn File) -> Result<(), Fault> {
    if !item.dir.is_lustre || job.options.recall {
        return Ok(());
    }
    match source.layout().trying("looking at its layout")? {
        Some(layout) if layout.is_released => {
            let why = "its data are in the archive alone (HSM): have it recalled by 'lfs hsm_restore', or by --recall";
            Err(Fault::new("reading it", why))
        }
        _ => Ok(()),
    }
}

/// Whether an earlier run of this copy has done a name, and nothing has changed since at both
/// ends.
fn is_resumed(job: &Job, item: &Item, seen: &Seen, present: Option<&Seen>, path: &[u8]) -> bool {
    let (Some(store), Some(present), true) = (&job.store, present, job.goes_on && item.attempt == 0) else {
        return false;
    };
    let Some(entry) = store.entry(path) else { return false };
    if entry.target.is_empty() || entry.source != fingerprint(seen) || entry.target != fingerprint(present) {
        return false;
    }
    store.kept(path);
    add(&job.counts.resumed, 1);
    job.progress(seen.attr.size);
    settle(job, path, seen);
    true
}

/// Whether a name needs nothing, or is left as it is.
fn decide(job: &Job, worker: &mut Worker, item: &Item, seen: &Seen) -> Result<bool, Fault> {
    let (path, present) = (item.path(), look(job, item)?);
    if let Some(present) = &present {
        if is_resumed(job, item, seen, Some(present), &path) {
            return Ok(true);
        }
        let compares = job.options.update || job.redoes;
        let is_done = compares && is_unchanged(job, worker, item, seen, present)?;
        let is_done = is_done && job.keeps(present, seen);
        if job.options.no_clobber && !(job.redoes && is_done) {
            skip(job, item, seen);
            return Ok(true);
        }
        if is_done {
            keep(job, worker, item, seen, present)?;
            settle(job, &path, seen);
            return Ok(true);
        }
    }
    if job.options.dry_run {
        add(&job.counts.files, 1);
        add(&job.counts.bytes, seen.attr.size);
        job.replaces(item, present.as_ref());
        job.tell("would copy", &path);
        settle(job, NOT_MADE, seen);
    }
    Ok(job.options.dry_run)
}

/// Equal size and time are believed for skipping, and certify nothing: with a manifest, and with
/// --checksum, the content decides.
fn is_unchanged(job: &Job, worker: &mut Worker, item: &Item, seen: &Seen, present: &Seen) -> Result<bool, Fault> {
    let is_alike = present.attr.is_regular() && seen.attr.size == present.attr.size;
    let reads = job.options.checksum || job.options.hashes() || job.redoes;
    let is_same_time = attributes::is_same_time(seen, present);
    if !is_alike || (!reads && !is_same_time) || item.dir.is_unsized {
        return Ok(false);
    }
    if !reads {
        return Ok(true);
    }
    let (source, target) = (
        item.dir.source.file(&item.name, item.seen.as_ref()).trying("opening it")?,
        item.target()?.file(item.target_name(), None).trying("opening it at the destination")?,
    );
    is_at_hand(job, item, &*source)?;
    for (file, seen) in [(&source, seen), (&target, present)] {
        if !settled(&**file).trying("looking at it again")?.is_as(seen) {
            return Err(Fault::changed());
        }
    }
    let is_same = has_same_content(job, worker, &*source, &*target, seen.attr.size)?;
    // What changed while it was read is of no one moment.
    is_still(&*source, seen)?;
    is_still(&*target, present)?;
    Ok(is_same)
}

fn has_same_content(
    job: &Job,
    worker: &mut Worker,
    source: &dyn File,
    target: &dyn File,
    size: u64,
) -> Result<bool, Fault> {
    if [source, target].iter().any(|file| file.handle().is_some()) {
        return job.within(Stage::Verify, || {
            let hash = whole_hash(worker, source, size, "reading it")?;
            Ok(hash == whole_hash(worker, target, size, "reading it at the destination")?)
        });
    }
    job.within(Stage::Verify, || {
        let (mut at, mut other) = (0, Vec::new());
        while at < size {
            let length = (size - at).min(STEP as u64) as usize;
            source.read(at, length, &mut worker.buffer).trying("reading it")?;
            target.read(at, length, &mut other).trying("reading it at the destination")?;
            if worker.buffer != other || other.len() != length {
                return Ok(false);
            }
            at += length as u64;
        }
        Ok(true)
    })
}

/// A file that has its content already gets its attributes, if they differ.
fn keep(job: &Job, worker: &mut Worker, item: &Item, seen: &Seen, present: &Seen) -> Result<(), Fault> {
    let path = &*item.path();
    job.progress(seen.attr.size);
    let (xattrs_there, has_same_xattrs) = job.within(Stage::Attributes, || {
        let there = present_xattrs(item, present)?;
        let is_same = has_same_xattrs(item, seen, &there)?;
        Ok::<_, Fault>((there, is_same))
    })?;
    let is_same = attributes::are_same(seen, present) && attributes::is_same_time(seen, present) && has_same_xattrs;
    add(if is_same { &job.counts.unchanged } else { &job.counts.attributes }, 1);
    if job.options.dry_run {
        if !is_same {
            job.tell("would change the attributes of", path);
        }
        return Ok(());
    }
    keep_project(job, item)?;
    if is_same && !job.options.hashes() {
        return Ok(());
    }
    let source = item.dir.source.file(&item.name, item.seen.as_ref()).trying("opening it")?;
    let wanted = attributes::wanted_xattrs(&*source, item.dir.is_lustre);
    let (xattrs, mut lost) = wanted.trying("reading its extended attributes")?;
    if !is_same {
        let target = item.target()?.file(item.target_name(), None).trying("opening it at the destination")?;
        lost.extend(attributes::strip(&xattrs, &xattrs_there, &*target).trying("removing extended attributes")?);
        lost.extend(attributes::carry(seen, &xattrs, &*target, None).trying("setting its attributes")?);
        job.lost(path, lost);
        job.tell("changed the attributes of", path);
    }
    if job.options.hashes() {
        let hash = whole_hash(worker, &*source, seen.attr.size, "reading it")?;
        is_still(&*source, seen)?; // else it is not the hash of what was compared
        job.told.checked("compared");
        job.record(path, &|| Line::new(path, seen, &xattrs, Some(&hash), None), seen, &[]);
    }
    Ok(())
}

/// A file that has its content already gets the project of its source. Only where the directory of
/// the source has one: whoever looks has to open both files.
fn keep_project(job: &Job, item: &Item) -> Result<(), Fault> {
    if item.dir.project == 0 {
        return Ok(());
    }
    let source = item.dir.source.file(&item.name, item.seen.as_ref()).trying("opening it")?;
    let directory = item.dir.target.as_ref().ok_or_else(Fault::changed)?;
    let target = directory.file(item.target_name(), None).trying("opening it at the destination")?;
    let given = attributes::given_in(&**directory)
        .and_then(|gives| attributes::give_project(&*source, &*target, Some(gives)))
        .trying("setting its project")?;
    job.lost(&item.path(), given);
    Ok(())
}

/// The extended attributes of what is at the destination, access control lists among them.
fn present_xattrs(item: &Item, present: &Seen) -> Result<Xattrs, Fault> {
    let there = item.target()?.xattrs_of(item.target_name(), present);
    there.trying("reading its extended attributes at the destination")
}

/// Whether what is at the destination has the extended attributes of its source: neither size nor
/// time say so.
fn has_same_xattrs(item: &Item, seen: &Seen, there: &Xattrs) -> Result<bool, Fault> {
    let wanted = item.dir.source.xattrs_of(&item.name, seen).trying("reading its extended attributes")?;
    Ok(attributes::are_same_xattrs(&wanted, there, item.dir.is_lustre))
}

/// The hash of a file that is read for nothing else.
fn whole_hash(worker: &mut Worker, file: &dyn File, size: u64, what: &'static str) -> Result<Hash, Fault> {
    match hash_of(file, size, &mut worker.buffer) {
        Err(Errno::ENODATA) => Err(Fault::changed()),
        hash => hash.trying(what),
    }
}

/// What becomes of a further name.
enum Further {
    /// It is left as it is.
    Skipped,
    /// It is one already.
    InPlace,
    /// It is made, or would be.
    Made,
    /// It is made when its name is free.
    Held,
}

/// Makes a further name of what is at the destination already.
fn link(job: &Arc<Job>, item: Item, seen: &Seen, to: &[u8], text: Option<&[u8]>) -> Done {
    let path = item.path();
    match job.within(Stage::Attributes, || make_link(job, &item, to)) {
        Ok(Further::Skipped) => {
            skip(job, &item, seen);
            return Ok(());
        }
        Ok(Further::Held) => {
            lock(&job.held).push(Held::Unmade(item));
            return Ok(());
        }
        Ok(Further::InPlace) => add(&job.counts.unchanged, 1),
        Ok(Further::Made) => {
            add(&job.counts.links, 1);
            job.tell(if job.options.dry_run { "would link" } else { "linked" }, &path);
        }
        Err(fault) => return Err(Failed::new(item, fault)),
    }
    // The line of a further name is that of the first, but for its path.
    let line = || {
        let xattrs = item.dir.source.other(&item.name).and_then(|node| node.xattrs()).unwrap_or_default();
        Line::new(&path, seen, &xattrs, None, text)
    };
    job.record(&path, &line, seen, &[]);
    add(&job.watch.names, 1);
    Ok(())
}

fn make_link(job: &Job, item: &Item, to: &[u8]) -> Result<Further, Fault> {
    if job.options.no_clobber && item.present()?.is_some() {
        return Ok(Further::Skipped);
    }
    let present = look(job, item)?;
    if to == NOT_MADE {
        job.replaces(item, present.as_ref());
        return Ok(Further::Made);
    }
    let Some(name) = to.rsplit(|byte| *byte == b'/').next() else { return Ok(Further::Skipped) };
    let from = directory_of(job, to).trying("finding the first name of it")?;
    let first = from.look(name).trying("finding the first name of it")?;
    if present.as_ref().is_some_and(|present| present.identity() == first.identity()) {
        return Ok(Further::InPlace);
    }
    if job.options.dry_run {
        job.replaces(item, present.as_ref());
        return Ok(Further::Made);
    }
    if job.waits(item, present.as_ref()) {
        return Ok(Further::Held);
    }
    job.may_go_on()?;
    let part = if present.is_some() { job.part_name() } else { item.target_name().to_vec() };
    item.making("linking it", |directory| directory.link(&*from, name, &part))?;
    if present.is_some() {
        naming::rename(item, present.as_ref(), &part).inspect_err(|_| content::discard(item, Some(&part)))?;
    }
    Ok(Further::Made)
}

/// The directory at the destination in which a path lies.
fn directory_of(job: &Job, path: &[u8]) -> Result<Arc<dyn Directory>, Errno> {
    let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    names.pop();
    names.into_iter().try_fold(job.target_root.clone(), |directory, name| directory.directory(name))
}

/// A symbolic link, device, fifo or socket.
fn other(job: &Arc<Job>, item: Item) -> Done {
    let Some(item) = only_one(job, item)? else { return Ok(()) };
    let looked = || -> Result<_, Fault> {
        let seen = job.within(Stage::Walk, || item.dir.source.look(&item.name)).trying("looking at it")?;
        let is_link = seen.attr.kind() == libc::S_IFLNK;
        let text = is_link.then(|| item.dir.source.read_link(&item.name)).transpose().trying("reading the link")?;
        Ok((look(job, &item)?, seen, text))
    };
    let (present, seen, text) = match looked() {
        Ok(looked) => looked,
        Err(fault) => return Err(Failed::new(item, fault)),
    };
    if seen.attr.kind() != item.kind {
        return Err(Failed::new(item, Fault::changed()));
    }
    let path = item.path();
    if present.is_some() && job.options.no_clobber {
        skip(job, &item, &seen);
        return Ok(());
    }
    if job.waits(&item, present.as_ref()) {
        lock(&job.held).push(Held::Unmade(item));
        return Ok(());
    }
    let Some(item) = claim(job, item, &seen, text.as_deref())? else { return Ok(()) };
    let made = job.within(Stage::Attributes, || make_other(job, &item, &seen, present.as_ref(), text.as_deref()));
    match made {
        Ok(is_there) => settle(job, if is_there { &path } else { NOT_MADE }, &seen),
        Err(fault) => return Err(Failed::new(item, fault)),
    }
    add(&job.watch.names, 1);
    Ok(())
}

/// Whether what has the name at the destination is what should be there.
fn is_in_place(item: &Item, seen: &Seen, present: &Seen, xattrs: &Xattrs, text: Option<&[u8]>) -> Result<bool, Fault> {
    if present.attr.kind() != seen.attr.kind() || present.attr.rdev != seen.attr.rdev {
        return Ok(false);
    }
    if let Some(text) = text
        && item.target()?.read_link(item.target_name()).trying("reading the link")? != text
    {
        return Ok(false);
    }
    let is_same = attributes::are_same(seen, present) && attributes::is_same_time(seen, present);
    Ok(is_same && attributes::are_same_xattrs(xattrs, &present_xattrs(item, present)?, item.dir.is_lustre))
}

/// Says whether it is there: not in a dry run, if it is not there yet.
fn make_other(job: &Job, item: &Item, seen: &Seen, present: Option<&Seen>, text: Option<&[u8]>) -> Result<bool, Fault> {
    let path = item.path();
    let xattrs =
        item.dir.source.other(&item.name).and_then(|node| node.xattrs()).trying("reading its extended attributes")?;
    let record = || job.record(&path, &|| Line::new(&path, seen, &xattrs, None, text), seen, &[]);
    if let Some(present) = present
        && is_in_place(item, seen, present, &xattrs, text)?
        && job.keeps(present, seen)
    {
        add(&job.counts.unchanged, 1);
        record();
        return Ok(true);
    }
    if job.options.dry_run {
        add(&job.counts.others, 1);
        job.replaces(item, present);
        job.tell("would copy", &path);
        return Ok(false);
    }
    let target = item.target()?;
    let part = job.part_name();
    match text {
        Some(text) => item.making("making the link", |directory| directory.make_symlink(&part, text))?,
        None => item.making("making it", |directory| directory.make_other(&part, seen.attr.kind(), seen.attr.rdev))?,
    }
    let finish = || -> Result<(), Fault> {
        let node = target.other(&part).trying("setting its attributes")?;
        // Who may write to the directory too may have put something else there, which is not given
        // away.
        let made = node.seen().trying("looking at what was made")?.attr;
        if (made.kind(), made.rdev) != (seen.attr.kind(), seen.attr.rdev) || made.nlink > 1 {
            return Err(Fault::new("setting its attributes", "what was made has been replaced meanwhile"));
        }
        if item.dir.bequeaths && text.is_none() {
            attributes::disinherit(&*node).trying("removing what its directory gave it")?;
        }
        let lost = attributes::carry(seen, &xattrs, &*node, None).trying("setting its attributes")?;
        job.lost(&path, lost);
        job.may_go_on()?;
        naming::rename(item, present, &part)
    };
    finish().inspect_err(|_| content::discard(item, Some(&part)))?;
    record();
    add(&job.counts.others, 1);
    job.tell("copied", &path);
    Ok(true)
}
