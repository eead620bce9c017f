//! Links that end without their session.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aqueduct_wire::{Header, Kind};

use crate::frames::send;
use crate::links::Link;
use crate::session::Session;
use crate::state::Server;

/// So often is looked whether a client has taken the last frame of a link.
const TAKEN_LOOKS: Duration = Duration::from_millis(10);

impl Server {
    /// Ends these links of a session: nothing that came by them is begun any more, and what waits
    /// there is asked to stop.
    pub(crate) fn give_up_links(&self, session: &Session, links: &[Arc<Link>]) {
        links.iter().for_each(|link| link.give_up());
        session.waits.left(); // also those of links that were retired
        self.leases.wake_all_of(session.client());
    }

    /// A client retires a link: what is executed is answered, and what waits is the session's,
    /// which tells of its end by any link; then the link is closed, its last frame saying so.
    pub(crate) fn retire(&self, session: &Arc<Session>, number: u32) {
        let is_it = |of: u32| of == number;
        let Some(link) = session.links(is_it).pop() else { return };
        let Some(connection) = link.last_connection() else { return };
        if link.is_retired.swap(true, Ordering::SeqCst) {
            return; // once is enough, however often it is said
        }
        let (server, session) = (self.weak(), session.clone());
        self.group.spawn(async move {
            std::future::poll_fn(|task| link.poll_idle(task)).await;
            link.is_over.store(true, Ordering::SeqCst);
            // What has come in between, and may wait now.
            std::future::poll_fn(|task| link.poll_idle(task)).await;
            session.waits.outlive(&link);
            // Whose wait had just ended tells it here still.
            std::future::poll_fn(|task| link.poll_idle(task)).await;
            let mut body = Vec::new();
            aqueduct_wire::encode_retire(number, &mut body);
            send(&connection, Header::new(Kind::Retire), &body);
            aqueduct_worker::Flush::flush(&*connection);
            // However long a client takes for what it was answered: its session bounds it.
            while !connection.is_closed() && !connection.is_taken() {
                let Some(pause) = server.upgrade().map(|server| server.group.sleep(TAKEN_LOOKS)) else { return };
                pause.await;
            }
            connection.close("its client retired it".into());
        });
    }
}
