//! How long the reply to a request may be, which whoever decodes the request has to know.

use aqueduct_fs::*;

use crate::layout::LAYOUT_LENGTH_MAX;

/// The most bytes that the reply to a compound of these requests may have.
pub(crate) fn compound_reply_length_max(requests: &[Request<'_>]) -> usize {
    2 + requests.iter().map(|request| 4 + 4 + reply_length_max(request)).sum::<usize>()
}

const ENTRY_LENGTH_MAX: usize = 2 + HANDLE_LENGTH_MAX + dirpage::ATTR_SIZE;
const OPENED_LENGTH_MAX: usize = 8 + 2 + TOKEN_LENGTH_MAX;

/// The most bytes that the reply to a request may have: what it asks for where it says so, else
/// the longest of the fixed forms.
fn reply_length_max(request: &Request<'_>) -> usize {
    let tagged = |size: usize| 1 + size.max(8);
    match request {
        Request::ReadDirectory { size, .. } => 1 + *size as usize,
        Request::GetXattr { size, .. } | Request::ListXattr { size, .. } => {
            tagged((*size as usize).min(XATTR_SIZE_MAX))
        }
        Request::ReadLink { .. } => tagged(SYMLINK_LENGTH_MAX),
        Request::PutFiles { .. } => 2 + put::PUT_FILES_MAX * (4 + ENTRY_LENGTH_MAX),
        Request::Layout { .. } => LAYOUT_LENGTH_MAX,
        _ => ENTRY_LENGTH_MAX + OPENED_LENGTH_MAX,
    }
}
