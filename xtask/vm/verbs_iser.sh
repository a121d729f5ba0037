network
rxe
modules sd_mod ext4 ib_iser iscsi_tcp
serve
iscsi_login iser
fill
iscsi_logout
by_device iSER
step 'the same data over TCP'
iscsi_login default
read_again
iscsi_logout
stop
