network
modules sd_mod iscsi_tcp
iscsi_login default
outage 'detected conn error' 2
iscsi_logout
