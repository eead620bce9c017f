//! Manifests with a signature: who has the key said so, and nobody changed it since.
//!
//! Keys and signatures are minisign's (Ed25519 over BLAKE2b), so that `minisign -Vm` checks them
//! too.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use minisign::{PublicKeyBox, SecretKey, SecretKeyBox, SignatureBox};

use crate::Failure;
use crate::store::random;

/// What signs manifests.
pub struct Signer(SecretKey);

/// Where the signature of a manifest lies: beside it, as minisign has it.
pub fn signature_of(manifest: &Path) -> PathBuf {
    let mut name = OsString::from(manifest);
    name.push(".minisig");
    name.into()
}

impl Signer {
    /// Reads a secret key that has no password: nobody is there to be asked.
    pub fn load(path: &Path) -> Result<Signer, Failure> {
        let failed = |why: String| {
            let hint = "make one with 'minisign -G -W -s FILE', which only you may read";
            Failure::new(format!("cannot use the signing key {}", path.display()), why, hint)
        };
        let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let key = SecretKeyBox::from_string(&text).and_then(SecretKeyBox::into_unencrypted_secret_key);
        key.map(Signer).map_err(|error| failed(error.to_string()))
    }

    /// Signs what was written as a manifest, before it has its name: what is there under that may
    /// be another run's.
    pub(crate) fn sign(&self, written: &Path) -> Result<Signature, Failure> {
        let failed = |why: String| {
            let hint = "see whether the folder of the manifest may be read";
            Failure::new("cannot sign the manifest", why, hint)
        };
        let file = File::open(written).map_err(|error| failed(error.to_string()))?;
        let signature = minisign::sign(None, &self.0, file, None, Some("signature of a manifest of aqueduct"));
        signature.map(|signature| Signature(signature.into_string())).map_err(|error| failed(error.to_string()))
    }
}

/// The signature of a manifest.
pub(crate) struct Signature(String);

impl Signature {
    /// Writes it beside its manifest, under its name only when it is whole.
    pub(crate) fn write(&self, manifest: &Path) -> Result<(), Failure> {
        let path = signature_of(manifest);
        let failed = |why: String| {
            let hint = "the manifest is there: see whether its folder may be written and has room";
            Failure::new(format!("cannot write the signature {}", path.display()), why, hint)
        };
        let part = path.with_extension(format!("{:016x}.part", random()));
        let written = fs::write(&part, &self.0).and_then(|()| File::open(&part)?.sync_all());
        written.and_then(|()| fs::rename(&part, &path)).map_err(|error| {
            let _ = fs::remove_file(&part); // it may not be there
            failed(error.to_string())
        })
    }
}

/// Whether a manifest is as the holder of a key has signed it.
pub fn check_signature(manifest: &Path, public_key: &Path) -> Result<(), Failure> {
    let path = signature_of(manifest);
    let failed = |why: String| {
        let hint =
            "get the manifest, its .minisig and the signer's public key again, and believe none of them until then";
        Failure::new(format!("cannot believe the manifest {}", manifest.display()), why, hint)
    };
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| failed(format!("cannot read {}: {error}", path.display())))
    };
    let key = PublicKeyBox::from_string(&read(public_key)?).and_then(PublicKeyBox::into_public_key);
    let key = key.map_err(|error| failed(format!("{}: {error}", public_key.display())))?;
    let signature = SignatureBox::from_string(&read(&path)?);
    let signature = signature.map_err(|error| failed(format!("{}: {error}", path.display())))?;
    let file = File::open(manifest).map_err(|error| failed(error.to_string()))?;
    minisign::verify(&key, &signature, file, true, false, false).map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use minisign::KeyPair;

    use super::*;

    #[test]
    fn a_signature_holds_for_its_manifest_and_its_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["own", "other"] {
            let KeyPair { pk, sk } = KeyPair::generate_unencrypted_keypair().unwrap();
            fs::write(at(&format!("{name}.key")), sk.to_box(None).unwrap().into_string()).unwrap();
            fs::write(at(&format!("{name}.pub")), pk.to_box().unwrap().into_string()).unwrap();
        }
        let manifest = at("manifest");
        fs::write(&manifest, "a line\n").unwrap();
        assert!(check_signature(&manifest, &at("own.pub")).unwrap_err().to_string().contains("manifest.minisig"));
        Signer::load(&at("own.key")).unwrap().sign(&manifest).unwrap().write(&manifest).unwrap();
        check_signature(&manifest, &at("own.pub")).unwrap();
        assert!(check_signature(&manifest, &at("other.pub")).is_err());
        fs::write(&manifest, "a lime\n").unwrap();
        assert!(check_signature(&manifest, &at("own.pub")).is_err());
        fs::write(&manifest, "a line\n").unwrap();
        fs::write(signature_of(&manifest), "nothing").unwrap();
        assert!(check_signature(&manifest, &at("own.pub")).is_err());
        assert!(Signer::load(&at("own.pub")).is_err());
        let left = fs::read_dir(folder.path()).unwrap().flatten().any(|entry| entry.path().ends_with(".part"));
        assert!(!left, "nothing of a signature is left that was not whole");
    }
}
