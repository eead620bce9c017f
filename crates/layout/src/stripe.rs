//! The choice of servers for a file's objects.

pub use aqueduct_fs::stripe::{Piece, Stripe};

/// A server of a volume, as layouts name it: a hash of its id.
pub type ServerKey = u64;

/// The name of a server in layouts.
pub fn server_key(id: &str) -> ServerKey {
    let hash = blake3::Hasher::new_derive_key("aqueduct 2026 server of a volume").update(id.as_bytes()).finalize();
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

/// The servers of a file in rendezvous order, by the file's id: each server has the same share,
/// and one that comes or goes moves nobody else's files.
pub fn order(id: &[u8; 16], mut servers: Vec<ServerKey>) -> Vec<ServerKey> {
    servers.sort_by_cached_key(|server| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(id).update(&server.to_le_bytes());
        *hasher.finalize().as_bytes()
    });
    servers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_even_shares_and_a_new_one_takes_only_its_own() {
        let servers: Vec<_> = ["a", "b", "c"].map(server_key).into();
        let mut counts = [0; 3];
        for number in 0..3000u128 {
            let id = number.to_le_bytes();
            let first = order(&id, servers.clone())[0];
            counts[servers.iter().position(|server| *server == first).unwrap()] += 1;
            let more = order(&id, [&servers[..], &[server_key("d")]].concat())[0];
            assert!(more == first || more == server_key("d"));
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
