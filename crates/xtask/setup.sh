#!/bin/sh
# Installs the missing packages of packages.txt, or of these only the named ones. No service that
# comes with a package is started, now or at the next boot. Asks first if standard input is a
# terminal.
#
# usage: sh crates/xtask/setup.sh [--yes | --missing] [PACKAGE ...]
#   --yes       does not ask
#   --missing   prints the names of the missing packages and installs nothing
#
# SETUP_ROOT is a directory to use in place of / for the files of services; tests set it.
set -eu
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
self=$(cd "$(dirname "$0")" && pwd)/setup.sh
root=${SETUP_ROOT:-}
policy=$root/usr/sbin/policy-rc.d
mark='# Written by setup.sh of MegaPipe while it installs packages.'

say() { echo "setup: $*"; }
fail() { echo "setup: $*" >&2; exit 1; }
apt() { apt-get -o DPkg::Lock::Timeout=120 "$@" </dev/null; }

# Prints the names in the list, or those of the arguments: of alternatives, the one to install.
wanted() {
    grep -v '^#' "${self%/*}/packages.txt" | while read -r name _; do
        chosen=${name#*|}
        if [ "$chosen" != "$name" ] && apt-cache show "${name%|*}" >/dev/null 2>&1; then
            chosen=${name%|*}
        fi
        case " $* " in "  " | *" ${name%|*} "* | *" ${name#*|} "*) echo "$chosen" ;; esac
    done
}

missing() {
    names=$(wanted "$@")
    format='${db:Status-Status} ${Package}\n'
    installed=$(dpkg-query --show --showformat="$format" $names 2>/dev/null |
        sed -n 's/^installed //p')
    echo "$names" | grep -vxF "$installed" || true
}

# Prints the links that start services at boot, of systemd and of sysvinit.
enabled() {
    find "$root"/etc/systemd/system/*.wants "$root"/etc/rc[2-5].d \
        \( -path '*.wants/*' -o -name 'S*' \) 2>/dev/null | sort
}

forbid_services() {
    before=$(enabled)
    trap permit_services EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    # invoke-rc.d(8): 101 forbids the action. The system's own file, as in a container, stays.
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
        chmod 755 "$policy"
    fi
}

# Undoes `forbid_services`, and disables what the packages have enabled for the next boot.
permit_services() {
    status=$?
    if grep -sqxF "$mark" "$policy"; then rm -f "$policy"; fi
    enabled | grep -vxF "$before" | while read -r link; do
        case $link in
        *.wants/*) rm -f "$link" ;;
        *) [ ! -h "$link" ] || update-rc.d "${link##*/S[0-9][0-9]}" disable ;;
        esac
        say "not started at boot: ${link##*/}"
    done
    exit "$status"
}

yes=false only_print=false
case ${1:-} in
--yes) yes=true && shift ;;
--missing) only_print=true && shift ;;
-*) fail "unknown option \`$1\`; use --yes or --missing, see $self" ;;
esac
packages=$(missing "$@")
if $only_print || [ -z "$packages" ]; then
    $only_print || say "no package is missing"
    [ -z "$packages" ] || echo "$packages"
    exit
fi
for name in $packages; do
    say "$name is missing: $(sed -En "s/^([^ ]*\|)?$name(\|[^ ]*)? +//p" "${self%/*}/packages.txt")"
done
command -v apt-get >/dev/null ||
    fail "there is no apt-get; install these packages under your distribution's names:" $packages
if [ "$(id -u)" != 0 ]; then
    [ -t 0 ] && prompt= || prompt=--non-interactive
    command -v sudo >/dev/null && sudo $prompt true ||
        fail "this user may not install packages; run as root: sh $self $*"
    $yes && set -- --yes "$@"
    exec sudo sh "$self" "$@"
fi
apt update -q
packages=$(missing "$@")
set -- install --no-install-recommends $packages
new=$(apt --simulate "$@" | sed -n 's/^Inst \([^ ]*\) .*/\1/p')
size=$(apt-cache show --no-all-versions $new |
    awk '/^Size:/ { get += $2 } /^Installed-Size:/ { use += $2 }
        END { printf "%.0f MB to download, %.0f MB on disk", get / 1e6, use / 1e3 }')
say "$(echo "$new" | wc -l) packages with those that they need, $size; starts no service"
if [ -t 0 ] && ! $yes; then
    printf 'setup: install them? [y/N] '
    read -r answer
    case $answer in [yY]*) ;; *) fail "nothing was installed, because the answer was no" ;; esac
fi
forbid_services
say "apt-get $*"
apt --yes "$@" || fail "apt-get failed; correct the cause in its output above, such as the network"
