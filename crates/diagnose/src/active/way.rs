//! The way to a server: how long it takes there and back, idle and while a leg runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_node::{Asker, ConnectError, PADDING_MAX, Reach};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// A server ends a session that mounts nothing after 5 s.
const SESSION_MAX: Duration = Duration::from_secs(3);

/// Between two questions while a leg runs.
const APART: Duration = Duration::from_millis(20);

/// Questions to a way that is idle.
const IDLE_QUESTIONS: usize = 15;

/// The way to a server, idle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// The least round trip, in seconds.
    pub least: f64,
    /// The median, in seconds.
    pub median: f64,
}

fn connect(server: &str, (key, routes): &Reach) -> Result<Asker, ConnectError> {
    Asker::connect(server, key.clone(), routes.clone(), PATIENCE)
}

/// The round trips of a way that is idle; or why it does not answer.
pub(crate) fn idle(server: &str, reach: &Reach) -> Result<Way, String> {
    let mut asker = connect(server, reach).map_err(|error| error.to_string())?;
    let mut times = Vec::new();
    for _ in 0..IDLE_QUESTIONS {
        times.push(asker.ping(0, PATIENCE).map_err(|error| error.to_string())?.as_secs_f64());
    }
    let vanish = "short questions are answered and long ones are not: packets of full size vanish on the way ('aqueduct net path' says where)";
    asker.ping(PADDING_MAX, PATIENCE).map_err(|error| format!("{vanish}: {error}"))?;
    times.sort_by(f64::total_cmp);
    Ok(Way { least: times[0], median: times[times.len() / 2] })
}

/// Asks again and again, beside what else goes on, until it is dropped.
pub(crate) struct Watch {
    ends: Arc<AtomicBool>,
    /// Of the questions since the last look: how many, and their time in nanoseconds.
    counts: Arc<[AtomicU64; 2]>,
}

impl Watch {
    pub(crate) fn start(server: String, reach: Reach) -> Watch {
        let (ends, counts) = (Arc::new(AtomicBool::new(false)), Arc::<[AtomicU64; 2]>::default());
        let (has_ended, told) = (ends.clone(), counts.clone());
        // A thread that cannot be had asks nothing.
        let _ = thread::Builder::new().name("round-trips".into()).spawn(move || {
            while !has_ended.load(Ordering::Relaxed) {
                ask(&server, &reach, &has_ended, &told);
                thread::sleep(APART);
            }
        });
        Watch { ends, counts }
    }

    /// The mean round trip in seconds since the look before; `None`: nothing was answered.
    pub(crate) fn look(&self) -> Option<f64> {
        let [count, nanos] = self.counts.each_ref().map(|count| count.swap(0, Ordering::Relaxed));
        (count > 0).then(|| nanos as f64 / 1e9 / count as f64)
    }
}

impl Watch {
    /// What was answered so far does not count.
    pub(crate) fn forget(&self) {
        let _ = self.look(); // nobody asks
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}

fn ask(server: &str, reach: &Reach, ends: &AtomicBool, told: &[AtomicU64; 2]) {
    let Ok(mut asker) = connect(server, reach) else { return };
    let since = Instant::now();
    while !ends.load(Ordering::Relaxed) && since.elapsed() < SESSION_MAX {
        let Ok(took) = asker.ping(0, PATIENCE) else { return };
        told[0].fetch_add(1, Ordering::Relaxed);
        told[1].fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        thread::sleep(APART);
    }
}
