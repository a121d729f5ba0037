# Functions for the scenarios' scripts, which run in busybox's shell with `set -e`.

# Addresses of the host, once network() has run.
HOST=192.0.2.1
HOST_TOO=192.0.2.3
# The GUID of its SRP target port.
GUID=024c750000000001

# Prints the next step.
step() {
    echo "-- $(cut -d ' ' -f 1 /proc/uptime) s: $*"
}

# Commands for the host: kill, serve.
host() {
    echo "host: $*"
}

# With its path, since busybox would use its own applet.
modules() {
    /sbin/modprobe -a "$@"
}

network() {
    modules virtio_pci virtio_net
    ip link set eth0 mtu "$(cat /mtu)" up
    ip address add 192.0.2.2/24 dev eth0
}

# iWARP in software, over the network.
siw() {
    modules siw
    rdma link add siw0 type siw netdev eth0
    until rdma link show siw0/1 | grep 'state ACTIVE'; do usleep 50000; done
}

# Logs in to the host's target over an interface of iscsiadm (default, iser), and sets $disk.
iscsi_login() {
    step "login, interface $1"
    if ! pidof iscsid >/dev/null; then
        # It accepts requests only from the user named root.
        echo 'root:x:0:0:root:/tmp:/bin/sh' >/etc/passwd
        echo 'InitiatorName=iqn.2026-11.io.lunette:test' >/etc/iscsi/initiatorname.iscsi
        iscsid
    fi
    iscsiadm --mode discovery --type sendtargets --portal "$HOST" --interface "$1"
    iscsiadm --mode node --login
    find_disk
}

iscsi_logout() {
    step logout
    iscsiadm --mode node --logout
    iscsiadm --mode node --op delete
    while [ -b "$disk" ]; do usleep 50000; done
}

# Logs in over SRP with the line that the daemon prints, by default at $HOST, and sets $disk.
srp_login() {
    step 'login over SRP'
    echo "id_ext=$GUID,ioc_guid=$GUID,dest=${1:-$HOST}:3260" >/sys/class/infiniband_srp/srp-siw0-1/add_target
    find_disk
    grep . /sys/class/scsi_host/host*/ch_count
}

srp_logout() {
    step logout
    echo 1 >"$(echo /sys/class/srp_remote_ports/port-*)/delete"
    while [ -b "$disk" ]; do usleep 50000; done
}

# Discovers the host's disk over AoE, and sets $disk.
aoe_login() {
    step 'discovery over AoE'
    # The driver reports retransmissions there.
    cat /dev/etherd/err >>/tmp/err &
    echo >/dev/etherd/discover
    disk=/dev/etherd/e1.1
    until [ -b $disk ]; do usleep 50000; done
    step "$disk: $(attribute_of $disk state), $(attribute_of $disk size) sectors, $(attribute_of $disk payload) bytes per frame"
}

# Waits for a disk that is not in $disk_before, and sets $disk.
find_disk() {
    until disk=$(ls /dev/sd[a-z] 2>/dev/null | grep -vx "${disk_before:-none}"); do usleep 50000; done
    step "$disk: $(attribute_of "$disk" device/model), $(attribute_of "$disk" size) sectors"
}

# An attribute of a disk in sysfs.
attribute_of() {
    cat "/sys/block/$(name "$1")/$2"
}

# The kernel's own name of a disk.
name() {
    echo "${1#/dev/}" | tr / '!'
}

# The number of commands that a disk has completed.
served() {
    awk '{ print $1 + $5 }' "/sys/block/$(name "$1")/stat"
}

# Waits until a disk has completed $2 more commands.
serves() {
    enough=$(($(served "$1") + $2))
    until [ "$(served "$1")" -ge $enough ]; do usleep 50000; done
}

# Creates a file system on $disk, copies a tree to it, has fio verify its writes there, and runs fsck.
# The checksums of the tree's files are in /tmp/sums.
fill() {
    step mkfs.ext4
    mkfs.ext4 -q -F "$disk"
    mount -t ext4 "$disk" /mnt
    step 'a copied tree'
    (cd / && find bin sbin lib/modules -type f -exec sha256sum '{}' +) >/tmp/sums
    [ -s /tmp/sums ]
    cp -a /bin /sbin /mnt
    mkdir /mnt/lib
    cp -a /lib/modules /mnt/lib
    sync
    step 'verified writes to files'
    # Two jobs of one fio: in an emulated machine its start takes half as long as the writes.
    verified --directory=/mnt --name=file --rw=randwrite --bs=4k --size=4m \
        --name=large --rw=write --bs=256k --size=16m
    umount /mnt
    step fsck.ext4
    fsck.ext4 -f -n "$disk"
}

# Verifies the tree that fill() copied, without the page cache.
read_again() {
    step 'verifying the tree'
    echo 3 >/proc/sys/vm/drop_caches
    mount -t ext4 -o ro "$disk" /mnt
    (cd /mnt && sha256sum -c /tmp/sums) >/tmp/checked || { grep -v ': OK$' /tmp/checked; false; }
    echo "$(wc -l </tmp/checked) files are unchanged"
    umount /mnt
}

# Runs fio with direct I/O; it verifies all its writes.
verified() {
    (cd /tmp && fio --direct=1 --ioengine=libaio --iodepth=8 --verify=crc32c --verify_fatal=1 --verify_state_save=0 \
        --group_reporting --eta=never "$@" >fio.log 2>&1) || { head -n 20 /tmp/fio.log; false; }
    grep -E '^ *(READ|WRITE):|^ +lat .*max=' /tmp/fio.log
}

# Has the daemon killed while fio writes to $disk and verifies, and restarted after $2 seconds. The initiator must notice, which a line
# with $1 in its log shows ($3, by default the kernel's), and recover automatically.
outage() {
    step "verified writes to $disk"
    load="--name=outage --filename=$disk --rw=randwrite --bs=4k --size=8m --rate_iops=500"
    verified $load --verify_backlog=64 &
    fio=$!
    serves "$disk" 200
    step 'the daemon is killed'
    host kill
    until ${3:-dmesg} | grep -q "$1"; do usleep 50000; done
    step 'the initiator has noticed'
    sleep "$2"
    pidof fio >/dev/null
    host serve
    step 'the daemon is restarted'
    wait "$fio"
    step 'verifying all writes'
    verified $load --verify_only
}
