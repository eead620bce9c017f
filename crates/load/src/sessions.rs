//! Many clients, each with a session of its own and one operation under way.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use aqueduct_fs::data::ReadBuffer;
use aqueduct_fs::{Errno, FileSystem, Handle, OpenFlags, OpenId, ReadAt, Request};
use aqueduct_node::{Attachment, caller, end_workers};
use aqueduct_worker::{Group, wait};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::arguments::{SessionOp, Sessions};
use crate::failure::Failure;
use crate::files::{self, Places};
use crate::process;

/// Threads that connect clients: each handshake waits for the server.
const CONNECTORS: usize = 8;

/// How long a client rests after an error, so that a server that is away is not asked in a tight loop.
const REST: Duration = Duration::from_millis(100);

/// What a process hands to the one that began it.
#[derive(Serialize, Deserialize)]
struct Measured {
    /// Operations of each client.
    counts: Vec<u64>,
    errors: u64,
    connect_seconds: f64,
    seconds: f64,
    cpu_seconds: f64,
    memory_peak_kib: u64,
}

/// Does what the command line says.
pub fn run(arguments: &Sessions) -> Result<(), Failure> {
    if arguments.op == SessionOp::Read && arguments.name.is_none() {
        return Err("cannot read without a file: name one with --name, of at least one --block".into());
    }
    if arguments.processes > arguments.clients {
        return Err(format!("{} clients cannot be shared by {} processes", arguments.clients, arguments.processes));
    }
    if arguments.member {
        let measured = measure(arguments, &mut || {
            println!("ready");
            let mut word = String::new();
            let read = std::io::stdin().read_line(&mut word);
            read.ok()
                .filter(|length| *length > 0)
                .map(drop)
                .ok_or_else(|| "the process that began this one is gone".into())
        })?;
        println!("{}", json!(measured));
        return Ok(());
    }
    let measured = if arguments.processes > 1 { share(arguments)? } else { vec![measure(arguments, &mut || Ok(()))?] };
    println!("{}", summary(arguments, measured));
    Ok(())
}

fn summary(arguments: &Sessions, measured: Vec<Measured>) -> serde_json::Value {
    let mut counts: Vec<u64> = measured.iter().flat_map(|one| one.counts.iter().copied()).collect();
    counts.sort_unstable();
    let least = counts.first().copied().unwrap_or_default();
    let greatest = counts.last().copied().unwrap_or_default();
    let operations: u64 = counts.iter().sum();
    let bytes = if arguments.op == SessionOp::Read { operations * arguments.block } else { 0 };
    let longest = |of: fn(&Measured) -> f64| measured.iter().map(of).fold(0.0, f64::max);
    let seconds = longest(|one| one.seconds);
    json!({
        "op": arguments.op.name(),
        "clients": counts.len(),
        "processes": measured.len(),
        "connections": counts.len() * (1 + usize::from(arguments.bulk_lanes)),
        "block": arguments.block,
        "seconds": seconds,
        "operations": operations,
        "operations_per_second": operations as f64 / seconds,
        "bytes": bytes,
        "bytes_per_second": bytes as f64 / seconds,
        "least": least,
        "median": counts.get(counts.len() / 2),
        "greatest": greatest,
        "fairness": least as f64 / greatest.max(1) as f64,
        "errors": measured.iter().map(|one| one.errors).sum::<u64>(),
        "connect_seconds": longest(|one| one.connect_seconds),
        "cpu_seconds": measured.iter().map(|one| one.cpu_seconds).sum::<f64>(),
        "memory_peak_kib": measured.iter().map(|one| one.memory_peak_kib).sum::<u64>(),
    })
}

/// A client at work.
struct Worker {
    client: Arc<dyn FileSystem>,
    root: Handle,
    /// What it reads, and of how many blocks.
    file: Option<(OpenId, u64)>,
    number: u64,
}

/// Connects the clients of this process, has all of them work when `ready` returns, and says what they did.
fn measure(arguments: &Sessions, ready: &mut dyn FnMut() -> Result<(), Failure>) -> Result<Measured, Failure> {
    process::raise_descriptors(u64::from(arguments.clients) * (1 + u64::from(arguments.bulk_lanes)))?;
    let groups = files::workers(arguments.workers)?;
    let began = Instant::now();
    let clients = connect(arguments, &groups)?;
    let connect_seconds = began.elapsed().as_secs_f64();
    let workers = clients
        .iter()
        .map(Attachment::filesystem)
        .enumerate()
        .map(|(number, client)| wait(&groups[0], prepare(arguments, number, client)));
    let workers: Vec<Worker> = workers.collect::<Result<_, _>>()?;
    ready()?;
    let (began, used) = (Instant::now(), process::processor_time());
    let (counts, errors) = work(arguments, workers, &groups)?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu_seconds = (process::processor_time() - used).as_secs_f64();
    drop(clients);
    end_workers(&groups);
    let memory_peak_kib = process::memory_peak_kib();
    Ok(Measured { counts, errors, connect_seconds, seconds, cpu_seconds, memory_peak_kib })
}

fn connect(arguments: &Sessions, groups: &[Arc<Group>]) -> Result<Vec<Attachment>, Failure> {
    let (next, connected) = (AtomicUsize::new(0), Mutex::new(Ok(Vec::new())));
    let connect_some = || loop {
        let number = next.fetch_add(1, Ordering::SeqCst);
        if number >= arguments.clients as usize {
            return;
        }
        let group = std::slice::from_ref(&groups[number % groups.len()]);
        let client = files::connect(&arguments.target, format!("load{number}"), (group, arguments.bulk_lanes));
        let mut connected = connected.lock().unwrap_or_else(|poison| poison.into_inner());
        match (&mut *connected, client) {
            (Ok(clients), Ok(client)) => clients.push(client),
            (Ok(clients), Err(failure)) => {
                *connected =
                    Err(format!("of {} clients {} could connect: {failure}", arguments.clients, clients.len()));
                next.store(usize::MAX / 2, Ordering::SeqCst);
            }
            (Err(_), _) => return,
        }
    };
    std::thread::scope(|scope| {
        (0..CONNECTORS).for_each(|_| drop(scope.spawn(connect_some)));
    });
    connected.into_inner().unwrap_or_else(|poison| poison.into_inner())
}

async fn prepare(arguments: &Sessions, number: usize, client: Arc<dyn FileSystem>) -> Result<Worker, Failure> {
    let context = caller();
    let root = client.call(&context, Request::Root).await.and_then(|reply| reply.entry());
    let root = root.map_err(|error| format!("client {number}: the export's root: {error}"))?.handle;
    let mut file = None;
    if let Some(name) = arguments.name.as_ref().filter(|_| arguments.op == SessionOp::Read) {
        let (open, size) = files::open(&*client, name, OpenFlags::READ, false).await?;
        if size < arguments.block {
            return Err(format!("'{name}' has {size} bytes, and a block has {}; make it longer", arguments.block));
        }
        file = Some((open, size / arguments.block));
    }
    Ok(Worker { client, root, file, number: number as u64 })
}

/// The operations of each client, and the errors of all.
fn work(arguments: &Sessions, workers: Vec<Worker>, groups: &[Arc<Group>]) -> Result<(Vec<u64>, u64), Failure> {
    let until = Instant::now() + Duration::from_secs(arguments.seconds);
    let (op, length, count) = (arguments.op, arguments.block as u32, workers.len());
    if op == SessionOp::Idle {
        std::thread::sleep(Duration::from_secs(arguments.seconds));
        return Ok((vec![0; count], 0));
    }
    let (done, results) = mpsc::channel();
    for worker in workers {
        let (done, group) = (done.clone(), groups[worker.number as usize % groups.len()].clone());
        let own = group.clone();
        group.spawn(async move {
            let (mut operations, mut errors, mut places) = (0, 0, Places(worker.number << 32));
            let buffer = ReadBuffer::default();
            while Instant::now() < until {
                match worker.operate((&buffer, length), &mut places).await {
                    Ok(()) => operations += 1,
                    Err(_) => {
                        errors += 1;
                        own.sleep(REST).await;
                    }
                }
            }
            let _ = done.send((operations, errors)); // nobody listens to a process that has failed
        });
    }
    drop(done);
    let results: Vec<(u64, u64)> = results.iter().collect();
    if results.len() != count {
        return Err(format!("of {count} clients {} came to an end", results.len()));
    }
    Ok((results.iter().map(|(operations, _)| *operations).collect(), results.iter().map(|(_, errors)| errors).sum()))
}

impl Worker {
    async fn operate(&self, (buffer, length): (&ReadBuffer, u32), places: &mut Places) -> Result<(), Errno> {
        let context = caller();
        let Some((open, blocks)) = self.file else {
            let stat = Request::GetAttr { handle: self.root.bytes(), open: None };
            return self.client.call(&context, stat).await.map(drop);
        };
        let offset = places.next(blocks) * u64::from(length);
        let read = ReadAt { open, offset, length };
        let count = self.client.read(&context, read, buffer.sink(length as usize)).await?;
        if count == length as usize { Ok(()) } else { Err(Errno::EIO) }
    }
}

/// A process that has a share of the clients; it ends with this one.
struct Member(Child, BufReader<std::process::ChildStdout>);

impl Member {
    fn start(arguments: &Sessions, clients: u32) -> std::io::Result<Member> {
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command.arg("sessions").arg(format!("{}:{}", arguments.target.server, arguments.target.export));
        command.args(["--op", arguments.op.name(), "--member"]);
        let numbers =
            [("--clients", u64::from(clients)), ("--seconds", arguments.seconds), ("--block", arguments.block)];
        for (name, number) in numbers.into_iter().chain([("--workers", u64::from(arguments.workers))]) {
            command.args([name, &number.to_string()]);
        }
        if arguments.bulk_lanes {
            command.arg("--bulk-lanes");
        }
        if let Some(name) = &arguments.name {
            command.args(["--name", name]);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        Ok(Member(child, BufReader::new(output)))
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.1.read_line(&mut line) {
            Ok(length) if length > 0 => Ok(line),
            _ => Err("one of the processes has failed, see above".into()),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It has ended by itself, or nobody wants to know any more what it does.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Shares the clients among processes, which begin to work together.
fn share(arguments: &Sessions) -> Result<Vec<Measured>, Failure> {
    let (processes, clients) = (arguments.processes, arguments.clients);
    let share = |index: u32| clients / processes + u32::from(index < clients % processes);
    let members = (0..processes).map(|index| Member::start(arguments, share(index)));
    let mut members = members.collect::<Result<Vec<_>, _>>().map_err(|error| {
        format!("cannot start {processes} processes: {error}; check the limits on processes and memory")
    })?;
    for member in &mut members {
        member.line()?;
    }
    for member in &mut members {
        let begun = member.0.stdin.as_mut().map(|input| input.write_all(b"go\n"));
        begun.and_then(Result::ok).ok_or("one of the processes has failed, see above")?;
    }
    let result = |member: &mut Member| {
        let line = member.line()?;
        serde_json::from_str(&line).map_err(|error| format!("one of the processes said '{}': {error}", line.trim()))
    };
    members.iter_mut().map(result).collect()
}
