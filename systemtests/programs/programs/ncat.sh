# ncat as server and client, with a program for each connection.
NEEDS="ncat"
CASES="executed discarded client_closes_first"
QUICK_CASES=executed

# More than fits into the pipes to and from the program would be a deadlock of ncat's own.
prepare() { random 5000 data; }

server() { exec $SERVER ncat -k -l "$ADDRESS" "$PORT" -e /bin/cat; }

# Ends the input when all has come back: ncat drops what the program answers after it.
through() {
    : > got
    (cat "$1"; until cmp -s "$1" got; do sleep 0.02; done) | $CLIENT ncat "$ADDRESS" "$PORT" > got
}

executed() {
    for i in $(seq 5); do
        through data && same got data || return
    done
}

discarded() { $CLIENT ncat --send-only "$ADDRESS" "$PORT" < data; }

client_closes_first() { head -c 10 data > ten && through ten && same got ten; }
