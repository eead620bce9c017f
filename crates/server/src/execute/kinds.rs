//! What kinds of operations there are, by what they wait for and change.

use aqueduct_wire::Op;

/// Operations whose cost is the disk's rather than the memory's.
pub(crate) fn waits_for_disk(op: Op) -> bool {
    matches!(
        op,
        Op::Sync
            | Op::SyncDirectory
            | Op::Commit
            | Op::Fallocate
            | Op::CopyRange
            | Op::Checksum
            | Op::PutFiles
            | Op::ReadDirectory
            | Op::Compound
            | Op::Fetch
            | Op::List
    )
}

/// Operations that wait for the disk where what they change is there before they are answered.
pub(crate) fn changes_names_or_attributes(op: Op) -> bool {
    matches!(
        op,
        Op::SetAttr
            | Op::Symlink
            | Op::MakeNode
            | Op::MakeDirectory
            | Op::Unlink
            | Op::RemoveDirectory
            | Op::Rename
            | Op::Link
            | Op::Create
            | Op::CreateUnnamed
            | Op::SetXattr
            | Op::RemoveXattr
    )
}
