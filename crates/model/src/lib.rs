//! The model-based test: a seeded sequence of random operations runs on two file systems, and every result and errno is compared at once.
//!
//! The *reference* is a local directory (ext4 or tmpfs); the *subject* is one mount, or two mounts of the same export in turn: operation `i` belongs to
//! mount `i mod 2`, and a descriptor stays on the mount that opened it. The model's own truth is shown by playing ext4 against tmpfs: where those two
//! differ, the model asks too much, and [`Profile`] says what it then leaves out.
//!
//! A sequence is a pure function of its seed and length, so a divergence is replayed from `(seed, length, kept operations)`.

mod acl;
mod actor;
mod belief;
mod compare;
mod execute;
mod generate;
mod op;
mod outcome;
mod profile;
mod random;
mod shrink;
mod sys;
mod view;

pub use compare::{Divergence, Settings, Tally, check_seed, replay};
pub use generate::generate;
pub use op::{Action, Op};
pub use outcome::Outcome;
pub use profile::Profile;
pub use random::Random;
pub use shrink::{Minimal, minimise};
pub use view::View;
