//! A volume's file that has changed while a server of it runs: which changes it takes without a
//! new start, and that nobody is told two maps of one epoch.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use aqueduct_wire::Map;

use crate::failure::{Failure, Kind};
use crate::volume::VolumePart;

/// Where the latest map is kept in the state folder of the server of the names.
const NAME: &str = "map";

/// Why a server that was started as one part cannot take what the volume's file says now; `None`:
/// it can.
pub(crate) fn obstacle(started: &VolumePart, new: &VolumePart) -> Option<&'static str> {
    let fixed = |part: &VolumePart| {
        let map = &part.map;
        (map.volume, map.mode, map.stripe_size, map.width, map.is_atomic, map.names.clone())
    };
    let how = |part: &VolumePart| (part.coherent, part.concurrent, part.fence == started.fence);
    // Where one server is left nothing goes straight, whatever the file says.
    let writes_otherwise = new.map.data.len() > 1 && started.writes != new.writes;
    if started.plain.is_some() || new.plain.is_some() {
        return Some("its servers share nothing, and learn of each other at their start");
    }
    if started.map.data.len() < 2 {
        return Some("it was the only one at its start, and did not look whether others may serve its file system too");
    }
    if fixed(started) != fixed(new) || how(started) != how(new) || writes_otherwise {
        return Some("more has changed than which servers of data there are, and where");
    }
    let own = |part: &VolumePart| part.map.data.iter().find(|of| of.place == part.place).map(|of| of.addresses.clone());
    (own(started) != own(new)).then_some("it is to be somewhere else itself, or to be no more one of the volume's")
}

/// Looks whether clients may be told a map, and writes down that they are.
pub(crate) fn note(folder: &Path, map: &Map) -> Result<(), Failure> {
    let what = "cannot serve the volume by this file";
    let hint =
        "raise 'epoch' in the volume's file whenever servers come, go or move, and give all servers the same file";
    let path = folder.join(NAME);
    let before = match fs::read(&path) {
        Ok(bytes) => Map::decode(&bytes).ok(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::new(what, format!("{}: {error}", path.display()), hint).of(Kind::State)),
    };
    if before.as_ref() == Some(map) {
        return Ok(());
    }
    if let Some(before) = before.filter(|before| before.volume == map.volume && before.epoch >= map.epoch) {
        let why = match before.epoch == map.epoch {
            true => format!("clients were told other servers with the same epoch, {}", map.epoch),
            false => format!("it has epoch {}, and clients were told of epoch {}", map.epoch, before.epoch),
        };
        return Err(Failure::usage(what, why, hint));
    }
    write(folder, map).map_err(|error| {
        let hint = "see whether the folder given with --state can be written, and has room";
        Failure::new(what, format!("{}: {error}", path.display()), hint).of(Kind::State)
    })
}

fn write(folder: &Path, map: &Map) -> io::Result<()> {
    let (mut bytes, new) = (Vec::new(), folder.join("map.new"));
    map.encode(&mut bytes);
    let mut file = File::create(&new)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&new, folder.join(NAME))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use aqueduct_wire::{DataServer, volume_id};

    use super::*;

    fn map(epoch: u64, places: &[u16]) -> Map {
        let server = |place: &u16| DataServer { place: *place, addresses: vec!["a:1".into()], ..DataServer::default() };
        Map { volume: volume_id("v"), epoch, data: places.iter().map(server).collect(), ..Map::default() }
    }

    #[test]
    fn nobody_is_told_two_maps_of_one_epoch_or_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let note = |map: &Map| note(folder.path(), map).map_err(|failure| failure.to_string());
        assert_eq!((note(&map(1, &[1])), note(&map(1, &[1]))), (Ok(()), Ok(())));
        let refused = note(&map(1, &[1, 2])).unwrap_err();
        assert!(refused.contains("the same epoch, 1") && refused.contains("raise 'epoch'"), "{refused}");
        assert_eq!((note(&map(3, &[1, 2])), note(&map(3, &[1, 2]))), (Ok(()), Ok(())));
        assert!(note(&map(2, &[1])).unwrap_err().contains("were told of epoch 3"));
        fs::write(folder.path().join(NAME), "?").unwrap();
        assert_eq!(note(&map(3, &[1])), Ok(()), "what nobody can read forbids nothing");
    }
}
