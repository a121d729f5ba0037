# The daemon and Linux's initiators in the guest, on one software RDMA device.

HOST=192.0.2.2

trap 'echo "-- log of the daemon"; cat /tmp/daemon.log' EXIT

# RoCE in software.
rxe() {
    modules rdma_rxe rdma_ucm
    rdma link add rxe0 type rxe netdev eth0
    until rdma link show rxe0/1 | grep 'state ACTIVE'; do usleep 50000; done
}

# Serves a disk in memory, also over RDMA devices.
serve() {
    serve_as --rdma --listen "$HOST:3260" --cores 0 --lun ram:256M "$@"
}

serve_as() {
    step "lunette serve $*"
    lunette serve "$@" >/tmp/banner 2>>/tmp/daemon.log &
    daemon=$!
    until grep -q '^Ready' /tmp/banner; do
        kill -0 "$daemon"
        usleep 50000
    done
}

# Stops the daemon.
stop() {
    step 'the daemon is stopped'
    kill "$daemon"
    wait "$daemon"
}

# The session uses a device, not TCP.
by_device() {
    grep "transport=\"$1, device\"" /tmp/daemon.log
}
