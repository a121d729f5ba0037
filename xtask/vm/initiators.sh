# Runs a tool on the disk; it must neither fail nor print a warning.
checked() {
    step "$*"
    "$@" >/tmp/printed 2>&1 || { cat /tmp/printed; false; }
    cat /tmp/printed
    if grep -E 'failed|FAILED|[Ww]arning|Error:|[Ii]nvalid' /tmp/printed; then false; fi
}

# Each of these patterns must be in the tool's output.
printed() {
    for pattern in "$@"; do grep -q "$pattern" /tmp/printed || { step "not printed: $pattern"; false; }; done
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
# The driver supports only one of its requests, so hdparm exits with an error.
step "hdparm -i $disk"
hdparm -i $disk >/tmp/printed || true
cat /tmp/printed
printed 'Model=LUNETTE Virtual Disk, ' 'LBAsects=524288$' 'WriteCache=enabled'
serial=$(sed -n 's/.*SerialNo=//p' /tmp/printed)

iscsi_login default
checked smartctl -d sat -x "$disk"
printed 'Model: *LUNETTE Virtual Disk$' "Serial Number: *$serial$" 'Capacity: *268,435,456 bytes' \
    '512 bytes logical, 4096 bytes physical' 'SMART support is: Enabled' 'Write cache is: *Enabled' \
    'overall-health self-assessment test result: PASSED' 'General Purpose Log Directory Version 1' \
    'SMART Extended Comprehensive Error Log Version: 1' 'No Errors Logged' 'No self-tests have been logged'
checked smartctl -d sat,12 -H "$disk"
printed 'test result: PASSED'
checked hdparm -I "$disk"
printed 'Model Number: *LUNETTE Virtual Disk' "Serial Number: *$serial" 'LBA48  user addressable sectors: *524288$' \
    'SMART feature set' 'General Purpose Logging feature set' 'Checksum: correct'
checked hdparm -C "$disk"
printed 'active/idle'
read_again
outage 'detected conn error' 2
iscsi_logout
