# caches.sh TARGET SECONDS: sets up what a target of the plan `kernel-caches` measures, and measures it
# once. SECONDS of a phase are those of the plan if zero. What comes out is written as an archive to
# the disk `results`.
. /vm/lib.sh
target=$1
seconds=$2

# As LVM has it where no udev makes its devices and nothing checks metadata at every start.
LVM_CONFIG='activation { udev_sync=0 udev_rules=0 } global { cache_check_executable="" }
    backup { backup=0 archive=0 } devices { use_devicesfile=0 }'

lvm_does() {
    must "$*" lvm "$@" --config "$LVM_CONFIG"
}

# How much of the cache holds data, as a share of 1: a line for each time that hits are counted.
OCCUPANCY=/run/occupancy

# count_hits: the script on stdin prints how many reads hit, and how many missed, since the start. The
# plan asks it before a phase and after.
count_hits() {
    { echo '#!/bin/sh' && cat; } >/run/hit-counts
    chmod +x /run/hit-counts
}

# The disks are new: there is nothing to clear.
PLAIN="--zero n --wipesignatures n"

# make_volumes OPTION...: one volume on the slow disk, and with these options one on the fast one.
make_volumes() {
    mkdir -p /run/lock/lvm /etc/lvm
    lvm_does pvcreate $CACHE $ORIGIN
    lvm_does vgcreate vg $CACHE $ORIGIN
    lvm_does lvcreate --yes $PLAIN --name volume --extents 100%PVS vg $ORIGIN
    lvm_does lvcreate --yes "$@" --name fast --extents 100%PVS vg $CACHE
    DEVICE=/dev/mapper/vg-volume
}

# make_dm_cache KIND OPTION...: the fast volume, made with these options, is a `cachevol`, which holds
# metadata, too, or a `cachepool`, whose metadata is a volume of its own.
make_dm_cache() {
    kind=$1
    shift
    modprobe dm-cache-smq
    make_volumes "$@"
    lvm_does lvconvert --yes --type cache --$kind fast --cachemode writeback \
        --cachepolicy smq --chunksize 64k vg/volume
    dmsetup table vg-volume
    count_hits <<END
dmsetup status vg-volume >/run/status
awk '{ split(\$7, blocks, "/"); print blocks[1] / blocks[2] }' /run/status >>$OCCUPANCY
awk '{ print \$8, \$9 }' /run/status
END
}

# is_at_least SHARE LEAST
is_at_least() {
    awk "BEGIN { exit !($1 >= $2) }"
}

# fill_dm_cache: reads the other data of the plan's phase `junk` until it fills the cache. The policy smq
# promotes by how often parts were asked for in periods of its own clock, so how many times that takes
# depends on the machine. A cache that stays emptier is refused after the measurement.
fill_dm_cache() {
    for pass in $(seq 40); do
        must "occupancy" /run/hit-counts
        share=$(tail -n 1 $OCCUPANCY)
        echo "other data fills $share of the cache"
        ! is_at_least $share 0.95 || return 0
        must "pass $pass" dd if=$DEVICE of=/dev/null bs=1M skip=2048 count=1024 iflag=direct
    done
}

make_dm_writecache() {
    modprobe dm-writecache
    make_volumes $PLAIN
    lvm_does lvchange --activate n vg/fast
    lvm_does lvconvert --yes --type writecache --cachevol fast vg/volume
    dmsetup table vg-volume
}

make_bcache() {
    modprobe bcache
    must "make-bcache" make-bcache --writeback -B $ORIGIN -C $CACHE
    for member in $ORIGIN $CACHE; do
        echo $member >/sys/fs/bcache/register || failed "bcache" "$member cannot be registered"
    done
    DEVICE=/dev/bcache0
    until_true "bcache" [ -b $DEVICE ]
    until_true "bcache" grep -q clean /sys/block/bcache0/bcache/state
    # The kernel adds what it has counted to its totals every 300/13 s.
    count_hits <<'END'
sleep 24
cd /sys/block/bcache0/bcache/stats_total
echo $(($(cat cache_hits) + $(cat cache_bypass_hits)))
echo $(($(cat cache_misses) + $(cat cache_bypass_misses)))
END
}

make_forebay() {
    modprobe ublk_drv
    must "format" forebay format $CACHE
    must "attach" forebay attach $CACHE $ORIGIN --name home --cache-mode writeback
    DEVICE=/dev/ublkb0
    serve_ublk --ublk home=0
    until_true "ublk" [ -b $DEVICE ]
    count_hits <<END
forebay status --json --admin $FOREBAY_ADMIN >/run/status
sed -n 's/.*"occupancy": *\([0-9.]*\).*/\1/p' /run/status >>$OCCUPANCY
for count in hit miss; do
    sed -n "s/.*\"read_\${count}_bytes\": *\([0-9]*\).*/\1/p" /run/status
done
END
}

find_disks
RESULTS=$(disk results)
ln -s $CACHE /dev/fast
ln -s $ORIGIN /dev/slow
case $target in
bcache-0-*)
    make_bcache
    echo 0 >/sys/block/bcache0/bcache/sequential_cutoff
    ;;
bcache-*) make_bcache ;;
dm-cache-*) make_dm_cache cachevol $PLAIN ;;
dm-cachepool-*) make_dm_cache cachepool --type cache-pool --chunksize 64k ;;
dm-writecache-*) make_dm_writecache ;;
forebay-*) make_forebay ;;
esac
case $target in
dm-cache*-junk) fill_dm_cache ;;
esac
[ -z "$DEVICE" ] || ln -s $DEVICE /dev/cached
cp /vm/kernel-caches.toml /run
[ $seconds = 0 ] || sed -i "s/^seconds = .*/seconds = $seconds/" /run/kernel-caches.toml
cd /run
FOREBAY_ADMIN= must "$target" forebay bench run kernel-caches.toml --out results --only $target \
    --overwrite /dev/fast --overwrite /dev/slow --overwrite /dev/cached
case $target in
dm-cache*) dmsetup status vg-volume ;;
forebay-*) forebay status | head -n 20 ;;
esac
case $target in
*-junk)
    # The last line is of the end of the reads, that before it of their beginning.
    share=$(tail -n 2 $OCCUPANCY | head -n 1)
    is_at_least $share 0.9 ||
        failed "$target" "other data fills $share of the cache, which is not full of it"
    echo "other data fills $share of the cache"
    ;;
esac
tar -cf - results >$RESULTS
sync
ok "$target"
