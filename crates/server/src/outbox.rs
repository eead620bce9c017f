//! What the server sends by itself: recalls, and the completions of what has waited. It belongs to
//! the session: it is numbered, the client acknowledges it when it has come, and what is not
//! acknowledged in time is sent again over another connection. So a connection that nobody reads,
//! because its reader stands still or its path is bad, costs those who wait for a lease a fraction
//! of a second.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use aqueduct_net::Connection;
use aqueduct_wire::{Class, Header, Kind};

/// So long an acknowledgement may take before the message is sent again elsewhere: many round
/// trips, and less than a person notices. Then twice as long, and so on up to [`AGAIN_MAX`].
const AGAIN_AFTER: Duration = Duration::from_millis(200);
const AGAIN_MAX: Duration = Duration::from_secs(5);

/// Messages of one session that are not acknowledged: about 200 bytes each. Beyond, recalls are
/// asked for again all together, and a completion goes to its own connection only.
const UNACKNOWLEDGED_MAX: usize = 1024;

/// A message that is not acknowledged.
struct Message {
    header: Header,
    body: Vec<u8>,
    /// Whoever is told does not ask anew when its connection has gone.
    outlives: bool,
    /// Where it went last.
    link: Weak<Connection>,
    due: Instant,
    pause: Duration,
}

/// Recalls that nobody numbered, since there were too many messages.
struct Overflow {
    /// Where the last of them went.
    link: Weak<Connection>,
    /// When all are asked for again.
    due: Instant,
}

/// The messages of one session.
#[derive(Default)]
pub(crate) struct Outbox {
    last: u32,
    unacknowledged: BTreeMap<u32, Message>,
    /// How many of them outlive their connection.
    outliving: usize,
    /// Recalls were sent that are not among them.
    overflow: Option<Overflow>,
    /// How often it was asked for all since anything was acknowledged.
    asked_for_all: u32,
    /// What was sent here was not acknowledged in time: others are better.
    slow: Weak<Connection>,
    /// Somebody looks after it.
    pub(crate) watched: bool,
}

/// What is due.
#[derive(Default)]
pub(crate) struct Due {
    pub(crate) again: Vec<(Arc<Connection>, Header, Vec<u8>)>,
    /// All that is recalled is to be asked for here.
    pub(crate) recall_all: Option<Arc<Connection>>,
}

impl Outbox {
    /// Numbers a message that is about to be sent over a connection; without one it is due.
    pub(crate) fn add(
        &mut self,
        (header, outlives): (Header, bool),
        body: &[u8],
        link: Option<&Arc<Connection>>,
        now: Instant,
    ) -> Header {
        let header = Header { class: Class::Callback, slot: 0, sequence: 0, ..header };
        // Of those that outlive a connection there are no more than may wait: see `outliving`.
        if let Some(link) = link.filter(|_| !outlives && self.unacknowledged.len() >= UNACKNOWLEDGED_MAX) {
            if header.kind == Kind::Callback {
                let pause = AGAIN_AFTER.saturating_mul(1 << self.asked_for_all.min(8)).min(AGAIN_MAX);
                let due = self.overflow.as_ref().map_or(now + pause, |overflow| overflow.due);
                self.overflow = Some(Overflow { link: Arc::downgrade(link), due });
            }
            return header;
        }
        self.outliving += usize::from(outlives);
        self.last = self.last.wrapping_add(1).max(1);
        let header = Header { sequence: self.last, ..header };
        let due = if link.is_some() { now + AGAIN_AFTER } else { now };
        let (body, link, pause) = (body.to_vec(), link.map(Arc::downgrade).unwrap_or_default(), AGAIN_AFTER);
        self.unacknowledged.insert(self.last, Message { header, body, outlives, link, due, pause });
        header
    }

    /// Whether anything is not acknowledged.
    pub(crate) fn waits(&self) -> bool {
        !self.unacknowledged.is_empty() || self.overflow.is_some()
    }

    /// Messages that are kept until they are acknowledged, whatever becomes of their connections.
    /// Whoever waits for what such a message will tell has to leave room for it.
    pub(crate) fn outliving(&self) -> usize {
        self.outliving
    }

    /// A message has come to the client, over this connection.
    pub(crate) fn acknowledge(&mut self, number: u32, link: &Connection) {
        let acknowledged = self.unacknowledged.remove(&number);
        self.outliving -= usize::from(acknowledged.is_some_and(|message| message.outlives));
        self.asked_for_all = 0;
        if std::ptr::eq(self.slow.as_ptr(), link) {
            self.slow = Weak::new();
        }
    }

    /// All that is recalled is asked for once more.
    pub(crate) fn forget_recalls(&mut self) {
        self.overflow = None;
        self.unacknowledged.retain(|_, message| message.header.kind != Kind::Callback);
    }

    /// Of several connections the one to send over.
    pub(crate) fn choose(&self, links: &[Arc<Connection>]) -> Option<Arc<Connection>> {
        let is_slow = |link: &&Arc<Connection>| std::ptr::eq(self.slow.as_ptr(), Arc::as_ptr(link));
        links.iter().find(|link| !is_slow(link)).or(links.first()).cloned()
    }

    /// What is to be sent again now, of these connections over the next one in turn after that
    /// where it went last. Over the only one TCP does so.
    pub(crate) fn due(&mut self, links: &[Arc<Connection>], now: Instant) -> Due {
        let mut due = Due::default();
        // Its waiter asks anew, since its connection has gone.
        self.unacknowledged
            .retain(|_, message| message.header.kind != Kind::Completion || message.outlives || is_open(&message.link));
        for message in self.unacknowledged.values_mut().filter(|message| message.due <= now) {
            message.pause = (message.pause * 2).min(AGAIN_MAX);
            message.due = now + message.pause;
            let Some(next) = next(links, &message.link) else { continue };
            self.slow = std::mem::replace(&mut message.link, Arc::downgrade(next));
            if self.overflow.is_some() && message.header.kind == Kind::Callback {
                due.recall_all = Some(next.clone());
            } else {
                due.again.push((next.clone(), message.header, message.body.clone()));
            }
        }
        if let Some(overflow) = self.overflow.take_if(|overflow| overflow.due <= now) {
            // Whoever comes later is asked for all.
            due.recall_all = due.recall_all.or(next(links, &overflow.link).cloned());
        }
        self.asked_for_all += u32::from(due.recall_all.is_some());
        due
    }
}

/// Of several connections the one after this, if it is another.
fn next<'a>(links: &'a [Arc<Connection>], link: &Weak<Connection>) -> Option<&'a Arc<Connection>> {
    let is_it = |other: &Arc<Connection>| std::ptr::eq(link.as_ptr(), Arc::as_ptr(other));
    let at = links.iter().position(is_it);
    links.get(at.map_or(0, |at| (at + 1) % links.len())).filter(|next| !is_it(next))
}

fn is_open(link: &Weak<Connection>) -> bool {
    link.upgrade().is_some_and(|link| !link.is_closed())
}
