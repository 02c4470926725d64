#!/bin/bash
# Process 1 of the guest: runs the checks of a directory one after the other and reports on ttyS1.
# The directory has `checks` (a line each: name, limit in seconds, `ring` or `-`, separated by
# tabs), a script check-NAME.sh for each, and `modules`, which names the kernel's modules.
job=$1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root LC_ALL=C.UTF-8 TMPDIR=/tmp KERNELS_JOB=$job
stty -F /dev/ttyS1 raw -echo
exec 3> /dev/ttyS1 > /dev/console 2>&1 < /dev/null
say() { printf '@@ %s\n' "$*" >&3; }

mkdir -p /dev/pts /dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t bpf bpf /sys/fs/bpf
mount -t debugfs debugfs /sys/kernel/debug
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# Of ext4, unless the checkout itself is below it.
case $job in
    /tmp/*) export TMPDIR=/run/disk/tmp ;;
    *) mount --bind /run/disk/tmp /tmp ;;
esac
release=$(uname -r)
mkdir -p "/lib/modules/$release" && mount --bind "$(cat "$job/modules")" "/lib/modules/$release"
for module in tun veth bridge af_packet nf_tables tls xsk_diag; do
    modprobe -q "$module"
done
ip link set lo up
ulimit -n 65536
ulimit -l unlimited
# An emulated CPU that waits for the host's is not stuck.
echo 60 > /proc/sys/kernel/watchdog_thresh
if [ "$(nproc)" -ge 8 ]; then
    for cpu in 1 $(($(nproc) / 2)); do
        echo 0 > /sys/devices/system/cpu/cpu$cpu/online
    done
fi
say "release $release"

text=/run/disk/text
skips=/run/disk/skips
export MEGAPIPE_SKIPS=$skips
while IFS=$'\t' read -r name limit ring; do
    if [ "$ring" = ring ] && [ -e /run/no-ring ]; then
        say "refused $name"
        continue
    fi
    say "begin $name"
    : > $skips
    start=${EPOCHREALTIME/[.,]/}
    script=$job/check-$name.sh
    setsid --wait timeout --kill-after=5 "$limit" bash "$script" > $text 2>&1 < /dev/null
    code=$?
    milliseconds=$(((${EPOCHREALTIME/[.,]/} - start) / 1000))
    # What a check has left behind must not disturb the next one.
    kill -9 -- -1 2> /dev/null
    find "$TMPDIR" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
    if [ "$name" = doctor ] && ! grep -q '^driver: uring' $text; then
        : > /run/no-ring
    fi
    # The beginning of a line tells output from reports.
    { tail -c 24000 $text; echo; cat $skips; } | tr -d '\000\r' | sed 's/^/| /' >&3
    say "end $name $code $milliseconds"
done < "$job/checks"
say "done"
sync
sleep 0.2
echo o > /proc/sysrq-trigger
sleep 60
