//! How many requests of a client may be under way: by what each of them asks for, whatever its
//! header says.

use std::sync::atomic::Ordering;

use aqueduct_wire::{Header, Op};

use super::fence::changes_unslotted;
use super::kinds::changes_names_or_attributes;
use crate::session::Session;
use crate::state::Server;

/// Times `requests_of_client_max`: so many requests that should be refused to no honest client,
/// since it could take what is refused for lost. It has no more of these under way than programs
/// that wait for them, and a few of its own.
const UNREFUSED_FACTOR: usize = 2;

/// What bounds the requests of an operation.
enum Bound {
    /// The session's slots. If a repeat of such a request was refused, its client would take the
    /// operation for one that was never executed.
    Slots,
    /// The limits of requests under way. Refused, it is as if it had not been sent.
    Limits,
    /// A limit that only who wants to meets.
    Unrefused,
}

/// An operation without a slot is never executed in one: then a sequence number means nothing.
fn bound(header: &Header, op: Op) -> Bound {
    match op {
        Op::Recovered | Op::GiveUp | Op::Commit | Op::Sync | Op::SyncDirectory | Op::Reopen => Bound::Unrefused,
        _ if changes_unslotted(header, op) => Bound::Unrefused,
        _ if has_slot(op) && header.sequence != 0 => Bound::Slots,
        _ => Bound::Limits,
    }
}

/// Whether a request of this kind is executed in a slot and nowhere else, or where it has none is
/// among those of [`changes_unslotted`].
fn has_slot(op: Op) -> bool {
    let changes_content = matches!(op, Op::Write | Op::Compound | Op::Fallocate | Op::CopyRange | Op::PutFiles);
    let opens_or_closes =
        matches!(op, Op::Open | Op::Flush | Op::Release | Op::OpenDirectory | Op::ReleaseDirectory | Op::SetLock);
    changes_names_or_attributes(op) || changes_content || opens_or_closes
}

/// Whether this request, which is counted already, is one more than may be under way.
pub(super) fn is_beyond(server: &Server, session: &Session, (header, op): (&Header, Op)) -> bool {
    let limits = &server.config.limits;
    let of_client = session.requests();
    match bound(header, op) {
        Bound::Slots => false,
        Bound::Limits => {
            of_client > limits.requests_of_client_max || server.executing.load(Ordering::Relaxed) > limits.requests_max
        }
        Bound::Unrefused => of_client > limits.requests_of_client_max.saturating_mul(UNREFUSED_FACTOR),
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_wire::Kind;

    use super::*;

    /// Else whoever gives his questions a sequence number asks as many as he likes.
    #[test]
    fn a_number_in_a_slot_frees_no_look_from_its_limit() {
        for code in 0..=u16::MAX {
            let Some(op) = Op::from_code(code) else { continue };
            for sequence in [0, 1, u32::MAX] {
                let header = Header { sequence, ..Header::new(Kind::Request) };
                let is_free = matches!(bound(&header, op), Bound::Slots);
                assert!(!is_free || has_slot(op) && sequence != 0, "{}", op.name());
            }
        }
        let claims = Header { sequence: 7, ..Header::new(Kind::Request) };
        for op in [Op::Read, Op::GetAttr, Op::Lookup, Op::Statfs, Op::Fetch, Op::List, Op::Status, Op::Access] {
            assert!(matches!(bound(&claims, op), Bound::Limits), "{}", op.name());
        }
        for op in [Op::Reopen, Op::Sync, Op::Commit] {
            assert!(matches!(bound(&claims, op), Bound::Unrefused), "{}", op.name());
        }
    }
}
