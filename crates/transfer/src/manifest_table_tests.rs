//! Parquet files that are manifests, and what only looks like one.

use std::io::{Read, Seek, Write};

use aqueduct_observe::parquet::Values;
use proptest::prelude::*;

use super::*;
use crate::manifest::{Text, Writer};
use crate::side::Seen;

fn line(path: &[u8], hash: bool) -> Line {
    let attr = aqueduct_fs::Attr { mode: 0o100_644, uid: 7, gid: u32::MAX, size: 1 << 62, ..Default::default() };
    let seen = Seen { attr, device: 0, handle: None };
    let hash = hash.then(|| blake3::hash(path));
    let line = Line::new(path, &seen, &vec![(b"user.a".to_vec(), vec![0xff])], hash.as_ref(), None);
    let link = (!path.is_ascii()).then(|| Text::new(b"first"));
    Line { link, mtime: "-1.999999999".to_owned(), ..line }
}

fn lines() -> Vec<Line> {
    vec![line(b"", false), line(b"a \"b\"\n", true), line(b"\xff\xfe", true)]
}

fn provenance(body_b3: String, lines: u64) -> Provenance {
    let text = format!(
        "{{\"aqueduct_manifest\":1,\"body_b3\":\"{body_b3}\",\"lines\":{lines},\"tool\":\"t\",\"sources\":[\"a\"],\
         \"destination\":\"b\",\"checks\":{{}},\"troubles\":0,\"lost\":0,\"spent\":{{}}}}"
    );
    serde_json::from_str(&text).unwrap()
}

fn in_lines(lines: &[Line]) -> File {
    let mut writer = Writer::new(tempfile::tempfile().unwrap());
    lines.iter().for_each(|line| writer.line(&line.text()).unwrap());
    let mut file = writer.finish(provenance).unwrap();
    file.rewind().unwrap();
    file
}

fn read_all(file: File) -> Result<(Vec<Line>, Provenance), ManifestError> {
    let mut lines = Vec::new();
    let provenance = read(file, |line| {
        lines.push(line);
        Ok(())
    })?;
    Ok((lines, provenance))
}

fn as_table(lines: &[Line]) -> Vec<u8> {
    let (mut file, mut bytes) = (tempfile::tempfile().unwrap(), Vec::new());
    convert(in_lines(lines), file.try_clone().unwrap()).unwrap();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn of(bytes: &[u8]) -> Result<(Vec<Line>, Provenance), ManifestError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    read_all(file)
}

#[test]
fn a_parquet_file_is_the_manifest_that_it_was_made_of() {
    for lines in [lines(), Vec::new(), (0..40_000).map(|n| line(format!("{n:06}").as_bytes(), true)).collect()] {
        let table = as_table(&lines);
        assert!(table.starts_with(MAGIC) && table.ends_with(MAGIC));
        let (of_lines, of_table) = (read_all(in_lines(&lines)).unwrap(), of(&table).unwrap());
        assert!(of_lines == of_table && of_table.0 == lines);
    }
}

#[test]
fn rows_say_what_lines_say() {
    let columns = table::columns(&lines());
    let of = |name: &str| &columns.iter().find(|(column, _)| column == name).unwrap().1;
    let texts = |texts: [Option<&str>; 3]| Values::Text(texts.map(|text| text.map(str::to_owned)).into());
    let coded = "{\"base64\":\"//4=\"}";
    assert_eq!(*of("path"), texts([Some(""), Some("a \"b\"\n"), Some(coded)]));
    assert_eq!(*of("xattrs"), texts([Some("{\"user.a\":{\"base64\":\"/w==\"}}"); 3]));
    assert_eq!(*of("link"), texts([None, None, Some("first")]));
    assert_eq!(*of("mode"), texts([Some("0644"); 3]));
    assert_eq!(*of("gid"), Values::Whole(vec![Some(u32::MAX.into()); 3]));
    assert_eq!(*of("size"), Values::Whole(vec![Some(1 << 62); 3]));
    assert_eq!(*of("mtime"), Values::Time(vec![Some(-1); 3]));
    let hashes = lines().iter().map(|line| line.b3.clone()).collect();
    assert_eq!(*of("b3"), Values::Text(hashes));
}

#[test]
fn what_was_cut_off_is_refused() {
    let bytes = as_table(&lines());
    for length in [0, 3, 4, 100, 400] {
        assert!(of(&bytes[..length]).is_err(), "{length}");
    }
}

#[test]
fn a_manifest_has_its_name_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut bytes = Vec::new();
    in_lines(&lines()).read_to_end(&mut bytes).unwrap();
    for (name, table) in [("m.parquet", true), ("m.PARQUET", true), ("m.manifest", false)] {
        fs::write(at("part"), &bytes).unwrap();
        settle(&at("part"), &at(name), None).unwrap();
        assert_eq!(fs::read(at(name)).unwrap().starts_with(MAGIC), table);
        assert_eq!(read_all(File::open(at(name)).unwrap()).unwrap().0, lines());
    }
    // One that cannot be believed becomes no table, and nothing is left of it.
    fs::write(at("part"), &bytes[..bytes.len() / 2]).unwrap();
    assert!(settle(&at("part"), &at("n.parquet"), None).is_err());
    fs::remove_file(at("part")).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn the_folder_of_a_manifest_is_made_stable_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().join("m").as_path(), Path::new("m")] {
        sync_folder(path).unwrap();
    }
    assert!(sync_folder(&folder.path().join("none/m")).is_err());
}

proptest! {
    #[test]
    fn bytes_that_were_changed_are_read_or_refused(at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut bytes = as_table(&lines());
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok((read, _)) = of(&bytes) {
            prop_assert_eq!(read, lines());
        }
    }
}
