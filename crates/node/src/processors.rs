//! On which processors the threads run that send and receive: their memory is near those as well,
//! since the kernel takes it where it is first used.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::str::FromStr;

use aqueduct_net::interfaces::near_cpus;
use aqueduct_net::{Interface, interfaces};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Deserialize;

use crate::failure::Failure;

/// The processors that threads may be held to, as a person wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum CpuChoice {
    /// Those near the network cards that are used.
    Near,
    /// These.
    These(Processors),
}

/// Some processors, by the kernel's numbers; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processors(BTreeSet<usize>);

/// A text that names no processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' names no processors: give near, or numbers and ranges from 0 to {max} such as 0-3+8", max = CpuSet::MAX_CPU - 1)]
pub struct CpuChoiceError(String);

impl FromStr for CpuChoice {
    type Err = CpuChoiceError;

    /// `near`, or numbers and ranges with commas as the kernel writes them, or with `+` where
    /// commas separate mount options.
    fn from_str(text: &str) -> Result<CpuChoice, CpuChoiceError> {
        if text == "near" {
            return Ok(CpuChoice::Near);
        }
        Processors::parse(text).map(CpuChoice::These).ok_or_else(|| CpuChoiceError(text.to_owned()))
    }
}

impl TryFrom<String> for CpuChoice {
    type Error = CpuChoiceError;

    fn try_from(text: String) -> Result<CpuChoice, CpuChoiceError> {
        text.parse()
    }
}

impl Processors {
    fn parse(text: &str) -> Option<Processors> {
        let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number < CpuSet::MAX_CPU);
        let mut found = BTreeSet::new();
        for part in text.split([',', '+']) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(())?;
            found.extend(first..=last);
        }
        Some(Processors(found))
    }

    /// Their numbers, in order.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        self.0.iter().copied()
    }

    /// Those of a set; `None`: it has none.
    fn of(set: &CpuSet) -> Option<Processors> {
        let found: BTreeSet<usize> = (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect();
        (!found.is_empty()).then_some(Processors(found))
    }

    /// Those that this thread may run on.
    pub(crate) fn allowed() -> std::io::Result<Processors> {
        Ok(Processors::of(&sched_getaffinity(None)?).unwrap_or(Processors(BTreeSet::new())))
    }

    /// Holds this thread, and those that it starts, to them.
    pub fn hold_thread(&self) -> std::io::Result<()> {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|number| set.set(*number));
        Ok(sched_setaffinity(None, &set)?)
    }
}

/// As the kernel writes them: "0-3,8".
impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for number in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == *number => *last = *number,
                _ => ranges.push((*number, *number)),
            }
        }
        let shown = |(first, last): &(usize, usize)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        f.write_str(&ranges.iter().map(shown).collect::<Vec<_>>().join(","))
    }
}

/// What a choice comes to, with the network cards that are used. `None`: all that the process may
/// run on.
pub(crate) fn resolve(
    choice: Option<&CpuChoice>,
    cards: impl FnOnce() -> Vec<String>,
) -> Result<Option<Processors>, Failure> {
    let Some(choice) = choice else { return Ok(None) };
    let failed = |error| Failure::new("cannot tell on which processors to run", error, "leave cpus out");
    let allowed = Processors::allowed().map_err(|error| failed(std::io::Error::to_string(&error)))?;
    match choice {
        CpuChoice::These(wanted) if wanted.0.is_subset(&allowed.0) => Ok(Some(wanted.clone())),
        CpuChoice::These(wanted) => Err(Failure::usage(
            format!("cannot run on the processors {wanted}"),
            format!("this process may run on {allowed} alone"),
            "name some of those with cpus, or allow it more (taskset, CPUAffinity= or AllowedCPUs= of the service)",
        )),
        CpuChoice::Near => {
            let cards = cards();
            let near = near(cards.iter().filter_map(|card| near_cpus(card)), &allowed);
            if near.is_none() {
                tracing::info!(cards = cards.join(" "), "no card says which processors are near it: all are used");
            }
            Ok(near)
        }
    }
}

/// Those of these lists that are allowed.
fn near(lists: impl Iterator<Item = String>, allowed: &Processors) -> Option<Processors> {
    let near: BTreeSet<usize> = lists.filter_map(|list| Processors::parse(&list)).flat_map(|list| list.0).collect();
    let near: BTreeSet<usize> = near.intersection(&allowed.0).copied().collect();
    (!near.is_empty()).then_some(Processors(near))
}

/// The cards that have these addresses; those of any address are all.
pub(crate) fn cards_of(addresses: &[IpAddr]) -> Vec<String> {
    let is_it = |card: &Interface| {
        let is_any = |address: &IpAddr| address.is_unspecified() && address.is_ipv4() == card.address.is_ipv4();
        addresses.iter().any(|address| *address == card.address || is_any(address) && !card.is_loopback())
    };
    let names: BTreeSet<String> =
        interfaces().unwrap_or_default().into_iter().filter(is_it).map(|card| card.name).collect();
    names.into_iter().collect()
}

/// The addresses of this machine from which it reaches a server, of which this is `HOST:PORT` with
/// commas.
pub(crate) fn ways_to(server: &str) -> Vec<IpAddr> {
    let own = |remote: SocketAddr| {
        let any = if remote.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(remote).ok()?; // sends nothing: the kernel looks the way up
        Some(socket.local_addr().ok()?.ip())
    };
    let remotes = server.split(',').filter_map(|host| host.to_socket_addrs().ok()).flatten();
    remotes.filter_map(own).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn these(text: &str) -> Processors {
        Processors::parse(text).unwrap()
    }

    #[test]
    fn processors_are_written_as_the_kernel_does() {
        for (text, shown) in [("0", "0"), ("3,1-2,8", "1-3,8"), ("0-3+8+9", "0-3,8-9"), ("5-5", "5")] {
            assert_eq!(these(text).to_string(), shown);
        }
        for bad in ["", "-", "1-", "3-1", "0,", "x", "-1", "1024", "0-1024", "0-99999999999999999999"] {
            let error = bad.parse::<CpuChoice>().unwrap_err().to_string();
            assert!(error.contains("0-3+8"), "{error}");
        }
        assert_eq!("near".parse(), Ok(CpuChoice::Near));
    }

    #[test]
    fn only_processors_that_this_process_has_are_taken() {
        let allowed = Processors::allowed().unwrap();
        let one = Processors([*allowed.0.first().unwrap()].into());
        let resolve = |processors: &Processors| resolve(Some(&CpuChoice::These(processors.clone())), Vec::new);
        assert_eq!(resolve(&one).unwrap(), Some(one));
        assert_eq!(super::resolve(None, Vec::new).unwrap(), None);
        let told = resolve(&these("1023")).unwrap_err().to_string();
        assert!(told.contains("processors 1023") && told.contains(&allowed.to_string()), "{told}");
        assert_eq!(near(["0-3".into(), "8,9".into()].into_iter(), &these("2-8")), Some(these("2,3,8")));
        assert_eq!(near(["9".into(), "no list".into()].into_iter(), &these("0-1")), None);
    }

    #[test]
    fn the_card_of_an_address_is_found() {
        assert_eq!(cards_of(&["127.0.0.1".parse().unwrap()]), ["lo"]);
        assert!(!cards_of(&["0.0.0.0".parse().unwrap()]).contains(&"lo".to_owned()));
        assert_eq!(ways_to("127.0.0.1:7,unix:/x"), ["127.0.0.1".parse::<IpAddr>().unwrap()]);
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_again(numbers in prop::collection::btree_set(0..CpuSet::MAX_CPU, 1..40)) {
            let processors = Processors(numbers);
            prop_assert_eq!(Processors::parse(&processors.to_string()), Some(processors));
        }

        #[test]
        fn any_text_is_understood_or_refused(text in "[0-9,+-]{0,20}|\\PC{0,20}") {
            if let Ok(CpuChoice::These(processors)) = text.parse::<CpuChoice>() {
                prop_assert!(!processors.0.is_empty());
            }
        }
    }
}
