//! Copies between two servers that a third host asks for: data go straight between the two.
//!
//! One of them is an *agent*: a server that also makes copies ([`Executor`]). Who asks
//! ([`copy`]) sends it the places and options, looks how far it is, and gets what came of it.

mod executor;
mod message;
mod submit;

pub use executor::{Executor, ExecutorConfig};
pub use submit::{copy, is_third_party};
