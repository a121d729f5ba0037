# With `access = "one"`, set up as in docs/cluster.md: one gateway is active. It is killed, hangs for a minute, and is cut off on either
# side, the OSD is killed, and both gateways are restarted one after the other. Before that both paths make reservations, and after it
# SET TARGET PORT GROUPS moves the disk.

until_active() {
    until [ "$(readiness "$1")" = 0 ]; do usleep 200000; done
}

# Waits until a gateway is in standby and its path is usable as such.
until_standby() {
    until_path "$1" 'active ghost running'
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

restarted() {
    for gateway in "$(other "$(active)")" "$(active)"; do
        host stop "$gateway"
        until_active "$(other "$gateway")"
        host serve "$gateway"
        until_standby "$gateway"
    done
}

seconds=5
log_in
until gateway=$(active); do usleep 200000; done
step "$gateway is active"
start_multipathd service-time
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

begin_load
happens 'nothing, for comparison' sleep 10
happens 'the active gateway is killed, and comes back' killed
happens 'the active gateway hangs for a minute, and continues' hangs
happens 'the active gateway is cut off from the cluster' cut_off_from_cluster
happens 'the active gateway is cut off from the guest' cut_off_from_guests
happens 'the OSD is killed, and comes back' osd_killed
happens 'both gateways are restarted, one after the other' restarted
end_load

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
