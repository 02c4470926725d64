#!/bin/busybox sh
# The initramfs's init: loads the modules that the root file system takes, lays an ext4 image over
# the host's `/`, and starts the script that the kernel's command line names with its directory.
b=/bin/busybox
stop() {
    echo "kernels: $1"
    $b sleep 1
    echo o > /proc/sysrq-trigger
    $b sleep 60
}
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
while read -r module; do
    $b insmod "/modules/$module" || echo "kernels: cannot load $module"
done < /modules/list
$b mount -t virtiofs -o ro host /host || stop "the host's file system cannot be mounted"
$b mount -t ext4 /dev/vda /disk || stop "the disk cannot be mounted"
$b mkdir -p /disk/upper /disk/work /disk/tmp
$b chmod 1777 /disk/tmp
$b mount -t overlay -o lowerdir=/host,upperdir=/disk/upper,workdir=/disk/work overlay /new ||
    stop "the overlay cannot be mounted"
for directory in proc sys dev; do
    $b mount -o move /$directory /new/$directory
done
$b mount -t tmpfs run /new/run
$b mkdir -p /new/run/disk
$b mount --bind /disk /new/run/disk
job=$($b sed 's/.*kernels\.job=\([^ ]*\).*/\1/' /new/proc/cmdline)
exec $b switch_root /new /bin/bash "$job/init.sh" "$job"
