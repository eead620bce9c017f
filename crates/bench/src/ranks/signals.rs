//! Ctrl-C and SIGTERM: the first asks the measurement to end in order, the second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on signals are noted.
pub(super) fn watch() {
    ASKED.get_or_init(|| {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order, so that the first signal only sets the flag. If it cannot be had, a signal ends the process as usual.
            let _ = signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, asked.clone());
            let _ = signal_hook::flag::register(signal, asked.clone());
        }
        asked
    });
}

/// Whether one has come.
pub(super) fn asked() -> bool {
    ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed))
}

/// As if one had come.
pub(super) fn ask() {
    if let Some(asked) = ASKED.get() {
        asked.store(true, Ordering::Relaxed);
    }
}
