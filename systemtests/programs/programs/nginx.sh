# nginx with two workers: files of all sizes, many clients, a proxy's connections to another server.
# With a network of its own it is one process, because a stack is its process's.
NEEDS="nginx curl wrk"
CASES="small large upload_refused parallel keep_alive proxied"
QUICK_CASES="small large keep_alive"
STOP=QUIT

prepare() {
    mkdir -p www && random 3000 www/small && random 30000000 www/large
    [ "$ADDRESS" = 10.10.0.2 ] && processes="master_process off;"
    cat > nginx.conf <<CONF
$processes
user root; worker_processes 2; daemon off; pid $PWD/pid; error_log $PWD/errors;
events { worker_connections 256; }
http { access_log off; sendfile on; tcp_nopush on; client_body_temp_path $PWD/body;
upstream self { server $ADDRESS:$PORT; keepalive 4; }
server { listen $ADDRESS:$PORT; root $PWD/www;
location /proxied/ { proxy_pass http://self/; proxy_http_version 1.1;
proxy_set_header Connection ""; proxy_temp_path $PWD/proxy; } } }
CONF
}

server() { exec $SERVER nginx -p "$PWD" -c "$PWD/nginx.conf"; }

fetch() { $CLIENT curl -sf -o "got.$2" "http://$ADDRESS:$PORT/$1" && same "got.$2" "www/${1##*/}"; }

small() { for i in 1 2 3; do fetch small 1 || return; done; }
large() { fetch large 1; }
proxied() { fetch proxied/small 1 && fetch proxied/large 2; }

upload_refused() {
    status=$($CLIENT curl -s -o answer -w '%{http_code}' -F "file=@www/large" \
        "http://$ADDRESS:$PORT/small")
    [ "$status" = 413 ] || fail "status $status"
}

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

keep_alive() {
    $CLIENT wrk -t1 -c50 -d1 --timeout 10s "http://$ADDRESS:$PORT/small" > report || return
    cat report
    ! grep -E "Socket errors|Non-2xx" report
}
