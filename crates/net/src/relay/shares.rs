//! Places that many want: nobody takes so many of them that who comes next finds none.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use aqueduct_wire::Target;

/// Whether one who has `its` of the places may have another, where `taken` of `all` are taken.
/// Nobody gets more places than are free: one alone leaves half of all, two leave a third.
pub(crate) const fn has_room(its: usize, taken: usize, all: usize) -> bool {
    its < all.saturating_sub(taken)
}

/// How many places each has.
#[derive(Debug)]
pub(crate) struct Shares<K>(HashMap<K, usize>);

impl<K> Default for Shares<K> {
    fn default() -> Shares<K> {
        Shares(HashMap::new())
    }
}

impl<K: Eq + Hash> Shares<K> {
    pub(crate) fn of(&self, who: &K) -> usize {
        self.0.get(who).copied().unwrap_or_default()
    }

    pub(crate) fn enter(&mut self, who: K) {
        *self.0.entry(who).or_default() += 1;
    }

    pub(crate) fn leave(&mut self, who: &K) {
        if let Some(its) = self.0.get_mut(who) {
            *its -= 1;
            if *its == 0 {
                self.0.remove(who);
            }
        }
    }
}

/// Connections that have not said where they want to go.
#[derive(Debug, Default)]
pub(crate) struct Greeted {
    all: usize,
    clients: Shares<IpAddr>,
}

impl Greeted {
    /// Counts one, where there is room for it: of `all`, and of `most` of one client.
    pub(crate) fn enter(&mut self, client: IpAddr, (all, most): (usize, usize)) -> bool {
        let its = self.clients.of(&client);
        let enters = its < most && has_room(its, self.all, all);
        if enters {
            self.all += 1;
            self.clients.enter(client);
        }
        enters
    }

    /// One has said it, or has gone.
    pub(crate) fn leave(&mut self, client: IpAddr) {
        self.all = self.all.saturating_sub(1);
        self.clients.leave(&client);
    }
}

/// Why a connection may not wait for its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoWait {
    /// Too many wait, of all or of this client.
    Full,
    /// Too many wait for this target, which does not answer them.
    Silent,
}

/// Connections whose targets have not answered yet. A dead target answers none of them, for as long
/// as each has patience: it takes the places of no other.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    all: usize,
    clients: Shares<IpAddr>,
    targets: Shares<Target>,
    /// Of one client for one target, which leave half of its places to its other targets.
    pairs: Shares<(IpAddr, Target)>,
}

impl Waiting {
    /// Counts one, where there is room for it: of `all`, and of `most` of one client.
    pub(crate) fn enter(
        &mut self,
        (client, target): (IpAddr, &Target),
        (all, most): (usize, usize),
    ) -> Result<(), NoWait> {
        let (its, pair) = (self.clients.of(&client), (client, target.clone()));
        if self.all >= all || its >= most || !has_room(its, self.all, all) {
            return Err(NoWait::Full);
        }
        let of_pair = self.pairs.of(&pair);
        if !has_room(self.targets.of(target), self.all, all) || of_pair >= most.div_ceil(2) {
            return Err(NoWait::Silent);
        }
        self.all += 1;
        self.clients.enter(client);
        self.targets.enter(target.clone());
        self.pairs.enter(pair);
        Ok(())
    }

    /// One waits no more.
    pub(crate) fn leave(&mut self, client: IpAddr, target: &Target) {
        self.all = self.all.saturating_sub(1);
        self.clients.leave(&client);
        self.targets.leave(target);
        self.pairs.leave(&(client, target.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn client(number: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, number).into()
    }

    fn target(port: u16) -> Target {
        let network = aqueduct_wire::NetworkName::new("far").unwrap();
        Target::Address { network, address: (Ipv4Addr::new(10, 2, 0, 5), port).into() }
    }

    #[test]
    fn many_that_say_nothing_leave_room_for_who_comes() {
        let mut greeted = Greeted::default();
        let fill =
            |greeted: &mut Greeted, number| (0..1000).take_while(|_| greeted.enter(client(number), (64, 24))).count();
        let taken: Vec<usize> = (1..=9).map(|number| fill(&mut greeted, number)).collect();
        assert_eq!(taken[..3], [24, 20, 10], "its own limit, then what is free");
        assert!(taken.iter().take(6).all(|taken| *taken > 0), "{taken:?}");
        for (number, taken) in (1..).zip(taken) {
            (0..taken).for_each(|_| greeted.leave(client(number)));
        }
        assert_eq!((greeted.all, greeted.clients.0.len()), (0, 0));
    }

    #[test]
    fn a_dead_target_takes_the_places_of_no_other() {
        let mut waiting = Waiting::default();
        let limits = (64, 16);
        let fill = |waiting: &mut Waiting, number, port| {
            (0..1000).map_while(|_| waiting.enter((client(number), &target(port)), limits).ok()).count()
        };
        // One client waits for a dead one, and for others as well.
        assert_eq!(fill(&mut waiting, 1, 1), 8);
        assert_eq!(waiting.enter((client(1), &target(1)), limits), Err(NoWait::Silent));
        assert_eq!(fill(&mut waiting, 1, 2), 8);
        assert_eq!(waiting.enter((client(1), &target(3)), limits), Err(NoWait::Full), "it has its own");
        // All clients wait for one.
        let mut waiting = Waiting::default();
        let taken: usize = (0..100).map(|number| fill(&mut waiting, number, 1)).sum();
        assert_eq!(taken, 32, "half of all");
        for port in 2..5 {
            let before = waiting.all;
            let taken: usize = (0..100).map(|number| fill(&mut waiting, number, port)).sum();
            assert!(
                taken > 0
                    && waiting.all == before + taken
                    && waiting.enter((client(200), &target(port + 1)), limits).is_ok()
            );
            waiting.leave(client(200), &target(port + 1));
        }
    }

    #[test]
    fn who_waits_no_more_leaves_nothing() {
        let mut waiting = Waiting::default();
        waiting.enter((client(1), &target(1)), (4, 4)).unwrap();
        waiting.leave(client(1), &target(1));
        let left = (waiting.clients.0.len(), waiting.targets.0.len(), waiting.pairs.0.len());
        assert_eq!((waiting.all, left), (0, (0, 0, 0)));
    }
}
