# sshd and ssh: a command, files there and back, a forwarded port.
NEEDS="ssh sshd ssh-keygen sftp ncat"
CASES="executed input copied forwarded"
QUICK_CASES=executed

prepare() {
    ssh-keygen -q -t ed25519 -N "" -f host && ssh-keygen -q -t ed25519 -N "" -f user
    cp user.pub authorized && chmod 600 authorized && random 10000000 data && mkdir -p /run/sshd
    cat > sshd_config <<CONF
Port $PORT
ListenAddress $ADDRESS
HostKey $PWD/host
AuthorizedKeysFile $PWD/authorized
PidFile $PWD/pid
StrictModes no
UsePAM no
PermitRootLogin yes
Subsystem sftp internal-sftp
CONF
}

server() { exec $SERVER "$(command -v sshd)" -D -e -f "$PWD/sshd_config"; }

OPTIONS="-F /dev/null -i user -o BatchMode=yes
    -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"

client() { $CLIENT ssh $OPTIONS -p "$PORT" "$ADDRESS" "$@"; }

executed() { [ "$(client 'echo $((6 * 7)); exit 3' < /dev/null)" = 42 ]; }
input() { client cat < data > got && same got data; }

copied() {
    echo "put data $PWD/there
get $PWD/there back" > batch
    $CLIENT sftp $OPTIONS -b batch -P "$PORT" "$ADDRESS" && same there data && same back data
}

# A connection through a connection: to sshd itself, which greets.
forwarded() {
    $CLIENT ssh $OPTIONS -N -L "8081:$ADDRESS:$PORT" -p "$PORT" "$ADDRESS" < /dev/null & tunnel=$!
    ADDRESS=127.0.0.1 await 8081 || return
    $CLIENT ncat --recv-only 127.0.0.1 8081 < /dev/null > greeting & reader=$!
    until grep -q "^SSH-2.0" greeting; do kill -0 $reader || break; sleep 0.05; done
    kill $reader $tunnel
    grep -q "^SSH-2.0" greeting
}
