//! Whether the peer is still there.
//!
//! An idle connection is the kernel's business: its keepalive asks. While something is on its way keepalive rests, and the kernel's own limits either
//! take a quarter of an hour or (TCP_USER_TIMEOUT) also end connections whose peer answers and only does not read. So while anything is on its way a
//! task looks from time to time at what the kernel knows, and ends with the traffic: an idle process is not woken.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aqueduct_worker::Group;

use crate::sys::TcpInfo;

/// The shortest time after which a peer may be suspected: keepalive counts in whole seconds, one to wait and one for the answer.
pub const SUSPECT_MIN: Duration = Duration::from_secs(2);

/// So many tries without an answer, at least, show that the path is dead, and not just slow.
const TRIES_MIN: u32 = 2;

/// While a peer is silent for longer than it may be, but has not been asked often enough: looks in the time in which it is suspected.
const LOOKS: u32 = 10;

/// Of one connection.
pub(crate) struct Liveness {
    suspect: Duration,
    group: Weak<Group>,
    watched: AtomicBool,
}

/// What a look at a connection says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing is on its way.
    Idle,
    /// Nobody has answered for so long.
    Dead(Duration),
    /// Look again then.
    Later(Duration),
}

/// Judges what the kernel knows. A peer that answers is alive, whether or not it reads.
pub(crate) fn judge(info: &TcpInfo, suspect: Duration) -> Verdict {
    let silent = Duration::from_millis(info.acknowledgement_age.min(info.data_age).into());
    let asked = if info.unacknowledged > 0 { info.retransmits } else { info.probes };
    if info.unacknowledged == 0 && info.unsent == 0 {
        Verdict::Idle
    } else if silent < suspect {
        Verdict::Later(suspect - silent)
    } else if asked >= TRIES_MIN {
        Verdict::Dead(silent)
    } else {
        Verdict::Later(suspect / LOOKS)
    }
}

/// Whether a peer that has reset the connection had heard nothing from here any more: it is cut
/// off in one direction, and has not left. A process that is killed resets as well, when it has
/// not read all that came; but then its kernel has just acknowledged what was sent, or had no time
/// to.
pub(crate) fn was_cut(info: &TcpInfo, suspect: Duration) -> bool {
    info.retransmits >= TRIES_MIN || Duration::from_millis(info.sent_age.into()) >= suspect / 2
}

impl Liveness {
    /// `may_vanish`: the peer is reached over a network. The end of any other is told at once, and
    /// nobody has to look for it.
    pub(crate) fn new(may_vanish: bool, suspect: Duration, group: Weak<Group>) -> Liveness {
        Liveness { suspect, group, watched: AtomicBool::new(!may_vanish) }
    }

    /// Something was sent: has the connection watched until all of it is acknowledged. `look` says
    /// when to look again.
    pub(crate) fn sent<C>(&self, connection: &Weak<C>, look: impl Fn(&C) -> Option<Duration> + Send + 'static)
    where
        C: Send + Sync + 'static,
    {
        if self.watched.load(Ordering::Relaxed) || self.watched.swap(true, Ordering::SeqCst) {
            return;
        }
        let Some(group) = self.group.upgrade() else { return };
        let (connection, first) = (connection.clone(), group.sleep(self.suspect));
        let sleep = {
            let group = self.group.clone();
            move |time| group.upgrade().map(|group| group.sleep(time))
        };
        group.spawn(async move {
            first.await;
            while let Some(pause) = connection.upgrade().and_then(|connection| look(&connection)) {
                let Some(pause) = sleep(pause) else { return };
                pause.await;
            }
        });
    }

    /// One look; how long until the next, if there is to be one.
    pub(crate) fn look(&self, info: impl Fn() -> Option<TcpInfo>, close: impl FnOnce(String)) -> Option<Duration> {
        match judge(&info()?, self.suspect) {
            Verdict::Later(pause) => Some(pause),
            Verdict::Dead(silent) => {
                close(format!("the peer has not answered for {silent:.1?}"));
                None
            }
            Verdict::Idle => {
                self.watched.store(false, Ordering::SeqCst);
                // Looked at once more: what was sent before the flag fell has found it raised.
                let more = judge(&info()?, self.suspect) != Verdict::Idle;
                (more && !self.watched.swap(true, Ordering::SeqCst)).then_some(self.suspect)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUSPECT: Duration = Duration::from_secs(5);

    fn waiting() -> TcpInfo {
        TcpInfo { unacknowledged: 3, retransmits: 4, data_age: 60_000, acknowledgement_age: 5000, ..TcpInfo::default() }
    }

    #[test]
    fn a_peer_that_answers_nothing_is_dead() {
        assert_eq!(judge(&waiting(), SUSPECT), Verdict::Dead(SUSPECT));
        let no_room = TcpInfo { unacknowledged: 0, unsent: 1, probes: 2, retransmits: 0, ..waiting() };
        assert_eq!(judge(&no_room, SUSPECT), Verdict::Dead(SUSPECT));
    }

    #[test]
    fn a_peer_that_answers_is_alive() {
        let sends = TcpInfo { data_age: 1000, ..waiting() };
        assert_eq!(judge(&sends, SUSPECT), Verdict::Later(Duration::from_secs(4)));
        let acknowledges = TcpInfo { acknowledgement_age: 4999, ..waiting() };
        assert_eq!(judge(&acknowledges, SUSPECT), Verdict::Later(Duration::from_millis(1)));
        // It said that it has no room and has not been asked again for long, since the kernel asks ever more seldom.
        let full = TcpInfo { unacknowledged: 0, unsent: 100, probes: 0, acknowledgement_age: 100_000, ..waiting() };
        assert_eq!(judge(&full, SUSPECT), Verdict::Later(SUSPECT / LOOKS));
        let slow = TcpInfo { retransmits: 1, ..waiting() };
        assert_eq!(judge(&slow, SUSPECT), Verdict::Later(SUSPECT / LOOKS));
    }

    #[test]
    fn who_heard_nothing_any_more_was_cut_off() {
        let unheard = TcpInfo { retransmits: 2, sent_age: 300, ..TcpInfo::default() };
        assert!(was_cut(&unheard, SUSPECT));
        let idle = TcpInfo { sent_age: 5000, ..TcpInfo::default() };
        assert!(was_cut(&idle, SUSPECT), "its kernel's questions were not answered");
        let killed = TcpInfo { retransmits: 0, sent_age: 20, ..TcpInfo::default() };
        assert!(!was_cut(&killed, SUSPECT) && !was_cut(&TcpInfo { retransmits: 1, ..killed }, SUSPECT));
    }

    #[test]
    fn an_idle_connection_is_not_watched() {
        let idle = TcpInfo { data_age: 100_000, acknowledgement_age: 100_000, ..TcpInfo::default() };
        assert_eq!(judge(&idle, SUSPECT), Verdict::Idle);
    }
}
