//! Where the objects of a file are to lie.

use std::collections::HashSet;

use crate::attribute::Attribute;
use crate::stripe::{ServerKey, order};

/// Where the objects of a file are to lie, part by part, if servers of `eligible` may hold them:
/// the first in the file's order, each as often as there are more objects than servers. What lies
/// at one of them stays. `None`: no server may.
pub(crate) fn balanced(attribute: &Attribute, eligible: Vec<ServerKey>) -> Option<Vec<ServerKey>> {
    let ideal = order(&attribute.id, eligible);
    if ideal.is_empty() {
        return None;
    }
    let width = attribute.servers.len();
    let mut wanted: Vec<ServerKey> = ideal.iter().cycle().take(width).copied().collect();
    let mut places: Vec<Option<ServerKey>> = Vec::with_capacity(width);
    for server in &attribute.servers {
        let at = wanted.iter().position(|wanted| wanted == server);
        places.push(at.map(|at| wanted.remove(at)));
    }
    let mut rest = wanted.into_iter();
    places.into_iter().map(|place| place.or_else(|| rest.next())).collect()
}

/// The same, and all stays but what lies at servers that are none of `eligible`.
pub(crate) fn evacuated(attribute: &Attribute, eligible: Vec<ServerKey>) -> Option<Vec<ServerKey>> {
    let may: HashSet<ServerKey> = eligible.iter().copied().collect();
    let ideal = order(&attribute.id, eligible);
    let used: HashSet<ServerKey> = attribute.servers.iter().copied().collect();
    let (mut free, mut again): (Vec<_>, Vec<_>) = ideal.iter().partition(|server| !used.contains(server));
    free.append(&mut again);
    let mut next = free.into_iter().cycle();
    attribute.servers.iter().map(|server| if may.contains(server) { Some(*server) } else { next.next() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::{State, UNKNOWN};

    fn of(number: u8, servers: &[ServerKey]) -> Attribute {
        Attribute {
            state: State::Spread,
            id: [number; 16],
            block: 1,
            servers: servers.to_vec(),
            stub: [0; 16],
            made: 0,
            size: UNKNOWN,
            blocks: UNKNOWN,
            epoch: 0,
            other: Vec::new(),
            were: Vec::new(),
        }
    }

    #[test]
    fn a_new_server_takes_its_share_and_nothing_else_moves() {
        let mut moved = 0;
        for number in 0..200 {
            let servers = order(&[number; 16], vec![1, 2, 3])[..2].to_vec();
            assert_eq!(balanced(&of(number, &servers), vec![3, 2, 1]), Some(servers.clone()));
            let now = balanced(&of(number, &servers), vec![1, 2, 3, 4]).unwrap();
            let changed: Vec<_> = now.iter().zip(&servers).filter(|(now, before)| now != before).collect();
            assert!(changed.iter().all(|(now, _)| **now == 4) && changed.len() <= 1, "{now:?} {servers:?}");
            moved += changed.len();
        }
        assert!((60..140).contains(&moved), "{moved} of 400 objects are a quarter");
    }

    #[test]
    fn a_server_that_is_to_go_keeps_nothing_and_the_others_keep_theirs() {
        for number in 0..100 {
            let servers = order(&[number; 16], vec![1, 2, 3, 4])[..2].to_vec();
            let now = evacuated(&of(number, &servers), vec![1, 2, 3]).unwrap();
            assert!(!now.contains(&4) && now[0] != now[1]);
            assert!(now.iter().zip(&servers).all(|(now, before)| now == before || *before == 4));
            // Wider than what is left: two of its objects come to lie together.
            let now = evacuated(&of(number, &[1, 2, 3]), vec![1, 2]).unwrap();
            assert_eq!((&now[..2], now[2] < 3), (&[1, 2][..], true));
            assert_eq!(balanced(&of(number, &now), vec![1, 2]), Some(now));
        }
        assert_eq!((evacuated(&of(1, &[1]), vec![]), balanced(&of(1, &[1]), vec![])), (None, None));
    }
}
