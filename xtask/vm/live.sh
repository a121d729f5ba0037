
# LUNs are added and grow, a thin one exceeds its threshold, and a store fills up, while Linux's initiator is logged in: its kernel and
# sg3_utils must see this. Stores and daemon are in the guest.

export LUNETTE_ADMIN=/tmp/admin.sock

# Reads from a disk until the kernel logs this text: a unit attention is reported with a command.
reported() {
    until dmesg | grep -q "$2"; do
        echo 3 >/proc/sys/vm/drop_caches
        dd if="$1" of=/dev/null bs=4k count=1 2>/dev/null
        usleep 50000
    done
    dmesg | grep "$2" | tail -n 1
}

# Rescans, without a new login, until a disk has this many MiB.
rescan() {
    iscsiadm --mode session --rescan >/dev/null
    until [ -b "$1" ] && [ "$(attribute_of "$1" size)" = $(($2 << 11)) ]; do usleep 50000; done
    step "$1: $2 MiB"
}

# The used space of a disk according to sg_logs.
used() {
    sg_logs --page=0xc "$1" | awk '/[Uu]sed/ { for (i = 1; i <= NF; i++) if ($i ~ /^[0-9]+$/) print $i }' | head -n 1
}

network
modules sd_mod ext4 iscsi_tcp
mkdir /srv /full
mount -t tmpfs -o size=128m tmpfs /srv
mount -t tmpfs -o size=16m tmpfs /full
serve_as --listen "$HOST:3260" --cores 0 --admin "$LUNETTE_ADMIN" --lun file:/srv/disk,size=64M,serial=FIRST,name=first
iscsi_login default
first=$disk
session=$(ls /sys/class/iscsi_session)

step 'a LUN is added'
lunette lun add 'ram:64M,name=thin,warn_at=50%'
reported "$first" 'LUN assignments on this target have changed'
rescan /dev/sdb 64

step 'a disk grows'
lunette lun resize first 96M
reported "$first" 'Capacity data has changed'
rescan "$first" 96
verified --name=grown --filename="$first" --rw=write --bs=64k --offset=64m --size=16m

step 'a thin disk exceeds its threshold'
sg_modes --page=0x1c,2 /dev/sdb
[ "$(used /dev/sdb)" = 0 ]
verified --name=thin --filename=/dev/sdb --rw=write --bs=256k --size=40m
reported /dev/sdb 'thin provisioning soft threshold'
sg_logs --page=0xc /dev/sdb
[ "$(used /dev/sdb)" -gt 0 ]
sg_turs /dev/sdb

step 'a store fills up'
lunette lun add file:/full/disk,size=64M,serial=FULL,name=full
rescan /dev/sdc 64
if dd if=/dev/zero of=/dev/sdc bs=64k count=512 conv=fsync 2>/tmp/full; then false; fi
cat /tmp/full
dmesg | grep 'Sense Key : Data Protect' | tail -n 1
dmesg | grep 'Add. Sense: Space allocation failed write protect' | tail -n 1
verified --name=others --filename="$first" --rw=randwrite --bs=4k --size=4m

step 'the session is still the first one'
[ "$(ls /sys/class/iscsi_session)" = "$session" ]
if dmesg | grep 'connection[0-9:]*: detected conn error'; then false; fi
iscsiadm --mode node --logout
stop
