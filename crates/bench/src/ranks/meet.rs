//! How ranks find each other: rank 0 listens, the others connect, and both prove that they have the measurement's secret.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use aqueduct_net::{Link, socket};
use aqueduct_wire::{Header, Key, Kind, NONCE_LENGTH, Nonce, PROOF_LENGTH, Transcript};
use serde::{Deserialize, Serialize};
use socket2::Socket;

use super::address;
use super::channel::{Channel, Op};
use super::star::Star;
use crate::Failure;

/// All ranks have to be there within this time: srun and ssh start them one after the other.
pub(super) const MEET_MAX: Duration = Duration::from_secs(120);

/// For one step of the handshake.
const STEP_MAX: Duration = Duration::from_secs(10);

/// For one address to be reached; there may be others that are better.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// Between tries, since rank 0 may start later than others.
const PAUSE: Duration = Duration::from_millis(50);

/// Handshakes under way; further ones wait in the kernel. Strangers cannot hold up more than these, and those for [`STEP_MAX`].
const HANDSHAKES_MAX: usize = 64;

/// What a rank says of itself, after its nonce.
const GREETING_LENGTH_MAX: usize = 1024;

/// What turns a secret into a key.
const SECRET_CONTEXT: &str = "Aqueduct 2026-11-22 version 1: the secret of a measurement's ranks";

/// Who greets.
#[derive(Debug, Serialize, Deserialize)]
struct Greeting {
    rank: usize,
    size: usize,
    host: String,
    version: String,
}

/// The key that a secret stands for.
pub(super) fn key(secret: &[u8]) -> Key {
    Key::new(blake3::derive_key(SECRET_CONTEXT, secret))
}

/// A secret that nobody can guess.
pub(super) fn new_secret() -> Result<String, Failure> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::new("making the ranks' secret", error, "see why the kernel gives no random numbers")
    })?;
    Ok(blake3::Hash::from_bytes(bytes).to_hex().to_string())
}

/// Where rank 0 is waited for.
pub(super) struct Listener {
    sockets: Vec<Socket>,
    /// Of all of them.
    pub(super) port: u16,
}

/// Listens on all addresses of this host, or on loopback alone; with port 0 on a free one.
pub(super) fn listen(port: u16, everywhere: bool) -> std::io::Result<Listener> {
    let (v4, v6) = if everywhere {
        (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED)
    } else {
        (Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST)
    };
    let first = socket::listen(SocketAddr::new(IpAddr::V4(v4), port))?;
    let port = first.local_addr()?.as_socket().map_or(port, |address| address.port());
    let mut sockets = vec![first];
    // Hosts without IPv6 do without; so does one where another process has the port.
    sockets.extend(socket::listen(SocketAddr::new(IpAddr::V6(v6), port)).ok());
    Ok(Listener { sockets, port })
}

impl Listener {
    /// Under which addresses others may reach it, the likeliest first.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        address::own().into_iter().map(|address| SocketAddr::new(address, self.port)).collect()
    }

    /// One connection that waits, if any comes within a short time.
    fn accept(&self) -> Option<Socket> {
        let mut waiting: Vec<_> = self
            .sockets
            .iter()
            .map(|socket| rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN))
            .collect();
        let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        // Interrupted or failed: it is asked again.
        let _ = rustix::event::poll(&mut waiting, Some(&pause));
        self.sockets.iter().find_map(|listener| socket::accept(listener).ok().flatten()).map(|(socket, _)| socket)
    }
}

/// Has all ranks join rank 0. `alive` says what is wrong with those that were started, if anything is.
pub(super) fn lead(
    listener: Listener,
    size: usize,
    key: &Key,
    mut alive: impl FnMut() -> Result<(), Failure>,
) -> Result<Star, Failure> {
    let mut channels: Vec<Option<Channel>> = (1..size).map(|_| None).collect();
    let mut missing = size - 1;
    let (sender, joined) = mpsc::channel();
    let (end, mut under_way) = (Instant::now() + MEET_MAX, 0);
    while missing > 0 {
        if let Some(socket) = (under_way < HANDSHAKES_MAX).then(|| listener.accept()).flatten() {
            under_way += 1;
            let (sender, key) = (sender.clone(), key.clone());
            std::thread::spawn(move || {
                let _ = sender.send(greet(socket, &key, size)); // nobody listens when all are there
            });
        }
        let pause = if under_way < HANDSHAKES_MAX { Duration::ZERO } else { PAUSE };
        while let Ok(result) = joined.recv_timeout(pause) {
            under_way -= 1;
            match result {
                Ok(mut channel) => match channels.get_mut(channel.rank.wrapping_sub(1)) {
                    Some(place @ None) => {
                        *place = Some(channel);
                        missing -= 1;
                    }
                    _ => drop(channel.send(Op::Failed, 0, b"")),
                },
                Err(why) => tracing::warn!(why, "somebody who is no rank of this measurement has tried to join it"),
            }
        }
        alive()?;
        if super::signals::asked() {
            return Err(Failure::new("waiting for the ranks", "it was interrupted", "start it again"));
        }
        if Instant::now() > end {
            let absent: Vec<String> = channels
                .iter()
                .zip(1..)
                .filter(|(place, _)| place.is_none())
                .map(|(_, rank)| rank.to_string())
                .collect();
            return Err(Failure::new(
                format!("waiting for {missing} of {size} ranks"),
                format!("after {MEET_MAX:?} these have not come: {}", shortened(&absent)),
                "see their messages above; a firewall must let them reach this host's ports (or name one with --rendezvous HOST:PORT)",
            ));
        }
    }
    Star::new(0, channels.into_iter().flatten().collect()).map_err(|error| no_star(&error))
}

fn no_star(error: &std::io::Error) -> Failure {
    Failure::new("watching the connections of the ranks", error, "raise the limit on open files (ulimit -n)")
}

fn shortened(names: &[String]) -> String {
    const SHOWN: usize = 16;
    let more = if names.len() > SHOWN { format!(" and {} more", names.len() - SHOWN) } else { String::new() };
    format!("{}{more}", names[..names.len().min(SHOWN)].join(", "))
}

/// Rank 0's half of the handshake.
fn greet(socket: Socket, key: &Key, size: usize) -> Result<Channel, String> {
    let said = |error: aqueduct_net::blocking::ExchangeError| error.to_string();
    let mut link = Link::from(socket.try_clone().map_err(|error| error.to_string())?);
    let (hello, body) = link.receive_unchecked(STEP_MAX).map_err(said)?;
    if hello.kind != Kind::Hello || body.len() < NONCE_LENGTH || body.len() > NONCE_LENGTH + GREETING_LENGTH_MAX {
        return Err("it did not greet as ranks do".into());
    }
    let nonce = nonce()?;
    let challenge = Header::new(Kind::Challenge).checked(&nonce);
    let (answer, proof) = link.exchange(challenge, (&nonce, &[]), STEP_MAX).map_err(said)?;
    let transcript = Transcript::new((&hello, &body), (&challenge, &nonce));
    let proof = <[u8; PROOF_LENGTH]>::try_from(proof).map_err(|_| "its proof is none".to_owned())?;
    if answer.kind != Kind::Proof || !key.has_made(&proof, &transcript) {
        return Err("it does not have the secret of this measurement".into());
    }
    let greeting = serde_json::from_slice::<Greeting>(&body[NONCE_LENGTH..]).map_err(|error| error.to_string())?;
    let Greeting { rank, host, version, .. } = greeting;
    let mut channel =
        Channel::new(socket, key.of_server(&transcript), (rank, host), true).map_err(|error| error.to_string())?;
    let own = env!("CARGO_PKG_VERSION");
    let wrong = if version != own {
        Some(format!("rank {rank} is version {version}, rank 0 is {own}"))
    } else if greeting.size != size || rank == 0 || rank >= size {
        Some(format!("rank {rank} of {} does not belong to {size} ranks", greeting.size))
    } else {
        None
    };
    // An empty message: it may join. It shows also that rank 0 has the secret.
    let told = channel.send(Op::Welcome, 0, wrong.as_deref().unwrap_or_default().as_bytes());
    wrong.map_or(told, Err)?;
    Ok(channel)
}

fn nonce() -> Result<Nonce, String> {
    let mut nonce = [0; NONCE_LENGTH];
    getrandom::fill(&mut nonce).map_err(|error| error.to_string())?;
    Ok(nonce)
}

/// Joins rank 0 at one of the addresses, which are asked for again for each try.
pub(super) fn join(
    mut addresses: impl FnMut() -> Result<(Vec<SocketAddr>, Key), String>,
    rank: usize,
    size: usize,
) -> Result<Star, Failure> {
    let end = Instant::now() + MEET_MAX;
    let mut why = "no address is known".to_owned();
    while Instant::now() < end && !super::signals::asked() {
        match addresses() {
            Ok((candidates, key)) => {
                for address in candidates {
                    let socket =
                        socket::connect(address, CONNECT_MAX).map_err(|error| Refusal::from(error.to_string()));
                    match socket.and_then(|socket| introduce(socket, &key, rank, size)) {
                        Ok(channel) => return Star::new(rank, vec![channel]).map_err(|error| no_star(&error)),
                        Err(Refusal { fatal: true, why }) => return Err(lost(rank, &format!("{address}: {why}"))),
                        Err(refusal) => why = format!("{address}: {}", refusal.why),
                    }
                }
            }
            Err(error) => why = error,
        }
        std::thread::sleep(PAUSE);
    }
    Err(lost(rank, &why))
}

fn lost(rank: usize, why: &str) -> Failure {
    Failure::new(
        format!("rank {rank} on {} joining rank 0", address::host_name()),
        why,
        "see whether rank 0 has started and this host reaches it; --rendezvous HOST:PORT names a port that a firewall lets through",
    )
}

/// Why rank 0 was not joined.
struct Refusal {
    /// It would be the same again.
    fatal: bool,
    why: String,
}

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        Refusal { fatal: false, why }
    }
}

/// The other ranks' half of the handshake.
fn introduce(socket: Socket, key: &Key, rank: usize, size: usize) -> Result<Channel, Refusal> {
    let said = |error: aqueduct_net::blocking::ExchangeError| error.to_string();
    let mut link = Link::from(socket.try_clone().map_err(|error| error.to_string())?);
    let host = address::host_name().chars().take(64).collect();
    let greeting = Greeting { rank, size, host, version: env!("CARGO_PKG_VERSION").to_owned() };
    let mut body = nonce()?.to_vec();
    body.extend(serde_json::to_vec(&greeting).unwrap_or_default());
    let hello = Header::new(Kind::Hello).checked(&body);
    let (challenge, nonce) = link.exchange(hello, (&body, &[]), STEP_MAX).map_err(said)?;
    if challenge.kind != Kind::Challenge || nonce.len() != NONCE_LENGTH {
        return Err("this is not rank 0 of a measurement".to_owned().into());
    }
    let transcript = Transcript::new((&hello, &body), (&challenge, &nonce));
    let proof = key.proof(&transcript);
    link.send(Header::new(Kind::Proof).checked(&proof), (&proof, &[]), STEP_MAX).map_err(said)?;
    let mut channel = Channel::new(socket, key.of_client(&transcript), (0, String::new()), false)
        .map_err(|error| error.to_string())?;
    match channel.wait(STEP_MAX)?.body {
        verdict if verdict.is_empty() => Ok(channel),
        verdict => Err(Refusal { fatal: true, why: String::from_utf8_lossy(&verdict).into_owned() }),
    }
}

/// The addresses of a host.
pub(super) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found = (host, port).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
    Ok(found.collect())
}
