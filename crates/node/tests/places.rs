//! A server that is known by several addresses.

use std::net::TcpListener;

use aqueduct_fs::Request;
use aqueduct_node::{
    AttachConfig, Attachment, Carriers, ConnectError, ExportSettings, Place, ServeConfig, ServeSettings, Server, caller,
};
use tempfile::TempDir;

/// A port of which nobody listens.
fn dead_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn one_living_address_of_several_is_enough() {
    let folder = TempDir::new().unwrap();
    let settings = ServeSettings {
        listen: vec!["127.0.0.1:0".into(), "127.0.0.2:0".into()],
        local_sockets: Some("".into()),
        state: Some(folder.path().join("state")),
        export: vec![ExportSettings { name: Some("data".into()), ..ExportSettings::of(folder.path()) }],
        ..ServeSettings::default()
    };
    let server = Server::start(&ServeConfig::resolve(settings).unwrap()).unwrap();
    let (dead, [first, second]) = (dead_port(), [0, 1].map(|index| server.addresses()[index]));
    let attach = |addresses: &str| {
        let place = Place::parse(&format!("{addresses}:data"), |_| false).unwrap();
        let config = AttachConfig::new(place.server(None), place.export);
        Attachment::connect(&config, Carriers::Caller).map(|attached| attached.call(&caller(), Request::Root).is_ok())
    };
    for addresses in [
        format!("127.0.0.1:{dead},{second}"),
        format!("{second},127.0.0.1:{dead}"),
        format!("nowhere.invalid,unix:/nonexistent,{first}"),
    ] {
        assert!(attach(&addresses).unwrap(), "{addresses}");
    }
    let none = attach(&format!("127.0.0.1:{dead},unix:/nonexistent"));
    assert!(matches!(&none, Err(ConnectError::Connect { server, .. }) if server.contains(',')), "{none:?}");
    assert!(matches!(attach("nowhere.invalid"), Err(ConnectError::Resolve { .. })));
}
