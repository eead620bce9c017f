//! Those who come to the server, until they have a session.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aqueduct_net::{Connection, Mode, Peer};
use aqueduct_worker::Group;
use socket2::Socket;

use crate::complaints::Complaint;
use crate::endpoint::ServerEndpoint;
use crate::frames::goodbye;
use crate::listeners::Door;
use crate::origin::Identity;
use crate::state::Server;

impl Server {
    /// Whether another connection of a client is taken, which is then counted; else why not.
    fn may_come(&self, peer: Identity) -> Result<(), String> {
        let limits = &self.config.limits;
        if self.connections.load(Ordering::SeqCst) >= limits.connections_max {
            return Err(format!("all {} are taken", limits.connections_max));
        }
        self.unjoined.come(peer, limits)
    }
}

impl Door for Server {
    fn group(&self) -> &Arc<Group> {
        &self.group
    }

    fn refuses(&self, error: &io::Error) {
        let what = format_args!(
            "connections cannot be accepted: {error}; raise this process's limits on open files and memory"
        );
        self.complaints.tell(Identity::Server, Complaint::Exhausted, what);
    }

    fn welcome(&self, socket: Socket, peer: Peer) {
        if self.draining.load(Ordering::SeqCst) {
            return;
        }
        if let Err(reason) = self.may_come(peer.into()) {
            self.metrics.refused.increment();
            self.complaints.tell(peer, Complaint::Refused, format_args!("refused a connection: {reason}"));
            // There is room for it, unless the peer has gone.
            let _ = socket.send(&goodbye(&reason));
            return;
        }
        let Some(server) = self.this.upgrade() else { return };
        self.reach.answer_where_it_came(&socket, peer);
        let endpoint = Arc::new(ServerEndpoint::new(server, peer));
        // The lane is not known yet: read ahead little, which serves both.
        let mode = Mode { bulk: true, shared: true, suspect: self.config.limits.suspect };
        self.connections.fetch_add(1, Ordering::SeqCst);
        self.metrics.accepted.increment();
        match Connection::start(&self.group, socket, mode, self.pool.clone(), endpoint.clone()) {
            Ok(connection) => {
                connection.set_unproven();
                connection.set_hoards(self.hoarders.has(&peer.into()));
                let (group, pause) = (Arc::downgrade(&self.group), self.config.limits.hello_timeout);
                let connection = Arc::downgrade(&connection);
                let mut timeout = self.group.sleep(pause);
                self.group.spawn(async move {
                    loop {
                        timeout.await;
                        let (Some(group), Some(connection)) = (group.upgrade(), connection.upgrade()) else { return };
                        if endpoint.is_in_time(&connection) {
                            return;
                        }
                        timeout = group.sleep(pause);
                    }
                });
            }
            Err(error) => {
                self.connections.fetch_sub(1, Ordering::SeqCst);
                endpoint.joined_or_gone();
                self.complaints.tell(peer, Complaint::Exhausted, format_args!("could not start a connection: {error}"));
            }
        }
    }
}
