//! One client that reads or writes files, in jobs with several requests under way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use aqueduct_fs::data::ReadBuffer;
use aqueduct_fs::{Context, FileSystem, OpenFlags, OpenId, ReadAt, Request, Source, WriteAt};
use aqueduct_node::{caller, end_workers};
use aqueduct_worker::{Group, wait};
use bytes::Bytes;
use serde_json::json;

use crate::arguments::{Io, IoOp};
use crate::failure::Failure;
use crate::files::{self, Places};
use crate::process;

/// Bytes under way of all jobs: they are in memory.
const UNDER_WAY_MAX: u64 = 4 << 30;

/// A file, or a part of one, and what is done with it.
struct Job {
    client: Arc<dyn FileSystem>,
    name: String,
    open: OpenId,
    op: IoOp,
    /// The part.
    start: u64,
    length: u64,
    block: u64,
    /// What is written.
    data: Bytes,
    /// How far it has come; of random operations only as much as there is.
    next: AtomicU64,
    until: Option<Instant>,
    operations: AtomicU64,
    bytes: AtomicU64,
}

/// Does what the command line says.
pub fn run(arguments: &Io) -> Result<(), Failure> {
    let length = check(arguments)?;
    process::raise_descriptors(u64::from(arguments.workers) * 2)?;
    let groups = files::workers(arguments.workers)?;
    let attached = files::connect(&arguments.target, "aqueduct-load".into(), (&groups, true))?;
    let measured = measure(arguments, length, &attached.filesystem(), &groups);
    drop(attached);
    end_workers(&groups);
    println!("{}", measured?);
    Ok(())
}

/// The bytes of each job.
fn check(arguments: &Io) -> Result<u64, Failure> {
    let Io { jobs, depth, block, size, .. } = *arguments;
    let length = size / u64::from(jobs);
    if length < block {
        return Err(format!(
            "{size} bytes for {jobs} jobs are less than a block of {block} for each; give more with --size"
        ));
    }
    if arguments.seconds.is_some() && !arguments.op.is_random() {
        return Err("--seconds is for randread and randwrite: read and write take as long as their --size does".into());
    }
    if u64::from(jobs) * u64::from(depth) * block > UNDER_WAY_MAX {
        return Err(format!(
            "{jobs} jobs with {depth} blocks of {block} bytes under way are more than {UNDER_WAY_MAX} bytes; give less of one of them"
        ));
    }
    Ok(length)
}

fn measure(
    arguments: &Io,
    length: u64,
    client: &Arc<dyn FileSystem>,
    groups: &[Arc<Group>],
) -> Result<serde_json::Value, Failure> {
    let mut jobs = (0..u64::from(arguments.jobs))
        .map(|number| wait(&groups[0], open(arguments, (number, length), client)))
        .collect::<Result<Vec<_>, _>>()?;
    let (began, used) = (Instant::now(), process::processor_time());
    for job in &mut jobs {
        job.until = arguments.seconds.map(|seconds| began + Duration::from_secs(seconds));
    }
    let jobs: Vec<Arc<Job>> = jobs.into_iter().map(Arc::new).collect();
    work(arguments.depth, &jobs, groups)?;
    if arguments.op.writes() {
        let synced = jobs.iter().map(|job| wait(&groups[0], job.sync()));
        synced.collect::<Result<Vec<_>, _>>()?;
    }
    let (seconds, used) = (began.elapsed().as_secs_f64(), process::processor_time() - used);
    let context = caller();
    for job in &jobs {
        // What matters has been made stable, and the session ends next.
        let _ = wait(&groups[0], client.call(&context, Request::Release { open: job.open }));
    }
    let sum = |count: fn(&Job) -> &AtomicU64| jobs.iter().map(|job| count(job).load(Ordering::SeqCst)).sum::<u64>();
    Ok(json!({
        "op": arguments.op.name(),
        "jobs": arguments.jobs,
        "depth": arguments.depth,
        "block": arguments.block,
        "shared": arguments.shared,
        "bytes": sum(|job| &job.bytes),
        "operations": sum(|job| &job.operations),
        "seconds": seconds,
        "cpu_seconds": used.as_secs_f64(),
        "memory_peak_kib": process::memory_peak_kib(),
    }))
}

/// The job of this number, with its file open: what it needs before it is measured.
async fn open(arguments: &Io, (number, length): (u64, u64), client: &Arc<dyn FileSystem>) -> Result<Job, Failure> {
    let Io { op, block, shared, .. } = *arguments;
    let name = if shared { arguments.name.clone() } else { format!("{}.{number}", arguments.name) };
    let flags = if op.writes() { OpenFlags::READ | OpenFlags::WRITE } else { OpenFlags::READ };
    let new = op == IoOp::Write && (!shared || number == 0);
    let (open, size) = files::open(&**client, &name, flags, new).await?;
    let start = if shared { number * length } else { 0 };
    if op != IoOp::Write && size < start + length {
        return Err(format!(
            "'{name}' has {size} bytes, and {} are needed; make it with 'io --op write' and the same --size and --jobs",
            start + length
        ));
    }
    // No two bytes near each other are alike, so that nothing on the way has it easier than with true data.
    let mut places = Places(number);
    let data: Vec<u8> = (0..block.div_ceil(8)).flat_map(|_| places.next(u64::MAX).to_le_bytes()).collect();
    Ok(Job {
        client: client.clone(),
        name,
        open,
        op,
        start,
        length,
        block,
        data: Bytes::from(data),
        next: AtomicU64::new(0),
        until: None,
        operations: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
    })
}

/// All jobs, with `depth` requests of each under way, spread over the workers.
fn work(depth: u32, jobs: &[Arc<Job>], groups: &[Arc<Group>]) -> Result<(), Failure> {
    let (done, results) = mpsc::channel();
    let failed = Arc::new(AtomicBool::new(false));
    for (number, job) in jobs.iter().flat_map(|job| (0..depth).map(move |_| job)).enumerate() {
        let (job, done, failed) = (job.clone(), done.clone(), failed.clone());
        groups[number % groups.len()].spawn(async move {
            let result = job.run(number as u64, &failed).await;
            failed.fetch_or(result.is_err(), Ordering::SeqCst);
            let _ = done.send(result); // nobody listens after the first failure
        });
    }
    drop(done);
    results.iter().collect()
}

impl Job {
    /// One request after the other until there are no more, or another has failed.
    async fn run(&self, number: u64, failed: &AtomicBool) -> Result<(), Failure> {
        let (context, buffer, mut places) = (caller(), ReadBuffer::default(), Places(number << 32));
        while let Some((offset, length)) = self.place(&mut places).filter(|_| !failed.load(Ordering::Relaxed)) {
            let moved = if self.op.writes() {
                self.write(&context, offset, length).await
            } else {
                self.read(&context, offset, (length, &buffer)).await
            };
            let moved = moved.map_err(|error| format!("{} of '{}' at {offset}: {error}", self.op.name(), self.name))?;
            if moved != length {
                return Err(format!(
                    "{} of '{}' at {offset}: {moved} bytes instead of {length}; does anybody else change it?",
                    self.op.name(),
                    self.name
                ));
            }
            self.operations.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(moved, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Where the next request goes, and how long it is.
    fn place(&self, places: &mut Places) -> Option<(u64, u64)> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        if self.op.is_random() {
            let has_more = self.until.is_some() || {
                let next = self.next.fetch_add(self.block, Ordering::Relaxed);
                next + self.block <= self.length
            };
            return has_more.then(|| (self.start + places.next(self.length / self.block) * self.block, self.block));
        }
        let next = self.next.fetch_add(self.block, Ordering::Relaxed);
        (next < self.length).then(|| (self.start + next, self.block.min(self.length - next)))
    }

    async fn read(
        &self,
        context: &Context,
        offset: u64,
        (length, buffer): (u64, &ReadBuffer),
    ) -> Result<u64, aqueduct_fs::Errno> {
        let read = ReadAt { open: self.open, offset, length: length as u32 };
        Ok(self.client.read(context, read, buffer.sink(length as usize)).await? as u64)
    }

    async fn write(&self, context: &Context, offset: u64, length: u64) -> Result<u64, aqueduct_fs::Errno> {
        let write = WriteAt { open: self.open, offset, append: false, stable: false };
        let data = Source::Memory(self.data.slice(..length as usize));
        Ok(self.client.write(context, write, data).await?.count.into())
    }

    async fn sync(&self) -> Result<(), Failure> {
        let (context, sync) = (caller(), Request::Sync { open: self.open, data_only: false });
        let done = self.client.call(&context, sync).await;
        done.map(drop).map_err(|error| format!("making '{}' stable: {error}", self.name))
    }
}
