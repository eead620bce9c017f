//! How a connection becomes a flow: its preamble is read, the next hop is had, and both are one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aqueduct_wire::{HOPS_MAX, Header, Kind, Lane, NetworkName, Route, RouteReply, RouteStatus, Target};
use socket2::Socket;

use crate::initiator::{PART_MIN, is_absent, watch_gateways};
use crate::relay::core::{Core, Greeting, Wait};
use crate::relay::counters::NONE;
use crate::relay::flow::{About, Side, set_buffers};
use crate::relay::frames::{Guarded, connect, receive, send, unless_gone};
use crate::relay::pace::Pace;
use crate::relay::shares::NoWait;
use crate::relay::watch;
use crate::routes::Next;

/// How long a connection may take to say where it wants to go, and how long it may be silent
/// between the questions whether this router is there.
const PREAMBLE_MAX: Duration = Duration::from_secs(5);

/// The longest that a next hop is waited for, whatever the initiator's patience.
const DIAL_MAX: Duration = Duration::from_secs(10);

/// Of what is left, for the answer's way back.
const RETURN_MS: u32 = 20;

/// Greets a connection.
pub(crate) async fn greet(core: Arc<Core>, socket: Socket, client: IpAddr, greeting: Greeting) {
    let side = match Side::new(&core.group, socket) {
        Ok(side) => side,
        Err(error) => return tracing::warn!(%client, %error, "could not watch a connection"),
    };
    let is_used = serve(&core, &side, client, greeting).await;
    if let Err(error) = &is_used {
        tracing::debug!(%client, %error, "a connection was not passed on");
    }
    if !is_used.unwrap_or(false) {
        side.leave();
    }
}

/// Whether it is somebody's now.
async fn serve(core: &Arc<Core>, side: &Arc<Side>, client: IpAddr, greeting: Greeting) -> io::Result<bool> {
    let mut pace = Pace::default();
    let (request, body) = loop {
        pace.next(&core.group).await;
        let silent = || io::Error::new(io::ErrorKind::TimedOut, "no preamble came in time");
        let (header, body) = core.group.within(PREAMBLE_MAX, receive(side)).await.ok_or_else(silent)??;
        if header.kind != Kind::Ping {
            break (header, body);
        }
        send(&core.group, side, Header { request: header.request, ..Header::new(Kind::Pong) }, &[]).await?;
    };
    let began = Instant::now();
    let route = match request.kind {
        Kind::Route => Route::decode(&body).map_err(|error| error.to_string()),
        kind => Err(format!("it answers Route and Ping alone, and not {kind:?}: name a server behind it as HOST@NET")),
    };
    let route = match route {
        Ok(route) => route,
        Err(why) => {
            answer(core, side, (&request, RouteStatus::Bad, 0), &why).await?;
            return Ok(false);
        }
    };
    if route.target == Target::Router {
        drop(greeting);
        return watch::keep(core, (side, client), &request, route.initiator).await.map(|()| false);
    }
    if let Target::Hop { network, behind } = &route.target
        && (*behind == 0 || core.routes.is_in(network))
    {
        // It counts as one that is greeted, of which there is a limit, for as long as it asks.
        return questions(core, side, &request).await.map(|()| false);
    }
    let opened = match begin_wait(core, client, &route.target) {
        Ok(wait) => {
            drop(greeting);
            let opened = unless_gone(side, open(core, &route, client, began)).await?;
            drop(wait);
            opened
        }
        Err(refusal) => Err(refusal),
    };
    match opened {
        Ok(opened) => begin(core, (side, &request), (&route, client), opened).await,
        Err(Refusal { status, hop, why, names }) => {
            let names = names.unwrap_or_else(|| [NONE.to_owned(), client.to_string(), NONE.to_owned()]);
            core.refused([&names[0], &names[1], &names[2]]);
            answer(core, side, (&request, status, hop), &why).await?;
            Ok(false)
        }
    }
}

/// A place for a connection that waits for its target.
fn begin_wait(core: &Arc<Core>, client: IpAddr, target: &Target) -> Result<Wait, Refusal> {
    core.begin_wait(client, target).map_err(|why| match why {
        NoWait::Full => Refusal::own(RouteStatus::Full, "as many connections wait for their targets as may"),
        // Of this target alone, so that nobody goes around this router for others.
        NoWait::Silent => {
            let why = format!("as many connections as may wait already for {target}, which does not answer");
            Refusal::own(RouteStatus::TimedOut, why)
        }
    })
}

/// Answers who looks at the way by this router.
async fn questions(core: &Core, side: &Side, request: &Header) -> io::Result<()> {
    let at = side.socket.local_addr().ok().and_then(|address| address.as_socket());
    let name = at.map_or_else(|| core.config.name.clone(), |at| format!("{} at {at}", core.config.name));
    answer(core, side, (request, RouteStatus::Open, 0), &name).await?;
    let mut pace = Pace::default();
    loop {
        pace.next(&core.group).await;
        let silent = || io::Error::new(io::ErrorKind::TimedOut, "no question came in time");
        let (header, _) = core.group.within(PREAMBLE_MAX, receive(side)).await.ok_or_else(silent)??;
        if header.kind != Kind::Ping {
            return Ok(());
        }
        send(&core.group, side, Header { request: header.request, ..Header::new(Kind::Pong) }, &[]).await?;
    }
}

/// Why a connection is not passed on.
struct Refusal {
    status: RouteStatus,
    hop: u8,
    why: String,
    names: Option<[String; 3]>,
}

impl Refusal {
    fn own(status: RouteStatus, why: impl Into<String>) -> Refusal {
        Refusal { status, hop: 0, why: why.into(), names: None }
    }
}

/// What has an answer of its own keeps it; the rest is this router's.
async fn answer(
    core: &Core,
    side: &Side,
    (request, status, hop): (&Header, RouteStatus, u8),
    why: &str,
) -> io::Result<()> {
    let text = match (hop, status) {
        (0, status) if status != RouteStatus::Open => format!("router {}: {why}", core.config.name),
        _ => why.to_owned(),
    };
    let mut body = Vec::new();
    RouteReply { status, hop, text }.encode(&mut body);
    send(&core.group, side, Header { request: request.request, ..Header::new(Kind::RouteReply) }, &body).await
}

/// The next hop, connected and asked.
struct Opened {
    side: Arc<Side>,
    address: SocketAddr,
    /// The flow's number here.
    number: u64,
    /// Where it is counted.
    names: [String; 3],
    /// It is a router.
    is_gateway: bool,
    /// What it answers.
    reply: RouteReply,
}

/// Where to try, the best first.
struct Nexts {
    network: NetworkName,
    nexts: Vec<SocketAddr>,
    /// It is the target itself.
    is_here: bool,
}

fn nexts(core: &Core, route: &Route, began: Instant) -> Result<Nexts, Refusal> {
    match core.routes.next(&route.target, route.hops_left, began) {
        Next::Here(network, address) => Ok(Nexts { network, nexts: vec![address], is_here: true }),
        Next::By(network, nexts) => Ok(Nexts { network, nexts, is_here: false }),
        Next::Nowhere(why) => Err(Refusal::own(RouteStatus::NoRoute, why)),
        Next::Refused(why) => Err(Refusal::own(RouteStatus::Refused, why)),
    }
}

async fn open(core: &Arc<Core>, route: &Route, client: IpAddr, began: Instant) -> Result<Opened, Refusal> {
    if route.hops_left == 0 {
        return Err(Refusal::own(RouteStatus::TooFar, "it came through as many routers as it may"));
    }
    let Nexts { network, nexts, is_here } = nexts(core, route, began)?;
    let names = |next: Option<SocketAddr>| {
        let route = match (is_here, next) {
            (false, Some(gateway)) => format!("{network}@{gateway}"),
            _ => network.to_string(),
        };
        [route, client.to_string(), network.to_string()]
    };
    if let Some((status, why)) = core.refuses(client, route.lane) {
        return Err(Refusal { names: Some(names(None)), ..Refusal::own(status, why) });
    }
    let end = began + DIAL_MAX.min(Duration::from_millis(route.time_left_ms.saturating_sub(RETURN_MS).into()));
    let number = core.number();
    let mut last = Refusal::own(RouteStatus::TimedOut, "there was no time for another try");
    for (index, next) in nexts.iter().enumerate() {
        let left = end.saturating_duration_since(Instant::now());
        // A gateway that does not answer leaves time for the others.
        let part = left / (nexts.len() - index) as u32;
        if part.is_zero() {
            break;
        }
        let names = names(Some(*next));
        match attempt(core, (route, number), (*next, !is_here), part).await {
            Ok((side, reply)) => {
                return Ok(Opened { side, address: *next, number, names, is_gateway: !is_here, reply });
            }
            // Its own gateways were all asked: were each router to ask others as well, a dead
            // target would be asked for by all ways that there are.
            Err(told) if told.hop > 1 && !told.status.is_passing() => {
                return Err(Refusal { names: Some(names), ..told });
            }
            Err(told) => last = Refusal { names: Some(names), ..told },
        }
    }
    Err(last)
}

/// Tries one next hop, and notes how it fared if it is a gateway.
async fn attempt(
    core: &Arc<Core>,
    (route, number): (&Route, u64),
    (next, is_gateway): (SocketAddr, bool),
    time: Duration,
) -> Result<(Arc<Side>, RouteReply), Refusal> {
    let tried = core.group.within(time, dial(core, (route, number), next, time)).await;
    let (now, routes) = (Instant::now(), &core.routes);
    match tried {
        Some(Ok((side, reply))) if reply.status == RouteStatus::Open => {
            routes.works(next, now);
            routes.leads_to(next, &route.target);
            Ok((side, reply))
        }
        Some(Ok((side, reply))) => {
            side.leave();
            if is_gateway {
                routes.works(next, now);
            }
            if is_gateway && reply.status.is_passing() {
                routes.is_full(next, now);
            } else if is_gateway {
                routes.leads_not_to(next, &route.target, now);
            }
            Err(Refusal { hop: reply.hop.saturating_add(1), ..Refusal::own(reply.status, reply.text) })
        }
        unheard => {
            if is_gateway {
                match &unheard {
                    Some(Err(error)) if is_absent(error) => routes.failed(next, now),
                    // The initiator had little patience, or what lies behind is dead: this router
                    // asks itself whether the gateway is there.
                    _ => {
                        routes.doubt(next, now);
                        if time >= PART_MIN {
                            routes.leads_not_to(next, &route.target, now);
                        }
                    }
                }
                watch_gateways(routes);
            }
            Err(match unheard {
                Some(Err(error)) => {
                    Refusal::own(RouteStatus::Unreachable, format!("cannot connect to {next}: {error}"))
                }
                _ => Refusal::own(RouteStatus::TimedOut, format!("{next} did not answer within {time:.1?}")),
            })
        }
    }
}

async fn dial(
    core: &Arc<Core>,
    (route, number): (&Route, u64),
    next: SocketAddr,
    time: Duration,
) -> io::Result<(Arc<Side>, RouteReply)> {
    let started = Instant::now();
    let side = connect(&core.group, next, core.buffer(route.lane)).await?;
    let guarded = Guarded::new(side.clone());
    let left = time.saturating_sub(started.elapsed());
    let target = match &route.target {
        Target::Hop { network, behind } => Target::Hop { network: network.clone(), behind: behind.saturating_sub(1) },
        target => target.clone(),
    };
    let onward = Route {
        target,
        hops_left: route.hops_left.min(HOPS_MAX) - 1,
        time_left_ms: left.as_millis().try_into().unwrap_or(u32::MAX),
        lane: route.lane,
        initiator: core.initiator,
        flow: number,
    };
    let mut body = Vec::new();
    onward.encode(&mut body);
    send(&core.group, &side, Header::new(Kind::Route), &body).await?;
    let (header, body) = receive(&side).await?;
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    if header.kind != Kind::RouteReply {
        return Err(invalid(format!("it answers with {:?}: it is no router or server of this release", header.kind)));
    }
    let reply = RouteReply::decode(&body).map_err(|error| invalid(error.to_string()))?;
    guarded.hand_over();
    Ok((side, reply))
}

/// Takes a place, tells the initiator, and moves what comes.
async fn begin(
    core: &Arc<Core>,
    (near, request): (&Arc<Side>, &Header),
    (route, client): (&Route, IpAddr),
    opened: Opened,
) -> io::Result<bool> {
    let Opened { side: far, address, number, names, is_gateway, reply } = opened;
    let guarded = Guarded::new(far.clone());
    if let Err((status, why)) = core.enter(client, route.lane) {
        core.refused([&names[0], &names[1], &names[2]]);
        answer(core, near, (request, status, 0), why).await?;
        return Ok(false);
    }
    set_buffers(&near.socket, core.buffer(route.lane));
    let about = About {
        number,
        theirs: route.flow,
        initiator: route.initiator,
        target: route.target.to_string(),
        client: client.to_string(),
        next: address.to_string(),
        is_bulk: route.lane == Lane::Bulk,
        series: core.counters.series([&names[0], &names[1], &names[2]]),
    };
    guarded.hand_over();
    for side in [near, &far] {
        if let Err(error) = crate::socket::guard(&side.socket, core.config.suspect) {
            tracing::debug!(%error, "a flow's idle peers are not asked");
        }
    }
    // Listed before its initiator hears of it: whatever is told of all flows from then on is told
    // of this one.
    let flow = core.add(about, (client, route.lane), [near.clone(), far]);
    if let Some(seconds) = core.stops_in() {
        watch::tell(core, seconds, Some(&[number]));
    }
    let hop = reply.hop.saturating_add(1);
    answer(core, near, (request, RouteStatus::Open, hop), &reply.text).await.inspect_err(|_| flow.abort())?;
    flow.begin().inspect_err(|_| flow.abort())?;
    if is_gateway {
        watch::listen(core, address);
    }
    Ok(true)
}
