//! All tests of the server once more, over a file system that answers everything late: no step of
//! the server takes it for granted that a call below it is ready at once.

#![allow(clippy::duplicate_mod, reason = "each file has the common module, as in its own program")]

#[path = "../access.rs"]
mod access;
#[path = "../checksums.rs"]
mod checksums;
#[path = "../extended.rs"]
mod extended;
#[path = "../fence.rs"]
mod fence;
#[path = "../fetch.rs"]
mod fetch;
#[path = "../keys.rs"]
mod keys;
#[path = "../leases/main.rs"]
mod leases;
#[path = "../links.rs"]
mod links;
#[path = "../metrics.rs"]
mod metrics;
#[path = "../outbox.rs"]
mod outbox;
#[path = "../overlap.rs"]
mod overlap;
#[path = "../power.rs"]
mod power;
#[path = "../protocol.rs"]
mod protocol;
#[path = "../reach.rs"]
mod reach;
#[path = "../restart.rs"]
mod restart;
#[path = "../silence.rs"]
mod silence;
#[path = "../waits.rs"]
mod waits;
#[path = "../window.rs"]
mod window;

/// The test files of the crate, each of which is to be here as well.
#[test]
fn no_test_file_is_missing() {
    let here = include_str!("main.rs");
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for entry in std::fs::read_dir(tests).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let file = if entry.path().is_dir() { format!("{name}/main.rs") } else { name.clone() };
        let is_here = here.contains(&format!("#[path = \"../{file}\"]"));
        assert!(is_here || ["common", "late"].contains(&&*name), "{file}");
    }
}
