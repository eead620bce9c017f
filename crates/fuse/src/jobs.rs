//! The jobs of batch systems that callers work for. A request carries the caller's thread id;
//! which job that is stands in its environment or its control group.

use std::fs::{File, read_to_string};
use std::io::Read;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use ahash::HashMap;
use aqueduct_worker::lock;

/// How long what was read counts before it is seen whether the thread id is still the same
/// process's.
const FRESH: Duration = Duration::from_secs(1);

/// Callers remembered: about 100 KiB.
const CALLERS_MAX: usize = 1024;

/// The most bytes of an environment that are looked at: Linux lets a program have 2 MiB at most,
/// and batch systems put theirs in front of or behind a few KiB of others.
const ENVIRONMENT_MAX: u64 = 128 << 10;

/// So often a process is looked at in which no job was found: its first requests may come from
/// before it became the job's program (execve keeps its id and the time when it started).
const LOOKS_MAX: u8 = 4;

/// The longest id of a job that a request carries.
const JOB_LENGTH_MAX: usize = 64;

/// Where batch systems say which job a program belongs to: Slurm, PBS, LSF.
const VARIABLES: [&[u8]; 3] = [b"SLURM_JOB_ID=", b"PBS_JOBID=", b"LSB_JOBID="];

/// Thread ids that wait to be looked at; more are looked at when they ask again.
const WAITING_MAX: usize = 256;

/// What is known of a thread id.
#[derive(Clone)]
struct Known {
    /// When it was looked at, or somebody was told to.
    looked: Instant,
    /// When its process started, in ticks since boot (proc_pid_stat(5)); 0: not looked at yet.
    started: u64,
    /// How often that process was looked at.
    looks: u8,
    job: Option<Arc<str>>,
}

type Table = Arc<Mutex<HashMap<u32, Known>>>;

/// Remembers the jobs of recent callers.
///
/// A thread of its own looks: to read an environment takes the lock of that process's memory, and
/// who holds that may be waiting for the answer to the very request (a mapping that is made drops
/// pages first). So the first requests of a process are told to be of no job.
#[derive(Default)]
pub(crate) struct JobCache {
    known: Table,
    /// To the thread; `None`: there is none to be had.
    asks: OnceLock<Option<SyncSender<u32>>>,
}

impl JobCache {
    /// The job for which thread `tid` works now; `None`: it works for none, or that is not known
    /// yet. Waits for nothing.
    pub(crate) fn of(&self, tid: u32, now: Instant) -> Option<Arc<str>> {
        if tid == 0 {
            return None;
        }
        let mut known = lock(&self.known);
        let before = known.get(&tid);
        let job = before.and_then(|before| before.job.clone());
        if before.is_some_and(|before| now.duration_since(before.looked) < FRESH) {
            return job;
        }
        let (started, looks) = before.map_or((0, 0), |before| (before.started, before.looks));
        let asks = self.asks.get_or_init(|| start(&self.known));
        if asks.as_ref().is_some_and(|asks| asks.try_send(tid).is_ok()) {
            if known.len() >= CALLERS_MAX {
                known.retain(|_, known| now.duration_since(known.looked) < FRESH);
                if known.len() >= CALLERS_MAX {
                    known.clear();
                }
            }
            known.insert(tid, Known { looked: now, started, looks, job: job.clone() });
        }
        job
    }
}

/// Starts the thread that looks. It ends with the table.
fn start(known: &Table) -> Option<SyncSender<u32>> {
    let (sender, asked) = sync_channel(WAITING_MAX);
    let known = Arc::downgrade(known);
    let work = move || {
        for tid in asked {
            let Some(known) = known.upgrade() else { return };
            let before = lock(&known).get(&tid).cloned();
            let stat = read_to_string(format!("/proc/{tid}/stat")).ok();
            let started = stat.and_then(|text| start_time(&text)).unwrap_or(0);
            let same = before.filter(|before| before.started == started && started != 0);
            let looks = same.as_ref().map_or(0, |same| same.looks);
            if same.is_some_and(|same| same.job.is_some() || looks >= LOOKS_MAX) {
                continue; // whose job is known, or that it has none
            }
            let job = if started == 0 { None } else { look(tid).map(Into::into) };
            if let Some(entry) = lock(&known).get_mut(&tid) {
                (entry.started, entry.looks, entry.job) = (started, looks + 1, job);
            }
        }
    };
    match std::thread::Builder::new().name("jobs".into()).spawn(work) {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::warn!(%error, "the jobs of callers cannot be found out");
            None
        }
    }
}

fn look(tid: u32) -> Option<String> {
    let mut environment = Vec::new();
    // Another user's cannot be read by a mount that is not root's; its group can.
    let read = File::open(format!("/proc/{tid}/environ"))
        .and_then(|file| file.take(ENVIRONMENT_MAX).read_to_end(&mut environment));
    let of_environment = read.ok().and_then(|_| in_environment(&environment));
    of_environment.or_else(|| in_groups(&read_to_string(format!("/proc/{tid}/cgroup")).ok()?))
}

/// The 22nd field of a /proc/PID/stat; its second may have anything in its parentheses.
fn start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn in_environment(text: &[u8]) -> Option<String> {
    VARIABLES.iter().find_map(|name| {
        let value = text.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(*name))?;
        checked(std::str::from_utf8(value).ok()?)
    })
}

/// As Slurm (`.../job_4711/step_0`), PBS (`/pbs_jobs.service/jobid/4711.server`) and LSF
/// (`/lsf/cluster/job.4711.1234.5678`) name the groups of their jobs.
fn in_groups(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        let mut parts = path.split('/');
        let mut of_slurm = parts.clone().filter_map(|part| part.strip_prefix("job_"));
        if path.contains("slurm") {
            return of_slurm.next().and_then(checked);
        }
        if path.contains("pbs") {
            return parts.skip_while(|part| *part != "jobid").nth(1).and_then(checked);
        }
        let of_lsf = parts.find_map(|part| part.strip_prefix("job.")).filter(|_| path.contains("lsf"));
        of_lsf.and_then(|id| checked(id.split('.').next()?))
    })
}

fn checked(id: &str) -> Option<String> {
    let fits = (1..=JOB_LENGTH_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn batch_systems_are_known_by_their_variables_and_groups() {
        assert_eq!(in_environment(b"A=b\0SLURM_JOB_ID=4711\0Z=").as_deref(), Some("4711"));
        assert_eq!(in_environment(b"PBS_JOBID=12.server\0").as_deref(), Some("12.server"));
        assert_eq!(in_environment(b"XSLURM_JOB_ID=1\0LSB_JOBID=7").as_deref(), Some("7"));
        for wrong in [&b""[..], b"SLURM_JOB_ID=", b"SLURM_JOB_ID=a b", b"SLURM_JOB_ID=\xff", &[b'S'; 70]] {
            assert_eq!(in_environment(wrong), None, "{wrong:?}");
        }
        for (text, expected) in [
            ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", Some("4711")),
            ("4:memory:/slurm/uid_1000/job_12/step_batch\n0::/\n", Some("12")),
            ("0::/pbs_jobs.service/jobid/99.server\n", Some("99.server")),
            ("9:freezer:/lsf/cluster1/job.33.1234.5678\n", Some("33")),
            ("0::/user.slice/job_5\n::\nnonsense", None),
            ("", None),
        ] {
            assert_eq!(in_groups(text).as_deref(), expected, "{text}");
        }
        assert_eq!(start_time("7 (a) b) c) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5555 0"), Some(5555));
        assert_eq!(start_time("7 (a"), None);
    }

    #[test]
    fn a_process_is_found_and_the_table_is_bounded() {
        let mut child = Command::new("sleep").arg("100").env("SLURM_JOB_ID", "815").spawn().unwrap();
        let cache = JobCache::default();
        let began = Instant::now();
        while cache.of(child.id(), Instant::now()).as_deref() != Some("815") {
            assert!(began.elapsed() < Duration::from_secs(60), "the job is not found");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(cache.of(0, Instant::now()), None);
        (0..10_000).for_each(|more| _ = cache.of(u32::MAX - more, Instant::now()));
        assert!(lock(&cache.known).len() <= CALLERS_MAX);
    }
}
