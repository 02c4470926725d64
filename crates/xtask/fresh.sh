#!/bin/sh
# Follows the README in fresh minimal roots of Debian, as an ordinary user and as root: the line of
# the box "Fifteen minutes", `doctor`, `compare --quick`, `cargo xtask test`, and tutorials that
# need no more. Prints minutes, last line and log of each command. Tests what is committed. The
# roots and what they compile are kept in target/fresh; to start from nothing, delete it.
#
# usage: sh crates/xtask/fresh.sh [bookworm | trixie ...]   (needs root, mmdebstrap and git)
#
# FRESH_ONLY is a part of a command, to run only those.
set -eu
export LC_ALL=C
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}/fresh
case $target in /*) ;; *) target=$PWD/$target ;; esac
tutorials="rust"
failures=0

fail() { echo "fresh: $*" >&2; exit 1; }

# Prints the README's command for a version of Debian, without `sudo`.
box() { sed -n "s/^| Debian $1\(,[^|]*\)\? | \`sudo \(.*\)\` |\$/\2/p" README.md; }

# Makes a root with the packages of the README's command, unless there is one.
make_root() {
    suite=$1 root=$target/$1 install=$2
    [ "$(cat "$root.made" 2>/dev/null)" != "$install" ] || return 0
    rm -rf "$root" "$root.made"
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/$' || true)
    [ -n "$mirror" ] || fail "apt has no archive of Debian on this machine; add one to its sources"
    echo "fresh: $suite: installing a minimal system from $mirror, then: $install"
    mmdebstrap --quiet --variant=minbase "$suite" "$root" "deb $mirror $suite main" \
        "deb $mirror $suite-updates main" "deb ${mirror%/}-security $suite-security main"
    yes="$(echo "$install" | sed 's/^apt install/apt-get install -q -y/')"
    inside "$root" root "apt-get update -q && $yes" >"$root-packages.log" 2>&1 ||
        fail "installation failed, see $root-packages.log"
    grep -E 'newly installed|After this operation' "$root-packages.log" | sed "s/^/fresh: $suite: /"
    chroot "$root" useradd --create-home --shell /bin/bash user
    echo "$install" >"$root.made"
}

# Runs a command in the directory of the checkout: root, user, command.
inside() {
    unshare --mount --pid --fork --kill-child sh -eu -c '
        mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount --rbind /sys "$1/sys"
        mkdir -p "$1/srv/megapipe" && cp /etc/resolv.conf "$1/etc/resolv.conf"
        # The network may have a certificate of its own, as behind a proxy.
        if [ -e "$1$4" ]; then cp "$4" "$1$4"; fi
        exec chroot "$1" su - "$2" -c "cd /srv/megapipe && $3"' \
        sh "$@" /etc/ssl/certs/ca-certificates.crt
}

# Runs a command of the README and prints how it ended: suite, user, command.
follow() {
    case $3 in *"${FRESH_ONLY:-}"*) ;; *) return 0 ;; esac
    log=$target/$1-$2-$(echo "$3" | tr -c 'a-z\n' '-' | tr -s - | cut -c 1-40).log
    began=$(date +%s)
    if inside "$target/$1" "$2" "$3" >"$log" 2>&1; then end=ended; else end=FAILED; failures=1; fi
    minutes=$(awk "BEGIN { printf \"%.1f\", ($(date +%s) - $began) / 60 }")
    echo "fresh: $1 $2: \`$3\` $end after $minutes min: $(tail -n 1 "$log"); see $log"
}

# Prints the commands of a tutorial as a script: the conventions are in
# systemtests/programs/tests/tutorials/page.rs.
script() {
    echo 'set -e'
    awk '
        /^```/ && kind { if (kind == "file") print "END_OF_FILE"; kind = ""; next }
        /^```sh/ { kind = "sh"; next }
        /^```text/ { kind = "text"; next }
        /^```/ { kind = "file"; print "cat >\"" name "\" <<'\''END_OF_FILE'\''"; next }
        !kind && match($0, /as `[^`]*`:$/) { name = substr($0, RSTART + 4, RLENGTH - 6) }
        kind == "sh" || kind == "file"' "docs/tutorials/$1.md"
}

[ "$(id -u)" = 0 ] || fail "run it as root: it makes root directories of Debian"
for program in mmdebstrap git; do
    command -v $program >/dev/null || fail "$program is missing; run \`cargo xtask setup\`"
done
mkdir -p "$target"
for suite in ${*:-bookworm trixie}; do
    case $suite in
        bookworm) number=12 ;;
        trixie) number=13 ;;
        *) fail "unknown suite $suite" ;;
    esac
    line=$(box $number)
    [ -n "$line" ] || fail "README.md has no row for Debian $number in the box"
    make_root $suite "${line%% && *}"
    copy=$target/$suite/srv/megapipe
    [ -e "$copy/.git" ] || git clone --quiet --no-hardlinks . "$copy"
    git -c safe.directory='*' -C "$copy" fetch --quiet "$PWD" HEAD
    git -c safe.directory='*' -C "$copy" reset --quiet --hard FETCH_HEAD
    for page in $tutorials; do script $page >"$copy/$page.sh"; done
    for user in user root; do
        chroot "$target/$suite" chown -R $user: /srv/megapipe
        case $line in *" && "*) follow $suite $user "${line#* && }" ;; esac
        follow $suite $user "cargo run --release -- doctor"
        follow $suite $user "cargo run --release -- compare --quick"
        follow $suite $user "cargo xtask test"
        for page in $tutorials; do follow $suite $user "bash $page.sh"; done
    done
done
exit $failures
