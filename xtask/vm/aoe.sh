network
modules ext4 aoe
aoe_login
fill
read_again
