//! How fast one connection may ask: what it asks is answered by the thread that all others need as
//! well.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use aqueduct_worker::Group;

/// Frames that a connection may send one after the other: more than anybody asks who looks at a way
/// (`aqueduct net path` asks each router 20 times).
const BURST: u32 = 64;

/// Between further ones. At 200 a second, all connections that a router takes together leave its
/// thread to others, and who asks for each slow operation is still answered.
const PAUSE: Duration = Duration::from_millis(5);

/// Of one connection.
#[derive(Default)]
pub(crate) struct Pace {
    /// When all that came would have come, had it kept the pause.
    due: Option<Instant>,
}

impl Pace {
    /// To be waited for before each frame is received.
    pub(crate) async fn next(&mut self, group: &Group) {
        // Also while it is fast enough: what it has sent may be there for long.
        give_way().await;
        let pause = self.pause(Instant::now());
        if !pause.is_zero() {
            group.sleep(pause).await;
        }
    }

    /// How long the next frame has to wait.
    fn pause(&mut self, now: Instant) -> Duration {
        let due = self.due.map_or(now, |due| due.max(now)) + PAUSE;
        self.due = Some(due);
        due.saturating_duration_since(now + PAUSE * BURST)
    }
}

/// Lets all others that are ready have their turn.
async fn give_way() {
    let mut has_given = false;
    poll_fn(|task| {
        if std::mem::replace(&mut has_given, true) {
            return Poll::Ready(());
        }
        task.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_without_end_is_slowed_down_and_nobody_else() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        assert!((0..BURST).all(|_| pace.pause(now).is_zero()));
        for _ in 0..10 {
            let pause = pace.pause(now);
            assert_eq!(pause, PAUSE);
            now += pause;
        }
        now += PAUSE * BURST;
        assert!((0..BURST).all(|_| pace.pause(now).is_zero()), "it was silent for long enough");
        assert_eq!(pace.pause(now), PAUSE);
        let mut slow = Pace::default();
        assert!((0..10 * BURST).all(|at| slow.pause(now + PAUSE * at).is_zero()));
    }
}
