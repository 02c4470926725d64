#!/bin/bash
# Boots Debian's kernels in QEMU and runs the workspace's programs on them; docs/kernels.md says
# what is checked. `cargo xtask kernels` builds the programs, then calls this script with the same
# options, and with KERNELS_NGINX_MODULE and KERNELS_MEMCACHED in the environment.
#
# On the host only files below `target/kernels` change, and docs/kernels.md after a full run.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
for file in kernel checks guest report; do
    # shellcheck source=/dev/null
    . "$here/$file.sh"
done

usage='usage: cargo xtask kernels [--quick] [--kernel NAME-OR-DIR,...] [--only PART-OF-A-NAME]
           [--accel kvm|tcg] [--cpus N] [--keep]'
help='
  --quick         only Linux 6.1, with doctor, nginx and a part of the conformance suite: 3 minutes
  --kernel LIST   only these, separated by commas: 5.10, 6.1, 6.12, newest, or a directory that has
                  a kernel (vmlinuz or boot/vmlinuz-*) and its modules (lib/modules/RELEASE)
                  [default: all four]
  --only PART     only checks that have this in their name, such as nginx; writes no table
  --accel NAME    kvm or tcg (emulation) [default: kvm where a kernel boots with it, else tcg]
  --cpus N        CPUs of a guest, 2 to 255; from 8 on two of them are offline, so that their
                  numbers have holes; writes no table [default: 2]
  --keep          keep disk images and initramfs in target/kernels/run-*'

die() {
    echo "xtask: $1" >&2
    exit 1
}

quick='' kernels='' only='' accelerator='' cpus=2 keep='' parse=''
while [ $# -gt 0 ]; do
    case $1 in
        --kernel | --only | --accel | --cpus) [ $# -ge 2 ] || die "$1 needs a value; $usage" ;;
    esac
    case $1 in
        --help | -h)
            echo "$usage"
            echo "$help"
            exit 0
            ;;
        --parse) parse=yes ;;
        --quick) quick=yes ;;
        --keep) keep=yes ;;
        --kernel) kernels+=${kernels:+,}$2 && shift ;;
        --only) only=$2 && shift ;;
        --accel) accelerator=$2 && shift ;;
        --cpus) cpus=$2 && shift ;;
        *) die "unknown argument \`$1\`; $usage" ;;
    esac
    shift
done
case $accelerator in
    '' | kvm | tcg) ;;
    *) die "unknown accelerator \`$accelerator\`; $usage" ;;
esac
[[ $cpus =~ ^[0-9]{1,3}$ ]] && [ "$((10#$cpus))" -ge 2 ] && [ "$((10#$cpus))" -le 255 ] ||
    die "--cpus takes a number from 2 to 255, not \`$cpus\`; $usage"
partial=$kernels
[ -n "$kernels" ] || { [ -n "$quick" ] && kernels=6.1 || kernels=5.10,6.1,6.12,newest; }
IFS=, read -ra names <<< "$kernels"
for name in "${names[@]}"; do
    [ -n "$(suite_of "$name")" ] || [ -d "$name" ] ||
        die "unknown kernel \`$name\`: neither a name nor a directory; $usage"
done
[ "$(id -u)" = 0 ] || die "cannot start the guests: only root can share this machine's file system \
with them (virtiofsd); run this as root"
[ -z "$parse" ] || { [ -n "$quick" ] && echo quick || echo full; exit; }

export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin LC_ALL=C
target=$(cd "$root" && realpath -m "${CARGO_TARGET_DIR:-target}")
base=$target/kernels
# The kernel's command line contains the path, and overlayfs splits it at commas and colons.
[[ $base != *[\ ,:\"]* ]] ||
    die "the path $base has a blank, comma, colon or quote; set CARGO_TARGET_DIR to another one"
mkdir -p "$base"
exec 9> "$base/lock"
flock -n 9 || { echo "kernels: waits for another run in $base" && flock 9; }

# One line each: name, directory, origin, driver that the channel has to choose.
subjects=() skipped=() versions=' '
for name in "${names[@]}"; do
    suite=$(suite_of "$name")
    if [ -z "$suite" ]; then
        subject="$(realpath "$name")|a directory|"
    elif fetch "$suite"; then
        driver=uring
        [ "$suite" = bullseye ] && driver=epoll
        subject="$base/$suite/root|Debian $suite|$driver"
    else
        skipped+=("kernel $name: $reason")
        continue
    fi
    find_kernel "${subject%%|*}"
    [[ $versions != *" $version "* ]] ||
        die "two kernels have the version $version; run them one by one"
    versions+="$version "
    subjects+=("$subject")
done
write_checks "$base/job"
[ "$(wc -l < "$base/job/checks")" -gt 1 ] ||
    die "no check has \`$only\` in its name; docs/kernels.md lists the columns"

# Two kernels run in parallel if there are enough CPUs, and memory for twice a guest and programs.
lanes=1
available=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
[ "$(nproc)" -ge 2 ] && [ "$available" -ge $((7 << 20)) ] && lanes=2
trap 'kill $(jobs -p) 2> /dev/null' EXIT
trap 'exit 130' INT TERM
runs=()
for subject in "${subjects[@]}"; do
    IFS='|' read -r directory origin driver <<< "$subject"
    find_kernel "$directory"
    [ -n "$accelerator" ] || choose_accelerator
    run=$base/run-$version
    runs+=("$run")
    if [ ${#subjects[@]} = 1 ]; then
        check_kernel
    else
        while [ "$(jobs -rp | wc -l)" -ge $lanes ]; do wait -n; done
        { (check_kernel) || echo "the run ended early" >> "$run/faults"; } &
    fi
done
wait

for run in "${runs[@]}"; do
    # The rest is what finds the cause of a failure.
    [ -n "$keep" ] || rm -rf "$run"/{disk.img,initramfs.cpio,initramfs,base}
done
if [ -z "$quick$only" ] && [ "$cpus" = 2 ] && [ ${#runs[@]} -gt 0 ]; then
    write_table "$root/docs/kernels.md" "$partial" "${runs[@]}"
fi
summarize
