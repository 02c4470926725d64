# memcached: values of all sizes come back whole.
NEEDS="memcached memccp memccat"
CASES="values many pipelined"
QUICK_CASES="values"

prepare() {
    for size in 1 1000 100000 900000; do random $size "value$size"; done
    for i in $(seq 2000); do printf 'set k%s 0 0 5\r\n%05d\r\n' "$i" "$i"; done > commands
    printf 'quit\r\n' >> commands
}

server() { exec $SERVER memcached -u root -l "$ADDRESS" -U 0 -p "$PORT"; }

values() {
    for size in 1 1000 100000 900000; do
        $CLIENT memccp "--servers=$ADDRESS:$PORT" "value$size" || return
        $CLIENT memccat "--servers=$ADDRESS:$PORT" --file got "value$size" || return
        same got "value$size" || return
    done
}

# Programs that take their network one after the other need more time each.
many() {
    rounds=50; take_turns && rounds=5
    for i in $(seq $rounds); do values || return; done
}

# All commands at once, then all answers.
pipelined() {
    $CLIENT ncat "$ADDRESS" "$PORT" < commands > answers
    [ "$(grep -c STORED answers)" = 2000 ] || fail "$(grep -c STORED answers) answers"
}
