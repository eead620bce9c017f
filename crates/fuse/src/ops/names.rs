//! Names: looking up, making, removing, renaming, linking.

use aqueduct_fs::{Errno, RenameFlags, Request};
use aqueduct_worker::Group;

use crate::abi::{EntryOut, Field, LinkIn, MkdirIn, MknodIn, ROOT_ID, Rename2In, RenameIn, opcode};
use crate::convert::{self, decode_device, name, text};
use crate::hot_names::Changing;
use crate::job::{Job, Outcome};

pub(crate) async fn answer(job: &Job) -> Result<Outcome, Errno> {
    if job.header.opcode != opcode::LOOKUP {
        job.shared.listings.settle_all(job.header.nodeid);
    }
    if !matches!(job.header.opcode, opcode::LOOKUP | opcode::READLINK) {
        job.shared.distrust_listing(job.header.nodeid);
    }
    match job.header.opcode {
        opcode::LOOKUP => lookup(job).await,
        opcode::SYMLINK => symlink(job).await,
        opcode::MKNOD => make_node(job).await,
        opcode::MKDIR => make_directory(job).await,
        opcode::RENAME => {
            let (rename, names) = job.args(RenameIn::parse)?;
            self::rename(job, rename.newdir, 0, names).await
        }
        opcode::RENAME2 => {
            let (rename, names) = job.args(Rename2In::parse)?;
            self::rename(job, rename.newdir, rename.flags, names).await
        }
        opcode::LINK => link(job).await,
        opcode::READLINK => {
            let (reply, kept) = job.ask_value(Request::ReadLink { handle: &job.handle()? }).await?;
            Ok(Outcome::kept(reply.bytes()?, kept))
        }
        _ => remove(job).await,
    }
}

/// Asks for a new name, and tells the kernel of its inode.
async fn enter(job: &Job, name: &[u8], request: Request<'_>) -> Result<Outcome, Errno> {
    let (reply, kept) = job.ask_value(request).await?;
    let (out, grant) = job.made(&reply.entry()?, kept);
    job.named(out.nodeid, name);
    Ok(Outcome::Granted(out.to_vec(), grant))
}

async fn lookup(job: &Job) -> Result<Outcome, Errno> {
    let (parent, (name, _)) = (job.handle()?, name(job.body())?);
    match job.ask(Request::Lookup { parent: &parent, name }).await {
        // Node id 0 says that there is no such name, and will be none for so long.
        (Err(Errno::ENOENT), kept) if job.shared.policy.leases && !kept.names.is_zero() => {
            let (entry_valid, entry_valid_nsec) = convert::timeout(kept.names);
            let out = EntryOut { entry_valid, entry_valid_nsec, ..EntryOut::default() };
            Ok(Outcome::kept(out.to_vec(), kept))
        }
        (result, kept) => {
            let (entry, hot_names) = (result?.entry()?, kept.hot_names);
            let (mut out, mut grant) = job.entry(&entry, kept);
            job.named(out.nodeid, name);
            if entry.attr.is_directory() {
                forget_old_place(job, out.nodeid, name).await;
                grant.told = job.shared.hot_names.ask(job.header.nodeid, name, out.nodeid, hot_names);
            }
            if let Some(told) = &grant.told {
                (out.entry_valid, out.entry_valid_nsec) = convert::timeout(told.valid);
            }
            Ok(Outcome::Granted(out.to_vec(), grant))
        }
    }
}

/// The kernel is about to find a directory under a name: an entry that it has of it elsewhere
/// would be in its way.
async fn forget_old_place(job: &Job, node: u64, name: &[u8]) {
    if node == ROOT_ID {
        return;
    }
    match job.shared.nodes.places.found(node, job.header.nodeid, name) {
        Some(old) => job.shared.entry_drops.drop_soon(node, old).await,
        None => job.shared.entry_drops.settle(node).await,
    }
}

async fn symlink(job: &Job) -> Result<Outcome, Errno> {
    let (name, rest) = name(job.body())?;
    let (text, _) = text(rest)?;
    enter(job, name, Request::Symlink { parent: &job.handle()?, name, text }).await
}

async fn make_node(job: &Job) -> Result<Outcome, Errno> {
    let (make, rest) = job.args(MknodIn::parse)?;
    let (parent, (name, _)) = (job.handle()?, name(rest)?);
    let MknodIn { mode, umask, rdev, .. } = make;
    let request = Request::MakeNode { parent: &parent, name, mode, umask, rdev: decode_device(rdev) };
    enter(job, name, request).await
}

async fn make_directory(job: &Job) -> Result<Outcome, Errno> {
    let (MkdirIn { mode, umask }, rest) = job.args(MkdirIn::parse)?;
    let (parent, (name, _)) = (job.handle()?, name(rest)?);
    let (reply, kept) = job.ask_value(Request::MakeDirectory { parent: &parent, name, mode, umask }).await?;
    let (out, grant) = job.made(&reply.entry()?, kept);
    job.shared.nodes.places.found(out.nodeid, job.header.nodeid, name);
    Ok(Outcome::Granted(out.to_vec(), grant))
}

async fn remove(job: &Job) -> Result<Outcome, Errno> {
    let (parent, (name, _)) = (job.handle()?, name(job.body())?);
    let is_kept = job.shared.policy.hot_names && job.header.opcode == opcode::RMDIR;
    let _changing = if is_kept { Some(job.shared.hot_names.change(job.header.nodeid, name).await) } else { None };
    let request = match job.header.opcode {
        opcode::UNLINK => Request::Unlink { parent: &parent, name },
        _ => Request::RemoveDirectory { parent: &parent, name },
    };
    job.call(request).await?.done()?;
    Ok(Outcome::Done(Vec::new()))
}

async fn rename(job: &Job, new_directory: u64, flags: u32, names: &[u8]) -> Result<Outcome, Errno> {
    let flags = RenameFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
    let (old, rest) = name(names)?;
    let (new, _) = name(rest)?;
    let (parent, new_parent) = (job.handle()?, job.handle_of(new_directory)?);
    job.shared.listings.settle_all(new_directory);
    job.shared.distrust_listing(new_directory);
    let _changing = changes_both(job, (job.header.nodeid, old), (new_directory, new)).await;
    let request = Request::Rename { parent: &parent, name: old, new_parent: &new_parent, new_name: new, flags };
    let renamed = job.call(request).await;
    if job.shared.policy.names {
        // The kernel takes what it knows of the old name to the new one, with the time that it had left, though there may be no lease on its directory.
        let left = job.shared.forget_all_names();
        if let Some(group) = Group::current().filter(|_| !left.is_zero()) {
            group.sleep(left).await;
        }
    }
    renamed?.done()?;
    let exchange = flags.contains(RenameFlags::EXCHANGE);
    job.shared.nodes.places.renamed((job.header.nodeid, old), (new_directory, new), exchange);
    Ok(Outcome::Done(Vec::new()))
}

/// Waits until the kernel has forgotten both names, if it keeps such: it would take what it knows
/// of the one to the other, with the time that it had left.
async fn changes_both(job: &Job, old: (u64, &[u8]), new: (u64, &[u8])) -> Option<[Changing; 2]> {
    let names = &job.shared.hot_names;
    if !job.shared.policy.hot_names {
        return None;
    }
    Some([names.change(old.0, old.1).await, names.change(new.0, new.1).await])
}

async fn link(job: &Job) -> Result<Outcome, Errno> {
    let (link, rest) = job.args(LinkIn::parse)?;
    let (name, _) = name(rest)?;
    let (handle, parent) = (job.handle_of(link.oldnodeid)?, job.handle()?);
    enter(job, name, Request::Link { handle: &handle, parent: &parent, name }).await
}
