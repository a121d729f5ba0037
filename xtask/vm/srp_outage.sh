network
siw
modules sd_mod ib_srp
srp_login
outage 'received DREQ' 2
srp_logout
