network
modules sd_mod iscsi_tcp
iscsi_login default
outage 'detected conn error' 5
iscsi_logout
