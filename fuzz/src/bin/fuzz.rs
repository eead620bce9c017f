//! libFuzzer with the target that the environment names. Its options are libFuzzer's own: `-help=1`.

#![no_main]

use std::sync::OnceLock;

use aqueduct_fuzz::Target;

static TARGET: OnceLock<&Target> = OnceLock::new();

fn named() -> &'static Target {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    aqueduct_fuzz::target(&name).unwrap_or_else(|| panic!("FUZZ_TARGET is '{name}', which is no target"))
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.get_or_init(named).run)(data));
