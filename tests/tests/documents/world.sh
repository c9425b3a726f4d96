# Completes the machine of nvidia_docker/world.sh: all of the driver's procfs, in each procfs, and no settings of this
# machine's engines. To be run in it before a script.
umount /proc/driver/nvidia /proc/driver
mount --bind /srv/sim/proc/driver /proc/driver
# A user namespace may mount a procfs only if an existing one is visible whole.
mkdir -p /srv/proc
mount -t proc proc /srv/proc
rm -rf /etc/docker /etc/containerd /etc/crio /etc/cdi /etc/nvidia-container-{runtime,toolkit} /root/.docker
mkdir -p /etc/docker /usr/lib/nvc-shims /run/work
cp -a /srv/image /srv/debian
rm -rf /srv/debian/sim-proc
export PATH=/usr/lib/nvc-shims:$PATH HOME=/root
cd /run/work

# shim NAME: installs a program that is found before the machine's program of that name; its text is standard input
shim() {
  cat > "/usr/lib/nvc-shims/$1"
  chmod 755 "/usr/lib/nvc-shims/$1"
}

# A kernel with the driver's modules shows them in every procfs. Here the programs that mount one do.
shim mount <<'END'
#!/bin/sh
/usr/bin/mount "$@" || exit
for last; do :; done
case " $* " in *" -t proc "*) /usr/bin/mount --rbind /proc/driver "$last/driver" ;; esac
END
shim bwrap <<'END'
#!/bin/bash
words=()
for word; do
  words+=("$word")
  [ "$before $word" != "--proc /proc" ] || words+=(--ro-bind /proc/driver /proc/driver)
  before=$word
done
exec /usr/bin/bwrap "${words[@]}"
END
for runtime in runc crun; do
  if program=$(command -v $runtime); then
    mv "$program" /usr/lib/nvc-sim/
    cp /usr/lib/nvc-sim/nvc-simruntime "$program"
  fi
done
