#!/bin/busybox sh
# The guest's first process: sets up the system, runs the scenario, and reports the outcome to the host.

/bin/busybox --install -s /bin
export PATH=/sbin:/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
ip link set lo up

# Discards the boot messages.
dmesg -c >/dev/null

# SIGKILL: a hung process may not react to anything else.
timeout -s KILL "$(cat /limit)" sh -e -c '. /guest.sh; . /scenario.sh'
status=$?
if [ $status -eq 0 ]; then
    echo 'host: passed'
else
    [ $status -ne 137 ] || echo "-- timed out after $(cat /limit) s"
    echo '-- end of the kernel log'
    dmesg | tail -n 20
    echo 'host: failed'
fi
poweroff -f
