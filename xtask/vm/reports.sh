network
siw
modules sd_mod iscsi_tcp ib_iser ib_srp

# One line of a report: the command as typed, and its result.
measured() {
    set -- --name=report --filename="$disk" --direct=1 --ioengine=libaio --group_reporting --time_based --runtime=3 "$@"
    echo "\$ fio $*"
    (cd /tmp && fio --eta=never "$@" >fio.log 2>&1) || { cat /tmp/fio.log; false; }
    grep -E '^ *(read|write):|^ +(lat|clat) .*avg=|^ +cpu ' /tmp/fio.log
}

# FastNetMon and LIO: 512 bytes, one job and 32. Zeta: 4K, 16K and 64K at queue depth 32.
report() {
    step "$1"
    for rw in randread randwrite; do
        measured --rw=$rw --bs=512 --iodepth=1 --numjobs=1
        measured --rw=$rw --bs=512 --iodepth=1 --numjobs=32
        for bs in 4k 16k 64k; do
            measured --rw=$rw --bs=$bs --iodepth=32 --numjobs=1
        done
    done
}

iscsi_login default
report 'iSCSI over TCP'
iscsi_logout
iscsi_login iser
report 'iSER over siw'
iscsi_logout
srp_login
report 'SRP over siw'
srp_logout
