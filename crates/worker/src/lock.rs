//! Locks that outlive a panic of who holds them.

use std::sync::{Mutex, MutexGuard};

/// Locks a mutex whose holders leave nothing half changed, also if one has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}
