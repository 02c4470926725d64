//! Tests that nginx with the event module serves the same bytes as stock nginx.

use crate::assert_lightweight;
use std::io::Read;
use systemtests_programs::http::{self, Client};
use systemtests_programs::nginx::{Nginx, Setup};
use testkit::{content, eventually};

const SIZES: [usize; 10] = [1, 30, 704, 4_096, 5_670, 65_200, 65_536, 65_537, 1_000_000, 8_000_000];

fn serves_all_sizes(setup: &Setup) {
    let nginx = Nginx::start(setup).unwrap();
    for size in SIZES {
        nginx.place(&size.to_string(), &content(size)).unwrap();
    }
    let before = nginx.descriptors();
    let mut client = Client::connect(nginx.port()).unwrap();
    for size in SIZES.iter().chain(SIZES.iter().rev()) {
        let response = client.get(&format!("/{size}")).unwrap();
        assert_eq!(response.status, 200, "{size}");
        assert!(response.body == content(*size), "{size} bytes differ");
    }
    drop(client);
    let left = || nginx.descriptors() <= before;
    assert!(eventually(systemtests_programs::TIME_LIMIT, left));
    assert_eq!(nginx.complaints(), [""; 0]);
}

#[test]
fn files_of_all_sizes_arrive_whole() {
    serves_all_sizes(&Setup::module());
}

#[test]
fn files_arrive_whole_without_sendfile() {
    let server = "sendfile off;".to_string();
    serves_all_sizes(&Setup { server, ..Setup::module() });
}

#[test]
fn files_arrive_whole_over_the_epoll_driver_and_with_descriptors() {
    let events = "megapipe_driver epoll;".to_string();
    serves_all_sizes(&Setup { events, ..Setup::module() });
    let events = "megapipe_lwsockets off; megapipe_batch 1;".to_string();
    serves_all_sizes(&Setup { events, ..Setup::module() });
}

#[test]
fn files_arrive_whole_when_threads_read_them() {
    let server = "aio threads; output_buffers 2 128k;".to_string();
    serves_all_sizes(&Setup { server: server.clone(), ..Setup::module() });
    serves_all_sizes(&Setup { server: format!("{server} sendfile off;"), ..Setup::module() });
}

#[test]
fn threads_that_finish_at_the_same_time_all_wake_the_worker() {
    for events in ["", "megapipe_driver epoll;"] {
        let setup = Setup { events: events.into(), ..Setup::module() };
        let server = "aio threads; sendfile off; output_buffers 1 4k;".to_string();
        let nginx = Nginx::start(&Setup { server, ..setup }).unwrap();
        nginx.place("f", &content(40_000)).unwrap();
        let mut clients: Vec<Client> =
            (0..50).map(|_| Client::connect(nginx.port()).unwrap()).collect();
        for _ in 0..20 {
            for client in &mut clients {
                client.send("GET /f HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
            }
            for client in &mut clients {
                assert!(client.response().unwrap().body == content(40_000));
            }
        }
        assert_eq!(nginx.complaints(), [""; 0]);
    }
}

#[test]
fn a_hundred_megabytes_arrive_whole() {
    let nginx = Nginx::start(&Setup::module()).unwrap();
    let content = content(100_000_000);
    nginx.place("large", &content).unwrap();
    let mut client = Client::connect(nginx.port()).unwrap();
    client.send("GET /large HTTP/1.0\r\n\r\n").unwrap();
    let (status, _) = client.head().unwrap();
    assert_eq!(status, 200);
    assert!(client.rest().unwrap() == content, "the bytes differ");
    assert_eq!(nginx.complaints(), [""; 0]);
}

#[test]
fn a_rate_limit_holds_and_loses_nothing() {
    let server = "limit_rate 200k; limit_rate_after 50k;".to_string();
    let nginx = Nginx::start(&Setup { server, ..Setup::module() }).unwrap();
    let content = content(300_000);
    nginx.place("slow", &content).unwrap();
    let began = std::time::Instant::now();
    let response = Client::connect(nginx.port()).unwrap().get("/slow").unwrap();
    assert!(response.body == content);
    assert!(began.elapsed() >= std::time::Duration::from_millis(500), "{:?}", began.elapsed());
}

/// Requests whose answers must not differ, each on a connection of its own.
fn corpus() -> Vec<Vec<u8>> {
    let mut corpus: Vec<Vec<u8>> = Vec::new();
    let mut ask = |text: &str| corpus.push(text.as_bytes().to_vec());
    let tail = "Host: test\r\nConnection: close\r\n\r\n";
    for path in ["/", "/small", "/large", "/none", "/dir", "/dir/", "/packed.txt", "/../x", "/%"] {
        ask(&format!("GET {path} HTTP/1.1\r\n{tail}"));
        ask(&format!("HEAD {path} HTTP/1.1\r\n{tail}"));
        ask(&format!("GET {path} HTTP/1.0\r\n\r\n"));
        ask(&format!("GET {path} HTTP/1.1\r\nAccept-Encoding: gzip\r\n{tail}"));
    }
    for range in ["0-0", "5-99", "-1", "0-9,20-29", "99999999-", "100-100000"] {
        ask(&format!("GET /large HTTP/1.1\r\nRange: bytes={range}\r\n{tail}"));
    }
    let future = "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n";
    let exact = "If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT\r\n";
    ask(&format!("GET /small HTTP/1.1\r\n{future}{tail}"));
    ask(&format!("GET /small HTTP/1.1\r\n{exact}{tail}"));
    ask(&format!("DELETE /small HTTP/1.1\r\n{tail}"));
    ask(&format!("POST /small HTTP/1.1\r\nContent-Length: 5\r\n{tail}hello"));
    ask(&format!("POST /echo HTTP/1.1\r\nContent-Length: 5\r\n{tail}hello"));
    ask(&format!("POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n{tail}hi"));
    ask(&format!(
        "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n{tail}3\r\nabc\r\n0\r\n\r\n"
    ));
    ask(&format!("POST /echo HTTP/1.1\r\nContent-Length: 99999999\r\n{tail}"));
    ask(&format!("GET /closed HTTP/1.1\r\n{tail}"));
    ask(&format!("GET /moved HTTP/1.1\r\n{tail}"));
    ask("nonsense\r\n\r\n");
    ask("GET / HTTP/9.9\r\n\r\n");
    ask("GET /small\r\n");
    ask(&format!("GET /small HTTP/1.1\r\nX: {}\r\n{tail}", "y".repeat(40_000)));
    ask(&format!("{}{}", "GET /small HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3), {
        format!("GET /large HTTP/1.1\r\n{tail}")
    }));
    for path in FEATURES {
        ask(&format!("GET {path} HTTP/1.1\r\n{tail}"));
        ask(&format!("GET {path} HTTP/1.0\r\n\r\n"));
        ask(&format!("HEAD {path} HTTP/1.1\r\n{tail}"));
    }
    ask("GET /once HTTP/1.1\r\nHost: test\r\n\r\n");
    ask("GET /small HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /small HTTP/1.0\r\n\r\n");
    ask(&format!("POST /linger HTTP/1.1\r\nContent-Length: 9\r\n{tail}unread..."));
    corpus
}

/// Directives that use other modules of nginx: subrequests, filters, the cache, limits.
const FEATURES: [&str; 17] = [
    "/included.shtml",
    "/framed/small",
    "/framed/large",
    "/empty",
    "/missing/page",
    "/handled",
    "/followed",
    "/once",
    "/linger",
    "/chunks/large",
    "/streamed/large",
    "/streamed/packed",
    "/cached/large",
    "/cached/large",
    "/cached/packed",
    "/limited/large",
    "/mirrored/small",
];

const CORPUS_SERVER: &str = "
    location = /included.shtml { ssi on; ssi_types text/plain; }
    location /framed/ { alias html/; addition_types text/plain;
                        add_before_body /small; add_after_body /empty-not; }
    location = /empty-not { return 200 \"end\\n\"; }
    location = /empty { return 204; }
    location /missing/ { error_page 404 =418 /teapot; }
    location = /teapot { return 418 \"short and stout\\n\"; }
    location = /handled { proxy_pass http://127.0.0.1:{port}/none; proxy_intercept_errors on;
                          error_page 404 = @named; }
    location @named { return 200 \"named\\n\"; }
    location = /followed { post_action /small; return 200 \"first\\n\"; }
    location = /once { keepalive_requests 1; return 200 \"once\\n\"; }
    location = /linger { lingering_close always; lingering_timeout 1s; return 200 \"bye\\n\"; }
    location /chunks/ { alias html/; sendfile_max_chunk 10k; }
    location /limited/ { alias html/; limit_rate 400k; limit_rate_after 100k; }
    location /streamed/ { proxy_pass http://127.0.0.1:{port}/; proxy_buffering off; }
    location = /packed { gzip on; gzip_types *; gzip_min_length 1; alias html/packed.txt; }
    location /cached/ { proxy_pass http://127.0.0.1:{port}/; proxy_cache pages;
                        proxy_cache_valid 1m; add_header X-Cache $upstream_cache_status; }
    location /mirrored/ { alias html/; mirror /sink; }
    location /dir/ { autoindex on; }
    location /packed.txt { gzip on; gzip_min_length 1; }
    location /echo { client_max_body_size 1m; proxy_pass http://127.0.0.1:{port}/sink; }
    location /sink { return 200 \"$request_method $http_content_length\\n\"; }
    location /closed { return 444; }
    location /moved { return 301 /small; }
    absolute_redirect off; error_page 404 /small;";

/// Returns an answer without the parts that may differ between two runs of one server.
fn masked(answer: &[u8], port: u16) -> String {
    let text = String::from_utf8_lossy(answer).replace(&port.to_string(), "PORT");
    let lines = text.split("\r\n").map(|line| {
        let boundary = line.find("boundary=").map_or(line, |at| &line[..at]);
        let changing = line.starts_with("Date: ") || line.starts_with("--0000");
        if changing { "MASKED" } else { boundary }
    });
    lines.collect::<Vec<_>>().join("\r\n")
}

fn corpus_server(module: bool) -> Nginx {
    let http = "proxy_cache_path {dir}/cache keys_zone=pages:1m;".to_string();
    let setup = Setup { module, server: CORPUS_SERVER.to_string(), http, ..Setup::module() };
    let nginx = Nginx::start(&setup).unwrap();
    let y2k = std::time::UNIX_EPOCH + std::time::Duration::from_secs(946_684_800);
    let included = "<!--#include virtual=\"/small\" -->, <!--#include virtual=\"/large\" -->.";
    let files: [(&str, Vec<u8>); 6] = [
        ("included.shtml", included.into()),
        ("index.html", b"<p>hello\n".to_vec()),
        ("small", b"a small file\n".to_vec()),
        ("large", content(200_000)),
        ("packed.txt", "over and over ".repeat(2_000).into_bytes()),
        ("dir/inside", b"x".to_vec()),
    ];
    for (name, content) in files {
        nginx.place(name, &content).unwrap();
        let path = nginx.directory().join("html").join(name);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(y2k).unwrap();
    }
    nginx
}

#[test]
fn answers_are_those_of_stock_nginx_byte_for_byte() {
    let (stock, ours) = (corpus_server(false), corpus_server(true));
    for request in corpus() {
        let expected = http::exchange(stock.port(), &request).unwrap();
        let answer = http::exchange(ours.port(), &request).unwrap();
        let asked = String::from_utf8_lossy(&request[..request.len().min(200)]).into_owned();
        assert_eq!(answer.len(), expected.len(), "{asked}");
        assert!(masked(&answer, ours.port()) == masked(&expected, stock.port()), "{asked}");
    }
    assert_eq!(ours.complaints(), [""; 0]);
}

#[test]
fn lightweight_sockets_serve_and_fall_back_where_nginx_wants_a_descriptor() {
    let server = "listen 0.0.0.0:{port2}; location = /tcp { return 200 $tcpinfo_rtt; }";
    let plain = Nginx::start(&Setup::module()).unwrap();
    let body = |nginx: &Nginx, path: &str| {
        let mut client = Client::connect(nginx.port()).unwrap();
        String::from_utf8(client.get(path).unwrap().body).unwrap()
    };
    let socket = || {
        let said = body(&plain, "/socket");
        said.split(' ').next_back().unwrap().to_string()
    };
    assert_lightweight(3, "lightweight", socket);
    let asking = Setup { server: server.to_string(), ..Setup::module() };
    let asking = Nginx::start(&asking).unwrap();
    assert!(body(&asking, "/socket").ends_with(" descriptor"));
    assert!(body(&asking, "/tcp").parse::<u64>().unwrap() > 0);
    assert!(asking.log().contains("a variable asks"), "{}", asking.log());
}

#[test]
fn a_reader_of_one_byte_gets_it_all() {
    let nginx = Nginx::start(&Setup::module()).unwrap();
    let content = content(3_000);
    nginx.place("f", &content).unwrap();
    let mut client = Client::connect(nginx.port()).unwrap();
    client.send("GET /f HTTP/1.0\r\n\r\n").unwrap();
    let mut all = Vec::new();
    let mut one = [0];
    while client.stream().read(&mut one).unwrap() == 1 {
        all.push(one[0]);
    }
    assert!(all.ends_with(&content));
}
