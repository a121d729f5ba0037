network
siw
modules ib_iser ib_srp
# ib_srp has added the link.
[ -d /sys/class/infiniband_srp/srp-siw0-1 ]
step 'ib_iser and ib_srp are loaded'
