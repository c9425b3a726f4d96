// Runs in place of ldconfig: the first directory on its command line selects what it does. Linked statically, like
// ldconfig.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int attempt_everything(void);

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
	if (!strcmp(mode, "/wait")) {
		int word = 0;
		syscall(SYS_futex, &word, 0 /* FUTEX_WAIT */, 0, NULL);
	}
#ifdef __x86_64__
	if (!strcmp(mode, "/int80")) {
		long result;
		__asm__ volatile("int $0x80" : "=a"(result) : "a"(20 /* getpid */) : "memory");
		return 9;
	}
#endif
	if (!strcmp(mode, "/report"))
		return attempt_everything();
	return 0;
}
