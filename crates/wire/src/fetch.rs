//! FETCH and LIST: the attributes and first bytes of several files at once, and listings without opening them, for who walks through many small ones.

use aqueduct_fs::*;

use crate::field::*;
use crate::lease::grants_length;
use crate::request::{Caller, CallerField, put_caller};
use crate::{BODY_LENGTH_MAX, DIRECTORY_PAGE_MAX, GRANTS_MAX};

/// The most files of one FETCH.
pub const FETCH_MAX: usize = 64;

/// The most bytes of each.
pub const FETCH_LENGTH_MAX: u32 = 64 << 10;

/// The most directories of one LIST.
pub const LIST_MAX: usize = 32;

/// What one directory adds to a reply besides its page: status, end, length.
const LISTED_SIZE: usize = 4 + 1 + 4;

const _: () =
    assert!(grants_length(GRANTS_MAX) + 2 + LIST_MAX * LISTED_SIZE + DIRECTORY_PAGE_MAX as usize <= BODY_LENGTH_MAX);

/// What one file adds to a reply besides its bytes: status, attributes, length.
const FIXED_SIZE: usize = 4 + dirpage::ATTR_SIZE + 4;

/// What came of one file: its attributes and first bytes, as an open for reading and a read would have given them.
pub type Fetched<'a> = Result<(Attr, &'a [u8]), Errno>;

const _: () = assert!(FETCH_LENGTH_MAX as usize + fetched_overhead(FETCH_MAX) <= BODY_LENGTH_MAX);

/// What a reply says before its fields at most, with the length of that, and of each part its type
/// and length: how long its request was queued, and how long it waited and was served.
const SAID_LENGTH_MAX: usize = 2 + (4 + 4) + (4 + 8);

/// The bytes of a reply about so many files, besides theirs, with its grants.
const fn fetched_overhead(files: usize) -> usize {
    SAID_LENGTH_MAX + grants_length(files) + 2 + files * FIXED_SIZE
}

/// How many bytes of all files together the reply to a FETCH of so many has room for.
pub const fn fetch_room(files: usize) -> usize {
    BODY_LENGTH_MAX - fetched_overhead(files)
}

/// Appends the body of FETCH: the caller, the number of files u16 (at most [`FETCH_MAX`]), the handle of each, and how much is wanted of each u32.
pub fn encode_fetch(context: &Context, handles: &[&[u8]], length: u32, out: &mut Vec<u8>) {
    put_caller(&context.credential, context.pid, out);
    U16::put(&(handles.len().min(FETCH_MAX) as u16), out);
    handles.iter().take(FETCH_MAX).for_each(|handle| HandleBytes::put(handle, out));
    U32::put(&length.min(FETCH_LENGTH_MAX), out);
}

/// The caller, the handles and the length of a FETCH.
pub fn decode_fetch(body: &[u8]) -> Result<(Caller, Vec<&[u8]>, u32), BodyError> {
    let mut reader = Reader::new(body);
    let caller = reader.get::<CallerField>()?;
    let count = usize::from(reader.get::<U16>()?);
    if count > FETCH_MAX {
        return Err(BodyError::Value("the number of files"));
    }
    let handles = (0..count).map(|_| reader.get::<HandleBytes>()).collect::<Result<Vec<_>, _>>()?;
    let length = reader.get::<U32>()?;
    reader.end()?;
    if length > FETCH_LENGTH_MAX {
        Err(BodyError::Value("the length of a fetch"))
    } else {
        Ok((caller, handles, length))
    }
}

/// Appends the body of LIST: the caller, the number of directories u16 (at most [`LIST_MAX`]), and the handle of each.
pub fn encode_list(context: &Context, handles: &[&[u8]], out: &mut Vec<u8>) {
    put_caller(&context.credential, context.pid, out);
    U16::put(&(handles.len().min(LIST_MAX) as u16), out);
    handles.iter().take(LIST_MAX).for_each(|handle| HandleBytes::put(handle, out));
}

/// The caller and the directories of a LIST.
pub fn decode_list(body: &[u8]) -> Result<(Caller, Vec<&[u8]>), BodyError> {
    let mut reader = Reader::new(body);
    let caller = reader.get::<CallerField>()?;
    let count = list_count(&mut reader)?;
    let handles = (0..count).map(|_| reader.get::<HandleBytes>()).collect::<Result<Vec<_>, _>>()?;
    reader.end().map(|()| (caller, handles))
}

fn list_count(reader: &mut Reader<'_>) -> Result<usize, BodyError> {
    match usize::from(reader.get::<U16>()?) {
        count @ 0..=LIST_MAX => Ok(count),
        _ => Err(BodyError::Value("the number of directories")),
    }
}

/// Appends the body of LIST's reply: the number of directories u16, each with its status u32, and if that is 0 what the page says of the
/// whole listing u8, the page's length u32 and the page. The first of those asked for, as many as there was room for; their pages take at most [`DIRECTORY_PAGE_MAX`] together.
pub fn encode_listed(listings: &[Result<DirPage, Errno>], out: &mut Vec<u8>) {
    U16::put(&(listings.len() as u16), out);
    for listing in listings {
        match listing {
            Err(error) => U32::put(&(error.raw() as u32), out),
            Ok(page) => {
                U32::put(&0, out);
                ListedHow::put(&(page.end, page.exact), out);
                U32::put(&(page.packed().len() as u32), out);
                out.extend_from_slice(page.packed());
            }
        }
    }
}

/// What came of the directories of a LIST, in the order in which they were asked for.
pub fn decode_listed(body: &[u8]) -> Result<Vec<Result<DirPage, Errno>>, BodyError> {
    let mut reader = Reader::new(body);
    let count = list_count(&mut reader)?;
    let (mut listings, mut room) = (Vec::with_capacity(count), DIRECTORY_PAGE_MAX);
    for _ in 0..count {
        listings.push(match reader.get::<U32>()? {
            0 => {
                let how = reader.get::<ListedHow>()?;
                let length = reader.get::<U32>()?;
                room = room.checked_sub(length).ok_or(BodyError::Value("the length of a directory page"))?;
                Ok(directory_page(reader.take(length as usize, "a directory page")?, how)?)
            }
            status => Err(Errno::from_raw(status as i32)),
        });
    }
    reader.end().map(|()| listings)
}

/// Appends the body of FETCH's reply: the number of files u16, each with its status u32, and if that is 0 its attributes, length u32 and bytes. The first
/// of those asked for, as many as there was room for.
pub fn encode_fetched<'a>(files: impl ExactSizeIterator<Item = Fetched<'a>>, out: &mut Vec<u8>) {
    U16::put(&(files.len() as u16), out);
    for file in files {
        match file {
            Err(error) => U32::put(&(error.raw() as u32), out),
            Ok((attr, data)) => {
                U32::put(&0, out);
                PackedAttr::put(&attr, out);
                U32::put(&(data.len() as u32), out);
                out.extend_from_slice(data);
            }
        }
    }
}

/// What came of the files of a FETCH, in the order in which they were asked for; fewer when there was no room for more.
pub fn decode_fetched(body: &[u8]) -> Result<Vec<Fetched<'_>>, BodyError> {
    let mut reader = Reader::new(body);
    let count = usize::from(reader.get::<U16>()?);
    if count > FETCH_MAX {
        return Err(BodyError::Value("the number of files"));
    }
    let mut files = Vec::with_capacity(count);
    for _ in 0..count {
        files.push(match reader.get::<U32>()? {
            0 => {
                let attr = reader.get::<PackedAttr>()?;
                let length = reader.get::<U32>()?;
                if length > FETCH_LENGTH_MAX {
                    return Err(BodyError::Value("the length of a file"));
                }
                Ok((attr, reader.take(length as usize, "a file")?))
            }
            status => Err(Errno::from_raw(status as i32)),
        });
    }
    reader.end().map(|()| files)
}
