//! The server of the names in the schedules.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use aqueduct_fs::{Aspects, ClientId};
use aqueduct_wire::{Beat, LeaseId, Ordinal};

use super::super::granter::{Drawn, Granter, GranterConfig, Places};
use super::super::unsettled::Piece;
use super::{Bug, Event, FLUSH, Node, STEP_MAX, World, Write, client, data, handle, key};
use crate::lease::hold::Hold;
use crate::lease::{Action, Leases, Limits, Looked, Now, Stamps, Verdict, Waiter, Wanted};

/// How often is looked whether rights have ended.
const LOOK: Duration = Duration::from_millis(250);

/// When somebody tries again who cannot go on.
const AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) enum Message {
    Ping {
        session: ClientId,
        sent: Now,
    },
    /// To have an inode alone.
    Take {
        session: ClientId,
        inode: usize,
        /// Or to write it beside others.
        is_shared: bool,
    },
    Right {
        session: ClientId,
        inode: usize,
        place: usize,
    },
    Write {
        session: ClientId,
        write: usize,
        flight: u64,
    },
    /// Under no lease.
    Change {
        session: ClientId,
        write: usize,
    },
    Revoke {
        session: ClientId,
        place: usize,
    },
    Return {
        session: ClientId,
        lease: LeaseId,
        inode: usize,
        writes: Vec<usize>,
    },
    /// What was held back before another start of the server.
    Recover {
        session: ClientId,
        writes: Vec<usize>,
    },
    Beat {
        start: u64,
        number: u64,
        beat: Arc<Beat>,
        asked: Now,
    },
    Ended {
        place: usize,
        start: u64,
    },
}

#[derive(Debug)]
pub(super) enum Step {
    Look,
    Tick,
    Take(Waiter),
    /// The lease is looked at after a right was drawn.
    Right {
        session: ClientId,
        inode: usize,
        place: usize,
        drawn: Option<Drawn>,
    },
    Effect {
        start: u64,
        session: ClientId,
        write: usize,
        flight: u64,
        aspects: Aspects,
    },
    Written {
        start: u64,
        session: ClientId,
        write: usize,
        flight: u64,
        aspects: Aspects,
    },
    Lapsed(ClientId),
    Start,
    StartData(usize),
    StartHost(usize),
    StopData(usize),
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Alone,
    Beside,
    Change(usize),
}

/// What somebody changes under no lease.
const PLAIN: Aspects = Aspects::DATA.union(Aspects::ATTRIBUTES);

/// What is repeated beside others.
const TOGETHER: Aspects = Aspects::DATA.union(Aspects::CONCURRENT);

/// Something that waits until rights are over.
enum Ending {
    Inode(usize, u64),
    Asked(ClientId, usize, u64),
    Start(u64),
}

/// A process.
pub(super) struct Names {
    leases: Leases,
    stamps: Arc<Stamps>,
    granter: Granter,
    holds: [Hold; 2],
    takes: HashMap<Waiter, (ClientId, usize, Wish)>,
    endings: Vec<Ending>,
    /// Sessions of before that may come.
    unsettled: BTreeSet<ClientId>,
}

impl World {
    /// Another process, which knows the sessions that there were, and who was given rights.
    pub(super) fn start_names(&mut self) {
        if self.names.is_some() {
            return;
        }
        self.names_start += 1;
        let limits = Limits { holdoff_first: Duration::ZERO, ..Limits::default() };
        let silence = limits.silence_max();
        let forgets = self.bug == Bug::ForgetsRights;
        let folder = self.folder.path().join(if forgets { self.names_start.to_string() } else { "notes".to_owned() });
        std::fs::create_dir_all(&folder).unwrap();
        let servers = (0..super::PLACES).map(|place| (place as u16, place.to_string())).collect();
        let places = Places { map: 1, servers };
        let (key, fence, names) = (self.key.clone(), self.fence, self.names_start);
        let granter = Granter::new(GranterConfig { key, places, folder, fence, names, concurrent: true }, self.now);
        let (holds, unsettled) = (<[Hold; 2]>::default(), std::mem::take(&mut self.sessions));
        let lapsed = self.lapses.values().max().copied().unwrap_or_default();
        for hold in &holds {
            let missing = unsettled.keys().map(|session| session.0).collect();
            hold.begin(missing, self.now + silence, lapsed, self.now);
            hold.bar();
        }
        let endings = vec![Ending::Start(granter.revoke(None))];
        let stamps = Arc::<Stamps>::default();
        let leases = Leases::new(limits, 0, stamps.clone());
        let broken = std::mem::take(&mut self.known.1);
        self.known = super::Known(Default::default(), broken);
        for (session, index) in &unsettled {
            self.send(Event::ToClient(*index, client::Message::Started { session: *session }));
        }
        let unsettled = unsettled.into_keys().collect();
        self.names = Some(Names { leases, stamps, granter, holds, takes: HashMap::new(), endings, unsettled });
        self.at(LOOK, Event::Names(Step::Look));
    }

    pub(super) fn kill_names(&mut self) {
        let Some(names) = self.names.take() else { return };
        // Those of before that have not come are awaited by the next one, too.
        for session in names.unsettled {
            if let Some(index) = self.clients.iter().position(|client| client.session == session) {
                self.sessions.insert(session, index);
            }
        }
        self.events.retain(|_, event| {
            !matches!(event, Event::Names(Step::Look | Step::Tick | Step::Take(_) | Step::Right { .. }))
        });
    }

    pub(super) fn begin_session(&mut self, index: usize) {
        self.count += 1;
        let session = ClientId(self.count);
        self.clients[index].session = session;
        self.sessions.insert(session, index);
        self.known.0.borrow_mut().insert(session, (self.now, 0));
    }

    /// A client has gone without a word.
    pub(super) fn end_session(&mut self, session: ClientId) {
        self.sessions.remove(&session);
        if let Some(names) = &mut self.names {
            names.unsettled.remove(&session);
        }
        let renewed = crate::lease::Clients::renewed(&self.known, session).unwrap_or(self.now);
        let until = (renewed + Limits::default().silence_max()).max(self.now + 2 * STEP_MAX);
        self.lapses.insert(session, until);
        self.at(until - self.now, Event::Names(Step::Lapsed(session)));
    }

    pub(super) fn at_names(&mut self, from: Node, message: Message) {
        if self.names.is_none() {
            // Connections break; who beats asks anew, and who tells of an end tells again.
            if let Message::Ended { .. } = message {
                self.at(Duration::from_millis(500), Event::ToNames(from, message));
            }
            return;
        }
        let session = match &message {
            Message::Recover { session, writes } => return self.recover(*session, writes.clone()),
            Message::Beat { start, number, beat, asked } => return self.beat(from, (*start, *number), beat, *asked),
            Message::Ended { place, start } => {
                let beat = Beat { place: *place as u16, data: *start, has_ended: true, ..Beat::default() };
                self.names.as_ref().into_iter().for_each(|names| _ = names.granter.beat(&beat, self.now));
                return self.look_at_endings();
            }
            Message::Ping { session, .. }
            | Message::Take { session, .. }
            | Message::Right { session, .. }
            | Message::Write { session, .. }
            | Message::Change { session, .. }
            | Message::Revoke { session, .. }
            | Message::Return { session, .. } => *session,
        };
        let Some(&index) = self.sessions.get(&session) else { return };
        let is_renewed = match self.known.0.borrow_mut().get_mut(&session) {
            Some((renewed, suspended)) if *suspended == 0 => {
                *renewed = self.now;
                true
            }
            _ => false,
        };
        self.answer(index, (session, is_renewed), message);
    }

    fn answer(&mut self, index: usize, (session, is_renewed): (ClientId, bool), message: Message) {
        let now = self.now;
        let Some(names) = &mut self.names else { return };
        match message {
            Message::Ping { sent, .. } if is_renewed => {
                self.send(Event::ToClient(index, client::Message::Renewed { session, sent }));
            }
            Message::Take { inode, is_shared, .. } => {
                let wish = if is_shared { Wish::Beside } else { Wish::Alone };
                self.wait(session, inode, wish);
            }
            Message::Change { write, .. } => self.wait(session, self.writes[write].inode, Wish::Change(write)),
            Message::Right { inode, place, .. } => {
                let drawn = names.granter.draw(place as u16, now).unwrap();
                self.step(Event::Names(Step::Right { session, inode, place, drawn }));
            }
            Message::Write { write, flight, .. } => self.begin_write(session, write, flight),
            Message::Revoke { place, .. } => {
                let floor = names.granter.revoke(Some(place as u16));
                names.endings.push(Ending::Asked(session, place, floor));
                self.look_at_endings();
            }
            Message::Return { lease, inode, writes, .. } => {
                let mut actions = Vec::new();
                names.leases.returned(session, lease, &self.known, &mut actions);
                if self.tenures[inode].1 == session {
                    // From now on others may look.
                    self.make_firm(&writes);
                }
                self.perform(inode, actions);
            }
            _ => {}
        }
    }

    fn wait(&mut self, session: ClientId, inode: usize, wish: Wish) {
        self.count += 1;
        let waiter = Waiter(self.count);
        self.names.iter_mut().for_each(|names| _ = names.takes.insert(waiter, (session, inode, wish)));
        self.step(Event::Names(Step::Take(waiter)));
    }

    fn refuse_right(&mut self, index: usize, (session, place): (ClientId, usize)) {
        self.send(Event::ToClient(index, client::Message::Right { session, place, token: None }));
    }

    fn give_right(&mut self, (session, inode, place): (ClientId, usize, usize), drawn: Option<Drawn>) {
        let (Some(names), Some(&index)) = (&mut self.names, self.sessions.get(&session)) else { return };
        let given = drawn.and_then(|drawn| names.leases.give_right(session, key(inode), &drawn));
        let Some(right) = given else { return self.refuse_right(index, (session, place)) };
        let token = Some(right.token(&self.key, &handle(inode)));
        self.send(Event::ToClient(index, client::Message::Right { session, place, token }));
    }

    /// Whether those of before the start are still waited for. Who is not back in time has lost
    /// what he held back.
    fn is_held(&mut self) -> bool {
        let (now, mut lost) = (self.now, BTreeSet::new());
        let Some(names) = &self.names else { return true };
        for hold in &names.holds {
            hold.look(now, |missing| lost.extend(missing.iter().copied()));
        }
        let is_on = names.holds.iter().any(Hold::is_on);
        self.known.1.borrow_mut().extend(lost.iter().map(|session| ClientId(*session)));
        for inode in 0..super::INODES {
            if lost.contains(&self.tenures[inode].1.0) {
                self.excuse(inode, self.tenures[inode].1);
            }
        }
        is_on
    }

    fn take(&mut self, waiter: Waiter) {
        if self.is_held() {
            return self.at(AGAIN, Event::Names(Step::Take(waiter)));
        }
        let now = self.now;
        let Some(names) = &mut self.names else { return };
        let Some(&(session, inode, wish)) = names.takes.get(&waiter) else { return };
        if !self.sessions.contains_key(&session) {
            names.takes.remove(&waiter);
            let mut actions = Vec::new();
            names.leases.give_up(key(inode), waiter, now, &mut actions);
            return self.perform(inode, actions);
        }
        let stamp = names.stamps.take();
        let aspects = match wish {
            Wish::Alone => Aspects::WRITES,
            Wish::Beside => Aspects::CONCURRENT,
            Wish::Change(_) => PLAIN,
        };
        let wanted = Wanted { inode: key(inode), aspects, by: session, waiter };
        let mut actions = Vec::new();
        let verdict = match wish {
            Wish::Alone => names.leases.look(&wanted, now, &mut actions),
            _ => names.leases.begin(&wanted, now, &mut actions),
        };
        self.perform(inode, actions);
        let Some(names) = &mut self.names else { return };
        if verdict != Verdict::Go {
            return self.at(Duration::ZERO, Event::Names(Step::Tick));
        }
        names.takes.remove(&waiter);
        match wish {
            Wish::Alone => self.take_alone(session, inode, stamp),
            Wish::Beside => self.take_beside(session, inode),
            Wish::Change(write) => {
                self.closed[inode] = self.tenures[inode].0;
                self.effect((session, write, 0), PLAIN);
            }
        }
    }

    /// What a write has become of which nothing was done before, or its repeat by mistake.
    fn changed(&mut self, write: usize) -> usize {
        let Write { inode, place, .. } = self.writes[write];
        if self.blocks[inode][place].iter().any(|applied| applied.write == write) {
            self.check_repeat(write);
        }
        self.begin_tenure(inode, ClientId(0));
        let (tenure, write, began) = (self.tenures[inode].0, self.writes.len(), self.now);
        self.writes.push(Write { inode, place, tenure, is_shared: false, began });
        write
    }

    /// Nobody of before may change the inode any more.
    fn begin_tenure(&mut self, inode: usize, session: ClientId) {
        self.closed[inode] = self.tenures[inode].0;
        self.tenures[inode] = (self.tenures[inode].0 + 1, session);
    }

    fn take_alone(&mut self, session: ClientId, inode: usize, stamp: u64) {
        let now = self.now;
        let Some(names) = &mut self.names else { return };
        let mut actions = Vec::new();
        let looked = Looked { stamp, own: Aspects::empty() };
        let is_shared = names.leases.is_shared(key(inode));
        let granted = names.leases.grant(session, (key(inode), FLUSH), looked, now, &mut actions);
        let lease = granted.filter(|(_, aspects)| aspects.contains(Aspects::WRITES)).map(|(lease, _)| lease);
        // What it is shown, nobody changes any more who had the inode before.
        if !is_shared {
            self.closed[inode] = self.tenures[inode].0;
        }
        self.check("what is read");
        self.tally.answered = now;
        if lease.is_some() {
            self.begin_tenure(inode, session);
        }
        self.perform(inode, actions);
        self.taken((session, inode), lease, false);
    }

    fn take_beside(&mut self, session: ClientId, inode: usize) {
        let now = self.now;
        let Some(names) = &mut self.names else { return };
        let mut actions = Vec::new();
        let was_shared = names.leases.is_shared(key(inode));
        let lease = names.leases.grant_concurrent(session, key(inode), now, &mut actions).map(|(lease, _)| lease);
        names.leases.end(key(inode), Aspects::CONCURRENT, now, &mut actions);
        self.tally.answered = now;
        if lease.is_some() && !was_shared {
            self.begin_tenure(inode, ClientId(0));
        }
        self.perform(inode, actions);
        self.taken((session, inode), lease, true);
    }

    fn taken(&mut self, (session, inode): (ClientId, usize), lease: Option<LeaseId>, is_shared: bool) {
        let Some(&index) = self.sessions.get(&session) else { return };
        let tenure = self.tenures[inode].0;
        self.send(Event::ToClient(index, client::Message::Taken { session, inode, lease, tenure, is_shared }));
    }

    fn effect(&mut self, (session, write, flight): (ClientId, usize, u64), aspects: Aspects) {
        let start = self.names_start;
        self.step(Event::Names(Step::Effect { start, session, write, flight, aspects }));
    }

    /// Whether the server of the names repeats what was written beside others.
    fn may_repeat(&mut self, session: ClientId, write: usize, tenure: u64) -> bool {
        let Write { inode, place, is_shared, .. } = self.writes[write];
        let place = place as u64;
        let (number, handle) = (Ordinal::default(), handle(inode));
        let piece = Piece { session: session.0, handle: &handle, range: place..place + 1, number };
        let Some(names) = &mut self.names else { return false };
        !is_shared || names.granter.may_repeat(tenure, &piece).unwrap() || self.bug == Bug::RepeatsUnordered
    }

    fn begin_write(&mut self, session: ClientId, write: usize, flight: u64) {
        let (now, inode) = (self.now, self.writes[write].inode);
        self.count += 1;
        let aspects = if self.writes[write].is_shared { TOGETHER } else { FLUSH };
        let wanted = Wanted { inode: key(inode), aspects, by: session, waiter: Waiter(self.count) };
        let mut actions = Vec::new();
        let Some(names) = &mut self.names else { return };
        let verdict = names.leases.begin(&wanted, now, &mut actions);
        let tenure = names.leases.tenure(key(inode));
        self.perform(inode, actions);
        match verdict {
            Verdict::Go if !self.may_repeat(session, write, tenure) => {
                let mut actions = Vec::new();
                self.names.iter_mut().for_each(|names| names.leases.end(key(inode), aspects, now, &mut actions));
                self.perform(inode, actions);
                self.written(session, flight, false);
            }
            Verdict::Go => self.effect((session, write, flight), aspects),
            Verdict::Wait if aspects == TOGETHER => {
                let Some(&index) = self.sessions.get(&session) else { return };
                self.at(AGAIN, Event::ToNames(Node::Client(index), Message::Write { session, write, flight }));
            }
            Verdict::Wait => panic!("what was held back waits for others at {now:?}"),
            Verdict::Late => self.written(session, flight, false),
        }
    }

    fn written(&mut self, session: ClientId, flight: u64, is_written: bool) {
        let Some(&index) = self.sessions.get(&session) else { return };
        self.send(Event::ToClient(index, client::Message::WrittenByNames { session, flight, is_written }));
    }

    fn recover(&mut self, session: ClientId, writes: Vec<usize>) {
        let now = self.now;
        let Some(index) = self.clients.iter().position(|client| client.session == session) else { return };
        let again = Message::Recover { session, writes: writes.clone() };
        let Some(names) = &self.names else { return };
        if names.holds[1].is_barred() {
            return self.at(AGAIN, Event::ToNames(Node::Client(index), again));
        }
        self.is_held();
        let Some(names) = &mut self.names else { return };
        if !names.unsettled.remove(&session) {
            return;
        }
        let is_broken = self.known.1.borrow_mut().remove(&session);
        let may = !is_broken && (writes.is_empty() || names.holds[1].flush(session.0, now));
        if may && !writes.is_empty() {
            let writes: Vec<usize> =
                writes.iter().copied().filter(|write| self.may_repeat(session, *write, 0)).collect();
            self.tally.again += writes.len();
            writes.iter().for_each(|write| self.apply(*write, None));
            self.make_firm(&writes);
            self.names.as_ref().into_iter().for_each(|names| names.holds[1].flushed());
        }
        for write in writes.into_iter().filter(|_| !may) {
            self.excused.insert((self.writes[write].inode, self.writes[write].tenure));
        }
        for hold in self.names.iter().flat_map(|names| &names.holds) {
            hold.settle(session.0, now, |_| {});
        }
        self.begin_session(index);
        let session = self.clients[index].session;
        self.send(Event::ToClient(index, client::Message::Recovered { session }));
    }

    fn beat(&mut self, from: Node, (start, number): (u64, u64), beat: &Beat, asked: Now) {
        let (Some(names), Node::Data(place)) = (&self.names, from) else { return };
        let reply = names.granter.beat(beat, self.now);
        if let Some(reply) = reply {
            self.send(Event::ToData(place, data::Message::Beaten { start, number, reply, asked }));
        }
        self.look_at_endings();
    }

    fn look_at_endings(&mut self) {
        let now = self.now;
        let Some(names) = &mut self.names else { return };
        let mut task = Context::from_waker(Waker::noop());
        let mut over = Vec::new();
        let granter = &names.granter;
        names.endings.retain(|ending| {
            let (place, floor) = match ending {
                Ending::Inode(_, floor) | Ending::Start(floor) => (None, *floor),
                Ending::Asked(_, place, floor) => (Some(*place as u16), *floor),
            };
            let is_over = granter.poll_over(place, floor, now, &mut task).is_ready();
            if is_over {
                over.push(match ending {
                    Ending::Inode(inode, floor) => Ending::Inode(*inode, *floor),
                    Ending::Asked(session, place, floor) => Ending::Asked(*session, *place, *floor),
                    Ending::Start(floor) => Ending::Start(*floor),
                });
            }
            !is_over
        });
        over.into_iter().for_each(|ending| self.ended(ending));
    }

    fn ended(&mut self, ending: Ending) {
        let now = self.now;
        let Some(names) = &mut self.names else { return };
        match ending {
            Ending::Inode(inode, _) => {
                let mut actions = Vec::new();
                names.leases.revoked(key(inode), now, &mut actions);
                self.perform(inode, actions);
            }
            Ending::Asked(session, place, _) => {
                let Some(&index) = self.sessions.get(&session) else { return };
                self.send(Event::ToClient(index, client::Message::Over { session, place }));
            }
            Ending::Start(_) => names.holds.iter().for_each(|hold| _ = hold.admit(now)),
        }
    }

    fn perform(&mut self, inode: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Recall { client, lease } => {
                    let Some(&index) = self.sessions.get(&client) else { continue };
                    self.send(Event::ToClient(index, client::Message::Recall { session: client, lease }));
                }
                Action::Wake { waiter } => self.step(Event::Names(Step::Take(waiter))),
                Action::Broken { client, .. } => self.excuse(inode, client),
                Action::Revoke { inode: of } => {
                    let inode = (0..super::INODES).find(|inode| key(*inode) == of).expect("an inode");
                    let Some(names) = &mut self.names else { return };
                    let floor = names.granter.revoke(None);
                    if self.bug == Bug::BreaksUnderRights {
                        self.ended(Ending::Inode(inode, floor));
                    } else {
                        names.endings.push(Ending::Inode(inode, floor));
                        self.look_at_endings();
                    }
                }
            }
        }
    }

    pub(super) fn step_of_names(&mut self, step: Step) {
        let (now, start) = (self.now, self.names_start);
        match step {
            Step::Start => self.start_names(),
            Step::StartData(place) => self.start_data(place),
            Step::StartHost(place) => self.start_host(place),
            Step::StopData(place) => self.stop_data(place),
            Step::Take(waiter) => self.take(waiter),
            Step::Right { session, inode, place, drawn } => self.give_right((session, inode, place), drawn),
            Step::Look => {
                self.look_at_endings();
                self.at(LOOK, Event::Names(Step::Look));
            }
            Step::Tick => {
                let Some(names) = &mut self.names else { return };
                let mut actions = Vec::new();
                let next = names.leases.tick((now, &self.known), &mut actions);
                self.perform(0, actions);
                if let Some(next) = next {
                    self.at(next.saturating_sub(now).max(Duration::from_millis(20)), Event::Names(Step::Tick));
                }
            }
            Step::Lapsed(session) => {
                self.lapses.remove(&session);
                let Some(names) = &mut self.names else { return };
                let mut actions = Vec::new();
                names.leases.depart(session, &self.known, &mut actions);
                self.known.0.borrow_mut().remove(&session);
                self.perform(0, actions);
            }
            // What a process does that is killed meanwhile may be done.
            Step::Effect { start: of, session, mut write, flight, aspects } => {
                if aspects == PLAIN {
                    write = self.changed(write);
                }
                self.apply(write, None);
                if of == start && self.names.is_some() {
                    self.step(Event::Names(Step::Written { start, session, write, flight, aspects }));
                }
            }
            Step::Written { start: of, session, write, flight, aspects } if of == start => {
                let inode = self.writes[write].inode;
                let Some(names) = &mut self.names else { return };
                let mut actions = Vec::new();
                names.leases.end(key(inode), aspects, now, &mut actions);
                self.perform(inode, actions);
                match aspects == PLAIN {
                    true => self.taken((session, inode), None, false),
                    false => self.written(session, flight, true),
                }
            }
            Step::Written { .. } => {}
        }
    }
}
