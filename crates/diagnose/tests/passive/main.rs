//! The namer of `diagnose::passive`, blind on simulated pipelines with something planted.

mod faults;
mod score;
mod simulate;
