# rsync's daemon: a tree goes there and comes back.
NEEDS="rsync"
CASES="upload download unchanged"
QUICK_CASES=upload

prepare() {
    mkdir -p tree/deep module && random 20000000 tree/large && random 0 tree/empty
    for i in $(seq 300); do random $((i * 7)) "tree/deep/$i"; done
    cat > rsyncd.conf <<CONF
use chroot = no
[module]
path = $PWD/module
read only = no
uid = root
gid = root
CONF
}

server() {
    exec $SERVER rsync --daemon --no-detach --address="$ADDRESS" --port="$PORT" \
        --config=rsyncd.conf
}

copy() { $CLIENT rsync -a --delete "$@"; }

upload() { copy tree/ "rsync://$ADDRESS:$PORT/module/up" && diff -r tree module/up; }
download() { upload && copy "rsync://$ADDRESS:$PORT/module/up/" down && diff -r tree down; }
unchanged() { upload && touch -d yesterday tree/large && upload; }
