# fsx.sh FRONT OPERATIONS KILLS: random operations on a file of ext4, on one of xfs, and on the block
# device itself, each compared with what fsx expects while it works, and in the end with a plain file
# that took the same operations. The server is killed KILLS times under each, which only devices of
# ublk outlive.
. /vm/lib.sh
front=$1
operations=$2
kills=$3

PATIENCE=120
BYTES=4194304
PLAIN=/run/plain

# exercise NAME TARGET CONFIG: every few operations read from the device again, since the kernel is
# made to forget what it has; the server is killed at another moment each time.
exercise() {
    fsx -f $3 -N $operations -S $seed -P /run $2 >/run/fsx.out 2>&1 &
    exerciser=$!
    killed=0
    while kill -0 $exerciser; do
        echo 3 >/proc/sys/vm/drop_caches
        usleep $((50000 + killed * 7919 % 23 * 10000))
        if [ $killed -lt $kills ]; then
            kill -9 $DAEMON
            wait $DAEMON
            serve_ublk --ublk home=0
            killed=$((killed + 1))
        fi
    done 2>/run/killed
    wait $exerciser || failed "$1" "seed $seed: $(tail -n 20 /run/fsx.out)"
    [ $killed = $kills ] || failed "$1" "it ended after $killed kills, before all of them"
    must "$1" fsx -f $3 -N $operations -S $seed -P /run $PLAIN
}

# compare NAME FILE OPTION...: with the plain file, by cmp with these options.
compare() {
    what=$1
    shift
    [ "$(stat -c %s $PLAIN)" -gt 0 ] || failed "$what" "the plain file is empty"
    cmp "$@" $PLAIN || failed "$what" "seed $seed: the files differ"
    ok "$what: $operations operations, $kills kills, seed $seed"
}

weights() {
    cat <<END
invalidate = 1
read = 10
write = 10
mapread = 5
mapwrite = 5
fsync = 1
fdatasync = 1
punch_hole = 2
posix_fadvise = 1
END
}

{
    echo "flen = $BYTES"
    echo "[opsize]"
    echo "max = 131072"
    echo "[weights]"
    weights
    echo "close_open = 1"
    echo "truncate = 2"
    echo "posix_fallocate = 1"
    echo "copy_file_range = 1"
} >/run/file.toml
{
    echo "flen = $BYTES"
    echo "blockmode = true"
    echo "nosizechecks = true"
    echo "[opsize]"
    echo "max = 131072"
    # Less than a logical block is not taken by an operation on a block device that makes holes.
    echo "align = 4096"
    echo "[weights]"
    weights
    echo "truncate = 0"
} >/run/device.toml

find_disks
rm -rf $STATE
must "format" forebay format $CACHE --force
must "attach" forebay attach $CACHE $ORIGIN --name home --cache-mode writeback
begin $front
for kind in ext4 xfs; do
    seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
    rm -f $PLAIN
    make_file_system $kind $DEVICE
    must "mount" mount -t $kind $DEVICE $MOUNT
    exercise "fsx on $kind, $front" $MOUNT/exercised /run/file.toml
    must "unmount" umount $MOUNT
    must "mount" mount -t $kind $DEVICE $MOUNT
    compare "fsx on $kind, $front" $MOUNT/exercised
    must "unmount" umount $MOUNT
    check_file_system "fsck of $kind, $front" $kind $DEVICE
done

seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
rm -f $PLAIN
truncate -s $BYTES $PLAIN
# Both begin with the same content.
must "zeroes" dd if=/dev/zero of=$DEVICE bs=$BYTES count=1 conv=fsync
exercise "fsx on the device, $front" $DEVICE /run/device.toml
sync
echo 3 >/proc/sys/vm/drop_caches
compare "fsx on the device, $front" -n $BYTES $DEVICE
[ $front = ublk ] || disconnect
stop
must "check" forebay check $CACHE
no_errors "kernel log"
