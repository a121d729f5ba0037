network
siw
modules rdma_ucm sd_mod ext4 ib_iser ib_srp
# The device's connections are TCP connections: both cannot listen on one port.
cat >/tmp/lunette.toml <<END
cores = "0"
srp_guid = "$GUID"
[[portal]]
listen = "$HOST:3260"
transports = ["iser", "srp"]
rdma = "only"
[[lun]]
ram = "256M"
[[target]]
name = "iqn.2026-11.io.lunette:disk"
END
# siw applies this limit to memory registrations, even root's.
ulimit -l unlimited
serve_as --config /tmp/lunette.toml
srp_login
fill
srp_logout
by_device SRP
step 'the same data over iSER'
iscsi_login iser
read_again
fill
iscsi_logout
by_device iSER
step 'an initiator in user space'
lunette inquiry "iser://$HOST/iqn.2026-11.io.lunette:disk/0" | head -n 5
stop
