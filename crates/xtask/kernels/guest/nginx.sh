#!/bin/bash
# nginx with a worker for each CPU answers 1,000 requests with keep-alive and 1,000 without: each
# has status 200, its length and its bytes. Takes `stock`, or the driver and the module's path; the
# driver `chosen` is the one that the module chooses, which must be the one that doctor named.
set -u
driver=$1
module=${2-}
doctor=${3-}
dir=$TMPDIR/nginx
requests=1000
mkdir -p "$dir/html" "$dir/temp" "$dir/got"
chmod -R a+rwX "$dir"
fail() {
    echo "FAILED: $1"
    tail -n 20 "$dir/error.log"
    exit 1
}

# Sizes on both sides of what the module sends in one piece or as a file.
sizes=(17 1000 4096 20000 100000)
for number in "${!sizes[@]}"; do
    head -c "${sizes[number]}" /dev/urandom > "$dir/html/$number"
done
{
    [ "$driver" = stock ] || echo "load_module $module;"
    echo "user root; worker_processes $(nproc); pid $dir/nginx.pid;"
    echo "error_log $dir/error.log notice;"
    echo "daemon on; worker_rlimit_nofile 16384;"
    case $driver in
        stock) echo "events { worker_connections 1024; }" ;;
        chosen) echo "events { use megapipe; worker_connections 1024; }" ;;
        *) echo "events { use megapipe; megapipe_driver $driver; worker_connections 1024; }" ;;
    esac
    echo "http { access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;"
    for kind in client_body proxy fastcgi uwsgi scgi; do
        echo "${kind}_temp_path $dir/temp/$kind;"
    done
    [ "$driver" = stock ] || echo 'add_header X-Driver $megapipe_driver;'
    echo "server { listen 127.0.0.1:8080 backlog=4096; root $dir/html; } }"
} > "$dir/nginx.conf"
nginx -p "$dir" -c "$dir/nginx.conf" -e "$dir/error.log" || fail "nginx does not start"
for _ in $(seq 20); do
    curl -sS --max-time 5 -o /dev/null http://127.0.0.1:8080/0 && break
    sleep 0.2
done

if [ "$driver" != stock ]; then
    runs=$(curl -s --max-time 10 -D - -o /dev/null http://127.0.0.1:8080/0 | tr -d '\r' |
        sed -n 's/^X-Driver: //p')
    wanted=$driver
    [ "$driver" = chosen ] && wanted=$("$doctor" doctor | sed -n 's/^driver: \([a-z]*\).*/\1/p')
    [ "$runs" = "$wanted" ] || fail "nginx runs on the driver '$runs' and not on '$wanted'"
fi

# A configuration file of curl, because so many addresses make a long command line.
urls() {
    for ((request = 0; request < requests; request++)); do
        echo "url = \"http://127.0.0.1:8080/$((request % ${#sizes[@]}))?$request\""
        echo "output = \"$dir/got/$request\""
    done
}
urls > "$dir/urls"

ask() {
    local what=$1
    shift
    rm -f "$dir"/got/*
    curl -sS --max-time 200 --parallel --parallel-max 16 -K "$dir/urls" \
        -w '%{http_code} %{num_connects}\n' "$@" > "$dir/statuses" ||
        fail "$what: curl ends with $?"
    local good
    good=$(grep -c '^200 ' "$dir/statuses")
    [ "$good" = $requests ] || fail "$what: $good of $requests requests have status 200"
    # One process instead of a thousand.
    perl -e '
        my ($dir, $requests, $pages) = @ARGV;
        sub bytes { local (@ARGV, $/) = ($_[0]); return scalar <> }
        my @pages = map { bytes("$dir/html/$_") } 0 .. $pages - 1;
        for (0 .. $requests - 1) {
            bytes("$dir/got/$_") eq $pages[$_ % $pages] or die "request $_ has other bytes\n";
        }' "$dir" $requests ${#sizes[@]} || fail "$what: not every answer has the right bytes"
    local connections
    connections=$(awk '{ sum += $2 } END { print sum }' "$dir/statuses")
    echo "$what: $requests answers, $connections connections"
}
ask "with keep-alive"
ask "without keep-alive" -H 'Connection: close'

nginx -p "$dir" -c "$dir/nginx.conf" -e "$dir/error.log" -s quit
for _ in $(seq 100); do
    [ -e "$dir/nginx.pid" ] || break
    sleep 0.1
done
[ -e "$dir/nginx.pid" ] && fail "nginx does not end within 10 s"
if grep -E '\[(alert|emerg|crit)\]|has gone' "$dir/error.log"; then
    fail "the error log has the lines above"
fi
grep 'megapipe: connections' "$dir/error.log"
exit 0
