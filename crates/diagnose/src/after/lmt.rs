//! The database of the Lustre Monitoring Tool: what each target of a file system has read and
//! written so far, every few seconds.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

/// Rows that are read at most: a day of 248 targets at 5 s.
const ROWS_MAX: usize = 5_000_000;

/// What all targets did between two steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    /// From when to when, in seconds since 1970.
    pub time: [f64; 2],
    /// Bytes that were read and written, by target.
    pub targets: BTreeMap<String, [f64; 2]>,
}

/// Reads it. Steps may be missing, and a server that was started again counts from 0.
pub(super) fn read(path: &Path) -> Result<Vec<Activity>, rusqlite::Error> {
    let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut names = BTreeMap::new();
    let mut query = database.prepare("SELECT OST_ID, OST_NAME FROM OST_INFO")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        names.insert(row.get::<_, i64>(0)?, row.get::<_, String>(1)?);
    }
    let text = "SELECT CAST(strftime('%s', T.TIMESTAMP) AS INTEGER), D.OST_ID, D.READ_BYTES, D.WRITE_BYTES \
                FROM OST_DATA D JOIN TIMESTAMP_INFO T ON T.TS_ID = D.TS_ID ORDER BY 1 LIMIT ?1";
    let mut query = database.prepare(text)?;
    let mut rows = query.query([ROWS_MAX as i64])?;
    let mut steps: BTreeMap<i64, Counts> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (at, target): (i64, i64) = (row.get(0)?, row.get(1)?);
        steps.entry(at).or_default().insert(target, [row.get(2)?, row.get(3)?]);
    }
    let pairs = steps.iter().zip(steps.iter().skip(1));
    let activity = pairs.map(|((before, earlier), (at, now))| Activity {
        time: [*before as f64, *at as f64],
        targets: now
            .iter()
            .filter_map(|(id, counts)| Some((name(&names, *id), grown(earlier.get(id)?, counts))))
            .collect(),
    });
    Ok(activity.collect())
}

/// Bytes that were read and written so far, by target.
type Counts = BTreeMap<i64, [f64; 2]>;

fn name(names: &BTreeMap<i64, String>, id: i64) -> String {
    names.get(&id).cloned().unwrap_or_else(|| format!("OST{id}"))
}

/// What was added. What fell was started again.
fn grown(before: &[f64; 2], now: &[f64; 2]) -> [f64; 2] {
    [0, 1].map(|way: usize| if now[way] < before[way] { now[way] } else { now[way] - before[way] })
}
