#!/bin/bash
# The first process of a node: mounts, then containerd and the kubelet, which start again when they end. The variables
# NODE_* come from namespaced.py.
set -u
hostname "$NODE_NAME"
mount -t proc proc /proc
for name in $NODE_PROC; do mount --bind "$NODE_DIRECTORY/proc/$name" "/proc/$name"; done
for pair in $NODE_SHARED; do
    mkdir -p "${pair#*:}"
    mount --bind "$NODE_DIRECTORY/${pair%%:*}" "${pair#*:}"
done
# The node sees its own branch of each hierarchy of control groups as the root.
mount -t tmpfs tmpfs /sys/fs/cgroup
for controller in cpu cpuacct cpuset memory devices freezer blkio pids; do
    mkdir -p "/sys/fs/cgroup/$controller"
    mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
done
mkdir -p /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
mount --make-rshared /

keep() { # NAME COMMAND...
    while :; do
        while [ -e "$NODE_DIRECTORY/$1.hold" ]; do sleep 0.1; done
        "${@:2}" >>"$NODE_DIRECTORY/$1.log" 2>&1
        echo "$1 ended: $?"
        sleep 0.5
    done
}
keep containerd containerd --config "$NODE_DIRECTORY/etc/containerd.toml" &
until ctr -n k8s.io version >/dev/null 2>&1; do sleep 0.1; done
if [ ! -e "$NODE_DIRECTORY/imported" ]; then
    for image in "$NODE_IMAGES"/*.tar; do ctr -n k8s.io images import --no-unpack=false "$image"; done
    touch "$NODE_DIRECTORY/imported"
fi
keep kubelet kubelet --config "$NODE_DIRECTORY/etc/kubelet.json" --kubeconfig "$NODE_KUBECONFIG" \
    --node-ip "$NODE_ADDRESS" --hostname-override "$NODE_NAME" --v=2 &
# A node exporter, as a DaemonSet with the host's network and process IDs has it.
keep node-exporter $NODE_EXPORTER &
wait
