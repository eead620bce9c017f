//! The fields that bodies are made of: how each is written, read and checked. All integers are little-endian.

use aqueduct_fs::*;

use crate::DIRECTORY_PAGE_MAX;

/// What is wrong with a body. The frame is intact, so the connection goes on; the request gets the errno.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The body ends in the middle of a field.
    #[error("the body ends in the middle of {0}")]
    Short(&'static str),
    /// There is more body than fields.
    #[error("{0} bytes follow the last field")]
    Trailing(usize),
    /// A field has a value that it cannot have.
    #[error("{0} has a value that it cannot have")]
    Value(&'static str),
    /// A name that cannot be one.
    #[error("a name is not possible: {0}")]
    Name(Errno),
    /// An extension that has to be understood.
    #[error("it has an extension of type {0}, which is not known here and has to be")]
    Critical(u16),
}

impl BodyError {
    /// The errno that the request is answered with.
    pub fn errno(&self) -> Errno {
        match self {
            BodyError::Name(errno) => *errno,
            BodyError::Critical(_) => Errno::EOPNOTSUPP,
            _ => Errno::EPROTO,
        }
    }
}

/// Reads a body from its start to its end.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Reader<'a> {
        Reader { rest: body }
    }

    pub(crate) fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], BodyError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(BodyError::Short(what))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], BodyError> {
        self.take(N, what)?.try_into().map_err(|_| BodyError::Short(what))
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn end(self) -> Result<(), BodyError> {
        if self.rest.is_empty() { Ok(()) } else { Err(BodyError::Trailing(self.rest.len())) }
    }

    pub(crate) fn get<F: Field<'a>>(&mut self) -> Result<F::Value, BodyError> {
        F::get(self)
    }
}

/// One kind of field.
pub(crate) trait Field<'a> {
    type Value;
    fn put(value: &Self::Value, out: &mut Vec<u8>);
    fn get(reader: &mut Reader<'a>) -> Result<Self::Value, BodyError>;
}

macro_rules! integers {
    ($($name:ident: $type:ty),*) => {$(
        pub(crate) struct $name;
        impl Field<'_> for $name {
            type Value = $type;
            fn put(value: &$type, out: &mut Vec<u8>) { out.extend_from_slice(&value.to_le_bytes()); }
            fn get(reader: &mut Reader<'_>) -> Result<$type, BodyError> { Ok(<$type>::from_le_bytes(reader.array("an integer")?)) }
        }
    )*};
}
integers! { U8: u8, U16: u16, U32: u32, U64: u64, I64: i64 }

macro_rules! bytes {
    ($($(#[$doc:meta])* $name:ident: $length:ident, $what:literal, $check:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;
        impl<'a> Field<'a> for $name {
            type Value = &'a [u8];
            fn put(value: &&'a [u8], out: &mut Vec<u8>) {
                // What is too long for its length field is too long for every check: it is refused, never mistaken for something shorter.
                $length::put(&value.len().try_into().unwrap_or(<$length as Field<'_>>::Value::MAX), out);
                out.extend_from_slice(value);
            }
            fn get(reader: &mut Reader<'a>) -> Result<&'a [u8], BodyError> {
                let length = $length::get(reader)? as usize;
                let bytes = reader.take(length, $what)?;
                let check: fn(&[u8]) -> Result<(), BodyError> = $check;
                check(bytes).map(|()| bytes)
            }
        }
    )*};
}

fn within(bytes: &[u8], low: usize, high: usize, what: &'static str) -> Result<(), BodyError> {
    if (low..=high).contains(&bytes.len()) { Ok(()) } else { Err(BodyError::Value(what)) }
}

bytes! {
    HandleBytes: U16, "a handle", |bytes| within(bytes, 1, HANDLE_LENGTH_MAX, "a handle");
    /// Inside a compound, where an empty handle means the latest inode.
    HandleOrLatest: U16, "a handle", |bytes| within(bytes, 0, HANDLE_LENGTH_MAX, "a handle");
    Name: U16, "a name", |bytes| check_name(bytes).map_err(BodyError::Name);
    LinkText: U16, "a link's text", |bytes| match bytes {
        [] => Err(BodyError::Name(Errno::ENOENT)),
        _ if bytes.len() > SYMLINK_LENGTH_MAX => Err(BodyError::Name(Errno::ENAMETOOLONG)),
        _ if bytes.contains(&0) => Err(BodyError::Value("a link's text")),
        _ => Ok(()),
    };
    XattrName: U16, "an attribute's name", |bytes| match bytes {
        [] => Err(BodyError::Name(Errno::ERANGE)),
        _ if bytes.len() > XATTR_NAME_LENGTH_MAX => Err(BodyError::Name(Errno::ERANGE)),
        _ if bytes.contains(&0) => Err(BodyError::Value("an attribute's name")),
        _ => Ok(()),
    };
    XattrValue: U32, "an attribute's value", |bytes| match bytes.len() {
        0..=XATTR_SIZE_MAX => Ok(()),
        _ => Err(BodyError::Name(Errno::E2BIG)),
    };
    PutPacked: U32, "a list of files", |bytes| match put::PutFile::unpack(bytes) {
        Some(_) => Ok(()),
        None => Err(BodyError::Value("a list of files")),
    };
    Token: U16, "a token", |bytes| within(bytes, 0, TOKEN_LENGTH_MAX, "a token");
    /// UTF-8, checked where it becomes a string.
    Text: U16, "a text", |_| Ok(());
}

pub(crate) struct Bool;
impl Field<'_> for Bool {
    type Value = bool;
    fn put(value: &bool, out: &mut Vec<u8>) {
        out.push(u8::from(*value));
    }
    fn get(reader: &mut Reader<'_>) -> Result<bool, BodyError> {
        match U8::get(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(BodyError::Value("a yes or no")),
        }
    }
}

/// What a page of a directory says of the whole listing: that it ends with it, and that what is not in it is not there.
pub(crate) struct ListedHow;
impl Field<'_> for ListedHow {
    type Value = (bool, bool);
    fn put((end, exact): &(bool, bool), out: &mut Vec<u8>) {
        out.push(u8::from(*end) | u8::from(*exact) << 1);
    }
    fn get(reader: &mut Reader<'_>) -> Result<(bool, bool), BodyError> {
        match U8::get(reader)? {
            how @ 0..=3 => Ok((how & 1 != 0, how & 2 != 0)),
            _ => Err(BodyError::Value("how a directory is listed")),
        }
    }
}

/// A page of a directory, from its packed form.
pub(crate) fn directory_page(packed: &[u8], (end, exact): (bool, bool)) -> Result<DirPage, BodyError> {
    let page = DirPage::from_packed(packed.to_vec(), end);
    let mut page = page.map_err(|_| BodyError::Value("a directory page"))?;
    page.exact = exact;
    Ok(page)
}

/// The packed bytes wanted of a listing.
pub(crate) struct PageSize;
impl Field<'_> for PageSize {
    type Value = u32;
    fn put(size: &u32, out: &mut Vec<u8>) {
        U32::put(size.min(&DIRECTORY_PAGE_MAX), out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<u32, BodyError> {
        match U32::get(reader)? {
            size @ 0..=DIRECTORY_PAGE_MAX => Ok(size),
            _ => Err(BodyError::Value("the size of a directory page")),
        }
    }
}

/// The open file that a request is about.
pub(crate) struct Open;
impl Field<'_> for Open {
    type Value = OpenId;
    fn put(value: &OpenId, out: &mut Vec<u8>) {
        U64::put(&value.0, out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<OpenId, BodyError> {
        U64::get(reader).map(OpenId)
    }
}

/// Something that may be absent: a yes or no, then it.
pub(crate) struct Maybe<F>(std::marker::PhantomData<F>);
impl<'a, F: Field<'a>> Field<'a> for Maybe<F> {
    type Value = Option<F::Value>;
    fn put(value: &Option<F::Value>, out: &mut Vec<u8>) {
        out.push(u8::from(value.is_some()));
        if let Some(value) = value {
            F::put(value, out);
        }
    }
    fn get(reader: &mut Reader<'a>) -> Result<Option<F::Value>, BodyError> {
        if Bool::get(reader)? { F::get(reader).map(Some) } else { Ok(None) }
    }
}

macro_rules! flags {
    ($($name:ident: $type:ident, $what:literal;)*) => {$(
        pub(crate) struct $name;
        impl Field<'_> for $name {
            type Value = $type;
            fn put(value: &$type, out: &mut Vec<u8>) { U32::put(&value.bits(), out); }
            fn get(reader: &mut Reader<'_>) -> Result<$type, BodyError> {
                $type::from_bits(U32::get(reader)?).ok_or(BodyError::Value($what))
            }
        }
    )*};
}
flags! {
    OpenMode: OpenFlags, "a set of open flags";
    RenameMode: RenameFlags, "a set of rename flags";
    FallocateMode: FallocateFlags, "a set of fallocate flags";
    Mask: AccessMask, "an access mask";
}

/// Fields of one byte that are one of some values.
macro_rules! choices {
    ($($name:ident: $type:ident, $what:literal { $($variant:ident = $code:literal),* })*) => {$(
        pub(crate) struct $name;
        impl Field<'_> for $name {
            type Value = $type;
            fn put(value: &$type, out: &mut Vec<u8>) { out.push(match value { $($type::$variant => $code),* }); }
            fn get(reader: &mut Reader<'_>) -> Result<$type, BodyError> {
                match U8::get(reader)? { $($code => Ok($type::$variant),)* _ => Err(BodyError::Value($what)) }
            }
        }
    )*};
}
pub(crate) use choices;

choices! {
    XattrWhen: XattrMode, "an attribute mode" { Any = 0, Create = 1, Replace = 2 }
    SeekKind: SeekTo, "a seek" { Data = 0, Hole = 1 }
    SumOf: SumKind, "a kind of sum" { Xxh3 = 0, Blake3 = 1, Blake3Part = 2 }
    Space: LockSpace, "a lock space" { Posix = 0, Flock = 1, Turn = 2 }
    LockMode: LockKind, "a lock kind" { Read = 0, Write = 1, Unlock = 2 }
}

/// A byte-range lock: start, end, kind, pid.
pub(crate) struct LockRange;
impl Field<'_> for LockRange {
    type Value = Lock;
    fn put(lock: &Lock, out: &mut Vec<u8>) {
        U64::put(&lock.start, out);
        U64::put(&lock.end, out);
        LockMode::put(&lock.kind, out);
        U32::put(&lock.pid, out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Lock, BodyError> {
        let lock = Lock {
            start: U64::get(reader)?,
            end: U64::get(reader)?,
            kind: LockMode::get(reader)?,
            pid: U32::get(reader)?,
        };
        if lock.start > lock.end { Err(BodyError::Value("a lock's range")) } else { Ok(lock) }
    }
}

/// A time: seconds, nanoseconds.
pub(crate) struct TimeValue;
impl Field<'_> for TimeValue {
    type Value = Time;
    fn put(time: &Time, out: &mut Vec<u8>) {
        I64::put(&time.seconds, out);
        U32::put(&time.nanos, out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Time, BodyError> {
        let time = Time { seconds: I64::get(reader)?, nanos: U32::get(reader)? };
        if time.nanos < 1_000_000_000 { Ok(time) } else { Err(BodyError::Value("a time")) }
    }
}

/// A time to set: 0 for now, or 1 and the time.
pub(crate) struct NewTime;
impl Field<'_> for NewTime {
    type Value = SetTime;
    fn put(value: &SetTime, out: &mut Vec<u8>) {
        match value {
            SetTime::Now => out.push(0),
            SetTime::At(time) => {
                out.push(1);
                TimeValue::put(time, out);
            }
        }
    }
    fn get(reader: &mut Reader<'_>) -> Result<SetTime, BodyError> {
        if Bool::get(reader)? { TimeValue::get(reader).map(SetTime::At) } else { Ok(SetTime::Now) }
    }
}

/// Attributes to set: each of mode, uid, gid, size, atime, mtime may be absent.
pub(crate) struct NewAttr;
impl Field<'_> for NewAttr {
    type Value = SetAttr;
    fn put(set: &SetAttr, out: &mut Vec<u8>) {
        Maybe::<U32>::put(&set.mode, out);
        Maybe::<U32>::put(&set.uid, out);
        Maybe::<U32>::put(&set.gid, out);
        Maybe::<U64>::put(&set.size, out);
        Maybe::<NewTime>::put(&set.atime, out);
        Maybe::<NewTime>::put(&set.mtime, out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<SetAttr, BodyError> {
        Ok(SetAttr {
            mode: Maybe::<U32>::get(reader)?,
            uid: Maybe::<U32>::get(reader)?,
            gid: Maybe::<U32>::get(reader)?,
            size: Maybe::<U64>::get(reader)?,
            atime: Maybe::<NewTime>::get(reader)?,
            mtime: Maybe::<NewTime>::get(reader)?,
        })
    }
}

/// Attributes in the packed form of [`aqueduct_fs::dirpage`].
pub(crate) struct PackedAttr;
impl Field<'_> for PackedAttr {
    type Value = Attr;
    fn put(attr: &Attr, out: &mut Vec<u8>) {
        out.extend_from_slice(&dirpage::pack_attr(attr));
    }
    fn get(reader: &mut Reader<'_>) -> Result<Attr, BodyError> {
        dirpage::unpack_attr(&reader.array("attributes")?).ok_or(BodyError::Value("attributes"))
    }
}

/// A handle and its attributes.
pub(crate) struct Inode;
impl Field<'_> for Inode {
    type Value = Entry;
    fn put(entry: &Entry, out: &mut Vec<u8>) {
        HandleBytes::put(&entry.handle.bytes(), out);
        PackedAttr::put(&entry.attr, out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Entry, BodyError> {
        let handle = Handle::new(HandleBytes::get(reader)?).ok_or(BodyError::Value("a handle"))?;
        Ok(Entry { handle, attr: PackedAttr::get(reader)? })
    }
}

/// An open and its token.
pub(crate) struct OpenResult;
impl Field<'_> for OpenResult {
    type Value = Opened;
    fn put(opened: &Opened, out: &mut Vec<u8>) {
        Open::put(&opened.id, out);
        Token::put(&&*opened.token, out);
        U16::put(&opened.width, out);
    }
    fn get(reader: &mut Reader<'_>) -> Result<Opened, BodyError> {
        Ok(Opened { id: Open::get(reader)?, token: Token::get(reader)?.into(), width: reader.get::<U16>()? })
    }
}
