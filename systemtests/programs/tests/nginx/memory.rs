//! Memory that workers hold for clients that send requests and read no answers, compared with stock
//! nginx.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::TcpListener;
use std::sync::LazyLock;
use std::thread;
use systemtests_programs::nginx::{Nginx, Setup};
use testkit::stalled::{allowed_for_each, held_for_each};

/// Kinds of answers: the location's name and directives. `events` streams small events.
const KINDS: [(&str, &str); 12] = [
    ("empty", "return 204;"),
    ("short", "return 200 short;"),
    ("small", "alias html/small;"),
    ("large", "alias html/large;"),
    ("copied", "sendfile off; alias html/large;"),
    ("proxied", "proxy_pass http://127.0.0.1:{port3}/large;"),
    ("proxied_small", "proxy_pass http://127.0.0.1:{port3}/small;"),
    ("zipped", "gzip on; gzip_types *; alias html/large;"),
    ("filtered", "sub_filter q y; sub_filter_types *; sub_filter_once off; alias html/large;"),
    ("included", "ssi on; ssi_types *; alias html/large;"),
    ("limited", "limit_rate 1k; alias html/large;"),
    ("events", "proxy_buffering off; proxy_pass http://{events}/;"),
];

const CLIENTS: usize = 48;

/// Answers each request by events without an end, until the connection is closed.
fn stream_events() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let Ok(mut stream) = stream else { return };
                let mut sent = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n");
                while sent.is_ok() {
                    sent = stream.write_all(b"data: an event\n\n");
                }
            });
        }
    });
    address
}

fn held(module: bool, events: &str, (name, directives): (&str, &str)) -> u64 {
    let mut http = "server { listen 127.0.0.1:{port3}; root html; } server {
        listen 127.0.0.1:{port2} sndbuf=16k; keepalive_requests 1000000000; "
        .to_string();
    let directives = directives.replace("{events}", &stream_events());
    write!(http, "location = /{name} {{ {directives} }} }}").unwrap();
    let setup = Setup { module, events: events.to_string(), http, ..Setup::module() };
    let nginx = Nginx::start(&setup).unwrap();
    nginx.place("small", &[b'x'; 1000]).unwrap();
    nginx.place("large", &[b'x'; 300_000]).unwrap();
    let request = format!("GET /{name} HTTP/1.1\r\nHost: t\r\nAccept-Encoding: gzip\r\n\r\n");
    held_for_each(nginx.ports()[1], CLIENTS, request.repeat(100).as_bytes(), &nginx.workers())
        .unwrap()
}

static STOCK: LazyLock<Vec<u64>> = LazyLock::new(|| KINDS.map(|kind| held(false, "", kind)).into());

#[track_caller]
fn stalled_clients_cost_little_more_than_in_stock_nginx(events: &str) {
    let mut too_much = String::new();
    for (kind, stock) in KINDS.into_iter().zip(STOCK.iter()) {
        let bytes = held(true, events, kind);
        println!("{events} {}: {bytes} bytes for each client, stock {stock}", kind.0);
        if bytes > allowed_for_each(*stock, CLIENTS) {
            writeln!(too_much, "{}: {bytes} bytes for each client, stock {stock}", kind.0).unwrap();
        }
    }
    assert_eq!(too_much, "", "{events}");
}

#[test]
fn stalled_clients_cost_little_more_than_in_stock_nginx_over_io_uring() {
    stalled_clients_cost_little_more_than_in_stock_nginx("");
}

#[test]
fn stalled_clients_cost_little_more_than_in_stock_nginx_over_epoll() {
    stalled_clients_cost_little_more_than_in_stock_nginx("megapipe_driver epoll;");
}
