//! Sessions that an earlier process left: which of their requests had been executed, and which of
//! their clients come back.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use aqueduct_fs::{Cancel, ClientId, Errno};
use aqueduct_wire::{Header, Kind, Op};
use aqueduct_worker::{Group, lock};

use crate::attached::Attached;
use crate::config::{Limits, Role};
use crate::frames::reply_header;
use crate::intent;
use crate::journal::{Folder, Head, Left, Outcome, Record};
use crate::lease::clock::now;
use crate::lease::keeper::Believers;
use crate::session::Session;
use crate::state::Server;

/// So long it is waited at a start for what tells whether a request was executed, as the bytes of
/// an append, which may lie at another server.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// And when one look was that long in vain: the server does not answer, and a start is waited for.
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(1);

/// Waits for a look for as long as looks are waited for. `None`: longer.
async fn in_time<T>(group: &Group, patience: &mut Duration, look: impl Future<Output = T>) -> Option<T> {
    let seen = group.within(*patience, look).await;
    if seen.is_none() {
        *patience = LOOK_AGAIN_MAX;
    }
    seen
}

/// Finds out which of the requests under way had been executed. These have their replies from now
/// on. The others count as never sent. Where nobody can tell in time, the answer is EIO: sent once
/// more, an append could be there twice.
async fn settle_intents(left: &mut Left, attached: &Attached, (group, patience): (&Group, &mut Duration)) {
    let (client, present) = (ClientId(left.head.session), left.head.era);
    let maps = attached.maps();
    for (class, slot, Record { sequence, op, era, outcome }) in &mut left.slots {
        let Outcome::Intended(intent) = outcome else { continue };
        let place = Header { class: *class, slot: *slot, op: *op, ..Header::new(Kind::Request) };
        let request = Header { sequence: *sequence, ..place };
        let settled = match Op::from_code(*op) {
            Some(op) => {
                let look = intent::settle(&*attached.filesystem, (maps, *era != present), (client, op), intent);
                in_time(group, patience, look).await.unwrap_or_else(|| {
                    tracing::error!(
                        client = %left.head.client, ?op,
                        "nobody can tell whether a request of before the start was executed, as what it changed cannot \
                         be looked at now: its program gets EIO; see which server does not answer"
                    );
                    Some(Err(Errno::EIO))
                })
            }
            None => None,
        };
        match settled {
            Some(result) => {
                let header = reply_header(&request, Kind::Reply, result.as_ref().map(|_| ()).map_err(|error| *error));
                let mut body = Vec::new();
                if let Ok(reply) = &result {
                    aqueduct_wire::encode_reply(reply, &mut body);
                }
                left.journal.settle(&request, *era, &header, &body);
                *outcome = Outcome::Replied { header, body };
            }
            None => {
                *sequence = sequence.wrapping_sub(1);
                left.journal.retract(&Header { sequence: *sequence, ..place }, *era);
                *outcome = Outcome::Forgotten;
            }
        }
    }
}

impl Server {
    /// Puts the sessions of earlier processes into the table. A session ends if its client does
    /// not come in time.
    pub(crate) fn restore(&self, folder: &Folder) -> io::Result<()> {
        let (left, believed) = folder.left(self.config.limits.sessions_max, |head| self.attach(head).is_some())?;
        // On a thread of its own, which may act as whoever was to be served, and wait.
        let restored = std::thread::scope(|scope| {
            let restore_all = async {
                let (mut restored, mut patience) = (Vec::new(), LOOK_MAX);
                for left in left {
                    restored.extend(self.restore_session(left, &mut patience).await);
                }
                restored
            };
            let restore = || aqueduct_worker::wait(&self.group, restore_all);
            std::thread::Builder::new()
                .name("restore".into())
                .spawn_scoped(scope, restore)?
                .join()
                .map_err(|_| io::Error::other("restoring the sessions of an earlier process failed"))
        })?;
        let replays = restored.iter().any(|(session, ..)| session.has_lost);
        // Those of whom a record says that they asked for leases.
        let mut believers = Believers::default();
        for (session, believes, _) in restored.iter().filter(|(_, believes, _)| !believes.is_zero()) {
            believers.missing.insert(session.id);
            believers.patience = believers.patience.max(*believes);
        }
        let writers = restored.iter().filter(|(.., may_flush)| *may_flush).map(|(session, ..)| session.id);
        believers.writers.extend(writers);
        let lapsed_at = if believed.is_zero() { Duration::ZERO } else { now() + believed };
        self.leases.start(believers, folder.lapsed_at(now()).max(lapsed_at));
        self.await_rights();
        let mut sessions = lock(&self.sessions);
        sessions.extend(restored.into_iter().map(|(session, ..)| (session.id, Arc::new(session))));
        self.recovery.begin(sessions.keys().copied(), replays);
        let count = sessions.len();
        drop(sessions);
        if count > 0 {
            tracing::info!(sessions = count, grace = ?self.config.limits.recovery_grace, "waiting for the clients of before the restart");
            self.end_recovery_later();
        }
        Ok(())
    }

    /// Servers of data that had rights may still write. No client looks at anything before they
    /// have stopped.
    fn await_rights(&self) {
        let Role::Names(granter) = &self.config.role else { return };
        self.leases.bar();
        let (granter, server, floor) = (granter.clone(), self.weak(), granter.revoke(None));
        self.group.spawn(async move {
            let Some(server) = server.upgrade() else { return };
            if server.rights_over(&granter, None, floor).await {
                server.leases.admit_all();
            }
        });
    }

    /// Whether clients of before the restart have not recovered yet.
    pub fn is_recovering(&self) -> bool {
        !self.recovery.is_over()
    }

    /// Ready when the clients of before the restart have again what they had, or are not waited
    /// for any more: what none of them has open by then, nobody will ask for.
    pub fn recovered(&self) -> impl Future<Output = ()> + Send + use<> {
        let recovery = self.recovery.clone();
        async move {
            let never = Cancel::default();
            _ = recovery.over(&never).await;
        }
    }

    /// A session, for how long its client may believe what it was granted, and whether it may
    /// still send what it held back.
    async fn restore_session(&self, mut left: Left, patience: &mut Duration) -> Option<(Session, Duration, bool)> {
        let (believes, may_flush) = (left.head.believes(), left.head.may_flush());
        let attached = self.attach(&left.head)?;
        if !attached.export.durable {
            left.journal
                .end_with_machine(&left.head)
                .inspect_err(|error| tracing::error!(client = %left.head.client, %error, "its session is given up"))
                .ok()?;
        }
        let has_lost = left.head.verifier != self.config.verifier;
        settle_intents(&mut left, &attached, (&self.group, patience)).await;
        let session = Session::restored(left, attached, has_lost, &self.replies);
        session.count_in(&self.metrics);
        Some((session, believes, may_flush))
    }

    /// The export of a session, as the present configuration gives it to the session's host.
    /// `None`: it does not.
    fn attach(&self, head: &Head) -> Option<Attached> {
        Attached::new(self.export(&head.export)?, &head.origin.clone().into())
    }

    /// Those that do not come within the grace are given up. Those that are back have longer to
    /// have again what they had: what they had open may be removed, and is theirs alone.
    fn end_recovery_later(&self) {
        let Limits { recovery_grace, recovery_max, .. } = self.config.limits;
        let (server, grace) = (self.weak(), self.group.sleep(recovery_grace));
        let bound = self.group.sleep(recovery_max.max(recovery_grace));
        self.group.spawn(async move {
            grace.await;
            match server.upgrade() {
                Some(server) => server.end_those_not_back(recovery_max),
                None => return,
            }
            bound.await;
            let count = server.upgrade().map_or(0, |server| server.recovery.end());
            if count > 0 {
                tracing::warn!(clients = count, waited = ?recovery_max, "clients that are back have not recovered, and are not waited for any more: others take locks again, and files that were removed while open are given up unless these have them open by now; see the logs of the clients");
            }
        });
    }

    fn end_those_not_back(&self, recovery_max: Duration) {
        let sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        // Those that have come and gone end as any other.
        for session in sessions.iter().filter(|session| session.is_recovering() && session.end_if_forsaken(0)) {
            tracing::info!(client = %session.name, peer = %session.origin, "the client did not come back after the restart");
            self.end_session(session);
        }
        let count = self.recovery.missing();
        if count > 0 {
            tracing::info!(clients = count, at_most = ?recovery_max, "the grace is over, and clients that are back have yet to have again what they had: they are waited for");
        }
    }
}
