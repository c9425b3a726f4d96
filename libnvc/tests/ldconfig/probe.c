// Stands in for ldconfig: does what the first directory on its command line says.
// Linked statically, as ldconfig is.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;
static int report_fd;

static void note(const char *what, long result)
{
	char line[160];
	int n = snprintf(line, sizeof line, "%s: %d\n", what, result < 0 ? errno : 0);
	write(report_fd, line, n);
}

#define TRY(call) (errno = 0, note(#call, (long)(call)))

static void report(void)
{
	char *none[] = { NULL };
	report_fd = open("/report", O_WRONLY | O_CREAT | O_TRUNC, 0666);
	if (report_fd < 0)
		exit(3);
	TRY(socket(AF_UNIX, SOCK_STREAM, 0));
	TRY(socket(AF_INET, SOCK_DGRAM, 0));
	TRY(fork());
	TRY(syscall(SYS_clone3, NULL, 0));
	TRY(execve("/program", none, none));
	TRY(execveat(AT_FDCWD, "/program", none, none, 0));
	TRY(mount("none", "/tmp", "tmpfs", 0, NULL));
	TRY(umount2("/proc", MNT_DETACH));
	TRY(syscall(SYS_pivot_root, ".", "."));
	TRY(chroot("."));
	TRY(unshare(CLONE_NEWUSER));
	TRY(syscall(SYS_setns, 0, 0));
	TRY(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
	TRY(mknod("/node", S_IFCHR | 0666, 0x103));
	TRY(syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, -3, 1));
	TRY(syscall(SYS_bpf, 0, NULL, 0));
	TRY(syscall(SYS_io_uring_setup, 1, NULL));
	TRY(syscall(SYS_open_by_handle_at, 0, NULL, 0));
	TRY(syscall(SYS_memfd_create, "x", 0));
	TRY(chown("/report", 1, 1));
	TRY(setuid(1));
	TRY(kill(-1, SIGKILL));
	TRY(syscall(10000));
	TRY(open("/device", O_RDONLY));
	TRY(open("/proc/self/exe", O_RDONLY));
	TRY(open("/proc/x", O_WRONLY | O_CREAT, 0600));
	TRY(open("/sys/x", O_WRONLY | O_CREAT, 0600));
	TRY(open("/../../../../canary", O_RDONLY));
	TRY(open("/canary", O_RDONLY));
	TRY(open("/others/file", O_WRONLY | O_CREAT, 0600));
	note("environment is empty", environ[0] ? -1 : 0);
	note("is the first process", getpid() == 1 ? 0 : -1);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 5 ? argv[5] : "";
	if (!strcmp(mode, "/exit")) {
		fprintf(stderr, "first words\nlast words\n");
		return 7;
	}
	if (!strcmp(mode, "/crash"))
		*(volatile int *)8 = 0;
	if (!strcmp(mode, "/spin"))
		for (;;)
			;
	if (!strcmp(mode, "/flood")) {
		static char line[1 << 16];
		memset(line, 'x', sizeof line);
		line[sizeof line - 1] = '\n';
		for (int i = 0; i < 1 << 14; i++)
			if (write(1, line, sizeof line) < 0)
				return 4;
	}
	if (!strcmp(mode, "/large")) {
		static char block[1 << 20];
		int fd = open("/large", O_WRONLY | O_CREAT, 0600);
		for (int i = 0; i < 200; i++)
			if (write(fd, block, sizeof block) < 0) {
				perror("/large");
				return 5;
			}
	}
	if (!strcmp(mode, "/report"))
		report();
	return 0;
}
