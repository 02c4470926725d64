# postgres with pgbench: the client checks what the server computes, and the balances add up.
NEEDS="setpriv psql"
CASES="query pgbench connections copy cancelled"
QUICK_CASES=query
STOP=INT

# The server refuses to run as root.
USER_ID=65534

binary() { set -- /usr/lib/postgresql/*/bin/"$1"; echo "$1"; }
as_user() { setpriv --reuid=$USER_ID --regid=$USER_ID --clear-groups "$@"; }

[ -x "$(binary postgres)" ] || NEEDS="postgres $NEEDS"
as_user true 2> /dev/null || NEEDS="more-than-one-user $NEEDS"

prepare() {
    chmod 755 . && mkdir data && chown $USER_ID . data && export HOME=$PWD
    as_user "$(binary initdb)" -D data -A trust -U tester --no-sync || return
    echo "host all all 10.10.0.0/24 trust" >> data/pg_hba.conf
}

# Both ends are one user's, as connections through shared memory have to be; a client with a network
# of its own is root, who has the right to it.
server() {
    touch statistics && chmod 666 statistics
    exec setpriv --reuid=$USER_ID --regid=$USER_ID --clear-groups $SERVER "$(binary postgres)" \
        -D data -h "$ADDRESS" -p "$PORT" -k "" -c fsync=off
}

at() {
    program=$(binary "$1") && shift
    if take_turns; then as_user=; else as_user=as_user; fi
    $as_user $CLIENT "$program" -h "$ADDRESS" -p "$PORT" -U tester "$@"
}
ask() { at psql -X -q -t -A -v ON_ERROR_STOP=1 -d postgres "$@"; }

query() { [ "$(ask -c 'select sum(n) from generate_series(1, 100000) n')" = 5000050000 ]; }

pgbench() {
    at pgbench -i -q postgres && at pgbench -c 8 -t 100 postgres || return
    accounts="select sum(abalance) from pgbench_accounts"
    ask -c "select ($accounts) = (select sum(delta) from pgbench_history)" | grep -qx t
}

connections() { at pgbench -i -q postgres && at pgbench -C -S -c 4 -t 50 postgres; }

copy() {
    ask -c "create table copied (n int, t text)" || return
    seq 200000 | sed 's/$/\tsome text/' > rows
    ask -c "copy copied from stdin" < rows && ask -c "copy copied to stdout" > got && same got rows
}

# A cancellation is a connection of its own.
cancelled() {
    ask -c "set statement_timeout = 500; select pg_sleep(20)" && return 1
    query
}
