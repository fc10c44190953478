# Numbered files whose content follows from their number, each reported when it is synced.
#
# After a crash every file up to the last report must be there and whole. The one after it may be
# in any state. The counter is renamed over its older self, so it also shows that what was renamed
# and synced does not come back as the older file.

LEDGER=$MOUNT/ledger

# content NUMBER: from 1,000 to 30,000 bytes, so that most files end inside of a block.
content() {
    yes "file $1" 2>/dev/null | head -c $(($1 * 7 % 30 * 1000 + 1000))
}

# write_ledger FIRST: writes files from this number on until it cannot, and reports each.
write_ledger() {
    number=$1
    mkdir -p $LEDGER
    while content $number >$LEDGER/$number && sync $LEDGER/$number $LEDGER &&
        echo $number >$LEDGER/counter.new && sync $LEDGER/counter.new &&
        mv $LEDGER/counter.new $LEDGER/counter && sync $LEDGER; do
        echo "synced $number"
        number=$((number + 1))
    done 2>/dev/null
}

# look_at_ledger NAME LAST: all files up to LAST are there and whole.
look_at_ledger() {
    number=1
    while [ $number -le $2 ]; do
        content $number | cmp -s - $LEDGER/$number ||
            failed "$1" "file $number of $2 that were synced: $(ls -l $LEDGER/$number 2>&1)"
        number=$((number + 1))
    done
    counter=$(cat $LEDGER/counter)
    [ "$counter" -ge $2 ] || failed "$1" "the counter is $counter, and was synced as $2"
    ok "$1"
}
