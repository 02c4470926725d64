#!/bin/bash
# redis over shared memory: server and clients run, unmodified, under `fable run`; each value is
# the one that was set, and no connection stays with TCP. Takes the path of `fable`.
set -u
fable=$1
count=500
server=$TMPDIR/server
client=$TMPDIR/client
benchmark=$TMPDIR/benchmark
fail() {
    echo "FAILED: $1"
    cat "$TMPDIR/log"
    exit 1
}
"$fable" run --statistics="$server" redis-server --port 6390 --save "" --dir "$TMPDIR" \
    > "$TMPDIR/log" 2>&1 &
pid=$!
for _ in $(seq 100); do
    redis-cli -p 6390 ping > /dev/null 2>&1 && break
    sleep 0.1
done

for ((key = 0; key < count; key++)); do echo "SET key$key value-$key-$((key * 7919))"; done |
    "$fable" run --statistics="$client" redis-cli -p 6390 > "$TMPDIR/set" || fail "SET: $?"
[ "$(grep -c '^OK$' "$TMPDIR/set")" = $count ] || fail "not every SET is answered by OK"
for ((key = 0; key < count; key++)); do echo "GET key$key"; done |
    "$fable" run --statistics="$client" redis-cli -p 6390 > "$TMPDIR/get" || fail "GET: $?"
for ((key = 0; key < count; key++)); do echo "value-$key-$((key * 7919))"; done |
    cmp - "$TMPDIR/get" || fail "GET has other values"
"$fable" run --statistics="$benchmark" \
    redis-benchmark -p 6390 -c 4 -n 2000 -t set,get -d 512 --csv ||
    fail "redis-benchmark: $?"

redis-cli -p 6390 shutdown nosave
wait $pid
cat "$server" "$client" "$benchmark"
grep -q 'connected' "$client" || fail "redis-cli did not use shared memory"
grep -q 'connected' "$benchmark" || fail "redis-benchmark did not use shared memory"
grep -q 'accepted' "$server" || fail "redis-server did not use shared memory"
exit 0
