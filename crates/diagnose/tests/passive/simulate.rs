//! A small pipeline on a virtual clock: workers, bounded queues, and resources with queues of
//! their own, whose times have heavy tails and whose speed changes. What each piece takes is known
//! by its number, so that two runs differ only in what was made faster.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use aqueduct_diagnose::Stage;
use aqueduct_diagnose::passive::{RailCounts, STATES, Shape, StageCounts, State, Window};
use aqueduct_metrics::activity::{Station, level};

/// What does the work: a disk, a link, the processors of a host.
#[derive(Clone, Debug)]
pub struct Resource {
    pub name: String,
    /// Operations that it works on at a time; the others wait. `usize::MAX`: all.
    pub channels: usize,
    /// Its speed, from these moments on.
    pub speeds: Vec<(f64, f64)>,
}

/// Which target a piece goes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// By its number.
    Stripes,
    /// The one with the fewest under way, by its number among equals.
    Steals,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub stage: Stage,
    pub side: usize,
    pub resources: Vec<usize>,
    pub choice: Choice,
    /// Seconds of a piece at speed 1, and the spread of its logarithm.
    pub work: f64,
    pub spread: f64,
    /// What its time counts as; of `Cpu`, waiting in the queue is `Runnable`.
    pub state: State,
}

/// Workers that take pieces through some steps.
#[derive(Clone, Debug)]
pub struct Group {
    pub workers: usize,
    pub steps: Vec<usize>,
    /// The room of the queue behind it; `None`: it is the last.
    pub room: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct Scene {
    pub name: &'static str,
    pub shape: Shape,
    pub resources: Vec<Resource>,
    pub steps: Vec<Step>,
    pub groups: Vec<Group>,
    /// Pieces in a second that the first group may take.
    pub rate: Option<f64>,
    /// The share of segments that are lost, told of rails.
    pub loss: f64,
    /// Least round trip of the rails, in seconds.
    pub round_trip: f64,
    pub seed: u64,
}

/// A number in 0 to 1 that belongs to the arguments.
pub fn unit(seed: u64, a: u64, b: u64) -> f64 {
    let mut x = seed ^ a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b.wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    for _ in 0..2 {
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^= x >> 31;
    }
    (x >> 11) as f64 / (1u64 << 53) as f64
}

fn normal(seed: u64, a: u64, b: u64) -> f64 {
    let (one, two) = (unit(seed, a, 2 * b + 1).max(1e-12), unit(seed, a, 2 * b + 2));
    (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * two).cos()
}

#[derive(Clone, Copy, PartialEq)]
struct At(f64);
impl Eq for At {}
impl PartialOrd for At {
    fn partial_cmp(&self, other: &At) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for At {
    fn cmp(&self, other: &At) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The first of a resource ends, if nothing changed since.
    Ends(usize, u64),
    Speed(usize, usize),
    Rated(usize),
    Look,
}

#[derive(Default)]
struct Served {
    queue: VecDeque<(usize, f64)>,
    /// The progress at which each ends, and whose it is.
    serving: Vec<(f64, usize)>,
    progress: f64,
    speed: f64,
    since: f64,
    version: u64,
}

struct Worker {
    group: usize,
    step: usize,
    piece: u64,
    state: State,
    /// The step to which its time counts.
    counts: usize,
    since: f64,
    began: f64,
}

/// In flight at one target of a step, and when that changed.
struct Flight {
    station: Station,
    count: usize,
    since: f64,
    before: f64,
    least: f64,
}

pub struct Run<'a> {
    scene: &'a Scene,
    factor: Vec<f64>,
    now: f64,
    events: BinaryHeap<Reverse<(At, u64, Event)>>,
    number: u64,
    served: Vec<Served>,
    workers: Vec<Worker>,
    queues: Vec<VecDeque<u64>>,
    starved: Vec<VecDeque<usize>>,
    blocked: Vec<VecDeque<usize>>,
    states: Vec<[f64; STATES]>,
    pool: [f64; STATES],
    flights: Vec<Vec<Flight>>,
    pieces: u64,
    rated: f64,
    pub done: u64,
    /// Time in which the queue behind the network was full.
    looks: Vec<Window>,
    step_of_look: f64,
}

impl<'a> Run<'a> {
    /// `factor`: how many times as fast each step is.
    pub fn new(scene: &'a Scene, factor: Vec<f64>) -> Run<'a> {
        let flight = |name: &str| Flight {
            station: Station { target: name.to_owned(), ..Station::default() },
            count: 0,
            since: 0.0,
            before: 0.0,
            least: f64::INFINITY,
        };
        let names = |step: &Step| step.resources.iter().map(|at| flight(&scene.resources[*at].name)).collect();
        let mut workers = Vec::new();
        for (group, of) in scene.groups.iter().enumerate() {
            workers.extend((0..of.workers).map(|_| Worker {
                group,
                step: 0,
                piece: 0,
                state: State::Starved,
                counts: of.steps[0],
                since: 0.0,
                began: 0.0,
            }));
        }
        let groups = scene.groups.len();
        Run {
            scene,
            factor,
            now: 0.0,
            events: BinaryHeap::new(),
            number: 0,
            served: scene.resources.iter().map(|_| Served { speed: 1.0, ..Served::default() }).collect(),
            workers,
            queues: vec![VecDeque::new(); groups],
            starved: vec![VecDeque::new(); groups],
            blocked: vec![VecDeque::new(); groups],
            states: vec![[0.0; STATES]; scene.steps.len()],
            pool: [0.0; STATES],
            flights: scene.steps.iter().map(names).collect(),
            pieces: 0,
            rated: 0.0,
            done: 0,
            looks: Vec::new(),
            step_of_look: f64::INFINITY,
        }
    }

    fn event(&mut self, at: f64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((At(at), self.number, event)));
    }

    /// Runs for so long. Looks after `warm_up`, and then each `apart`.
    pub fn run(mut self, warm_up: f64, seconds: f64, apart: f64) -> (Vec<Window>, u64) {
        self.step_of_look = apart;
        for (at, resource) in self.scene.resources.iter().enumerate() {
            for (change, (when, _)) in resource.speeds.iter().enumerate().filter(|(_, (when, _))| *when <= seconds) {
                self.event(*when, Event::Speed(at, change));
            }
        }
        self.event(warm_up, Event::Look);
        (0..self.workers.len()).for_each(|worker| self.take(worker));
        let mut counted = 0;
        while let Some(Reverse((At(at), _, event))) = self.events.pop() {
            if at > seconds {
                break;
            }
            self.now = at;
            match event {
                Event::Ends(resource, version) if self.served[resource].version == version => self.end(resource),
                Event::Ends(..) => {}
                Event::Speed(resource, change) => {
                    self.advance(resource);
                    self.served[resource].speed = self.scene.resources[resource].speeds[change].1;
                    self.plan(resource);
                }
                Event::Rated(worker) => self.start(worker),
                Event::Look => {
                    if self.looks.is_empty() {
                        counted = self.done;
                    }
                    self.look();
                }
            }
        }
        self.now = seconds;
        self.look();
        let done = self.done - counted;
        (self.looks, done)
    }

    fn enter(&mut self, worker: usize, state: State, counts: usize) {
        let now = self.now;
        let it = &mut self.workers[worker];
        let took = now - it.since;
        self.states[it.counts][it.state as usize] += took;
        self.pool[it.state as usize] += took;
        (it.state, it.counts, it.since) = (state, counts, now);
    }

    /// A worker is to take its next piece.
    fn take(&mut self, worker: usize) {
        let group = self.workers[worker].group;
        let first = self.scene.groups[group].steps[0];
        if group == 0 {
            self.workers[worker].piece = self.pieces;
            self.pieces += 1;
            if let Some(rate) = self.scene.rate {
                self.rated = self.rated.max(self.now) + 1.0 / rate;
                if self.rated - 1.0 / rate > self.now {
                    self.enter(worker, State::Throttled, first);
                    self.event(self.rated - 1.0 / rate, Event::Rated(worker));
                    return;
                }
            }
        } else if let Some(piece) = self.queues[group].pop_front() {
            self.workers[worker].piece = piece;
            if let Some(waits) = self.blocked[group - 1].pop_front() {
                self.queues[group].push_back(self.workers[waits].piece);
                self.take(waits);
            }
        } else {
            self.enter(worker, State::Starved, first);
            self.starved[group].push_back(worker);
            return;
        }
        self.start(worker);
    }

    fn start(&mut self, worker: usize) {
        self.workers[worker].step = 0;
        self.submit(worker);
    }

    fn target(&self, step: usize, piece: u64) -> usize {
        let resources = &self.scene.steps[step].resources;
        let by_number = (piece % resources.len() as u64) as usize;
        match self.scene.steps[step].choice {
            Choice::Stripes => by_number,
            Choice::Steals => {
                let count = |at: usize| self.flights[step][at].count;
                let order = (0..resources.len()).map(|at| (at + by_number) % resources.len());
                order.min_by_key(|at| count(*at)).unwrap_or(0)
            }
        }
    }

    fn submit(&mut self, worker: usize) {
        let (group, piece) = (self.workers[worker].group, self.workers[worker].piece);
        let step = self.scene.groups[group].steps[self.workers[worker].step];
        let at = self.target(step, piece);
        let of = &self.scene.steps[step];
        let resource = of.resources[at];
        let spread = of.spread;
        let work = of.work * (spread * normal(self.scene.seed, step as u64, piece) - spread * spread / 2.0).exp()
            / self.factor[step];
        let state = of.state;
        self.workers[worker].began = self.now;
        self.fly(step, at, 1);
        self.advance(resource);
        let served = &mut self.served[resource];
        if served.serving.len() < self.scene.resources[resource].channels {
            served.serving.push((served.progress + work, worker));
            self.enter(worker, state, step);
            self.plan(resource);
        } else {
            served.queue.push_back((worker, work));
            self.enter(worker, if state == State::Cpu { State::Runnable } else { state }, step);
        }
    }

    /// One more, or one fewer, is in flight.
    fn fly(&mut self, step: usize, at: usize, more: isize) {
        let flight = &mut self.flights[step][at];
        flight.station.time[level(flight.count)] += self.now - flight.since;
        flight.since = self.now;
        if more < 0 {
            flight.station.done[level(flight.count)] += 1.0;
        }
        flight.count = flight.count.saturating_add_signed(more);
    }

    fn advance(&mut self, resource: usize) {
        let served = &mut self.served[resource];
        served.progress += (self.now - served.since) * served.speed;
        served.since = self.now;
    }

    fn plan(&mut self, resource: usize) {
        let served = &mut self.served[resource];
        served.version += 1;
        let (version, speed) = (served.version, served.speed);
        let least = served.serving.iter().map(|(at, _)| *at).fold(f64::INFINITY, f64::min);
        if least.is_finite() && speed > 0.0 {
            let at = self.now + (least - self.served[resource].progress).max(0.0) / speed;
            self.event(at, Event::Ends(resource, version));
        }
    }

    fn end(&mut self, resource: usize) {
        self.advance(resource);
        let served = &mut self.served[resource];
        let Some(at) = (0..served.serving.len()).min_by(|a, b| served.serving[*a].0.total_cmp(&served.serving[*b].0))
        else {
            return;
        };
        let (_, worker) = served.serving.swap_remove(at);
        if let Some((next, work)) = served.queue.pop_front() {
            served.serving.push((served.progress + work, next));
            if self.workers[next].state == State::Runnable {
                let counts = self.workers[next].counts;
                self.enter(next, State::Cpu, counts);
            }
        }
        self.plan(resource);
        self.ended(worker, resource);
    }

    fn ended(&mut self, worker: usize, resource: usize) {
        let group = self.workers[worker].group;
        let step = self.scene.groups[group].steps[self.workers[worker].step];
        let at = self.scene.steps[step].resources.iter().position(|at| *at == resource).unwrap_or(0);
        self.fly(step, at, -1);
        let took = (self.now - self.workers[worker].began).max(1e-9);
        let flight = &mut self.flights[step][at];
        let log = took.ln();
        flight.station.spent += took;
        flight.station.count += 1.0;
        flight.station.log_sum += log;
        flight.station.log_squares += log * log;
        flight.station.log_lag += log * flight.before;
        flight.before = log;
        flight.least = flight.least.min(took);
        self.workers[worker].step += 1;
        if self.workers[worker].step < self.scene.groups[group].steps.len() {
            return self.submit(worker);
        }
        match self.scene.groups[group].room {
            None => {
                self.done += 1;
                self.take(worker);
            }
            Some(room) => {
                if let Some(waits) = self.starved[group + 1].pop_front() {
                    self.workers[waits].piece = self.workers[worker].piece;
                    self.start(waits);
                    self.take(worker);
                } else if self.queues[group + 1].len() < room {
                    let piece = self.workers[worker].piece;
                    self.queues[group + 1].push_back(piece);
                    self.take(worker);
                } else {
                    self.enter(worker, State::Blocked, step);
                    self.blocked[group].push_back(worker);
                }
            }
        }
    }

    fn look(&mut self) {
        for worker in 0..self.workers.len() {
            let (state, counts) = (self.workers[worker].state, self.workers[worker].counts);
            self.enter(worker, state, counts);
        }
        for step in 0..self.flights.len() {
            (0..self.flights[step].len()).for_each(|at| self.fly(step, at, 0));
        }
        let window = self.counted();
        self.looks.push(window);
        self.event(self.now + self.step_of_look, Event::Look);
    }

    fn counted(&self) -> Window {
        let (mut stages, mut rails) = (Vec::new(), Vec::new());
        for (at, step) in self.scene.steps.iter().enumerate() {
            let stations: Vec<Station> = self.flights[at].iter().map(|flight| flight.station.clone()).collect();
            let mut states = self.states[at];
            let group = self.scene.groups.iter().find(|group| group.steps.contains(&at));
            let workers = group.map_or(0.0, |group| group.workers as f64);
            if step.stage == Stage::Network {
                // What a sender sees: it waits until what it sent is taken.
                let blocked = std::mem::take(&mut states[State::Blocked as usize]);
                states[State::Window as usize] += blocked;
                rails.extend(self.flights[at].iter().map(|flight| self.rail(flight, blocked / workers)));
            }
            stages.push(StageCounts {
                stage: step.stage,
                side: step.side,
                workers: workers * self.now,
                states,
                stations,
            });
        }
        Window {
            seconds: self.now,
            shape: self.scene.shape,
            idle: self.pool[State::Starved as usize],
            throttled: self.pool[State::Throttled as usize],
            is_walking: true,
            stages,
            rails,
            processors: [[0.0; 2]; 2],
        }
    }

    fn rail(&self, flight: &Flight, backlog: f64) -> RailCounts {
        // Beyond the least that a piece took it waited behind others.
        let waited = flight.station.spent - flight.station.count * flight.least.min(1e9);
        let sent = flight.station.count * 1000.0;
        RailCounts {
            name: flight.station.target.clone(),
            round_trips: [self.scene.round_trip * flight.station.count + waited, flight.station.count],
            round_trip_min: self.scene.round_trip,
            segments: [sent, sent * self.scene.loss],
            full: 0.0,
            backlog,
        }
    }
}
