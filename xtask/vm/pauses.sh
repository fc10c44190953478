# pauses.sh ROUNDS: how long a client of a ublk device waits while the daemon is replaced by another
# one that has to read a log with 1 GiB of cached extents, of 4 KiB, the smallest and so the most of
# them. The client has one request under way, reads of what is cached and every eighth time a write.
# A line `pause NAME=VALUE...` for each round: the longest latency, the same without a takeover, and
# the phases as the successor logs them.
. /vm/lib.sh
rounds=$1

DEVICE=/dev/ublkb0
PATIENCE=180
# How long the client works, and when in that time the daemon is replaced.
QUIET_SECONDS=10
CLIENT_SECONDS=40
BEFORE_US=8000000
# What is cached, and what of it the client touches: that is read last, so the policy keeps it.
CACHED_MIB=1024
HOT_MIB=64

# reads NAME OFFSET SIZE AMOUNT: each block once, at random.
reads() {
    must "fill" fio --name=$1 --filename=$DEVICE --offset=$2 --size=$3 --io_size=$4 \
        --rw=randread --bs=4k --direct=1 --ioengine=libaio --iodepth=32 --thread
}

# client FILE SECONDS: the client; what fio says goes to the file.
client() {
    fio --minimal --eta=never --output=$1 --name=client --filename=$DEVICE --size=${HOT_MIB}M \
        --rw=randrw --rwmixwrite=12 --bs=4k --direct=1 --ioengine=psync --runtime=$2 --time_based \
        --norandommap --randrepeat=0 --thread --lat_percentiles=1 --clat_percentiles=0
}

# longest FILE: of reads and writes, in microseconds: fields of fio's terse format, version 3.
longest() {
    awk -F ';' '$1 == 3 { printf "%d", ($39 > $80 ? $39 : $80) }' $1
}

# logged NAME: a number of the last takeover in the log.
logged() {
    sed -n "s/.*taken over.* $1=\([0-9]*\).*/\1/p" /run/serve.err | tail -n 1
}

find_disks
modprobe ublk_drv
must "format" forebay format $CACHE
must "attach" forebay attach $CACHE $ORIGIN --name home --cache-mode writeback
serve_ublk --ublk home=0
reads cold ${HOT_MIB}M 100% $((CACHED_MIB - HOT_MIB))M
reads hot 0 ${HOT_MIB}M ${HOT_MIB}M
cached="extents=$(number cached_extent_count) cached_bytes=$(number cached_bytes)"
ok "fill: $cached"

round=1
while [ $round -le $rounds ]; do
    client /run/quiet.out $QUIET_SECONDS || failed "pause" "fio ended with $?"
    client /run/client.out $CLIENT_SECONDS &
    CLIENT=$!
    usleep $BEFORE_US
    take_over "takeover"
    wait $CLIENT || failed "takeover" "fio ended with $?: $(cat /run/client.out)"
    PAUSE_MS=$(logged pause_ms)
    [ $(longest /run/client.out) -ge $((PAUSE_MS * 800)) ] ||
        failed "takeover" "the client has not waited for it: $(longest /run/client.out) us"
    echo "pause round=$round longest_us=$(longest /run/client.out)" \
        "quiet_us=$(longest /run/quiet.out) handed_ms=$(logged handed_ms)" \
        "start_ms=$(logged start_ms) pause_ms=$PAUSE_MS $cached"
    round=$((round + 1))
done
no_errors "kernel log"
stop
must "check" forebay check $CACHE
ok "pauses"
