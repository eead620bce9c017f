//! What Rust's library cannot say to a process before it starts.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Has the process end when this one does, however that comes: a benchmark that nobody waits for would disturb the next.
///
/// The kernel means the thread that starts it, which therefore must be one that lives as long as the process.
pub fn end_with_us(command: &mut Command) {
    // SAFETY: between fork and exec only one system call is made, which allocates nothing and takes no locks.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?));
    }
}
