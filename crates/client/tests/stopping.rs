//! A router that stops while a client makes its connections through it: the client makes others,
//! whichever moment the router chooses to say so.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use aqueduct_client::{Client, SessionConfig};
use aqueduct_fs::synthetic::Synthetic;
use aqueduct_net::Initiator;
use aqueduct_net::routes::{Routes, Table, Way};
use aqueduct_server::Server;
use aqueduct_wire::{
    HEADER_SIZE, Header, Kind, NetworkName, ROUTE_LENGTH_MAX, Route, RouteNotice, RouteReply, RouteStatus, Target,
};
use common::*;

/// Time for what a router has said to be heard, before more comes of the connection it was said of.
const HEARD: Duration = Duration::from_millis(300);

/// A router of one client, which says of the first flow that it ends before anything comes back on
/// it but the answer that it is open.
#[derive(Default)]
struct Router {
    notices: Mutex<Option<TcpStream>>,
    flows: Mutex<Vec<u64>>,
    told: Mutex<Option<u64>>,
}

fn receive(stream: &mut TcpStream) -> Option<(Header, Vec<u8>)> {
    let mut bytes = [0; HEADER_SIZE];
    stream.read_exact(&mut bytes).ok()?;
    let header = Header::decode(&bytes).unwrap();
    assert!(header.body_length as usize <= ROUTE_LENGTH_MAX);
    let mut body = vec![0; header.body_length as usize];
    stream.read_exact(&mut body).ok()?;
    Some((header, body))
}

fn send(stream: &mut TcpStream, header: Header, body: &[u8]) {
    let header = Header { body_length: body.len() as u32, ..header }.checked(body);
    stream.write_all(&[&header.encode()[..], body].concat()).unwrap();
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ended = std::io::copy(&mut from, &mut to);
    let _ended = to.shutdown(Shutdown::Both);
}

impl Router {
    fn start(server: SocketAddr) -> (Arc<Router>, SocketAddr) {
        let (router, listener) = (Arc::<Router>::default(), TcpListener::bind("127.0.0.1:0").unwrap());
        let (address, of_thread) = (listener.local_addr().unwrap(), router.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (router, stream) = (of_thread.clone(), stream.unwrap());
                thread::spawn(move || router.serve(stream, server));
            }
        });
        (router, address)
    }

    fn serve(&self, mut stream: TcpStream, server: SocketAddr) {
        let Some((header, body)) = receive(&mut stream) else { return };
        let route = Route::decode(&body).unwrap();
        let (mut reply, status) = (Vec::new(), RouteStatus::Open);
        RouteReply { status, hop: 0, text: String::new() }.encode(&mut reply);
        let open = Header { request: header.request, ..Header::new(Kind::RouteReply) };
        if route.target == Target::Router {
            send(&mut stream, open, &reply);
            *self.notices.lock().unwrap() = Some(stream);
            return;
        }
        let ends = {
            let mut flows = self.flows.lock().unwrap();
            flows.push(route.flow);
            // The first has been made, and hears what is told of others.
            flows.len() == 2
        };
        let onward = TcpStream::connect(server).unwrap();
        send(&mut stream, open, &reply);
        let (to_server, from_server) = (stream.try_clone().unwrap(), onward.try_clone().unwrap());
        thread::spawn(move || copy(to_server, onward.try_clone().unwrap()));
        if ends {
            *self.told.lock().unwrap() = Some(route.flow);
            let mut notice = Vec::new();
            RouteNotice { stopping_seconds: 60, flows: vec![route.flow] }.encode(&mut notice);
            let mut notices = self.notices.lock().unwrap();
            send(notices.as_mut().unwrap(), Header::new(Kind::RouteNotice), &notice);
            thread::sleep(HEARD);
        }
        copy(from_server, stream);
    }
}

#[test]
fn a_stop_that_is_told_before_a_connection_is_its_links_is_heard() {
    let server_group = group(2);
    let filesystem = Arc::new(Synthetic { size: 1 << 20 });
    let server = Server::start(server_config("/zero", filesystem), server_group.clone()).unwrap();
    let (router, gateway) = Router::start(server.addresses()[0]);
    let network = NetworkName::new("far").unwrap();
    let way = Way { network, gateway, hops: 1, priority: 0 };
    let table = Table { ways: vec![way], ..Table::default() };
    let initiator = Initiator::new(Arc::new(Routes::new(table))).unwrap();
    let through = |session: SessionConfig| SessionConfig {
        server: format!("{}@far", session.server),
        routes: Some(initiator.clone()),
        ..session
    };
    let groups = vec![group(1)];
    let config = in_session(client_config(server.addresses()[0], "/zero"), through);
    let client = Client::connect(config, &groups).unwrap();
    let end = Instant::now() + LONG;
    // Two for the session, and one that takes the place of that which ends.
    while router.flows.lock().unwrap().len() < 3 {
        assert!(Instant::now() < end, "nobody has heard that {:?} ends", router.told.lock().unwrap());
        thread::sleep(Duration::from_millis(10));
    }
    client.disconnect();
    groups.iter().chain([&server_group]).for_each(|group| group.stop());
    groups.iter().chain([&server_group]).for_each(|group| group.join());
}
