//! The rails of a mount, as options say them: `rails=auto`, `rails=single`, or
//! `rails=RAIL[,RAIL...]`, where RAIL is `[LOCAL/]HOST[:PORT][@NET]` and LOCAL an address or a
//! network interface of this machine, and NET a network behind routers.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use aqueduct_client::{LocalEnd, PATHS_MAX, Path, Policy, RAIL_SUSPECT, RAIL_SUSPECT_MIN, RailPaths, RailsConfig};
use aqueduct_wire::NetworkName;

use crate::failure::Failure;
use crate::place;

/// The longest name of a network interface in bytes (`IFNAMSIZ` of linux/if.h, without its end).
const INTERFACE_LENGTH_MAX: usize = 15;

/// Longer nobody waits for a wire while another works.
const RAIL_SUSPECT_MAX: Duration = Duration::from_secs(60);

/// The rails of a mount, as they were written.
#[derive(Clone, Debug, PartialEq)]
pub struct RailOptions {
    /// `auto`, `single`, or the rails.
    pub paths: RailChoice,
    /// How they share.
    pub policy: Policy,
    /// One that is silent for so long, while others are not, is given up.
    pub suspect: Duration,
}

/// Which rails are used.
#[derive(Clone, Debug, PartialEq)]
pub enum RailChoice {
    /// The way that the routing table says.
    Single,
    /// Those that are found.
    Auto,
    /// These.
    Listed(Vec<Rail>),
}

/// One rail, as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Rail {
    local: LocalEnd,
    /// `HOST:PORT`, or `HOST`.
    remote: String,
    via: Option<NetworkName>,
}

impl Default for RailOptions {
    fn default() -> RailOptions {
        RailOptions { paths: RailChoice::Single, policy: Policy::Adaptive, suspect: RAIL_SUSPECT }
    }
}

impl RailChoice {
    /// Reads the value of `rails=`. `None`: it makes no sense.
    pub fn parse(text: &str) -> Option<RailChoice> {
        match text {
            "auto" => Some(RailChoice::Auto),
            "single" => Some(RailChoice::Single),
            list => {
                let rails = list.split(',').map(Rail::parse).collect::<Option<Vec<_>>>()?;
                (rails.len() <= PATHS_MAX).then_some(RailChoice::Listed(rails))
            }
        }
    }
}

/// A policy by its name.
fn policy(name: &str) -> Option<Policy> {
    match name {
        "adaptive" => Some(Policy::Adaptive),
        "stripe" => Some(Policy::Stripe),
        "independent" => Some(Policy::Independent),
        _ => None,
    }
}

impl Rail {
    /// Reads `[LOCAL/]HOST[:PORT][@NET]`.
    fn parse(text: &str) -> Option<Rail> {
        let (local, remote) = match text.split_once('/') {
            None => (LocalEnd::default(), text),
            Some((local, remote)) => (local_end(local)?, remote),
        };
        let (remote, via) = match remote.split_once('@') {
            None => (remote, None),
            Some((remote, network)) => (remote, Some(NetworkName::new(network)?)),
        };
        let is_host = |letter: char| letter.is_alphanumeric() || ".-_:[]%".contains(letter);
        (!remote.is_empty() && remote.chars().all(is_host)).then(|| Rail { local, remote: remote.to_owned(), via })
    }

    /// Whether a text that follows a rail and a comma is the next rail, and not another option.
    pub fn is_one(text: &str) -> bool {
        !text.contains('=') && Rail::parse(text).is_some()
    }

    fn resolve(&self, port: u16) -> Result<Path, Failure> {
        let cannot = |why: String| {
            Failure::usage(
                format!("cannot use the rail '{}'", self.remote),
                why,
                "give rails as [LOCAL/]HOST[:PORT][@NET], where HOST is an address or a name of the server",
            )
        };
        let found = match self.remote.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => SocketAddr::new(address, port),
            Err(_) => {
                let with_port = match self.remote.rsplit_once(':') {
                    Some((_, digits)) if digits.parse::<u16>().is_ok() => self.remote.clone(),
                    _ => format!("{}:{port}", self.remote),
                };
                let mut all = with_port.to_socket_addrs().map_err(|error| cannot(error.to_string()))?;
                let fits =
                    |address: &SocketAddr| self.local.address.is_none_or(|local| local.is_ipv4() == address.is_ipv4());
                all.find(fits).ok_or_else(|| cannot("it has no address that fits this end".into()))?
            }
        };
        let (local, via) = (self.local.clone(), self.via.clone());
        Ok(Path { local, via, ..Path::from(aqueduct_client::Address::Tcp(found)) })
    }
}

fn local_end(text: &str) -> Option<LocalEnd> {
    if let Ok(address) = text.trim_matches(['[', ']']).parse() {
        return Some(LocalEnd { interface: None, address: Some(address) });
    }
    let is_name = |letter: char| letter.is_ascii_graphic() && !"/:".contains(letter);
    let fits = !text.is_empty() && text.len() <= INTERFACE_LENGTH_MAX && text.chars().all(is_name);
    fits.then(|| LocalEnd { interface: Some(text.to_owned()), address: None })
}

impl RailOptions {
    /// Sets `rails`, `rail_policy` or `rail_suspect`. What was expected, if the value makes no
    /// sense.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "rails" => {
                self.paths =
                    RailChoice::parse(value).ok_or("auto, single or [LOCAL/]HOST[:PORT][@NET], at most 8 of them")?;
            }
            "rail_policy" => self.policy = policy(value).ok_or("adaptive, stripe or independent")?,
            _ => {
                let suspect = value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                let suspect = suspect.filter(|suspect| (RAIL_SUSPECT_MIN..=RAIL_SUSPECT_MAX).contains(suspect));
                self.suspect = suspect.ok_or("seconds, 0.2 to 60")?;
            }
        }
        Ok(())
    }

    /// What they come to; `port` is the server's, where a rail says none. Names of hosts are
    /// looked up.
    pub fn resolve(&self, port: Option<u16>) -> Result<RailsConfig, Failure> {
        let port = port.unwrap_or(place::PORT);
        let paths = match &self.paths {
            RailChoice::Single => RailPaths::Single,
            RailChoice::Auto => RailPaths::Auto,
            RailChoice::Listed(rails) => {
                RailPaths::Listed(rails.iter().map(|rail| rail.resolve(port)).collect::<Result<_, _>>()?)
            }
        };
        Ok(RailsConfig { paths, policy: self.policy, suspect: self.suspect })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Option<Vec<String>> {
        match RailChoice::parse(text)? {
            RailChoice::Listed(rails) => rails.iter().map(|rail| Some(rail.resolve(7).ok()?.to_string())).collect(),
            other => Some(vec![format!("{other:?}")]),
        }
    }

    #[test]
    fn rails_are_read_as_they_are_written() {
        assert_eq!(shown("auto").unwrap(), ["Auto"]);
        assert_eq!(shown("single").unwrap(), ["Single"]);
        assert_eq!(
            shown("10.0.0.1@far,10.0.1.1:9,eth1/10.0.2.1,10.0.3.2/10.0.3.1,[fd00::1]:8,fd00::2").unwrap(),
            ["10.0.0.1:7@far", "10.0.1.1:9", "eth1/10.0.2.1:7", "10.0.3.2/10.0.3.1:7", "[fd00::1]:8", "[fd00::2]:7"]
        );
        for bad in ["", "auto,auto,", "a@", "a@b@c", "a@-", "a b", "/10.0.0.1", "eth0/", "a/b/c", "1,2,3,4,5,6,7,8,9"] {
            assert_eq!(RailChoice::parse(bad), None, "{bad}");
        }
        assert_eq!(shown("no.such.host.invalid"), None);
    }

    #[test]
    fn what_follows_a_rail_is_one_only_if_it_looks_so() {
        assert!(Rail::is_one("10.0.0.2") && Rail::is_one("eth0/10.0.0.2"));
        assert!(!Rail::is_one("soft=1") && !Rail::is_one(""));
    }
}
