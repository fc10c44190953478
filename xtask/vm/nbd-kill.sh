# nbd-kill.sh KIND ROUNDS FILES: the daemon is killed under load again and again, on a file system.
#
# The kernel's client does not find back to a daemon that died: what is mounted has to be taken down
# before it is connected again. Requests that were in flight wait until the connection is given up,
# and whoever waits for them cannot even be killed, so that comes first.
. /vm/lib.sh
. /vm/ledger.sh
kind=$1
rounds=$2
files=$3

load() {
    fio --name=load --filename=$MOUNT/load --size=32M --rw=randrw --bsrange=4k-64k --direct=1 \
        --ioengine=libaio --iodepth=8 --thread --time_based --runtime=600
}

last_synced() {
    sed -n '$s/^synced //p' /run/ledger
}

# has_synced NUMBER: this file or a later one.
has_synced() {
    [ "$(last_synced)" -ge $1 ]
}

prepare $kind nbd
last=0
round=1
while [ $round -le $rounds ]; do
    load >/run/load 2>&1 &
    loader=$!
    write_ledger $((last + 1)) >/run/ledger &
    writer=$!
    # Another moment in each round.
    goal=$((last + files + round * 7 % files))
    until_true "round $round: files" has_synced $goal
    kill -9 $DAEMON
    nbd-client -d $DEVICE
    wait $writer
    wait $loader
    last=$(last_synced)
    must "unmount" umount $MOUNT
    until_true "disconnect" [ ! -e /sys/block/nbd0/pid ]
    must "check" forebay check $CACHE
    serve
    connect
    replay $kind
    must "mount" mount -t $kind $DEVICE $MOUNT
    look_at_ledger "$kind, kill $round: $goal files synced" $last
    must "unmount" umount $MOUNT
    check_file_system "$kind, kill $round: sound" $kind $DEVICE
    must "mount" mount -t $kind $DEVICE $MOUNT
    round=$((round + 1))
done
must "unmount" umount $MOUNT
disconnect
must "stop" forebay stop
