network
modules sd_mod ext4 aoe iscsi_tcp
aoe_login
fill
iscsi_login default
read_again
iscsi_logout
