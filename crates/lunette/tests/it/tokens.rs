//! The admin interface at an address: whoever has a token may change what is served.

use super::manage::{Answer, converse};
use crate::support::daemon::Daemon;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tempfile::TempDir;

const OPS: &str = "0123456789abcdef-ops";
const WEB: &str = "0123456789abcdef-web";

/// A daemon whose admin interface is at an address.
struct Served {
    daemon: Daemon,
    folder: TempDir,
}

impl Served {
    /// With these tokens, and further lines of its file.
    fn with(tokens: &str, lines: &str) -> Served {
        let folder = tempfile::tempdir().expect("a temporary directory");
        write_private(&folder.path().join("tokens"), tokens);
        let text = format!(
            "admin = \"127.0.0.1:0\"\nadmin_token_file = \"tokens\"\n{lines}\n\
             portal = [{{ listen = \"127.0.0.1:0\" }}]\n\
             lun = [{{ name = \"kept\", ram = \"1M\" }}]\n[[target]]\nname = \"iqn.2026-11.io.lunette:disk\"\n"
        );
        let file = folder.path().join("lunette.toml");
        fs::write(&file, text).expect("a file");
        Served { daemon: Daemon::serve_file(&file), folder }
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Where the banner says that it is.
    fn place(&self) -> &str {
        let line = self.daemon.banner().lines().find_map(|line| line.strip_prefix("Admin "));
        line.unwrap_or_else(|| panic!("no place in:\n{}", self.daemon.banner()))
    }

    fn request(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> Answer {
        let address = self.place().strip_prefix("http://").expect("an address");
        let field = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
        converse(TcpStream::connect(address).expect("it listens"), method, path, &field, body)
    }

    fn luns(&self) -> usize {
        self.request("GET", "/v1/luns", None, "").json()["items"].as_array().expect("a list").len()
    }
}

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its mode");
}

const MORE: &str = r#"{"name": "more", "ram": "1M"}"#;

#[test]
fn a_change_over_tcp_needs_a_token_and_is_logged_by_the_token_s_name() {
    let served = Served::with(&format!("# Who may.\nops {OPS}\n"), "");
    let missing = served.request("POST", "/v1/luns", None, MORE);
    let wrong = served.request("POST", "/v1/luns", Some(WEB), MORE);
    for (answer, challenge, named) in [
        (
            missing,
            "www-authenticate: Bearer realm=\"lunette\"\r\n",
            "with a token of the daemon's admin_token_file",
        ),
        (wrong, "www-authenticate: Bearer realm=\"lunette\", error=\"invalid_token\"\r\n", "reload"),
    ] {
        assert_eq!(answer.status, 401, "{}", answer.body);
        assert!(format!("{}\r\n", answer.head).contains(challenge), "{}", answer.head);
        assert!(answer.head.contains("content-type: application/problem+json"), "{}", answer.head);
        let json = answer.json();
        assert_eq!(json["problems"][0]["place"], "Authorization");
        assert!(json["problems"][0]["fix"].as_str().is_some_and(|fix| fix.contains(named)), "{json}");
    }
    assert_eq!(served.luns(), 1, "nothing was changed");
    assert_eq!(served.request("GET", "/v1/luns", Some(WEB), "").status, 401, "a wrong token is not ignored");

    let added = served.request("POST", "/v1/luns", Some(OPS), MORE);
    assert_eq!(added.status, 200, "{}", added.body);
    assert_eq!(served.luns(), 2);
    assert_eq!(served.request("GET", "/v1/luns", Some(OPS), "").status, 200);
    let shown = served.request("GET", "/v1/config", None, "").body;
    let path = served.file("tokens");
    assert!(shown.contains(&format!("admin_token_file = \"{}\"", path.display())), "{shown}");
    let log = served.daemon.stop();
    assert!(log.contains("admin: add LUN more: done who=\"token ops, 127.0.0.1:"), "{log}");
    assert!(log.contains("admin: POST /v1/luns: refused: it has no token who=127.0.0.1:"), "{log}");
    assert!(log.contains("admin: POST /v1/luns: refused: the token is wrong who=127.0.0.1:"), "{log}");
    assert!(!log.contains(OPS) && !log.contains(WEB) && !shown.contains(OPS), "{log}");
}

#[test]
fn a_reload_replaces_the_tokens() {
    let served = Served::with(&format!("ops {OPS}\n"), "");
    write_private(&served.file("tokens"), &format!("web {WEB}\n"));
    assert_eq!(served.request("POST", "/v1/reload", Some(WEB), "").status, 401, "it was not read yet");
    let steps = ["remove token ops, add token web"];
    let dry = served.request("POST", "/v1/reload?dry_run", Some(OPS), "");
    assert_eq!(dry.json()["steps"], serde_json::json!(steps), "{}", dry.body);
    assert_eq!(served.request("POST", "/v1/reload?dry_run", Some(WEB), "").status, 401, "nothing was done");

    write_private(&served.file("tokens"), "web short\n");
    let refused = served.request("POST", "/v1/reload", Some(OPS), "");
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(refused.body.contains("tokens:1: the token of web is too short"), "{}", refused.body);

    write_private(&served.file("tokens"), &format!("web {WEB}\n"));
    let done = served.request("POST", "/v1/reload", Some(OPS), "");
    assert_eq!(done.json()["steps"], serde_json::json!(steps), "{}", done.body);
    assert_eq!(served.request("POST", "/v1/reload", Some(OPS), "").status, 401);
    let again = served.request("POST", "/v1/reload", Some(WEB), "");
    assert_eq!(again.json()["steps"], serde_json::json!([]), "{}", again.body);
    served.daemon.stop();
}

#[test]
fn the_document_names_the_token_that_changes_need() {
    let served = Served::with(&format!("ops {OPS}\n"), "");
    let document = served.request("GET", "/v1/openapi.json", None, "").json();
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            let status = match method.as_str() {
                "get" => continue,
                method => served.request(&method.to_uppercase(), path, None, "").status,
            };
            assert_eq!(status, 401, "{method} {path}");
            assert_eq!(operation["security"], serde_json::json!([{}, { "token": [] }]), "{method} {path}");
        }
    }
    served.daemon.stop();
}
