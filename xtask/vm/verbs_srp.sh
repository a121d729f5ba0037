network
rxe
modules sd_mod ext4 ib_srp iscsi_tcp
serve --srp "$HOST:3260" --srp-guid "$GUID"
step 'login over SRP'
echo "id_ext=$GUID,ioc_guid=$GUID,dest=$HOST:3260" >/sys/class/infiniband_srp/srp-rxe0-1/add_target
find_disk
fill
srp_logout
by_device SRP
step 'the same data over TCP'
iscsi_login default
read_again
iscsi_logout
stop
