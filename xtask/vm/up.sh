# up.sh PART: block devices by `forebay up`, taken away by `forebay down`.
#
# PART is ublk, nbd, warm, or again: the last looks after a boot at what warm has left.
. /vm/lib.sh
part=$1

# Everything where it is by default.
unset FOREBAY_ADMIN
LINK=/dev/forebay/home
FINE_BYTES=$((64 * 1048576))

# up OPTION...: must succeed; what it printed is in /run/up.out.
up() {
    forebay up $CACHE --state-dir $STATE "$@" >/run/up.out 2>/run/up.err ||
        failed "up $*" "it ended with $?: $(cat /run/up.err)"
}

# is_up NAME FRONT_END: what `up` printed.
is_up() {
    [ "$(grep '^home ' /run/up.out)" = "home $LINK ($2)" ] || failed "$1" "$(cat /run/up.out)"
    [ -b $LINK ] || failed "$1" "$LINK is no block device"
    ok "$1"
}

daemon() {
    forebay status --json | sed -n 's/^ *"pid": \([0-9]*\),$/\1/p'
}

# kill_daemon: and wait until it is gone.
kill_daemon() {
    DAEMON=$(daemon)
    kill -9 $DAEMON || failed "kill" "no daemon: $DAEMON"
    until_true "kill" has_ended
}

# is_down NAME DEVICE
is_down() {
    [ ! -e $LINK ] || failed "$1" "$LINK is still there"
    [ -z "$(daemon 2>/run/output)" ] || failed "$1" "the daemon still runs"
    ls /run/forebay | grep '\.up$' && failed "$1" "it is still remembered"
    must "$1" forebay check $CACHE
    ok "$1"
}

by_ublk() {
    must "format" forebay format $CACHE
    refused "no volume" 4 "forebay attach" forebay up $CACHE --state-dir $STATE
    refused "not up" 4 "is not up" forebay down $CACHE
    must "attach" forebay attach $CACHE $ORIGIN --name home --cache-mode writeback
    # Not a multiple of its logical blocks, of which only whole ones are served.
    truncate -s $((FINE_BYTES + 512)) /run/fine
    must "attach" forebay attach $CACHE /run/fine --name fine --logical-block 4096

    # The driver's module is loaded by it.
    [ ! -e /dev/ublk-control ] || failed "up by ublk" "the driver is loaded already"
    up
    is_up "up by ublk" ublk
    grep -q '^fine /dev/forebay/fine (ublk)$' /run/up.out || failed "two volumes" "$(cat /run/up.out)"
    [ "$(blockdev --getss /dev/forebay/fine)" = 4096 ] || failed "two volumes" "blocks"
    [ "$(blockdev --getsize64 /dev/forebay/fine)" = $FINE_BYTES ] || failed "two volumes" "size"
    ok "two volumes"
    up
    grep -q 'was up already' /run/up.err || failed "up twice" "$(cat /run/up.err)"
    is_up "up twice" ublk
    refused "another front end" 3 "forebay down" forebay up $CACHE --front-end nbd

    must "mkfs" mkfs.ext4 -q -b 4096 $LINK
    must "mount" mount -t ext4 $LINK $MOUNT
    refused "down while mounted" 3 "mounted at $MOUNT" forebay down $CACHE
    sleep 600 </dev/forebay/fine &
    OPENER=$!
    refused "down while open" 3 "open in process $OPENER (sleep)" forebay down $CACHE
    kill $OPENER

    # What is mounted lives on.
    head -c 8388608 /dev/urandom >/run/known
    kill_daemon
    (cp /run/known $MOUNT/known && sync && touch /run/written) &
    WRITER=$!
    refused "down of a dead daemon's" 3 "its daemon has ended" forebay down $CACHE
    refused "another front end for a dead daemon's" 3 "waits for its daemon" \
        forebay up $CACHE --state-dir $STATE --front-end nbd
    up
    is_up "up after a kill" ublk
    grep -q 'taken over' /run/forebay/*.log || failed "taken over" "$(cat /run/forebay/*.log)"
    wait $WRITER
    [ -e /run/written ] || failed "taken over" "the writer failed"
    must "taken over" cmp /run/known $MOUNT/known
    ok "what is mounted lives on"

    # So it does when the daemon is stopped and another one started.
    must "stop" forebay stop
    up
    must "stop and up" cmp /run/known $MOUNT/known
    ok "stop and up"

    # A volume that has grown may keep its device as it was until that is made anew.
    truncate -s $((2 * FINE_BYTES)) /run/fine
    must "grow" forebay resize fine
    up
    is_up "up after a volume has grown" ublk

    # A volume that is attached meanwhile needs another daemon, which takes over.
    truncate -s 16M /run/late
    must "attach" forebay attach $CACHE /run/late --name late
    refused "attached meanwhile" 1 "was started before it was attached" \
        forebay up $CACHE --state-dir $STATE
    before=$(daemon)
    up --takeover
    is_up "up with a takeover" ublk
    [ "$(daemon)" != "$before" ] || failed "up with a takeover" "by the same daemon"
    grep -q '^late /dev/forebay/late (ublk)$' /run/up.out || failed "late" "$(cat /run/up.out)"
    must "up with a takeover" cmp /run/known $MOUNT/known
    ok "a volume that was attached meanwhile"

    must "unmount" umount $MOUNT
    must "down" forebay down $CACHE
    [ ! -e /dev/ublkb0 ] && [ ! -e /dev/ublkb1 ] || failed "down" "a device is still there"
    is_down "down"
    refused "down twice" 4 "is not up" forebay down $CACHE

    # A stop takes devices away and leaves names; `down` still knows whose these are.
    up
    must "stop" forebay stop
    start_daemon --ublk home=0
    until_true "stop" grep -q ublkb0 /run/serve.out
    must "stop" forebay down $CACHE
    wait $DAEMON || failed "stop" "the daemon ended with $?"

    # What is a virtual machine's does not become a device, even while that one is not connected.
    start_daemon --ublk home=0 --vhost-user late=/run/late.sock
    until_true "a volume of a virtual machine" grep -q ublkb0 /run/serve.out
    refused "a volume of a virtual machine" 3 "no ublk device" \
        forebay up $CACHE --state-dir $STATE --takeover
    must "a volume of a virtual machine" forebay down $CACHE
    wait $DAEMON || failed "stop" "the daemon ended with $?"
    is_down "down after a stop"

    # Nobody uses the device of a dead daemon: it goes in order.
    up
    [ "$(blockdev --getsize64 /dev/forebay/fine)" = $((2 * FINE_BYTES)) ] ||
        failed "grown" "the device that was made anew is as it was"
    kill_daemon
    must "down after a kill" forebay down $CACHE
    [ ! -e /dev/ublkb0 ] && [ ! -e /dev/ublkb1 ] || failed "down" "a device is still there"
    is_down "down after a kill"
}

# Where the kernel has no ublk driver.
by_nbd() {
    rmmod ublk_drv
    rm /lib/modules/*/kernel/drivers/block/ublk_drv.ko
    refused "no ublk" 1 "modprobe ublk_drv" \
        forebay up $CACHE --state-dir $STATE --front-end ublk
    # nbd-client cannot have blocks of 4096, and there is no nbdfuse here. The other one has its
    # device all the same.
    refused "nbd: blocks of 4096" 1 "nbd-client cannot have .fine." \
        forebay up $CACHE --state-dir $STATE
    must "detach" forebay detach fine
    up
    is_up "up by nbd" nbd
    must "fsck" e2fsck -f -n $LINK
    must "mount" mount -t ext4 $LINK $MOUNT
    must "mount" cmp /run/known $MOUNT/known
    refused "nbd: down while mounted" 3 "mounted at $MOUNT" forebay down $CACHE
    up
    is_up "nbd: up twice" nbd
    echo synced >$MOUNT/synced
    sync

    # What is mounted does not live on, and that is said.
    kill_daemon
    refused "nbd: up while a dead daemon's is mounted" 3 "does not come back" \
        forebay up $CACHE --state-dir $STATE
    refused "nbd: down while a dead daemon's is mounted" 3 "its daemon has ended" \
        forebay down $CACHE
    umount $MOUNT
    up
    is_up "nbd: up after a kill" nbd
    [ "$(ls -d /sys/block/nbd*/pid | wc -l)" = 2 ] || failed "nbd: a client each" "there are others"
    e2fsck -p $LINK >/run/output 2>&1
    [ $? -le 1 ] || failed "nbd: journal" "$(cat /run/output)"
    must "mount" mount -t ext4 $LINK $MOUNT
    [ "$(cat $MOUNT/synced)" = synced ] || failed "nbd: up after a kill" "what was synced is lost"
    ok "nbd: what was synced is there"
    must "unmount" umount $MOUNT
    must "nbd: down" forebay down $CACHE
    ls /sys/block/nbd*/pid 2>/dev/null && failed "nbd: down" "a client is still connected"
    is_down "nbd: down"
    up
    kill_daemon
    must "nbd: down after a kill" forebay down $CACHE
    ls /sys/block/nbd*/pid 2>/dev/null && failed "nbd: down" "a client is still connected"
    is_down "nbd: down after a kill"
}

# Fills the cache before the machine is switched off.
warm() {
    must "format" forebay format $CACHE --force
    must "attach" forebay attach $CACHE $ORIGIN --name home
    up
    must "mkfs" mkfs.ext4 -q -b 4096 $LINK
    must "mount" mount -t ext4 $LINK $MOUNT
    yes "what is read again" | head -c 16777216 >/run/known
    must "write" cp /run/known $MOUNT/known
    must "unmount" umount $MOUNT
    must "down before the machine is switched off" forebay down $CACHE
    ok "down before the machine is switched off"
}

again() {
    yes "what is read again" | head -c 16777216 >/run/known
    up
    is_up "up after a boot" ublk
    cached=$(number cached_bytes)
    [ $cached -gt 16777216 ] || failed "warm after a boot" "$cached bytes are cached"
    must "mount" mount -t ext4 $LINK $MOUNT
    must "warm after a boot" cmp /run/known $MOUNT/known
    hits=$(number read_hit_bytes)
    [ $hits -ge 16777216 ] || failed "warm after a boot" "$hits bytes were hits"
    echo "$cached bytes cached, $hits bytes of hits, $(number read_miss_bytes) bytes of misses"
    ok "warm after a boot"
    must "unmount" umount $MOUNT
    must "down" forebay down $CACHE
}

find_disks
case $part in
ublk) by_ublk ;;
nbd) by_nbd ;;
warm) warm ;;
again) again ;;
esac
