//! Benchmarks as HPC engineers know them, on any mounted file system, straight on Aqueduct's client, or on the network alone.
//!
//! - [`io`]: data, with IOR's options, columns and JSON.
//! - [`meta`]: names, with mdtest's options and tables.
//! - [`net`]: messages, as OSU's tests define latency and bandwidth.
//! - [`probe`]: how far a server is, by which ways, and what is wrong with them.
//! - [`ranks`]: the processes of one measurement, on one host or many, and what they tell each other.
//! - [`sweep`]: a matrix of measurements, repeated in random order until they are certain enough, and resumed when they were interrupted.
//! - [`stats`]: what can be said of repeated measurements, pure.
//! - [`record`]: how they are written down; [`parquet`]: as a table for pandas, DuckDB and Polars.
//! - [`report`]: what people read: tables, charts, a page of HTML, and the comparison of two runs.

/// As `eprintln!`, but goes on where stderr takes nothing: a full disk, a terminal that is gone.
/// Hours of measurements do not end for a line of progress.
macro_rules! tell {
    ($($text:tt)*) => {{
        let _nobody_reads_it = std::io::Write::write_fmt(
            &mut std::io::stderr(), format_args!("{}\n", format_args!($($text)*)));
    }};
}

pub mod cli;
mod failure;
pub mod io;
pub mod meta;
pub mod net;
pub mod parquet;
pub mod probe;
pub mod ranks;
pub mod record;
pub mod report;
pub mod stats;
pub mod sweep;
mod sys;

pub use cli::{Command, run};
pub use failure::Failure;
