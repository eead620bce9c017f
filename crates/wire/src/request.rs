//! The bodies of requests: who asks, then the fields of the operation.

use std::sync::Arc;

use aqueduct_fs::*;

use crate::BODY_LENGTH_MAX;
use crate::field::*;
use crate::reply_length::compound_reply_length_max;

/// Who asks, as a request says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// As whom.
    pub credential: Credential,
    /// The process on the client's host; 0 when unknown.
    pub pid: u32,
}

/// A count of groups that means: look them up at the server.
const GROUPS_RESOLVE: u16 = u16::MAX;

pub(crate) struct CallerField;
impl Field<'_> for CallerField {
    type Value = Caller;
    fn put(caller: &Caller, out: &mut Vec<u8>) {
        put_caller(&caller.credential, caller.pid, out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Caller, BodyError> {
        let (uid, gid, pid) = (U32::get(reader)?, U32::get(reader)?, U32::get(reader)?);
        let groups = match U16::get(reader)? {
            GROUPS_RESOLVE => Groups::Resolve,
            count if usize::from(count) > GROUPS_MAX => return Err(BodyError::Value("the number of groups")),
            count => {
                let bytes = reader.take(usize::from(count) * 4, "the groups")?;
                let groups = bytes.chunks_exact(4).map(|gid| u32::from_le_bytes([gid[0], gid[1], gid[2], gid[3]]));
                Groups::Known(groups.collect::<Arc<[u32]>>())
            }
        };
        Ok(Caller { credential: Credential { uid, gid, groups }, pid })
    }
}

/// uid, gid, pid, the number of groups, the groups. A caller with more than [`GROUPS_MAX`] is looked up at the server: to leave some out could
/// grant what membership denies (mode 0604 shuts the group out, and lets others in).
pub(crate) fn put_caller(credential: &Credential, pid: u32, out: &mut Vec<u8>) {
    U32::put(&credential.uid, out);
    U32::put(&credential.gid, out);
    U32::put(&pid, out);
    match &credential.groups {
        Groups::Known(groups) if groups.len() <= GROUPS_MAX => {
            U16::put(&(groups.len() as u16), out);
            groups.iter().for_each(|gid| U32::put(gid, out));
        }
        Groups::Known(_) | Groups::Resolve | Groups::ResolveSquashed(_) => U16::put(&GROUPS_RESOLVE, out),
    }
}

/// One table for every operation: its code, its name, its fields in their order on the wire.
macro_rules! operations {
    ($($variant:ident = $code:literal { $($field:ident: $kind:ty),* })*) => {
        /// The code of an operation, as it stands in a header. Codes are never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        #[allow(missing_docs, reason = "each is the request of its name, or described in PROTOCOL.md")]
        pub enum Op {
            Attach = 1, Status = 2, Compound = 3, Read = 4, Write = 5, Recovered = 6, Fetch = 7, List = 8,
            Locks = 9, ReleaseLocks = 10, Map = 11, GiveUp = 12, Right = 13, Revoke = 14, Beat = 15, Transfer = 112, Stage = 113,
            $($variant = $code,)*
        }

        impl Op {
            /// Every operation.
            pub const ALL: &'static [Op] = &[Op::Attach, Op::Status, Op::Compound, Op::Read, Op::Write, Op::Recovered, Op::Fetch, Op::List, Op::Locks, Op::ReleaseLocks, Op::Map, Op::GiveUp, Op::Right, Op::Revoke, Op::Beat, $(Op::$variant,)* Op::Transfer, Op::Stage];

            /// The operation of a code; `None` for one that this version does not have.
            pub const fn from_code(code: u16) -> Option<Op> {
                match code {
                    1 => Some(Op::Attach), 2 => Some(Op::Status), 3 => Some(Op::Compound), 4 => Some(Op::Read), 5 => Some(Op::Write),
                    6 => Some(Op::Recovered), 7 => Some(Op::Fetch), 8 => Some(Op::List), 9 => Some(Op::Locks), 10 => Some(Op::ReleaseLocks),
                    11 => Some(Op::Map), 12 => Some(Op::GiveUp), 13 => Some(Op::Right), 14 => Some(Op::Revoke), 15 => Some(Op::Beat), 112 => Some(Op::Transfer), 113 => Some(Op::Stage),
                    $($code => Some(Op::$variant),)*
                    _ => None,
                }
            }

            /// Its name, for logs.
            pub const fn name(self) -> &'static str {
                match self {
                    Op::Attach => "Attach", Op::Status => "Status", Op::Compound => "Compound", Op::Read => "Read", Op::Write => "Write",
                    Op::Recovered => "Recovered", Op::Fetch => "Fetch", Op::List => "List", Op::Locks => "Locks", Op::ReleaseLocks => "ReleaseLocks",
                    Op::Map => "Map", Op::GiveUp => "GiveUp", Op::Right => "Right", Op::Revoke => "Revoke", Op::Beat => "Beat", Op::Transfer => "Transfer", Op::Stage => "Stage",
                    $(Op::$variant => stringify!($variant),)*
                }
            }

            /// The operation of a request.
            pub const fn of(request: &Request<'_>) -> Op {
                match request { $(Request::$variant { .. } => Op::$variant,)* }
            }
        }

        /// The fields of a request, without the caller.
        fn put_request(request: &Request<'_>, out: &mut Vec<u8>) {
            match request { $(Request::$variant { $($field),* } => { $(<$kind>::put($field, out);)* let _ = &out; })* }
        }

        fn get_request<'a>(op: Op, reader: &mut Reader<'a>) -> Result<Request<'a>, BodyError> {
            match op {
                $(Op::$variant => Ok(Request::$variant { $($field: <$kind>::get(reader)?),* }),)*
                Op::Attach | Op::Status | Op::Compound | Op::Read | Op::Write | Op::Recovered | Op::Fetch | Op::List | Op::Locks
                | Op::ReleaseLocks | Op::Map | Op::GiveUp | Op::Right | Op::Revoke | Op::Beat | Op::Transfer | Op::Stage => {
                    Err(BodyError::Value("the operation"))
                }
            }
        }
    };
}

operations! {
    Root = 16 {}
    Lookup = 17 { parent: HandleOrLatest, name: Name }
    GetAttr = 18 { handle: HandleOrLatest, open: Maybe<Open> }
    SetAttr = 19 { handle: HandleOrLatest, open: Maybe<Open>, set: NewAttr }
    ReadLink = 20 { handle: HandleOrLatest }
    Access = 21 { handle: HandleOrLatest, mask: Mask }
    Statfs = 22 { handle: HandleOrLatest }
    Symlink = 32 { parent: HandleOrLatest, name: Name, text: LinkText }
    MakeNode = 33 { parent: HandleOrLatest, name: Name, mode: U32, umask: U32, rdev: U64 }
    MakeDirectory = 34 { parent: HandleOrLatest, name: Name, mode: U32, umask: U32 }
    Unlink = 35 { parent: HandleOrLatest, name: Name }
    RemoveDirectory = 36 { parent: HandleOrLatest, name: Name }
    Rename = 37 { parent: HandleOrLatest, name: Name, new_parent: HandleOrLatest, new_name: Name, flags: RenameMode }
    Link = 38 { handle: HandleOrLatest, parent: HandleOrLatest, name: Name }
    Open = 48 { handle: HandleOrLatest, flags: OpenMode }
    Create = 49 { parent: HandleOrLatest, name: Name, mode: U32, umask: U32, flags: OpenMode }
    CreateUnnamed = 50 { parent: HandleOrLatest, mode: U32, umask: U32, flags: OpenMode }
    Reopen = 51 { open: Open, token: Token }
    Flush = 52 { open: Open, owner: U64 }
    Release = 53 { open: Open }
    Sync = 54 { open: Open, data_only: Bool }
    Commit = 55 { open: Open, offset: U64, length: U64 }
    Fallocate = 56 { open: Open, offset: U64, length: U64, flags: FallocateMode }
    Seek = 57 { open: Open, offset: U64, to: SeekKind }
    CopyRange = 58 { from: Open, from_offset: U64, to: Open, to_offset: U64, length: U64 }
    Checksum = 59 { open: Open, offset: U64, length: U64, kind: SumOf, past_cache: Bool }
    PutFiles = 60 { parent: HandleOrLatest, files: PutPacked, stable: Bool }
    Layout = 61 { handle: HandleOrLatest, open: Open }
    OpenDirectory = 64 { handle: HandleOrLatest }
    ReadDirectory = 65 { open: Open, cookie: U64, size: PageSize, plus: Bool }
    ReleaseDirectory = 66 { open: Open }
    SyncDirectory = 67 { open: Open, data_only: Bool }
    GetXattr = 80 { handle: HandleOrLatest, name: XattrName, size: U32 }
    SetXattr = 81 { handle: HandleOrLatest, name: XattrName, value: XattrValue, mode: XattrWhen }
    ListXattr = 82 { handle: HandleOrLatest, size: U32 }
    RemoveXattr = 83 { handle: HandleOrLatest, name: XattrName }
    GetLock = 96 { open: Open, owner: U64, space: Space, lock: LockRange }
    SetLock = 97 { open: Open, owner: U64, space: Space, lock: LockRange, wait: Bool }
}

/// Appends the body of a request: the caller, then the fields.
pub fn encode_request(context: &Context, request: &Request<'_>, out: &mut Vec<u8>) -> Op {
    put_caller(&context.credential, context.pid, out);
    put_request(request, out);
    Op::of(request)
}

/// The caller and the request of a body, every field checked.
pub fn decode_request(op: Op, body: &[u8]) -> Result<(Caller, Request<'_>), BodyError> {
    let mut reader = Reader::new(body);
    let caller = reader.get::<CallerField>()?;
    let request = get_request(op, &mut reader)?;
    reader.end()?;
    if refers_to_latest(&request) { Err(BodyError::Value("a handle")) } else { Ok((caller, request)) }
}

/// Appends the body of a READ.
pub fn encode_read(context: &Context, read: &ReadAt, out: &mut Vec<u8>) {
    put_caller(&context.credential, context.pid, out);
    Open::put(&read.open, out);
    U64::put(&read.offset, out);
    U32::put(&read.length, out);
}

/// The caller and the range of a READ.
pub fn decode_read(body: &[u8]) -> Result<(Caller, ReadAt), BodyError> {
    let mut reader = Reader::new(body);
    let caller = reader.get::<CallerField>()?;
    let read = ReadAt { open: reader.get::<Open>()?, offset: reader.get::<U64>()?, length: reader.get::<U32>()? };
    reader.end()?;
    if read.length as usize > TRANSFER_SIZE_MAX {
        Err(BodyError::Value("the length of a read"))
    } else {
        Ok((caller, read))
    }
}

/// Appends the body of a WRITE; its data are the payload.
pub fn encode_write(context: &Context, write: &WriteAt, out: &mut Vec<u8>) {
    put_caller(&context.credential, context.pid, out);
    Open::put(&write.open, out);
    U64::put(&write.offset, out);
    Bool::put(&write.append, out);
    Bool::put(&write.stable, out);
}

/// The caller and the place of a WRITE.
pub fn decode_write(body: &[u8]) -> Result<(Caller, WriteAt), BodyError> {
    let mut reader = Reader::new(body);
    let caller = reader.get::<CallerField>()?;
    let open = reader.get::<Open>()?;
    let write =
        WriteAt { open, offset: reader.get::<U64>()?, append: reader.get::<Bool>()?, stable: reader.get::<Bool>()? };
    reader.end()?;
    Ok((caller, write))
}

/// Appends the body of a STAGE: what its data, the payload, are called.
pub fn encode_stage(id: &[u8; 16], out: &mut Vec<u8>) {
    out.extend_from_slice(id);
}

/// What the data of a STAGE are called.
pub fn decode_stage(body: &[u8]) -> Result<[u8; 16], BodyError> {
    body.try_into().map_err(|_| BodyError::Value("the id of what is staged"))
}

/// Appends the body of a TRANSFER: the caller, then text (JSON) to the end of the body.
pub fn encode_transfer(context: &Context, text: &str, out: &mut Vec<u8>) {
    put_caller(&context.credential, context.pid, out);
    out.extend_from_slice(text.as_bytes());
}

/// The caller and the text of a TRANSFER.
pub fn decode_transfer(body: &[u8]) -> Result<(Caller, &str), BodyError> {
    let mut reader = Reader::new(body);
    let caller = reader.get::<CallerField>()?;
    let text = reader.rest();
    Ok((caller, std::str::from_utf8(text).map_err(|_| BodyError::Value("the text"))?))
}

/// The most requests of one compound.
pub const COMPOUND_MAX: usize = 16;

/// In a compound: the latest open.
pub const OPEN_LATEST: OpenId = OpenId(u64::MAX);

/// Appends the body of a COMPOUND: the caller, the number of requests (u16), each with its code (u16) and its fields. An empty handle stands for
/// the inode of the latest reply that has one, [`OPEN_LATEST`] for the latest open. At most [`COMPOUND_MAX`] requests, whose replies fit into one
/// body at their longest: others are refused when they are decoded.
pub fn encode_compound(context: &Context, requests: &[Request<'_>], out: &mut Vec<u8>) {
    put_caller(&context.credential, context.pid, out);
    U16::put(&requests.len().try_into().unwrap_or(u16::MAX), out);
    for request in requests {
        U16::put(&(Op::of(request) as u16), out);
        put_request(request, out);
    }
}

/// The caller and the requests of a COMPOUND.
pub fn decode_compound(body: &[u8]) -> Result<(Caller, Vec<Request<'_>>), BodyError> {
    let mut reader = Reader::new(body);
    let caller = reader.get::<CallerField>()?;
    let count = usize::from(reader.get::<U16>()?);
    if count == 0 || count > COMPOUND_MAX {
        return Err(BodyError::Value("the number of requests"));
    }
    let mut requests = Vec::with_capacity(count);
    for _ in 0..count {
        let op = Op::from_code(reader.get::<U16>()?).ok_or(BodyError::Value("the operation"))?;
        requests.push(get_request(op, &mut reader)?);
    }
    reader.end()?;
    if compound_reply_length_max(&requests) > BODY_LENGTH_MAX {
        return Err(BodyError::Value("the sum of what the replies may hold"));
    }
    Ok((caller, requests))
}

/// Applies `handle` and `open` to every handle and open of a request.
fn map_references<'a>(
    request: &mut Request<'a>,
    handle: &mut dyn FnMut(&mut &'a [u8]),
    open: &mut dyn FnMut(&mut OpenId),
) {
    use Request::*;
    match request {
        Lookup { parent, .. }
        | Symlink { parent, .. }
        | MakeNode { parent, .. }
        | MakeDirectory { parent, .. }
        | Unlink { parent, .. }
        | RemoveDirectory { parent, .. }
        | Create { parent, .. }
        | CreateUnnamed { parent, .. }
        | PutFiles { parent, .. } => handle(parent),
        ReadLink { handle: of }
        | Access { handle: of, .. }
        | Statfs { handle: of }
        | Open { handle: of, .. }
        | OpenDirectory { handle: of }
        | GetXattr { handle: of, .. }
        | SetXattr { handle: of, .. }
        | ListXattr { handle: of, .. }
        | RemoveXattr { handle: of, .. } => handle(of),
        GetAttr { handle: of, open: through } | SetAttr { handle: of, open: through, .. } => {
            handle(of);
            through.iter_mut().for_each(open);
        }
        Layout { handle: of, open: through } => {
            handle(of);
            open(through);
        }
        Rename { parent, new_parent, .. } => {
            handle(parent);
            handle(new_parent);
        }
        Link { handle: of, parent, .. } => {
            handle(of);
            handle(parent);
        }
        CopyRange { from, to, .. } => {
            open(from);
            open(to);
        }
        Flush { open: of, .. }
        | Release { open: of }
        | Sync { open: of, .. }
        | Commit { open: of, .. }
        | Fallocate { open: of, .. }
        | Seek { open: of, .. }
        | Checksum { open: of, .. }
        | ReadDirectory { open: of, .. }
        | ReleaseDirectory { open: of }
        | SyncDirectory { open: of, .. }
        | GetLock { open: of, .. }
        | SetLock { open: of, .. } => open(of),
        Root | Reopen { .. } => {}
    }
}

fn refers_to_latest(request: &Request<'_>) -> bool {
    let mut found = false;
    map_references(&mut request.clone(), &mut |handle| found |= handle.is_empty(), &mut |_| {});
    found
}

/// Puts the latest inode and open of a compound where its next request refers to them. A reference to what is not there stays, and fails as an
/// invalid handle or open does.
pub fn substitute_latest<'a>(mut request: Request<'a>, latest: &'a [u8], latest_open: Option<OpenId>) -> Request<'a> {
    let mut handle = |handle: &mut &'a [u8]| {
        if handle.is_empty() {
            *handle = latest;
        }
    };
    let mut open = |open: &mut OpenId| {
        if *open == OPEN_LATEST {
            *open = latest_open.unwrap_or(OPEN_LATEST);
        }
    };
    map_references(&mut request, &mut handle, &mut open);
    request
}
