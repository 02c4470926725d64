#!/bin/sh
# Fetches the source package NAME of the distribution and prints the path of its unpacked files:
#
#   fetch-source.sh NAME DIRECTORY [UPSTREAM-VERSION [SUITE SHA256]]
#
# The version is that of the installed package or, if the mirrors have removed it, another one
# with the same upstream version; with UPSTREAM-VERSION the newest of these. With SUITE (bookworm,
# trixie) it comes from that release in the same archives, and SHA256 is the upstream archive's
# checksum. If no revision can be fetched, the files are those of the upstream archive, without
# the distribution's changes.
#
# Everything is written below DIRECTORY. The system is not changed: apt gets the machine's entries
# as `deb-src`, and its lists and cache below DIRECTORY. apt checks the archives' signatures with
# the machine's keys as usual.
set -eu
export LC_ALL=C
name=$1 base=$2 upstream=${3-} suite=${4-} sum=${5-}
etc=${FETCH_SOURCE_APT:-/etc/apt}

fail() {
    echo "fetch-source.sh: $*" >&2
    exit 1
}
for program in apt-get dpkg-query dpkg-source flock; do
    command -v "$program" >/dev/null ||
        fail "$program is missing; install apt, dpkg-dev and util-linux, or unpack the sources of" \
            "$name yourself and name their directory (make help)"
done
without_revision() { sed 's/^[0-9]*://; s/-[^-]*$//'; }

exact=
if [ -z "$upstream" ]; then
    exact=$(dpkg-query -W -f '${db:Status-Status} ${source:Version}' "$name" 2>/dev/null |
        sed -n 's/^installed //p')
    [ -n "$exact" ] || fail "the package $name is not installed; install it with apt-get install"
    upstream=$(echo "$exact" | without_revision)
fi
label=${exact:-$upstream}
mkdir -p "$base"
base=$(cd "$base" && pwd)
tree=$base/$name-$(echo "$label" | tr ':~/' '___')

# One process at a time. A tree without its stamp is the remains of an interrupted run.
exec 9>"$base/lock"
flock 9
if [ -e "$tree.complete" ]; then
    echo "$tree"
    exit
fi

apt=$base/apt/$name$suite
rm -rf "$apt/sources" "$base/$name-download" "$tree"
mkdir -p "$apt/sources" "$apt/lists/partial" "$apt/cache/archives/partial" "$base/$name-download"
cd "$base/$name-download"

# Only the archives from which the package comes; all of them if apt does not know.
origins=$(apt-cache policy "$name" | sed -n 's/^ *[0-9]* \([a-z+]*:[^ ]*\) .* Packages$/\1/p')
from_origins() {
    awk -v RS="$1" -v ORS="$2" -v origins="$(echo $origins)" '
        BEGIN { count = split(origins, known, " ") }
        { keep = !count; for (i in known) if (index($0, known[i])) keep = 1; if (keep) print }'
}
# Names another release in the entries.
in_suite() {
    awk -v RS="$1" -v ORS="$2" -v suite="$suite" '
        suite != "" {
            name = suite (/-security/ ? "-security" : "")
            sub(/Suites:[^\n]*(\n[ \t][^\n]*)*/, "Suites: " name)
            if (match($0, /^deb-src +(\[[^]]*\] +)?[^ ]+ +/)) {
                rest = substr($0, RLENGTH + 1)
                sub(/^[^ ]+/, name, rest)
                $0 = substr($0, 1, RLENGTH) rest
            }
        }
        { print }'
}
for file in "$etc/sources.list" "$etc"/sources.list.d/*; do
    entries=$apt/sources/$(basename "$file")
    case $file in
    *.list) [ ! -f "$file" ] || sed -n 's/^ *deb /deb-src /p' "$file" |
        from_origins '\n' '\n' | in_suite '\n' '\n' >"$entries" ;;
    *.sources) sed 's/^Types:.*/Types: deb-src/' "$file" | from_origins '' '\n\n' |
        in_suite '' '\n\n' >"$entries" ;;
    esac
done
find "$apt/sources" -type f -size 0 -delete
[ -n "$(ls "$apt/sources")" ] || fail "$etc names no archive; add the distribution's entry there"

# apt's sandbox user may not write below a home directory. A mirror that fails once may still have
# the version.
private() {
    program=$1
    shift
    "$program" -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$apt/sources" \
        -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt/cache" \
        -o APT::Sandbox::User=root -o Acquire::Retries=5 "$@"
}
echo "fetch-source.sh: fetching $name $label from the distribution" >&2
private apt-get -q update >"$apt/log" 2>&1 || {
    # Lists of an earlier run may be sufficient.
    echo "fetch-source.sh: apt-get update has failed:" >&2
    cat "$apt/log" >&2
}
# apt lists the oldest version first.
offered=$(private apt-cache showsrc --only-source "$name" 2>/dev/null |
    sed -n 's/^Version: //p' | tac)
upstream_archive() {
    for archive in "${name}_$upstream".orig.tar.?z*; do
        case $archive in *.asc) ;; *) echo "$archive" ;; esac
    done
}
is_pinned() {
    [ -z "$sum" ] || echo "$sum  $(upstream_archive)" | sha256sum --check --status 2>/dev/null
}
complete() {
    echo "fetch-source.sh: $name $1" >&2
    echo "$1" >"$tree.complete"
    rm -r "$base/$name-download"
    echo "$tree"
    exit
}
choices=$(for version in $offered; do
    [ "$version" != "$exact" ] || echo "$version"
done
for version in $offered; do
    [ "$version" = "$exact" ] || [ "$(echo "$version" | without_revision)" != "$upstream" ] ||
        echo "$version"
done)
for version in $choices; do
    if private apt-get -q source --download-only --only-source "$name=$version" >"$apt/log" 2>&1
    then
        is_pinned || fail "$name $version is not the $upstream that was tested (SHA256 $sum)"
        # Without the developers' signature, for which there may be no keyring; apt has checked the
        # archive's.
        dpkg-source --no-check --no-copy -x ./*.dsc "$tree" >"$apt/log" 2>&1 ||
            fail "$(cat "$apt/log")"
        complete "$version"
    fi
    echo "fetch-source.sh: $name $version cannot be fetched: $(cat "$apt/log")" >&2
done
if [ -n "$sum" ] && is_pinned; then
    mkdir "$tree"
    tar --extract --file="$(upstream_archive)" --directory="$tree" --strip-components=1
    complete "$upstream (upstream, without the distribution's changes)"
fi
fail "no source of $name $label could be fetched (offered: $(echo ${offered:-none}));" \
    "upgrade the package $name with apt-get, so that it is a version that the mirror still has," \
    "or check the network"
