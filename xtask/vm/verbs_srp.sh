network
rxe
modules sd_mod ext4 ib_srp iscsi_tcp
over_srp
