//! This host's name and addresses, as the kernel tells them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Its name.
pub(super) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "unnamed".to_owned() } else { name.trim().to_owned() }
}

/// All addresses of this process's network namespace, those first that others are likely to reach.
pub(super) fn own() -> Vec<IpAddr> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut found: Vec<IpAddr> = v4(&read("/proc/self/net/fib_trie")).into_iter().map(IpAddr::V4).collect();
    found.extend(v6(&read("/proc/self/net/if_inet6")).into_iter().map(IpAddr::V6));
    if found.is_empty() {
        found.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    found.sort_by_key(|address| (address.is_loopback(), address.is_ipv6()));
    found
}

/// Of the routing table, where an address of ours is a line `|-- ADDRESS` before one `/32 host LOCAL`.
fn v4(table: &str) -> Vec<Ipv4Addr> {
    let lines: Vec<&str> = table.lines().map(str::trim).collect();
    let local = lines.windows(2).filter(|pair| pair[1].starts_with("/32 host LOCAL"));
    let mut found: Vec<Ipv4Addr> = local.filter_map(|pair| pair[0].strip_prefix("|-- ")?.parse().ok()).collect();
    found.sort();
    found.dedup();
    found
}

/// Of lines of 32 hexadecimal digits, index, prefix length, scope, flags, name. Link-local ones mean nothing elsewhere.
fn v6(table: &str) -> Vec<Ipv6Addr> {
    let parse = |line: &str| u128::from_str_radix(line.split_whitespace().next()?, 16).ok().map(Ipv6Addr::from_bits);
    table.lines().filter_map(parse).filter(|address| !address.is_unicast_link_local()).collect()
}

/// Whether a host of this name is the one that we are on.
pub(super) fn is_here(host: &str) -> bool {
    let own_name = host_name();
    let short = own_name.split('.').next().unwrap_or_default();
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback() || own().contains(&address),
        Err(_) => host.is_empty() || host == "localhost" || host == own_name || host == short,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let table = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.0\n        /24 link UNICAST\n     |-- 10.0.0.7\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n  |-- 10.0.0.7\n     /32 host LOCAL\n";
        assert_eq!(v4(table), [Ipv4Addr::new(10, 0, 0, 7)]);
        assert_eq!(v4("|-- nonsense\n/32 host LOCAL"), Vec::<Ipv4Addr>::new());
        let table = "00000000000000000000000000000001 01 80 10 80       lo\nfe800000000000000000000000000001 02 40 20 80     eth0\nzz 1\n";
        assert_eq!(v6(table), [Ipv6Addr::LOCALHOST]);
    }

    #[test]
    fn this_host_is_known() {
        assert!(["", "localhost", "127.0.0.1", "::1", &host_name()].into_iter().all(is_here));
        assert!(!is_here("192.0.2.200") && !is_here("root@localhost"));
        assert!(own().iter().any(IpAddr::is_loopback), "{:?}", own());
    }
}
