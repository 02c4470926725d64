# git's daemon, which executes a program for each connection.
NEEDS="git"
CASES="clone push fetch"
QUICK_CASES=clone
ORIGIN="git://$ADDRESS:$PORT/repository.git"

prepare() {
    export HOME=$PWD GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b
    export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    git init -q -b main work && random 5000000 work/large
    for i in $(seq 200); do random 500 "work/$i"; done
    git -C work add . && git -C work commit -qm one && git clone -q --bare work repository.git
}

server() {
    exec $SERVER git daemon --reuseaddr --listen="$ADDRESS" --port="$PORT" --export-all \
        --enable=receive-pack --base-path="$PWD" "$PWD"
}

client() { $CLIENT git "$@"; }

clone() {
    rm -rf copy && client clone -q "$ORIGIN" copy || return
    diff -r --exclude=.git work copy
}

push() {
    rm -rf pushed && git clone -q repository.git pushed && random 1000000 pushed/more || return
    git -C pushed add . && git -C pushed commit -qm two || return
    client -C pushed push -q -f "$ORIGIN" main:next || return
    [ "$(git -C pushed rev-parse main)" = "$(git -C repository.git rev-parse next)" ]
}

fetch() {
    clone && push && client -C copy fetch -q || return
    git -C copy rev-parse -q --verify origin/next
}
