network
siw
modules sd_mod ib_iser
iscsi_login iser
outage 'detected conn error' 2
iscsi_logout
