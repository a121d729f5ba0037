network
modules ext4 aoe
aoe_login
fill
read_again
: >/tmp/err
outage 'retransmit ' 2 'cat /tmp/err'
