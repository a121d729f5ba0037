network
siw
modules sd_mod iscsi_tcp ib_iser ib_srp dm_multipath dm_round_robin tcp_diag

# A silent path is abandoned soon, since there are others, but not one that is slow on a loaded machine.
cat >>/etc/iscsi/iscsid.conf <<END
node.conn[0].timeo.noop_out_interval = 1
node.conn[0].timeo.noop_out_timeout = 4
node.session.timeo.replacement_timeout = 1
END
iscsi_login default
tcp=$disk
disk_before=$tcp
srp_login $HOST_TOO
srp=$disk
disk_before="$tcp
$srp"
step 'login, interface iser'
iscsiadm --mode discovery --type sendtargets --portal "$HOST" --interface iser --op new
iscsiadm --mode node --interface iser --login
find_disk
iser=$disk
for setting in reconnect_delay fast_io_fail_tmo; do
    echo 1 >"$(echo /sys/class/srp_remote_ports/port-*)/$setting"
done

unit=$(attribute_of "$tcp" device/wwid)
for path in "$srp" "$iser"; do [ "$unit" = "$(attribute_of "$path" device/wwid)" ]; done
step "three paths to $unit"
paths="$(attribute_of "$tcp" dev) 1 $(attribute_of "$srp" dev) 1 $(attribute_of "$iser" dev) 1"
# Without queueing: an error on all paths is an error for fio.
dmsetup create unit --noudevsync --table "0 $(attribute_of "$tcp" size) multipath 0 0 1 1 round-robin 0 3 1 $paths"
load='--name=paths --rw=randwrite --bs=4k --size=4m'

# Repeats the load until /tmp/enough exists.
rounds() {
    while [ ! -e /tmp/enough ]; do
        verified $load --filename=/dev/dm-0 --verify_backlog=64
    done
}

# Cuts the paths $1 to the host's address $3, while the paths $2 continue, and restores them.
cut_off() {
    step "$1: cut"
    ip route add blackhole "$3"
    # siw has no timer shorter than TCP's, and SRP has none.
    [ "$1" != "$srp" ] || ss --kill --no-header dst "$3"
    for path in $1; do
        until dmsetup status unit | grep -q "$(attribute_of "$path" dev) F"; do usleep 50000; done
    done
    step "$1: failed: $(dmsetup status unit)"
    for path in $2; do serves "$path" 100; done
    step "$2: continue"
    ip route del blackhole "$3"
    for path in $1; do
        until [ "$(attribute_of "$path" device/state)" = running ]; do usleep 50000; done
        # As multipathd does.
        dmsetup message unit 0 "reinstate_path $(attribute_of "$path" dev)"
        serves "$path" 100
    done
    step "all paths are back: $(dmsetup status unit)"
}

rounds &
rounds=$!
for path in "$tcp" "$srp" "$iser"; do serves "$path" 100; done
cut_off "$tcp $iser" "$srp" $HOST
cut_off "$srp" "$tcp $iser" $HOST_TOO
touch /tmp/enough
wait $rounds
dmsetup remove --noudevsync unit
for disk in "$tcp" "$srp" "$iser"; do
    step "verifying all writes through $disk"
    verified $load --filename="$disk" --verify_only
done
disk=$srp
srp_logout
disk=$tcp
iscsi_logout
