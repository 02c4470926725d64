# Fetches, finds and prepares kernels.

# Prints Debian's suite of a kernel's name on the command line; nothing for a directory.
suite_of() {
    case $1 in
        5.10 | bullseye) echo bullseye ;;
        6.1 | bookworm) echo bookworm ;;
        6.12 | trixie) echo trixie ;;
        newest | sid) echo sid ;;
    esac
}

# The package that depends on a suite's kernel for virtual machines.
kernel_package=linux-image-cloud-amd64

# Prints the packages of a suite's kernel, which apt looks up with the options `apt`.
offered_packages() {
    apt-get "${apt[@]}" -o APT::Update::Error-Mode=any update 2>&1 > /dev/null |
        head -n 1 > "$directory/error"
    [ "${PIPESTATUS[0]}" = 0 ] || return 1
    apt-get "${apt[@]}" -o Dir::State::status=/dev/null -o APT::Architecture=amd64 \
        -s install --no-install-recommends $kernel_package 2> "$directory/error" |
        sed -n 's/^Inst \(linux-[^ ]*\) (\([^ ]*\) .*/\1=\2/p' | grep -v "^$kernel_package="
}

# Unpacks the kernel of the suite $1 into $base/$1/root unless that has the archive's version. Uses
# the one there if the archive cannot be reached; without one fails with a `reason`. Installs
# nothing: apt has a configuration and data of its own.
fetch() {
    local directory=$base/$1 address keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    mkdir -p "$directory"/apt/{lists/partial,archives/partial}
    # The machine's mirror of Debian.
    address=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
        'Origin: Debian' 'Label: Debian' 2> /dev/null | head -n 1)
    if [ -z "$address" ]; then
        reason="apt has no archive of Debian on this machine; add one to its sources"
        return 1
    fi
    echo "deb [signed-by=$keyring] $address $1 main" \
        > "$directory/apt/sources.list"
    local apt=(-q -o "Dir::Etc::SourceList=$directory/apt/sources.list"
        -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$directory/apt/lists"
        -o "Dir::Cache=$directory/apt" -o APT::Sandbox::User=root -o Acquire::Retries=5)
    local packages
    if ! packages=$(offered_packages); then
        reason="apt cannot get $kernel_package of $1: $(head -n 1 "$directory/error")"
        reason+="; check the network, and that $keyring exists"
        [ -e "$directory/complete" ] || return 1
        echo "kernels: $reason; using the kernel that was fetched before"
        return 0
    fi
    if [ "$(cat "$directory/complete" 2> /dev/null)" = "$packages" ]; then
        return 0
    fi
    echo "kernels: fetching" $packages
    rm -rf "$directory"/{complete,root,download}
    mkdir "$directory/download"
    if ! (cd "$directory/download" && apt-get "${apt[@]}" download $packages) \
        > "$directory/error" 2>&1; then
        reason="apt-get download: $(tail -n 1 "$directory/error")"
        return 1
    fi
    for package in "$directory"/download/*.deb; do
        dpkg-deb -x "$package" "$directory/root" || die "cannot unpack $package"
    done
    rm -rf "$directory/download"
    echo "$packages" > "$directory/complete"
}

# Finds a kernel in the content of a package, or in a directory of the user. Sets `release`,
# `version` (6.1 of 6.1.0-50-cloud-amd64), `modules` and `vmlinuz`.
find_kernel() {
    modules=$(ls -d "$1"/{lib,usr/lib,.}/modules/*/kernel 2> /dev/null | head -n 1)
    modules=${modules%/kernel}
    [ -n "$modules" ] || die "$1 has no lib/modules/RELEASE/kernel with a kernel's modules"
    vmlinuz=$(ls "$1"/boot/vmlinuz* "$modules"/vmlinuz* "$1"/vmlinuz* 2> /dev/null | head -n 1)
    [ -n "$vmlinuz" ] || die "$1 has no vmlinuz"
    release=${modules##*/}
    version=$(cut -d . -f 1,2 <<< "$release")
}

# Makes the initramfs, which mounts the guest's root file system, in the empty directory `run`.
make_initramfs() {
    local tree=$run/initramfs name module
    mkdir -p "$tree"/{proc,sys,dev,host,disk,new,bin,modules} "$run/base/lib/modules"
    cp /bin/busybox "$tree/bin/"
    install -m 755 "$here/guest/boot.sh" "$tree/init"
    ln -s "$modules" "$run/base/lib/modules/$release"
    [ -e "$modules/modules.dep" ] || depmod -b "$run/base" "$release"
    # Each module after those that it depends on; built-in ones have no file.
    for module in virtio_pci virtio_blk virtiofs overlay; do
        modprobe -d "$run/base" -S "$release" --show-depends $module ||
            die "the kernel $release has no $module"
    done > "$run/depends"
    sed -n 's/^insmod \([^ ]*\).*/\1/p' "$run/depends" | awk '!seen[$0]++' |
        while read -r module; do
            name=$(basename "${module%.ko*}").ko
            case $module in
                *.xz) xz -dc "$module" ;;
                *.zst) zstd -qdc "$module" ;;
                *.gz) gzip -dc "$module" ;;
                *) cat "$module" ;;
            esac > "$tree/modules/$name" || die "cannot unpack $module"
            echo "$name"
        done > "$tree/modules/list" || exit 1
    (cd "$tree" && find . | cpio --quiet -o -H newc) > "$run/initramfs.cpio" ||
        die "cannot make $run/initramfs.cpio"
}
