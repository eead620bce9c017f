//! Listing directories.

use std::sync::atomic::Ordering;
use std::time::Duration;

use aqueduct_fs::{DirEntry, DirPage, Errno, OpenId, Request};

use crate::abi::{
    Dirent, EntryOut, FSYNC_FDATASYNC, Field, FopenFlags, FsyncIn, OpenIn, OpenOut, ROOT_ID, ReadIn, ReleaseIn, opcode,
    put_dirent, record_size,
};
use crate::job::{Grant, Job, Outcome};
use crate::kept::{Kept, now};
use crate::nodes::Listing;

/// What an entry without attributes grows by at most from a page to the kernel's form: 20 bytes and a name of one byte become 32. Of a
/// page of 21/32 of the kernel's room nothing is left over.
const GROWTH: (u32, u32) = (21, 32);

/// A page that surely holds an entry of any name and handle.
const PAGE_MIN: u32 = 4096;

pub(crate) async fn answer(job: &Job) -> Result<Outcome, Errno> {
    match job.header.opcode {
        opcode::OPENDIR => open(job).await,
        opcode::READDIR => read(job, false).await,
        opcode::READDIRPLUS => read(job, true).await,
        opcode::RELEASEDIR => {
            let (release, _) = job.args(ReleaseIn::parse)?;
            job.shared.listings.settle(release.fh);
            job.shared.caches_no_more(job.header.nodeid, OpenId(release.fh));
            job.call(Request::ReleaseDirectory { open: OpenId(release.fh) }).await?.done()?;
            Ok(Outcome::Done(Vec::new()))
        }
        _ => {
            let (sync, _) = job.args(FsyncIn::parse)?;
            let data_only = sync.fsync_flags & FSYNC_FDATASYNC != 0;
            job.call(Request::SyncDirectory { open: OpenId(sync.fh), data_only }).await?.done()?;
            Ok(Outcome::Done(Vec::new()))
        }
    }
}

async fn open(job: &Job) -> Result<Outcome, Errno> {
    job.args(OpenIn::parse)?;
    let (reply, kept) = job.ask_value(Request::OpenDirectory { handle: &job.handle()? }).await?;
    let opened = reply.opened()?;
    let open_flags = open_flags(job, opened.id, &kept).bits();
    let out = OpenOut { fh: opened.id.0, open_flags, padding: 0 };
    Ok(Outcome::Granted(
        out.to_vec(),
        Grant { directory: Some(opened.id), lease: kept.into_lease(), ..Grant::default() },
    ))
}

/// Whether the kernel keeps the listing, and goes on with what it kept. Without KEEP_CACHE it drops that now, and asks for all of it, which tells it again of
/// the entries.
fn open_flags(job: &Job, open: OpenId, kept: &Kept) -> FopenFlags {
    let (shared, node) = (&job.shared, job.header.nodeid);
    // Of the root nothing is remembered.
    if !(kept.data && shared.policy.names) || node == ROOT_ID {
        return FopenFlags::empty();
    }
    let mut flags = FopenFlags::CACHE_DIR;
    flags.set(FopenFlags::KEEP_CACHE, shared.keeps_listing(node, kept.names));
    shared.nodes.mark(node, |marks| {
        marks.is_listed = true;
        if !flags.contains(FopenFlags::KEEP_CACHE) {
            marks.begin_listing();
        }
    });
    shared.caches(node, open, false);
    flags
}

/// A page of a listing was answered: what the kernel was told with the whole of it so far.
fn note_listing(job: &Job, begins: bool, kept: &Kept, entries: bool, epoch: u32) {
    let lasts = if entries { kept.names.min(kept.attributes) } else { kept.names };
    let until = if lasts.is_zero() { Duration::ZERO } else { now() + lasts };
    job.shared.nodes.mark(job.header.nodeid, |marks| {
        if begins {
            marks.listing = Listing { until, epoch };
        } else {
            marks.listing.until = marks.listing.until.min(until);
        }
    });
}

async fn read(job: &Job, plus: bool) -> Result<Outcome, Errno> {
    let (read, _) = job.args(ReadIn::parse)?;
    let room = read.size.min(job.shared.negotiated.max_transfer);
    let fitting = if plus { room } else { (u64::from(room) * u64::from(GROWTH.0) / u64::from(GROWTH.1)) as u32 };
    let (open, cookie) = (OpenId(read.fh), read.offset);
    job.shared.listings.settle(read.fh);
    let (is_cached, epoch) = (job.shared.is_cached(open), job.shared.epoch.load(Ordering::SeqCst));
    if is_cached {
        // Before it is asked for: should the directory be changed meanwhile, then these are too old as well.
        job.shared.nodes.mark(job.header.nodeid, |marks| marks.fill(true));
    }
    let page = |size| async move {
        let (reply, kept) = job.ask_value(Request::ReadDirectory { open, cookie, size, plus }).await?;
        Ok::<_, Errno>((reply.directory()?, kept))
    };
    let (mut found, mut kept) = page(fitting).await?;
    if found.entries().next().is_none() && !found.end {
        (found, kept) = page(fitting.max(PAGE_MIN)).await?;
    }
    let (mut body, mut grant) = pack(job, &found, room as usize, plus.then_some(&kept));
    if job.shared.policy.leases && !kept.names.is_zero() && (!grant.nodes.is_empty() || is_cached && !body.is_empty()) {
        job.shared.listings.answers(read.fh, job.header.nodeid);
        if job.shared.policy.names && !job.shared.keeps_names() {
            // All names have been forgotten since, without a look at this listing.
            grant.nodes.iter().for_each(|node| job.shared.nodes.forget(*node, 1));
            kept.names = Duration::ZERO;
            (body, grant) = pack(job, &found, room as usize, plus.then_some(&kept));
        }
    }
    match is_cached {
        true if kept.names.is_zero() => job.shared.distrust_listing(job.header.nodeid),
        true if !body.is_empty() => note_listing(job, cookie == 0, &kept, !grant.nodes.is_empty(), epoch),
        _ => {}
    }
    grant.lease = kept.into_lease();
    if body.is_empty() && !(found.end && found.entries().next().is_none()) {
        return Err(Errno::EINVAL); // not even one entry fits, as getdents(2) says it
    }
    Ok(Outcome::Granted(body, grant))
}

/// As many entries as fit. Those that do not are not lost: the kernel goes on from the last one's cookie.
fn pack(job: &Job, page: &DirPage, room: usize, plus: Option<&Kept>) -> (Vec<u8>, Grant) {
    let mut body = Vec::with_capacity(room.min(page.packed().len() * 2));
    let mut grant = Grant::default();
    for entry in page.entries() {
        let fixed = if plus.is_some() { <EntryOut as Field>::SIZE } else { 0 } + <Dirent as Field>::SIZE;
        if body.len() + record_size(fixed + entry.name.len()) > room {
            break;
        }
        if let Some(kept) = plus {
            put_inode(job, &entry, kept, &mut body, &mut grant);
        }
        put_dirent(&mut body, entry.ino, entry.cookie, entry.kind, entry.name);
    }
    (body, grant)
}

/// The inode before an entry of READDIRPLUS. Zeros say that there is none to be had; for `.` and `..` the kernel would not
/// count the lookup.
fn put_inode(job: &Job, entry: &DirEntry<'_>, kept: &Kept, body: &mut Vec<u8>, grant: &mut Grant) {
    match &entry.inode {
        Some((handle, attr)) if !matches!(entry.name, b"." | b"..") => {
            let nodeid = job.shared.nodes.look_up(handle, kept.names, Some(job.header.nodeid));
            grant.nodes.push(nodeid);
            job.named(nodeid, entry.name);
            if attr.is_directory() {
                job.shared.nodes.places.listed(nodeid, job.header.nodeid, entry.name);
            }
            job.entry_out(nodeid, attr, kept).put(body);
        }
        _ => EntryOut::default().put(body),
    }
}
