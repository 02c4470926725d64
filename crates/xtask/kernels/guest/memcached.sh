#!/bin/bash
# The adapted memcached with two threads keeps what several connections set. Takes the program's
# path and the driver, `chosen` for the one that it chooses.
set -u
server=$1
driver=$2
[ "$driver" = chosen ] || export MEGAPIPE_DRIVER=$driver
"$server" -u root -l 127.0.0.1 -p 11311 -U 0 -t 2 -v > "$TMPDIR/log" 2>&1 &
pid=$!
perl "$KERNELS_JOB/memcached.pl" 11311
code=$?
if ! kill -0 $pid; then
    echo "FAILED: memcached has ended"
    code=1
fi
kill -TERM $pid
wait $pid
tail -n 20 "$TMPDIR/log"
exit $code
