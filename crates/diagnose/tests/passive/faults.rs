//! Scenes with something planted, drawn by a seed.

use aqueduct_diagnose::Stage;
use aqueduct_diagnose::passive::{Shape, State};

use super::simulate::{Choice, Group, Resource, Scene, Step, unit};

/// What is planted.
pub const FAULTS: [&str; 20] = [
    "slow source",
    "source slow to answer",
    "slow destination",
    "destination slow to answer",
    "capped rail",
    "long way",
    "lossy rail",
    "unlike rails",
    "unlike rails, stealing",
    "one slow target of 8 at the source",
    "one slow target of 8 at the destination",
    "slow target, stealing",
    "hashing",
    "sending",
    "verifying",
    "metadata storm",
    "bursty feeder",
    "write-back bursts",
    "competing job at the source",
    "nothing wrong",
];

/// Whether the pieces go through all stages with one worker each.
const SHAPES: [Shape; 2] = [Shape::Pipeline, Shape::Pool];

/// Pieces in a second that what limits lets through.
const CAPACITY: f64 = 100.0;

pub struct Draw {
    seed: u64,
    at: u64,
}

impl Draw {
    fn next(&mut self) -> f64 {
        self.at += 1;
        unit(self.seed, 77, self.at)
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[(self.next() * of.len() as f64) as usize % of.len()]
    }
}

/// Steps of the scene, by their place in it.
const WALK: usize = 0;
const READ: usize = 1;
const HASH: usize = 2;
const SEND: usize = 3;
const NETWORK: usize = 4;
const WRITE: usize = 5;
const VERIFY: usize = 6;

fn steps() -> Vec<Step> {
    let kinds = [
        (Stage::Metadata, 0, State::Metadata),
        (Stage::Read, 0, State::Io),
        (Stage::Hash, 0, State::Cpu),
        (Stage::Send, 0, State::Cpu),
        (Stage::Network, 1, State::Window),
        (Stage::Write, 1, State::Io),
        (Stage::Verify, 1, State::Cpu),
    ];
    let step = |(at, (stage, side, state))| Step {
        stage,
        side,
        resources: vec![at],
        choice: Choice::Stripes,
        work: 0.001,
        spread: 0.3,
        state,
    };
    kinds.into_iter().enumerate().map(step).collect()
}

/// How a step limits, if it does.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Saturated,
    Latency,
}

struct Making {
    scene: Scene,
    draw: Draw,
    workers: [usize; 7],
}

impl Making {
    /// Gives a step a capacity.
    fn capacity(&mut self, step: usize, how: How, capacity: f64) {
        let is_pool = self.scene.shape == Shape::Pool;
        let resource = self.scene.steps[step].resources[0];
        let (channels, work) = match how {
            How::Saturated => {
                let channels = self.draw.one(&[1, 1, 2, 4]).min(self.workers[step]);
                (channels, channels as f64 / capacity)
            }
            How::Latency => (usize::MAX, self.workers[step] as f64 / capacity * if is_pool { 0.7 } else { 1.0 }),
        };
        self.scene.resources[resource].channels = channels;
        self.scene.steps[step].work = work;
    }

    /// Makes several targets of a step, each with an equal part of what it can.
    fn spread(&mut self, step: usize, count: usize) -> Vec<usize> {
        let first = self.scene.steps[step].resources[0];
        let channels = self.scene.resources[first].channels;
        let mut all = vec![first];
        if channels != usize::MAX {
            self.scene.steps[step].work *= count as f64 / channels as f64;
            self.scene.resources[first].channels = 1;
        }
        for number in 1..count {
            let resource = Resource {
                name: format!("{}-{number}", self.scene.resources[first].name),
                ..self.scene.resources[first].clone()
            };
            self.scene.resources.push(resource);
            all.push(self.scene.resources.len() - 1);
        }
        self.scene.steps[step].resources.clone_from(&all);
        all
    }

    /// Has the speed of a resource change between two values, for random times.
    fn changes(&mut self, resource: usize, [(high, long), (low, short)]: [(f64, f64); 2]) {
        let (mut at, mut speeds) = (0.0, Vec::new());
        while at < 90.0 {
            speeds.push((at, high));
            at += long * self.draw.between(0.5, 1.5);
            speeds.push((at, low));
            at += short * self.draw.between(0.5, 1.5);
        }
        self.scene.resources[resource].speeds = speeds;
    }
}

fn base(name: &'static str, seed: u64) -> Making {
    let mut draw = Draw { seed, at: 0 };
    let shape = draw.one(&SHAPES);
    let names = ["walker", "source", "source-cpu", "source-cpu2", "rail", "destination", "destination-cpu"];
    let resource = |name: &str| Resource { name: name.to_owned(), channels: usize::MAX, speeds: Vec::new() };
    let mut steps = steps();
    let spread = draw.between(0.1, 0.9);
    for step in [WALK, READ, WRITE] {
        steps[step].spread = spread;
    }
    let streams = draw.one(&[4, 8, 16]);
    let (workers, groups) = match shape {
        Shape::Pipeline => {
            let each = [2, draw.one(&[2, 4, 8]), 2, draw.one(&[2, 4]), 4, draw.one(&[2, 4, 8]), 2];
            let of = [vec![WALK], vec![READ], vec![HASH], vec![SEND, NETWORK], vec![WRITE], vec![VERIFY]];
            let last = of.len() - 1;
            let groups = of.into_iter().enumerate().map(|(at, steps)| {
                let workers = if steps.len() > 1 { each[4] } else { each[steps[0]] };
                Group { workers, steps, room: (at < last).then_some(draw.one(&[4, 8, 16])) }
            });
            ([each[0], each[1], 2, each[4], each[4], each[5], 2], groups.collect())
        }
        // A pool has no walker of its own: it finds names ahead.
        Shape::Pool => (
            [streams; 7],
            vec![Group { workers: streams, steps: vec![READ, HASH, SEND, NETWORK, WRITE, VERIFY], room: None }],
        ),
    };
    let scene = Scene {
        name,
        shape,
        resources: names.map(resource).into(),
        steps,
        groups,
        rate: None,
        loss: 0.0,
        round_trip: 0.02,
        seed,
    };
    let mut making = Making { scene, draw, workers };
    let is_pool = making.scene.shape == Shape::Pool;
    for step in [WALK, READ, HASH, SEND, NETWORK, WRITE, VERIFY] {
        let capacity = CAPACITY * making.draw.between(1.12, 4.0);
        let is_disk = matches!(step, READ | WRITE | WALK);
        let how = if is_disk && making.draw.next() < 0.4 && !is_pool { How::Latency } else { How::Saturated };
        let capacity = if step == WALK { capacity * 3.0 } else { capacity };
        making.capacity(step, how, capacity);
    }
    making
}

/// A scene with a fault.
pub fn scene(fault: usize, seed: u64) -> Scene {
    let name = FAULTS[fault];
    let mut making = base(name, seed);
    let tight = CAPACITY * making.draw.between(0.8, 1.05);
    match name {
        "slow source" => making.capacity(READ, How::Saturated, tight),
        "source slow to answer" => making.capacity(READ, How::Latency, tight),
        "slow destination" => making.capacity(WRITE, How::Saturated, tight),
        "destination slow to answer" => making.capacity(WRITE, How::Latency, tight),
        "capped rail" => making.capacity(NETWORK, How::Saturated, tight),
        "long way" => making.capacity(NETWORK, How::Latency, tight),
        "lossy rail" => {
            making.capacity(NETWORK, How::Saturated, tight);
            making.scene.loss = making.draw.between(0.001, 0.01);
        }
        "unlike rails" | "unlike rails, stealing" => unlike(&mut making, name.ends_with("stealing"), tight),
        "one slow target of 8 at the source" => slow_target(&mut making, READ, Choice::Stripes),
        "one slow target of 8 at the destination" => slow_target(&mut making, WRITE, Choice::Stripes),
        "slow target, stealing" => {
            making.capacity(WRITE, How::Saturated, tight);
            slow_target(&mut making, WRITE, Choice::Steals);
        }
        "hashing" => making.capacity(HASH, How::Saturated, tight),
        "sending" => making.capacity(SEND, How::Saturated, tight),
        "verifying" => making.capacity(VERIFY, How::Saturated, tight),
        "metadata storm" => making.capacity(WALK, How::Latency, tight),
        "bursty feeder" => {
            making.scene.rate = Some(CAPACITY * making.draw.between(0.6, 0.85));
            making.changes(WALK, [(1.0, 0.5), (0.6, 0.3)]);
        }
        "write-back bursts" => {
            making.capacity(WRITE, How::Saturated, tight);
            making.changes(WRITE, [(1.8, 0.6), (0.4, 0.8)]);
        }
        "competing job at the source" => {
            making.capacity(READ, How::Saturated, tight * 1.3);
            making.changes(READ, [(1.0, 1.0), (0.45, 1.0)]);
        }
        _ => making.scene.rate = Some(CAPACITY * making.draw.between(0.5, 0.9)),
    }
    making.scene
}

fn unlike(making: &mut Making, steals: bool, tight: f64) {
    making.capacity(NETWORK, How::Saturated, tight);
    let all = making.spread(NETWORK, 2);
    let slower = making.draw.between(0.3, 0.6);
    making.scene.resources[all[1]].speeds = vec![(0.0, slower)];
    making.scene.steps[NETWORK].choice = if steals { Choice::Steals } else { Choice::Stripes };
}

fn slow_target(making: &mut Making, step: usize, choice: Choice) {
    let capacity = CAPACITY * making.draw.between(1.1, 1.4);
    if choice == Choice::Stripes {
        making.capacity(step, How::Saturated, capacity);
    }
    let all = making.spread(step, 8);
    let slower = 1.0 / making.draw.between(1.7, 4.0);
    let which = making.draw.one(&all);
    making.scene.resources[which].speeds = vec![(0.0, slower)];
    making.scene.steps[step].choice = choice;
}

/// The target that was made slower than its peers, if one was.
pub fn planted(scene: &Scene) -> Option<(Stage, String)> {
    let step = scene.steps.iter().find(|step| step.resources.len() > 1)?;
    let slow = step.resources.iter().find(|at| scene.resources[**at].speeds.len() == 1)?;
    Some((step.stage, scene.resources[*slow].name.clone()))
}

/// Whether what a stage does waits for nothing of others.
pub fn is_slow_to_answer(scene: &Scene, stage: Stage) -> bool {
    let step = scene.steps.iter().find(|step| step.stage == stage);
    step.is_some_and(|step| scene.resources[step.resources[0]].channels == usize::MAX)
}
