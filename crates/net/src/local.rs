//! How a server is found by those on its own machine: for each loopback address that it listens
//! on, a Unix socket whose name follows from the port. The kernel says for certain who connects
//! there, and of TCP it does not.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::Socket;

use crate::peer::{Address, Peer};
use crate::socket;

/// Where the sockets of root's servers are.
const FOLDER: &str = "/run/aqueduct";

/// What the names of the folders of network namespaces begin with.
const NETWORK_PREFIX: &str = "net-";

/// The folder for the sockets of this user's servers: `/run/aqueduct` for root, else `aqueduct`
/// below XDG_RUNTIME_DIR, or `aqueduct/run` below the folder for state. `None`: this user has none
/// of them.
pub fn folder() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(FOLDER.into());
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let below_state = || absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    absolute("XDG_RUNTIME_DIR")
        .map(|path| path.join("aqueduct"))
        .or_else(|| below_state().map(|path| path.join("aqueduct/run")))
}

/// The folder within `folder` for the servers of this network namespace, where one of another
/// namespace has the name.
pub fn folder_of_network(folder: &Path) -> Option<PathBuf> {
    let own = fs::read_link("/proc/self/ns/net").ok()?;
    let number: String = own.to_str()?.chars().filter(char::is_ascii_digit).collect();
    Some(folder.join(format!("{NETWORK_PREFIX}{number}")))
}

/// The socket for those who would connect to this address, if it is 127.0.0.1 or ::1; or for a
/// server that listens on this address, if it would be reached by one of these.
pub fn socket_of(folder: &Path, address: SocketAddr) -> Option<PathBuf> {
    let name = match address.ip() {
        IpAddr::V4(ip) if ip == Ipv4Addr::LOCALHOST || ip.is_unspecified() => format!("{}.sock", address.port()),
        IpAddr::V6(ip) if ip == Ipv6Addr::LOCALHOST || ip.is_unspecified() => format!("{}-v6.sock", address.port()),
        _ => return None,
    };
    Some(folder.join(name))
}

/// Makes the folder for sockets, where only this user may make any and everybody may connect.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let found = fs::metadata(folder)?;
    if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(io::Error::other("others than this user may change the folder"));
    }
    Ok(())
}

/// Removes the folder of a network namespace, if it is one and nothing is in it any more:
/// namespaces come and go.
pub fn leave_folder(folder: &Path) {
    if folder.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(NETWORK_PREFIX)) {
        let _ = fs::remove_dir(folder); // another server has a socket there
    }
}

/// Connects to the server at a loopback address by its socket. `None`: there is none, or it is not
/// certain that the same server would have been reached.
pub fn connect(address: SocketAddr, timeout: Duration) -> Option<Socket> {
    if address.ip().is_unspecified() {
        return None;
    }
    let folder = folder()?;
    let folders = [folder_of_network(&folder), Some(folder)];
    folders.into_iter().flatten().find_map(|folder| {
        let socket = socket::connect_to(&Address::Unix(socket_of(&folder, address)?), timeout).ok()?;
        let Ok(Peer::Process { pid, .. }) = Peer::of(&socket) else { return None };
        is_in_same_network(pid).then_some(socket)
    })
}

/// Whether a process sees the same network as this one: a folder may be shared by several network
/// namespaces, which have a loopback address each.
fn is_in_same_network(pid: u32) -> bool {
    let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net"));
    match (network("self"), network(&pid.to_string())) {
        (Ok(own), Ok(other)) => own == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_stands_for_one_loopback_address() {
        let of = |text: &str| socket_of(Path::new("/r"), text.parse().unwrap());
        assert_eq!(of("127.0.0.1:7170"), Some("/r/7170.sock".into()));
        assert_eq!(of("0.0.0.0:7170"), Some("/r/7170.sock".into()));
        assert_eq!(of("[::1]:7170"), Some("/r/7170-v6.sock".into()));
        assert_eq!(of("[::]:1"), Some("/r/1-v6.sock".into()));
        for other in ["127.0.0.2:7170", "10.0.0.5:7170", "[2001:db8::1]:7170"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_folder_that_others_may_change_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        make_folder(&path).unwrap();
        make_folder(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make_folder(&path).is_err());
    }

    #[test]
    fn a_process_is_in_its_own_network() {
        assert!(is_in_same_network(std::process::id()));
        assert!(!is_in_same_network(0), "of another namespace");
    }
}
