# One disk through two gateways that share a Ceph image, under dm-multipath: what the scripts for `access = "one"` and `"all"` have in
# common. The disk has a file system and a load that verifies its writes, while things happen to gateways and cluster. No error reaches
# the file system, no byte is wrong, and the longest wait is printed.

path_of() {
    case $1 in a) echo "$path_a" ;; b) echo "$path_b" ;; esac
}

other() {
    case $1 in a) echo b ;; b) echo a ;; esac
}

# The exit status of TEST UNIT READY through a gateway, after pending unit attentions: 0, or 2 in standby.
readiness() {
    while :; do
        outcome=0
        sg_turs "$(path_of "$1")" >/dev/null 2>&1 || outcome=$?
        [ $outcome -eq 6 ] || break
    done
    echo $outcome
}

# Waits for a path's state, as shown by `multipath -ll`: of the device mapper, the checker and the kernel.
until_path() {
    until multipath -ll | grep -q " $(name "$(path_of "$1")") .* $2"; do usleep 500000; done
}

# The time in hundredths of a second.
now() {
    read -r uptime _ </proc/uptime
    echo "${uptime%.*}${uptime#*.}"
}

# Writes a block to the file system repeatedly. The longest wait is in /tmp/wait, in hundredths of a second.
probe() {
    while [ ! -e /tmp/enough ]; do
        begin=$(now)
        dd if=/dev/zero of=/mnt/probe bs=4k count=1 oflag=direct conv=notrunc 2>/tmp/dd || { cat /tmp/dd; false; }
        wait=$(($(now) - begin))
        [ $wait -le "$(cat /tmp/wait)" ] || echo $wait >/tmp/wait
        usleep 100000
    done
}

# Repeats the load until /tmp/enough exists.
rounds() {
    while [ ! -e /tmp/enough ]; do
        verified --name=load --filename=/mnt/load --rw=randwrite --bs=4k --size=4m --verify_backlog=64 >/dev/null
        echo >>/tmp/rounds
    done
}

# Runs something under the load, which must continue afterwards.
happens() {
    step "$1"
    shift
    echo 0 >/tmp/wait
    "$@"
    serves /dev/dm-0 400
    no_error
    step "the file system waited for $(($(cat /tmp/wait) * 10)) ms at most; $(wc -l </tmp/rounds) rounds of the load are verified"
}

# No error of a path has reached the file system.
no_error() {
    if dmesg | grep -E 'EXT4-fs (error|warning)|JBD2|Buffer I/O error|I/O error, dev dm'; then false; fi
    [ "$(cat /sys/fs/ext4/dm-0/errors_count)" = 0 ]
}

osd_killed() {
    host kill osd
    sleep 3
    host serve osd
}

# Logs in to both gateways. The commands of a session that has lost its connection fail after $seconds.
log_in() {
    network
    ip route add 198.18.0.0/15 via "$HOST"
    modules sd_mod ext4 iscsi_tcp scsi_dh_alua dm_multipath dm_service_time dm_round_robin
    cat >>/etc/iscsi/iscsid.conf <<END
node.conn[0].timeo.noop_out_interval = 5
node.conn[0].timeo.noop_out_timeout = 5
node.session.timeo.replacement_timeout = $seconds
END
    echo 'root:x:0:0:root:/tmp:/bin/sh' >/etc/passwd
    echo 'InitiatorName=iqn.2026-11.io.lunette:test' >/etc/iscsi/initiatorname.iscsi
    iscsid
    for number in 1 2; do
        iscsiadm --mode discovery --type sendtargets --portal 198.18.$number.2 --op new
    done
    iscsiadm --mode node --login
    until [ -b /dev/sda ] && [ -b /dev/sdb ]; do usleep 50000; done
    for disk in /dev/sda /dev/sdb; do
        session=$(readlink -f "/sys/block/$(name $disk)/device" | grep -o '.*/session[0-9]*')
        case $(cat "$session"/connection*/iscsi_connection/*/persistent_address) in
            198.18.1.2) path_a=$disk ;;
            198.18.2.2) path_b=$disk ;;
        esac
    done
    [ "$(attribute_of "$path_a" device/wwid)" = "$(attribute_of "$path_b" device/wwid)" ]
    step "gateway a is $path_a, gateway b is $path_b"
}

# Starts multipathd with a path selector.
start_multipathd() {
    # In place of udev.
    mkdir -p /run/udev/data
    unit=$(attribute_of "$path_a" device/wwid)
    for disk in $path_a $path_b; do
        printf 'I:1\nE:ID_SERIAL=3%s\nE:ID_WWN=0x%s\n' "${unit#naa.}" "${unit#naa.}" >"/run/udev/data/b$(attribute_of "$disk" dev)"
    done
    cat >/etc/multipath.conf <<END
defaults {
    find_multipaths off
    path_grouping_policy group_by_prio
    prio alua
    detect_prio no
    failback immediate
    polling_interval 5
    max_polling_interval 5
    no_path_retry 12
    path_selector "$1 0"
    fast_io_fail_tmo $seconds
}
END
    multipathd -d -s >/tmp/multipathd.log 2>&1 &
    multipathd=$!
    until [ -b /dev/dm-0 ]; do usleep 100000; done
    # It overrides what iscsid has set.
    for session in /sys/class/iscsi_session/session*; do [ "$(cat "$session/recovery_tmo")" = "$seconds" ]; done
}

# Creates the file system, and starts the load.
begin_load() {
    disk=/dev/dm-0
    fill
    mount -t ext4 $disk /mnt
    dd if=/dev/zero of=/mnt/probe bs=4k count=1 2>/dev/null
    sync
    echo 0 >/tmp/wait
    : >/tmp/rounds
    rounds &
    rounds=$!
    probe &
    probe=$!
}

# Ends the load, and verifies what is on the disk.
end_load() {
    touch /tmp/enough
    wait $rounds
    wait $probe
    umount /mnt
    step fsck.ext4
    fsck.ext4 -f -n $disk
    read_again
    multipath -ll
}
