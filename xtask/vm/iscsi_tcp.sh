network
modules sd_mod ext4 iscsi_tcp
iscsi_login default
fill
iscsi_logout
iscsi_login default
read_again
iscsi_logout
