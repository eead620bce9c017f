//! Attributes, extended attributes, access, and the figures of the file system.

use std::time::Duration;

use aqueduct_fs::{AccessMask, Errno, OpenId, Reply, Request, Statfs, XattrMode};

use crate::abi::{
    AccessIn, Field, GETATTR_FH, GetattrIn, GetxattrIn, GetxattrOut, ROOT_ID, SetattrIn, SetattrValid, SetxattrIn,
    StatfsOut, StatxIn, StatxOut, opcode,
};
use crate::config::{STATUS_XATTR, StatusPart, UNCHECKED};
use crate::convert;
use crate::job::{Job, Outcome};
use crate::kept::Kept;
use crate::ops::reading;
use crate::sizes::Turn;
use crate::trace::{TRACE_XATTR, may_know};

pub(crate) async fn answer(job: &Job) -> Result<Outcome, Errno> {
    match job.header.opcode {
        opcode::GETATTR => {
            let (get, _) = job.args(GetattrIn::parse)?;
            drop_stale_listing(job).await;
            let open = (get.getattr_flags & GETATTR_FH != 0).then_some(OpenId(get.fh));
            let (attr, kept) = match open.filter(|open| job.shared.reads_pages(*open)) {
                Some(open) => Box::pin(reading::get_attr(job, open)).await?,
                None => job.get_attr(open).await?,
            };
            Ok(job.attr_out(&attr, kept))
        }
        opcode::STATX => {
            let (get, _) = job.args(StatxIn::parse)?;
            drop_stale_listing(job).await;
            let open = (get.getattr_flags & GETATTR_FH != 0).then_some(OpenId(get.fh));
            let (attr, kept) = job.get_attr(open).await?;
            let (attr_valid, attr_valid_nsec) = job.attributes_valid(job.header.nodeid, &attr, &kept);
            job.told(job.header.nodeid, &attr);
            let stat = convert::statx(&attr);
            let out = StatxOut { attr_valid, attr_valid_nsec, stat, ..StatxOut::default() };
            Ok(Outcome::kept(out.to_vec(), kept))
        }
        opcode::SETATTR => set_attr(job).await,
        opcode::STATFS => {
            let figures = job.call(Request::Statfs { handle: &job.handle()? }).await?.statfs()?;
            Ok(Outcome::Done(statfs_out(&figures).to_vec()))
        }
        opcode::ACCESS => {
            let (access, _) = job.args(AccessIn::parse)?;
            let mask = AccessMask::from_bits(access.mask).ok_or(Errno::EINVAL)?;
            job.call(Request::Access { handle: &job.handle()?, mask }).await?.done()?;
            Ok(Outcome::Done(Vec::new()))
        }
        opcode::SETXATTR => set_xattr(job).await,
        opcode::REMOVEXATTR => {
            let (name, _) = convert::text(job.body())?;
            job.call(Request::RemoveXattr { handle: &job.handle()?, name }).await?.done()?;
            Ok(Outcome::Done(Vec::new()))
        }
        _ => get_xattr(job).await,
    }
}

/// Whoever reads a listing from its beginning has the kernel look at the directory first, as anybody does who looks at it: he is to find no pages then of
/// which nobody knows whether they are true.
async fn drop_stale_listing(job: &Job) {
    let (shared, node) = (&job.shared, job.header.nodeid);
    if job.reads_stale_listing(node) {
        shared.distrust_listing(node);
        shared.page_drops.drop_now(node).await;
    }
}

/// The flag KILL_SUIDGID is not looked at: the file system changes the size as the caller, so its kernel decides on the set-id bits.
async fn set_attr(job: &Job) -> Result<Outcome, Errno> {
    let (change, _) = job.args(SetattrIn::parse)?;
    let open = SetattrValid::from_bits_retain(change.valid).contains(SetattrValid::FH).then_some(OpenId(change.fh));
    let set = convert::set_attr(&change)?;
    let resizes = set.size.is_some();
    let turn = if resizes { job.changes_size(job.header.nodeid).await.map(Turn::lingering) } else { None };
    let (reply, kept) = job.ask_value(Request::SetAttr { handle: &job.handle()?, open, set }).await?;
    let attr = reply.attr()?;
    let outcome = job.attr_out(&attr, kept.of_change(job.shared.policy)).with(turn);
    if resizes {
        job.resized(job.header.nodeid, attr.size);
    }
    Ok(outcome)
}

fn statfs_out(figures: &Statfs) -> StatfsOut {
    StatfsOut {
        blocks: figures.blocks,
        bfree: figures.blocks_free,
        bavail: figures.blocks_available,
        files: figures.files,
        ffree: figures.files_free,
        bsize: figures.block_size,
        namelen: figures.name_length,
        frsize: figures.fragment_size,
        ..StatfsOut::default()
    }
}

async fn set_xattr(job: &Job) -> Result<Outcome, Errno> {
    let (set, rest) = job.args(SetxattrIn::parse)?;
    let (name, rest) = convert::text(rest)?;
    let value = rest.get(..set.size as usize).ok_or(Errno::EINVAL)?;
    if job.header.nodeid == ROOT_ID && name == TRACE_XATTR.as_bytes() {
        job.shared.tracer.set(&job.header, value)?;
        return Ok(Outcome::Done(Vec::new()));
    }
    let mode = match set.flags as i32 {
        0 => XattrMode::Any,
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        _ => return Err(Errno::EINVAL),
    };
    job.call(Request::SetXattr { handle: &job.handle()?, name, value, mode }).await?.done()?;
    Ok(Outcome::Done(Vec::new()))
}

/// What the mount tells of itself, if it is asked for that.
fn told(job: &Job, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    if job.header.nodeid != ROOT_ID {
        return Ok(None);
    }
    let name = match name.strip_prefix(UNCHECKED.as_bytes()) {
        Some(own) if own.starts_with(STATUS_XATTR.as_bytes()) || own.starts_with(TRACE_XATTR.as_bytes()) => {
            may_know(&job.header)?;
            own
        }
        _ => name,
    };
    if let Some(behind) = name.strip_prefix(TRACE_XATTR.as_bytes()) {
        return job.shared.tracer.report(&job.header, behind).map(Some);
    }
    Ok(part_of_status(name)?.and_then(|part| job.shared.status(part)).map(String::into_bytes))
}

/// The part of the status that has this name; `None`: it is another attribute.
fn part_of_status(name: &[u8]) -> Result<Option<StatusPart>, Errno> {
    let Some(behind) = name.strip_prefix(STATUS_XATTR.as_bytes()) else { return Ok(None) };
    match behind.strip_prefix(b".") {
        _ if behind.is_empty() => Ok(Some(StatusPart::First)),
        Some(number) => {
            let from = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
            from.map(|from| Some(StatusPart::From(from))).ok_or(Errno::EINVAL)
        }
        None => Ok(None),
    }
}

async fn get_xattr(job: &Job) -> Result<Outcome, Errno> {
    let (get, rest) = job.args(GetxattrIn::parse)?;
    let size = get.size;
    let handle = job.handle()?;
    let (reply, kept) = if job.header.opcode == opcode::LISTXATTR {
        job.ask_value(Request::ListXattr { handle: &handle, size }).await?
    } else {
        let (name, _) = convert::text(rest)?;
        match told(job, name)? {
            Some(text) => (Reply::Bytes(text), Kept::fixed(Duration::ZERO, Duration::ZERO)),
            _ => job.ask_value(Request::GetXattr { handle: &handle, name, size }).await?,
        }
    };
    let length = match &reply {
        Reply::Bytes(bytes) if size != 0 => {
            let fits = bytes.len() <= size as usize;
            return if fits { Ok(Outcome::kept(reply.bytes()?, kept)) } else { Err(Errno::ERANGE) };
        }
        Reply::Bytes(bytes) => bytes.len() as u64,
        Reply::Size(length) => *length,
        _ => return Err(Errno::EPROTO),
    };
    let size = u32::try_from(length).map_err(|_| Errno::E2BIG)?;
    Ok(Outcome::Done(GetxattrOut { size, padding: 0 }.to_vec()))
}
