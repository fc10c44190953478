# What the scenarios of a guest have in common. They source this file.
#
# A scenario prints `ok NAME` for each thing that it has found to be as it should, or
# `FAILED NAME: WHY`, and ends at the first failure; all else that it prints is for the reader.

# Where the daemon and its tools meet.
export FOREBAY_ADMIN=/run/admin
SOCKET=/run/forebay.nbd
# Losing it with the power is allowed: the cache device knows what it holds.
STATE=/run/state
DEVICE=/dev/nbd0
MOUNT=/mnt
# Seconds for anything that is awaited. A slow, busy machine emulates this one.
PATIENCE=60

ok() {
    echo "ok $*"
}

# failed NAME WHY...
failed() {
    name=$1
    shift
    echo "FAILED $name: $*"
    tail -n 20 /run/serve.err 2>/dev/null
    dmesg | tail -n 20
    exit 1
}

# must NAME COMMAND...: runs a command that has to succeed, and shows its output if it does not.
must() {
    step=$1
    shift
    "$@" >/run/output 2>&1 || {
        status=$?
        tail -n 20 /run/output
        failed "$step" "$* ended with $status"
    }
}

# refused NAME STATUS WORDS COMMAND...: a command that has to end so, and to say so.
refused() {
    step=$1 wanted=$2 words=$3
    shift 3
    "$@" >/run/output 2>&1
    status=$?
    [ $status = $wanted ] || failed "$step" "$* ended with $status: $(cat /run/output)"
    grep -q "$words" /run/output || failed "$step" "$(cat /run/output)"
    tail -n 1 /run/output
    ok "$step"
}

# has_ended: the daemon has. It stays in the table of processes until it is waited for.
has_ended() {
    [ ! -e /proc/$DAEMON ] || grep -q '^State:.Z' /proc/$DAEMON/status
}

# until_true NAME COMMAND...: waits for a command to succeed.
until_true() {
    what=$1
    shift
    tries=$((PATIENCE * 10))
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || failed "$what" "$* is not true after $PATIENCE s"
        usleep 100000
    done
}

# disk SERIAL: the device that the host gave this name.
disk() {
    for serial in /sys/block/vd*/serial; do
        block=${serial%/serial}
        [ "$(cat $serial)" != $1 ] || echo /dev/${block##*/}
    done
}

# find_disks: sets CACHE and ORIGIN to the devices that the host gave these names.
find_disks() {
    CACHE=$(disk cache) ORIGIN=$(disk origin)
    [ -b "$CACHE" ] && [ -b "$ORIGIN" ] || failed "disks" "$(cat /sys/block/vd*/serial)"
}

# start OUTPUT OPTION...: starts a daemon, the process $STARTED, and has it say to a file what it
# serves.
start() {
    out=$1
    shift
    # Not to be taken for what the next daemon says.
    rm -f $out
    forebay serve $CACHE --state-dir $STATE "$@" >$out 2>>/run/serve.err &
    STARTED=$!
}

# start_daemon OPTION...: starts the daemon.
start_daemon() {
    start /run/serve.out "$@"
    DAEMON=$STARTED
}

# serve: starts the daemon, and waits until it is ready.
serve() {
    start_daemon --nbd unix:$SOCKET
    until_true "serve" grep -q home /run/serve.out
}

# serve_ublk OPTION...: starts the daemon, and waits until $DEVICE can be used.
serve_ublk() {
    start_daemon "$@"
    until_true "serve" is_served_or_dead
    grep -q $DEVICE /run/serve.out || failed "serve" "the daemon has ended"
}

is_served_or_dead() {
    grep -q $DEVICE /run/serve.out || has_ended
}

# take_over NAME: another daemon takes $DEVICE over, and the one before has ended.
take_over() {
    start /run/next.out --ublk home=0 --takeover
    until_true "$1" grep -q $DEVICE /run/next.out
    wait $DAEMON || failed "$1" "the predecessor ended with $?"
    DAEMON=$STARTED
}

# stop: as systemd does it.
stop() {
    kill -TERM $DAEMON
    wait $DAEMON || failed "stop" "the daemon ended with $?"
}

# connect [NAME]: has the kernel connect to the daemon.
connect() {
    modprobe nbd nbds_max=2
    must "connect" nbd-client -N ${1:-home} -unix $SOCKET $DEVICE -b 4096
    until_true "connect" is_connected
}

is_connected() {
    [ "$(cat /sys/block/nbd0/size)" -gt 0 ]
}

disconnect() {
    must "disconnect" nbd-client -d $DEVICE
    until_true "disconnect" [ ! -e /sys/block/nbd0/pid ]
}

# make_file_system KIND DEVICE
make_file_system() {
    modprobe $1
    case $1 in
    ext4) must "mkfs.ext4" mkfs.ext4 -q -b 4096 $2 ;;
    xfs) must "mkfs.xfs" mkfs.xfs -q -f $2 ;;
    esac
}

# ext4_with_file: a new file system, mounted, with a file whose content is known.
ext4_with_file() {
    must "grow" mkfs.ext4 -q -b 4096 $DEVICE
    must "grow" mount -t ext4 $DEVICE $MOUNT
    yes "what was there before" | head -c 4194304 >$MOUNT/before
    sync
    BLOCKS=$(df -k $MOUNT | awk 'END { print $2 }')
}

# ext4_has_grown: it gets what its device has more, and the file is still there; unmounts it.
ext4_has_grown() {
    must "grow" resize2fs $DEVICE
    blocks=$(df -k $MOUNT | awk 'END { print $2 }')
    [ $blocks -gt $((BLOCKS + 20000)) ] || failed "grow" "$BLOCKS KiB have become $blocks"
    must "grow" fio_verify grown $MOUNT/grown $((blocks / 2 / 1024))M
    yes "what was there before" | head -c 4194304 | cmp - $MOUNT/before || failed "grow" "a file"
    must "grow" umount $MOUNT
    must "grow" e2fsck -f -n $DEVICE
}

# check_file_system NAME KIND DEVICE: it is not mounted; nothing is repaired.
check_file_system() {
    case $2 in
    ext4) must "$1" e2fsck -f -n $3 ;;
    xfs) must "$1" xfs_repair -n $3 ;;
    esac
    ok "$1"
}

# begin FRONT: starts the daemon and has its volume as $DEVICE, by the kernel's client (nbd) or its
# driver (ublk).
begin() {
    case $1 in
    nbd)
        DEVICE=/dev/nbd0
        serve
        connect
        ;;
    ublk)
        DEVICE=/dev/ublkb0
        modprobe ublk_drv
        serve_ublk --ublk home=0
        ;;
    esac
}

# prepare KIND FRONT: a new volume in writeback, with an empty mounted file system.
prepare() {
    find_disks
    must "format" forebay format $CACHE --force
    must "attach" forebay attach $CACHE $ORIGIN --name home --cache-mode writeback
    begin $2
    make_file_system $1 $DEVICE
    must "mount" mount -t $1 $DEVICE $MOUNT
}

# replay KIND: what a file system needs after a crash before it is mounted, as a start of the machine
# does it. xfs does it when it is mounted.
replay() {
    modprobe $1
    [ $1 = ext4 ] || return 0
    e2fsck -p $DEVICE >/run/output 2>&1
    status=$?
    # 1: it was put in order, which the journal alone may be the reason for.
    [ $status -le 1 ] || {
        tail -n 20 /run/output
        failed "journal" "e2fsck -p ended with $status"
    }
}

# writes: how many the first ublk device has done.
writes() {
    set -- $(cat /sys/block/ublkb0/stat)
    echo $5
}

# has_written_since BEFORE COUNT: it has done so many since.
has_written_since() {
    [ $(writes) -ge $(($1 + $2)) ]
}

# fio_verify NAME FILE SIZE: writes at random and compares.
fio_verify() {
    command fio --name=$1 --filename=$2 --size=$3 --rw=randwrite --bsrange=4k-64k --bs_unaligned=0 \
        --direct=1 --ioengine=libaio --iodepth=16 --thread --verify=crc32c --verify_fatal=1 \
        --do_verify=1 --fsync=64 --randrepeat=0
}

# number NAME: the first number of this name in the status.
number() {
    forebay status --json | sed -n "s/^ *\"$1\": \([0-9]*\),*\$/\1/p" | head -n 1
}

# zeroes_are_written DEVICE: over data at its beginning, and over nothing else.
zeroes_are_written() {
    must "zeroes" dd if=/dev/urandom of=/run/data bs=1M count=6
    must "zeroes" dd if=/run/data of=$1 bs=1M oflag=direct
    must "zeroes" /bin/blkdiscard -f -z -o 1048576 -l 4194304 $1
    must "zeroes" dd if=/dev/zero of=/run/data bs=1M seek=1 count=4 conv=notrunc
    must "zeroes" cmp -n 6291456 /run/data $1
    rm /run/data
}

# load: until /run/enough is there; every byte is compared.
load() {
    while [ ! -e /run/enough ]; do
        fio_verify load $MOUNT/load 24M || return
    done
}

# no_errors NAME: the kernel tells of none.
no_errors() {
    if dmesg | grep -E 'I/O error|EXT4-fs error|Buffer I/O|WARNING|BUG:'; then
        failed "$1" "the kernel tells of errors"
    fi
    ok "$1"
}
