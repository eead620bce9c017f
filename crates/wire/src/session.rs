//! The bodies of the frames around requests: attaching, cancelling.

use aqueduct_fs::Entry;

use crate::field::*;

/// The longest name of an export in bytes: that of a path (PATH_MAX of Linux).
pub const EXPORT_NAME_LENGTH_MAX: usize = 4096;

pub(crate) fn get_text<'a>(
    reader: &mut Reader<'a>,
    length_max: usize,
    what: &'static str,
) -> Result<&'a str, BodyError> {
    let bytes = reader.get::<Text>()?;
    if bytes.len() > length_max {
        return Err(BodyError::Value(what));
    }
    std::str::from_utf8(bytes).map_err(|_| BodyError::Value(what))
}

/// Asks for an export: the body of an ATTACH request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach<'a> {
    /// Its name.
    pub export: &'a str,
    /// The client will change nothing.
    pub read_only: bool,
}

/// Answers ATTACH. With status ENOENT the body is the names of the exports there are, one a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachReply {
    /// The root of the export.
    pub root: Entry,
    /// Its number.
    pub export_id: u32,
    /// Nothing may be changed.
    pub read_only: bool,
    /// How old what is kept under leases may become, in milliseconds, because others than this server may change it; 0: the leases say it all.
    pub age_max: u32,
    /// A caller's own ids do not tell what it may do: all act as one user, or under other ids.
    pub one_user: bool,
}

impl<'a> Attach<'a> {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Text::put(&self.export.as_bytes(), out);
        Bool::put(&self.read_only, out);
    }

    /// The request of a body.
    pub fn decode(body: &'a [u8]) -> Result<Attach<'a>, BodyError> {
        let mut reader = Reader::new(body);
        let export = get_text(&mut reader, EXPORT_NAME_LENGTH_MAX, "the export's name")?;
        let attach = Attach { export, read_only: reader.get::<Bool>()? };
        reader.end().map(|()| attach)
    }
}

impl AttachReply {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        Inode::put(&self.root, out);
        U32::put(&self.export_id, out);
        Bool::put(&self.read_only, out);
        U32::put(&self.age_max, out);
        Bool::put(&self.one_user, out);
    }

    /// The answer of a body.
    pub fn decode(body: &[u8]) -> Result<AttachReply, BodyError> {
        let mut reader = Reader::new(body);
        let reply = AttachReply {
            root: reader.get::<Inode>()?,
            export_id: reader.get::<U32>()?,
            read_only: reader.get::<Bool>()?,
            age_max: reader.get::<U32>()?,
            one_user: reader.get::<Bool>()?,
        };
        reader.end().map(|()| reply)
    }
}

/// Appends the body of CANCEL: the id of the request.
pub fn encode_cancel(request: u64, out: &mut Vec<u8>) {
    U64::put(&request, out);
}

/// Appends the body of RELEASE LOCKS: the session whose locks are to be released.
pub fn encode_release_locks(session: u64, out: &mut Vec<u8>) {
    U64::put(&session, out);
}

/// Appends the body of an administrator's STATUS: the number from which on slow operations are to
/// be told.
pub fn encode_slow(from: u64, out: &mut Vec<u8>) {
    U64::put(&from, out);
}

/// The number of an administrator's STATUS.
pub fn decode_slow(body: &[u8]) -> Result<u64, BodyError> {
    let mut reader = Reader::new(body);
    let from = reader.get::<U64>()?;
    reader.end().map(|()| from)
}

/// The session of a RELEASE LOCKS.
pub fn decode_release_locks(body: &[u8]) -> Result<u64, BodyError> {
    let mut reader = Reader::new(body);
    let session = reader.get::<U64>()?;
    reader.end().map(|()| session)
}

/// The id of the request that a CANCEL is about.
pub fn decode_cancel(body: &[u8]) -> Result<u64, BodyError> {
    let mut reader = Reader::new(body);
    let request = reader.get::<U64>()?;
    reader.end().map(|()| request)
}

/// What became of a cancelled request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It does not wait: its reply has been sent or will be. If that is PENDING, it has begun to wait since, and CANCEL has to be sent again.
    Done,
    /// It waited, and no longer does: its COMPLETION says EINTR, or success where it was granted at the last moment.
    Never,
}

/// The body of CANCEL's reply: the outcome as a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelReply {
    /// What became of it.
    pub outcome: CancelOutcome,
}

impl CancelReply {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self.outcome {
            CancelOutcome::Done => 0,
            CancelOutcome::Never => 1,
        });
    }

    /// The outcome of a body.
    pub fn decode(body: &[u8]) -> Result<CancelReply, BodyError> {
        let mut reader = Reader::new(body);
        let outcome = match reader.get::<U8>()? {
            0 => CancelOutcome::Done,
            1 => CancelOutcome::Never,
            _ => return Err(BodyError::Value("the outcome")),
        };
        reader.end().map(|()| CancelReply { outcome })
    }
}
