//! Clients in the schedules: one inode at a time, and a lane for each server of data, by the rules
//! of the client's lanes.

use std::collections::VecDeque;
use std::time::Duration;

use aqueduct_fs::ClientId;
use aqueduct_wire::LeaseId;

use super::shared::{Doing, Sharing};
use super::{Bug, Event, INODES, Node, PLACES, World, Write, data, names};
use crate::lease::{Limits, Now};

/// Between two things that a program does, at most.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// A server of data that has not answered for so long, at most, is given up.
pub(super) const GIVES_UP: Duration = Duration::from_secs(4);

const PING: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum Message {
    Renewed {
        session: ClientId,
        sent: Now,
    },
    Taken {
        session: ClientId,
        inode: usize,
        lease: Option<LeaseId>,
        tenure: u64,
        /// Beside others.
        is_shared: bool,
    },
    Recall {
        session: ClientId,
        lease: LeaseId,
    },
    Right {
        session: ClientId,
        place: usize,
        token: Option<Vec<u8>>,
    },
    WrittenByNames {
        session: ClientId,
        flight: u64,
        is_written: bool,
    },
    Over {
        session: ClientId,
        place: usize,
    },
    /// Another start of the server of the names.
    Started {
        session: ClientId,
    },
    Recovered {
        session: ClientId,
    },
    Written {
        place: usize,
        flight: u64,
        boot: u64,
    },
    Refused {
        place: usize,
        flight: u64,
    },
    Committed {
        place: usize,
        flight: u64,
        boot: u64,
    },
}

impl Message {
    pub(super) fn from(&self) -> Node {
        match self {
            Message::Written { place, .. } | Message::Refused { place, .. } | Message::Committed { place, .. } => {
                Node::Data(*place)
            }
            _ => Node::Names,
        }
    }
}

#[derive(Debug)]
pub(super) enum Step {
    Ping,
    /// What a server of data was sent has not been answered for long.
    GiveUp {
        place: usize,
        flight: u64,
    },
}

/// See the client's.
#[derive(Default)]
enum State {
    /// There is no lane: what is written goes to the server of the names.
    #[default]
    Absent,
    Opening,
    Open(Vec<u8>),
    Closing {
        is_dead: bool,
    },
}

/// What is under way of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    Write(usize),
    /// By the server of the names, and whether it was kept.
    Again(usize, bool),
    Commit,
}

#[derive(Default)]
struct Lane {
    state: State,
    queue: VecDeque<usize>,
    flying: Option<(u64, Flight)>,
    /// What was answered, by which boot of the host.
    kept: VecDeque<(usize, u64)>,
    /// All that is kept is written again by the server of the names.
    is_written_again: bool,
    /// The server of the names has been asked to end what the lane has, and has not answered.
    is_revoked: bool,
    /// No lane is opened for the next write.
    goes_by_names: bool,
}

impl Lane {
    fn is_idle(&self) -> bool {
        matches!(self.state, State::Absent) && self.queue.is_empty() && self.flying.is_none() && self.kept.is_empty()
    }
}

struct Holding {
    inode: usize,
    lease: LeaseId,
    tenure: u64,
    /// What programs were told is written.
    written: Vec<usize>,
    returns: bool,
    syncs: bool,
}

pub(super) struct Client {
    pub(super) session: ClientId,
    /// The server of the names has been asked for an inode.
    pub(super) asks: bool,
    is_recovering: bool,
    valid_until: Now,
    holding: Option<Holding>,
    /// In place of that.
    pub(super) sharing: Option<Sharing>,
    /// Recalled before the answer that grants it came.
    early: Vec<LeaseId>,
    lanes: [Lane; PLACES],
}

impl Default for Client {
    fn default() -> Client {
        Client {
            session: ClientId(0),
            asks: false,
            is_recovering: false,
            valid_until: Now::ZERO,
            holding: None,
            sharing: None,
            early: Vec::new(),
            lanes: Default::default(),
        }
    }
}

impl World {
    fn tell_names(&mut self, index: usize, message: names::Message) {
        self.send(Event::ToNames(Node::Client(index), message));
    }

    /// A program does something.
    pub(super) fn act(&mut self, index: usize) {
        let pause = self.random.duration(PAUSE_MAX);
        self.at(pause, Event::Act(index));
        let (lot, place, inode) = (self.random.below(10), self.random.below(PLACES), self.random.below(INODES));
        let client = &mut self.clients[index];
        let session = client.session;
        if client.is_recovering {
            return;
        }
        if client.sharing.is_some() {
            return self.act_beside(index, place, lot);
        }
        let Some(holding) = &mut client.holding else {
            if !std::mem::replace(&mut client.asks, true) {
                self.tell_names(index, names::Message::Take { session, inode, is_shared: lot < 5 });
            }
            return;
        };
        if holding.returns || holding.syncs || self.now >= client.valid_until {
            return;
        }
        match lot {
            0..7 => {
                let write = self.writes.len();
                let (inode, tenure, began) = (holding.inode, holding.tenure, self.now);
                self.writes.push(Write { inode, place, tenure, is_shared: false, began });
                holding.written.push(write);
                client.lanes[place].queue.push_back(write);
            }
            7 => holding.syncs = true,
            8 if lot == self.random.below(10) => holding.returns = true,
            _ => {}
        }
        self.advance(index);
    }

    /// Goes on with all lanes, and with what waits for them.
    fn advance(&mut self, index: usize) {
        (0..PLACES).for_each(|place| self.advance_lane(index, place));
        let bug = self.bug;
        let client = &mut self.clients[index];
        let (session, lanes) = (client.session, &mut client.lanes);
        let Some(holding) = &mut client.holding else { return };
        let is_stable = |lane: &Lane| lane.queue.is_empty() && lane.flying.is_none() && lane.kept.is_empty();
        if holding.syncs && lanes.iter().all(is_stable) {
            holding.syncs = false;
            let written = holding.written.clone();
            self.tally.synced += 1;
            self.make_firm(&written);
            self.check_stable(&written);
            return self.advance(index);
        }
        let gives_up =
            |lane: &Lane| bug == Bug::ReturnsGivenUp && matches!(lane.state, State::Closing { is_dead: true });
        if holding.returns && lanes.iter().all(|lane| lane.is_idle() || gives_up(lane)) {
            lanes.iter_mut().for_each(|lane| *lane = Lane::default());
            let Holding { lease, inode, written: writes, .. } = client.holding.take().expect("it holds it");
            self.tell_names(index, names::Message::Return { session, lease, inode, writes });
        }
    }

    /// What was synced is in no host's memory alone.
    fn check_stable(&self, written: &[usize]) {
        for write in written {
            let Write { inode, place, tenure, .. } = self.writes[*write];
            let mut stable = self.blocks[inode][place].iter().filter(|applied| applied.only_at.is_none());
            let is_there = stable.any(|applied| applied.write >= *write);
            assert!(is_there || self.excused.contains(&(inode, tenure)), "{write} is not stable at {:?}", self.now);
        }
    }

    fn fly(&mut self, index: usize, place: usize, flight: Flight) -> u64 {
        self.count += 1;
        let number = self.count;
        self.clients[index].lanes[place].flying = Some((number, flight));
        let patience = Duration::from_millis(300) + self.random.duration(GIVES_UP);
        self.at(patience, Event::Client(index, Step::GiveUp { place, flight: number }));
        number
    }

    fn advance_lane(&mut self, index: usize, place: usize) {
        let opens = self.random.below(6) != 0;
        let client = &mut self.clients[index];
        let (session, lane) = (client.session, &mut client.lanes[place]);
        let Some(holding) = &client.holding else { return };
        let (inode, must_close) = (holding.inode, holding.returns);
        let syncs = holding.syncs && lane.queue.is_empty() && !lane.kept.is_empty();
        match &lane.state {
            // Answered after it was given up, or not: the end of its right is waited for.
            _ if lane.is_revoked => {}
            State::Closing { is_dead: true } if lane.flying.is_some() => {
                lane.is_revoked = true;
                self.tell_names(index, names::Message::Revoke { session, place });
            }
            _ if lane.flying.is_some() => {}
            State::Absent => {
                let Some(&write) = lane.queue.front() else { return };
                if opens && !lane.goes_by_names {
                    lane.state = State::Opening;
                    return self.tell_names(index, names::Message::Right { session, inode, place });
                }
                lane.queue.pop_front();
                lane.goes_by_names = false;
                self.write_by_names(index, place, (write, false));
            }
            State::Opening => {}
            State::Open(token) => {
                let token = token.clone();
                if let Some(write) = lane.queue.pop_front() {
                    let flight = self.fly(index, place, Flight::Write(write));
                    let message = data::Message::Write { client: index, flight, write, token, ordinal: None };
                    return self.send(Event::ToData(place, message));
                }
                if syncs {
                    return self.commit(index, place, inode);
                }
                if must_close {
                    lane.state = State::Closing { is_dead: false };
                    self.advance_lane(index, place);
                }
            }
            State::Closing { .. } if lane.is_written_again => match lane.kept.front().copied() {
                Some((write, _)) => self.write_by_names(index, place, (write, true)),
                None => self.close(index, place),
            },
            State::Closing { .. } if lane.kept.is_empty() || self.bug == Bug::ReturnsUnstable => {
                lane.kept.clear();
                self.close(index, place);
            }
            State::Closing { .. } => self.commit(index, place, inode),
        }
    }

    fn close(&mut self, index: usize, place: usize) {
        let lane = &mut self.clients[index].lanes[place];
        (lane.state, lane.is_written_again, lane.is_revoked) = (State::Absent, false, false);
        self.advance_lane(index, place);
    }

    fn commit(&mut self, index: usize, place: usize, inode: usize) {
        let flight = self.fly(index, place, Flight::Commit);
        self.send(Event::ToData(place, data::Message::Commit { client: index, flight, inode }));
    }

    fn write_by_names(&mut self, index: usize, place: usize, (write, was_kept): (usize, bool)) {
        self.tally.again += usize::from(was_kept);
        let session = self.clients[index].session;
        self.count += 1;
        let flight = self.count;
        self.clients[index].lanes[place].flying = Some((flight, Flight::Again(write, was_kept)));
        self.tell_names(index, names::Message::Write { session, write, flight });
    }

    pub(super) fn step_of_client(&mut self, index: usize, step: Step) {
        match step {
            Step::Ping => {
                let (session, sent) = (self.clients[index].session, self.now);
                self.tell_names(index, names::Message::Ping { session, sent });
                self.at(PING, Event::Client(index, Step::Ping));
            }
            Step::GiveUp { flight, .. } if self.landed_beside(index, flight, None) => {}
            Step::GiveUp { place, flight } => {
                let bug = self.bug;
                let lane = &mut self.clients[index].lanes[place];
                let Some((_, flying)) = lane.flying.filter(|(number, _)| *number == flight) else { return };
                match flying {
                    // All was answered: what is kept is written again.
                    Flight::Commit => {
                        lane.flying = None;
                        lane.state = State::Closing { is_dead: false };
                        lane.is_written_again = true;
                    }
                    Flight::Write(_) => {
                        lane.state = State::Closing { is_dead: true };
                        if bug == Bug::RepeatsAtOnce {
                            lane.is_revoked = true;
                            self.over(index, place);
                        }
                    }
                    Flight::Again(..) => {}
                }
                self.advance(index);
            }
        }
    }

    /// Nothing is executed any more of what was given up.
    fn over(&mut self, index: usize, place: usize) {
        let bug = self.bug;
        let lane = &mut self.clients[index].lanes[place];
        if let Some((_, Flight::Write(write))) = lane.flying {
            lane.flying = None;
            if bug == Bug::RepeatsInDisorder {
                lane.kept.push_front((write, 0));
            } else {
                lane.queue.push_front(write);
            }
        }
        (lane.is_revoked, lane.is_written_again) = (false, true);
        lane.state = State::Closing { is_dead: false };
        self.advance(index);
    }

    /// The answer of a server of data to what is awaited.
    fn landed(&mut self, index: usize, place: usize, flight: u64) -> Option<Flight> {
        let flying = &mut self.clients[index].lanes[place].flying;
        flying.take_if(|(number, _)| *number == flight).map(|(_, flying)| flying)
    }

    pub(super) fn at_client(&mut self, index: usize, message: Message) {
        let own = self.clients[index].session;
        match message {
            Message::Written { flight, .. } if self.landed_beside(index, flight, Some(true)) => {}
            Message::Refused { flight, .. } if self.landed_beside(index, flight, Some(false)) => {}
            Message::Written { place, flight, boot } => {
                if let Some(Flight::Write(write)) = self.landed(index, place, flight) {
                    self.clients[index].lanes[place].kept.push_back((write, boot));
                }
            }
            Message::Refused { place, flight } => {
                if let Some(Flight::Write(write)) = self.landed(index, place, flight) {
                    let lane = &mut self.clients[index].lanes[place];
                    lane.queue.push_front(write);
                    lane.goes_by_names = true;
                    lane.state = State::Closing { is_dead: false };
                }
            }
            Message::Committed { place, flight, boot } => {
                if self.landed(index, place, flight).is_some() {
                    let trusts = self.bug == Bug::TrustsAnyVerifier;
                    let lane = &mut self.clients[index].lanes[place];
                    lane.kept.retain(|(_, of)| *of != boot && !trusts);
                    if !lane.kept.is_empty() {
                        lane.state = State::Closing { is_dead: false };
                        lane.is_written_again = true;
                    }
                }
            }
            Message::Started { session } if session == own => return self.tell_all(index),
            Message::Recovered { session } => {
                // Its name is a new one since the server of the names knows it again.
                if session == own {
                    (self.clients[index].is_recovering, self.clients[index].asks) = (false, false);
                }
            }
            Message::Renewed { session, .. }
            | Message::Taken { session, .. }
            | Message::Recall { session, .. }
            | Message::Right { session, .. }
            | Message::WrittenByNames { session, .. }
            | Message::Over { session, .. }
                if session == own && !self.clients[index].is_recovering =>
            {
                self.at_client_of_names(index, message);
            }
            _ => return,
        }
        self.advance(index);
    }

    fn at_client_of_names(&mut self, index: usize, message: Message) {
        if self.clients[index].sharing.is_some() {
            match message {
                Message::Right { place, token, .. } => return self.right_beside(index, place, token),
                Message::WrittenByNames { flight, is_written, .. } => {
                    return self.written_again(index, flight, is_written);
                }
                Message::Over { place, .. } => return self.over_beside(index, place),
                _ => {}
            }
        }
        let client = &mut self.clients[index];
        match message {
            Message::Renewed { sent, .. } => {
                client.valid_until = client.valid_until.max(sent + Limits::default().lease);
            }
            Message::Taken { inode, lease, tenure, is_shared, .. } => {
                client.asks = false;
                let Some(lease) = lease else { return };
                let returns = client.early.contains(&lease);
                client.early.clear();
                if is_shared {
                    let (tokens, doing) = (Default::default(), Doing::Nothing);
                    client.sharing = Some(Sharing { inode, lease, tenure, returns, tokens, doing });
                    return self.return_shared(index);
                }
                client.holding = Some(Holding { inode, lease, tenure, written: Vec::new(), returns, syncs: false });
            }
            Message::Recall { lease, .. } => match (&mut client.holding, &mut client.sharing) {
                (Some(holding), _) if lease.covers(holding.lease) => holding.returns = true,
                (_, Some(sharing)) if lease.covers(sharing.lease) => {
                    sharing.returns = true;
                    self.return_shared(index);
                }
                _ => client.early.push(lease),
            },
            Message::Right { place, token, .. } => {
                let lane = &mut client.lanes[place];
                if matches!(lane.state, State::Opening) {
                    lane.goes_by_names = token.is_none();
                    lane.state = token.map_or(State::Absent, State::Open);
                }
            }
            Message::WrittenByNames { flight, is_written, .. } => {
                let found =
                    (0..PLACES).find_map(|place| self.landed(index, place, flight).map(|landed| (place, landed)));
                let Some((place, Flight::Again(write, was_kept))) = found else { return };
                if was_kept {
                    self.clients[index].lanes[place].kept.pop_front();
                }
                match is_written {
                    true => self.make_firm(&[write]),
                    false => self.lost(index, write),
                }
            }
            Message::Over { place, .. } if self.clients[index].lanes[place].is_revoked => self.over(index, place),
            _ => {}
        }
    }

    /// The lease is gone: what was held back under it is lost, as programs are told.
    fn lost(&mut self, index: usize, write: usize) {
        let Write { inode, tenure, .. } = self.writes[write];
        assert!(self.excused.contains(&(inode, tenure)), "{write} is lost at {:?}", self.now);
        let client = &mut self.clients[index];
        // What is under way is awaited all the same: it must not land under the next lease.
        client.lanes.iter_mut().for_each(|lane| {
            lane.queue.clear();
            lane.kept.clear();
        });
        client.holding.iter_mut().for_each(|holding| {
            holding.written.clear();
            (holding.returns, holding.syncs) = (true, false);
        });
    }

    /// Another process serves the names: all that is not stable goes there.
    fn tell_all(&mut self, index: usize) {
        let client = &mut self.clients[index];
        let (session, mut writes) = (client.session, Vec::new());
        for lane in &mut client.lanes {
            let Lane { queue, flying, kept, .. } = std::mem::take(lane);
            writes.extend(kept.into_iter().map(|(write, _)| write));
            if let Some((_, Flight::Write(write) | Flight::Again(write, false))) = flying {
                writes.push(write);
            }
            writes.extend(queue);
        }
        writes.extend(client.sharing.take().and_then(|sharing| sharing.unknown()));
        (client.holding, client.asks, client.is_recovering) = (None, false, true);
        client.early.clear();
        self.tell_names(index, names::Message::Recover { session, writes });
    }

    /// It is killed, with all that it held back; another one takes its place.
    pub(super) fn kill_client(&mut self, index: usize) {
        let session = self.clients[index].session;
        for inode in 0..INODES {
            if self.tenures[inode].1 == session {
                self.excused.insert((inode, self.tenures[inode].0));
            }
        }
        self.end_session(session);
        self.clients[index] = Client::default();
        self.begin_session(index);
    }
}
