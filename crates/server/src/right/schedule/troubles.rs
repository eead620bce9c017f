//! What goes wrong in the schedules.

use std::time::Duration;

use super::{Bug, CLIENTS, Event, Node, PLACES, TROUBLED, World, names};

/// Between two troubles, at most.
const PAUSE_MAX: Duration = Duration::from_secs(3);

impl World {
    fn up_to(&mut self, seconds: u64) -> Duration {
        Duration::from_millis(50) + self.random.duration(Duration::from_secs(seconds))
    }

    pub(super) fn trouble(&mut self) {
        if self.now > TROUBLED {
            return;
        }
        let pause = self.random.duration(PAUSE_MAX);
        self.at(pause, Event::Trouble);
        let (index, place) = (self.random.below(CLIENTS), self.random.below(PLACES));
        // What it takes to find a mistake happens more often where it is made.
        let stands = match self.bug {
            Bug::CountsFromAnswer => Some(Duration::from_millis(3000)),
            Bug::NobodyWatches => Some(Duration::from_millis(5000)),
            _ => None,
        };
        if let Some(least) = stands.filter(|_| self.random.below(2) == 0) {
            let time = least + self.random.duration(Duration::from_secs(1));
            return self.stop(Node::Data(place), time);
        }
        let strands = self.bug == Bug::BreaksUnderRights && self.random.below(2) == 0;
        match self.random.below(21) {
            lot if lot == 20 || strands => self.strand(index, place),
            0..3 => {
                let time = self.up_to(14);
                self.stop(Node::Client(index), time);
            }
            3..5 => self.kill_client(index),
            5..7 => {
                let time = self.up_to(14);
                self.cut(Node::Names, Node::Client(index), time);
            }
            7..9 => {
                let time = self.up_to(8);
                self.cut(Node::Data(place), Node::Client(index), time);
            }
            9..12 => {
                let time = self.up_to(8);
                self.cut(Node::Names, Node::Data(place), time);
            }
            12..15 => {
                let time = self.up_to(7);
                self.stop(Node::Data(place), time);
            }
            15..17 => {
                self.kill_data(place);
                let away = self.up_to(3);
                self.at(away, Event::Names(names::Step::StartData(place)));
            }
            17 => {
                self.lose_host(place);
                self.check_after_loss();
                let away = self.up_to(8);
                self.at(away, Event::Names(names::Step::StartHost(place)));
            }
            _ => {
                self.kill_names();
                let away = self.up_to(2);
                self.at(away, Event::Names(names::Step::Start));
            }
        }
    }

    fn stop(&mut self, node: Node, time: Duration) {
        self.stopped_until.insert(node, self.now + time);
    }

    fn cut(&mut self, one: Node, other: Node, time: Duration) {
        self.cut_until.insert((one.min(other), one.max(other)), self.now + time);
    }

    /// A client loses its lease while a server of data stands still with what it sent there.
    fn strand(&mut self, index: usize, place: usize) {
        self.cut(Node::Names, Node::Client(index), Duration::from_secs(14));
        let after = Duration::from_secs(6) + self.random.duration(Duration::from_secs(2));
        self.at(after, Event::Names(names::Step::StopData(place)));
    }

    pub(super) fn stop_data(&mut self, place: usize) {
        let time = Duration::from_secs(2) + self.random.duration(Duration::from_millis(2500));
        self.stop(Node::Data(place), time);
    }

    /// What was synced, or returned, is not in the memory that is gone.
    fn check_after_loss(&mut self) {
        self.check("after a host was lost");
    }
}
