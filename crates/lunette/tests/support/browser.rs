//! A headless browser on one page, driven by the DevTools protocol over two pipes.

use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

/// The browser's program; `cargo xtask test` installs it.
const PROGRAM: &str = "chromium";
/// The browser reads messages from descriptor 3, and writes them to 4.
const PIPES: &str = "exec \"$@\" 3<&0 4>&1 0</dev/null 1>&2";
/// How long an answer may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A page that is open. The browser is ended when this is dropped.
pub struct Browser {
    child: Child,
    requests: ChildStdin,
    messages: Receiver<Value>,
    session: Value,
    number: u64,
    /// What the page's policy has refused, and uncaught exceptions.
    pub complaints: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Opens a page.
    pub fn open(url: &str) -> Browser {
        let profile = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new("sh");
        command.args(["-c", PIPES, "sh", PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu"]);
        command.args(["--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking"]);
        command.args(["--disable-component-update", "--remote-debugging-pipe"]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("a shell");
        let requests = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let texts = answers.split(0).map_while(Result::ok);
            texts.map_while(|text| serde_json::from_slice(&text).ok()).for_each(|message: Value| {
                let _ = sender.send(message);
            });
        });
        let session = Value::Null;
        let complaints = Vec::new();
        let mut browser =
            Browser { child, requests, messages, session, number: 0, complaints, _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = json!({ "targetId": target["targetId"], "flatten": true });
        browser.session = browser.call("Target.attachToTarget", attached)["sessionId"].clone();
        browser.call("Runtime.enable", json!({}));
        browser.call("Log.enable", json!({}));
        browser.call("Page.navigate", json!({ "url": url }));
        browser
    }

    /// Calls a method of the protocol.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.number += 1;
        let mut request = json!({ "id": self.number, "method": method, "params": parameters });
        if !self.session.is_null() {
            request["sessionId"] = self.session.clone();
        }
        let sent = self.requests.write_all(format!("{request}\0").as_bytes());
        sent.unwrap_or_else(|error| panic!("{PROGRAM}: {error}: cargo xtask test installs it as root"));
        loop {
            let message = self.messages.recv_timeout(PATIENCE);
            let message = message.unwrap_or_else(|error| panic!("{PROGRAM}: {method}: {error}"));
            if message["id"] == self.number {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            let is_refused =
                message["method"] == "Log.entryAdded" && message["params"]["entry"]["source"] == "security";
            if is_refused || message["method"] == "Runtime.exceptionThrown" {
                self.complaints.push(message["params"].clone());
            }
        }
    }

    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let answer =
            self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        answer["result"]["value"].clone()
    }

    /// Shows it in this width and color scheme.
    pub fn resize(&mut self, width: u32, scheme: &str) {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
