//! The admin interface at an address: holders of a token may change what is served.

use super::manage::{Answer, converse};
use crate::support::daemon::Daemon;
use crate::support::tools::{Outcome, run, tool};
use crate::support::wait_until;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const OPS: &str = "0123456789abcdef-ops";
const WEB: &str = "0123456789abcdef-web";

/// A daemon whose admin interface is at an address.
struct Served {
    daemon: Daemon,
    directory: TempDir,
}

impl Served {
    /// With these tokens, and further lines in its file.
    fn with(tokens: &str, lines: &str) -> Served {
        Served::within(tempfile::tempdir().expect("a temporary directory"), tokens, lines)
    }

    /// The same, with what is already in its directory.
    fn within(directory: TempDir, tokens: &str, lines: &str) -> Served {
        write_private(&directory.path().join("tokens"), tokens);
        let text = format!(
            "admin = \"127.0.0.1:0\"\nadmin_token_file = \"tokens\"\n{lines}\n\
             portal = [{{ listen = \"127.0.0.1:0\" }}]\n\
             lun = [{{ name = \"kept\", ram = \"1M\" }}]\n[[target]]\nname = \"iqn.2026-11.io.lunette:disk\"\n"
        );
        let file = directory.path().join("lunette.toml");
        fs::write(&file, text).expect("a file");
        Served { daemon: Daemon::serve_file(&file), directory }
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Where it is, according to the banner.
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
    assert!(log.contains("admin: POST /v1/luns: refused: the token is invalid who=127.0.0.1:"), "{log}");
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
    let added = served.request("POST", "/v1/luns", Some(OPS), MORE);
    assert_eq!(
        added.json()["steps"],
        serde_json::json!([
            "add LUN more (ram:1048576)",
            "target iqn.2026-11.io.lunette:disk: LUN 1 is more"
        ]),
        "only a reload reads it: {}",
        added.body
    );
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
fn a_daemon_without_a_file_reads_its_tokens_again_and_keeps_what_was_changed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tokens = directory.path().join("tokens");
    write_private(&tokens, &format!("ops {OPS}\n"));
    let named = tokens.to_str().expect("a plain path");
    let daemon =
        Daemon::serve(["--admin", "127.0.0.1:0", "--admin-token-file", named, "--lun", "ram:1M,name=kept"]);
    let served = Served { daemon, directory };
    assert_eq!(served.request("POST", "/v1/luns", Some(OPS), MORE).status, 200);
    write_private(&tokens, "web short\n");
    let refused = served.request("POST", "/v1/reload", Some(OPS), "");
    assert_eq!(refused.status, 422, "{}", refused.body);
    assert!(refused.body.contains("tokens:1: the token of web is too short"), "{}", refused.body);
    write_private(&tokens, &format!("web {WEB}\n"));
    let done = served.request("POST", "/v1/reload", Some(OPS), "").json();
    assert_eq!(done["steps"], serde_json::json!(["remove token ops, add token web"]), "{done}");
    assert!(done["warnings"].to_string().contains("only the admin interface's tokens"), "{done}");
    assert_eq!(served.request("POST", "/v1/reload", Some(OPS), "").status, 401);
    assert_eq!(served.luns(), 2);
    write_private(&tokens, &format!("ops {OPS}\n"));
    served.daemon.signal("HUP");
    wait_until("the signal is obeyed", || served.daemon.log().contains("admin: reload: done who=\"SIGHUP\""));
    assert_eq!(served.request("POST", "/v1/reload", Some(OPS), "").status, 200);
    served.daemon.stop();
}

#[test]
fn an_order_whose_token_is_revoked_before_its_turn_is_refused() {
    let served = Served::with(&format!("ops {OPS}\n"), "");
    let address = served.place().strip_prefix("http://").expect("an address");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let length = MORE.len();
    let head = format!(
        "POST /v1/luns HTTP/1.1\r\nHost: lunette\r\nAuthorization: Bearer {OPS}\r\nExpect: 100-continue\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("it is taken");
    let mut admitted = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut admitted).expect("an answer");
    assert_eq!(&admitted, b"HTTP/1.1 100 Continue\r\n\r\n");
    write_private(&served.file("tokens"), &format!("ops {WEB}\n"));
    assert_eq!(served.request("POST", "/v1/reload", Some(OPS), "").status, 200);
    stream.write_all(MORE.as_bytes()).expect("it is taken");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("invalid_token"), "{answer}");
    assert!(answer.contains("the token was revoked; nothing was changed"), "{answer}");
    assert_eq!(served.luns(), 1);
    let log = served.daemon.stop();
    assert!(log.contains("admin: add LUN more: the token was revoked"), "{log}");
}

#[test]
fn a_refusal_arrives_however_large_the_body_is() {
    let served = Served::with(&format!("ops {OPS}\n"), "");
    let body = "x".repeat(250 << 10);
    for token in [None, Some(WEB)] {
        assert_eq!(served.request("POST", "/v1/luns", token, &body).status, 401);
    }
    served.daemon.stop();
}

#[test]
fn a_command_shows_its_token_only_for_a_change_and_only_to_this_machine_or_by_tls() {
    let served = Served::with(&format!("ops {OPS}\n"), "");
    let ask = |place: &str, arguments: &[&str]| {
        let mut command = Daemon::command();
        command.args(arguments).args(["--admin", place]).env_remove("RUST_LOG");
        run(command.env("LUNETTE_ADMIN_TOKEN_FILE", served.file("tokens")), Duration::from_secs(60))
    };
    let refused = ask("http://192.0.2.1:9260", &["lun", "add", "ram:1M"]);
    assert_eq!(refused.status.and_then(|ended| ended.code()), Some(2), "{}", refused.text);
    assert!(
        refused.text.contains("would travel to 192.0.2.1 unencrypted, and was not sent"),
        "{}",
        refused.text
    );
    let https = served.place().replace("http", "https");
    let refused = ask(&https, &["lun", "list"]);
    assert!(refused.text.contains("does not use TLS; write http://"), "{}", refused.text);
    ask(served.place(), &["lun", "add", "ram:1M"]).expect_success("the token is sent to this machine");

    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let place = format!("http://{}", other.local_addr().expect("it is bound"));
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().expect("a connection");
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut bytes = [0; 1024];
            let read = stream.read(&mut bytes).expect("a request");
            request.extend_from_slice(&bytes[..read]);
        }
        String::from_utf8(request).expect("text")
    });
    ask(&place, &["lun", "list"]);
    let request = asked.join().expect("a request");
    assert!(request.starts_with("GET ") && !request.contains("Authorization"), "{request}");
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

/// A certificate authority of a test, which certifies daemons.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Writes its certificate to `ca.pem`, and the certificate and key of a daemon at 127.0.0.1 to `cert.pem`
    /// and `key.pem`.
    fn certify(&self, directory: &Path) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("names");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        fs::write(directory.join("ca.pem"), self.0.pem()).expect("a file");
        fs::write(directory.join("cert.pem"), certificate.pem()).expect("a file");
        write_private(&directory.join("key.pem"), &key.serialize_pem());
    }
}

const IDENTITY: &str = "admin_certificate = \"cert.pem\"\nadmin_key = \"key.pem\"";

/// A daemon whose interface is encrypted.
fn encrypted(authority: &Authority) -> Served {
    let directory = tempfile::tempdir().expect("a temporary directory");
    authority.certify(directory.path());
    let served = Served::within(directory, &format!("ops {OPS}\n"), IDENTITY);
    assert!(served.place().starts_with("https://127.0.0.1:"), "{}", served.place());
    served
}

/// A command that trusts this authority.
fn ask(served: &Served, place: &str, authority: &Path, arguments: &[&str]) -> Outcome {
    let mut command = Daemon::command();
    command.args(arguments).args(["--admin", place]).arg("--admin-ca").arg(authority).env_remove("RUST_LOG");
    command.env("LUNETTE_ADMIN_TOKEN_FILE", served.file("tokens"));
    run(&mut command, Duration::from_secs(60))
}

fn curl(served: &Served, path: &str, arguments: &[&str]) -> Outcome {
    let mut command = tool("curl");
    command.args(["--silent", "--show-error", "--fail-with-body"]).args(arguments);
    run(command.arg(format!("{}{path}", served.place())), Duration::from_secs(60))
}

#[test]
fn an_encrypted_interface_serves_curl_and_the_command_and_nobody_unencrypted() {
    let served = encrypted(&Authority::new());
    let ca = served.file("ca.pem");
    let trust = ["--cacert", ca.to_str().expect("a plain path")];
    curl(&served, "/v1/luns", &trust).expect_success("whoever trusts the authority can read");
    let distrusted = curl(&served, "/v1/luns", &[]);
    assert_eq!(distrusted.status.and_then(|ended| ended.code()), Some(60), "{}", distrusted.text);
    let token = format!("Authorization: Bearer {OPS}");
    let change = [&trust[..], &["--header", &token, "--data", MORE]].concat();
    curl(&served, "/v1/luns", &change).expect_success("a change with the token");

    let listed = ask(&served, served.place(), &ca, &["lun", "list"]).expect_success("it is listed");
    assert!(listed.contains("more: ram:1048576"), "{listed}");
    ask(&served, served.place(), &ca, &["lun", "remove", "more"]).expect_success("the token is in its file");
    let other = served.file("other.pem");
    fs::write(&other, Authority::new().0.pem()).expect("a file");
    let unencrypted = served.place().replace("https", "http");
    let elsewhere = served.place().replace("127.0.0.1", "localhost");
    let tokens = served.file("tokens");
    for (place, authority, status, named) in [
        (served.place(), &other, 1, "name the authority's certificate with --admin-ca"),
        (served.place(), &tokens, 2, "tokens: it has no certificate; name a file of certificates in PEM"),
        (&elsewhere, &ca, 1, "not valid for name"),
        (&elsewhere, &ca, 1, "with --admin-ca, and the host as in the daemon's certificate\n"),
        (&unencrypted, &ca, 2, "uses no TLS; name an https:// place with --admin"),
    ] {
        let refused = ask(&served, place, authority, &["lun", "list"]);
        assert_eq!(refused.status.and_then(|ended| ended.code()), Some(status), "{}", refused.text);
        assert!(refused.text.contains(named), "{}", refused.text);
    }
    let mut command = Daemon::command();
    let refused = run(command.args(["lun", "list", "--admin", &unencrypted]), Duration::from_secs(60));
    assert!(
        refused.text.contains("the daemon uses TLS here; use https:// instead of http://"),
        "{}",
        refused.text
    );
    // A test can set what the system trusts.
    let mut command = Daemon::command();
    command.args(["lun", "list", "--admin", served.place()]).env("SSL_CERT_FILE", &ca);
    run(&mut command, Duration::from_secs(60)).expect_success("the system trusts the authority");
    write_private(&served.file("tokens"), &format!("{WEB}\n"));
    let refused = ask(&served, served.place(), &ca, &["lun", "add", "ram:1M"]);
    assert!(
        refused.text.contains("lunette: the token is invalid\nlunette: Authorization: "),
        "{}",
        refused.text
    );
    let log = served.daemon.stop();
    assert!(log.contains("admin: add LUN more: done who=\"token ops, 127.0.0.1:"), "{log}");
    assert!(log.contains("admin: remove LUN more: done who=\"token ops, 127.0.0.1:"), "{log}");
    assert!(!log.contains(OPS), "{log}");
}

#[test]
fn a_load_generator_reads_the_target_s_cpu_time_over_tls() {
    let served = encrypted(&Authority::new());
    let measured = |authority: &Path| {
        let mut command = Daemon::command();
        let target = served.daemon.lun(0).to_string();
        command.args(["bench", &target, "--runtime", "1s", "--ramp", "0", "--json=run.json"]);
        command
            .current_dir(served.directory.path())
            .args(["--target-admin", served.place(), "--admin-ca"])
            .arg(authority);
        run(&mut command, Duration::from_secs(60))
    };
    measured(&served.file("ca.pem")).expect_success("it trusts the authority");
    let output = fs::read(served.file("run.json")).expect("a result");
    let document: serde_json::Value = serde_json::from_slice(&output).expect("JSON");
    let result = &document["lunette"]["result"];
    assert!(result["target_cpu"]["us_per_op"].is_number(), "{result}");
    assert!(result["target_cpu_lost"].is_null(), "{result}");
    let other = served.file("other.pem");
    fs::write(&other, Authority::new().0.pem()).expect("a file");
    let refused = measured(&other);
    assert_eq!(refused.status.and_then(|ended| ended.code()), Some(2), "{}", refused.text);
    let named = "name the authority's certificate with --admin-ca";
    assert!(refused.text.contains(named), "{}", refused.text);
    served.daemon.stop();
}

#[test]
fn a_daemon_without_a_file_has_its_tokens_and_certificate_from_its_arguments() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    Authority::new().certify(directory.path());
    write_private(&directory.path().join("tokens"), &format!("ops {OPS}\n"));
    let mut command = Daemon::command();
    command.current_dir(directory.path()).args(["serve", "--listen", "127.0.0.1:0", "--lun", "ram:1M"]);
    command.args(["--admin", "127.0.0.1:0", "--admin-token-file", "tokens"]);
    command.args(["--admin-certificate", "cert.pem", "--admin-key", "key.pem"]);
    let served = Served { daemon: Daemon::start(&mut command), directory };
    let ca = served.file("ca.pem");
    let add = ["lun", "add", "ram:1M,name=more"];
    ask(&served, served.place(), &ca, &add).expect_success("the token is in its file");
    let shown = ask(&served, served.place(), &ca, &["config", "show"]).expect_success("what runs");
    for (key, name) in
        [("admin_token_file", "tokens"), ("admin_certificate", "cert.pem"), ("admin_key", "key.pem")]
    {
        let line = format!("{key} = \"{}\"", served.file(name).display());
        assert!(shown.contains(&line), "{line}: {shown}");
    }
    served.daemon.stop();
}

#[test]
fn a_reload_replaces_the_certificate_or_leaves_all_as_it_was() {
    let served = encrypted(&Authority::new());
    let (old, new) = (served.file("old.pem"), served.file("ca.pem"));
    fs::rename(&new, &old).expect("it is there");
    fs::write(served.file("key.pem"), KeyPair::generate().expect("a key").serialize_pem()).expect("a file");
    let refused = ask(&served, served.place(), &old, &["reload"]);
    assert_eq!(refused.status.and_then(|ended| ended.code()), Some(2), "{}", refused.text);
    assert!(
        refused.text.contains("cert.pem and ") && refused.text.contains("key.pem cannot be used"),
        "{}",
        refused.text
    );

    Authority::new().certify(served.directory.path());
    let step =
        format!("use certificate {} for new admin connections\n1 step", served.file("cert.pem").display());
    let dry = ask(&served, served.place(), &old, &["reload", "--dry-run"]).expect_success("it can be read");
    assert!(dry.contains(&step), "{dry}");
    let done =
        ask(&served, served.place(), &old, &["reload"]).expect_success("the old one is there until then");
    assert!(done.contains(&step), "{done}");
    ask(&served, served.place(), &new, &["lun", "list"]).expect_success("the new one counts");
    assert!(ask(&served, served.place(), &old, &["lun", "list"]).text.contains("--admin-ca"));
    served.daemon.stop();
}

#[test]
fn an_idle_handshake_blocks_nobody() {
    let served = encrypted(&Authority::new());
    let address = served.place().strip_prefix("https://").expect("an address").to_owned();
    let mut idle: Vec<TcpStream> =
        (0..2 * admin::CONNECTIONS_MAX).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    // The beginning of a ClientHello (RFC 8446 section 5.1).
    idle[127].write_all(&[22, 3, 1, 2, 0, 1]).expect("it is taken");
    ask(&served, served.place(), &served.file("ca.pem"), &["lun", "list"]).expect_success("it gets in");
    for mut stream in idle {
        // The connection ends, or is reset: no endless wait.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    served.daemon.stop();
}

/// The output of `lunette check` for a file in this directory.
fn check(directory: &Path, lines: &str) -> Outcome {
    let rest = "lun = [{ ram = \"1M\" }]\n[[target]]\nname = \"iqn.2026-11.io.lunette:disk\"\n";
    let file = directory.join("lunette.toml");
    fs::write(&file, format!("{lines}\nportal = [{{ listen = \"127.0.0.1:0\" }}]\n{rest}")).expect("a file");
    run(Daemon::command().arg("check").arg(file), Duration::from_secs(60))
}

#[test]
fn tokens_that_travel_unencrypted_or_have_no_effect_are_warned_of() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    Authority::new().certify(directory.path());
    write_private(&directory.path().join("tokens"), &format!("ops {OPS}\n"));
    let tokens = "admin_token_file = \"tokens\"";
    for (admin, lines, warning) in [
        ("0.0.0.0:0", tokens.to_owned(), Some("tokens travel to 0.0.0.0:0 unencrypted")),
        ("0.0.0.0:0", format!("{tokens}\n{IDENTITY}"), None),
        ("127.0.0.1:0", tokens.to_owned(), None),
        ("./admin.sock", tokens.to_owned(), Some("this has no effect on a socket; set admin to an address")),
        ("./admin.sock", IDENTITY.to_owned(), Some("admin_key: this has no effect on a socket")),
        ("none", tokens.to_owned(), Some("this has no effect without an admin interface")),
    ] {
        let outcome = check(directory.path(), &format!("admin = \"{admin}\"\n{lines}"));
        let text = outcome.expect_success(admin);
        assert_eq!(text.contains("warning: "), warning.is_some(), "{admin} {lines}: {text}");
        assert!(text.contains(warning.unwrap_or_default()), "{admin} {lines}: {text}");
    }
}

#[test]
fn a_certificate_or_key_that_cannot_be_used_is_named_before_the_start() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    Authority::new().certify(directory.path());
    let file = |name: &str| directory.path().join(name);
    let good = fs::read_to_string(file("key.pem")).expect("it is there");
    let check = |lines: &str| check(directory.path(), &format!("admin = \"127.0.0.1:0\"\n{lines}"));
    check(IDENTITY).expect_success("both are good");
    let other = KeyPair::generate().expect("a key").serialize_pem();
    for (lines, key, named) in [
        (IDENTITY, &*other, ":2:21: admin_certificate: /"),
        (IDENTITY, &*other, "key.pem cannot be used: "),
        (IDENTITY, "nothing", ":3:13: admin_key: /"),
        (IDENTITY, &good.replace('\n', " "), "key.pem is not PEM: a section has no END line; write"),
        (IDENTITY, "nothing", "key.pem has no private key; write the key as PEM, without a passphrase"),
        ("admin_certificate = \"tokens\"\nadmin_key = \"key.pem\"", &good, "tokens: No such file"),
        ("admin_certificate = \"key.pem\"\nadmin_key = \"key.pem\"", &good, "key.pem has no certificate"),
        (
            "admin_certificate = \"cert.pem\"",
            &good,
            ":2:21: admin_certificate: the private key is missing; add `admin_key",
        ),
        ("admin_key = \"key.pem\"", &good, ":2:13: admin_key: the certificate is missing"),
    ] {
        write_private(&file("key.pem"), key);
        let outcome = check(lines);
        assert_eq!(outcome.status.and_then(|ended| ended.code()), Some(2), "{lines}: {}", outcome.text);
        assert!(outcome.text.contains(named), "{lines}: {}", outcome.text);
        // As bytes in decimal, too.
        let is_shown = |part: &[u8]| {
            let numbers = format!("{part:?}");
            let text = String::from_utf8_lossy(part);
            outcome.text.contains(numbers.trim_matches(['[', ']'])) || outcome.text.contains(&*text)
        };
        assert!(!key.as_bytes().chunks_exact(8).any(is_shown), "{lines}: {}", outcome.text);
    }
    fs::set_permissions(file("key.pem"), fs::Permissions::from_mode(0o644)).expect("its mode");
    let outcome = check(IDENTITY);
    assert!(outcome.text.contains(":3:13: admin_key: "), "{}", outcome.text);
    assert!(outcome.text.contains("(mode 644); chmod 600 /"), "{}", outcome.text);
    let mut options = Daemon::command();
    options.current_dir(directory.path()).args(["serve", "--admin-certificate", "cert.pem"]);
    let outcome = run(&mut options, Duration::from_secs(60));
    assert!(
        outcome.text.contains("--admin-certificate: the private key is missing; add --admin-key FILE"),
        "{}",
        outcome.text
    );
}
