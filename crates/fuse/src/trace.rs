//! The slow operations of a mount: the last of them, and where the time of each went.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aqueduct_fs::steps::{Held, Router, Sent, Step, Taken, What};
use aqueduct_fs::{Cancel, Context, Errno};
use aqueduct_metrics::trace::{Hop, HopTime, Part, Record, Ring, SlowOperation, explain};
use aqueduct_worker::lock;

use crate::abi::{Field, InHeader, ROOT_ID, ReadIn, WriteIn, opcode};
use crate::convert;
use crate::late_names::LateNames;
use crate::metrics;
use crate::nodes::Nodes;

/// The extended attribute of a mount's root that has its slow operations as JSON, for root and
/// whoever the mount's process runs as: followed by `.NUMBER`, from that number on. It is set to
/// milliseconds, or `off`.
pub const TRACE_XATTR: &str = "aqueduct.trace";

/// The threshold of a mount that looks at no operation.
const OFF: u64 = u64::MAX;

/// Names of one path that are looked for; deeper ones begin with an ellipsis.
const DEPTH_MAX: usize = 64;

/// The longest path that is told, in bytes.
const PATH_LENGTH_MAX: usize = 1024;

/// Bytes of one report; the kernel takes 64 KiB of an extended attribute.
const REPORT_LENGTH_MAX: usize = 56 << 10;

/// Operations that wait for their routers at most; of further ones these are not asked.
const ASKED_MAX: usize = 64;

/// Less than this is nothing to ask a router about.
const WAY_MIN: Duration = Duration::from_millis(1);

/// What a mount says of slow operations.
#[derive(Clone)]
pub struct TraceConfig {
    /// Operations are slow that take so long or longer; `None`: nobody looks.
    pub threshold: Option<Duration>,
    /// Where time is that nothing explains: in the client, or in the file system where there is no
    /// server.
    pub rest: Hop,
    /// Who wants those that are slow; servers are told the trace of each operation then.
    pub records: Vec<Arc<dyn Record>>,
}

impl Default for TraceConfig {
    fn default() -> TraceConfig {
        TraceConfig { threshold: None, rest: Hop::Client, records: Vec::new() }
    }
}

/// An operation that has ended.
pub(crate) struct Ended<'a> {
    pub(crate) header: &'a InHeader,
    /// What follows the header.
    pub(crate) body: &'a [u8],
    pub(crate) context: &'a Context,
    pub(crate) began: Instant,
    pub(crate) now: Instant,
    /// With which error it was answered.
    pub(crate) errno: Option<Errno>,
}

/// Looks for slow operations.
pub(crate) struct Tracer {
    /// In nanoseconds.
    threshold: AtomicU64,
    rest: Hop,
    told: Arc<Told>,
    /// Where operations wait whose routers are asked.
    asks: OnceLock<Option<SyncSender<Late>>>,
    /// Makes the numbers of traces, from how many there were.
    hasher: RandomState,
    traces: AtomicU64,
    /// Of files; of directories the front end knows all.
    names: LateNames,
}

/// Where slow operations are told.
struct Told {
    records: Vec<Arc<dyn Record>>,
    ring: Mutex<Ring>,
}

/// An operation whose routers are still to say how long it was in them.
struct Late {
    /// Without its hops.
    operation: SlowOperation,
    began: Instant,
    took: Duration,
    taken: Taken,
    rest: Hop,
}

impl Tracer {
    pub(crate) fn new(config: TraceConfig) -> Tracer {
        let threshold = config.threshold.map_or(OFF, |threshold| threshold.as_nanos() as u64);
        Tracer {
            threshold: AtomicU64::new(threshold),
            rest: config.rest,
            told: Arc::new(Told { records: config.records, ring: Mutex::default() }),
            asks: OnceLock::new(),
            hasher: RandomState::new(),
            traces: AtomicU64::new(0),
            names: LateNames::default(),
        }
    }

    fn threshold(&self) -> u64 {
        self.threshold.load(Ordering::Relaxed)
    }

    /// For an operation that begins.
    pub(crate) fn cancel(&self) -> Cancel {
        let trace = || {
            let count = self.traces.fetch_add(1, Ordering::Relaxed);
            let halves = [self.hasher.hash_one((0, count)), self.hasher.hash_one((1, count))];
            // A span that is 0 is none.
            (u128::from(halves[0]) << 64 | u128::from(halves[1].max(1))).to_be_bytes()
        };
        match self.threshold() {
            OFF => Cancel::default(),
            _ => Cancel::traced((!self.told.records.is_empty()).then(trace)),
        }
    }

    /// The kernel is told of a file under a name.
    pub(crate) fn named(&self, node: u64, parent: u64, name: &[u8]) {
        if self.threshold() != OFF {
            self.names.put(node, parent, name);
        }
    }

    /// An operation has ended. A lock may be waited for as long as others like.
    pub(crate) fn ended(&self, ended: &Ended<'_>, nodes: &Nodes) {
        let Ended { header, body, context, began, now, errno } = *ended;
        let took = now.saturating_duration_since(began);
        let threshold = self.threshold();
        if threshold == OFF || (took.as_nanos() as u64) < threshold || header.opcode == opcode::SETLKW {
            return;
        }
        let taken = context.steps().take();
        let (requests, repeats) = count(&taken);
        let (offset, bytes) = place(header.opcode, body).unzip();
        let at = SystemTime::now().checked_sub(took).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let operation = SlowOperation {
            at_us: at.map_or(0, |at| at.as_micros() as u64),
            took_us: took.as_micros() as u64,
            operation: metrics::name_of(header.opcode).to_owned(),
            path: path(nodes, &self.names, (header, body)),
            offset,
            bytes,
            pid: Some(header.pid),
            uid: Some(header.uid),
            job: context.job.as_ref().map(|job| job.to_string()),
            errno: errno.map(|errno| errno.raw() as u32),
            requests,
            repeats,
            trace: context.steps().trace().map(|trace| format!("{:032x}", u128::from_be_bytes(trace))),
            ..SlowOperation::default()
        };
        let late = Late { operation, began, took, taken, rest: self.rest };
        let is_asked = late.taken.steps.iter().any(|step| routed(step).is_some());
        match is_asked.then(|| self.asks()).flatten() {
            // Nobody waits for a router here.
            Some(asks) => match asks.try_send(late) {
                Ok(()) => {}
                Err(TrySendError::Full(late) | TrySendError::Disconnected(late)) => self.told.put(late, &[]),
            },
            None => self.told.put(late, &[]),
        }
    }

    /// Who asks routers, by a thread of its own from the first operation on that goes through one
    /// and is slow; `None`: it cannot be had.
    fn asks(&self) -> Option<&SyncSender<Late>> {
        let begin = || {
            let (sender, operations) = sync_channel::<Late>(ASKED_MAX);
            let told = self.told.clone();
            let work = move || operations.iter().for_each(|late| told.ask(late));
            thread::Builder::new().name("routers".into()).spawn(work).ok().map(|_| sender)
        };
        self.asks.get_or_init(begin).as_ref()
    }

    /// What [`TRACE_XATTR`] with this behind it says to who asks.
    pub(crate) fn report(&self, header: &InHeader, behind: &[u8]) -> Result<Vec<u8>, Errno> {
        may_know(header)?;
        let from = match behind.strip_prefix(b".") {
            _ if behind.is_empty() => 0,
            Some(number) => std::str::from_utf8(number).ok().and_then(|text| text.parse().ok()).ok_or(Errno::EINVAL)?,
            None => return Err(Errno::ENODATA),
        };
        let since = lock(&self.told.ring).since(from);
        let size = |operation: &SlowOperation| serde_json::to_vec(operation).map_or(0, |text| text.len());
        let mut report = since.report(REPORT_LENGTH_MAX, size);
        let threshold = self.threshold();
        report.threshold_ms = (threshold != OFF).then_some(threshold as f64 / 1e6);
        Ok(serde_json::to_vec(&report).unwrap_or_default()) // its keys are strings
    }

    /// Sets the threshold as [`TRACE_XATTR`] is set.
    pub(crate) fn set(&self, header: &InHeader, value: &[u8]) -> Result<(), Errno> {
        may_know(header)?;
        let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
        let threshold = match text.parse::<f64>() {
            _ if text == "off" => OFF,
            Ok(ms) if (0.0..=1e9).contains(&ms) => (ms * 1e6) as u64,
            _ => return Err(Errno::EINVAL),
        };
        self.threshold.store(threshold, Ordering::Relaxed);
        Ok(())
    }
}

impl Told {
    /// Asks the routers of an operation, and tells it.
    fn ask(&self, late: Late) {
        let held: Vec<Option<Held>> = late
            .taken
            .steps
            .iter()
            .map(|step| routed(step).and_then(|router| router.held(step.began, step.ended)))
            .collect();
        self.put(late, &held);
    }

    /// Tells of an operation; what routers have said of its steps, as far as they were asked.
    fn put(&self, late: Late, held: &[Option<Held>]) {
        let hops = hops((late.began, late.took), &late.taken, held, late.rest);
        let operation = lock(&self.ring).push(SlowOperation { hops, ..late.operation });
        let wanted = self.records.iter().filter(|record| record.wants(operation.took_us));
        wanted.for_each(|record| record.record(&operation));
    }
}

/// The router to be asked of a step: of a request that was long on its way.
fn routed(step: &Step) -> Option<&Arc<dyn Router>> {
    let What::Request(sent) = &step.what else { return None };
    let served = sent.served.map_or(Duration::ZERO, |served| served.queue + served.lease + served.file_system);
    let way = step.ended.saturating_duration_since(step.began).saturating_sub(served);
    sent.router.as_ref().filter(|_| way >= WAY_MIN)
}

/// Root and the user of the mount's process may read it: the names of files are private to others.
pub(crate) fn may_know(header: &InHeader) -> Result<(), Errno> {
    let own = rustix::process::geteuid().as_raw();
    if header.uid == 0 || header.uid == own { Ok(()) } else { Err(Errno::EPERM) }
}

fn requests(taken: &Taken) -> impl Iterator<Item = (&Step, &Sent)> {
    taken.steps.iter().filter_map(|step| match &step.what {
        What::Request(sent) => Some((step, sent)),
        _ => None,
    })
}

/// How many requests there were, and how many of them were sent again.
fn count(taken: &Taken) -> (u64, u64) {
    let repeats = requests(taken).filter(|(_, sent)| sent.is_repeat).count() as u64;
    (requests(taken).count() as u64, repeats)
}

/// Where time went: a hop, and which server.
type Cause = (Hop, Option<String>, Option<String>);

/// Puts what is known of an operation together: the hops add up to what it took.
fn hops((began, took): (Instant, Duration), taken: &Taken, held: &[Option<Held>], rest: Hop) -> Vec<HopTime> {
    let (mut causes, mut parts) = (Vec::<Cause>::new(), Vec::new());
    let since = |at: Instant| at.saturating_duration_since(began).as_nanos() as u64;
    for (index, step) in taken.steps.iter().enumerate() {
        let (from, to) = (since(step.began), since(step.ended));
        let mut add = |(from, to), weight: u8, until, cause: Cause| {
            parts.push(Part { from, to, weight: (weight, until), cause: causes.len() });
            causes.push(cause);
        };
        match &step.what {
            What::Queue(what) => add((from, to), 1, to, (Hop::ClientQueue, None, Some((*what).to_owned()))),
            What::Away(server) => add((from, to), 2, to, (Hop::Reconnect, Some(server.to_string()), None)),
            What::Request(sent) => {
                // It may have begun before this operation, whose share is the end of it.
                let whole = step.ended.saturating_duration_since(step.began).as_nanos() as u64;
                let held = held.get(index).copied().flatten();
                for (hop, (start, end), detail) in of_request(sent, held, whole) {
                    let at = |of_request: u64| (from + of_request).saturating_sub(from + whole - to);
                    let place = match (hop, &sent.router) {
                        (Hop::Router, Some(router)) => router.address().to_string(),
                        _ => sent.server.to_string(),
                    };
                    add((at(start), at(end)), 3, to, (hop, Some(place), detail));
                }
            }
        }
    }
    let (explained, left) = explain(took.as_nanos() as u64, &parts);
    together(took, causes, explained, (rest, left, taken.brief))
}

/// What is said beside the wire of a request.
fn on_way(sent: &Sent, held: Option<Held>) -> Option<String> {
    let time = sent.round_trip.map(|time| format!("a packet and back takes {:.2} ms", time.as_secs_f64() * 1e3));
    let router = sent.router.as_ref().map(|router| match held {
        Some(held) if !held.looked.is_zero() => format!("by the router {}", router.address()),
        Some(_) => format!("with the router {}, which looks from now on how long it takes", router.address()),
        None => format!("with the router {}", router.address()),
    });
    let told: Vec<String> = router.into_iter().chain(time).collect();
    match (&told[..], &sent.router) {
        ([], _) => None,
        ([router, time], Some(_)) => Some(format!("{router}, to which {time}")),
        _ => Some(told.join("; ")),
    }
}

/// What is said beside a router: what holds bytes up there.
fn in_router(held: Held) -> String {
    let [unread, unsent] = [held.unread, held.held.saturating_sub(held.unread)].map(|time| time.as_secs_f64() * 1e3);
    format!("bytes of the connection lay there unread for {unread:.1} ms, and before the next wire for {unsent:.1} ms")
}

/// The hops of a request that took so many nanoseconds, in their order.
fn of_request(sent: &Sent, held: Option<Held>, whole: u64) -> Vec<(Hop, (u64, u64), Option<String>)> {
    let way = on_way(sent, held);
    let served = sent.served.unwrap_or_default();
    let [queue, lease, file_system] =
        [served.queue, served.lease, served.file_system].map(|time| time.as_nanos() as u64);
    let left = whole.saturating_sub(queue.saturating_add(lease).saturating_add(file_system));
    let router = left.min(held.map_or(0, |held| held.held.as_nanos() as u64));
    let way = match (sent.served, sent.is_timed, way) {
        (None, false, way) => {
            let told = "with the server, which does not say how long it took".to_owned();
            Some(way.map_or(told.clone(), |way| format!("{told}; {way}")))
        }
        (.., way) => way,
    };
    let mut at = 0;
    let mut next = |length: u64| {
        let from = at.min(whole);
        at = at.saturating_add(length);
        (from, at.min(whole))
    };
    let op = || sent.served.map(|_| sent.op.to_owned());
    let lay = held.filter(|_| router > 0).map(in_router);
    // Half of what is left before, half behind: nobody measures which. The same of the router.
    let (wire, first) = ((left - router) / 2, router / 2);
    let parts = [
        (Hop::Wire, next(wire), way.clone()),
        (Hop::Router, next(first), lay.clone()),
        (Hop::ServerQueue, next(queue), op()),
        (Hop::LeaseWait, next(lease), op()),
        (Hop::FileSystem, next(file_system), op()),
        (Hop::Router, next(router - first), lay),
    ];
    let behind = (Hop::Wire, (at.min(whole), whole), way);
    parts.into_iter().chain([behind]).collect()
}

/// What the causes explain, each hop of each server once.
fn together(
    took: Duration,
    causes: Vec<Cause>,
    explained: BTreeMap<usize, u64>,
    (rest, left, brief): (Hop, u64, (u32, Duration)),
) -> Vec<HopTime> {
    let mut found: Vec<(Cause, u64, u64)> = Vec::new();
    for (cause, nanos) in explained {
        let (hop, server, detail) = &causes[cause];
        let is_it = |of: &Cause| of.0 == *hop && of.1 == *server && (*hop != Hop::ClientQueue || of.2 == *detail);
        match found.iter_mut().find(|(of, ..)| is_it(of)) {
            Some((of, sum, most)) => {
                *sum += nanos;
                if nanos > *most {
                    (*most, of.2) = (nanos, detail.clone());
                }
            }
            None => found.push((causes[cause].clone(), nanos, nanos)),
        }
    }
    found.sort_by(|one, other| (one.0.0, &one.0.1).cmp(&(other.0.0, &other.0.1)));
    let hop_time =
        |((hop, server, detail), nanos, _): (Cause, u64, u64)| HopTime { hop, us: nanos / 1000, server, detail };
    let mut hops: Vec<HopTime> = found.into_iter().map(hop_time).filter(|hop| hop.us > 0).collect();
    let us = (took.as_micros() as u64).saturating_sub(hops.iter().map(|hop| hop.us).sum());
    if us > 0 {
        let waits = (brief.0 > 0 && left > 0)
            .then(|| format!("of that {:.2} ms in {} waits that are not kept", brief.1.as_secs_f64() * 1e3, brief.0));
        match hops.iter_mut().find(|hop| hop.hop == rest && hop.server.is_none()) {
            Some(hop) => hop.us += us,
            None => hops.insert(0, HopTime { hop: rest, us, server: None, detail: waits }),
        }
    }
    hops
}

/// Where a read or write is in its file, and how many bytes it asks for.
fn place(opcode: u32, body: &[u8]) -> Option<(u64, u64)> {
    match opcode {
        opcode::READ => ReadIn::parse(body).map(|(read, _)| (read.offset, read.size.into())),
        opcode::WRITE => WriteIn::parse(body).map(|(write, _)| (write.offset, write.size.into())),
        _ => None,
    }
}

/// The path of what an operation is about, as far as names are known.
fn path(nodes: &Nodes, names: &LateNames, (header, body): (&InHeader, &[u8])) -> Option<String> {
    let mut node = header.nodeid;
    let name = match header.opcode {
        opcode::LOOKUP | opcode::UNLINK | opcode::RMDIR => convert::name(body).ok().map(|(name, _)| name.to_vec()),
        _ => None,
    };
    let mut parts: Vec<Vec<u8>> = name.into_iter().collect();
    while node != ROOT_ID {
        match nodes.places.of(node).map(|(parent, name)| (parent, name.into_vec())).or_else(|| names.get(node)) {
            Some((parent, name)) if parts.len() < DEPTH_MAX => {
                parts.push(name);
                node = parent;
            }
            _ if parts.is_empty() => return None,
            _ => {
                parts.push("...".into());
                break;
            }
        }
    }
    let parts: Vec<_> = parts.iter().rev().map(|name| String::from_utf8_lossy(name)).collect();
    let path = if node == ROOT_ID { format!("/{}", parts.join("/")) } else { parts.join("/") };
    let least = path.len().saturating_sub(PATH_LENGTH_MAX);
    let start = (least..=path.len()).find(|at| path.is_char_boundary(*at)).unwrap_or(0);
    Some(path[start..].to_owned())
}

#[cfg(test)]
mod tests {
    use aqueduct_fs::steps::Served;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn request(served: Option<Served>) -> What {
        What::Request(Sent {
            op: "Read",
            server: "s:1".into(),
            router: None,
            round_trip: None,
            is_repeat: false,
            is_timed: true,
            served,
        })
    }

    fn step(start: Instant, (from, to): (u32, u32), what: What) -> Step {
        Step { began: start + MS * from, ended: start + MS * to, what }
    }

    fn told(hops: &[HopTime]) -> Vec<(Hop, u64, Option<&str>)> {
        hops.iter().map(|hop| (hop.hop, hop.us / 1000, hop.server.as_deref())).collect()
    }

    #[test]
    fn the_hops_of_requests_and_waits_add_up() {
        let start = Instant::now();
        let served = Served { queue: MS * 2, lease: MS * 20, file_system: MS * 10 };
        let steps = vec![
            step(start, (1, 11), What::Queue("a slot")),
            step(start, (11, 21), What::Away("s:1".into())),
            step(start, (21, 61), request(Some(served))),
            step(start, (61, 71), request(None)),
        ];
        let taken = Taken { steps, brief: (3, MS / 10) };
        let hops = hops((start, MS * 80), &taken, &[], Hop::Client);
        let server = Some("s:1");
        let expected = [
            (Hop::Client, 10, None),
            (Hop::ClientQueue, 10, None),
            (Hop::Reconnect, 10, server),
            (Hop::Wire, 18, server),
            (Hop::ServerQueue, 2, server),
            (Hop::LeaseWait, 20, server),
            (Hop::FileSystem, 10, server),
        ];
        assert_eq!(told(&hops), expected);
        assert_eq!(hops.iter().map(|hop| hop.us).sum::<u64>(), 80_000);
        assert!(hops[0].detail.as_ref().unwrap().contains("3 waits"), "{hops:?}");
        assert_eq!(count(&taken), (2, 0));
    }

    #[test]
    fn a_request_that_began_before_counts_for_its_end_only() {
        let start = Instant::now();
        let served = Served { file_system: MS * 30, ..Served::default() };
        let steps = vec![
            step(start, (0, 40), request(Some(served))),
            step(start, (30, 41), What::Queue("writes that were held back")),
        ];
        // It waited from the 30th millisecond on: the file system ended at the 35th.
        let hops = hops((start + MS * 30, MS * 11), &Taken { steps, ..Taken::default() }, &[], Hop::Client);
        assert_eq!(
            told(&hops),
            [(Hop::ClientQueue, 1, None), (Hop::Wire, 5, Some("s:1")), (Hop::FileSystem, 5, Some("s:1"))]
        );
    }

    #[test]
    fn what_a_server_says_is_never_more_than_was_measured() {
        let (start, lies) = (Instant::now(), Served { queue: MS * 500, lease: MS * 500, file_system: Duration::MAX });
        let taken = Taken { steps: vec![step(start, (0, 5), request(Some(lies)))], ..Taken::default() };
        let hops = hops((start, MS * 5), &taken, &[], Hop::FileSystem);
        assert_eq!(told(&hops), [(Hop::ServerQueue, 5, Some("s:1"))]);
    }
}
