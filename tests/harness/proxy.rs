//! A TCP proxy that does to connections what networks do.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How often a stalled connection looks whether it may go on.
const STALL_LOOK: Duration = Duration::from_millis(2);

/// What happens to all that passes, until told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weather {
    /// New connections are closed at once.
    pub refuses: bool,
    /// Nothing passes, and nothing is lost.
    pub stalled: bool,
    /// Each piece waits so long.
    pub delay: Duration,
    /// Bytes of a piece at most.
    pub piece: usize,
    /// One bit of every so manyth piece is turned over; 0: none.
    pub flips_every: usize,
}

/// Nothing happens.
pub const FAIR: Weather =
    Weather { refuses: false, stalled: false, delay: Duration::ZERO, piece: usize::MAX, flips_every: 0 };

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// As when a process ends: what was sent arrives, then the end.
    Orderly,
    /// With RST: what is under way is lost.
    Reset,
    /// After so many bytes more in either direction, in the middle of whatever they are.
    After(usize),
}

/// Lives as long as the test's process.
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    weather: Mutex<Weather>,
    connections: Mutex<Vec<Arc<Connection>>>,
    pieces: AtomicUsize,
}

struct Connection {
    client: TcpStream,
    upstream: TcpStream,
    /// Bytes that still pass.
    left: AtomicUsize,
    ended: AtomicBool,
}

impl Proxy {
    /// Passes connections on to `server`.
    pub fn start(server: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared =
            Arc::new(Shared { weather: Mutex::new(FAIR), connections: Mutex::default(), pieces: AtomicUsize::new(0) });
        let (server, accepting) = (server.to_owned(), shared.clone());
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // One that cannot be passed on is closed.
                if !accepting.weather().refuses {
                    let _ = TcpStream::connect(&server).map(|upstream| accepting.join(client, upstream));
                }
            }
        });
        Proxy { address, shared }
    }

    pub fn set_weather(&self, weather: Weather) {
        *self.shared.weather.lock().unwrap() = weather;
    }

    /// Breaks all connections, in the middle of whatever they carry.
    pub fn cut(&self) -> usize {
        self.cut_where(Cut::Orderly, |_| true)
    }

    /// Breaks those whose number (they are counted from 0, the oldest first) is chosen.
    pub fn cut_where(&self, how: Cut, mut chosen: impl FnMut(usize) -> bool) -> usize {
        let mut connections = self.shared.connections.lock().unwrap();
        connections.retain(|connection| !connection.ended.load(Ordering::Relaxed));
        let cut: Vec<_> = connections.iter().enumerate().filter(|(number, _)| chosen(*number)).collect();
        cut.iter().for_each(|(_, connection)| connection.cut(how));
        cut.len()
    }

    /// Breaks all connections and lets none through for a while.
    pub fn interrupt(&self, time: Duration) {
        self.set_weather(Weather { refuses: true, ..FAIR });
        self.cut();
        thread::sleep(time);
        self.set_weather(FAIR);
    }
}

impl Shared {
    fn weather(&self) -> Weather {
        *self.weather.lock().unwrap()
    }

    fn join(self: &Arc<Shared>, client: TcpStream, upstream: TcpStream) {
        for socket in [&client, &upstream] {
            let _ = socket.set_nodelay(true);
        }
        let connection = Arc::new(Connection {
            client,
            upstream,
            left: AtomicUsize::new(usize::MAX),
            ended: AtomicBool::new(false),
        });
        self.connections.lock().unwrap().push(connection.clone());
        for towards_server in [true, false] {
            let (shared, connection) = (self.clone(), connection.clone());
            thread::spawn(move || {
                shared.pass(&connection, towards_server);
                connection.ended.store(true, Ordering::Relaxed);
                connection.cut(Cut::Orderly);
            });
        }
    }

    /// Until either side ends.
    fn pass(&self, connection: &Connection, towards_server: bool) {
        let (mut from, mut to) = match towards_server {
            true => (&connection.client, &connection.upstream),
            false => (&connection.upstream, &connection.client),
        };
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let mut rest = &mut buffer[..count];
            while !rest.is_empty() {
                let weather = self.await_passage(connection);
                let (piece, later) = rest.split_at_mut(rest.len().min(weather.piece));
                rest = later;
                if weather.flips_every > 0
                    && self.pieces.fetch_add(1, Ordering::Relaxed).is_multiple_of(weather.flips_every)
                {
                    piece[piece.len() / 2] ^= 0x10;
                }
                let left = connection.left.load(Ordering::Relaxed);
                let passes = piece.len().min(left);
                if left != usize::MAX {
                    connection.left.store(left - passes, Ordering::Relaxed);
                }
                if to.write_all(&piece[..passes]).is_err() || passes < piece.len() {
                    return;
                }
            }
        }
    }

    /// Waits as the weather demands.
    fn await_passage(&self, connection: &Connection) -> Weather {
        loop {
            let weather = self.weather();
            if !weather.stalled || connection.ended.load(Ordering::Relaxed) {
                if !weather.delay.is_zero() {
                    thread::sleep(weather.delay);
                }
                return weather;
            }
            thread::sleep(STALL_LOOK);
        }
    }
}

impl Connection {
    /// One that has ended already cannot be ended again.
    fn cut(&self, how: Cut) {
        match how {
            Cut::Orderly => [&self.client, &self.upstream].iter().for_each(|socket| {
                let _ = socket.shutdown(Shutdown::Both);
            }),
            Cut::Reset => [&self.client, &self.upstream].iter().for_each(|socket| {
                let _ = rustix::net::connect_unspec(socket);
                let _ = socket.shutdown(Shutdown::Both);
            }),
            Cut::After(bytes) => self.left.store(bytes, Ordering::Relaxed),
        }
    }
}
