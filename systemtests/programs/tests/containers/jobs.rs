//! The main job of each program, as a shell script and what it has to print.

/// One program's job. In a container only its own network exists, so ports are free.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) script: &'static str,
    pub(crate) wanted: &'static [&'static str],
    /// What it prints instead where there is no `/proc`, and io_uring is allowed.
    pub(crate) in_sandbox: Option<&'static [&'static str]>,
}

/// Asks an HTTP server on the port in `$port` until it answers.
macro_rules! ask {
    ($scheme:literal) => {
        concat!(
            "curl -sk --retry 20 --retry-delay 1 --retry-all-errors ",
            $scheme,
            "://127.0.0.1:$port/f; "
        )
    };
}

pub(crate) const JOBS: &[Job] = &[
    Job {
        name: "iobench doctor",
        script: "$B/iobench doctor; echo status $?",
        wanted: &["driver: epoll, because no io_uring", "status 0"],
        in_sandbox: Some(&["driver: uring", "status 0"]),
    },
    Job {
        name: "iobench compare",
        script: "$B/iobench compare --quick --rounds 1 --duration 100ms --connections 16 \
                 --cores 1; echo status $?",
        wanted: &["epoll-partitioned", "megapipe", "status 0"],
        in_sandbox: Some(&["mount /proc", "status 1"]),
    },
    Job {
        name: "iobench serve and load",
        script: "$B/iobench serve --server megapipe --port 7000 & \
                 sleep 1; \
                 $B/iobench load --connect 127.0.0.1:7000 --connections 8 --duration 200ms; \
                 echo status $?; kill $!; wait $!; echo server $?",
        wanted: &["status 0", "server 0"],
        in_sandbox: Some(&["cannot open /proc/stat", "mount /proc", "server 0"]),
    },
    Job {
        name: "megapipe-rt",
        script: "$B/examples/echo 127.0.0.1:7000 & exchange 7000 'some bytes'; \
                 kill $!; wait $!; echo status $?",
        wanted: &["some bytes", "status 0"],
        in_sandbox: None,
    },
    Job {
        name: "tls-proxy",
        script: concat!(
            "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out chain -days 1 -subj /CN=a \
             -addext basicConstraints=CA:FALSE \
             -config /dev/null 2>/dev/null; chmod 600 key; echo content >f; ",
            "python3 -m http.server --bind 127.0.0.1 8000 & port=8443; ",
            "$B/tls-proxy --listen 127.0.0.1:8443 --to 127.0.0.1:8000 --certificate chain \
             --key key & ",
            ask!("https"),
            "kill $!; wait $!; echo status $?"
        ),
        wanted: &["content\n", "status 0"],
        in_sandbox: None,
    },
    Job {
        name: "fabled and fable",
        script: "mkdir -m 700 d && $B/fabled --socket /tmp/d/s & \
                 until [ -S d/s ]; do sleep 0.1; done; FABLE_SOCKET=/tmp/d/s $B/fable ls; \
                 echo status $?; kill $!; wait $!; echo daemon $?",
        wanted: &["status 0", "daemon 0"],
        in_sandbox: None,
    },
    Job {
        name: "fable run",
        script: concat!(
            "echo content >f; port=8000; ",
            "$B/fable run python3 -m http.server --bind 127.0.0.1 8000 & ",
            ask!("http"),
            "$B/fable run --statistics curl -sS http://127.0.0.1:8000/f"
        ),
        wanted: &["content\n", "connected 1"],
        in_sandbox: None,
    },
    Job {
        name: "mtcp run",
        script: "printf '%s\\n' '[device]' 'kind = \"tap\"' 'interface = \"mtcp0\"' '[address]' \
                 'list = [\"10.9.0.2/24\"]' >m.toml; \
                 $B/mtcp run --config m.toml curl http://10.9.0.1/; echo status $?",
        wanted: &["mtcp: cannot open /dev/net/tun: ", "run as root, load the module"],
        in_sandbox: Some(&[
            "mtcp: cannot start the stack: /proc/self/fd: No such",
            "; mount /proc",
        ]),
    },
    Job {
        name: "nginx",
        script: concat!(
            "echo content >f; port=8000; echo '",
            "load_module '$A/nginx/ngx_megapipe_module.so'; daemon off; pid /tmp/pid; \
             error_log stderr notice; worker_processes 2; events { use megapipe; } \
             http { access_log off; client_body_temp_path /tmp/b; proxy_temp_path /tmp/p; \
             fastcgi_temp_path /tmp/g; uwsgi_temp_path /tmp/u; scgi_temp_path /tmp/s; \
             server { listen 127.0.0.1:8000; root /tmp; } }' >conf; ",
            "nginx -c /tmp/conf -e stderr & ",
            ask!("http"),
            "kill $!; wait $!; echo status $?"
        ),
        wanted: &["content\n", "status 0"],
        in_sandbox: None,
    },
    Job {
        name: "memcached",
        script: "$A/memcached/megapipe/memcached -t 2 -l 127.0.0.1 -v -u root & \
                 exchange 11211 'set a 0 0 5\r\nhello\r\nget a\r\nquit\r\n'; \
                 kill $!; wait $!; echo status $?",
        wanted: &["STORED", "hello", "END"],
        in_sandbox: None,
    },
];
