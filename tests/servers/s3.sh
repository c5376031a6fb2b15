#!/usr/bin/env bash
# A real S3 service for tests, on one machine: Ceph's RADOS gateway over one monitor, one manager and one
# storage daemon on a sparse file.
#
#   tests/servers/s3.sh FOLDER [PORT]
#
# S3_ADDRESS is what the gateway binds to (127.0.0.1).
# Runs in the foreground; ending it (or its process group) ends all four daemons. What was written survives in
# FOLDER, so that a test may kill it and start it again. Access key: testkey, secret key: testsecret123.
# Debian packages: radosgw ceph-mon ceph-osd ceph-mgr ceph-common ceph-base. Needs about 700 MB of memory.
set -euo pipefail

folder=${1:?usage: s3.sh FOLDER [PORT]}
port=${2:-9104}
address=${S3_ADDRESS:-127.0.0.1}
mkdir -p "$folder"/{run,log,mgr,osd}
folder=$(cd "$folder" && pwd)
conf=$folder/ceph.conf
export CEPH_CONF=$conf
children=()
trap 'kill "${children[@]}" 2>/dev/null || true' EXIT

daemon() { # name command...
  local name=$1
  shift
  "$@" -f >"$folder/log/$name.out" 2>&1 &
  children+=($!)
}

until_true() { # seconds command...
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < deadline)) || { echo "gave up waiting for: $*" >&2; exit 1; }
    sleep 0.2
  done
}

write_configuration() {
  cat >"$conf" <<EOF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon initial members = a
mon host = [v2:127.0.0.1:$((port + 1)),v1:127.0.0.1:$((port + 2))]
public network = 127.0.0.0/8
ms bind ipv6 = false
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
mgr initial modules =
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 2
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 500
mon data avail warn = 5
run dir = $folder/run
admin socket = $folder/run/\$name.asok
pid file = $folder/run/\$name.pid
log file = /dev/null
keyring = $folder/keyring
[mon.a]
mon data = $folder/mon
[mgr]
mgr data = $folder/mgr
[osd]
osd data = $folder/osd
osd objectstore = bluestore
bluestore block size = 8589934592
bluestore block db create = false
bluestore block wal create = false
bluestore fsck on mount = false
osd memory target = 939524096
[client.admin]
rgw frontends = beast endpoint=$address:$port
rgw enable usage log = false
rgw enable ops log = false
rgw thread pool size = 64
EOF
}

create_monitor() {
  write_configuration
  ceph-authtool --create-keyring "$folder/keyring" --gen-key -n mon. --cap mon 'allow *' >/dev/null
  ceph-authtool "$folder/keyring" --gen-key -n client.admin \
    --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
  local fsid
  fsid=$(awk '/^fsid/ {print $3}' "$conf")
  monmaptool --create --clobber --fsid "$fsid" \
    --addv a "[v2:127.0.0.1:$((port + 1)),v1:127.0.0.1:$((port + 2))]" "$folder/monmap" >/dev/null
  ceph-mon --mkfs -i a --monmap "$folder/monmap" --keyring "$folder/keyring"
}

create_storage() {
  local id
  id=$(cat /proc/sys/kernel/random/uuid)
  ceph osd new "$id" >/dev/null
  ceph auth get-or-create osd.0 mon 'allow profile osd' osd 'allow *' mgr 'allow profile osd' >>"$folder/keyring"
  ceph auth get-or-create mgr.x mon 'allow profile mgr' osd 'allow *' mds 'allow *' >>"$folder/keyring"
  ceph-osd -i 0 --mkfs --osd-uuid "$id" >/dev/null 2>&1
  ceph osd crush add osd.0 1.0 host=here root=default >/dev/null 2>&1
}

new=$([ -e "$folder/ready" ] || echo yes)
if [ "$new" ]; then create_monitor; fi
daemon mon ceph-mon -i a
until_true 300 timeout 5 ceph osd dump
if [ "$new" ]; then create_storage; fi
daemon osd ceph-osd -i 0
daemon mgr ceph-mgr -i x
until_true 300 bash -c "timeout 5 ceph osd stat | grep -q '1 up'"
if [ "$new" ]; then
  radosgw-admin user create --uid=test --display-name=test --access-key=testkey --secret=testsecret123 \
    >"$folder/log/user.out" 2>&1
  touch "$folder/ready"
fi
daemon rgw radosgw -n client.admin
wait "${children[-1]}"
