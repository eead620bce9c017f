//! A series of looks as one flat table: time, source, target, counter, value.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Serialize;
use thiserror::Error;

use crate::activity::Readings;

/// Why a series cannot be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The file cannot be made or written.
    #[error("cannot write {path}: {error}; name a file in a directory with room")]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// This program has no Parquet.
    #[error("cannot write {path}: this program was built without Parquet; name a file that ends in .jsonl")]
    NoParquet {
        /// Which.
        path: PathBuf,
    },
}

/// A row.
#[derive(Serialize)]
struct Row<'a> {
    time: &'a str,
    source: &'a str,
    target: &'a str,
    counter: &'a str,
    value: u64,
}

/// Where rows go.
enum Sink {
    /// JSON, a line each.
    Lines(Box<dyn Write>),
    #[cfg(feature = "reports")]
    Parquet(rows::Parquet),
}

/// A series that is being written.
pub struct Series {
    path: PathBuf,
    sink: Sink,
}

impl Series {
    /// To a file: Parquet if its name ends so, else lines of JSON. To stdout without one.
    pub fn new(path: Option<&Path>) -> Result<Series, WriteError> {
        let Some(path) = path else {
            return Ok(Series { path: "stdout".into(), sink: Sink::Lines(Box::new(io::stdout())) });
        };
        let owned = path.to_owned();
        let is_parquet = path.extension().is_some_and(|extension| extension == "parquet");
        if is_parquet && cfg!(not(feature = "reports")) {
            return Err(WriteError::NoParquet { path: owned });
        }
        match File::create(path).and_then(|file| sink(file, is_parquet)) {
            Ok(sink) => Ok(Series { path: owned, sink }),
            Err(error) => Err(WriteError::Write { path: owned, error }),
        }
    }

    /// Adds a look. Lines are written at once, and Parquet in groups of rows.
    pub fn add(&mut self, time: Timestamp, readings: &Readings) -> Result<(), WriteError> {
        let added = match &mut self.sink {
            Sink::Lines(to) => lines(to, time, readings),
            #[cfg(feature = "reports")]
            Sink::Parquet(to) => to.add(time, readings),
        };
        added.map_err(|error| WriteError::Write { path: self.path.clone(), error })
    }

    /// Ends it: without this nobody can read a Parquet file.
    pub fn finish(self) -> Result<(), WriteError> {
        let ended = match self.sink {
            Sink::Lines(mut to) => to.flush(),
            #[cfg(feature = "reports")]
            Sink::Parquet(to) => to.finish(),
        };
        ended.map_err(|error| WriteError::Write { path: self.path, error })
    }
}

#[cfg(feature = "reports")]
fn sink(file: File, is_parquet: bool) -> io::Result<Sink> {
    if is_parquet {
        return rows::Parquet::new(file).map(Sink::Parquet);
    }
    Ok(Sink::Lines(Box::new(BufWriter::new(file))))
}

/// Without Parquet, which is refused before.
#[cfg(not(feature = "reports"))]
fn sink(file: File, _is_parquet: bool) -> io::Result<Sink> {
    Ok(Sink::Lines(Box::new(BufWriter::new(file))))
}

fn lines(to: &mut dyn Write, time: Timestamp, readings: &Readings) -> io::Result<()> {
    let time = time.to_string();
    let mut text = Vec::new();
    for one in readings.all() {
        let row = Row { time: &time, source: one.source, target: &one.target, counter: &one.counter, value: one.value };
        serde_json::to_writer(&mut text, &row)?;
        text.push(b'\n');
    }
    to.write_all(&text)?;
    to.flush()
}

#[cfg(feature = "reports")]
mod rows {
    use std::fs::File;
    use std::io;

    use jiff::Timestamp;

    use crate::activity::{Reading, Readings};
    use crate::parquet::{Table, Values};

    /// Rows of a group: some 5 MB of memory; a minute and more of a usual machine.
    const GROUP_ROWS: usize = 65_536;

    pub struct Parquet {
        table: Table,
        rows: Vec<(i64, Reading)>,
    }

    impl Parquet {
        pub fn new(file: File) -> io::Result<Parquet> {
            Ok(Parquet { table: Table::new(file, "activity", &columns(&[]))?, rows: Vec::new() })
        }

        pub fn add(&mut self, time: Timestamp, readings: &Readings) -> io::Result<()> {
            self.rows.extend(readings.all().iter().map(|one| (time.as_microsecond(), one.clone())));
            if self.rows.len() >= GROUP_ROWS { self.flush() } else { Ok(()) }
        }

        pub fn finish(mut self) -> io::Result<()> {
            self.flush()?;
            self.table.finish()
        }

        fn flush(&mut self) -> io::Result<()> {
            self.table.add(&columns(&self.rows))?;
            self.rows.clear();
            Ok(())
        }
    }

    /// What is beyond i64 is the most that one can be.
    fn columns(rows: &[(i64, Reading)]) -> Vec<(String, Values)> {
        let text = |of: &dyn Fn(&Reading) -> String| Values::Text(rows.iter().map(|(_, one)| Some(of(one))).collect());
        let value = |one: &Reading| Some(i64::try_from(one.value).unwrap_or(i64::MAX));
        vec![
            ("time".to_owned(), Values::Time(rows.iter().map(|(time, _)| Some(*time)).collect())),
            ("source".to_owned(), text(&|one| one.source.to_owned())),
            ("target".to_owned(), text(&|one| one.target.clone())),
            ("counter".to_owned(), text(&|one| one.counter.clone())),
            ("value".to_owned(), Values::Whole(rows.iter().map(|(_, one)| value(one)).collect())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings() -> Readings {
        let mut readings = Readings::default();
        readings.add("disk", "a\"b", "read_bytes", u64::MAX);
        readings.add("net", "lo", "receive_bytes", 7);
        readings
    }

    #[test]
    fn lines_are_json() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("series.jsonl");
        let mut series = Series::new(Some(&path)).unwrap();
        series.add(Timestamp::from_second(1_767_323_045).unwrap(), &readings()).unwrap();
        series.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!((&rows[0]["target"], &rows[0]["value"]), (&"a\"b".into(), &u64::MAX.into()));
        assert_eq!((&rows[1]["time"], &rows[1]["source"]), (&"2026-01-02T03:04:05Z".into(), &"net".into()));
    }

    #[test]
    fn what_cannot_be_written_is_said() {
        let error = Series::new(Some(Path::new("/nowhere/x.jsonl"))).err().unwrap();
        assert!(error.to_string().starts_with("cannot write /nowhere/x.jsonl"), "{error}");
    }

    #[cfg(feature = "reports")]
    #[test]
    fn parquet_has_a_row_for_each_reading() {
        use parquet::file::reader::{FileReader, SerializedFileReader};
        use parquet::record::RowAccessor;

        let file = tempfile::Builder::new().suffix(".parquet").tempfile().unwrap();
        let mut series = Series::new(Some(file.path())).unwrap();
        for second in 0..40_000 {
            series.add(Timestamp::from_second(second).unwrap(), &readings()).unwrap();
        }
        series.finish().unwrap();
        let reader = SerializedFileReader::new(file.reopen().unwrap()).unwrap();
        assert_eq!((reader.metadata().file_metadata().num_rows(), reader.num_row_groups()), (80_000, 2));
        let row = reader.get_row_iter(None).unwrap().next().unwrap().unwrap();
        assert_eq!((row.get_string(2).unwrap().as_str(), row.get_long(4).unwrap()), ("a\"b", i64::MAX));
    }
}
