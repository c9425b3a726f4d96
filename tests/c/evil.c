/* A library of a hostile image, which leaves a file wherever it is loaded: with LD_PRELOAD, LD_AUDIT or LD_LIBRARY_PATH,
   as a module of iconv, or in place of a locale's. The directory exists on the host only. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void mark(const char *how)
{
	const char *directory = getenv("NVC_MARKS");
	char path[4096];
	snprintf(path, sizeof path, "%s/%s-%d", directory ? directory : "/no/such", how, (int)getpid());
	close(open(path, O_CREAT | O_WRONLY, 0600));
}

__attribute__((constructor)) static void loaded(void)
{
	mark("loaded");
}

unsigned la_version(unsigned version)
{
	mark("audit");
	return version;
}

int gconv_init(void *step)
{
	(void)step;
	mark("gconv");
	return 0;
}
