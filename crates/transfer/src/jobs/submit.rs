//! Jobs as those see them who submit them: submitted, watched, listed, changed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use postgres::fallible_iterator::FallibleIterator;
use serde::Serialize;

use super::board::SAID_LEFT;
use super::database::{Database, StoreError};
use super::order::{Order, VERSION};
use crate::Failure;
use crate::ledger::{STAGES, Watch};
use crate::outcome::{AllTold, Counts, Lost, Summary, Trouble};
use crate::run::{Plan, write_lines};
use crate::sign::Signer;
use crate::store::random;

/// Between two looks at a job.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Nobody works on a job after so long: it is told.
const SILENCE: Duration = Duration::from_secs(3);

/// Lines that are taken from the store at a time.
const SAID_MAX: i64 = 10_000;

/// Jobs that a list has, at most: the newest.
const LIST_MAX: i64 = 1000;

/// What was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The job's number.
    pub id: i64,
    /// What tells it from all others, of other stores as well.
    pub name: u64,
}

/// How a job is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No more of it is begun.
    Pause,
    /// It goes on.
    Resume,
    /// It ends, and what is not whole is removed.
    Cancel,
    /// Those with greater numbers come first.
    Priority(i32),
}

/// A job in a list.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Its number.
    pub id: i64,
    /// As whom it is done.
    pub submitter: String,
    /// Which agents take it.
    pub queue: String,
    /// Those with greater numbers come first.
    pub priority: i32,
    /// `new`, `running`, `paused`, `cancelling`, `cancelled` or `done`.
    pub state: String,
    /// From where.
    pub sources: Vec<String>,
    /// And where to.
    pub destination: String,
    /// What was done so far.
    pub counts: Counts,
    /// Names and bytes that are known of.
    pub names_found: u64,
    /// Bytes of them.
    pub bytes_found: u64,
    /// Names that were not copied.
    pub troubles: u64,
    /// Seconds since it was submitted, until it ended.
    pub seconds: f64,
}

/// Submits a copy. Both sides are looked at now, and the directory of the destination is made.
pub fn submit(database: &Database, plan: &Plan, queue: &str, priority: i32) -> Result<Submitted, Failure> {
    let text = Order::new(plan)?.text();
    let insert = "INSERT INTO job (queue, priority, name, plan, version) VALUES ($1, $2, $3, $4, $5) RETURNING id";
    let name = random() as i64;
    let row = database.with(|client| client.query_one(insert, &[&queue, &priority, &name, &text, &VERSION]));
    row.map(|row| Submitted { id: row.get(0), name: name as u64 })
        .map_err(|error| database.failed("cannot submit to", &error))
}

type Tally = BTreeMap<String, u64>;

fn counts_of(tally: &Tally) -> Counts {
    let of = |(what, count): (&String, &u64)| Some((what.strip_prefix("count:")?.to_owned(), (*count).into()));
    let counts: serde_json::Map<String, serde_json::Value> = tally.iter().filter_map(of).collect();
    serde_json::from_value(counts.into()).unwrap_or_default()
}

fn stages_of(tally: &Tally) -> [Duration; STAGES.len()] {
    STAGES.map(|(_, name)| Duration::from_nanos(tally.get(&format!("stage:{name}")).copied().unwrap_or_default()))
}

fn count(tally: &Tally, what: &str) -> u64 {
    tally.get(what).copied().unwrap_or_default()
}

struct Now {
    state: String,
    plan: String,
    not_deleted: Option<String>,
    seconds: f64,
    tally: Tally,
    is_begun: bool,
}

fn look(database: &Database, id: i64) -> Result<Option<Now>, StoreError> {
    database.with(|client| {
        let select = "SELECT state, plan, not_deleted, begun,
            extract(epoch FROM coalesce(ended, clock_timestamp()) - submitted)::float8 FROM job WHERE id = $1";
        let Some(row) = client.query_opt(select, &[&id])? else { return Ok(None) };
        let select = "SELECT what, least(sum(count), $2::bigint)::bigint FROM tally WHERE job = $1 GROUP BY what";
        let tally = client
            .query(select, &[&id, &i64::MAX])?
            .iter()
            .map(|row| (row.get(0), row.get::<_, i64>(1) as u64))
            .collect();
        let (state, plan, not_deleted) = (row.get(0), row.get(1), row.get(2));
        Ok(Some(Now { state, plan, not_deleted, is_begun: row.get(3), seconds: row.get(4), tally }))
    })
}

fn no_job(id: i64) -> Failure {
    Failure::new(format!("cannot find job {id}"), "the store has none of that number", "see 'aqueduct transfers list'")
}

/// Who hears of a job while it is waited for.
pub struct Listeners<'a> {
    /// Why agents cannot work on it.
    pub told: &'a mut dyn FnMut(&str),
    /// What was copied and removed, if the job was submitted so that it is told of each path.
    pub said: &'a mut dyn FnMut(&str),
}

/// Gives what was said of paths to `said`, and forgets it.
fn hear(database: &Database, id: i64, said: &mut dyn FnMut(&str)) -> Result<(), StoreError> {
    let take = "DELETE FROM said WHERE id IN (SELECT id FROM said WHERE job = $1 ORDER BY id LIMIT $2)
        RETURNING id, line";
    loop {
        let rows = database.with(|client| client.query(take, &[&id, &SAID_MAX]))?;
        let mut lines: Vec<(i64, &str)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        lines.sort_unstable();
        lines.iter().for_each(|(_, line)| said(line));
        if (lines.len() as i64) < SAID_MAX {
            return Ok(());
        }
    }
}

/// Waits until a job has ended.
pub fn watch(
    database: &Database,
    id: i64,
    watch: &Watch,
    listeners: Listeners<'_>,
) -> Result<(Summary, String), Failure> {
    let Listeners { told, said } = listeners;
    let failed = |error: StoreError| database.failed("cannot look at", &error);
    let (mut heard, mut told_silence) = (0, false);
    let started = Instant::now();
    loop {
        let now = patiently(told, || look(database, id)).map_err(failed)?.ok_or_else(|| no_job(id))?;
        let counts = counts_of(&now.tally);
        watch.set(stages_of(&now.tally));
        watch.bytes.store(counts.moved, Ordering::Relaxed);
        watch.names.store(counts.files + counts.links + counts.others + counts.unchanged, Ordering::Relaxed);
        watch.names_found.store(count(&now.tally, "found:names"), Ordering::Relaxed);
        watch.names_sized.store(count(&now.tally, "found:names"), Ordering::Relaxed);
        watch.bytes_found.store(count(&now.tally, "found:bytes"), Ordering::Relaxed);
        // After the look at the state: nothing is said of a job that has ended.
        if Order::read(&now.plan).is_some_and(|order| order.options.is_verbose) {
            patiently(told, || hear(database, id, said)).map_err(failed)?;
        }
        if matches!(now.state.as_str(), "done" | "cancelled") {
            let left = count(&now.tally, SAID_LEFT);
            if left > 0 {
                told(&format!("{left} more paths were copied or removed: more lines than are kept waited to be read"));
            }
            let state = now.state.clone();
            return Ok((patiently(told, || summary(database, id, &now)).map_err(failed)?, state));
        }
        let reasons = "SELECT path, why FROM told WHERE job = $1 AND kind = 'agent' OFFSET $2";
        let ask = || database.with(|client| client.query(reasons, &[&id, &(heard as i64)]));
        for row in patiently(told, ask).map_err(failed)? {
            told(&format!("agent {}: {}", row.get::<_, &str>(0), row.get::<_, &str>(1)));
            heard += 1;
        }
        if !now.is_begun && !told_silence && heard == 0 && started.elapsed() > SILENCE {
            told("no agent has taken the job so far: see 'aqueduct agents run'");
            told_silence = true;
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Asks until the store answers, as agents do: that it was started anew ends no job.
fn patiently<T>(told: &mut dyn FnMut(&str), mut ask: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let mut is_first = true;
    loop {
        match ask() {
            Err(error) if error.is_passing() => {
                if std::mem::take(&mut is_first) {
                    told(&format!("the store does not answer, and is waited for: {error}"));
                }
                thread::sleep(LOOK_INTERVAL);
            }
            answer => return answer,
        }
    }
}

fn summary(database: &Database, id: i64, now: &Now) -> Result<Summary, StoreError> {
    let select = "SELECT path, what, why FROM told WHERE job = $1 AND kind = $2";
    let of = |kind: &str| database.with(|client| client.query(select, &[&id, &kind]));
    let troubles = of("trouble")?;
    let troubles = troubles.iter().map(|row| Trouble { path: row.get(0), what: row.get(1), why: row.get(2) }).collect();
    let lost = of("lost")?;
    let lost = lost.iter().map(|row| Lost { path: row.get(0), what: row.get(1), why: row.get(2) }).collect();
    let check = |(what, count): (&String, &u64)| Some((what.strip_prefix("check:")?.to_owned().into(), *count));
    let checks = now.tally.iter().filter_map(check).collect();
    let (trouble_count, lost_count) = (count(&now.tally, "troubles"), count(&now.tally, "lost"));
    let sides = Order::read(&now.plan).map(|order| order.sides()).unwrap_or_default();
    let told = AllTold { troubles, trouble_count, lost, lost_count, checks };
    let summary = Summary::new(told, counts_of(&now.tally), now.seconds, stages_of(&now.tally), sides);
    Ok(Summary { not_deleted: now.not_deleted.clone(), ..summary })
}

/// Writes the manifest of a job that has ended, and has it signed.
pub fn write_manifest(
    database: &Database,
    id: i64,
    (path, signer): (&Path, Option<&Signer>),
    summary: &Summary,
) -> Result<(), Failure> {
    let failed = |error: StoreError| database.failed("cannot read the manifest from", &error);
    let now = look(database, id).map_err(failed)?.ok_or_else(|| no_job(id))?;
    let order = Order::read(&now.plan).filter(|order| order.options.hashes());
    let order = order.ok_or_else(|| {
        let hint = "submit it with --manifest";
        Failure::new(format!("cannot write the manifest of job {id}"), "the job was submitted without one", hint)
    })?;
    let (sources, destination) = order.shown();
    let groups = database.again();
    let written = write_lines((path, signer), sources, destination, summary, |each| {
        let mut result = Ok(());
        let read = database.with(|client| {
            let select = "SELECT key, line, grp, first_value(key) OVER (PARTITION BY grp ORDER BY key)
                FROM entry WHERE job = $1 ORDER BY key";
            let mut rows = client.query_raw(select, &[&id])?;
            while let (Ok(()), Some(row)) = (&result, rows.next()?) {
                let (key, line, of): (&[u8], &str, Option<&[u8]>) = (row.get(0), row.get(1), row.get(2));
                result = match of {
                    None => each(key, line, None),
                    Some(of) if row.get::<_, &[u8]>(3) == key => lines_of(&groups, id, of)
                        .map_err(std::io::Error::other)
                        .and_then(|lines| each(key, line, Some((key, &lines)))),
                    Some(_) => each(key, line, Some((row.get(3), &[]))),
                };
            }
            Ok(())
        });
        read.map_err(std::io::Error::other).and(result)
    });
    written.map_err(|error| {
        let hint = "check that the folder may be written and has room; what was copied is there";
        Failure::new(format!("cannot write the manifest {}", path.display()), error, hint)
    })
}

/// The lines of all names of an inode.
fn lines_of(database: &Database, id: i64, group: &[u8]) -> Result<Vec<String>, StoreError> {
    let select = "SELECT line FROM entry WHERE job = $1 AND grp = $2 ORDER BY key";
    let rows = database.with(|client| client.query(select, &[&id, &group]))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The jobs of the store that this user may see, the newest first.
pub fn list(database: &Database) -> Result<Vec<Listed>, Failure> {
    let rows = database.with(|client| {
        let select = "SELECT id, submitter, queue, priority FROM job ORDER BY id DESC LIMIT $1";
        client.query(select, &[&LIST_MAX])
    });
    let failed = |error: StoreError| database.failed("cannot look at", &error);
    let mut found = Vec::new();
    for row in rows.map_err(failed)? {
        let (id, submitter, queue, priority) = (row.get(0), row.get(1), row.get(2), row.get(3));
        let Some(now) = look(database, id).map_err(failed)? else { continue };
        let (sources, destination) = Order::read(&now.plan).map(|order| order.shown()).unwrap_or_default();
        let (counts, troubles) = (counts_of(&now.tally), count(&now.tally, "troubles"));
        let [names_found, bytes_found] = ["found:names", "found:bytes"].map(|what| count(&now.tally, what));
        let (state, seconds) = (now.state, now.seconds);
        found.push(Listed {
            id,
            submitter,
            queue,
            priority,
            state,
            sources,
            destination,
            counts,
            names_found,
            bytes_found,
            troubles,
            seconds,
        });
    }
    Ok(found)
}

/// Changes a job that has not ended.
pub fn change(database: &Database, id: i64, change: Change) -> Result<(), Failure> {
    let count = database.with(|client| match change {
        Change::Pause => client
            .execute("UPDATE job SET state = 'paused' WHERE id = $1 AND state IN ('new', 'running', 'paused')", &[&id]),
        Change::Resume => client.execute(
            "UPDATE job SET state = CASE WHEN state <> 'paused' THEN state WHEN begun THEN 'running' ELSE 'new' END
            WHERE id = $1 AND state IN ('new', 'running', 'paused')",
            &[&id],
        ),
        Change::Cancel => client.execute(
            "UPDATE job SET state = CASE WHEN begun THEN 'cancelling' ELSE 'cancelled' END
            WHERE id = $1 AND state IN ('new', 'running', 'paused', 'cancelling')",
            &[&id],
        ),
        Change::Priority(priority) => client.execute(
            "UPDATE job SET priority = $2 WHERE id = $1 AND state IN ('new', 'running', 'paused')",
            &[&id, &priority],
        ),
    });
    match count.map_err(|error| database.failed("cannot change a job in", &error))? {
        0 => Err(Failure::new(
            format!("cannot change job {id}"),
            "it has ended, or there is none of that number",
            "see 'aqueduct transfers list'",
        )),
        _ => Ok(()),
    }
}
