//! The operations, by family.

pub(crate) mod attributes;
pub(crate) mod directories;
pub(crate) mod files;
pub(crate) mod locks;
pub(crate) mod names;
pub(crate) mod reading;
