//! What a launcher says: mpiexec of MPICH and its kin (PMI), of Open MPI, and Slurm's srun.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::launch::{RANK, SIZE};
use super::options::{Options, RANKS_MAX};
use super::pmi::Pmi;
use super::star::Star;
use super::{meet, slurm};
use crate::Failure;

/// A secret that all ranks of a launcher have in their environment.
pub(super) const SECRET: &str = "AQUEDUCT_BENCH_SECRET";

/// Ports that rank 0 tries, where they are derived and nobody can tell the others which it has got.
const PORTS: u16 = 4;

/// A file that says more is no rendezvous.
const FILE_LENGTH_MAX: u64 = 64 << 10;

/// Which of how many this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    rank: usize,
    size: usize,
}

/// By what the ranks can find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Meeting {
    /// The launcher's own store of what ranks tell each other.
    Pmi(i32),
    /// Rank 0 is on this host, at a port that follows from the seed, which also is the secret.
    Derived { host: String, seed: String, is_secret: bool },
    /// Somebody has to say it.
    Unknown(&'static str),
}

/// What rank 0 tells the others: in a file, or by PMI.
#[derive(Debug, Serialize, Deserialize)]
struct Notice {
    addresses: Vec<SocketAddr>,
    secret: String,
}

/// The environment: a function, so that tests can say what is in it.
type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

fn number(environment: Environment<'_>, name: &str) -> Option<usize> {
    environment(name)?.parse().ok()
}

/// What the environment says. None: this process was started by itself.
fn look(environment: Environment<'_>) -> Option<(Place, Meeting)> {
    let place = |rank, size| {
        let place = Place { rank: number(environment, rank)?, size: number(environment, size)? };
        (place.size > 1 && place.rank < place.size && place.size <= RANKS_MAX).then_some(place)
    };
    if let Some(place) = place(RANK, SIZE) {
        return Some((place, Meeting::Unknown("AQUEDUCT_BENCH_RANK says nothing of where rank 0 is")));
    }
    if let Some(place) = place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") {
        return Some((place, open_mpi(environment, place)));
    }
    if let Some(place) = place("PMI_RANK", "PMI_SIZE") {
        let socket = environment("PMI_FD").and_then(|fd| fd.parse().ok()).filter(|fd| *fd > 2);
        return Some((place, socket.map_or(Meeting::Unknown("its launcher gives no PMI_FD"), Meeting::Pmi)));
    }
    // Set in batch scripts too, where no other tasks are; a step is what srun starts.
    environment("SLURM_STEP_ID")?;
    let place = place("SLURM_PROCID", "SLURM_STEP_NUM_TASKS").or_else(|| place("SLURM_PROCID", "SLURM_NTASKS"))?;
    Some((place, of_slurm(environment)))
}

/// Open MPI 4 gives each job a random number; rank 0 is known to be here where all are.
fn open_mpi(environment: Environment<'_>, place: Place) -> Meeting {
    let seed = environment("OMPI_MCA_orte_precondition_transports").or_else(|| environment("PMIX_NAMESPACE"));
    let all_here = number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE") == Some(place.size);
    match seed {
        Some(seed) if all_here => Meeting::Derived {
            host: "127.0.0.1".to_owned(),
            is_secret: environment("OMPI_MCA_orte_precondition_transports").is_some(),
            seed,
        },
        Some(_) => Meeting::Unknown("Open MPI does not say on which host rank 0 is"),
        None => Meeting::Unknown("Open MPI names no job"),
    }
}

/// The first node of a step has its first task, unless it was distributed otherwise by a plane or by hand.
fn of_slurm(environment: Environment<'_>) -> Meeting {
    let nodes = environment("SLURM_STEP_NODELIST").or_else(|| environment("SLURM_JOB_NODELIST"));
    let Some(host) = nodes.and_then(|nodes| slurm::first_node(&nodes)) else {
        return Meeting::Unknown("Slurm names no nodes");
    };
    let ids = ["SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID"].map(|name| environment(name).unwrap_or_default());
    Meeting::Derived { host, seed: ids.join("/"), is_secret: false }
}

/// The ports that follow from a job's seed, none of them privileged or usually ephemeral.
fn ports(seed: &str) -> Vec<u16> {
    let hash = blake3::hash(seed.as_bytes());
    let [low, high, ..] = *hash.as_bytes();
    let first = 20_000 + u16::from_le_bytes([low, high]) % 12_000;
    (0..PORTS).map(|more| first + more).collect()
}

/// Joins the ranks that a launcher has started; `None` if none has.
pub(super) fn take_part(options: &Options) -> Result<Option<(Star, usize, usize)>, Failure> {
    let Some((place, meeting)) = look(&|name| std::env::var(name).ok()) else { return Ok(None) };
    if options.launch.is_some() || !options.hosts.is_empty() {
        return Err(Failure::usage(
            "--hosts or --launch under mpiexec or srun",
            "the ranks have been started already",
            "leave these options to the launcher, or start this command without one",
        ));
    }
    let wanted = options.ranks.unwrap_or(place.size);
    if wanted == 0 || wanted > place.size {
        return Err(Failure::usage(
            format!("--ranks {wanted} of {} that the launcher has started", place.size),
            "there are not so many",
            "start as many, with mpiexec -n or srun -n",
        ));
    }
    if wanted == 1 && place.rank == 0 {
        return Ok(None);
    }
    let secret = std::env::var(SECRET).ok();
    let star = match (&options.rendezvous, meeting) {
        (Some(rendezvous), _) => at_rendezvous(rendezvous, secret, (place, wanted))?,
        (None, Meeting::Pmi(socket)) => Some(by_pmi(socket, (place, wanted))?),
        (None, Meeting::Derived { host, seed, is_secret }) => {
            if !is_secret && secret.is_none() && place.rank == 0 {
                tell!(
                    "aqueduct: the ranks share no secret: whoever reaches this host's ports could pose as one; set {SECRET} where you start them"
                );
            }
            at_ports(&host, (&seed, secret), (place, wanted))?
        }
        (None, Meeting::Unknown(why)) => {
            return Err(Failure::usage(
                format!("finding rank 0 of {}", place.size),
                why,
                "name a file that all hosts share, --rendezvous /shared/FILE, or rank 0's address, --rendezvous HOST:PORT",
            ));
        }
    };
    match star {
        Some(star) => Ok(Some((star, place.rank, wanted))),
        // More were started than take part.
        None => std::process::exit(0),
    }
}

/// Rank 0 tells the launcher's store where it is.
fn by_pmi(socket: i32, (place, wanted): (Place, usize)) -> Result<Star, Failure> {
    let failed = |why: std::io::Error| {
        Failure::new(
            "asking mpiexec for the other ranks (PMI)",
            why,
            "name where they meet with --rendezvous FILE, or HOST:PORT",
        )
    };
    let mut pmi = Pmi::start(socket).map_err(failed)?;
    let listener = if place.rank == 0 {
        let listener = meet::listen(0, true).map_err(|error| super::launch::no_listener(&error))?;
        let notice = Notice { addresses: listener.addresses(), secret: meet::new_secret()? };
        pmi.put(&serde_json::to_string(&notice).unwrap_or_default()).map_err(failed)?;
        Some((listener, meet::key(notice.secret.as_bytes())))
    } else {
        None
    };
    pmi.barrier().map_err(failed)?;
    let text = pmi.get().map_err(failed)?;
    pmi.end().map_err(failed)?;
    if place.rank >= wanted {
        std::process::exit(0);
    }
    match listener {
        Some((listener, key)) => meet::lead(listener, wanted, &key, || Ok(())),
        None => {
            let notice: Notice = serde_json::from_str(&text).map_err(|error| failed(error.into()))?;
            let key = meet::key(notice.secret.as_bytes());
            meet::join(|| Ok((notice.addresses.clone(), key.clone())), place.rank, wanted)
        }
    }
}

/// At a port that follows from the job.
fn at_ports(
    host: &str,
    (seed, secret): (&str, Option<String>),
    (place, wanted): (Place, usize),
) -> Result<Option<Star>, Failure> {
    if place.rank >= wanted {
        return Ok(None);
    }
    let key = meet::key(secret.as_deref().unwrap_or(seed).as_bytes());
    let ports = ports(seed);
    if place.rank == 0 {
        let is_near = host == "127.0.0.1";
        let listener = ports.iter().find_map(|port| meet::listen(*port, !is_near).ok()).ok_or_else(|| {
            Failure::new(
                "listening for the other ranks",
                format!("the ports that follow from the job are in use ({ports:?})"),
                "name another with --rendezvous HOST:PORT, or a file that all hosts share",
            )
        })?;
        return meet::lead(listener, wanted, &key, || Ok(())).map(Some);
    }
    let addresses = || {
        let mut found = Vec::new();
        for port in &ports {
            found.extend(meet::resolve(host, *port)?);
        }
        Ok((found, key.clone()))
    };
    meet::join(addresses, place.rank, wanted).map(Some)
}

/// Where the user says.
fn at_rendezvous(text: &str, secret: Option<String>, (place, wanted): (Place, usize)) -> Result<Option<Star>, Failure> {
    if place.rank >= wanted {
        return Ok(None);
    }
    if text.contains('/') {
        return in_file(Path::new(text), (place, wanted)).map(Some);
    }
    let parsed =
        text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok().filter(|port| *port > 0)?)));
    let Some((host, port)) = parsed else {
        return Err(Failure::usage(
            format!("--rendezvous {text}"),
            "this is neither HOST:PORT nor a file's path, which has a slash",
            "give one as in --rendezvous node1:7999 or --rendezvous ./ranks",
        ));
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if secret.is_none() && place.rank == 0 {
        tell!(
            "aqueduct: the ranks share no secret: whoever reaches {text} could pose as one; set {SECRET} for all ranks"
        );
    }
    let key = meet::key(secret.as_deref().unwrap_or(text).as_bytes());
    if place.rank == 0 {
        let listener = meet::listen(port, true).map_err(|error| super::launch::no_listener(&error))?;
        return meet::lead(listener, wanted, &key, || Ok(())).map(Some);
    }
    meet::join(|| Ok((meet::resolve(host, port)?, key.clone())), place.rank, wanted).map(Some)
}

/// Rank 0 writes where it listens, with a secret, into a file that only its user can read. What an earlier measurement has left there is tried in vain
/// until rank 0 has replaced it.
fn in_file(path: &Path, (place, wanted): (Place, usize)) -> Result<Star, Failure> {
    if place.rank != 0 {
        let read = || {
            let notice = read_notice(path)?;
            Ok((notice.addresses, meet::key(notice.secret.as_bytes())))
        };
        return meet::join(read, place.rank, wanted);
    }
    let failed = |error: std::io::Error| {
        Failure::new(
            format!("writing where rank 0 is to {}", path.display()),
            error,
            "name a file in a directory that all ranks can write to and share",
        )
    };
    let listener = meet::listen(0, true).map_err(|error| super::launch::no_listener(&error))?;
    let notice = Notice { addresses: listener.addresses(), secret: meet::new_secret()? };
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    let written = (|| {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(serde_json::to_string(&notice).unwrap_or_default().as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, path)
    })();
    written.map_err(failed)?;
    let star = meet::lead(listener, wanted, &meet::key(notice.secret.as_bytes()), || Ok(()));
    let _ = std::fs::remove_file(path); // it has served
    star
}

fn read_notice(path: &Path) -> Result<Notice, String> {
    use std::io::Read;
    let said = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = std::fs::File::open(path).map_err(said)?;
    // Whoever else could have written it could be rank 0.
    let owner = file.metadata().map_err(said)?.uid();
    if owner != rustix::process::geteuid().as_raw() {
        return Err(format!("{}: it belongs to user {owner}", path.display()));
    }
    let mut text = String::new();
    file.take(FILE_LENGTH_MAX).read_to_string(&mut text).map_err(said)?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn looked(text: &str) -> Option<(Place, Meeting)> {
        let variables: BTreeMap<_, _> = text.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        look(&|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn launchers_are_known() {
        assert_eq!(looked("PMI_RANK=1 PMI_SIZE=4 PMI_FD=8"), Some((Place { rank: 1, size: 4 }, Meeting::Pmi(8))));
        let near = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=0 OMPI_MCA_orte_precondition_transports=1-2";
        let derived =
            |host: &str, seed: &str, is_secret| Meeting::Derived { host: host.into(), seed: seed.into(), is_secret };
        assert_eq!(looked(near), Some((Place { rank: 0, size: 2 }, derived("127.0.0.1", "1-2", true))));
        let far = near.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1");
        assert!(matches!(looked(&far), Some((_, Meeting::Unknown(why))) if why.contains("host")));
        let step = "SLURM_STEP_ID=3 SLURM_JOB_ID=77 SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_NTASKS=16 SLURM_STEP_NODELIST=n[07-09] SLURM_CLUSTER_NAME=c";
        assert_eq!(looked(step), Some((Place { rank: 5, size: 8 }, derived("n07", "c/77/3", false))));
    }

    #[test]
    fn who_was_started_alone_is_alone() {
        for text in [
            "",
            "SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_NTASKS=16 SLURM_JOB_NODELIST=n[1-2]",
            "PMI_RANK=0 PMI_SIZE=1 PMI_FD=5",
            "PMI_RANK=7 PMI_SIZE=4",
            "PMI_RANK=x PMI_SIZE=4",
            "OMPI_COMM_WORLD_SIZE=99999999999999999999 OMPI_COMM_WORLD_RANK=1",
        ] {
            assert_eq!(looked(text), None, "{text}");
        }
    }

    #[test]
    fn ports_follow_from_the_job() {
        assert_eq!(ports("c/1/0"), ports("c/1/0"));
        assert_ne!(ports("c/1/0"), ports("c/1/1"));
        assert!((0..1000).flat_map(|job| ports(&job.to_string())).all(|port| (20_000..32_768).contains(&port)));
    }
}
