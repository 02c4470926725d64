# redis: the same data whichever way they came, pipelines, subscribers, many clients.
NEEDS="redis-server redis-cli redis-benchmark"
CASES="digest large_value pipeline benchmark subscriber blocked_client killed_client"
QUICK_CASES="digest benchmark"

prepare() {
    for i in $(seq 300); do printf 'SET key%s value%s\nLPUSH list item%s\n' $i $i $i; done > filling
}

server() {
    exec $SERVER redis-server --bind "$ADDRESS" --port "$PORT" --save "" --protected-mode no
}

cli() { $CLIENT redis-cli -h "$ADDRESS" -p "$PORT" "$@"; }
# The same in place of the shell, so that a signal ends it.
become_cli() { exec $CLIENT redis-cli -h "$ADDRESS" -p "$PORT" "$@"; }
plain() { redis-cli -h "$ADDRESS" -p "$PORT" "$@"; }
# A client beside another one.
second() { if take_turns; then plain "$@"; else cli "$@"; fi; }

digest() {
    plain flushall && plain < filling > /dev/null && plain debug digest > plain.digest || return
    cli flushall && cli < filling > /dev/null && cli debug digest > digest || return
    same digest plain.digest
}

large_value() {
    random 20000000 value && cli -x set large < value || return
    cli get large | head -c 20000000 > got && same got value
}

pipeline() {
    for i in $(seq 20000); do printf 'SET pipe%s %s\r\n' "$i" "$i"; done > commands
    cli --pipe < commands > report && grep -q "errors: 0, replies: 20000" report
}

benchmark() {
    count=10000; [ -n "$QUICK" ] && count=2000
    $CLIENT redis-benchmark -h "$ADDRESS" -p "$PORT" -c 50 -n $count -q \
        -t get,set,lpush,lrange_100 > report || return
    ! grep -iE "error|reset" report
}

# A subscriber gets every message in order.
subscriber() {
    become_cli subscribe news > heard & listener=$!
    until plain pubsub numsub news | grep -qx 1; do sleep 0.02; done
    for i in $(seq 200); do echo "publish news item$i"; done | second > /dev/null
    until grep -q item200 heard; do sleep 0.02; done
    kill $listener
    wait $listener
    [ "$(grep -c '^item' heard)" = 200 ]
}

# A client that waits for an element gets it from another one.
blocked_client() {
    become_cli blpop queue 20 > popped & waiting=$!
    until plain info clients | grep -q "blocked_clients:1"; do sleep 0.02; done
    second rpush queue here > /dev/null && wait $waiting && grep -qx here popped
}

# The server goes on after a client is killed in mid-command.
killed_client() {
    become_cli subscribe x > /dev/null &
    until plain pubsub numsub x | grep -qx 1; do sleep 0.02; done
    plain client kill type pubsub > /dev/null; second ping | grep -qx PONG
}
