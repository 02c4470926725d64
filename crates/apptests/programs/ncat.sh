# ncat as server and client, with a program for each connection.
NEEDS="ncat"
CASES="executed discarded client_closes_first"
QUICK_CASES=executed

# More than fits into the pipes to and from the program would be a deadlock of ncat's own.
prepare() { random 5000 data; }

server() { exec $SERVER ncat -k -l "$ADDRESS" "$PORT" -e /bin/cat; }

executed() {
    for i in $(seq 5); do
        # ncat drops what the program answers after the end of the input.
        (cat data; sleep 0.2) | $CLIENT ncat "$ADDRESS" "$PORT" > got && same got data || return
    done
}

discarded() { $CLIENT ncat --send-only "$ADDRESS" "$PORT" < data; }

client_closes_first() {
    (head -c 10 data; sleep 0.3) | timeout 10 $CLIENT ncat "$ADDRESS" "$PORT" > got || return
    head -c 10 data > ten && same got ten
}
