//! Names: looking up, making, removing, renaming, linking.

use aqueduct_fs::{Errno, RenameFlags, Reply, Request};

use crate::abi::{Field, LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn, opcode};
use crate::convert::{decode_device, name, text};
use crate::dispatch::{Job, Outcome};

pub(crate) async fn answer(job: &Job) -> Result<Outcome, Errno> {
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
            let text = job.call(Request::ReadLink { handle: &job.handle()? }).await?.bytes()?;
            Ok(Outcome::Done(text))
        }
        _ => remove(job).await,
    }
}

fn entry(job: &Job, reply: Reply) -> Result<Outcome, Errno> {
    let (out, grant) = job.entry(&reply.entry()?);
    Ok(Outcome::Granted(out.to_vec(), grant))
}

async fn lookup(job: &Job) -> Result<Outcome, Errno> {
    let (parent, (name, _)) = (job.handle()?, name(job.body())?);
    entry(job, job.call(Request::Lookup { parent: &parent, name }).await?)
}

async fn symlink(job: &Job) -> Result<Outcome, Errno> {
    let (name, rest) = name(job.body())?;
    let (text, _) = text(rest)?;
    entry(job, job.call(Request::Symlink { parent: &job.handle()?, name, text }).await?)
}

async fn make_node(job: &Job) -> Result<Outcome, Errno> {
    let (make, rest) = job.args(MknodIn::parse)?;
    let (parent, (name, _)) = (job.handle()?, name(rest)?);
    let MknodIn { mode, umask, rdev, .. } = make;
    let request = Request::MakeNode { parent: &parent, name, mode, umask, rdev: decode_device(rdev) };
    entry(job, job.call(request).await?)
}

async fn make_directory(job: &Job) -> Result<Outcome, Errno> {
    let (MkdirIn { mode, umask }, rest) = job.args(MkdirIn::parse)?;
    let (parent, (name, _)) = (job.handle()?, name(rest)?);
    entry(job, job.call(Request::MakeDirectory { parent: &parent, name, mode, umask }).await?)
}

async fn remove(job: &Job) -> Result<Outcome, Errno> {
    let (parent, (name, _)) = (job.handle()?, name(job.body())?);
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
    let request = Request::Rename { parent: &parent, name: old, new_parent: &new_parent, new_name: new, flags };
    job.call(request).await?.done()?;
    Ok(Outcome::Done(Vec::new()))
}

async fn link(job: &Job) -> Result<Outcome, Errno> {
    let (link, rest) = job.args(LinkIn::parse)?;
    let (name, _) = name(rest)?;
    let (handle, parent) = (job.handle_of(link.oldnodeid)?, job.handle()?);
    entry(job, job.call(Request::Link { handle: &handle, parent: &parent, name }).await?)
}
