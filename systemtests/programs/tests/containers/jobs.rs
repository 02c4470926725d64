//! The main job of each program, as a shell script and what it has to print.

/// One program's job. In a container only its own network exists, so ports are free.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    /// Before a program stands `$S` if it is a server, and `$C` if it is not: empty, or a command
    /// that runs it.
    pub(crate) script: &'static str,
    pub(crate) wanted: &'static [&'static str],
    /// What it prints instead where there is no `/proc`, and io_uring is allowed.
    pub(crate) in_sandbox: Option<&'static [&'static str]>,
    /// What it prints instead where nothing is barred.
    pub(crate) unrestricted: Option<&'static [&'static str]>,
}

/// Asks an HTTP server on the port in `$port` as soon as the last process listens there.
macro_rules! ask {
    ($scheme:literal) => {
        concat!(
            "up $port; curl -sSk --max-time 10 ",
            $scheme,
            "://127.0.0.1:$port/f >reply 2>&1 || gone; cat reply; "
        )
    };
}

/// Makes the network of a stack and its settings.
macro_rules! mtcp {
    () => {
        "ip tuntap add mtcp0 mode tap; ip addr add 10.9.0.1/24 dev mtcp0; \
         ip link set mtcp0 up; echo content >f; \
         printf '%s\\n' '[device]' 'kind = \"tap\"' 'interface = \"mtcp0\"' '[address]' \
         'list = [\"10.9.0.2/24\"]' >m.toml; "
    };
}

pub(crate) const JOBS: &[Job] = &[
    Job {
        name: "iobench doctor",
        script: "$C $B/iobench doctor; echo status $?",
        wanted: &["driver: epoll, because no io_uring", "status 0"],
        in_sandbox: Some(&["driver: uring", "status 0"]),
        unrestricted: Some(&["driver: ", "status 0"]),
    },
    Job {
        name: "iobench compare",
        script: "$C $B/iobench compare --quick --rounds 1 --duration 100ms --connections 16 \
                 --cores 1; echo status $?",
        wanted: &["epoll-partitioned", "megapipe", "status 0"],
        in_sandbox: Some(&["mount /proc", "status 1"]),
        unrestricted: None,
    },
    Job {
        name: "iobench serve and load",
        script: "$S $B/iobench serve --server megapipe --bind 7000 & \
                 up 7000; \
                 $C $B/iobench load --connect 127.0.0.1:7000 --connections 8 --duration 200ms; \
                 s=$?; echo status $s; (exit $s) || gone; kill $!; wait $!; echo server $?",
        wanted: &["status 0", "server 0"],
        in_sandbox: Some(&["cannot open /proc/stat", "mount /proc", "server 0"]),
        unrestricted: None,
    },
    Job {
        name: "megapipe-rt",
        script: "$S $B/examples/echo 127.0.0.1:7000 & up 7000; exchange 7000 'some bytes' || gone; \
                 kill $!; wait $!; echo status $?",
        wanted: &["some bytes", "status 0"],
        in_sandbox: None,
        unrestricted: None,
    },
    Job {
        name: "tls-proxy",
        script: concat!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key \
             -out chain -days 1 -subj /CN=a -addext basicConstraints=CA:FALSE \
             -config /dev/null 2>/dev/null; chmod 600 key; echo content >f; ",
            "python3 -m http.server --bind 127.0.0.1 8000 & up 8000; port=8443; ",
            "$S $B/tls-proxy --listen 127.0.0.1:8443 --to 127.0.0.1:8000 --certificate chain \
             --key key & ",
            ask!("https"),
            "kill $!; wait $!; echo status $?"
        ),
        wanted: &["content\n", "status 0"],
        in_sandbox: None,
        unrestricted: None,
    },
    Job {
        name: "fabled and fable",
        script: "mkdir -m 700 d; $S $B/fabled --socket /tmp/d/s & \
                 holds [ -S d/s ]; FABLE_SOCKET=/tmp/d/s $C $B/fable ls; \
                 echo status $?; kill $!; wait $!; echo daemon $?",
        wanted: &["status 0", "daemon 0"],
        in_sandbox: None,
        unrestricted: None,
    },
    Job {
        name: "fable run",
        script: concat!(
            "echo content >f; port=8000; ",
            "$S $B/fable run python3 -m http.server --bind 127.0.0.1 8000 & ",
            ask!("http"),
            // The library opens its own socket after the listener: then shared memory is offered.
            "[ ! -e /proc/net/unix ] || \
             timeout 5 bash -c 'until grep -q fable-preload /proc/net/unix; do sleep 0.03; done'; ",
            "$C $B/fable run --statistics curl -sS http://127.0.0.1:8000/f"
        ),
        wanted: &["content\n", "connected 1"],
        in_sandbox: None,
        unrestricted: None,
    },
    Job {
        name: "mtcp run",
        script: "printf '%s\\n' '[device]' 'kind = \"tap\"' 'interface = \"mtcp0\"' '[address]' \
                 'list = [\"10.9.0.2/24\"]' >m.toml; \
                 $C $B/mtcp run --config m.toml curl http://10.9.0.1/; echo status $?",
        wanted: &["mtcp: cannot open /dev/net/tun: ", "run as root, load the module"],
        in_sandbox: Some(&[
            "mtcp: cannot start the stack: /proc/self/fd: No such",
            "; mount /proc",
        ]),
        unrestricted: None,
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
            "$S nginx -c /tmp/conf -e stderr & ",
            ask!("http"),
            "kill $!; wait $!; echo status $?"
        ),
        wanted: &["content\n", "status 0"],
        in_sandbox: None,
        unrestricted: None,
    },
    Job {
        name: "memcached",
        script: "$S $A/memcached/megapipe/memcached -t 2 -l 127.0.0.1 -v -u root & \
                 up 11211; exchange 11211 'set a 0 0 5\r\nhello\r\nget a\r\nquit\r\n' || gone; \
                 kill $!; wait $!; echo status $?",
        wanted: &["STORED", "hello", "END"],
        in_sandbox: None,
        unrestricted: None,
    },
];

/// Jobs of programs that containers with the usual limits cannot run, or that need more files:
/// `$X` is their directory.
pub(crate) const MORE: &[Job] = &[
    Job {
        name: "iobench compare, short",
        script: "$C $B/iobench compare --servers epoll,megapipe --transactions 1 --quick \
                 --rounds 1 --duration 100ms --connections 4 --cores 1; echo status $?",
        wanted: &["megapipe", "status 0"],
        in_sandbox: None,
        unrestricted: None,
    },
    Job {
        name: "iobench serve, epoll",
        script: "$S $B/iobench serve --server megapipe-epoll --bind 7000 & up 7000; \
                 exchange 7000 'some bytes' || gone; kill $!; wait $!; echo server $?",
        wanted: &["some bytes", "server 0"],
        in_sandbox: None,
        unrestricted: None,
    },
    Job {
        name: "http_hello",
        script: concat!(
            "port=8000; $S $X/http_hello 8000 & ",
            ask!("http"),
            "kill $!; wait $!; echo status $?"
        ),
        wanted: &["hello!\n"],
        in_sandbox: None,
        unrestricted: None,
    },
    Job {
        name: "flows",
        script: "mkdir -m 700 d; export FABLE_SOCKET=/tmp/d/s; \
                 $B/fabled --socket /tmp/d/s --host here & holds [ -S d/s ]; \
                 $S $B/faults-end server fable://flows/1 >ready & holds [ -s ready ]; \
                 $C $B/faults-end client fable://flows/1; echo status $?; \
                 $B/faults-end client fable://flows/1 stop && wait $! && echo server 0",
        wanted: &["status 0", "server 0"],
        in_sandbox: None,
        unrestricted: None,
    },
    Job {
        name: "mtcp run, server",
        script: concat!(
            mtcp!(),
            "$S $B/mtcp run --config m.toml python3 -m http.server --bind 10.9.0.2 8000 & \
             up 8000 10.9.0.2; curl -sSk --max-time 30 http://10.9.0.2:8000/f || gone; \
             kill $!; wait $!; true"
        ),
        wanted: &["content\n"],
        in_sandbox: None,
        unrestricted: None,
    },
    Job {
        name: "mtcp run, client",
        script: concat!(
            mtcp!(),
            "python3 -m http.server --bind 10.9.0.1 8000 & up 8000 10.9.0.1; \
             $C $B/mtcp run --config m.toml curl -sSk --max-time 30 http://10.9.0.1:8000/f; \
             echo status $?"
        ),
        wanted: &["content\n", "status 0"],
        in_sandbox: None,
        unrestricted: None,
    },
];
