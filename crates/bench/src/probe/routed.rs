//! Ways to a server behind routers: the router first, and what it says of the rest.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_net::routes::{self, Routes, Table};
use aqueduct_net::{Address, DialError, Initiator, Link, Path, RouteError, dial, ping};
use aqueduct_node::{Asker, ConnectError};
use aqueduct_wire::{ClientKey, HOPS_MAX, Lane, NetworkName, RouteStatus};

use super::Times;
use super::packets::Packets;
use super::path::{Hop, Kind, QUESTIONS, Way};

/// A server behind routers, and who asks for it.
#[derive(Clone, Copy)]
pub(super) struct Behind<'a> {
    pub(super) network: &'a NetworkName,
    pub(super) server: SocketAddr,
    pub(super) key: Option<&'a ClientKey>,
    pub(super) timeout: Duration,
}

impl Behind<'_> {
    /// Looks at the way by each gateway of a table.
    pub(super) fn look(&self, table: &Table) -> Vec<Way> {
        let ways = table.ways.iter().filter(|way| way.network == *self.network);
        ways.map(|route| self.by(route)).collect()
    }

    fn by(&self, route: &routes::Way) -> Way {
        let mut way = Way::new("any".into(), format!("{}@{}", self.server, self.network), Some(route.gateway.ip()));
        if !way.router(route.gateway, self.timeout) {
            return way;
        }
        let only = Table { ways: vec![route.clone()], ..Table::default() };
        let Ok(initiator) = Initiator::new(Arc::new(Routes::new(only))) else { return way };
        let behind = way.routers_behind(&initiator, (route.gateway, self.network), self.timeout);
        let connect = || match self.dial(&initiator) {
            Ok(link) => Asker::over(link, &way.to, self.key.cloned(), self.timeout).map_err(Failed::Server),
            Err(error) => Err(Failed::Way(error)),
        };
        let last = behind.unwrap_or_else(|| usize::from(route.hops)) + 1;
        let asked = connect().and_then(|asker| Ok((asker, connect()?, connect()?)));
        match asked {
            Ok((mut asker, mut there, mut back)) => {
                way.questions(last, &mut asker, self.timeout);
                let go = there.ping(aqueduct_node::PADDING_MAX, self.timeout).is_ok();
                let come = Some(back.status(self.timeout).is_ok());
                way.judge(Packets { size: 0, go, come, pass: None });
            }
            Err(Failed::Server(error)) => way.refused(&error),
            Err(Failed::Way(error)) => way.stuck(route, &error),
        }
        way
    }

    fn dial(&self, initiator: &Initiator) -> Result<Link, DialError> {
        let path = Path { via: Some(self.network.clone()), ..Address::Tcp(self.server).into() };
        dial(&path, Some(initiator), Lane::Control, self.timeout)
    }
}

/// Why there is no connection to the server.
enum Failed {
    Way(DialError),
    Server(ConnectError),
}

impl Way {
    /// Asks a router some times. Whether it answers.
    fn router(&mut self, gateway: SocketAddr, timeout: Duration) -> bool {
        let mut times = Vec::new();
        let mut problem = None;
        while times.len() < QUESTIONS && problem.is_none() {
            match ping(gateway, timeout) {
                Ok(took) => times.push(took),
                Err(error) => problem = Some(error),
            }
        }
        let (address, lost) = (gateway.to_string(), QUESTIONS - times.len());
        self.hops.push(Hop { number: 1, is: "router", address, round_trip_us: Times::of(&times), lost });
        let answers = !times.is_empty();
        match problem {
            Some(error) if answers => {
                self.problem(Kind::Loss, format!("the router {gateway} answers now and then: {error}"), LOOK)
            }
            Some(error) => self.problem(Kind::NoAnswer, format!("the router {gateway} does not answer: {error}"), LOOK),
            None => {}
        }
        answers
    }

    /// Asks the routers behind the first, through those before each. Returns how many are on the
    /// way in all; `None`: one does not say, since it is of an earlier release or the way ends.
    fn routers_behind(
        &mut self,
        initiator: &Initiator,
        (gateway, network): (SocketAddr, &NetworkName),
        timeout: Duration,
    ) -> Option<usize> {
        for behind in 1..HOPS_MAX {
            let mut hop = initiator.hop(gateway, (network, behind), timeout).ok()?;
            if hop.passed < behind {
                return Some(usize::from(behind));
            }
            let times: Vec<Duration> = (0..QUESTIONS).map_while(|_| hop.ping(timeout).ok()).collect();
            let lost = QUESTIONS - times.len();
            if lost > 0 {
                let seen = format!("of {QUESTIONS} questions the router {} answered {}", hop.name, times.len());
                self.problem(Kind::Loss, seen, LOOK);
            }
            let (number, round_trip_us) = (usize::from(behind) + 1, Times::of(&times));
            self.hops.push(Hop { number, is: "router", address: hop.name, round_trip_us, lost });
        }
        Some(HOPS_MAX.into())
    }

    /// A router says that the way ends.
    fn stuck(&mut self, route: &routes::Way, error: &DialError) {
        let gateway = route.gateway;
        let seen = error.to_string();
        match error {
            DialError::Route(RouteError::Told { status, .. }) if status.is_passing() => self.problem(
                Kind::RouterTakesNothing,
                seen,
                "clients go by other routers meanwhile; 'aqueduct route show' on it says why",
            ),
            // Whose word it is: the last router has tried the server itself.
            DialError::Route(RouteError::Told {
                status: RouteStatus::Unreachable | RouteStatus::TimedOut,
                hop,
                ..
            }) if *hop + 1 >= route.hops => {
                let seen = format!("{seen}; the router {gateway} itself is well");
                self.problem(Kind::NoAnswer, seen, "see whether the server is up, and reached from that router");
            }
            _ => {
                let seen =
                    format!("the router {gateway} answers, and does not pass on what is for {}: {seen}", self.to);
                self.problem(
                    Kind::GatewayDoesNotForward,
                    seen,
                    "see 'aqueduct route show' on it: its networks, ports and routes",
                );
            }
        }
    }
}

const LOOK: &str =
    "see whether it runs ('aqueduct route show' there), and the way to it: aqueduct net path on a machine beside it";
