#!/bin/sh
# Runs redis' own test suite on the unmodified and on the adapted server, and compares them:
#
#   suite.sh DIRECTORY [UNIT ...]
#
# DIRECTORY has the built trees `stock` and `megapipe`; a unit is a name such as unit/multi. Fails
# if the adapted server fails a test that the unmodified one passes and suite-differences.txt does
# not list, or passes a listed one. Results of the unmodified server are kept in DIRECTORY/results
# until it is built again.
set -eu
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
directory=$(cd "$1" && pwd)
shift
results=$directory/results

# A test has failed if it fails this often: some depend on time, on the unmodified server as well.
attempts=3
# Units at once. They mostly sleep.
at_once=4
limit_seconds=5400
# It feeds random bytes to RESTORE for minutes; they do not reach the connection layer.
left_out=integration/corrupt-dump-fuzzer

# Runs units on a tree; prints `UNIT: TEST` for each failure, and the log's last lines if the suite
# did not come to its end.
run() {
    tree=$1 log=$results/$1.log
    shift
    options=
    [ "$tree" = stock ] || options='--config megapipe yes'
    [ "$tree" != stock ] || unset MEGAPIPE_DRIVER
    [ -n "${MEGAPIPE_DRIVER-}" ] || unset MEGAPIPE_DRIVER
    for unit; do options="$options --single $unit"; done
    (
        cd "$directory/$tree"
        timeout --kill-after=5 $limit_seconds ./runtest --durable --clients $at_once \
            --skipunit $left_out $options </dev/null >"$log" 2>&1
    ) || true
    sed -i 's/\x1b\[[0-9;]*m//g' "$log"
    sed -n -E 's/^\*\*\* \[[a-z]+\]: (.*) in tests\/(.*)\.tcl.*/\2: \1/p' "$log" | sort -u
    grep -q '^ *The End' "$log" || echo "no unit: the suite has not come to its end, see $log"
}

# As `run`, and repeats the units with failures; prints what has failed each time.
run_repeatedly() {
    tree=$1 failed=$results/$1.failed
    run "$@" >"$failed"
    grep -c '^\[ok\]' "$results/$tree.log" >"$results/$tree.passed" || true
    for attempt in $(seq 2 $attempts); do
        units=$(sed -n 's/^\([a-z][^ ]*\/[^ ]*\): .*/\1/p' "$failed" | sort -u)
        [ -n "$units" ] && ! grep -q '^no unit' "$failed" || break
        run "$tree" $units >"$failed.again"
        comm -12 "$failed" "$failed.again" >"$failed.both"
        mv "$failed.both" "$failed"
    done
    cat "$failed"
}

mkdir -p "$results"
known=$(cd "$directory/stock" && ./runtest --list-tests)
for unit; do
    echo "$known" | grep -qxF "$unit" || {
        echo "redis' suite has no unit $unit; \`./runtest --list-tests\` lists them" >&2
        exit 1
    }
done
stock=$results/stock$(echo "$*" | tr ' /' '+-')
if [ "$stock" -nt "$directory/stock/src/redis-server" ]; then
    echo "redis: the results of the unmodified server are of an earlier run; delete $stock to" \
        "have them anew"
else
    run_repeatedly stock "$@" >"$stock.new"
    mv "$stock.new" "$stock"
fi
run_repeatedly megapipe "$@" >"$results/megapipe"

for failed in "$stock" "$results/megapipe"; do
    tree=$(basename "$failed" | sed 's/^stock.*/stock/')
    echo "redis $tree: $(cat "$results/$tree.passed") passed, $(wc -l <"$failed") failed each time"
    sed 's/^/    /' "$failed"
done
pinned=$results/pinned
grep -v '^#' "$here/suite-differences.txt" | sort >"$pinned" || true
[ $# = 0 ] || grep -F "$(printf '%s: \n' "$@")" "$pinned" >"$pinned.some" || true
[ $# = 0 ] || mv "$pinned.some" "$pinned"
comm -13 "$stock" "$results/megapipe" >"$results/worse"
if ! cmp -s "$pinned" "$results/worse"; then
    echo "the adapted redis differs from suite-differences.txt: < listed, and passes;" \
        "> not listed, and fails; the output is in $results/megapipe.log" >&2
    diff "$pinned" "$results/worse" >&2 || true
    exit 1
fi
