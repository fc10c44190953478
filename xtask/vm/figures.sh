# figures.sh ROUNDS SECONDS: random reads of 4 KiB that all hit the cache, over ublk and over the
# kernel's NBD client, beside a bare RAM disk and the kernel's loop device on one. Cache device and
# origins are RAM disks, too. A line `figure NAME=VALUE...` for each phase, and a line `pair
# NAME=VALUE...` for each phase of two equal clients at once, each on a volume of its own. Where
# there is perf, then once more over both ways, with lines `profile NAME=VALUE...
# PERCENT;PROGRAM;OBJECT;FUNCTION`: what is profiled is slower, and gives no figures.
. /vm/lib.sh
rounds=$1
seconds=$2

RAM=/dev/ram0
CACHE=/dev/ram1
ORIGIN=/dev/ram2
OTHER_ORIGIN=/dev/ram3
LOOP=/dev/loop0
MIB=64

# busy: what all processors together did, in ticks of 10 ms.
busy() {
    awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 }' /proc/stat
}

# switches: how often all processors went from one thread to another, the idle ones included.
switches() {
    awk '/^ctxt/ { print $2 }' /proc/stat
}

# served: what the daemon did, in its own code and in the kernel; zero where there is none.
served() {
    if [ -n "$DAEMON" ]; then
        cut -d ' ' -f 14,15 /proc/$DAEMON/stat
    else
        echo 0 0
    fi
}

# profile TARGET DEPTH COMMAND...: where all processors were while the command ran, the idle ones
# too. There is no counter of cycles in such a guest, so a timer takes the samples; where interrupts
# are off they fall on the place at which these are switched on again.
profile() {
    what="target=$1 depth=$2"
    shift 2
    must "profile" perf record --quiet --all-cpus --event=cpu-clock --freq=999 \
        --output=/run/perf.data -- "$@"
    perf report --quiet --stdio --input=/run/perf.data --no-children --sort=comm,dso,symbol \
        --field-separator=';' --percent-limit=0.2 2>/run/perf.err >/run/profile
    [ -s /run/profile ] || failed "profile" "$(cat /run/perf.err)"
    sed -n "s/^ *\([0-9]\)/profile $what \1/p" /run/profile
    rm /run/perf.data
}

# reads DEVICE DEPTH: a job of fio.
reads() {
    echo "--name=figures --filename=$1 --size=${MIB}M --rw=randread --bs=4k --direct=1
        --ioengine=libaio --iodepth=$2 --runtime=$seconds --time_based --norandommap
        --randrepeat=0 --thread --lat_percentiles=1 --clat_percentiles=0"
}

# phase TARGET DEVICE DEPTH
phase() {
    work="fio --minimal --output=/run/fio.out $(reads $2 $3)"
    if [ $round = profile ]; then
        profile $1 $3 $work
        return
    fi
    misses=$(misses)
    before="$(busy) $(served) $(switches)"
    must "$1" $work
    after="$(switches) $(busy) $(served)"
    [ "$misses" = "$(misses)" ] || failed "$1" "some reads missed the cache"
    # Fields of fio's terse format, version 3.
    awk -F ';' -v "all=$before $after" -v "what=target=$1 depth=$3 round=$round" '$1 == 3 {
        split(all, ticks, " ")
        split($30, p99, "=")
        printf "figure %s requests=%d seconds=%.3f mean_us=%.1f p99_us=%.1f", what, $8 * $9 / 1000,
            $9 / 1000, $40, p99[2]
        printf " client_user_ms=%.0f client_system_ms=%.0f", $88 * $9 / 100, $89 * $9 / 100
        printf " server_user_ms=%d server_system_ms=%d all_ms=%d", (ticks[7] - ticks[2]) * 10,
            (ticks[8] - ticks[3]) * 10, (ticks[6] - ticks[1]) * 10
        printf " switches=%d\n", ticks[5] - ticks[4]
    }' /run/fio.out
}

# pair DEVICE DEVICE: both at once, 32 requests each.
pair() {
    misses=$(misses)
    must "pair" fio --minimal --output=/run/fio.out $(reads $1 32) $(reads $2 32)
    [ "$misses" = "$(misses)" ] || failed "pair" "some reads missed the cache"
    awk -F ';' -v "round=$round" '$1 == 3 { iops[++jobs] = $8 }
        END { printf "pair round=%d one_iops=%d other_iops=%d\n", round, iops[1], iops[2] }
    ' /run/fio.out
}

# misses: bytes of all volumes that were read and not cached.
misses() {
    [ -z "$DAEMON" ] || forebay status --json |
        sed -n 's/^ *"read_miss_bytes": \([0-9]*\),*$/\1/p' | awk '{ sum += $1 } END { print sum }'
}

phases() {
    for depth in 1 32; do
        phase $1 $2 $depth
    done
}

# is_there DEVICE: fills the cache from it, too, the first time.
is_there() {
    until_true "ublk" [ -b $1 ]
    until_true "ublk" grep -q $1 /run/serve.out
    [ $round != 1 ] || must "fill" fio --name=fill --filename=$1 \
        --size=${MIB}M --rw=read --bs=64k --direct=1 --ioengine=libaio --iodepth=4 --thread
}

over_ublk() {
    start_daemon --ublk home=0
    is_there /dev/ublkb0
    phases ublk /dev/ublkb0
    stop
    DAEMON=
}

both_over_ublk() {
    start_daemon --ublk home=0 --ublk other=1
    is_there /dev/ublkb0
    is_there /dev/ublkb1
    pair /dev/ublkb0 /dev/ublkb1
    stop
    DAEMON=
}

over_nbd() {
    start_daemon --nbd unix:$SOCKET
    until_true "nbd" grep -q home /run/serve.out
    connect
    phases nbd $DEVICE
    disconnect
    stop
    DAEMON=
}

DAEMON=
modprobe brd rd_nr=4 rd_size=$((192 * 1024))
modprobe loop
modprobe ublk_drv
must "format" forebay format $CACHE
must "write" dd if=/dev/urandom of=$ORIGIN bs=1M count=$MIB
must "write" dd if=/dev/urandom of=$OTHER_ORIGIN bs=1M count=$MIB
must "write" dd if=/dev/urandom of=$RAM bs=1M count=$MIB
must "attach" forebay attach $CACHE $ORIGIN --name home
must "attach" forebay attach $CACHE $OTHER_ORIGIN --name other
must "loop" losetup $LOOP $RAM
round=1
while [ $round -le $rounds ]; do
    phases ram $RAM
    phases loop $LOOP
    over_ublk
    over_nbd
    both_over_ublk
    round=$((round + 1))
done
if command -v perf >/run/perf; then
    echo 0 >/proc/sys/kernel/kptr_restrict
    round=profile
    over_ublk
    over_nbd
fi
ok "figures"
