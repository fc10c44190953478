# power-cut.sh: a file system on a volume in a machine whose power goes while it writes.
#
#   new KIND FRONT          makes volume and file system
#   again KIND FRONT LAST   starts as after a power cut, and looks at the files up to LAST
#   write FIRST             writes files from FIRST on, until the power goes
. /vm/lib.sh
. /vm/ledger.sh

case $1 in
new)
    prepare $2 $3
    ;;
again)
    kind=$2 last=$4
    find_disks
    must "check" forebay check $CACHE
    begin $3
    replay $kind
    must "mount" mount -t $kind $DEVICE $MOUNT
    look_at_ledger "$kind, $3: files up to $last are there" $last
    must "unmount" umount $MOUNT
    check_file_system "$kind, $3: sound after the cut at $last" $kind $DEVICE
    must "mount" mount -t $kind $DEVICE $MOUNT
    ;;
write)
    # Something that is not synced, so that the cut comes in the middle of other writes.
    while dd if=/dev/urandom of=$MOUNT/load bs=64k count=64 conv=notrunc; do :; done 2>/dev/null &
    write_ledger $2
    failed "write" "it ended"
    ;;
esac
