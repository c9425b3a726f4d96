# To be sourced by kubernetes.sh: what the driver must do on a real Kubernetes, in order. Each group ends without pods.
# shellcheck shell=bash disable=SC2154 # variables of the scripts that source it

examples=/srv/engines/examples
driver=gpu.nvidia.com records=/var/lib/kubelet/plugins/gpu.nvidia.com

# ---- words of the checks ---------------------------------------------------------------------------------------------

example() { # NAME...: objects of pods.yaml, with an image that needs no registry
  local name
  for name; do
    awk -v RS='---\n' -v name="$name" '$0 ~ "\n  name: " name "\n" { print "---"; print }' $examples/pods.yaml |
      sed "s,image: .*,image: $image," | kubectl apply -f - || return
  done
}
is_ready() { kubectl wait --for=condition=Ready --timeout=60s "pod/$1"; }
is_pending() { # POD: it is not scheduled, and stays so
  until_true 10 reason_is "$1" Unschedulable && sleep 1 && reason_is "$1" Unschedulable
}
reason_is() { [ "$(kubectl get pod "$1" -o 'jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}')" = "$2" ]; }
gone() { kubectl delete --now --ignore-not-found --timeout=60s pod "$@"; }
inside() { kubectl exec "$1" -- "${@:2}"; } # POD COMMAND...
all_gone() {
  kubectl delete --now --timeout=60s --all pod && kubectl delete --timeout=30s --all resourceclaim,resourceclaimtemplate &&
    until_true 60 nothing_is_left
}
# A claim's traces are its file and its record.
nothing_is_left() { [ -z "$(ls /run/cdi)" ] && [ -z "$(find $records -name '*-*-*-*-*')" ] || { ls /run/cdi $records; return 1; }; }
devices() { kubectl get resourceslices -o 'jsonpath={range .items[*].spec.devices[*]}{.name}{"\n"}{end}' | sort; }
devices_are() { devices | diff <(printf '%s\n' "$@") - ; }
driver_pod() { kubectl -n nvidia-dra get pod -l app=gpu-kubelet-plugin -o name; }
driver_log() { kubectl -n nvidia-dra logs --tail=-1 -l app=gpu-kubelet-plugin; }
driver_is_ready() { kubectl -n nvidia-dra rollout status --timeout=30s daemonset/gpu-kubelet-plugin; }

# ---- 0: installation -------------------------------------------------------------------------------------------------

test_0_install() {
  check "buildah makes the image" env STORAGE_DRIVER=vfs bash /srv/engines/image.sh --commit /srv/engines/image /tmp/image.tar
  check "containerd takes it" ctr -n k8s.io images import /tmp/image.tar
  echo "       the image has $(($(stat -c %s /tmp/image.tar) / 1000000)) MB"
  kubectl label node $node nvidia.com/gpu.present=true > /dev/null
  check "rights and classes" kubectl apply -f $examples/rights.yaml -f $examples/classes.yaml
  check "the driver" kubectl apply -f $examples/driver.yaml
  check "it is ready" driver_is_ready
  check "its devices" until_true 10 devices_are gpu-0 gpu-1-mig-2g20gb-14-4 gpu-1-mig-3g40gb-9-0
}

# ---- 1: rights -------------------------------------------------------------------------------------------------------

test_1_rights() {
  local ours="--as=system:serviceaccount:nvidia-dra:gpu-kubelet-plugin --as-user-extra=authentication.kubernetes.io/node-name"
  check "a slice of its own node" slice $node $driver $ours=$node
  # A policy is in force about a second after it was made.
  check "a slice of another node" until_true 20 says "may not change the slices of" slice node-2 $driver $ours=$node
  pool=node-2 check "a slice of another node's pool" until_true 20 says "may not change the slices of" slice $node $driver $ours=$node
  check "a slice of another driver" until_true 20 says "its own slices only" slice $node other.com $ours=$node
  check "a token without a node" until_true 20 says "may not change the slices of" slice $node $driver ${ours% *}
  local what
  for what in "list resourceclaims" "update nodes" "get secrets" "list pods" "create pods" "create serviceaccounts/token"; do
    # shellcheck disable=SC2086 # several words
    check "it may not $what" says no kubectl auth can-i $what -A ${ours% *}
  done
}
# shellcheck disable=SC2086 # several words
slice() { # NODE DRIVER OPTION...
  kubectl create --dry-run=server "${@:3}" -f - << END
{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {generateName: x-}, spec: {driver: $2, nodeName: $1,
  pool: {name: ${pool:-$1}, generation: 1, resourceSliceCount: 1}, devices: []}}
END
}

# ---- 2: pods ---------------------------------------------------------------------------------------------------------

test_2_pods() {
  check "a pod with limits" example by-limits
  check "it runs" is_ready by-limits
  check "it sees its GPU and no other" sees 0 mknod -- inside by-limits
  check "a pod with a claim" example one-gpu by-claim
  check "waits for the device" is_pending by-claim
  check "the first pod ends" gone by-limits
  check "it gets the device" is_ready by-claim
  check "it sees its GPU and no other" sees 0 mknod -- inside by-claim
  check "a pod with a MIG device" example one-mig by-mig
  check "it runs" is_ready by-mig
  check "it sees its MIG device alone" sees_mig inside by-mig
  check "the pods end" all_gone
  check "a claim that is shared" example shared-gpu by-shared-claim
  check "its pod runs" is_ready by-shared-claim
  check "it sees its GPU and no other" sees 0 mknod -- inside by-shared-claim
  check "the pods end" all_gone
}

# ---- 3: what is missing ----------------------------------------------------------------------------------------------

test_3_missing() {
  mv /dev/nvidia0 /tmp/nvidia0
  check "a pod, without its node" example by-limits
  check "is refused, with the reason" until_true 30 event_says by-limits /dev/nvidia0
  mv /tmp/nvidia0 /dev/nvidia0
  check "the node is back: the pod runs" is_ready by-limits
  rm -f /run/cdi/*
  check "without files of claims, the driver starts" driver_restarts
  local before
  before=$(container_of by-limits)
  check "the pod's sandbox ends" kill_sandbox by-limits
  check "the pod is made again" until_true 60 is_another by-limits "$before"
  check "it sees its GPU and no other" sees 0 mknod -- inside by-limits
  check "the pods end" all_gone

  # A driver that comes after ours has started.
  mv /dev/nvidiactl /tmp/nvidiactl
  kubectl -n nvidia-dra delete --now "$(driver_pod)" > /tmp/log 2>&1
  check "without NVIDIA's driver, ours starts" driver_is_ready
  check "its slice is empty" until_true 20 sizes_are 0
  check "an Event of the node has the reason" until_true 20 event_says $node "no device can be given"
  local before
  before=$(driver_pod)
  mv /tmp/nvidiactl /dev/nvidiactl
  check "the driver comes: its devices" until_true 20 devices_are gpu-0 gpu-1-mig-2g20gb-14-4 gpu-1-mig-3g40gb-9-0
  check "without a restart" test "$before" = "$(driver_pod)"
  check "a pod" example by-limits
  check "runs" is_ready by-limits
  check "the pods end" all_gone
}
event_says() { # POD TEXT
  kubectl get events --field-selector "involvedObject.name=$1" -o 'jsonpath={range .items[*]}{.message}{"\n"}{end}' | grep -F -- "$2"
}
driver_restarts() {
  kubectl -n nvidia-dra delete --now "$(driver_pod)" && driver_is_ready && until_true 10 devices_are gpu-0 gpu-1-mig-2g20gb-14-4 gpu-1-mig-3g40gb-9-0
}
container_of() { kubectl get pod "$1" -o 'jsonpath={.status.containerStatuses[0].containerID}'; }
is_another() { # POD CONTAINER: it runs in another container
  local now
  now=$(container_of "$1")
  [ -n "$now" ] && [ "$now" != "$2" ] && kubectl wait --for=condition=Ready --timeout=1s "pod/$1"
}
kill_sandbox() { # POD: that which runs; there may be older ones
  local sandbox killed=1
  for sandbox in $(ctr -n k8s.io containers list -q "labels.\"io.kubernetes.pod.name\"==$1,labels.\"io.cri-containerd.kind\"==sandbox"); do
    ctr -n k8s.io tasks kill --signal KILL "$sandbox" && killed=0
  done
  return $killed
}

# ---- 4: restarts -----------------------------------------------------------------------------------------------------

test_4_restarts() {
  check "a pod" example by-limits
  check "runs" is_ready by-limits
  local before slices
  before=$(container_of by-limits)
  slices=$(slice_ids)
  stop kubelet
  kubelet_start
  check "a kubelet that starts deletes slices, and they come back" until_true 30 other_slices "$slices"
  await kubelet ready
  check "the pod has not noticed" test "$before" = "$(container_of by-limits)"
  # A kubelet that has just started does not know its pods yet.
  check "it sees its GPU and no other" until_true 20 sees 0 mknod -- inside by-limits
  check "the driver restarts" driver_restarts
  check "the pod has not noticed" test "$before" = "$(container_of by-limits)"
  check "the pods end" all_gone

  check "a second driver" second_driver
  check "a pod with two drivers" example by-limits
  check "runs" is_ready by-limits
  check "the first driver ends" kubectl -n nvidia-dra delete --now pod/second
  check "its pod ends, and nothing is left" all_gone
  check "a pod with one driver" example by-limits
  check "runs" is_ready by-limits
  check "the pods end" all_gone

  local moment
  for moment in 0.02 0.05 0.1 0.15 0.2 0.3 0.4; do
    check "a driver that is killed $moment s after a pod was made" killed_meanwhile $moment
  done
}
slice_ids() { kubectl get resourceslices -o 'jsonpath={.items[*].metadata.uid}'; }
other_slices() { # IDS: the slices are others than these, and the same devices
  [ "$(slice_ids)" != "$1" ] && devices_are gpu-0 gpu-1-mig-2g20gb-14-4 gpu-1-mig-3g40gb-9-0
}
second_driver() {
  kubectl -n nvidia-dra get daemonset gpu-kubelet-plugin -o json | python3 -c '
import json, sys
template = json.load(sys.stdin)["spec"]["template"]
template["spec"]["nodeName"] = sys.argv[1]
print(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "second", "namespace": "nvidia-dra"}, "spec": template["spec"]}))
' $node | kubectl apply -f - && kubectl -n nvidia-dra wait --for=condition=Ready --timeout=30s pod/second
}
killed_meanwhile() { # SECONDS
  example by-limits
  sleep "$1"
  # A pod of its own for each: a kubelet waits longer and longer before it starts a container again.
  pkill -KILL -x gpu-kubelet-plu && kubectl -n nvidia-dra delete --now "$(driver_pod)" && driver_is_ready || return
  is_ready by-limits && sees 0 mknod -- inside by-limits && all_gone
}

# ---- 5: errors of a GPU ----------------------------------------------------------------------------------------------

test_5_errors() {
  check "a pod" example one-gpu by-claim
  check "runs" is_ready by-claim
  check "its GPU is well" until_true 30 health_is by-claim Healthy
  echo recovery.0=1 > /etc/nvidia-sim/readings
  gpu_event "xid gpu=$uuid code=79"
  check "XID 79: its GPU is tainted, and no other" until_true 20 taints_are "gpu-0 $driver/xid=79"
  check "the pod's status says so" until_true 30 health_is by-claim Unhealthy
  stop kubelet
  kubelet_start
  await kubelet ready
  check "the driver restarts" driver_restarts
  check "it is still tainted" until_true 20 taints_are "gpu-0 $driver/xid=79"
  check "the pod's status says so" until_true 30 health_is by-claim Unhealthy
  rm /etc/nvidia-sim/readings
  gpu_event "recovery gpu=$uuid"
  check "after its recovery it is not" until_true 60 taints_are
  check "the pod's status says so" until_true 30 health_is by-claim Healthy
  check "the pods end" all_gone
}
uuid=GPU-51a2d1c0-64a7-4f6e-8d3b-0c9c5e2f7a10
gpu_event() { echo "$1" >> /etc/nvidia-sim/events; }
taints_are() { # LINES
  # No line at all is an answer, too.
  kubectl get resourceslices -o 'jsonpath={range .items[*].spec.devices[*]}{.name}{range .taints[*]} {.key}={.value}{end}{"\n"}{end}' |
    { grep = || true; } | diff <([ $# = 0 ] || printf '%s\n' "$@") -
}
health_is() { # POD HEALTH
  [ "$(kubectl get pod "$1" -o 'jsonpath={.status.containerStatuses[0].allocatedResourcesStatus[*].resources[*].health}')" = "$2" ]
}

# ---- 6: changes of the driver ----------------------------------------------------------------------------------------

test_6_changes() {
  check "the driver's version" version_is 570.124.6
  find /usr/lib /usr/bin -name '*570.124.06*' -delete
  cp -a /srv/engines/new-driver/usr/. /usr/
  cp -a /srv/engines/new-driver/etc/nvidia-sim/. /etc/nvidia-sim/
  cp /srv/engines/new-driver/proc/driver/nvidia/version /srv/sim/proc/driver/nvidia/version
  ldconfig
  check "an update is published" until_true 20 version_is 575.57.8
  check "a pod" example by-limits
  check "runs" is_ready by-limits
  check "it has the new libraries" has_driver 575.57.08
  check "the pods end" all_gone
  local capabilities=/srv/sim/proc/driver/nvidia/capabilities/gpu1/mig
  cp -a $capabilities /tmp/mig
  cp /etc/nvidia-sim/profile /tmp/profile
  sed -i '/^mig /d; s/mig=on/mig=off/' /etc/nvidia-sim/profile
  rm -r $capabilities/gi*
  check "a GPU that is no longer divided is published" until_true 20 devices_are gpu-0 gpu-1
  check "two pods" example by-limits one-gpu by-claim
  check "run" is_ready by-limits
  check "at the same time" is_ready by-claim
  check "with a GPU each" different by-limits by-claim
  check "the pods end" all_gone
  cp -a /tmp/mig/. $capabilities/
  cp /tmp/profile /etc/nvidia-sim/profile
  check "a GPU that is divided again is published" until_true 20 devices_are gpu-0 gpu-1-mig-2g20gb-14-4 gpu-1-mig-3g40gb-9-0
  check "a pod with a MIG device" example one-mig by-mig
  check "runs" is_ready by-mig
  check "it sees its MIG device alone" sees_mig inside by-mig
  check "the pods end" all_gone
  # The API server takes 64 devices in a slice if one has a taint.
  cp /srv/engines/large-profile /etc/nvidia-sim/profile
  check "16 GPUs with 7 MIG devices each are published" until_true 30 sizes_are 64 48
  local first
  first=$(sed -n 's/^gpu minor=0 .* uuid=\([^ ]*\) .*/\1/p' /etc/nvidia-sim/profile)
  check "XID 79: the seven of one GPU are tainted" until_true 20 seven_are_tainted "$first"
  check "in the same slices" sizes_are 64 48
  cp /tmp/profile /etc/nvidia-sim/profile
  check "the GPUs of before are published" until_true 20 devices_are gpu-0 gpu-1-mig-2g20gb-14-4 gpu-1-mig-3g40gb-9-0
  check "without a taint" until_true 20 taints_are
}
sizes_are() { # NUMBER...: of the slices
  kubectl get resourceslices -o json | python3 -c '
import json, sys
slices = json.load(sys.stdin)["items"]
print(*sorted((len(one["spec"].get("devices", [])) for one in slices), reverse=True))
assert {one["spec"]["pool"]["resourceSliceCount"] for one in slices} == {len(slices)}
assert len({one["spec"]["pool"]["generation"] for one in slices}) == 1
' | grep -x "$*"
}
seven_are_tainted() { # UUID; a watch that has just begun may miss the first event
  local lines
  mapfile -t lines < <(seq -f "gpu-0-mig-1g10gb-19-%.0f $driver/xid=79" 0 6)
  gpu_event "xid gpu=$1 code=79"
  sleep 0.5
  taints_are "${lines[@]}"
}
version_is() { # of all devices, as a semantic version
  [ "$(kubectl get resourceslices -o 'jsonpath={range .items[*].spec.devices[*]}{.attributes.driverVersion.version}{"\n"}{end}' | sort -u)" = "$1" ]
}
has_driver() { inside by-limits ls -l /usr/lib/x86_64-linux-gnu/ > /tmp/files; grep "libcuda.so.$1" /tmp/files && ! grep 570 /tmp/files; }
different() { [ "$(inside "$1" nvidia-smi -L)" != "$(inside "$2" nvidia-smi -L)" ]; }

# ---- 7: another program that gives GPUs ------------------------------------------------------------------------------

test_7_plugins() {
  start plugin python3 /srv/engines/device-plugin.py example.com/gpu $uuid
  check "a device plugin has the same GPU" until_true 30 allocatable example.com/gpu
  check "a pod of the plugin" plugin_pod
  check "runs" is_ready by-plugin
  check "its GPU is tainted, and no other" until_true 20 taints_are "gpu-0 $driver/device-plugin="
  check "the pod ends" gone by-plugin
  check "it is not tainted" until_true 20 taints_are
  check "a pod with a claim" example one-gpu by-claim
  check "runs" is_ready by-claim
  check "the plugin gives its GPU again" plugin_pod
  check "runs" is_ready by-plugin
  check "an Event of the node names the claim and the pod" until_true 30 \
    event_says $node "by a device plugin to the pod default/by-plugin"
  check "the GPU is tainted" until_true 20 taints_are "gpu-0 $driver/device-plugin="
  check "the pods end" all_gone
  # With the lock, nothing is published.
  check "it is not tainted" until_true 20 taints_are

  # At the same moment: between its two looks Prepare waits for a lock, and meanwhile the plugin is asked and answers.
  start lock flock --no-fork $records/pu.lock sleep infinity
  touch /run/plugin-hold
  rm -f /run/plugin-asked
  local before
  before=$(looked by-claim)
  check "a pod with a claim" example one-gpu by-claim
  check "its Prepare has looked once" until_true 30 has_looked by-claim "$before"
  check "and has given nothing" nothing_is_left
  check "the plugin is asked for the same GPU" plugin_pod
  check "and has not answered" until_true 30 test -e /run/plugin-asked
  rm /run/plugin-hold
  check "the plugin's pod runs" is_ready by-plugin
  stop lock
  check "the second look takes the grant back: an Event of the one pod names the other" until_true 30 \
    event_says by-claim "gpu-0 is given to the pod default/by-plugin by a device plugin"
  check "the GPU is tainted at once" until_true 1 taints_are "gpu-0 $driver/device-plugin="
  check "nothing is left of the grant" nothing_is_left
  check "the plugin's pod ends" gone by-plugin
  check "the pod with the claim gets its GPU" is_ready by-claim
  check "and no other" sees 0 mknod -- inside by-claim
  check "the pods end" all_gone
  stop plugin
}
looked() { driver_log | grep -c "No plugin has given the devices of default/$1"; } # POD
has_looked() { [ "$(looked "$1")" -gt "$2" ]; }
allocatable() { [ "$(kubectl get node $node -o jsonpath="{.status.allocatable.${1//./\\.}}")" = 1 ]; }
plugin_pod() {
  kubectl apply -f - << END
{apiVersion: v1, kind: Pod, metadata: {name: by-plugin}, spec: {terminationGracePeriodSeconds: 1,
  containers: [{name: main, image: $image, resources: {limits: {example.com/gpu: 1}}}]}}
END
}

# ---- 8: figures ------------------------------------------------------------------------------------------------------

test_8_figures() {
  local times=() from n
  for n in 1 2 3 4 5; do
    from=$(date +%s%N)
    check "pod $n with a claim" example one-gpu by-claim
    check "runs" kubectl wait --for=jsonpath='{.status.phase}'=Running --timeout=60s pod/by-claim
    times+=("$((($(date +%s%N) - from) / 1000000))")
    check "and ends" all_gone
  done
  echo "       apply to Running: ${times[*]} ms"
  kubectl get --raw "/api/v1/nodes/$node/proxy/metrics" | awk '/^dra_grpc_operations_duration_seconds/ && /NodePrepareResources/ && /"OK"/ {
      if (/_sum/) sum += $2
      if (/_count/) count += $2
      if (/le="0.1"/) soon += $2
    }
    END { printf "       Prepare: %d calls, %d of them within 100 ms, %d ms on average\n", count, soon, 1000 * sum / count }'
}
