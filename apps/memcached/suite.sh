#!/bin/sh
# Runs memcached's own test suite on the unmodified and on the adapted server, and compares them:
#
#   suite.sh DIRECTORY [FILE.t ...]
#
# DIRECTORY has the built trees `stock` and `megapipe`. Prints both results of each test, and fails
# if the adapted server fails a test that the unmodified one passes. Results of the unmodified
# server, which do not change and take half of the time, are kept in DIRECTORY/results/stock until
# it is built again, unless they are failures.
set -eu
export LC_ALL=C

# A test has failed if it fails this often: some depend on time, on the unmodified server as well.
attempts=3
# More at once than there are CPUs, because tests mostly sleep. The longest takes about a minute.
at_once=8
limit_seconds=300

# Runs one test; writes `passed`, `passed at try N`, `skipped` or `failed`, then its output.
if [ "$1" = --one ]; then
    directory=$2 tree=$3 test=$4
    result=$directory/results/$tree/$test
    case $test in
    testapp) command=./testapp ;;
    # These tests skip themselves unless the build supports TLS.
    ssl_*) command="env SSL_TEST=1 prove t/$test" ;;
    *) command="prove t/$test" ;;
    esac
    [ "$tree" != stock ] || unset MEGAPIPE_DRIVER
    [ -n "${MEGAPIPE_DRIVER-}" ] || unset MEGAPIPE_DRIVER
    # Settings of a make that started this script do not apply to memcached's.
    unset MAKEFLAGS MFLAGS MAKELEVEL
    cd "$directory/$tree"
    verdict=failed
    for attempt in $(seq $attempts); do
        status=0
        timeout --kill-after=5 $limit_seconds $command </dev/null >"$result.log" 2>&1 || status=$?
        [ $status = 0 ] || continue
        verdict=passed
        [ "$attempt" = 1 ] || verdict="passed at try $attempt"
        ! grep -q '^Result: NOTESTS' "$result.log" || verdict=skipped
        break
    done
    { echo "$verdict"; tail -n 25 "$result.log"; echo "ended with status $status"; } >"$result.new"
    rm "$result.log"
    mv "$result.new" "$result"
    exit
fi

directory=$(cd "$1" && pwd)
shift
tests=$(cd "$directory/stock/t" && ls | grep '\.t$'; echo testapp)
for test; do
    echo "$tests" | grep -qxF "$test" || {
        echo "memcached has no test $test; they are in $directory/stock/t" >&2
        exit 1
    }
done
[ $# = 0 ] || tests=$*

results=$directory/results
mkdir -p "$results/stock"
rm -rf "$results/megapipe"
mkdir "$results/megapipe"
verdict() { head -n 1 "$results/$1/$2" 2>/dev/null || echo failed; }
kept=0
fresh=
for test in $tests; do
    if [ "$results/stock/$test" -nt "$directory/stock/memcached" ] &&
        [ "$(verdict stock "$test")" != failed ]; then
        kept=$((kept + 1))
    else
        fresh="$fresh $test"
    fi
done
[ $kept = 0 ] ||
    echo "memcached: $kept results of the unmodified server are of an earlier run; delete" \
        "$results/stock to have them anew"
# One server after the other, because some tests use memcached's default port.
{
    for test in $fresh; do echo "stock $test"; done
    for test in $tests; do echo "megapipe $test"; done
} | xargs -P $at_once -L 1 sh "$0" --one "$directory"

printf "%-32s %-22s %s\n" "memcached's test" 'as it is' adapted
worse=
for test in $tests; do
    stock=$(verdict stock "$test") adapted=$(verdict megapipe "$test")
    printf "%-32s %-22s %s\n" "$test" "$stock" "$adapted"
    if [ "$stock" != failed ] && [ "$adapted" = failed ]; then
        worse="$worse $test"
        tail -n +2 "$results/megapipe/$test"
    fi
done
for tree in stock megapipe; do
    for test in $tests; do verdict $tree "$test"; done |
        awk -v tree=$tree '{ count[$1]++ } END {
            printf "memcached %s: %d passed, %d failed, %d skipped\n",
                tree == "stock" ? "as it is" : "adapted",
                count["passed"], count["failed"], count["skipped"] }'
done
[ -z "$worse" ] || {
    echo "the adapted memcached fails what the unmodified one does not:$worse; repeat one with" \
        "make -C apps/memcached check TESTS=FILE" >&2
    exit 1
}
