#!/bin/bash
# Runs our driver for Dynamic Resource Allocation on a real Kubernetes: API server, etcd, scheduler, controllers and a
# kubelet with containerd, on a machine with a simulated driver.
#
#   scripts/test/kubernetes.sh [forky|trixie] [CHECK]...     default: forky (containerd 2.1), all checks
#
# Kubernetes is compiled once from the Go modules of tests/kubernetes, which takes Go 1.26 and some minutes, and kept in
# ~/.cache/nvc-kubernetes. The machine is that of scripts/test/engines.sh, with the packages of a node in a layer of its
# own. Its cgroups are the real machine's, of either version, because a kubelet wants all controllers. Needs root,
# debootstrap, and network the first time. NVC_PROFILE=debug tries unoptimised programs; NVC_KUBERNETES_SHELL=1 opens a
# shell in the cluster at the end.
set -euo pipefail

here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
suite=forky
case ${1:-} in forky | trixie) suite=$1 && shift ;; esac
# For scripts/test/engines/machine.sh.
export NVC_HOST_CGROUPS=1
# shellcheck disable=SC2034
export NVC_PROFILE=${NVC_PROFILE:-release}
more_crates="-p nvc-node" more_programs=gpu-kubelet-plugin
# shellcheck source=scripts/test/engines/machine.sh
. scripts/test/engines/machine.sh

# The programs are one file; its names are links.
programs=${XDG_CACHE_HOME:-$HOME/.cache}/nvc-kubernetes
made=$(cat tests/kubernetes/{go.mod,go.sum,main.go} | sha256sum)
if [ "$(cat "$programs/complete" 2> /dev/null)" != "$made" ]; then
  PATH=$PATH:/usr/local/go/bin
  command -v go > /dev/null || die "go is missing"
  version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' tests/kubernetes/go.mod)
  echo "${0##*/}: compiling Kubernetes $version" >&2
  minor=${version#v1.} package=k8s.io/component-base/version
  (cd tests/kubernetes && CGO_ENABLED=0 go build -trimpath -o "$programs/root/usr/bin/kubernetes" -ldflags \
    "-s -w -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%.*}" .) || die "Go 1.26 is needed"
  for name in kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet; do
    ln -sfn kubernetes "$programs/root/usr/bin/$name"
  done
  echo "$made" > "$programs/complete"
fi

layer "kubernetes-$suite" "$suite" "etcd-server containernetworking-plugins python3-grpcio"
layers[kubernetes-$suite]=$programs/root:${layers[kubernetes-$suite]}
# The driver that an update brings.
"$bin/nvc-simdriver" profile debian | sed 's/^driver=.*/driver=575.57.08/' > "$work/new-profile"
"$bin/nvc-simdriver" build "$work/engines/new-driver" --profile "$work/new-profile" > /dev/null
"$bin/nvc-simdriver" build "$work/large" --size 16 7 --no-nodes > /dev/null
cp "$work/large/etc/nvidia-sim/profile" "$work/engines/large-profile"
cp -a examples/kubernetes "$work/engines/examples"
scripts/packages/image.sh --files "$work/engines/image"
cp scripts/packages/image.sh "$work/engines/image.sh"

# Pods' cgroups are below a folder of each hierarchy that is named as the work folder.
pods=${work##*/}-pods
end() {
  trap - EXIT
  # The machine's first process is in it, and all others end with that one. After a normal end it is gone.
  xargs -r kill -KILL < "$cgroup/cgroup.procs" 2> /dev/null || true
  local directory
  for directory in "/sys/fs/cgroup/$pods" /sys/fs/cgroup/*/"$pods"; do
    for _ in 1 2 3 4 5; do
      [ -d "$directory" ] || break
      find "$directory" -depth -type d -exec rmdir {} + 2> /dev/null || sleep 1
    done
  done
  cleanup
}
trap end EXIT
trap 'exit 143' TERM INT
# In the background, so that a signal is seen at once.
play "kubernetes-$suite" NVC_PODS="$pods" NVC_KUBERNETES_SHELL="${NVC_KUBERNETES_SHELL:-}" \
  bash /srv/engines/kubernetes.sh "$@" <&0 &
wait $!
