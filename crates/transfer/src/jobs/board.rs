//! What is to be done of all jobs, in the database: claimed, done, and followed by more.
//!
//! A unit goes with what comes of it in one transaction, and only if the claim is still the last:
//! what an agent says that was taken for dead changes nothing.

use std::sync::Arc;
use std::time::Duration;

use postgres::{Client, Transaction};

use super::database::{Database, StoreError};
use super::order::{Order, VERSION};
use super::unit::{Claimed, Gone, Kept, Large, Outcome, Step, Unit};
use crate::claim::Lease;
use crate::manifest::Text;
use crate::outcome::{Trouble, shown};
use crate::store::Chunk;

/// Names that are one unit, at most.
pub const NAMES_MAX: usize = 1000;

/// The first of what went wrong is kept: so much of each job.
const TOLD_MAX: i64 = 1000;

/// Agents that are gone are forgotten after so long: each start of one is another.
const FORGOTTEN: Duration = Duration::from_secs(30 * 24 * 3600);

/// Lines of a job that wait to be read by who waits for it.
const SAID_KEPT_MAX: i64 = 100_000;

/// Of how many paths nobody was told, since so many lines waited.
pub const SAID_LEFT: &str = "said:left";

/// What all directories are gone through in, what follows it, and what is done last.
const COPYING: i32 = 0;
const LINKING: i32 = 1;
const DELETING: i32 = 2;
const FINISHING: i32 = 3;

/// An agent, as the database knows it.
pub struct Registration {
    /// Its number.
    pub id: i64,
    /// How long it is believed alive.
    pub lease: Arc<Lease>,
}

/// The board, with what one connection asks of it.
pub struct Board {
    pub database: Database,
    /// For so long an agent is believed alive.
    pub length: Duration,
}

/// The jobs that an agent works on.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Of these queues.
    pub queues: Vec<String>,
    /// Of these submitters; `None`: of all.
    pub submitters: Option<Vec<String>>,
    /// Not these, for now.
    pub refused: Vec<i64>,
}

/// A job as an agent needs it.
pub struct JobRow {
    pub submitter: String,
    pub name: u64,
    pub plan: String,
}

/// Paths of more bytes are known by their hash where an index has to hold them.
const KEY_MAX: usize = 1024;

/// What a path is known by in an index. No path below a destination begins with a slash.
fn key_of(path: &[u8]) -> Vec<u8> {
    if path.len() <= KEY_MAX { path.to_vec() } else { [b"/", &blake3::hash(path).as_bytes()[..]].concat() }
}

fn unit_text(unit: &Unit) -> String {
    serde_json::to_string(unit).expect("a unit has only what JSON can hold")
}

fn insert_units(client: &mut Transaction<'_>, job: i64, units: &[Unit], delay: f64) -> Result<(), postgres::Error> {
    if units.is_empty() {
        return Ok(());
    }
    let texts: Vec<String> = units.iter().map(unit_text).collect();
    let insert = "INSERT INTO unit (job, body, not_before)
        SELECT $1, body, clock_timestamp() + $3 * interval '1 second' FROM unnest($2::text[]) AS body";
    client.execute(insert, &[&job, &texts, &delay]).map(drop)
}

impl Board {
    /// An agent that is alive from now on.
    pub fn register(&self, name: &str, host: &str) -> Result<Registration, StoreError> {
        let insert = "INSERT INTO agent (name, host, pid, until)
            VALUES ($1, $2, $3, clock_timestamp() + $4 * interval '1 second') RETURNING id";
        let (pid, seconds) = (std::process::id() as i32, self.length.as_secs_f64());
        let ask = || self.database.with(|client| client.query_one(insert, &[&name, &host, &pid, &seconds]));
        let (row, lease) = Lease::begin(self.length, ask)?;
        Ok(Registration { id: row.get(0), lease: Arc::new(lease) })
    }

    /// The agent is alive still. `false`: it was not heard of for too long, whether somebody has
    /// noticed or not, and what it has claimed is others'.
    pub fn renew(&self, agent: &Registration) -> Result<bool, StoreError> {
        let update = "UPDATE agent SET until = clock_timestamp() + $2 * interval '1 second'
            WHERE id = $1 AND NOT gone AND until > clock_timestamp()";
        let seconds = self.length.as_secs_f64();
        agent.lease.renew(self.length, || {
            self.database.with(|client| client.execute(update, &[&agent.id, &seconds])).map(|count| count == 1)
        })
    }

    /// Gives back what an agent has, which ends.
    pub fn leave(&self, agent: i64) -> Result<(), StoreError> {
        self.database.with(|client| {
            let mut transaction = client.transaction()?;
            transaction.execute("UPDATE agent SET gone = true WHERE id = $1", &[&agent])?;
            transaction.execute("UPDATE unit SET agent = NULL WHERE agent = $1", &[&agent])?;
            transaction.commit()
        })
    }

    /// Gives back what an agent has but for these units: it has not heard that it was given more.
    pub fn keeps_only(&self, agent: i64, units: &[i64]) -> Result<(), StoreError> {
        let free = "UPDATE unit SET agent = NULL WHERE agent = $1 AND NOT id = ANY($2)";
        self.database.with(|client| client.execute(free, &[&agent, &units])).map(drop)
    }

    /// Takes the claims of agents away that are not heard of any more: also what one was given
    /// while others found it dead.
    pub fn reap(&self) -> Result<(), StoreError> {
        let bury = "UPDATE agent SET gone = true WHERE NOT gone AND until < clock_timestamp()";
        let free = "WITH freed AS (UPDATE unit SET agent = NULL WHERE unit.agent IS NOT NULL
                AND NOT EXISTS (SELECT FROM agent WHERE agent.id = unit.agent AND NOT agent.gone) RETURNING unit.job)
            UPDATE job SET lost_claims = true WHERE NOT lost_claims AND id IN (SELECT job FROM freed)";
        let forget = "DELETE FROM agent WHERE gone AND until < clock_timestamp() - $1 * interval '1 second'";
        self.database.with(|client| {
            client.execute(bury, &[])?;
            client.execute(free, &[])?;
            client.execute(forget, &[&FORGOTTEN.as_secs_f64()]).map(drop)
        })
    }

    /// Claims up to so many units, of the jobs with the highest priority first, the newest first.
    pub fn claim(&self, agent: &Registration, scope: &Scope, count: i64) -> Result<Vec<Claimed>, StoreError> {
        // Job by job, the newest of each by its index: to sort all that wait would take the longer
        // the more there are.
        let claim = "WITH next AS (
                SELECT free.id FROM (
                    SELECT id FROM job WHERE queue = ANY($2)
                        AND version = $5 AND ($6::text[] IS NULL OR submitter = ANY($6)) AND NOT id = ANY($7)
                        AND (state = 'running' OR state = 'cancelling' AND stage = $4)
                    ORDER BY priority DESC, id) AS wanted
                CROSS JOIN LATERAL (
                    SELECT unit.id FROM unit WHERE unit.job = wanted.id
                        AND unit.agent IS NULL AND unit.not_before <= clock_timestamp()
                    ORDER BY unit.id DESC LIMIT $3 FOR UPDATE SKIP LOCKED) AS free
                LIMIT $3)
            UPDATE unit SET agent = $1, fence = fence + 1 FROM next
            WHERE unit.id = next.id
                AND EXISTS (SELECT FROM agent WHERE id = $1 AND NOT gone AND until > clock_timestamp())
            RETURNING unit.id, unit.job, unit.fence, unit.body";
        let rows = self.database.with(|client| {
            client.query(
                claim,
                &[&agent.id, &scope.queues, &count, &FINISHING, &VERSION, &scope.submitters, &scope.refused],
            )
        })?;
        let read = |row: &postgres::Row| {
            let unit = serde_json::from_str(row.get(3)).ok()?;
            let (id, job, fence, lease) = (row.get(0), row.get(1), row.get(2), agent.lease.clone());
            Some(Claimed { id, job, fence, agent: agent.id, unit, lease })
        };
        Ok(rows.iter().filter_map(read).collect())
    }

    /// A job; `None`: it is not there any more.
    pub fn job(&self, id: i64) -> Result<Option<JobRow>, StoreError> {
        let select = "SELECT submitter, name, plan FROM job WHERE id = $1";
        let row = self.database.with(|client| client.query_opt(select, &[&id]))?;
        Ok(row.map(|row| JobRow { submitter: row.get(0), name: row.get::<_, i64>(1) as u64, plan: row.get(2) }))
    }

    /// Which of these jobs have been ended by somebody.
    pub fn ended(&self, jobs: &[i64]) -> Result<Vec<i64>, StoreError> {
        let select = "SELECT wanted FROM unnest($1::bigint[]) AS wanted
            WHERE NOT EXISTS (SELECT FROM job WHERE id = wanted AND state IN ('new', 'running', 'paused'))";
        let rows = self.database.with(|client| client.query(select, &[&jobs]))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Agents that are alive.
    pub fn alive(&self) -> Result<i64, StoreError> {
        let select = "SELECT count(*) FROM agent WHERE NOT gone";
        Ok(self.database.with(|client| client.query_one(select, &[]))?.get(0))
    }

    /// Gives back units of a job that this agent cannot do, and says why, once. What else of the
    /// job it is at it keeps.
    pub fn refuse(&self, claimed: &Claimed, units: &[i64], agent: &str, why: &str) -> Result<(), StoreError> {
        self.database.with(|client| {
            let mut transaction = client.transaction()?;
            let free = "UPDATE unit SET agent = NULL WHERE id = ANY($1) AND agent = $2";
            transaction.execute(free, &[&units, &claimed.agent])?;
            let insert = "INSERT INTO told (job, kind, path, what, why) SELECT $1, 'agent', $2, 'working on it', $3
                WHERE NOT EXISTS (SELECT FROM told WHERE job = $1 AND kind = 'agent' AND path = $2 AND why = $3)
                    AND (SELECT count(*) FROM told WHERE job = $1 AND kind = 'agent') < $4";
            transaction.execute(insert, &[&claimed.job, &agent, &why, &TOLD_MAX])?;
            transaction.commit()
        })
    }

    /// A unit is done. `false`: it was not this agent's any more, and nothing was changed.
    pub fn done(&self, claimed: &Claimed, outcome: &Outcome) -> Result<bool, StoreError> {
        self.database.with(|client| {
            let mut transaction = client.transaction()?;
            let delete = "DELETE FROM unit WHERE id = $1 AND agent = $2 AND fence = $3";
            if transaction.execute(delete, &[&claimed.id, &claimed.agent, &claimed.fence])? != 1 {
                return Ok(false);
            }
            put(&mut transaction, claimed, outcome)?;
            transaction.commit()?;
            Ok(true)
        })
    }

    /// A unit is done of which the store does not take what came of it, for its own limits: that
    /// is told, where it would be tried for ever. As [`Board::done`].
    pub fn done_in_vain(&self, claimed: &Claimed, error: &StoreError) -> Result<bool, StoreError> {
        let trouble = Trouble {
            path: shown(&claimed.unit.path()),
            what: "keeping in the store what came of it".to_owned(),
            why: error.to_string(),
        };
        let tally = [("troubles".to_owned(), 1)].into();
        self.done(claimed, &Outcome { tally, troubles: vec![trouble], leaves_parts: true, ..Outcome::default() })
    }

    /// A large file under way.
    pub fn large(&self, job: i64, path: &[u8]) -> Result<Option<Large>, StoreError> {
        let select = "SELECT body FROM part WHERE job = $1 AND key = $2";
        let row = self.database.with(|client| client.query_opt(select, &[&job, &key_of(path)]))?;
        Ok(row.and_then(|row| serde_json::from_str(row.get(0)).ok()))
    }

    /// Its chunks that are there.
    pub fn chunks(&self, job: i64, path: &[u8]) -> Result<Vec<Chunk>, StoreError> {
        let select = "SELECT place, sum, value FROM chunk WHERE job = $1 AND key = $2";
        let rows = self.database.with(|client| client.query(select, &[&job, &key_of(path)]))?;
        let read = |row: &postgres::Row| {
            let (index, sum) = (row.get::<_, i64>(0) as u64, row.get::<_, i64>(1) as u64);
            Chunk { index, sum, value: row.get::<_, &[u8]>(2).try_into().ok() }
        };
        Ok(rows.iter().map(read).collect())
    }

    /// Directories that were gone through: these, or all.
    pub fn directories(&self, job: i64, paths: Option<&[Vec<u8>]>) -> Result<Vec<Gone>, StoreError> {
        let select = "SELECT base, path, seen FROM directory WHERE job = $1";
        let of_paths = "AND sha256(path) IN (SELECT sha256(wanted) FROM unnest($2::bytea[]) AS wanted)";
        let rows = self.database.with(|client| match paths {
            Some(paths) => client.query(&format!("{select} {of_paths}"), &[&job, &paths]),
            None => client.query(select, &[&job]),
        })?;
        let read = |row: &postgres::Row| {
            let seen = serde_json::from_str::<Kept>(row.get(2)).ok()?.seen()?;
            Some(Gone { base: row.get::<_, i32>(0) as usize, path: row.get(1), seen })
        };
        Ok(rows.iter().filter_map(read).collect())
    }

    /// So many names of a job were not copied.
    pub fn troubles(&self, job: i64) -> Result<i64, StoreError> {
        let select = "SELECT least(coalesce(sum(count), 0), $2::bigint)::bigint FROM tally
            WHERE job = $1 AND what = 'troubles'";
        Ok(self.database.with(|client| client.query_one(select, &[&job, &i64::MAX]))?.get(0))
    }

    /// Begins new jobs, and has those go on of which nothing is left to do at their stage. Whether
    /// there was one.
    pub fn advance(&self, scope: &Scope) -> Result<bool, StoreError> {
        let delay = self.length.as_secs_f64() / 2.0;
        self.database.with(|client| advance(client, scope, delay))
    }
}

fn put(transaction: &mut Transaction<'_>, claimed: &Claimed, outcome: &Outcome) -> Result<(), postgres::Error> {
    let job = claimed.job;
    insert_units(transaction, job, &outcome.next, 0.0)?;
    if let Some((unit, delay)) = &outcome.again {
        insert_units(transaction, job, std::slice::from_ref(unit), *delay)?;
    }
    if !outcome.entries.is_empty() {
        let keys: Vec<&[u8]> = outcome.entries.iter().map(|entry| entry.key.as_slice()).collect();
        let groups: Vec<Option<&[u8]>> = outcome.entries.iter().map(|entry| entry.group.as_deref()).collect();
        let lines: Vec<&str> = outcome.entries.iter().map(|entry| entry.line.as_str()).collect();
        let insert = "INSERT INTO entry (job, key, grp, line)
            SELECT $1, * FROM unnest($2::bytea[], $3::bytea[], $4::text[])
            ON CONFLICT (job, sha256(key)) DO UPDATE SET grp = excluded.grp, line = excluded.line";
        transaction.execute(insert, &[&job, &keys, &groups, &lines])?;
    }
    if !outcome.links.is_empty() {
        let identities: Vec<&[u8]> = outcome.links.iter().map(|(identity, ..)| identity.as_slice()).collect();
        let paths: Vec<&[u8]> = outcome.links.iter().map(|(.., path)| path.as_slice()).collect();
        let bases: Vec<i32> = outcome.links.iter().map(|(_, base, _)| *base as i32).collect();
        let insert = "INSERT INTO link (job, identity, path, base)
            SELECT $1, * FROM unnest($2::bytea[], $3::bytea[], $4::integer[]) ON CONFLICT DO NOTHING";
        transaction.execute(insert, &[&job, &identities, &paths, &bases])?;
    }
    if let Some(Gone { base, path, seen }) = &outcome.directory {
        let depth = if path.is_empty() { 0 } else { 1 + path.iter().filter(|byte| **byte == b'/').count() as i32 };
        let seen = serde_json::to_string(&Kept::new(seen)).expect("numbers are JSON");
        let insert = "INSERT INTO directory (job, path, base, depth, seen) VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT (job, sha256(path)) DO UPDATE SET base = excluded.base, seen = excluded.seen";
        transaction.execute(insert, &[&job, &path, &(*base as i32), &depth, &seen])?;
    }
    if let Some((path, step)) = &outcome.large {
        put_large(transaction, job, path, step)?;
    }
    if let Some(why) = &outcome.not_deleted {
        transaction.execute("UPDATE job SET not_deleted = $2 WHERE id = $1", &[&job, why])?;
    }
    if outcome.leaves_parts {
        transaction.execute("UPDATE job SET lost_claims = true WHERE id = $1", &[&job])?;
    }
    put_said(transaction, claimed, &outcome.said)?;
    put_told(transaction, claimed, outcome)
}

/// Keeps what was said of paths for who waits for the job. Beyond `SAID_KEPT_MAX` lines that nobody
/// has read, since whoever waited has gone, only their number is kept.
fn put_said(transaction: &mut Transaction<'_>, claimed: &Claimed, said: &[String]) -> Result<(), postgres::Error> {
    if said.is_empty() {
        return Ok(());
    }
    // Numbers of lines are of all jobs: with several at once fewer are kept, never more.
    let insert = "INSERT INTO said (job, line) SELECT $1, * FROM unnest($2::text[])
        WHERE coalesce((SELECT max(id) - min(id) FROM said WHERE job = $1), 0) < $3";
    let kept = transaction.execute(insert, &[&claimed.job, &said, &SAID_KEPT_MAX])?;
    if kept == 0 {
        put_tally(transaction, claimed, &[SAID_LEFT], &[said.len() as i64])?;
    }
    Ok(())
}

fn put_tally(
    transaction: &mut Transaction<'_>,
    claimed: &Claimed,
    whats: &[&str],
    counts: &[i64],
) -> Result<(), postgres::Error> {
    // Files that are holes come to more than a number holds: the sum stays at the greatest.
    let insert = "INSERT INTO tally (job, agent, what, count) SELECT $1, $2, * FROM unnest($3::text[], $4::bigint[])
        ON CONFLICT (job, agent, what)
        DO UPDATE SET count = least(tally.count::numeric + excluded.count, $5::bigint)::bigint";
    transaction.execute(insert, &[&claimed.job, &claimed.agent, &whats, &counts, &i64::MAX]).map(drop)
}

fn put_large(transaction: &mut Transaction<'_>, job: i64, path: &[u8], step: &Step) -> Result<(), postgres::Error> {
    let key = key_of(path);
    match step {
        Step::Begun(large) => {
            let insert = "INSERT INTO part (job, key, body, missing) VALUES ($1, $2, $3, $4)";
            transaction.execute(insert, &[&job, &key, &large.text(), &(large.count as i64)])?;
        }
        Step::Written { of, chunks } => {
            // Whoever ends the last of them is alone: the row is locked until the end. What went to
            // an earlier try of the file is in none that is there.
            let update = "UPDATE part SET missing = missing - $3
                WHERE job = $1 AND key = $2 AND body = $4 RETURNING missing";
            let missing = transaction.query_opt(update, &[&job, &key, &(chunks.len() as i64), &of.text()])?;
            let Some(missing) = missing.map(|row| row.get::<_, i64>(0)) else { return Ok(()) };
            let places: Vec<i64> = chunks.iter().map(|chunk| chunk.index as i64).collect();
            let sums: Vec<i64> = chunks.iter().map(|chunk| chunk.sum as i64).collect();
            let values: Vec<&[u8]> = chunks.iter().map(|chunk| chunk.value.as_ref().map_or(&[][..], |v| v)).collect();
            let insert = "INSERT INTO chunk (job, key, place, sum, value)
                SELECT $1, $2, * FROM unnest($3::bigint[], $4::bigint[], $5::bytea[])";
            transaction.execute(insert, &[&job, &key, &places, &sums, &values])?;
            if missing == 0 {
                insert_units(transaction, job, &[Unit::Finish { path: Text::new(path), tries: 0 }], 0.0)?;
            }
        }
        Step::Ended => {
            transaction.execute("DELETE FROM part WHERE job = $1 AND key = $2", &[&job, &key])?;
        }
        Step::Failed { of, again } => {
            // Its chunks find no file any more, or the next try, and go.
            let delete = "DELETE FROM part WHERE job = $1 AND key = $2 AND body = $3";
            let deleted = transaction.execute(delete, &[&job, &key, &of.text()])?;
            if let (Some(unit), 1) = (again, deleted) {
                insert_units(transaction, job, std::slice::from_ref(unit), 0.5)?;
            }
        }
    }
    Ok(())
}

fn put_told(transaction: &mut Transaction<'_>, claimed: &Claimed, outcome: &Outcome) -> Result<(), postgres::Error> {
    let insert = "INSERT INTO told (job, kind, path, what, why) SELECT $1, $2, $3, $4, $5
        WHERE (SELECT count(*) FROM told WHERE job = $1 AND kind = $2) < $6";
    let troubles = outcome.troubles.iter().map(|told| ("trouble", &told.path, &told.what, &told.why));
    let lost = outcome.lost.iter().map(|told| ("lost", &told.path, &told.what, &told.why));
    for (kind, path, what, why) in troubles.chain(lost) {
        transaction.execute(insert, &[&claimed.job, &kind, path, what, why, &TOLD_MAX])?;
    }
    if !outcome.tally.is_empty() {
        let whats: Vec<&str> = outcome.tally.keys().map(String::as_str).collect();
        let counts: Vec<i64> = outcome.tally.values().copied().collect();
        put_tally(transaction, claimed, &whats, &counts)?;
    }
    Ok(())
}

fn advance(client: &mut Client, scope: &Scope, delay: f64) -> Result<bool, postgres::Error> {
    let select = "SELECT id, state, stage, depth, plan, lost_claims FROM job WHERE queue = ANY($1) AND version = $3 AND ($4::text[] IS NULL OR submitter = ANY($4))
        AND (state = 'new' OR state = 'cancelling' AND stage <> $2
            OR state IN ('running', 'cancelling') AND NOT EXISTS (SELECT FROM unit WHERE unit.job = job.id))
        ORDER BY priority DESC, id LIMIT 1 FOR UPDATE SKIP LOCKED";
    let mut transaction = client.transaction()?;
    let Some(row) = transaction.query_opt(select, &[&scope.queues, &FINISHING, &VERSION, &scope.submitters])? else {
        return Ok(false);
    };
    let (id, state, stage): (i64, String, i32) = (row.get(0), row.get(1), row.get(2));
    // Who asked at the same time may have taken this step, and what it gave to do was not there yet
    // when this one looked: under the lock of the job it is.
    let is_at_work = "SELECT EXISTS (SELECT FROM unit WHERE job = $1)";
    let ends_work = state == "cancelling" && stage != FINISHING;
    if !ends_work && transaction.query_one(is_at_work, &[&id])?.get(0) {
        return Ok(true);
    }
    match (state.as_str(), stage) {
        ("new", _) => begin(&mut transaction, id, row.get(4))?,
        ("cancelling", FINISHING) => end(&mut transaction, id, "cancelled")?,
        ("cancelling", _) => {
            // Agents that are at it end it when they next look, and then the rest is removed.
            transaction.execute("DELETE FROM unit WHERE job = $1", &[&id])?;
            transaction.execute("UPDATE job SET stage = $2 WHERE id = $1", &[&id, &FINISHING])?;
            insert_units(&mut transaction, id, &[Unit::Sweep], delay)?;
        }
        (_, COPYING) => link(&mut transaction, id)?,
        (_, LINKING) => {
            transaction.execute("UPDATE job SET stage = $2 WHERE id = $1", &[&id, &DELETING])?;
            let deletes = Order::read(row.get(4)).is_some_and(|order| order.options.delete);
            let sweeps = row.get(5);
            let units = [(deletes, Unit::Delete), (sweeps, Unit::Sweep)];
            let units: Vec<Unit> = units.into_iter().filter_map(|(is_due, unit)| is_due.then_some(unit)).collect();
            insert_units(&mut transaction, id, &units, 0.0)?;
        }
        (_, DELETING) => {
            let deepest =
                "UPDATE job SET stage = $2, depth = (SELECT coalesce(max(depth), -1) FROM directory WHERE job = $1)
                WHERE id = $1 RETURNING depth";
            let depth = transaction.query_one(deepest, &[&id, &FINISHING])?.get(0);
            attributes(&mut transaction, id, depth)?;
        }
        (_, _) if row.get::<_, i32>(3) > 0 => {
            let above = "UPDATE job SET depth = depth - 1 WHERE id = $1 RETURNING depth";
            let depth = transaction.query_one(above, &[&id])?.get(0);
            attributes(&mut transaction, id, depth)?;
        }
        (_, _) => end(&mut transaction, id, "done")?,
    }
    transaction.commit()?;
    Ok(true)
}

/// The first units of a job.
fn begin(transaction: &mut Transaction<'_>, id: i64, plan: &str) -> Result<(), postgres::Error> {
    let Some(order) = Order::read(plan) else { return end(transaction, id, "cancelled") };
    let unit = |(base, of): (usize, &super::order::Base)| match &of.name {
        None => Unit::Directory { base, path: Text::new(b"") },
        Some((_, target)) if of.is_directory => Unit::Directory { base, path: target.clone() },
        Some((_, target)) => {
            let (directory, names) = (Text::new(b""), vec![target.clone()]);
            Unit::Files { base, directory, is_new: false, names }
        }
    };
    let units: Vec<Unit> = order.bases.iter().enumerate().map(unit).collect();
    transaction.execute("UPDATE job SET state = 'running', begun = true WHERE id = $1", &[&id])?;
    insert_units(transaction, id, &units, 0.0)
}

/// Files under way of which nothing is to be done any more, though not all of their chunks are
/// there: they are told, as nobody would miss them otherwise.
fn tell_left(transaction: &mut Transaction<'_>, id: i64) -> Result<(), postgres::Error> {
    let left = transaction.query("DELETE FROM part WHERE job = $1 RETURNING key", &[&id])?;
    if left.is_empty() {
        return Ok(());
    }
    let paths: Vec<String> = left.iter().take(TOLD_MAX as usize).map(|row| shown(row.get(0))).collect();
    let insert = "INSERT INTO told (job, kind, path, what, why)
        SELECT $1, 'trouble', path, 'putting it together', 'not all of its chunks are there' FROM unnest($2::text[]) AS path";
    transaction.execute(insert, &[&id, &paths])?;
    let count = "INSERT INTO tally (job, agent, what, count) VALUES ($1, 0, 'troubles', $2)";
    transaction.execute(count, &[&id, &(left.len() as i64)])?;
    transaction.execute("UPDATE job SET lost_claims = true WHERE id = $1", &[&id]).map(drop)
}

/// All names of an inode come to one agent.
fn link(transaction: &mut Transaction<'_>, id: i64) -> Result<(), postgres::Error> {
    transaction.execute("UPDATE job SET stage = $2 WHERE id = $1", &[&id, &LINKING])?;
    tell_left(transaction, id)?;
    let select = "SELECT identity, base, path FROM link WHERE job = $1 ORDER BY identity, path";
    let (mut units, mut names, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for row in transaction.query(select, &[&id])? {
        let identity: Vec<u8> = row.get(0);
        if names.len() >= NAMES_MAX && identity != last {
            units.push(Unit::Links { names: std::mem::take(&mut names) });
        }
        names.push((row.get::<_, i32>(1) as usize, Text::new(row.get(2))));
        last = identity;
    }
    if !names.is_empty() {
        units.push(Unit::Links { names });
    }
    transaction.execute("DELETE FROM link WHERE job = $1", &[&id])?;
    insert_units(transaction, id, &units, 0.0)
}

/// Directories of one depth: those above come later, since they may close the way.
fn attributes(transaction: &mut Transaction<'_>, id: i64, depth: i32) -> Result<(), postgres::Error> {
    let select = "SELECT path FROM directory WHERE job = $1 AND depth = $2 ORDER BY path";
    let rows = transaction.query(select, &[&id, &depth])?;
    let paths: Vec<Text> = rows.iter().map(|row| Text::new(row.get(0))).collect();
    let units: Vec<Unit> = paths.chunks(NAMES_MAX).map(|paths| Unit::Attributes { paths: paths.to_vec() }).collect();
    insert_units(transaction, id, &units, 0.0)
}

fn end(transaction: &mut Transaction<'_>, id: i64, state: &str) -> Result<(), postgres::Error> {
    transaction.execute("UPDATE job SET state = $2, ended = clock_timestamp() WHERE id = $1", &[&id, &state])?;
    for table in ["directory", "link", "part"] {
        transaction.execute(&format!("DELETE FROM {table} WHERE job = $1"), &[&id])?;
    }
    Ok(())
}
