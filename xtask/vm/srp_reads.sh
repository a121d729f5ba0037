network
siw
modules sd_mod ext4 iscsi_tcp
/sbin/modprobe ib_srp use_imm_data=N
srp_login
fill
srp_logout
step 'the same data over TCP'
iscsi_login default
read_again
iscsi_logout
