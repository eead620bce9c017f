//! A TCP proxy whose connections the test can cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Lives as long as the test's process.
pub struct Proxy {
    pub address: SocketAddr,
    connections: Arc<Mutex<Vec<TcpStream>>>,
    refuses: Arc<AtomicBool>,
}

impl Proxy {
    /// Passes connections on to `server`.
    pub fn start(server: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let (server, made) = (server.to_owned(), connections.clone());
        let refuses: Arc<AtomicBool> = Arc::default();
        let refused = refuses.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if refused.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(upstream) = TcpStream::connect(&server) else { continue };
                made.lock().unwrap().extend([client.try_clone().unwrap(), upstream.try_clone().unwrap()]);
                let (client_too, upstream_too) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
                thread::spawn(move || pass(client, upstream));
                thread::spawn(move || pass(upstream_too, client_too));
            }
        });
        Proxy { address, connections, refuses }
    }

    /// Breaks all connections, in the middle of whatever they carry.
    pub fn cut(&self) -> usize {
        let mut connections = self.connections.lock().unwrap();
        let cut = connections.drain(..);
        // One that has ended already cannot be shut down.
        cut.map(|connection| connection.shutdown(Shutdown::Both)).filter(Result::is_ok).count()
    }
}

impl Proxy {
    /// Breaks all connections and lets none through for a while.
    pub fn interrupt(&self, time: Duration) {
        self.refuses.store(true, Ordering::Relaxed);
        self.cut();
        thread::sleep(time);
        self.refuses.store(false, Ordering::Relaxed);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
