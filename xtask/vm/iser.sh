network
siw
modules sd_mod ext4 ib_iser iscsi_tcp
iscsi_login iser
fill
iscsi_logout
step 'the same data over TCP'
iscsi_login default
read_again
iscsi_logout
