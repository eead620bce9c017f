//! Whole processes and real mounts: what SEMANTICS.md promises, one test for each promise.
//!
//! Every test starts its own server on a free loopback port with an export of its own, and takes down what it started. Tests that the machine cannot
//! run (no root, no /dev/fuse, a program missing) print `skipped:` and why.

mod access;
mod agent;
mod below;
mod beside;
mod brought;
mod caching;
mod calls;
mod churn;
mod coherence;
#[path = "../harness/common.rs"]
mod common;
mod confinement;
mod damage;
mod databases;
mod deaths;
mod errors;
mod exports;
mod flood;
mod full;
mod gathered;
mod hot_names;
mod kernels;
mod keys;
mod lanes;
mod lifecycle;
mod limits;
mod locks;
mod mappings;
mod model;
mod namespaces;
mod network;
mod objects;
mod orphan;
mod outside;
mod partitions;
mod passing;
mod plain;
mod posix;
mod programs;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../harness/proxy.rs"]
mod proxy;
mod quotas;
mod reboot;
mod recovery;
mod remap;
mod remount;
mod repair;
mod replaced;
mod restored;
mod scribble;
#[path = "../harness/sys.rs"]
mod sys;
mod throttled;
mod volume_check;
mod volumes;
mod waiting;
mod whole;
mod width;
