//! The connection to the store of jobs, encrypted: a real PostgreSQL with a certificate, and what
//! each `sslmode` believes.

use std::path::Path;
use std::process::Command;

use crate::agents::{Cluster, test};
use crate::common::{TEST_MAX, aqueduct, run_within, skip};
use crate::tree::text;

/// Makes two authorities, `ca` and `other`, and a certificate of the first for 127.0.0.1 alone.
const CERTIFICATES: &str = r#"
for name in ca other; do
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=$name" -keyout $name.key -out $name.pem \
        -addext basicConstraints=critical,CA:TRUE
done
openssl req -newkey rsa:2048 -nodes -subj /CN=database -keyout server.key -out server.csr
printf 'subjectAltName=IP:127.0.0.1\n' > extension
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extension -out server.pem
chmod 600 server.key
chown postgres server.key server.pem
"#;

fn certificates(folder: &Path) -> bool {
    let made = Command::new("sh").args(["-ec", CERTIFICATES]).current_dir(folder).output().unwrap();
    if !made.status.success() {
        skip(&format!("needs openssl: {}", String::from_utf8_lossy(&made.stderr)));
    }
    made.status.success()
}

#[test]
fn a_store_proves_what_its_address_asks_for() {
    test(|| {
        let Some(cluster) = Cluster::start_encrypted(certificates) else { return };
        let there = |name: &str| cluster.folder().join(name);
        let list = |host: &str, query: &str| {
            let url = format!("postgres://root@{host}:{}/transfers?{query}", cluster.port());
            run_within(TEST_MAX, aqueduct().args(["transfers", "list", "--store", &url]))
        };
        let (ca, other) = (there("ca.pem"), there("other.pem"));
        let (ca, other) = (text(&ca), text(&other));
        for (host, query) in [
            ("127.0.0.1", "sslmode=require".to_owned()),
            ("127.0.0.1", "connect_timeout=9".to_owned()),
            ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={ca}")),
            ("localhost", format!("sslmode=verify-ca&sslrootcert={ca}")),
            ("localhost", format!("sslrootcert={ca}&sslmode=require")),
        ] {
            let listed = list(host, &query);
            assert!(listed.status.success(), "{host} {query}: {listed:?}");
        }
        for (host, query) in [
            ("127.0.0.1", "sslmode=disable".to_owned()),
            ("127.0.0.1", "sslmode=verify-full".to_owned()),
            ("127.0.0.1", format!("sslmode=verify-full&sslrootcert={other}")),
            ("127.0.0.1", format!("sslmode=verify-ca&sslrootcert={other}")),
            ("127.0.0.1", format!("sslmode=require&sslrootcert={other}")),
            ("localhost", format!("sslmode=verify-full&sslrootcert={ca}")),
        ] {
            let refused = list(host, &query);
            assert_eq!(refused.status.code(), Some(1), "{host} {query}: {refused:?}");
            assert!(refused.text.contains("cannot use the store"), "{refused:?}");
        }
        let refused = list("127.0.0.1", "sslmode=sometimes");
        assert!(refused.text.contains("use disable, prefer, require, verify-ca, verify-full"), "{refused:?}");
    });
}
