//! Which thread moves a flow: always the same, and of all threads the one with the fewest.

use std::sync::{Arc, Mutex};

use aqueduct_wire::Lane;
use aqueduct_worker::{Group, lock};

/// The groups that move flows.
pub(crate) struct Movers {
    groups: Vec<Arc<Group>>,
    /// How many flows each has, for control and for bulk data.
    flows: Mutex<Vec<[usize; 2]>>,
}

/// A flow's place at one of them, until it is dropped.
pub(crate) struct Place {
    movers: Arc<Movers>,
    at: usize,
    lane: usize,
}

impl Movers {
    pub(crate) fn new(groups: &[Arc<Group>]) -> Arc<Movers> {
        Arc::new(Movers { groups: groups.to_vec(), flows: Mutex::new(vec![[0; 2]; groups.len()]) })
    }

    /// Takes a place where the fewest flows of this kind are.
    pub(crate) fn place(self: &Arc<Movers>, lane: Lane) -> Place {
        let lane = usize::from(lane == Lane::Bulk);
        let mut flows = lock(&self.flows);
        let few = |its: &(usize, &[usize; 2])| (its.1[lane], its.1[1 - lane]);
        let at = flows.iter().enumerate().min_by_key(few).map_or(0, |(at, _)| at);
        if let Some(its) = flows.get_mut(at) {
            its[lane] += 1;
        }
        drop(flows);
        Place { movers: self.clone(), at, lane }
    }
}

impl Place {
    /// Whose place it is; `None`: nobody moves flows but who greets them.
    pub(crate) fn group(&self) -> Option<&Arc<Group>> {
        self.movers.groups.get(self.at)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(its) = lock(&self.movers.flows).get_mut(self.at) {
            its[self.lane] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aqueduct_worker::Settings;

    use super::*;

    #[test]
    fn flows_of_each_kind_are_spread_over_all_threads() {
        let settings = Settings { name: "m".into(), threads_min: 0, threads_max: 0, spin_max: Duration::ZERO };
        let groups: Vec<_> = (0..3).map(|_| Group::new(settings.clone()).unwrap()).collect();
        let movers = Movers::new(&groups);
        let mut places: Vec<Place> =
            [Lane::Bulk, Lane::Control].into_iter().cycle().take(12).map(|lane| movers.place(lane)).collect();
        assert_eq!(*lock(&movers.flows), [[2, 2]; 3]);
        let left = places.swap_remove(0);
        let group = left.group().unwrap().clone();
        drop(left);
        let again = movers.place(Lane::Bulk);
        assert!(Arc::ptr_eq(again.group().unwrap(), &group), "where the fewest are");
        drop((places, again));
        assert_eq!(*lock(&movers.flows), [[0, 0]; 3]);
        assert!(Movers::new(&[]).place(Lane::Bulk).group().is_none());
    }
}
