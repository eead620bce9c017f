//! A server that listens on several addresses: clients are told of all that they can use, and are
//! answered by the card that they have chosen.

mod common;

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use aqueduct_fs::{OpenFlags, ReadAt, WriteAt};
use aqueduct_net::interfaces::traffic;
use aqueduct_wire::{Op, encode_read};
use common::{Fixture, Peer, context};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::{Domain, Socket, Type};

#[test]
fn all_addresses_are_told_to_who_comes_by_loopback() {
    let too = Some("127.0.0.2:0".parse().unwrap());
    let fixture = Fixture::listening("127.0.0.1:0".parse().unwrap(), too);
    let (_peer, reply, _) = fixture.attached();
    let addresses: Vec<String> = fixture.server.addresses().iter().map(ToString::to_string).collect();
    assert_eq!((reply.addresses.len(), reply.addresses), (2, addresses));
}

/// Two machines, each with two cards at one switch.
struct Machines([String; 3]);

static MACHINES: AtomicUsize = AtomicUsize::new(0);

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    let why = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {why}")) }
}

impl Machines {
    fn new() -> Result<Machines, String> {
        let number = MACHINES.fetch_add(1, Ordering::Relaxed);
        let machines = Machines(["s", "c", "w"].map(|name| format!("aqr{}-{number}{name}", std::process::id())));
        for name in &machines.0 {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        let [.., switch] = &machines.0;
        ip(&format!("-n {switch} link add br0 type bridge"))?;
        ip(&format!("-n {switch} link set br0 up"))?;
        for (name, base) in machines.0[..2].iter().zip([1, 11]) {
            for card in 0..2 {
                let wire = format!("{name}{card}");
                let wire = &wire[wire.len() - 2..];
                ip(&format!("-n {name} link add card{card} type veth peer name {wire} netns {switch}"))?;
                ip(&format!("-n {switch} link set {wire} master br0 up"))?;
                ip(&format!("-n {name} addr add 10.79.0.{}/24 dev card{card}", base + card))?;
                ip(&format!("-n {name} link set card{card} up"))?;
            }
        }
        Ok(machines)
    }

    /// Moves this thread into a machine, where each card answers for its own address alone.
    fn enter(&self, number: usize) {
        let place = File::open(format!("/run/netns/{}", self.0[number])).unwrap();
        move_into_link_name_space(place.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        for (name, value) in [("arp_ignore", "1"), ("arp_announce", "2"), ("rp_filter", "0")] {
            for card in ["all", "card0", "card1"] {
                fs::write(format!("/proc/sys/net/ipv4/conf/{card}/{name}"), value).unwrap();
            }
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| _ = ip(&format!("netns del {name}")));
    }
}

/// A connection that goes by one card alone, as a rail's does.
fn connect_by(card: usize, to: SocketAddr) -> Peer {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind_device(Some(format!("card{card}").as_bytes())).unwrap();
    socket.connect(&to.into()).unwrap();
    Peer::over(socket.into())
}

const LENGTH: usize = 1 << 20;
const READS: u64 = 4;

/// Writes a file, and reads it over this connection, several times.
fn read_much(peer: Peer) {
    let (mut peer, _, root) = peer.attach();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let open = peer.create((0, 1), &root, "file", flags).unwrap().1.id;
    let write = WriteAt { open, offset: 0, append: false, stable: false };
    peer.write((0, 2), &write, &[7; LENGTH]).unwrap();
    for _ in 0..READS {
        let mut body = Vec::new();
        encode_read(&context(), &ReadAt { open, offset: 0, length: LENGTH as u32 }, &mut body);
        let (header, _) = peer.call(Op::Read, (0, 0), &body);
        assert_eq!((header.status, header.payload_length as usize), (0, LENGTH));
    }
}

/// What the cards of a machine, in which this thread is, have sent.
fn sent() -> [u64; 2] {
    ["card0", "card1"].map(|card| traffic(card).unwrap().sent)
}

/// Two cards in one subnet: the routing table answers all by one of them.
#[test]
fn a_client_is_answered_by_the_card_by_which_it_came() {
    let machines = match Machines::new() {
        Ok(machines) => machines,
        Err(why) => return println!("skipped: network namespaces cannot be made: {why}"),
    };
    let of_server = std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            machines.enter(0);
            Fixture::listening("0.0.0.0:0".parse().unwrap(), None)
        });
        server.join().unwrap()
    });
    let port = of_server.server.addresses()[0].port();
    std::thread::scope(|scope| {
        let client = || {
            machines.enter(1);
            for card in 0..2 {
                let address = SocketAddr::new(format!("10.79.0.{}", card + 1).parse().unwrap(), port);
                let reply = connect_by(card, address).hello(0, [0; 16]).unwrap();
                assert_eq!(reply.addresses, [format!("10.79.0.1:{port}"), format!("10.79.0.2:{port}")]);
                let at_server = || {
                    std::thread::scope(|scope| {
                        scope
                            .spawn(|| {
                                machines.enter(0);
                                sent()
                            })
                            .join()
                            .unwrap()
                    })
                };
                let before = at_server();
                read_much(connect_by(card, address));
                let after = at_server();
                let [by_it, by_other] = [card, 1 - card].map(|card| after[card] - before[card]);
                assert!(
                    by_it > READS * LENGTH as u64 && by_other < LENGTH as u64,
                    "{by_it} and {by_other} by the other"
                );
            }
        };
        scope.spawn(client).join().unwrap();
    });
}
