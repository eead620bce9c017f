//! The bodies of replies. The operation of the request says which fields there are.

use aqueduct_fs::*;

use crate::field::*;
use crate::layout::{get_layout, put_layout};
use crate::request::Op;

/// Appends the body of a reply.
pub fn encode_reply(reply: &Reply, out: &mut Vec<u8>) {
    match reply {
        Reply::Done => {}
        Reply::Entry(entry) => Inode::put(entry, out),
        Reply::Attr(attr) => PackedAttr::put(attr, out),
        Reply::Bytes(bytes) => {
            out.push(TAG_BYTES);
            out.extend_from_slice(bytes);
        }
        Reply::Opened(opened) => OpenResult::put(opened, out),
        Reply::Created(entry, opened) => {
            Inode::put(entry, out);
            OpenResult::put(opened, out);
        }
        Reply::Directory(page) => {
            ListedHow::put(&(page.end, page.exact), out);
            out.extend_from_slice(page.packed());
        }
        Reply::Statfs(statfs) => put_statfs(statfs, out),
        Reply::Size(size) => {
            out.push(TAG_SIZE);
            U64::put(size, out);
        }
        Reply::Lock(lock) => LockRange::put(lock, out),
        Reply::Sum(sum) => {
            out.extend_from_slice(&sum.value);
            Bool::put(&sum.is_past_cache, out);
        }
        Reply::Put(files) => {
            U16::put(&(files.len() as u16), out);
            for file in files {
                U32::put(&file.as_ref().err().map_or(0, |error| error.raw() as u32), out);
                file.iter().for_each(|entry| Inode::put(entry, out));
            }
        }
        Reply::Layout(layout) => put_layout(layout, out),
        Reply::Written(written) => {
            U32::put(&written.count, out);
            U64::put(&written.verifier, out);
            U64::put(&written.offset, out);
        }
    }
}

/// Before a size, where the reply may be bytes instead.
const TAG_SIZE: u8 = 0;
/// Before bytes, to the end of the body.
const TAG_BYTES: u8 = 1;

/// The reply of a body, of a kind that answers `op`.
pub fn decode_reply(op: Op, body: &[u8]) -> Result<Reply, BodyError> {
    let mut reader = Reader::new(body);
    let reply = match op {
        Op::Root | Op::Lookup | Op::Symlink | Op::MakeNode | Op::MakeDirectory | Op::Link => {
            Reply::Entry(reader.get::<Inode>()?)
        }
        Op::GetAttr | Op::SetAttr => Reply::Attr(reader.get::<PackedAttr>()?),
        Op::Open | Op::Reopen | Op::OpenDirectory => Reply::Opened(reader.get::<OpenResult>()?),
        Op::Create | Op::CreateUnnamed => Reply::Created(reader.get::<Inode>()?, reader.get::<OpenResult>()?),
        Op::ReadDirectory => {
            let how = reader.get::<ListedHow>()?;
            Reply::Directory(directory_page(reader.rest(), how)?)
        }
        Op::Statfs => Reply::Statfs(get_statfs(&mut reader)?),
        Op::ReadLink | Op::GetXattr | Op::ListXattr | Op::Seek | Op::CopyRange => tagged(op, &mut reader)?,
        Op::GetLock => Reply::Lock(reader.get::<LockRange>()?),
        Op::PutFiles => Reply::Put(files_put(&mut reader)?),
        Op::Layout => Reply::Layout(get_layout(&mut reader)?),
        Op::Checksum => {
            let mut value = [0; 32];
            value.copy_from_slice(reader.take(32, "a sum")?);
            Reply::Sum(Sum { value, is_past_cache: reader.get::<Bool>()? })
        }
        Op::Write | Op::Commit => {
            let written =
                Written { count: reader.get::<U32>()?, verifier: reader.get::<U64>()?, offset: reader.get::<U64>()? };
            if written.count as usize > TRANSFER_SIZE_MAX {
                return Err(BodyError::Value("the count of a write"));
            }
            Reply::Written(written)
        }
        Op::Read
        | Op::Access
        | Op::Unlink
        | Op::RemoveDirectory
        | Op::Rename
        | Op::Flush
        | Op::Release
        | Op::Sync
        | Op::Fallocate
        | Op::ReleaseDirectory
        | Op::SyncDirectory
        | Op::SetXattr
        | Op::RemoveXattr
        | Op::SetLock => Reply::Done,
        Op::Attach
        | Op::Status
        | Op::Compound
        | Op::Recovered
        | Op::Fetch
        | Op::List
        | Op::Locks
        | Op::ReleaseLocks
        | Op::Map
        | Op::GiveUp
        | Op::Right
        | Op::Revoke
        | Op::Beat
        | Op::Transfer
        | Op::Stage => {
            return Err(BodyError::Value("the operation"));
        }
    };
    reader.end()?;
    Ok(reply)
}

fn files_put(reader: &mut Reader<'_>) -> Result<Vec<Result<Entry, Errno>>, BodyError> {
    let count = usize::from(reader.get::<U16>()?);
    if count > put::PUT_FILES_MAX {
        return Err(BodyError::Value("the number of files"));
    }
    let one = |_| match reader.get::<U32>()? {
        0 => Ok(Ok(reader.get::<Inode>()?)),
        error => Ok(Err(Errno::from_raw(error as i32))),
    };
    (0..count).map(one).collect()
}

fn tagged(op: Op, reader: &mut Reader<'_>) -> Result<Reply, BodyError> {
    let (may_be_size, bytes_max) = match op {
        Op::ReadLink => (false, SYMLINK_LENGTH_MAX),
        Op::GetXattr | Op::ListXattr => (true, XATTR_SIZE_MAX),
        _ => (true, 0),
    };
    match reader.get::<U8>()? {
        TAG_SIZE if may_be_size => Ok(Reply::Size(reader.get::<U64>()?)),
        TAG_BYTES if bytes_max > 0 => match reader.rest() {
            bytes if bytes.len() > bytes_max => Err(BodyError::Value("the length of a reply")),
            bytes if op == Op::ReadLink && (bytes.is_empty() || bytes.contains(&0)) => {
                Err(BodyError::Value("a link's text"))
            }
            bytes => Ok(Reply::Bytes(bytes.to_vec())),
        },
        _ => Err(BodyError::Value("the kind of a reply")),
    }
}

fn put_statfs(statfs: &Statfs, out: &mut Vec<u8>) {
    for value in [statfs.blocks, statfs.blocks_free, statfs.blocks_available, statfs.files, statfs.files_free] {
        U64::put(&value, out);
    }
    for value in [statfs.block_size, statfs.fragment_size, statfs.name_length] {
        U32::put(&value, out);
    }
}

fn get_statfs(reader: &mut Reader<'_>) -> Result<Statfs, BodyError> {
    Ok(Statfs {
        blocks: reader.get::<U64>()?,
        blocks_free: reader.get::<U64>()?,
        blocks_available: reader.get::<U64>()?,
        files: reader.get::<U64>()?,
        files_free: reader.get::<U64>()?,
        block_size: reader.get::<U32>()?,
        fragment_size: reader.get::<U32>()?,
        name_length: reader.get::<U32>()?,
    })
}

/// Appends the body of a compound's reply: the number of results (u16), each with its status (u32), and if that is 0 its length (u32) and body.
pub fn encode_compound_reply(results: &[Result<Reply, Errno>], out: &mut Vec<u8>) {
    U16::put(&(results.len() as u16), out);
    for result in results {
        match result {
            Err(error) => U32::put(&(error.raw() as u32), out),
            Ok(reply) => {
                let mut body = Vec::new();
                encode_reply(reply, &mut body);
                U32::put(&0, out);
                U32::put(&(body.len() as u32), out);
                out.extend_from_slice(&body);
            }
        }
    }
}

/// The results of a compound of these operations: as many as were executed, and so all of them unless the last is an error.
pub fn decode_compound_reply(ops: &[Op], body: &[u8]) -> Result<Vec<Result<Reply, Errno>>, BodyError> {
    let mut reader = Reader::new(body);
    let count = usize::from(reader.get::<U16>()?);
    if count > ops.len() {
        return Err(BodyError::Value("the number of results"));
    }
    let mut results = Vec::with_capacity(count);
    for op in &ops[..count] {
        match reader.get::<U32>()? {
            0 => {
                let length = reader.get::<U32>()? as usize;
                results.push(Ok(decode_reply(*op, reader.take(length, "a result")?)?));
            }
            status => results.push(Err(Errno::from_raw(status as i32))),
        }
    }
    reader.end()?;
    let failed = results.iter().position(Result::is_err);
    if failed.map_or(count != ops.len(), |at| at + 1 != count) {
        return Err(BodyError::Value("the number of results"));
    }
    Ok(results)
}
