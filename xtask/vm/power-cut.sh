# power-cut.sh: ext4 on a volume in a machine whose power goes while it writes.
#
#   new            makes volume and file system
#   again LAST     starts as after a power cut, and looks at the files up to LAST
#   write FIRST    writes files from FIRST on, until the power goes
. /vm/lib.sh
. /vm/ledger.sh

case $1 in
new)
    prepare ext4
    ;;
again)
    find_disks
    must "check" forebay check $CACHE
    serve
    connect
    modprobe ext4
    replay
    must "mount" mount -t ext4 $DEVICE $MOUNT
    look_at_ledger "files up to $2 are there" $2
    must "unmount" umount $MOUNT
    check_file_system "sound after the cut at $2" ext4 $DEVICE
    must "mount" mount -t ext4 $DEVICE $MOUNT
    ;;
write)
    # Something that is not synced, so that the cut comes in the middle of other writes.
    while dd if=/dev/urandom of=$MOUNT/load bs=64k count=64 conv=notrunc; do :; done 2>/dev/null &
    write_ledger $2
    failed "write" "it ended"
    ;;
esac
