//! The network interfaces of this machine: their addresses, what they carry, and when they change.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

/// One address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// As `ip link` shows it.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// How many bits of the address are the subnet's.
    pub prefix: u8,
    /// Its wire works, as far as the kernel knows.
    pub is_up: bool,
}

impl Interface {
    /// Whether an address is in its subnet, and its wire works.
    pub fn reaches(&self, other: IpAddr) -> bool {
        fn is_same(own: u128, other: u128, prefix: u8, bits: u8) -> bool {
            let differing = u32::from(bits.saturating_sub(prefix));
            differing >= 128 || (own ^ other) >> differing == 0
        }
        let v4 = |address: Ipv4Addr| u128::from(u32::from(address));
        let same = match (self.address, other.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => is_same(v4(own), v4(other), self.prefix, 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => is_same(own.into(), other.into(), self.prefix, 128),
            _ => false,
        };
        self.is_up && same
    }

    /// Whether it leads nowhere but to this machine.
    pub fn is_loopback(&self) -> bool {
        self.address.is_loopback()
    }
}

/// The interfaces of the smallest subnet that an address is in, each once.
pub(crate) fn nearest(interfaces: &[Interface], remote: IpAddr) -> Vec<&Interface> {
    let reaching = || interfaces.iter().filter(|interface| interface.reaches(remote));
    let longest = reaching().map(|interface| interface.prefix).max();
    let mut found: Vec<&Interface> = Vec::new();
    for interface in reaching().filter(|interface| Some(interface.prefix) == longest) {
        if found.iter().all(|other| other.name != interface.name) {
            found.push(interface);
        }
    }
    found
}

/// All addresses of this machine's interfaces. Link-local ones of IPv6 are left out: they mean
/// nothing without an interface.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let found = if_addrs::get_if_addrs()?;
    let is_link_local = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    Ok(found
        .into_iter()
        .filter(|found| !is_link_local(&found.ip()))
        .map(|found| Interface {
            address: found.ip(),
            prefix: match &found.addr {
                if_addrs::IfAddr::V4(v4) => bits_of_v4(v4.netmask),
                if_addrs::IfAddr::V6(v6) => bits_of_v6(v6.netmask),
            },
            is_up: found.is_oper_up() || found.is_loopback(),
            name: found.name,
        })
        .collect())
}

fn bits_of_v4(mask: Ipv4Addr) -> u8 {
    u32::from(mask).leading_ones() as u8
}

fn bits_of_v6(mask: Ipv6Addr) -> u8 {
    u128::from(mask).leading_ones() as u8
}

/// What an interface has carried since it was made, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// That came.
    pub received: u64,
    /// That went.
    pub sent: u64,
}

/// What an interface of this thread's network namespace has carried. `None`: there is none of this
/// name.
pub fn traffic(interface: &str) -> Option<Traffic> {
    traffic_of(&fs::read_to_string("/proc/thread-self/net/dev").ok()?, interface)
}

/// The line of an interface: `name: received bytes, 7 numbers more, sent bytes, ...`.
fn traffic_of(table: &str, interface: &str) -> Option<Traffic> {
    let row = table.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    let mut numbers = row.split_ascii_whitespace().map(|number| number.parse().ok());
    Some(Traffic { received: numbers.next()??, sent: numbers.nth(7)?? })
}

/// How fast the wire is, in bits per second, where its driver says so. Virtual ones say nothing,
/// or something that does not hold.
pub fn speed(interface: &str) -> Option<u64> {
    let megabits: i64 = read(interface, "speed")?.parse().ok()?;
    u64::try_from(megabits).ok().filter(|megabits| *megabits > 0)?.checked_mul(1_000_000)
}

/// The NUMA node that the device of an interface is attached to, where the machine has several.
pub fn numa_node(interface: &str) -> Option<u32> {
    read(interface, "device/numa_node")?.parse().ok() // -1: none
}

/// The processors that are near the device of an interface, as the kernel writes them ("0-3,8").
pub fn near_cpus(interface: &str) -> Option<String> {
    read(interface, "device/local_cpulist").filter(|list| !list.is_empty())
}

/// What the kernel says of an interface in sysfs. `None` as well where sysfs shows another network
/// namespace than this thread's, in which the name may be another interface's.
fn read(interface: &str, what: &str) -> Option<String> {
    if interface.contains('/') || interface.starts_with('.') {
        return None; // no interface has such a name
    }
    let folder = PathBuf::from("/sys/class/net").join(interface);
    let number = fs::read_to_string(folder.join("ifindex")).ok()?;
    let found = if_addrs::get_if_addrs().ok()?.into_iter().find(|found| found.name == interface)?;
    if number.trim().parse() != Ok(found.index?) {
        return None;
    }
    Some(fs::read_to_string(folder.join(what)).ok()?.trim().to_owned())
}

/// Told by the kernel when an interface comes, goes, gets or loses its carrier or an address.
/// Its descriptor is readable then.
#[derive(Debug)]
pub struct Watch {
    socket: OwnedFd,
}

impl Watch {
    /// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR` of linux/rtnetlink.h.
    const GROUPS: u32 = 0x1 | 0x10 | 0x100;

    /// A watch of this thread's network namespace.
    pub fn new() -> io::Result<Watch> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // The protocol of routes is number 0.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, Watch::GROUPS))?;
        Ok(Watch { socket })
    }

    /// Takes what was told, without waiting. Returns whether something has changed: what it is
    /// like now [`interfaces`] says, so that nothing is lost where the kernel had more to tell than
    /// it keeps.
    pub fn changed(&self) -> io::Result<bool> {
        let mut changed = false;
        loop {
            // What it is about does not matter: one byte of each is enough.
            match rustix::net::recv(&self.socket, &mut [0u8; 1], RecvFlags::TRUNC) {
                Ok(_) | Err(rustix::io::Errno::NOBUFS) => changed = true,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(changed),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_interface_carries_is_counted() {
        let table = "Inter-| Receive\n face |bytes\n    lo: 10 2 0 0 0 0 0 0 30 2 0 0 0 0 0 0\neth1:7 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n";
        assert_eq!(traffic_of(table, "lo"), Some(Traffic { received: 10, sent: 30 }));
        assert_eq!(traffic_of(table, "eth1"), Some(Traffic { received: 7, sent: 9 }));
        assert_eq!([traffic_of(table, "eth"), traffic_of(table, "l"), traffic_of("lo: x", "lo")], [None; 3]);
        let before = traffic("lo").unwrap();
        std::net::UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[0; 900], "127.0.0.1:9").unwrap();
        assert!(traffic("lo").unwrap().sent >= before.sent + 900);
    }

    #[test]
    fn what_is_no_interface_has_neither_speed_nor_place() {
        for name in ["", ".", "..", "../..", "lo/../lo", "none"] {
            assert_eq!((speed(name), numa_node(name), near_cpus(name)), (None, None, None), "{name}");
        }
    }

    #[test]
    fn a_watch_has_nothing_to_tell_at_first() {
        let watch = Watch::new().unwrap();
        assert!(!watch.changed().unwrap());
    }

    #[test]
    fn this_machine_reaches_itself() {
        let found = interfaces().unwrap();
        let own: IpAddr = "127.0.0.7".parse().unwrap();
        assert!(found.iter().any(|interface| interface.reaches(own)), "{found:?}");
    }

    #[test]
    fn a_subnet_ends_where_its_prefix_says() {
        let of = |address: &str, prefix, other: &str| {
            let interface = Interface { name: "a".into(), address: address.parse().unwrap(), prefix, is_up: true };
            interface.reaches(other.parse().unwrap())
        };
        assert!(of("10.0.0.1", 24, "10.0.0.255") && !of("10.0.0.1", 24, "10.0.1.1"));
        assert!(of("10.0.0.1", 0, "8.8.8.8") && !of("10.0.0.1", 32, "10.0.0.2"));
        assert!(of("fd00::1", 64, "fd00::2") && !of("fd00::1", 64, "fd00:0:0:1::2") && of("::1", 0, "fd00::1"));
        assert!(!of("10.0.0.1", 0, "fd00::1") && of("10.0.0.1", 24, "::ffff:10.0.0.9"));
    }
}
