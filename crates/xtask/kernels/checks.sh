# The checks that run in a guest.
#
# A time limit in seconds is ten times the longest duration under emulation, and at least three
# minutes: only what hangs exceeds it, on a busy host, too.

# Adds a check: its column of the table, its name, its limit, `tests` or `script` (judged by the
# exit status alone), `ring` if it is refused where the channel does not choose io_uring or `-`, and
# the command.
check() {
    local column=$1 name=$2 limit=$3 kind=$4 ring=$5
    shift 5
    [ "$name" = doctor ] || [[ $name == *"$only"* ]] || return 0
    printf '%s\t%s\t%s\n' "$name" "$limit" "$ring" >> "$job/checks"
    printf '%s\t%s\t%s\t%s\n' "$name" "$column" "$limit" "$kind" >> "$job/columns"
    printf 'cd %q\nexec' "$root" > "$job/check-$name.sh"
    printf ' %q' "$@" >> "$job/check-$name.sh"
    echo >> "$job/check-$name.sh"
}

# Adds the check of a test program: column, name, limit, ring, the folder of the program's sources,
# and filters.
tests() {
    local column=$1 name=$2 limit=$3 ring=$4 folder=$5 program
    shift 5
    # The newest of several builds from these sources.
    program=$(grep -lF "$folder" "$target/debug/deps/$(basename "$folder" .rs)"-*.d 2> /dev/null |
        xargs -r ls -t | head -n 1)
    program=${program%.d}
    [ -x "$program" ] || die "$target/debug/deps has no test program of $folder; build it with
    cargo build --workspace --all-targets"
    # A fifth of the default number of switches: emulated CPUs run in turns.
    check "$column" "$name" "$limit" tests "$ring" \
        env FABLE_STORM_SWITCHES=300 "$program" --test-threads=2 "$@"
}

conformance=crates/megapipe/tests/conformance

# Prints the parts of the conformance suite, or the tests of the part $1: lists of the form
# `part: name, name;`.
conformance() {
    (cd "$root/crates/megapipe/tests" && cat bodies/mod.rs conformance/main.rs) |
        awk -v part="${1-}" '
            /^ *[a-z_]+:$/ { sub(":", ""); here = $1; if (part == "" && !seen[here]++) print here }
            here == part && /^ *[a-z_0-9]+[,;]$/ { print substr($1, 1, length($1) - 1) }
            /;$/ { here = "" }'
}

# Writes the directory with the guest's checks.
write_checks() {
    job=$1
    local parts part names ring limit driver programs=$target/release
    [ -n "$quick" ] && programs=$target/debug
    rm -rf "$job"
    mkdir "$job"
    cp "$here"/guest/* "$job/"
    check doctor doctor 180 script - "$programs/iobench" doctor
    parts=(accept cancel files kernel stream)
    [ -n "$quick" ] || parts=($(conformance))
    for driver in uring epoll; do
        for part in "${parts[@]}"; do
            case $part in
                flow) limit=540 ;;
                files | kernel | send_file) limit=360 ;;
                *) limit=180 ;;
            esac
            [ $driver = uring ] && ring=ring || ring=-
            names=($(conformance $part))
            tests $driver $driver-$part $limit $ring $conformance --exact \
                "${names[@]/#/$driver::}"
        done
        [ -n "$quick" ] || tests $driver $driver-model 1440 $ring \
            systemtests/channel/tests/channel $driver::sequences_
    done
    for driver in chosen epoll stock; do
        check nginx nginx-$driver 540 script - bash "$job/nginx.sh" $driver \
            "$KERNELS_NGINX_MODULE" "$programs/iobench"
    done
    [ -z "$quick" ] || return 0
    for driver in chosen epoll; do
        check memcached memcached-$driver 360 script - \
            bash "$job/memcached.sh" "$KERNELS_MEMCACHED" $driver
    done
    tests flows flows-transports 2700 - crates/fable/tests/library transports::
    tests flows flows-storm 540 - systemtests/flows/tests/fable storm::
    check preload redis 720 script - bash "$job/redis.sh" "$programs/fable"
    tests stack mtcp-devices 2700 - systemtests/tcp/tests/devices
    tests stack mtcp-interop 1800 - systemtests/tcp/tests/interop basic:: matrix::
    check compare compare 540 script - bash "$job/compare.sh" "$programs/iobench"
}
