//! What all parts of a router share: its routes, its flows, and who may have more.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use aqueduct_metrics::{Collect, Snapshot, table};
use aqueduct_wire::{Lane, RouteStatus, Target};
use aqueduct_worker::{Group, lock};

use crate::relay::admission::{Admission, BUFFER_MIN, Limits};
use crate::relay::counters::{Counters, NONE};
use crate::relay::flood::Flood;
use crate::relay::flow::{About, Flow, Side};
use crate::relay::movers::Movers;
use crate::relay::pipes::Pipes;
use crate::relay::shares::{Greeted, NoWait, Waiting};
use crate::routes::Routes;

/// What a router is.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// For people.
    pub name: String,
    /// How much of everything it takes.
    pub limits: Limits,
    /// A peer that answers nothing for so long is dead.
    pub suspect: Duration,
}

/// A flow as it is shown.
#[derive(Clone, Debug)]
pub struct FlowStatus {
    /// Who has it.
    pub client: String,
    /// Where it goes.
    pub target: String,
    /// The gateway, or the target.
    pub next: String,
    /// It carries bulk data.
    pub is_bulk: bool,
    /// Bytes from its initiator, and to it.
    pub bytes: [u64; 2],
    /// For how long its initiator has had no room, and its next hop.
    pub blocked: [Duration; 2],
}

/// A connection on which an initiator is told of its flows.
#[derive(Clone)]
pub(crate) struct Watcher {
    pub(crate) initiator: [u8; 16],
    pub(crate) client: IpAddr,
    pub(crate) side: Arc<Side>,
}

/// Shared by all parts of a router.
pub(crate) struct Core {
    pub(crate) config: RelayConfig,
    /// Greets, listens and keeps the time.
    pub(crate) group: Arc<Group>,
    movers: Arc<Movers>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) counters: Counters,
    /// It takes no more flows, and ends those that it has then.
    stopping: Mutex<Option<Instant>>,
    /// Of this process, as an initiator.
    pub(crate) initiator: [u8; 16],
    pub(crate) watchers: Mutex<HashMap<u64, Watcher>>,
    /// Gateways by which flows lead, that tell of those that end.
    pub(crate) heard: Mutex<std::collections::HashSet<std::net::SocketAddr>>,
    admission: Mutex<Admission>,
    greeted: Mutex<Greeted>,
    waiting: Mutex<Waiting>,
    flood: Mutex<Flood>,
    pub(crate) pipes: Arc<Pipes>,
    flows: Mutex<HashMap<u64, Arc<Flow>>>,
    /// The size of the buffers of flows for bulk data.
    buffer: AtomicU64,
    numbers: AtomicU64,
    this: Weak<Core>,
}

/// A connection that is greeted is counted until this is dropped.
pub(crate) struct Greeting {
    core: Arc<Core>,
    client: IpAddr,
}

impl Drop for Greeting {
    fn drop(&mut self) {
        lock(&self.core.greeted).leave(self.client);
    }
}

/// A connection that waits for its target is counted until this is dropped.
pub(crate) struct Wait {
    core: Arc<Core>,
    client: IpAddr,
    target: Target,
}

impl Drop for Wait {
    fn drop(&mut self) {
        lock(&self.core.waiting).leave(self.client, &self.target);
    }
}

impl Core {
    pub(crate) fn new(
        config: RelayConfig,
        (group, movers): (&Arc<Group>, &[Arc<Group>]),
        routes: Arc<Routes>,
        initiator: [u8; 16],
    ) -> Arc<Core> {
        let buffer = AtomicU64::new(config.limits.buffer(1, 0) as u64);
        Arc::new_cyclic(|this| Core {
            config,
            group: group.clone(),
            movers: Movers::new(movers),
            routes,
            counters: Counters::default(),
            stopping: Mutex::default(),
            initiator,
            watchers: Mutex::default(),
            heard: Mutex::default(),
            admission: Mutex::default(),
            greeted: Mutex::default(),
            waiting: Mutex::default(),
            flood: Mutex::default(),
            pipes: Arc::default(),
            flows: Mutex::default(),
            buffer,
            numbers: AtomicU64::new(1),
            this: this.clone(),
        })
    }

    /// The next number, of a flow or a watcher.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a connection that is to be greeted; `None`: there are too many, which is counted, and
    /// told now and then.
    pub(crate) fn begin_greeting(self: &Arc<Core>, client: IpAddr) -> Option<Greeting> {
        if lock(&self.greeted).enter(client, self.greeting_limits()) {
            return Some(Greeting { core: self.clone(), client });
        }
        self.refused([NONE, &client.to_string(), NONE]);
        if let Some(refused) = lock(&self.flood).refuses(Instant::now()) {
            tracing::warn!(
                %client,
                refused,
                "refuses connections: too many have not said where they want to go (greeting_max, greeting_per_client_max)"
            );
        }
        None
    }

    /// Counts a connection that waits for its target. Those that have not said where they want to
    /// go, or only ask whether this router is there, are counted apart: however many wait in vain,
    /// it answers.
    pub(crate) fn begin_wait(self: &Arc<Core>, client: IpAddr, target: &Target) -> Result<Wait, NoWait> {
        lock(&self.waiting).enter((client, target), self.greeting_limits())?;
        Ok(Wait { core: self.clone(), client, target: target.clone() })
    }

    fn greeting_limits(&self) -> (usize, usize) {
        (self.config.limits.greeting_max, self.config.limits.greeting_per_client_max)
    }

    /// Takes no more flows from now on, and ends those that it has then; `None`: takes them again.
    pub(crate) fn set_stopping(&self, end: Option<Instant>) {
        *lock(&self.stopping) = end;
    }

    /// In how many seconds its flows end, while it stops.
    pub(crate) fn stops_in(&self) -> Option<u32> {
        let left = |end: Instant| end.saturating_duration_since(Instant::now()).as_secs_f64().ceil() as u32;
        lock(&self.stopping).map(left)
    }

    /// Whether its flows end just then.
    pub(crate) fn is_stopping_at(&self, end: Instant) -> bool {
        *lock(&self.stopping) == Some(end)
    }

    /// Why no further flow is let in now.
    pub(crate) fn refuses(&self, client: IpAddr, lane: Lane) -> Option<(RouteStatus, &'static str)> {
        if self.stops_in().is_some() {
            return Some((RouteStatus::Stopping, "it stops"));
        }
        lock(&self.admission).refuses(client, lane, &self.config.limits).map(|why| (RouteStatus::Full, why))
    }

    /// The size of the buffers of a flow.
    pub(crate) fn buffer(&self, lane: Lane) -> usize {
        match lane {
            Lane::Control => BUFFER_MIN,
            Lane::Bulk => self.buffer.load(Ordering::Relaxed) as usize,
        }
    }

    /// Takes a place for a flow, if there is one.
    pub(crate) fn enter(&self, client: IpAddr, lane: Lane) -> Result<(), (RouteStatus, &'static str)> {
        if self.stops_in().is_some() {
            return Err((RouteStatus::Stopping, "it stops"));
        }
        let mut admission = lock(&self.admission);
        if let Some(why) = admission.refuses(client, lane, &self.config.limits) {
            return Err((RouteStatus::Full, why));
        }
        admission.enter(client, lane);
        drop(admission);
        self.resize();
        Ok(())
    }

    /// Gives a place back.
    pub(crate) fn leave(&self, client: IpAddr, lane: Lane) {
        lock(&self.admission).leave(client, lane);
    }

    /// Has all buffers fit the budget, when the number of flows asks for it. They grow again with
    /// new flows alone: what is there may hold data.
    fn resize(&self) {
        let admission = lock(&self.admission);
        let size = self.config.limits.buffer(admission.bulk, admission.control);
        drop(admission);
        let before = self.buffer.swap(size as u64, Ordering::SeqCst) as usize;
        if size < before {
            let flows: Vec<Arc<Flow>> = lock(&self.flows).values().cloned().collect();
            flows.iter().filter(|flow| flow.about.is_bulk).for_each(|flow| flow.set_buffers(size));
        }
    }

    /// A flow, whose place is taken: counted and listed, and not moved yet.
    pub(crate) fn add(
        self: &Arc<Core>,
        about: About,
        (client, lane): (IpAddr, Lane),
        sides: [Arc<Side>; 2],
    ) -> Arc<Flow> {
        let number = about.number;
        about.series.iter().for_each(|series| series.begun());
        let (core, place) = (Arc::downgrade(self), self.movers.place(lane));
        let group = Arc::downgrade(place.group().unwrap_or(&self.group));
        let ended = Box::new(move || {
            drop(place);
            let Some(core) = core.upgrade() else { return };
            core.leave(client, lane);
            let flow = lock(&core.flows).remove(&number);
            drop(flow); // outside the lock
        });
        let flow = Flow::new(group, self.pipes.clone(), about, (sides, self.buffer(lane)), ended);
        lock(&self.flows).insert(number, flow.clone());
        flow
    }

    /// All flows.
    pub(crate) fn flows(&self) -> Vec<Arc<Flow>> {
        lock(&self.flows).values().cloned().collect()
    }

    /// The flows of an initiator.
    pub(crate) fn flows_of(&self, initiator: &[u8; 16]) -> Vec<Arc<Flow>> {
        lock(&self.flows).values().filter(|flow| flow.about.initiator == *initiator).cloned().collect()
    }

    /// Looks from time to time whether peers with something on its way to them are there.
    pub(crate) fn look(self: &Arc<Core>) {
        let (this, group) = (self.this.clone(), Arc::downgrade(&self.group));
        let pause = self.config.suspect / 2;
        self.group.spawn(async move {
            while let Some(sleep) = group.upgrade().map(|group| group.sleep(pause)) {
                sleep.await;
                let Some(core) = this.upgrade() else { return };
                core.flows().iter().for_each(|flow| flow.look(core.config.suspect));
            }
        });
    }

    /// What `show` shows of the flows.
    pub(crate) fn status(&self) -> Vec<FlowStatus> {
        let of = |flow: &Arc<Flow>| FlowStatus {
            client: flow.about.client.clone(),
            target: flow.about.target.clone(),
            next: flow.about.next.clone(),
            is_bulk: flow.about.is_bulk,
            bytes: flow.bytes(),
            blocked: flow.blocked(),
        };
        self.flows().iter().map(of).collect()
    }

    /// Refuses a connection, and counts it.
    pub(crate) fn refused(&self, names: [&str; 3]) {
        self.counters.series(names).iter().for_each(|series| series.refused());
    }
}

impl Collect for Core {
    fn collect(&self, into: &mut Snapshot) {
        self.counters.collect(into);
        into.put_number(&table::ROUTER_MEMORY, &[], self.config.limits.memory as u64);
        into.put_number(&table::ROUTER_PIPES, &[], self.pipes.lent() as u64);
    }
}
