//! Ceph RBD images: `rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`.

use std::fmt;
use std::path::PathBuf;

/// The scheme of a store on Ceph.
const SCHEME: &str = "rbd:";

/// Ceph's default cluster configuration file.
const CONF: &str = "/etc/ceph/ceph.conf";

/// An image, or a snapshot of one, and how to access its cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RbdImage {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool.
    pub namespace: Option<String>,
    /// The image's name.
    pub image: String,
    /// The snapshot's name: snapshots are read-only.
    pub snapshot: Option<String>,
    /// The cluster's configuration; `None`: where Ceph looks for it, such as `/etc/ceph/ceph.conf`.
    pub conf: Option<PathBuf>,
    /// The name of the client, without `client.`; `None`: `admin`.
    pub client: Option<String>,
    /// The file with the client's key; `None`: as in the configuration.
    pub keyring: Option<PathBuf>,
    /// The file with the passphrase of an image encrypted by LUKS; `None`: it is served as it is.
    pub luks_passphrase_file: Option<PathBuf>,
}

/// What is wrong with the name of an image, and the correct form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageFault {
    /// What is wrong.
    pub what: String,
    /// The correct form.
    pub fix: &'static str,
}

impl ImageFault {
    fn new(what: String, fix: &'static str) -> ImageFault {
        ImageFault { what, fix }
    }
}

impl RbdImage {
    /// Parses `POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]`.
    ///
    /// # Errors
    /// What is wrong with it, and the correct form.
    pub fn parse(text: &str) -> Result<RbdImage, ImageFault> {
        let fault = |what: &str| {
            let fix = "write POOL/IMAGE, POOL/NAMESPACE/IMAGE or POOL/IMAGE@SNAPSHOT, such as rbd/disk1";
            ImageFault::new(format!("`{text}`: {what}"), fix)
        };
        let mut parts: Vec<&str> = text.split('/').collect();
        let last = parts.pop().unwrap_or_default();
        let (pool, namespace) = match parts[..] {
            [] => return Err(fault("the image's pool is missing")),
            [pool] => (pool, None),
            [pool, namespace] => (pool, Some(namespace)),
            _ => return Err(fault("there are too many slashes")),
        };
        let (image, snapshot) = match last.split_once('@') {
            None => (last, None),
            Some((image, snapshot)) => (image, Some(snapshot)),
        };
        let names =
            [("pool", Some(pool)), ("namespace", namespace), ("image", Some(image)), ("snapshot", snapshot)];
        for (what, name) in names.into_iter().filter_map(|(what, name)| Some((what, name?))) {
            if name.is_empty() {
                return Err(fault(&format!("the name of the {what} is empty")));
            }
            if name.contains(['@', '\0']) {
                return Err(fault(&format!("the name of the {what} has an invalid character")));
            }
        }
        Ok(RbdImage {
            pool: pool.into(),
            namespace: namespace.map(str::to_owned),
            image: image.into(),
            snapshot: snapshot.map(str::to_owned),
            conf: None,
            client: None,
            keyring: None,
            luks_passphrase_file: None,
        })
    }

    /// Parses a store as commands accept it,
    /// `rbd:POOL/IMAGE[,conf=PATH][,client=NAME][,keyring=PATH][,luks_passphrase_file=PATH]`; `None`: it is
    /// another kind of store.
    ///
    /// # Errors
    /// What is wrong with it, and the correct form.
    pub fn given(text: &str) -> Option<Result<RbdImage, ImageFault>> {
        let mut parts = text.strip_prefix(SCHEME)?.split(',');
        let image = RbdImage::parse(parts.next().unwrap_or_default());
        Some(image.and_then(|image| parts.try_fold(image, RbdImage::with_option)))
    }

    /// Whether both are the same image, judging by their names; how they are opened does not matter.
    pub fn is_same(&self, other: &RbdImage) -> bool {
        let conf = |image: &RbdImage| {
            let path = image.conf.clone().unwrap_or_else(|| CONF.into());
            path.canonicalize().unwrap_or(path)
        };
        let name = |image: &RbdImage| {
            (image.pool.clone(), image.namespace.clone(), image.image.clone(), image.snapshot.clone())
        };
        name(self) == name(other) && conf(self) == conf(other)
    }

    fn with_option(mut self, option: &str) -> Result<RbdImage, ImageFault> {
        let fix = "write conf=PATH, client=NAME, keyring=PATH or luks_passphrase_file=PATH";
        let is_given = match option.split_once('=') {
            Some(("conf", _)) => self.conf.is_some(),
            Some(("client", _)) => self.client.is_some(),
            Some(("keyring", _)) => self.keyring.is_some(),
            Some(("luks_passphrase_file", _)) => self.luks_passphrase_file.is_some(),
            _ => false,
        };
        match option.split_once('=') {
            _ if is_given => {
                return Err(ImageFault::new(format!("`{option}` repeats an option"), "give it once"));
            }
            Some((_, "")) => return Err(ImageFault::new(format!("`{option}` has no value"), fix)),
            Some(("conf", path)) => self.conf = Some(path.into()),
            Some(("client", name)) => self.client = Some(client(name)),
            Some(("keyring", path)) => self.keyring = Some(path.into()),
            Some(("luks_passphrase_file", path)) => self.luks_passphrase_file = Some(path.into()),
            _ => return Err(ImageFault::new(format!("`{option}` is not an option of an image"), fix)),
        }
        Ok(self)
    }
}

/// The name of a client without its entity type, which Ceph's own tools include.
pub(super) fn client(name: &str) -> String {
    name.strip_prefix("client.").unwrap_or(name).into()
}

impl fmt::Display for RbdImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/", self.pool)?;
        self.namespace.iter().try_for_each(|name| write!(f, "{name}/"))?;
        f.write_str(&self.image)?;
        self.snapshot.iter().try_for_each(|name| write!(f, "@{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        RbdImage::parse(text).expect_err("it is wrong").what
    }

    #[test]
    fn every_form_is_read_and_shown_as_it_was() {
        for text in ["rbd/disk", "p/n/disk", "p/disk@snap", "p/n/disk.1@a b"] {
            let image = RbdImage::parse(text).unwrap_or_else(|fault| panic!("{text}: {}", fault.what));
            assert_eq!(image.to_string(), format!("rbd:{text}"));
        }
        let image = RbdImage::parse("p/n/disk@s").expect("it is one");
        assert_eq!((image.pool.as_str(), image.namespace.as_deref()), ("p", Some("n")));
        assert_eq!((image.image.as_str(), image.snapshot.as_deref()), ("disk", Some("s")));
    }

    #[test]
    fn faults_name_what_is_wrong() {
        assert!(fault("disk").contains("pool is missing"));
        assert!(fault("a/b/c/d").contains("too many slashes"));
        assert!(fault("/disk").contains("the name of the pool is empty"));
        assert!(fault("p//disk").contains("the name of the namespace is empty"));
        assert!(fault("p/").contains("the name of the image is empty"));
        assert!(fault("p/disk@").contains("the name of the snapshot is empty"));
        assert!(fault("p/disk@a@b").contains("the name of the snapshot has an invalid character"));
        assert!(fault("p@x/disk").contains("the name of the pool has an invalid character"));
    }

    #[test]
    fn an_image_is_the_same_whoever_opens_it() {
        let image = |text: &str| RbdImage::given(text).expect("it is one").expect("it is right");
        let disk = image("rbd:p/n/disk");
        for same in ["rbd:p/n/disk,client=x,keyring=k", "rbd:p/n/disk,conf=/etc/ceph/ceph.conf"] {
            assert!(disk.is_same(&image(same)), "{same}");
        }
        for other in ["rbd:p/disk", "rbd:q/n/disk", "rbd:p/n/disk@s", "rbd:p/n/d", "rbd:p/n/disk,conf=/a"] {
            assert!(!disk.is_same(&image(other)), "{other}");
        }
    }

    #[test]
    fn commands_give_options_with_the_image() {
        assert!(RbdImage::given("/srv/rbd:a").is_none());
        let image =
            RbdImage::given("rbd:p/disk,conf=/a/c.conf,client=client.x,keyring=k,luks_passphrase_file=p")
                .expect("it is one");
        let image = image.expect("it is right");
        assert_eq!((image.conf, image.keyring), (Some("/a/c.conf".into()), Some("k".into())));
        assert_eq!(image.luks_passphrase_file, Some("p".into()));
        assert_eq!(image.client.as_deref(), Some("x"));
        for wrong in [
            "rbd:p/disk,size=1G",
            "rbd:p/disk,conf",
            "rbd:p/disk,conf=",
            "rbd:disk",
            "rbd:p/disk,client=a,client=b",
        ] {
            assert!(RbdImage::given(wrong).is_some_and(|image| image.is_err()), "{wrong}");
        }
    }
}
