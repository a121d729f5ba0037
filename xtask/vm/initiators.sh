# What a tool says of the disk, which it has to do without complaint.
asks() {
    step "$*"
    "$@" >/tmp/said 2>&1 || { cat /tmp/said; false; }
    cat /tmp/said
    if grep -E 'failed|FAILED|[Ww]arning|Error:|[Ii]nvalid' /tmp/said; then false; fi
}

# Each of these has to be in what was said.
said() {
    for words in "$@"; do grep -q "$words" /tmp/said || { step "it is not said: $words"; false; }; done
}

network
siw
modules sd_mod ext4 iscsi_tcp ib_iser ib_srp aoe

iscsi_login default
fill
iscsi_logout

iscsi_login iser
read_again
fill
iscsi_logout

srp_login
read_again
fill
srp_logout

aoe_login
read_again
fill
# The driver answers one of its questions; hdparm ends as if it had failed.
step "hdparm -i $disk"
hdparm -i $disk >/tmp/said || true
cat /tmp/said
said 'Model=LUNETTE Virtual Disk, ' 'LBAsects=524288$' 'WriteCache=enabled'
serial=$(sed -n 's/.*SerialNo=//p' /tmp/said)

iscsi_login default
asks smartctl -d sat -x "$disk"
said 'Model: *LUNETTE Virtual Disk$' "Serial Number: *$serial$" 'Capacity: *268,435,456 bytes' \
    '512 bytes logical, 4096 bytes physical' 'SMART support is: Enabled' 'Write cache is: *Enabled' \
    'overall-health self-assessment test result: PASSED' 'General Purpose Log Directory Version 1' \
    'SMART Extended Comprehensive Error Log Version: 1' 'No Errors Logged' 'No self-tests have been logged'
asks smartctl -d sat,12 -H "$disk"
said 'test result: PASSED'
asks hdparm -I "$disk"
said 'Model Number: *LUNETTE Virtual Disk' "Serial Number: *$serial" 'LBA48  user addressable sectors: *524288$' \
    'SMART feature set' 'General Purpose Logging feature set' 'Checksum: correct'
asks hdparm -C "$disk"
said 'active/idle'
read_again
outage 'detected conn error' 2
iscsi_logout
