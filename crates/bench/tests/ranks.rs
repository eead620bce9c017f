//! Ranks as real processes. Each is this test program, told by its environment to be a rank and what to do as one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aqueduct_bench::Failure;
use aqueduct_bench::ranks::{Options, Team};
use clap::Parser;
use rustix::process::{Pid, Signal, kill_process};

/// Says what a rank does, and how it is to be started: one option a line.
const ROLE: &str = "AQUEDUCT_TEST_ROLE";
const OPTIONS: &str = "AQUEDUCT_TEST_OPTIONS";

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

/// Not a test by itself: what the ranks of the others run.
#[test]
fn rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words = std::env::var(OPTIONS).unwrap_or_default();
    let options = Line::parse_from(std::iter::once("rank").chain(words.lines())).options;
    let result = Team::start(&options).and_then(|mut team| {
        let result = act(&role, &mut team);
        team.finish(result)
    });
    let failed = result.map(|code| code != ExitCode::SUCCESS).unwrap_or_else(|failure| {
        eprintln!("{failure}");
        true
    });
    std::process::exit(failed.into());
}

/// What a rank does in a test.
fn act(role: &str, team: &mut Team) -> Result<ExitCode, Failure> {
    let rank = team.rank();
    println!("rank {rank} is {}", std::process::id());
    match role {
        "talk" => talk(team)?,
        "barriers" => {
            let started = Instant::now();
            (0..2000).try_for_each(|_| team.barrier())?;
            let microseconds = started.elapsed().as_secs_f64() * 1e6 / 2000.0;
            if rank == 0 {
                println!("{} ranks: a barrier takes {microseconds:.1} us", team.size());
            }
        }
        "fails" if rank == 2 => return Err(Failure::new("writing /x", "no space is left", "make room")),
        "leaves" if rank == 1 => {}
        "fails" | "leaves" => team.barrier()?,
        "waits" => {
            if rank == 1 {
                std::thread::sleep(LONG);
            }
            team.barrier()?;
        }
        "until interrupted" => {
            let mut turns = 0;
            while team.goes_on()? {
                let until = Instant::now() + Duration::from_millis(20);
                while Instant::now() < until && !team.interrupted() {
                    std::thread::yield_now();
                }
                turns += 1;
            }
            if let Some(all) = team.gather(turns)? {
                println!("kept {all:?}");
            }
        }
        _ => return Err(Failure::new("a role", role, "give another")),
    }
    Ok(ExitCode::SUCCESS)
}

fn talk(team: &mut Team) -> Result<(), Failure> {
    let (rank, size) = (team.rank(), team.size());
    for round in 0..20 {
        let speaker = round % size;
        team.barrier()?;
        assert!(!team.any_said(), "nobody has said anything since the barrier, in round {round}");
        team.barrier()?;
        if rank == speaker {
            team.say();
        }
        let until = Instant::now() + LONG;
        while !team.any_said() {
            assert!(Instant::now() < until, "rank {rank} has not heard rank {speaker}");
        }
        let all = team.gather_for_all(format!("{round} {rank}"))?;
        assert_eq!(all, (0..size).map(|rank| format!("{round} {rank}")).collect::<Vec<_>>());
    }
    if let Some(all) = team.gather(vec![rank as u8; 1_000_000])? {
        let is_right = |(body, rank): (&Vec<u8>, u8)| body.len() == 1_000_000 && body.iter().all(|byte| *byte == rank);
        assert!(all.iter().zip(0..).all(is_right));
    }
    assert_eq!(team.broadcast(rank + 7)?, 7);
    let before = team.time();
    let all = team.gather_for_all(team.time())?;
    assert!(all.iter().all(|time| (time - before).abs() < LONG.as_secs_f64()), "{all:?}");
    assert_eq!((team.hosts().len(), team.tasks_per_node() <= size, team.goes_on()?), (size, true, true));
    println!("rank {rank} of {size} on {} hosts has talked", team.nodes());
    Ok(())
}

/// The command of a measurement.
fn measurement(role: &str, options: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["rank", "--exact", "--nocapture", "--quiet"]).env(ROLE, role).env(OPTIONS, options);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// One rank without a launcher, as a launcher would start it.
fn by_hand(role: &str, (rank, size): (usize, usize), rendezvous: &str) -> Command {
    let mut command = measurement(role, &format!("--rendezvous={rendezvous}"));
    command.env("AQUEDUCT_BENCH_RANK", rank.to_string()).env("AQUEDUCT_BENCH_SIZE", size.to_string());
    command
}

fn ended(child: Child) -> (Output, String) {
    let output = child.wait_with_output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, text)
}

fn run(mut command: Command) -> (Output, String) {
    ended(command.spawn().unwrap())
}

/// All of so many ranks have talked.
#[track_caller]
fn talks(command: Command, ranks: usize) -> String {
    let (output, text) = run(command);
    let all = (0..ranks).all(|rank| text.contains(&format!("rank {rank} of {ranks} on ")));
    assert!(output.status.success() && all, "{}: {text}", output.status);
    text
}

/// Starts it; gives the processes that its ranks are, and what else they print until the end.
fn start(role: &str, options: &str, ranks: usize) -> (Child, Vec<i32>, JoinHandle<String>) {
    let mut child = measurement(role, options).spawn().unwrap();
    let (sender, lines) = std::sync::mpsc::channel();
    let streams: [Box<dyn Read + Send>; 2] =
        [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
    for stream in streams {
        let sender = sender.clone();
        std::thread::spawn(move || {
            BufReader::new(stream).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
    }
    drop(sender);
    let (mut pids, mut seen) = (vec![0; ranks], String::new());
    while pids.contains(&0) {
        let line = lines.recv_timeout(LONG).unwrap_or_else(|_| panic!("{seen}"));
        seen.push_str(&format!("{line}\n"));
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [.., "rank", rank, "is", pid] = words[..] {
            pids[rank.parse::<usize>().unwrap()] = pid.parse().unwrap();
        }
    }
    (child, pids, std::thread::spawn(move || lines.iter().map(|line| format!("{line}\n")).collect()))
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[track_caller]
fn are_gone(pids: &[i32]) {
    let until = Instant::now() + LONG;
    while pids.iter().any(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()) {
        assert!(Instant::now() < until, "of {pids:?} some are left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn one_rank_needs_nobody() {
    talks(measurement("talk", ""), 1);
}

#[test]
fn local_ranks_talk() {
    talks(measurement("talk", "--ranks=5"), 5);
}

/// What the module's documentation says of it comes from here: `cargo test --release --test ranks barrier -- --nocapture`.
#[test]
fn what_a_barrier_costs_can_be_seen() {
    for ranks in [2, 4, 16] {
        let (output, text) = run(measurement("barriers", &format!("--ranks={ranks}")));
        assert!(output.status.success(), "{text}");
        text.lines().filter(|line| line.contains("a barrier takes")).for_each(|line| println!("{line}"));
    }
}

#[test]
fn each_rank_can_have_a_command_of_its_own() {
    talks(measurement("talk", "--ranks=3\n--launch=env NUMBER={rank} {command}"), 3);
    let (output, text) = run(measurement("talk", "--ranks=3\n--launch=test {rank} != 1 && {command}"));
    assert!(!output.status.success() && text.contains("rank 1 on this host has ended"), "{text}");
    let (output, text) = run(measurement("talk", "--ranks=3\n--launch=false {command}"));
    assert!(!output.status.success() && text.contains("rank 0 on this host has ended"), "{text}");
}

#[test]
fn a_failure_is_reported_once_with_its_rank() {
    let (output, text) = run(measurement("fails", "--ranks=4"));
    assert!(!output.status.success());
    assert!(text.contains("rank 2 on") && text.contains(": writing /x\n") && text.contains("do: make room"), "{text}");
    assert_eq!(text.matches("no space is left").count(), 1, "{text}");
}

#[test]
fn a_rank_that_leaves_early_is_named() {
    let (output, text) = run(measurement("leaves", "--ranks=3"));
    assert!(!output.status.success() && text.contains("rank 1 on"), "{text}");
    assert!(text.contains("ended before the others"), "{text}");
}

#[test]
fn a_killed_rank_is_named_and_ends_all() {
    let (mut child, pids, text) = start("waits", "--ranks=4", 4);
    signal(pids[1], Signal::KILL);
    assert!(!child.wait().unwrap().success());
    let text = text.join().unwrap();
    assert!(text.contains("rank 1 on") && text.contains("do: see rank 1's own message"), "{text}");
    assert_eq!(text.matches("does not take part any more").count(), 1, "{text}");
    are_gone(&pids);
}

#[test]
fn the_ranks_end_with_rank_0() {
    let (mut child, pids, _) = start("until interrupted", "--ranks=3", 3);
    signal(pids[0], Signal::KILL);
    child.wait().unwrap();
    are_gone(&pids);
}

#[test]
fn an_interrupt_at_any_rank_is_heard_by_all_and_what_is_done_is_kept() {
    let (local, apart) = ("--ranks=3", "--ranks=3\n--launch={command}");
    for (options, interrupted) in [(local, Some(0)), (local, Some(2)), (apart, Some(1)), (apart, None)] {
        let (mut child, pids, text) = start("until interrupted", options, 3);
        // None: who has started rank 0 passes it on.
        signal(interrupted.map_or(child.id() as i32, |rank: usize| pids[rank]), Signal::INT);
        assert!(child.wait().unwrap().success(), "{options} {interrupted:?}");
        let text = text.join().unwrap();
        assert!(text.contains("kept ["), "{options} {interrupted:?}: {text}");
        are_gone(&pids);
    }
}

#[test]
fn ranks_meet_by_a_file_that_an_older_measurement_may_have_left() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("meet");
    std::fs::write(&file, r#"{"addresses":["127.0.0.1:1"],"secret":"x"}"#).unwrap();
    let name = file.to_str().unwrap();
    let others = [2, 1].map(|rank| by_hand("talk", (rank, 3), name).spawn().unwrap());
    let (output, text) = run(by_hand("talk", (0, 3), name));
    assert!(output.status.success() && text.contains("rank 0 of 3 on 1 hosts has talked"), "{text}");
    for rank in others {
        let (output, text) = ended(rank);
        assert!(output.status.success(), "{text}");
    }
    assert!(!file.exists());
}

#[test]
fn strangers_cannot_join() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let place = format!("127.0.0.1:{port}");
    let keyed = |rank: usize, secret: &str| {
        by_hand("talk", (rank, 2), &place).env("AQUEDUCT_BENCH_SECRET", secret).spawn().unwrap()
    };
    let first = keyed(0, "right");
    let until = Instant::now() + LONG;
    // One says nothing, one says what no rank says, one is a rank with another secret.
    let silent = loop {
        match TcpStream::connect(&place) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut loud = TcpStream::connect(&place).unwrap();
    let _ = loud.write_all(&[0xff; 100_000]); // it may be closed already
    let mut wrong = keyed(1, "wrong");
    std::thread::sleep(Duration::from_millis(300));
    assert!(wrong.try_wait().unwrap().is_none(), "it goes on trying");
    for rank in [keyed(1, "right"), first] {
        let (output, text) = ended(rank);
        assert!(output.status.success() && text.contains("of 2 on 1 hosts has talked"), "{text}");
    }
    wrong.kill().unwrap();
    wrong.wait().unwrap();
    drop(silent);
}

/// Whether there is such a program; says so if not.
fn is_there(program: &str) -> bool {
    let there = std::env::var("PATH").unwrap_or_default().split(':').any(|path| Path::new(path).join(program).exists());
    if !there {
        eprintln!("skipped: {program} is not installed");
    }
    there
}

/// The same measurement under a launcher.
fn under(launcher: &[&str], role: &str, options: &str) -> Command {
    let inner = measurement(role, options);
    let mut command = Command::new(launcher[0]);
    command.args(&launcher[1..]).arg(inner.get_program()).args(inner.get_args());
    command.env(ROLE, role).env(OPTIONS, options).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn ranks_of_mpich_find_each_other() {
    let launcher = ["mpiexec.mpich", "-n", "4"];
    if is_there(launcher[0]) {
        talks(under(&launcher, "talk", ""), 4);
        talks(under(&launcher, "talk", "--ranks=3"), 3);
        let (output, text) = run(under(&launcher, "fails", ""));
        assert!(!output.status.success() && text.contains("rank 2 on"), "{text}");
        let (output, text) = run(under(&launcher, "talk", "--ranks=5"));
        assert!(!output.status.success() && text.contains("--ranks 5 of 4"), "{text}");
    }
}

#[test]
fn ranks_of_open_mpi_find_each_other() {
    let launcher = ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "4"];
    if is_there(launcher[0]) {
        talks(under(&launcher, "talk", ""), 4);
    }
}

/// What srun tells its tasks, without Slurm: they are on the step's first node, and the port follows from the job.
#[test]
fn ranks_of_a_slurm_step_find_each_other() {
    let job = std::process::id().to_string();
    let task = |rank: usize| {
        let mut command = measurement("talk", "");
        command.env("SLURM_JOB_ID", &job).env("SLURM_STEP_ID", "0").env("SLURM_STEP_NODELIST", "localhost");
        command.env("SLURM_PROCID", rank.to_string()).env("SLURM_STEP_NUM_TASKS", "3").spawn().unwrap()
    };
    for (rank, child) in [2, 0, 1].map(|rank| (rank, task(rank))) {
        let (output, text) = ended(child);
        assert!(output.status.success() && text.contains(&format!("rank {rank} of 3 on")), "{text}");
        assert_eq!(text.contains("the ranks share no secret"), rank == 0, "{text}");
    }
}

/// An SSH server of our own, if there can be one: how it is reached. It has keys that live as long as the folder.
fn ssh_server(directory: &Path) -> Option<(Child, String)> {
    if !is_there("ssh") || !Path::new("/usr/sbin/sshd").exists() || !is_there("ssh-keygen") {
        eprintln!("skipped: there is no SSH server");
        return None;
    }
    let at = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    for name in ["host", "user"] {
        let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(name)]).status();
        assert!(made.unwrap().success());
    }
    std::fs::copy(at("user.pub"), at("authorized")).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let configuration = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n",
        at("host"),
        at("authorized")
    );
    std::fs::write(at("configuration"), configuration).unwrap();
    // sshd wants a folder that only its start script makes: it has a /run of its own, where we may mount one.
    let line = "mount -t tmpfs none /run && mkdir /run/sshd && exec /usr/sbin/sshd -D -e -f $0";
    let mut server = Command::new("unshare");
    server.args(["--mount", "sh", "-c", line, &at("configuration")]).stderr(Stdio::null());
    let server = server.spawn().ok()?;
    let ssh = format!(
        "ssh -p {port} -i {} -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
        at("user")
    );
    Some((server, ssh))
}

#[test]
fn ranks_on_other_hosts_are_started_by_ssh() {
    let directory = tempfile::tempdir().unwrap();
    let Some((mut server, ssh)) = ssh_server(directory.path()) else { return };
    let until = Instant::now() + Duration::from_secs(5);
    let reaches = || {
        Command::new("sh")
            .args(["-c", &format!("{ssh} -o BatchMode=yes 127.0.0.1 true 2>/dev/null")])
            .status()
            .unwrap()
            .success()
    };
    let mut reached = reaches();
    while !reached && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
        reached = reaches();
    }
    if reached {
        let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
        let there = format!("{}@127.0.0.1", user.trim());
        // Rank 0 here, then there; the user's name makes this host another.
        for hosts in [format!("localhost,{there}:2"), format!("{there}:2,localhost")] {
            let mut command = measurement("talk", &format!("--hosts={hosts}"));
            command.env("AQUEDUCT_BENCH_SSH", &ssh);
            talks(command, 3);
        }
        let mut command = measurement("talk", &format!("--hosts=localhost,{there}"));
        command.env("AQUEDUCT_BENCH_SSH", &ssh).env(ROLE, "leaves");
        let (output, text) = run(command);
        assert!(!output.status.success() && text.contains("rank 1 on"), "{text}");
    } else {
        eprintln!("skipped: the SSH server lets nobody in");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
