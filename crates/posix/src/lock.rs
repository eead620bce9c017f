//! Locks that outlive a panic of who holds them.

use std::sync::{Mutex, MutexGuard};

/// Locks a mutex; what a panicking holder left behind is used on, as every change under a lock of
/// this crate is complete or harmless.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}
