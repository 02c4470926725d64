# A Go program (etcd), which the library cannot help: it has to be named, and to run plainly.
NEEDS="etcd curl"
CASES="named served"
QUICK_CASES=named

prepare() { :; }

server() {
    exec $SERVER "$(command -v etcd)" --data-dir data --listen-client-urls "http://$ADDRESS:$PORT" \
        --advertise-client-urls "http://$ADDRESS:$PORT" --listen-peer-urls "http://127.0.0.1:8081" \
        --log-level error
}

named() { [ -z "$SERVER" ] || grep -q "is a Go program" server.log; }
served() { $CLIENT curl -sf "http://$ADDRESS:$PORT/health" | grep -q '"health":"true"'; }
