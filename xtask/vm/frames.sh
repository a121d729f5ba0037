network
siw
modules sd_mod iscsi_tcp ib_iser ib_srp

# Differs in each 64 bytes of a block, and is easy to describe.
awk 'BEGIN { for (n = 0; n < 256; n++) for (i = 0; i < 64; i++) printf "%c", 33 + n % 94 }' >/tmp/pattern
[ "$(wc -c </tmp/pattern)" -eq 16384 ]

# A read of zeros; a write with its data in the message, and one whose data is also fetched; then both are read back. One by one, so that
# the frames always have this order.
commands() {
    step 'commands'
    dd if="$disk" of=/tmp/zeros iflag=direct bs=8k count=1 skip=1
    dd if=/tmp/pattern of="$disk" oflag=direct bs=4k count=1 seek=8
    dd if=/tmp/pattern of="$disk" oflag=direct bs=16k count=1 seek=3
    dd if="$disk" of=/tmp/read iflag=direct bs=16k count=1 skip=3
    cmp /tmp/pattern /tmp/read
}

# SRP uses one channel for the commands of one processor.
taskset -p 1 $$
iscsi_login iser
commands
iscsi_logout
srp_login
commands
srp_logout
