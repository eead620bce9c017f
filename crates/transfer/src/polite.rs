//! Yields to others at servers: fewer threads ask while requests wait before they are begun.
//!
//! Servers say of each request how long it waited ([`aqueduct_wire::Extensions`]). Whatever waits
//! behind a copy's requests waits as long, so a copy that sees long queues takes threads away by a
//! share, and gives them back one by one, as TCP does with what is on its way: so several copies
//! come to equal parts, and one alone stays where the queue is as long as it may be.

use std::collections::BTreeMap;
use std::time::Duration;

use aqueduct_metrics::HistogramSnapshot;

/// So long half of a copy's requests may wait at a server: a fifth of what people notice, and
/// several times what a disk takes for one request.
pub const QUEUE_MAX: Duration = Duration::from_millis(20);

/// Between two looks at what servers have said: some round trips, so that the last change shows.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Fewer answers of a server tell nothing yet.
const ANSWERS_MIN: u64 = 8;

/// What a look counts for, beside those before it.
const WEIGHT: f64 = 0.5;

/// What is left of the threads where they are too many.
const SHRINK: f64 = 0.7;

/// After so many looks without an answer nothing is known of a server any more: 10 s.
const QUIET_MAX: u32 = 40;

/// What a server has said since it was attached, by its name: nanoseconds that requests waited.
pub type Said = (String, HistogramSnapshot);

/// What is known of one server's queue.
#[derive(Default)]
struct Queue {
    /// What it had said when it was looked at last.
    said: HistogramSnapshot,
    /// How many answers it had given then, and how many looks there were since without one.
    heard: u64,
    quiet: u32,
    /// The median of what it says, smoothed, in nanoseconds; `None`: nothing is known.
    median: Option<f64>,
}

impl Queue {
    /// Whether it has said enough to know more.
    fn learns(&mut self, said: HistogramSnapshot) -> bool {
        self.quiet = if said.count() == self.heard { self.quiet.saturating_add(1) } else { 0 };
        self.heard = said.count();
        if self.quiet > QUIET_MAX {
            self.median = None;
        }
        let mut new = said.clone();
        new.subtract(&self.said);
        let Some(median) = new.quantile(0.5).filter(|_| new.count() >= ANSWERS_MIN) else { return false };
        self.said = said;
        self.median = Some(self.median.map_or(median, |before| before + WEIGHT * (median - before)));
        true
    }
}

/// How many threads may ask.
pub struct Polite {
    most: usize,
    limit: f64,
    queues: BTreeMap<String, Queue>,
}

impl Polite {
    /// Up to so many.
    pub fn new(most: usize) -> Polite {
        Polite { most, limit: most as f64, queues: BTreeMap::new() }
    }

    /// How many may ask from now on, when `asking` have and servers have said this: at least one.
    pub fn look(&mut self, asking: usize, said: Vec<Said>) -> usize {
        let mut has_learned = false;
        for (server, said) in said {
            has_learned |= self.queues.entry(server).or_default().learns(said);
        }
        let medians = self.queues.values().filter_map(|queue| queue.median);
        let longest = medians.fold(0.0, f64::max);
        if has_learned && longest > QUEUE_MAX.as_nanos() as f64 {
            self.limit = (self.limit.min(asking as f64) * SHRINK).max(1.0);
        } else if has_learned {
            self.limit = (self.limit + 1.0).min(self.most as f64);
        }
        self.limit()
    }

    /// How many may ask.
    pub fn limit(&self) -> usize {
        self.limit as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aqueduct_metrics::Histogram;

    /// A server that begins so many requests at once, each of which takes it 10 ms.
    struct Server {
        begins: usize,
        said: Histogram,
    }

    impl Server {
        fn new(begins: usize) -> Server {
            Server { begins, said: Histogram::single() }
        }

        /// Answers what `asking` threads ask, as long as `all` do.
        fn answer(&self, asking: usize, all: usize) -> Vec<Said> {
            let waits = Duration::from_millis(10).mul_f64(all.saturating_sub(self.begins) as f64 / self.begins as f64);
            (0..asking.max(8)).for_each(|_| self.said.record_duration(waits));
            vec![("s".to_owned(), self.said.snapshot())]
        }
    }

    /// What `polite` lets ask after so many looks, of `wanted`, beside others.
    fn after(looks: usize, polite: &mut Polite, server: &Server, (wanted, others): (usize, usize)) -> usize {
        for _ in 0..looks {
            let asking = wanted.min(polite.limit());
            polite.look(asking, server.answer(asking, asking + others));
        }
        polite.limit()
    }

    #[test]
    fn one_alone_stays_where_the_queue_is_as_long_as_it_may_be() {
        let (server, mut polite) = (Server::new(8), Polite::new(64));
        // 8 and twice as many that wait: 20 ms.
        for looks in 10..40 {
            let limit = after(looks, &mut polite, &server, (64, 0));
            assert!((12..=25).contains(&limit), "{limit} after {looks}");
        }
        let (idle, mut polite) = (Server::new(64), Polite::new(64));
        assert_eq!(after(20, &mut polite, &idle, (64, 0)), 64);
    }

    #[test]
    fn it_yields_to_others_and_comes_back_when_they_have_gone() {
        let (server, mut polite) = (Server::new(8), Polite::new(64));
        assert_eq!(after(20, &mut polite, &server, (16, 60)), 1);
        // Nor does one that is alone with few of its own take the place of all at once.
        assert!(after(4, &mut polite, &server, (16, 0)) <= 5);
        assert!(after(20, &mut polite, &server, (16, 0)) >= 16);
        // What is kept may not grow while little is asked: the next burst would meet it whole.
        assert!(after(400, &mut polite, &server, (16, 0)) <= 64);
    }

    #[test]
    fn two_copies_come_to_equal_parts() {
        let server = [Server::new(8), Server::new(8)];
        let mut copies = [Polite::new(64), Polite::new(64)];
        copies[1].limit = 2.0;
        let (mut sums, mut longest) = ([0, 0], 0);
        for round in 0..400 {
            let asking = [0, 1].map(|at: usize| copies[at].limit());
            let all = asking[0] + asking[1];
            for at in [0, 1] {
                copies[at].look(asking[at], server[at].answer(asking[at], all));
            }
            if round >= 100 {
                (0..2).for_each(|at| sums[at] += asking[at]);
                longest = longest.max(all);
            }
        }
        let share = sums[0] as f64 / (sums[0] + sums[1]) as f64;
        assert!((0.4..0.6).contains(&share), "{sums:?}");
        assert!(longest <= 30, "{longest}");
    }

    #[test]
    fn the_slowest_of_several_servers_counts_and_few_answers_do_not() {
        let (slow, fast) = (Histogram::single(), Histogram::single());
        let mut polite = Polite::new(16);
        (0..ANSWERS_MIN - 1).for_each(|_| slow.record_duration(Duration::from_secs(1)));
        let said = |slow: &Histogram| {
            (0..100).for_each(|_| fast.record_duration(Duration::ZERO));
            vec![("fast".to_owned(), fast.snapshot()), ("slow".to_owned(), slow.snapshot())]
        };
        assert_eq!(polite.look(16, said(&slow)), 16);
        // With those before it is enough.
        slow.record_duration(Duration::from_secs(1));
        assert_eq!(polite.look(16, said(&slow)), 11);
        // Nothing new of the slow one: it is as slow as it was, and the other says nothing else.
        assert_eq!(polite.look(11, said(&slow)), 7);
        assert_eq!(polite.look(7, Vec::new()), 7);
        // A source that is done says nothing more: it holds up nobody for ever.
        (0..QUIET_MAX - 5).for_each(|_| _ = polite.look(1, said(&slow)));
        assert_eq!(polite.limit(), 1);
        (0..20).for_each(|_| _ = polite.look(16, said(&slow)));
        assert_eq!(polite.limit(), 16);
    }
}
