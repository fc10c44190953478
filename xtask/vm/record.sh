# record.sh: what the advisor records of a disk with blktrace is what was done to it.
. /vm/lib.sh
find_disks

refused "record: without debugfs" 1 "mount -t debugfs" forebay advise $ORIGIN --record 1s
must "debugfs" mount -t debugfs debugfs /sys/kernel/debug

forebay advise $ORIGIN --record 15s --keep /run/kept --json >/run/report 2>/run/advise.err &
ADVISOR=$!
# The kernel has it for as long as it records.
TRACE=/sys/kernel/debug/block/${ORIGIN#/dev/}/trace0
until_true "record: begun" [ -e $TRACE ]

# work NAME OPTION...: so many requests, each of one size.
work() {
    name=$1
    shift
    must "record: $name" fio --name=$name --filename=$ORIGIN --size=64M --direct=1 \
        --ioengine=libaio --iodepth=8 --thread --randrepeat=0 "$@"
}
work reads --rw=randread --bs=4k --number_ios=600
work writes --rw=randwrite --bs=16k --number_ios=400
[ -e $TRACE ] || failed "record" "it ended before the requests did"
wait $ADVISOR || failed "record" "$(cat /run/advise.err)"

# told SECTION: requests and bytes of a section of the report.
told() {
    awk -v section="\"$1\": {" 'index($0, section) { is_in = 1 }
        is_in && /"(request_count|bytes)"/ { gsub(/[^0-9]/, ""); printf "%s ", $0; if (seen++) exit }' \
        /run/report
}
[ "$(told reads)" = "600 $((600 * 4096)) " ] || failed "record: reads" "$(told reads)"
[ "$(told writes)" = "400 $((400 * 16384)) " ] || failed "record: writes" "$(told writes)"
ok "record: every request, and no other"

must "replay" forebay replay /run/kept/* --cache-size 8M
cat /run/output
grep -q blktrace /run/output || failed "record: replay" "$(cat /run/output)"
ok "record: what was kept can be replayed"
