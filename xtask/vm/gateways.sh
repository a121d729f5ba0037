# One disk through two gateways that share a Ceph image, under dm-multipath with ALUA, set up as in docs/cluster.md. It has a file system
# and a load that verifies its writes, while the active gateway is killed, hangs for a minute, and is cut off on either side, the OSD is
# killed, and both gateways are restarted one after the other. No error reaches the file system, no byte is wrong, and the longest wait
# is printed. Before that both paths make reservations, and after it SET TARGET PORT GROUPS moves the disk.

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

until_active() {
    until [ "$(readiness "$1")" = 0 ]; do usleep 200000; done
}

# Waits until a gateway is in standby and its path is usable as such.
until_standby() {
    until_path "$1" 'active ghost running'
}

# Waits for a path's state, as shown by `multipath -ll`: of the device mapper, the checker and the kernel.
until_path() {
    until multipath -ll | grep -q " $(name "$(path_of "$1")") .* $2"; do usleep 500000; done
}

# The active gateway.
active() {
    for gateway in a b; do
        if [ "$(readiness $gateway)" = 0 ]; then
            echo $gateway
            return
        fi
    done
    false
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

killed() {
    gateway=$(active)
    host kill "$gateway"
    until_active "$(other "$gateway")"
    host serve "$gateway"
    until_standby "$gateway"
}

hangs() {
    gateway=$(active)
    host freeze "$gateway"
    until_active "$(other "$gateway")"
    step "gateway $(other "$gateway") is active"
    sleep 60
    host continue "$gateway"
    until_standby "$gateway"
}

cut_off_from_cluster() {
    gateway=$(active)
    host cut cluster "$gateway"
    until_active "$(other "$gateway")"
    step "gateway $(other "$gateway") is active"
    until_standby "$gateway"
    host mend cluster "$gateway"
}

# The disk does not move: hosts wait until the path is back, or the administrator moves it.
cut_off_from_guests() {
    gateway=$(active)
    host cut guests "$gateway"
    until_path "$gateway" 'failed faulty'
    sleep 5
    host mend guests "$gateway"
    until_path "$gateway" 'active ready running'
}

osd_killed() {
    host kill osd
    sleep 3
    host serve osd
}

restarted() {
    for gateway in "$(other "$(active)")" "$(active)"; do
        host stop "$gateway"
        until_active "$(other "$gateway")"
        host serve "$gateway"
        until_standby "$gateway"
    done
}

network
ip route add 198.18.0.0/15 via "$HOST"
modules sd_mod ext4 iscsi_tcp scsi_dh_alua dm_multipath dm_service_time
cat >>/etc/iscsi/iscsid.conf <<END
node.conn[0].timeo.noop_out_interval = 5
node.conn[0].timeo.noop_out_timeout = 5
node.session.timeo.replacement_timeout = 5
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
until gateway=$(active); do usleep 200000; done
step "gateway a is $path_a, gateway b is $path_b; $gateway is active"

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
}
END
multipathd -d -s >/tmp/multipathd.log 2>&1 &
multipathd=$!
until [ -b /dev/dm-0 ]; do usleep 100000; done
until_standby "$(other "$gateway")"
multipath -ll

step 'the target port groups as each gateway reports them'
for path in $path_a $path_b; do sg_rtpg --decode "$path"; done

step 'registrations by both paths, and a reservation by the one in standby'
active_path=$(path_of "$gateway")
standby_path=$(path_of "$(other "$gateway")")
sg_persist --out --register --param-sark=0x1234 "$active_path"
sg_persist --out --register --param-sark=0x5678 "$standby_path"
sg_persist --out --reserve --param-rk=0x5678 --prout-type=5 "$standby_path"
for path in $path_a $path_b; do
    # What one gateway does, the other one shows a little later.
    until sg_persist --in --read-reservation "$path" | grep -q 'Key=0x5678'; do usleep 200000; done
    sg_persist --in --read-keys "$path"
    sg_persist --in --read-reservation "$path"
done
step 'preempted by the active path, and preempted again by the one in standby'
sg_persist --out --preempt --param-rk=0x1234 --param-sark=0x5678 --prout-type=5 "$active_path"
until sg_persist --in --read-reservation "$standby_path" | grep -q 'Key=0x1234'; do usleep 200000; done
readiness "$(other "$gateway")"
sg_persist --out --register --param-sark=0x5678 "$standby_path"
sg_persist --out --preempt-abort --param-rk=0x5678 --param-sark=0x1234 --prout-type=5 "$standby_path"
until sg_persist --in --read-reservation "$active_path" | grep -q 'Key=0x5678'; do usleep 200000; done
readiness "$gateway"
sg_persist --out --clear --param-rk=0x5678 "$standby_path"

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
happens 'nothing, for comparison' sleep 10
happens 'the active gateway is killed, and comes back' killed
happens 'the active gateway hangs for a minute, and continues' hangs
happens 'the active gateway is cut off from the cluster' cut_off_from_cluster
happens 'the active gateway is cut off from the guest' cut_off_from_guests
happens 'the OSD is killed, and comes back' osd_killed
happens 'both gateways are restarted, one after the other' restarted
touch /tmp/enough
wait $rounds
wait $probe
umount /mnt
step fsck.ext4
fsck.ext4 -f -n $disk
read_again
multipath -ll

step 'the initiator moves the disk'
# What would use the paths meanwhile.
kill $multipathd
wait $multipathd || true
multipath -F
host explicit a
host explicit b
gateway=$(active)
next=$(other "$gateway")
case $next in a) states='--state=0,2 --tp=1,2' ;; b) states='--state=2,0 --tp=1,2' ;; esac
# It stays where it is for six times the takeover time after it has moved. sg_stpg's exit status is 0 then, too.
until [ "$(readiness "$next")" = 0 ]; do
    # shellcheck disable=SC2086
    sg_stpg $states "$(path_of "$next")"
    sleep 2
done
[ "$(readiness "$gateway")" = 2 ]
for path in $path_a $path_b; do sg_rtpg --decode "$path"; done
