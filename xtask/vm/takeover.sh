# takeover.sh ROUNDS: a volume as a block device of the kernel, on ext4 and under load, whose daemon
# is replaced by another one ROUNDS times, in good order and not.
. /vm/lib.sh
rounds=$1

DEVICE=/dev/ublkb0
PATIENCE=120

find_disks
rm -rf $STATE
modprobe ext4
modprobe ublk_drv
must "format" forebay format $CACHE
must "attach" forebay attach $CACHE $ORIGIN --name home --cache-mode writeback
serve_ublk --ublk home=0
must "mkfs" mkfs.ext4 -q -b 4096 $DEVICE
must "mount" mount -t ext4 $DEVICE $MOUNT
rm -f /run/enough
load >/run/load 2>&1 &
LOADER=$!

# In good order.
round=1
while [ $round -le $rounds ]; do
    before=$(writes)
    until_true "round $round: load" has_written_since $before 60
    take_over "round $round: takeover"
    round=$((round + 1))
done
ok "$rounds takeovers under load"
grep 'taken over' /run/serve.err | tail -n 4

# The device has to be named again.
refused "a device that nobody claims" 2 "add --ublk home" \
    forebay serve $CACHE --state-dir $STATE --nbd unix:/run/nbd --takeover
refused "another device" 3 "serve it with --ublk home=0" \
    forebay serve $CACHE --state-dir $STATE --ublk home=1 --takeover

# The successor dies, at another moment in each round: the daemon goes on, or has handed over, and
# then an ordinary start finds the device.
round=1
while [ $round -le $rounds ]; do
    before=$(writes)
    until_true "round $round: load" has_written_since $before 60
    start /run/next.out --ublk home=0 --takeover
    usleep $((round * 7919 % 40 * 20000))
    kill -9 $STARTED
    wait $STARTED
    usleep 500000
    if has_ended; then
        wait $DAEMON || failed "killed successors" "the predecessor ended with $?"
        serve_ublk --ublk home=0
    fi
    round=$((round + 1))
done 2>/run/killed
before=$(writes)
until_true "after the kills: load" has_written_since $before 60
ok "successors killed under load"

touch /run/enough
wait $LOADER || failed "load" "$(tail -n 20 /run/load)"
must "unmount" umount $MOUNT
must "fsck" e2fsck -f -n $DEVICE
ok "no error and no wrong byte"
no_errors "kernel log"
stop
[ ! -e $DEVICE ] || failed "stop" "the device is still there"
must "check" forebay check $CACHE
ok "stop and check"
