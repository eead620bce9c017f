//! Raw arguments: the one table from which help, man pages and shell completions are made. What
//! they mean is decided in crates/node.

#![allow(rustdoc::broken_intra_doc_links, reason = "the comments are help texts, where [] means optional")]

use std::path::PathBuf;

use aqueduct_fuse::Unmount;
use aqueduct_node::{ChecksumChoice, Choice, CpuChoice, ExternalChoice, SquashChoice, options_help};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::routes::Routes;
use crate::{agents, diagnose, locks, observe, top, trace, transfer, transfers};

/// Carries a directory to any node at the speed of the network
///
/// A server projects directories; clients mount them and use them as if they were local.
#[derive(Debug, Parser)]
#[command(
    name = "aqueduct",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  aqueduct serve /srv/data                           serve a directory on this machine
  aqueduct mount server:/srv/data /mnt               use it on another
  aqueduct mount --local /srv/data /mnt              both in one process, no network
  aqueduct cp -r results server:/srv/data/           copy without a mount
  aqueduct sync --delete a/ server:/srv/data/a       make one what the other is
  aqueduct status                                    what is mounted and served here
  aqueduct umount /mnt                               end a mount
  aqueduct keygen /etc/aqueduct/cluster.key          a key that servers and clients share

Exit codes: 0 done, 1 failed, 2 the command line makes no sense (32 for all failures of mount.aqueduct).
RUST_LOG chooses what is logged, for example RUST_LOG=aqueduct_session=debug."
)]
pub struct Arguments {
    /// Log more to stderr; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve directories to other nodes
    Serve(Serve),
    /// Mount what a server serves, or a local directory
    Mount(Mount),
    /// Join networks: pass connections on from one to another
    Route(Route),
    /// End a mount, also one whose process has died
    #[command(alias = "unmount")]
    Umount(Umount),
    /// Copy files and trees between directories and exports, and prove that they arrived
    Cp(transfer::Copy),
    /// Make a tree what another is, copying only what differs
    Sync(transfer::Sync),
    /// Compare a tree with the manifest of a copy
    Verify(transfer::VerifyManifest),
    /// List and change the copies that agents make for a store
    #[command(after_help = "\
Examples:
  aqueduct transfers list --store postgres:///transfers?host=/run/postgresql
  aqueduct transfers pause 17 --store $STORE")]
    Transfers {
        #[command(subcommand)]
        command: transfers::Transfers,
    },
    /// Show mounts, exports, clients and rates
    Status(Status),
    /// Show what servers and mounts do now, the busiest first
    Top(top::Top),
    /// Show slow operations, and where the time of each went
    Trace(trace::Trace),
    /// Say what this host lacks for mounts and servers, and what to do about it
    #[command(after_help = "\
Examples:
  aqueduct doctor                      a table, then what to do
  aqueduct doctor --json               the same for programs

Asks the kernel by a mount that ends at once. Exit codes: 0 mounts work, 1 something that they need is missing.")]
    Doctor {
        /// As JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Release the locks of a client that is in the way, on the server's machine
    ReleaseLocks(locks::ReleaseLocks),
    /// Measure file systems and networks, as IOR, mdtest and OSU's tests do
    #[command(after_help = "\
Examples:
  aqueduct bench io -w -r -t 1m -b 1g -o /mnt/testfile
  aqueduct bench io --help             IOR's options, and more")]
    Bench {
        #[command(subcommand)]
        command: aqueduct_bench::Command,
    },
    /// Look at the network: how far a server is, what wires carry, what is wrong with them
    #[command(after_help = "\
Examples:
  aqueduct net ping server             how long it takes to answer
  aqueduct net bw --hosts node1,node2  what the network carries
  aqueduct net path server             by which ways it is reached, and what is wrong with them
  aqueduct net rails /mnt              the wires that a mount uses, and what each carries")]
    Net {
        #[command(subcommand)]
        command: Net,
    },
    /// Say what holds a copy back: which stage, where, and how sure that is
    Diagnose(diagnose::Diagnose),
    /// Record what this machine counts for each disk, mount, interface and target of Lustre
    Observe(observe::Observe),
    /// Make the key that servers and clients of a cluster share
    #[command(after_help = "\
Examples:
  aqueduct keygen /etc/aqueduct/cluster.key          on one machine; copy the file to the others
  aqueduct keygen --node node17 node17.key           a key for one node alone, made of that one
  aqueduct serve --listen 10.0.0.5:7170 --key /etc/aqueduct/cluster.key /srv/data
  aqueduct mount -o key=/etc/aqueduct/cluster.key 10.0.0.5:/srv/data /mnt

Whoever has the file may connect. Nobody but its owner may be able to read it (mode 0600), or it is not
used. It holds one key a line; lines that begin with # are comments. A client uses the first key, a server
accepts each, up to 8, and each key of a node that is made of one of them. A node that has only its own
key is known by its name, wherever it comes from: see node:NAME in lists of hosts. To change keys: add the new line to the servers' files and restart them, replace
the clients' files and mount again, then take the old line out of the servers' files.")]
    Keygen {
        /// Make the key of this node instead, of the cluster's: its holder is known as that node,
        /// and no other
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// With --node: the file with the cluster's key
        #[arg(long, value_name = "FILE", requires = "node", default_value = "/etc/aqueduct/cluster.key")]
        key: PathBuf,
        /// The file; it must not exist yet
        file: PathBuf,
    },
    /// Make and show volumes: several servers before one file system, shared or put together of
    /// their directories
    #[command(after_help = "\
Examples:
  aqueduct volume create /etc/aqueduct/volume.toml   once; copy the file and its key to all servers
  aqueduct serve --volume /etc/aqueduct/volume.toml --server s1
  aqueduct mount scratch@10.0.0.1:7170,10.0.0.2:7170:/ /mnt
  aqueduct volume show scratch@10.0.0.2:7170

The file of a volume:
  name = \"scratch\"
  epoch = 1                      # to be raised whenever servers come, go or move
  mode = \"cluster\"               # each file's bytes go through one of the servers; stripe: its blocks through
                                 # several in turn; loadbalance: read-only, each client spreads
                                 # its files by itself; serial: one server has all. Of directories that
                                 # share nothing: whole-file, striped
  stripe_size = \"1MiB\"           # with stripe and striped: bytes of a block
  width = 0                      # with stripe and striped: over how many servers the blocks of a file are spread; 0: all
  coherent = false               # true: use it before a file system of which that is not known, or on one machine
  writes = \"namespace\"           # data, as with whole-file and striped unless they say this: large files are written through all servers, too
  concurrent = false             # true: with writes = \"data\", also by several clients into one file; an experiment
  atomic = false                 # true: what a program reads or writes at once is whole, whatever its size
  inline_max = \"64KiB\"           # with whole-file and striped: longer files lie in objects of the servers
  fence = \"answer\"               # with writes = \"data\"; timed: a server of data that was not heard for 5 s is taken to write nothing any more
  [[server]]
  id = \"s1\"
  listen = [\"10.0.0.1:7170\"]     # where clients reach it
  dir = \"/gpfs/scratch\"          # the shared file system, where this server has it; or this server's own directory
  namespace = true               # it serves names, attributes, opens and locks; unless one says so, the first does
  data = true                    # false: with whole-file and striped, the server of the names holds no objects
  [[server]]
  id = \"s2\"
  listen = [\"10.0.0.2:7170\"]
  dir = \"/gpfs/scratch\"")]
    Volume {
        #[command(subcommand)]
        command: Volume,
    },
    /// Agents of this host, each with a network, processors and limits of its own
    #[command(after_help = "\
Examples:
  aqueduct agents up 4 --config agents.toml    set four up, as root
  aqueduct agents up --help                    the configuration file
  aqueduct agents status
  aqueduct agents down
  aqueduct agents run --store postgres:///transfers?host=/run/postgresql    work on the jobs of a store
  aqueduct agents sbatch 4 --store postgres://db1/transfers | sbatch")]
    Agents {
        #[command(subcommand)]
        command: agents::Command,
    },
    /// Print a script that completes commands in a shell
    #[command(after_help = "\
Example:
  aqueduct completions bash > /usr/share/bash-completion/completions/aqueduct")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages into a directory
    #[command(after_help = "\
Example:
  aqueduct man /usr/local/share/man/man1")]
    Man {
        /// The directory; it is created if it is missing
        dir: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub enum Volume {
    /// Make the key that the servers of a volume share, beside the volume's file
    #[command(after_help = "\
Example:
  aqueduct volume create /etc/aqueduct/volume.toml")]
    Create {
        /// The volume's file
        file: PathBuf,
    },
    /// Make the store of a server whose directory shares nothing with the others', once, on its
    /// machine
    #[command(after_help = "\
Example:
  aqueduct volume init /etc/aqueduct/volume.toml --server d1")]
    Init {
        /// The volume's file
        file: PathBuf,
        /// Which of the volume's servers this machine's is, by its id
        #[arg(long, value_name = "ID")]
        server: String,
    },
    #[command(flatten)]
    Look(crate::look::Look),
    #[command(flatten)]
    Work(crate::work::Work),
    #[command(flatten)]
    Width(crate::width::Width),
    /// Show the servers of a volume, as any of them tells, or over how many a directory's new files
    /// are spread
    #[command(after_help = "\
Examples:
  aqueduct volume show scratch@10.0.0.1:7170,10.0.0.2:7170
  aqueduct volume show /mnt/scratch/checkpoints")]
    Show {
        /// VOLUME@ADDR[,ADDR...]: some of its servers; or a file or directory of a mount
        volume: String,
        /// The file with the servers' key
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
        #[command(flatten)]
        routes: Routes,
    },
}

#[derive(Debug, Subcommand)]
pub enum Net {
    #[command(flatten)]
    Probe(aqueduct_bench::probe::Command),
    /// The wires that mounts use at once, how each fares, and what it carries now
    Rails(Rails),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct net rails                   of all mounts of this machine
  aqueduct net rails --json /mnt | jq '.mounts[0].rails'

READ NOW and WRITTEN NOW are what went over a rail within half a second; CAN READ and CAN WRITE what it
showed that it carries. Of a rail that is down it is said whose fault that is: local (this machine's
interface), path (others work), peer (none does).
Exit codes: 0 all rails are up, 1 one is not, 2 there is no such mount.")]
pub struct Rails {
    /// A directory of the mount [default: all mounts]
    #[arg(value_name = "MNT")]
    pub target: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Default, Args)]
#[command(after_help = "\
Examples:
  aqueduct serve /srv/data                                      on 127.0.0.1:7170
  aqueduct serve --read-only /usr/share/doc /srv/data
  aqueduct serve --listen 10.0.0.5:7170 --key /etc/aqueduct/cluster.key /srv/data
  aqueduct serve --listen 10.0.0.5:7170 --insecure /srv/data    on a network you trust
  aqueduct serve --listen 10.0.0.5:7170,10.1.0.5:7170 --key /etc/aqueduct/cluster.key /srv/data
  aqueduct serve --config /etc/aqueduct/aqueduct.toml
  aqueduct serve --volume /etc/aqueduct/volume.toml --server s1

Ready when it has printed 'listening on ADDRESS:PORT' and a line for each export. SIGTERM and SIGINT let
it finish what it executes; a second one ends it at once.

The configuration file:
  listen = [\"127.0.0.1:7170\"]
  local_sockets = \"/run/aqueduct\"  # where mounts of this machine's loopback addresses find the server; \"\": nowhere
  key = \"/etc/aqueduct/cluster.key\"  # only who has one of its keys may connect
  insecure = false                 # true: listen on other addresses than loopback without a key
  checksum = \"auto\"                # on, off; auto: on where the client is another machine
  read_ahead = \"auto\"              # auto: ahead of who reads in order, where he had to wait; off
  cpus = \"near\"                    # processors that it runs on, as \"0-3,8\"; near: near its network cards; all, unless given
  state = \"/var/lib/aqueduct\"
  agent = false                    # true: make copies for those who may mount what is served
  routes = \"/etc/aqueduct/routes.toml\"  # networks, and routers by which it reaches other servers; or
                                   # [[network]] and [[route]] here, as 'aqueduct route --help' has them
  metrics = \"127.0.0.1:9170\"       # tell metrics there, at /metrics; nowhere, unless given
  metrics_token = \"/etc/aqueduct/metrics.token\"  # only to who sends it; needed on other addresses than loopback
  [[export]]
  path = \"/srv/data\"
  name = \"data\"                    # the path, unless given
  read_only = false
  cross_mounts = false             # true: show file systems that are mounted below
  external = \"watch\"               # how changes by others come to light: watch, poll, none;
                                   # unless given: watch where that can be had, else poll
  external_age_seconds = 60        # the oldest that clients keep; 60 with watch, 3 with poll
  sync = true                      # false: names and attributes reach the disk later, faster, and may be lost with the machine
  rate = \"160MB/s\"                # data read and written, all clients together (MB: 10^6 bytes); unlimited, unless given
  hosts = [\"10.0.0.0/8\", \"node:gpu*\"]  # who may mount it, nodes with keys of their own by name; everybody, unless given
  read_only_hosts = [\"192.0.2.7\"]  # who may besides, and change nothing
  squash = \"root\"                  # who acts as the anonymous user: root, all, none;
                                   # unless given: root of other machines than this
  anonymous_uid = 65534
  anonymous_gid = 65534
  map_uids = [{ client = 1000, server = 5000, count = 10 }]  # ids of clients that are others here
  map_gids = []
  map_others = \"same\"              # \"anonymous\": ids that have no place in the maps
  [[export.maps]]                  # other maps instead, for these clients; the first that has one counts
  hosts = [\"node:gpu*\"]
  map_uids = [{ client = 1000, server = 7000, count = 10 }]
  [limits]
  sessions_max = 16384
  connections_max = 65536
  opens_max = 65536                # open files, for each export
  threads_max = 64
  unjoined_per_address_max = 1024  # connections that have not said who they are
  unjoined_max = 8192
  frame_memory_mib = 64            # frames of all clients that are not whole or not executed
  unsent_memory_mib = 48           # replies that clients do not read
  slots = 256
  pending_max = 4096
  suspect_seconds = 5              # a client that answers nothing for so long has vanished
  session_grace_seconds = 5
  vanished_grace_seconds = 15
  recovery_grace_seconds = 10
  hello_timeout_seconds = 5
  lease_seconds = 7
  leases_max = 4194304
  leases_of_client_max = 262144
  slow_operation_seconds = 1
  drain_seconds = 10
  [slow]
  over_ms = \"10\"                   # slow for 'aqueduct trace' and the request log; \"off\"
  log = \"/var/log/aqueduct/requests\"  # a line of JSON for each slow request; none unless said
  sample = 0.01                    # of the others this share too
  file_size = \"64M\"
  files = 4
  otlp = \"http://127.0.0.1:4318\"  # slow requests are sent as spans to this collector")]
pub struct Serve {
    /// Listen there (again, or with commas, for more), on ADDR:PORT or unix:PATH; port 0 takes a
    /// free one [default: 127.0.0.1:7170]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// Read exports, addresses and limits from this file; the command line adds to it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Keep the server's key there [default: /var/lib/aqueduct; $XDG_STATE_HOME/aqueduct for users other than root]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Refuse all changes, in every export
    #[arg(long)]
    pub read_only: bool,
    /// Who acts as the anonymous user, in the exports DIR [default: root of other machines than this]
    #[arg(long, value_name = "WHO", value_parser = choice::<SquashChoice>())]
    pub squash: Option<SquashChoice>,
    /// How changes that others than clients make come to light, in the exports DIR [default: watch, poll where others than this machine make them]
    #[arg(long, value_name = "HOW", value_parser = choice::<ExternalChoice>())]
    pub external: Option<ExternalChoice>,
    /// Hold each of the exports DIR to this rate of data, read and written, as 160MB/s [default: unlimited]
    #[arg(long, value_name = "RATE")]
    pub rate: Option<String>,
    /// Let only clients in that have one of the keys in this file: see 'aqueduct keygen'
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Run on these processors alone, as 0-3,8; near: those near the network cards that it
    /// listens on [default: all]
    #[arg(long, value_name = "LIST|near")]
    pub cpus: Option<CpuChoice>,
    /// Whether what travels has checksums [default: auto, on where the client is another machine]
    #[arg(long, value_name = "WHEN", value_parser = choice::<ChecksumChoice>())]
    pub checksum: Option<ChecksumChoice>,
    /// Tell metrics there by HTTP, on ADDR:PORT, at /metrics
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// Only to who sends the token in this file; needed where others than this machine can ask
    #[arg(long, value_name = "FILE")]
    pub metrics_token: Option<PathBuf>,
    #[command(flatten)]
    pub slow: trace::Slow,
    /// Listen on addresses other than loopback without a key: anybody who reaches the port may do everything
    #[arg(long)]
    pub insecure: bool,
    /// Be an agent: make copies for those who may mount what is served, straight between here and
    /// other servers (see 'aqueduct cp' and agent://)
    #[arg(long, conflicts_with = "volume")]
    pub agent: bool,
    /// Serve as one of the servers of the volume in this file: see 'aqueduct volume'
    #[arg(long, value_name = "FILE", requires = "server", conflicts_with_all = ["listen", "dirs"])]
    pub volume: Option<PathBuf>,
    /// Which of the volume's servers this is, by its id
    #[arg(long, value_name = "ID", requires = "volume")]
    pub server: Option<String>,
    /// The directories; each export's name is its path
    #[arg(value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
}

#[derive(Debug, Default, Args)]
#[command(after_long_help = mount_help(), after_help = "\
Examples:
  aqueduct mount server:/srv/data /mnt               until umount or Ctrl-C
  aqueduct mount --daemon server:7170:/srv/data /mnt
  aqueduct mount 10.0.0.5,10.1.0.5:/srv/data /mnt    whichever of the server's addresses answers
  aqueduct mount scratch@10.0.0.1,10.0.0.2:/ /mnt    a volume, of which these are servers
  aqueduct mount -o ro,soft,timeo=10 [::1]:/srv/data /mnt
  aqueduct mount -o key=/etc/aqueduct/cluster.key server:/srv/data /mnt
  aqueduct mount --local /srv/data /mnt
In /etc/fstab: server:/srv/data /mnt aqueduct _netdev,nofail 0 0
--help lists the options of -o.")]
pub struct Mount {
    /// ADDR[,ADDR...]:/EXPORT, with the server's addresses, each HOST[:PORT], [IPv6][:PORT],
    /// either with @NET in a network behind routers, or unix:PATH; VOLUME@ADDR[,ADDR...]:/ for a
    /// volume, with some of its servers; or a directory with --local
    pub source: String,
    /// The directory to mount on
    #[arg(value_name = "MNT")]
    pub target: PathBuf,
    /// Mount options, separated by commas, as in fstab
    #[arg(short = 'o', long = "options", value_name = "OPT", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Serve the directory SOURCE in this process, without a network
    #[arg(long)]
    pub local: bool,
    /// Tell metrics there by HTTP, at /metrics: the same as -o metrics=ADDRESS
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// Go to the background once the mount is ready; log to syslog
    #[arg(long)]
    pub daemon: bool,
    /// This process is the one in the background
    #[arg(long, hide = true, conflicts_with = "daemon")]
    pub background: bool,
}

impl Mount {
    /// All options, also those that have an argument of their own.
    pub fn all_options(&self) -> Vec<String> {
        let metrics = self.metrics.iter().map(|address| format!("metrics={address}"));
        self.options.iter().cloned().chain(metrics).collect()
    }
}

/// Takes one of the names of a choice, and tells them all in the help.
fn choice<T: Choice + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let values = T::ALL.iter().map(|(_, name, meaning)| PossibleValue::new(*name).help(*meaning));
    PossibleValuesParser::new(values).try_map(|name| T::by_name(&name).ok_or("there is no such choice"))
}

fn mount_help() -> String {
    format!(
        "\
Examples:
  aqueduct mount server:/srv/data /mnt               until umount or Ctrl-C
  aqueduct mount --daemon server:7170:/srv/data /mnt
  aqueduct mount 10.0.0.5,10.1.0.5:/srv/data /mnt    whichever of the server's addresses answers
  aqueduct mount scratch@10.0.0.1,10.0.0.2:/ /mnt    a volume, of which these are servers
  aqueduct mount -o ro,soft,timeo=10 [::1]:/srv/data /mnt
  aqueduct mount -o key=/etc/aqueduct/cluster.key server:/srv/data /mnt
  aqueduct mount --local /srv/data /mnt
In /etc/fstab (see the helper mount.aqueduct):
  server:/srv/data  /mnt  aqueduct  _netdev,nofail  0  0

Mount options:
{}",
        options_help()
    )
}

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  aqueduct route --config /etc/aqueduct/route.toml      join the networks of the file
  aqueduct route show                                   routes, flows, traffic of the one here
  aqueduct route add net3@10.2.0.9                      use another router for what is behind it
  aqueduct route add net3@10.2.0.8:hops=2:priority=1    when the first is not there
  aqueduct route del net3@10.2.0.9
  aqueduct route drain                                  before it ends: clients go by others
  aqueduct route resume
  aqueduct mount -o route=net2@10.1.0.1 10.2.0.5@net2:/srv/data /mnt     on a client in net1

Ready when it has printed 'listening on ADDRESS:PORT@NETWORK' for each address. SIGTERM and SIGINT
have it drain and end; a second one ends it at once. Only root and its own user may change it.

A client's connection asks to be passed on to a server's address, and from then on the router moves
its bytes and looks at none. Servers need no routes: they answer on the connections that come. A
client that comes by a router is known to a server by its node's key alone, never by an address; and
a server without a key that listens on loopback takes nothing that comes by a router.

The configuration file:
  name = \"r1\"                      # the machine's name, unless given
  listen = [\"10.1.0.1@net1\", \"10.2.0.1:7171@net2\"]  # its address in each of its networks
  control = \"/run/aqueduct/router.sock\"  # where 'aqueduct route show' finds it
  metrics = \"127.0.0.1:9172\"       # tell metrics there, at /metrics; nowhere, unless given
  metrics_token = \"/etc/aqueduct/metrics.token\"  # only to who sends it; needed on other addresses than loopback
  [[network]]                      # where more is to be said of a network than its name
  name = \"net2\"
  addresses = [\"10.2.0.0/16\"]      # whom it passes connections on to there; the subnet of its address, unless given
  ports = [7170]                   # and to which ports; []: all
  [[route]]                        # to a network that it is not in itself
  network = \"net3\"
  gateways = [\"10.2.0.9\", \"10.2.0.8:7171\"]  # which share the connections
  hops = 1                         # routers on the way, the gateway included
  priority = 0                     # those with the smallest number are used first
  [limits]
  flows_max = 2048                 # connections that it carries, one in eight of them for control
  flows_per_client_max = 1024
  greeting_max = 1024              # connections that have not said where they want to go, and as many on the way
  greeting_per_client_max = 256
  watchers_max = 1024              # clients that are told when it drains
  memory_mib = 2048                # for what is on its way when all flows are stalled
  suspect_seconds = 5              # a peer that answers nothing for so long is dead
  drain_seconds = 10"
)]
pub struct Route {
    /// Read addresses, networks, routes and limits from this file
    #[arg(long, value_name = "FILE", default_value = "/etc/aqueduct/route.toml")]
    pub config: PathBuf,
    /// Tell metrics there by HTTP, on ADDR:PORT, at /metrics
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// Only to who sends the token in this file; needed where others than this machine can ask
    #[arg(long, value_name = "FILE")]
    pub metrics_token: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Option<RouteCommand>,
}

#[derive(Debug, Subcommand)]
pub enum RouteCommand {
    /// Show networks, routes, flows and traffic
    #[command(after_help = "\
Example:
  aqueduct route show --json | jq .routes")]
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        control: Control,
    },
    /// Use a route, or change its hops and priority; until the router ends, if its file does not
    /// have it
    #[command(after_help = "\
Example:
  aqueduct route add net3@10.2.0.9:7171:hops=2:priority=1")]
    Add {
        /// NET@GATEWAY[:PORT][:hops=N][:priority=N]
        route: String,
        #[command(flatten)]
        control: Control,
    },
    /// Use a route no more; flows that are open stay
    #[command(
        alias = "delete",
        after_help = "\
Example:
  aqueduct route del net3@10.2.0.9"
    )]
    Del {
        /// NET@GATEWAY[:PORT]
        route: String,
        #[command(flatten)]
        control: Control,
    },
    /// Take no more flows, and have clients go by other routers; ends when none is left
    #[command(after_help = "\
Example:
  aqueduct route drain --seconds 60")]
    Drain {
        /// End the flows that are left after so long
        #[arg(long, value_name = "N", default_value_t = 30)]
        seconds: u32,
        #[command(flatten)]
        control: Control,
    },
    /// Take flows again after a drain
    #[command(after_help = "\
Example:
  aqueduct route resume")]
    Resume {
        #[command(flatten)]
        control: Control,
    },
}

#[derive(Debug, Args)]
pub struct Control {
    /// The router's socket [default: /run/aqueduct/router.sock]
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct umount /mnt
  aqueduct umount --lazy /mnt        although programs still use it
  aqueduct umount --force /mnt       although programs wait in it, for a server that does not come back
Plain umount(8) does as well; this one also clears a mount whose process has died, and needs no root for
a user's own mounts.")]
pub struct Umount {
    /// The directory that is mounted on
    #[arg(value_name = "MNT")]
    pub target: PathBuf,
    /// Take it away now, and end it when nobody uses it any more
    #[arg(long, short)]
    pub lazy: bool,
    /// Take it away and end it now: programs that wait in it get errors (as root; for others as --lazy)
    #[arg(long, short)]
    pub force: bool,
}

impl Umount {
    pub fn how(&self) -> Unmount {
        how(self.lazy, self.force)
    }
}

/// What the options of umount come to.
pub fn how(lazy: bool, force: bool) -> Unmount {
    match (lazy, force) {
        (_, true) => Unmount::Forced,
        (true, false) => Unmount::Lazily,
        (false, false) => Unmount::Unused,
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct status                    the mounts of this machine, and its server if one runs
  aqueduct status server:7170        a server's exports, clients and rates
  aqueduct status --key /etc/aqueduct/cluster.key server
  aqueduct status --locks            who has and who waits for locks of this machine's server (as root)
  aqueduct status --watch
  aqueduct status --json | jq .mounts")]
pub struct Status {
    /// HOST[:PORT] of a server, or HOST[:PORT]@NET behind routers
    pub server: Option<String>,
    /// The file with the server's key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    #[command(flatten)]
    pub routes: Routes,
    /// Print JSON; with --watch one line for each look
    #[arg(long)]
    pub json: bool,
    /// Look again every second, until Ctrl-C
    #[arg(long, short)]
    pub watch: bool,
    /// Look once and show no rates, which take half a second
    #[arg(long, conflicts_with = "watch")]
    pub once: bool,
    /// Show who has and who waits for locks, on the server's machine as the user that it runs as
    #[arg(long, conflicts_with_all = ["watch", "key"])]
    pub locks: bool,
    /// With --locks: the server's state folder [default: as of 'aqueduct serve']
    #[arg(long, value_name = "DIR", requires = "locks")]
    pub state: Option<PathBuf>,
}

/// Mounts what an Aqueduct server serves: the helper that mount(8) calls for the type aqueduct
///
/// Install it as /sbin/mount.aqueduct, a link to the program aqueduct; then /etc/fstab and `mount -t aqueduct` work.
#[derive(Debug, Parser)]
#[command(name = "mount.aqueduct", version, after_long_help = mount_help())]
pub struct MountHelper {
    /// HOST[:PORT]:/EXPORT
    pub source: String,
    /// The directory to mount on
    #[arg(value_name = "MNT")]
    pub target: PathBuf,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPT", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Ignore options that are not known
    #[arg(short)]
    pub sloppy: bool,
    /// Check the arguments and do nothing
    #[arg(short)]
    pub fake: bool,
    /// Accepted and ignored: there is no mtab to write
    #[arg(short)]
    pub no_mtab: bool,
    /// Log more
    #[arg(short)]
    pub verbose: bool,
    /// Accepted and ignored: the type is aqueduct
    #[arg(short = 't', value_name = "TYPE")]
    pub kind: Option<String>,
}

/// Ends an Aqueduct mount: the helper that umount(8) calls for the type aqueduct
#[derive(Debug, Parser)]
#[command(name = "umount.aqueduct", version)]
pub struct UmountHelper {
    /// The directory that is mounted on
    #[arg(value_name = "MNT")]
    pub target: PathBuf,
    /// Take it away now, and end it when nobody uses it any more
    #[arg(short)]
    pub lazy: bool,
    /// Take it away and end it now: programs that wait in it get errors
    #[arg(short)]
    pub force: bool,
    /// Accepted and ignored: there is no mtab to write
    #[arg(short)]
    pub no_mtab: bool,
    /// Accepted and ignored
    #[arg(short)]
    pub read_only: bool,
    /// Log more
    #[arg(short)]
    pub verbose: bool,
    /// Accepted and ignored: the type is aqueduct
    #[arg(short = 't', value_name = "TYPE")]
    pub kind: Option<String>,
}

#[cfg(test)]
mod tests {
    use aqueduct_node::{RouterSettings, ServeSettings};
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_tables_are_sound() {
        Arguments::command().debug_assert();
        MountHelper::command().debug_assert();
        UmountHelper::command().debug_assert();
    }

    /// The file of --help, and the one that is installed with what is commented out put in.
    #[test]
    fn the_sample_files_are_understood() {
        let command = Arguments::command();
        let help = command.find_subcommand("serve").unwrap().get_after_help().unwrap().to_string();
        let of_help = help.split_once("The configuration file:\n").unwrap().1;
        let setting = |line: &str| line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
        let installed = include_str!("../packaging/aqueduct.toml").lines();
        let is_put_in = |rest: &&str| setting(rest) || rest.starts_with("[[");
        let put_in = installed.map(|line| line.strip_prefix("# ").filter(is_put_in).unwrap_or(line));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("aqueduct.toml");
        for text in [of_help.to_owned(), put_in.collect::<Vec<_>>().join("\n")] {
            std::fs::write(&path, &text).unwrap();
            let settings = ServeSettings::read(&path).unwrap_or_else(|failure| panic!("{failure}\n{text}"));
            assert!(settings.export.len() == 1 && settings.limits.drain_seconds == Some(10.0), "{text}");
            settings.limits.resolve().unwrap();
        }
        let help = command.find_subcommand("route").unwrap().get_after_help().unwrap().to_string();
        for text in [help.split_once("The configuration file:\n").unwrap().1, include_str!("../packaging/route.toml")] {
            std::fs::write(&path, text).unwrap();
            let settings = RouterSettings::read(&path).unwrap_or_else(|failure| panic!("{failure}\n{text}"));
            assert_eq!((settings.listen.len(), settings.route.len()), (2, 1), "{text}");
        }
    }

    #[test]
    fn several_addresses_are_listened_on() {
        let line = ["aqueduct", "serve", "--listen", "10.0.0.5:7170,[::1]:7170", "--listen", "unix:/run/a", "/srv"];
        let Command::Serve(serve) = Arguments::try_parse_from(line).unwrap().command else { panic!("{line:?}") };
        assert_eq!(serve.listen, ["10.0.0.5:7170", "[::1]:7170", "unix:/run/a"]);
    }

    #[test]
    fn every_command_has_examples() {
        for command in Arguments::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }
}
