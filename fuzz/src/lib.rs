//! Every parser of bytes that come from a peer, the kernel or a file, as a function of such bytes. Whatever they are, it returns: a parser refuses them or
//! understands them, and what it understood it can write down again. A broken promise is a panic.
//!
//! `make fuzz` runs each target under libFuzzer, which changes inputs, keeps those that reach new code, and begins with the seeds: what our own encoders
//! make. `cargo test` runs the seeds and a few thousand simple changes of them, with the ordinary toolchain.

pub mod client;
pub mod directory;
pub mod extra;
pub mod frame;
pub mod fuse;
pub mod greeting;
pub mod journal;
pub mod message;
pub mod place;
pub mod posix;
pub mod receive;
pub mod samples;
pub mod server;
mod turner;

/// One parser.
pub struct Target {
    /// What `make fuzz` calls it.
    pub name: &'static str,
    /// Feeds it; panics when it breaks a promise.
    pub run: fn(&[u8]),
    /// What is well-formed.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// The longest input in bytes that makes sense: longer ones only cost time.
    pub length_max: usize,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "frame", run: frame::run, seeds: frame::seeds, length_max: 96 },
    Target { name: "greeting", run: greeting::run, seeds: greeting::seeds, length_max: 512 },
    Target { name: "request", run: message::request, seeds: message::request_seeds, length_max: 2048 },
    Target { name: "reply", run: message::reply, seeds: message::reply_seeds, length_max: 2048 },
    Target { name: "extra", run: extra::run, seeds: extra::seeds, length_max: 1024 },
    Target { name: "directory", run: directory::run, seeds: directory::seeds, length_max: 2048 },
    Target { name: "receive", run: receive::run, seeds: receive::seeds, length_max: 4096 },
    Target { name: "server", run: server::run, seeds: server::seeds, length_max: 8192 },
    Target { name: "client", run: client::run, seeds: client::seeds, length_max: 8192 },
    Target { name: "journal", run: journal::run, seeds: journal::seeds, length_max: 4096 },
    Target { name: "posix", run: posix::run, seeds: posix::seeds, length_max: 512 },
    Target { name: "fuse", run: fuse::run, seeds: fuse::seeds, length_max: 1024 },
    Target { name: "place", run: place::run, seeds: place::seeds, length_max: 512 },
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
