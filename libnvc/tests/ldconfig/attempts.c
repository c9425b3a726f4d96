// Runs in ldconfig's place and tries everything: each line of /report is an attempt and its errno.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

extern char **environ;
static FILE *out;

// Not calls of this ABI: a number that no kernel has, and x32's, which have their own bit.
#define SYS_10000 10000
#define SYS_x32_getpid (0x40000000 | SYS_getpid)
#define SYS_x32_openat (0x40000000 | SYS_openat)
#define SYS_x32_ptrace (0x40000000 | 521)

static void note(const char *what, long result)
{
	int error = result < 0 ? errno : 0;
	fprintf(out, "%s: %d\n", what, error);
	// Immediately, because any attempt may be the last.
	fflush(out);
}

#define TRY(call) (errno = 0, note(#call, (long)(call)))
#define CALL(name, ...) (errno = 0, note(#name "(" #__VA_ARGS__ ")", syscall(SYS_##name, __VA_ARGS__)))
// A statement about the environment; 0 if it is true.
#define IS(what, condition) (errno = 1, note("is " what, (condition) ? 0 : -1))

static void programs(void)
{
	char *none[] = { NULL };
	TRY(execve("/program", none, none));
	TRY(execveat(AT_FDCWD, "/program", none, none, 0));
	TRY(fork());
	TRY(vfork());
	CALL(clone, CLONE_THREAD | CLONE_SIGHAND | CLONE_VM, 0, 0, 0, 0);
	CALL(clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
	CALL(clone3, 0, 0);
#ifdef SYS_uselib
	CALL(uselib, "/program");
#endif
	CALL(memfd_create, "x", 0);
	CALL(memfd_secret, 0);
	CALL(userfaultfd, 0);
	CALL(personality, 0x0008000 /* ADDR_COMPAT_LAYOUT */);
}

static void its_own_executable(void)
{
	TRY(open("/proc/self/exe", O_RDONLY));
	TRY(open("/proc/self/exe", O_WRONLY));
	TRY(open("/proc/1/exe", O_RDWR));
	TRY(open("/proc/thread-self/exe", O_RDWR));
	TRY(open("/proc/self/map_files", O_RDONLY));
	TRY(open("/proc/self/mem", O_RDWR));
}

static void the_host(void)
{
	TRY(open("/proc/1/root/canary", O_RDONLY));
	TRY(open("/proc/self/root/canary", O_RDONLY));
	TRY(open("/proc/self/cwd", O_PATH));
	TRY(open("/proc/self/fd/0", O_RDONLY));
	TRY(open("/proc/sys/kernel/core_pattern", O_WRONLY));
	TRY(open("/proc/sysrq-trigger", O_WRONLY));
	TRY(open("/sys/kernel/uevent_helper", O_WRONLY));
	TRY(open("/sys/fs/cgroup", O_PATH));
	TRY(open("/proc/x", O_WRONLY | O_CREAT, 0600));
	TRY(open("/sys/x", O_WRONLY | O_CREAT, 0600));
	TRY(chmod("/proc", 0777));
	TRY(open("/canary", O_RDONLY));
	TRY(open("/../canary", O_RDONLY));
	TRY(open("/../../../../canary", O_RDONLY));
	CALL(open_by_handle_at, AT_FDCWD, 0, 0);
	CALL(name_to_handle_at, AT_FDCWD, "/", 0, 0, 0);
	CALL(lookup_dcookie, 0, 0, 0);
	CALL(quotactl, 0x800001 /* Q_SYNC */, 0, 0, 0);
#ifdef SYS_sysfs
	CALL(sysfs, 3);
#endif
	// Inherited descriptors: only its own pipes, whose modes concern no other process.
	struct stat status;
	for (int fd = 0; fd < 3; fd++)
		IS("a pipe where a stream is", !fstat(fd, &status) && S_ISFIFO(status.st_mode));
	int open_ones = 0;
	for (int fd = 3; fd < 4096; fd++)
		open_ones += fd != fileno(out) && fcntl(fd, F_GETFD) != -1;
	IS("without other descriptors", open_ones == 0);
	TRY(openat(0, ".", O_RDONLY));
	TRY(openat(0, "..", O_RDONLY));
	TRY(ioctl(0, TIOCSTI, "x"));
	TRY(ioctl(1, TIOCSTI, "x"));
	TRY(ioctl(2, TIOCLINUX, "\3"));
	TRY(ioctl(0, TCGETS, 0));
	TRY(flock(0, 2));
}

static void processes(void)
{
	struct iovec piece = { &piece, sizeof piece };
	TRY(kill(-1, SIGKILL));
	TRY(kill(0, SIGKILL));
	TRY(kill(2, 0));
	CALL(tkill, 2, 0);
	CALL(tgkill, 2, 2, SIGKILL);
	CALL(rt_sigqueueinfo, 1, SIGTERM, 0);
	CALL(rt_tgsigqueueinfo, 1, 1, SIGTERM, 0);
	TRY(fcntl(0, F_SETOWN, 2));
	CALL(pidfd_open, 1, 0);
	CALL(pidfd_getfd, 0, 0, 0);
	CALL(pidfd_send_signal, 0, SIGKILL, 0, 0);
	TRY(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
	TRY(ptrace(PTRACE_ATTACH, 1, NULL, NULL));
	TRY(ptrace(PTRACE_SEIZE, 2, NULL, NULL));
	CALL(process_vm_readv, 1, &piece, 1, &piece, 1, 0);
	CALL(process_vm_writev, 1, &piece, 1, &piece, 1, 0);
	CALL(process_madvise, 0, &piece, 1, 4, 0);
	CALL(process_mrelease, 0, 0);
	CALL(kcmp, 1, 1, 0, 0, 0);
	CALL(get_robust_list, 1, 0, 0);
	CALL(move_pages, 1, 0, 0, 0, 0, 0);
	CALL(migrate_pages, 1, 0, 0, 0);
	CALL(wait4, -1, 0, 0, 0);
	CALL(prctl, 4 /* PR_SET_DUMPABLE */, 1, 0, 0, 0);
	CALL(prctl, 0x59616d61 /* PR_SET_PTRACER */, -1L, 0, 0, 0);
	CALL(seccomp, 0, 0, 0);
	IS("the first process", getpid() == 1);
	IS("without a parent", getppid() == -1);
	IS("without an environment", !environ[0]);
}

static void mounts(void)
{
	TRY(mount("none", "/tmp", "tmpfs", 0, NULL));
	TRY(mount("/", "/tmp", NULL, MS_BIND, NULL));
	TRY(mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND, NULL));
	TRY(umount2("/proc", MNT_DETACH));
	TRY(umount2("/", MNT_DETACH));
	CALL(pivot_root, ".", ".");
	TRY(chroot("."));
	CALL(fsopen, "tmpfs", 0);
	CALL(fspick, AT_FDCWD, "/", 0);
	CALL(fsconfig, 0, 0, 0, 0, 0);
	CALL(fsmount, 0, 0, 0);
	CALL(open_tree, AT_FDCWD, "/", 1 /* OPEN_TREE_CLONE */);
	CALL(move_mount, AT_FDCWD, "/", AT_FDCWD, "/tmp", 0);
	CALL(mount_setattr, AT_FDCWD, "/", 0, 0, 0);
	CALL(setns, 0, 0);
	TRY(unshare(CLONE_NEWUSER));
	TRY(unshare(CLONE_NEWNS));
	TRY(unshare(CLONE_FILES));
	TRY(sethostname("x", 1));
}

static void devices(void)
{
	TRY(mknod("/node", S_IFCHR | 0666, 0x103));
	TRY(mknod("/node", S_IFBLK | 0666, 0x801));
	TRY(mknodat(AT_FDCWD, "/node", S_IFCHR | 0666, 0x103));
	TRY(mkfifo("/node", 0666));
	TRY(open("/device", O_RDONLY));
	TRY(open("/device", O_RDWR | O_NONBLOCK));
	TRY(open("/dev/device", O_RDONLY));
#ifdef SYS_ioperm
	CALL(ioperm, 0, 1, 1);
	CALL(iopl, 3);
#endif
}

static void the_network(void)
{
	int pair[2], types[] = { SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET }, made = 0, else_refused = 0;
	for (int family = 0; family < 64; family++)
		for (int type = 0; type < 4; type++) {
			made += socket(family, types[type], 0) >= 0;
			else_refused += errno != EPERM;
		}
	IS("without sockets of any family", made == 0 && else_refused == 0);
	TRY(socket(AF_INET, SOCK_DGRAM, 0));
	TRY(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	CALL(accept4, 0, 0, 0, 0);
	CALL(recvmsg, 0, 0, 0);
	CALL(sendmsg, 1, 0, 0);
}

static void the_kernel(void)
{
	char nothing[256] = { 0 };
	CALL(bpf, 0, nothing, sizeof nothing);
	CALL(bpf, 5 /* BPF_PROG_LOAD */, nothing, sizeof nothing);
	CALL(io_uring_setup, 1, nothing);
	CALL(io_uring_enter, 0, 1, 0, 0, 0, 0);
	CALL(io_uring_register, 0, 0, 0, 0);
	CALL(perf_event_open, nothing, 0, -1, -1, 0);
	CALL(keyctl, KEYCTL_GET_KEYRING_ID, -3, 1);
	CALL(keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0);
	CALL(add_key, "user", "x", "x", 1, -3);
	CALL(request_key, "user", "x", 0, 0);
	CALL(init_module, nothing, 0, "");
	CALL(finit_module, 0, "", 0);
	CALL(delete_module, "x", 0);
	CALL(kexec_load, 0, 0, 0, 0);
	CALL(syslog, 3, nothing, sizeof nothing);
	CALL(reboot, 0xfee1dead, 672274793, 0, 0);
	CALL(settimeofday, nothing, 0);
	CALL(clock_settime, 0, nothing);
	CALL(adjtimex, nothing);
	CALL(swapon, "/device", 0);
	CALL(acct, "/report");
	CALL(fanotify_init, 0, 0);
	CALL(inotify_init1, 0);
	CALL(landlock_create_ruleset, 0, 0, 1);
	CALL(shmget, 1, 4096, 01666);
	CALL(msgget, 1, 01666);
	CALL(semget, 1, 1, 01666);
	CALL(mq_open, "x", O_RDWR | O_CREAT, 0666, 0);
	CALL(10000, 0);
	// The same calls under other numbers.
	CALL(x32_getpid, 0);
	CALL(x32_openat, AT_FDCWD, "/", O_RDONLY);
	CALL(x32_ptrace, 0, 0, 0, 0);
}

static void more(void)
{
	struct rlimit endless = { RLIM_INFINITY, RLIM_INFINITY };
	TRY(setrlimit(RLIMIT_CPU, &endless));
	TRY(setrlimit(RLIMIT_AS, &endless));
	TRY(setrlimit(RLIMIT_NOFILE, &endless));
	TRY(setrlimit(RLIMIT_FSIZE, &endless));
	TRY(setrlimit(RLIMIT_CORE, &endless));
	TRY(prlimit(2, RLIMIT_CPU, &endless, NULL));
	TRY(nice(-5));
	TRY(nice(5));
	TRY(setpriority(PRIO_USER, 0, 19));
	CALL(sched_setscheduler, 0, 1, 0);
	CALL(sched_setaffinity, 0, 0, 0);
	CALL(sched_setattr, 0, 0, 0);
	CALL(ioprio_set, 1, 0, 0);
	CALL(mlockall, 3);
	CALL(timer_create, 0, 0, 0);
#ifdef SYS_alarm
	CALL(alarm, 1);
#endif
	CALL(splice, 0, 0, 1, 0, 1, 0);
	CALL(fallocate, fileno(out), 0, 0, 1);
	TRY(truncate("/report", 1L << 40));
	TRY(mmap(NULL, 3L << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0);
	long taken = 0;
	while (mmap(NULL, 64 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED)
		taken++;
	IS("within 2 GiB of memory", taken < 32);
	int files = 0;
	while (open("/report", O_RDONLY) >= 0)
		files++;
	int why = errno;
	IS("within 64 descriptors", why == EMFILE && files < 64);
	for (int fd = 3; fd < 64; fd++)
		if (fd != fileno(out))
			close(fd);
}

static void identity(void)
{
	TRY(chown("/report", 1, 1));
	TRY(lchown("/report", 1, 1));
	TRY(link("/report", "/report2"));
	TRY(setxattr("/report", "user.x", "x", 1, 0));
	TRY(setxattr("/report", "security.capability", "x", 1, 0));
	CALL(setuid, 1);
	CALL(setresuid, 0, 0, 0);
	CALL(setgid, 1);
	CALL(setgroups, 0, 0);
	CALL(setfsuid, 1);
	CALL(capset, 0, 0);
	TRY(open("/others/file", O_WRONLY | O_CREAT, 0600));
}

// Every existing or future call number, with invalid arguments. Calls whose purpose is to end the program are left out.
static void every_number(void)
{
	for (long number = 0; number < 1024; number++) {
		if (number == SYS_exit || number == SYS_exit_group || number == SYS_rt_sigreturn)
			continue;
#ifdef __x86_64__
		// uretprobe and uprobe: the kernel hides them from filters, and kills a process without such a probe.
		if (number == 335 || number == 336)
			continue;
#endif
		errno = 0;
		long result = syscall(number, -1L, -1L, -1L, -1L, -1L, -1L);
		fprintf(out, "number %ld: %d\n", number, result == -1 ? errno : 0);
		fflush(out);
	}
}

int attempt_everything(void)
{
	// Elsewhere, with privileges, this would bring down the machine: the first process of a namespace can kill only its
	// own descendants.
	if (getpid() != 1)
		return 2;
	int fd = open("/report", O_RDWR | O_CREAT | O_TRUNC, 0666);
	out = fd < 0 ? NULL : fdopen(fd, "w");
	if (!out)
		return 3;
	programs();
	its_own_executable();
	the_host();
	processes();
	mounts();
	devices();
	the_network();
	the_kernel();
	more();
	identity();
	every_number();
	fprintf(out, "is at the end: 0\n");
	return fclose(out) ? 4 : 0;
}
