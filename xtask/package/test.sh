#!/bin/bash
# Tests the package in a Debian system: test.sh ROOT.tar FIRST.deb NEXT.deb, run in separate namespaces, in which systemd boots that
# root.
set -euo pipefail

archive=$1 first=$2 next=$3
root=$(mktemp -d)
boot= init=

step() { echo "package: $*"; }
fail() {
    echo "package: FAILED: $*" >&2
    within journalctl --quiet --no-pager --lines=60 >&2 || true
    exit 1
}
finish() {
    [ -z "$boot" ] || kill -KILL "$boot" 2>/dev/null || true
    wait "$boot" 2>/dev/null || true
    rm -f "$root.boot"
    umount -l "$root" || true
    rmdir "$root"
}
trap finish EXIT

# Runs a command in that system, as root.
within() {
    nsenter --target "$init" --mount --uts --ipc --net --pid --root --wd \
        /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LUNETTE_ADMIN=/run/lunette/lunette.sock "$@"
}

# Runs a command, and prints its output only if it fails.
quietly() { within "$@" >"$root/opt/quiet" 2>&1 || { cat "$root/opt/quiet" >&2; fail "$*"; }; }

# A property of the service.
of_unit() { within systemctl show --property "$1" --value lunette; }

# Waits until the load is logged in to the current daemon.
load_is_logged_in() {
    until within journalctl --quiet "_PID=$(of_unit MainPID)" | grep -q 'logged in'; do
        kill -0 "$load" || fail "the load ended: $(cat "$root/opt/bench.log")"
        sleep 0.1
    done
}

# Waits until systemd has restarted the daemon whose PID was $1.
restarted_from() {
    until [ "$(of_unit ActiveState)" = active ] && [ "$(of_unit MainPID)" != "$1" ]; do
        [ "$(of_unit ActiveState)" != failed ] || fail "the daemon was not restarted"
        sleep 0.1
    done
}

mount -t tmpfs -o mode=755,size=2G none "$root"
mount -t tmpfs none /run
tar -C "$root" -xf "$archive"
cp "$first" "$root/opt/first.deb"
cp "$next" "$root/opt/next.deb"
SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn --quiet --boot --register=no --keep-unit --private-network --console=pipe \
    --machine=debian --directory="$root" </dev/null >"$root.boot" 2>&1 &
boot=$!
until init=$(pgrep --parent "$boot" --exact systemd) && within test -S /run/systemd/private; do
    kill -0 "$boot" || { cat "$root.boot"; exit 1; }
    sleep 0.1
done
rm "$root.boot"
within systemctl is-system-running --wait >/dev/null || true

step "install: $(within systemctl --version | head -n 1)"
quietly dpkg --install /opt/first.deb
[ "$(within stat -c '%U:%G %a' /etc/lunette/lunette.toml)" = "root:lunette 640" ] || fail "owner or mode of lunette.toml"
within systemctl is-enabled --quiet lunette || fail "the unit is not enabled"
within systemctl is-active --quiet lunette || fail "the unit was not started"
within lunette check /etc/lunette/lunette.toml
within lunette status || fail "lunette status"
for example in admin.conf aoe.conf block.conf rdma.conf lunette.socket lunette.rules.yml lunette.json; do
    [ -s "$root/usr/share/doc/lunette/examples/$example" ] || fail "no example $example"
done

step "unit"
within systemd-analyze verify --man=yes lunette.service || fail "systemd-analyze verify"
within systemd-analyze security --offline=true /lib/systemd/system/lunette.service >"$root/opt/security"
tail -n 1 "$root/opt/security"
grep -q '^→ Overall exposure.* OK' "$root/opt/security" || fail "systemd-analyze security does not say OK"
of_unit StatusText | grep -q '^serving 1 LUN of 1 target at 1 portal' || fail "READY=1 was sent without a status"

step "manual pages and completions"
for page in "$root"/usr/share/man/man[15]/lunette*.gz; do
    name=${page#"$root"}
    zcat "$page" >"$root/opt/page"
    within mandoc -T lint -W error /opt/page || fail "$name"
    within man -l -E UTF-8 --warnings=w "$name" >"$root/opt/shown" 2>"$root/opt/warnings" || fail "man -l $name"
    [ -s "$root/opt/shown" ] && [ ! -s "$root/opt/warnings" ] || { cat "$root/opt/warnings"; fail "man -l $name"; }
done
within bash -n /usr/share/bash-completion/completions/lunette

step "sandbox"
status=$(within cat "/proc/$(of_unit MainPID)/status")
for line in "Uid: *$(within id -u lunette)" 'CapEff: *0*$' 'CapBnd: *0*$' 'NoNewPrivs: *1' 'Seccomp: *2'; do
    tr '\t' ' ' <<<"$status" | grep -q "^$line" || fail "/proc/PID/status lacks $line"
done
within install -d -m 777 /var/anyone
within lunette lun add file:/var/anyone/disk.img,size=1M,name=other >"$root/opt/refusal" 2>&1 && fail "the daemon can write to /var"
grep -q 'Read-only file system' "$root/opt/refusal" || fail "$(cat "$root/opt/refusal")"

step "change, reload"
within lunette discover iscsi://127.0.0.1 | grep -q iqn.2026-11.io.lunette:disk || fail "discovery"
quietly lunette lun add file:/var/lib/lunette/disk.img,size=64M,name=disk
grep -q '^name = "disk"' "$root/etc/lunette/lunette.toml" || fail "lunette.toml lacks the new LUN"
[ "$(within stat -c %U /var/lib/lunette/disk.img)" = lunette ] || fail "the disk's owner"
sed -i 's/^ram = "64M"/ram = "64M"\nread_only = true/' "$root/etc/lunette/lunette.toml"
quietly systemctl reload lunette
within lunette lun list | grep -q disk || fail "lunette lun list"
sed -i.valid '$a nonsense = 1' "$root/etc/lunette/lunette.toml"
within systemctl reload lunette 2>/dev/null && fail "an invalid file was reloaded"
of_unit StatusText | grep -q 'the last reload was refused' || fail "the status does not mention the refused reload"
within cp /etc/lunette/lunette.toml.valid /etc/lunette/lunette.toml
quietly systemctl reload lunette

step "upgrade under load"
within mkdir -p /run/systemd/system/lunette.service.d
within sh -c 'printf "[Service]\nWatchdogSec=5\n" >/run/systemd/system/lunette.service.d/watchdog.conf; systemctl daemon-reload'
# Ended by the signal below.
within lunette bench iscsi://127.0.0.1/iqn.2026-11.io.lunette:disk/1 --rw randwrite --bs 4K --iodepth 4 --runtime 10m --json \
    >"$root/opt/bench" 2>"$root/opt/bench.log" &
load=$!
load_is_logged_in
before=$(of_unit MainPID)
quietly dpkg --install /opt/next.deb
within dpkg-query -W -f '${Version}' lunette | grep -q next || fail "the version was not upgraded"
grep -q '^name = "disk"' "$root/etc/lunette/lunette.toml" || fail "the upgrade replaced lunette.toml"
restarted_from "$before"
load_is_logged_in

step "restart on failure, and by the watchdog, under load"
within systemctl reset-failed lunette
for signal in KILL STOP; do
    before=$(of_unit MainPID)
    within kill -$signal "$before"
    restarted_from "$before"
    load_is_logged_in
done
within journalctl --quiet --unit lunette | grep -q 'Watchdog timeout' || fail "the watchdog did not fire"
within pkill -INT --full '^lunette bench' || fail "the load ended: $(cat "$root/opt/bench.log")"
wait "$load" || [ $? = 130 ] || fail "the session did not recover: $(cat "$root/opt/bench.log")"

step "socket activation"
within systemctl reset-failed lunette
within systemctl stop lunette
within cp /usr/share/doc/lunette/examples/lunette.socket /etc/systemd/system/
within systemctl daemon-reload
quietly systemctl enable --now lunette.socket
within systemctl is-active --quiet lunette && fail "the daemon runs before a connection"
within lunette discover iscsi://127.0.0.1 | grep -q iqn.2026-11.io.lunette:disk || fail "discovery by socket activation"
within systemctl is-active --quiet lunette || fail "the daemon does not run"
within systemctl disable --quiet --now lunette.socket
within rm /etc/systemd/system/lunette.socket

step "invalid configuration"
within systemctl reset-failed lunette
sed -i '$a nonsense = 1' "$root/etc/lunette/lunette.toml"
within systemctl restart lunette 2>/dev/null && fail "the daemon starts with an invalid file"
[ "$(of_unit ActiveState) $(of_unit ExecMainStatus) $(of_unit NRestarts)" = "failed 2 0" ] || fail "the daemon is restarted repeatedly"
within mv /etc/lunette/lunette.toml.valid /etc/lunette/lunette.toml
within systemctl reset-failed lunette
quietly systemctl start lunette

step "purge"
quietly dpkg --purge lunette
within systemctl is-active --quiet lunette && fail "the daemon still runs"
[ -e "$root/var/lib/lunette/disk.img" ] || fail "a disk was removed"
[ "$(within stat -c %U /var/lib/lunette/disk.img)" = lunette ] || fail "the disk lost its owner"
left=$(find "$root/etc" "$root/usr" "$root/var/lib/lunette" -iname '*lunette*' ! -path '*/dpkg/*' ! -path "$root/var/lib/lunette" || true)
[ -z "$left" ] || fail "left behind: $left"
rm "$root/var/lib/lunette/disk.img"
quietly dpkg --install /opt/next.deb
quietly dpkg --purge lunette
! [ -e "$root/var/lib/lunette" ] || fail "/var/lib/lunette was not removed"
step "passed"
