# nbd.sh KIND FIO_BYTES: a file system on a volume that the kernel's own client has connected.
. /vm/lib.sh
kind=$1

# The volume begins with what the origin had, and leaves it with what the file system wrote.
find_disks
yes "what the origin had" | head -c 4194304 >/run/known
must "fill the origin" dd if=/run/known of=$ORIGIN bs=1M conv=fsync
must "format" forebay format $CACHE --force
must "attach" forebay attach $CACHE $ORIGIN --name home --cache-mode writeback
serve
connect
head -c 4194304 $DEVICE | cmp - /run/known || failed "$kind: origin" "its content is not there"
ok "$kind: what the origin had is there"

make_file_system $kind $DEVICE
must "mount" mount -t $kind $DEVICE $MOUNT
fio() {
    command fio --name=$kind --filename=$MOUNT/fio --size=$2 --rw=randwrite --bsrange=4k-64k \
        --ioengine=libaio --direct=1 --iodepth=8 --verify=crc32c --verify_fatal=1 \
        --randseed=7 --thread --end_fsync=1 $1
}
must "$kind: fio" fio --do_verify=1 $2
ok "$kind: fio reads what it wrote"

# What is discarded is counted by the daemon, and the files beside it stay.
must "trim" cp /run/known $MOUNT/gone
must "trim" cp /run/known $MOUNT/kept
sync
rm $MOUNT/gone
sync
discards() {
    forebay status --json | grep -o '"discard_count": *[0-9]*'
}
before=$(discards)
must "$kind: trim" fstrim -v $MOUNT
cat /run/output
[ "$before" != "$(discards)" ] || failed "$kind: trim" "the daemon saw none: $before"
umount $MOUNT
check_file_system "$kind: sound after a trim" $kind $DEVICE
must "mount" mount -t $kind $DEVICE $MOUNT
must "$kind: fio" fio --verify_only $2
must "$kind: trim" cmp $MOUNT/kept /run/known
ok "$kind: a trim leaves files alone"

umount $MOUNT
disconnect
if [ $kind = ext4 ]; then
    # An origin that grows: a client of NBD sees it when it connects again.
    truncate -s 64M /run/more
    must "grow" forebay attach $CACHE /run/more --name more --cache-mode writeback
    connect more
    ext4_with_file
    must "grow" truncate -s 128M /run/more
    must "grow" forebay resize more
    cat /run/output
    must "grow" umount $MOUNT
    disconnect
    connect more
    [ "$(cat /sys/block/nbd0/size)" = 262144 ] || failed "grow" "$(cat /sys/block/nbd0/size)"
    must "grow" mount -t ext4 $DEVICE $MOUNT
    ext4_has_grown
    disconnect
    ok "an origin that grows"
    must "grow" forebay detach more
fi
must "$kind: detach" forebay detach home
must "$kind: stop" forebay stop
wait $DAEMON || failed "$kind: stop" "the daemon ended with $?"
check_file_system "$kind: the origin alone is sound" $kind $ORIGIN
must "mount" mount -t $kind $ORIGIN $MOUNT
must "$kind: origin" fio --verify_only $2
must "$kind: origin" cmp $MOUNT/kept /run/known
umount $MOUNT
ok "$kind: the origin alone has it all"
