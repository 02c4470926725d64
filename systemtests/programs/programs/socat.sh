# socat, which forks for each connection and becomes another program with it.
NEEDS="socat"
CASES="copied nofork shell many"
QUICK_CASES="copied nofork"

prepare() { random 3000000 data; head -c 5000 data > short; }

listen() { $SERVER socat "TCP-LISTEN:$1,bind=$ADDRESS,fork,reuseaddr" "$2" & pids="$pids $!"; }

# Three servers: socat copies, or the executed program has the connection itself.
server() {
    trap 'kill $pids; wait' TERM
    # The first one gets the network if only one can.
    listen "$PORT" EXEC:cat; (await "$PORT")
    listen 8081 EXEC:cat,nofork; listen 8082 "SYSTEM:tr a-z A-Z"
    wait
}

through() { $CLIENT socat -t 10 - "TCP:$ADDRESS:$1" < "$2" > "got$3"; }

copied() { through "$PORT" data && same got data; }
nofork() {
    await 8081 || return
    for i in $(seq 40); do through 8081 short "$i" && same "got$i" short || return; done
}
shell() { await 8082 && echo hello > word && through 8082 word && grep -qx HELLO got; }
many() { for i in $(seq 30); do through "$PORT" short "$i" && same "got$i" short || return; done; }
