//! The preamble of a connection that is to go on to somebody else, and what routers answer and
//! tell of themselves.

use std::fmt;

use core::net::{IpAddr, SocketAddr};

use crate::field::*;
use crate::header::Lane;
use crate::identity::ServerId;
use crate::session::get_text;

/// The longest name of a network in bytes: a word, as names of nodes are.
pub const NETWORK_NAME_LENGTH_MAX: usize = 64;

/// The longest text of a router's answer in bytes: a name, an address and a reason.
pub const ROUTE_TEXT_LENGTH_MAX: usize = 255;

/// The most routers that a connection may pass: what goes through more goes in circles.
pub const HOPS_MAX: u8 = 8;

/// The most flows that one ROUTE NOTICE names; those of a router with more come in several.
pub const FLOWS_TOLD_MAX: usize = 4096;

/// The longest body of ROUTE that anybody takes, in bytes: this version's has at most 119.
pub const ROUTE_LENGTH_MAX: usize = 512;

/// The name of a network: letters and digits of ASCII, and dots, hyphens and underscores between
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkName(Box<str>);

impl NetworkName {
    /// The name of this text; `None`: it is none.
    pub fn new(text: &str) -> Option<NetworkName> {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric();
        let ends = [text.bytes().next()?, text.bytes().next_back()?];
        let is_name = text.len() <= NETWORK_NAME_LENGTH_MAX
            && ends.into_iter().all(is_word)
            && text.bytes().all(|byte| is_word(byte) || b".-_".contains(&byte));
        is_name.then(|| NetworkName(text.into()))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NetworkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a connection is to go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Nowhere: it is for the router's notices.
    Router,
    /// An address of a network.
    Address {
        /// The network.
        network: NetworkName,
        /// The address there.
        address: SocketAddr,
    },
    /// A server, wherever the router knows it to be.
    Server(ServerId),
    /// A router on the way to a network, which answers questions.
    Hop {
        /// The network.
        network: NetworkName,
        /// How many routers are before it, the receiver included: below [`HOPS_MAX`]. Where the way
        /// has fewer, its last one answers.
        behind: u8,
    },
}

/// As people write it: `10.2.0.5:7170@net2`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Router => f.write_str("the router itself"),
            Target::Address { network, address } => write!(f, "{address}@{network}"),
            Target::Server(id) => write!(f, "server {id}"),
            Target::Hop { network, behind } => write!(f, "the router behind {behind} others to {network}"),
        }
    }
}

/// Asks to be passed on: the body of ROUTE, the first frame of a connection to a router, and of
/// one from it to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to.
    pub target: Target,
    /// Routers that it may still pass, the receiver included.
    pub hops_left: u8,
    /// Milliseconds that the sender waits for the answer.
    pub time_left_ms: u32,
    /// What the connection is for.
    pub lane: Lane,
    /// Who makes the connection, known to nobody else: random, the same for all connections of
    /// one process.
    pub initiator: [u8; 16],
    /// Which of the initiator's connections this is.
    pub flow: u64,
}

/// How a router answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RouteStatus {
    /// All is open: what follows is for the target, and from it.
    Open = 0,
    /// It has as many flows as it takes, in all or of this client: try another, or later.
    Full = 1,
    /// It stops, and takes no more.
    Stopping = 2,
    /// It knows no way to this network or server.
    NoRoute = 3,
    /// It may not pass this on.
    Refused = 4,
    /// The next hop could not be reached.
    Unreachable = 5,
    /// The next hop did not answer in time.
    TimedOut = 6,
    /// It would pass more routers than it may.
    TooFar = 7,
    /// The preamble makes no sense here.
    Bad = 8,
}

impl RouteStatus {
    /// All, in the order of their codes.
    pub const ALL: [RouteStatus; 9] = [
        RouteStatus::Open,
        RouteStatus::Full,
        RouteStatus::Stopping,
        RouteStatus::NoRoute,
        RouteStatus::Refused,
        RouteStatus::Unreachable,
        RouteStatus::TimedOut,
        RouteStatus::TooFar,
        RouteStatus::Bad,
    ];

    /// The status of a code.
    pub fn from_code(code: u8) -> Option<RouteStatus> {
        RouteStatus::ALL.get(usize::from(code)).copied()
    }

    /// Whether another router, or this one later, may do it.
    pub fn is_passing(self) -> bool {
        matches!(self, RouteStatus::Full | RouteStatus::Stopping)
    }
}

impl fmt::Display for RouteStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RouteStatus::Open => "open",
            RouteStatus::Full => "full",
            RouteStatus::Stopping => "stopping",
            RouteStatus::NoRoute => "no route",
            RouteStatus::Refused => "refused",
            RouteStatus::Unreachable => "unreachable",
            RouteStatus::TimedOut => "timed out",
            RouteStatus::TooFar => "too far",
            RouteStatus::Bad => "bad preamble",
        })
    }
}

/// Answers [`Route`]: the body of ROUTE REPLY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteReply {
    /// How it went.
    pub status: RouteStatus,
    /// Which hop says so, seen from the receiver: 0 is who answers, 1 the next, ... Each router
    /// that passes the answer back adds one.
    pub hop: u8,
    /// Who says so and why, for people; of a [`Target::Hop`] that answers, its name. Longer ones are cut when they are encoded.
    pub text: String,
}

/// A router tells of itself: the body of ROUTE NOTICE, on a connection for [`Target::Router`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteNotice {
    /// In so many seconds the flows end.
    pub stopping_seconds: u32,
    /// The receiver's flows that do, at most [`FLOWS_TOLD_MAX`].
    pub flows: Vec<u64>,
}

/// Asks for how long bytes of a flow lay in the router: the body of ROUTE HELD, on a connection for
/// [`Target::Router`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteHeld {
    /// Which of the initiator's connections.
    pub flow: u64,
    /// From so many microseconds ago.
    pub from_us: u32,
    /// Until so many; not before that.
    pub to_us: u32,
}

/// Answers [`RouteHeld`]: the body of ROUTE HELD REPLY. Of a flow that is not the initiator's all
/// are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteHeldReply {
    /// Microseconds of the time that is asked for in which the router looked: it does for a while
    /// after it was asked.
    pub looked_us: u32,
    /// Those of them in which bytes of the flow lay in it.
    pub held_us: u32,
    /// Those of these in which it had not read them yet.
    pub unread_us: u32,
}

const TARGET_ROUTER: u8 = 0;
const TARGET_V4: u8 = 1;
const TARGET_V6: u8 = 2;
const TARGET_SERVER: u8 = 3;
const TARGET_HOP: u8 = 4;

impl Target {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Target::Router => out.push(TARGET_ROUTER),
            Target::Address { network, address } => {
                match address.ip() {
                    IpAddr::V4(ip) => {
                        out.push(TARGET_V4);
                        out.extend_from_slice(&ip.octets());
                    }
                    IpAddr::V6(ip) => {
                        out.push(TARGET_V6);
                        out.extend_from_slice(&ip.octets());
                    }
                }
                U16::put(&address.port(), out);
                Text::put(&network.as_str().as_bytes(), out);
            }
            Target::Server(id) => {
                out.push(TARGET_SERVER);
                out.extend_from_slice(&id.0);
            }
            Target::Hop { network, behind } => {
                out.extend([TARGET_HOP, *behind]);
                Text::put(&network.as_str().as_bytes(), out);
            }
        }
    }

    fn get(reader: &mut Reader<'_>) -> Result<Target, BodyError> {
        let ip: IpAddr = match reader.get::<U8>()? {
            TARGET_ROUTER => return Ok(Target::Router),
            TARGET_SERVER => return Ok(Target::Server(ServerId(reader.array("the server")?))),
            TARGET_V4 => reader.array::<4>("the address")?.into(),
            TARGET_V6 => reader.array::<16>("the address")?.into(),
            TARGET_HOP => {
                let behind = match reader.get::<U8>()? {
                    behind @ ..HOPS_MAX => behind,
                    _ => return Err(BodyError::Value("the routers before it")),
                };
                return Ok(Target::Hop { network: get_network(reader)?, behind });
            }
            _ => return Err(BodyError::Value("the target")),
        };
        let address = SocketAddr::new(ip, reader.get::<U16>()?);
        Ok(Target::Address { network: get_network(reader)?, address })
    }
}

fn get_network(reader: &mut Reader<'_>) -> Result<NetworkName, BodyError> {
    let network = get_text(reader, NETWORK_NAME_LENGTH_MAX, "the network's name")?;
    NetworkName::new(network).ok_or(BodyError::Value("the network's name"))
}

impl Route {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.target.put(out);
        out.push(self.hops_left);
        U32::put(&self.time_left_ms, out);
        out.push(self.lane as u8);
        out.extend_from_slice(&self.initiator);
        U64::put(&self.flow, out);
    }

    /// The preamble of a body. Bytes behind the last field are a newer version's, and ignored.
    pub fn decode(body: &[u8]) -> Result<Route, BodyError> {
        let mut reader = Reader::new(body);
        Ok(Route {
            target: Target::get(&mut reader)?,
            hops_left: match reader.get::<U8>()? {
                hops @ ..=HOPS_MAX => hops,
                _ => return Err(BodyError::Value("the hops that are left")),
            },
            time_left_ms: reader.get::<U32>()?,
            lane: Lane::from_code(reader.get::<U8>()?).ok_or(BodyError::Value("the lane"))?,
            initiator: reader.array("the initiator")?,
            flow: reader.get::<U64>()?,
        })
    }
}

impl RouteReply {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.status as u8);
        out.push(self.hop);
        let length = self.text.len().min(ROUTE_TEXT_LENGTH_MAX);
        let end = (0..=length).rev().find(|end| self.text.is_char_boundary(*end)).unwrap_or(0);
        Text::put(&&self.text.as_bytes()[..end], out);
    }

    /// The answer of a body: text without control characters, since it stands on terminals.
    pub fn decode(body: &[u8]) -> Result<RouteReply, BodyError> {
        let mut reader = Reader::new(body);
        let status = RouteStatus::from_code(reader.get::<U8>()?).ok_or(BodyError::Value("the route's status"))?;
        let hop = reader.get::<U8>()?;
        let text = get_text(&mut reader, ROUTE_TEXT_LENGTH_MAX, "the route's text")?;
        if text.contains(char::is_control) {
            return Err(BodyError::Value("the route's text"));
        }
        Ok(RouteReply { status, hop, text: text.to_owned() })
    }
}

impl RouteNotice {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        U32::put(&self.stopping_seconds, out);
        let flows = &self.flows[..self.flows.len().min(FLOWS_TOLD_MAX)];
        U16::put(&(flows.len() as u16), out);
        flows.iter().for_each(|flow| U64::put(flow, out));
    }

    /// What a body says.
    pub fn decode(body: &[u8]) -> Result<RouteNotice, BodyError> {
        let mut reader = Reader::new(body);
        let stopping_seconds = reader.get::<U32>()?;
        let count = usize::from(reader.get::<U16>()?);
        if count > FLOWS_TOLD_MAX {
            return Err(BodyError::Value("the number of flows"));
        }
        let flows = (0..count).map(|_| reader.get::<U64>()).collect::<Result<_, _>>()?;
        reader.end().map(|()| RouteNotice { stopping_seconds, flows })
    }
}

impl RouteHeld {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        U64::put(&self.flow, out);
        U32::put(&self.from_us, out);
        U32::put(&self.to_us, out);
    }

    /// The question of a body.
    pub fn decode(body: &[u8]) -> Result<RouteHeld, BodyError> {
        let mut reader = Reader::new(body);
        let (flow, from_us, to_us) = (reader.get::<U64>()?, reader.get::<U32>()?, reader.get::<U32>()?);
        if to_us > from_us {
            return Err(BodyError::Value("the time that is asked for"));
        }
        reader.end().map(|()| RouteHeld { flow, from_us, to_us })
    }
}

impl RouteHeldReply {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        [self.looked_us, self.held_us, self.unread_us].iter().for_each(|us| U32::put(us, out));
    }

    /// The answer of a body.
    pub fn decode(body: &[u8]) -> Result<RouteHeldReply, BodyError> {
        let mut reader = Reader::new(body);
        let [looked_us, held_us, unread_us] = [reader.get::<U32>()?, reader.get::<U32>()?, reader.get::<U32>()?];
        if held_us > looked_us || unread_us > held_us {
            return Err(BodyError::Value("the time in a router"));
        }
        reader.end().map(|()| RouteHeldReply { looked_us, held_us, unread_us })
    }
}
