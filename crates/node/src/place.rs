//! How a place is written: `[VOLUME@]ADDR[,ADDR...]:EXPORT`, where ADDR is `HOST[:PORT][@NET]`,
//! `[IPv6][:PORT][@NET]` or `unix:PATH`. Mounts, tools and configuration read it here.

use std::fmt;

use aqueduct_wire::NetworkName;

/// The port of a server that says nothing else.
pub const PORT: u16 = 7170;

/// What an address begins with that is a Unix socket's.
pub const UNIX: &str = "unix:";

/// The most addresses of one place: more than any server has wires.
pub const ADDRESSES_MAX: usize = 64;

/// The longest name of a host, network or volume in bytes, which is what DNS has.
const NAME_LENGTH_MAX: usize = 255;

/// One address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host of a network.
    Host {
        /// Its name or address; one of IPv6 in brackets, as sockets want it.
        host: String,
        /// Unless it is the usual one.
        port: Option<u16>,
        /// The network in which the host is to be found, if that is said.
        network: Option<String>,
    },
    /// A socket in the file system of this machine.
    Unix(String),
}

/// What is to be had, and from where.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The volume that is meant, whichever server has it.
    pub volume: Option<String>,
    /// Where its server can be reached, the first first; at least one.
    pub addresses: Vec<Address>,
    /// The name of the export.
    pub export: String,
}

/// Why a text is no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// Before the colon, or between two commas, there is no host.
    #[error("it names no host")]
    NoHost,
    /// Behind the addresses there is no export.
    #[error("it names no export")]
    NoExport,
    /// A Unix socket without a path.
    #[error("it names no socket")]
    NoSocket,
    /// The number is no port.
    #[error("'{0}' is no port")]
    Port(String),
    /// A bracket that nothing closes, or no IPv6 address between two.
    #[error("'{0}' is no IPv6 address in brackets")]
    Brackets(String),
    /// An @ that makes no sense where it stands.
    #[error("'{0}' is no network that this machine knows, and no address of a host")]
    Network(String),
    /// A name that nothing has.
    #[error("'{0}' is too long for a name, or has letters that no name has")]
    Name(String),
    /// More than anybody has.
    #[error("it names more than {ADDRESSES_MAX} addresses")]
    Many,
}

impl Address {
    /// With the port that it stands for, as it goes into the list of a server's addresses.
    fn with_port(self, usual: Option<u16>) -> Address {
        match self {
            Address::Host { host, port, network } => {
                Address::Host { host, port: port.or(usual).or(Some(PORT)), network }
            }
            unix @ Address::Unix(_) => unix,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "{UNIX}{path}"),
            Address::Host { host, port, network } => {
                f.write_str(host)?;
                port.iter().try_for_each(|port| write!(f, ":{port}"))?;
                network.iter().try_for_each(|network| write!(f, "@{network}"))
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.volume.iter().try_for_each(|volume| write!(f, "{volume}@"))?;
        write!(f, "{}:{}", joined(&self.addresses), self.export)
    }
}

fn joined(addresses: &[Address]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

impl Place {
    /// Takes a place apart. `is_network` says which names are those of networks: an @ before
    /// another name ends that of a volume.
    pub fn parse(text: &str, is_network: impl Fn(&str) -> bool) -> Result<Place, PlaceError> {
        let (volume, rest) = split_volume(text, &is_network)?;
        let (addresses, rest) = take_addresses(rest, &is_network)?;
        match rest.strip_prefix(':') {
            // A number alone is a port behind which the export is missing.
            Some(export) if !export.is_empty() && !is_number(export) => {
                Ok(Place { volume, addresses, export: export.to_owned() })
            }
            _ => Err(PlaceError::NoExport),
        }
    }

    /// Its server's addresses with their ports, joined by commas, as a session takes them. `port`
    /// is the usual one, where it is another than [`PORT`].
    pub fn server(&self, port: Option<u16>) -> String {
        joined(&self.addresses.iter().map(|address| address.clone().with_port(port)).collect::<Vec<_>>())
    }
}

/// The addresses of a server (`ADDR[,ADDR...]`), with their ports, as a session takes them.
pub fn addresses(text: &str, is_network: impl Fn(&str) -> bool) -> Result<String, PlaceError> {
    // Without brackets it is an IPv6 address alone.
    if text.parse::<std::net::Ipv6Addr>().is_ok() {
        return Ok(format!("[{text}]:{PORT}"));
    }
    let (found, rest) = take_addresses(text, &is_network)?;
    let bad = |rest: &str| PlaceError::Port(rest.trim_start_matches(':').to_owned());
    if rest.is_empty() {
        Ok(joined(&found.into_iter().map(|address| address.with_port(None)).collect::<Vec<_>>()))
    } else {
        Err(bad(rest))
    }
}

/// One address.
pub fn address(text: &str, is_network: impl Fn(&str) -> bool) -> Result<Address, PlaceError> {
    match take_address(text, &is_network)? {
        (address, "") => Ok(address),
        (_, rest) => Err(PlaceError::Port(rest.trim_start_matches(':').to_owned())),
    }
}

/// Whether a text can be the name of a network, known or not: an address is none, as behind the
/// name of a volume.
pub fn may_be_network(text: &str) -> bool {
    NetworkName::new(text).is_some() && text.parse::<std::net::IpAddr>().is_err()
}

/// `HOST[:PORT][@NET]` and the like with the port filled in; what is no address stays as it is,
/// and is refused by who looks for it. So is a network that nobody knows.
pub fn server_address(text: &str) -> String {
    addresses(text, may_be_network).unwrap_or_else(|_| text.to_owned())
}

/// Where a server listens that others reach there: without the network's name, which is theirs,
/// and with the port that they take where none is said.
pub(crate) fn listen_address(text: &str) -> String {
    match address(text, may_be_network) {
        Ok(Address::Host { host, port, .. }) => Address::Host { host, port, network: None }.with_port(None).to_string(),
        _ => text.to_owned(),
    }
}

/// Takes the volume off: it ends at the first @ that no network's name follows.
fn split_volume<'a>(
    text: &'a str,
    is_network: &impl Fn(&str) -> bool,
) -> Result<(Option<String>, &'a str), PlaceError> {
    // Behind one of these there is an address already, or the export.
    let end = text.find([':', ',', '/', '[']).unwrap_or(text.len());
    for (at, _) in text[..end].match_indices('@') {
        let behind = &text[at + 1..];
        if !is_network(name_of(behind)) {
            let volume = &text[..at];
            // Nobody calls a volume by an address: a network is meant to which no route is known.
            if volume.parse::<std::net::IpAddr>().is_ok() {
                return Err(PlaceError::Network(name_of(behind).to_owned()));
            }
            return if is_name(volume) {
                Ok((Some(volume.to_owned()), behind))
            } else {
                Err(PlaceError::Name(volume.to_owned()))
            };
        }
    }
    Ok((None, text))
}

/// The name with which a text begins.
fn name_of(text: &str) -> &str {
    &text[..text.find([':', ',', '/', '@', '[']).unwrap_or(text.len())]
}

fn is_name(text: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || "._-%".contains(letter);
    !text.is_empty() && text.len() <= NAME_LENGTH_MAX && text.chars().all(is_part)
}

/// Addresses and commas, and what follows.
fn take_addresses<'a>(
    text: &'a str,
    is_network: &impl Fn(&str) -> bool,
) -> Result<(Vec<Address>, &'a str), PlaceError> {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        let (address, behind) = take_address(rest, is_network)?;
        if found.len() == ADDRESSES_MAX {
            return Err(PlaceError::Many);
        }
        found.push(address);
        match behind.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Ok((found, behind)),
        }
    }
}

fn take_address<'a>(text: &'a str, is_network: &impl Fn(&str) -> bool) -> Result<(Address, &'a str), PlaceError> {
    if let Some(path) = text.strip_prefix(UNIX) {
        let (path, rest) = path.split_at(path.find([':', ',']).unwrap_or(path.len()));
        return match path.is_empty() {
            true => Err(PlaceError::NoSocket),
            false => Ok((Address::Unix(path.to_owned()), rest)),
        };
    }
    let (host, rest) = take_host(text)?;
    let (port, rest) = take_port(rest)?;
    let (network, rest) = match rest.strip_prefix('@') {
        None => (None, rest),
        Some(behind) => {
            let name = name_of(behind);
            if !is_network(name) || name.is_empty() {
                return Err(PlaceError::Network(name.to_owned()));
            }
            (Some(name.to_owned()), &behind[name.len()..])
        }
    };
    Ok((Address::Host { host: host.to_owned(), port, network }, rest))
}

fn take_host(text: &str) -> Result<(&str, &str), PlaceError> {
    if !text.starts_with('[') {
        let (host, rest) = text.split_at(name_of(text).len());
        return match host {
            "" => Err(PlaceError::NoHost),
            _ if rest.starts_with(['/', '[']) || !is_name(host) => {
                Err(PlaceError::Name(text.chars().take(NAME_LENGTH_MAX).collect()))
            }
            _ => Ok((host, rest)),
        };
    }
    let bad = || PlaceError::Brackets(text.chars().take(NAME_LENGTH_MAX).collect());
    let end = text.find(']').ok_or_else(bad)?;
    let (address, zone) = text[1..end].split_once('%').unwrap_or((&text[1..end], "0"));
    let rest = &text[end + 1..];
    if address.parse::<std::net::Ipv6Addr>().is_err()
        || !is_name(zone)
        || !(rest.is_empty() || rest.starts_with([':', ',', '@']))
    {
        return Err(bad());
    }
    Ok((&text[..=end], rest))
}

/// `:DIGITS`, where no export can be meant: one that is a number does not go without its port.
fn take_port(text: &str) -> Result<(Option<u16>, &str), PlaceError> {
    let Some(behind) = text.strip_prefix(':') else { return Ok((None, text)) };
    let (digits, rest) = behind.split_at(behind.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(behind.len()));
    if digits.is_empty() || !(rest.is_empty() || rest.starts_with([':', ',', '@'])) {
        return Ok((None, text));
    }
    match digits.parse::<u16>() {
        Ok(port) if port != 0 => Ok((Some(port), rest)),
        _ => Err(PlaceError::Port(digits.to_owned())),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn known(name: &str) -> bool {
        ["net1", "ib0"].contains(&name)
    }

    /// Volume, the server as a session takes it, and the export.
    fn parsed(text: &str) -> Result<(Option<String>, String, String), PlaceError> {
        Place::parse(text, known).map(|place| (place.volume.clone(), place.server(None), place.export))
    }

    #[test]
    fn places_are_taken_apart() {
        for (text, server, export) in [
            ("host:/srv/data", "host:7170", "/srv/data"),
            ("host:8000:/srv/data", "host:8000", "/srv/data"),
            ("10.0.0.1:data", "10.0.0.1:7170", "data"),
            ("unix:/run/a.sock:/x", "unix:/run/a.sock", "/x"),
            ("[::1]:/x", "[::1]:7170", "/x"),
            ("[fe80::1%eth0]:7171:/x:y", "[fe80::1%eth0]:7171", "/x:y"),
            ("a,b:8000,[::1],unix:/s:/x,y@z", "a:7170,b:8000,[::1]:7170,unix:/s", "/x,y@z"),
            ("10.1.0.1@net1:/x", "10.1.0.1:7170@net1", "/x"),
            ("10.1.0.1:8000@net1,10.2.0.1@ib0,c:/x", "10.1.0.1:8000@net1,10.2.0.1:7170@ib0,c:7170", "/x"),
            ("[::1]:8000@ib0:/x", "[::1]:8000@ib0", "/x"),
            ("host:8000x", "host:7170", "8000x"),
            ("host:/x@net1", "host:7170", "/x@net1"),
        ] {
            assert_eq!(parsed(text), Ok((None, server.to_owned(), export.to_owned())), "{text}");
        }
        assert_eq!(Place::parse("host,h2:3:/x", known).unwrap().server(Some(9)), "host:9,h2:3");
    }

    #[test]
    fn behind_an_address_there_is_a_network() {
        assert_eq!(parsed("10.0.0.1@net7:/x"), Err(PlaceError::Network("net7".to_owned())));
        assert_eq!(parsed("10.0.0.1@host:/x"), Err(PlaceError::Network("host".to_owned())));
    }

    #[test]
    fn a_volume_ends_at_the_first_at_that_no_network_follows() {
        let volume = |text: &str| parsed(text).map(|(volume, server, _)| (volume.unwrap_or_default(), server));
        let of = |volume: &str, server: &str| Ok((volume.to_owned(), server.to_owned()));
        assert_eq!(volume("v1@host:/x"), of("v1", "host:7170"));
        assert_eq!(volume("v1@host@net1:/x"), of("v1", "host:7170@net1"));
        assert_eq!(volume("v1@unix:/s,host:/x"), of("v1", "unix:/s,host:7170"));
        assert_eq!(volume("v1@[::1]:/x"), of("v1", "[::1]:7170"));
        assert_eq!(volume("host@net2:/x"), of("host", "net2:7170"), "nobody knows the network");
        for bad in ["@host:/x", "a@net1@b:/x", "v1@:/x", "v1@host@net2:/x", "host:80@net2:/x", "a b@host:/x"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        use PlaceError::{Brackets, Name, NoExport, NoHost, NoSocket, Port};
        for (text, expected) in [
            ("", NoHost),
            ("host", NoExport),
            ("host:", NoExport),
            ("host:7170", NoExport),
            ("host:7170:", NoExport),
            (":/x", NoHost),
            ("a,:/x", NoHost),
            ("host:0:/x", Port("0".into())),
            ("host:99999:/x", Port("99999".into())),
            ("[::1]", NoExport),
            ("[::1]/x", Brackets("[::1]/x".into())),
            ("[::1:/x", Brackets("[::1:/x".into())),
            ("[host]:/x", Brackets("[host]:/x".into())),
            ("/a:/b", NoHost),
            ("a/b:/c", Name("a/b:/c".into())),
            ("unix:/a", NoExport),
            ("unix::/b", NoSocket),
        ] {
            assert_eq!(parsed(text), Err(expected), "{text}");
        }
        assert_eq!(parsed(&format!("{}a:/x", "a,".repeat(ADDRESSES_MAX))), Err(PlaceError::Many));
    }

    #[test]
    fn addresses_get_the_port() {
        for (text, expected) in [
            ("host", "host:7170"),
            ("host:1", "host:1"),
            ("host,b:1", "host:7170,b:1"),
            ("unix:/a/b", "unix:/a/b"),
            ("::1", "[::1]:7170"),
            ("[::1]", "[::1]:7170"),
            ("[::1]:5", "[::1]:5"),
        ] {
            assert_eq!(server_address(text), expected);
        }
        assert!(addresses("host:x", known).is_err() && addresses("", known).is_err());
        for (text, expected) in [
            ("10.0.0.1", "10.0.0.1:7170"),
            ("10.0.0.1@net1", "10.0.0.1:7170"),
            ("[::1]:5", "[::1]:5"),
            ("unix:/a", "unix:/a"),
        ] {
            assert_eq!(listen_address(text), expected, "as others reach it");
        }
    }

    fn any_address() -> impl Strategy<Value = Address> {
        let host =
            prop_oneof!["[a-z0-9][a-z0-9.-]{0,12}", any::<std::net::Ipv6Addr>().prop_map(|ip| format!("[{ip}]"))];
        let network = prop::option::of(prop::sample::select(vec!["net1", "ib0"]).prop_map(str::to_owned));
        let of_host = (host.prop_filter("is no prefix", |host| host != "unix"), prop::option::of(1u16..), network)
            .prop_map(|(host, port, network)| Address::Host { host, port, network });
        prop_oneof![4 => of_host, 1 => "/[a-z./]{1,12}".prop_map(Address::Unix)]
    }

    proptest! {
        #[test]
        fn a_place_that_is_written_is_read_as_it_was(
            volume in prop::option::of("[a-z0-9_-]{1,8}"),
            addresses in prop::collection::vec(any_address(), 1..5),
            export in "/[\\PC]{0,12}",
        ) {
            let place = Place { volume, addresses, export };
            // A host's name could be that of a network.
            let first = place.addresses[0].to_string();
            prop_assume!(place.volume.is_none() || !known(name_of(&first)));
            prop_assert_eq!(Place::parse(&place.to_string(), known), Ok(place));
        }

        #[test]
        fn any_text_is_taken_apart_or_refused(
            text in "(\\[|\\]|:|/|,|@|unix:|net1|[0-9]{1,6}|[a-z.%]|\\PC){0,14}",
            port: Option<u16>,
        ) {
            if let Ok(place) = Place::parse(&text, known) {
                prop_assert_eq!(Place::parse(&place.to_string(), known), Ok(place.clone()));
                prop_assert!(text.ends_with(&place.export) && !place.export.is_empty());
                prop_assert_eq!(place.server(port).split(',').count(), place.addresses.len());
            }
            server_address(&text);
        }
    }
}
