//! Clients in the schedules that write beside others: one write at a time, which is stable when it
//! is answered, by the rules of the client's straight writes.

use aqueduct_fs::ClientId;
use aqueduct_wire::{LeaseId, Ordinal};

use super::{Bug, Event, Node, PLACES, World, Write, client, data, names};

/// What a client has that writes an inode beside others.
pub(super) struct Sharing {
    pub(super) inode: usize,
    pub(super) lease: LeaseId,
    pub(super) tenure: u64,
    pub(super) returns: bool,
    pub(super) tokens: [Option<Vec<u8>>; PLACES],
    pub(super) doing: Doing,
}

/// What becomes of the latest write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Nothing,
    /// A right is asked for.
    Asks(usize),
    /// A server of data has been sent it; the number of the request.
    Flies(usize, u64),
    /// Nobody knows: the server of the names is asked to end all rights there.
    Unknown(usize),
    /// It goes to that server.
    Again(usize, u64),
}

impl Sharing {
    fn is_idle(&self) -> bool {
        self.doing == Doing::Nothing
    }

    /// A write of which nobody knows what has become.
    pub(super) fn unknown(&self) -> Option<usize> {
        match self.doing {
            Doing::Nothing | Doing::Asks(_) => None,
            Doing::Flies(write, _) | Doing::Unknown(write) | Doing::Again(write, _) => Some(write),
        }
    }
}

impl World {
    /// A program of a client writes beside others.
    pub(super) fn act_beside(&mut self, index: usize, place: usize, lot: usize) {
        let Some(sharing) = &mut self.clients[index].sharing else { return };
        if !sharing.is_idle() || sharing.returns {
            return;
        }
        if lot == 9 {
            sharing.returns = true;
            return self.return_shared(index);
        }
        let (inode, tenure, is_shared) = (sharing.inode, sharing.tenure, true);
        let write = self.writes.len();
        let began = self.now;
        self.writes.push(Write { inode, place, tenure, is_shared, began });
        self.send_beside(index, write);
    }

    fn sharing(&mut self, index: usize) -> &mut Sharing {
        self.clients[index].sharing.as_mut().expect("it writes beside others")
    }

    fn tell(&mut self, index: usize, message: names::Message) {
        self.send(Event::ToNames(Node::Client(index), message));
    }

    fn send_beside(&mut self, index: usize, write: usize) {
        let (session, Write { inode, place, .. }) = (self.clients[index].session, self.writes[write]);
        let sharing = self.sharing(index);
        let Some(token) = sharing.tokens[place].clone() else {
            sharing.doing = Doing::Asks(write);
            return self.tell(index, names::Message::Right { session, inode, place });
        };
        self.count += 1;
        let flight = self.count;
        self.sharing(index).doing = Doing::Flies(write, flight);
        let patience = std::time::Duration::from_millis(300) + self.random.duration(client::GIVES_UP);
        self.at(patience, Event::Client(index, client::Step::GiveUp { place, flight }));
        // Of each client one is not settled.
        let number = Ordinal { number: write as u64, settled: write as u64 };
        let session = if self.bug == Bug::OverwritesUnsettled { ClientId(0) } else { session };
        let ordinal = Some((session, number));
        self.send(Event::ToData(place, data::Message::Write { client: index, flight, write, token, ordinal }));
    }

    /// A right, or none: what was to be written goes as any other change, when the lease has gone.
    pub(super) fn right_beside(&mut self, index: usize, place: usize, token: Option<Vec<u8>>) {
        let Some(sharing) = &mut self.clients[index].sharing else { return };
        let Doing::Asks(write) = sharing.doing else { return };
        if self.writes[write].place != place {
            return;
        }
        sharing.tokens[place] = token;
        match sharing.tokens[place] {
            Some(_) => self.send_beside(index, write),
            None => self.goes_otherwise(index, write),
        }
    }

    /// Nothing was done of a write, and nothing will be.
    fn goes_otherwise(&mut self, index: usize, write: usize) {
        let sharing = self.sharing(index);
        (sharing.doing, sharing.returns) = (Doing::Nothing, true);
        self.return_shared(index);
        self.change(index, write);
    }

    /// Changes what a write is about, as any other change is made.
    fn change(&mut self, index: usize, write: usize) {
        self.clients[index].asks = true; // for nothing else meanwhile
        let session = self.clients[index].session;
        self.tell(index, names::Message::Change { session, write });
    }

    pub(super) fn return_shared(&mut self, index: usize) {
        let session = self.clients[index].session;
        let bug = self.bug;
        let may = |sharing: &mut Sharing| {
            sharing.returns && (sharing.is_idle() || bug == Bug::ReturnsUnknown && sharing.unknown().is_some())
        };
        let Some(Sharing { lease, inode, .. }) = self.clients[index].sharing.take_if(may) else { return };
        self.tell(index, names::Message::Return { session, lease, inode, writes: Vec::new() });
    }

    /// A server of data has answered, or is not waited for any longer. Whether it was about that.
    pub(super) fn landed_beside(&mut self, index: usize, flight: u64, answer: Option<bool>) -> bool {
        let session = self.clients[index].session;
        let Some(sharing) = &mut self.clients[index].sharing else { return false };
        let Doing::Flies(write, sent) = sharing.doing else { return false };
        if sent != flight {
            return false;
        }
        let place = self.writes[write].place;
        match answer {
            Some(true) => {
                self.sharing(index).doing = Doing::Nothing;
                self.answered_beside(write);
            }
            Some(false) => {
                sharing.tokens[place] = None;
                self.goes_otherwise(index, write);
            }
            None if self.bug == Bug::RepeatsBeside => self.again_beside(index, write),
            None => {
                sharing.doing = Doing::Unknown(write);
                self.tell(index, names::Message::Revoke { session, place });
            }
        }
        self.return_shared(index);
        true
    }

    fn answered_beside(&mut self, write: usize) {
        let Write { inode, place, .. } = self.writes[write];
        self.tally.beside += 1;
        let is_there = self.blocks[inode][place].iter().any(|applied| applied.write == write);
        assert!(is_there, "{write} was answered and not written at {:?}", self.now);
    }

    fn again_beside(&mut self, index: usize, write: usize) {
        let session = self.clients[index].session;
        self.count += 1;
        let flight = self.count;
        let place = self.writes[write].place;
        let sharing = self.sharing(index);
        (sharing.doing, sharing.tokens[place]) = (Doing::Again(write, flight), None);
        self.tally.again += 1;
        self.tell(index, names::Message::Write { session, write, flight });
    }

    /// Nothing is executed any more at a place.
    pub(super) fn over_beside(&mut self, index: usize, place: usize) {
        let Some(sharing) = &self.clients[index].sharing else { return };
        let Doing::Unknown(write) = sharing.doing else { return };
        if self.writes[write].place == place {
            self.again_beside(index, write);
        }
    }

    /// The server of the names has written something again, or has refused to: the program gets
    /// an error then.
    pub(super) fn written_again(&mut self, index: usize, flight: u64, is_written: bool) {
        let Some(sharing) = &mut self.clients[index].sharing else { return };
        let Doing::Again(write, sent) = sharing.doing else { return };
        if sent != flight {
            return;
        }
        sharing.doing = Doing::Nothing;
        match is_written {
            true => self.answered_beside(write),
            false => {
                self.tally.refused += 1;
                self.sharing(index).returns = true;
                if self.bug == Bug::ChangesAfterRefusal {
                    self.change(index, write);
                }
            }
        }
        self.return_shared(index);
    }
}
