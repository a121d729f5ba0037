network
rxe
# librdmacm releases a removed device only if another one exists.
rdma link add rxe1 type rxe netdev lo
modules sd_mod ib_iser
serve
iscsi_login iser
load="--name=outage --filename=$disk --rw=randwrite --bs=4k --size=8m --rate_iops=300"
verified $load --verify_backlog=64 &
fio=$!
until [ "$(awk '{ print $5 }' "/sys/block/${disk#/dev/}/stat")" -gt 100 ]; do usleep 50000; done
step 'the device is removed'
# The initiator uses this device, too, and ib_iser fails queued commands when it is removed (DID_ABORT, an error for fio), so the
# queue must be empty.
kill -STOP $(pidof fio)
until awk '{ exit $1 + $2 }' "/sys/block/${disk#/dev/}/inflight"; do usleep 10000; done
rdma link delete rxe0
kill -CONT $(pidof fio)
grep 'the RDMA device that listened there was removed' /tmp/daemon.log
until grep 'session 2 ended' /tmp/daemon.log; do usleep 50000; done
kill -0 "$daemon"
pidof fio >/dev/null
step 'the device is back'
rdma link add rxe0 type rxe netdev eth0
until grep 'an RDMA device listens again' /tmp/daemon.log; do usleep 50000; done
wait "$fio"
step 'verifying all writes'
verified $load --verify_only
by_device iSER
iscsi_logout
stop
