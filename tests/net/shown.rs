//! `aqueduct net rails`: which wires a mount uses, and that one which is cut is said to be down.

use std::time::Duration;

use serde_json::Value;

use crate::common::{Mount, directory, run, wait_until, within};
use crate::lab::Lab;

/// The state of each rail of a mount, and whether all is well.
fn rails(mount: &Mount) -> (Vec<String>, bool) {
    let output = run(crate::common::aqueduct().args(["net", "rails", "--json"]).arg(mount.path()));
    let document: Value = serde_json::from_str(&output.text).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!(output.status.success(), document["is_well"].as_bool().unwrap(), "{document}");
    let rails = document["mounts"][0]["rails"].as_array().unwrap().iter();
    (rails.map(|rail| rail["state"].as_str().unwrap().to_owned()).collect(), output.status.success())
}

#[test]
fn rails_of_a_mount_are_shown_as_they_fare() {
    within(Duration::from_secs(120), || {
        let Some(lab) = Lab::new(&["a", "b"]) else { return };
        let [first, second] = [(); 2].map(|()| lab.link("a", "b", &[]));
        let export = directory();
        lab.does("serve", &["b", export.path().to_str().unwrap(), "--squash", "none"]);
        let source = format!("{}:{}", first.far_address, export.path().display());
        let mount = Mount::start(&mut lab.inside("a"), &[&source], "rails=auto");
        let up = ["up", "up"].map(str::to_owned).to_vec();
        wait_until("both rails are up", Duration::from_secs(30), || rails(&mount) == (up.clone(), true));
        lab.does("cut", &["b", &second.far]);
        // Nothing is heard on it, if only it is used.
        std::fs::write(mount.join("file"), vec![1; 8 << 20]).unwrap();
        wait_until("one rail is not up", Duration::from_secs(30), || {
            let (states, is_well) = rails(&mount);
            !is_well && states.iter().filter(|state| *state == "up").count() == 1
        });
        lab.does("heal", &["b", &second.far]);
        wait_until("it is back", Duration::from_secs(30), || rails(&mount) == (up.clone(), true));
        drop(mount);
        let one = Mount::start(&mut lab.inside("a"), &[&source], "");
        let text = run(crate::common::aqueduct().args(["net", "rails"]).arg(one.path())).succeeded();
        assert!(text.contains("one way"), "{text}");
        let text = run(crate::common::aqueduct().args(["net", "rails", "/"])).failed();
        assert!(text.contains("no mount of Aqueduct"), "{text}");
    });
}
