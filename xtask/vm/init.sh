#!/bin/busybox sh
# The guest's first process: makes it usable, plays the scenario, and reports to the host how that ended.

/bin/busybox --install -s /bin
export PATH=/sbin:/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
ip link set lo up

# What the kernel said until here is of no use to a reader.
dmesg -c >/dev/null

# Killed, not asked: what hangs may not listen.
timeout -s KILL "$(cat /limit)" sh -e -c '. /guest.sh; . /scenario.sh'
status=$?
if [ $status -eq 0 ]; then
    echo 'host: passed'
else
    [ $status -ne 137 ] || echo "-- not done in $(cat /limit) s"
    echo '-- the last lines of the kernel log'
    dmesg | tail -n 20
    echo 'host: failed'
fi
poweroff -f
