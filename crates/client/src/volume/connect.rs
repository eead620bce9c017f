//! How a volume is connected.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use aqueduct_session::{ConnectError, Holder, Session, SessionConfig};
use aqueduct_worker::Group;

use super::above::Above;
use super::behind::Behind;
use super::flights::Flights;
use super::lanes::AllLanes;
use super::map::Map;
use super::movers::Movers;
use super::opens::Opens;
use super::parts::Volume;
use super::seam::Seam;

/// One session of a volume, and who keeps what it grants.
pub(crate) struct Member {
    pub(crate) config: SessionConfig,
    pub(crate) above: Option<Arc<dyn Above>>,
}

impl Volume {
    /// Connects to the members, of which there is one at least. A map tells which serves what;
    /// where there is one member, there is no need of a map. Movers are connected to later.
    pub(crate) fn connect(
        members: Vec<Member>,
        (map, movers): (Option<Arc<dyn Map>>, Option<Movers>),
        opens: Arc<Opens>,
        groups: &[Arc<Group>],
    ) -> Result<Arc<Volume>, ConnectError> {
        let (mut sessions, mut seams, mut above) = (Vec::new(), Vec::new(), Vec::new());
        for (session, member) in members.into_iter().enumerate() {
            let new = || Seam {
                session,
                opens: opens.clone(),
                above: member.above.clone(),
                map: AtomicU64::new(0),
                volume: OnceLock::new(),
            };
            let seam = (member.above.is_some() || movers.is_some()).then(|| Arc::new(new()));
            let holder = seam.clone().map(|seam| seam as Arc<dyn Holder>);
            let connected = Session::connect(member.config, groups, holder);
            // Those that were connected before say goodbye, so that their servers keep nothing for
            // them.
            sessions.push(connected.inspect_err(|_| sessions.iter().for_each(|it: &Arc<Session>| it.disconnect()))?);
            seams.extend(seam);
            above.push(member.above);
        }
        let map = map.filter(|_| sessions.len() > 1);
        let volume = Arc::new_cyclic(|this| Volume {
            sessions,
            map,
            opens,
            movers,
            above,
            flights: Flights::default(),
            lanes: AllLanes::default(),
            left: Mutex::default(),
            behind: Behind::default(),
            this: this.clone(),
        });
        for seam in seams {
            seam.volume.get_or_init(|| Arc::downgrade(&volume));
            volume.map_is(seam.map.load(Ordering::SeqCst));
        }
        Ok(volume)
    }
}
