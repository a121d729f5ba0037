# With `access = "all"`, set up as in docs/cluster.md: both gateways are active/optimized, and the host uses both at the same time. Each is
# killed, and restarted at once or later, one hangs for a minute, and is cut off on either side, the OSD is killed, and both gateways are
# restarted one after the other. Before that both paths make reservations.

# Waits until a path is used.
until_used() {
    until_path "$1" 'active ready running'
}

# The host abandons the path long before the gateway comes back.
killed() {
    host kill "$1"
    until_path "$1" 'failed faulty'
    serves /dev/dm-0 400
    host serve "$1"
    until_used "$1"
}

# It comes back within the time for which the host waits.
restarted_at_once() {
    host kill "$1"
    sleep 3
    host serve "$1"
    until_used "$1"
}

hangs() {
    host freeze "$1"
    sleep 60
    host continue "$1"
    until_used "$1"
}

# Until the host uses only the other path. A gateway that is cut off from the cluster answers neither the commands that it has in hand nor
# their aborts, so that they fail only when the host has ended the session, and waited for it: after almost two minutes.
cut_off() {
    host cut "$1" "$2"
    sleep 20
    serves /dev/dm-0 2000
    multipath -ll
    host mend "$1" "$2"
    until_used "$2"
}

restarted() {
    for gateway in a b; do
        host stop "$gateway"
        host serve "$gateway"
        until_used "$gateway"
    done
}

# Twice the takeover time, osd_map_delay, and three seconds.
seconds=30
log_in
for gateway in a b; do until [ "$(readiness $gateway)" = 0 ]; do usleep 200000; done; done
start_multipathd round-robin
for gateway in a b; do until_used $gateway; done
multipath -ll

step 'the target port groups as each gateway reports them'
for path in $path_a $path_b; do
    sg_rtpg --decode "$path" >/tmp/groups
    cat /tmp/groups
    [ "$(grep -c '(active/optimized)' /tmp/groups)" = 2 ]
done

# Prints the registered keys and the reservation by a path. The other gateway's are there at once.
reservations() {
    sg_persist --in --read-keys "$1"
    sg_persist --in --read-reservation "$1"
}

step 'registrations by both paths, and a reservation by one of them'
sg_persist --out --register --param-sark=0x1234 "$path_a"
sg_persist --out --register --param-sark=0x5678 "$path_b"
sg_persist --out --reserve --param-rk=0x5678 --prout-type=5 "$path_b"
for path in $path_a $path_b; do
    reservations "$path" | tee /tmp/reservations
    grep -q ' 0x1234$' /tmp/reservations
    grep -q 'Key=0x5678' /tmp/reservations
done
step 'preempted by either path'
sg_persist --out --preempt --param-rk=0x1234 --param-sark=0x5678 --prout-type=5 "$path_a"
readiness b
reservations "$path_b" | grep -q 'Key=0x1234'
sg_persist --out --register --param-sark=0x5678 "$path_b"
sg_persist --out --preempt-abort --param-rk=0x5678 --param-sark=0x1234 --prout-type=5 "$path_b"
readiness a
reservations "$path_a" | grep -q 'Key=0x5678'
sg_persist --out --clear --param-rk=0x5678 "$path_b"

begin_load
before_a=$(served "$path_a")
before_b=$(served "$path_b")
happens 'nothing, for comparison' sleep 10
step "commands by path a: $(($(served "$path_a") - before_a)), by path b: $(($(served "$path_b") - before_b))"
happens 'gateway a is killed, and comes back when the host has abandoned its path' killed a
happens 'gateway b is killed, and comes back when the host has abandoned its path' killed b
happens 'gateway a is killed, and restarted at once' restarted_at_once a
happens 'gateway a hangs for a minute, and continues' hangs a
happens 'gateway b is cut off from the cluster' cut_off cluster b
happens 'gateway a is cut off from the guest' cut_off guests a
happens 'the OSD is killed, and comes back' osd_killed
happens 'both gateways are restarted, one after the other' restarted
end_load
