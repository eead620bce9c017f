//! The rails of a session: found, looked after while there is traffic, and made again when they
//! fail, while the session goes on over the others.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use aqueduct_fs::{ClientId, Context, Credential};
use aqueduct_net::{Address, Closed, DialError, Interface, PATHS_MAX, Path, Peer, interfaces, pairs};
use aqueduct_wire::{Header, HelloReply, Kind, Lane as LaneKind, NetworkName};
use aqueduct_worker::lock;

use crate::connect::{ConnectError, Greeted, Greeting, Purpose};
use crate::link::{Link, Move};
use crate::rails::{Fault, Finding, Rail, RailPaths, Rails, RailsConfig};
use crate::session::Session;

/// Between two looks at the rails, while anything is under way.
const LOOK: Duration = Duration::from_millis(50);

/// Between two tries to have a rail again: a rail that is mended carries its share within a
/// second.
const HEAL_PAUSE: Duration = Duration::from_millis(250);

/// Between two looks whether connections lead by another router than that of their rail, since it
/// was away.
const RETURN_PAUSE: Duration = Duration::from_secs(1);

/// As [`HEAL_PAUSE`], for a rail that never had a connection. It may lead nowhere: both machines
/// may have private networks that use the same addresses.
const UNKNOWN_PAUSE: Duration = Duration::from_secs(5);

/// When a server is asked for its addresses after this machine has got an interface: at once, and
/// when the other end of the wire may have come, too.
const ASK_PAUSES: [Duration; 2] = [Duration::ZERO, Duration::from_secs(5)];

/// How long such a try may take until somebody answers. The kernel would ask again after a second,
/// when the next try has long been made.
const HEAL_TIMEOUT: Duration = Duration::from_millis(500);

/// How long the first try on a rail of a new session may take.
const FIRST_TIMEOUT: Duration = Duration::from_millis(2500);

/// The first connection of a session: over one of the listed paths, or as the server's name says.
/// Which server is meant its name says; where that answers, no rail leads to another one.
pub(crate) fn join_first(greeting: &Greeting, paths: &RailPaths) -> Result<Greeted, ConnectError> {
    let RailPaths::Listed(paths) = paths else { return greeting.join(Purpose::Any, LaneKind::Control) };
    let brief = Greeting { connect_timeout: FIRST_TIMEOUT, ..greeting.clone() };
    let meant = match brief.join(Purpose::Any, LaneKind::Control) {
        Ok(Greeted { mut link, hello, .. }) => {
            // It is only asked who it is.
            let _ends_soon_anyway = link.send(Header::new(Kind::Goodbye), (&[], &[]), FIRST_TIMEOUT);
            Some(hello.server.id)
        }
        Err(error) => {
            tracing::warn!(server = %greeting.server, %error, "which server the rails have to lead to is not known");
            None
        }
    };
    let purpose = meant.map_or(Purpose::Any, Purpose::Begin);
    let mut last = None;
    for path in paths {
        match join_over(greeting, (path, FIRST_TIMEOUT), purpose, LaneKind::Control) {
            Ok(greeted) => return Ok(greeted),
            Err((_, error)) => {
                tracing::warn!(%path, %error, "a rail cannot be used");
                last = Some(error);
            }
        }
    }
    Err(last.unwrap_or_else(|| greeting.broken("no rail is listed")))
}

/// The rails of a new session, and how many there may be. Without any the session has the way that
/// the routing table says.
pub(crate) fn ways(greeting: &Greeting, config: &RailsConfig, first: &Greeted) -> (Vec<Path>, usize) {
    match &config.paths {
        RailPaths::Single => (Vec::new(), 1),
        RailPaths::Listed(paths) => (paths.clone(), config.slots()),
        // A server on this machine is reached through its memory.
        RailPaths::Auto if !matches!(first.link.peer(), Ok(Peer::Network(_))) => (Vec::new(), 1),
        RailPaths::Auto => {
            let found = found_ways(greeting, &first.hello.addresses);
            if found.is_empty() {
                tracing::warn!(server = %greeting.server, "no interface of this machine is in a subnet of the server's addresses: it is reached over one way alone");
                return (found, 1);
            }
            (found, config.slots())
        }
    }
}

/// The pairs of interfaces of this machine and addresses of the server, as it was named and as it
/// tells them.
fn found_ways(greeting: &Greeting, told: &[String]) -> Vec<Path> {
    let mut remotes: Vec<SocketAddr> = Vec::new();
    let mut routed: Vec<Path> = Vec::new();
    for path in greeting.named().unwrap_or_default() {
        match path {
            Path { remote: Address::Tcp(address), via: None, .. } => remotes.push(address),
            Path { via: Some(_), .. } => routed.push(path),
            _ => return Vec::new(),
        }
    }
    let present = interfaces().unwrap_or_default();
    if !routed.is_empty() {
        // Of what it tells nobody knows in which network that is.
        return ways_by_routers(greeting, &present, &routed);
    }
    // An address that this machine has too, as of a network inside it, leads to itself.
    let is_own = |told: &SocketAddr| present.iter().any(|own| own.address == told.ip() && !own.is_loopback());
    for told in told.iter().filter_map(|address| address.parse().ok()) {
        if !remotes.contains(&told) && !is_own(&told) {
            remotes.push(told);
        }
    }
    pairs(&present, &remotes)
}

/// The ways to a server in networks behind routers: one for each pair of an interface of this
/// machine and a gateway, or more where the server has more addresses there.
fn ways_by_routers(greeting: &Greeting, present: &[Interface], named: &[Path]) -> Vec<Path> {
    let Some(initiator) = &greeting.routes else { return Vec::new() };
    let mut networks: Vec<&NetworkName> = named.iter().filter_map(|path| path.via.as_ref()).collect();
    networks.sort();
    networks.dedup();
    let mut found: Vec<Path> = Vec::new();
    for network in networks {
        let within: Vec<&Path> = named.iter().filter(|path| path.via.as_ref() == Some(network)).collect();
        let gateways = initiator.gateways_to(network);
        let mut ends = pairs(present, &gateways);
        // Those behind further hosts are reached as the routing table says.
        let is_beside = |gateway: &SocketAddr| ends.iter().any(|end| end.remote == Address::Tcp(*gateway));
        let far: Vec<SocketAddr> = gateways.iter().copied().filter(|gateway| !is_beside(gateway)).collect();
        ends.extend(far.into_iter().map(|gateway| Path::from(Address::Tcp(gateway))));
        for index in 0..ends.len().max(within.len()).min(PATHS_MAX) {
            let Some(end) = ends.get(index % ends.len().max(1)) else { break };
            let Address::Tcp(gateway) = end.remote else { continue };
            found.push(Path { local: end.local.clone(), by: Some(gateway), ..within[index % within.len()].clone() });
        }
    }
    found.truncate(PATHS_MAX);
    found
}

/// The link for which the first connection can be used: that of the first lane, over the rail that
/// begins and ends where it does.
pub(crate) fn rail_of(rails: &Rails, first: &Greeted) -> Option<usize> {
    if !rails.are_many() {
        return Some(0);
    }
    let (Ok(Peer::Network(peer)), Ok(own)) = (first.link.peer(), first.link.local_ip()) else { return None };
    let is_it = |path: &Path| {
        let local = &path.local;
        path.remote == Address::Tcp(peer) && local.interface.is_none() && local.address.is_none_or(|ip| own == Some(ip))
    };
    rails.list().iter().find(|rail| rail.path().is_some_and(|path| is_it(&path))).map(|rail| rail.index)
}

/// Connects over a path. Also says where it is broken, if it is.
fn join_over(
    greeting: &Greeting,
    way: (&Path, Duration),
    purpose: Purpose<'_>,
    lane: LaneKind,
) -> Result<Greeted, (Fault, ConnectError)> {
    let server = format!("{} over {}", greeting.server, way.0);
    // What goes wrong is told of the rail, and not of where the server was named.
    let over = Greeting { server: server.clone(), ..greeting.clone() };
    match over.join_over(way, purpose, lane) {
        Ok(greeted) => greeted.map_err(|error| (Fault::Path, error)),
        Err(error) => {
            let fault = if matches!(error, DialError::Local { .. }) { Fault::Local } else { Fault::Path };
            Err((fault, ConnectError::Connect { server, source: error.into() }))
        }
    }
}

impl Session {
    /// A new connection for a link, over its rail.
    pub(crate) fn join_link(&self, index: usize, purpose: Purpose<'_>) -> Result<Greeted, ConnectError> {
        let place = &self.links[index].place;
        let kind = if place.bulk { LaneKind::Bulk } else { LaneKind::Control };
        match place.rail.path() {
            None => self.greeting.join(purpose, kind),
            Some(path) => {
                let way = (&path, self.greeting.connect_timeout);
                join_over(&self.greeting, way, purpose, kind).map_err(|(_, error)| error)
            }
        }
    }

    /// A new connection over whatever rail answers first; for the control link of the first
    /// worker.
    pub(crate) fn join_any(&self, purpose: Purpose<'_>) -> Result<(usize, Greeted), ConnectError> {
        let rails = self.rails.list().iter().filter(|rail| rail.path().is_some());
        let rails: Vec<usize> = rails.map(|rail| rail.index).collect();
        if rails.len() < 2 {
            let index = rails.first().copied().unwrap_or(0);
            return Ok((index, self.join_link(index, purpose)?));
        }
        // All at once, since one that is dead is known to be so only after seconds. The threads
        // that lose end by themselves.
        let (send, results) = std::sync::mpsc::channel();
        for (index, path) in rails.into_iter().filter_map(|index| Some((index, self.rails.list()[index].path()?))) {
            let (send, greeting, purpose) = (send.clone(), self.greeting.clone(), purpose.to_owned());
            let join = move || {
                let way = (&path, greeting.connect_timeout);
                let greeted = join_over(&greeting, way, purpose.as_ref(), LaneKind::Control);
                let _not_wanted_any_more = send.send((index, greeted.map_err(|(_, error)| error)));
            };
            std::thread::Builder::new()
                .name("rail".into())
                .spawn(join)
                .map_err(|source| ConnectError::Local { server: self.config.server.clone(), source })?;
        }
        drop(send);
        let mut last = None;
        for (index, result) in results {
            match result {
                Ok(greeted) => return Ok((index, greeted)),
                // That the session is not known any more matters most.
                Err(error) if error.is_unknown_session() => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| self.greeting.broken("no rail was tried")))
    }

    /// A link has lost its connection, and others live.
    pub(crate) fn rail_lost(&self, link: &Link, number: u32, closed: &Closed) {
        let rail = &link.place.rail;
        if !self.links_of(rail.index).any(|link| link.is_connected()) && rail.path().is_some() {
            self.rail_failed(rail, Fault::Path, &closed.reason);
        }
        if closed.vanished {
            self.give_up_later(number);
        }
        self.heal(rail);
    }

    fn links_of(&self, rail: usize) -> impl Iterator<Item = &Arc<Link>> {
        self.links.iter().filter(move |link| link.place.rail.index == rail)
    }

    fn rail_failed(&self, rail: &Rail, fault: Fault, reason: &str) {
        if rail.failed(fault) {
            let path = rail.path().map(|path| path.to_string());
            tracing::warn!(server = %self.config.server, rail = path, fault = fault.name(), %reason, "lost a rail; going on over the others");
            self.counters.reconnects.increment();
        }
    }

    /// Has the server end a link that is lost, so that it waits for nothing there.
    fn give_up_later(&self, number: u32) {
        let this = self.this.clone();
        self.groups[0].spawn(async move {
            let Some(session) = this.upgrade() else { return };
            let context = Context::new(ClientId(0), Credential::root());
            // Without an answer it ends when the server finds it silent.
            let _given_up = session.fence(&context, number).await;
        });
    }

    /// Has all rails get their connections.
    pub(crate) fn heal_all(&self) {
        self.rails.list().iter().for_each(|rail| self.heal(rail));
    }

    /// Starts the thread that makes a rail's connections, unless there is one.
    fn heal(&self, rail: &Arc<Rail>) {
        if rail.path().is_none() || self.is_rail_whole(rail) || !rail.heals() {
            return;
        }
        let (this, own) = (self.this.clone(), rail.clone());
        let started = std::thread::Builder::new().name("rail".into()).spawn(move || heal(&this, &own));
        if let Err(error) = started {
            rail.healed();
            tracing::error!(%error, "could not start the thread that makes a rail's connections; it stays down until another is lost");
        }
    }

    /// When the next of a rail's connections that are left alone is due, if any is.
    fn held_off(&self, rail: &Rail) -> Duration {
        let lacking = self.links_of(rail.index).filter(|link| !link.is_connected());
        lacking.map(|link| link.held_off().clamp(LOOK, HEAL_PAUSE)).min().unwrap_or_default()
    }

    fn is_rail_whole(&self, rail: &Rail) -> bool {
        self.links_of(rail.index).all(|link| link.is_connected())
    }

    /// Makes the connections of a rail that it has not.
    fn fill(&self, rail: &Rail, path: &Path) -> Result<(), (Fault, ConnectError)> {
        let lacking = self.links_of(rail.index).filter(|link| !link.is_connected() && link.held_off().is_zero());
        for link in lacking {
            let (epoch, session) = (self.opens.epoch(), lock(&self.key).clone());
            let kind = if link.place.bulk { LaneKind::Bulk } else { LaneKind::Control };
            let greeted = join_over(&self.greeting, (path, HEAL_TIMEOUT), Purpose::Join(&session), kind)?;
            self.greeted(&greeted.hello);
            let failed = |what: &str| (Fault::Peer, self.greeting.broken(what));
            if greeted.hello.recovering {
                self.recovery_due.store(true, Ordering::SeqCst);
                self.connect_again("the server was restarted");
                return Err(failed("it was restarted"));
            }
            let _joined = self.joins.read().unwrap_or_else(|poison| poison.into_inner());
            if self.opens.epoch() != epoch || self.unrestored.load(Ordering::SeqCst) {
                return Err(failed("the session has begun anew meanwhile"));
            }
            self.start_link(link.place.index, greeted).map_err(|error| (Fault::Path, error))?;
            if rail.path().as_ref() != Some(path) {
                link.close("its rail is no more");
                return Err(failed("the rail leads elsewhere by now"));
            }
            if rail.returned() {
                tracing::info!(server = %self.config.server, rail = %path, "a rail is back");
            }
        }
        Ok(())
    }

    /// The server has told its addresses. Where rails are found, there may be others now.
    pub(crate) fn learn_addresses(&self, hello: &HelloReply) {
        if self.rails.are_many() && self.config.rails.paths == RailPaths::Auto && self.rails.learn(&hello.addresses) {
            self.find_rails(&hello.addresses);
        }
    }

    fn find_rails(&self, told: &[String]) {
        let mut found = found_ways(&self.greeting, told);
        let present = interfaces().unwrap_or_default();
        // One whose interface is down for now stays, so that it is seen to be.
        let rails = self.rails.list().iter().filter_map(|rail| rail.path());
        for path in rails.filter(|path| begins_at(path, &present) && !can_begin(path, &present)) {
            if !found.contains(&path) {
                found.push(path);
            }
        }
        if found.is_empty() {
            return; // all are gone, and none would be better
        }
        for gone in self.rails.set_paths(&found) {
            self.links_of(gone).for_each(|link| link.close("its rail is no more"));
        }
        self.heal_all();
    }

    /// Watches the rails as long as anything is under way.
    pub(crate) fn watch_rails(&self) {
        let is_watched = &self.rails.is_watched;
        if is_watched.load(Ordering::Relaxed) || is_watched.swap(true, Ordering::SeqCst) {
            return;
        }
        let (this, group) = (self.this.clone(), self.groups[0].clone());
        self.groups[0].spawn(async move {
            loop {
                group.sleep(LOOK).await;
                let Some(session) = this.upgrade() else { return };
                session.look_at_rails();
                let is_quiet = || !session.links.iter().any(|link| link.is_busy() || link.is_asked());
                if is_quiet() {
                    session.rails.is_watched.store(false, Ordering::SeqCst);
                    // Looked at after the flag fell: whoever sends later starts a task of its own.
                    if is_quiet() || session.rails.is_watched.swap(true, Ordering::SeqCst) {
                        return;
                    }
                }
            }
        });
    }

    /// One look at all rails: what is silent for half of the time is asked, with all that share
    /// its rail, and what has not answered for all of it is given up, if another rail answers.
    fn look_at_rails(&self) {
        if self.rails.interfaces_changed() {
            self.look_at_interfaces();
        }
        self.find_rails_apart();
        if self.rails.returns_are_due(RETURN_PAUSE) {
            self.rails.list().iter().for_each(|rail| self.return_to_router(rail));
        }
        let full = (self.rails.suspect.as_millis() / LOOK.as_millis()) as u32;
        let half = full / 2;
        let looks: Vec<u32> = self.links.iter().map(|link| link.look_for_quiet()).collect();
        let of = |rail: &Rail| self.links_of(rail.index).map(|link| (link, looks[link.place.index]));
        for rail in self.rails.list().iter().filter(|rail| rail.path().is_some()) {
            let most = of(rail).map(|(_, looks)| looks).max().unwrap_or(0);
            rail.suspect(most >= half);
            let round_trips = of(rail).filter(|(link, _)| !link.place.bulk).filter_map(|(link, _)| link.round_trip());
            if let Some(round_trip) = round_trips.min() {
                rail.note_round_trip(round_trip);
            }
            if of(rail).any(|(_, looks)| looks == half) {
                of(rail).for_each(|(link, _)| link.ask(half));
                let others = self.links.iter().filter(|link| link.place.rail.index != rail.index && !link.place.bulk);
                others.for_each(|link| link.ask(0));
            }
            let answers = |link: &&Arc<Link>| {
                let is_other = link.place.rail.index != rail.index && !link.place.bulk;
                is_other && link.is_connected() && !link.is_asked() && looks[link.place.index] < half
            };
            if most >= full && self.links.iter().any(|link| answers(&link)) {
                let silent: Vec<_> = of(rail).filter(|(_, looks)| *looks >= full).map(|(link, _)| link).collect();
                if silent.len() == of(rail).filter(|(link, _)| link.is_connected()).count() {
                    self.rail_failed(rail, Fault::Path, "nothing is heard over it any more, while others are answered");
                }
                let is_heard = of(rail).any(|(link, looks)| !link.place.bulk && link.is_connected() && looks < half);
                for link in silent {
                    match link.place.bulk && is_heard {
                        true => self.link_chokes(rail, link),
                        false => link.vanish("its rail does not answer any more"),
                    }
                }
            }
        }
    }

    fn link_chokes(&self, rail: &Rail, link: &Link) {
        let held_off = link.chokes();
        if !held_off.is_zero() {
            let path = rail.path().map(|path| path.to_string());
            tracing::warn!(server = %self.config.server, rail = path, for_ms = held_off.as_millis() as u64, "bulk data do not come over a connection of a rail again and again, while small messages do: it is left alone; see whether the network takes large packets ('aqueduct net path' tries it)");
        }
    }

    /// Has the connections of a rail lead by its router again, if that is there and others carry
    /// them: requests that are under way are answered where they are.
    fn return_to_router(&self, rail: &Arc<Rail>) {
        let Some(gateway) = rail.path().and_then(|path| path.by) else { return };
        let is_sound = self.greeting.routes.as_ref().is_some_and(|routes| routes.is_sound(gateway));
        let strays: Vec<(usize, u32)> =
            self.links_of(rail.index).filter_map(|link| Some((link.place.index, link.strays(gateway)?))).collect();
        if strays.is_empty() || !is_sound || !rail.heals() {
            return;
        }
        let (this, own) = (self.this.clone(), rail.clone());
        let move_all = move || {
            for (index, number) in strays {
                let Some(session) = this.upgrade().filter(|session| !session.is_closing()) else { break };
                if let Err(error) = session.move_link(index, number, Move::Back(gateway)) {
                    tracing::debug!(%gateway, %error, "a rail's connections stay where they are");
                    break;
                }
            }
            own.healed();
            // Whoever lost one meanwhile left it to us.
            this.upgrade().into_iter().for_each(|session| session.heal(&own));
        };
        if let Err(error) = std::thread::Builder::new().name("move".into()).spawn(move_all) {
            rail.healed();
            tracing::error!(%error, "could not start the thread that moves a rail's connections; it is tried again");
        }
    }

    /// Interfaces of this machine have come, gone, or changed: rails with them.
    fn look_at_interfaces(&self) {
        let Ok(present) = interfaces() else { return };
        for rail in self.rails.list() {
            let Some(path) = rail.path().filter(|path| !can_begin(path, &present)) else { continue };
            self.rail_failed(rail, Fault::Local, &format!("this machine's end of it, {}, is down", path.local));
            self.links_of(rail.index).for_each(|link| link.vanish("its interface is down"));
        }
        if self.config.rails.paths == RailPaths::Auto {
            if self.rails.finding.has_more(&present) {
                self.ask_for_addresses_apart();
            }
            self.rails.finding.is_due.store(true, Ordering::SeqCst);
        }
    }

    /// This machine has got an interface: the server may have, too, and tells its addresses in the
    /// beginning of each connection only.
    fn ask_for_addresses_apart(&self) {
        if self.rails.finding.is_asking.swap(true, Ordering::SeqCst) {
            return;
        }
        let this = self.this.clone();
        let ask = move || {
            for pause in ASK_PAUSES {
                std::thread::sleep(pause);
                let Some(session) = this.upgrade().filter(|session| !session.is_closing()) else { return };
                session.ask_for_addresses();
            }
            this.upgrade()
                .into_iter()
                .for_each(|session| session.rails.finding.is_asking.store(false, Ordering::SeqCst));
        };
        if let Err(error) = std::thread::Builder::new().name("addresses".into()).spawn(ask) {
            self.rails.finding.is_asking.store(false, Ordering::SeqCst);
            tracing::error!(%error, "could not start the thread that asks the server for its addresses");
        }
    }

    fn ask_for_addresses(&self) {
        let sound = |link: &&Arc<Link>| !link.place.bulk && !link.place.rail.is_suspected();
        let Some((link, number)) = self.links.iter().filter(sound).find_map(|link| Some((link, link.number()?))) else {
            return; // it is connected again soon
        };
        if let Err(error) = self.move_link(link.place.index, number, Move::Asks) {
            tracing::debug!(%error, "could not ask the server for its addresses");
        }
    }

    /// If rails are to be found, has a thread of its own do it, one at a time: the server's name is
    /// looked up for that, which may take many seconds, and this thread answers programs.
    fn find_rails_apart(&self) {
        let Finding { is_due, is_under_way, .. } = &self.rails.finding;
        if !is_due.load(Ordering::Relaxed) || is_under_way.swap(true, Ordering::SeqCst) {
            return;
        }
        let this = self.this.clone();
        let find = move || {
            while let Some(session) = this.upgrade().filter(|session| !session.is_closing()) {
                if !session.rails.finding.is_due.swap(false, Ordering::SeqCst) {
                    session.rails.finding.is_under_way.store(false, Ordering::SeqCst);
                    return; // what has become due since is seen at the next look
                }
                session.find_rails(&session.rails.told());
            }
        };
        if let Err(error) = std::thread::Builder::new().name("rails".into()).spawn(find) {
            is_under_way.store(false, Ordering::SeqCst);
            tracing::error!(%error, "could not start the thread that finds rails; it is tried again");
        }
    }
}

/// Whether this machine has the interface or address that a path begins at.
fn begins_at(path: &Path, present: &[Interface]) -> bool {
    present.iter().any(|interface| is_begin(path, interface))
}

/// As [`begins_at`], and its wire works.
fn can_begin(path: &Path, present: &[Interface]) -> bool {
    present.iter().any(|interface| interface.is_up && is_begin(path, interface))
}

fn is_begin(path: &Path, interface: &Interface) -> bool {
    let local = &path.local;
    local.interface.as_ref().is_none_or(|name| *name == interface.name)
        && local.address.is_none_or(|address| address == interface.address)
}

/// Makes the connections of a rail until it has them all.
fn heal(this: &Weak<Session>, rail: &Rail) {
    loop {
        let Some(session) = this.upgrade() else { return };
        let path = rail.path().filter(|_| !session.closing.load(Ordering::SeqCst));
        let Some(path) = path.filter(|_| !session.is_rail_whole(rail)) else {
            rail.healed();
            // A link may have been lost before the flag fell; whoever lost it left it to us.
            let is_done = rail.path().is_none() || session.is_closing() || session.is_rail_whole(rail);
            if is_done || !rail.heals() {
                return;
            }
            continue;
        };
        let pause = match rail.held_off() {
            // Without any connection the session itself has to be had again first.
            Duration::ZERO if session.is_linked() => match session.fill(rail, &path) {
                Ok(()) => session.held_off(rail),
                Err((fault, error)) => {
                    session.could_not_heal(rail, fault, &error);
                    if rail.has_been_up() { HEAL_PAUSE } else { UNKNOWN_PAUSE }
                }
            },
            held_off => held_off.clamp(LOOK, HEAL_PAUSE),
        };
        drop(session);
        std::thread::sleep(pause);
    }
}

impl Session {
    fn could_not_heal(&self, rail: &Rail, fault: Fault, error: &ConnectError) {
        tracing::debug!(%error, "a rail could not be had yet");
        if error.is_unknown_session() {
            self.ask_links(); // which ends those that the server has ended
        }
        if !self.links_of(rail.index).any(|link| link.is_connected()) {
            let begins = |path: &Path| interfaces().is_ok_and(|present| can_begin(path, &present));
            let fault = match rail.path().is_none_or(|path| begins(&path)) {
                false => Fault::Local,
                true if self.is_linked() => fault,
                true => Fault::Peer,
            };
            self.rail_failed(rail, fault, &error.to_string());
        }
    }
}
