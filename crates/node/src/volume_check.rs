//! Whether the servers of a volume before one shared file system are as its file says: each is
//! asked what it was started as, and all of them whether they have the same directory. Nothing of
//! the volume is changed.

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use aqueduct_client::{Asker, volume_map};
use aqueduct_metrics::status::{ServerStatus, VolumeStatus};
use aqueduct_wire::{Map, Op, VolumeMode, volume_id};
use serde::Serialize;

use crate::failure::{Failure, Kind};
use crate::volume::{COHERENT, Volume};
use crate::volume_probe::{self, Asked, PATIENCE, Reach, Wrong};

/// Servers whose clocks are further apart are told of, in microseconds: files get their times from
/// different ones, and programs such as make compare them to the second.
const CLOCKS_APART_MAX: i64 = 1_000_000;

/// What was found of a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Checked {
    /// Its name.
    pub volume: String,
    /// As it stands in the volume's file.
    pub mode: String,
    /// Its servers, that of the names first.
    pub servers: Vec<CheckedServer>,
    /// By what it was seen whether all have the same directory.
    pub compared: String,
    /// What is worth knowing, and not wrong.
    pub notes: Vec<String>,
}

/// What was found of a server. What it did not tell is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CheckedServer {
    /// Its id in the volume's file, or else as it says.
    pub id: String,
    /// Where it should be reached.
    pub addresses: String,
    /// It answered, and took the key.
    pub answers: bool,
    /// What it should be: `names`, `data`, or both.
    pub role: String,
    /// That of the program.
    pub version: Option<String>,
    /// The epoch of the map that it tells clients.
    pub epoch: Option<u64>,
    /// What it serves.
    pub directory: Option<String>,
    /// Of the directory, as statfs(2) tells.
    pub filesystem: Option<String>,
    /// Why that may be used for the mode; `None`: it may not.
    pub allowed: Option<String>,
    /// How much its clock is ahead of that of the first server that answers, in milliseconds.
    pub clock_ahead_ms: Option<i64>,
    /// It has the directory that the server of the names has; `None`: that could not be seen.
    pub same_directory: Option<bool>,
    /// What is wrong with it.
    pub wrong: Vec<Wrong>,
}

impl Checked {
    /// Whether nothing is wrong.
    pub fn is_right(&self) -> bool {
        self.servers.iter().all(|server| server.wrong.is_empty())
    }
}

/// What is checked, and against what.
pub struct VolumeCheck {
    name: String,
    map: Map,
    /// Where that is from, for messages.
    from: String,
    /// `None`: one of the servers has told the map.
    file: Option<OfFile>,
    members: Vec<Member>,
    /// What it takes to connect to them.
    reach: Reach,
}

/// What the volume's file says, and its map does not.
struct OfFile {
    coherent: bool,
    writes: bool,
    /// `None`: there is none beside the file.
    key: Option<String>,
}

/// A server that there should be.
struct Member {
    /// As the file says.
    id: Option<String>,
    addresses: String,
    has_names: bool,
    has_data: bool,
}

/// What a server told.
struct Told {
    map: Map,
    status: ServerStatus,
    /// Its clock's time less that of this machine, and by how much that may be wrong, in
    /// microseconds.
    clock: (i64, i64),
}

impl VolumeCheck {
    /// Of the volume of a file.
    pub fn of_file(file: &Path, volume: &Volume, reach: Reach) -> VolumeCheck {
        let members = volume.members().map(|(id, addresses, has_names)| Member {
            id: Some(id),
            addresses,
            has_names,
            has_data: true,
        });
        let mut members: Vec<_> = members.collect();
        members.sort_by_key(|member| !member.has_names);
        let (name, coherent, writes, key) = volume.claims();
        VolumeCheck {
            name,
            map: volume.map(),
            from: file.display().to_string(),
            file: Some(OfFile { coherent, writes, key }),
            members,
            reach,
        }
    }

    /// Of a volume of which one server, at any of these addresses, tells the others.
    pub fn of_server(name: &str, server: &str, reach: Reach) -> Result<VolumeCheck, Failure> {
        let map = volume_map(server, name, reach.clone(), PATIENCE).map_err(|error| {
            Failure::new(format!("cannot check the volume {name}"), &error, error.hint()).of(Kind::Connect)
        })?;
        let names = map.names.join(",");
        let data: Vec<_> = map.data.iter().map(|server| server.addresses.join(",")).collect();
        let has_data = data.is_empty() || data.contains(&names);
        let first = Member { id: None, addresses: names.clone(), has_names: true, has_data };
        let others = data.into_iter().filter(|addresses| *addresses != names);
        let others = others.map(|addresses| Member { id: None, addresses, has_names: false, has_data: true });
        let members = std::iter::once(first).chain(others).collect();
        Ok(VolumeCheck { name: name.to_owned(), map, from: format!("what {server} told"), file: None, members, reach })
    }

    /// How the volume's data are shared out.
    pub fn mode(&self) -> VolumeMode {
        self.map.mode
    }

    /// Asks all servers, and says what is wrong.
    pub fn run(&self) -> Result<Checked, Failure> {
        let told: Vec<Result<Told, Wrong>> = std::thread::scope(|scope| {
            let asked: Vec<_> = self.members.iter().map(|member| scope.spawn(|| self.ask(member))).collect();
            let lost = |_| Err(Wrong::new("it could not be asked", "try again"));
            asked.into_iter().map(|asked| asked.join().unwrap_or_else(lost)).collect()
        });
        let mut servers: Vec<_> =
            self.members.iter().zip(&told).map(|(member, told)| self.look(member, told)).collect();
        clocks(&mut servers, &told);
        let mut notes = versions(&servers);
        let compared = self.compare(&mut servers, &told)?;
        notes.extend(compared.1);
        Ok(Checked {
            volume: self.name.clone(),
            mode: self.map.mode.name().to_owned(),
            servers,
            compared: compared.0,
            notes,
        })
    }

    fn ask(&self, member: &Member) -> Result<Told, Wrong> {
        let silent = |error: aqueduct_client::AskError| {
            Wrong::new(format!("it does not answer: {error}"), "see its log, and whether its process stands still")
        };
        let refused = |error| Wrong::new(format!("it refuses to tell of itself: {error}"), "see its log");
        let (key, routes) = self.reach.clone();
        let mut asker = Asker::connect(&member.addresses, key, routes, PATIENCE)
            .map_err(|error| Wrong::new(format!("it cannot be used: {error}"), error.hint()))?;
        let map = asker.request(Op::Map, &[], PATIENCE).map_err(silent)?.map_err(refused)?;
        let (before, started) = (SystemTime::now(), Instant::now());
        let status = asker.request(Op::Status, &[], PATIENCE).map_err(silent)?.map_err(refused)?;
        let half = started.elapsed().as_micros() as i64 / 2;
        let strange = |error: String| {
            Wrong::new(format!("what it tells is not understood: {error}"), "run the same version of the program there")
        };
        let map = Map::decode(&map).map_err(|error| strange(error.to_string()))?;
        let status: ServerStatus = serde_json::from_slice(&status).map_err(|error| strange(error.to_string()))?;
        let ours = before.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64) + half;
        let clock = ((status.clock_us as i64).saturating_sub(ours), half);
        Ok(Told { map, status, clock })
    }

    /// What a server is by itself.
    fn look(&self, member: &Member, told: &Result<Told, Wrong>) -> CheckedServer {
        let role = match (member.has_names, member.has_data) {
            (true, true) => "names, data",
            (true, false) => "names",
            (false, _) => "data",
        };
        let id = member.id.clone().unwrap_or_default();
        let mut server = CheckedServer {
            id,
            addresses: member.addresses.clone(),
            role: role.to_owned(),
            ..CheckedServer::default()
        };
        let told = match told {
            Ok(told) => told,
            Err(wrong) => {
                server.wrong.push(wrong.clone());
                return server;
            }
        };
        server.answers = true;
        server.version = Some(told.status.version.clone());
        if told.map.volume != volume_id(&self.name) {
            let what = match &told.status.volume {
                Some(other) => format!("it serves the volume {}, not {}", other.name, self.name),
                None => format!("it stands alone, and is no server of {}", self.name),
            };
            let remedy = "start it with 'aqueduct serve --volume FILE --server ID', or give its right address";
            server.wrong.push(Wrong::new(what, remedy));
            return server;
        }
        server.epoch = Some(told.map.epoch);
        server.directory = told.status.exports.first().map(|export| export.path.clone());
        match &told.status.volume {
            Some(volume) => self.look_at_part(member, volume, &mut server),
            None => server.wrong.push(Wrong::new(
                "it does not tell its part in the volume",
                "upgrade it to the version of this program",
            )),
        }
        let mut differs = differences(&self.map, &told.map);
        if let (Some(file), Some(volume)) = (&self.file, &told.status.volume) {
            let mut note = |what: &str, right: bool, told: bool| {
                if right != told {
                    differs.push(format!("{what} {told} instead of {right}"));
                }
            };
            note("coherent", file.coherent, volume.coherent);
            note("writes = \"data\"", file.writes, volume.writes);
        }
        if !differs.is_empty() {
            let what = format!("it was started with another volume file than {}: {}", self.from, differs.join("; "));
            let remedy = "copy the right volume.toml there, and start it anew";
            server.wrong.push(Wrong::new(what, remedy));
        }
        server
    }

    fn look_at_part(&self, member: &Member, volume: &VolumeStatus, server: &mut CheckedServer) {
        server.filesystem = Some(volume.filesystem.clone());
        match &member.id {
            Some(id) if *id != volume.server => server.wrong.push(Wrong::new(
                format!("at its address server {} answers", volume.server),
                format!("start it with --server {id}, or correct the addresses in the volume's file"),
            )),
            _ => server.id.clone_from(&volume.server),
        }
        if volume.has_names != member.has_names {
            let is = if volume.has_names { "it serves the names" } else { "it serves no names" };
            let remedy = "give all servers the same volume.toml, and start them anew";
            server.wrong.push(Wrong::new(format!("{is}, and should be: {}", server.role), remedy));
        }
        if let Some(key) = self.file.as_ref().and_then(|file| file.key.as_ref())
            && *key != volume.key
        {
            let remedy = "copy the volume.key to it that all others have, and start it anew";
            server
                .wrong
                .push(Wrong::new(format!("its volume.key is another than the one beside {}", self.from), remedy));
        }
        match self.allows(volume) {
            Ok(why) => server.allowed = Some(why),
            Err(wrong) => server.wrong.push(wrong),
        }
    }

    /// Why a file system may be used, or what is wrong with it. The rule is that of
    /// `VolumePart::check_backing`.
    fn allows(&self, volume: &VolumeStatus) -> Result<String, Wrong> {
        let kind = &volume.filesystem;
        if self.map.data.len() < 2 {
            return Ok("one server".to_owned());
        }
        if self.map.mode == VolumeMode::LoadBalance {
            return Ok("read-only".to_owned());
        }
        if COHERENT.contains(&kind.as_str()) {
            return Ok("known to be coherent".to_owned());
        }
        if self.file.as_ref().map_or(volume.coherent, |file| file.coherent) {
            return Ok("coherent = true".to_owned());
        }
        let mode = self.map.mode.name();
        Err(Wrong::new(
            format!(
                "its file system is {kind}, which mode = \"{mode}\" does not allow: one host may read old data there after another has written"
            ),
            format!(
                "use one of {}, or say coherent = true in the volume's file if all its servers run on one machine or you know that it is, and start them anew",
                COHERENT.join(", ")
            ),
        ))
    }

    /// Whether those that answer have the same directory: by what that was seen, and what is worth
    /// knowing of it.
    fn compare(
        &self,
        servers: &mut [CheckedServer],
        told: &[Result<Told, Wrong>],
    ) -> Result<(String, Option<String>), Failure> {
        let part = |at: usize| told[at].as_ref().ok().and_then(|told: &Told| told.status.volume.as_ref());
        let Some(first) = servers.iter().position(|server| server.epoch.is_some()) else {
            return Ok(("not compared: no server of the volume answers".to_owned(), None));
        };
        let mut asked = Vec::new();
        for (at, server) in servers.iter_mut().enumerate().filter(|(_, server)| server.epoch.is_some()) {
            let keys = part(first).zip(part(at)).map(|(first, other)| (&first.key, &other.key));
            if keys.is_some_and(|(first, other)| first != other) {
                let what =
                    "its volume.key is another than that of the first server, so that it takes none of its handles";
                server.wrong.push(Wrong::new(what, "copy the same volume.key to all servers, and start them anew"));
                continue;
            }
            let has_names = part(at).map_or(self.members[at].has_names, |part| part.has_names);
            asked.push(Asked { at, addresses: self.members[at].addresses.clone(), has_names });
        }
        let compared = volume_probe::compare(&asked, &self.reach, self.map.mode == VolumeMode::LoadBalance)?;
        for (at, result) in compared.servers {
            servers[at].same_directory = result.same;
            servers[at].wrong.extend(result.wrong);
        }
        Ok((compared.by, compared.note))
    }
}

/// In what a map differs from the one that is right.
fn differences(right: &Map, told: &Map) -> Vec<String> {
    let mut differs = Vec::new();
    let mut note = |what: &str, right: String, told: String| {
        if right != told {
            differs.push(format!("{what} {told} instead of {right}"));
        }
    };
    note("map epoch", right.epoch.to_string(), told.epoch.to_string());
    note("mode", right.mode.name().to_owned(), told.mode.name().to_owned());
    note("stripe_size", right.stripe_size.to_string(), told.stripe_size.to_string());
    note("width", right.width.to_string(), told.width.to_string());
    note("atomic", right.is_atomic.to_string(), told.is_atomic.to_string());
    note("names at", right.names.join(","), told.names.join(","));
    let data = |map: &Map| map.data.iter().map(|server| server.addresses.join(",")).collect::<Vec<_>>().join(" ");
    note("data at", data(right), data(told));
    differs
}

/// Compares the clocks with that of the first server that answers.
fn clocks(servers: &mut [CheckedServer], told: &[Result<Told, Wrong>]) {
    let mut first: Option<(String, (i64, i64))> = None;
    for (server, told) in servers.iter_mut().zip(told) {
        let Some(told) = told.as_ref().ok().filter(|told| told.status.clock_us > 0) else { continue };
        let (reference, (zero, half)) = first.get_or_insert_with(|| (server.id.clone(), told.clock));
        let ahead = told.clock.0.saturating_sub(*zero);
        server.clock_ahead_ms = Some(ahead / 1000);
        if ahead.saturating_abs() > CLOCKS_APART_MAX + *half + told.clock.1 {
            let seconds = ahead as f64 / 1e6;
            server.wrong.push(Wrong::new(
                format!(
                    "its clock is {:.1} s {} that of {reference}",
                    seconds.abs(),
                    if ahead > 0 { "ahead of" } else { "behind" }
                ),
                "have all servers keep their time by NTP or PTP ('chronyc tracking' shows how a machine fares)",
            ));
        }
    }
}

/// Which versions there are, if there is more than one.
fn versions(servers: &[CheckedServer]) -> Vec<String> {
    let mut found: Vec<_> = servers.iter().filter_map(|server| server.version.clone()).collect();
    found.sort();
    found.dedup();
    let told = format!("the servers run different versions: {}", found.join(", "));
    if found.len() > 1 { vec![told] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use aqueduct_wire::DataServer;

    use super::*;

    fn check(mode: VolumeMode, servers: usize, coherent: Option<bool>) -> VolumeCheck {
        let map = Map { mode, data: vec![DataServer::default(); servers], ..Map::default() };
        let file = coherent.map(|coherent| OfFile { coherent, writes: false, key: None });
        VolumeCheck { name: "v".into(), map, from: "v.toml".into(), file, members: Vec::new(), reach: (None, None) }
    }

    #[test]
    fn a_file_system_is_allowed_by_its_kind_its_mode_or_a_word() {
        let allows = |check: VolumeCheck, kind: &str, coherent| {
            let volume = VolumeStatus { filesystem: kind.to_owned(), coherent, ..VolumeStatus::default() };
            check.allows(&volume).map_err(|wrong| format!("{} {}", wrong.what, wrong.remedy))
        };
        for kind in ["NFS", "FUSE", "ext4", "0x12345678"] {
            let refused = allows(check(VolumeMode::Cluster, 2, Some(false)), kind, true).unwrap_err();
            assert!(refused.contains(kind) && refused.contains("coherent = true"), "{refused}");
            assert!(allows(check(VolumeMode::Stripe, 2, None), kind, false).is_err());
            assert_eq!(allows(check(VolumeMode::Stripe, 2, None), kind, true).unwrap(), "coherent = true");
            assert_eq!(allows(check(VolumeMode::Cluster, 2, Some(true)), kind, false).unwrap(), "coherent = true");
            assert_eq!(allows(check(VolumeMode::LoadBalance, 2, Some(false)), kind, false).unwrap(), "read-only");
            assert_eq!(allows(check(VolumeMode::Serial, 0, Some(false)), kind, false).unwrap(), "one server");
        }
        for kind in COHERENT {
            assert_eq!(
                allows(check(VolumeMode::Cluster, 2, Some(false)), kind, false).unwrap(),
                "known to be coherent"
            );
        }
    }

    #[test]
    fn clocks_that_are_a_second_apart_are_told_of_with_the_direction() {
        let told = |ahead_us: i64, half: i64| {
            let status = ServerStatus { clock_us: 1, ..ServerStatus::default() };
            Ok(Told { map: Map::default(), status, clock: (5_000_000 + ahead_us, half) })
        };
        // The first is no server's time of its own: all may be off from this machine's.
        let told =
            [told(0, 1000), told(900_000, 0), told(1_500_000, 1000), told(-1_500_000, 0), told(1_500_000, 600_000)];
        let mut servers = vec![CheckedServer::default(); told.len()];
        servers[0].id = "s0".to_owned();
        clocks(&mut servers, &told);
        let wrong: Vec<_> =
            servers.iter().map(|server| server.wrong.first().map(|wrong| wrong.what.as_str())).collect();
        let expected = [Some("its clock is 1.5 s ahead of that of s0"), Some("its clock is 1.5 s behind that of s0")];
        assert_eq!(wrong, [None, None, expected[0], expected[1], None]);
        assert_eq!(servers[3].clock_ahead_ms, Some(-1500));
    }

    #[test]
    fn in_what_maps_differ_is_named() {
        let right = Map { epoch: 2, mode: VolumeMode::Cluster, names: vec!["a:1".into()], ..Map::default() };
        assert_eq!(differences(&right, &right), Vec::<String>::new());
        let old = Map { epoch: 1, names: vec!["b:1".into()], is_atomic: true, ..right.clone() };
        let expected = ["map epoch 1 instead of 2", "atomic true instead of false", "names at b:1 instead of a:1"];
        assert_eq!(differences(&right, &old), expected);
    }
}
