# Runs a kernel's guest.

# Starts a guest: its root file system is this machine's over virtiofs, with a disk over it. Its
# reports arrive on descriptor 4. Both processes end with this shell.
boot() {
    local daemon_options mortal='setpriv --pdeathsig KILL --'
    make_initramfs
    echo "$modules" > "$run/job/modules"
    cd "$run" || exit 1
    truncate -s 4G disk.img && mkfs.ext4 -q -F disk.img || die "cannot make $run/disk.img"
    # QEMU's own daemon, in C, or its successor, in Rust. The socket's path is relative, because its
    # length is limited, and has a number, because the daemon's lock is named after it.
    socket=$BASHPID-$version.sock
    if [ -x /usr/libexec/virtiofsd ]; then
        daemon_options='/usr/libexec/virtiofsd --shared-dir=/ --cache=always --sandbox=chroot'
    else
        daemon_options='/usr/lib/qemu/virtiofsd
            -o source=/,cache=always,sandbox=chroot,log_level=err'
    fi
    $mortal $daemon_options --socket-path=$socket > virtiofsd.log 2>&1 < /dev/null 9>&- &
    daemon=$!
    for ((attempt = 0; attempt < 100; attempt++)); do
        [ ! -S $socket ] || break
        sleep 0.1
    done
    [ -S $socket ] || die "virtiofsd did not listen within 10 s: $(cat virtiofsd.log)"
    # The emulator of QEMU 7.2 fails with several threads and with newer CPUs.
    local cpu='-accel tcg,thread=single -cpu qemu64' memory=$((3072 + 32 * (cpus - 2))) many=''
    # Many emulated CPUs run in turns: the check of the timer fails, and the first one waits long.
    [ "$cpus" = 2 ] || many='no_timer_check nowatchdog'
    [ "$accelerator" = tcg ] || cpu='-accel kvm -cpu host'
    # A panic reboots the guest, and a reboot ends QEMU.
    exec 4< <(exec $mortal qemu-system-x86_64 $cpu -smp $cpus -m ${memory}M -nodefaults \
        -display none -no-reboot -object memory-backend-memfd,id=memory,size=${memory}M,share=on \
        -numa node,memdev=memory -chardev socket,id=files,path=$socket \
        -device vhost-user-fs-pci,chardev=files,tag=host \
        -drive file=disk.img,format=raw,if=virtio,cache=unsafe \
        -serial file:console -serial file:/dev/fd/1 -kernel "$vmlinuz" -initrd initramfs.cpio \
        -append "console=ttyS0 loglevel=5 panic=-1 $many kernels.job=$run/job" \
        2> qemu.log < /dev/null 9>&-)
    qemu=$!
}

# Ends the guest's processes.
end_guest() {
    kill -KILL $qemu $daemon 2> /dev/null
    wait $daemon 2> /dev/null
    exec 4<&-
}

# Sets `accelerator` to kvm if a kernel boots and ends with it within 20 s, else to tcg.
choose_accelerator() {
    local run=$base/run-kvm line said began=$SECONDS
    accelerator=tcg
    if [ ! -e /dev/kvm ]; then
        said="there is no /dev/kvm"
    else
        rm -rf "$run"
        mkdir -p "$run"
        cp -r "$base/job" "$run/job"
        : > "$run/job/checks"
        accelerator=kvm
        boot
        said="$release does not boot within 20 s"
        while [ $((SECONDS - began)) -lt 20 ]; do
            IFS= read -r -t 0.5 line <&4
            [ $? -ne 1 ] || said="QEMU ended"
            [ "${line:-}" = "@@ done" ] && said= && break
            # After an instruction that KVM cannot execute, the machine stops.
            [ ! -s qemu.log ] || { said="QEMU says: $(head -n 1 qemu.log)" && break; }
            [ "$said" != "QEMU ended" ] || break
        done
        end_guest
        cd "$root" && rm -rf "$run"
    fi
    [ -n "$said" ] || return 0
    accelerator=tcg
    echo "kernels: KVM cannot be used ($said; tried for $((SECONDS - began)) s): emulating"
}

fault() {
    echo "$1" >> "$run/faults"
    printf '%-5s FAULT: %s\n' "$version" "$1"
}

# Prefixes of a kernel's error messages. Its console shows warnings and worse.
complaints='BUG:|kernel BUG at|Oops|Call Trace:|Kernel panic|general protection fault|double fault'
complaints+='|blocked for more than|soft lockup|WARNING: CPU:|WARNING: at'
complaints+='|Out of memory: Killed process'

# Runs the checks on the kernel of `find_kernel`, and leaves results and outputs in `run`.
check_kernel() {
    local count first chosen
    echo "kernels: $version: $release ($origin), $accelerator"
    rm -rf "$run"
    mkdir -p "$run/output"
    cp -r "$base/job" "$run/job"
    touch "$run"/{results,faults,console}
    echo "$version|$release|$origin|$accelerator" > "$run/kernel"
    boot
    # What follows the last report is the end of QEMU.
    follow && read -r -t 20 <&4
    end_guest
    cd "$root" || exit 1
    count=$(grep -cE "$complaints" "$run/console")
    first=$(grep -m 1 -E "$complaints" "$run/console" | tr -d '\r')
    [ "$count" = 0 ] ||
        fault "the kernel complains in $count lines ($run/console), the first: $first"
    chosen=$(chosen_driver "$run")
    [ -z "$driver" ] || [ "$driver" = "$chosen" ] ||
        fault "the channel chose the driver $chosen, not $driver"
    return 0
}

# Reads reports until the last one; records a fault if it does not arrive. Its limit is 180 s for
# the boot, which takes five when emulated, 10 s for each further CPU, and 30 s beyond a check's
# limit, in which the guest ends it.
follow() {
    local line words name=boot limit=$((180 + 10 * (cpus - 2))) late=hangs
    while IFS= read -r -t $limit line <&4; do
        line=${line%$'\r'}
        if [[ $line == '|'* ]]; then
            line=${line#|}
            printf '%s\n' "${line# }" >> "$run/output/$name"
            continue
        fi
        read -ra words <<< "$line"
        case $line in
            "@@ release $release" | '') ;;
            '@@ release '*) fault "this is the kernel ${words[2]}" && return 1 ;;
            '@@ begin '*)
                name=${words[2]}
                limit=$((30 + $(awk -v n="$name" '$1 == n { print $3 }' "$run/job/columns")))
                ;;
            '@@ refused '*) record "${words[2]}" refused ;;
            '@@ end '*) record "${words[@]:2}" && limit=30 ;;
            '@@ done') return 0 ;;
        esac
    done
    [ $? -gt 128 ] || late=ended
    fault "the guest $late during $name; its console's last line: $(tail -n 1 "$run/console" |
        tr -d '\r')"
    return 1
}
