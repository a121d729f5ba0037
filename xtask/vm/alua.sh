
# One disk through two portals, each a target port group (ALUA), under dm-multipath: commands follow the states of the groups, whether
# the administrator or the initiator sets them, and a portal is drained under load. No command fails, and all writes are verified.

export LUNETTE_ADMIN=/tmp/admin.sock

# A path's state according to the kernel's device handler.
state_of() {
    attribute_of "$1" device/access_state
}

# The priority and state of a path's group, as shown by `multipath -ll`.
group_of() {
    multipath -ll | awk -v path="$(name "$1")" '/policy=/ { group = $0 } $0 ~ " " path " " { sub(/.*prio=/, "prio=", group); print group }'
}

# Waits until a path is in a group with this priority and state.
until_group() {
    until [ "$(group_of "$1")" = "$2" ]; do usleep 100000; done
}

# From now on all commands use one path, and none the other.
goes_by() {
    serves "$1" 100
    before=$(served "$2")
    serves "$1" 200
    [ "$(served "$2")" = "$before" ]
    step "I/O uses $1"
    multipath -ll
}

network
modules sd_mod iscsi_tcp scsi_dh_alua dm_multipath dm_service_time
cat >/tmp/lunette.toml <<END
cores = "0"

[[portal]]
listen = "$HOST:3260"

[[portal]]
listen = "$HOST:3261"
group = 2

[[portal_group]]
group = 1
explicit = true

[[portal_group]]
group = 2
state = "active/non-optimized"
explicit = true

[[lun]]
name = "disk"
ram = "64M"
serial = "PATHS"

[[target]]
name = "iqn.2026-11.io.lunette:disk"
END
serve_as --config /tmp/lunette.toml --admin "$LUNETTE_ADMIN"

# A lost path is abandoned soon, since there is another.
cat >>/etc/iscsi/iscsid.conf <<END
node.session.timeo.replacement_timeout = 1
END
echo 'root:x:0:0:root:/tmp:/bin/sh' >/etc/passwd
echo 'InitiatorName=iqn.2026-11.io.lunette:test' >/etc/iscsi/initiatorname.iscsi
iscsid
iscsiadm --mode discovery --type sendtargets --portal "$HOST"
iscsiadm --mode node --login
until [ -b /dev/sda ] && [ -b /dev/sdb ]; do usleep 50000; done
for disk in /dev/sda /dev/sdb; do
    session=$(readlink -f "/sys/block/$(name $disk)/device" | grep -o '.*/session[0-9]*')
    case $(cat "$session"/connection*/iscsi_connection/*/persistent_port) in
        3260) first=$disk ;;
        3261) second=$disk ;;
    esac
done
until [ "$(state_of "$first")" = active/optimized ] && [ "$(state_of "$second")" = active/non-optimized ]; do
    usleep 50000
done
step "$first is $(state_of "$first"), $second is $(state_of "$second")"
sg_rtpg --decode "$second"

# In place of udev.
mkdir -p /run/udev/data
unit=$(attribute_of "$first" device/wwid)
for disk in $first $second; do
    printf 'I:1\nE:ID_SERIAL=3%s\nE:ID_WWN=0x%s\n' "${unit#naa.}" "${unit#naa.}" >"/run/udev/data/b$(attribute_of "$disk" dev)"
done
cat >/etc/multipath.conf <<END
defaults {
    find_multipaths off
    path_grouping_policy group_by_prio
    prio alua
    detect_prio no
    failback immediate
    polling_interval 1
    max_polling_interval 1
    no_path_retry fail
}
END
multipathd -d -s >/tmp/multipathd.log 2>&1 &
until [ -b /dev/dm-0 ]; do usleep 100000; done
# No group is active before the first command.
until_group "$first" 'prio=50 status=enabled'
until_group "$second" 'prio=10 status=enabled'
load='--name=paths --rw=randwrite --bs=4k --size=4m'

# Repeats the load until /tmp/enough exists.
rounds() {
    while [ ! -e /tmp/enough ]; do
        verified $load --filename=/dev/dm-0 --verify_backlog=64
    done
}

rounds &
rounds=$!
until_group "$first" 'prio=50 status=active'
goes_by "$first" "$second"

step 'the second portal becomes the preferred one'
lunette portal-group set 2 state=active/optimized
lunette portal-group set 1 state=standby
until_group "$second" 'prio=50 status=active'
goes_by "$second" "$first"
[ "$(state_of "$first")" = standby ]

step 'the initiator sets the states'
sg_stpg --state=0,1 --tp=1,2 "$second"
until_group "$first" 'prio=50 status=active'
goes_by "$first" "$second"

step 'the portal in use is drained'
lunette drain "$HOST:3260"
lunette status
goes_by "$second" "$first"
# The device handler has made the other group active/optimized.
[ "$(state_of "$second")" = active/optimized ]

step 'draining is cancelled: both paths are active/optimized'
lunette drain "$HOST:3260" --cancel
serves "$first" 100
serves "$second" 100
multipath -ll

touch /tmp/enough
wait $rounds
for disk in $first $second; do
    step "verifying all writes through $disk"
    verified $load --filename="$disk" --verify_only
done
iscsiadm --mode node --logout
stop
