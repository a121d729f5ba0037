network
rxe
modules sd_mod ext4 iscsi_tcp
# Memory is not registered, so that most commands have tables of descriptors, which do not fit into them.
/sbin/modprobe ib_srp never_register=Y cmd_sg_entries=1 indirect_sg_entries=128 allow_ext_sg=Y
over_srp
