//! Servers of data in the schedules, each with the process that watches over it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aqueduct_fs::ClientId;
use aqueduct_wire::{BeatReply, Ordinal, Right};
use aqueduct_worker::lock;

use super::super::authority::{Authority, Executing, Heard};
use super::super::unsettled::Piece;
use super::{Bug, Event, INODES, Node, SLOW_MAX, STEP_MAX, Told, World, client, handle, names};
use crate::lease::Now;

/// As the node has them.
const PAUSE: Duration = Duration::from_millis(250);
const TIMEOUT: Duration = Duration::from_secs(1);
const WATCH: Duration = Duration::from_millis(100);
const MARGIN: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) enum Message {
    Write { client: usize, flight: u64, write: usize, token: Vec<u8>, ordinal: Option<(ClientId, Ordinal)> },
    Commit { client: usize, flight: u64, inode: usize },
    Beaten { start: u64, number: u64, reply: BeatReply, asked: Now },
}

impl Message {
    pub(super) fn from(&self) -> Option<Node> {
        Some(match self {
            Message::Write { client, .. } | Message::Commit { client, .. } => Node::Client(*client),
            Message::Beaten { .. } => Node::Names,
        })
    }
}

#[derive(Debug)]
pub(super) enum Step {
    Beat(u64),
    /// A question was not answered.
    Unanswered(u64, u64, Now),
    /// A write that was let in is done.
    Effect(u64, u64),
}

struct Running {
    client: usize,
    flight: u64,
    write: usize,
    _executing: Option<Executing<'static>>,
}

/// A process.
struct Process {
    start: u64,
    authority: &'static Authority,
    told: Told,
    running: std::collections::BTreeMap<u64, Running>,
    /// The question that is not answered.
    asked: Option<u64>,
    /// What it heard last, for a mistake.
    floor: u64,
    heir: u64,
}

#[derive(Default)]
pub(super) struct Data {
    process: Option<Process>,
    /// Of its host.
    boot: u64,
    is_host_down: bool,
}

impl World {
    pub(super) fn start_data(&mut self, place: usize) {
        if self.data[place].process.is_some() || self.data[place].is_host_down {
            return;
        }
        self.count += 1;
        let start = if self.bug == Bug::TakesOldRights { 7 } else { self.count };
        let told = Told::default();
        lock(&told).1 = self.now;
        let (of_watch, clock) = (told.clone(), self.clock.clone());
        let watch = move |until| {
            *lock(&of_watch) = (until, Duration::from_nanos(clock.load(Ordering::SeqCst)));
            true
        };
        let authority = Authority::new(self.key.clone(), place as u16, start, Box::new(watch));
        let authority: &'static Authority = Box::leak(Box::new(authority));
        let running = std::collections::BTreeMap::new();
        let process = Process { start, authority, told, running, asked: None, floor: 0, heir: 0 };
        self.data[place].process = Some(process);
        self.at(Duration::ZERO, Event::Data(place, Step::Beat(start)));
        self.at(WATCH, Event::Watch(place, start));
    }

    /// It is killed. Its watch tells of that, unless the whole host has gone.
    pub(super) fn kill_data(&mut self, place: usize) {
        if let Some(process) = self.data[place].process.take() {
            // What it executed ends without a word.
            process.running.into_values().for_each(|running| std::mem::forget(running._executing));
            self.stopped_until.remove(&Node::Data(place));
        }
    }

    /// With all that only its memory had.
    pub(super) fn lose_host(&mut self, place: usize) {
        self.kill_data(place);
        self.data[place].is_host_down = true;
        self.data[place].boot += 1;
        for inode in 0..INODES {
            for block in &mut self.blocks[inode] {
                block.retain(|applied| applied.only_at != Some(place));
            }
        }
    }

    pub(super) fn start_host(&mut self, place: usize) {
        self.data[place].is_host_down = false;
        self.start_data(place);
    }

    pub(super) fn watch(&mut self, place: usize, start: u64) {
        if self.data[place].is_host_down {
            return;
        }
        let Some(process) = self.data[place].process.as_ref().filter(|process| process.start == start) else {
            return self.send(Event::ToNames(Node::Data(place), names::Message::Ended { place, start }));
        };
        let (until, heard) = *lock(&process.told);
        let is_late = until.is_some_and(|until| self.now >= until + MARGIN) || self.now >= heard + SILENCE;
        if is_late && self.bug != Bug::NobodyWatches {
            self.kill_data(place);
            let pause = self.random.duration(Duration::from_secs(2));
            self.at(pause, Event::Names(names::Step::StartData(place)));
        }
        self.at(WATCH, Event::Watch(place, start));
    }

    pub(super) fn at_data(&mut self, place: usize, message: Message) {
        let Some(process) = &mut self.data[place].process else { return };
        match message {
            Message::Write { client, flight, write, token, ordinal } => {
                self.write_at_data(place, (client, flight), write, (token, ordinal))
            }
            Message::Commit { client, flight, inode } => {
                for block in &mut self.blocks[inode] {
                    let of_host = block.iter_mut().filter(|applied| applied.only_at == Some(place));
                    of_host.for_each(|applied| applied.only_at = None);
                }
                let boot = self.data[place].boot;
                self.send(Event::ToClient(client, client::Message::Committed { place, flight, boot }));
            }
            Message::Beaten { start, number, reply, asked } => {
                let is_awaited = process.asked == Some(number);
                if process.start != start || !is_awaited {
                    return;
                }
                process.asked = None;
                let from = if self.bug == Bug::CountsFromAnswer { self.now } else { asked };
                let heard = process.authority.answered(&reply, from);
                (process.floor, process.heir) = (reply.floor, reply.names);
                process.authority.tell_watch();
                let pause = if heard == Heard::News { Duration::from_millis(5) } else { PAUSE };
                self.at(pause, Event::Data(place, Step::Beat(start)));
            }
        }
    }

    fn write_at_data(
        &mut self,
        place: usize,
        (client, flight): (usize, u64),
        write: usize,
        (token, ordinal): (Vec<u8>, Option<(ClientId, Ordinal)>),
    ) {
        let (inode, now) = (self.writes[write].inode, self.now);
        let Some(process) = &mut self.data[place].process else { return };
        let handle = handle(inode);
        let piece = ordinal.map(|(session, number)| Piece { session: session.0, handle: &handle, range: 0..1, number });
        let executing = process.authority.enter((&handle, &token), piece.as_ref(), now);
        let right = Right::of_token(&self.key, &handle, &token).unwrap();
        let is_old = right.grant <= process.floor && right.data == process.start && right.names == process.heir;
        if executing.is_none() && !(is_old && self.bug == Bug::ForgetsFloor) {
            return self.send(Event::ToClient(client, client::Message::Refused { place, flight }));
        }
        self.count += 1;
        let (start, number) = (process.start, self.count);
        process.running.insert(number, Running { client, flight, write, _executing: executing });
        let is_slow = self.random.below(4) == 0;
        let takes = self.random.duration(if is_slow { SLOW_MAX } else { STEP_MAX });
        self.at(takes, Event::Data(place, Step::Effect(start, number)));
    }

    pub(super) fn step_of_data(&mut self, place: usize, step: Step) {
        let boot = self.data[place].boot;
        let Some(process) = &mut self.data[place].process else { return };
        match step {
            Step::Beat(start) if process.start == start => {
                self.count += 1;
                process.asked = Some(self.count);
                let mut beat = process.authority.beat([0; 16]);
                if self.bug == Bug::DrainsEarly && beat.names == process.heir {
                    beat.floor = process.floor;
                }
                let (number, asked) = (self.count, self.now);
                let message = names::Message::Beat { start, number, beat: Arc::new(beat), asked };
                self.send(Event::ToNames(Node::Data(place), message));
                self.at(TIMEOUT, Event::Data(place, Step::Unanswered(start, number, asked + TIMEOUT)));
            }
            // It stood still: an answer that has come meanwhile is read first.
            Step::Unanswered(start, number, due) if self.now > due => {
                self.at(Duration::ZERO, Event::Data(place, Step::Unanswered(start, number, Now::MAX)));
            }
            Step::Unanswered(start, number, _) if process.start == start && process.asked == Some(number) => {
                process.asked = None;
                process.authority.tell_watch();
                self.at(PAUSE, Event::Data(place, Step::Beat(start)));
            }
            Step::Effect(start, number) if process.start == start => {
                let Some(running) = process.running.remove(&number) else { return };
                self.apply(running.write, Some(place));
                let Running { client, flight, .. } = running;
                self.send(Event::ToClient(client, client::Message::Written { place, flight, boot }));
            }
            _ => {}
        }
    }
}
