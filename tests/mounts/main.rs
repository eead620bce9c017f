//! Whole processes and real mounts: what SEMANTICS.md promises, one test for each promise.
//!
//! Every test starts its own server on a free loopback port with an export of its own, and takes down what it started. Tests that the machine cannot
//! run (no root, no /dev/fuse, a program missing) print `skipped:` and why.

mod access;
mod agent;
mod calls;
mod churn;
mod coherence;
mod common;
mod confinement;
mod errors;
mod keys;
mod lifecycle;
mod locks;
mod model;
mod namespaces;
mod posix;
mod programs;
mod proxy;
mod recovery;
mod sys;
mod waiting;
