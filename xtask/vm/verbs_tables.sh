network
rxe
modules sd_mod ext4 iscsi_tcp
# Without memory registration most commands have descriptor tables, which do not fit into the command.
/sbin/modprobe ib_srp never_register=Y cmd_sg_entries=1 indirect_sg_entries=128 allow_ext_sg=Y
serve --srp "$HOST:3260" --srp-guid "$GUID"
step 'login over SRP'
echo "id_ext=$GUID,ioc_guid=$GUID,dest=$HOST:3260" >/sys/class/infiniband_srp/srp-rxe0-1/add_target
find_disk
step 'many tables at once'
verified --name=deep --filename="$disk" --rw=randwrite --bs=64k --iodepth=16 --size=16m
srp_logout
by_device SRP
stop
