//! One operation by system calls, in a thread whose root is the view.

mod attributes;
mod data;
mod hand;
mod locks;
mod names;
mod open;
mod plain;
mod sweep;

use crate::op::Action;
use crate::outcome::Outcome;

pub use hand::Hand;
pub use sweep::{Found, Swept, sweep};

impl Hand {
    /// Does it.
    pub fn perform(&mut self, action: &Action) -> Outcome {
        let step = match action {
            Action::Open(open) => self.open(open),
            Action::Data(data) => self.data(data),
            Action::Name(name) => self.name(name),
            Action::Attribute(attribute) => self.attribute(attribute),
            Action::Lock(lock) => self.lock(lock),
        };
        step.unwrap_or_else(|early| early)
    }
}
