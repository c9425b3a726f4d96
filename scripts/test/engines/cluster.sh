# To be sourced in the machine: boots a Kubernetes of one node, with real authorization: Node and RBAC.
# shellcheck shell=bash

node=node-1 node_ip=10.99.0.1 api_ip=10.77.0.1 pki=/run/pki
export KUBECONFIG=$pki/admin.conf
mkdir -p /run/log /run/pid $pki

start() { # NAME COMMAND...: in the background
  local name=$1
  shift
  "$@" >> "/run/log/$name" 2>&1 &
  echo $! > "/run/pid/$name"
}
pid_of() { cat "/run/pid/$1"; }
stop() { # NAME [SIGNAL]
  local pid
  pid=$(pid_of "$1")
  kill "-${2:-TERM}" "$pid" && wait "$pid"
  true
}
await() { # NAME COMMAND...: the command succeeds within a minute, else the log of that program is shown
  local name=$1
  shift
  until_true 60 "$@" && return
  tail -n 20 "/run/log/$name"
  exit 1
}

machine() { # what a node has and the scripts' machine lacks
  mount --make-rshared /
  hostname $node
  mknod -m 600 /dev/kmsg c 1 11
  local entry file
  # The kubelet sets these, and they are the whole machine's: it gets files that agree.
  for entry in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=/run/sysctl-${entry//\//-}
    echo "${entry#*=}" > "$file"
    mount --bind "$file" "/proc/sys/${entry%=*}"
  done
  : > /etc/resolv.conf
  printf '127.0.0.1 localhost\n%s %s\n' $node_ip $node > /etc/hosts
  # There is no kube-proxy: the API server listens on its service's address, which is this machine's.
  ip link add up0 type veth peer name up1
  ip link set up0 up
  ip link set up1 up
  ip addr add $node_ip/24 dev up0
  ip addr add $api_ip/32 dev lo
  echo 1 > /proc/sys/net/ipv4/ip_forward
  mkdir -p /run/cni /run/cdi /var/lib/kubelet
  echo '{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": {"type": "host-local",
    "dataDir": "/run/cni-addresses", "ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}' \
    > /run/cni/10.conflist
  local directory
  for directory in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ ! -e "$directory/cgroup.procs" ] || mkdir "$directory/$NVC_PODS"
  done
}

# ---- certificates ----------------------------------------------------------------------------------------------------

request() {
  openssl req -x509 -config $pki/openssl.cnf -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 "$@" 2>> /run/log/openssl
}
certificate() { # NAME SUBJECT [NAMES]: O is the group and CN the user that Node and RBAC look at
  request -CA $pki/ca.crt -CAkey $pki/ca.key -subj "$2" -addext extendedKeyUsage=clientAuth,serverAuth \
    ${3:+-addext "subjectAltName=$3"} -keyout "$pki/$1.key" -out "$pki/$1.crt"
}
kubeconfig() { # NAME SUBJECT
  certificate "$1" "$2"
  cat > "$pki/$1.conf" << END
{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://127.0.0.1", certificate-authority: $pki/ca.crt}}],
users: [{name: u, user: {client-certificate: $pki/$1.crt, client-key: $pki/$1.key}}]}
END
}
certificates() {
  printf '[req]\ndistinguished_name=d\n[d]\n' > $pki/openssl.cnf
  request -subj /CN=ca -addext basicConstraints=critical,CA:TRUE -addext keyUsage=keyCertSign -keyout $pki/ca.key -out $pki/ca.crt
  certificate apiserver /CN=kube-apiserver \
    DNS:localhost,DNS:kubernetes.default.svc,DNS:kubernetes.default,IP:127.0.0.1,IP:$node_ip,IP:$api_ip
  certificate to-kubelet /O=system:masters/CN=apiserver-kubelet-client
  kubeconfig admin /O=system:masters/CN=admin
  kubeconfig kubelet /O=system:nodes/CN=system:node:$node
  kubeconfig scheduler /CN=system:kube-scheduler
  kubeconfig controllers /CN=system:kube-controller-manager
  openssl genrsa -out $pki/sa.key 2048 2>> /run/log/openssl
}

# ---- programs --------------------------------------------------------------------------------------------------------

containerd_start() {
  local version=3 images=io.containerd.cri.v1.images runtime=io.containerd.cri.v1.runtime
  local pinned="pinned_images = {sandbox = \"$image\"}" bin='bin_dirs = ["/usr/lib/cni"]'
  case $(containerd --version) in *' 1.7'*)
    version=2 images=io.containerd.grpc.v1.cri runtime=$images pinned="sandbox_image = \"$image\"" bin='bin_dir = "/usr/lib/cni"'
    ;;
  esac
  {
    echo "version = $version"
    printf "[plugins.'%s']\n%s\n" $images "$pinned"
    [ $version = 2 ] || echo "[plugins.'$runtime']"
    # Root without CAP_SYS_RESOURCE cannot lower an adjustment.
    printf 'restrict_oom_score_adj = true\nenable_cdi = true\ncdi_spec_dirs = ["/etc/cdi", "/run/cdi"]\n'
    printf "[plugins.'%s'.cni]\n%s\nconf_dir = '/run/cni'\n" $runtime "$bin"
  } > /run/containerd.toml
  start containerd containerd -c /run/containerd.toml
  await containerd ctr version
}

# An image needs no registry: it is a layer, its digest and two files.
image=localhost/test:1
import() { # NAME FOLDER
  local made digest
  made=$(mktemp -d)
  tar -C "$2" -cf "$made/layer.tar" .
  digest=$(sha256sum < "$made/layer.tar")
  echo '{"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["sleep", "infinity"]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:'"${digest%% *}"'"]}}' > "$made/config.json"
  echo '[{"Config": "config.json", "RepoTags": ["'"$1"'"], "Layers": ["layer.tar"]}]' > "$made/manifest.json"
  tar -C "$made" -c manifest.json config.json layer.tar | ctr -n k8s.io images import - > /run/log/import
  rm -r "$made"
}

control_plane_start() {
  start etcd etcd --data-dir /var/lib/etcd --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 \
    --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
  start apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --authorization-mode=Node,RBAC \
    --enable-admission-plugins=NodeRestriction --allow-privileged=true --secure-port=443 --advertise-address=$node_ip \
    --service-cluster-ip-range=10.77.0.0/24 --client-ca-file=$pki/ca.crt \
    --tls-cert-file=$pki/apiserver.crt --tls-private-key-file=$pki/apiserver.key \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=$pki/sa.key \
    --service-account-signing-key-file=$pki/sa.key --kubelet-preferred-address-types=InternalIP \
    --kubelet-client-certificate=$pki/to-kubelet.crt --kubelet-client-key=$pki/to-kubelet.key
  await apiserver kubectl get --raw /readyz
  start scheduler kube-scheduler --kubeconfig=$pki/scheduler.conf --leader-elect=false --secure-port=0
  # With the default rate the first pod is possible 4 s later.
  start controllers kube-controller-manager --kubeconfig=$pki/controllers.conf --leader-elect=false --secure-port=0 \
    --use-service-account-credentials=true --kube-api-qps=500 --kube-api-burst=500 \
    --service-account-private-key-file=$pki/sa.key --root-ca-file=$pki/ca.crt
}

kubelet_start() {
  cat > /run/kubelet.yaml << END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupRoot: /$NVC_PODS
failCgroupV1: false
failSwapOn: false
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
# A pod that could not have its devices is tried again.
syncFrequency: 5s
evictionHard: {memory.available: 1Mi}
imageGCHighThresholdPercent: 100
END
  start kubelet kubelet --config=/run/kubelet.yaml --kubeconfig=$pki/kubelet.conf --hostname-override=$node --node-ip=$node_ip --v=3
}
ready() { kubectl wait --for=condition=Ready --timeout=1s node/$node; }

cluster() { # boots it
  machine
  certificates
  containerd_start
  import $image /srv/image
  control_plane_start
  kubelet_start
  await kubelet ready
  await controllers kubectl get serviceaccount/default configmap/kube-root-ca.crt
}
