//! Who gives rights at servers of data, and takes them back: see [`right`](super).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use aqueduct_wire::{Beat, BeatReply, Map, Right, RightKey};
use aqueduct_worker::lock;

use super::repeated::Repeated;
use super::unsettled::Piece;
use crate::lease::Now;

/// How long a server of data may go on after it asked.
const AUTHORITY: Duration = Duration::from_secs(3);

/// How much longer is waited for one that does not answer: for who kills it, and for clocks that
/// run apart.
const PATIENCE: Duration = Duration::from_secs(2);

/// When a server of data is known to write nothing any more that it was given a right to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fence {
    /// When it says so, or who watches over it, or another start of it.
    #[default]
    Answer,
    /// Also when its authority has run out: a machine that stands still, or a thread that the
    /// kernel cannot end, may write after that.
    Timed,
}

/// A right that may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drawn {
    pub(crate) right: Right,
    /// The epoch of the map by which it was drawn.
    pub(crate) map: u64,
    /// Rights up to this one were to end at its place before it was drawn.
    pub(crate) floor: u64,
}

/// The servers of data of a map.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The map's epoch.
    pub map: u64,
    /// The place of each, and what the log calls it.
    pub servers: Vec<(u16, String)>,
}

impl Places {
    /// Those of this map.
    pub fn of(map: &Map) -> Places {
        let servers = map.data.iter().map(|server| (server.place, server.addresses.join(",")));
        Places { map: map.epoch, servers: servers.collect() }
    }
}

/// Who gives rights.
#[derive(Clone, Debug)]
pub struct GranterConfig {
    /// Of the volume.
    pub key: RightKey,
    /// The servers of data.
    pub places: Places,
    /// Where is written down which start of which of them was given a right.
    pub folder: PathBuf,
    /// See [`Fence`].
    pub fence: Fence,
    /// Which start of the server of the names this is.
    pub names: u64,
    /// Several clients may write one file at the same time.
    pub concurrent: bool,
}

/// See the module.
pub struct Granter {
    config: GranterConfig,
    state: Mutex<State>,
    repeated: Repeated,
}

#[derive(Default)]
struct State {
    /// The latest right.
    latest: u64,
    /// The epoch of the map that holds.
    map: u64,
    places: BTreeMap<u16, Place>,
    /// Who waits for the end of rights.
    waiting: Vec<Waker>,
}

#[derive(Default)]
struct Place {
    /// What the log calls it.
    name: String,
    /// The map has it no more: it is there until nothing is executed under its rights.
    is_gone: bool,
    /// Which start of it was heard last, or was given a right by the server of the names of
    /// before.
    data: u64,
    /// The start of it that is written down; 0: none.
    noted: u64,
    /// It obeys this start of the server of the names.
    obeys: bool,
    /// It may have rights that another one gave.
    has_old: bool,
    /// The latest right that this start of it was given; 0: none that might be used.
    given: u64,
    /// What is to be its floor, and what it says that it is.
    floor: u64,
    drained: u64,
    /// When it was answered last.
    answered: Now,
}

impl Place {
    /// Nothing is executed there of rights up to this one, nor will be.
    fn is_below(&self, floor: u64) -> bool {
        !self.has_old && self.drained >= floor.min(self.given)
    }

    /// Nothing is executed there under any right.
    fn is_idle(&self) -> bool {
        self.is_below(self.given)
    }

    /// Whoever had rights there has ended.
    fn ends(&mut self) {
        (self.obeys, self.has_old, self.given) = (false, false, 0);
    }
}

/// What the name of a note begins with, before the place.
const NOTE: &str = "rights-";

fn note_path(folder: &Path, place: u16) -> PathBuf {
    folder.join(format!("{NOTE}{place}"))
}

/// The places of which there are notes.
fn noted_places(folder: &Path) -> Vec<u16> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(NOTE)?.parse().ok()).collect()
}

/// Which start was given a right. One that cannot be read is the latest there can be.
fn noted(folder: &Path, place: u16) -> u64 {
    match fs::read_to_string(note_path(folder, place)) {
        Ok(text) => text.trim().parse().unwrap_or(u64::MAX),
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(_) => u64::MAX,
    }
}

fn note(folder: &Path, place: u16, data: u64) -> io::Result<()> {
    let (path, new) = (note_path(folder, place), folder.join("rights.new"));
    let mut file = File::create(&new)?;
    writeln!(file, "{data}")?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    File::open(folder)?.sync_all()
}

/// The next start of this server need not wait for this one. Should that not come to the disk, it
/// waits in vain for a moment.
fn forget(folder: &Path, place: u16) -> bool {
    fs::remove_file(note_path(folder, place)).is_ok()
}

impl Granter {
    /// Whoever was given a right before is waited for.
    pub fn new(config: GranterConfig, now: Now) -> Granter {
        let place = |place: u16| {
            let noted = noted(&config.folder, place);
            // One that nobody can read names no start: any may have rights.
            let data = if noted == u64::MAX { 0 } else { noted };
            let (name, is_gone) = (format!("the server of data at place {place}, which the volume had"), true);
            (place, Place { name, is_gone, data, noted, has_old: noted != 0, answered: now, ..Place::default() })
        };
        let in_map = config.places.servers.iter().map(|(place, _)| *place);
        let places = in_map.chain(noted_places(&config.folder)).map(place).collect();
        let mut state = State { places, ..State::default() };
        state.set_places(&config.places, now);
        let repeated = Repeated::new(&config.folder);
        Granter { state: Mutex::new(state), config, repeated }
    }

    /// Whether several clients may write one file at the same time.
    pub(crate) fn is_concurrent(&self) -> bool {
        self.config.concurrent
    }

    /// Whether a client may write again here what it wrote beside others elsewhere.
    pub(crate) fn may_repeat(&self, tenure: u64, piece: &Piece<'_>) -> io::Result<bool> {
        self.repeated.admit(tenure, piece)
    }

    pub(crate) fn key(&self) -> &RightKey {
        &self.config.key
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Draws a right at a place; `None`: there is no such server of data, or it does not obey now.
    /// It is to be told only if the lease is there after this.
    pub(crate) fn draw(&self, place: u16, now: Now) -> io::Result<Option<Drawn>> {
        let mut state = self.state();
        let (grant, map) = (state.latest + 1, state.map);
        let Some(of) = state.places.get_mut(&place) else { return Ok(None) };
        if of.is_gone || !of.obeys || of.has_old || now >= of.answered + AUTHORITY {
            return Ok(None);
        }
        if of.noted != of.data {
            // The next start of this server has to know.
            note(&self.config.folder, place, of.data)?;
            of.noted = of.data;
        }
        of.given = grant;
        let right = Right { names: self.config.names, place, data: of.data, grant, tenure: 0 };
        let drawn = Drawn { right, map, floor: of.floor };
        state.latest = grant;
        Ok(Some(drawn))
    }

    /// From now on rights are given at these servers of data, to who knows their map. One that is
    /// no more among them is waited for as before.
    pub(crate) fn set_places(&self, places: &Places, now: Now) {
        self.state().set_places(places, now);
    }

    /// Ends all rights that were given so far at a place, or anywhere. Until they are
    /// [over](Granter::poll_over) something may be executed under them.
    pub(crate) fn revoke(&self, place: Option<u16>) -> u64 {
        let mut state = self.state();
        let floor = state.latest;
        for (at, of) in &mut state.places {
            if place.is_none_or(|place| place == *at) {
                of.floor = floor;
            }
        }
        floor
    }

    /// Ready when nothing is executed any more, at a place or anywhere, under rights up to this
    /// one. Who waits is woken by beats, and has to look himself whether time is enough.
    pub(crate) fn poll_over(&self, place: Option<u16>, floor: u64, now: Now, task: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.is_over(place, floor, (now, self.config.fence)) {
            return Poll::Ready(());
        }
        state.waiting.retain(|waker| !waker.will_wake(task.waker()));
        state.waiting.push(task.waker().clone());
        Poll::Pending
    }

    /// Who is waited for, for the log.
    pub(crate) fn missing(&self, floor: u64) -> Vec<String> {
        let state = self.state();
        let missing = state.places.values().filter(|of| !of.is_below(floor));
        missing.map(|of| of.name.clone()).collect()
    }

    /// A server of data asks for time. `None`: it is none of the volume's, or of an earlier start.
    pub(crate) fn beat(&self, beat: &Beat, now: Now) -> Option<BeatReply> {
        let mut state = self.state();
        let of = state.places.get_mut(&beat.place).filter(|of| beat.data >= of.data)?;
        if beat.data > of.data {
            // It has the folder that the one before held as long as it was there. Where nobody
            // knows which that was, it may be this one.
            if of.noted != u64::MAX {
                of.ends();
            }
            of.data = beat.data;
            of.drained = 0;
        }
        if beat.has_ended {
            of.ends();
            if of.noted != 0 && forget(&self.config.folder, beat.place) {
                of.noted = 0;
            }
        } else {
            of.obeys = beat.names == self.config.names;
            of.answered = now;
        }
        if of.obeys {
            of.has_old = false;
            of.drained = of.drained.max(beat.floor);
        }
        let reply = BeatReply { names: self.config.names, floor: of.floor, authority: AUTHORITY.as_millis() as u32 };
        if of.is_gone && of.is_idle() && (of.noted == 0 || forget(&self.config.folder, beat.place)) {
            state.places.remove(&beat.place);
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
        Some(reply)
    }
}

impl State {
    fn set_places(&mut self, places: &Places, now: Now) {
        self.map = places.map;
        self.places.values_mut().for_each(|of| of.is_gone = true);
        for (place, name) in &places.servers {
            let of = self.places.entry(*place).or_insert_with(|| Place { answered: now, ..Place::default() });
            (of.is_gone, of.name) = (false, name.clone());
        }
        // Nobody waits for one that had no rights.
        self.places.retain(|_, of| !of.is_gone || of.noted != 0);
    }

    fn is_over(&mut self, place: Option<u16>, floor: u64, (now, fence): (Now, Fence)) -> bool {
        let latest = self.latest;
        let meant = |at: &u16| place.is_none_or(|place| place == *at);
        for (_, of) in self.places.iter_mut().filter(|(at, _)| meant(at)) {
            let has_lapsed = now >= of.answered + AUTHORITY + PATIENCE;
            if fence == Fence::Timed && has_lapsed && !of.is_below(floor) {
                // Should it be there still, it hears of a floor above all that it had before it
                // may go on.
                of.floor = latest;
                of.ends();
            }
        }
        self.places.iter().filter(|(at, _)| meant(at)).all(|(_, of)| of.is_below(floor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        folder: tempfile::TempDir,
        granter: Granter,
    }

    fn at(seconds: u64) -> Now {
        Duration::from_secs(seconds)
    }

    impl Fixture {
        fn new(fence: Fence) -> Fixture {
            let folder = tempfile::tempdir().unwrap();
            let granter = Fixture::start(folder.path(), fence, 1);
            Fixture { folder, granter }
        }

        fn start(folder: &Path, fence: Fence, names: u64) -> Granter {
            let servers = vec![(0, "a".to_owned()), (1, "b:/x".to_owned())];
            let places = Places { map: 1, servers };
            let key = RightKey::of_volume(&[1; 32]);
            Granter::new(
                GranterConfig { key, places, folder: folder.to_owned(), fence, names, concurrent: true },
                at(0),
            )
        }

        fn restart(&mut self, fence: Fence) {
            self.granter = Fixture::start(self.folder.path(), fence, self.granter.config.names + 1);
        }

        fn beat(&self, place: u16, data: u64, (names, floor): (u64, u64), now: u64) -> Option<BeatReply> {
            self.granter.beat(&Beat { place, data, names, floor, ..Beat::default() }, at(now))
        }

        fn ended(&self, place: u16, data: u64) {
            self.granter.beat(&Beat { place, data, has_ended: true, ..Beat::default() }, at(0));
        }

        fn draw(&self, place: u16, now: u64) -> Option<u64> {
            self.granter.draw(place, at(now)).unwrap().map(|drawn| drawn.right.grant)
        }

        fn is_over(&self, place: Option<u16>, floor: u64, now: u64) -> bool {
            self.granter.poll_over(place, floor, at(now), &mut Context::from_waker(Waker::noop())).is_ready()
        }
    }

    #[test]
    fn a_right_is_given_to_who_obeys_and_has_time() {
        let fixture = Fixture::new(Fence::Answer);
        assert_eq!(fixture.draw(0, 0), None, "it was never heard");
        assert_eq!(fixture.beat(0, 5, (0, 0), 1).map(|reply| reply.names), Some(1));
        assert_eq!(fixture.draw(0, 1), None, "it obeys nobody yet");
        fixture.beat(0, 5, (1, 0), 1);
        assert_eq!((fixture.draw(0, 1), fixture.draw(0, 3)), (Some(1), Some(2)));
        assert_eq!((fixture.draw(0, 4), fixture.draw(1, 1), fixture.draw(2, 1)), (None, None, None));
        assert_eq!(fixture.beat(0, 4, (1, 0), 1), None, "of a process that has ended");
        assert_eq!(fixture.beat(2, 4, (1, 0), 1), None);
    }

    #[test]
    fn rights_are_over_when_who_had_them_says_so_or_has_ended() {
        let fixture = Fixture::new(Fence::Answer);
        let begin = |data, now| _ = (fixture.beat(0, data, (0, 0), now), fixture.beat(0, data, (1, 0), now));
        begin(5, 0);
        assert!(fixture.is_over(None, fixture.granter.revoke(None), 0), "none were given");
        let first = fixture.draw(0, 0).unwrap();
        assert_eq!(fixture.granter.revoke(Some(0)), first);
        assert!(!fixture.is_over(Some(0), first, 1000), "time is not enough");
        assert!(fixture.is_over(Some(1), first, 0), "another has none");
        assert_eq!(fixture.beat(0, 5, (1, 0), 1).map(|reply| reply.floor), Some(first));
        assert!(!fixture.is_over(None, first, 1));
        fixture.beat(0, 5, (1, first), 1);
        assert!(fixture.is_over(None, first, 1));
        for (data, ends) in [(5, true), (6, false)] {
            let floor = fixture.draw(0, 1).map(|_| fixture.granter.revoke(None)).unwrap();
            assert!(!fixture.is_over(None, floor, 1) && fixture.granter.missing(floor) == ["a"]);
            if ends {
                fixture.ended(0, 4);
                assert!(!fixture.is_over(None, floor, 1), "an earlier one has");
                fixture.ended(0, data);
            }
            begin(data + 1, 1);
            assert!(fixture.is_over(None, floor, 1), "{data}");
        }
    }

    #[test]
    fn time_is_enough_where_the_volume_says_so() {
        let fixture = Fixture::new(Fence::Timed);
        fixture.beat(0, 5, (1, 0), 1);
        fixture.draw(0, 1).unwrap();
        let floor = fixture.granter.revoke(None);
        assert!(!fixture.is_over(None, floor, 5) && fixture.is_over(None, floor, 6));
        // It was there, and is so again: what it had is void before it may go on.
        assert_eq!(fixture.beat(0, 5, (1, 0), 7).map(|reply| reply.floor), Some(floor));
        assert!(fixture.draw(0, 7).unwrap() > floor);
    }

    #[test]
    fn the_next_start_waits_for_those_who_had_rights() {
        let mut fixture = Fixture::new(Fence::Answer);
        fixture.beat(1, 5, (1, 0), 0);
        fixture.draw(1, 0).unwrap();
        fixture.restart(Fence::Answer);
        assert!(!fixture.is_over(None, 0, 1000) && fixture.granter.missing(0) == ["b:/x"]);
        assert!(fixture.beat(1, 5, (1, 0), 0).is_some());
        assert!(!fixture.is_over(None, 0, 0), "it obeys the one before");
        fixture.beat(1, 5, (2, 0), 0);
        assert!(fixture.is_over(None, 0, 0));
        // It was started anew, has rights, and this server is started again: one of before tells
        // nothing.
        fixture.beat(1, 6, (2, 0), 0);
        fixture.draw(1, 0).unwrap();
        fixture.restart(Fence::Answer);
        assert!(fixture.beat(1, 5, (3, 0), 0).is_none());
        fixture.ended(1, 5);
        assert!(!fixture.is_over(None, 0, 0));
        fixture.ended(1, 6);
        assert!(fixture.is_over(None, 0, 0));
        fixture.restart(Fence::Answer);
        assert!(fixture.is_over(None, 0, 0), "and nobody asks for it again");
        fixture.beat(1, 7, (4, 0), 0);
        fixture.draw(1, 0).unwrap();
        fixture.restart(Fence::Timed);
        assert!(!fixture.is_over(None, 0, 4) && fixture.is_over(None, 0, 5));
    }

    #[test]
    fn a_server_that_leaves_the_map_is_given_nothing_and_waited_for() {
        let mut fixture = Fixture::new(Fence::Answer);
        let only = |servers: &[u16]| {
            let servers = servers.iter().map(|place| (*place, place.to_string())).collect();
            Places { map: 2, servers }
        };
        let begin = |fixture: &Fixture, place, data, names| {
            _ = (fixture.beat(place, data, (0, 0), 0), fixture.beat(place, data, (names, 0), 0));
        };
        (0..2).for_each(|place| begin(&fixture, place, 5, 1));
        let given = fixture.draw(1, 0).unwrap();
        fixture.granter.set_places(&only(&[0, 7]), at(0));
        assert_eq!((fixture.draw(1, 0), fixture.draw(7, 0)), (None, None), "it has gone, and the new one is silent");
        begin(&fixture, 7, 9, 1);
        assert!(fixture.draw(7, 0).is_some() && fixture.draw(0, 0).is_some());
        assert_eq!(fixture.granter.draw(0, at(0)).unwrap().map(|drawn| drawn.map), Some(2));
        assert!(!fixture.is_over(None, given, 1000), "what it was given may be used still");
        // The next start knows of it, though its map does not.
        fixture.restart(Fence::Answer);
        fixture.granter.set_places(&only(&[0]), at(0));
        begin(&fixture, 0, 5, 2);
        fixture.ended(7, 9);
        assert!(!fixture.is_over(None, 0, 1000) && fixture.granter.missing(0).len() == 1);
        fixture.ended(1, 5);
        assert!(fixture.is_over(None, 0, 0));
        assert_eq!(fixture.beat(1, 6, (2, 0), 0), None, "nobody waits for it any more");
        assert!(!fixture.folder.path().join("rights-1").exists());
    }

    #[test]
    fn a_note_that_cannot_be_read_is_one_of_anybody() {
        let mut fixture = Fixture::new(Fence::Answer);
        fs::write(fixture.folder.path().join("rights-0"), "?").unwrap();
        fixture.restart(Fence::Answer);
        fixture.beat(0, 9, (1, 0), 0);
        assert!(!fixture.is_over(None, 0, 0));
        fixture.beat(0, 9, (2, 0), 0);
        assert!(fixture.is_over(None, 0, 0));
    }
}
