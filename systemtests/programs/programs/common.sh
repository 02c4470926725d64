#!/bin/sh
# Runs the cases of one program's script and journals them, as cases.py does for Python's suites.
#
# A script ($PROGRAM.sh) sets NEEDS (programs that it takes), CASES, QUICK_CASES and STOP (the
# signal that ends the server), and has the functions `prepare`, `server` (which becomes the server)
# and one for each case. $SERVER and $CLIENT are what goes before a program: nothing, or a library's
# command. The server listens at $ADDRESS and $PORT; a case fails if its function does.

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
STOP=TERM

line() { printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >> "$JOURNAL"; }

# Says why a case fails, and ends it.
fail() { echo "$*" >&2; exit 1; }

# Whether two files are the same.
same() { cmp "$1" "$2" || fail "$1 differs from $2"; }

# BYTES of NAME, without a pattern that repeats.
random() { head -c "$1" /dev/urandom > "$2"; }

# Waits until the port of the server takes connections: a process listens, says the kernel or, where
# the server has a network of its own, itself by taking one.
await() {
    until=$(($(date +%s) + 10))
    while [ "$(date +%s)" -le $until ]; do
        listens "${1:-$PORT}" && return 0
        [ -z "$pid" ] || kill -0 "$pid" 2> /dev/null || break
        sleep 0.02
    done
    fail "no server at port ${1:-$PORT} within 10 s: $(tail -n 3 server.log | tr '\n\t' '  ')"
}

listens() {
    if [ "$ADDRESS" = 10.10.0.2 ]; then
        ncat -z -w 1 "$ADDRESS" "$1" 2> /dev/null
    else
        ss -Hltn "sport = :$1" | grep -q .
    fi
}

# Whether clients run under a library by which only one of them has the network at a time.
take_turns() { [ "$ADDRESS" = 10.10.0.1 ]; }

# Asks a process to end, and waits at most 5 s, so that it can write what it has counted.
end() {
    kill -s "$2" "$1" 2> /dev/null
    for _ in $(seq 250); do
        kill -0 "$1" 2> /dev/null || return 0
        sleep 0.02
    done
    kill -s KILL "$1"
}

wanted() {
    ! grep -qxF "$1" "$DONE" && { ! grep -q . "$ONLY" || grep -qxF "$1" "$ONLY"; }
}

run() {
    wanted "$1" || return 0
    printf 'start\t%s\n' "$1" >> "$JOURNAL"
    if ("$1") > case.log 2>&1; then
        line end "$1" ok ""
    else
        line end "$1" failed "$(tail -n 2 case.log | tr '\n\t' '  ' | cut -c 1-200)"
    fi
}

skip() {
    line end "(all)" skipped "$1"
    echo done >> "$JOURNAL"
    exit 0
}

. "$SCRIPTS/$PROGRAM.sh"
[ "$1" = server ] && { server; exit; }

for need in $NEEDS ss; do
    command -v "$need" > /dev/null || skip "$need is not installed"
done
[ -n "$QUICK" ] && CASES=$QUICK_CASES
prepare > prepare.log 2>&1 || echo "the set-up failed: $(tail -n 3 prepare.log)" >&2
# In a process group of its own, because servers send signals to their group.
setsid sh "$0" server > server.log 2>&1 &
pid=$!
if (await) > case.log 2>&1; then
    for name in $CASES; do run "$name"; done
else
    for name in $CASES; do line end "$name" error "$(tail -n 1 case.log)"; done
fi
end $pid $STOP
echo done >> "$JOURNAL"
