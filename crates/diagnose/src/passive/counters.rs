//! What was counted of a pipeline between two looks: plain data, which only ever grew.

use aqueduct_metrics::activity::Station;

use crate::verdict::Stage;

/// What a worker can be at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing is there to work on.
    Starved,
    /// What comes next has no room.
    Blocked,
    /// It is held to a rate that was asked for.
    Throttled,
    /// It waits for what it has sent to be taken.
    Window,
    /// An operation of a file system or a disk.
    Io,
    /// Computing.
    Cpu,
    /// It could compute, and waits for a processor.
    Runnable,
    /// Names and attributes.
    Metadata,
}

/// How many states there are.
pub const STATES: usize = 8;

/// How the workers share what is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Each worker takes a piece through all stages. Where its time goes is then where the
    /// workers are, and not yet what limits.
    #[default]
    Pool,
    /// Each stage has its own workers, with bounded queues between them.
    Pipeline,
}

/// A stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageCounts {
    /// Which.
    pub stage: Stage,
    /// 0: at the source, 1: at the destination.
    pub side: usize,
    /// Seconds of all workers that do this, whatever else they do.
    pub workers: f64,
    /// Of those the seconds that belong to this stage, by [`State`].
    pub states: [f64; STATES],
    /// Its operations, by target.
    pub stations: Vec<Station>,
}

/// A way over the network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RailCounts {
    /// Its name.
    pub name: String,
    /// The sum of the round trips that were measured, in seconds, and how many there were.
    pub round_trips: [f64; 2],
    /// The least round trip that was ever seen, in seconds.
    pub round_trip_min: f64,
    /// Segments that were sent, and those of them that were sent again.
    pub segments: [f64; 2],
    /// Seconds in which at least 7/8 of what may be on its way was on its way.
    pub full: f64,
    /// Seconds in which data waited at the receiver to be taken.
    pub backlog: f64,
}

/// All of a pipeline, so far or between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// How long that was.
    pub seconds: f64,
    /// How workers share the work.
    pub shape: Shape,
    /// Of a pool: seconds in which workers had nothing to do, and were held to a rate.
    pub idle: f64,
    /// See `idle`.
    pub throttled: f64,
    /// Whether names were still being found, for want of which a pool has nothing to do.
    pub is_walking: bool,
    /// In their order.
    pub stages: Vec<StageCounts>,
    /// Ways over the network.
    pub rails: Vec<RailCounts>,
    /// Seconds of processors that were busy and that there were, at source and destination.
    pub processors: [[f64; 2]; 2],
}

impl RailCounts {
    fn since(&self, before: &RailCounts) -> RailCounts {
        let less = |now: [f64; 2], before: [f64; 2]| [0, 1].map(|at: usize| (now[at] - before[at]).max(0.0));
        RailCounts {
            name: self.name.clone(),
            round_trips: less(self.round_trips, before.round_trips),
            round_trip_min: self.round_trip_min,
            segments: less(self.segments, before.segments),
            full: (self.full - before.full).max(0.0),
            backlog: (self.backlog - before.backlog).max(0.0),
        }
    }
}

impl Window {
    /// What came since an earlier look at the same pipeline: stages, targets and rails are those
    /// of the later look; what the earlier one did not have had counted nothing.
    #[must_use]
    pub fn since(&self, before: &Window) -> Window {
        let stages = self.stages.iter().map(|now| {
            let same = |other: &&StageCounts| other.stage == now.stage && other.side == now.side;
            before.stages.iter().find(same).map_or_else(|| now.clone(), |before| now.since(before))
        });
        let rails = self.rails.iter().map(|now| {
            let before = before.rails.iter().find(|before| before.name == now.name);
            before.map_or_else(|| now.clone(), |before| now.since(before))
        });
        let side = |side: usize| [0, 1].map(|at: usize| self.processors[side][at] - before.processors[side][at]);
        Window {
            seconds: self.seconds - before.seconds,
            shape: self.shape,
            idle: (self.idle - before.idle).max(0.0),
            throttled: (self.throttled - before.throttled).max(0.0),
            is_walking: self.is_walking,
            stages: stages.collect(),
            rails: rails.collect(),
            processors: [side(0), side(1)],
        }
    }
}

impl Window {
    /// Adds a stage, or to it what was counted elsewhere of the same.
    pub fn put(&mut self, counts: StageCounts) {
        let same = |other: &&mut StageCounts| other.stage == counts.stage && other.side == counts.side;
        match self.stages.iter_mut().find(same) {
            Some(known) => known.add(&counts),
            None => self.stages.push(counts),
        }
    }

    /// Adds a way, or to it what was counted elsewhere of the same.
    pub fn put_rail(&mut self, rail: RailCounts) {
        match self.rails.iter_mut().find(|known| known.name == rail.name) {
            Some(known) => known.add(&rail),
            None => self.rails.push(rail),
        }
    }

    /// Adds what was counted in a window after this one.
    pub fn add(&mut self, after: &Window) {
        self.seconds += after.seconds;
        self.shape = after.shape;
        self.idle += after.idle;
        self.throttled += after.throttled;
        self.is_walking = after.is_walking;
        after.stages.iter().for_each(|counts| self.put(counts.clone()));
        after.rails.iter().for_each(|rail| self.put_rail(rail.clone()));
        let pairs = self.processors.iter_mut().flatten().zip(after.processors.iter().flatten());
        pairs.for_each(|(sum, more)| *sum += more);
    }
}

impl RailCounts {
    fn add(&mut self, more: &RailCounts) {
        for at in 0..2 {
            self.round_trips[at] += more.round_trips[at];
            self.segments[at] += more.segments[at];
        }
        self.round_trip_min = self.round_trip_min.min(more.round_trip_min);
        self.full += more.full;
        self.backlog += more.backlog;
    }
}

impl StageCounts {
    fn add(&mut self, more: &StageCounts) {
        self.workers += more.workers;
        self.states.iter_mut().zip(more.states).for_each(|(sum, more)| *sum += more);
        for station in &more.stations {
            match self.stations.iter_mut().find(|known| known.is_same(station)) {
                Some(known) => known.add(station),
                None => self.stations.push(station.clone()),
            }
        }
    }

    /// Seconds in a state.
    pub fn of(&self, state: State) -> f64 {
        self.states[state as usize]
    }

    /// Seconds in which its workers worked.
    pub fn busy(&self) -> f64 {
        [State::Io, State::Cpu, State::Runnable, State::Metadata].map(|state| self.of(state)).iter().sum()
    }

    /// Operations that ended.
    pub fn completions(&self) -> f64 {
        self.stations.iter().map(Station::completions).sum()
    }

    fn since(&self, before: &StageCounts) -> StageCounts {
        let stations = self.stations.iter().map(|now| {
            let before = before.stations.iter().find(|before| before.is_same(now));
            before.map_or_else(|| now.clone(), |before| now.since(before))
        });
        StageCounts {
            stage: self.stage,
            side: self.side,
            workers: (self.workers - before.workers).max(0.0),
            states: std::array::from_fn(|state| (self.states[state] - before.states[state]).max(0.0)),
            stations: stations.collect(),
        }
    }
}
