//! Raw arguments: the one table from which help, man pages and shell completions are made. What they mean is decided in `config`.

#![allow(rustdoc::broken_intra_doc_links, reason = "the comments are help texts, where [] means optional")]

use std::path::PathBuf;

use aqueduct_fuse::Unmount;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::exports::SquashChoice;
use crate::external::ExternalChoice;
use crate::options::{self, ChecksumChoice};

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
  aqueduct status                                    what is mounted and served here
  aqueduct umount /mnt                               end a mount
  aqueduct keygen /etc/aqueduct/cluster.key          a key that servers and clients share

Exit codes: 0 done, 1 failed, 2 the command line makes no sense (32 for all failures of mount.aqueduct).
RUST_LOG chooses what is logged, for example RUST_LOG=aqueduct_client=debug."
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
    /// End a mount, also one whose process has died
    #[command(alias = "unmount")]
    Umount(Umount),
    /// Show mounts, exports, clients and rates
    Status(Status),
    /// Release the locks of a client that is in the way, on the server's machine
    ReleaseLocks(ReleaseLocks),
    /// Measure file systems and networks, as IOR, mdtest and OSU's tests do
    #[command(after_help = "\
Examples:
  aqueduct bench io -w -r -t 1m -b 1g -o /mnt/testfile
  aqueduct bench io --help             IOR's options, and more")]
    Bench {
        #[command(subcommand)]
        command: aqueduct_bench::Command,
    },
    /// Make the key that servers and clients of a cluster share
    #[command(after_help = "\
Examples:
  aqueduct keygen /etc/aqueduct/cluster.key          on one machine; copy the file to the others
  aqueduct serve --listen 10.0.0.5:7170 --key /etc/aqueduct/cluster.key /srv/data
  aqueduct mount -o key=/etc/aqueduct/cluster.key 10.0.0.5:/srv/data /mnt

Whoever has the file may connect. Nobody but its owner may be able to read it (mode 0600), or it is not
used. It holds one key a line; lines that begin with # are comments. A client uses the first key, a server
accepts each, up to 8. To change keys: add the new line to the servers' files and restart them, replace
the clients' files and mount again, then take the old line out of the servers' files.")]
    Keygen {
        /// The file; it must not exist yet
        file: PathBuf,
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

#[derive(Debug, Default, Args)]
#[command(after_help = "\
Examples:
  aqueduct serve /srv/data                                      on 127.0.0.1:7170
  aqueduct serve --read-only /usr/share/doc /srv/data
  aqueduct serve --listen 10.0.0.5:7170 --key /etc/aqueduct/cluster.key /srv/data
  aqueduct serve --listen 10.0.0.5:7170 --insecure /srv/data    on a network you trust
  aqueduct serve --config /etc/aqueduct/aqueduct.toml

Ready when it has printed 'listening on ADDRESS:PORT' and a line for each export. SIGTERM and SIGINT let
it finish what it executes; a second one ends it at once.

The configuration file:
  listen = [\"127.0.0.1:7170\"]
  key = \"/etc/aqueduct/cluster.key\"  # only who has one of its keys may connect
  insecure = false                 # true: listen on other addresses than loopback without a key
  checksum = \"auto\"                # on, off; auto: on where the client is another machine
  read_ahead = \"auto\"              # auto: ahead of who reads in order, where he had to wait; off
  state = \"/var/lib/aqueduct\"
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
  hosts = [\"10.0.0.0/8\", \"node17\"]  # who may mount it; everybody, unless given
  read_only_hosts = [\"192.0.2.7\"]  # who may besides, and change nothing
  squash = \"root\"                  # who acts as the anonymous user: root, all, none;
                                   # unless given: root of other machines than this
  anonymous_uid = 65534
  anonymous_gid = 65534
  map_uids = [{ client = 1000, server = 5000, count = 10 }]  # ids of clients that are others here
  map_gids = []
  map_others = \"same\"              # \"anonymous\": ids that have no place in the maps
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
  drain_seconds = 10")]
pub struct Serve {
    /// Listen there (again for more); port 0 takes a free one [default: 127.0.0.1:7170]
    #[arg(long, value_name = "ADDR:PORT")]
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
    #[arg(long, value_name = "WHO")]
    pub squash: Option<SquashChoice>,
    /// How changes that others than clients make come to light, in the exports DIR [default: watch, poll where others than this machine make them]
    #[arg(long, value_name = "HOW")]
    pub external: Option<ExternalChoice>,
    /// Hold each of the exports DIR to this rate of data, read and written, as 160MB/s [default: unlimited]
    #[arg(long, value_name = "RATE")]
    pub rate: Option<String>,
    /// Let only clients in that have one of the keys in this file: see 'aqueduct keygen'
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Whether what travels has checksums [default: auto, on where the client is another machine]
    #[arg(long, value_name = "WHEN")]
    pub checksum: Option<ChecksumChoice>,
    /// Listen on addresses other than loopback without a key: anybody who reaches the port may do everything
    #[arg(long)]
    pub insecure: bool,
    /// The directories; each export's name is its path
    #[arg(value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
}

#[derive(Debug, Default, Args)]
#[command(after_long_help = mount_help(), after_help = "\
Examples:
  aqueduct mount server:/srv/data /mnt               until umount or Ctrl-C
  aqueduct mount --daemon server:7170:/srv/data /mnt
  aqueduct mount -o ro,soft,timeo=10 [::1]:/srv/data /mnt
  aqueduct mount -o key=/etc/aqueduct/cluster.key server:/srv/data /mnt
  aqueduct mount --local /srv/data /mnt
In /etc/fstab: server:/srv/data /mnt aqueduct _netdev,nofail 0 0
--help lists the options of -o.")]
pub struct Mount {
    /// HOST[:PORT]:/EXPORT, or a directory with --local
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
    /// Go to the background once the mount is ready; log to syslog
    #[arg(long)]
    pub daemon: bool,
    /// This process is the one in the background
    #[arg(long, hide = true, conflicts_with = "daemon")]
    pub background: bool,
}

fn mount_help() -> String {
    format!(
        "\
Examples:
  aqueduct mount server:/srv/data /mnt               until umount or Ctrl-C
  aqueduct mount --daemon server:7170:/srv/data /mnt
  aqueduct mount -o ro,soft,timeo=10 [::1]:/srv/data /mnt
  aqueduct mount -o key=/etc/aqueduct/cluster.key server:/srv/data /mnt
  aqueduct mount --local /srv/data /mnt
In /etc/fstab (see the helper mount.aqueduct):
  server:/srv/data  /mnt  aqueduct  _netdev,nofail  0  0

Mount options:
{}",
        options::help()
    )
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
    /// HOST[:PORT] of a server
    pub server: Option<String>,
    /// The file with the server's key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Print JSON; with --watch one line for each look
    #[arg(long)]
    pub json: bool,
    /// Look again every second, until Ctrl-C
    #[arg(long, short)]
    pub watch: bool,
    /// Show who has and who waits for locks, on the server's machine as the user that it runs as
    #[arg(long, conflicts_with_all = ["watch", "key"])]
    pub locks: bool,
    /// With --locks: the server's state folder [default: as of 'aqueduct serve']
    #[arg(long, value_name = "DIR", requires = "locks")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  aqueduct status --locks                      shows the clients and their numbers
  aqueduct release-locks 5fd0c0a2b1e94d77
  aqueduct release-locks --state /srv/state --server 127.0.0.1:7171 5fd0c0a2b1e94d77

For a client that cannot be reached any more, and whose locks others wait for. A lock of a program that
can be reached goes when the program ends.

All locks of the client are released, and nothing that it had sent before is executed afterwards. It goes
on by itself, but descriptors through which it held locks give errors (EIO) until they are closed, so that
nothing is written under a lock that somebody else has. What it still keeps may hold up changes for 9 s.")]
pub struct ReleaseLocks {
    /// The client's number, from the column CLIENT of 'aqueduct status --locks'
    pub client: String,
    /// HOST[:PORT] of the server [default: 127.0.0.1:7170]
    #[arg(long, value_name = "SERVER")]
    pub server: Option<String>,
    /// The server's state folder [default: as of 'aqueduct serve']
    #[arg(long, value_name = "DIR")]
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
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_tables_are_sound() {
        Arguments::command().debug_assert();
        MountHelper::command().debug_assert();
        UmountHelper::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Arguments::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }
}
