//! What is wrong with a file is told once, however often somebody comes by.

use std::collections::HashSet;
use std::sync::Mutex;

/// Of so many files one process tells what is wrong; a check of the volume names all.
const TOLD_MAX: usize = 1000;

/// What has been told of.
#[derive(Default)]
pub(crate) struct Told(Mutex<HashSet<u128>>);

impl Told {
    /// Whether this was not told of yet, and now is to be.
    pub(crate) fn is_first(&self, of: u128) -> bool {
        let mut told = self.0.lock().unwrap_or_else(|poison| poison.into_inner());
        told.len() < TOLD_MAX && told.insert(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_of_once_and_not_without_end() {
        let told = Told::default();
        assert!(told.is_first(7) && !told.is_first(7));
        let more = (8..10_000).filter(|of| told.is_first(*of)).count();
        assert_eq!(more, TOLD_MAX - 1);
    }
}
