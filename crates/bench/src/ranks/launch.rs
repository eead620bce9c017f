//! Starting ranks: as children of this process, by ssh, or by a template.
//!
//! A rank is the same program with the same arguments. Its environment has AQUEDUCT_BENCH_RANK and AQUEDUCT_BENCH_SIZE, and AQUEDUCT_BENCH_JOIN=stdin: then
//! the first line of its standard input is its [`Assignment`], which nobody else sees. If rank 0 is started too, since it has to be on another host or in a
//! namespace of its own, it says on the first line of its standard output where it listens, and this process only waits.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use super::options::{self, Options, quoted};
use super::star::Star;
use super::{address, meet, signals};
use crate::Failure;

/// The environment of a rank.
pub(super) const RANK: &str = "AQUEDUCT_BENCH_RANK";
/// See [`RANK`].
pub(super) const SIZE: &str = "AQUEDUCT_BENCH_SIZE";
const JOIN: &str = "AQUEDUCT_BENCH_JOIN";
/// What replaces `ssh`.
const SSH: &str = "AQUEDUCT_BENCH_SSH";

/// What begins the line by which a rank 0 that was started says where it listens.
const LISTENS: &str = "aqueduct-bench rank 0 listens: ";

/// Longer lines are no assignments, and not passed on whole.
const LINE_LENGTH_MAX: u64 = 64 << 10;

/// Ranks that have been told to end get so long to do it, and are killed then.
const END_MAX: Duration = Duration::from_secs(10);

/// What a rank that was started has to know.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Assignment {
    rank: usize,
    size: usize,
    secret: String,
    /// Where rank 0 listens; none for rank 0 itself.
    addresses: Vec<SocketAddr>,
}

/// A rank that was started here, and how it is called in messages.
struct Started {
    rank: usize,
    host: String,
    child: Child,
}

/// The ranks that this process has started.
#[derive(Default)]
pub(super) struct Children(Vec<Started>);

impl std::fmt::Debug for Children {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} children", self.0.len())
    }
}

/// This rank's assignment, if it was started as one.
pub(super) fn assignment() -> Result<Option<Assignment>, Failure> {
    if std::env::var(JOIN).is_err() {
        return Ok(None);
    }
    let failed = |why: String| {
        Failure::new(
            "starting as a rank",
            why,
            format!("unset {JOIN}, {RANK} and {SIZE}; they are for processes that a rank starts"),
        )
    };
    // If rank 0 is killed nobody else is left to end this. It may be impossible, and is found out later then.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    let mut line = String::new();
    BufReader::new(std::io::stdin().lock().take(LINE_LENGTH_MAX))
        .read_line(&mut line)
        .map_err(|error| failed(error.to_string()))?;
    serde_json::from_str(&line).map(Some).map_err(|error| failed(format!("standard input has no assignment: {error}")))
}

/// A rank that was started joins the others, or has them join.
pub(super) fn take_part(assignment: Assignment) -> Result<(Star, usize, usize), Failure> {
    let Assignment { rank, size, secret, addresses } = assignment;
    let key = meet::key(secret.as_bytes());
    if rank != 0 {
        return Ok((meet::join(|| Ok((addresses.clone(), key.clone())), rank, size)?, rank, size));
    }
    let listener = meet::listen(0, true).map_err(|error| no_listener(&error))?;
    let line = serde_json::to_string(&listener.addresses()).unwrap_or_default();
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{LISTENS}{line}").and_then(|()| stdout.flush()).map_err(|error| {
        Failure::new("telling where rank 0 listens", error, "the command of --launch has to pass standard output on")
    })?;
    drop(stdout);
    listen_to_parent();
    Ok((meet::lead(listener, size, &key, || Ok(()))?, rank, size))
}

pub(super) fn no_listener(error: &std::io::Error) -> Failure {
    Failure::new("listening for the other ranks", error, "see whether this host has the address, and the port is free")
}

/// Starts the ranks that the options ask for. This process is rank 0 afterwards, or has only waited for them and ends here.
pub(super) fn start(options: &Options) -> Result<Option<(Star, usize, Children)>, Failure> {
    let hosts = options::placement(options)?;
    let size = hosts.len();
    let is_apart = options.launch.is_some() || !address::is_here(&hosts[0]);
    if size == 1 && !is_apart {
        return Ok(None);
    }
    let secret = meet::new_secret()?;
    if is_apart {
        let code = wait_for_all(options, &hosts, &secret)?;
        std::process::exit(code);
    }
    let is_local = hosts.iter().all(|host| address::is_here(host));
    let listener = meet::listen(0, !is_local).map_err(|error| no_listener(&error))?;
    let addresses =
        if is_local { vec![SocketAddr::from(([127, 0, 0, 1], listener.port))] } else { listener.addresses() };
    let mut children = Children::default();
    for (rank, host) in hosts.iter().enumerate().skip(1) {
        let assignment = Assignment { rank, size, secret: secret.clone(), addresses: addresses.clone() };
        children.start(options, &assignment, host)?;
    }
    let star = meet::lead(listener, size, &meet::key(secret.as_bytes()), || children.check())?;
    Ok(Some((star, size, children)))
}

/// Starts all ranks, rank 0 too, and waits for them. What this process ends with.
fn wait_for_all(options: &Options, hosts: &[String], secret: &str) -> Result<i32, Failure> {
    let mut children = Children::default();
    let size = hosts.len();
    let first = Assignment { rank: 0, size, secret: secret.to_owned(), addresses: Vec::new() };
    children.start(options, &first, &hosts[0])?;
    let addresses = children.listens()?;
    for (rank, host) in hosts.iter().enumerate().skip(1) {
        let assignment = Assignment { rank, addresses: addresses.clone(), secret: secret.to_owned(), size };
        children.start(options, &assignment, host)?;
    }
    children.wait_for_first()
}

impl Children {
    fn start(&mut self, options: &Options, assignment: &Assignment, host: &str) -> Result<(), Failure> {
        let Assignment { rank, size, .. } = *assignment;
        let (mut command, how) = command(options, (rank, size), host)?;
        let failed = |error: std::io::Error| {
            Failure::new(
                format!("starting rank {rank} of {size} by {how}"),
                error,
                "see whether that program is there, and the limits on processes and open files (ulimit -u, ulimit -n)",
            )
        };
        // A signal of the terminal is for this process alone, which tells the others.
        command.stdin(Stdio::piped()).process_group(0);
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        if rank == 0 {
            command.stdout(Stdio::piped());
        } else {
            command.stdout(writer.try_clone().map_err(failed)?).stderr(writer);
        }
        let mut child = command.spawn().map_err(failed)?;
        drop(command); // it holds the pipe's other end
        if rank != 0 {
            let name = format!("[rank {rank}{}]", if host.is_empty() { String::new() } else { format!(" on {host}") });
            std::thread::spawn(move || pass_on(BufReader::new(reader), &name));
        }
        if let Some(stdin) = &mut child.stdin {
            let line = serde_json::to_string(assignment).unwrap_or_default();
            // One that has ended already is found out next.
            let _ = writeln!(stdin, "{line}");
        }
        self.0.push(Started { rank, host: host.to_owned(), child });
        Ok(())
    }

    /// Where the rank 0 that was started listens. What it prints afterwards is printed here.
    fn listens(&mut self) -> Result<Vec<SocketAddr>, Failure> {
        let stdout = self.0.first_mut().and_then(|started| started.child.stdout.take());
        let (sender, line) = mpsc::channel();
        std::thread::spawn(move || -> Option<()> {
            let mut reader = BufReader::new(stdout?);
            loop {
                let mut line = String::new();
                if reader.by_ref().take(LINE_LENGTH_MAX).read_line(&mut line).ok()? == 0 {
                    return None;
                }
                match line.trim_end().strip_prefix(LISTENS) {
                    Some(addresses) => sender.send(addresses.to_owned()).ok()?,
                    None => print(line.as_bytes()),
                }
            }
        });
        let end = Instant::now() + meet::MEET_MAX;
        loop {
            match line.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => {
                    return serde_json::from_str(&line).map_err(|error| {
                        Failure::new(
                            "starting rank 0",
                            format!("it does not say where it listens: {error}"),
                            "see its output above",
                        )
                    });
                }
                Err(_) => self.check()?,
            }
            if signals::asked() || Instant::now() > end {
                return Err(Failure::new(
                    "starting rank 0",
                    "it has not said where it listens",
                    "see its output above; --launch has to pass stdin and stdout on",
                ));
            }
        }
    }

    /// Whether all still run.
    fn check(&mut self) -> Result<(), Failure> {
        for Started { rank, host, child } in &mut self.0 {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(Failure::new(
                    format!("rank {rank} on {} has ended before all had joined", shown(host)),
                    status,
                    "see its message above",
                ));
            }
        }
        Ok(())
    }

    /// Waits for rank 0, and says what it ended with.
    fn wait_for_first(&mut self) -> Result<i32, Failure> {
        let (mut told, mut ended) = (false, None);
        loop {
            let Some((first, others)) = self.0.split_first_mut() else { return Ok(1) };
            let status = first
                .child
                .try_wait()
                .map_err(|error| Failure::new("waiting for rank 0", error, "see its output above"))?;
            if let Some(status) = status {
                return Ok(status.code().unwrap_or(1));
            }
            if signals::asked() && !told {
                told = true;
                // What rank 0 reads there: see `listen_to_parent`.
                first.child.stdin.take();
            }
            let failed = others.iter_mut().find_map(|Started { rank, host, child }| {
                let status = child.try_wait().ok()??;
                (!status.success()).then(|| (*rank, host.clone(), status))
            });
            // Rank 0 finds out itself, unless the rank has never joined it.
            if let Some((rank, host, status)) = failed {
                let since: &mut Instant = ended.get_or_insert_with(Instant::now);
                if since.elapsed() > END_MAX {
                    let what = format!("rank {rank} on {} has ended", shown(&host));
                    return Err(Failure::new(what, status, "see its message above"));
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// They have been told to end before, each by its connection: whoever does not is killed.
impl Drop for Children {
    fn drop(&mut self) {
        let end = Instant::now() + END_MAX;
        for Started { rank, host, child } in &mut self.0 {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(2));
            }
            if matches!(child.try_wait(), Ok(None)) {
                tracing::warn!(rank, host, "it does not end, and is killed");
                if let Some(group) = Pid::from_raw(child.id() as i32) {
                    let _ = kill_process_group(group, Signal::KILL); // it may just have ended
                }
                let _ = child.wait();
            }
        }
    }
}

fn shown(host: &str) -> &str {
    if host.is_empty() { "this host" } else { host }
}

/// The command that starts a rank, and how it is called in messages.
fn command(options: &Options, (rank, size): (usize, usize), host: &str) -> Result<(Command, String), Failure> {
    let failed = |error: std::io::Error| Failure::new("finding this program", error, "start it by its whole path");
    let program = std::env::current_exe().map_err(failed)?;
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let own = [(RANK, rank.to_string()), (SIZE, size.to_string()), (JOIN, "stdin".to_owned())];
    let is_near = address::is_here(host);
    if options.launch.is_none() && is_near {
        let mut command = Command::new(&program);
        command.args(arguments).envs(own);
        return Ok((command, format!("'{}'", program.display())));
    }
    // Others' environment: ours as far as it is about this program.
    let passed = std::env::vars().filter(|(name, _)| {
        (name.starts_with("AQUEDUCT_") || name == "RUST_LOG")
            && ![RANK, SIZE, JOIN, SSH, super::found::SECRET].contains(&name.as_str())
    });
    let environment = own.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(passed);
    let mut words = vec!["env".to_owned()];
    words.extend(environment.map(|(name, value)| quoted(&format!("{name}={value}"))));
    words.push(quoted(&program.to_string_lossy()));
    words.extend(arguments.iter().map(|argument| quoted(&argument.to_string_lossy())));
    let line = words.join(" ");
    let mut command = Command::new("sh");
    if let Some(template) = &options.launch {
        command.arg("-c").arg(options::filled(template, (rank, host), &line));
        return Ok((command, format!("'{template}'")));
    }
    let ssh = std::env::var(SSH).unwrap_or_else(|_| "ssh".to_owned());
    let directory = std::env::current_dir().map_err(failed)?;
    let remote = format!("cd {} && exec {line}", quoted(&directory.to_string_lossy()));
    // Nobody is there to answer questions: ssh fails instead of asking.
    command.arg("-c").arg(format!("exec {ssh} -o BatchMode=yes {} {}", quoted(host), quoted(&remote)));
    Ok((command, format!("'{ssh} {host}'")))
}

/// Prints what a rank prints, each line with the rank's name.
fn pass_on(mut reader: impl BufRead, name: &str) {
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(LINE_LENGTH_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                let mut stderr = std::io::stderr().lock();
                let _ = writeln!(stderr, "{name} {}", text.trim_end());
            }
        }
    }
}

fn print(bytes: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
}

/// A rank 0 that was started ends in order when who has started it closes its standard input, on Ctrl-C or by dying.
fn listen_to_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        signals::ask();
    });
}
