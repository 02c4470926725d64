# Functions for the commands of the tutorials; for bash.

# need COMMAND|PORT ...: fails, and says what to do, if a command is missing or a port is in use.
need() {
    local word package failed=0
    for word; do
        case $word in
        [0-9]*)
            (exec 3<>"/dev/tcp/127.0.0.1/$word") 2>/dev/null || continue
            echo "port $word is in use: stop the program that listens on it (ss -ltnp names it)" >&2
            failed=1
            continue
            ;;
        cc) package=gcc ;;
        c++) package=g++ ;;
        ip) package=iproute2 ;;
        redis-cli | redis-benchmark) package=redis-tools ;;
        taskset) package=util-linux ;;
        *) package=$word ;;
        esac
        command -v "$word" >/dev/null && continue
        if [ "$word" = cargo ]; then
            echo "cargo is missing: install Rust as https://rustup.rs says" >&2
        else
            echo "$word is missing: install it, on Debian with apt-get install $package" >&2
        fi
        failed=1
    done
    return "$failed"
}

# listens PORT: waits until the server that was started last, in the background, listens on PORT.
listens() {
    local server=$!
    for _ in {1..600}; do
        if ! kill -0 "$server" 2>/dev/null; then
            echo "the server has ended before it listened on port $1; its message is above" >&2
            return 1
        fi
        (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return
        sleep 0.1
    done
    echo "the server does not listen on port $1 after a minute" >&2
    return 1
}

# retry COMMAND ...: repeats a command until it succeeds, for a minute at most.
retry() {
    for _ in {1..600}; do
        "$@" && return
        sleep 0.1
    done
    echo "no success in a minute: $*" >&2
    return 1
}
