//! Initiators that are told of what happens here.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_wire::{
    FLOWS_TOLD_MAX, Header, Kind, Lane, ROUTE_LENGTH_MAX, Route, RouteHeld, RouteHeldReply, RouteNotice, RouteReply,
    RouteStatus, Target,
};
use aqueduct_worker::lock;

use crate::relay::admission::BUFFER_MIN;
use crate::relay::core::{Core, Watcher};
use crate::relay::flow::{Flow, Side};
use crate::relay::frames::{connect, receive, send};
use crate::relay::pace::Pace;
use crate::relay::shares::has_room;

/// Flows that one notice names: a frame that is no longer than a preamble.
const FLOWS_OF_NOTICE_MAX: usize = (ROUTE_LENGTH_MAX - 6) / 8;

const _: () = assert!(FLOWS_OF_NOTICE_MAX <= FLOWS_TOLD_MAX);

/// Between tries to listen to a gateway.
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

/// How long a gateway may take to answer that.
const LISTEN_MAX: Duration = Duration::from_secs(5);

/// Between questions whether a gateway is there.
const ASK_PAUSE: Duration = Duration::from_secs(2);

/// Keeps a connection on which its initiator is told of its flows, until it ends.
pub(crate) async fn keep(
    core: &Arc<Core>,
    (side, client): (&Arc<Side>, IpAddr),
    request: &Header,
    initiator: [u8; 16],
) -> io::Result<()> {
    let number = core.number();
    let watcher = Watcher { initiator, client, side: side.clone() };
    let is_full = {
        let mut watchers = lock(&core.watchers);
        let its = watchers.values().filter(|watcher| watcher.client == client).count();
        let is_full = !has_room(its, watchers.len(), core.config.limits.watchers_max);
        if !is_full {
            watchers.insert(number, watcher.clone());
        }
        is_full
    };
    let status = if is_full { RouteStatus::Full } else { RouteStatus::Open };
    let mut body = Vec::new();
    RouteReply { status, hop: 0, text: String::new() }.encode(&mut body);
    let reply = Header { request: request.request, ..Header::new(Kind::RouteReply) };
    let result = async {
        send(&core.group, side, reply, &body).await?;
        crate::socket::guard(&side.socket, core.config.suspect)?;
        if is_full {
            return Ok(());
        }
        // What all were told before this one was there.
        if let Some(seconds) = core.stops_in() {
            tell_these(core, vec![watcher], seconds, None);
        }
        let mut pace = Pace::default();
        loop {
            pace.next(&core.group).await;
            let (header, body) = receive(side).await?;
            let (kind, body) = match header.kind {
                Kind::Ping => (Kind::Pong, Vec::new()),
                Kind::RouteHeld => (Kind::RouteHeldReply, held(core, initiator, &body)?),
                _ => return Ok(()),
            };
            send(&core.group, side, Header { request: header.request, ..Header::new(kind) }, &body).await?;
        }
    };
    let result = result.await;
    lock(&core.watchers).remove(&number);
    result
}

/// For how long bytes of a flow lay here, which has to be the initiator's. All its flows are looked
/// at from then on: its next request may go by another.
fn held(core: &Core, initiator: [u8; 16], body: &[u8]) -> io::Result<Vec<u8>> {
    let asked = RouteHeld::decode(body).map_err(|error| io::Error::other(error.to_string()))?;
    let flows = core.flows_of(&initiator);
    let flow = flows.iter().find(|flow| flow.about.theirs == asked.flow);
    let told = flow.map_or_else(RouteHeldReply::default, |flow| flow.answer(&asked));
    flows.iter().for_each(|flow| flow.held.look());
    let mut reply = Vec::new();
    told.encode(&mut reply);
    Ok(reply)
}

/// Tells initiators which of their flows end in so many seconds: all, or those with these numbers.
pub(crate) fn tell(core: &Arc<Core>, seconds: u32, only: Option<&[u64]>) {
    let watchers: Vec<Watcher> = lock(&core.watchers).values().cloned().collect();
    tell_these(core, watchers, seconds, only);
}

fn tell_these(core: &Arc<Core>, watchers: Vec<Watcher>, seconds: u32, only: Option<&[u64]>) {
    let flows = core.flows();
    for Watcher { initiator, side, .. } in watchers {
        let is_its = |flow: &&Arc<Flow>| {
            flow.about.initiator == initiator && only.is_none_or(|only| only.contains(&flow.about.number))
        };
        let its: Vec<u64> = flows.iter().filter(is_its).map(|flow| flow.about.theirs).collect();
        let notices: Vec<RouteNotice> = its
            .chunks(FLOWS_OF_NOTICE_MAX)
            .map(|flows| RouteNotice { stopping_seconds: seconds, flows: flows.to_vec() })
            .collect();
        let this = Arc::downgrade(core);
        core.group.spawn(async move {
            for notice in notices {
                let Some(core) = this.upgrade() else { return };
                let mut body = Vec::new();
                notice.encode(&mut body);
                if send(&core.group, &side, Header::new(Kind::RouteNotice), &body).await.is_err() {
                    // A part of the notice may be on its way. It ends where it is read.
                    return side.abort();
                }
            }
        });
    }
}

/// Has a gateway tell of flows that end there, as long as any lead by it.
pub(crate) fn listen(core: &Arc<Core>, gateway: SocketAddr) {
    if !lock(&core.heard).insert(gateway) {
        return;
    }
    let this = Arc::downgrade(core);
    core.group.spawn(async move {
        while let Some(core) = this.upgrade() {
            let next = gateway.to_string();
            let is_used = |core: &Core| core.flows().iter().any(|flow| flow.about.next == next);
            if !is_used(&core) || core.stops_in().is_some() {
                lock(&core.heard).remove(&gateway);
                // One that began meanwhile has found it there.
                if !is_used(&core) || !lock(&core.heard).insert(gateway) {
                    return;
                }
            }
            if let Err(error) = hear(&core, gateway, is_used).await {
                tracing::debug!(%gateway, %error, "does not tell of flows that end");
            }
            let pause = core.group.sleep(LISTEN_PAUSE);
            drop(core);
            pause.await;
        }
    });
}

/// Hears what a gateway tells, until no flow leads by it or it ends.
async fn hear(core: &Arc<Core>, gateway: SocketAddr, is_used: impl Fn(&Core) -> bool) -> io::Result<()> {
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    let side = core.group.within(LISTEN_MAX, connect(&core.group, gateway, BUFFER_MIN)).await.ok_or_else(late)??;
    let heard = async {
        let mut body = Vec::new();
        Route {
            target: Target::Router,
            hops_left: 1,
            time_left_ms: LISTEN_MAX.as_millis() as u32,
            lane: Lane::Control,
            initiator: core.initiator,
            flow: 0,
        }
        .encode(&mut body);
        send(&core.group, &side, Header::new(Kind::Route), &body).await?;
        let mut pace = Pace::default();
        // A frame is never left half read. It is waited for over the pauses too: a notice is not to
        // wait for the end of one, since its flows end soon.
        let mut next = pin!(receive(&side));
        let mut is_asked = true;
        loop {
            let patience = if is_asked { LISTEN_MAX } else { ASK_PAUSE };
            let Some(frame) = core.group.within(patience, next.as_mut()).await else {
                if is_asked {
                    return Err(late());
                }
                if !is_used(core) {
                    return Ok(());
                }
                send(&core.group, &side, Header::new(Kind::Ping), &[]).await?;
                is_asked = true;
                continue;
            };
            let (header, body) = frame?;
            match header.kind {
                Kind::RouteNotice => {
                    let notice = RouteNotice::decode(&body).map_err(|error| io::Error::other(error.to_string()))?;
                    tell(core, notice.stopping_seconds, Some(&notice.flows));
                }
                Kind::RouteReply | Kind::Pong if is_used(core) => is_asked = false,
                _ => return Ok(()),
            }
            pace.next(&core.group).await;
            next.set(receive(&side));
        }
    };
    let result = heard.await;
    side.leave();
    result
}
