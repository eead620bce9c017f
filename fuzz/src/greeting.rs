//! The bodies around requests: Hello, Challenge, Proof, Attach, Cancel and their replies. The first byte says which.

use aqueduct_wire::{
    Attach, AttachReply, CancelOutcome, CancelReply, Capabilities, Challenge, Hello, HelloReply, Lane, NodeName, Proof,
    ServerId, ServerIdentity, decode_cancel, encode_cancel,
};

use crate::samples;

/// What was understood, written down, is as long as what was read or shorter (a later version's fields are left out), and understood to be the same.
pub fn run(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else { return };
    let mut out = Vec::new();
    match kind {
        0 => {
            let Ok(hello) = Hello::decode(body) else { return };
            hello.encode(&mut out);
            assert_eq!(Hello::decode(&out), Ok(hello));
        }
        1 => {
            let Ok(reply) = HelloReply::decode(body) else { return };
            reply.encode(&mut out);
            assert_eq!(HelloReply::decode(&out), Ok(reply));
        }
        2 => {
            let Ok(attach) = Attach::decode(body) else { return };
            attach.encode(&mut out);
            assert_eq!(out, body);
        }
        3 => {
            let Ok(reply) = AttachReply::decode(body) else { return };
            reply.encode(&mut out);
            assert_eq!(AttachReply::decode(&out), Ok(reply));
        }
        4 => {
            let Ok(request) = decode_cancel(body) else { return };
            encode_cancel(request, &mut out);
            assert_eq!(out, body);
        }
        5 => {
            let Ok(challenge) = Challenge::decode(body) else { return };
            challenge.encode(&mut out);
            assert_eq!(out, body);
        }
        6 => {
            let Ok(proof) = Proof::decode(body) else { return };
            proof.encode(&mut out);
            assert_eq!(out, body);
        }
        _ => {
            let Ok(reply) = CancelReply::decode(body) else { return };
            reply.encode(&mut out);
            assert_eq!(out, body);
        }
    }
    assert!(out.len() <= body.len());
}

/// One of each.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![Vec::new(); 9];
    for (kind, seed) in seeds.iter_mut().enumerate() {
        seed.push(kind as u8);
    }
    hello().encode(&mut seeds[0]);
    hello_reply().encode(&mut seeds[1]);
    Attach { export: "/srv/data", read_only: true }.encode(&mut seeds[2]);
    AttachReply { root: samples::entry(), export_id: 7, read_only: false, age_max: 0, one_user: false }
        .encode(&mut seeds[3]);
    encode_cancel(99, &mut seeds[4]);
    Challenge { nonce: [5; 32] }.encode(&mut seeds[5]);
    Proof { key: Some([6; 32]), session: Some([7; 32]) }.encode(&mut seeds[6]);
    CancelReply { outcome: CancelOutcome::Never }.encode(&mut seeds[7]);
    seeds[8][0] = 0;
    let (server, node) = (Some(ServerId([4; 16])), NodeName::new("node7"));
    Hello { server, keyed: true, node, ..hello() }.encode(&mut seeds[8]);
    seeds
}

pub(crate) fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 3,
        capabilities: Capabilities::all(),
        server: None,
        session: 5,
        link: 2,
        lane: Lane::Bulk,
        client_instance: [7; 16],
        client_name: "client.example".into(),
        nonce: [8; 32],
        keyed: false,
        node: None,
    }
}

fn hello_reply() -> HelloReply {
    HelloReply {
        version: 1,
        capabilities: Capabilities::all(),
        session: 5,
        secret: [6; 16],
        verifier: 8,
        slots: 256,
        payload_max: 1 << 20,
        lease_seconds: 0,
        server_name: "server.example".into(),
        recovering: true,
        server: ServerIdentity { id: ServerId([4; 16]), incarnation: 2 },
        addresses: vec!["10.0.0.5:7170".into()],
        ..HelloReply::default()
    }
}
