//! A connection to the store of jobs, made again when it breaks.

use std::sync::Mutex;
use std::time::Duration;

use aqueduct_worker::lock;
use postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::tls::Wanted;
use crate::Failure;

/// Within so long a database answers that can be reached.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection on which nothing is heard for so long is looked after, and given up after twice as
/// long: an agent's lease goes on meanwhile.
const SILENCE: Duration = Duration::from_secs(5);

/// Times that it is looked after.
const LOOKS: u32 = 3;

/// Two programs make the tables one after the other: a number of ours for the lock.
const MAKING: i64 = 0x6171_7565_6475_6374;

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}", told(.0))]
pub struct StoreError(#[from] pub postgres::Error);

/// What the database says, which the error itself leaves to its source.
fn told(error: &postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(said), _) => said.message().to_owned(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

impl StoreError {
    /// Whether the same may work later: the connection broke, or two were in each other's way.
    pub fn is_passing(&self) -> bool {
        use postgres::error::SqlState;
        let of_state = |state: &SqlState| {
            [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE].contains(state)
                || state.code().starts_with("57P")
                || state.code().starts_with("08")
        };
        self.0.code().is_none_or(of_state)
    }

    /// Whether the store refuses what it was given, and will for ever: a value that none of its
    /// columns or indices holds, or that is there already.
    pub fn is_refusal(&self) -> bool {
        let classes = ["21", "22", "23", "54"];
        self.0.code().is_some_and(|state| classes.iter().any(|class| state.code().starts_with(class)))
    }
}

/// The store of jobs.
pub struct Database {
    url: String,
    config: Config,
    encryption: MakeRustlsConnect,
    client: Mutex<Option<Client>>,
}

impl Database {
    /// Connects, and makes the tables if they are missing.
    pub fn connect(url: &str) -> Result<Database, Failure> {
        let hint = "write it as postgres://USER@HOST/DATABASE, or postgres:///DATABASE?host=/run/postgresql";
        let (address, wanted) = Wanted::taken_from(url)?;
        let mut config: Config = address
            .parse()
            .map_err(|error: postgres::Error| Failure::usage("cannot read --store", StoreError(error), hint))?;
        config.connect_timeout(CONNECT_TIMEOUT).application_name("aqueduct");
        config.keepalives_idle(SILENCE).keepalives_interval(SILENCE / LOOKS).keepalives_retries(LOOKS);
        config.tcp_user_timeout(2 * SILENCE);
        let encryption = wanted.connector()?;
        let database = Database { url: shown(url), config, encryption, client: Mutex::default() };
        database.with(make).map_err(|error| database.failed("cannot use", &error))?;
        Ok(database)
    }

    /// Its address, without a password.
    pub fn name(&self) -> &str {
        &self.url
    }

    /// Another connection to the same store, made when it is needed.
    pub fn again(&self) -> Database {
        let (url, config, encryption) = (self.url.clone(), self.config.clone(), self.encryption.clone());
        Database { url, config, encryption, client: Mutex::default() }
    }

    /// What failed at the store, for a person.
    pub fn failed(&self, what: &str, error: &StoreError) -> Failure {
        let hint = "check that the database runs and may be reached, and what its log says";
        Failure::new(format!("{what} the store {}", self.url), error, hint)
    }

    /// Asks the database something.
    pub fn with<T>(&self, ask: impl FnOnce(&mut Client) -> Result<T, postgres::Error>) -> Result<T, StoreError> {
        let mut client = lock(&self.client);
        let connected = match client.take().filter(|client| !client.is_closed()) {
            Some(connected) => connected,
            None => {
                let mut connected = self.config.connect(self.encryption.clone())?;
                connected.batch_execute("SET search_path = aqueduct")?;
                connected
            }
        };
        Ok(ask(client.insert(connected))?)
    }
}

/// An address without its password.
fn shown(url: &str) -> String {
    match url.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.split_once('@')?))) {
        Some((scheme, (user, rest))) => {
            format!("{scheme}://{}@{rest}", user.split_once(':').map_or(user, |(user, _)| user))
        }
        None => url.to_owned(),
    }
}

/// Makes the tables, unless they are there: who only submits may not.
fn make(client: &mut Client) -> Result<(), postgres::Error> {
    // What the last release that changed them made.
    let is_there = "SELECT to_regclass('aqueduct.entry_names') IS NOT NULL";
    if client.query_one(is_there, &[])?.get(0) {
        return Ok(());
    }
    let mut transaction = client.transaction()?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&MAKING])?;
    if transaction.query_one(is_there, &[])?.get(0) {
        return Ok(()); // whoever has made them meanwhile uses them already
    }
    transaction.batch_execute(include_str!("schema.sql"))?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(shown("postgres://u:secret@h/d"), "postgres://u@h/d");
        assert_eq!(shown("postgres:///d?host=/run"), "postgres:///d?host=/run");
    }
}
