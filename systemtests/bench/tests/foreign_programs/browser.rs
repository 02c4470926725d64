//! Drives a headless Chromium over the DevTools protocol. The browser is connected by two pipes, so
//! it needs no port and no other crate, and it ends when the pipes close.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use systemtests_bench::scratch_file;

/// Time-out of an answer, long enough for a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The browser with one page.
pub(crate) struct Browser {
    child: Child,
    requests: Option<ChildStdin>,
    messages: Receiver<Value>,
    profile: PathBuf,
    session: Option<String>,
    next: u64,
    /// All events that the page has reported.
    pub(crate) events: Vec<Value>,
}

impl Browser {
    pub(crate) fn start() -> Browser {
        let profile = scratch_file().with_extension("profile");
        // The browser reads requests from descriptor 3 and writes messages to descriptor 4.
        let mut child = Command::new("sh")
            .args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#, "sh", "chromium"])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"])
            .args(["--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromium is installed (cargo xtask setup)");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, messages) = channel();
        thread::spawn(move || {
            for message in output.split(0).map_while(Result::ok) {
                let message = serde_json::from_slice(&message).expect("messages are JSON");
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let requests = child.stdin.take();
        let (session, next, events) = (None, 1, Vec::new());
        let mut browser = Browser { child, requests, messages, profile, session, next, events };
        browser.open_page();
        browser
    }

    fn open_page(&mut self) {
        let page = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let attached = self.call("Target.attachToTarget", attach);
        self.session = Some(attached["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// Calls a method and waits for its answer; keeps events that arrive before it.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        let number = self.next;
        self.next += 1;
        let mut request = json!({ "id": number, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        let mut line = request.to_string().into_bytes();
        line.push(0);
        let requests = self.requests.as_mut().expect("open until dropped");
        requests.write_all(&line).expect("the browser reads requests");
        loop {
            let message = self.receive(method);
            if message["id"] == number {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    fn receive(&mut self, what: &str) -> Value {
        let message = self.messages.recv_timeout(TIME_LIMIT);
        message.unwrap_or_else(|error| panic!("no word of {what} from the browser: {error}"))
    }

    /// Opens an address and waits until it is loaded; discards earlier events.
    pub(crate) fn open(&mut self, url: &str) {
        self.events.clear();
        self.call("Page.navigate", json!({ "url": url }));
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let message = self.receive("the page");
            self.events.push(message);
        }
    }

    /// Returns the value of an expression in the page.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", parameters);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Returns the addresses of all requests to the network or to files.
    pub(crate) fn requested(&self) -> Vec<String> {
        let requests = self.events.iter().filter(|e| e["method"] == "Network.requestWillBeSent");
        let url = |event: &Value| event["params"]["request"]["url"].as_str().unwrap().to_owned();
        requests.map(url).collect()
    }

    /// Errors as the browser's console would show them.
    pub(crate) fn complaints(&self) -> Vec<&Value> {
        let methods = ["Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"];
        self.events
            .iter()
            .filter(|event| methods.iter().any(|method| event["method"] == *method))
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends when its pipes are closed.
        self.requests = None;
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < TIME_LIMIT {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
