# vhost-user.sh SECONDS SECTORS MORE: a volume as the virtio disk of this guest, whose server runs
# outside of it.
#
# In the SECONDS after a line `kills begin` whoever runs the guest kills the server and starts it
# again, as often as it likes; the monitor reconnects. Nothing of that may be
# seen in here. At the line `grow begin` it makes the origin longer and grows the volume to SECTORS,
# which the disk here must show, with a file system on it that is in use. At the line `grow unseen
# begin` it does so with a server that the monitor has not reached yet, and to MORE.
. /vm/lib.sh
seconds=$1
sectors=$2
more=$3

# value FILE: of the disk's queue.
value() {
    cat "/sys/block/$disk/$1"
}

# load NAME SECONDS: writes with several jobs, flushes now and then, and reads all of it back.
load() {
    must "$1" fio --name=load --filename=/dev/"$disk" --direct=1 --ioengine=libaio --iodepth=16 \
        --numjobs=2 --size=16M --offset_increment=16M --rw=randwrite --bs=4k --fsync=64 \
        --time_based --runtime="$2" --verify=crc32c --do_verify=1 --verify_fatal=1
}

disk=
for candidate in /sys/block/vd*; do
    case $(cat "$candidate/serial" 2>/dev/null) in
    forebay-*) disk=${candidate##*/} ;;
    esac
done
[ -n "$disk" ] || failed "serial" "no virtio disk has a serial number of forebay's"
ok "serial"

[ "$(value queue/write_cache)" = "write back" ] || failed "flush" "the disk takes no flushes"
[ "$(value queue/discard_max_bytes)" -gt 0 ] || failed "discard" "the disk takes no discards"
[ "$(value queue/write_zeroes_max_bytes)" -gt 0 ] || failed "zeroes" "the disk writes no zeroes"
[ "$(value queue/physical_block_size)" = 4096 ] || failed "geometry" "of 4096 bytes are no blocks"
[ "$(value queue/minimum_io_size)" = 4096 ] || failed "geometry" "less is no smallest request"
[ "$(value queue/optimal_io_size)" = 4096 ] ||
    failed "geometry" "requests of $(value queue/optimal_io_size) bytes are said to be best"
queues=$(ls "/sys/block/$disk/mq" | wc -l)
[ "$queues" = 2 ] || failed "geometry" "it has $queues queues"
ok "geometry"

load "verify" 3
ok "verify"

# As many pages in a request as there may be, and few of them side by side.
must "large" fio --name=large --filename=/dev/"$disk" --direct=1 --rw=write --bs=1M --size=32M \
    --verify=crc32c --do_verify=1 --verify_fatal=1
ok "large requests"

must "discard" blkdiscard -o 0 -l 4194304 /dev/"$disk"
zeroes_are_written /dev/"$disk"
ok "discard and zeroes"

echo "kills begin"
load "kills" "$seconds"
ok "kills"

# A driver that leaves its device resets it: the rings stop, and start from nothing.
device=$(basename "$(readlink "/sys/block/$disk/device")")
driver=/sys/bus/virtio/drivers/virtio_blk
for _ in 1 2 3; do
    must "unbind" sh -c "echo $device >$driver/unbind"
    [ ! -e "/sys/block/$disk" ] || failed "unbind" "the disk is still there"
    must "bind" sh -c "echo $device >$driver/bind"
    [ -e "/sys/block/$disk" ] || failed "bind" "the disk does not come back"
    load "reset" 2
done
ok "reset"

must "mkfs" mkfs.ext4 -q -F /dev/"$disk"
modprobe ext4
must "mount" mount -t ext4 -o discard /dev/"$disk" $MOUNT
must "files" fio --name=files --directory=$MOUNT --size=8M --numjobs=2 --rw=randwrite --bs=4k \
    --end_fsync=1 --verify=crc32c --do_verify=1
ok "file system"

echo "kills begin"
must "kills" fio --name=mounted --directory=$MOUNT --size=8M --numjobs=2 --rw=randwrite --bs=4k \
    --fsync=32 --time_based --runtime="$seconds" --verify=crc32c --do_verify=1 --verify_fatal=1
ok "kills under a mounted file system"

# await_size SECTORS
await_size() {
    tries=0
    until [ "$(value size)" = "$1" ]; do
        tries=$((tries + 1))
        [ $tries -le $((PATIENCE * 10)) ] || failed "grow" "the disk has $(value size) sectors"
        sleep 0.1
    done
}

[ "$(value size)" -lt "$sectors" ] || failed "grow" "the disk has that size already"
must "fill" dd if=/dev/urandom of=/run/kept bs=65536 count=16
must "fill" cp /run/kept $MOUNT/kept
fio --name=beside --directory=$MOUNT --size=8M --rw=randwrite --bs=4k --fsync=64 --time_based \
    --runtime=12 --verify=crc32c --do_verify=1 --verify_fatal=1 >/run/beside 2>&1 &
beside=$!
echo "grow begin"
await_size "$sectors"
echo "grow end"
must "resize2fs" resize2fs /dev/"$disk"
kilobytes=$(df -k $MOUNT | tail -n 1 | awk '{ print $2 }')
[ "$kilobytes" -gt $((sectors / 4)) ] || failed "resize2fs" "the file system has $kilobytes KiB"
must "beyond" fio --name=beyond --directory=$MOUNT --size=16M --rw=write --bs=64k --end_fsync=1 \
    --verify=crc32c --do_verify=1 --verify_fatal=1
wait $beside || failed "grow" "what was written meanwhile: $(tail -n 5 /run/beside)"
must "kept" cmp $MOUNT/kept /run/kept
must "umount" umount $MOUNT
must "e2fsck" e2fsck -fn /dev/"$disk"
ok "grow"

echo "grow unseen begin"
await_size "$more"
ok "grow unseen"

if dmesg | grep -E 'I/O error|blk_update_request|hung task|blocked for more than'; then
    failed "kernel" "it complains about the disk"
fi
ok "kernel"
