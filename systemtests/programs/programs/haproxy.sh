# haproxy before nginx: connections on both of its sides. If haproxy has a network of its own, nginx
# stays on the kernel's side of it, because a stack is its process's.
NEEDS="haproxy nginx curl"
CASES="small large parallel"
QUICK_CASES=small
BACK=$ADDRESS
BACK_SERVER=$SERVER
[ "$ADDRESS" = 10.10.0.2 ] && BACK=10.10.0.1 BACK_SERVER=

prepare() {
    mkdir -p www && random 3000 www/small && random 20000000 www/large
    cat > nginx.conf <<CONF
user root; worker_processes 1; daemon off; pid $PWD/pid; error_log $PWD/errors;
events { worker_connections 256; }
http { access_log off; server { listen $BACK:8081; root $PWD/www; } }
CONF
    cat > haproxy.conf <<CONF
global
    maxconn 100
defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
frontend in
    bind $ADDRESS:$PORT
    default_backend out
backend out
    server one $BACK:8081
CONF
}

server() {
    $BACK_SERVER nginx -p "$PWD" -c "$PWD/nginx.conf" & back=$!
    (ADDRESS=$BACK && await 8081)
    $SERVER haproxy -f haproxy.conf -db & front=$!
    trap 'kill -USR1 $front; kill -QUIT $back; wait' TERM
    wait
}

fetch() { $CLIENT curl -sf -o "got.$2" "http://$ADDRESS:$PORT/$1" && same "got.$2" "www/$1"; }

small() { for i in $(seq 10); do fetch small 1 || return; done; }
large() { fetch large 1; }

# Eight clients at once, or one with eight connections.
parallel() {
    if take_turns; then
        for i in $(seq 8); do urls="$urls -o got.$i http://$ADDRESS:$PORT/large"; done
        $CLIENT curl -sf --parallel --parallel-immediate $urls || return
        for i in $(seq 8); do same "got.$i" www/large; done
        return
    fi
    for i in $(seq 8); do fetch large "$i" & pids="$pids $!"; done
    for one in $pids; do wait "$one" || return; done
}
