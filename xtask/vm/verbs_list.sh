network
step 'lunette rdma, without a device'
modules rdma_ucm
lunette rdma
rxe
siw
step 'lunette rdma, with two'
lunette rdma | tee /tmp/devices
grep -A 8 '^rxe0: RoCE' /tmp/devices >/tmp/rxe
grep 'port 1: active, Ethernet' /tmp/rxe
grep 'send with invalidate: yes, fast registration: yes' /tmp/rxe
grep -A 8 '^siw0: iWARP' /tmp/devices | grep 'port 1: active, Ethernet'
step 'without the libraries'
rm /lib/x86_64-linux-gnu/libibverbs.so.1
if lunette rdma 2>/tmp/missing; then false; fi
grep 'apt install libibverbs1 librdmacm1 ibverbs-providers' /tmp/missing
if lunette serve --rdma --listen "$HOST:3260" 2>/tmp/missing; then false; fi
grep 'without --rdma' /tmp/missing
lunette serve --listen "$HOST:3260" --cores 0 >/tmp/banner 2>/tmp/daemon.log &
until grep -q '^Ready' /tmp/banner; do kill -0 $!; usleep 50000; done
kill $!
wait $!
