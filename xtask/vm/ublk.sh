# ublk.sh ROUNDS: a volume as a block device of the kernel, on ext4: its use, its server killed
# ROUNDS times under load, stops and starts, and what is refused.
. /vm/lib.sh
rounds=$1

DEVICE=/dev/ublkb0
# A kill may come at any of its steps, so a start waits for more than elsewhere.
PATIENCE=120

queue() {
    cat /sys/block/ublkb0/queue/$1
}

# is_queue NAME VALUE
is_queue() {
    [ "$(queue $1)" = "$2" ] || failed "limits" "$1 is $(queue $1) and should be $2"
}

TRACING=/sys/kernel/tracing
HITS=4096

# hits: reads what is cached, at random.
hits() {
    command fio --name=hits --filename=$DEVICE --size=4M --rw=randread --bs=4k --loops=$((HITS / 1024)) \
        --direct=1 --ioengine=libaio --iodepth=4 --thread
}

# thread_of NAME: the daemon's thread of this name.
thread_of() {
    grep -lx $1 /proc/$DAEMON/task/*/comm | cut -d / -f 5
}

# allocations_of COMMAND...: runs it, and sets ALLOCATIONS to how many were probed meanwhile.
allocations_of() {
    echo >$TRACING/trace
    echo 1 >$TRACING/events/allocators/enable
    must "allocations" "$@"
    echo 0 >$TRACING/events/allocators/enable
    ALLOCATIONS=$(grep -vc '^#' $TRACING/trace)
}

# outlived NAME: the next server has the device whole, and takes it away when it stops.
outlived() {
    serve_ublk --ublk home=0
    must "fsck" e2fsck -f -n $DEVICE
    stop
    [ ! -e $DEVICE ] || failed "$1" "the device is still there"
    ok "$1"
}

find_disks
rm -rf $STATE
modprobe ext4
must "format" forebay format $CACHE
must "attach" forebay attach $CACHE $ORIGIN --name home --cache-mode writeback

# Without the driver.
refused "no driver" 4 "modprobe ublk_drv" \
    forebay serve $CACHE --state-dir $STATE --ublk home=0
must "driver" modprobe ublk_drv
# By somebody who is not root.
mkdir -p /etc
echo "nobody:x:65534:65534:::" >>/etc/passwd
truncate -s 16M /run/mine
chown nobody /run/mine
refused "no permission" 1 "needs root" start-stop-daemon -S -c nobody -x "$(command -v forebay)" \
    -- serve --bare mine=/run/mine --ublk mine=0
refused "no such volume" 4 "no .away. to serve" \
    forebay serve $CACHE --state-dir $STATE --ublk away=0

# What the kernel knows of the device.
serve_ublk --ublk home=0
[ "$(cat /sys/block/ublkb0/size)" = "$(cat /sys/block/${ORIGIN##*/}/size)" ] ||
    failed "limits" "the size is $(cat /sys/block/ublkb0/size)"
is_queue logical_block_size 512
is_queue physical_block_size 4096
is_queue write_cache "write back"
is_queue fua 1
is_queue discard_granularity 4096
is_queue max_hw_sectors_kb 1024
[ $(queue write_zeroes_max_bytes) -gt 0 ] || failed "limits" "no write zeroes"
ok "limits"

# A file system, its use, its state.
must "mkfs" mkfs.ext4 -q -b 4096 $DEVICE
must "mount" mount -t ext4 $DEVICE $MOUNT
must "verify" fio_verify verify $MOUNT/verify 24M
ok "verify"
rm $MOUNT/verify
must "fstrim" fstrim -v $MOUNT
cat /run/output
discards=$(awk '{ print $12 }' /sys/block/ublkb0/stat)
[ $discards -gt 0 ] || failed "fstrim" "no discard came to the device"
ok "fstrim"
must "fallocate" sh -c "dd if=/dev/urandom of=$MOUNT/zeroes bs=1M count=8 2>&1 && sync &&
    fallocate -l 8388608 $MOUNT/other"
must "unmount" umount $MOUNT
must "fsck" e2fsck -f -n $DEVICE
ok "fsck"
must "block device" fio_verify whole $DEVICE 16M
before=$(number write_zeroes_count)
zeroes_are_written $DEVICE
# The kernel would write them itself if it were told that they cannot be.
[ $(number write_zeroes_count) -gt $before ] || failed "zeroes" "the kernel has written them"
ok "zeroes"

# A hit allocates nothing: probes of the kernel count what the thread that serves asks the C library
# for. What it does from time to time may, which is nothing to as many requests; writeback may, too,
# so nothing is dirty.
must "cached" dd if=/dev/urandom of=$DEVICE bs=1M count=4 oflag=direct
must "drain" forebay drain home
must "hits" hits
must "probes" mount -t tracefs tracefs $TRACING
cat /vm/allocators >$TRACING/uprobe_events || failed "probes" "$(cat $TRACING/error_log)"
thread_of shard >$TRACING/set_event_pid
allocations_of forebay status --json
[ $ALLOCATIONS -gt 0 ] || failed "probes" "a question to the daemon was answered without any"
allocations_of hits
[ $ALLOCATIONS -lt $((HITS / 100)) ] || failed "allocations" "$ALLOCATIONS in $HITS hits"
echo >$TRACING/uprobe_events
must "writeback again" forebay set home cache_mode=writeback
ok "$HITS hits allocate nothing ($ALLOCATIONS meanwhile)"
must "mkfs" mkfs.ext4 -q -b 4096 $DEVICE
must "mount" mount -t ext4 $DEVICE $MOUNT

# The server is killed under load, at another moment in each round.
rm -f /run/enough
load >/run/load 2>&1 &
LOADER=$!
round=1
while [ $round -le $rounds ]; do
    before=$(writes)
    until_true "round $round: load" has_written_since $before $((20 + round * 37 % 90))
    kill -9 $DAEMON
    wait $DAEMON
    serve_ublk --ublk home=0
    round=$((round + 1))
done 2>/run/killed
before=$(writes)
until_true "after the kills: load" has_written_since $before 20
touch /run/enough
wait $LOADER || failed "kills" "$(tail -n 20 /run/load)"
[ $(grep -c 'taken over' /run/serve.err) -ge $rounds ] || failed "kills" "not taken over each time"
grep -c 'err= 0' /run/load
ok "$rounds kills under load, no error and no wrong byte"
must "unmount" umount $MOUNT
must "fsck after the kills" e2fsck -f -n $DEVICE
ok "fsck after the kills"
no_errors "kernel log after the kills"

# A device that is not in use goes with its server.
stop
[ ! -e $DEVICE ] && [ ! -e /dev/ublkc0 ] || failed "stop" "the device is still there"
ok "stop removes the device"
must "check" forebay check $CACHE
ok "check"

# One that is in use waits for the next server.
serve_ublk --ublk home
must "mount" mount -t ext4 $DEVICE $MOUNT
echo before >$MOUNT/before
sync
stop
grep -q 'is kept' /run/serve.err || failed "kept" "$(tail -n 5 /run/serve.err)"
[ -b $DEVICE ] || failed "kept" "the device is gone"
(echo during >$MOUNT/during && sync $MOUNT/during && touch /run/during) &
WRITER=$!
usleep 300000
[ ! -e /run/during ] || failed "kept" "a write ended without a server"
# It belongs to this volume alone.
truncate -s 64M /run/other
refused "the device of another" 3 "forebay made it for something else" \
    forebay serve --bare other=/run/other --ublk other=0
# What waits at it would go over what is written through anything else.
refused "another device" 3 "serve it with --ublk home=0" \
    forebay serve $CACHE --state-dir $STATE --ublk home=1
refused "another way in" 3 "serve it with --ublk home=0" \
    forebay serve $CACHE --state-dir $STATE --nbd unix:/run/nbd
serve_ublk --ublk home
wait $WRITER
[ -e /run/during ] && [ "$(cat $MOUNT/before)" = before ] || failed "kept" "a write was lost"
ok "a stop while mounted keeps the device for the next server"
refused "twice" 3 "is in use" forebay serve $CACHE --state-dir $STATE --ublk home=1
must "unmount" umount $MOUNT
# So does one that a process has open without having it alone.
sleep 600 <$DEVICE &
OPENER=$!
stop
[ -b $DEVICE ] || failed "open" "a device that is open was removed"
kill $OPENER
ok "a stop while open keeps the device"
# And one that is under another device, which need not have it open either.
serve_ublk --ublk home=0
must "loop" modprobe loop
must "loop" losetup /dev/loop0 $DEVICE
stop
[ -b $DEVICE ] || failed "loop" "a device under a loop device was removed"
must "loop" losetup -d /dev/loop0
ok "a stop under a loop device keeps the device"
serve_ublk --ublk home=0
stop
[ ! -e $DEVICE ] || failed "stop again" "the device is still there"

# Killed at any moment around the one in which the device is taken over.
serve_ublk --ublk home=0
must "mount" mount -t ext4 $DEVICE $MOUNT
rm -f /run/enough
load >/run/load 2>&1 &
LOADER=$!
round=1
while [ $round -le $((rounds * 3)) ]; do
    kill -9 $DAEMON
    wait $DAEMON
    rm -f /run/serve.err
    forebay serve $CACHE --state-dir $STATE --ublk home >/run/serve.out 2>/run/serve.err &
    DAEMON=$!
    until grep -q 'is served' /run/serve.err || has_ended; do
        usleep 500
    done
    usleep $((round * 7919 % 23 * 500))
    grep 'once more' /run/serve.err
    grep -E 'ERROR|forebay:' /run/serve.err && failed "kills while taking over" "see above"
    round=$((round + 1))
done 2>/run/killed
kill -9 $DAEMON
wait $DAEMON 2>/run/killed
serve_ublk --ublk home=0
touch /run/enough
wait $LOADER || failed "kills while taking over" "$(tail -n 20 /run/load)"
must "unmount" umount $MOUNT
must "fsck" e2fsck -f -n $DEVICE
stop
ok "kills while taking over"

# And around the one in which the device is made.
round=1
while [ $round -le $rounds ]; do
    start_daemon --ublk home=0
    usleep $((round * 7919 % 300 * 1000))
    kill -9 $DAEMON
    wait $DAEMON
    round=$((round + 1))
done 2>/run/killed
outlived "kills while starting"

# And around the one in which it is flushed, before a stop removes it: nothing stays that could hold
# up the next server.
round=1
while [ $round -le $((rounds * 3)) ]; do
    serve_ublk --ublk home=0
    kill -TERM $DAEMON
    usleep $((round * 7919 % 60 * 500))
    kill -9 $DAEMON
    wait $DAEMON
    round=$((round + 1))
done 2>/run/killed
outlived "kills while stopping"

# A second volume with blocks of 4096, several queues; both are under load when the server dies.
truncate -s 96M /run/fine
must "attach" forebay attach $CACHE /run/fine --name fine --cache-mode writeback \
    --logical-block 4096
serve_ublk --ublk home=0 --ublk fine=1 --ublk-queues 2 --ublk-depth 64
[ "$(cat /sys/block/ublkb1/queue/logical_block_size)" = 4096 ] ||
    failed "blocks of 4096" "$(cat /sys/block/ublkb1/queue/logical_block_size)"
must "mount" mount -t ext4 $DEVICE $MOUNT
rm -f /run/enough
load >/run/load 2>&1 &
LOADER=$!
fio_verify fine /dev/ublkb1 64M >/run/fine.out 2>&1 &
FINE=$!
round=1
while [ $round -le 5 ]; do
    before=$(writes)
    until_true "round $round: load" has_written_since $before 50
    kill -9 $DAEMON
    wait $DAEMON
    serve_ublk --ublk home=0 --ublk fine=1 --ublk-queues 2 --ublk-depth 64
    round=$((round + 1))
done 2>/run/killed
wait $FINE || failed "two volumes" "$(tail -n 20 /run/fine.out)"
touch /run/enough
wait $LOADER || failed "two volumes" "$(tail -n 20 /run/load)"
must "unmount" umount $MOUNT
must "fsck" e2fsck -f -n $DEVICE
stop
[ ! -e $DEVICE ] && [ ! -e /dev/ublkb1 ] || failed "two volumes" "a device is still there"
ok "two volumes, blocks of 4096, two queues"

# An origin that grows under a file system. Kernels before 6.16 see it when the device is made anew.
serve_ublk --ublk fine=0
ext4_with_file
must "grow" truncate -s 128M /run/fine
must "grow" forebay resize fine
cat /run/output
if [ "$(cat /sys/block/ublkb0/size)" != 262144 ]; then
    grep -q 'until it is released' /run/output || failed "grow" "the answer does not say what is to be done"
    must "grow" umount $MOUNT
    stop
    serve_ublk --ublk fine=0
    must "grow" mount -t ext4 $DEVICE $MOUNT
fi
[ "$(cat /sys/block/ublkb0/size)" = 262144 ] || failed "grow" "$(cat /sys/block/ublkb0/size)"
ext4_has_grown
stop
ok "an origin that grows"

# A bare device; and NBD beside, where it is not offered.
truncate -s 64M /run/bare
rm -f /run/serve.out
forebay serve --bare bare=/run/bare --bare two=/run/other --ublk bare=0 --ublk-queues 2 --ublk-depth 32 \
    --nbd unix:/run/nbd >/run/serve.out 2>>/run/serve.err &
DAEMON=$!
until_true "bare" is_served_or_dead
grep -q 'nbd+unix:///two' /run/serve.out || failed "beside NBD" "$(cat /run/serve.out)"
grep -q 'nbd+unix:///bare' /run/serve.out && failed "beside NBD" "$(cat /run/serve.out)"
[ $(ls /sys/block/ublkb0/mq | wc -l) = 2 ] || failed "queues" "$(ls /sys/block/ublkb0/mq)"
must "bare" fio_verify bare $DEVICE 16M
ok "two queues, a bare device"
stop
[ ! -e $DEVICE ] || failed "stop of a bare device" "the device is still there"
no_errors "kernel log"
