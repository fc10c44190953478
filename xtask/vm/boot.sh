# boot.sh PART [NAME]: a machine with systemd, on which a volume is mounted at boot.
#
#   first-use         sets it up, as README.md says
#   clean-end         looks at how the machine went down before this boot
#   warm NAME         after a boot: everything is mounted, and the cache is warm
#   kill              the daemon is killed while nobody has a file open
#   service           it is killed under load, replaced, made to hang, and stopped
#   require, allow    has the next boots wait for the volume, or not
#   swapped, no-cache, no-origin
#                     after a boot with such disks
#   write, after-cut  before and after the power goes
. /vm/lib.sh
part=$1 name=$2

# Everything where it is by default.
unset FOREBAY_ADMIN
SERVICE=forebay@home
MOUNT=/home
CACHE=/dev/disk/by-id/virtio-cache
ORIGIN=/dev/disk/by-id/virtio-origin
# Files with content; their sums are on the disk of the system.
FILES=$MOUNT/files
SUMS=/root/sums
FILE_BYTES=4194304
. /vm/ledger.sh
# Long enough for a watchdog of 30 s, and for `--wait 60` at a boot.
PATIENCE=120

# failed NAME WHY...
failed() {
    step=$1
    shift
    echo "FAILED $step: $*"
    systemctl --failed --no-legend --plain
    systemctl list-jobs --no-legend
    journalctl -b --no-pager -o short-monotonic -n 40 -u $SERVICE -u home.mount -u init.scope
    cat /run/forebay/*.log | tail -n 20
    dmesg | tail -n 20
    exit 1
}

# readme NAME: runs the commands of a block of README.md, in the folder of the source.
readme() {
    sed -n "/^<!-- tested: $1 -->\$/,/^\`\`\`\$/p" README.md | sed '1,2d;$d' >/run/block
    [ -s /run/block ] || failed "$1" "README.md has no such block"
    must "$1" env CACHE=$CACHE ORIGIN=$ORIGIN MOUNT=$MOUNT sh -e /run/block
}

is_mounted() {
    grep -q "^/dev/ublkb[0-9]* $MOUNT ext4 " /proc/mounts
}

# has_settled: all jobs of the boot have ended. Asked again and again, so that a boot that does not
# end is a failure that shows its jobs; `is-system-running --wait` would wait for ever.
has_settled() {
    case $(systemctl is-system-running) in
    running | degraded) ;;
    *) return 1 ;;
    esac
}

main_pid() {
    systemctl show --property MainPID --value $SERVICE
}

# has_other_daemon PID: the service is active with another daemon than this.
has_other_daemon() {
    systemctl is-active --quiet $SERVICE && [ "$(main_pid)" != $1 ] && [ "$(main_pid)" != 0 ]
}

# origin_reads: how many sectors the origin has read, as the kernel counts them.
origin_reads() {
    set -- $(cat /sys/block/$(basename $(readlink -f $ORIGIN))/stat)
    echo $3
}

first_use() {
    # A disk with a file system and files, as it was before anybody thought of a cache.
    until_true "disks" [ -b $ORIGIN -a -b $CACHE ]
    must "old disk" mkfs.ext4 -q -b 4096 $ORIGIN
    must "old disk" mount $ORIGIN $MOUNT
    mkdir $FILES
    for file in 1 2 3 4; do head -c $FILE_BYTES /dev/urandom >$FILES/$file; done
    md5sum $FILES/* >$SUMS
    must "old disk" umount $MOUNT

    cd /vm/project || failed "source" "there is none"
    mkdir -p target/release
    cp /vm/bin/forebay target/release
    readme install
    readme first-use
    must "first use" md5sum --quiet -c $SUMS
    ok "first use"
    must "at boot" umount $MOUNT
    must "at boot" forebay down $CACHE
    readme at-boot
    until_true "at boot" is_mounted
    must "at boot" md5sum --quiet -c $SUMS
    systemctl is-active --quiet $SERVICE || failed "at boot" "the service is not active"
    ok "at boot: set up"
}

# What the journal has of the boot before: the mount went before the daemon, and both in order.
clean_end() {
    journalctl -b -1 --no-pager -o cat -u $SERVICE -u home.mount >/run/journal
    grep -q "home.mount: Deactivated successfully" /run/journal ||
        failed "clean end" "/home was not unmounted: $(tail -n 20 /run/journal)"
    grep -q "$SERVICE.service: Deactivated successfully" /run/journal ||
        failed "clean end" "the daemon did not end in order: $(tail -n 20 /run/journal)"
    order=$(grep -E "^Unmounted|^Stopping" /run/journal | tail -n 2 | cut -d' ' -f1 | xargs)
    [ "$order" = "Unmounted Stopping" ] || failed "clean end" "$order: $(tail -n 20 /run/journal)"
    ok "clean end"
}

warm() {
    until_true "$name: the system is up" has_settled
    state=$(systemctl is-system-running)
    until_true "$name: mounted" is_mounted
    [ "$state" = running ] || failed "$name: the system is up" "$state: $(systemctl --failed)"
    [ "$(readlink -f /dev/forebay/home)" = "$(sed -n "s: $MOUNT ext4 .*::p" /proc/mounts)" ] ||
        failed "$name: mounted" "by another device than /dev/forebay/home"
    ok "$name: mounted at boot"
    must "$name: warm" forebay status --reset
    before=$(origin_reads)
    must "$name: warm" md5sum --quiet -c $SUMS
    read=$((($(origin_reads) - before) * 512))
    hits=$(number read_hit_bytes) misses=$(number read_miss_bytes)
    echo "$hits bytes of hits, $misses of misses, $read bytes read from the origin"
    [ $hits -ge $((4 * FILE_BYTES)) ] && [ $misses = 0 ] && [ $read = 0 ] ||
        failed "$name: warm" "not all was read from the cache"
    ok "$name: warm"
    no_errors "$name: kernel log"
}

# start_load: writes and syncs files until it cannot.
start_load() {
    : >/run/ledger
    write_ledger 1 >>/run/ledger &
    LOADER=$!
}

synced() {
    wc -l </run/ledger
}

has_synced_since() {
    [ $(synced) -ge $(($1 + $2)) ]
}

# goes_on NAME: what is mounted serves the load.
goes_on() {
    before=$(synced)
    until_true "$1" has_synced_since $before 10
    kill -0 $LOADER || failed "$1" "the load has ended"
    is_mounted || failed "$1" "$MOUNT is not mounted"
    ok "$1"
}

stop_load() {
    kill $LOADER
    wait $LOADER 2>/dev/null
    look_at_ledger "$1" $(synced)
}

# A mount that required the service would be taken down before the daemon is started again, and
# wait for it with what is to be written.
kill_at_rest() {
    cp /vm/bin/busybox $MOUNT/written
    pid=$(main_pid)
    kill -9 $pid
    until_true "kill" has_other_daemon $pid
    journalctl -b --no-pager -o cat -u home.mount | grep "^Unmounting" &&
        failed "kill" "$MOUNT was unmounted"
    is_mounted || failed "kill" "$MOUNT is not mounted"
    must "kill" sync -f $MOUNT
    must "kill" cmp /vm/bin/busybox $MOUNT/written
    systemctl show --property NRestarts $SERVICE
    ok "kill: restarted, and what is mounted lives on"
}

service() {
    start_load
    goes_on "load"

    pid=$(main_pid)
    kill -9 $pid
    until_true "kill" has_other_daemon $pid
    goes_on "kill under load: restarted, and no error"

    # Both are the daemon of the service, one after the other.
    pid=$(main_pid) since=$(systemctl show --property ActiveEnterTimestampMonotonic --value $SERVICE)
    must "reload" systemctl reload $SERVICE
    has_other_daemon $pid || failed "reload" "the main process is $(main_pid)"
    [ "$(forebay status --json | sed -n 's/^ *"pid": \([0-9]*\),$/\1/p')" = $(main_pid) ] ||
        failed "reload" "the main process is not the daemon"
    [ "$(systemctl show --property ActiveEnterTimestampMonotonic --value $SERVICE)" = $since ] ||
        failed "reload" "the service was not active all the time"
    goes_on "reload: another daemon, and the service stays active"

    pid=$(main_pid)
    kill -STOP $pid
    until_true "watchdog" has_other_daemon $pid
    journalctl -b --no-pager -o cat -u $SERVICE | grep -q "Watchdog timeout" ||
        failed "watchdog" "it was not the watchdog"
    goes_on "watchdog: a daemon that hangs is replaced"

    # So many starts in so short a time are not what systemd takes for sound.
    must "limit" systemctl reset-failed $SERVICE
    systemctl stop $SERVICE >/run/output 2>&1
    systemctl is-active --quiet $SERVICE && failed "stop" "the service is active"
    is_mounted || failed "stop" "what is in use was unmounted"
    must "start" systemctl start $SERVICE
    goes_on "stop and start while in use"
    must "restart" systemctl restart $SERVICE
    goes_on "restart while in use"
    stop_load "files up to the last"
    no_errors "service: kernel log"

    must "unmount" umount $MOUNT
    must "stop" systemctl stop $SERVICE
    [ ! -e /dev/ublkb0 ] || failed "stop" "the device is still there"
    must "stop" e2fsck -f -n $ORIGIN
    ok "stop while not in use: everything is taken down"
    name_is_not_given_again
    must "start" systemctl start $SERVICE
    must "start" mount $MOUNT
    must "start" md5sum --quiet -c $SUMS
    ok "start"
    by_nbd
}

# Without `nofail` local file systems are there only when this one is.
require() {
    sed -i "s: ext4  nofail,: ext4  :" /etc/fstab
    grep "^/dev/forebay/home  $MOUNT  ext4  x-systemd.after=" /etc/fstab ||
        failed "require" "$(cat /etc/fstab)"
    ok "the next boot waits for the volume"
}

allow() {
    systemctl show --property RequiredBy home.mount | grep local-fs.target ||
        failed "allow" "the boot did not require $MOUNT"
    sed -i "s: ext4  x-systemd: ext4  nofail,x-systemd:" /etc/fstab
    grep "^/dev/forebay/home  $MOUNT  ext4  nofail,x-systemd.after=" /etc/fstab ||
        failed "allow" "$(cat /etc/fstab)"
    ok "the next boots do not"
}

# name_is_not_given_again: a daemon that is stopped takes its device away, and leaves the name. The
# next device with that number is none of `up`.
name_is_not_given_again() {
    must "name" forebay up $CACHE
    [ "$(readlink -f /dev/forebay/home)" = /dev/ublkb0 ] || failed "name" "there is none"
    must "name" forebay stop
    [ ! -e /dev/ublkb0 ] || failed "name" "the device is still there"
    forebay serve $CACHE --ublk home=0 >/run/serve.out 2>/run/serve.err &
    DAEMON=$!
    until_true "name" grep -q ublkb0 /run/serve.out
    must "name" udevadm settle
    [ ! -e /dev/forebay/home ] || failed "name" "it is that of another device"
    kill -TERM $DAEMON
    wait $DAEMON || failed "name" "the daemon ended with $?"
    ok "the name of a device that was stopped is not given again"
}

# by_nbd: the kernel's NBD client in place of ublk, in the same unit.
by_nbd() {
    must "nbd" systemctl reset-failed $SERVICE
    must "nbd" umount $MOUNT
    must "nbd" systemctl stop $SERVICE
    echo "OPTIONS=--front-end nbd" >>/etc/forebay/home.conf
    must "nbd" systemctl start $SERVICE
    must "nbd" mount $MOUNT
    grep -q "^/dev/nbd[0-9]* $MOUNT ext4 " /proc/mounts || failed "nbd" "$(cat /proc/mounts)"
    udevadm info --query=symlink --name="$(readlink -f /dev/forebay/home)" | grep forebay/home ||
        failed "nbd" "udev does not know the name"
    must "nbd" md5sum --quiet -c $SUMS
    must "nbd" cp /vm/bin/busybox $MOUNT/written
    must "nbd" sync -f $MOUNT
    must "nbd" umount $MOUNT
    must "nbd" systemctl stop $SERVICE
    [ -z "$(cat /sys/block/nbd*/pid 2>/dev/null)" ] || failed "nbd" "a device is still connected"
    must "nbd" e2fsck -f -n $ORIGIN
    sed -i /^OPTIONS=/d /etc/forebay/home.conf
    must "nbd" systemctl start $SERVICE
    must "nbd" mount $MOUNT
    is_mounted || failed "nbd" "$MOUNT is mounted by something else: $(cat /proc/mounts)"
    must "nbd" cmp /vm/bin/busybox $MOUNT/written
    ok "nbd: mounted by the kernel's client, and taken down"
}

# boots_without NAME RESULT STATUS: the machine is up without the volume, and the service ended so.
boots_without() {
    until_true "$1" has_settled
    systemctl is-active --quiet multi-user.target || failed "$1" "no multi-user.target"
    is_mounted && failed "$1" "$MOUNT is mounted"
    set -- $1 $2 "$(systemctl show --property ActiveState --value $SERVICE)" $3 \
        "$(systemctl show --property ExecMainStatus --value $SERVICE)"
    [ "$3" = $2 ] && [ "$5" = $4 ] || failed "$1" "the service is $3, its status $5"
    for unit in $(systemctl --failed --no-legend --plain | cut -d' ' -f1); do
        [ $unit = $SERVICE.service ] || failed "$1" "$unit failed, too"
    done
    systemctl show --property UserspaceTimestampMonotonic --property FinishTimestampMonotonic
    ok "$1: the machine is up"
}

# told NAME WORDS: the journal of the service has them.
told() {
    journalctl -b --no-pager -o cat -u $SERVICE >/run/journal
    grep "$2" /run/journal | tail -n 1 | grep . || failed "$1" "$(tail -n 20 /run/journal)"
    ok "$1: said so"
}

write() {
    start_load
    goes_on "load"
    # What is reported here is to be there after the power went.
    synced >/root/synced
    sync
    goes_on "the power may go"
}

after_cut() {
    until_true "power cut: mounted" is_mounted
    look_at_ledger "power cut: what was synced is there" $(cat /root/synced)
}

case $part in
first-use) first_use ;;
clean-end) clean_end ;;
warm) warm ;;
kill) kill_at_rest ;;
service) service ;;
swapped)
    boots_without "swapped" failed 5
    told "swapped" "is no usable cache device"
    ;;
no-cache)
    boots_without "no-cache" failed 4
    told "no-cache" "has not appeared in 60 s"
    ;;
no-origin)
    boots_without "no-origin" active 0
    told "no-origin" "is not served: cannot open"
    told "no-origin: no device" "has no block device: cannot open"
    [ "$(forebay status --json | sed -n 's/^ *"state": "\(origin_missing\)",$/\1/p')" ] ||
        failed "no-origin" "$(forebay status --json)"
    ok "no-origin: in the status"
    ;;
require) require ;;
allow) allow ;;
write) write ;;
after-cut) after_cut ;;
esac
