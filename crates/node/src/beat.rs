//! What a server of data does to keep the authority to write: it asks the server of the names for
//! it again and again, and has a process beside it that ends it when it cannot be trusted any more
//! (see [`watch`](crate::watch)).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use aqueduct_client::{Asker, boottime};
use aqueduct_net::Initiator;
use aqueduct_server::right::{Authority, Heard, Watch};
use aqueduct_wire::{BeatReply, ClientKey, Key, Op, RightKey};

use crate::failure::Failure;
use crate::watch::{Ended, Watcher};

/// Between two beats.
const PAUSE: Duration = Duration::from_millis(250);

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// What a server of data is, to who has the names.
pub(crate) struct Data<'a> {
    /// The volume's.
    pub(crate) key: RightKey,
    /// Its place in the map.
    pub(crate) place: u16,
    /// Which start of it.
    pub(crate) start: u64,
    /// The addresses of the server of the names.
    pub(crate) names: String,
    /// The cluster's keys.
    pub(crate) keys: &'a [Key],
    /// Who connects to it, where it is in a network that has a name.
    pub(crate) routes: Option<&'a Arc<Initiator>>,
}

/// The thread that beats, until this is dropped.
pub(crate) struct Beats {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Beats {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("what asked for the authority to write has failed");
        }
    }
}

/// Starts to beat, beside the program that watches.
pub(crate) fn start(data: Data<'_>, program: &Path) -> Result<(Arc<Authority>, Beats), Failure> {
    let hint = "see whether the limits on processes and open files allow more";
    let failed = |error: std::io::Error| Failure::new("cannot write for the volume", error, hint);
    let Data { key, place, start, names, keys, routes } = data;
    let cluster = keys.first();
    let ended = Ended::new(&key, (place, start), (names.clone(), routes), cluster).map_err(failed)?;
    let watcher = Watcher::start(program, ended).map_err(failed)?;
    let watch: Watch = Box::new(move |until| watcher.tell(until));
    let authority = Arc::new(Authority::new(key, place, start, watch));
    let ends = Arc::<AtomicBool>::default();
    let (client, of_thread, until) = (cluster.cloned().map(ClientKey::from), authority.clone(), ends.clone());
    let routes = routes.cloned();
    let beat = move || beat(&of_thread, (&names, client.as_ref(), routes.as_ref()), &until);
    let thread = std::thread::Builder::new().name("beat".into()).spawn(beat).map_err(failed)?;
    Ok((authority, Beats { ends, thread: Some(thread) }))
}

fn beat(
    authority: &Authority,
    (names, key, routes): (&str, Option<&ClientKey>, Option<&Arc<Initiator>>),
    ends: &AtomicBool,
) {
    let mut asker = None;
    let mut was_heard = true;
    while !ends.load(Ordering::SeqCst) {
        if asker.is_none() {
            asker = Asker::connect(names, key.cloned(), routes.cloned(), TIMEOUT).ok();
        }
        let heard = asker.as_mut().and_then(|asker| ask(authority, asker));
        authority.tell_watch();
        if heard.is_none() {
            asker = None;
        }
        if was_heard != heard.is_some() {
            was_heard = heard.is_some();
            match was_heard {
                true => tracing::info!(%names, "the server of the names answers: writes are served"),
                false => {
                    tracing::warn!(%names, "the server of the names does not answer: no write is served meanwhile")
                }
            }
        }
        match heard {
            Some(Heard::News) => authority.wait(PAUSE),
            _ => std::thread::sleep(PAUSE),
        }
    }
}

/// `None`: there is no answer, or none that helps.
fn ask(authority: &Authority, asker: &mut Asker) -> Option<Heard> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).ok()?;
    let asked = boottime();
    let body = authority.beat(nonce).encode(authority.key());
    let answer = asker.request(Op::Beat, &body, TIMEOUT).ok()?.ok()?;
    let reply = BeatReply::decode(authority.key(), &nonce, &answer).ok()?;
    Some(authority.answered(&reply, asked))
}
