//! What an administrator has the volume do meanwhile: how fast, how far it has come, and whether
//! it is to end.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aqueduct_fs::Errno;
use aqueduct_worker::Group;

use crate::store::within;

/// Who waits for his turn looks so often whether the job is to end.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// See the module.
#[derive(Debug, Default)]
pub struct Job {
    /// Bytes in a second; `None`: as many as go.
    rate: Option<u64>,
    /// When the next bytes may go.
    next: Mutex<Option<Instant>>,
    bytes: AtomicU64,
    ends: AtomicBool,
}

impl Job {
    /// At most so many bytes in a second.
    pub fn new(rate: Option<u64>) -> Job {
        Job { rate: rate.map(|rate| rate.max(1)), ..Job::default() }
    }

    /// The bytes that were copied.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Has it end at the next place where nothing is half done.
    pub fn end(&self) {
        self.ends.store(true, Ordering::SeqCst);
    }

    /// Whether it is to end.
    pub fn ends(&self) -> bool {
        self.ends.load(Ordering::SeqCst)
    }

    /// Is about to copy bytes. Returns how long that has to wait for those before.
    fn take(&self, bytes: u64) -> Duration {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let Some(rate) = self.rate else { return Duration::ZERO };
        let mut next = self.next.lock().unwrap_or_else(|poison| poison.into_inner());
        let now = Instant::now();
        let begin = next.filter(|next| *next > now).unwrap_or(now);
        *next = Some(begin + Duration::from_secs_f64(bytes as f64 / rate as f64));
        begin - now
    }

    /// Waits for its turn to copy bytes; `group` has the clock. ECANCELED: the job is to end.
    pub(crate) async fn pace(&self, bytes: u64, group: Option<&Group>) -> Result<(), Errno> {
        let wait = self.take(bytes);
        let until = Instant::now() + wait;
        while let Some(group) = group.filter(|_| !self.ends() && Instant::now() < until) {
            group.sleep(until.saturating_duration_since(Instant::now()).min(LOOK_INTERVAL)).await;
        }
        if self.ends() { Err(Errno::ECANCELED) } else { Ok(()) }
    }

    /// Does what may wait for a server that does not answer. ECANCELED: the job is to end, and that
    /// was given up.
    pub(crate) async fn unless_ended<T>(
        &self,
        work: impl Future<Output = Result<T, Errno>>,
        group: Option<&Group>,
    ) -> Result<T, Errno> {
        let mut work = pin!(work);
        loop {
            match within(LOOK_INTERVAL, work.as_mut(), group).await {
                Some(done) => return done,
                None if self.ends() => return Err(Errno::ECANCELED),
                None => {}
            }
        }
    }

    /// As [`pace`](Job::pace), of bytes for which others wait: they go at once, and later ones wait
    /// longer.
    pub(crate) fn hasten(&self, bytes: u64) {
        self.take(bytes);
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_worker::{Settings, wait};

    use super::*;

    #[test]
    fn what_waits_for_a_server_ends_with_the_job() {
        let settings = Settings { name: "test".into(), threads_min: 0, threads_max: 0, spin_max: Duration::ZERO };
        let (group, job) = (Group::new(settings).unwrap(), Job::new(None));
        let done = |work: Result<u8, Errno>| wait(&group, job.unless_ended(async { work }, Some(&group)));
        assert_eq!((done(Ok(7)), done(Err(Errno::EIO))), (Ok(7), Err(Errno::EIO)));
        job.end();
        assert_eq!(done(Ok(7)), Ok(7), "it waited for nothing");
        let silent = std::future::pending::<Result<(), Errno>>();
        assert_eq!(wait(&group, job.unless_ended(silent, Some(&group))), Err(Errno::ECANCELED));
    }

    #[test]
    fn who_is_held_to_a_rate_waits_for_what_went_before() {
        let job = Job::new(Some(1000));
        assert_eq!(job.take(5000), Duration::ZERO);
        job.hasten(5000);
        assert!(job.take(1) > Duration::from_secs(8));
        assert_eq!(job.bytes(), 10_001);
        assert_eq!((Job::new(None).take(1 << 40), Job::new(None).take(1)), (Duration::ZERO, Duration::ZERO));
    }
}
