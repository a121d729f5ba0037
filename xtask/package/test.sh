#!/bin/bash
# What is done with the package on a Debian machine, in a root of its own: test.sh ROOT.tar FIRST.deb NEXT.deb, started in
# namespaces of its own. systemd does not run there: the daemon is started as its unit would.
set -euo pipefail

archive=$1 first=$2 next=$3
root=$(mktemp -d)
daemon=

step() { echo "package: $*"; }
fail() { echo "package: FAILED: $*" >&2; [ ! -e "$root/tmp/log" ] || cat "$root/tmp/log" >&2; exit 1; }
within() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
finish() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    umount -l "$root" || true
    rmdir "$root"
}
trap finish EXIT

# A value of the unit; of those that are given more than once, all.
unit() { sed -n "s/^$1=//p" "$root/lib/systemd/system/lunette.service"; }

# Starts it as the unit does: user, no capability, limits, folders, environment, the command itself.
start() {
    [ -z "$(unit CapabilityBoundingSet)$(unit AmbientCapabilities)" ] || fail "the unit has capabilities"
    within install -d -o lunette -g lunette /run/lunette
    within install -d -o lunette -g lunette -m "$(unit StateDirectoryMode)" /var/lib/lunette
    rm -f "$root/run/notify"
    mkfifo "$root/tmp/banner.$1"
    : >"$root/tmp/log"
    chmod 666 "$root/tmp/log"
    # A container may not raise it.
    local files=$(unit LimitNOFILE) most=$(ulimit -Hn) environment command
    [ "$most" = unlimited ] || [ "$files" -le "$most" ] || files=$most
    environment=$(unit Environment)
    command=$(unit ExecStart)
    chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin "$environment" prlimit --nofile="$files" \
        setpriv --reuid="$(unit User)" --regid="$(unit Group)" --init-groups --inh-caps=-all --ambient-caps=-all \
        --bounding-set=-all --no-new-privs $command >"$root/tmp/banner.$1" 2>"$root/tmp/log" &
    daemon=$!
    # It ends without this line if it does not serve.
    grep -q -m 1 '^Ready' "$root/tmp/banner.$1" || fail "it does not serve"
}

stop() {
    kill "$daemon"
    wait "$daemon" || fail "it ended with status $?"
    daemon=
}

mount -t tmpfs -o mode=755,size=2G none "$root"
tar -C "$root" -xf "$archive"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
ip link set lo up
cp "$first" "$root/tmp/first.deb"
cp "$next" "$root/tmp/next.deb"
within systemd-machine-id-setup >/dev/null 2>&1

step "install"
within dpkg --install /tmp/first.deb >"$root/tmp/dpkg" 2>&1 || { cat "$root/tmp/dpkg"; fail "dpkg --install"; }
[ "$(within stat -c '%U:%G %a' /etc/lunette/lunette.toml)" = "root:lunette 640" ] || fail "owner or mode of the file"
[ -L "$root/etc/systemd/system/multi-user.target.wants/lunette.service" ] || fail "the unit is not enabled"
within lunette check /etc/lunette/lunette.toml

step "unit"
within systemd-analyze verify --man=yes lunette.service || fail "systemd-analyze verify"
within systemd-analyze security --offline=true /lib/systemd/system/lunette.service >"$root/tmp/security"
tail -n 1 "$root/tmp/security"
grep -q '^→ Overall exposure.* OK' "$root/tmp/security" || fail "systemd-analyze security does not say OK"
within systemd-analyze syscall-filter @aio | grep -q io_uring_enter || fail "@aio has no io_uring"

step "manual pages and completions"
for page in "$root"/usr/share/man/man[15]/lunette*.gz; do
    name=${page#"$root"}
    zcat "$page" >"$root/tmp/page"
    within mandoc -T lint -W error /tmp/page || fail "$name"
    within man -l -E UTF-8 --warnings=w "$name" >"$root/tmp/shown" 2>"$root/tmp/warnings" || fail "man -l $name"
    [ -s "$root/tmp/shown" ] && [ ! -s "$root/tmp/warnings" ] || { cat "$root/tmp/warnings"; fail "man -l $name"; }
done
within bash -n /usr/share/bash-completion/completions/lunette

step "serve, change, reload"
start first
within lunette discover iscsi://127.0.0.1 | grep -q iqn.2026-11.io.lunette:disk || fail "discovery"
export LUNETTE_ADMIN=/run/lunette/lunette.sock
within lunette lun add file:/var/lib/lunette/disk.img,size=64M,name=disk || fail "lunette lun add"
grep -q '^name = "disk"' "$root/etc/lunette/lunette.toml" || fail "the file has no new LUN"
[ "$(within stat -c %U /var/lib/lunette/disk.img)" = lunette ] || fail "the disk's owner"
sed -i 's/^ram = "64M"/ram = "64M"\nread_only = true/' "$root/etc/lunette/lunette.toml"
# As the unit reloads: as its user.
within env "$(unit Environment)" setpriv --reuid=lunette --regid=lunette --init-groups --inh-caps=-all \
    --bounding-set=-all $(unit ExecReload) || fail "lunette reload"
within lunette lun list | grep -q disk || fail "lunette lun list"

step "upgrade under load"
url=iscsi://127.0.0.1/iqn.2026-11.io.lunette:disk/1
within lunette bench "$url" --rw randwrite --bs 4K --iodepth 4 --runtime 8s --json >"$root/tmp/bench" 2>"$root/tmp/bench.log" &
load=$!
# A session that writes: until then there is nothing that could come back.
until [ -s "$root/tmp/log" ] && grep -q 'logged in' "$root/tmp/log"; do kill -0 "$load" || fail "no load"; sleep 0.1; done
within dpkg --install /tmp/next.deb >"$root/tmp/dpkg" 2>&1 || { cat "$root/tmp/dpkg"; fail "upgrade"; }
within dpkg-query -W -f '${Version}' lunette | grep -q next || fail "the version"
grep -q '^name = "disk"' "$root/etc/lunette/lunette.toml" || fail "the upgrade has replaced the file"
stop
start next
wait "$load" || { cat "$root/tmp/bench.log"; fail "the session did not come back"; }
grep -q 'logged in' "$root/tmp/log" || fail "no session has come back"
stop

step "purge"
within dpkg --purge lunette >"$root/tmp/dpkg" 2>&1 || { cat "$root/tmp/dpkg"; fail "purge"; }
[ -e "$root/var/lib/lunette/disk.img" ] || fail "a disk was removed"
within getent passwd lunette >/dev/null || fail "the disk has lost its owner"
left=$(find "$root/etc" "$root/usr" "$root/run" "$root/var/lib/lunette" -iname '*lunette*' ! -path '*/dpkg/*' ! -path "$root/var/lib/lunette" || true)
[ -z "$left" ] || fail "left behind: $left"
rm "$root/var/lib/lunette/disk.img"
within dpkg --install /tmp/next.deb >"$root/tmp/dpkg" 2>&1
within dpkg --purge lunette >"$root/tmp/dpkg" 2>&1
! [ -e "$root/var/lib/lunette" ] || fail "/var/lib/lunette is left"
! within getent passwd lunette || fail "the user is left"
step "passed"
