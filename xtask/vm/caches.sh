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

# One volume on the slow disk, one on the fast one.
make_volumes() {
    mkdir -p /run/lock/lvm /etc/lvm
    lvm_does pvcreate $CACHE $ORIGIN
    lvm_does vgcreate vg $CACHE $ORIGIN
    lvm_does lvcreate --yes --zero n --wipesignatures n --name volume --extents 100%PVS vg $ORIGIN
    lvm_does lvcreate --yes --zero n --wipesignatures n --name fast --extents 100%PVS vg $CACHE
    DEVICE=/dev/mapper/vg-volume
}

make_dm_cache() {
    modprobe dm-cache-smq
    make_volumes
    lvm_does lvconvert --yes --type cache --cachevol fast --cachemode writeback \
        --cachepolicy smq --chunksize 64k vg/volume
    dmsetup table vg-volume
}

make_dm_writecache() {
    modprobe dm-writecache
    make_volumes
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
}

make_forebay() {
    modprobe ublk_drv
    must "format" forebay format $CACHE
    must "attach" forebay attach $CACHE $ORIGIN --name home --cache-mode writeback
    DEVICE=/dev/ublkb0
    serve_ublk --ublk home=0
    until_true "ublk" [ -b $DEVICE ]
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
dm-cache-*) make_dm_cache ;;
dm-writecache-*) make_dm_writecache ;;
forebay-*) make_forebay ;;
esac
[ -z "$DEVICE" ] || ln -s $DEVICE /dev/cached
cp /vm/kernel-caches.toml /run
[ $seconds = 0 ] || sed -i "s/^seconds = .*/seconds = $seconds/" /run/kernel-caches.toml
cd /run
FOREBAY_ADMIN= must "$target" forebay bench run kernel-caches.toml --out results --only $target \
    --overwrite /dev/fast --overwrite /dev/slow --overwrite /dev/cached
case $target in
bcache-*) cat /sys/block/bcache0/bcache/stats_total/cache_hit_ratio ;;
dm-cache-*) dmsetup status vg-volume ;;
forebay-*) forebay status | head -n 20 ;;
esac
tar -cf - results >$RESULTS
sync
ok "$target"
