//! All ranks around rank 0: the collective calls, and what is told between them.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::channel::{Channel, Message, Op, RECEIVE_SIZE};
use super::{TeamError, signals};
use crate::Failure;

/// How long a wait in the kernel lasts before signals are looked at again.
const TICK: Duration = Duration::from_millis(200);

/// The failure of a rank is known to the others within this time, where it is not held up.
const FOLLOWS: Duration = Duration::from_millis(200);

/// How often a rank that measures looks at what the others tell.
const LOOK: Duration = Duration::from_millis(1);

/// Connections that are served in one turn.
const EVENTS_MAX: usize = 256;

/// The time of all ranks is that of the quickest of so many answers.
const TIME_QUESTIONS: usize = 8;

/// Who has failed, and why: as it is told to the others.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Failed {
    rank: usize,
    host: String,
    reason: String,
    /// In its own words: what, why, what to do.
    #[serde(default)]
    words: Option<[String; 3]>,
    #[serde(default)]
    is_usage: bool,
}

/// One rank's connections: at rank 0 one to each other, elsewhere one to rank 0.
pub(super) struct Star {
    rank: usize,
    /// At rank 0 in the order of ranks.
    channels: Vec<Channel>,
    epoll: OwnedFd,
    buffer: Box<[u8; RECEIVE_SIZE]>,
    /// Collective calls so far.
    sequence: u64,
    /// Why there are no more of them.
    lost: Option<Failed>,
    looked: Instant,
    /// The last barrier, by its number, and the last one after which somebody has said something.
    barrier: u64,
    said: Option<u64>,
    interrupted: bool,
    told_interrupt: bool,
}

impl std::fmt::Debug for Star {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Star(rank {}, {:?})", self.rank, self.channels)
    }
}

impl Star {
    pub(super) fn new(rank: usize, channels: Vec<Channel>) -> std::io::Result<Star> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (at, channel) in channels.iter().enumerate() {
            epoll::add(&epoll, &channel.socket, epoll::EventData::new_u64(at as u64), epoll::EventFlags::IN)?;
        }
        Ok(Star {
            rank,
            channels,
            epoll,
            buffer: Box::new([0; RECEIVE_SIZE]),
            sequence: 0,
            lost: None,
            looked: Instant::now(),
            barrier: 0,
            said: None,
            interrupted: false,
            told_interrupt: false,
        })
    }

    fn check(&self) -> Result<(), TeamError> {
        let Some(Failed { rank, host, reason, .. }) = self.lost.clone() else { return Ok(()) };
        Err(TeamError::Lost { rank, host, reason })
    }

    /// Whether what has ended the measurement is reported by rank 0: another rank's failure, or its own in its own words. Of a rank 0 that has vanished there are none.
    pub(super) fn is_lost_elsewhere(&self) -> bool {
        self.rank != 0 && self.lost.as_ref().is_some_and(|failed| failed.rank != 0 || failed.words.is_some())
    }

    /// A rank is lost: the others are told, by rank 0.
    fn lose(&mut self, failed: Failed) {
        if self.lost.is_some() {
            return;
        }
        if self.rank == 0 {
            self.tell(&failed);
        }
        self.lost = Some(failed);
    }

    fn tell(&mut self, failed: &Failed) {
        let body = serde_json::to_vec(failed).unwrap_or_default();
        for channel in self.channels.iter_mut().filter(|channel| !channel.ended) {
            // Those that cannot be told find the connection closed.
            let _ = channel.send(Op::Failed, 0, &body);
        }
    }

    /// Tells all that this rank has failed. Whether rank 0 could be told.
    pub(super) fn fail(&mut self, host: String, failure: &Failure) -> bool {
        if self.lost.is_some() {
            return false;
        }
        let Failure { what, why, hint, is_usage } = failure;
        let words = Some([what.clone(), why.clone(), hint.clone()]);
        let failed = Failed { rank: self.rank, host, reason: format!("{what}: {why}"), words, is_usage: *is_usage };
        self.tell(&failed);
        self.lost = Some(failed);
        true
    }

    /// Waits a moment for what others tell: a failure here may follow from one of theirs.
    pub(super) fn listen(&mut self) {
        if self.lost.is_none() {
            self.receive(FOLLOWS);
        }
    }

    /// What another rank has failed of, in its own words.
    pub(super) fn failure(&self) -> Option<Failure> {
        let Failed { rank, host, words, is_usage, .. } =
            self.lost.as_ref().filter(|failed| failed.rank != self.rank)?;
        let [what, why, hint] = words.clone()?;
        Some(Failure { is_usage: *is_usage, ..Failure::new(format!("rank {rank} on {host}: {what}"), why, hint) })
    }

    /// This rank ends without a word.
    pub(super) fn leave(&mut self) {
        if self.lost.is_none() {
            self.sequence += 1;
            self.send_all(Op::End, b"");
        }
    }

    fn send(&mut self, at: usize, (op, sequence): (Op, u64), body: &[u8]) {
        let channel = &mut self.channels[at];
        if channel.ended {
            return;
        }
        if let Err(reason) = channel.send(op, sequence, body) {
            let failed =
                Failed { rank: channel.rank, host: channel.host.clone(), reason, words: None, is_usage: false };
            self.lose(failed);
        }
    }

    fn send_all(&mut self, op: Op, body: &[u8]) {
        let sequence = if op == Op::Said { self.barrier } else { self.sequence };
        (0..self.channels.len()).for_each(|at| self.send(at, (op, sequence), body));
    }

    /// Takes what has come; waits for it for so long.
    fn receive(&mut self, wait: Duration) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_MAX);
        let wait = rustix::event::Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => self.lose(Failed {
                rank: self.rank,
                host: String::new(),
                reason: format!("it cannot wait for the others: {error}"),
                words: None,
                is_usage: false,
            }),
        }
        for event in events {
            let at = event.data.u64() as usize;
            let channel = &mut self.channels[at];
            match channel.receive(&mut self.buffer) {
                Ok(told) => told.into_iter().for_each(|message| self.hear(at, &message)),
                Err(reason) => {
                    // It would be reported again and again. That it fails changes nothing.
                    let _ = epoll::delete(&self.epoll, &channel.socket);
                    let is_orderly = channel.ended || channel.waiting.iter().any(|message| message.op == Op::End);
                    channel.ended = true;
                    let failed =
                        Failed { rank: channel.rank, host: channel.host.clone(), reason, words: None, is_usage: false };
                    if !is_orderly {
                        self.lose(failed);
                    }
                }
            }
        }
        self.looked = Instant::now();
    }

    /// What needs no answer.
    fn hear(&mut self, from: usize, message: &Message) {
        match message.op {
            Op::Failed => {
                let channel = &self.channels[from];
                let failed = serde_json::from_slice::<Failed>(&message.body).unwrap_or_else(|error| Failed {
                    rank: channel.rank,
                    host: channel.host.clone(),
                    reason: format!("it says of its failure what makes no sense: {error}"),
                    words: None,
                    is_usage: false,
                });
                // Others than rank 0 speak for themselves alone.
                let failed = match self.rank {
                    0 => Failed { rank: channel.rank, host: channel.host.clone(), ..failed },
                    _ => failed,
                };
                self.channels[from].ended = true;
                self.lose(failed);
            }
            Op::Said => {
                self.said = self.said.max(Some(message.sequence));
                self.pass_on(from, message);
            }
            Op::Interrupt => {
                self.interrupted = true;
                self.told_interrupt = true;
                self.pass_on(from, message);
            }
            _ => {}
        }
    }

    fn pass_on(&mut self, from: usize, message: &Message) {
        if self.rank == 0 {
            let others = (0..self.channels.len()).filter(|at| *at != from);
            others.for_each(|at| self.send(at, (message.op, message.sequence), b""));
        }
    }

    /// Looks at what the others tell, if it was not looked at just now.
    fn look(&mut self) {
        self.tell_interrupt();
        if self.looked.elapsed() >= LOOK {
            self.receive(Duration::ZERO);
        }
    }

    fn tell_interrupt(&mut self) {
        if signals::asked() && !self.told_interrupt {
            self.told_interrupt = true;
            self.interrupted = true;
            self.send_all(Op::Interrupt, b"");
        }
    }

    pub(super) fn interrupted(&mut self) -> bool {
        self.look();
        self.interrupted || self.lost.is_some()
    }

    pub(super) fn say(&mut self) {
        if self.said < Some(self.barrier) {
            self.said = Some(self.barrier);
            self.send_all(Op::Said, b"");
        }
    }

    /// What is told in one connection before a barrier is older than it also where it is heard behind it.
    pub(super) fn any_said(&mut self) -> bool {
        if self.said < Some(self.barrier) {
            self.look();
        }
        self.said >= Some(self.barrier)
    }

    /// Waits for the message of each rank that belongs to this call. At others than rank 0: for that of rank 0.
    fn collect(&mut self, op: Op) -> Result<Vec<Message>, TeamError> {
        loop {
            // In this order: what a rank said before it ended counts.
            if self.channels.iter().all(|channel| !channel.waiting.is_empty()) {
                return (0..self.channels.len()).map(|at| self.take(at, op)).collect();
            }
            self.check()?;
            let is_elsewhere =
                |channel: &Channel| channel.waiting.front().map_or(channel.ended, |message| message.op != op);
            if let Some(at) = self.channels.iter().position(is_elsewhere) {
                return self.take(at, op).map(|message| vec![message]);
            }
            self.tell_interrupt();
            self.receive(TICK);
        }
    }

    fn take(&mut self, at: usize, op: Op) -> Result<Message, TeamError> {
        let channel = &mut self.channels[at];
        match channel.waiting.pop_front() {
            Some(message) if message.op == op && message.sequence == self.sequence => Ok(message),
            Some(Message { op: Op::End, .. }) | None => {
                let (rank, host) = (channel.rank, channel.host.clone());
                Err(TeamError::Lost { rank, host, reason: "it has ended before the others".into() })
            }
            Some(Message { op: theirs, sequence, .. }) => Err(TeamError::Protocol(format!(
                "rank {} on {} is at {theirs:?} {sequence} where rank {} is at {op:?} {}",
                channel.rank, channel.host, self.rank, self.sequence
            ))),
        }
    }

    pub(super) fn barrier(&mut self) -> Result<(), TeamError> {
        self.meet(Op::Barrier)
    }

    /// All say so, and then rank 0 says that they have.
    fn meet(&mut self, op: Op) -> Result<(), TeamError> {
        self.sequence += 1;
        if self.rank != 0 {
            self.check()?;
            self.send_all(op, b"");
        }
        self.collect(op)?;
        self.barrier = self.sequence;
        if self.rank == 0 {
            self.send_all(op, b"");
        }
        Ok(())
    }

    pub(super) fn gather(&mut self, own: Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, TeamError> {
        self.sequence += 1;
        if self.rank != 0 {
            self.check()?;
            self.send_all(Op::Gather, &own);
            return self.check().map(|()| None);
        }
        let others = self.collect(Op::Gather)?;
        Ok(Some(std::iter::once(own).chain(others.into_iter().map(|message| message.body)).collect()))
    }

    /// What rank 0 says; `None` at rank 0.
    pub(super) fn broadcast(
        &mut self,
        own: impl FnOnce() -> Result<Vec<u8>, TeamError>,
    ) -> Result<Option<Vec<u8>>, TeamError> {
        self.sequence += 1;
        if self.rank == 0 {
            self.check()?;
            let body = own()?;
            self.send_all(Op::Broadcast, &body);
            return self.check().map(|()| None);
        }
        let message = self.collect(Op::Broadcast)?.pop();
        Ok(message.map(|message| message.body))
    }

    /// All have joined: rank 0 tells the hosts of all.
    pub(super) fn meet_all(&mut self, size: usize, own: String) -> Result<Vec<String>, TeamError> {
        if self.rank == 0 {
            let others = self.channels.iter().map(|channel| channel.host.clone());
            let hosts: Vec<String> = std::iter::once(own).chain(others).collect();
            self.send_all(Op::Welcome, &serde_json::to_vec(&hosts).unwrap_or_default());
            return self.check().map(|()| hosts);
        }
        let body = self.collect(Op::Welcome)?.pop().map(|message| message.body).unwrap_or_default();
        let hosts: Vec<String> = serde_json::from_slice(&body).unwrap_or_default();
        if hosts.len() != size {
            return Err(TeamError::Protocol(format!("rank 0 names {} hosts of {size}", hosts.len())));
        }
        for channel in &mut self.channels {
            channel.host.clone_from(&hosts[0]);
        }
        Ok(hosts)
    }

    /// What has to be added to this rank's clock so that it shows rank 0's time; each rank in turn asks.
    pub(super) fn clock_offset(&mut self, size: usize, now: impl Fn() -> f64) -> Result<f64, TeamError> {
        let end = self.sequence + ((size - 1) * TIME_QUESTIONS) as u64;
        if self.rank == 0 {
            for at in 0..self.channels.len() {
                for _ in 0..TIME_QUESTIONS {
                    self.sequence += 1;
                    while self.channels[at].waiting.is_empty() {
                        self.check()?;
                        self.receive(TICK);
                    }
                    self.take(at, Op::Time)?;
                    self.send(at, (Op::Time, self.sequence), &now().to_le_bytes());
                }
            }
            return Ok(0.0);
        }
        self.sequence += ((self.rank - 1) * TIME_QUESTIONS) as u64;
        let mut best = (f64::INFINITY, 0.0);
        for _ in 0..TIME_QUESTIONS {
            self.sequence += 1;
            let asked = now();
            self.send_all(Op::Time, b"");
            let answer = self.collect(Op::Time)?.pop().and_then(|message| <[u8; 8]>::try_from(message.body).ok());
            let took = now() - asked;
            let Some(theirs) = answer.map(f64::from_le_bytes).filter(|theirs| theirs.is_finite()) else {
                return Err(TeamError::Protocol("rank 0 does not say what time it is".into()));
            };
            best = if took < best.0 { (took, theirs - asked - took / 2.0) } else { best };
        }
        self.sequence = end;
        // Within what the question took, clocks are the same: that of one host is.
        let (took, offset) = best;
        Ok(if offset.abs() <= took / 2.0 { 0.0 } else { offset })
    }

    /// Nothing more will come; waits for the others. Rank 0 is the last.
    pub(super) fn end(&mut self) -> Result<(), TeamError> {
        self.check()?;
        self.meet(Op::End)
    }
}
