//! Where the bytes of a file lie, as a reply says it.

use aqueduct_fs::stripe::{Layout, OBJECT_TOKEN_LENGTH_MAX, PARTS_MAX, Part};

use crate::field::*;

/// What a part is.
const HOLE: u8 = 0;
const AT: u8 = 1;
const UNTOLD: u8 = 2;

/// Bytes of a layout before its parts.
const LAYOUT_LENGTH: usize = 8 + 4 + 16 + 8 + 1;

/// The most bytes of a layout.
pub(crate) const LAYOUT_LENGTH_MAX: usize = LAYOUT_LENGTH + PARTS_MAX * (1 + 2 + 2 + OBJECT_TOKEN_LENGTH_MAX);

/// Appends the body of a layout.
pub(crate) fn put_layout(layout: &Layout, out: &mut Vec<u8>) {
    U64::put(&layout.size, out);
    U32::put(&layout.block, out);
    out.extend_from_slice(&layout.id);
    U64::put(&layout.epoch, out);
    U8::put(&(layout.parts.len() as u8), out);
    for part in &layout.parts {
        let kind = match part {
            Part::Hole { .. } => HOLE,
            Part::At { .. } => AT,
            Part::Untold { .. } => UNTOLD,
        };
        U8::put(&kind, out);
        U16::put(&part.place(), out);
        if let Part::At { token, .. } = part {
            U16::put(&(token.len() as u16), out);
            out.extend_from_slice(token);
        }
    }
}

/// The layout of a body.
pub(crate) fn get_layout(reader: &mut Reader<'_>) -> Result<Layout, BodyError> {
    let (size, block) = (reader.get::<U64>()?, reader.get::<U32>()?);
    let mut id = [0; 16];
    id.copy_from_slice(reader.take(16, "the id of a layout")?);
    let (epoch, count) = (reader.get::<U64>()?, usize::from(reader.get::<U8>()?));
    if count > PARTS_MAX || (count > 0 && block == 0) {
        return Err(BodyError::Value("the parts of a layout"));
    }
    let part = |_| {
        let (kind, place) = (reader.get::<U8>()?, reader.get::<U16>()?);
        match kind {
            HOLE => return Ok(Part::Hole { place }),
            UNTOLD => return Ok(Part::Untold { place }),
            AT => {}
            _ => return Err(BodyError::Value("a part of a layout")),
        }
        match usize::from(reader.get::<U16>()?) {
            length if length > OBJECT_TOKEN_LENGTH_MAX => Err(BodyError::Value("the token of an object")),
            length => Ok(Part::At { place, token: reader.take(length, "the token of an object")?.into() }),
        }
    };
    let parts = (0..count).map(part).collect::<Result<_, _>>()?;
    Ok(Layout { size, block, id, epoch, parts })
}
