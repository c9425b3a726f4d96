# What ctr and a kubelet share: containerd under systemd. To be sourced.
# shellcheck shell=bash

containerd_up() {
  generate || return
  # This root may lack CAP_SYS_RESOURCE, which a pod's score for the OOM killer takes.
  grep -q restrict_oom /etc/containerd/config.toml ||
    sed -i 's/^  \[plugins."io.containerd.grpc.v1.cri"\]$/&\n    restrict_oom_score_adj = true/' /etc/containerd/config.toml
  systemd_cgroups
  nvidia-ctk --quiet runtime configure --runtime=containerd --cdi.enabled || return
  rm -f /etc/systemd/system/containerd.service
  mkdir -p /etc/systemd/system/containerd.service.d
  printf '[Service]\nLimitNOFILE=\nLimitNPROC=\nLimitCORE=\nOOMScoreAdjust=0\nExecStartPre=\n' \
    > /etc/systemd/system/containerd.service.d/plain.conf
  systemctl daemon-reload && systemctl restart containerd && until_true 60 ctr version
}
# The kubelet's cgroups are units of systemd if containerd is told so for its runtime; ours takes that over.
systemd_cgroups() {
  ! grep -q SystemdCgroup /etc/containerd/config.toml || return 0
  # Debian's file is of version 2, also for containerd 2.
  cat >> /etc/containerd/config.toml << EOF
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = true
EOF
}
import_image() { # NAME: for containerd, by buildah, also as the sandbox's
  rm -f /tmp/cri.tar
  buildah rm image-for-cri > /dev/null 2>&1
  buildah from --name image-for-cri scratch && buildah add -q image-for-cri /srv/image / &&
    buildah config --cmd 'sleep 1000' --env PATH=/usr/bin:/bin:/sbin image-for-cri &&
    buildah commit -q image-for-cri "oci-archive:/tmp/cri.tar:$1" && ctr -n k8s.io images import /tmp/cri.tar
}
down() { systemctl stop containerd; }
event_engine-restart() { systemctl restart containerd && until_true 60 ctr version; }
