//! What runs on a node, as handles of a library: a [`Server`] of exports, a [`Mount`] of one, and
//! the configuration of both.
//!
//! Settings are what a person wrote, in a file, on a command line or as mount options. A
//! configuration is what they come to: resolved, checked, with each default put in. Nothing here
//! prints, looks at signals or ends the process; that is for the program that holds the handles.

#![forbid(unsafe_code)]

mod asking;
mod attach;
mod beat;
mod choice;
mod config;
pub mod control;
pub mod doctor;
mod exporting;
mod exports;
mod external;
mod failure;
mod host;
mod key;
pub mod keyfile;
mod looked;
mod mount;
pub mod mounts;
mod options;
mod orphan;
mod pages;
pub mod place;
mod plain;
mod processors;
mod rails;
mod remap;
mod remount;
mod router;
mod router_config;
pub mod routes;
mod server;
mod slow;
mod source;
mod space;
mod spans;
mod state;
mod throttle;
mod volume;
mod volume_check;
mod volume_probe;
mod volume_repair;
mod volume_work;
mod watch;
mod workers;

pub use aqueduct_client::{AskError, Asker, ConnectError, PADDING_MAX, ask_agent};
pub use aqueduct_fuse::{MountError, Unmount};
pub use aqueduct_net::Initiator;
pub use aqueduct_server::{Allowed, Denied, Mover, Submitter};
pub use asking::{ASK_NAME, ask, run_beside};
pub use attach::{AttachConfig, Attachment, Carriers, caller};
pub use choice::{ChecksumChoice, Choice, ExternalChoice, ReadAheadChoice, SquashChoice};
pub use config::{LimitSettings, ServeConfig, ServeSettings, copies_folder, default_state};
pub use exports::{ExportConfig, ExportSettings, ExternalConfig, HostMapSettings, IdRangeSettings, Others, rate};
pub use failure::{Failure, Kind};
pub use key::{Key as StateKey, load as state_key, path as state_key_path};
pub use looked::{Exported, Looked};
pub use mount::{Mount, Prepared, SUBTYPE};
pub use options::{Options, help as options_help, is_known as is_known_option};
pub use orphan::{ORPHAN_NAME, end_orphan};
pub use place::{PORT, Place, server_address};
pub use plain::{PlainPart, PlainStore};
pub use processors::{CpuChoice, CpuChoiceError, Processors};
pub use rails::{Rail, RailChoice, RailOptions};
pub use remount::{is_remount, remount};
pub use router::Router;
pub use router_config::{RouterConfig, RouterLimitSettings, RouterSettings, usual_control};
pub use server::Server;
pub use slow::{SlowConfig, SlowSettings};
pub use source::{MountConfig, MountSettings, Source};
pub use space::Space;
pub use spans::tool_spans;
pub use volume::{
    FenceSetting, VOLUME_EXPORT, Volume, VolumeModeSetting, VolumePart, VolumeServerSettings, VolumeSettings,
    WritesSetting,
};
pub use volume_check::{Checked, CheckedServer, VolumeCheck};
pub use volume_probe::{Reach, Wrong};
pub use volume_repair::Repaired;
pub use volume_work::{Progress, Question, Told, Work};
pub use watch::{WATCH_NAME, watch};
pub use workers::{end as end_workers, of_tool as tool_workers};
