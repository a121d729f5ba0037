network
siw
modules sd_mod iscsi_tcp ib_iser ib_srp

# Different in each 64 bytes of a block, and short to write down.
awk 'BEGIN { for (n = 0; n < 256; n++) for (i = 0; i < 64; i++) printf "%c", 33 + n % 94 }' >/tmp/pattern
[ "$(wc -c </tmp/pattern)" -eq 16384 ]

# A read of zeros; a write inside a message, and one that is fetched too; what they wrote, read again. One after the
# other, so that the frames always have this order.
commands() {
    step 'commands'
    dd if="$disk" of=/tmp/zeros iflag=direct bs=8k count=1 skip=1
    dd if=/tmp/pattern of="$disk" oflag=direct bs=4k count=1 seek=8
    dd if=/tmp/pattern of="$disk" oflag=direct bs=16k count=1 seek=3
    dd if="$disk" of=/tmp/read iflag=direct bs=16k count=1 skip=3
    cmp /tmp/pattern /tmp/read
}

# Commands of one processor go over one channel of SRP.
taskset -p 1 $$
iscsi_login iser
commands
iscsi_logout
srp_login
commands
srp_logout
