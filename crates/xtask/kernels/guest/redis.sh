#!/bin/bash
# redis over shared memory: server and clients run, unmodified, under `fable run`; each value is
# the one that was set, and no connection stays with TCP. Takes the path of `fable`.
set -u
fable=$1
count=200
server=$TMPDIR/server
client=$TMPDIR/client
benchmark=$TMPDIR/benchmark
fail() {
    echo "FAILED: $1"
    cat "$TMPDIR/log" "$TMPDIR"/{set,get} | tail -n 30
    # Where the processes wait.
    for process in $(pidof redis-server redis-cli redis-benchmark); do
        echo "process $process: $(tr '\0' ' ' < /proc/$process/cmdline)"
        for thread in /proc/$process/task/*; do
            echo "thread ${thread##*/}: system call $(cat "$thread/syscall")"
        done
    done
    exit 1
}
# A client with its time: $1 is the file for what it counts.
run() {
    local statistics=$1
    shift
    timeout 200 "$fable" run --statistics="$statistics" "$@"
}
"$fable" run --statistics="$server" redis-server --port 6390 --save "" --dir "$TMPDIR" \
    > "$TMPDIR/log" 2>&1 &
pid=$!
for ((attempt = 0; attempt < 8; attempt++)); do
    timeout 5 redis-cli -p 6390 ping && break
    sleep 0.5
done
[ $attempt -lt 8 ] || fail "redis-server does not answer"

for ((key = 0; key < count; key++)); do echo "SET key$key value-$key-$((key * 7919))"; done |
    run "$client" redis-cli -p 6390 > "$TMPDIR/set" || fail "redis-cli with SET: $?"
[ "$(grep -c '^OK$' "$TMPDIR/set")" = $count ] || fail "not every SET is answered by OK"
echo "$count keys set in $SECONDS s"
for ((key = 0; key < count; key++)); do echo "GET key$key"; done |
    run "$client" redis-cli -p 6390 > "$TMPDIR/get" || fail "redis-cli with GET: $?"
for ((key = 0; key < count; key++)); do echo "value-$key-$((key * 7919))"; done |
    cmp - "$TMPDIR/get" || fail "GET has other values"
echo "and got after $SECONDS s"
run "$benchmark" redis-benchmark -p 6390 -c 4 -n 1000 -t set,get -d 512 --csv ||
    fail "redis-benchmark: $?"

timeout 10 redis-cli -p 6390 shutdown nosave
wait $pid
cat "$server" "$client" "$benchmark"
grep -q 'connected' "$client" || fail "redis-cli did not use shared memory"
grep -q 'connected' "$benchmark" || fail "redis-benchmark did not use shared memory"
grep -q 'accepted' "$server" || fail "redis-server did not use shared memory"
exit 0
