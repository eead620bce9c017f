//! Where reports go.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;

use super::chart::{Chart, svg};
use super::safe;
use crate::Failure;

/// Writes to stdout. A reader that has left is no reason to fail.
pub fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// Writes a file, whole: what was there before stays until the new one is complete.
pub fn file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(
            format!("cannot write {}", path.display()),
            error,
            "name a file in a folder that can be written to",
        )
    };
    // A device or a pipe is written to as it is.
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return fs::write(path, bytes).map_err(failed);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&part);
        failed(error)
    })
}

/// Writes all charts into a folder; says what was written.
pub fn charts(
    folder: &Path,
    charts: &[Chart],
    ending: &str,
    paint: impl Fn(String) -> Result<Vec<u8>, Failure>,
) -> Result<String, Failure> {
    fs::create_dir_all(folder).map_err(|error| {
        Failure::new(
            format!("cannot make the folder {}", folder.display()),
            error,
            "name a folder that can be written to",
        )
    })?;
    let mut taken = BTreeSet::new();
    for chart in charts {
        let stem = safe::file_name(&format!("{}-{}", chart.kind.name(), chart.title));
        let mut name = stem.clone();
        let mut count = 1;
        while !taken.insert(name.clone()) {
            count += 1;
            name = format!("{stem}-{count}");
        }
        file(&folder.join(format!("{name}.{ending}")), &paint(svg::draw(chart))?)?;
    }
    Ok(format!("{} charts in {}", charts.len(), folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.html");
        file(&path, b"one").unwrap();
        file(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(file(&folder.path().join("none/a"), b"").unwrap_err().what.contains("none/a"));
    }
}
