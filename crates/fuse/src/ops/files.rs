//! Files: opening, reading, writing, closing, and what is done through an open file.

use std::sync::atomic::Ordering;

use aqueduct_fs::{Errno, FallocateFlags, Hold, LockKind, OpenFlags, OpenId, ReadAt, Request, SeekTo, Source, WriteAt};
use aqueduct_worker::Group;

use crate::abi::{
    CopyFileRangeIn, CopyFileRangeOut, CreateIn, FSYNC_FDATASYNC, FallocateIn, Field, FlushIn, FopenFlags, FsyncIn,
    InHeader, LseekIn, LseekOut, MINOR_NOFLUSH, OpenIn, OpenOut, READ_LOCKOWNER, ReadIn, ReleaseIn, WRITE_CACHE,
    WriteIn, WriteOut, opcode,
};
use crate::config::CacheMode;
use crate::convert;
use crate::job::{Grant, Job, Outcome};
use crate::kept::now;
use crate::sink::FuseSink;
use crate::sizes::{Turn, Use};

pub(crate) async fn answer(job: &Job) -> Result<Outcome, Errno> {
    match job.header.opcode {
        opcode::OPEN => return open(job).await,
        opcode::CREATE | opcode::TMPFILE => return create(job).await,
        opcode::LSEEK => return seek(job).await,
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => return copy_range(job).await,
        opcode::RELEASE => {
            let (release, _) = job.args(ReleaseIn::parse)?;
            job.shared.caches_no_more(job.header.nodeid, OpenId(release.fh));
            job.call(Request::Release { open: OpenId(release.fh) }).await?.done()?;
        }
        opcode::FLUSH => flush(job).await?,
        opcode::FALLOCATE => {
            let (FallocateIn { fh, offset, length, mode, .. }, _) = job.args(FallocateIn::parse)?;
            let flags = FallocateFlags::from_bits(mode).ok_or(Errno::EOPNOTSUPP)?;
            let turn = job.changes_size(job.header.nodeid).await;
            job.call(Request::Fallocate { open: OpenId(fh), offset, length, flags }).await?.done()?;
            job.written(job.header.nodeid);
            return Ok(Outcome::resized(Vec::new(), turn));
        }
        _ => {
            let (sync, _) = job.args(FsyncIn::parse)?;
            let data_only = sync.fsync_flags & FSYNC_FDATASYNC != 0;
            job.call(Request::Sync { open: OpenId(sync.fh), data_only }).await?.done()?;
        }
    }
    Ok(Outcome::Done(Vec::new()))
}

/// A process that is killed gives up its locks, and waits for nothing any more: what was not done
/// for it meanwhile is done afterwards. Others of this mount who want the locks wait for that.
async fn flush(job: &Job) -> Result<(), Errno> {
    let (FlushIn { fh, lock_owner: owner, .. }, _) = job.args(FlushIn::parse)?;
    let (shared, open) = (&job.shared, OpenId(fh));
    let done = job.call(Request::Flush { open, owner }).await;
    let is_left = matches!(done, Err(Errno::EINTR)) && job.context.cancel.is_raised() && !shared.ended();
    let has_locks = || shared.nodes.marks(job.header.nodeid).locked;
    if let Some(group) = Group::current().filter(|_| is_left && has_locks()) {
        let (shared, under_way) = (shared.clone(), shared.releases.enter());
        let context = job.context.lasting();
        group.spawn(async move {
            if let Err(error) = shared.filesystem.call(&context, Request::Flush { open, owner }).await {
                tracing::debug!(%error, "what a killed program had locked could not be given up");
            }
            drop(under_way);
        });
    }
    done?.done()
}

/// How the kernel treats an open file, whose pages it may keep if it is `leased`.
///
/// FLUSH at a close is for locks: a process that closes any descriptor of a file loses its locks on it, and without FLUSH they end when the last duplicate is
/// closed. Hardly any file that is read is ever locked, so it is spared where nobody has locked the file so far.
fn file_flags(job: &Job, flags: OpenFlags, leased: bool) -> FopenFlags {
    let shared = &job.shared;
    if shared.config.takes_turns {
        return FopenFlags::DIRECT_IO; // of what is read from pages nobody here would know
    }
    // The kernel would keep what is appended at the end of the file as it knew it, and that of other clients' appends is elsewhere.
    if shared.config.cache == CacheMode::CloseToOpen && !flags.contains(OpenFlags::APPEND) {
        return FopenFlags::empty(); // without KEEP_CACHE the kernel drops the file's pages now
    }
    if leased && !flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
        let marks = shared.nodes.marks(job.header.nodeid);
        let mut open = FopenFlags::empty();
        open.set(FopenFlags::KEEP_CACHE, !marks.has_unleased_pages());
        let spares_flush = shared.config.spares_flush && shared.negotiated.minor >= MINOR_NOFLUSH;
        open.set(FopenFlags::NOFLUSH, !marks.locked && spares_flush);
        return open;
    }
    // Each mmap of a file that is open for direct I/O drops its pages. `leased`: nobody else uses
    // the file, and whatever is written through this descriptor may go through pages.
    if leased && flags.contains(OpenFlags::READ | OpenFlags::WRITE) {
        let marks = shared.nodes.marks(job.header.nodeid);
        if !marks.is_contended(now()) {
            let is_clean = !marks.has_unleased_pages();
            return if is_clean { FopenFlags::KEEP_CACHE } else { FopenFlags::empty() };
        }
    }
    // Before Linux 6.6 a file open for direct I/O cannot be mapped shared; what may be mapped is
    // cached there. Not what is appended to: see above.
    let appends = flags.contains(OpenFlags::WRITE | OpenFlags::APPEND);
    if !shared.policy.maps_direct && flags.contains(OpenFlags::READ) && !appends {
        return FopenFlags::empty();
    }
    let mut open = FopenFlags::DIRECT_IO;
    open.set(FopenFlags::PARALLEL_DIRECT_WRITES, shared.config.parallel_writes);
    open
}

fn open_out(job: &Job, node: u64, id: OpenId, flags: OpenFlags, leased: bool) -> OpenOut {
    let open_flags = file_flags(job, flags, leased);
    if job.shared.policy.pages && !open_flags.contains(FopenFlags::DIRECT_IO) {
        job.shared.caches(node, id, flags.contains(OpenFlags::WRITE));
    }
    OpenOut { fh: id.0, open_flags: open_flags.bits(), padding: 0 }
}

async fn open(job: &Job) -> Result<Outcome, Errno> {
    let (OpenIn { flags, .. }, _) = job.args(OpenIn::parse)?;
    let flags = convert::open_flags(flags) - OpenFlags::EXCLUSIVE;
    let empties = flags.contains(OpenFlags::TRUNCATE);
    let turn = if empties { job.changes_size(job.header.nodeid).await.map(Turn::lingering) } else { None };
    let (reply, kept) = job.ask_value(Request::Open { handle: &job.handle()?, flags }).await?;
    let opened = reply.opened()?;
    if empties {
        job.resized(job.header.nodeid, 0);
    }
    if job.shared.config.cache == CacheMode::CloseToOpen {
        // Who opens sees what was closed before, its size as well: attributes from before the open end here.
        job.drop_attributes(job.header.nodeid);
    }
    let marks = job.shared.nodes.marks(job.header.nodeid);
    if kept.data && marks.has_unleased_pages() && marks.cached_opens == 0 {
        // Nobody reads: so nobody is just being told a size, which the kernel would not believe beside this.
        job.shared.page_drops.drop_now(job.header.nodeid).await;
    }
    let out = open_out(job, job.header.nodeid, opened.id, flags, kept.data);
    let grant = Grant { file: Some(opened.id), lease: kept.into_lease(), _turn: turn, ..Grant::default() };
    Ok(Outcome::Granted(out.to_vec(), grant))
}

async fn create(job: &Job) -> Result<Outcome, Errno> {
    let (CreateIn { flags, mode, umask, .. }, rest) = job.args(CreateIn::parse)?;
    let (parent, flags) = (job.handle()?, convert::open_flags(flags));
    let name = if job.header.opcode == opcode::TMPFILE { None } else { Some(convert::name(rest)?.0) };
    let request = match name {
        None => Request::CreateUnnamed { parent: &parent, mode, umask, flags },
        Some(name) => Request::Create { parent: &parent, name, mode, umask, flags },
    };
    job.shared.listings.settle_all(job.header.nodeid);
    job.shared.distrust_listing(job.header.nodeid);
    let (reply, kept) = job.ask_value(request).await?;
    let (entry, opened) = reply.created()?;
    let (entry_out, mut grant) = job.made(&entry, kept);
    grant.file = Some(opened.id);
    name.into_iter().for_each(|name| job.named(entry_out.nodeid, name));
    if flags.contains(OpenFlags::TRUNCATE) {
        job.resized(entry_out.nodeid, 0);
    }
    let mut body = entry_out.to_vec();
    // Not cached: it was made to be written.
    open_out(job, entry_out.nodeid, opened.id, flags, false).put(&mut body);
    Ok(Outcome::Granted(body, grant))
}

pub(crate) async fn read(job: &Job) -> Result<Outcome, Errno> {
    let (read, _) = job.args(ReadIn::parse)?;
    let length = read.size.min(job.shared.negotiated.max_transfer);
    let turn = match read.read_flags & READ_LOCKOWNER {
        0 => None, // pages, which somebody has mapped
        _ => job.turn((OpenId(read.fh), LockKind::Read), (read.offset, length)).await?,
    };
    let mut count = Ok(0);
    let outcome = read_in_turn(job, read, &mut count).await;
    if let Some(turn) = turn {
        turn.end(count).await;
    }
    outcome
}

async fn read_in_turn(job: &Job, read: ReadIn, done: &mut Result<u64, Errno>) -> Result<Outcome, Errno> {
    let fills = job.shared.policy.pages && read.read_flags & READ_LOCKOWNER == 0;
    let fill_turn = || job.shared.sizes.enter(job.header.nodeid, Use::Fill, &job.context.cancel);
    let turn = if fills { Some(fill_turn().await) } else { None };
    // Held until the kernel has the pages: a recall of them then waits for their lock.
    let hold = if fills { fill(job)? } else { None };
    let length = read.size.min(job.shared.negotiated.max_transfer);
    let (sink, answered) = FuseSink::new(job.responder.clone(), job.shared.pool.clone(), length as usize);
    let read = ReadAt { open: OpenId(read.fh), offset: read.offset, length };
    let result = job.shared.filesystem.read(&job.context, read, sink).await;
    *done = result.map(|count| count as u64);
    // Of a file that is nobody else's to write, and that nobody here writes, the pages are whole,
    // whatever becomes of it, and so are those that are not at its end.
    let is_nobodys = hold.is_some() && job.shared.nodes.marks(job.header.nodeid).cached_writers == 0;
    let is_whole = is_nobodys || result.is_ok_and(|count| count == read.length as usize);
    let _turn = if is_whole { turn } else { turn.map(Turn::lingering) };
    if let Ok(count) = result {
        job.shared.metrics.bytes_read.add(count as u64);
        if fills && count < length as usize {
            // The kernel takes it for the end.
            job.shared.nodes.mark(job.header.nodeid, |marks| marks.tell_size(read.offset + count as u64));
        }
    }
    match result {
        _ if answered.load(Ordering::SeqCst) => Ok(Outcome::Delivered),
        Ok(_) => Err(Errno::EIO), // a file system that says it delivered, and did not
        Err(errno) => Err(errno),
    }
}

/// The kernel asks for pages, and does not read into the caller's buffer. Those that no lease covers are marked.
fn fill(job: &Job) -> Result<Option<Hold>, Errno> {
    let hold = if job.shared.policy.leases { job.shared.filesystem.hold_data(&job.handle()?) } else { None };
    job.shared.nodes.mark(job.header.nodeid, |marks| marks.fill(hold.is_some()));
    Ok(hold)
}

pub(crate) async fn write(job: &Job) -> Result<Outcome, Errno> {
    const DATA: usize = <InHeader as Field>::SIZE + <WriteIn as Field>::SIZE;
    let (write, data) = job.args(WriteIn::parse)?;
    let size = write.size as usize;
    if data.len() < size {
        return Err(Errno::EINVAL);
    }
    // Pages written back from a mapping go where they were, through whichever open file the kernel found: its flags do not count.
    let flags = if write.write_flags & WRITE_CACHE != 0 { 0 } else { write.flags as i32 };
    let at = WriteAt {
        open: OpenId(write.fh),
        offset: write.offset,
        append: flags & libc::O_APPEND != 0,
        stable: flags & libc::O_SYNC != 0, // contains the bit of O_DSYNC
    };
    let source = Source::Memory(job.frame.slice(DATA..DATA + size));
    let is_of_pages = write.write_flags & WRITE_CACHE != 0; // these change no size
    let takes_turn = if is_of_pages { None } else { Some((at.open, LockKind::Write)) };
    let turn = match takes_turn {
        Some(how) => job.turn(how, (write.offset, write.size)).await?,
        None => None,
    };
    let mut count = Ok(0);
    let outcome = write_in_turn(job, (write, at), (source, is_of_pages), &mut count).await;
    if let Some(turn) = turn {
        turn.end(count).await;
    }
    outcome
}

async fn write_in_turn(
    job: &Job,
    (write, at): (WriteIn, WriteAt),
    (source, is_of_pages): (Source, bool),
    done: &mut Result<u64, Errno>,
) -> Result<Outcome, Errno> {
    let node = job.header.nodeid;
    let turn = if is_of_pages { None } else { job.changes_size(node).await };
    // Through pages: those that it covers whole are filled by it, and whatever it covers is locked
    // until it is answered.
    let is_cached = !is_of_pages && job.shared.reads_pages(at.open);
    let hold = if is_cached { fill(job)? } else { None };
    let written = job.shared.filesystem.write(&job.context, at, source).await;
    *done = written.map(|written| written.count.into());
    let written = written?;
    job.shared.metrics.bytes_written.add(written.count.into());
    if is_of_pages {
        job.changed(node)
    } else {
        let end = write.offset.saturating_add(u64::from(written.count.min(write.size)));
        job.shared.nodes.mark(node, |marks| marks.wrote_to(end));
        // Whose pages nobody else changes has in them what went through them.
        if hold.is_some() { job.changed(node) } else { job.written(node) }
    }
    // Past pages: before Linux 6.6 the kernel leaves those as they were.
    if !(is_of_pages || is_cached || job.shared.policy.maps_direct) && job.shared.nodes.marks(node).has_pages() {
        job.shared.page_drops.drop_now(node).await;
    }
    let out = WriteOut { size: written.count.min(write.size), padding: 0 };
    Ok(Outcome::resized(out.to_vec(), turn).holding(hold))
}

async fn seek(job: &Job) -> Result<Outcome, Errno> {
    let (LseekIn { fh, offset, whence, .. }, _) = job.args(LseekIn::parse)?;
    let to = match whence as i32 {
        libc::SEEK_DATA => SeekTo::Data,
        libc::SEEK_HOLE => SeekTo::Hole,
        _ => return Err(Errno::EINVAL),
    };
    match job.call(Request::Seek { open: OpenId(fh), offset, to }).await {
        Ok(reply) => Ok(Outcome::Done(LseekOut { offset: reply.size()? }.to_vec())),
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Err(Errno::EINVAL), // as lseek(2) says it
        Err(errno) => Err(errno),
    }
}

async fn copy_range(job: &Job) -> Result<Outcome, Errno> {
    let (copy, _) = job.args(CopyFileRangeIn::parse)?;
    if copy.flags != 0 {
        return Err(Errno::EINVAL);
    }
    let wide = job.header.opcode == opcode::COPY_FILE_RANGE_64;
    let length = if wide { copy.len } else { copy.len.min(u64::from(u32::MAX)) };
    let request = Request::CopyRange {
        from: OpenId(copy.fh_in),
        from_offset: copy.off_in,
        to: OpenId(copy.fh_out),
        to_offset: copy.off_out,
        length,
    };
    let turn = job.changes_size(copy.nodeid_out).await;
    let copied = job.call(request).await?.size()?.min(length);
    job.written(copy.nodeid_out);
    let out = match wide {
        true => CopyFileRangeOut { bytes_copied: copied }.to_vec(),
        false => WriteOut { size: copied as u32, padding: 0 }.to_vec(),
    };
    Ok(Outcome::resized(out, turn))
}
