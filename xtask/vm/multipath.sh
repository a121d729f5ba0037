network
siw
modules sd_mod iscsi_tcp ib_srp dm_multipath dm_round_robin tcp_diag

# A path that is silent is given up soon, since there is another one, but not one that is slow on a loaded machine.
cat >>/etc/iscsi/iscsid.conf <<END
node.conn[0].timeo.noop_out_interval = 1
node.conn[0].timeo.noop_out_timeout = 4
node.session.timeo.replacement_timeout = 1
END
iscsi_login default
tcp=$disk
disk_before=$disk
srp_login $HOST_TOO
srp=$disk
for setting in reconnect_delay fast_io_fail_tmo; do
    echo 1 >"$(echo /sys/class/srp_remote_ports/port-*)/$setting"
done

unit=$(told "$tcp" device/wwid)
[ "$unit" = "$(told "$srp" device/wwid)" ]
step "two paths to $unit"
paths="$(told "$tcp" dev) 1 $(told "$srp" dev) 1"
# Without a queue: an error of both paths is one for fio.
dmsetup create unit --noudevsync --table "0 $(told "$tcp" size) multipath 0 0 1 1 round-robin 0 2 1 $paths"
load='--name=paths --rw=randwrite --bs=4k --size=4m'

# Has one round of the load follow the other until it is enough.
rounds() {
    while [ ! -e /tmp/enough ]; do
        verified $load --filename=/dev/dm-0 --verify_backlog=64
    done
}

# Cuts the path $1 to the host's address $3, while $2 goes on, and mends it.
cut_path() {
    step "the path by $1 is cut"
    ip route add blackhole "$3"
    # siw has no timer that is shorter than that of TCP, and SRP none at all.
    [ "$1" = "$tcp" ] || ss --kill --no-header dst "$3"
    until dmsetup status unit | grep -q "$(told "$1" dev) F"; do usleep 50000; done
    step "the path has failed: $(dmsetup status unit)"
    serves "$2" 200
    step "$2 goes on"
    ip route del blackhole "$3"
    until [ "$(told "$1" device/state)" = running ]; do usleep 50000; done
    step 'the path is back'
    # As multipathd does.
    dmsetup message unit 0 "reinstate_path $(told "$1" dev)"
    serves "$1" 200
    step "both go on: $(dmsetup status unit)"
}

rounds &
rounds=$!
serves "$tcp" 200
serves "$srp" 200
cut_path "$tcp" "$srp" $HOST
cut_path "$srp" "$tcp" $HOST_TOO
touch /tmp/enough
wait $rounds
dmsetup remove --noudevsync unit
for disk in "$tcp" "$srp"; do
    step "all that was written, read by $disk"
    verified $load --filename="$disk" --verify_only
done
srp_logout
disk=$tcp
iscsi_logout
